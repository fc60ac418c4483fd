/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The colours of charts, timelines and pages, once: light, dark, and in print as light. */
#include "report/chart_impl.h"

/* Okabe and Ito 2008, told apart by the colour-blind; each with a lighter or darker one for a dark ground. */
static const struct {
    const char *fill, *light, *dark;
} palette[DT_CHART_COLOUR_N] = {
    {"", "", ""},
    {"dt-f1", "#0072b2", "#4aa3df"},  /* blue */
    {"dt-f2", "#e69f00", "#f0b13c"},  /* orange */
    {"dt-f3", "#009e73", "#2fbf95"},  /* green */
    {"dt-f4", "#b0619a", "#d894bd"},  /* purple */
    {"dt-f5", "#56b4e9", "#8fd0f5"},  /* sky */
    {"dt-f6", "#d55e00", "#f07f30"},  /* red */
    {"dt-f7", "#8a7f00", "#c9bd3c"},  /* olive */
    {"dt-f8", "#8c8c8c", "#9a9a9a"},  /* grey */
    {"dt-f9", "#c3c6cb", "#5d626b"},  /* silver */
    {"dt-f10", "#5a6675", "#7d8a9b"}, /* slate */
    {"dt-f11", "#b5a796", "#8f8272"}, /* stone */
    {"dt-f12", "#dba9c6", "#a8668c"}, /* plum */
    {"dt-f13", "#b07400", "#c98d18"}, /* amber */
    {"dt-f14", "#dccf9c", "#80774f"}, /* sand */
};
static const struct {
    const char *name, *light, *dark;
} ground[] = {
    {"paper", "#ffffff", "#16181c"}, {"ink", "#1d1f23", "#e8e8ea"},
    {"soft", "#5c6068", "#a9adb5"},  {"grid", "#dfe1e5", "#33373f"},
    {"empty", "#f0f1f3", "#24272d"},
};
enum { GROUND_N = sizeof ground / sizeof ground[0] };

const char *dt_chart_fill_class(enum dt_chart_colour colour)
{
    return palette[colour].fill;
}

static void variables(struct dt_text *t, bool dark)
{
    dt_text_add(t, ":root{color-scheme:%s;", dark ? "dark" : "light");
    for (int k = 0; k < GROUND_N; k++)
        dt_text_add(t, "--dt-%s:%s;", ground[k].name, dark ? ground[k].dark : ground[k].light);
    for (int k = 1; k < DT_CHART_COLOUR_N; k++)
        dt_text_add(t, "--dt-%d:%s;", k, dark ? palette[k].dark : palette[k].light);
    dt_text_add(t, "}");
}

/* Where colours come from: variables of the page, or written out (programs that turn a file into a bitmap know no
 * variables). */
enum source { VARIABLES, LIGHT, DARK };

static void colour(struct dt_text *t, enum source from, int k)
{
    if (from == VARIABLES)
        dt_text_add(t, "var(--dt-%d)", k);
    else
        dt_text_add(t, "%s", from == LIGHT ? palette[k].light : palette[k].dark);
}

static void shade(struct dt_text *t, enum source from, int k)
{
    if (from == VARIABLES)
        dt_text_add(t, "var(--dt-%s)", ground[k].name);
    else
        dt_text_add(t, "%s", from == LIGHT ? ground[k].light : ground[k].dark);
}

static void classes(struct dt_text *t, enum source from)
{
    static const struct {
        const char *rule;
        int shade;
    } rules[] = {
        {".dt-chart text{fill:", 1},
        {".dt-chart .dt-soft{fill:", 2},
        {".dt-grid{stroke:", 3},
        {".dt-axis{stroke:", 2},
        {".dt-paper{fill:", 0},
        {".dt-empty{fill:", 4},
        {".dt-rule{stroke:", 1},
        {".dt-front{fill:none;stroke:", 1},
        {".dt-time rect{stroke-width:.4;vector-effect:non-scaling-stroke;stroke:", 0},
    };

    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++) {
        dt_text_add(t, "%s", rules[k].rule);
        shade(t, from, rules[k].shade);
        dt_text_add(t, "}\n");
    }
    for (int k = 1; k < DT_CHART_COLOUR_N; k++) {
        dt_text_add(t, ".dt-f%d{fill:", k);
        colour(t, from, k);
        dt_text_add(t, "}.dt-s%d{fill:none;stroke:", k);
        colour(t, from, k);
        dt_text_add(t, "}\n");
    }
}

static void forms(struct dt_text *t)
{
    dt_text_add(t, ".dt-chart{font:12px system-ui,sans-serif}\n"
                   ".dt-title{font-size:14px;font-weight:600}\n"
                   ".dt-small{font-size:10px}\n"
                   ".dt-grid,.dt-axis{stroke-width:1}\n"
                   ".dt-line{stroke-width:2;stroke-linejoin:round}\n"
                   ".dt-whisker{stroke-width:1.3}\n"
                   ".dt-rule,.dt-front{stroke-width:1.3;stroke-dasharray:5 3}\n"
                   ".dt-ring{stroke-width:1.5;stroke-dasharray:none}\n");
}

void dt_chart_file_style(struct dt_text *t)
{
    dt_text_add(t, "<style>\n");
    forms(t);
    classes(t, LIGHT);
    dt_text_add(t, "@media screen and (prefers-color-scheme:dark){\n");
    classes(t, DARK);
    dt_text_add(t, "}\n</style>\n");
}

enum dt_status dt_chart_page_style(struct dt_error *err, char **out)
{
    struct dt_text t = {0};

    variables(&t, false);
    dt_text_add(&t, "\n@media screen and (prefers-color-scheme:dark){");
    variables(&t, true);
    dt_text_add(&t, "}\n");
    forms(&t);
    classes(&t, VARIABLES);
    dt_text_add(&t, "svg.dt-chart{max-width:100%%;height:auto}\n");
    return dt_text_finish(&t, err, out);
}
