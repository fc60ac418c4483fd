/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The evaluation of heterogeneous parallelism in Megatron MIMO (arXiv 2605.27678): layouts and times of its tables A2 (colocated, 8K,
 * about half of its rows), A3 (colocated, long context) and A4 (noncolocated), the best modes of A5, and the bytes at the boundary
 * between encoder and LLM.  Layouts, batches, times and memory are published, but for layouts of A5's noncolocated LLMs; shapes of the
 * nominal sizes are assumed, all of them before the first comparison.  One token of the LLM per patch is assumed, too (the paper's own LLaVA example merges none); that was settled when
 * the first comparison had been seen (doc/reproduction.md).  Bytes at the boundary are not published: what stands in that column
 * is computed from the published layouts.  H is the homogeneous layout, C the colocated one, N the noncolocated one. */
#include "cli/reproduce.h"

#include "base/mem.h"
#include "base/quantile.h"
#include "core/cost/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct size {
    const char *name;
    int layers, hidden, ffn, heads, kv_heads, head_dim;
};
/* Assumed, all of them of the nominal size. */
static const struct size encoders[] = {{"1", 40, 1408, 6144, 16, 0, 0},
                                       {"3", 60, 2048, 8192, 16, 0, 0},
                                       {"6", 45, 3200, 12800, 32, 0, 0},
                                       {"7.2", 54, 3328, 13312, 32, 0, 0},
                                       {"12", 60, 4096, 16384, 32, 0, 0}};
static const struct size llms[] = {{"7", 32, 4096, 11008, 32, 32, 128},
                                   {"14", 40, 5120, 17408, 40, 8, 128},
                                   {"32", 64, 5120, 25600, 64, 8, 128},
                                   {"70", 80, 8192, 28672, 64, 8, 128},
                                   {"120", 108, 10240, 28672, 80, 8, 128}};

static const struct size *size_of(const struct size *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

struct layout {
    int tp, cp, pp, dp;
};
enum way { HOMOGENEOUS, COLOCATED, NONCOLOCATED };

struct run { /* what is run */
    const char *encoder, *llm;
    double vision; /* of the tokens, percent */
    int seq_k, gpus, batch;
    enum way way;
    struct layout enc, lm;
    int instances; /* of the encoder's optimizer */
};
struct got {
    double iteration_s, mem_gb; /* of the fullest GPU, without the reserve */
    const char *recompute;      /* of the encoder */
    bool fits;                  /* 80 GB hold it */
    double forward,
        backward; /* bytes at the boundary: into an LLM replica, and back into an encoder replica */
    double out;   /* and out of an encoder replica */
    double share; /* of the iteration, that the busiest lane sends at the boundary, percent */
};

/* ---- the boundary ---- */

/* Messages between modules of the replica-0 lanes, and the share of the iteration that the busiest of their lanes sends. */
static void look_at_boundary(const struct dt_sim_result *r, int llm, struct got *out)
{
    const struct dt_program *p = r->program;

    for (int l = 0; l < p->n_lanes; l++) {
        const struct dt_lane *lane = &p->lanes[l];
        double sent_s = 0;

        for (uint32_t i = lane->first; i < lane->first + lane->n; i++) {
            const struct dt_op *op = &p->ops[i];
            const struct dt_op *peer;

            if (op->kind != DT_OP_SEND && op->kind != DT_OP_RECV)
                continue;
            peer = &p->ops[op->peer];
            if (peer->module == op->module)
                continue;
            if (op->kind == DT_OP_SEND)
                sent_s += 1e-9 * (double)(r->timeline.end_ns[i] - r->timeline.begin_ns[i]);
            if (lane->replica != 0)
                continue;
            if (op->kind == DT_OP_RECV && op->module == llm)
                out->forward += (double)op->bytes;
            else if (op->kind == DT_OP_RECV)
                out->backward += (double)op->bytes;
            else if (op->module != llm)
                out->out += (double)op->bytes;
        }
        out->share = fmax(out->share, 100 * sent_s / r->report.iteration_s);
    }
}

/* ---- a run ---- */

static void write_module(char *buf, size_t size, const char *name, const struct size *s)
{
    int n =
        snprintf(buf, size,
                 "model.modules.%s.layers=%d model.modules.%s.hidden=%d model.modules.%s.ffn=%d "
                 "model.modules.%s.heads=%d",
                 name, s->layers, name, s->hidden, name, s->ffn, name, s->heads);

    if (s->kv_heads > 0)
        snprintf(buf + n, size - (size_t)n,
                 " model.modules.%s.kv_heads=%d model.modules.%s.head_dim=%d", name, s->kv_heads,
                 name, s->head_dim);
}

static enum dt_status simulate(const char *const *overrides, int n, struct dt_error *err,
                               struct got *out)
{
    struct dt_session s;
    struct dt_sim_result sim;
    enum dt_status st;

    DT_TRY(dt_session_open("mimo-14b-72", NULL, overrides, n, err, &s));
    st = dt_session_plan(&s, err);
    if (st == DT_OK)
        st = dt_session_simulate(&s, "mimo", err, &sim);
    if (st == DT_OK) {
        out->iteration_s = sim.report.iteration_s;
        out->mem_gb =
            1e-9 * (s.search.plans[0].predicted.mem_bytes_max - s.job->cluster.mem_reserve_bytes);
        look_at_boundary(&sim, s.job->model->llm, out);
        dt_sim_result_free(&sim);
    }
    dt_session_close(&s);
    return st;
}

enum { TEXT = 512, PARTS = 32 };

/* With as little recomputation of the encoder as 80 GB hold, from what is published on; where they do not hold it at all, on
 * more. */
static enum dt_status try_run(const struct run *r, struct dt_error *err, struct got *out)
{
    static const char *const recompute[] = {"none", "full", "full"};
    const struct size *of_encoder =
        size_of(encoders, sizeof encoders / sizeof encoders[0], r->encoder);
    const struct size *of_llm = size_of(llms, sizeof llms / sizeof llms[0], r->llm);
    char encoder[TEXT], llm[TEXT], plan[TEXT], other[6][TEXT], group[32] = "", *parts[PARTS], *save;
    const char *away = "";
    const char *o[PARTS];
    int n = 0, text = (int)lround(1024 * (100 - r->vision) / r->vision);
    int first = strcmp(r->encoder, "1") != 0;
    enum dt_status st = DT_ERR_INFEASIBLE;

    if (!of_encoder || !of_llm)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "a run of encoder %s and LLM %s, which have no sizes", r->encoder,
                            r->llm);
    write_module(encoder, sizeof encoder, "encoder", of_encoder);
    write_module(llm, sizeof llm, "llm", of_llm);
    for (char *p = strtok_r(encoder, " ", &save); p; p = strtok_r(NULL, " ", &save))
        parts[n++] = p;
    for (char *p = strtok_r(llm, " ", &save); p; p = strtok_r(NULL, " ", &save))
        parts[n++] = p;
    snprintf(other[0], TEXT, "cluster.nodes=%d", (r->gpus + 7) / 8);
    snprintf(other[1], TEXT, "train.global_batch=%d", r->batch);
    snprintf(other[2], TEXT, "train.seq_len=%d", r->seq_k * 1024);
    snprintf(other[3], TEXT,
             "samples.distribution.text_tokens={kind: constant, value: %d, max: %d}", text, text);
    if (r->instances > 1)
        snprintf(group, sizeof group, ", zero_group: %d", r->enc.dp * r->enc.cp / r->instances);
    if (r->way == COLOCATED) /* with one stage of the LLM nothing hides the way back */
        away = r->lm.pp > 1 ? ", window: all, offload: parameters" : ", window: all";
    snprintf(
        plan, TEXT,
        "plan={encoder: {tp: %d, cp: %d, pp: %d, dp: %d%s%s%s}, llm: {tp: %d, cp: %d, pp: %d, dp: "
        "%d}}",
        r->enc.tp, r->enc.cp, r->enc.pp, r->enc.dp, r->way == NONCOLOCATED ? "" : ", with: llm",
        away, group, r->lm.tp, r->lm.cp, r->lm.pp, r->lm.dp);
    for (int i = 0; i < 4; i++)
        parts[n++] = other[i];
    for (int i = 0; i < n; i++)
        o[i] = parts[i];
    o[n++] = plan;
    o[n++] = "search.strategy=manual";
    o[n++] = "train.microbatch=1";
    o[n++] = "train.schedule=1f1b";
    o[n++] = "train.zero=1";
    o[n++] = "train.reorder=none";
    o[n++] = other[4];
    for (int k = first; k < 3 && st == DT_ERR_INFEASIBLE; k++) {
        *out = (struct got){.recompute = recompute[k], .fits = k < 2};
        snprintf(other[4], TEXT, "train.recompute={encoder: %s, llm: none}", recompute[k]);
        o[n] = "cluster.memory=640 GB";
        st = simulate(o, k < 2 ? n : n + 1, err, out);
    }
    return st;
}

/* ---- rows ---- */

struct verdict { /* what is accepted, and why a row misses it */
    struct dt_cli_range accept;
    const char *because;
};

static enum dt_status add(struct dt_cli_results *r, char section, const char *what,
                          const char *unit, double published, double ours, const struct verdict *v,
                          const char *detail, struct dt_error *err)
{
    struct dt_cli_result_row row = {.section = section,
                                    .unit = unit,
                                    .published = {published, published},
                                    .accept = v->accept,
                                    .because = v->because,
                                    .judged = true,
                                    .ours = ours};

    snprintf(row.what, sizeof row.what, "%s", what);
    snprintf(row.detail, sizeof row.detail, "%s", detail);
    return dt_cli_results_add(r, &row, err);
}

static struct dt_cli_range within(double published, double share)
{
    return (struct dt_cli_range){published * (1 - share), published * (1 + share)};
}

static const char *layout_text(const struct got *g, const struct run *r, char *buf, size_t size)
{
    snprintf(buf, size,
             "encoder %d/%d/%d/%d, llm %d/%d/%d/%d (tp/cp/pp/dp); encoder recompute %s%s",
             r->enc.tp, r->enc.cp, r->enc.pp, r->enc.dp, r->lm.tp, r->lm.cp, r->lm.pp, r->lm.dp,
             g->recompute, g->fits ? "" : "; more than 80 GB");
    return buf;
}

struct published { /* a row of a table; times in ms, memory in GB */
    const char *encoder, *llm;
    double vision;
    int seq_k, gpus[2], batch;
    struct layout enc[2], lm[2]; /* H and the other */
    double gain, ms[2], gb[2];
    struct dt_cli_range accept; /* of the gain */
    const char *why[5];         /* the gain, times and memory miss because */
    int instances;              /* of the other's encoder */
};

/* A workload of table A5: H's and C's layouts (C is H where the table says so), the noncolocated encoder's, the GPUs of both; the gain
 * of N over H in tokens/s, that of C, and which is published as the best: C, N or E (H and C alike).  N's LLM layout is published
 * for encoders from 6B on (table A4).  Elsewhere H's is taken: at 64 GPUs for 72 that alone is -11.1 %, and -11.3 and -10.5 are
 * published. */
struct workload {
    const char *encoder, *llm;
    double vision;
    int gpus[2], batch;
    struct layout h[2], c[2], n_enc;
    int instances;
    double c_gain, n_gain;
    char best;
    const char *why[2]; /* the gain of N misses, the best mode misses because */
};

/* The gain of the other over H and times; memory where `memory`. */
static enum dt_status table_row(struct dt_cli_results *out, char section, enum way other,
                                const struct published *p, bool memory, struct dt_error *err,
                                double *gain)
{
    struct got g[2];
    char what[2][96], title[64], detail[2][160];

    snprintf(title, sizeof title, "MIMO-%sB-%sB %dK %g %%%s", p->encoder, p->llm, p->seq_k,
             p->vision, p->gpus[0] == 512 ? " 512 GPUs" : "");
    for (int k = 0; k < 2; k++) {
        struct run r = {p->encoder,
                        p->llm,
                        p->vision,
                        p->seq_k,
                        p->gpus[k],
                        p->batch,
                        k ? other : HOMOGENEOUS,
                        p->enc[k],
                        p->lm[k],
                        k ? p->instances : 1};

        DT_TRY(try_run(&r, err, &g[k]));
        layout_text(&g[k], &r, detail[k], sizeof detail[k]);
        snprintf(what[k], sizeof what[k], "%s %s", title,
                 other == COLOCATED ? (k == 0 ? "H" : "C")
                 : k == 0           ? "H beside N"
                                    : "N");
    }
    *gain = 100 * (g[0].iteration_s / g[1].iteration_s - 1);
    {
        char text[112];
        struct verdict v = {p->accept, p->why[0]};

        snprintf(text, sizeof text, "%s gain", what[1]);
        DT_TRY(add(out, section, text, "%", p->gain, *gain, &v, "", err));
    }
    for (int k = 0; k < 2; k++) {
        char text[112];
        struct verdict v = {within(1e-3 * p->ms[k], 0.25), p->why[1 + k]};

        snprintf(text, sizeof text, "%s step", what[k]);
        DT_TRY(add(out, section, text, "s", 1e-3 * p->ms[k], g[k].iteration_s, &v, detail[k], err));
        if (!memory)
            continue;
        v = (struct verdict){within(p->gb[k], 0.15), p->why[3 + k]};
        snprintf(text, sizeof text, "%s memory", what[k]);
        DT_TRY(add(out, section, text, "GB", p->gb[k], g[k].mem_gb, &v, "", err));
    }
    return DT_OK;
}

#include "cli/reproduce_mimo_tables.h"
#include "cli/reproduce_mimo_apart.h"

enum { ROWS = 32 }; /* the most of a table */

static enum dt_status table(struct dt_cli_results *out, char section, enum way other,
                            const struct published *p, size_t n, bool memory, struct dt_error *err,
                            double gains[ROWS])
{
    for (size_t i = 0; i < n; i++)
        DT_TRY(table_row(out, section, other, &p[i], memory, err, &gains[i]));
    return DT_OK;
}

/* Gains of the 70B and 120B LLMs with encoders of 1B and 3B, which are published as much alike. */
static enum dt_status median_gain(struct dt_cli_results *r, size_t first, struct dt_error *err)
{
    double published[16], ours[16];
    struct verdict v = {
        .because = "without bubbles and gradients the published H steps leave 60 to 140 ms "
                   "a microbatch to a 1B encoder at TP 8, 2 to 5 % of peak; ours takes 34"};
    size_t n = 0;

    for (size_t i = first; i < r->n && n < 16; i++) {
        const char *what = r->rows[i].what;

        if (strstr(what, " C gain") && (strstr(what, "-70B ") || strstr(what, "-120B ")) &&
            (strstr(what, "MIMO-1B") || strstr(what, "MIMO-3B"))) {
            published[n] = r->rows[i].published.lo;
            ours[n++] = r->rows[i].ours;
        }
    }
    v.accept.lo = dt_median(published, n) - 6;
    v.accept.hi = v.accept.lo + 12;
    return add(r, 'j', "MIMO-1B and 3B, 70B and 120B 8K, median C gain", "%", v.accept.lo + 6,
               dt_median(ours, n), &v, "", err);
}

enum dt_status dt_cmd_reproduce_colocated(struct dt_cli_results *r, struct dt_error *err)
{
    size_t first = r->n;
    double gains[ROWS];

    DT_TRY(
        table(r, 'j', COLOCATED, table_a2, sizeof table_a2 / sizeof table_a2[0], true, err, gains));
    return median_gain(r, first, err);
}

/* Whether the paper says that `b` gains more than `a`: it has more vision tokens, or twice the context, up to where that adds. */
static bool gains_more(const struct published *a, const struct published *b)
{
    int longest = strcmp(a->llm, "7") == 0 ? 64 : 128;

    if (strcmp(a->llm, b->llm) != 0)
        return false;
    return (a->seq_k == b->seq_k && a->vision < b->vision) ||
           (a->vision == b->vision && b->seq_k == 2 * a->seq_k && b->seq_k <= longest);
}

enum dt_status dt_cmd_reproduce_long_context(struct dt_cli_results *r, struct dt_error *err)
{
    const size_t n = sizeof table_a3 / sizeof table_a3[0];
    struct verdict v = {.because = BY_LENGTH};
    double gains[ROWS];
    int pairs = 0, right = 0;

    DT_TRY(table(r, 'k', COLOCATED, table_a3, n, false, err, gains));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (gains_more(&table_a3[i], &table_a3[j])) {
                pairs++;
                right += gains[j] > gains[i];
            }
    v.accept = (struct dt_cli_range){ceil(pairs * 14 / 16.0), pairs};
    return add(r, 'k', "MIMO long context, pairs that gain more with vision or length", "pairs",
               pairs, right, &v, "", err);
}

/* Where the LLM has two stages on GPUs without the encoder and four with it, whether H with two does not fit and N does. */
static enum dt_status two_stages(const struct published *p, struct dt_error *err, bool *right)
{
    struct run r = {p->encoder, p->llm,      p->vision, p->seq_k, p->gpus[0],
                    p->batch,   HOMOGENEOUS, p->enc[0], p->lm[1], 1};
    struct got h, n;

    r.enc.dp = p->lm[1].dp;
    DT_TRY(try_run(&r, err, &h));
    r.way = NONCOLOCATED;
    r.gpus = p->gpus[1];
    r.enc = p->enc[1];
    DT_TRY(try_run(&r, err, &n));
    *right = n.fits && !h.fits;
    return DT_OK;
}

enum dt_status dt_cmd_reproduce_noncolocated(struct dt_cli_results *r, struct dt_error *err)
{
    const size_t n = sizeof table_a4 / sizeof table_a4[0];
    struct verdict v = {{14, 16},
                        "in the published steps of the other rows the encoder's 8 GPUs would run "
                        "at 69 to 151 % of peak with one patch per LLM token"};
    double gains[ROWS];
    int positive = 0, cases = 0, right = 0;

    DT_TRY(table(r, 'l', NONCOLOCATED, table_a4, n, true, err, gains));
    for (size_t i = 0; i < n; i++) {
        const struct published *p = &table_a4[i];
        bool as_published;

        positive += gains[i] > 0;
        if (p->lm[0].pp == p->lm[1].pp)
            continue;
        DT_TRY(two_stages(p, err, &as_published));
        cases++;
        right += as_published;
    }
    DT_TRY(add(r, 'l', "MIMO 120B, rows where N gains", "of 16", (double)n, positive, &v, "", err));
    v = (struct verdict){{cases, cases},
                         "ours takes 2 to 7 GB less for N's LLM; 4 to 8 of H's encoder on the "
                         "published peaks of N would be more than 76 GB in all rows"};
    return add(r, 'l', "MIMO 120B, rows where two stages of the LLM fit in N alone", "rows", cases,
               right, &v, "", err);
}

/* ---- the best mode ---- */

/* The noncolocated run with the LLM laid out by `lm` on the GPUs that the encoder leaves. */
static enum dt_status noncolocated(const struct workload *w, struct layout *lm,
                                   struct dt_error *err, struct got *out)
{
    struct run r = {w->encoder, w->llm,       w->vision, 8,   w->gpus[1],
                    w->batch,   NONCOLOCATED, w->n_enc,  *lm, 1};

    lm->dp = r.lm.dp = (w->gpus[1] - w->n_enc.tp * w->n_enc.dp) / (lm->tp * lm->cp * lm->pp);
    return try_run(&r, err, out);
}

/* Its layouts: what is taken for the published one, and the fastest that 80 GB hold of that, H's, C's and, for 120B, the one of large
 * encoders. */
static enum dt_status noncolocated_runs(const struct workload *w, struct dt_error *err,
                                        struct got got[2], struct layout lm[2])
{
    const struct layout tried[] = {w->h[1], w->c[1], {8, 1, 2, 0}};
    int n = strcmp(w->llm, "120") == 0 ? 3 : 2;

    lm[0] = w->best == 'N' ? tried[2] : w->h[1];
    DT_TRY(noncolocated(w, &lm[0], err, &got[0]));
    got[1] = got[0];
    lm[1] = lm[0];
    for (int i = 0; i < n; i++) {
        struct layout l = tried[i];
        struct got g;

        DT_TRY(noncolocated(w, &l, err, &g));
        if (!g.fits || g.iteration_s >= got[1].iteration_s)
            continue;
        got[1] = g;
        lm[1] = l;
    }
    return DT_OK;
}

/* The gain of what is published as the best over the others [%], from gains over H. */
static double margin(char best, double c, double n)
{
    double over_h = fmax(0, c);

    if (best == 'N')
        return 100 * ((100 + n) / (100 + over_h) - 1);
    if (best == 'E')
        return 100 * ((100 + over_h) / (100 + n) - 1);
    return 100 * ((100 + c) / (100 + fmax(0, n)) - 1);
}

/* The two rows of a workload; counts in `right` whether its best mode comes out, with the layout taken for N and with N's fastest. */
static enum dt_status mode_rows(struct dt_cli_results *out, const struct workload *w, int right[2],
                                struct dt_error *err)
{
    static const struct dt_cli_range above = {0, 1000}, below = {-100, 0};
    const struct run h = {w->encoder, w->llm,      w->vision, 8,       w->gpus[0],
                          w->batch,   HOMOGENEOUS, w->h[0],   w->h[1], 1};
    const struct run c = {w->encoder, w->llm,    w->vision, 8,       w->gpus[0],
                          w->batch,   COLOCATED, w->c[0],   w->c[1], w->instances};
    struct got got_h, got_c, got_n[2];
    struct layout lm[2];
    char title[64], what[128], detail[160];
    double gain_c, gain_n[2];
    bool same = memcmp(w->h, w->c, sizeof w->h) == 0;
    struct verdict v = {w->n_gain > 0 ? above : below, w->why[0]};
    int n;

    DT_TRY(try_run(&h, err, &got_h));
    got_c = got_h;
    if (!same)
        DT_TRY(try_run(&c, err, &got_c));
    DT_TRY(noncolocated_runs(w, err, got_n, lm));
    gain_c = 100 * (got_h.iteration_s / got_c.iteration_s - 1);
    for (int k = 0; k < 2; k++) {
        gain_n[k] = 100 * (got_h.iteration_s / got_n[k].iteration_s - 1);
        right[k] += margin(w->best, gain_c, gain_n[k]) > 0;
    }
    snprintf(title, sizeof title, "MIMO-%sB-%sB 8K %g %%", w->encoder, w->llm, w->vision);
    n = snprintf(detail, sizeof detail, "N %.2f s, llm %d/%d/%d/%d%s", got_n[0].iteration_s,
                 lm[0].tp, lm[0].cp, lm[0].pp, lm[0].dp, got_n[0].fits ? "" : "; more than 80 GB");
    if (got_n[1].iteration_s < got_n[0].iteration_s)
        snprintf(detail + n, sizeof detail - (size_t)n, "; %.2f s, %d/%d/%d/%d",
                 got_n[1].iteration_s, lm[1].tp, lm[1].cp, lm[1].pp, lm[1].dp);
    snprintf(what, sizeof what, "%s N over H", title);
    DT_TRY(add(out, 'o', what, "%", w->n_gain, gain_n[0], &v, detail, err));
    v = (struct verdict){above, w->why[1]};
    snprintf(what, sizeof what, "%s %s", title,
             w->best == 'C'   ? "C over H and N"
             : w->best == 'N' ? "N over H and C"
                              : "H and C over N");
    snprintf(detail, sizeof detail, "H %.2f s, C %.2f s%s", got_h.iteration_s, got_c.iteration_s,
             same ? " (is H)" : "");
    return add(out, 'o', what, "%", margin(w->best, w->c_gain, w->n_gain),
               margin(w->best, gain_c, gain_n[0]), &v, detail, err);
}

enum dt_status dt_cmd_reproduce_modes(struct dt_cli_results *r, struct dt_error *err)
{
    static const char few[] = "C gains too little over H with 70B and 120B, as in (j)";
    struct verdict v = {{12, 14}, few};
    int right[2] = {0};

    for (size_t i = 0; i < sizeof table_a5 / sizeof table_a5[0]; i++)
        DT_TRY(mode_rows(r, &table_a5[i], right, err));
    DT_TRY(add(r, 'o', "MIMO 8K, workloads whose best mode is the published one", "of 14", 14,
               right[0], &v, "", err));
    return add(r, 'o', "MIMO 8K, the same with N's fastest layout of the LLM", "of 14", 14,
               right[1], &v, "", err);
}

/* ---- bytes at the boundary ---- */

/* A 3B encoder and a 70B LLM, 8K, 256 samples on 256 GPUs, and 8 more for the encoder: bytes follow from the layouts,
 * samples of a replica x vision tokens x 8,192 x 2; shares of the step are published. */
enum dt_status dt_cmd_reproduce_boundary(struct dt_cli_results *out, struct dt_error *err)
{
    static const struct {
        double vision, share[2];
    } rows[] = {{25, {0.08, 0.46}}, {50, {0.15, 0.62}}, {75, {0.23, 0.56}}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int apart = 0; apart < 2; apart++) {
            struct run r = {"3",
                            "70",
                            rows[i].vision,
                            8,
                            apart ? 264 : 256,
                            256,
                            apart ? NONCOLOCATED : COLOCATED,
                            apart ? (struct layout){1, 1, 1, 8} : (struct layout){8, 1, 1, 32},
                            {8, 1, 2, 16},
                            1};
            double vision = rows[i].vision / 100 * 8192;
            double each = 256.0 / r.enc.dp * vision * 8192 * 2, lm = 256.0 / 16 * vision * 8192 * 2;
            char what[96];
            struct verdict v;
            struct got g;

            DT_TRY(try_run(&r, err, &g));
            v = (struct verdict){within(1e-9 * (apart ? each : lm), 0.01), ""};
            snprintf(what, sizeof what, "MIMO-3B-70B 8K %g %% %s forward", r.vision,
                     apart ? "N, out of an encoder replica" : "C, into an LLM replica");
            DT_TRY(add(out, 'm', what, "GB", 1e-9 * (apart ? each : lm),
                       1e-9 * (apart ? g.out : g.forward), &v, "", err));
            v = (struct verdict){within(1e-9 * each, 0.01), ""};
            snprintf(what, sizeof what, "MIMO-3B-70B 8K %g %% %s, into an encoder replica backward",
                     r.vision, apart ? "N" : "C");
            DT_TRY(add(out, 'm', what, "GB", 1e-9 * each, 1e-9 * g.backward, &v, "", err));
            v = (struct verdict){{0, 1}, ""};
            snprintf(what, sizeof what, "MIMO-3B-70B 8K %g %% %s share of the step", r.vision,
                     apart ? "N" : "C");
            DT_TRY(add(out, 'm', what, "%", rows[i].share[apart], g.share, &v, "", err));
        }
    return DT_OK;
}
