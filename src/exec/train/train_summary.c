/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train.h"

#include "base/mem.h"

void dt_train_summary_free(struct dt_train_summary *s)
{
    dt_program_free(s->program);
    dt_assign_free(s->assignment);
    dt_timeline_free(&s->timeline);
    dt_free(s->memory);
    dt_free(s->lanes);
    dt_free(s->beside);
    dt_free(s->decoded);
    dt_free(s->mix);
    s->mix = NULL;
    s->decoded = NULL;
    s->beside = NULL;
    s->memory = NULL;
    s->lanes = NULL;
    s->program = NULL;
    s->assignment = NULL;
}
