/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain compare: tolerances, and what a CI system reads of them. */
#include "cli/compare.h"

#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

struct tolerance {
    char name[96];
    double percent;
};

static enum dt_status parse(const char *text, struct dt_error *err, struct tolerance *t)
{
    const char *eq = strrchr(text, '=');
    char number[32];
    size_t n;

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof(t->name) ||
        strlen(eq + 1) >= sizeof(number))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--tolerance: '%s' is not NAME=PERCENT, such as iteration_s=5%%", text);
    snprintf(t->name, sizeof(t->name), "%.*s", (int)(eq - text), text);
    snprintf(number, sizeof(number), "%s", eq + 1);
    n = strlen(number);
    if (n > 0 && number[n - 1] == '%')
        number[n - 1] = '\0';
    if (!dt_number_double(number, &t->percent) || !(t->percent >= 0))
        return dt_error_set(err, DT_ERR_USAGE, "--tolerance: '%s' is not a percentage of 0 or more",
                            eq + 1);
    return DT_OK;
}

/* ---- what it names ---- */

/* "lane llm/0.1 memory_bytes"; NULL. */
static const struct dt_compare_memory *find_memory(const struct dt_compare *c, const char *name)
{
    char text[96];

    for (int i = 0; i < c->n_memory; i++) {
        snprintf(text, sizeof(text), "lane %s memory_bytes", c->memory[i].name);
        if (strcmp(text, name) == 0)
            return &c->memory[i];
    }
    return NULL;
}

/* The two values of the line of run k; false if there is none.  What the table of values shows comes first: the line
 * iteration_s of the ops is that of the stored iteration, which of several is another one than the median. */
static bool find(const struct dt_cli_compared *c, int k, const char *name, double *a, double *b)
{
    const struct dt_compare *p = &c->pair[k];
    const struct dt_compare_line *l = c->paired[k] ? dt_compare_find(p, name) : NULL;
    const struct dt_compare_memory *m = c->paired[k] ? find_memory(p, name) : NULL;

    if (dt_run_summary_find(&c->run[0], name, a) && dt_run_summary_find(&c->run[k], name, b) &&
        !isnan(*a) && !isnan(*b))
        return true;
    if (l) {
        *a = l->a_s;
        *b = l->b_s;
    } else if (m) {
        *a = (double)dt_compare_memory_a(m);
        *b = (double)dt_compare_memory_b(m);
    }
    return l || m;
}

struct words {
    const char **word;
    char (*text)[96];
    size_t n, cap;
};

static void collect(void *ctx, const struct dt_cli_compared_row *row)
{
    struct words *w = ctx;

    if (w->n < w->cap) {
        snprintf(w->text[w->n], sizeof(w->text[0]), "%s", row->name);
        w->word[w->n] = w->text[w->n];
        w->n++;
    }
}

/* Why a module's ops are not joined explains why it has no line. */
static const char *why_not(const struct dt_compare *p, const char *name)
{
    for (int i = 0; i < p->n_modules; i++) {
        size_t n = strlen(p->module[i].name);

        if (strncmp(p->module[i].name, name, n) == 0 && name[n] == '.' && p->module[i].why_not[0])
            return p->module[i].why_not;
    }
    return NULL;
}

static enum dt_status no_such_line(const struct dt_cli_compared *c, int k, const char *name,
                                   struct dt_error *err)
{
    const struct dt_compare *p = &c->pair[k];
    size_t most = (size_t)(c->paired[k] ? p->n : 0) + DT_RUN_METRICS_N +
                  (size_t)DT_MAX_MODULES * DT_RUN_MODULE_METRICS_N;
    struct words w = {.word = dt_malloc((most + 1) * sizeof(*w.word)),
                      .text = dt_malloc(most * sizeof(*w.text)),
                      .cap = most};
    const char *near = NULL, *why = c->paired[k] ? why_not(p, name) : NULL;

    if (w.word && w.text) {
        dt_cli_compared_rows(c, collect, &w);
        for (int i = 0; c->paired[k] && i < p->n && w.n < most; i++)
            w.word[w.n++] = p->line[i].name;
        w.word[w.n] = NULL;
        near = dt_suggest(name, w.word);
    }
    dt_error_set(err, DT_ERR_USAGE, "--tolerance: these runs have no line '%s'%s%s%s%s%s%s", name,
                 why ? " (" : "", why ? why : "", why ? ")" : "",
                 near ? "; did you mean '" : "; without --tolerance, the first column names them",
                 near ? near : "", near ? "'?" : "");
    dt_free(w.word);
    dt_free(w.text);
    return DT_ERR_USAGE;
}

enum dt_status dt_cli_compared_check_names(const struct dt_cli *cli,
                                           const struct dt_cli_compared *c, struct dt_error *err)
{
    struct tolerance t;
    double a, b;

    for (int i = 0; i < cli->n_list; i++) {
        DT_TRY(parse(cli->list[i], err, &t));
        for (int k = 1; c && k < c->n; k++)
            if (!find(c, k, t.name, &a, &b))
                return no_such_line(c, k, t.name, err);
    }
    return DT_OK;
}

/* ---- JUnit ---- */

/* As XML 1.0 can hold it. */
static void add_xml(struct dt_text *t, const char *s)
{
    static const char special[] = "&<>\"";
    static const char *const names[] = {"amp", "lt", "gt", "quot"};

    for (; *s; s++) {
        const char *at = strchr(special, *s);

        if (at)
            dt_text_add(t, "&%s;", names[at - special]);
        else
            dt_text_add(t, "%c", (unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s);
    }
}

static void add_case(struct dt_text *t, const struct dt_cli_compared *c, int k, const char *name,
                     const char *failure, const char *detail)
{
    char of[1400];

    dt_run_about_text(&c->run[k].about, of, sizeof(of));
    dt_text_add(t, "    <testcase classname=\"");
    add_xml(t, of);
    dt_text_add(t, "\" name=\"");
    add_xml(t, name);
    dt_text_add(t, failure ? "\">\n      <failure message=\"" : "\">\n      <system-out>");
    add_xml(t, failure ? failure : detail);
    if (failure) {
        dt_text_add(t, "\">");
        add_xml(t, detail);
    }
    dt_text_add(t, failure ? "</failure>\n    </testcase>\n" : "</system-out>\n    </testcase>\n");
}

static enum dt_status write_junit(const char *file, const struct dt_cli_compared *c,
                                  struct dt_text *cases, int n, int failures, struct dt_error *err)
{
    struct dt_text t = {0};
    enum dt_status st;
    char of[1400], *all;

    dt_run_about_text(&c->run[0].about, of, sizeof(of));
    dt_text_add(&t,
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"disttrain "
                "compare\" tests=\"%d\" failures=\"%d\">\n  <testsuite name=\"against ",
                n, failures);
    add_xml(&t, of);
    dt_text_add(&t, "\" tests=\"%d\" failures=\"%d\" errors=\"0\" skipped=\"0\">\n", n, failures);
    t.failed |= cases->failed;
    for (size_t i = 0; i < cases->len; i += 500)
        dt_text_add(&t, "%.500s", cases->s + i);
    dt_text_add(&t, "  </testsuite>\n</testsuites>\n");
    DT_TRY(dt_text_finish(&t, err, &all));
    st = dt_file_write(file, all, strlen(all), err);
    dt_free(all);
    return st;
}

enum dt_status dt_cli_compared_junit_error(const char *junit, const struct dt_error *why,
                                           struct dt_error *err)
{
    char message[sizeof(why->message) + sizeof(why->file) + 64], *all;
    struct dt_text t = {0};
    enum dt_status st;

    dt_error_format(why, message, sizeof(message));
    dt_text_add(&t, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"disttrain "
                    "compare\" tests=\"1\" failures=\"0\" errors=\"1\">\n  <testsuite "
                    "name=\"disttrain compare\" tests=\"1\" failures=\"0\" errors=\"1\" "
                    "skipped=\"0\">\n    <testcase classname=\"disttrain compare\" "
                    "name=\"can be compared\">\n      <error message=\"");
    add_xml(&t, message);
    dt_text_add(&t, "\"/>\n    </testcase>\n  </testsuite>\n</testsuites>\n");
    DT_TRY(dt_text_finish(&t, err, &all));
    st = dt_file_write(junit, all, strlen(all), err);
    dt_free(all);
    return st;
}

/* ---- checking ---- */

/* One tolerance of one run: whether it holds, and a case of the file. */
static bool holds(const struct dt_cli_compared *c, int k, const struct tolerance *t,
                  struct dt_text *cases, char *failure, size_t size)
{
    char detail[256], name[128];
    double a = NAN, b = NAN, r;
    bool fine;

    find(c, k, t->name, &a, &b);
    r = dt_compare_relative(a, b);
    fine = fabs(r) <= t->percent / 100;
    snprintf(name, sizeof(name), "%s within %g %%", t->name, t->percent);
    snprintf(detail, sizeof(detail), "a: %.9g, %c: %.9g, difference %+.4f %%", a, 'a' + k, b,
             100 * r);
    snprintf(failure, size, "%s%s differs by %+.2f %%, more than %g %%",
             c->n > 2 ? (char[]){(char)('a' + k), ':', ' ', 0} : "", t->name, 100 * r, t->percent);
    add_case(cases, c, k, name, fine ? NULL : failure, detail);
    return fine;
}

enum dt_status dt_cli_compared_check(const struct dt_cli *cli, const struct dt_cli_compared *c,
                                     const char *junit, struct dt_error *err)
{
    char failure[256], first[256] = "", *rest;
    struct dt_text cases = {0};
    enum dt_status st = DT_OK;
    int n = 0, failures = 0;
    struct tolerance t;

    for (int i = 0; i < cli->n_list && st == DT_OK; i++) {
        st = parse(cli->list[i], err, &t);
        for (int k = 1; k < c->n && st == DT_OK; k++, n++) {
            if (holds(c, k, &t, &cases, failure, sizeof(failure)))
                continue;
            if (failures++ == 0)
                snprintf(first, sizeof(first), "%s", failure);
        }
    }
    if (st == DT_OK && junit)
        st = write_junit(junit, c, &cases, n, failures, err);
    if (st == DT_OK && failures > 0)
        st = dt_error_set(err, DT_ERR_TOLERANCE, "%s", first);
    if (dt_text_finish(&cases, NULL, &rest) == DT_OK)
        dt_free(rest);
    return st;
}
