/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders and generators whose unit is the item: replicas share the images (clips, audio segments) of a window of slots, a
 * generator's of one slot.
 *
 *   slots         |   0   |   1   |   2   |   3   |        DP_lm = 2, DP_enc = 4, window 2
 *   LLM replica 0 |  s0   |  s2   |  s4   |  s6   |
 *   LLM replica 1 |  s1   |  s3   |  s5   |  s7   |
 *   encoder 0, 1  | items of s0 s2| items of s4 s6|  a microbatch per replica and window, dealt by LPT;
 *   encoder 2, 3  | items of s1 s3| items of s5 s7|  those without items stay empty
 *
 * Groups are those of the module and the LLM alone (gcd of the two DP): the replicas of a group serve the LLM replicas of
 * that group.  Inside a microbatch items stand in the order of slots, samples and items, so rows do as well. */
#include "core/schedule/assign_build.h"

#include "base/number.h"

#include <string.h>

struct item {
    int sample; /* of the batch */
    uint32_t item;
    int bin; /* replica inside its group */
};

struct sharing {
    const struct dt_assign_job *j;
    int m, window, windows, groups, share, group_size;
    uint32_t *first;      /* [batch + 1]: items of each sample, in works */
    struct dt_work *work; /* of all items */
    double by_token, by_square;
    /* in the order of windows, groups, slots, samples, items */
    struct item *list;
    uint32_t n;
    struct dt_assign_keyed *keyed; /* the items of a window and group */
    int *heap, *fill, *bin;
    double *load;
};

static enum dt_status find_items(struct sharing *x)
{
    const struct dt_assign_job *j = x->j;
    const struct dt_module *mod = &j->model->modules[x->m];
    struct dt_arena *arena = j->scratch;

    x->first = DT_ARENA_NEW(arena, uint32_t, j->batch + 1);
    if (!x->first)
        return DT_ERR_NOMEM;
    for (int i = 0; i < j->batch; i++)
        x->first[i + 1] =
            x->first[i] + (uint32_t)dt_sample_items(j->set, dt_assign_sample(j, i), mod, NULL);
    x->n = x->first[j->batch];
    x->work = DT_ARENA_NEW(arena, struct dt_work, x->n + 1);
    x->list = DT_ARENA_NEW(arena, struct item, x->n + 1);
    x->keyed = DT_ARENA_NEW(arena, struct dt_assign_keyed, x->n + 1);
    x->bin = DT_ARENA_NEW(arena, int, x->n + 1);
    x->heap = DT_ARENA_NEW(arena, int, x->share);
    x->fill = DT_ARENA_NEW(arena, int, x->share);
    x->load = DT_ARENA_NEW(arena, double, x->share);
    if (!x->work || !x->list || !x->keyed || !x->bin || !x->heap || !x->fill || !x->load)
        return DT_ERR_NOMEM;
    for (int i = 0; i < j->batch; i++)
        dt_sample_items(j->set, dt_assign_sample(j, i), mod, x->work + x->first[i]);
    return DT_OK;
}

/* FLOPs of an item of t tokens are a t + b t^2: exact for a transformer, near enough for a U-Net (which has a little for each
 * item besides), and LPT asks for no more than an order. */
static void weigh(struct sharing *x)
{
    const struct dt_module *mod = &x->j->model->modules[x->m];
    const int64_t t[2] = {1024, 2048};
    double f[2];

    for (int k = 0; k < 2; k++) {
        struct dt_work w = {1, t[k], t[k] * t[k], t[k]};

        f[k] = dt_module_flops(mod, &w) / (double)t[k];
    }
    x->by_square = (f[1] - f[0]) / (double)(t[1] - t[0]);
    x->by_token = f[0] - x->by_square * (double)t[0];
}

/* Lists and deals the items of a window and group; returns their number. */
static uint32_t deal(struct sharing *x, int window, int group, struct item *list)
{
    const struct dt_assign_job *j = x->j;
    int last = (window + 1) * x->window < j->slots ? (window + 1) * x->window : j->slots;
    uint32_t n = 0;

    for (int k = window * x->window; k < last; k++)
        for (int p = 0; p < x->group_size; p++) {
            int s = j->at[k * j->slot_size + group * x->group_size + p];

            for (uint32_t i = x->first[s]; i < x->first[s + 1]; i++) {
                const struct dt_work *w = &x->work[i];

                x->keyed[n] = (struct dt_assign_keyed){
                    x->by_token * (double)w->tokens + x->by_square * (double)w->tokens_sq, (int)n};
                list[n++] = (struct item){s, i - x->first[s], 0};
            }
        }
    dt_assign_keyed_sort(x->keyed, (int)n);
    memset(x->load, 0, (size_t)x->share * sizeof(*x->load));
    dt_assign_lpt_sorted(x->keyed, (int)n, x->share, (int)n + 1, x->load, x->heap, x->fill, x->bin);
    for (uint32_t i = 0; i < n; i++)
        list[x->keyed[i].index].bin = x->bin[i];
    return n;
}

/* Calls put() for every item with the microbatch that it is in. */
static void each_item(const struct sharing *x, const uint32_t *of_deal,
                      struct dt_assignment_module *out,
                      void (*put)(const struct sharing *, const struct item *, uint32_t,
                                  struct dt_assignment_module *))
{
    uint32_t at = 0;

    for (int w = 0; w < x->windows; w++)
        for (int g = 0; g < x->groups; g++)
            for (uint32_t end = of_deal[w * x->groups + g]; at < end; at++) {
                int replica = g * x->share + x->list[at].bin;

                put(x, &x->list[at], (uint32_t)(replica * x->windows + w), out);
            }
}

static void count(const struct sharing *x, const struct item *it, uint32_t mb,
                  struct dt_assignment_module *out)
{
    (void)x;
    (void)it;
    out->mb[mb].n++;
}

static void write(const struct sharing *x, const struct item *it, uint32_t mb,
                  struct dt_assignment_module *out)
{
    uint32_t at = out->mb[mb].first + out->mb[mb].n++;
    const struct dt_work *w = &x->work[x->first[it->sample] + it->item];

    out->samples[at] = x->j->first + it->sample;
    out->items[at] = it->item;
    out->sample_work[at] = *w;
    dt_work_add(&out->work[mb], w);
}

static enum dt_status write_out(struct sharing *x, const uint32_t *of_deal, struct dt_assignment *a)
{
    struct dt_assignment_module *out = &a->m[x->m];
    int dp = x->groups * x->share;
    size_t n = (size_t)dp * (size_t)x->windows;
    uint32_t at = 0;

    out->n_replicas = dp;
    out->mb_first = DT_ARENA_NEW(&a->arena, uint32_t, dp + 1);
    out->mb = DT_ARENA_NEW(&a->arena, struct dt_microbatch, n);
    out->work = DT_ARENA_NEW(&a->arena, struct dt_work, n);
    out->samples = DT_ARENA_NEW(&a->arena, int64_t, x->n + 1);
    out->items = DT_ARENA_NEW(&a->arena, uint32_t, x->n + 1);
    out->sample_work = DT_ARENA_NEW(&a->arena, struct dt_work, x->n + 1);
    if (!out->mb_first || !out->mb || !out->work || !out->samples || !out->items ||
        !out->sample_work)
        return DT_ERR_NOMEM;
    for (int r = 0; r <= dp; r++)
        out->mb_first[r] = (uint32_t)(r * x->windows);
    each_item(x, of_deal, out, count);
    for (size_t b = 0; b < n; b++) {
        out->mb[b].first = at;
        out->mb[b].slot = (uint32_t)(b % (size_t)x->windows) * (uint32_t)x->window;
        at += out->mb[b].n;
        out->mb[b].n = 0;
    }
    each_item(x, of_deal, out, write);
    return DT_OK;
}

static enum dt_status share_items(struct sharing *x, struct dt_assignment *a)
{
    uint32_t *of_deal = DT_ARENA_NEW(x->j->scratch, uint32_t, x->windows * x->groups), at = 0;

    if (!of_deal)
        return DT_ERR_NOMEM;
    DT_TRY(find_items(x));
    weigh(x);
    for (int w = 0; w < x->windows; w++)
        for (int g = 0; g < x->groups; g++) {
            at += deal(x, w, g, x->list + at);
            of_deal[w * x->groups + g] = at;
        }
    return write_out(x, of_deal, a);
}

enum dt_status dt_assign_items(const struct dt_assign_job *j, int m, struct dt_error *err,
                               struct dt_assignment *a)
{
    int dp = j->m[m].dp, window = j->m[m].window;
    int groups = dt_number_gcd(dp, j->m[j->model->llm].dp);
    struct sharing x = {.j = j,
                        .m = m,
                        .window = window,
                        .windows = (j->slots + window - 1) / window,
                        .groups = groups,
                        .share = dp / groups,
                        .group_size = j->slot_size / groups};

    return share_items(&x, a) == DT_OK ? DT_OK : dt_error_nomem(err, "items of an assignment");
}
