/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which run a checkpoint folder is of. */
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checkpoint_host.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dt_ckpt_run_id_new(char out[DT_RUN_ID_SIZE])
{
    snprintf(out, DT_RUN_ID_SIZE, "%016" PRIx64 "%016" PRIx64, dt_ckpt_random(), dt_ckpt_random());
}

bool dt_ckpt_run_id_valid(const char *text)
{
    size_t n = strlen(text);

    return n > 0 && n < DT_RUN_ID_SIZE &&
           strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") == n;
}
