/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "comm/transport_agree.h"
#include "comm/transport_impl.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void dt_transport_place_here(const struct dt_transport *t, struct dt_transport_place *out)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

    *out = (struct dt_transport_place){.boot = ""};
    snprintf(out->host, sizeof(out->host), "%s", t->host);
    if (f && !fgets(out->boot, sizeof(out->boot), f))
        out->boot[0] = '\0';
    if (f)
        fclose(f);
}

bool dt_transport_same_host(const struct dt_transport_place *a, const struct dt_transport_place *b)
{
    return strcmp(a->boot, b->boot) == 0 && (a->boot[0] || strcmp(a->host, b->host) == 0);
}

static enum dt_status tell(struct dt_transport *t, void *all, const size_t *bytes, const int *ranks,
                           const char *who, struct dt_error *err)
{
    struct dt_comm *everybody;
    struct dt_req *r;

    DT_TRY(t->comm_new(t, ranks, t->size, err, &everybody));
    DT_TRY(t->post_all_gather(everybody, all, bytes, NULL, err, &r));
    DT_TRY(dt_transport_wait(t, r, 0, who, err));
    t->comm_free(everybody);
    return DT_OK;
}

enum dt_status dt_transport_tell_all(struct dt_transport *t, void *all, size_t each,
                                     const char *who, struct dt_error *err)
{
    size_t *bytes = dt_calloc((size_t)t->size, sizeof(*bytes));
    int *ranks = dt_calloc((size_t)t->size, sizeof(*ranks));
    enum dt_status st;

    for (int k = 0; bytes && ranks && k < t->size; k++) {
        bytes[k] = each;
        ranks[k] = k;
    }
    st = bytes && ranks ? tell(t, all, bytes, ranks, who, err) : dt_error_nomem(err, "ranks");
    if (st != DT_OK)
        dt_transport_leave(all);
    dt_free(bytes);
    dt_free(ranks);
    return st;
}
