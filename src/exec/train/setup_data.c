/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the data of two ranks is compared by. */
#include "exec/train/setup.h"

#include "base/file.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of up to 64 shards 64 KiB each, evenly spread: what tells two sets of data apart, whatever their
 * size, within a few MiB of reading. */
enum { LOOKED_INTO = 64, BLOCKS = 16, BLOCK = 4096 };

static size_t look_into(const char *path, int64_t bytes, char *to)
{
    int fd = -1;
    size_t n = 0;

    if (dt_file_open(path, false, NULL, &fd) != DT_OK)
        return 0;

    for (int64_t k = 0; k < BLOCKS; k++) {
        int64_t at = bytes <= BLOCKS * BLOCK ? k * BLOCK : (bytes - BLOCK) / (BLOCKS - 1) * k;
        ssize_t got = pread(fd, to + n, BLOCK, (off_t)at);

        n += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    return n;
}

enum dt_status dt_setup_data_digest(const struct dt_setup *s, struct dt_error *err, char *buf,
                                    size_t size)
{
    char digest[40] = "", inside[40] = "", line[256];
    char *blocks = dt_malloc(BLOCKS * BLOCK);

    if (!blocks)
        return dt_error_nomem(err, "what data is compared by");
    for (int i = 0; i < s->n_shards; i++) {
        const char *path = s->shards[i], *slash = strrchr(path, '/');
        bool look =
            s->n_shards <= LOOKED_INTO || (int64_t)i * LOOKED_INTO % s->n_shards < LOOKED_INTO;
        struct stat file;
        int64_t bytes = stat(path, &file) == 0 ? (int64_t)file.st_size : -1;

        if (look)
            dt_ckpt_digest(blocks, look_into(path, bytes, blocks), inside, sizeof(inside));
        snprintf(line, sizeof(line), "%s %.60s %lld %s", digest, slash ? slash + 1 : path,
                 (long long)bytes, look ? inside : "");
        dt_ckpt_digest(line, strlen(line), digest, sizeof(digest));
    }
    dt_free(blocks);
    snprintf(buf, size, "%s", digest);
    return DT_OK;
}
