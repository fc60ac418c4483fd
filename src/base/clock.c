/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/clock.h"

uint64_t dt_clock_ns(void)
{
    struct timespec t;

    /* cannot fail: POSIX requires the clock, and t is writable */
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

uint64_t dt_clock_process_ns(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static struct timespec from_now(clockid_t clock, int64_t ns)
{
    struct timespec t;

    clock_gettime(clock, &t);
    ns += t.tv_nsec;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

struct timespec dt_clock_in(int64_t ns)
{
    return from_now(CLOCK_MONOTONIC, ns);
}

struct timespec dt_clock_wall_in(int64_t ns)
{
    return from_now(CLOCK_REALTIME, ns);
}

void dt_clock_utc(char *buf, size_t size)
{
    time_t now = time(NULL);
    struct tm tm;

    if (!gmtime_r(&now, &tm) || strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        buf[0] = '\0';
}

double dt_clock_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
