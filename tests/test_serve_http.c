/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain serve as a program, over sockets: 1,000 requests at once from eight visitors with the right answers and
 * no leak, what is refused, what ends it.  The right answer is what `disttrain simulate --json` prints. */
#include "config.h"

#include "test_util.h"

#ifndef HAVE_SERVE
int main(void)
{
    puts("built without libmicrohttpd: nothing to test");
    return 77;
}
#else

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPLY_MAX = 1 << 20, VISITORS = 8, REQUESTS = 1000, SETTINGS = 5 };

static const char *const settings[SETTINGS] = {
    "train.global_batch=16", "train.global_batch=8", "train.seq_len=1024",
    "train.frozen=[llm]",    "simulate.seed=7",
};

static char reply[REPLY_MAX];

/* ---- the server ---- */

struct server {
    pid_t pid;
    int port;
    char token[64];
};

static const char *program(void)
{
    const char *path = getenv("DISTTRAIN");

    return path && *path ? path : "./disttrain";
}

/* Starts it; its first line is the address. */
static struct server start(const char *job, const char *option)
{
    struct server s = {0};
    char line[512] = "";
    size_t n = 0;
    int out[2];

    ck_assert_int_eq(pipe(out), 0);
    s.pid = fork();
    if (s.pid == 0) {
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        execl(program(), "disttrain", "serve", job, "--port", "0", option, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    while (n < sizeof(line) - 1 && read(out[0], line + n, 1) == 1 && line[n] != '\n')
        n++;
    close(out[0]);
    ck_assert_msg(sscanf(line, "http://127.0.0.1:%d/%32[0-9a-f]/", &s.port, s.token) == 2,
                  "the server says: %s", line);
    return s;
}

static int end(struct server *s, int sig)
{
    int how = 0;

    kill(s->pid, sig);
    ck_assert_int_eq(waitpid(s->pid, &how, 0), s->pid);
    ck_assert_msg(WIFEXITED(how), "it ended by signal %d", WTERMSIG(how));
    return WEXITSTATUS(how);
}

/* ---- a visitor ---- */

static int visit(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval limit = {120, 0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* All that comes until the other side closes, into reply[]; the status of the answer, 0 if there is none. */
static int hear(int fd)
{
    size_t n = 0;
    ssize_t got;
    int status = 0;

    while (n < REPLY_MAX - 1 && (got = read(fd, reply + n, REPLY_MAX - 1 - n)) > 0)
        n += (size_t)got;
    reply[n] = '\0';
    close(fd);
    return sscanf(reply, "HTTP/1.1 %d", &status) == 1 ? status : 0;
}

static int ask_raw(int port, const char *text, size_t len)
{
    int fd = visit(port);

    if (fd < 0)
        return 0;
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

        if (n <= 0)
            break;
        text += n;
        len -= (size_t)n;
    }
    return hear(fd);
}

__attribute__((format(printf, 2, 3))) static int ask(int port, const char *fmt, ...)
{
    static char text[256 << 10];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return ask_raw(port, text, (size_t)n);
}

static int get(const struct server *s, const char *path)
{
    return ask(s->port, "GET /%s/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
               s->token, path);
}

static int post(const struct server *s, const char *form)
{
    return ask(s->port,
               "POST /%s/answer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
               "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %zu\r\n\r\n%s",
               s->token, strlen(form), form);
}

static void encode(const char *s, char *out)
{
    for (; *s; s++)
        out += sprintf(out, strchr("=[]{}:, ", *s) ? "%%%02X" : "%c", (unsigned char)*s);
    *out = '\0';
}

/* ---- what is right ---- */

/* Without the line that says how long it took. */
static void drop_wall_time(char *json)
{
    char *line = strstr(json, "\"wall_s\""), *next = line ? strpbrk(line, "\n}") : NULL;

    if (next)
        memmove(line, next, strlen(next) + 1);
}

/* The object that the program prints for a setting, without blanks at its ends. */
static char *printed(const char *job, const char *setting, const char *effort)
{
    char command[512], *text = calloc(1, REPLY_MAX);
    size_t n;
    FILE *p;

    snprintf(command, sizeof(command), "'%s' simulate --no-runs --json %s %s '%s'", program(), job,
             effort, setting);
    p = popen(command, "r");
    n = fread(text, 1, REPLY_MAX - 1, p);
    ck_assert_int_eq(pclose(p), 0);
    while (n > 0 && text[n - 1] == '\n')
        text[--n] = '\0';
    drop_wall_time(text);
    return text;
}

/* Is `want` the body, or the result in the answer to a page that the body is? */
static bool is_right(const char *want)
{
    char *body = strstr(reply, "\r\n\r\n");

    if (!body)
        return false;
    drop_wall_time(body);
    return strstr(body, want) != NULL;
}

/* ---- load ---- */

static int count_files(pid_t pid)
{
    char path[64];
    int n = 0;
    DIR *d;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    d = opendir(path);
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static long memory_kib(pid_t pid)
{
    char line[256];
    long kib = -1;
    FILE *f;

    snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
    f = fopen(line, "r");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

struct figures {
    int files;
    long kib; /* of the server and its workers */
};

static struct figures take_figures(pid_t server)
{
    struct figures f = {INT_MAX, memory_kib(server)};
    char path[128];
    int child;
    FILE *p;

    for (int i = 0; i < 20;
         i++) { /* the last visitors' sockets are closed a moment after they have gone */
        int files = count_files(server);

        f.files = files < f.files ? files : f.files;
        usleep(50000);
    }
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)server, (int)server);
    p = fopen(path, "r");
    while (p && fscanf(p, "%d", &child) == 1)
        f.kib += memory_kib(child);
    if (p)
        fclose(p);
    return f;
}

/* n requests one after the other: answers to pages, quick and normal, and files; exits with the number of wrong ones. */
static void be_a_visitor(const struct server *s, int who, int n, char *const want[2][SETTINGS])
{
    int wrong = 0;

    for (int i = 0; i < n; i++) {
        int k = (who + i) % SETTINGS, kind = (who + i / SETTINGS) % 3;
        char form[1024], setting[512];
        int http;

        encode(settings[k], setting);
        if (kind == 2) {
            snprintf(form, sizeof(form), "simulate.json?set=%s", setting);
            http = get(s, form);
        } else {
            snprintf(form, sizeof(form), "set=%s&effort=%s&client=%x&side=a&turn=%d", setting,
                     kind == 0 ? "quick" : "normal", who + 1, i);
            http = post(s, form);
        }
        if (http != 200 || !is_right(want[kind == 0][k])) {
            if (wrong++ == 0)
                fprintf(stderr, "visitor %d, request %d, %s: status %d\n%.300s\n", who, i, form,
                        http, reply);
        }
    }
    _exit(wrong > 100 ? 100 : wrong);
}

static void visit_all(const struct server *s, int n, char *const want[2][SETTINGS])
{
    pid_t visitor[VISITORS];

    for (int i = 0; i < VISITORS; i++) {
        visitor[i] = fork();
        if (visitor[i] == 0)
            be_a_visitor(s, i, n / VISITORS, want);
    }
    for (int i = 0; i < VISITORS; i++) {
        int how = 0;

        ck_assert_int_eq(waitpid(visitor[i], &how, 0), visitor[i]);
        ck_assert_msg(how == 0, "visitor %d: %d wrong answers", i, WEXITSTATUS(how));
    }
}

START_TEST(a_thousand_requests_are_answered_rightly_and_leave_nothing)
{
    char *want[2][SETTINGS];
    struct server s;
    struct figures before, after;

    for (int k = 0; k < SETTINGS; k++) {
        want[0][k] = printed("mllm-nano-local", settings[k], "");
        want[1][k] = printed("mllm-nano-local", settings[k],
                             "search.effort=quick simulate.contention=false");
    }
    s = start("mllm-nano-local", NULL);
    visit_all(&s, 200, want);
    before = take_figures(s.pid);
    visit_all(&s, REQUESTS, want);
    after = take_figures(s.pid);
    printf("open files %d, then %d; memory %ld KiB, then %ld KiB\n", before.files, after.files,
           before.kib, after.kib);
    ck_assert_int_eq(before.files, after.files);
    /* the first requests have found the largest programs and filled the caches; with sanitizers, which keep what is
     * freed for a while, there is a report at the end instead */
#if !defined(__SANITIZE_ADDRESS__)
    ck_assert_int_le(after.kib, before.kib + before.kib / 10);
#endif
    ck_assert_int_eq(end(&s, SIGTERM), 0);
    for (int k = 0; k < SETTINGS; k++) {
        free(want[0][k]);
        free(want[1][k]);
    }
}
END_TEST

/* ---- what is refused ---- */

START_TEST(strangers_are_refused)
{
    struct server s = start("mllm-nano-local", NULL);
    char wrong[64];

    ck_assert_int_eq(get(&s, ""), 200);
    ck_assert_ptr_nonnull(strstr(reply, "Content-Security-Policy: default-src 'none'"));
    ck_assert_ptr_null(strstr(reply, "Access-Control"));
    ck_assert_int_eq(get(&s, "keys.json"), 200);
    ck_assert_int_eq(get(&s, "page.js"), 200);
    ck_assert_int_eq(get(&s, "page.c"), 404);
    ck_assert_int_eq(get(&s, "..%2f..%2fetc/passwd"), 404);
    ck_assert_int_eq(get(&s, "../../etc/passwd"), 404);
    snprintf(wrong, sizeof(wrong), "%s", s.token);
    wrong[31] ^= 1;
    ck_assert_int_eq(
        ask(s.port, "GET /%s/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", wrong),
        403);
    ck_assert_ptr_null(strstr(reply, s.token));
    ck_assert_int_eq(ask(s.port, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
                     403);
    ck_assert_int_eq(ask(s.port,
                         "GET /%s/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
                         s.token),
                     403);
    ck_assert_int_eq(ask(s.port, "GET /%s/ HTTP/1.0\r\nConnection: close\r\n\r\n", s.token), 403);
    ck_assert_int_eq(ask(s.port,
                         "GET /%s/plan.json HTTP/1.1\r\nHost: localhost\r\nOrigin: "
                         "http://evil.example\r\nConnection: close\r\n\r\n",
                         s.token),
                     403);
    ck_assert_int_eq(
        ask(s.port, "PUT /%s/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", s.token),
        405);
    ck_assert_int_eq(end(&s, SIGINT), 0);
}
END_TEST

/* What lies in a file does not come back, not even in a message. */
START_TEST(files_stay_closed)
{
    static const char *const keys[] = {
        "profile=%s",           "samples=%s",
        "samples={csv: %s}",    "model=%s",
        "model.llm.hf=%s",      "plan=%s",
        "run.data=%s",          "cluster=%s",
        "cluster={preset: %s}", "run={init_from: %s}",
    };
    struct server s = start("mllm-nano-local", NULL);
    char secret[] = "/tmp/serve-secret-XXXXXX", setting[512], path[2048], coded[1536];
    int fd = mkstemp(secret);

    ck_assert_int_gt(write(fd, "open sesame: [\n", 15), 0);
    close(fd);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(setting, sizeof(setting), keys[i], secret);
#pragma GCC diagnostic pop
        encode(setting, coded);
        snprintf(path, sizeof(path), "simulate.json?set=%s", coded);
        ck_assert_msg(get(&s, path) == 403, "%s: %.200s", setting, reply);
        ck_assert_ptr_null(strstr(reply, "sesame"));
        snprintf(path, sizeof(path), "set=%s&effort=quick", coded);
        ck_assert_int_eq(post(&s, path), 403);
    }
    unlink(secret);
    ck_assert_int_eq(end(&s, SIGTERM), 0);
}
END_TEST

START_TEST(bad_questions_are_told_so)
{
    struct server s = start("mllm-nano-local", NULL);
    static char big[80 << 10];

    ck_assert_int_eq(get(&s, "simulate.json?set=train.global_batch%3D-1"), 400);
    ck_assert_ptr_nonnull(strstr(reply, "global_batch"));
    ck_assert_int_eq(get(&s, "simulate.json?set=train.global_bitch%3D1"), 400);
    ck_assert_int_eq(get(&s, "simulate.json?get=1"), 400);
    ck_assert_int_eq(get(&s,
                         "plan.json?set=cluster.memory%3D2GB&set=cluster%3Da800&set=profile%3Da800"
                         "&set=model%3Dmllm-72b&set=cluster.nodes%3D1&set=samples%3Dlaion-8k"
                         "&set=train.seq_len%3D8192"),
                     422);
    ck_assert_ptr_nonnull(strstr(reply, "no plan fits"));
    ck_assert_int_eq(post(&s, "set=train.global_batch%3D-1&effort=quick"), 200);
    ck_assert_ptr_nonnull(strstr(reply, "\"feasible\":false"));
    memset(big, 'a', sizeof(big) - 1);
    ck_assert_int_eq(post(&s, big), 413);
    ck_assert_int_eq(post(&s, "set=%"), 400);
    ck_assert_int_eq(get(&s, "plan.json"), 200);
    ck_assert_ptr_nonnull(strstr(reply, "\"modules\""));
    ck_assert_int_eq(get(&s, "report.html"), 200);
    ck_assert_ptr_nonnull(strstr(reply, "Content-Type: text/html"));
    ck_assert_ptr_nonnull(strstr(reply, "</html>"));
    ck_assert_int_eq(get(&s, "report.html?set=train.global_batch%3D-1"), 400);
    ck_assert_ptr_nonnull(strstr(reply, "Content-Type: application/json"));
    ck_assert_int_eq(end(&s, SIGHUP), 0);
}
END_TEST

START_TEST(noise_does_not_end_it)
{
    struct server s = start("mllm-nano-local", NULL);
    static char noise[4096];
    uint64_t x = dt_test_seed();
    int idle[20];

    printf("seed %" PRIu64 "\n", x);
    for (int i = 0; i < 20; i++) { /* visitors who say little and stay */
        idle[i] = visit(s.port);
        ck_assert_int_ge(idle[i], 0);
        ck_assert_int_gt(send(idle[i], "GET /", 5, 0), 0);
    }
    for (int i = 0; i < 100; i++) {
        size_t n = 1 + (size_t)(x >> 40) % sizeof(noise);
        int fd = visit(s.port);

        for (size_t k = 0; k < n; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            noise[k] = (char)(x >> 56);
        }
        ck_assert_int_ge(fd, 0);
        if (i % 3 == 0) /* an admitted beginning */
            dprintf(fd,
                    "POST /%s/answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n",
                    s.token);
        if (send(fd, noise, n, MSG_NOSIGNAL) < 0)
            ck_assert_int_eq(errno, EPIPE);
        close(fd);
    }
    ck_assert_int_eq(get(&s, "simulate.json"), 200);
    for (int i = 0; i < 20; i++)
        close(idle[i]);
    ck_assert_int_eq(end(&s, SIGTERM), 0);
}
END_TEST

/* Nanoseconds that the nth child of the server has run, -1 if that cannot be known here. */
static long long ran_ns(const struct server *s, int nth)
{
    char path[64];
    int child[8], n = 0;
    long long ns = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)s->pid, (int)s->pid);
    f = fopen(path, "r");
    while (f && n < 8 && fscanf(f, "%d", &child[n]) == 1)
        n++;
    if (f)
        fclose(f);
    snprintf(path, sizeof(path), "/proc/%d/schedstat", nth < n ? child[nth] : 0);
    f = nth < n ? fopen(path, "r") : NULL;
    if (f && fscanf(f, "%lld", &ns) != 1)
        ns = -1;
    if (f)
        fclose(f);
    return ns;
}

/* Before the address is told, one worker has answered a question, the other has not. */
START_TEST(the_first_quick_answer_finds_all_ready)
{
    struct server s = start("mllm-72b-96", NULL);
    long long quick = ran_ns(&s, 0), rest = ran_ns(&s, 1);

    if (quick < 0 || rest < 0)
        puts("how long processes have run is not told here: not tested");
    else
        ck_assert_msg(quick > 5 * rest + 5000000, "%lld and %lld ns", quick, rest);
    ck_assert_int_eq(post(&s, "effort=quick"), 200);
    ck_assert_int_eq(end(&s, SIGTERM), 0);
}
END_TEST

/* An answer that takes long is dropped when its column asks again, and quick ones do not wait for it. */
START_TEST(outdated_questions_are_dropped)
{
    struct server s = start("mllm-72b-96", NULL);
    const char *slow = "set=simulate.iterations%3D20000&effort=normal&client=1&side=a&turn=1";
    int fd = visit(s.port);

    dprintf(fd,
            "POST /%s/answer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            s.token, strlen(slow), slow);
    usleep(300000);
    ck_assert_int_eq(post(&s, "effort=quick&client=1&side=b&turn=1"), 200);
    ck_assert_int_eq(post(&s, "effort=quick&client=1&side=a&turn=2"), 200);
    ck_assert_int_eq(hear(fd), 409);
    ck_assert_int_eq(post(&s, "effort=normal&client=1&side=a&turn=2"), 200); /* by a new worker */
    ck_assert_int_eq(post(&s, "effort=normal&client=1&side=a&turn=1"),
                     200); /* nothing newer waits */
    fd = visit(s.port);
    dprintf(fd,
            "POST /%s/answer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            "Content-Length: %zu\r\n\r\n%s",
            s.token, strlen(slow), slow);
    usleep(300000);
    ck_assert_int_eq(end(&s, SIGTERM), 0); /* in the middle of it */
    ck_assert_int_eq(hear(fd), 503);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("serve over HTTP");
    TCase *c = dt_test_case(s, "load", 900);

    tcase_add_test(c, a_thousand_requests_are_answered_rightly_and_leave_nothing);
    c = dt_test_case(s, "refusals", 300);
    tcase_add_test(c, strangers_are_refused);
    tcase_add_test(c, files_stay_closed);
    tcase_add_test(c, bad_questions_are_told_so);
    tcase_add_test(c, noise_does_not_end_it);
    tcase_add_test(c, the_first_quick_answer_finds_all_ready);
    tcase_add_test(c, outdated_questions_are_dropped);
    return dt_test_run(s);
}
#endif
