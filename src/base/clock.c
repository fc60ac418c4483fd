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

uint64_t dt_clock_thread_ns(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
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

static void utc(time_t t, char *buf, size_t size)
{
    struct tm tm;

    if (!gmtime_r(&t, &tm) || strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        buf[0] = '\0';
}

void dt_clock_utc(char *buf, size_t size)
{
    utc(time(NULL), buf, size);
}

void dt_clock_utc_ago(double s, char *buf, size_t size)
{
    double then = (double)time(NULL) - s;

    buf[0] = '\0';
    if (then > -62135596800.0 && then < 253402300800.0) /* the years 1 to 9999 */
        utc((time_t)then, buf, size);
}

double dt_clock_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
