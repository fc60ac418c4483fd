/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writes a small module, its microbatch, its results and its gradients as lines "name: numbers",
 * for modules_compare.py. */
#include "module_util.h"

static enum mu_kind kind;

static void doubles(const char *name, const double *v, int64_t n)
{
    printf("%s:", name);
    for (int64_t i = 0; i < n; i++)
        printf(" %.17g", v[i]);
    printf("\n");
}

static void ints(const char *name, const int *v, int64_t n)
{
    printf("%s:", name);
    for (int64_t i = 0; i < n; i++)
        printf(" %d", v[i]);
    printf("\n");
}

static void config(const struct dt_module *m)
{
    for (int i = 0; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];
        int v[] = {(int)b->kind, b->hidden, b->ffn,   b->heads,  b->kv_heads,   b->head_dim,
                   b->depth,     b->c_in,   b->c_out, b->stride, b->context_len};

        ints("block", v, (int64_t)(sizeof(v) / sizeof(v[0])));
    }
}

START_TEST(dump)
{
    struct mu u;
    struct mu_run run = {.upstream = true};
    struct mu_result got;
    char name[128];

    mu_open(&u, kind, dt_test_seed());
    mu_execute(&u, &run, &got);
    config(&u.m);
    for (int i = 0; i < u.n; i++) {
        doubles(u.t[i].name, u.t[i].v, u.t[i].n);
        snprintf(name, sizeof(name), "grad %s", u.t[i].name);
        doubles(name, got.g[i], u.t[i].n);
    }
    doubles("in", u.in, u.n_in);
    doubles("d_in", got.d_in, u.n_in);
    doubles("weights", u.weights, u.n_out);
    doubles("out", got.out, u.n_out);
    doubles("loss", &got.loss, 1);
    if (u.m.role == DT_ROLE_LLM) {
        ints("doc", u.llm.doc, u.llm.rows);
        ints("ids", u.llm.ids, u.llm.rows);
        ints("target", u.llm.target, u.llm.rows);
        ints("in_row", u.llm.in_row, u.llm.n_in);
        ints("cond_row", u.llm.cond_row, u.llm.n_cond);
        doubles("scale", &u.llm.scale, 1);
    } else if (u.m.role == DT_ROLE_ENCODER) {
        ints("image", u.enc.image, u.enc.rows);
        ints("pos", u.enc.pos, u.enc.rows);
        doubles("pixels", u.enc.pixels, (int64_t)u.enc.rows * 27);
    } else {
        int rows = 0;

        for (int i = 0; i < u.gen.n; i++)
            rows += u.gen.hw[i][0] * u.gen.hw[i][1];
        ints("sizes", &u.sizes[0][0], 2 * u.gen.n);
        doubles("x0", u.gen.x0, 3 * rows);
        doubles("noise", u.gen.noise, 3 * rows);
        doubles("t", u.gen.t, u.gen.n);
        doubles("alpha", u.gen.alpha, u.gen.n);
        doubles("sigma", u.gen.sigma, u.gen.n);
        doubles("scale", &u.gen.scale, 1);
        doubles("pred", got.pred, 3 * rows);
    }
    mu_close(&u);
}
END_TEST

int mu_dump(const char *name)
{
    Suite *s = suite_create("modules_dump");
    TCase *c = dt_test_case(s, "dump", 0);
    int i = 0;

    while (i < MU_N && strcmp(mu_names[i], name) != 0)
        i++;
    kind = (enum mu_kind)i;
    if (i < MU_N)
        tcase_add_test(c, dump);
    return dt_test_run_here(s, CK_SILENT) == EXIT_SUCCESS && i < MU_N ? EXIT_SUCCESS : EXIT_FAILURE;
}
