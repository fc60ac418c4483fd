/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Who evaluates which task: neighbours of a grid have most in common (profiles, costs, often the plan), so that a worker
 * takes consecutive ones, in shorter and shorter runs towards the end. */
#include "cli/whatif.h"

#include <string.h>

enum { RUN_MAX = 32, RUNS_EACH = 4 }; /* the more runs, the less one waits for another in the end */

struct dt_whatif_deal {
    int next, n, workers;
    struct {
        int next, end;
    } run[];
};

enum dt_status dt_whatif_deal_new(int n, int workers, struct dt_error *err,
                                  struct dt_whatif_deal **out)
{
    struct dt_whatif_deal *d = dt_calloc(1, sizeof *d + (size_t)workers * sizeof *d->run);

    if (!d)
        return dt_error_nomem(err, "tasks");
    d->n = n;
    d->workers = workers;
    *out = d;
    return DT_OK;
}

void dt_whatif_deal_free(struct dt_whatif_deal *d)
{
    dt_free(d);
}

int dt_whatif_deal_next(struct dt_whatif_deal *d, int worker)
{
    if (d->run[worker].next == d->run[worker].end) {
        int n = (d->n - d->next) / (RUNS_EACH * d->workers);

        n = n > RUN_MAX ? RUN_MAX : n < 1 ? d->next < d->n : n;
        d->run[worker].next = d->next;
        d->run[worker].end = d->next += n;
    }
    return d->run[worker].next < d->run[worker].end ? d->run[worker].next++ : -1;
}
