/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * plan.json: any text is either refused with a message or becomes a plan whose text reads back to
 * the same text; whatever is read can be placed, validated and asked for its lanes without harm. */
#include "base/mem.h"
#include "core/model/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static struct dt_block blocks[2][12];
static struct dt_model model;

static void build_model(void)
{
    static const struct dt_block layer = {.kind = DT_BLOCK_TRANSFORMER, .heads = 8, .kv_heads = 8};

    for (int m = 0; m < 2; m++) {
        for (int b = 0; b < 12; b++)
            blocks[m][b] = layer;
        model.modules[m].blocks = blocks[m];
        model.modules[m].n_blocks = 12;
    }
    strcpy(model.name, "m");
    strcpy(model.modules[0].name, "vit");
    strcpy(model.modules[1].name, "llm");
    model.modules[1].role = DT_ROLE_LLM;
    model.n_modules = 2;
    model.llm = 1;
    model.n_edges = 1;
    model.edges[0].dst = 1;
}

static void use(struct dt_plan *p)
{
    static const struct dt_cluster cluster = {.name = "c", .nodes = 12, .gpus_per_node = 8};
    struct dt_error err;

    for (int i = 0; i < 2; i++) { /* as read, then as placed */
        if (dt_plan_validate(p, &model, &cluster, &err) == DT_OK) {
            for (int m = 0; m < p->n_modules; m++) {
                const struct dt_plan_layout *l = &p->modules[m].layout;
                int last =
                    dt_plan_lane_gpu(p, m, l->dp - 1, l->pp - 1) + dt_plan_layout_lane_gpus(l);

                REQUIRE(last <= dt_cluster_gpus(&cluster));
            }
            REQUIRE(dt_plan_gpus(p) <= dt_cluster_gpus(&cluster));
            REQUIRE(dt_plan_slots(p, model.llm) >= 1);
        }
        if (dt_plan_place(p, &cluster, &err) != DT_OK)
            return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_plan p, again;
    struct dt_error err;
    char *text, *text_again;

    if (model.n_modules == 0)
        build_model();
    err.message[0] = '\0';
    if (dt_plan_parse("fuzz", (const char *)data, size, &err, &p) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return 0;
    }
    REQUIRE(dt_plan_to_json(&p, &err, &text) == DT_OK);
    REQUIRE(dt_plan_parse("again", text, strlen(text), &err, &again) == DT_OK);
    REQUIRE(dt_plan_to_json(&again, &err, &text_again) == DT_OK);
    REQUIRE(strcmp(text, text_again) == 0);
    dt_free(text);
    dt_free(text_again);
    use(&p);
    return 0;
}
