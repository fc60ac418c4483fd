/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/profiler_data.h"

#include "base/clock.h"
#include "base/mem.h"
#include "core/schedule/supply.h"
#include "exec/data/fbank.h"
#include "exec/data/image.h"
#include "exec/data/shard.h"
#include "exec/train/profiler.h"
#include "exec/train/profiler_speed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_BYTES_MAX = 64 << 20, ENOUGH = 1 << 17, UNITS = 1000000 };
enum { SOUND_CS_ENOUGH = 200 };
#define BURST_NS 40e6 /* between two runs of the reference kernel, or one sample */

struct timed {
    double ns, units; /* for UNITS of it; how many it had */
};
struct rates {
    const struct dt_loader_options *o;
    struct timed *t[DT_CPU_PREP_N]; /* [samples] */
    int n[DT_CPU_PREP_N];
    struct dt_tokenizer_ids ids;
    struct dt_profiler_speed speed;
};

struct place { /* a sample, as it was read from its shard */
    const struct dt_shard_index *ix;
    size_t sample;
    struct dt_shard_sample *s;
};

/* How often something of so many units is done, so that it takes a while. */
static int repeats(double units)
{
    return 1 + (int)(ENOUGH / units);
}

static void note(struct rates *r, enum dt_kop_cpu_prep what, double ns, double units)
{
    r->t[what][r->n[what]++] = (struct timed){ns * UNITS / units, units};
}

static void took(struct rates *r, enum dt_kop_cpu_prep what, uint64_t since_ns, int times,
                 double units)
{
    note(r, what, (double)(dt_clock_process_ns() - since_ns) / times, units);
}

static int by_ns(const void *va, const void *vb)
{
    const struct timed *a = va, *b = vb;

    return (a->ns > b->ns) - (a->ns < b->ns);
}

/* The time that all with a share of the units need no more than; sorted. */
static double quantile(const struct timed *t, int n, double share)
{
    double all = 0, so_far = 0;
    int i = 0;

    for (int k = 0; k < n; k++)
        all += t[k].units;
    while (i < n - 1 && (so_far += t[i].units) < share * all)
        i++;
    return t[i].ns;
}

/* Large images are most of the work, so each counts by its pixels, and a caption by its bytes. */
static void statistics(struct timed *t, int n, struct dt_profile_row *row)
{
    qsort(t, (size_t)n, sizeof *t, by_ns);
    row->n = n;
    row->p10_ns = quantile(t, n, 0.1);
    row->median_ns = quantile(t, n, 0.5);
    row->p90_ns = quantile(t, n, 0.9);
}

static size_t bytes_of(const struct dt_shard_sample *s)
{
    size_t sum = 1;

    for (int k = 0; k < s->n_members; k++)
        sum += s->member[k].len;
    return sum;
}

/* Decodes it as often as takes a while, each time read anew; an image has its share of what the sample's reading takes. */
static bool decode(struct rates *r, const struct place *at, int member, struct dt_image *img)
{
    double reading = 0, decoding = 0, px = 1;
    int times = 1;

    for (int k = 0; k < times; k++) {
        const struct dt_shard_member *m = &at->s->member[member];
        uint64_t begin = dt_clock_process_ns(), read_ns;

        dt_image_free(img);
        if (dt_shard_read(at->ix, at->sample, SAMPLE_BYTES_MAX, NULL, at->s) != DT_OK)
            return false;
        read_ns = dt_clock_process_ns();
        if (dt_image_decode(m->data, m->len, &r->o->limits, NULL, img) != DT_OK)
            return false;
        decoding += (double)(dt_clock_process_ns() - read_ns);
        reading += (double)(read_ns - begin) * (double)m->len / (double)bytes_of(at->s);
        px = (double)img->w * img->h;
        times = repeats(px);
    }
    note(r, DT_CPU_PREP_DECODE, (reading + decoding) / times, px);
    return true;
}

static void time_image(struct rates *r, const struct place *at, int member)
{
    struct dt_image img = {0}, out = {0};
    uint64_t begin;
    int times;

    if (!decode(r, at, member, &img)) {
        dt_image_free(&img);
        return;
    }
    times = repeats((double)img.w * img.h);
    begin = dt_clock_process_ns();
    for (int k = 0; k < times; k++) {
        dt_image_free(&out);
        if (dt_image_apply(&img, &r->o->image, NULL, &out) != DT_OK)
            break;
    }
    took(r, DT_CPU_PREP_RESIZE, begin, times, (double)img.w * img.h);
    dt_image_free(&out);
    dt_image_free(&img);
}

static void time_sound(struct rates *r, const struct dt_shard_member *m)
{
    enum dt_audio_bad bad;
    struct dt_audio a;
    uint64_t begin;
    int times;

    if (dt_audio_length(m->data, m->len, r->o->sound_cs, NULL, &a, &bad) != DT_OK)
        return;
    times = 1 + SOUND_CS_ENOUGH / a.cs;
    begin = dt_clock_process_ns();
    for (int k = 0; k < times; k++) {
        if (dt_audio_spectrogram(m->data, m->len, r->o->sound_cs, r->o->mel_bins, NULL, &a, &bad) !=
            DT_OK)
            return;
        dt_free(a.at);
    }
    took(r, DT_CPU_PREP_SOUND, begin, times, 10.0 * a.cs);
}

static enum dt_status time_text(struct rates *r, const struct dt_shard_member *m,
                                struct dt_error *err)
{
    int times = repeats((double)m->len);
    uint64_t begin = dt_clock_process_ns();

    for (int k = 0; k < times; k++) {
        r->ids.n = 0;
        DT_TRY(dt_tokenizer_encode(r->o->tokenizer, (const char *)m->data, m->len, false, err,
                                   &r->ids));
    }
    took(r, DT_CPU_PREP_TOKENIZE, begin, times, (double)m->len);
    return DT_OK;
}

static enum dt_status time_sample(struct rates *r, const struct place *at, struct dt_error *err)
{
    bool image = false, text = false, sound = r->o->mel_bins == 0;
    const struct dt_shard_sample *s = at->s;

    for (int k = 0; k < s->n_members; k++) {
        const struct dt_shard_member *m = &s->member[k];

        if (!image && dt_image_sniff(m->data, m->len) != DT_IMAGE_UNKNOWN) {
            time_image(r, at, k);
            image = true;
        } else if (!sound && dt_audio_sniff(m->data, m->len)) {
            time_sound(r, m);
            sound = true;
        } else if (!text && m->len > 0 && (!strcmp(m->ext, "txt") || !strcmp(m->ext, "json"))) {
            DT_TRY(time_text(r, m, err));
            text = true;
        }
    }
    return DT_OK;
}

/* Times behind the first from[] of each kind; from[] is where the next begin. */
static void to_one_speed(struct rates *r, int *from)
{
    double factor = dt_profiler_speed_factor(&r->speed, NULL);

    for (int k = 0; k < DT_CPU_PREP_N; k++)
        for (; from[k] < r->n[k]; from[k]++)
            r->t[k][from[k]].ns *= factor;
}

static enum dt_status time_samples(struct rates *r, const struct dt_shard_index *ix, size_t n,
                                   struct dt_error *err)
{
    uint64_t begin = dt_clock_ns();
    struct dt_shard_sample s = {0};
    int from[DT_CPU_PREP_N] = {0};
    enum dt_status st = DT_OK;

    for (size_t k = 0; k < n && st == DT_OK; k++) {
        struct place at = {ix, ix->n * k / n, &s};

        if (dt_shard_read(ix, at.sample, SAMPLE_BYTES_MAX, NULL, &s) == DT_OK)
            st = time_sample(r, &at, err);
        if (k + 1 < n && (double)(dt_clock_ns() - begin) < BURST_NS)
            continue;
        to_one_speed(r, from);
        begin = dt_clock_ns();
    }
    dt_shard_sample_free(&s);
    return st;
}

static enum dt_status add_rows(struct rates *r, const char *device, struct dt_error *err,
                               struct dt_profile_table *out, struct dt_profiler_data_report *report)
{
    struct dt_profile_source s = {.name = "disttrain profile --data", .licence = "own measurement"};
    struct dt_profile_table_row row = {.r = {.family = DT_KOP_CPU_PREP, .phase = DT_PHASE_FWD}};

    dt_profiler_origin(NULL, s.origin, sizeof s.origin);
    dt_clock_utc(s.date, sizeof s.date);
    snprintf(s.note, sizeof s.note,
             "one core, its own time, at the speed of reference kernels of %.3f ms; %lld images, "
             "%lld sounds, %lld captions",
             1e3 * report->reference_s, (long long)report->images, (long long)report->sounds,
             (long long)report->captions);
    DT_TRY(dt_profile_table_device(out, device, err, &row.device));
    DT_TRY(dt_profile_table_dtype(out, DT_SCHED_SUPPLY_DTYPE, err, &row.dtype));
    DT_TRY(dt_profile_table_source(out, &s, err, &row.r.source));
    for (int k = DT_CPU_PREP_DECODE; k < DT_CPU_PREP_N; k++) {
        if (r->n[k] == 0)
            continue;
        statistics(r->t[k], r->n[k], &row.r);
        row.r.kind = DT_ROW_MEASURED;
        row.r.d[0] = k;
        row.r.d[1] = UNITS;
        report->per_s[k] = 1e9 * UNITS / row.r.median_ns;
        DT_TRY(dt_profile_table_add(out, &row, err));
    }
    return DT_OK;
}

static enum dt_status measure(struct rates *r, const struct dt_shard_index *ix, size_t n,
                              const char *device, struct dt_error *err,
                              struct dt_profile_table *out, struct dt_profiler_data_report *report)
{
    for (int k = DT_CPU_PREP_DECODE; k < DT_CPU_PREP_N; k++)
        if (!(r->t[k] = dt_malloc((n + 1) * sizeof *r->t[k])))
            return dt_error_nomem(err, "times of the data");
    DT_TRY(time_samples(r, ix, n, err));
    report->samples = (int64_t)n;
    report->images = r->n[DT_CPU_PREP_DECODE];
    report->captions = r->n[DT_CPU_PREP_TOKENIZE];
    report->sounds = r->n[DT_CPU_PREP_SOUND];
    if (report->images + report->captions + report->sounds == 0)
        return dt_error_set(err, DT_ERR_INPUT, "the data has neither images, sounds nor captions");
    return add_rows(r, device, err, out, report);
}

enum dt_status dt_profiler_data(const struct dt_profiler_data_options *o, struct dt_error *err,
                                struct dt_profile_table *out,
                                struct dt_profiler_data_report *report)
{
    const struct dt_loader_options *l = o->loader;
    size_t samples = (size_t)o->samples;
    struct dt_data_report bad = {0};
    struct rates r = {.o = l};
    struct dt_shard_keep keep = {.folder = l->index_folder};
    struct dt_shard_index *ix;
    enum dt_status st;

    memset(report, 0, sizeof *report);
    DT_TRY(
        dt_shard_index_open(l->shards, l->n_shards, l->keep_index ? &keep : NULL, &bad, err, &ix));
    st = dt_profiler_speed_open(o->reference_s, 1, err, &r.speed);
    report->reference_s = r.speed.base_s;
    if (st == DT_OK)
        st = measure(&r, ix, ix->n < samples ? ix->n : samples, o->device, err, out, report);
    dt_profiler_speed_close(&r.speed);
    dt_shard_index_close(ix);
    dt_tokenizer_ids_free(&r.ids);
    for (int k = 0; k < DT_CPU_PREP_N; k++)
        dt_free(r.t[k]);
    return st;
}
