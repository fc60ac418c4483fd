/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Jobs: any text is refused with one message about a place, or becomes values within their limits.
 */
#include "core/job/job.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

/* Whatever shape was accepted can be counted without overflow. */
static void count_model(const struct dt_model *m)
{
    static const struct dt_work w = {2, 1300, 900001, 700};
    static const struct dt_block_shard s = {.tp = 2, .cp = 1, .ep = 1, .ip = 1, .seqpar = true};

    REQUIRE(m->n_modules >= 1 && m->n_modules <= DT_MAX_MODULES);
    REQUIRE(m->modules[m->llm].role == DT_ROLE_LLM);
    for (int i = 0; i < m->n_modules; i++) {
        REQUIRE(dt_module_params(&m->modules[i]) > 0);
        for (int b = 0; b < m->modules[i].n_blocks; b++) {
            struct dt_kop ops[DT_MAX_KOPS];
            const struct dt_block *block = &m->modules[i].blocks[b];

            REQUIRE(dt_block_kops(block, &s, &w, ops) < DT_MAX_KOPS);
            REQUIRE(dt_block_act_bytes(block, &s, &w, DT_RECOMPUTE_NONE) > 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_job *j = NULL;
    enum dt_status st;

    st = dt_job_parse("fuzz.yaml", (const char *)data, size, NULL, 0, true, &err, &j);
    if (st != DT_OK) {
        REQUIRE(err.message[0] != '\0' && !j);
        REQUIRE(st == DT_ERR_INPUT && err.file[0] != '\0');
        return 0;
    }
    count_model(j->model);
    REQUIRE(dt_cluster_gpus(&j->cluster) > 0);
    REQUIRE(j->policy.global_batch % j->policy.microbatch == 0);
    REQUIRE(j->policy.seq_len > 0 && j->search.tp_mask != 0);
    dt_job_free(j);
    return 0;
}
