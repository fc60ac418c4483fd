/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/schedule/supply.h"

#include "core/model/samples_sound.h"
#include "core/schedule/supply_parts.h"

const char *const dt_sched_supply_names[DT_SCHED_SUPPLY_N + 1] = {"none", "colocated",
                                                                  "disaggregated", NULL};

const char *const dt_sched_supply_reads_names[DT_SCHED_READS_N + 1] = {"own", "slot", NULL};

/* Rates of a core: tests/bench/bench_data.c on an x86-64 machine, doc/calibration.md.  Text: English has about four
 * bytes a token (assumed). */
#define DECODE_PX_PER_S 210e6
#define RESIZE_PX_PER_S 400e6
#define TOKENIZE_BYTES_PER_S 54e6
#define SOUND_S_PER_S 90.0 /* of 44.1 kHz, stereo */
#define BYTES_PER_TOKEN 4.0
#define BYTES_PER_PIXEL 3.0 /* uint8 red, green, blue */
#define BYTES_PER_ID 4.0
#define BYTES_PER_VALUE 4.0 /* floats of spectrograms */
#define MEL_BINS 128        /* BEATs' (published), where the tokens of a clip are stated */

void dt_sched_supply_defaults(struct dt_sched_supply *s)
{
    *s = (struct dt_sched_supply){.prefetch = 1,
                                  .slow_factor = 1,
                                  .decode_px_per_s = DECODE_PX_PER_S,
                                  .resize_px_per_s = RESIZE_PX_PER_S,
                                  .tokenize_bytes_per_s = TOKENIZE_BYTES_PER_S,
                                  .sound_s_per_s = SOUND_S_PER_S};
}

static bool has_sound(const struct dt_model *m)
{
    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].modality == DT_MODALITY_AUDIO)
            return true;
    return false;
}

enum dt_status dt_sched_supply_rates(const struct dt_profile *p, const struct dt_model *m,
                                     struct dt_error *err, struct dt_sched_supply *s)
{
    static const char *const what[DT_CPU_PREP_N] = {[DT_CPU_PREP_DECODE] = "decode",
                                                    [DT_CPU_PREP_RESIZE] = "resize",
                                                    [DT_CPU_PREP_TOKENIZE] = "tokenize",
                                                    [DT_CPU_PREP_SOUND] = "sound"};
    double rate[DT_CPU_PREP_N] = {0};

    for (int64_t i = p->first[DT_KOP_CPU_PREP][DT_PHASE_FWD];
         i < p->first[DT_KOP_CPU_PREP][DT_PHASE_FWD + 1]; i++) {
        const struct dt_profile_row *r = &p->rows[i];

        if (r->d[0] < DT_CPU_PREP_N && r->d[1] > 0)
            rate[r->d[0]] = 1e9 * (double)r->d[1] / r->median_ns;
    }
    for (int k = DT_CPU_PREP_DECODE; k < DT_CPU_PREP_N; k++)
        if (!(rate[k] > 0) && (k != DT_CPU_PREP_SOUND || has_sound(m)))
            return dt_error_set(err, DT_ERR_INPUT,
                                "the profile has no row of cpu_prep %d (%s); disttrain profile "
                                "--data JOB measures them",
                                k, what[k]);
    s->decode_px_per_s = rate[DT_CPU_PREP_DECODE];
    s->resize_px_per_s = rate[DT_CPU_PREP_RESIZE];
    s->tokenize_bytes_per_s = rate[DT_CPU_PREP_TOKENIZE];
    if (rate[DT_CPU_PREP_SOUND] > 0)
        s->sound_s_per_s = 1e-3 * rate[DT_CPU_PREP_SOUND];
    s->measured = true;
    return DT_OK;
}

/* ---- what there is to do ---- */

static struct dt_sched_part sound_part(const struct dt_sched_supply *s, const struct dt_module *m,
                                       const struct dt_sample_item *it)
{
    return (struct dt_sched_part){0.01 * it->w / s->sound_s_per_s,
                                  BYTES_PER_VALUE * (double)dt_sample_sound_frames(it->w) *
                                      (m->mel_bins > 0 ? m->mel_bins : MEL_BINS)};
}

static struct dt_sched_part image_part(const struct dt_sched_supply *s, const struct dt_module *m,
                                       const struct dt_sample_item *it)
{
    double px = (double)it->w * it->h, out = m->resize ? (double)m->resize * m->resize : px;

    return (struct dt_sched_part){
        px / s->decode_px_per_s + (m->resize ? px / s->resize_px_per_s : 0), BYTES_PER_PIXEL * out};
}

static struct dt_sched_part text_part(const struct dt_sched_supply *s, const struct dt_module *m,
                                      const struct dt_samples *set, int64_t i)
{
    double tokens = m->role == DT_ROLE_LLM ? set->seq_tokens[i] : set->text_tokens[i];

    return (struct dt_sched_part){BYTES_PER_TOKEN * set->text_tokens[i] / s->tokenize_bytes_per_s,
                                  BYTES_PER_ID * tokens};
}

void dt_sched_supply_parts(const struct dt_sched_supply *s, const struct dt_module *m,
                           const struct dt_samples *set, int64_t i, uint32_t item,
                           dt_sched_part_fn *fn, void *ctx)
{
    unsigned flag = m->role == DT_ROLE_ENCODER ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;
    uint32_t n = 0;

    i %= set->n;
    if (m->role == DT_ROLE_LLM || m->modality == DT_MODALITY_TEXT) {
        fn(ctx, text_part(s, m, set, i));
        return;
    }
    for (uint64_t k = set->item_first[i]; k < set->item_first[i + 1]; k++) {
        const struct dt_sample_item *it = &set->items[k];

        if (!(it->flags & flag) || it->kind != (unsigned)m->modality)
            continue;
        if (item == DT_NONE || item == n)
            fn(ctx, it->kind == DT_MODALITY_AUDIO ? sound_part(s, m, it) : image_part(s, m, it));
        n++;
    }
}
