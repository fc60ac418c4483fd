/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A training step allocates nothing once its shapes have been seen: batches, activations, messages,
 * workspaces, primitives and moments are those of the step before.
 *
 * Counted is what the project asks for (base/mem.h; device memory too).  Not counted: what
 * libraries take and give back inside a call, such as the packing buffer of oneDNN's small fp32
 * products. */
#include "base/mem.h"
#include "exec_fixture.h"

static struct exec_fixture f;

struct step {
    struct dt_samples *samples;
    struct dt_assignment *assignment;
    struct dt_program *program;
    const struct dt_sequence *seqs[EF_SEQS_MAX];
};

static void compile(struct step *s)
{
    for (int i = 0; i < f.n_seqs; i++)
        s->seqs[i] = f.seqs[i];
    dt_assert_ok(dt_batching_samples(s->seqs, f.n_seqs, &f.err, &s->samples), f.err);
    dt_assert_ok(dt_assign(&f.plan, f.model, f.cost, s->samples, 0, &f.err, &s->assignment), f.err);
    dt_assert_ok(
        dt_sched_compile(&f.plan, f.model, &f.cluster, s->assignment, f.cost, &f.err, &s->program),
        f.err);
}

static void free_step(struct step *s)
{
    dt_program_free(s->program);
    dt_assign_free(s->assignment);
    dt_samples_free(s->samples);
}

struct layout_case {
    const char *name;
    struct ef_layout l[3];
    bool colocated;
    enum dt_block_recompute recompute;
    double dropout;
    enum dt_pipe_schedule schedule;
};
static const struct layout_case layouts[] = {
    {"colocated", {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, true, DT_RECOMPUTE_NONE, 0, DT_SCHED_1F1B},
    {"dropout, full recompute",
     {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
     true,
     DT_RECOMPUTE_FULL,
     0.1,
     DT_SCHED_1F1B},
    {"pp 2/3/2",
     {{2, 1, 1}, {3, 1, 1}, {2, 1, 1}},
     false,
     DT_RECOMPUTE_SELECTIVE,
     0,
     DT_SCHED_1F1B},
    {"dp 2/2/3", {{1, 2, 1}, {1, 2, 1}, {1, 3, 1}}, false, DT_RECOMPUTE_NONE, 0, DT_SCHED_1F1B},
    {"zb-h1", {{2, 1, 1}, {3, 1, 1}, {2, 1, 1}}, false, DT_RECOMPUTE_NONE, 0, DT_SCHED_ZB_H1},
};
enum { N_LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

START_TEST(a_step_allocates_nothing)
{
    const struct layout_case *c = &layouts[_i];
    struct dt_exec_result r;
    struct step s;
    struct dt_timeline_topo topo;
    uint64_t order; /* a program may be new at every step: its order is made anew */

    ef_init(&f, EF_ENCODER ", " EF_LLM ", " EF_UNET, 2);
    ef_seqs(&f, 12, 9);
    ef_plan(&f, 1, c->l, c->colocated, c->schedule);
    fx_modes(&f.plan, c->recompute, 1);
    ef_open(&f);
    if (c->dropout > 0) {
        ef_close(&f);
        f.opt.dropout = c->dropout;
        dt_assert_ok(dt_exec_new(&f.opt, &f.err, &f.x), f.err);
    }
    compile(&s);
    dt_mem_fail_at(0); /* counts anew */
    dt_assert_ok(dt_timeline_topo_build(s.program, &f.err, &topo), f.err);
    order = dt_mem_count();
    dt_timeline_topo_free(&topo);
    for (int64_t step = 1; step <= 4; step++) {
        struct dt_exec_input in = {.seqs = s.seqs, .n = f.n_seqs, .step = step};
        int64_t before, after, most;

        dt_exec_memory(f.x, &before, &most);
        dt_mem_fail_at(0);
        dt_assert_ok(dt_exec_run(f.x, s.program, &in, &f.err, NULL, &r), f.err);
        dt_exec_memory(f.x, &after, &most);
        if (step == 1) {
            ck_assert_uint_gt(dt_mem_count(), order);
            ck_assert_int_gt(after, before);
        } else if (step > 2) { /* the second makes what adds to gradients and to full buffers */
            ck_assert_msg(dt_mem_count() == order, "%s: step %d allocates %d times, its order %d",
                          c->name, (int)step, (int)dt_mem_count(), (int)order);
            ck_assert_int_eq(after, before);
        }
    }
    free_step(&s);
    ef_free(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("step_memory");
    TCase *tc = dt_test_case(suite, "step", 300);

    tcase_add_loop_test(tc, a_step_allocates_nothing, 0, N_LAYOUTS);
    return dt_test_run(suite);
}
