/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Gives commands files that are almost valid, and judges how they take them:
 *
 *   mutate READERS N      in the folder that holds what READERS names
 *
 * READERS has a line per reader: NAME SEED INTO FLAGS COMMAND ARGUMENT..., separated by blanks.  A
 * mutant of the file SEED is written to INTO (which may be the SEED itself: it is put back) and the
 * command is run.  FLAGS: j = it prints JSON, l = a refusal names the line, 1 = exit status 1 is
 * right too (of a database, which cannot tell damage from failure), d = a refusal may name another
 * file of the folder instead, n = or the job that no longer fits it, r = the command does without the
 * file, and makes it again as SEED is, - = nothing.  # begins a comment.
 *
 * However the file is damaged: the command ends by itself, soon, with a documented status; says
 * what is wrong in one message that names the file, in plain text; prints valid JSON or nothing;
 * leaves no file behind, and its input as it was.  DT_TEST_SEED chooses other mutants, DT_MUTANT=K
 * repeats the K-th alone; those that fail are kept in the folder "kept". */
#define _GNU_SOURCE /* nftw, memmem */
#include "mutate.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    READERS = 64,
    ARGS = 24,
    LINE = 2048,
    CPU_LIMIT_S = 30,
    WALL_LIMIT_S = 300, /* the machine may be busy */
    MEMORY_LIMIT_BYTES_LOG2 = 32,
    FILE_LIMIT_BYTES = 256 << 20,
    SHOWN = 20,
};

struct reader {
    char line[LINE];
    const char *name, *seed, *into, *flags;
    char *arg[ARGS + 1];
    struct bytes file;
    long runs, refused, with_line;
};
struct names { /* of all files in the folder */
    char **at;
    size_t n, cap;
};

static struct reader readers[READERS];
static int n_readers;
static long failures;
static struct names listing;

static void die(const char *what)
{
    perror(what);
    exit(99);
}

/* ---- the folder ---- */

static int note_name(const char *path, const struct stat *sb, int flag, struct FTW *ftw)
{
    (void)sb;
    (void)flag;
    (void)ftw;
    if (strncmp(path, "./kept", 6) == 0 || strncmp(path, "./.out", 6) == 0)
        return 0;
    if (listing.n == listing.cap) {
        listing.cap = listing.cap ? 2 * listing.cap : 256;
        listing.at = realloc(listing.at, listing.cap * sizeof(*listing.at));
        if (!listing.at)
            die("realloc");
    }
    listing.at[listing.n] = strdup(path);
    if (!listing.at[listing.n++])
        die("strdup");
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct names list_folder(void)
{
    struct names out;

    listing = (struct names){0};
    if (nftw(".", note_name, 16, FTW_PHYS) != 0)
        die("nftw");
    out = listing;
    qsort(out.at, out.n, sizeof(*out.at), by_text);
    return out;
}

static void names_free(struct names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->at[i]);
    free(l->at);
}

/* Removes what is new, deepest first; the first new name, "" = none. */
static void remove_new(const struct names *before, char *first, size_t size)
{
    struct names now = list_folder();

    first[0] = '\0';
    for (size_t i = now.n; i-- > 0;) {
        const char *key = now.at[i];

        if (bsearch(&key, before->at, before->n, sizeof(*before->at), by_text))
            continue;
        snprintf(first, size, "%s", key);
        if (remove(key) != 0)
            die(key);
    }
    names_free(&now);
}

/* ---- one run ---- */

struct ended {
    int status; /* of waitpid */
    struct bytes out, err;
};

static void limit(int what, unsigned long long n)
{
    const struct rlimit r = {(rlim_t)n, (rlim_t)n};

    setrlimit(what, &r);
}

static void run_child(char *const *arg)
{
    int in = open("/dev/null", O_RDONLY), out, err;

    out = open(".out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    err = open(".outerr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(99);
    limit(RLIMIT_CPU, CPU_LIMIT_S);
    limit(RLIMIT_FSIZE, FILE_LIMIT_BYTES);
    limit(RLIMIT_CORE, 0);
#ifndef __SANITIZE_ADDRESS__ /* which maps terabytes */
    limit(RLIMIT_AS, 1ull << MEMORY_LIMIT_BYTES_LOG2);
#endif
    alarm(WALL_LIMIT_S); /* outlives exec */
    execvp(arg[0], arg);
    _exit(99);
}

static void run(char *const *arg, struct ended *e)
{
    pid_t pid = fork();

    if (pid < 0)
        die("fork");
    if (pid == 0)
        run_child(arg);
    while (waitpid(pid, &e->status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    if (!bytes_read(".out", &e->out) || !bytes_read(".outerr", &e->err))
        die("output");
}

/* ---- judging it ---- */

static size_t count_lines(const struct bytes *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n; i++)
        n += b->at[i] == '\n';
    return n;
}

static bool holds(const struct bytes *b, const char *part)
{
    return b->n && memmem(b->at, b->n, part, strlen(part)) != NULL;
}

/* "NAME:12" */
static bool names_line(const struct bytes *b, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i + n + 1 < b->n; i++)
        if (memcmp(b->at + i, name, n) == 0 && b->at[i + n] == ':' && b->at[i + n + 1] >= '0' &&
            b->at[i + n + 1] <= '9')
            return true;
    return false;
}

/* "saved/" of INTO saved/manifest.json */
static bool names_folder(const struct bytes *b, const char *into)
{
    char folder[512];

    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(into, '/') - into) + 1, into);
    return holds(b, folder);
}

/* What is wrong with how it ended; NULL = nothing. */
static const char *judge(struct reader *rd, const struct ended *e, const char *left)
{
    const char *slash = strrchr(rd->into, '/'), *base = slash ? slash + 1 : rd->into;
    int code = WIFEXITED(e->status) ? WEXITSTATUS(e->status) : -1;
    static char text[256];

    if (WIFSIGNALED(e->status)) {
        snprintf(text, sizeof(text), "killed by signal %d", WTERMSIG(e->status));
        return text;
    }
    if (code < 0 || code > 6 || code == 5) {
        snprintf(text, sizeof(text), "exit status %d", code);
        return text;
    }
    if (code == 1 && !strchr(rd->flags, '1'))
        return "exit status 1: bad input is 2";
    if (!is_plain_text(e->err.at, e->err.n))
        return "control characters or no UTF-8 in its message";
    if (strchr(rd->flags, 'j') && !(code && e->out.n == 0) && !is_json(e->out.at, e->out.n))
        return "no JSON on stdout";
    if (code == 0)
        return NULL;
    if (strchr(rd->flags, 'r'))
        return "the command does not do without it";
    rd->refused++;
    if (left[0]) {
        snprintf(text, sizeof(text), "left behind: %.200s", left);
        return text;
    }
    if (code == 3)
        return holds(&e->err, "disttrain: ") ? NULL : "no message";
    if (e->err.n < 11 || memcmp(e->err.at, "disttrain: ", 11) != 0 || count_lines(&e->err) != 1)
        return "not one message";
    if (code == 2 && !holds(&e->err, base) && !strchr(rd->flags, 'n') &&
        !(strchr(rd->flags, 'd') && slash && names_folder(&e->err, rd->into)))
        return "the message does not name the file";
    rd->with_line += names_line(&e->err, base);
    if (code == 2 && strchr(rd->flags, 'l') && !names_line(&e->err, base))
        return "the message does not name the line";
    return NULL;
}

static void report(const struct reader *rd, long k, const char *what, const char *wrong,
                   const struct ended *e)
{
    char kept[512];
    const char *slash = strrchr(rd->into, '/');

    failures++;
    if (failures > SHOWN)
        return;
    snprintf(kept, sizeof(kept), "kept/%ld-%s-%s", k, rd->name, slash ? slash + 1 : rd->into);
    mkdir("kept", 0700);
    printf("FAIL: mutant %ld of %s (%s): %s\n    kept as %s; command:", k, rd->name, what, wrong,
           kept);
    for (int i = 0; rd->arg[i]; i++)
        printf(" %s", rd->arg[i]);
    printf("\n    status %d, stderr: %.*s\n", e->status, (int)(e->err.n < 600 ? e->err.n : 600),
           e->err.n ? (const char *)e->err.at : "");
    printf("    stdout: %.*s\n", (int)(e->out.n < 200 ? e->out.n : 200),
           e->out.n ? (const char *)e->out.at : "");
    fflush(stdout);
}

static void try_one(uint64_t seed, long k, struct ended *e)
{
    struct bytes before = {0}, mutant = {0}, after = {0};
    const char *what = "nothing", *wrong;
    struct names names;
    struct reader *rd;
    const struct bytes *then = &mutant; /* what the file is afterwards */
    struct dt_rng r;
    char left[512];
    bool was;

    dt_rng_init(&r, seed, (uint64_t)k);
    rd = &readers[k % n_readers];
    bytes_replace(&mutant, 0, 0, rd->file.at, rd->file.n);
    mutate(&r, &mutant, &readers[dt_rng_below(&r, (uint64_t)n_readers)].file, &what);
    was = bytes_read(rd->into, &before);
    if (!bytes_write(rd->into, &mutant))
        die(rd->into);
    names = list_folder();
    run(rd->arg, e);
    rd->runs++;
    remove_new(&names, left, sizeof(left));
    wrong = judge(rd, e, left);
    if (strchr(rd->flags, 'r'))
        then = &rd->file;
    if (!bytes_read(rd->into, &after) || after.n != then->n ||
        (after.n && memcmp(after.at, then->at, after.n) != 0))
        wrong = wrong ? wrong : "its input is not as it was, or as it should be made again";
    if (wrong) {
        char kept[512];
        const char *slash = strrchr(rd->into, '/');

        report(rd, k, what, wrong, e);
        snprintf(kept, sizeof(kept), "kept/%ld-%s-%s", k, rd->name, slash ? slash + 1 : rd->into);
        if (failures <= SHOWN && !bytes_write(kept, &mutant))
            die(kept);
    }
    if (was ? !bytes_write(rd->into, &before) : remove(rd->into) != 0)
        die(rd->into);
    names_free(&names);
    bytes_free(&before);
    bytes_free(&mutant);
    bytes_free(&after);
}

/* ---- the readers ---- */

static void read_reader(struct reader *rd)
{
    char *save = NULL, *word[4 + ARGS], *w;
    int n = 0;

    for (w = strtok_r(rd->line, " \t\n", &save); w && n < 4 + ARGS;
         w = strtok_r(NULL, " \t\n", &save))
        word[n++] = w;
    if (w || n < 5) {
        fprintf(stderr, "mutate: NAME SEED INTO FLAGS COMMAND...: %s\n", rd->line);
        exit(99);
    }
    rd->name = word[0];
    rd->seed = word[1];
    rd->into = word[2];
    rd->flags = word[3];
    memcpy(rd->arg, word + 4, (size_t)(n - 4) * sizeof(*word));
    if (!bytes_read(rd->seed, &rd->file))
        die(rd->seed);
}

static void read_readers(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[LINE];

    if (!f)
        die(path);
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || line[strspn(line, " \t\n")] == '\0')
            continue;
        if (n_readers == READERS)
            exit(99);
        memcpy(readers[n_readers].line, line, sizeof(line));
        read_reader(&readers[n_readers++]);
    }
    fclose(f);
}

/* The seeds themselves are taken: otherwise a command that refuses everything passes. */
static void check_seeds(struct ended *e)
{
    for (int i = 0; i < n_readers; i++) {
        struct reader *rd = &readers[i];
        struct names names;
        char left[512];
        bool same = strcmp(rd->seed, rd->into) == 0;

        if (!same && !bytes_write(rd->into, &rd->file))
            die(rd->into);
        names = list_folder();
        run(rd->arg, e);
        remove_new(&names, left, sizeof(left));
        names_free(&names);
        if (!WIFEXITED(e->status) || WEXITSTATUS(e->status) != 0)
            report(rd, -1, "the seed itself", "refused", e);
        if (!same)
            remove(rd->into);
    }
}

/* Of the judges: without arguments, as a test of its own. */
static int self_test(void)
{
    static const struct {
        const char *text;
        bool json, plain;
    } cases[] = {
        {"{\"a\": [1, -2.5e+3, \"\\u00e9\\n\"], \"b\": null}\n", true, true},
        {"[]", true, true},
        {"", false, true},
        {"{\"a\": nan}", false, true},
        {"{\"a\": 01}", false, true},
        {"{a: 1}", false, true},
        {"[1,]", false, true},
        {"[1] [2]", false, true},
        {"\"\xff\"", false, false},
        {"\"\xc0\xaf\"", false, false},
        {"\"\xed\xa0\x80\"", false, false},
        {"\"gr\xc3\xb6\xc3\x9f\x65\"", true, true},
        {"\"a\x1b[2J\"", false, false},
        {"\"\xc2\x9b\"", true, false},
    };
    struct bytes a = {0}, b = {0}, none = {0};
    int n = (int)(sizeof(cases) / sizeof(cases[0])), failed = 0;
    const char *what;

    for (int i = 0; i < n; i++) {
        const unsigned char *s = (const unsigned char *)cases[i].text;
        size_t len = strlen(cases[i].text);

        if (is_json(s, len) == cases[i].json && is_plain_text(s, len) == cases[i].plain)
            continue;
        failed++;
        printf("FAIL: case %d\n", i);
    }
    for (uint64_t k = 0; k < 2000; k++) { /* the same seed gives the same mutant */
        struct dt_rng r;

        a.n = b.n = 0;
        for (int i = 0; i < 2; i++) {
            bytes_replace(i ? &b : &a, 0, 0, cases[0].text, k % 3 ? strlen(cases[0].text) : k % 2);
            dt_rng_init(&r, 1, k);
            mutate(&r, i ? &b : &a, &none, &what);
        }
        if (a.n != b.n || (a.n && memcmp(a.at, b.at, a.n) != 0))
            failed++;
    }
    bytes_free(&a);
    bytes_free(&b);
    printf("%d passed, %d failed\n", n + 1 - failed, failed);
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *seed_text = getenv("DT_TEST_SEED"), *only = getenv("DT_MUTANT");
    uint64_t seed = seed_text && *seed_text ? strtoull(seed_text, NULL, 10) : 20251120;
    struct ended e = {0};
    long n, runs = 0;

    if (argc == 1)
        return self_test();
    if (argc != 3)
        return 99;
    read_readers(argv[1]);
    n = strtol(argv[2], NULL, 10);
    printf("seed %llu, %ld mutants of %d readers\n", (unsigned long long)seed, n, n_readers);
    fflush(stdout);
    check_seeds(&e);
    if (only && *only)
        try_one(seed, strtol(only, NULL, 10), &e);
    else
        for (long k = 0; k < n; k++)
            try_one(seed, k, &e);
    for (int i = 0; i < n_readers; i++) {
        const struct reader *rd = &readers[i];

        runs += rd->runs;
        printf("%-12s %5ld mutants, %5ld refused, %5ld of them with the line\n", rd->name, rd->runs,
               rd->refused, rd->with_line);
    }
    printf("%ld passed, %ld failed\n", runs - (failures < runs ? failures : runs), failures);
    return failures || (runs == 0) ? 1 : 0;
}
