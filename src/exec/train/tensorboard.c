/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * TensorBoard event files.  The few protocol-buffer fields are written by hand. */
#include "exec/train/tensorboard.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/protobuf.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* TFRecord's mask (tensorflow/core/lib/hash/crc32c.h): rotate right by 15, add a constant, so that
 * the checksum of data that holds checksums is not a weak one. */
#define CRC_MASK_ADD 0xA282EAD8u

enum { TAG_BYTES_MAX = 1024 };

struct dt_tensorboard {
    FILE *f;
    char path[PATH_MAX];
    struct dt_pb value, summary, event; /* kept from one event to the next */
};

/* ---- CRC-32C ---- */

uint32_t dt_tensorboard_crc32c_masked(const void *bytes, size_t len)
{
    uint32_t crc = dt_hash_crc32c(0, bytes, len);

    return (crc >> 15 | crc << 17) + CRC_MASK_ADD;
}

/* ---- events ---- */

/* Event.wall_time and Event.step */
static void begin_event(struct dt_pb *b, double wall_s, int64_t step)
{
    b->n = 0;
    dt_pb_double(b, 1, wall_s);
    if (step != 0) /* zero is the default, which proto3 leaves out */
        dt_pb_int(b, 2, (uint64_t)step);
}

static void put_scalar(struct dt_tensorboard *t, const char *tag, float v)
{
    t->value.n = 0;
    dt_pb_text(&t->value, 1, tag);
    dt_pb_float(&t->value, 2, v);
    dt_pb_message(&t->summary, 1, &t->value);
}

/* ---- records ---- */

static enum dt_status write_record(struct dt_tensorboard *t, struct dt_error *err)
{
    uint8_t head[12], tail[4];
    uint32_t crc;

    if (t->value.failed || t->summary.failed || t->event.failed) {
        t->value.failed = t->summary.failed = t->event.failed = false;
        return dt_error_nomem(err, "a TensorBoard event");
    }
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)((uint64_t)t->event.n >> (8 * i));
    crc = dt_tensorboard_crc32c_masked(head, 8);
    for (int i = 0; i < 4; i++)
        head[8 + i] = (uint8_t)(crc >> (8 * i));
    crc = dt_tensorboard_crc32c_masked(t->event.p, t->event.n);
    for (int i = 0; i < 4; i++)
        tail[i] = (uint8_t)(crc >> (8 * i));
    if (fwrite(head, 1, sizeof(head), t->f) != sizeof(head) ||
        fwrite(t->event.p, 1, t->event.n, t->f) != t->event.n ||
        fwrite(tail, 1, sizeof(tail), t->f) != sizeof(tail))
        return dt_error_at(err, DT_ERR_IO, t->path, 0, 0, "cannot write: %s", strerror(errno));
    return DT_OK;
}

/* events.out.tfevents.SECONDS.HOST.PID, and a number where that is taken: TensorBoard reads the
 * files of a folder in the order of their names and wants "tfevents" in them. */
static enum dt_status create(struct dt_tensorboard *t, const char *dir, double wall_s,
                             struct dt_error *err)
{
    char host[64] = "localhost";

    if (gethostname(host, sizeof(host)) != 0)
        snprintf(host, sizeof(host), "localhost");
    host[sizeof(host) - 1] = '\0';
    for (int i = 0; i < 1000; i++) {
        if (snprintf(t->path, sizeof(t->path), "%s/events.out.tfevents.%010" PRId64 ".%s.%ld.%d",
                     dir, (int64_t)wall_s, host, (long)getpid(), i) >= (int)sizeof(t->path))
            return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "file name too long");
        t->f = fopen(t->path, "wbx");
        if (t->f || errno != EEXIST)
            break;
    }
    if (!t->f)
        return dt_error_at(err, DT_ERR_IO, t->path, 0, 0, "cannot create: %s", strerror(errno));
    return DT_OK;
}

static void destroy(struct dt_tensorboard *t)
{
    dt_free(t->value.p);
    dt_free(t->summary.p);
    dt_free(t->event.p);
    dt_free(t);
}

enum dt_status dt_tensorboard_open(const char *dir, double wall_s, struct dt_error *err,
                                   struct dt_tensorboard **out)
{
    static const char version[] = "brain.Event:2";
    struct dt_tensorboard *t;
    enum dt_status st;

    if (!(wall_s >= 0 && wall_s < 1e11))
        return dt_error_set(err, DT_ERR_INTERNAL, "time out of range");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot create: %s", strerror(errno));
    t = dt_calloc(1, sizeof(*t));
    if (!t)
        return dt_error_nomem(err, "a TensorBoard file");
    st = create(t, dir, wall_s, err);
    if (st == DT_OK) {
        begin_event(&t->event, wall_s, 0);
        dt_pb_text(&t->event, 3, version);
        st = write_record(t, err);
    }
    if (st == DT_OK)
        st = dt_tensorboard_flush(t, err);
    if (st != DT_OK) {
        if (t->f) {
            fclose(t->f);
            unlink(t->path);
        }
        destroy(t);
        return st;
    }
    *out = t;
    return DT_OK;
}

enum dt_status dt_tensorboard_scalars(struct dt_tensorboard *t, double wall_s, int64_t step,
                                      const char *const *tags, const float *values, int n,
                                      struct dt_error *err)
{
    for (int i = 0; i < n; i++)
        if (strlen(tags[i]) > TAG_BYTES_MAX)
            return dt_error_at(err, DT_ERR_INPUT, t->path, 0, 0, "a tag is longer than %d bytes",
                               TAG_BYTES_MAX);
    t->summary.n = 0;
    for (int i = 0; i < n; i++)
        put_scalar(t, tags[i], values[i]);
    begin_event(&t->event, wall_s, step);
    dt_pb_message(&t->event, 5, &t->summary);
    return write_record(t, err);
}

enum dt_status dt_tensorboard_flush(struct dt_tensorboard *t, struct dt_error *err)
{
    if (fflush(t->f) != 0)
        return dt_error_at(err, DT_ERR_IO, t->path, 0, 0, "cannot write: %s", strerror(errno));
    return DT_OK;
}

enum dt_status dt_tensorboard_close(struct dt_tensorboard *t, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    if (!t)
        return DT_OK;
    if (fclose(t->f) != 0)
        st = dt_error_at(err, DT_ERR_IO, t->path, 0, 0, "cannot write: %s", strerror(errno));
    destroy(t);
    return st;
}

const char *dt_tensorboard_path(const struct dt_tensorboard *t)
{
    return t->path;
}
