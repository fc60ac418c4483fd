/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/ranks.h"

#include "cli/cli.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint.h"
#include "comm/cores.h"
#include "exec/program/execute.h"
#include "exec/train/setup.h"
#include "comm/lifeline.h"
#include "comm/nccl.h"
#include "exec/train/profiler_notes.h"
#include "kernels/device_open.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void describe(void *ctx, int module, int op, int64_t microbatch, char *buf, size_t size)
{
    const struct dt_job *job = ctx;

    dt_exec_describe(job->model, module, op, microbatch, buf, size);
}

static void report(void *ctx, const char *message)
{
    (void)ctx;
    fprintf(stderr, "disttrain: %s\n", message);
    fflush(NULL);
}

/* One message for the whole job: what all ranks would say (a refused job, say) is said by rank 0;
 * whoever speaks ends all. */
static void end_all(const struct dt_cli_ranks *r, enum dt_status st, const struct dt_error *err)
{
    bool alike = st == DT_ERR_INPUT || st == DT_ERR_INFEASIBLE || st == DT_ERR_USAGE ||
                 st == DT_ERR_DIVERGED;
    char text[sizeof(err->message) + sizeof(err->file) + 64];

    if (r->transport->rank != 0 && alike) {
        signal(SIGTERM, SIG_DFL);
        sleep(5); /* on a busy machine another host's ranks are ended after two */
    }
    if (!r->supervisor || dt_supervisor_speak(r->supervisor, st)) {
        dt_error_format(err, text, sizeof text);
        report(NULL, text);
    } else {
        usleep(2000000); /* for the speaker to end us */
    }
    r->transport->abort(r->transport, dt_status_exit_code(st));
}

static enum dt_status meet(const struct dt_job *job, struct dt_cli_ranks *r, struct dt_error *err)
{
    union {
        const struct dt_job *in;
        void *out;
    } ctx = {job};
    struct dt_supervisor_watch watch = {.describe = describe, .report = report, .ctx = ctx.out};
    char binary[64], digest[40], *text;
    struct dt_supervisor_fact facts[] = {{"binary", binary}, {"job", digest}};

    r->cores = dt_cores_take(r->transport);
    dt_supervisor_binary_digest(binary, sizeof binary);
    DT_TRY(dt_doc_to_json(job->doc, err, &text));
    dt_ckpt_digest(text, strlen(text), digest, sizeof digest);
    dt_free(text);
    DT_TRY(dt_supervisor_open(r->transport, facts, 2, err, &r->supervisor));
    return dt_supervisor_watch(r->supervisor, &watch, err);
}

enum dt_status dt_cli_ranks_begin(const char *job, int64_t ranks, struct dt_error *err,
                                  bool *launched)
{
    *launched = dt_transport_mpi_launched(NULL) || dt_transport_tcp_launched(NULL);
    DT_TRY(dt_cli_limits_check(*launched || ranks > 1, err));
    if (*launched)
        return dt_lifeline_hold(err);
    if (ranks != 1)
        DT_TRY(dt_transport_check_tasks(1, err));
    if (ranks > 1 && dt_file_is_stream(job))
        return dt_error_set(err, DT_ERR_USAGE,
                            "%s: --ranks needs the job in a file, since every rank reads it", job);
    return DT_OK;
}

enum dt_status dt_cli_on_ranks(const struct dt_job *job, int64_t ranks, dt_cli_ranks_fn *fn,
                               void *ctx, struct dt_error *err)
{
    struct dt_cli_ranks alone = {0}, r = {0};
    enum dt_status st = DT_OK;

    if (job->run.deterministic) /* the launcher's library has threads */
        dt_nccl_deterministic();
    DT_TRY(dt_transport_open_launched(err, &r.transport));
    if (ranks != 1)
        st = dt_transport_check_tasks(r.transport->size, err);
    if (st == DT_OK && ranks > 0 && ranks != r.transport->size)
        st = dt_error_set(err, DT_ERR_USAGE, "--ranks %lld, but the launcher started %d",
                          (long long)ranks, r.transport->size);
    if (st == DT_OK && r.transport->size > 1)
        st = meet(job, &r, err);
    if (st == DT_OK)
        st = fn(ctx, r.transport->size > 1 ? &r : &alone, err);
    if (st != DT_OK && r.transport->size > 1)
        end_all(&r, st, err);
    if (r.supervisor)
        dt_supervisor_close(r.supervisor);
    r.transport->close(r.transport);
    return st;
}

static void say(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "disttrain: warning: %s\n", line);
}

enum dt_status dt_cli_need_run(const struct dt_job *job, const char *what, struct dt_error *err)
{
    if (job->run.stated)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, job->name, 0, 0,
                       "the job has no run: map, which says %s; see disttrain-job(5)", what);
}

enum dt_status dt_cli_open_device(const struct dt_job *job, const struct dt_cli_ranks *ranks,
                                  struct dt_error *err, struct dt_device **out)
{
    const struct dt_transport *t = ranks ? ranks->transport : NULL;
    const struct dt_device_choice choice = {.name = dt_job_run_device_names[job->run.device],
                                            .index = job->run.device_index,
                                            .local_rank = t ? t->local_rank : 0};
    static const struct dt_warn warn = {.say = say};
    struct dt_device_options o;

    dt_setup_device(job, &o);
    if (o.threads == 0 && ranks)
        o.threads = ranks->cores;
    if (!t || t->rank == 0)
        o.warn = &warn;
    if (job->run.algorithms[0] && !job->run.deterministic)
        DT_TRY(
            dt_profiler_notes_open(job->run.algorithms, !t || t->size == 1, &warn, err, &o.notes));
    return dt_device_open(&choice, &o, err, out);
}

enum dt_status dt_cli_on_setup(struct dt_cli *cli, const struct dt_job *job, const char *what,
                               dt_cli_setup_fn *fn, struct dt_error *err)
{
    static const struct dt_device_choice cpu = {.name = "cpu", .index = -1};
    struct dt_device_options o = {.threads = 1};
    struct dt_device *device;
    struct dt_setup setup;
    enum dt_status st;

    DT_TRY(dt_cli_need_run(job, what, err));
    DT_TRY(dt_device_open(&cpu, &o, err, &device));
    st = dt_setup_open(job, device, true, err, &setup);
    if (st == DT_OK) {
        st = fn(cli, &setup, err);
        dt_setup_close(&setup);
    }
    device->close(device);
    return st;
}
