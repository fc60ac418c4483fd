/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which ranks can map each other's memory.  Each shows the others of its host a few bytes and an event; each opens those
 * of the others and looks at what is there, which it keeps mapped if all can be.  So what drivers, containers and CUDA_VISIBLE_DEVICES forbid is found before
 * anything depends on it, and said on all ranks alike. */
#include "comm/transport_agree.h"
#include "comm/transport_ipc.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { WORDS = 8 };

struct shown {
    struct dt_transport_place place;
    struct dt_device_handle block, event;
    uint64_t offset, word[WORDS]; /* what lies there */
    char why[512];                /* nothing is shown */
};
struct seen {
    int32_t of;    /* whose could not be opened */
    char why[512]; /* "": all could */
};

struct probe { /* this rank's */
    void *p;
    uint64_t *host; /* page-locked */
    struct dt_device_event *event;
};

static void probe_free(const struct dt_device *d, struct probe *x)
{
    d->free(d, x->p);
    d->host_free(d, x->host);
    d->event_free(x->event);
}

static enum dt_status show(struct dt_ipc *s, struct probe *x, struct shown *mine,
                           struct dt_error *err)
{
    const struct dt_device *d = s->dev;
    size_t offset = 0;
    void *p;

    DT_TRY(dt_transport_alloc(d, true, sizeof(mine->word), err, &p));
    x->host = p;
    DT_TRY(dt_transport_alloc(d, false, sizeof(mine->word), err, &x->p));
    for (int i = 0; i < WORDS; i++)
        x->host[i] = mine->word[i] =
            UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(s->control->rank + 2 + i);
    DT_TRY(d->ipc_memory(d, x->p, err, &mine->block, &offset));
    mine->offset = offset;
    DT_TRY(d->ipc_event_new(d, err, &x->event, &mine->event));
    d->copy(s->q, x->p, x->host, sizeof(mine->word), DT_COPY_TO_DEVICE);
    d->event_record(s->q, x->event);
    return d->queue_sync(s->q, err);
}

static enum dt_status map(struct dt_ipc *s, int peer, const struct dt_device_handle *block,
                          struct dt_error *err, void **base)
{
    enum dt_status st;

    pthread_mutex_lock(&s->lock);
    st = dt_ipc_map_for_good(s, peer, block, err, base);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static enum dt_status look_at(struct dt_ipc *s, struct probe *x, int peer,
                              const struct shown *theirs, struct dt_error *err)
{
    const struct dt_device *d = s->dev;
    struct dt_device_event *event;
    enum dt_status st;
    void *base;

    DT_TRY(map(s, peer, &theirs->block, err, &base));
    d->copy(s->q, x->host, (const char *)base + theirs->offset, sizeof(theirs->word),
            DT_COPY_TO_HOST);
    st = d->queue_sync(s->q, err);
    if (st == DT_OK && memcmp(x->host, theirs->word, sizeof(theirs->word)) != 0)
        st = dt_error_set(err, DT_ERR_INPUT, "what is mapped is other memory than it has shown");
    DT_TRY(st);
    DT_TRY(d->ipc_event_open(d, &theirs->event, err, &event));
    if (!d->event_done(event))
        st = dt_error_set(err, DT_ERR_INPUT, "its event does not tell that it is over");
    d->event_free(event);
    return st;
}

static enum dt_status use_instead(struct dt_error *err, const char *what)
{
    return dt_error_set(
        err, DT_ERR_INPUT,
        "run.transport ipc cannot be used: %.600s; auto, staged and nccl are other ways", what);
}

static enum dt_status judge_shown(struct dt_ipc *s, const struct shown *all, struct dt_error *err)
{
    bool pair = false;
    char text[640];

    for (int k = 0; k < s->control->size; k++)
        if (all[k].why[0]) {
            snprintf(text, sizeof(text), "rank %d: %s", k, all[k].why);
            return use_instead(err, text);
        }
    for (int k = 0; k < s->control->size; k++) {
        s->peer[k].near = k != s->control->rank &&
                          dt_transport_same_host(&all[k].place, &all[s->control->rank].place);
        for (int i = 0; i < k; i++)
            pair = pair || dt_transport_same_host(&all[k].place, &all[i].place);
    }
    return pair ? DT_OK : use_instead(err, "no two ranks are on one host");
}

static enum dt_status judge_seen(struct dt_ipc *s, const struct seen *all, struct dt_error *err)
{
    char text[640];

    for (int k = 0; k < s->control->size; k++)
        if (all[k].why[0]) {
            snprintf(text, sizeof(text), "rank %d cannot reach the memory of rank %d: %s", k,
                     (int)all[k].of, all[k].why);
            return use_instead(err, text);
        }
    return DT_OK;
}

/* What others have mapped must not be freed: all say that they have let go, before a rank that is refused ends. */
static enum dt_status let_go(struct dt_ipc *s, struct seen *seen, struct dt_error *err)
{
    pthread_mutex_lock(&s->lock);
    dt_ipc_unmap_all(s);
    pthread_mutex_unlock(&s->lock);
    return dt_transport_tell_all(s->control, seen, sizeof(*seen),
                                 "all ranks, who let go of each other's memory", err);
}

static enum dt_status agree(struct dt_ipc *s, const struct dt_error *unable, struct probe *x,
                            struct shown *shown, struct seen *seen, struct dt_error *err)
{
    struct seen *mine = &seen[s->control->rank];
    struct dt_error why = {0};
    enum dt_status st;

    if (unable)
        why = *unable;
    dt_transport_place_here(s->control, &shown[s->control->rank].place);
    if (unable || show(s, x, &shown[s->control->rank], &why) != DT_OK)
        snprintf(shown[s->control->rank].why, sizeof(shown->why), "%.500s", why.message);
    DT_TRY(dt_transport_tell_all(s->control, shown, sizeof(*shown),
                                 "all ranks, who show memory to each other", err));
    DT_TRY(judge_shown(s, shown, err));
    for (int k = 0; k < s->control->size && !mine->why[0]; k++)
        if (s->peer[k].near && look_at(s, x, k, &shown[k], &why) != DT_OK) {
            mine->of = k;
            snprintf(mine->why, sizeof(mine->why), "%.500s", why.message);
        }
    DT_TRY(dt_transport_tell_all(s->control, seen, sizeof(*seen),
                                 "all ranks, who look at each other's memory", err));
    st = judge_seen(s, seen, err);
    if (st != DT_OK)
        DT_TRY(let_go(s, seen, err));
    return st;
}

enum dt_status dt_ipc_agree(struct dt_ipc *s, const struct dt_error *unable, struct dt_error *err)
{
    struct shown *shown = dt_calloc((size_t)s->control->size, sizeof(*shown));
    struct seen *seen = dt_calloc((size_t)s->control->size, sizeof(*seen));
    struct probe x = {0};
    enum dt_status st = DT_OK;

    if (!shown || !seen)
        st = dt_error_nomem(err, "ranks");
    if (st == DT_OK)
        st = agree(s, unable, &x, shown, seen, err);
    s->shown = st != DT_ERR_INPUT; /* others have it mapped, or may still look */
    if (st != DT_OK && s->shown) { /* the event ends with the process */
        dt_transport_leave(x.event);
        x.event = NULL;
    }
    probe_free(s->dev, &x);
    if (st == DT_OK || st == DT_ERR_INPUT) { /* else more of it may come */
        dt_free(shown);
        dt_free(seen);
    }
    return st;
}
