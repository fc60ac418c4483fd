/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "kernel_traces.h"

#include <sqlite3.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define GEMM "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
#define REDUCE "void cublasLt::splitKreduce_kernel<32, 16>(float*)"
#define FLASH                                                                                      \
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<32, 64, 64, 4>, false, true, false>(Args)"
#define TF32 "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>(Params)"
#define COUNT "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<long>>(int)"
#define MYSTERY "void mystery_kernel<float>(int)"

static const struct launch {
    const char *name;
    int at_us, us;
    bool grows; /* by 1 us a step */
} launches[] = {
    {GEMM, 20, 100, true},
    {REDUCE, 30, 20, false},
    {FLASH, 120, 50, true},
    {MYSTERY, 200, 30, false},
};
enum { LAUNCHES = 4, STEP_US = 1000, LAG_US = 10000 };

/* ---- Nsight Systems ---- */

struct writer {
    sqlite3 *db;
    const struct kt_nsys *how;
    bool ok;
    int strings, correlation;
};

static void run(struct writer *w, const char *sql)
{
    w->ok = w->ok && sqlite3_exec(w->db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* A name as the column holds it: quoted text, or the id of a new string. */
static const char *name_of(struct writer *w, const char *name, char buf[512])
{
    char sql[512];

    if (w->how->names_inline) {
        snprintf(buf, 512, "'%s'", name);
        return buf;
    }
    snprintf(sql, sizeof(sql), "INSERT INTO StringIds VALUES(%d, '%s')", ++w->strings, name);
    run(w, sql);
    snprintf(buf, 512, "%d", w->strings);
    return buf;
}

static void range(struct writer *w, long long tid, long long from_us, long long to_us,
                  const char *text)
{
    char sql[1024], name[512];

    snprintf(sql, sizeof(sql), "INSERT INTO NVTX_EVENTS VALUES(%lld, %lld, 59, %s, %lld)",
             from_us * 1000, to_us * 1000, name_of(w, text, name), tid);
    run(w, sql);
}

static void kernel(struct writer *w, long long tid, long long at_us, long long us, const char *text)
{
    long long start = at_us + (w->how->no_runtime ? 0 : LAG_US);
    char sql[1024], name[512];

    name_of(w, text, name);
    snprintf(sql, sizeof(sql), "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(%lld, %lld, %d, %s%s",
             start * 1000, (start + us) * 1000, ++w->correlation, name,
             w->how->short_only ? "" : ", NULL");
    if (!w->how->no_process)
        snprintf(sql + strlen(sql), sizeof(sql) - strlen(sql), ", %lld", tid >> 24 << 24);
    strcat(sql, ")");
    run(w, sql);
    if (w->how->no_runtime)
        return;
    snprintf(sql, sizeof(sql),
             "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(%lld, %lld, %d, %lld)", at_us * 1000,
             at_us * 1000 + 4000, w->correlation, tid);
    run(w, sql);
}

static void tables(struct writer *w)
{
    char sql[512];

    run(w, "BEGIN; CREATE TABLE StringIds(id INTEGER, value TEXT)");
    snprintf(sql, sizeof(sql),
             "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, \"end\" INTEGER, "
             "correlationId INTEGER, shortName INTEGER%s%s)",
             w->how->short_only ? "" : ", demangledName INTEGER",
             w->how->no_process ? "" : ", globalPid INTEGER");
    run(w, sql);
    if (!w->how->no_runtime)
        run(w, "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, \"end\" INTEGER, "
               "correlationId INTEGER, globalTid INTEGER)");
    snprintf(sql, sizeof(sql),
             "CREATE TABLE NVTX_EVENTS(start INTEGER, \"end\" INTEGER, eventType INTEGER, %s, "
             "globalTid INTEGER)",
             w->how->names_inline ? "text TEXT" : "textId INTEGER");
    run(w, sql);
    if (!w->how->no_copies)
        run(w, "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER, \"end\" INTEGER, "
               "copyKind INTEGER)");
    if (!w->how->no_gpu)
        run(w, "CREATE TABLE TARGET_INFO_GPU(name TEXT); "
               "INSERT INTO TARGET_INFO_GPU VALUES('NVIDIA A100-SXM4-80GB')");
}

static void story(struct writer *w, long long tid, const char *gemm)
{
    for (int i = 0; i < KT_STEPS; i++) {
        long long t = (long long)(i + 1) * STEP_US;

        range(w, tid, t, t + 300, "step");
        range(w, tid, t + 10, t + 60, gemm);
        range(w, tid, t + 15, t + 35, "inner");
        range(w, tid, t + 110, t + 150, "disttrain attn_causal fwd 2 64 4 4 32");
        for (int k = 0; k < LAUNCHES; k++)
            kernel(w, tid, t + launches[k].at_us, launches[k].us + (launches[k].grows ? i : 0),
                   launches[k].name);
        if (!w->how->no_copies)
            run(w, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(900000, 905000, 1)");
    }
    run(w, "INSERT INTO NVTX_EVENTS(start) VALUES(1)"); /* a range that was never closed */
}

bool kt_write_nsys(const char *path, const struct kt_nsys *how)
{
    struct writer w = {.how = how, .ok = true};

    unlink(path);
    if (sqlite3_open(path, &w.db) != SQLITE_OK)
        return false;
    tables(&w);
    story(&w, INT64_C(7) << 24 | 7, "disttrain gemm fwd 512 256 128");
    if (how->two_processes) {
        w.correlation = 0;
        story(&w, INT64_C(8) << 24 | 8, "disttrain gemm fwd 1024 256 128");
    }
    run(&w, "COMMIT");
    return sqlite3_close(w.db) == SQLITE_OK && w.ok;
}

/* ---- Kineto ---- */

struct event {
    const char *cat, *name, *tid;
    long long ts, dur;
    const char *args; /* members of args */
};

static void event(FILE *f, const struct event *e)
{
    fprintf(f,
            ",\n  {\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s\", \"pid\": 42, \"tid\": %s, "
            "\"ts\": %lld.250, \"dur\": %lld.000, \"args\": {%s}}",
            e->cat, e->name, e->tid, e->ts + INT64_C(1700000000000000), e->dur, e->args);
}

struct kineto {
    FILE *f;
    const struct kt_kineto *how;
};

static void host(const struct kineto *w, const char *cat, const char *name, long long ts,
                 long long dur, int ext, const char *more)
{
    char args[512];

    if (w->how->first_names && strcmp(cat, "cpu_op") == 0)
        cat = "Operator";
    snprintf(args, sizeof(args), "\"External id\": %d%s", ext, more);
    event(w->f, &(struct event){cat, name, "7", ts, dur, args});
}

static void gpu(const struct kineto *w, const char *name, long long launch, long long dur, int ext,
                int corr)
{
    bool first = w->how->first_names;
    char args[128];

    snprintf(args, sizeof(args), "\"%cxternal id\": %d, \"correlation\": %d", first ? 'e' : 'E',
             w->how->ids_are_correlations ? corr : ext, corr);
    event(w->f, &(struct event){first ? "Runtime" : "cuda_runtime", "cudaLaunchKernel", "7", launch,
                                4, args});
    event(w->f, &(struct event){first ? "Kernel" : "kernel", name, "\"stream 7\"", launch + LAG_US,
                                dur, args});
}

/* Ids of operators and correlations run through the same numbers, so that one taken for the other
 * is some other operator. */
void kt_write_kineto(FILE *f, const char *device, const struct kt_kineto *how)
{
    static const char shapes[] = ", \"Input Dims\": [[256], [512, 128], [128, 256], [], []], "
                                 "\"Input type\": [\"%s\", \"%s\", \"%s\", \"Scalar\", "
                                 "\"Scalar\"]";
    static const char integers[] = ", \"Input Dims\": [[4, 8], [4, 8], []], \"Input type\": "
                                   "[\"long\", \"long\", \"Scalar\"]";
    const char *type = how->tf32 ? "float" : "c10::BFloat16";
    const struct kineto w = {f, how};
    char product[256];

    snprintf(product, sizeof(product), shapes, type, type, type);
    fprintf(f,
            "{\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"%s\"}],\n"
            " \"traceEvents\": [\n  {\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 42, "
            "\"args\": {\"name\": \"python\"}}",
            device);
    for (int i = 0; i < KT_STEPS; i++) {
        long long t = (long long)(i + 1) * STEP_US;
        int ext = 100 * (i + 1), corr = ext + 2;

        event(f, &(struct event){"user_annotation", "ProfilerStep", "7", t, 500, ""});
        host(&w, "cpu_op", "aten::linear", t + 10, 50, ext, "");
        host(&w, "cpu_op", "aten::addmm", t + 15, 40, ext + 1, product);
        gpu(&w, how->tf32 ? TF32 : GEMM, t + 20, 100 + i, ext + 1, corr);
        gpu(&w, REDUCE, t + 30, 20, ext + 1, corr + 1);
        event(f, &(struct event){"user_annotation", "disttrain attn_causal fwd 2 64 4 4 32", "7",
                                 t + 110, 40, ""});
        gpu(&w, FLASH, t + 120, 50 + i, 0, corr + 2);
        gpu(&w, MYSTERY, t + 200, 30, 0, corr + 3);
        host(&w, "cpu_op", "autograd::engine::evaluate_function: MmBackward0", t + 300, 50, ext + 2,
             "");
        host(&w, "cpu_op", "aten::mm", t + 310, 20, ext + 3,
             ", \"Input Dims\": [[8, 8], [8, 8]], \"Input type\": [\"c10::BFloat16\", "
             "\"c10::BFloat16\"]");
        gpu(&w, GEMM, t + 315, 70, ext + 3, corr + 4);
        host(&w, "cpu_op", "aten::add", t + 400, 20, ext + 5, integers);
        gpu(&w, COUNT, t + 405, 3, ext + 5, corr + 5);
        event(f, &(struct event){how->first_names ? "Memcpy" : "gpu_memcpy",
                                 "Memcpy HtoD (Pinned -> Device)", "\"stream 7\"", t, 5, ""});
    }
    fprintf(f, "\n]}\n");
}
