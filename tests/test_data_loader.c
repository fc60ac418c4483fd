/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The loader: order, packing, threads, exact resume, parts, limits, agreement with core/samples.
 */
#include "core/model/samples.h"
#include "loader_fixture.h"
#include "exec/data/pack.h"

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    return h;
}

/* Everything that a sequence holds, as one number. */
static uint64_t digest(const struct dt_sequence *s)
{
    uint64_t h = mix(0xcbf29ce484222325u, s->ids, 3 * (size_t)s->seq_len * sizeof *s->ids);

    h = mix(h, &s->index, sizeof s->index);
    for (int i = 0; i < s->n_docs; i++) {
        h = mix(h, &s->docs[i].sample, 8);
        h = mix(h, &s->docs[i].label, 8);
        h = mix(h, &s->docs[i].task, sizeof s->docs[i].task);
    }
    for (int i = 0; i < s->n_items; i++) {
        h = mix(h, &s->items[i].w, sizeof(int));
        if (s->items[i].px)
            h = mix(h, s->items[i].px, 3 * (size_t)s->items[i].w * (size_t)s->items[i].h);
    }
    return h;
}

/* Digests of all sequences; returns how many. */
static int all(const struct dt_loader_options *o, uint64_t *h, int max)
{
    struct dt_loader *l = open_loader(o);
    struct dt_sequence *s;
    int n = 0;

    while ((s = next(l))) {
        ck_assert_int_lt(n, max);
        ck_assert_int_eq(s->index, n);
        h[n++] = digest(s);
        dt_sequence_free(s);
    }
    ck_assert_ptr_null(next(l)); /* the end stays the end */
    dt_loader_close(l);
    return n;
}

START_TEST(threads)
{
    struct dt_loader_options o = options();
    uint64_t a[300], b[300];
    int n = all(&o, a, 300), again;
    static const int counts[] = {1, 2, 5}, queues[] = {1, 3, 64};

    ck_assert_int_gt(n, 30);
    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 3; q++) {
            o.threads = counts[k];
            o.queue = queues[q];
            again = all(&o, b, 300);
            ck_assert_int_eq(again, n);
            ck_assert_mem_eq(a, b, (size_t)n * sizeof *a);
        }
    o.seed++;
    all(&o, b, 300);
    ck_assert_uint_ne(a[0], b[0]);
}
END_TEST

/* From the cursor behind any sequence the rest follows exactly, with other threads and queues, too.
 */
START_TEST(resume)
{
    struct dt_loader_options o = options();
    uint64_t h[300];
    int n = all(&o, h, 300);

    for (int stop = 0; stop <= n; stop++) {
        struct dt_loader *l;
        struct dt_sequence *s;
        struct dt_data_cursor c;

        o = options();
        o.threads = stop % 3;
        l = open_loader(&o);
        for (int i = 0; i < stop; i++)
            dt_sequence_free(next(l));
        dt_loader_cursor(l, &c);
        dt_loader_close(l);
        o.cursor = c;
        o.threads = (stop + 1) % 3;
        o.queue = 1 + stop % 5;
        l = open_loader(&o);
        for (int i = stop; i < n && i < stop + 3; i++) {
            s = next(l);
            ck_assert_ptr_nonnull(s);
            ck_assert_int_eq(s->index, i);
            ck_assert_uint_eq(digest(s), h[i]);
            dt_sequence_free(s);
        }
        dt_loader_close(l);
    }
}
END_TEST

START_TEST(foreign_cursor)
{
    struct dt_loader_options o = options();
    struct dt_loader *l = open_loader(&o);
    struct dt_data_cursor c, again;
    struct dt_sequence *s;

    dt_sequence_free(next(l));
    dt_loader_cursor(l, &c);
    dt_loader_close(l);
    o.cursor = c;
    o.seq_len++;
    ck_assert_int_eq(dt_loader_open(&o, &err, &l), DT_ERR_INPUT);
    dt_assert_has(err.message, "cursor");
    o = options();
    o.n_shards--;
    o.cursor = c;
    ck_assert_int_eq(dt_loader_open(&o, &err, &l), DT_ERR_INPUT);
    o = options();
    o.cursor = c;
    o.cursor.position = SAMPLES;
    ck_assert_int_eq(dt_loader_open(&o, &err, &l), DT_ERR_INPUT);
    for (int reader = 1; reader <= DT_LOADER_READER + 1; reader++) {
        o.cursor = c;
        o.cursor.reader = reader;
        if (reader == DT_LOADER_READER)
            continue;
        ck_assert_int_eq(dt_loader_open(&o, &err, &l), DT_ERR_INPUT);
        dt_assert_has(err.message, reader < DT_LOADER_READER ? dt_loader_reader_since(reader)
                                                             : "a later version");
        if (reader < DT_LOADER_READER)
            dt_assert_has(err.message, reader < 2 ? "read differently: pixels of PNGs of 16 bits"
                                                  : "read differently: bos, eos and pad");
        o.changed = true; /* at the same place */
        l = open_loader(&o);
        s = next(l);
        ck_assert_int_eq(s->index, 1);
        dt_sequence_free(s);
        dt_loader_cursor(l, &again);
        ck_assert_int_eq(again.reader, DT_LOADER_READER);
        dt_loader_close(l);
        o.changed = false;
    }
}
END_TEST

/* Each epoch holds each sample once; parts share an epoch without overlap; epochs differ in order.
 */
START_TEST(coverage)
{
    for (int parts = 1; parts <= 3; parts++) {
        int seen[2][SAMPLES] = {{0}};
        uint64_t first[2] = {0};

        for (int part = 0; part < parts; part++) {
            struct dt_loader_options o = options();
            struct dt_loader *l;
            struct dt_sequence *s;
            int64_t taken = 0, mine = SAMPLES / parts + (part < SAMPLES % parts);

            o.part = part;
            o.parts = parts;
            o.threads = 2;
            l = open_loader(&o);
            while ((s = next(l))) {
                for (int i = 0; i < s->n_docs; i++, taken++) {
                    ck_assert_uint_lt(s->docs[i].sample, SAMPLES);
                    ck_assert_int_eq(s->docs[i].label, (int64_t)s->docs[i].sample % 10);
                    seen[taken / mine][s->docs[i].sample]++;
                    if (taken == 0 || taken == mine)
                        first[taken / mine] += s->docs[i].sample;
                }
                dt_sequence_free(s);
            }
            ck_assert_int_eq(taken, 2 * mine);
            dt_loader_close(l);
        }
        for (int i = 0; i < SAMPLES; i++)
            ck_assert_msg(seen[0][i] == 1 && seen[1][i] == 1, "sample %d", i);
        ck_assert_uint_ne(first[0], first[1]);
    }
}
END_TEST

/* A document as the header draws it, against the rule. */
static void check_document(const struct dt_sequence *s, int k, const struct dt_loader_options *o)
{
    const struct dt_sequence_doc *d = &s->docs[k];
    const struct dt_sequence_item *item = NULL;
    char text[80], got[80];
    int i = (int)d->sample;

    for (int j = 0; j < s->n_items; j++)
        if (s->items[j].doc == (uint32_t)k) {
            ck_assert_ptr_null(item);
            item = &s->items[j];
        }
    ck_assert_ptr_nonnull(item);
    ck_assert_int_eq(item->w, 8 + i % 40);
    ck_assert_int_eq(item->h, 20);
    ck_assert_int_eq(s->ids[d->first], 256);
    ck_assert_int_eq(s->ids[d->first + d->n - 1], 257);
    if (d->task == DT_TASK_CAPTION) {
        ck_assert_uint_eq(item->flags, DT_ITEM_ENCODE);
        ck_assert_uint_eq(item->first, d->first + 1);
        ck_assert_int_eq((int)item->n, (item->w + o->patch - 1) / o->patch * (20 / o->patch));
    } else {
        ck_assert_uint_eq(item->flags, DT_ITEM_GENERATE);
        ck_assert_uint_eq(item->n, 0);
    }
    for (uint32_t j = 0; j < item->n; j++)
        ck_assert_int_eq(s->ids[item->first + j], 259);
    ck_assert_uint_eq(d->text_first, d->first + 1 + item->n);
    ck_assert_uint_eq(d->n, 2 + item->n + d->text_n);
    snprintf(text, sizeof text, "picture %d%.*s", i, i % 7, "!!!!!!!");
    for (uint32_t j = 0; j < d->text_n; j++)
        got[j] = (char)s->ids[d->text_first + j];
    got[d->text_n] = '\0';
    ck_assert_str_eq(got, text);
    for (uint32_t j = d->first; j < d->first + d->n; j++) {
        bool foretold = j + 1 >= d->text_first && j + 1 < d->first + d->n;
        ck_assert_int_eq(s->doc_of[j], k);
        ck_assert_int_eq(s->labels[j], foretold ? s->ids[j + 1] : -1);
    }
}

START_TEST(packing)
{
    struct dt_loader_options o = options();
    struct dt_loader *l = open_loader(&o);
    struct dt_sequence *s;
    int room = 0, tasks[3] = {0};

    while ((s = next(l))) {
        int at = 0;

        if (s->index > 0) /* next fit: its first document did not fit before */
            ck_assert_uint_gt(s->docs[0].n, (uint32_t)room);
        for (int k = 0; k < s->n_docs; k++) {
            ck_assert_uint_eq(s->docs[k].first, (uint32_t)at);
            check_document(s, k, &o);
            at += (int)s->docs[k].n;
            tasks[s->docs[k].task]++;
        }
        ck_assert_int_eq(at, s->n_tokens);
        for (int i = at; i < s->seq_len; i++)
            ck_assert(s->ids[i] == 258 && s->labels[i] == -1 && s->doc_of[i] == -1);
        room = s->seq_len - s->n_tokens;
        dt_sequence_free(s);
    }
    dt_loader_close(l);
    /* 274 draws at 0.4: mean 109.6, deviation 8.1; five deviations */
    ck_assert_int_eq(tasks[DT_TASK_TEXT], 0);
    ck_assert(abs(tasks[DT_TASK_GENERATE] - 110) < 41);
}
END_TEST

/* Of the pictures to draw a share loses its text; nothing else changes. */
START_TEST(dropped_captions)
{
    struct dt_loader_options o = options();
    struct dt_loader *l;
    struct dt_sequence *s;
    int drawn = 0, dropped = 0;

    o.generate = 0.7;
    o.caption_drop = 0.25;
    l = open_loader(&o);
    while ((s = next(l))) {
        for (int k = 0; k < s->n_docs; k++) {
            const struct dt_sequence_doc *d = &s->docs[k];

            drawn += d->task == DT_TASK_GENERATE;
            if (d->text_n > 0) {
                check_document(s, k, &o);
                continue;
            }
            ck_assert_int_eq(d->task, DT_TASK_GENERATE);
            ck_assert_uint_eq(d->n, 2);
            ck_assert_int_eq(s->ids[d->first], 256);
            ck_assert_int_eq(s->ids[d->first + 1], 257);
            dropped++;
        }
        dt_sequence_free(s);
    }
    dt_loader_close(l);
    /* 274 documents: 192 to draw, deviation 7.6; a quarter of them 48, deviation 6.3 */
    ck_assert(abs(drawn - 192) < 38);
    ck_assert(abs(dropped - 48) < 32);
}
END_TEST

/* The pixels are those of the picture, fitted. */
START_TEST(pixels)
{
    struct dt_loader_options o = options();
    struct dt_loader *l;
    struct dt_sequence *s;
    int checked = 0;

    o.image = (struct dt_image_spec){DT_FIT_STRETCH, 16, DT_FILTER_AUTO};
    o.target = (struct dt_image_spec){DT_FIT_CROP, 8, DT_FILTER_AUTO};
    l = open_loader(&o);
    while ((s = next(l)) && checked < 60) {
        for (int i = 0; i < s->n_items; i++, checked++) {
            const struct dt_sequence_item *it = &s->items[i];
            int k = (int)s->docs[it->doc].sample;
            struct dt_image img = fixture_picture(8 + k % 40, 20, k), want;

            dt_assert_ok(dt_image_apply(&img, it->flags == DT_ITEM_ENCODE ? &o.image : &o.target,
                                        &err, &want),
                         err);
            ck_assert(it->w == want.w && it->h == want.h);
            ck_assert_mem_eq(it->px, want.px, 3 * (size_t)want.w * (size_t)want.h);
            dt_image_free(&want);
            dt_image_free(&img);
        }
        dt_sequence_free(s);
    }
    dt_sequence_free(s);
    dt_loader_close(l);
}
END_TEST

/* sizes_only gives the same sequences without pixels. */
START_TEST(sizes)
{
    struct dt_loader_options o = options();
    struct dt_loader *a, *b;
    struct dt_sequence *s, *t;

    o.image = (struct dt_image_spec){DT_FIT_MAX, 16, DT_FILTER_AUTO};
    a = open_loader(&o);
    o.sizes_only = true;
    b = open_loader(&o);
    while ((s = next(a))) {
        t = next(b);
        ck_assert_ptr_nonnull(t);
        ck_assert_mem_eq(s->ids, t->ids, 3 * 96 * sizeof *s->ids);
        ck_assert_int_eq(s->n_items, t->n_items);
        for (int i = 0; i < s->n_items; i++) {
            ck_assert(s->items[i].w == t->items[i].w && s->items[i].h == t->items[i].h);
            ck_assert_ptr_null(t->items[i].px);
        }
        dt_sequence_free(s);
        dt_sequence_free(t);
    }
    ck_assert_ptr_null(next(b));
    dt_loader_close(a);
    dt_loader_close(b);
}
END_TEST

/* What the planner would count for the same sequences (core/model/samples.h): image tokens per 16-pixel
 * patch. */
START_TEST(agrees_with_planner)
{
    struct dt_loader_options o = options();
    struct dt_module vit = {.role = DT_ROLE_ENCODER, .modality = DT_MODALITY_IMAGE, .patch = 16};
    struct dt_loader *l;
    struct dt_sequence *s;

    o.patch = 0;
    l = open_loader(&o);
    while ((s = next(l))) {
        char csv[4096];
        struct dt_samples *p;
        struct dt_work work;
        int n = snprintf(csv, sizeof csv, "text_tokens,images\n%d,", s->text_tokens);
        const char *sep = "";

        for (int i = 0; i < s->n_items; i++)
            if (s->items[i].flags & DT_ITEM_ENCODE) {
                n += snprintf(csv + n, sizeof csv - (size_t)n, "%s%dx%d", sep, s->items[i].w,
                              s->items[i].h);
                sep = ";";
            }
        dt_assert_ok(dt_samples_parse_csv("t.csv", csv, strlen(csv), s->seq_len, NULL, &err, &p),
                     err);
        dt_sample_work(p, 0, &vit, &work);
        ck_assert_int_eq((int)work.tokens, s->n_tokens - s->text_tokens);
        dt_samples_free(p);
        dt_sequence_free(s);
    }
    dt_loader_close(l);
}
END_TEST

START_TEST(limits)
{
    struct dt_loader_options o = options();
    struct dt_data_report r;
    struct dt_loader *l;
    struct dt_sequence *s;

    o.generate = 0;
    o.seq_len = 40; /* 5 rows of patches: wider than 28 pixels does not fit */
    o.epochs = 1;
    l = open_loader(&o);
    while ((s = next(l))) {
        for (int i = 0; i < s->n_items; i++)
            ck_assert_int_le(s->items[i].w, 28);
        dt_sequence_free(s);
    }
    dt_loader_report(l, &r);
    ck_assert_int_gt(r.bad[DT_BAD_TOO_LONG], 0);
    ck_assert_int_gt(r.captions_cut, 0);
    ck_assert_int_eq(r.bad[DT_BAD_TOO_LONG] + r.documents, SAMPLES);
    dt_loader_close(l);

    o = options();
    o.text_tokens_max = 3;
    o.epochs = 1;
    l = open_loader(&o);
    for (; (s = next(l)); dt_sequence_free(s))
        for (int i = 0; i < s->n_docs; i++)
            ck_assert_uint_eq(s->docs[i].text_n, 3);
    dt_loader_close(l);

    o.sample_bytes_max = 100; /* nothing fits: not an endless search */
    o.epochs = 0;
    l = open_loader(&o);
    ck_assert_int_eq(dt_loader_next(l, &err, &s), DT_ERR_INPUT);
    dt_assert_has(err.message, "none of 137");
    dt_loader_close(l);
}
END_TEST

START_TEST(closing_early)
{
    struct dt_loader_options o = options();

    o.epochs = 0;
    o.threads = 3;
    for (int k = 0; k < 20; k++) {
        struct dt_loader *l;
        o.queue = 1 + k;
        l = open_loader(&o);
        for (int i = 0; i < k % 4; i++)
            dt_sequence_free(next(l));
        dt_loader_close(l);
    }
}
END_TEST

START_TEST(order)
{
    for (uint64_t n = 1; n < 300; n += 1 + n / 3) {
        int seen[300] = {0};
        for (uint64_t i = 0; i < n; i++) {
            uint64_t j = dt_loader_order_at(7, 3, n, i);
            ck_assert_uint_lt(j, n);
            seen[j]++;
        }
        for (uint64_t i = 0; i < n; i++)
            ck_assert_int_eq(seen[i], 1);
    }
    /* every place is about as likely for every sample: chi-square of 100 cells over 20,000 seeds;
     * its 99.9999 % quantile at 99 degrees of freedom is 180 */
    int count[100] = {0};
    double chi = 0;
    for (uint64_t seed = 0; seed < 20000; seed++)
        count[dt_loader_order_at(seed, 1, 100, 42)]++;
    for (int i = 0; i < 100; i++)
        chi += (count[i] - 200.0) * (count[i] - 200.0) / 200;
    ck_assert_msg(chi < 180, "chi-square %g", chi);
}
END_TEST

START_TEST(out_of_memory)
{
    struct dt_loader_options o = options();

    o.epochs = 1;
    o.n_shards = 1;
    for (uint64_t k = 1;; k += 1 + k / 16) {
        struct dt_loader *l = NULL;
        struct dt_sequence *s = NULL;
        bool done;
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_loader_open(&o, &err, &l);
        while (st == DT_OK && (st = dt_loader_next(l, &err, &s)) == DT_OK && s)
            dt_sequence_free(s);
        done = dt_mem_count() < k;
        dt_mem_fail_at(0);
        ck_assert_int_eq(st, done ? DT_OK : DT_ERR_NOMEM);
        dt_loader_close(l);
        if (done)
            break;
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("data_loader");
    TCase *c = dt_test_case(s, "all", 300);

    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, threads);
    tcase_add_test(c, resume);
    tcase_add_test(c, foreign_cursor);
    tcase_add_test(c, coverage);
    tcase_add_test(c, packing);
    tcase_add_test(c, dropped_captions);
    tcase_add_test(c, pixels);
    tcase_add_test(c, sizes);
    tcase_add_test(c, agrees_with_planner);
    tcase_add_test(c, limits);
    tcase_add_test(c, closing_early);
    tcase_add_test(c, order);
    tcase_add_test(c, out_of_memory);
    return dt_test_run(s);
}
