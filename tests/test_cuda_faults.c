/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Cards, built for a CPU (tests/cuda_cpu): whichever call of CUDA or of cuBLASLt fails, the device says so or its
 * results are right all the same, nothing is left behind, and the next try works. */
#include "kernels/device_open.h"
#include "kernels/kernels.h"
#include "test_util.h"

#include <dlfcn.h>
#include <pthread.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define MODULES "tests/modules/CPU"

enum { M = 3, IN = 16, OUT = 8, HEADS = 2, HEAD_DIM = 64, ROWS = 40 };
enum { WIDTH = HEADS * HEAD_DIM, QKV = ROWS * WIDTH };

/* of the module, by calls.cc and runtime.cc */
static void (*fail_at)(const char *name, unsigned at);
static const char *(*called)(unsigned i, unsigned *calls);
static void (*left)(int out[4]);

static void find(void *so, const char *name, void *fn)
{
    void *p = dlsym(so, name);

    ck_assert_msg(p != NULL, "the module has no %s", name);
    memcpy(fn, &p, sizeof(p)); /* POSIX allows it, C has no cast */
}

struct work {
    struct dt_device *dev;
    struct dt_device_queue *q[2];
    struct dt_device_event *event, *shared; /* shared: with other processes */
    struct dt_device_handle of_event, of_memory;
    size_t offset;
    struct dt_device_gate *gate;
    struct dt_device_weight *w;
    float *host; /* page-locked: what goes up and comes down */
    float *p;    /* all of it on the device */
    int32_t *cu;
    int calls;
};

/* floats of work.p and work.host */
enum {
    AT_X,
    AT_W = AT_X + M * IN,
    AT_Y = AT_W + OUT * IN,
    AT_Q = AT_Y + M * OUT,
    AT_O = AT_Q + QKV
};
enum { AT_LSE = AT_O + QKV, AT_SQ = AT_LSE + HEADS * ROWS };
enum { AT_H = AT_SQ + 4, AT_A = AT_H + M * OUT, ALL = AT_A + M * OUT };

/* Nothing is known yet, so algorithms of products are searched for. */
static bool find_note(void *arg, const char *device, int64_t library, const char *what, void *value,
                      size_t bytes)
{
    (void)arg;
    if (strstr(what, "gelu")) /* both ways are timed */
        return false;
    memset(value, 0, bytes); /* as a damaged file may say */
    return library > 0 && device[0] != '\0' && what[0] != '\0';
}
static void keep_note(void *arg, const char *device, int64_t library, const char *what,
                      const void *value, size_t bytes, double ns, double first_ns)
{
    (void)arg;
    ck_assert(library > 0 && device[0] != '\0' && what[0] != '\0' && value && bytes > 0);
    ck_assert_msg(ns >= 0 && first_ns >= -1, "times of %g and %g ns", ns, first_ns);
}
static void close_notes(void *arg)
{
    (void)arg;
}

static enum dt_status begin_on(struct work *k, const struct dt_device_choice *which,
                               struct dt_error *err)
{
    static const struct dt_device_notes notes = {NULL, true, find_note, keep_note, close_notes};
    static const struct dt_device_options opt = {.notes = &notes};
    struct dt_device_weight_shape s = {DT_F32, OUT, IN, 0};
    void *p;

    DT_TRY(dt_device_open(which, &opt, err, &k->dev));
    for (int i = 0; i < 2; i++)
        DT_TRY(k->dev->queue_new(k->dev, i == 1, err, &k->q[i]));
    DT_TRY(k->dev->event_new(k->dev, err, &k->event));
    DT_TRY(k->dev->gate_new(k->dev, err, &k->gate));
    DT_TRY(k->dev->host_alloc(k->dev, ALL * sizeof(float), err, &p));
    k->host = p;
    DT_TRY(k->dev->alloc(k->dev, ALL * sizeof(float), err, &p));
    k->p = p;
    DT_TRY(k->dev->alloc(k->dev, 2 * sizeof(int32_t), err, &p));
    k->cu = p;
    DT_TRY(k->dev->ipc_event_new(k->dev, err, &k->shared, &k->of_event));
    DT_TRY(k->dev->ipc_memory(k->dev, k->p, err, &k->of_memory, &k->offset));
    return k->dev->weight_new(k->dev, &s, k->p + AT_W, NULL, err, &k->w);
}

static enum dt_status begin(struct work *k, struct dt_error *err)
{
    static const struct dt_device_choice which = {.name = "cuda"};

    return begin_on(k, &which, err);
}

static void count_call(void *arg)
{
    ++*(int *)arg;
}

/* Uploads on one queue, kernels on the other one, and back. */
static enum dt_status compute(struct work *k, struct dt_error *err)
{
    struct dt_device *d = k->dev;
    struct dt_device_queue *up = k->q[1], *q = k->q[0];
    struct dt_kernel_attention a = {
        .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .n_seq = 1};
    static const int32_t cu[2] = {0, ROWS};

    for (int i = 0; i < AT_Y; i++)
        k->host[i] = (float)(i % 5) - 2;
    for (int i = AT_Q; i < AT_O; i++)
        k->host[i] = (float)(i % 7) * 0.1f;
    d->copy(up, k->p, k->host, AT_Y * sizeof(float), DT_COPY_TO_DEVICE);
    d->copy(up, k->p + AT_Q, k->host + AT_Q, QKV * sizeof(float), DT_COPY_TO_DEVICE);
    d->copy(up, k->cu, cu, sizeof(cu), DT_COPY_TO_DEVICE);
    d->event_record(up, k->event);
    d->gate_raise(up, k->gate, 1);
    d->call(up, count_call, &k->calls);
    DT_TRY(d->queue_state(up)); /* or nobody would open the gate */
    d->event_wait(q, k->event);
    d->gate_wait(q, k->gate, 1);
    d->weight_changed(q, k->w);
    d->zero(q, k->p + AT_Y, (size_t)M * OUT * sizeof(float));
    d->k->linear_fwd(q, M, k->p + AT_X, k->w, NULL, NULL, k->p + AT_Y);
    a.cu_q = a.cu_k = k->cu;
    a.rows_q = a.rows_k = a.max_q = a.max_k = ROWS;
    a.stride_q = a.stride_k = a.stride_v = a.stride_o = WIDTH;
    a.scale = 0.125f;
    d->k->attention_fwd(q, &a, k->p + AT_Q, k->p + AT_Q, k->p + AT_Q, k->p + AT_O, k->p + AT_LSE);
    d->k->linear_act_fwd(q, M, k->p + AT_X, k->w, NULL, DT_ACT_GELU_TANH, k->p + AT_H, k->p + AT_A);
    d->k->sum_sq(q, 1, &(struct dt_kernel_span){M * OUT, k->p + AT_Y},
                 (double *)(void *)(k->p + AT_SQ), false);
    d->event_record(q, k->event);
    d->event_record(q, k->shared);
    d->copy(q, k->host + AT_Y, k->p + AT_Y, (size_t)(ALL - AT_Y) * sizeof(float), DT_COPY_TO_HOST);
    DT_TRY(d->event_sync(k->event, err));
    (void)d->event_done(k->event);
    (void)d->event_ns(k->event);
    DT_TRY(d->event_sync(k->shared, err));
    ck_assert_uint_eq(d->event_ns(k->shared), 0);
    DT_TRY(d->queue_sync(up, err));
    return d->queue_sync(q, err);
}

static void check_results(const struct work *k, const char *what, unsigned at)
{
    double sq = 0, got;

    for (int r = 0; r < M; r++)
        for (int o = 0; o < OUT; o++) {
            double want = 0, want_a;

            for (int i = 0; i < IN; i++)
                want += (double)k->host[AT_X + r * IN + i] * (double)k->host[AT_W + o * IN + i];
            ck_assert_msg((double)k->host[AT_Y + r * OUT + o] == want,
                          "%s, call %u: no error, and y[%d][%d] is %g, not %g", what, at, r, o,
                          (double)k->host[AT_Y + r * OUT + o], want);
            ck_assert_msg((double)k->host[AT_H + r * OUT + o] == want,
                          "%s, call %u: no error, and h[%d][%d] is %g, not %g", what, at, r, o,
                          (double)k->host[AT_H + r * OUT + o], want);
            want_a = 0.5 * want * (1 + tanh(0.79788456 * (want + 0.044715 * want * want * want)));
            ck_assert_msg(fabs((double)k->host[AT_A + r * OUT + o] - want_a) < 1e-4,
                          "%s, call %u: no error, and GELU of %g is %g", what, at, want,
                          (double)k->host[AT_A + r * OUT + o]);
            sq += want * want;
        }
    memcpy(&got, &k->host[AT_SQ], sizeof(got));
    ck_assert_msg(got == sq, "%s, call %u: no error, and a sum of %g, not %g", what, at, got, sq);
    ck_assert_int_eq(k->calls, 1);
}

static void end(struct work *k)
{
    if (!k->dev)
        return;
    k->dev->weight_free(k->w);
    k->dev->free(k->dev, k->p);
    k->dev->free(k->dev, k->cu);
    k->dev->gate_free(k->gate);
    k->dev->event_free(k->event);
    k->dev->event_free(k->shared);
    for (int i = 0; i < 2; i++)
        k->dev->queue_free(k->q[i]);
    k->dev->host_free(k->dev, k->host); /* no copy of it is under way now */
    k->dev->close(k->dev);
}

/* Does everything, with call number `at` of `what` failing; true: it ended well. */
static bool attempt(const char *what, unsigned at)
{
    struct work k = {0};
    struct dt_error err = {0};
    enum dt_status st;
    int rest[4];

    if (fail_at)
        fail_at(what, at);
    st = begin(&k, &err);
    if (st == DT_OK) {
        st = compute(&k, &err);
        if (st == DT_OK)
            check_results(&k, what, at);
        else if (!err.message[0]) /* the queue's state has no text: its queue_sync has */
            ck_assert_int_ne(k.dev->queue_sync(k.q[1], &err), DT_OK);
    }
    if (st != DT_OK)
        ck_assert_msg(err.message[0], "%s, call %u: status %d without a message", what, at,
                      (int)st);
    end(&k);
    if (fail_at)
        fail_at("", 0);
    if (left) {
        left(rest);
        for (int i = 0; i < 4; i++)
            ck_assert_msg(rest[i] == 0, "%s, call %u (%s): of kind %d, %d are left", what, at,
                          st == DT_OK ? "no error" : err.message, i, rest[i]);
    }
    return st == DT_OK;
}

START_TEST(test_every_call)
{
    char names[64][64];
    unsigned calls[64], n = 0, failed = 0, silent = 0;
    const char *name;
    void *so;

    ck_assert_msg(attempt("", 0), "nothing fails, but the device does");
    so = dlopen(MODULES "/disttrain-cuda.so", RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(so);
    find(so, "cucpu_fail_at", &fail_at);
    find(so, "cucpu_called", &called);
    find(so, "cucpu_left", &left);
    fail_at("", 0);
    {
        struct work k = {0};
        struct dt_error err = {0};

        ck_assert_int_eq(begin(&k, &err), DT_OK);
        ck_assert_int_eq(compute(&k, &err), DT_OK);
        end(&k);
    }
    for (; (name = called(n, &calls[n])) != NULL; n++) {
        ck_assert_uint_lt(n, 63);
        snprintf(names[n], sizeof(names[n]), "%s", name);
    }
    ck_assert_uint_ge(n, 30);
    for (unsigned i = 0; i < n; i++)
        for (unsigned at = 1; at <= calls[i]; at++) {
            if (attempt(names[i], at))
                silent++;
            else
                failed++;
            ck_assert_msg(attempt("", 0), "after %s, call %u, the device fails for good", names[i],
                          at);
        }
    printf("%u functions, %u calls: %u errors, %u without consequences\n", n, failed + silent,
           failed, silent);
    ck_assert_uint_gt(failed, 40);
}
END_TEST

/* ---- what other processes would get ---- */

/* A handle is of the driver's block, and no process opens its own (other processes do in tests/test_ipc). */
START_TEST(test_handles)
{
    struct work k = {0};
    struct dt_error err = {0};
    struct dt_device_handle again;
    struct dt_device_event *e;
    size_t offset;
    void *p;

    dt_assert_ok(begin(&k, &err), err);
    for (size_t at = 0; at < ALL; at += 1000) {
        dt_assert_ok(k.dev->ipc_memory(k.dev, k.p + at, &err, &again, &offset), err);
        ck_assert_mem_eq(&again, &k.of_memory, sizeof(again));
        ck_assert_uint_eq(offset, k.offset + at * sizeof(float));
    }
    ck_assert_int_eq(k.dev->ipc_map(k.dev, &k.of_memory, &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "the memory of another process cannot be mapped: invalid device");
    ck_assert_int_eq(k.dev->ipc_event_open(k.dev, &k.of_event, &err, &e), DT_ERR_INPUT);
    dt_assert_has(err.message, "CUDA_VISIBLE_DEVICES");
    end(&k);
    setenv("DISTTRAIN_CUDA_ARENA", "0", 1);
    k = (struct work){0};
    ck_assert_int_eq(begin(&k, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "DISTTRAIN_CUDA_ARENA=0");
    end(&k);
}
END_TEST

/* ---- threads and cards ---- */

/* A thread that has never heard of the second card puts on its queues whatever there is. */
static void *elsewhere(void *arg)
{
    struct work *k = arg;
    struct dt_error err;

    dt_assert_ok(compute(k, &err), err);
    return NULL;
}

START_TEST(test_any_thread_uses_any_card)
{
    static const struct dt_device_choice which = {.name = "cuda", .index = 1};
    struct work k = {0};
    struct dt_error err;
    pthread_t thread;

    setenv("CUCPU_DEVICES", "2", 1);
    dt_assert_ok(begin_on(&k, &which, &err), err);
    dt_assert_ok(compute(&k, &err), err); /* from now on there is room: nobody allocates */
    k.calls = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, elsewhere, &k), 0);
    pthread_join(thread, NULL);
    check_results(&k, "another thread", 0);
    end(&k);
}
END_TEST

/* What a kernel may have of shared memory is said to the card of its queue, whichever card the thread's was. */
static void *attend(void *arg)
{
    struct work *k = arg;
    struct dt_device *d = k->dev;
    struct dt_kernel_attention a = {.dtype = DT_BF16,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = WIDTH, /* wide enough to ask for more */
                                    .n_seq = 1,
                                    .cu_q = k->cu,
                                    .cu_k = k->cu,
                                    .rows_q = ROWS,
                                    .rows_k = ROWS,
                                    .max_q = ROWS,
                                    .max_k = ROWS,
                                    .stride_q = WIDTH,
                                    .stride_k = WIDTH,
                                    .stride_v = WIDTH,
                                    .stride_o = WIDTH,
                                    .scale = 0.125f};
    char *in = (char *)(k->p + AT_Q), *out = (char *)(k->p + AT_O);

    d->k->attention_fwd(k->q[0], &a, in, in, in, out, k->p + AT_LSE);
    return NULL;
}

START_TEST(test_shared_memory_is_of_the_queues_card)
{
    static const struct dt_device_choice which = {.name = "cuda", .index = 1};
    static const int32_t cu[2] = {0, ROWS};
    struct work k = {0};
    struct dt_error err;
    pthread_t thread;

    setenv("CUCPU_DEVICES", "2", 1);
    dt_assert_ok(begin_on(&k, &which, &err), err);
    k.dev->zero(k.q[0], k.p, ALL * sizeof(float));
    k.dev->copy(k.q[0], k.cu, cu, sizeof(cu), DT_COPY_TO_DEVICE);
    dt_assert_ok(k.dev->queue_sync(k.q[0], &err), err);
    ck_assert_int_eq(pthread_create(&thread, NULL, attend, &k), 0);
    pthread_join(thread, NULL);
    dt_assert_ok(k.dev->queue_sync(k.q[0], &err), err);
    end(&k);
}
END_TEST

/* A driver that has the functions of gates and refuses to do them: functions of the host are called all the same. */
START_TEST(test_gates_are_asked_for)
{
    static const struct dt_device_choice which = {.name = "cuda"};
    struct dt_error err;

    for (int gates = 0; gates < 2; gates++) {
        struct work k = {0};

        setenv("CUCPU_GATES", gates ? "yes" : "no", 1);
        dt_assert_ok(begin_on(&k, &which, &err), err);
        ck_assert_int_eq(k.dev->info.gates, gates);
        for (int i = 0; i < 3; i++)
            k.dev->call(k.q[0], count_call, &k.calls);
        dt_assert_ok(k.dev->queue_sync(k.q[0], &err), err);
        ck_assert_int_eq(k.calls, 3);
        end(&k);
    }
}
END_TEST

static int blocks_of_driver(void)
{
    int rest[4];

    left(rest);
    return rest[2];
}

/* What was asked of the driver and nobody uses goes back when that is wanted, but for what other processes may have mapped. */
START_TEST(test_unused_memory_goes_back)
{
    enum { USED, FREED, SHOWN, PIECES };
    static const struct dt_device_choice which = {.name = "cuda"};
    struct dt_device_handle handle;
    struct work k = {0};
    struct dt_error err;
    void *p[PIECES], *again;
    size_t offset;
    int before;
    void *so;

    dt_assert_ok(begin_on(&k, &which, &err), err);
    so = dlopen(MODULES "/disttrain-cuda.so", RTLD_NOW | RTLD_NOLOAD);
    find(so, "cucpu_left", &left);
    for (int i = 0; i < PIECES; i++)
        dt_assert_ok(k.dev->alloc(k.dev, (size_t)70 << 20, &err, &p[i]), err);
    dt_assert_ok(k.dev->ipc_memory(k.dev, p[SHOWN], &err, &handle, &offset), err);
    before = blocks_of_driver();
    k.dev->zero(k.q[0], p[FREED], (size_t)70 << 20);
    k.dev->free(k.dev, p[FREED]);
    k.dev->free(k.dev, p[SHOWN]);
    ck_assert_int_eq(blocks_of_driver(), before);
    k.dev->memory_trim(k.dev);
    ck_assert_int_eq(blocks_of_driver(), before - 1);
    k.dev->zero(k.q[0], p[USED], (size_t)70 << 20);
    dt_assert_ok(k.dev->alloc(k.dev, (size_t)70 << 20, &err, &again), err);
    ck_assert_ptr_eq(again, p[SHOWN]); /* it has stayed */
    k.dev->free(k.dev, again);
    k.dev->free(k.dev, p[USED]);
    dt_assert_ok(k.dev->queue_sync(k.q[0], &err), err);
    end(&k);
    ck_assert_int_eq(blocks_of_driver(), 0);
}
END_TEST

/* All of a small card is free, but in pieces smaller than what is asked for. */
START_TEST(test_small_pieces_make_room_for_a_large_one)
{
    enum { PIECES = 3 };
    static const struct dt_device_choice which = {.name = "cuda"};
    const size_t mib = (size_t)1 << 20;
    struct work k = {0};
    struct dt_error err;
    void *p[PIECES], *large;

    setenv("CUCPU_MEMORY_MIB", "256", 1);
    dt_assert_ok(begin_on(&k, &which, &err), err);
    for (int i = 0; i < PIECES; i++)
        dt_assert_ok(k.dev->alloc(k.dev, 40 * mib, &err, &p[i]), err);
    k.dev->zero(k.q[0], p[0], 40 * mib); /* it is in use when it is freed */
    for (int i = 0; i < PIECES; i++)
        k.dev->free(k.dev, p[i]);
    dt_assert_ok(k.dev->alloc(k.dev, 150 * mib, &err, &large), err);
    k.dev->zero(k.q[0], large, 150 * mib);
    ck_assert_int_eq(k.dev->alloc(k.dev, 150 * mib, &err, &p[0]), DT_ERR_NOMEM);
    k.dev->free(k.dev, large);
    dt_assert_ok(k.dev->queue_sync(k.q[0], &err), err);
    end(&k);
}
END_TEST

struct late {
    struct dt_device *dev;
    void *p;
    enum dt_status st;
};

static void *want_memory(void *arg)
{
    struct late *l = arg;
    struct dt_error err;

    l->st = l->dev->alloc(l->dev, (size_t)150 << 20, &err, &l->p);
    return NULL;
}

/* A queue stands until other ranks come, and these until this one has issued what another thread is about to: memory that
 * the queue has to pass before it is free is waited for without holding up that thread. */
START_TEST(test_waiting_for_memory_holds_up_nobody)
{
    static const struct dt_device_choice which = {.name = "cuda"};
    const size_t mib = (size_t)1 << 20;
    struct late l = {.st = DT_ERR_INTERNAL};
    struct work k = {0};
    pthread_t thread;
    struct dt_error err;
    void *p[2], *small;

    setenv("CUCPU_MEMORY_MIB", "320", 1);
    dt_assert_ok(begin_on(&k, &which, &err), err);
    for (int i = 0; i < 2; i++)
        dt_assert_ok(k.dev->alloc(k.dev, 80 * mib, &err, &p[i]), err);
    k.dev->gate_wait(k.q[1], k.gate, 1);
    for (int i = 0; i < 2; i++)
        k.dev->free(k.dev, p[i]);
    l.dev = k.dev;
    ck_assert_int_eq(pthread_create(&thread, NULL, want_memory, &l), 0);
    usleep(50000);
    dt_assert_ok(k.dev->alloc(k.dev, mib, &err, &small), err);
    k.dev->zero(k.q[0], small, mib);
    k.dev->gate_raise(k.q[0], k.gate, 1);
    pthread_join(thread, NULL);
    dt_assert_ok(l.st, err);
    k.dev->free(k.dev, l.p);
    k.dev->free(k.dev, small);
    for (int i = 0; i < 2; i++)
        dt_assert_ok(k.dev->queue_sync(k.q[i], &err), err);
    end(&k);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cards: calls that fail");
    TCase *t = dt_test_case(s, "calls", 600);

    if (access(MODULES "/disttrain-cuda.so", R_OK) != 0) {
        printf("SKIP: there is no C++20 compiler for %s\n", MODULES);
        return 77;
    }
    setenv("DISTTRAIN_MODULES", MODULES, 1);
    tcase_add_test(t, test_every_call);
    t = dt_test_case(s, "threads", 60);
    tcase_add_test(t, test_handles);
    tcase_add_test(t, test_any_thread_uses_any_card);
    tcase_add_test(t, test_shared_memory_is_of_the_queues_card);
    tcase_add_test(t, test_gates_are_asked_for);
    tcase_add_test(t, test_unused_memory_goes_back);
    tcase_add_test(t, test_small_pieces_make_room_for_a_large_one);
    tcase_add_test(t, test_waiting_for_memory_holds_up_nobody);
    return dt_test_run(s);
}
