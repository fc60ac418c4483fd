/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whom a consumer asks, and whom it believes. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/feed/client_impl.h"

#include <stdio.h>
#include <string.h>

#define SECOND_NS INT64_C(1000000000)
enum { PAYLOAD_BYTES_UNDER_WAY = 64 << 20, FRAMES_AT_ONCE = 256 };
/* Of either set: together no more than a producer allows. */
enum { UNDER_WAY_MAX = DT_FEED_OPEN_MAX / 2 };
enum { RETRY_MAX_S = 30 };

static bool passed(uint64_t since_ns, uint64_t now, double s)
{
    return (double)(now - since_ns) * 1e-9 > s;
}

/* ---- failures ---- */

static void give_back(struct dt_feed_client *c, struct dt_feed_items *set, int p)
{
    for (int k = 0; k < set->n; k++) {
        struct dt_feed_item *i = &set->item[k];

        if (i->ready || i->producer != p)
            continue;
        i->producer = -1;
        i->moved = true;
        set->under_way--;
        set->bytes_under_way -= i->bytes;
    }
    c->producer[p].under_way = 0;
}

static void fail(struct dt_feed_client *c, int p, const char *why)
{
    struct dt_feed_producer *q = &c->producer[p];

    snprintf(q->why, sizeof q->why, "%s", why);
    if (q->state == DT_FEED_UP) {
        c->report.failures++;
        dt_warn(c->o.warn, "producer %s: %s; its share moves to the others", q->address, why);
        q->waits_ns = SECOND_NS / 2;
    } else {
        q->waits_ns = q->waits_ns < SECOND_NS / 2 ? SECOND_NS / 2 : 2 * q->waits_ns;
        if (q->waits_ns > RETRY_MAX_S * SECOND_NS)
            q->waits_ns = RETRY_MAX_S * SECOND_NS;
    }
    q->state = DT_FEED_DOWN;
    q->down_ns = dt_clock_ns();
    dt_feed_net_drop(c->net, p); /* with all that it may still send */
    give_back(c, &c->sizes, p);
    give_back(c, &c->payload, p);
}

static enum dt_status all_gone(const struct dt_feed_client *c, const char *how,
                               struct dt_error *err)
{
    char text[3000];
    int at = 0;

    for (int i = 0; i < c->o.n && at < (int)sizeof text - 1; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s (%s)", i > 0 ? ", " : "",
                       c->producer[i].address,
                       c->producer[i].why[0] ? c->producer[i].why : "no answer");
    return dt_error_set(err, DT_ERR_PEER, "no producer of data %s: %s", how, text);
}

/* ---- greetings ---- */

static struct dt_feed_peer peer_of(int p)
{
    return (struct dt_feed_peer){2, {(uint8_t)p, (uint8_t)(p >> 8)}};
}

/* A producer that was replaced while ZeroMQ connected to it again has not been asked as much: what it
 * owes us would never come. */
static void greet(struct dt_feed_client *c, int p)
{
    struct dt_feed_head h = {.request = c->producer[p].asked, .job = c->job};
    struct dt_feed_peer to = peer_of(p);

    c->producer[p].greeted_ns = dt_clock_ns();
    if (dt_feed_encode_hello(&h, NULL, &c->frame) == DT_OK)
        dt_feed_net_send(c->net, &to, c->frame.p, c->frame.n);
}

static enum dt_status connect_to(struct dt_feed_client *c, int p, struct dt_error *err)
{
    struct dt_feed_producer *q = &c->producer[p];

    DT_TRY(dt_feed_net_connect(c->net, p, q->address, c->o.keys, err));
    q->state = DT_FEED_GREETED;
    q->asked = 0;
    q->received = 0;
    q->heard_ns = dt_clock_ns();
    greet(c, p);
    return DT_OK;
}

static void look_after(struct dt_feed_client *c, int p, uint64_t now)
{
    struct dt_feed_producer *q = &c->producer[p];
    bool waits = q->state == DT_FEED_GREETED || q->under_way > 0;
    char why[100];

    if (waits && passed(q->heard_ns, now, c->o.silent_s)) {
        snprintf(why, sizeof why, "no answer for %g s%s", c->o.silent_s,
                 c->o.keys && q->state == DT_FEED_GREETED ? ", or it does not know our key" : "");
        fail(c, p, why);
    } else if (waits && passed(q->heard_ns, now, 1) && passed(q->greeted_ns, now, 1)) {
        greet(c, p);
    }
}

static void look_for_late(struct dt_feed_client *c, struct dt_feed_items *set, uint64_t now)
{
    char why[100];

    for (int k = 0; k < set->n; k++) {
        struct dt_feed_item *i = &set->item[k];

        if (i->ready || i->producer < 0 || !passed(i->asked_ns, now, c->o.late_s))
            continue;
        snprintf(why, sizeof why, "document %lld was not made within %g s", (long long)i->place,
                 c->o.late_s);
        fail(c, i->producer, why);
    }
}

static enum dt_status look_after_all(struct dt_feed_client *c, struct dt_error *err)
{
    uint64_t now = dt_clock_ns();
    bool hope = false;

    for (int p = 0; p < c->o.n; p++) {
        struct dt_feed_producer *q = &c->producer[p];

        if (q->state == DT_FEED_DOWN && !q->wrong &&
            (q->down_ns == 0 || passed(q->down_ns, now, (double)q->waits_ns * 1e-9)))
            DT_TRY(connect_to(c, p, err));
        else if (q->state != DT_FEED_DOWN)
            look_after(c, p, now);
        hope |= !q->wrong;
    }
    look_for_late(c, &c->sizes, now);
    look_for_late(c, &c->payload, now);
    if (!hope)
        return all_gone(c, "can be used", err);
    if (passed(c->progress_ns, now, c->o.deadline_s)) {
        char how[60];

        snprintf(how, sizeof how, "has given anything for %g s", c->o.deadline_s);
        return all_gone(c, how, err);
    }
    return DT_OK;
}

/* ---- asking ---- */

/* The first that is up, from the place's own on; -1 = none. */
static int whom(const struct dt_feed_client *c, int64_t place)
{
    for (int k = 0; k < c->o.n; k++) {
        int p = (int)((place + k) % c->o.n);

        if (c->producer[p].state == DT_FEED_UP)
            return p;
    }
    return -1;
}

static void send_ask(struct dt_feed_client *c, const struct dt_feed_items *set, int p)
{
    struct dt_feed_head h = {.request = set->request, .job = c->job, .data = c->data};
    struct dt_feed_peer to = peer_of(p);

    if (c->ask.n == 0)
        return;
    c->ask.released = c->released;
    c->ask.received = c->producer[p].received;
    c->producer[p].asked += (uint64_t)c->ask.n;
    if (dt_feed_encode_ask(&h, &c->ask, NULL, &c->frame) == DT_OK)
        dt_feed_net_send(c->net, &to, c->frame.p, c->frame.n);
    c->ask.n = 0;
}

static void ask(struct dt_feed_client *c, struct dt_feed_items *set, int p, int64_t from, int n)
{
    struct dt_feed_producer *q = &c->producer[p];
    uint64_t now = dt_clock_ns();

    c->ask.n = 0;
    for (int k = 0; k < n; k++) {
        struct dt_feed_item *i = &set->item[(from + k) % set->n];

        if (i->ready || i->producer >= 0 || whom(c, i->place) != p)
            continue;
        if (set->under_way >= UNDER_WAY_MAX ||
            (set->bytes_under_way + i->bytes > PAYLOAD_BYTES_UNDER_WAY && set->under_way > 0))
            break;
        if (q->under_way++ == 0)
            q->heard_ns = now;
        set->under_way++;
        set->bytes_under_way += i->bytes;
        i->producer = p;
        i->asked_ns = now;
        c->report.moved += i->moved;
        c->ask.place[c->ask.n] = i->place;
        c->ask.what[c->ask.n++] = i->what;
        if (c->ask.n == DT_FEED_ASK_MAX)
            send_ask(c, set, p);
    }
    send_ask(c, set, p);
}

static void ask_all(struct dt_feed_client *c)
{
    for (int p = 0; p < c->o.n; p++) {
        if (c->producer[p].state != DT_FEED_UP)
            continue;
        ask(c, &c->payload, p, 0, c->payload.n);
        ask(c, &c->sizes, p, c->first, (int)c->ahead);
    }
}

/* ---- answers ---- */

static void welcome(struct dt_feed_client *c, int p, const struct dt_feed_frame *f)
{
    struct dt_feed_producer *q = &c->producer[p];
    struct dt_feed_welcome w;
    struct dt_error err;

    if (f->head.job != c->job || dt_feed_decode_welcome(f, &err, &w) != DT_OK) {
        q->wrong = true;
        fail(c, p, "it serves another job");
        return;
    }
    if (!c->known) {
        c->data = f->head.data;
        c->limits.samples = c->source.samples = w.samples;
        c->source.data = f->head.data;
        c->source.report = w.report;
        c->known = true;
        c->progress_ns = dt_clock_ns();
    } else if (f->head.data != c->data || w.samples != c->source.samples) {
        q->wrong = true;
        fail(c, p, "it has other data than the others");
        return;
    }
    if (q->state != DT_FEED_UP && q->down_ns)
        dt_warn(c->o.warn, "producer %s is back", q->address);
    q->state = DT_FEED_UP;
}

static struct dt_feed_item *item_of(struct dt_feed_items *set, int64_t place)
{
    int lo = 0, hi = set->n;

    if (set->request == DT_FEED_SIZES_REQUEST)
        return &set->item[place % set->n];
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (set->item[mid].place < place)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n ? &set->item[lo] : NULL;
}

static void document(struct dt_feed_client *c, int p, const struct dt_feed_frame *f)
{
    struct dt_feed_items *set = f->head.request == DT_FEED_SIZES_REQUEST ? &c->sizes : &c->payload;
    struct dt_feed_item *i;
    struct dt_document d;
    struct dt_error err;
    char why[200];
    int what;

    if (f->head.data != c->data ||
        dt_feed_decode_document(f, &c->limits, &err, &what, &d) != DT_OK) {
        if (f->head.data != c->data)
            snprintf(err.message, sizeof err.message, "a document of other data");
        snprintf(why, sizeof why, "it sent %.150s", err.message);
        fail(c, p, why);
        return;
    }
    i = item_of(set, d.place);
    if (!i || i->place != d.place || i->ready || i->producer != p) {
        dt_document_free(&d); /* of a request that was dropped */
        return;
    }
    if (d.status == DT_OK ? what != i->what : i->what != 0) {
        dt_document_free(&d);
        fail(c, p, "it sent something else than was asked for");
        return;
    }
    i->doc = d;
    i->ready = true;
    c->progress_ns = dt_clock_ns();
    set->under_way--;
    set->bytes_under_way -= i->bytes;
    c->producer[p].under_way--;
    c->report.sizes += set == &c->sizes;
}

static void receive(struct dt_feed_client *c, const struct dt_feed_peer *from, const uint8_t *bytes,
                    size_t n)
{
    int p = from->id[0] | from->id[1] << 8;
    struct dt_feed_producer *q = &c->producer[p];
    struct dt_feed_frame f;
    struct dt_error err;
    char why[200];

    c->report.bytes += (int64_t)n;
    q->received += (int64_t)n;
    q->heard_ns = dt_clock_ns();
    if (dt_feed_open(bytes, n, &err, &f) != DT_OK) {
        snprintf(why, sizeof why, "it sent %.150s", err.message);
        fail(c, p, why);
        return;
    }
    switch (f.head.kind) {
    case DT_FEED_WELCOME:
        welcome(c, p, &f);
        return;
    case DT_FEED_DOCUMENT:
        if (q->state == DT_FEED_UP)
            document(c, p, &f);
        return;
    case DT_FEED_REFUSE:
        dt_feed_decode_refuse(&f, why, sizeof why);
        q->wrong |= q->state == DT_FEED_GREETED && f.head.job != c->job;
        fail(c, p, why);
        return;
    case DT_FEED_HELLO:
    case DT_FEED_ASK:
        fail(c, p, "it sent what consumers send");
    }
}

/* Nobody is to blame for the time in which nothing was listened to. */
static void skip_pause(struct dt_feed_client *c)
{
    uint64_t now = dt_clock_ns(), pause = c->turn_ns ? now - c->turn_ns : 0;

    c->turn_ns = now;
    if (pause < (uint64_t)SECOND_NS / 4)
        return;
    for (int p = 0; p < c->o.n; p++)
        c->producer[p].heard_ns += pause;
    for (int k = 0; k < c->sizes.n; k++)
        c->sizes.item[k].asked_ns += pause;
    c->progress_ns += pause;
}

enum dt_status dt_feed_client_turn(struct dt_feed_client *c, int timeout_ms, struct dt_error *err)
{
    struct dt_feed_peer from;
    const uint8_t *p;
    size_t n;

    skip_pause(c);
    DT_TRY(look_after_all(c, err));
    ask_all(c);
    for (int i = 0;
         i < FRAMES_AT_ONCE && dt_feed_net_recv(c->net, -1, i == 0 ? timeout_ms : 0, &from, &p, &n);
         i++)
        receive(c, &from, p, n);
    c->turn_ns = dt_clock_ns();
    return DT_OK;
}
