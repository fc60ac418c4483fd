/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor over several ranks: every layout of execute_layouts.c trains as one process does.
 *
 *   test_execute_ranks            ranks are threads; a few layouts, or all with DT_CHECK_FULL=1
 *   DT_TEST_CASE=NAME CK_RUN_CASE=layouts test_execute_ranks
 *                                 one layout
 *   test_execute_ranks --list     the layouts that `--mpi` is for: number, ranks, name
 *   test_execute_ranks --mpi N    layout N, under mpirun with as many ranks
 *
 * Each layout's differences from one process are printed. */
#include "execute_ranks.h"

#include <sys/mman.h>
#include <unistd.h>

/* Differences seen, relative; kept across the processes of tests. */
struct seen {
    bool run;
    int ranks;
    double first, later, grad; /* loss of step 1, of any later step, gradient of step 1 */
};
static struct seen *seen; /* [n_layouts()] */

/* ---- comparisons ---- */

/* Relative; of nothing at all: absolute. */
static double apart_by(double is, double should)
{
    return fabs(is - should) / (should != 0 ? fabs(should) : 1);
}

static void same_loss(const char *name, int i, const char *what, double is, double should,
                      double tol)
{
    ck_assert_msg(apart_by(is, should) <= tol, "%s: step %d: %s %.9g, should be %.9g", name, i + 1,
                  what, is, should);
}

static void same_curve(const char *name, const struct curve *a, const struct curve *b, int steps,
                       struct seen *s)
{
    for (int i = 0; i < steps; i++) {
        double tol = i == 0 ? 1e-5 : 1e-3;
        const struct dt_exec_result *x = &a->r[i], *y = &b->r[i];
        double *most = i == 0 ? &s->first : &s->later;

        *most = fmax(*most, fmax(apart_by(y->loss_text, x->loss_text),
                                 apart_by(y->loss_image, x->loss_image)));
        same_loss(name, i, "text loss", y->loss_text, x->loss_text, tol);
        same_loss(name, i, "image loss", y->loss_image, x->loss_image, tol);
        same_loss(name, i, "gradient norm", y->grad_norm, x->grad_norm, 10 * tol);
        if (y->balance > 0) /* not where sequences are cut */
            same_loss(name, i, "evenness of routing", y->balance, x->balance, tol);
        ck_assert_int_eq(x->targets, y->targets);
        ck_assert_int_eq(x->images, y->images);
    }
}

/* Every tensor's gradient, by norms.  Some are zero but for rounding (a key's bias): what is below
 * 1e-5 is compared with that. */
static void same_grads(const struct world *w, float *const *should, struct seen *s)
{
    for (int m = 0; m < w->one->model->n_modules; m++) {
        struct dt_stage *stage = dt_exec_stage(w->one->x, m, 0, 0);
        int n;
        const struct dt_param *p = dt_stage_params(stage, &n);

        for (int i = 0; should[m] && i < n; i++) {
            double off = 0, all = 0;

            if (!dt_stage_trained(stage, p[i].block))
                continue;
            for (size_t k = p[i].at; k < p[i].at + p[i].n; k++) {
                double d = (double)w->grads[m][k] - (double)should[m][k];

                off += d * d;
                all += (double)should[m][k] * (double)should[m][k];
            }
            off = sqrt(off) / (sqrt(all) + 1e-5);
            s->grad = fmax(s->grad, off);
            ck_assert_msg(off <= 1e-4, "%s: gradient of %s is %.3g off, its norm is %.3g",
                          w->c->name, p[i].name, off, sqrt(all));
        }
    }
}

static int steps_of(void)
{
    return all_of_them() ? STEPS_MAX : 4;
}

static void print_seen(const struct ranks_case *c, const struct seen *s, const char *transport)
{
    printf("equivalence: %-36s %-26s %2d %s: loss %.1e, later %.1e, gradient %.1e\n", c->name,
           c->layout, s->ranks, transport, s->first, s->later, s->grad);
    fflush(stdout);
}

static void world_open(struct world *w, const struct ranks_case *c, struct exec_fixture *one,
                       struct curve *alone, float *should[MODULES])
{
    *w = (struct world){.c = c, .steps = steps_of(), .ranks = ranks_of(c), .one = one};
    ck_assert_int_le(w->ranks, RANKS_MAX);
    pthread_mutex_init(&w->lock, NULL);
    run_alone(one, c, w->steps, alone, should);
    for (int m = 0; m < one->model->n_modules; m++)
        w->grads[m] = calloc(dt_stage_param_floats(dt_exec_stage(one->x, m, 0, 0)), sizeof(float));
}

static void world_close(struct world *w, float *should[MODULES])
{
    for (int m = 0; m < MODULES; m++) {
        free(should[m]);
        free(w->grads[m]);
    }
    ef_free(w->one);
    pthread_mutex_destroy(&w->lock);
}

/* How far stages are ahead changes when an operation runs, and nothing that it computes. */
static void check_without_ahead(struct world *w, const struct rank *eager)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    struct ranks_case plain = *w->c;
    const struct ranks_case *c = w->c;

    ck_assert_ptr_nonnull(ranks);
    plain.ahead = 0;
    w->c = &plain;
    run_ranks(w, ranks, run_rank);
    w->c = c;
    for (int k = 0; k < w->steps; k++)
        ck_assert_msg(ranks[0].curve.r[k].loss == eager[0].curve.r[k].loss &&
                          ranks[0].curve.r[k].grad_norm == eager[0].curve.r[k].grad_norm,
                      "%s: step %d has another loss or norm than without", c->name, k + 1);
    free(ranks);
}

static void check_case(const struct ranks_case *c, struct seen *s)
{
    static struct exec_fixture one;
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    float *should[MODULES] = {0};
    struct world w;
    struct curve alone;

    ck_assert_ptr_nonnull(ranks);
    world_open(&w, c, &one, &alone, should);
    run_ranks(&w, ranks, run_rank);
    s->ranks = w.ranks;
    same_curve(c->name, &alone, &ranks[0].curve, w.steps, s);
    for (int i = 1; i < w.ranks; i++) /* all ranks know the same */
        for (int k = 0; k < w.steps; k++)
            ck_assert_msg(ranks[i].curve.r[k].loss == ranks[0].curve.r[k].loss &&
                              ranks[i].curve.r[k].grad_norm == ranks[0].curve.r[k].grad_norm,
                          "%s: rank %d has another loss or norm", c->name, i);
    same_grads(&w, should, s);
    if (c->ahead > 0)
        check_without_ahead(&w, ranks);
    s->run = true;
    print_seen(c, s, "threads");
    free(ranks);
    world_close(&w, should);
}

/* NULL: all */
static const char *only_case(void)
{
    const char *name = getenv("DT_TEST_CASE");

    return name && *name ? name : NULL;
}

START_TEST(ranks_train_as_one_process)
{
    struct ranks_case c;

    read_layout(_i, &c);
    if (!only_case() && !is_looked_at(&c, _i, EVEN))
        return;
    check_case(&c, &seen[_i]);
}
END_TEST

/* The layouts asked for: all, or the one named.  Is there such a one? */
static bool add_layouts(TCase *t)
{
    struct ranks_case c;

    if (!only_case()) {
        tcase_add_loop_test(t, ranks_train_as_one_process, 0, n_layouts());
        return true;
    }
    for (int i = 0; i < n_layouts(); i++) {
        read_layout(i, &c);
        if (strcmp(c.name, only_case()) == 0) {
            tcase_add_loop_test(t, ranks_train_as_one_process, i, i + 1);
            return true;
        }
    }
    fprintf(stderr, "there is no layout \"%s\"\n", only_case());
    return false;
}

/* ---- over MPI ---- */

static int mpi_layout;

static void reduce_over_ranks(struct dt_transport *t, enum dt_reduce_type type, float *x, size_t n)
{
    int who[RANKS_MAX];
    struct dt_error err;
    struct dt_comm *all;
    struct dt_req *req;

    for (int i = 0; i < t->size; i++)
        who[i] = i;
    dt_assert_ok(t->comm_new(t, who, t->size, &err, &all), err);
    dt_assert_ok(t->post_all_reduce(all, type, x, n, NULL, &err, &req), err);
    dt_assert_ok(dt_transport_wait(t, req, 60, "gradients", &err), err);
    t->comm_free(all);
}

/* grads[m][k] is NaN where this rank owns nothing.  There it becomes what it should be, so that
 * each rank answers for what it owns, or 0 where nobody owns it. */
static void complete(struct world *w, struct dt_transport *t, int m, const float *should)
{
    size_t n = dt_stage_param_floats(dt_exec_stage(w->one->x, m, 0, 0));
    float *owners = malloc(n * sizeof(*owners));

    ck_assert_ptr_nonnull(owners);
    for (size_t k = 0; k < n; k++)
        owners[k] = !isnan(w->grads[m][k]);
    reduce_over_ranks(t, DT_REDUCE_F32, owners, n);
    for (size_t k = 0; k < n; k++)
        if (isnan(w->grads[m][k]))
            w->grads[m][k] = should && owners[k] > 0 ? should[k] : 0;
    free(owners);
}

/* This process is one rank; each compares with a run of its own. */
START_TEST(mpi_ranks_train_as_one_process)
{
    static struct exec_fixture one, f;
    static struct rank r;
    float *should[MODULES] = {0};
    struct dt_error err;
    struct ranks_case c;
    struct world w;
    struct curve alone;
    struct seen s = {0};
    float grad;

    read_layout(mpi_layout, &c);
    dt_assert_ok(dt_transport_open_mpi(&err, &r.t), err);
    world_open(&w, &c, &one, &alone, should);
    ck_assert_int_eq(r.t->size, w.ranks);
    for (int m = 0; m < one.model->n_modules; m++)
        for (size_t k = 0; k < dt_stage_param_floats(dt_exec_stage(one.x, m, 0, 0)); k++)
            w.grads[m][k] = NAN;
    r.w = &w;
    walk(&r, &f);
    same_curve(c.name, &alone, &r.curve, w.steps, &s);
    for (int m = 0; m < one.model->n_modules; m++)
        complete(&w, r.t, m, should[m]);
    same_grads(&w, should, &s);
    grad = (float)s.grad;
    reduce_over_ranks(r.t, DT_REDUCE_F32_MAX, &grad, 1);
    s.grad = (double)grad;
    s.ranks = w.ranks;
    if (r.t->rank == 0)
        print_seen(&c, &s, "mpi");
    ef_free(&f);
    r.t->close(r.t);
    world_close(&w, should);
}
END_TEST

/* ---- which ---- */

static void list(void)
{
    for (int i = 0; i < n_layouts(); i++) {
        struct ranks_case c;

        read_layout(i, &c);
        if ((c.mpi || all_of_them()) && ranks_of(&c) > 1)
            printf("%d %d %s\n", i, ranks_of(&c), c.name);
    }
}

/* The worst of all layouts that were run. */
static void sum_up(void)
{
    struct seen most = {0};
    int n = 0;

    for (int i = 0; i < n_layouts(); i++) {
        if (!seen[i].run)
            continue;
        n++;
        most.first = fmax(most.first, seen[i].first);
        most.later = fmax(most.later, seen[i].later);
        most.grad = fmax(most.grad, seen[i].grad);
    }
    printf("equivalence: %d of %d layouts, %d steps: loss of step 1 at most %.1e apart (1e-5), "
           "later %.1e (1e-3), gradient of step 1 %.1e (1e-4)\n",
           n, n_layouts(), steps_of(), most.first, most.later, most.grad);
}

static TCase *case_of(Suite *s, const char *name)
{
    TCase *t = dt_test_case(s, name, 120);

    tcase_add_checked_fixture(t, use_environment, NULL);
    return t;
}

int main(int argc, char **argv)
{
    Suite *s;
    TCase *t;
    int status;

    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        list();
        return EXIT_SUCCESS;
    }
    s = suite_create("ranks");
    t = case_of(s, "ranks");
    if (argc > 2 && strcmp(argv[1], "--mpi") == 0) {
        mpi_layout = atoi(argv[2]);
        tcase_add_test(t, mpi_ranks_train_as_one_process);
        if (dt_test_run_here(s, CK_ENV) != EXIT_SUCCESS)
            _exit(EXIT_FAILURE); /* the launcher ends the others */
        return EXIT_SUCCESS;
    }
    seen = mmap(NULL, (size_t)n_layouts() * sizeof(*seen), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        return EXIT_FAILURE;
    add_bf16_tests(t);
    add_nonfinite_tests(t);
    add_whole_tests(t);
    t = case_of(s, "offload"); /* alone: CK_RUN_CASE=offload */
    add_offload_tests(t);
    t = case_of(s, "ring"); /* alone: CK_RUN_CASE=ring */
    add_ring_tests(t);
    t = case_of(s, "messages");
    add_comm_tests(t);
    t = case_of(s, "layouts"); /* alone: CK_RUN_CASE=layouts */
    if (!add_layouts(t))
        return EXIT_FAILURE;
    status = dt_test_run(s);
    sum_up();
    return status;
}
