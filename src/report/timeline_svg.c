/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/timeline_svg.h"

#include "base/text.h"

#include <string.h>

enum { MAX_LANES = 64, LEFT = 130, WIDTH = 1200, ROW = 18, GAP = 4, TOP = 46 };

/* Colour-blind safe (Okabe and Ito 2008). */
static const char *colour(const struct dt_op *o)
{
    switch ((enum dt_op_kind)o->kind) {
    case DT_OP_FORWARD:
        return "#56b4e9";
    case DT_OP_BACKWARD:
        return "#0072b2";
    case DT_OP_WEIGHT_GRAD:
        return "#009e73";
    case DT_OP_STEP:
        return "#d55e00";
    case DT_OP_GRAD_SYNC:
    case DT_OP_GRAD_NORM:
    case DT_OP_PARAM_GATHER:
        return "#e69f00";
    case DT_OP_SEND:
    case DT_OP_RECV:
    case DT_OP_FETCH:
    case DT_OP_KIND_N:
        break;
    }
    return NULL; /* transfers are not drawn: they overlap the compute row */
}

static void draw_lane(struct dt_text *t, const struct dt_program *p, const struct dt_model *m,
                      const struct dt_timeline *tl, int lane, int row)
{
    const struct dt_lane *l = &p->lanes[lane];
    double scale = tl->makespan_ns > 0 ? (double)WIDTH / (double)tl->makespan_ns : 0;
    int y = TOP + row * (ROW + GAP);
    dt_text_add(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s stage %d</text>\n", LEFT - 8,
                y + 13, m->modules[l->module].name, l->stage);
    dt_text_add(t, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f2f2f2\"/>\n", LEFT,
                y, WIDTH, ROW);
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *o = &p->ops[i];
        const char *fill = colour(o);
        double x = (double)tl->begin_ns[i] * scale,
               w = (double)(tl->end_ns[i] - tl->begin_ns[i]) * scale;
        bool coll = dt_op_resource((enum dt_op_kind)o->kind) == DT_RES_COLL;
        if (!fill || w < 0.02)
            continue;
        dt_text_add(t, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\">",
                    LEFT + x, coll ? y + ROW - 4 : y, w, coll ? 4 : ROW, fill);
        dt_text_add(t, "<title>%s", dt_op_kind_names[o->kind]);
        if (o->mb != DT_NONE)
            dt_text_add(t, " microbatch %u", o->mb);
        dt_text_add(t, ", %.3f ms from %.3f ms</title></rect>\n",
                    (double)(tl->end_ns[i] - tl->begin_ns[i]) * 1e-6,
                    (double)tl->begin_ns[i] * 1e-6);
    }
}

static void draw_axis(struct dt_text *t, const struct dt_timeline *tl, int rows)
{
    static const struct {
        const char *fill, *name;
    } key[] = {{"#56b4e9", "forward"},
               {"#0072b2", "backward"},
               {"#009e73", "weight gradient"},
               {"#d55e00", "optimizer step"},
               {"#e69f00", "gradient and parameter collectives"}};
    int bottom = TOP + rows * (ROW + GAP);
    int x = LEFT;
    for (int k = 0; k < 5; k++) {
        dt_text_add(t, "<rect x=\"%d\" y=\"14\" width=\"12\" height=\"12\" fill=\"%s\"/>", x,
                    key[k].fill);
        dt_text_add(t, "<text x=\"%d\" y=\"24\">%s</text>\n", x + 17, key[k].name);
        x += 40 + 7 * (int)strlen(key[k].name);
    }
    for (int k = 0; k <= 10; k++)
        dt_text_add(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.4g s</text>\n",
                    LEFT + k * WIDTH / 10, bottom + 14, (double)tl->makespan_ns * 1e-9 * k / 10);
}

enum dt_status dt_report_timeline_svg(const struct dt_program *p, const struct dt_model *m,
                                      const struct dt_timeline *t, struct dt_error *err, char **out)
{
    struct dt_text s = {0};
    int lanes[MAX_LANES], n = 0;
    for (int k = 0; k < p->n_lanes && n < MAX_LANES; k++)
        if (p->lanes[k].replica == 0)
            lanes[n++] = k;
    dt_text_add(
        &s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\""
        " font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        LEFT + WIDTH + 40, TOP + n * (ROW + GAP) + 24);
    for (int k = 0; k < n; k++)
        draw_lane(&s, p, m, t, lanes[k], k);
    draw_axis(&s, t, n);
    dt_text_add(&s, "</svg>\n");
    return dt_text_finish(&s, err, out);
}
