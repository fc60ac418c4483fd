/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Runs a fuzz target without libFuzzer, as part of "make check": every seed of the corpus whole,
 * cut off at every length, and with bytes changed at random (seeded; DT_TEST_SEED and
 * DT_FUZZ_ROUNDS change it).  Each input lies in memory of exactly its size, so that a sanitizer
 * sees an overrun. Prints "N passed, N failed"; a failure of the target is an abort, and the input
 * is then kept. */
#include "base/rng.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SEED_MAX ((size_t)1 << 20)
#define CUTS_MAX 1024 /* longer seeds are cut at this many lengths, evenly spread */
#define ROUNDS 2000   /* mutations of each seed */
#define FILES_MAX 256

static const uint8_t *current;
static size_t current_size;
static char keep_path[128];

static void on_crash(int sig)
{
    FILE *f = fopen(keep_path, "wb");

    if (f) {
        fwrite(current, 1, current_size, f);
        fclose(f);
    }
    fprintf(stderr, "failed; the input is kept in %s\n", keep_path);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run_one(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);

    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    current = copy;
    current_size = size;
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* One to eight edits: flip a bit, set a byte to something telling, drop or double a piece. */
static size_t mutate(struct dt_rng *r, const uint8_t *seed, size_t size, uint8_t *out)
{
    static const uint8_t telling[] = "\0\n\t :-,[]{}\"'\\#&*!|>%@`0919.eE+~\xff\x80";
    size_t edits = 1 + dt_rng_below(r, 8);

    memcpy(out, seed, size);
    while (edits-- && size > 0) {
        size_t at = dt_rng_below(r, size), len = 1 + dt_rng_below(r, size - at);

        switch (dt_rng_below(r, 5)) {
        case 0:
            out[at] ^= (uint8_t)(1u << dt_rng_below(r, 8));
            break;
        case 1:
            out[at] = (uint8_t)dt_rng_u32(r);
            break;
        case 2:
            out[at] = telling[dt_rng_below(r, sizeof(telling) - 1)];
            break;
        case 3:
            memmove(out + at, out + at + len, size - at - len);
            size -= len;
            break;
        default:
            len = len > 64 ? 64 : len;
            if (size + len <= 2 * SEED_MAX) {
                memmove(out + at + len, out + at, size - at);
                size += len;
            }
        }
    }
    return size;
}

static size_t run_seed(const char *path, uint64_t seed, uint64_t stream, long rounds)
{
    static uint8_t data[SEED_MAX], changed[2 * SEED_MAX];
    FILE *f = fopen(path, "rb");
    struct dt_rng r;
    size_t size, step, runs = 0;

    if (!f) {
        perror(path);
        exit(1);
    }
    size = fread(data, 1, sizeof(data), f);
    fclose(f);
    step = size / CUTS_MAX + 1;
    for (size_t n = 0; n < size; n += step, runs++)
        run_one(data, n);
    run_one(data, size);
    runs++;
    dt_rng_init(&r, seed, stream);
    for (long i = 0; i < rounds; i++, runs++)
        run_one(changed, mutate(&r, data, size, changed));
    return runs;
}

static int is_seed(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/'), *srcdir = getenv("srcdir");
    const char *seed_text = getenv("DT_TEST_SEED"), *rounds_text = getenv("DT_FUZZ_ROUNDS");
    uint64_t seed = seed_text && *seed_text ? strtoull(seed_text, NULL, 10) : 20251120;
    long rounds = rounds_text && *rounds_text ? strtol(rounds_text, NULL, 10) : ROUNDS;
    struct dirent **files;
    char dir[PATH_MAX], path[PATH_MAX + 512];
    size_t runs = 0;
    int n;

    name = name ? name + 1 : argv[0];
    name = strncmp(name, "fuzz_", 5) == 0 ? name + 5 : name;
    snprintf(keep_path, sizeof(keep_path), "crash-%.64s", name);
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    if (argc > 1) { /* repeat kept inputs */
        for (int i = 1; i < argc; i++)
            run_seed(argv[i], seed, (uint64_t)i, 0);
        printf("%d passed, 0 failed\n", argc - 1);
        return 0;
    }
    snprintf(dir, sizeof(dir), "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".", name);
    n = scandir(dir, &files, is_seed, alphasort);
    if (n <= 0) {
        fprintf(stderr, "no seeds in %s\n", dir);
        return 1;
    }
    printf("seed %llu, %ld rounds per file\n", (unsigned long long)seed, rounds);
    for (int i = 0; i < n && i < FILES_MAX; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]->d_name);
        runs += run_seed(path, seed, (uint64_t)i, rounds);
    }
    for (int i = 0; i < n; i++)
        free(files[i]);
    free(files);
    printf("%zu inputs of %d seeds\n%d passed, 0 failed\n", runs, n, n);
    return 0;
}
