/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Profiles: the schema's reader and writer, the importers, local regression and the fit. */
#include "base/file.h"
#include "base/mem.h"
#include "core/profile/profile_csv.h"
#include "fit/profile_fit.h"
#include "fit/profile_import.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

static struct dt_error err;

static struct dt_import_options options(const char *device)
{
    struct dt_import_options o = {.device = device};

    snprintf(o.source.name, sizeof o.source.name, "bench of %s", device);
    snprintf(o.source.origin, sizeof o.source.origin, "it's a \"test\"");
    snprintf(o.source.licence, sizeof o.source.licence, "MIT");
    snprintf(o.source.date, sizeof o.source.date, "2026-01-02");
    return o;
}

static enum dt_status import(struct dt_profile_table *t, const char *family, const char *device,
                             const char *csv, struct dt_import_result *r)
{
    struct dt_import_options o = options(device);

    memset(&err, 0, sizeof err);
    return dt_import_profile(family, "t.csv", csv, strlen(csv), &o, &err, t, r);
}

static const struct dt_profile_row *find(const struct dt_profile_table *t, int family, int phase,
                                         int64_t d0, int64_t d1)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct dt_profile_row *r = &t->rows[i].r;
        if (r->family == family && r->phase == phase && r->d[0] == d0 && r->d[1] == d1)
            return r;
    }
    ck_abort_msg("no row of %s %d (%lld, %lld)", dt_kop_family_names[family], phase, (long long)d0,
                 (long long)d1);
    return NULL;
}

static void near(double a, double b, double rel)
{
    ck_assert_msg(fabs(a - b) <= rel * fabs(b), "%.12g is not within %g of %.12g", a, rel, b);
}

/* A table of random rows of two devices. */
static void random_table(struct dt_profile_table *t, struct dt_rng *rng, int n)
{
    struct dt_profile_source s = {
        .name = "random", .origin = "a'b;--", .licence = "none", .date = "x"};
    int dev[2], dtype[2], src;

    dt_assert_ok(dt_profile_table_device(t, "zeta", &err, &dev[0]), err);
    dt_assert_ok(dt_profile_table_device(t, "alpha", &err, &dev[1]), err);
    dt_assert_ok(dt_profile_table_dtype(t, "bf16", &err, &dtype[0]), err);
    dt_assert_ok(dt_profile_table_dtype(t, "any", &err, &dtype[1]), err);
    dt_assert_ok(dt_profile_table_source(t, &s, &err, &src), err);
    for (int i = 0; i < n; i++) {
        struct dt_profile_table_row r = {.device = dev[dt_rng_below(rng, 2)],
                                         .dtype = dtype[dt_rng_below(rng, 2)]};
        r.r.family = (int)dt_rng_below(rng, DT_KOP_FAMILY_N);
        r.r.phase = (int)dt_rng_below(rng, DT_PTABLE_PHASE_N);
        r.r.kind = (int)dt_rng_below(rng, DT_ROW_KIND_N);
        r.r.source = src;
        r.r.n = 1 + (int64_t)dt_rng_below(rng, 100);
        r.r.d[0] = i + 1;
        r.r.d[1] = (int64_t)dt_rng_below(rng, UINT64_C(1) << 40);
        r.r.median_ns = 1e3 * exp(3 * dt_rng_normal(rng));
        r.r.p10_ns = r.r.median_ns * 0.875;
        r.r.p90_ns = r.r.median_ns * 1.125;
        dt_assert_ok(dt_profile_table_add(t, &r, &err), err);
    }
}

START_TEST(sql_round_trip)
{
    uint64_t seed = dt_test_seed();
    struct dt_profile_table a = {0}, b = {0};
    struct dt_rng rng;
    char *one, *two;
    size_t n_one, n_two;

    dt_rng_init(&rng, seed, 1);
    random_table(&a, &rng, 1203);
    dt_assert_ok(dt_profile_table_to_sql(&a, &err, &one, &n_one), err);
    dt_assert_ok(dt_profile_table_parse_sql("one", one, &err, &b), err);
    ck_assert_uint_eq(a.n_rows, b.n_rows);
    dt_assert_ok(dt_profile_table_to_sql(&b, &err, &two, &n_two), err);
    ck_assert_msg(n_one == n_two && memcmp(one, two, n_one) == 0,
                  "not the same bytes, seed %" PRIu64, seed);
    for (size_t i = 0; i < a.n_rows; i++) {
        ck_assert_mem_eq(a.rows[i].r.d, b.rows[i].r.d, sizeof a.rows[i].r.d);
        near(b.rows[i].r.median_ns, a.rows[i].r.median_ns, 1e-9);
    }
    ck_assert_str_eq(b.sources[0].origin, "a'b;--");
    ck_assert_str_eq(b.devices[0], "alpha"); /* names in order */
    dt_free(one);
    dt_free(two);
    dt_profile_table_free(&a);
    dt_profile_table_free(&b);
}
END_TEST

START_TEST(database_round_trip)
{
    struct dt_profile_table a = {0}, b = {0};
    struct dt_profile *p;
    struct dt_rng rng;
    char path[] = "/tmp/dt_profileXXXXXX", sql[64], *x, *y;
    size_t nx, ny;
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    close(fd);
    dt_rng_init(&rng, dt_test_seed(), 2);
    random_table(&a, &rng, 512);
    dt_assert_ok(dt_profile_table_write(&a, path, &err), err);
    dt_assert_ok(dt_profile_table_read(path, &err, &b), err);
    dt_assert_ok(dt_profile_table_to_sql(&a, &err, &x, &nx), err);
    dt_assert_ok(dt_profile_table_to_sql(&b, &err, &y, &ny), err);
    ck_assert_uint_eq(nx, ny);
    ck_assert_mem_eq(x, y, nx);

    /* The view of one device: its rows and those of any dtype, no "bwd", sorted, found through
     * first[][]. */
    snprintf(sql, sizeof sql, "%s.sql", path);
    dt_assert_ok(dt_profile_table_write(&a, sql, &err), err);
    dt_assert_ok(dt_profile_load(sql, "zeta", "bf16", &err, &p), err);
    int64_t want = 0;
    for (size_t i = 0; i < a.n_rows; i++)
        want +=
            strcmp(a.devices[a.rows[i].device], "zeta") == 0 && a.rows[i].r.phase != DT_PHASE_BWD;
    ck_assert_int_eq(p->n_rows, want);
    for (int f = 0; f < DT_KOP_FAMILY_N; f++)
        for (int ph = 0; ph < DT_PHASE_N; ph++)
            for (int64_t i = p->first[f][ph]; i < p->first[f][ph + 1]; i++) {
                ck_assert_int_eq(p->rows[i].family, f);
                ck_assert_int_eq(p->rows[i].phase, ph);
            }
    ck_assert_int_eq(p->first[DT_KOP_FAMILY_N - 1][DT_PHASE_N], p->n_rows);
    dt_profile_free(p);
    ck_assert_int_eq(dt_profile_load(sql, "", "bf16", &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "several devices");
    ck_assert_int_eq(dt_profile_load(sql, "omega", "bf16", &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "alpha, zeta");
    unlink(sql);
    unlink(path);
    dt_free(x);
    dt_free(y);
    dt_profile_table_free(&a);
    dt_profile_table_free(&b);
}
END_TEST

/* Text that must be refused, and what the message must say. */
static void refused(const char *sql, const char *part)
{
    struct dt_profile_table t = {0};

    memset(&err, 0, sizeof err);
    ck_assert_msg(dt_profile_table_parse_sql("bad.sql", sql, &err, &t) == DT_ERR_INPUT,
                  "accepted: %s", sql);
    ck_assert_str_eq(err.file, "bad.sql");
    dt_assert_has(err.message, part);
    ck_assert_uint_eq(t.n_rows, 0);
}

#define META "INSERT INTO meta VALUES('schema_version','1'),('points','1');"
#define ROWS                                                                                       \
    "INSERT INTO source VALUES(1,'s','o','l','d','n');"                                            \
    "INSERT INTO series VALUES(1,'dev','bf16','gemm','fwd','measured',1);"

static char *with_schema(const char *rest)
{
    char *s = dt_malloc(strlen(dt_profile_schema_sql) + strlen(rest) + 1);

    ck_assert_ptr_nonnull(s);
    strcpy(s, dt_profile_schema_sql);
    return strcat(s, rest);
}

static void refused_after_schema(const char *rest, const char *part)
{
    char *s = with_schema(rest);
    refused(s, part);
    dt_free(s);
}

START_TEST(untrusted_sql)
{
    char *s = with_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,9,11.5);");
    struct dt_profile_table t = {0};

    dt_assert_ok(dt_profile_table_parse_sql("good", s, &err, &t), err);
    ck_assert_uint_eq(t.n_rows, 1);
    near(t.rows[0].r.p90_ns, 11.5, 1e-15);
    dt_profile_table_free(&t);
    dt_free(s);
    refused("", "no such table");
    refused("ATTACH '/tmp/x' AS x;", "not authorized");
    refused("PRAGMA writable_schema=1;", "not authorized");
    refused("CREATE TABLE other(x);", "not authorized");
    refused("CREATE VIEW point AS SELECT 1;", "not authorized");
    refused("SELECT load_extension('/tmp/x.so');", "not authorized");
    refused("CREATE TEMP TABLE meta(key,value);", "not authorized");
    refused("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x FROM c;",
            "not authorized");
    refused_after_schema("INSERT INTO meta VALUES(zeroblob(1000000000),'');", "not authorized");
    refused_after_schema("INSERT INTO meta SELECT * FROM meta;", "prohibited");
    refused_after_schema("DELETE FROM meta;", "not authorized");
    refused_after_schema("INSERT INTO sqlite_master VALUES(1,2,3,4,5);", "");
    refused_after_schema("INSERT INTO meta VALUES('schema_version','2');", "schema version 2");
    refused_after_schema("BEGIN;" META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,9,11);",
                         "truncated");
    refused_after_schema(META ROWS, "incomplete");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(2,8,8,8,0,0,0,1,10,9,11);",
                         "series 2");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,-10,9,11);",
                         "times must satisfy");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,11,12);",
                         "times must satisfy");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,9e999,9,9e999);",
                         "times must satisfy");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,'x',9,11);",
                         "not a number");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,8,8.5,8,0,0,0,1,10,9,11);",
                         "not a whole number");
    refused_after_schema(META ROWS "INSERT INTO point VALUES(1,-8,8,8,0,0,0,1,10,9,11);",
                         "out of range");
    refused_after_schema(META "INSERT INTO source VALUES(1,'s','o','l','d','n');"
                              "INSERT INTO series VALUES(1,'dev','bf16','gem','fwd','measured',1);",
                         "unknown op 'gem'");
    refused_after_schema(META
                         "INSERT INTO source VALUES(1,'s','o','l','d','n');"
                         "INSERT INTO series VALUES(1,'dev','bf16','gemm','fwd','measured',7);",
                         "source");
}
END_TEST

START_TEST(damage_has_a_place)
{
    static const struct {
        const char *rest, *part;
        int line, col;
    } bad[] = {
        {"\nINSERT INTO meta VALUES('a','b');\n  INSERT INTO mata VALUES('c','d');\n", "mata", 2,
         3},
        {"\nINSERT INTO meta VALUES('a','b');\n\nINSERT INTO meta VALUES('c", "", 3, 0},
        {"\nBEGIN;\nINSERT INTO meta VALUES('a','b');\n", "COMMIT", 3, 1},
        {"\nINSERT INTO source VALUES(1,'s','o','l','d','n');\n\n"
         "INSERT INTO source VALUES(1,'s','o','l','d','n');",
         "UNIQUE", 3, 1},
        {"\n" META ROWS "\nINSERT INTO point VALUES\n(1,8,8,8,0,0,0,1,10,9,11),\n"
         "  (1,8,8,9,0,0,0,1,-10,9,11);",
         "times must satisfy", 4, 3},
        /* neither a text nor a comment counts as a row, or as VALUES */
        {"\n" META "INSERT INTO source(note,name,origin,licence,date,id) VALUES\n"
         "('(VALUES (','it''s; (','o','l','d',1), -- (1,\n /* ( */ ('n','(','o','l','d',2);"
         "INSERT INTO series VALUES\n(1,'dev','bf16','gemm','fwd','measured',1),\n"
         "(3,'dev','bf16','gemm','fwd','measured',2), (2,'d','bf16','gemn','fwd','derived',2);",
         "did you mean 'gemm'", 5, 45},
        {"\n" META ROWS "\n\nINSERT INTO series SELECT 2,'d','bf16','gemm','fwd','measured',3;",
         "source 3 does not exist", 3, 1},
        {"\n" META ROWS "\nINSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,9,11);\n\n"
         "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,9,11),(9,1,1,1,0,0,0,1,1,1,1);",
         "series 9", 4, 51},
    };
    int first = 1;

    for (const char *c = dt_profile_schema_sql; *c; c++)
        first += *c == '\n';
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dt_profile_table t = {0};
        char *s = with_schema(bad[i].rest);

        ck_assert(dt_profile_table_parse_sql("file.sql", s, &err, &t) != DT_OK);
        ck_assert_str_eq(err.file, "file.sql");
        ck_assert_msg(strstr(err.message, bad[i].part), "%s", err.message);
        ck_assert_int_eq(err.line - first, bad[i].line);
        if (bad[i].col)
            ck_assert_int_eq(err.col, bad[i].col);
        dt_free(s);
    }
}
END_TEST

/* A row of a database has no line: the message names its table and its number. */
START_TEST(database_row_has_a_name)
{
    char path[] = "/tmp/dt_profileXXXXXX";
    char *s = with_schema(META ROWS "INSERT INTO point VALUES(1,8,8,8,0,0,0,1,10,9,11),"
                                    "(1,8,8,9,0,0,0,0,10,9,11);");
    struct dt_profile_table t = {0};
    sqlite3 *db;
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, s, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(db), SQLITE_OK);
    dt_free(s);
    memset(&err, 0, sizeof err);
    ck_assert(dt_profile_table_read(path, &err, &t) == DT_ERR_INPUT);
    ck_assert_str_eq(err.file, path);
    dt_assert_has(err.message, "d0 and n must be at least 1");
    dt_assert_has(err.message, "row 2 of table point");
    unlink(path);
}
END_TEST

/* Every truncation and many garblings of a database and of a text give an error or the rows, never
 * a crash. */
START_TEST(truncated_and_garbled)
{
    struct dt_profile_table a = {0}, b = {0};
    struct dt_rng rng;
    char path[] = "/tmp/dt_profileXXXXXX", *text, *db;
    size_t n_text, n_db;
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    close(fd);
    dt_rng_init(&rng, dt_test_seed(), 3);
    random_table(&a, &rng, 37);
    dt_assert_ok(dt_profile_table_to_sql(&a, &err, &text, &n_text), err);
    for (size_t cut = 0; cut < n_text - 8;
         cut += 1 + dt_rng_below(&rng, 13)) { /* "COMMIT;\n" is the last */
        char keep = text[cut];
        text[cut] = '\0';
        ck_assert_msg(dt_profile_table_parse_sql("cut", text, &err, &b) != DT_OK,
                      "cut at %zu of %zu", cut, n_text);
        text[cut] = keep;
    }
    dt_assert_ok(dt_profile_table_write(&a, path, &err), err);
    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &db, &n_db), err);
    for (int i = 0; i < 200; i++) {
        FILE *f = fopen(path, "wb");
        size_t at = dt_rng_below(&rng, n_db), len = i % 2 ? n_db : at;
        char keep = db[at];
        ck_assert_ptr_nonnull(f);
        db[at] = (char)(keep ^ (1 + dt_rng_below(&rng, 255)));
        ck_assert_uint_eq(fwrite(db, 1, len, f), len);
        fclose(f);
        db[at] = keep;
        if (dt_profile_table_read(path, &err, &b) == DT_OK)
            dt_profile_table_free(&b);
        else
            ck_assert_msg(err.message[0] != '\0', "an error without a message");
    }
    unlink(path);
    dt_free(text);
    dt_free(db);
    dt_profile_table_free(&a);
}
END_TEST

START_TEST(importers)
{
    struct dt_profile_table t = {0};
    struct dt_import_result r;
    const struct dt_profile_row *x;

    /* Three runs of a shape become one row. */
    dt_assert_ok(import(&t, "aic-gemm", "D",
                        "m,n,k,latency_ms\n16,32,64,0.003\n16,32,64,0.001\n16,32,64,0.0023\n", &r),
                 err);
    ck_assert_uint_eq(r.rows, 1);
    x = find(&t, DT_KOP_GEMM, DT_PHASE_FWD, 16, 32);
    ck_assert_int_eq(x->n, 3);
    near(x->median_ns, 2300, 1e-12);
    near(x->p10_ns, 1260, 1e-12);
    /* Importing again replaces. */
    dt_assert_ok(
        import(&t, "aic-gemm", "D", "m,n,k,latency_ms\r\n\n# again\n16, 32 ,64,1.5e-3\r\n", &r),
        err);
    ck_assert_uint_eq(t.n_rows, 1);
    near(find(&t, DT_KOP_GEMM, DT_PHASE_FWD, 16, 32)->median_ns, 1500, 1e-12);
    dt_profile_table_free(&t);

    /* Gradients are keyed by their forward: dgrad m,n,k of the table is [m,n']x[n',k'] of y[m,n'] =
     * x[m,k']. */
    dt_assert_ok(import(&t, "simumax-gemm", "D",
                        "stage,m,n,k,eff_of_312TF\nfwd,4096,1536,5120,0.5\n"
                        "dgrad,4096,5120,1536,0.25\nwgrad,1536,5120,4096,0.125\n",
                        &r),
                 err);
    near(find(&t, DT_KOP_GEMM, DT_PHASE_FWD, 4096, 1536)->median_ns,
         2.0 * 4096 * 1536 * 5120 / (0.5 * 312e3), 1e-12);
    near(find(&t, DT_KOP_GEMM, DT_PHASE_DGRAD, 4096, 1536)->median_ns,
         2.0 * 4096 * 1536 * 5120 / (0.25 * 312e3), 1e-12);
    near(find(&t, DT_KOP_GEMM, DT_PHASE_WGRAD, 4096, 1536)->median_ns,
         2.0 * 4096 * 1536 * 5120 / (0.125 * 312e3), 1e-12);
    dt_profile_table_free(&t);

    dt_assert_ok(
        import(&t, "simumax-attn", "D",
               "stage,batch,seq,q_heads,kv_heads,qk_dim,v_dim,eff_of_312TF_uncausal_flops\n"
               "sdp_fwd,1,4096,32,8,128,128,1.132\nsdp_bwd,1,4096,32,8,128,128,0.9764\nsdp_fwd,1,"
               "4096,128,128,192,128,1.07\n",
               &r),
        err);
    ck_assert_uint_eq(r.skipped, 1);
    near(find(&t, DT_KOP_ATTN_CAUSAL, DT_PHASE_DGRAD, 1, 4096)->median_ns /
             find(&t, DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, 1, 4096)->median_ns,
         2.5 * 1.132 / 0.9764, 1e-12);
    dt_profile_table_free(&t);

    dt_assert_ok(import(&t, "aic-nccl", "D",
                        "collective,num_gpus,bytes,latency_ms\nalltoall,4,1024,0.01\n", &r),
                 err);
    x = find(&t, DT_KOP_ALL_TO_ALL, DT_PHASE_FWD, 4, 4);
    ck_assert_int_eq(x->d[2], 1024);
    ck_assert_str_eq(t.dtypes[t.rows[0].dtype], "any");
    dt_profile_table_free(&t);

    dt_assert_ok(import(&t, "neusight-conv", "D",
                        "batch,c_in,c_out,kernel,size,stride,pad,latency_ms\n38,893,326,3,5,1,1,0."
                        "967\n2,64,64,3,9,2,1,0.1\n",
                        &r),
                 err);
    ck_assert_int_eq(find(&t, DT_KOP_CONV2D, DT_PHASE_FWD, 38 * 25, 893)->d[2], 326);
    ck_assert_int_eq(find(&t, DT_KOP_CONV2D, DT_PHASE_FWD, 50, 64)->d[4], 2);
    dt_profile_table_free(&t);

    dt_assert_ok(import(&t, "triosim-conv", "D",
                        "op,input_shapes,output_shapes,cuda_us\n"
                        "aten::conv2d,128x64x112x112|128x64x3x3|128,128x128x112x112,2218\n"
                        "ConvolutionBackward0,128x128x112x112|128x64x112x112|128x64x3x3,"
                        "128x64x112x112|128x64x3x3|128,4704\n"
                        "ConvolutionBackward0,128x64x224x224|128x3x224x224|64x3x3x3,|64x3x3x3|64,"
                        "2123\nrelu,1x1,1x1,3\n",
                        &r),
                 err);
    ck_assert_uint_eq(r.skipped, 1);
    near(find(&t, DT_KOP_CONV2D, DT_PHASE_FWD, 128 * 112 * 112, 64)->median_ns, 2218e3, 1e-12);
    near(find(&t, DT_KOP_CONV2D, DT_PHASE_BWD, 128 * 112 * 112, 64)->median_ns, 4704e3, 1e-12);
    near(find(&t, DT_KOP_CONV2D, DT_PHASE_WGRAD, 128 * 224 * 224, 3)->median_ns, 2123e3, 1e-12);
    dt_profile_table_free(&t);

    dt_assert_ok(import(&t, "generic", "D",
                        "op,phase,dtype,d0,d1,d2,d3,d4,d5,n,median_ns,p10_ns,p90_ns\nnorm,wgrad,"
                        "fp8,7,9,0,0,0,0,5,20,10.5,30\n",
                        &r),
                 err);
    x = find(&t, DT_KOP_NORM, DT_PHASE_WGRAD, 7, 9);
    ck_assert_int_eq(x->n, 5);
    near(x->p10_ns, 10.5, 1e-12);
    ck_assert_str_eq(t.dtypes[t.rows[0].dtype], "fp8");
    dt_profile_table_free(&t);
}
END_TEST

START_TEST(layer_shards)
{
    struct dt_profile_table t = {0};
    struct dt_import_result r;
    struct dt_import_options o = options("D");
    const char *csv =
        "tp,tokens,emb_ms,input_layernorm_ms,attn_pre_proj_ms,attn_rope_ms,attn_post_proj_ms,post_"
        "attention_layernorm_ms,"
        "mlp_up_proj_ms,mlp_act_ms,mlp_down_proj_ms,add_ms\n4,512,1,2,3,4,5,2,6,7,8,9\n";

    ck_assert_int_eq(dt_import_profile("vidur-layer", "t", csv, strlen(csv), &o, &err, &t, &r),
                     DT_ERR_USAGE);
    o.shape = "llama-3-8b";
    dt_assert_ok(dt_import_profile("vidur-layer", "t", csv, strlen(csv), &o, &err, &t, &r), err);
    ck_assert_uint_eq(r.rows, 9); /* both norms are one shape */
    ck_assert_int_eq(find(&t, DT_KOP_GEMM, DT_PHASE_FWD, 512, 1536)->d[2],
                     4096); /* (32 + 2 * 8) * 128 / 4 */
    ck_assert_int_eq(find(&t, DT_KOP_GEMM, DT_PHASE_FWD, 512, 7168)->d[2], 4096);
    near(find(&t, DT_KOP_ACT, DT_PHASE_FWD, 512, 3584)->median_ns, 7e6, 1e-12);
    near(find(&t, DT_KOP_ROPE, DT_PHASE_FWD, 512, 1280)->median_ns, 4e6, 1e-12);
    dt_profile_table_free(&t);
}
END_TEST

START_TEST(import_errors)
{
    struct dt_profile_table t = {0};
    struct dt_import_result r;

    ck_assert_int_eq(import(&t, "aic-gem", "D", "m\n", &r), DT_ERR_USAGE);
    dt_assert_has(err.message, "did you mean aic-gemm");
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,latency_ms\n1,2,3\n", &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "no column 'k'");
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,k,latency_ms\n1,2,3,4\n5,6,x,8\n", &r),
                     DT_ERR_INPUT);
    ck_assert_int_eq(err.line, 3);
    ck_assert_int_eq(err.col, 3);
    dt_assert_has(err.message, "'x' is not a whole number");
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,k,latency_ms\n1,2,3\n", &r), DT_ERR_INPUT);
    dt_assert_has(err.message, "3 cells");
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,k,latency_ms\n1,2,3,-4\n", &r), DT_ERR_INPUT);
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,k,latency_ms\n0,2,3,4\n", &r), DT_ERR_INPUT);
    ck_assert_int_eq(err.line, 2);
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "m,n,k,latency_ms\n", &r), DT_ERR_INPUT);
    ck_assert_int_eq(import(&t, "aic-gemm", "D", "", &r), DT_ERR_INPUT);
    ck_assert_int_eq(
        import(&t, "aic-nccl", "D", "collective,num_gpus,bytes,latency_ms\ngossip,2,4,1\n", &r),
        DT_ERR_INPUT);
    dt_assert_has(err.message, "gossip");
    ck_assert_uint_eq(t.n_rows, 0);
    dt_profile_table_free(&t);
}
END_TEST

/* Local regression is exact on a plane, and its hold-out score is that of the noise. */
START_TEST(local_regression)
{
    uint64_t seed = dt_test_seed();
    struct dt_fit_local plane = {.dim = 2, .near = 12}, noisy = {.dim = 2, .near = 32};
    struct dt_fit_local_score s;
    struct dt_fit_local_value v;
    struct dt_rng rng;

    dt_rng_init(&rng, seed, 4);
    for (int i = 0; i < 600; i++) {
        double x[2] = {10 * dt_rng_uniform(&rng), 10 * dt_rng_uniform(&rng)};
        double y = 0.7 + 0.013 * x[0] - 0.021 * x[1];
        dt_assert_ok(dt_fit_local_add(&plane, x, y, i % DT_LOCAL_FOLDS, &err), err);
        dt_assert_ok(
            dt_fit_local_add(&noisy, x, y + 0.1 * dt_rng_normal(&rng), i % DT_LOCAL_FOLDS, &err),
            err);
    }
    dt_fit_local_eval(&plane, (const double[]){3.3, 6.1}, -1, &v);
    ck_assert_msg(fabs(v.y - (0.7 + 0.013 * 3.3 - 0.021 * 6.1)) < 2e-3, "%.9g, seed %" PRIu64, v.y,
                  seed);
    ck_assert_int_eq(v.n, 12);
    ck_assert(v.lo <= 0 && v.hi >= 0 && v.hi - v.lo < 0.01);
    /* beyond the data the estimate stays at the edge's */
    dt_fit_local_eval(&plane, (const double[]){1e3, 1e3}, -1, &v);
    ck_assert(fabs(v.y - (0.7 + 0.013 * 10 - 0.021 * 10)) < 0.02);
    dt_assert_ok(dt_fit_local_validate(&plane, 200, &err, &s), err);
    ck_assert_msg(s.mean < 0.01, "mean %g seed %" PRIu64, s.mean, seed);
    dt_assert_ok(dt_fit_local_validate(&noisy, 1000, &err, &s), err);
    ck_assert_uint_eq(s.n, 600);
    /* mean |N(0, 0.1)| = 0.08, somewhat more for the noise of the estimate */
    ck_assert_msg(s.mean > 0.06 && s.mean < 0.12, "mean %g seed %" PRIu64, s.mean, seed);
    dt_fit_local_free(&plane);
    dt_fit_local_free(&noisy);
}
END_TEST

START_TEST(fit_says_what_is_missing)
{
    struct dt_profile_table in = {0}, out = {0};
    struct dt_import_result r;

    ck_assert_int_eq(dt_fit_profile(&in, "B200", &err, &out, NULL), DT_ERR_USAGE);
    dt_assert_ok(
        import(&in, "aic-gemm", dt_fit_device(0), "m,n,k,latency_ms\n16,32,64,0.003\n", &r), err);
    ck_assert_int_eq(dt_fit_profile(&in, dt_fit_device(0), &err, &out, NULL), DT_ERR_INPUT);
    dt_assert_has(err.message, "db import aic-gemm");
    ck_assert_uint_eq(out.n_rows, 0);
    ck_assert_ptr_null(dt_fit_device(3));
    dt_profile_table_free(&in);
}
END_TEST

/* The n-th allocation fails: an error, never a crash or a leak. */
START_TEST(allocation_failures)
{
    const char *csv = "m,n,k,latency_ms\n16,32,64,0.003\n16,32,65,0.004\n";
    struct dt_import_options o = options("D");
    uint64_t total;

    for (uint64_t k = 0, n = 1; k < n; k++) {
        struct dt_profile_table t = {0}, u = {0};
        struct dt_import_result r;
        struct dt_profile *p = NULL;
        enum dt_status status;
        char *text = NULL;
        size_t len;
        dt_mem_fail_at(k); /* 0: none fails, to count them */
        status = dt_import_profile("aic-gemm", "t", csv, strlen(csv), &o, &err, &t, &r);
        if (status == DT_OK)
            status = dt_profile_table_to_sql(&t, &err, &text, &len);
        if (status == DT_OK)
            status = dt_profile_table_parse_sql("t", text, &err, &u);
        total = dt_mem_count();
        dt_mem_fail_at(0);
        ck_assert_msg(status == (k == 0 ? DT_OK : DT_ERR_NOMEM),
                      "allocation %" PRIu64 ": status %d", k, status);
        if (k == 0)
            n = total + 1;
        dt_free(text);
        dt_profile_table_free(&t);
        dt_profile_table_free(&u);
        dt_profile_free(p);
    }
}
END_TEST

/* Readers that suggest a word go through these lists to their end. */
START_TEST(lists_of_words_end)
{
    ck_assert_ptr_null(dt_kop_family_names[DT_KOP_FAMILY_N]);
    ck_assert_ptr_null(dt_profile_row_kind_names[DT_ROW_KIND_N]);
    ck_assert_ptr_null(dt_profile_table_phase_names[DT_PTABLE_PHASE_N]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("profile");
    TCase *file = dt_test_case(s, "file", 120), *in = dt_test_case(s, "import", 0),
          *fit = dt_test_case(s, "fit", 120);

    tcase_add_test(file, lists_of_words_end);
    tcase_add_test(file, sql_round_trip);
    tcase_add_test(file, database_round_trip);
    tcase_add_test(file, untrusted_sql);
    tcase_add_test(file, damage_has_a_place);
    tcase_add_test(file, database_row_has_a_name);
    tcase_add_test(file, truncated_and_garbled);
    tcase_add_test(file, allocation_failures);
    tcase_add_test(in, importers);
    tcase_add_test(in, layer_shards);
    tcase_add_test(in, import_errors);
    tcase_add_test(fit, local_regression);
    tcase_add_test(fit, fit_says_what_is_missing);
    return dt_test_run(s);
}
