/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/modules/ferry.h"

#include <string.h>

enum dt_status dt_ferry_open(struct dt_ferry *c, const struct dt_device *dev,
                             struct dt_device_queue *q, size_t bytes, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    *c = (struct dt_ferry){.dev = dev, .q = q, .bytes = bytes > 0 ? bytes : DT_FERRY_BYTES};
    for (int k = 0; k < 2 && st == DT_OK; k++) {
        st = dev->host_alloc(dev, c->bytes, err, &c->room[k]);
        if (st == DT_OK)
            st = dev->event_new(dev, err, &c->passed[k]);
    }
    if (st != DT_OK)
        dt_ferry_close(c);
    return st;
}

void dt_ferry_close(struct dt_ferry *c)
{
    for (int k = 0; k < 2 && c->dev; k++) {
        if (c->passed[k])
            c->dev->event_sync(c->passed[k], NULL);
        c->dev->event_free(c->passed[k]);
        c->dev->host_free(c->dev, c->room[k]);
    }
    memset(c, 0, sizeof(*c));
}

enum dt_status dt_ferry_room(struct dt_ferry *c, struct dt_error *err, void **out)
{
    DT_TRY(c->dev->event_sync(c->passed[c->turn], err));
    *out = c->room[c->turn];
    return DT_OK;
}

void dt_ferry_in(struct dt_ferry *c, void *to, size_t bytes)
{
    c->dev->copy(c->q, to, c->room[c->turn], bytes, DT_COPY_TO_DEVICE);
    c->dev->event_record(c->q, c->passed[c->turn]);
    c->turn = 1 - c->turn;
}

static size_t stretch(const struct dt_ferry *c, size_t at, size_t bytes)
{
    return bytes - at < c->bytes ? bytes - at : c->bytes;
}

/* Issues the copy of the stretch that begins at `at`, if there is one, and takes the other buffer's turn. */
static void issue(struct dt_ferry *c, const char *from, size_t at, size_t bytes)
{
    if (at >= bytes)
        return;
    c->dev->copy(c->q, c->room[c->turn], from + at, stretch(c, at, bytes), DT_COPY_TO_HOST);
    c->dev->event_record(c->q, c->passed[c->turn]);
    c->turn = 1 - c->turn;
}

enum dt_status dt_ferry_out(struct dt_ferry *c, const void *from, size_t bytes, dt_ferry_fn *take,
                            void *arg, struct dt_error *err)
{
    int k = c->turn; /* the buffer of the stretch at `at` */

    issue(c, from, 0, bytes);
    for (size_t at = 0; at < bytes; at += c->bytes, k = 1 - k) {
        issue(c, from, at + c->bytes, bytes); /* into the buffer that `take` has let go of */
        DT_TRY(c->dev->event_sync(c->passed[k], err));
        if (c->dev->queue_state(c->q) != DT_OK)
            return c->dev->queue_sync(c->q, err);
        DT_TRY(take(arg, at, c->room[k], stretch(c, at, bytes), err));
    }
    return DT_OK;
}

enum dt_status dt_ferry_to(struct dt_ferry *c, void *to, const void *from, size_t bytes,
                           struct dt_error *err)
{
    for (size_t at = 0; at < bytes; at += c->bytes) {
        void *room;

        DT_TRY(dt_ferry_room(c, err, &room));
        memcpy(room, (const char *)from + at, stretch(c, at, bytes));
        dt_ferry_in(c, (char *)to + at, stretch(c, at, bytes));
    }
    return DT_OK;
}
