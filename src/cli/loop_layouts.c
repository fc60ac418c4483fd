/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small layouts of one machine: encoder and generator with 1 or 2 replicas, the LLM with 1 or 2
 * stages, replicas or ranks of context parallelism, all modules on the same ranks or each on its own;
 * on the same ranks also an encoder whose replicas share the images of the whole batch. */
#include "cli/loop.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

struct shape {
    bool colocated, window; /* window: of encoders, all */
    int cp;                 /* of the LLM */
    int pp[DT_MAX_MODULES], dp[DT_MAX_MODULES];
};

static int ranks_of(const struct dt_model *m, const struct shape *s)
{
    int most = 0, sum = 0;

    for (int i = 0; i < m->n_modules; i++) {
        int n = s->pp[i] * s->dp[i] * (i == m->llm ? s->cp : 1);

        most = n > most ? n : most;
        sum += n;
    }
    return s->colocated ? most : sum;
}

int dt_loop_threads_each(const struct dt_loop *l, int ranks)
{
    int n = l->cores / ranks;

    return n < 1 ? 1 : n > LOOP_THREADS_MAX ? LOOP_THREADS_MAX : n;
}

static bool shares_items(const struct dt_model *m, const struct shape *s, int module)
{
    return s->window && m->modules[module].role == DT_ROLE_ENCODER;
}

/* Every replica of every module gets samples of every slot, but for those that share items. */
static bool fits(const struct dt_job *job, const struct shape *s)
{
    const struct dt_model *m = job->model;
    int64_t slot = (int64_t)s->dp[m->llm] * job->policy.microbatch;

    if (job->policy.global_batch % slot != 0)
        return false;
    for (int i = 0; i < m->n_modules; i++)
        if ((!shares_items(m, s, i) && (s->dp[i] > slot || slot % s->dp[i] != 0)) ||
            s->pp[i] > m->modules[i].n_blocks)
            return false;
    return true;
}

/* One of the two words of a layout. */
static void module_text(const struct dt_model *m, const struct shape *s, int i, bool name,
                        char *buf, size_t size)
{
    bool window = shares_items(m, s, i), cp = i == m->llm && s->cp > 1;
    char of_cp[24] = "";

    if (cp)
        snprintf(of_cp, sizeof(of_cp), "%s%d", name ? " cp " : ", cp: ", s->cp);
    if (name)
        snprintf(buf, size, " %dx%d%s%s", s->pp[i], s->dp[i], of_cp, window ? " window all" : "");
    else
        snprintf(buf, size, ", %s: {pp: %d, dp: %d%s%s}", m->modules[i].name, s->pp[i], s->dp[i],
                 of_cp, window ? ", window: all" : "");
}

static enum dt_status add(struct dt_loop *l, const struct dt_job *job, const struct shape *s,
                          struct dt_error *err)
{
    const struct dt_model *m = job->model;
    int ranks = ranks_of(m, s);
    struct dt_loop_layout *x;
    size_t at, name;

    if (ranks > l->ranks_max || !fits(job, s))
        return DT_OK;
    if (dt_grow((void **)&l->layout, &l->cap, (size_t)l->n + 1, sizeof(*l->layout)))
        return dt_error_nomem(err, "layouts");
    x = &l->layout[l->n];
    memset(x, 0, sizeof(*x));
    x->ranks = ranks;
    x->threads = dt_loop_threads_each(l, ranks);
    at = (size_t)snprintf(x->over, sizeof(x->over), "plan={colocated: %s",
                          s->colocated ? "true" : "false");
    name =
        (size_t)snprintf(x->name, sizeof(x->name), "%s", s->colocated ? "colocated" : "disjoint");
    for (int i = 0; i < m->n_modules; i++) {
        char text[DT_NAME_MAX + 96];

        module_text(m, s, i, false, text, sizeof(text));
        at += (size_t)snprintf(x->over + at, sizeof(x->over) - at, "%s", text);
        module_text(m, s, i, true, text, sizeof(text));
        name += (size_t)snprintf(x->name + name, sizeof(x->name) - name, "%s", text);
        if (at >= sizeof(x->over) - 2 || name >= sizeof(x->name))
            return DT_OK; /* more modules than fit into a line: no layout to try */
    }
    strcat(x->over, "}");
    l->n++;
    return DT_OK;
}

/* Of the LLM: stages, replicas, ranks of context parallelism. */
static const int of_llm[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}};
enum { OF_LLM = sizeof(of_llm) / sizeof(of_llm[0]) };

/* others: a bit of each other module, which has 2 replicas where it is set. */
static struct shape shape_of(const struct dt_model *m, int llm, int others)
{
    struct shape s = {.cp = of_llm[llm][2]};
    int bit = 0;

    for (int i = 0; i < m->n_modules; i++) {
        s.pp[i] = i == m->llm ? of_llm[llm][0] : 1;
        s.dp[i] = i == m->llm ? of_llm[llm][1] : 1 + (others >> bit++ & 1);
    }
    return s;
}

/* All other modules with 2 replicas, encoders in one window: where the LLM has more than one rank, too. */
static enum dt_status add_windows(struct dt_loop *l, const struct dt_job *job, int others,
                                  struct dt_error *err)
{
    bool encodes = false;

    for (int i = 0; i < job->model->n_modules; i++)
        encodes |= job->model->modules[i].role == DT_ROLE_ENCODER;
    for (int k = 1; encodes && k < OF_LLM; k++) {
        struct shape s = shape_of(job->model, k, others - 1);

        s.colocated = s.window = true;
        DT_TRY(add(l, job, &s, err));
    }
    return DT_OK;
}

enum dt_status dt_loop_layouts(struct dt_loop *l, const struct dt_job *job, struct dt_error *err)
{
    const struct dt_model *m = job->model;
    int others = 1 << (m->n_modules - 1);

    for (int colocated = 1; colocated >= (m->n_modules > 1 ? 0 : 1); colocated--)
        for (int k = 0; k < OF_LLM; k++)
            for (int o = 0; o < others; o++) {
                struct shape s = shape_of(m, k, o);

                s.colocated = colocated;
                DT_TRY(add(l, job, &s, err));
            }
    return add_windows(l, job, others, err);
}
