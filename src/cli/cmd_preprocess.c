/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/facts.h"
#include "cli/session.h"
#include "cli/ranks.h"
#include "core/job/job.h"
#include "base/file.h"
#include "exec/feed/server.h"
#include "exec/train/setup.h"

#include <signal.h>
#include <stdio.h>

enum { WORKERS = 1, MEMORY_MIB = DT_FEED_MEMORY_BYTES >> 20 };

static const struct dt_cli_option options[] = {
    {"listen", 0, DT_OPT_STRING, "HOST:PORT", "where to listen, an address of this machine"},
    {"workers", 0, DT_OPT_INT, "N", "threads that make documents (default 1)"},
    {"memory", 0, DT_OPT_INT, "MIB", "of documents that are kept (default 1024)"},
    {"keys", 0, DT_OPT_STRING, "FILE", "our keys, and those of who may connect"},
    {"insecure", 0, DT_OPT_FLAG, NULL, "without keys, on this machine's own addresses only"},
    {"keygen", 0, DT_OPT_STRING, "FILE", "make FILE for producers and FILE.train for training"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
    stop = sig;
}

static void watch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

static void say(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "%s\n", line);
}

/* ---- who may connect ---- */

static enum dt_status open_door(const struct dt_cli *cli, struct dt_error *err,
                                struct dt_feed_net **out)
{
    static struct dt_feed_keys keys;
    const char *listen = dt_cli_string(cli, "listen", NULL);
    const char *file = dt_cli_string(cli, "keys", NULL);
    char address[DT_FEED_ADDRESS_SIZE];
    bool loopback;

    if (!listen)
        return dt_error_set(err, DT_ERR_USAGE, "--listen HOST:PORT is missing");
    DT_TRY(dt_feed_address(listen, err, address, &loopback));
    if (file && dt_cli_flag(cli, "insecure"))
        return dt_error_set(err, DT_ERR_USAGE, "--insecure is without keys");
    if (!file && !dt_cli_flag(cli, "insecure"))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--keys FILE is missing; --keygen FILE makes one (--insecure does "
                            "without, on this machine only)");
    if (!file && !loopback)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--insecure listens on this machine's own addresses only, such as "
                            "127.0.0.1, not on %s",
                            address);
    if (file)
        DT_TRY(dt_feed_keys_read(file, err, &keys));
    return dt_feed_net_listen(address, file ? &keys : NULL, err, out);
}

/* ---- what was served ---- */

enum { LABELS = 12 };

static void facts(const struct dt_cli_facts *f, const struct dt_feed_server_report *r,
                  const char *where, int workers)
{
    dt_cli_fact_text(f, "address", "served", "%s", where);
    dt_cli_fact_number(f, "wall_s", "", " for %.1f s\n", 1, r->wall_s);
    dt_cli_fact_int(f, "consumers", "consumers", "%lld\n", r->came);
    dt_cli_fact_int(f, "made", "documents", "%lld made", r->made);
    dt_cli_fact_int(f, "bad", "", " (%lld bad)", r->bad);
    dt_cli_fact_int(f, "sent", "", ", %lld sent", r->sent);
    dt_cli_fact_int(f, "sent_bytes", "", " in %lld bytes\n", r->sent_bytes);
    dt_cli_fact_int(f, "images", "images", "%lld decoded\n", r->images);
    dt_cli_fact_number(f, "core_s", "making", "%.3f s of a core", 1, r->core_s);
    dt_cli_fact_number(f, "core_s_per_document", "", ", %.3f ms a document", 1e3,
                       r->made > 0 ? r->core_s / (double)r->made : 0);
    dt_cli_fact_int(f, "workers", "", "; workers: %lld", workers);
    dt_cli_fact_number(f, "busy", "", ", %.1f %% of the time\n", 100,
                       r->wall_s > 0 ? r->core_s / r->wall_s / workers : 0);
    dt_cli_fact_int(f, "refused", "refused", "%lld frames\n", r->refused);
}

static enum dt_status say_served(const struct dt_cli *cli, const struct dt_feed_server_report *r,
                                 const char *where, int workers, struct dt_error *err)
{
    struct dt_cli_facts f = {.width = LABELS};
    struct dt_json j;

    if (!cli->json) {
        facts(&f, r, where, workers);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    f.json = &j;
    facts(&f, r, where, workers);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

/* ---- serving ---- */

static enum dt_status serve(struct dt_cli *cli, const struct dt_loader_options *o,
                            struct dt_error *err)
{
    static const struct dt_warn warn = {.say = say};
    struct dt_feed_server_options s = {.warn = &warn};
    struct dt_feed_server_report r;
    struct dt_feed_server *server;
    struct dt_loader_options l = *o;
    struct dt_loader *loader;
    struct dt_feed_net *net;
    char where[DT_FEED_ADDRESS_SIZE];
    int64_t workers, mib;
    enum dt_status st;

    DT_TRY(dt_cli_int(cli, "workers", 1, 256, WORKERS, &workers, err));
    DT_TRY(dt_cli_int(cli, "memory", 1, 1 << 24, MEMORY_MIB, &mib, err));
    l.threads = 0;
    l.fatal = false; /* a matter of those who train */
    DT_TRY(dt_loader_job_digest(&l, err, &s.job));
    DT_TRY(open_door(cli, err, &net));
    st = dt_loader_open(&l, err, &loader);
    if (st == DT_OK) {
        s.loader = loader;
        s.net = net;
        s.workers = (int)workers;
        s.memory_bytes = mib << 20;
        st = dt_feed_server_open(&s, err, &server);
        if (st == DT_OK) {
            dt_feed_net_where(net, where);
            fprintf(cli->json ? stderr : stdout, "%s\n", where); /* JSON is one object */
            fflush(stdout);
            dt_feed_server_run(server, &stop);
            dt_feed_server_report(server, &r);
            dt_feed_server_close(server);
            st = say_served(cli, &r, where, (int)workers, err);
        }
        dt_loader_close(loader);
    }
    dt_feed_net_close(net);
    return st;
}

static enum dt_status produce(struct dt_cli *cli, const struct dt_setup *s, struct dt_error *err)
{
    return s->n_producers > 0 ? dt_error_set(err, DT_ERR_INPUT,
                                             "run.data names producers; a producer needs the "
                                             "shards themselves: run.data=PATH")
                              : serve(cli, &s->loader, err);
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    const char *keygen = dt_cli_string(cli, "keygen", NULL);
    char found[4096];
    struct dt_job *job;
    enum dt_status st;

    if (keygen)
        return cli->n_args == 0 ? dt_feed_keys_make(keygen, err)
                                : dt_error_set(err, DT_ERR_USAGE, "--keygen takes no job");
    if (cli->n_args < 1)
        return dt_error_set(err, DT_ERR_USAGE, "a job is missing");
    watch_signals();
    DT_TRY(dt_file_find("jobs", cli->args[0], ".yaml", err, found, sizeof found));
    DT_TRY(dt_job_read(found, cli->args + 1, cli->n_args - 1, err, &job));
    st = dt_cli_on_setup(cli, job, "what to train on", produce, err);
    dt_job_free(job);
    return st;
}

const struct dt_cli_command dt_cmd_preprocess = {
    .name = "preprocess",
    .args = "[JOB [KEY=VALUE...]]",
    .summary = "make a job's documents for training on other machines",
    .options = options,
    .min_args = 0,
    .max_args = -1,
    .run = command,
};
