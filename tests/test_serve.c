/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain serve below HTTP: who is admitted, forms, keys that open files, whose turn it is, workers. */
#include "base/mem.h"
#include "base/rng.h"
#include "core/job/job.h"
#include "serve/allowed.h"
#include "serve/lanes.h"
#include "serve/worker.h"
#include "test_util.h"

#include <stdio.h>
#include <sys/select.h>
#include <unistd.h>

#define TOKEN "0123456789abcdef0123456789abcdef"

static struct dt_error err;
static struct dt_serve_gate gate = {TOKEN, NULL};

static int admit(const char *method, const char *target, const char *host, const char *origin,
                 const char *site, enum dt_serve_path *path)
{
    struct dt_serve_head head = {method, target, host, origin, site};

    return dt_serve_admit(&gate, &head, &err, path);
}

static int get(const char *target)
{
    enum dt_serve_path path = DT_SERVE_PATH_N;
    int http = admit("GET", target, "localhost:8642", NULL, NULL, &path);

    ck_assert((http == 0) == (path != DT_SERVE_PATH_N));
    return http;
}

START_TEST(only_the_token_opens)
{
    ck_assert_int_eq(get("/" TOKEN "/"), 0);
    ck_assert_int_eq(get("/" TOKEN "/?x=1"), 0);
    ck_assert_int_eq(get("/" TOKEN "/plan.json?set=a%3D1"), 0);
    ck_assert_int_eq(get("/" TOKEN), 404);
    ck_assert_int_eq(get("/" TOKEN "/../page.js"), 404);
    ck_assert_int_eq(get("/" TOKEN "/page.jsx"), 404);
    ck_assert_int_eq(get("/" TOKEN "/answer"), 405);
    ck_assert_int_eq(get("/"), 403);
    ck_assert_int_eq(get(""), 403);
    ck_assert_int_eq(get("/page.js"), 403);
    ck_assert_int_eq(get("/" TOKEN "0/"), 403);
    ck_assert_int_eq(get("/?" TOKEN "/"), 403);
    ck_assert_int_eq(get(TOKEN "/"), 403);
    for (size_t i = 0; i < sizeof(TOKEN) - 1;
         i++) { /* each character counts, and so does their number */
        char target[] = "/" TOKEN "/";
        char shorter[sizeof(target)];

        target[1 + i] ^= 1;
        ck_assert_int_eq(get(target), 403);
        snprintf(shorter, sizeof(shorter), "/%.*s/", (int)i, TOKEN);
        ck_assert_int_eq(get(shorter), 403);
    }
}
END_TEST

START_TEST(only_by_its_name)
{
    static const struct {
        const char *host;
        bool loopback, open; /* admitted without and with --listen server */
    } of[] = {
        {"localhost", true, true},
        {"LOCALHOST:1", true, true},
        {"127.0.0.1:8642", true, true},
        {"[::1]:8642", true, true},
        {"server:8642", false, true},
        {"10.0.0.7:8642", false, true},
        {"[fe80::1]", false, true},
        {"evil.example", false, false},
        {"localhost.evil.example:8642", false, false},
        {"evil.example:127.0.0.1", false, false},
        {"127.0.0.1.evil.example", false, false},
        {"localhost:8642@evil.example", false, false},
        {"", false, false},
        {":8642", false, false},
        {NULL, false, false},
    };
    enum dt_serve_path path;

    for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
        gate.host = NULL;
        ck_assert_int_eq(admit("GET", "/" TOKEN "/", of[i].host, NULL, NULL, &path),
                         of[i].loopback ? 0 : 403);
        gate.host = "server";
        ck_assert_int_eq(admit("GET", "/" TOKEN "/", of[i].host, NULL, NULL, &path),
                         of[i].open ? 0 : 403);
        gate.host = NULL;
    }
}
END_TEST

START_TEST(other_sites_may_not_ask)
{
    static const char *const at = "/" TOKEN "/answer", *const host = "127.0.0.1:8642";
    enum dt_serve_path path;

    ck_assert_int_eq(admit("POST", at, host, "http://127.0.0.1:8642", "same-origin", &path), 0);
    ck_assert_int_eq(path, DT_SERVE_ANSWER);
    ck_assert_int_eq(admit("POST", at, host, NULL, "none", &path), 0);
    ck_assert_int_eq(admit("POST", at, host, "http://evil.example", NULL, &path), 403);
    ck_assert_int_eq(admit("POST", at, host, "http://127.0.0.1:9999", NULL, &path), 403);
    ck_assert_int_eq(admit("POST", at, host, "null", NULL, &path), 403);
    ck_assert_int_eq(admit("POST", at, host, NULL, "cross-site", &path), 403);
    ck_assert_int_eq(admit("POST", at, host, NULL, "same-site", &path), 403);
    ck_assert_int_eq(admit("DELETE", at, host, NULL, NULL, &path), 405);
    ck_assert_int_eq(admit("OPTIONS", at, host, NULL, NULL, &path), 405);
}
END_TEST

START_TEST(tokens_are_random)
{
    char a[DT_SERVE_TOKEN_SIZE], b[DT_SERVE_TOKEN_SIZE];

    dt_assert_ok(dt_serve_token(&err, a), err);
    dt_assert_ok(dt_serve_token(&err, b), err);
    ck_assert_uint_eq(strlen(a), DT_SERVE_TOKEN_SIZE - 1);
    ck_assert_str_ne(a, b);
}
END_TEST

/* ---- forms ---- */

static enum dt_status form(const char *text, struct dt_serve_form *f)
{
    return dt_serve_form_read(text, strlen(text), &err, f);
}

START_TEST(forms_are_read)
{
    struct dt_serve_form f;

    dt_assert_ok(form("set=cluster.nodes%3D96&set=train.frozen%3D%5Bllm%2C+encoder%5D&effort=quick&"
                      "client=00ffee&side=b&turn=17",
                      &f),
                 err);
    ck_assert_int_eq(f.n_keys, 2);
    ck_assert_str_eq(f.key[0], "cluster.nodes=96");
    ck_assert_str_eq(f.key[1], "train.frozen=[llm, encoder]");
    ck_assert_int_eq(f.effort, DT_SERVE_QUICK);
    ck_assert_uint_eq(f.client, 0xffee);
    ck_assert_int_eq(f.side, 1);
    ck_assert_int_eq(f.turn, 17);
    dt_serve_form_free(&f);
    dt_assert_ok(form("", &f), err);
    ck_assert_int_eq(f.n_keys, 0);
    ck_assert_int_eq(f.effort, DT_SERVE_NORMAL);
    dt_serve_form_free(&f);
}
END_TEST

START_TEST(broken_forms_are_refused)
{
    static const char *const broken[] = {
        "set",       "set=%",  "set=%4",      "set=%zz",      "set=a%00b",
        "set=a%0ab", "what=1", "effort=fast", "side=c",       "turn=-1",
        "turn=",     "turn=x", "client=xyz",  "client= 1",    "turn=1e3",
        "turn=+1",   "&",      "=",           "set=a%3D1&&x", "turn=99999999999999999999",
    };
    struct dt_serve_form f;

    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        ck_assert_msg(form(broken[i], &f) == DT_ERR_INPUT, "\"%s\" is taken", broken[i]);
        ck_assert_str_ne(err.message, "");
    }
}
END_TEST

START_TEST(forms_have_limits)
{
    char *text = dt_malloc(DT_SERVE_FORM_MAX + 2);
    struct dt_serve_form f;
    size_t n = 0;

    for (int i = 0; i < DT_SERVE_KEYS_MAX; i++)
        n += (size_t)sprintf(text + n, "set=a.b%%3D%d&", i);
    dt_assert_ok(dt_serve_form_read(text, n, &err, &f), err);
    ck_assert_int_eq(f.n_keys, DT_SERVE_KEYS_MAX);
    dt_serve_form_free(&f);
    n += (size_t)sprintf(text + n, "set=a%%3D1");
    ck_assert_int_eq(dt_serve_form_read(text, n, &err, &f), DT_ERR_INPUT);
    memset(text, 'a', DT_SERVE_FORM_MAX + 1);
    memcpy(text, "set=", 4);
    dt_assert_ok(dt_serve_form_read(text, DT_SERVE_FORM_MAX, &err, &f), err);
    dt_serve_form_free(&f);
    ck_assert_int_eq(dt_serve_form_read(text, DT_SERVE_FORM_MAX + 1, &err, &f), DT_ERR_INPUT);
    dt_free(text);
}
END_TEST

/* ---- keys that open files ---- */

static enum dt_status allowed(const char *override)
{
    return dt_serve_allowed(dt_job_keys, override, &err);
}

/* What a row's help calls a path or a preset is marked as such, and nothing else is. */
static void is_marked(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    bool named = key->form && (strstr(key->form, "path") || strstr(key->form, "preset"));

    (void)defaults;
    if (strcmp(path, "model.modules") == 0) /* there are files inside */
        named = true;
    ck_assert_msg(named == (key->file != DT_KEY_NO_FILE), "%s: .file is not as its form is", path);
    *(int *)ctx += named;
}

START_TEST(rows_that_name_files_are_marked)
{
    int n = 0;

    dt_keys_walk(dt_job_keys, NULL, is_marked, &n);
    ck_assert_int_ge(n, 20);
}
END_TEST

/* Every such key, at its place and inside a map, with a file that is there. */
static void is_refused(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    static const char *const files[] = {
        "/etc/passwd", "./Makefile",    "../x.yaml", "x.csv",
        "a/b",         "[/etc/passwd]", "~/x",       "\"/etc/passwd\""};
    char override[512], map[512];
    size_t top = strcspn(path, ".");

    (void)defaults;
    if (key->file == DT_KEY_NO_FILE)
        return;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(override, sizeof(override), "%s=%s", path, files[i]);
        ck_assert_msg(allowed(override) != DT_OK, "%s is allowed", override);
        if (!path[top])
            continue;
        /* a.b.c=F is a={b: {c: F}}, too */
        size_t n = (size_t)snprintf(map, sizeof(map), "%.*s=", (int)top, path), depth = 0;
        for (const char *p = path + top; *p; depth++) {
            size_t len = strcspn(++p, ".");

            n += (size_t)snprintf(map + n, sizeof(map) - n, "{%.*s: ", (int)len, p);
            p += len;
        }
        n += (size_t)snprintf(map + n, sizeof(map) - n, "%s", files[i]);
        while (depth-- > 0)
            n += (size_t)snprintf(map + n, sizeof(map) - n, "}");
        ck_assert_msg(allowed(map) != DT_OK, "%s is allowed", map);
    }
    ++*(int *)ctx;
}

START_TEST(files_are_refused_wherever_they_stand)
{
    int n = 0;

    dt_keys_walk(dt_job_keys, NULL, is_refused, &n);
    ck_assert_int_ge(n, 20);
    ck_assert_int_eq(allowed("plan=plan.json"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("plan=plan"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model={modules: {llm: {hf: x}}}"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model.modules.llm.hf=x"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model={llm: {hf: {config: x}}}"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model.anything.hf.config=x"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model={a: &x {hf: y}, b: *x}"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("run={data: [x, y]}"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("run={checkpoint: {dir: x}}"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("model.llm=./x.yaml"), DT_ERR_USAGE);
    ck_assert_int_eq(allowed("{\"model\": /x}=1"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("model.\"hf\"=./x"), DT_ERR_USAGE);
    /* no map has places */
    ck_assert_int_eq(allowed("run.7.data=x"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("run..data=x"), DT_ERR_INPUT);
}
END_TEST

START_TEST(other_keys_are_allowed)
{
    static const char *const fine[] = {
        "cluster.nodes=96",
        "cluster=h100",
        "cluster={preset: h100, nodes: 16}",
        "cluster.nic_bandwidth=400 Gb/s",
        "samples=laion-8k",
        "samples={preset: text}",
        "profile=a100",
        "model=mllm-9b",
        "model.generator.resize=1024",
        "model.encoder.preset=vit-huge",
        "train.frozen=[encoder, llm]",
        "train.recompute={llm: full}",
        "train.recompute=selective",
        "search.tp=[4, 8]",
        "search.strategy=manual",
        "plan={llm: {tp: 8, pp: 10, dp: 12}}",
        "plan.llm.split=[10, 20]",
        "plan=null",
        "simulate.slow_gpu={fraction: 0.02, factor: 1.4}",
        "simulate.failures.checkpoint_interval=30 min",
        "samples.distribution={text_tokens: {kind: constant, value: 100}, size_ccdf: [{px: "
        "100.5, smaller: 1}]}",
    };
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++)
        ck_assert_msg(allowed(fine[i]) == DT_OK, "%s: %s", fine[i], err.message);
    ck_assert_int_eq(allowed("cluster.nodez=96"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("nodes=96"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("nodes"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("=1"), DT_ERR_INPUT);
    ck_assert_int_eq(allowed("cluster.nodes={"), DT_ERR_INPUT);
}
END_TEST

/* ---- turns ---- */

START_TEST(newer_questions_replace_older_ones)
{
    struct dt_serve_lanes l = {0};
    struct dt_serve_wait a1 = {DT_SERVE_LANE_REST, 1, 0, 1, NULL}, b1 = {0, 1, 1, 1, NULL},
                         a2 = {0, 1, 0, 2, NULL}, a2n = {DT_SERVE_LANE_REST, 1, 0, 2, NULL},
                         other = {0, 2, 0, 1, NULL}, file = {DT_SERVE_LANE_REST, 0, 0, 0, NULL};

    ck_assert_ptr_null(dt_serve_lanes_push(&l, &a1));
    ck_assert_ptr_null(dt_serve_lanes_push(&l, &b1));
    ck_assert_ptr_null(dt_serve_lanes_push(&l, &other));
    ck_assert_ptr_null(dt_serve_lanes_push(&l, &file));
    ck_assert_ptr_eq(dt_serve_lanes_push(&l, &a2), &a1);
    ck_assert_ptr_null(dt_serve_lanes_push(&l, &a2n));   /* the same setting, at leisure */
    ck_assert_ptr_eq(dt_serve_lanes_push(&l, &a1), &a1); /* came too late */
    ck_assert_int_eq(l.n, 5);
    ck_assert_ptr_eq(dt_serve_lanes_next(&l, DT_SERVE_LANE_QUICK), &b1);
    ck_assert_ptr_null(dt_serve_lanes_next(&l, DT_SERVE_LANE_QUICK)); /* one at a time */
    ck_assert_ptr_eq(dt_serve_lanes_next(&l, DT_SERVE_LANE_REST), &file);
    dt_serve_lanes_remove(&l, &b1);
    ck_assert_ptr_eq(dt_serve_lanes_next(&l, DT_SERVE_LANE_QUICK), &other);
    dt_serve_lanes_remove(&l, &other);
    ck_assert_ptr_eq(dt_serve_lanes_next(&l, DT_SERVE_LANE_QUICK), &a2);
    struct dt_serve_wait a3 = {0, 1, 0, 3, NULL};
    ck_assert_ptr_eq(dt_serve_lanes_push(&l, &a3), &a2n);
    ck_assert(dt_serve_lanes_outdated(&l, DT_SERVE_LANE_QUICK, &a3));
    ck_assert(!dt_serve_lanes_outdated(&l, DT_SERVE_LANE_REST, &a3));
    dt_serve_lanes_remove(&l, &a3);
    ck_assert_int_eq(l.n, 0);
    ck_assert_ptr_null(l.last[0]);
}
END_TEST

/* Whatever comes in whatever order: what waits is, for each column, of one turn, the latest of all. */
START_TEST(nobody_waits_for_what_is_outdated)
{
    enum { N = 600 };
    static struct dt_serve_wait w[N];
    uint64_t seed = dt_test_seed();
    struct dt_serve_lanes l = {0};
    struct dt_rng r;
    int waiting = 0;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 1);
    for (int i = 0; i < N; i++) {
        enum dt_serve_lane lane = (enum dt_serve_lane)dt_rng_below(&r, DT_SERVE_LANE_N);

        w[i] = (struct dt_serve_wait){lane, dt_rng_below(&r, 3), (int)dt_rng_below(&r, 2),
                                      i / 20 + (int)dt_rng_below(&r, 3), NULL};
        waiting++;
        for (struct dt_serve_wait *x = dt_serve_lanes_push(&l, &w[i]); x; x = x->next)
            waiting--;
        lane = (enum dt_serve_lane)dt_rng_below(&r, DT_SERVE_LANE_N);
        if (l.running[lane] && dt_rng_below(&r, 8) != 0)
            dt_serve_lanes_remove(&l, l.running[lane]);
        if (dt_serve_lanes_next(&l, lane))
            waiting--;
        ck_assert_int_eq(l.n, waiting);
        int n = 0;
        for (int k = 0; k < DT_SERVE_LANE_N; k++)
            for (struct dt_serve_wait *x = l.first[k]; x; x = x->next, n++)
                for (int m = 0; m < DT_SERVE_LANE_N; m++)
                    for (struct dt_serve_wait *y = l.first[m]; y; y = y->next)
                        ck_assert(x->client == 0 || x->client != y->client || x->side != y->side ||
                                  x->turn == y->turn);
        ck_assert_int_eq(n, waiting);
    }
}
END_TEST

/* ---- workers ---- */

static enum dt_status echo(void *ctx, const struct dt_serve_question *q, struct dt_error *e,
                           char **text)
{
    size_t size = 1;

    (void)ctx;
    if (q->n_keys > 0 && strcmp(q->keys[0], "crash") == 0)
        abort();
    if (q->n_keys > 0 && strcmp(q->keys[0], "hang") == 0)
        sleep(600);
    if (q->n_keys > 0 && strcmp(q->keys[0], "refuse") == 0)
        return dt_error_set(e, DT_ERR_INFEASIBLE, "no plan fits: \"so\"");
    for (int i = 0; i < q->n_keys; i++)
        size += strlen(q->keys[i]);
    *text = dt_malloc(size);
    **text = '\0';
    for (int i = 0; i < q->n_keys; i++)
        strcat(*text, q->keys[i]);
    return DT_OK;
}

static const struct dt_serve_program program = {echo, NULL};

static enum dt_status ask(struct dt_serve_worker *w, const char *const *keys, int n, int seconds)
{
    struct dt_serve_question q = {DT_SERVE_ANSWER, DT_SERVE_NORMAL, 0, keys, n};
    bool done = false;

    DT_TRY(dt_serve_worker_ask(w, &q, &err));
    while (!done) {
        struct timeval wait = {seconds, 0};
        fd_set r;

        FD_ZERO(&r);
        FD_SET(w->fd, &r);
        if (select(w->fd + 1, &r, NULL, NULL, &wait) == 0)
            return dt_error_set(&err, DT_ERR_TIMEOUT, "no answer");
        DT_TRY(dt_serve_worker_read(w, &err, &done));
    }
    return DT_OK;
}

START_TEST(workers_answer_refuse_crash_and_are_stopped)
{
    const char *crash = "crash", *hang = "hang", *refuse = "refuse", *two[2] = {"a", NULL};
    struct dt_serve_worker w;
    char *big = dt_malloc(3 << 20), *text;
    size_t len;
    int http;

    memset(big, 'x', (3 << 20) - 1);
    big[(3 << 20) - 1] = '\0';
    two[1] = big;
    dt_assert_ok(dt_serve_worker_start(&w, &program, &err), err);
    for (int i = 0; i < 20; i++) {
        dt_assert_ok(ask(&w, two, 2, 30), err);
        text = dt_serve_worker_take(&w, &len, &http);
        ck_assert_int_eq(http, 200);
        ck_assert_uint_eq(len, 3 << 20);
        ck_assert(text[0] == 'a' && strcmp(text + 1, big) == 0);
        dt_free(text);
    }
    dt_assert_ok(ask(&w, &refuse, 1, 30), err);
    text = dt_serve_worker_take(&w, &len, &http);
    ck_assert_int_eq(http, 422);
    ck_assert_ptr_nonnull(strstr(text, "\"no plan fits: \\\"so\\\"\""));
    dt_free(text);
    ck_assert_int_eq(ask(&w, &crash, 1, 30), DT_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.message, "signal 6"));
    ck_assert_int_eq(w.pid, 0);
    dt_assert_ok(dt_serve_worker_start(&w, &program, &err), err);
    ck_assert_int_eq(ask(&w, &hang, 1, 1), DT_ERR_TIMEOUT);
    dt_serve_worker_stop(&w);
    ck_assert_int_eq(w.fd, -1);
    dt_serve_worker_stop(&w); /* no harm */
    dt_free(big);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("serve");
    TCase *c = dt_test_case(s, "requests", 0);

    tcase_add_test(c, only_the_token_opens);
    tcase_add_test(c, only_by_its_name);
    tcase_add_test(c, other_sites_may_not_ask);
    tcase_add_test(c, tokens_are_random);
    tcase_add_test(c, forms_are_read);
    tcase_add_test(c, broken_forms_are_refused);
    tcase_add_test(c, forms_have_limits);
    c = dt_test_case(s, "keys", 0);
    tcase_add_test(c, rows_that_name_files_are_marked);
    tcase_add_test(c, files_are_refused_wherever_they_stand);
    tcase_add_test(c, other_keys_are_allowed);
    c = dt_test_case(s, "turns", 60);
    tcase_add_test(c, newer_questions_replace_older_ones);
    tcase_add_test(c, nobody_waits_for_what_is_outdated);
    c = dt_test_case(s, "workers", 120);
    tcase_add_test(c, workers_answer_refuse_crash_and_are_stopped);
    return dt_test_run(s);
}
