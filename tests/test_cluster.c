/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Clusters: presets and what they are changed to, and messages against what they should say. */
#include "core/model/cluster.h"
#include "base/doc.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static void assert_near(double got, double want, double rel, const char *what)
{
    ck_assert_msg(fabs(got - want) <= rel * fabs(want), "%s: %.9g, expected %.9g within %g", what,
                  got, want, rel);
}

static enum dt_status read_cluster(const char *yaml, struct dt_error *err, struct dt_cluster *out)
{
    struct dt_doc *doc = NULL;
    char text[4096];
    enum dt_status st;

    snprintf(text, sizeof(text), "cluster: %s\n", yaml);
    st = dt_doc_parse("job.yaml", text, strlen(text), err, &doc);
    if (st == DT_OK)
        st = dt_cluster_read(dt_map_get(dt_doc_root(doc), "cluster"), err, out);
    dt_doc_free(doc);
    return st;
}

static const struct {
    const char *yaml;
    int gpus;
    double peak, nvlink, nic;
} clusters[] = {
    {"a800-1296", 1296, 312e12, 160e9, 25e9},
    {"a800-96", 96, 312e12, 160e9, 25e9},
    {"a100", 1024, 312e12, 240e9, 25e9},
    {"h100", 1024, 989e12, 371e9, 50e9},
    {"local", 4, 50e9, 4e9, 1.25e9},
    {"{preset: a800-1296, gpus: 112}", 112, 312e12, 160e9, 25e9},
    {"{preset: h100, nodes: 3, nic_bandwidth: 200 Gb/s}", 24, 989e12, 371e9, 25e9},
};

START_TEST(cluster_presets)
{
    struct dt_cluster c;
    struct dt_error err = {0};

    dt_assert_ok(read_cluster(clusters[_i].yaml, &err, &c), err);
    ck_assert_int_eq(dt_cluster_gpus(&c), clusters[_i].gpus);
    assert_near(c.peak_flops, clusters[_i].peak, 1e-12, "peak");
    assert_near(c.nvlink_bytes_per_s, clusters[_i].nvlink, 1e-12, "nvlink");
    assert_near(c.nic_bytes_per_s, clusters[_i].nic, 1e-12, "nic");
    ck_assert_double_gt(c.mem_bytes, c.mem_reserve_bytes);
    ck_assert_double_ge(c.fabric_oversubscription, 1);
}
END_TEST

/* What a program finds on such a card, in GiB, not the figure of its name; a known device brings it along. */
START_TEST(memory_is_what_cuda_reports)
{
    static const struct {
        const char *name;
        double gib;
    } of[] = {{"a100", 79.14}, {"a800", 79.33},  {"h100", 79.11}, {"h800", 79.11},
              {"h20", 95.08},  {"h200", 139.80}, {"l40s", 44.52}, {"a40", 44.35}};

    for (int i = 0; i < COUNT(of); i++) {
        struct dt_cluster c;
        struct dt_error err = {0};
        char other[64];

        dt_assert_ok(read_cluster(of[i].name, &err, &c), err);
        assert_near(c.mem_bytes, of[i].gib * 1073741824, 1e-9, of[i].name);
        snprintf(other, sizeof(other), "{preset: %s, device: %s}", i == 0 ? "h100" : "a100",
                 of[i].name);
        dt_assert_ok(read_cluster(other, &err, &c), err);
        assert_near(c.mem_bytes, of[i].gib * 1073741824, 1e-9, other);
    }
}
END_TEST

static const struct {
    const char *yaml;
    int col;
    const char *message;
} bad_clusters[] = {
    {"a900", 10, "presets"},
    {"{preset: a800-1296, gpus: 100}", 36, "use 96 or 104"},
    {"{preset: a800-1296, gpus: 8, nodes: 1}", 36, "not both"},
    {"{preset: a800-1296, nods: 8}", 30, "did you mean \"nodes\""},
    {"{preset: a800-1296, memory: 80 GBs}", 38, "not a unit of bytes"},
    {"{preset: a800-1296, memory_reserve: 90 GB}", 10, "leave nothing"},
    {"{preset: a800-1296, nodes: 1000000}", 10, "more than the limit"},
    {"{device: x, nodes: 1}", 10, "\"gpus_per_node\" is missing"},
    {"7.5.2", 10, "presets"},
    {"[]", 10, "expected a preset name"},
};

START_TEST(cluster_errors_explain)
{
    struct dt_cluster c;
    struct dt_error err = {0};

    ck_assert_int_eq(read_cluster(bad_clusters[_i].yaml, &err, &c), DT_ERR_INPUT);
    dt_assert_has(err.message, bad_clusters[_i].message);
    ck_assert_int_eq(err.line, 1);
    ck_assert_int_eq(err.col, bad_clusters[_i].col);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cluster");
    TCase *t = dt_test_case(s, "clusters", 0);

    tcase_add_loop_test(t, cluster_presets, 0, COUNT(clusters));
    tcase_add_test(t, memory_is_what_cuda_reports);
    tcase_add_loop_test(t, cluster_errors_explain, 0, COUNT(bad_clusters));
    return dt_test_run(s);
}
