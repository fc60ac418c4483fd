/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Packed documents over ranks of context parallelism: every row has one member, members have as many rows and as much
 * attention to do, and each sees what comes before its rows in their documents, once. */
#include "base/rng.h"
#include "exec/program/batching.h"
#include "test_util.h"

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 300, DOCS = 40, TOKENS = 8192, SEQS = 3, MEMBERS = 16 };

static struct dt_sequence_doc docs[SEQS][DOCS];
static int32_t numbers[SEQS][TOKENS]; /* ids: the row's number in its sequence */

static struct dt_sequence packed(struct dt_rng *r, int64_t index, int k, int longest)
{
    struct dt_sequence q = {.index = index,
                            .docs = docs[k],
                            .ids = numbers[k],
                            .labels = numbers[k],
                            .n_docs = 1 + (int)dt_rng_below(r, DOCS)};

    for (int i = 0; i < q.n_docs; i++) {
        uint32_t n = 1 + (uint32_t)dt_rng_below(r, (uint64_t)longest);

        docs[k][i] = (struct dt_sequence_doc){.first = (uint32_t)q.n_tokens, .n = n};
        q.n_tokens += (int)n;
    }
    for (int i = 0; i < q.n_tokens; i++)
        numbers[k][i] = i;
    return q;
}

/* The document of a row. */
static const struct dt_sequence_doc *doc_of(const struct dt_sequence *q, int64_t row)
{
    int i = 0;

    while (row >= (int64_t)q->docs[i].first + q->docs[i].n)
        i++;
    return &q->docs[i];
}

struct load {
    double rows, pairs;
};

static void take(struct load *l, const struct dt_sequence *q, int64_t row)
{
    l->rows++;
    l->pairs += (double)(row - doc_of(q, row)->first + 1);
}

/* Chunks m and 2n - 1 - m of the sequence as a whole, as they were without documents. */
static void cut_whole(const struct dt_sequence *q, int n, struct load *of)
{
    for (int64_t row = 0; row < q->n_tokens; row++) {
        int chunk = 0;

        while (row >= (int64_t)(chunk + 1) * q->n_tokens / (2 * n))
            chunk++;
        take(&of[chunk < n ? chunk : 2 * n - 1 - chunk], q, row);
    }
}

static double over_mean(const struct load *of, int n)
{
    double most = 0, sum = 0;

    for (int m = 0; m < n; m++) {
        most = of[m].pairs > most ? of[m].pairs : most;
        sum += of[m].pairs;
    }
    return most * n / sum;
}

static void check_chunks(const struct dt_sequence *q, int n, struct load *of)
{
    struct dt_batching_chunks c;
    int64_t at = 0, most = 0, least = INT64_MAX;

    dt_batching_chunks_begin(&c, n, q);
    while (dt_batching_chunks_next(&c)) {
        ck_assert_int_eq(c.first, at);
        ck_assert_int_gt(c.end, c.first);
        ck_assert(c.member >= 0 && c.member < n && (c.half == 0 || c.half == 1));
        ck_assert_ptr_eq(doc_of(q, c.first), doc_of(q, c.end - 1));
        for (; at < c.end; at++)
            take(&of[c.member], q, at);
    }
    ck_assert_int_eq(at, q->n_tokens);
    for (int m = 0; m < n; m++) {
        int64_t rows = dt_batching_cut_rows(q, n, m, 0) + dt_batching_cut_rows(q, n, m, 1);

        ck_assert_int_eq((int64_t)of[m].rows, rows);
        most = rows > most ? rows : most;
        least = rows < least ? rows : least;
    }
    ck_assert_int_le(most - least, 1);
}

/* Attention is even where documents are long; and where they are packed cutting the whole is not. */
START_TEST(members_have_as_much_to_do)
{
    double worst = 1, whole = 0, mean = 0;
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 1);
    for (int round = 0; round < ROUNDS; round++) {
        int n = 2 << dt_rng_below(&r, 4);
        struct dt_sequence q = packed(&r, round, 0, TOKENS / DOCS);
        struct load of[2 * MEMBERS] = {0}, other[2 * MEMBERS] = {0};

        check_chunks(&q, n, of);
        cut_whole(&q, n, other);
        if (n > 4 || q.n_tokens < 1000) /* a row more or less matters */
            continue;
        worst = over_mean(of, n) > worst ? over_mean(of, n) : worst;
        whole = over_mean(other, n) > whole ? over_mean(other, n) : whole;
        mean += over_mean(other, n) - over_mean(of, n);
    }
    printf("attention of the busiest of 2 or 4 members over the mean: at most %.3f; cut as a whole "
           "%.2f\n",
           worst, whole);
    ck_assert_double_gt(whole, 1.3);
    ck_assert_double_gt(mean, 0);
    ck_assert_double_lt(worst - 1, (whole - 1) / 3);
}
END_TEST

/* ---- keys ---- */

static struct dt_batch_limits need;
static int32_t cu[DOCS * SEQS * 2 + 1], begin[DOCS * SEQS * 2], ids[TOKENS * SEQS],
    cu_keys[MEMBERS * (DOCS * SEQS * 2 + 1)], key_at[TOKENS * SEQS * 32],
    place[MEMBERS][TOKENS * SEQS], in_which[MEMBERS][TOKENS * SEQS];
static uint64_t stream[DOCS * SEQS * 2];
static int32_t spare[TOKENS * SEQS];

static void fill(const struct dt_model *m, const struct dt_sequence *const *seqs,
                 const struct dt_batch_cut *cut, struct dt_batch *b)
{
    struct dt_error err;

    memset(&need, 0, sizeof(need));
    dt_batching_limits(m, 0, seqs, SEQS, cut, &need);
    ck_assert_int_le(need.keys, (int64_t)(sizeof(key_at) / sizeof(key_at[0])));
    *b = (struct dt_batch){.module = &m->modules[0], .room = need, .cut = *cut};
    b->host.cu = cu;
    b->host.begin = begin;
    b->host.ids = ids;
    b->host.pos = b->host.target = spare;
    b->host.cu_keys = cu_keys;
    b->host.key_at = key_at;
    b->host.stream = stream;
    dt_assert_ok(dt_batching_fill(m, 0, seqs, SEQS, b, &err), err);
    ck_assert_int_eq(b->rows, need.rows);
    ck_assert_int_eq(b->n_seq, need.seqs);
    ck_assert_int_eq(b->keys, need.keys);
    ck_assert_int_eq(b->keys_step, need.keys_step);
}

/* Every row of a sequence that stretch i of member `mine` sees: from its document's first to its own last, once; in the
 * own step the last ones in order are the stretch's. */
static void check_sees(const struct dt_batch *b, int64_t i)
{
    static char seen[TOKENS];
    int64_t own = cu[i], end = ids[cu[i + 1] - 1], first = ids[own] - begin[i], sum = 0, base = 0;
    int which = in_which[b->cut.mine][own];

    memset(seen, 0, sizeof(seen));
    for (int64_t t = 0; t < b->steps; t++) {
        const int32_t *at = cu_keys + t * (b->n_seq + 1);
        int64_t of = (b->cut.mine - t + b->cut.n) % b->cut.n, most = b->gathered / b->cut.n;

        for (int64_t j = at[i]; j < at[i + 1]; j++, sum++) {
            int64_t row = key_at[base + j], member = b->cut.ring ? of : row / most, x = row % most;
            int64_t number = place[member][x];

            ck_assert_int_eq(in_which[member][x], which);
            ck_assert(number >= first && number <= end && !seen[number]);
            seen[number] = 1;
            if (t == 0 && j >= at[i + 1] - (cu[i + 1] - own))
                ck_assert_int_eq(number, ids[own + j - at[i + 1] + (cu[i + 1] - own)]);
            else
                ck_assert_int_lt(number, ids[own]);
        }
        base += at[b->n_seq];
    }
    ck_assert_int_eq(sum, end - first + 1);
}

/* Within a step and a half no row is a key twice. */
static void check_once(const struct dt_batch *b)
{
    static char seen[TOKENS * SEQS];
    int64_t base = 0;

    for (int64_t t = 0; t < b->steps; t++) {
        const int32_t *at = cu_keys + t * (b->n_seq + 1);

        for (int half = 0; half < 2; half++) {
            memset(seen, 0, sizeof(seen));
            for (int64_t j = half ? at[b->n_early] : 0; j < at[half ? b->n_seq : b->n_early]; j++)
                ck_assert_int_eq(seen[key_at[base + j]]++, 0);
        }
        base += at[b->n_seq];
    }
}

/* Where every member has its rows, as it says itself: numbers in their sequences, and which these are. */
static void find_places(const struct dt_model *m, const struct dt_sequence *const *seqs, int n)
{
    for (int member = 0; member < n; member++) {
        struct dt_batch b;

        fill(m, seqs, &(struct dt_batch_cut){.n = n, .mine = member, .ring = true}, &b);
        memcpy(place[member], ids, sizeof(ids));
        for (int64_t i = 0; i < b.n_seq; i++)
            for (int64_t j = cu[i]; j < cu[i + 1]; j++)
                in_which[member][j] = (int32_t)(stream[i] >> 16);
    }
}

START_TEST(rows_see_what_comes_before_them)
{
    static struct dt_model m = {.n_modules = 1};
    struct dt_rng r;

    m.modules[0].role = DT_ROLE_LLM;
    dt_rng_init(&r, dt_test_seed(), 2);
    for (int round = 0; round < ROUNDS / 10; round++) {
        int n = 2 + (int)dt_rng_below(&r, MEMBERS - 1);
        struct dt_sequence q[SEQS];
        const struct dt_sequence *seqs[SEQS];

        for (int k = 0; k < SEQS; k++) {
            q[k] = packed(&r, 7 * round + k, k, 1 + (int)dt_rng_below(&r, 60));
            seqs[k] = &q[k];
        }
        find_places(&m, seqs, n);
        for (int ring = 0; ring < 2; ring++)
            for (int member = 0; member < n; member++) {
                struct dt_batch b;

                fill(&m, seqs, &(struct dt_batch_cut){.n = n, .mine = member, .ring = ring}, &b);
                for (int64_t i = 0; i < b.n_seq; i++)
                    check_sees(&b, i);
                check_once(&b);
            }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cuts of packed documents");
    TCase *t = dt_test_case(s, "cut", 120);

    tcase_add_test(t, members_have_as_much_to_do);
    tcase_add_test(t, rows_see_what_comes_before_them);
    return dt_test_run(s);
}
