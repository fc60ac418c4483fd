/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/checkpoint/checkpoint_host.h"

#include "base/clock.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

static size_t read_text(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, size - 1) : 0;

    if (fd >= 0)
        close(fd);
    n = n > 0 ? n : 0;
    buf[n] = '\0';
    return (size_t)n;
}

/* State and start of a process by /proc/PID/stat: fields 3 and 22, counted behind the name, which
 * may hold anything. */
static bool look(long pid, char *state, uint64_t *start)
{
    char path[64], text[1024], *at;

    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    if (read_text(path, text, sizeof(text)) == 0 || !(at = strrchr(text, ')')))
        return false;
    if (sscanf(at + 1, " %c", state) != 1)
        return false;
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return false;
    *start = strtoull(at + 1, NULL, 10);
    return true;
}

void dt_ckpt_this_process(struct dt_ckpt_process *out)
{
    char boot[40], space[40] = "", state;
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);

    memset(out, 0, sizeof(*out));
    if (gethostname(out->host, sizeof(out->host)) != 0 || !out->host[0])
        snprintf(out->host, sizeof(out->host), "unknown");
    out->host[sizeof(out->host) - 1] = '\0';
    space[n > 0 ? n : 0] = '\0';
    read_text("/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    boot[strcspn(boot, "\n")] = '\0';
    snprintf(out->machine, sizeof(out->machine), "%s/%s", boot[0] ? boot : "-",
             space[0] ? space : "-");
    out->pid = (long)getpid();
    if (!look(out->pid, &state, &out->start))
        out->start = 0;
}

enum dt_ckpt_life dt_ckpt_lives(const struct dt_ckpt_process *p)
{
    struct dt_ckpt_process here;
    uint64_t start = 0;
    char state = 0;

    dt_ckpt_this_process(&here);
    if (strcmp(p->machine, here.machine) != 0 || p->machine[0] == '-' || p->pid <= 0)
        return DT_CKPT_ELSEWHERE;
    if (!look(p->pid, &state, &start)) /* hidden from us, or gone */
        return kill((pid_t)p->pid, 0) == 0 || errno != ESRCH ? DT_CKPT_LIVES : DT_CKPT_DEAD;
    if (state == 'Z' || state == 'X' || (p->start && start != p->start))
        return DT_CKPT_DEAD;
    return DT_CKPT_LIVES;
}

void dt_ckpt_process_text(const struct dt_ckpt_process *p, char *buf, size_t size)
{
    snprintf(buf, size, "%s %s %ld %" PRIu64, p->host, p->machine, p->pid, p->start);
}

bool dt_ckpt_process_parse(const char *text, struct dt_ckpt_process *out)
{
    struct dt_ckpt_process p = {.pid = 0};

    if (sscanf(text, "%63s %79s %ld %" SCNu64, p.host, p.machine, &p.pid, &p.start) != 4 ||
        p.pid <= 0)
        return false;
    *out = p;
    return true;
}

uint64_t dt_ckpt_random(void)
{
    uint64_t v;

    if (getrandom(&v, sizeof(v), 0) == (ssize_t)sizeof(v))
        return v;
    /* a kernel without it: unlikely to be anybody else's, and names are taken with O_EXCL anyway */
    return dt_clock_ns() * DT_HASH_GOLDEN ^ (uint64_t)getpid() << 40 ^ (uint64_t)dt_clock_wall_s();
}
