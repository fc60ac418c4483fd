/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/feed/client_impl.h"

#include <stdio.h>
#include <string.h>

enum { AHEAD_MIN = 16, AHEAD_MAX = 1024, TURN_MS = 100 };
#define AHEAD_BYTES (INT64_C(256) << 20)
#define GREETINGS_NS UINT64_C(1000000000) /* for the other producers after the first */

/* ---- sizes ---- */

static struct dt_feed_item *ring(struct dt_feed_client *c, int64_t place)
{
    return &c->sizes.item[place % c->sizes.n];
}

/* Large documents: fewer ahead, so that producers need not let go of what is still to be fetched. */
static int64_t how_far(const struct dt_feed_client *c)
{
    int64_t n = c->mean_bytes > 0 ? c->o.ahead_bytes / c->mean_bytes : AHEAD_MIN;

    return n < AHEAD_MIN ? AHEAD_MIN : n > AHEAD_MAX ? AHEAD_MAX : n;
}

static void want(struct dt_feed_client *c, int64_t place)
{
    struct dt_feed_item *i = ring(c, place);

    *i = (struct dt_feed_item){.place = place, .producer = -1};
}

/* The loader goes on at another place: at its beginning, that is. */
static void restart(struct dt_feed_client *c, int64_t place)
{
    for (int k = 0; k < c->sizes.n; k++)
        c->sizes.item[k] = (struct dt_feed_item){.place = -1, .producer = -1, .ready = true};
    for (int p = 0; p < c->o.n; p++)
        c->producer[p].under_way = 0;
    c->sizes.under_way = 0;
    c->first = place;
    c->ahead = 0;
}

static enum dt_status take(void *ctx, int64_t place, struct dt_error *err, struct dt_document *out)
{
    struct dt_feed_client *c = ctx;
    struct dt_feed_item *i;
    int64_t bytes;

    if (place != c->first)
        restart(c, place);
    while (c->ahead < how_far(c))
        want(c, c->first + c->ahead++);
    i = ring(c, place);
    while (!i->ready)
        DT_TRY(dt_feed_client_turn(c, TURN_MS, err));
    *out = i->doc;
    memset(&i->doc, 0, sizeof i->doc);
    bytes = (int64_t)sizeof i->doc + dt_document_pixel_bytes(out);
    c->mean_bytes = c->mean_bytes ? (7 * c->mean_bytes + bytes) / 8 : bytes;
    c->first++;
    c->ahead--;
    return DT_OK;
}

/* ---- payload ---- */

enum dt_status dt_feed_client_fetch(struct dt_feed_client *c, struct dt_feed_fetch *f, int n,
                                    struct dt_error *err)
{
    struct dt_feed_items *set = &c->payload;
    enum dt_status st = DT_OK;
    int ready = 0;

    set->item = dt_calloc((size_t)n + 1, sizeof *set->item);
    if (!set->item)
        return dt_error_nomem(err, "documents to fetch");
    for (int k = 0; k < n; k++)
        set->item[k] = (struct dt_feed_item){
            .place = f[k].place, .bytes = f[k].bytes, .producer = -1, .what = (uint8_t)f[k].what};
    set->n = n;
    set->under_way = 0;
    set->bytes_under_way = 0;
    while (st == DT_OK && ready < n) {
        if (set->item[ready].ready)
            ready++;
        else
            st = dt_feed_client_turn(c, TURN_MS, err);
    }
    for (int k = 0; k < n; k++) {
        if (st == DT_OK)
            f[k].doc = set->item[k].doc;
        else
            dt_document_free(&set->item[k].doc);
        if (!set->item[k].ready && set->item[k].producer >= 0)
            c->producer[set->item[k].producer].under_way--;
    }
    c->report.payloads += st == DT_OK ? n : 0;
    dt_free(set->item);
    set->item = NULL;
    set->n = 0;
    return st;
}

void dt_feed_client_release(struct dt_feed_client *c, int64_t place)
{
    c->released = place > c->released ? place : c->released;
}

/* ---- opening ---- */

static enum dt_status prepare(struct dt_feed_client *c, struct dt_error *err)
{
    const struct dt_loader_options *l = c->o.loader;

    DT_TRY(dt_loader_job_digest(l, err, &c->job));
    c->limits = (struct dt_feed_limits){.seq_len = l->seq_len,
                                        .mel_bins = l->mel_bins,
                                        .patch = l->patch ? l->patch : DT_LOADER_PATCH,
                                        .vocab = dt_tokenizer_vocab(l->tokenizer)};
    c->producer = dt_calloc((size_t)c->o.n, sizeof *c->producer);
    c->sizes.item = dt_calloc(AHEAD_MAX, sizeof *c->sizes.item);
    if (!c->producer || !c->sizes.item)
        return dt_error_nomem(err, "producers");
    c->sizes.n = AHEAD_MAX;
    c->sizes.request = DT_FEED_SIZES_REQUEST;
    c->payload.request = DT_FEED_PAYLOAD_REQUEST;
    restart(c, 0);
    for (int i = 0; i < c->o.n; i++) {
        bool loopback;

        DT_TRY(dt_feed_address(c->o.address[i], err, c->producer[i].address, &loopback));
        if (!c->o.keys && !loopback)
            return dt_error_set(err, DT_ERR_INPUT,
                                "%s is another machine: connections to it need keys "
                                "(run.data_keys)",
                                c->producer[i].address);
    }
    return dt_feed_net_new(c->o.n, err, &c->net);
}

/* What is asked before the last of them has answered is dealt among the others, and made again by its own producer when
 * text and pixels are fetched: those that are there get a moment to say so. */
static bool greeting(const struct dt_feed_client *c, uint64_t known_ns)
{
    if (!c->known)
        return true;
    for (int p = 0; p < c->o.n; p++)
        if (c->producer[p].state == DT_FEED_GREETED)
            return dt_clock_ns() - known_ns < GREETINGS_NS;
    return false;
}

enum dt_status dt_feed_client_open(const struct dt_feed_client_options *o, struct dt_error *err,
                                   struct dt_feed_client **out)
{
    struct dt_feed_client *c = dt_calloc(1, sizeof *c);
    uint64_t known_ns = 0;
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a consumer");
    c->o = *o;
    c->o.deadline_s = o->deadline_s > 0 ? o->deadline_s : 60;
    c->o.silent_s = o->silent_s > 0 ? o->silent_s : 5;
    c->o.late_s = o->late_s > 0 ? o->late_s : c->o.deadline_s / 2;
    c->o.ahead_bytes = o->ahead_bytes > 0 ? o->ahead_bytes : AHEAD_BYTES * o->n;
    c->progress_ns = dt_clock_ns();
    st = o->n < 1 || o->n > 65535
             ? dt_error_set(err, DT_ERR_USAGE, "1 to 65535 producers are possible")
             : prepare(c, err);
    while (st == DT_OK && greeting(c, known_ns)) {
        st = dt_feed_client_turn(c, TURN_MS, err);
        known_ns = c->known && known_ns == 0 ? dt_clock_ns() : known_ns;
    }
    if (st == DT_OK) {
        c->source.take = take;
        c->source.ctx = c;
        *out = c;
    } else {
        dt_feed_client_close(c);
    }
    return st;
}

const struct dt_loader_source *dt_feed_client_source(const struct dt_feed_client *c)
{
    return &c->source;
}

void dt_feed_client_report(const struct dt_feed_client *c, struct dt_feed_client_report *out)
{
    *out = c->report;
    for (int i = 0; i < c->o.n; i++)
        out->up += c->producer[i].state == DT_FEED_UP;
}

void dt_feed_client_close(struct dt_feed_client *c)
{
    if (!c)
        return;
    dt_feed_net_close(c->net);
    for (int i = 0; i < c->sizes.n; i++)
        dt_document_free(&c->sizes.item[i].doc);
    dt_free(c->sizes.item);
    dt_free(c->producer);
    dt_feed_bytes_free(&c->frame);
    dt_free(c);
}
