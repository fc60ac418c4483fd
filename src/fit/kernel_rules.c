/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading and applying the rules of a trace import. */
#include "fit/kernel_rules.h"

#include "base/doc.h"
#include "base/mem.h"

#include <ctype.h>
#include <regex.h>
#include <string.h>

enum {
    PATTERN_MAX = 256,
    TERMS = 4,
    CAPTURES = 10,
    SUBJECT_MAX = 4096, /* longer names are not matched: time of a regex grows with them */
    RULES_MAX = 1000,
    PREFIX_MAX = 32,
    EQUAL_MAX = 6,
};
#define DIM_MAX (INT64_C(1) << 48) /* of profile_table.c */

enum term_kind { TERM_NUMBER, TERM_CAPTURE, TERM_INPUT, TERM_LAST, TERM_ROWS };
struct term {
    enum term_kind kind;
    int64_t a, b;
};
struct dim {
    int n;
    struct term term[TERMS]; /* multiplied */
};
enum { ON_RANGE, ON_KERNEL, ON_CPU_OP, SUBJECTS }; /* captures come from the first that is there */
static const char *const subject_keys[SUBJECTS] = {"nvtx", "kernel", "cpu_op"};
struct pattern {
    bool has;
    size_t n_prefix; /* what a match must begin with: most ranges are sorted out by it alone */
    char prefix[PREFIX_MAX];
    regex_t re;
};
struct rule {
    struct pattern on[SUBJECTS];
    char dtype[16]; /* "" = not stated */
    struct dt_import_hit hit;
    int n_dims, n_equal;
    struct dim dim[6], equal[EQUAL_MAX]; /* equal[0] = equal[1], equal[2] = equal[3], ... */
};
struct dt_import_rules {
    size_t n;
    struct rule *rule;
};

/* Dims of each family, as documented at enum dt_kop_family. */
static int family_dims(int family)
{
    switch ((enum dt_kop_family)family) {
    case DT_KOP_GEMM:
    case DT_KOP_ACT:
    case DT_KOP_ALL_REDUCE:
    case DT_KOP_ALL_GATHER:
    case DT_KOP_REDUCE_SCATTER:
    case DT_KOP_ALL_TO_ALL:
        return 3;
    case DT_KOP_ATTN_CAUSAL:
    case DT_KOP_ATTN_FULL:
    case DT_KOP_ATTN_CROSS:
    case DT_KOP_CONV2D:
        return 5;
    case DT_KOP_ADAMW:
        return 1;
    case DT_KOP_NORM:
    case DT_KOP_GROUPNORM:
    case DT_KOP_ADD:
    case DT_KOP_ROPE:
    case DT_KOP_EMBED:
    case DT_KOP_XENT:
    case DT_KOP_SEND_RECV:
    case DT_KOP_BLOCK:
    case DT_KOP_CPU_PREP:
    case DT_KOP_CARRY:
    case DT_KOP_FAMILY_N:
        break;
    }
    return 2;
}

/* Past a bracket expression that begins at p, where ] may be the first character and [:alpha:] hold
 * one; to the end of the text if it has no end. */
static const char *skip_bracket(const char *p)
{
    p += p[1] == '^' ? 2 : 1;
    p += *p == ']';
    while (*p && *p != ']') {
        if (*p == '[' && p[1] && strchr(":.=", p[1])) {
            const char kind = p[1];

            for (p += 2; *p && !(*p == kind && p[1] == ']'); p++)
                ;
            p += *p != '\0';
        }
        p += *p != '\0';
    }
    return p;
}

/* Intervals and back-references are what makes POSIX matchers take exponential space or time. */
static bool pattern_safe(const char *p)
{
    for (; *p; p++) {
        if (*p == '[') {
            p = skip_bracket(p);
            if (!*p)
                break;
        } else if (*p == '\\' && p[1]) {
            p++;
            if (isdigit((unsigned char)*p))
                return false;
        } else if (*p == '{') {
            return false;
        }
    }
    return true;
}

/* POSIX leaves open what a sign of repetition right behind another means, and compilers spend minutes on rows of them. */
static bool pattern_plain(const char *p)
{
    bool sign = false;

    for (; *p; p++) {
        bool before = sign;

        sign = *p == '*' || *p == '+' || *p == '?';
        if (sign && before)
            return false;
        if (*p == '[')
            p = skip_bracket(p);
        else if (*p == '\\' && p[1])
            p++;
        if (!*p)
            break;
    }
    return true;
}

/* POSIX compilers write x+ as xx*: groups repeated within repeated groups double at each level, and what is not there without
 * that takes them time of its square and more. */
static bool pattern_small(const char *p)
{
    enum { LEVELS = 32, MORE = 256 };
    int64_t before[LEVELS] = {0}, atom[LEVELS] = {0}; /* nodes of each open group */
    int64_t most = (int64_t)strlen(p) + MORE;
    int level = 0;

    for (; *p; p++) {
        if (*p == '(') {
            before[level] += atom[level];
            if (++level == LEVELS)
                return false;
            before[level] = atom[level] = 0;
        } else if (*p == ')' && level > 0) {
            level--;
            atom[level] = before[level + 1] + atom[level + 1];
        } else if (*p == '+') {
            atom[level] *= 2;
        } else if (!strchr("*?|^$", *p)) {
            if (*p == '[')
                p = skip_bracket(p);
            else if (*p == '\\' && p[1])
                p++;
            before[level] += atom[level];
            atom[level] = 1;
            if (!*p)
                break;
        }
        if (before[level] + atom[level] > most)
            return false;
    }
    return true;
}

/* "^aten::mm, " begins with itself; the character before a repetition or an alternative is in
 * doubt. */
static void find_prefix(const char *p, struct pattern *out)
{
    size_t n = 0;

    if (*p++ != '^' || strchr(p, '|'))
        return;
    while (n < PREFIX_MAX && p[n] && !strchr("\\[](){}.*+?^$", p[n]))
        n++;
    if (n > 0 && (p[n] == '*' || p[n] == '?'))
        n--;
    memcpy(out->prefix, p, n);
    out->n_prefix = n;
}

static enum dt_status read_pattern(struct dt_node map, int i, struct rule *r, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, subject_keys[i]);
    const char *text = dt_node_text(n);
    char why[128];
    int rc;

    if (!dt_node_present(n))
        return DT_OK;
    if (!text || !*text || strlen(text) > PATTERN_MAX)
        return dt_node_error(n, err, "%s: a regular expression of 1 to %d characters is expected",
                             subject_keys[i], PATTERN_MAX);
    if (!pattern_safe(text))
        return dt_node_error(n, err,
                             "%s: {counts} and back-references are not taken; a literal brace is "
                             "[{] or \\{",
                             subject_keys[i]);
    if (!pattern_plain(text))
        return dt_node_error(n, err,
                             "%s: a *, + or ? right behind another has no meaning; leave one out, "
                             "or write [+] for the "
                             "character",
                             subject_keys[i]);
    if (!pattern_small(text))
        return dt_node_error(n, err,
                             "%s: repetitions within repetitions make this pattern too large",
                             subject_keys[i]);
    rc = regcomp(&r->on[i].re, text, REG_EXTENDED);
    if (rc) {
        regerror(rc, &r->on[i].re, why, sizeof(why));
        return dt_node_error(n, err, "%s: not a POSIX extended regular expression: %s",
                             subject_keys[i], why);
    }
    r->on[i].has = true;
    find_prefix(text, &r->on[i]);
    return DT_OK;
}

static bool digits(const char **s, int64_t max, int64_t *out)
{
    int64_t v = 0;

    if (!isdigit((unsigned char)**s))
        return false;
    for (; isdigit((unsigned char)**s); ++*s)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, **s - '0', &v) ||
            v > max)
            return false;
    *out = v;
    return true;
}

static bool read_term(const char **s, struct term *t)
{
    if (**s == '$') {
        ++*s;
        t->kind = TERM_CAPTURE;
        return digits(s, CAPTURES - 1, &t->a) && t->a > 0;
    }
    if (strncmp(*s, "input", 5) == 0) {
        *s += 5;
        t->kind = TERM_INPUT;
        if (!digits(s, DT_KTRACE_OPERANDS - 1, &t->a) || **s != '.')
            return false;
        ++*s;
        if (strncmp(*s, "last", 4) == 0 || strncmp(*s, "rows", 4) == 0) {
            t->kind = **s == 'l' ? TERM_LAST : TERM_ROWS;
            *s += 4;
            return true;
        }
        return digits(s, DT_KTRACE_AXES - 1, &t->b);
    }
    t->kind = TERM_NUMBER;
    return digits(s, INT64_MAX, &t->a);
}

static enum dt_status read_dim(struct dt_node n, struct dim *d, struct dt_error *err)
{
    const char *s = dt_node_text(n);

    for (d->n = 0; s && d->n < TERMS && read_term(&s, &d->term[d->n]); s++) {
        d->n++;
        if (*s == '\0')
            return DT_OK;
        if (*s != '*')
            break;
    }
    return dt_node_error(n, err,
                         "a dim is a number, $1 to $9 (capture), input0.1 (operand 0, axis 1), "
                         "input0.last, input0.rows (all axes but the last), or up to %d of these "
                         "with * between",
                         TERMS);
}

static enum dt_status check_captures(struct dt_node n, const struct rule *r, const struct dim *d,
                                     struct dt_error *err)
{
    int from = 0;

    while (!r->on[from].has)
        from++;
    for (int k = 0; k < d->n; k++)
        if (d->term[k].kind == TERM_CAPTURE && d->term[k].a > (int64_t)r->on[from].re.re_nsub)
            return dt_node_error(n, err, "%s has %zu capture%s", subject_keys[from],
                                 r->on[from].re.re_nsub, r->on[from].re.re_nsub == 1 ? "" : "s");
    return DT_OK;
}

static enum dt_status read_dims(struct dt_node list, const struct rule *r, int n, struct dim *d,
                                struct dt_error *err)
{
    for (int i = 0; i < n; i++) {
        struct dt_node one = dt_seq_at(list, (size_t)i);

        DT_TRY(read_dim(one, &d[i], err));
        DT_TRY(check_captures(one, r, &d[i], err));
    }
    return DT_OK;
}

static enum dt_status read_equal(struct dt_node map, struct rule *r, struct dt_error *err)
{
    struct dt_node list = dt_map_get(map, "equal");
    size_t n = dt_node_is_seq(list) ? dt_seq_size(list) : 0;

    if (!dt_node_present(list))
        return DT_OK;
    if (n == 0 || n % 2 != 0 || n > EQUAL_MAX)
        return dt_node_error(list, err, "equal: a list of 1 to %d pairs of dims is expected",
                             EQUAL_MAX / 2);
    r->n_equal = (int)n;
    return read_dims(list, r, r->n_equal, r->equal, err);
}

static enum dt_status read_op(struct dt_node map, struct rule *r, struct dt_error *err)
{
    static const char *const phases[] = {"fwd", "dgrad", "wgrad", NULL};
    const char *ops[DT_KOP_FAMILY_N + 1] = {NULL};
    struct dt_node dims = dt_map_get(map, "dims");
    int family = 0, phase = 0;

    for (int f = 0; f < DT_KOP_BLOCK; f++)
        ops[f] = dt_kop_family_names[f];
    DT_TRY(dt_map_require(map, "a rule", "op", err));
    DT_TRY(dt_map_require(map, "a rule", "dims", err));
    DT_TRY(dt_get_enum(map, "op", ops, &family, err));
    DT_TRY(dt_get_enum(map, "phase", phases, &phase, err));
    r->hit.sum = !r->on[ON_KERNEL].has;
    DT_TRY(dt_get_bool(map, "sum", &r->hit.sum, err));
    DT_TRY(dt_get_string(map, "dtype", r->dtype, sizeof(r->dtype), err));
    r->hit.family = (enum dt_kop_family)family;
    r->hit.phase = (enum dt_kop_phase)phase;
    r->n_dims = family_dims(family);
    if (!dt_node_is_seq(dims) || dt_seq_size(dims) != (size_t)r->n_dims)
        return dt_node_error(dims, err, "dims of %s: a list of %d is expected", ops[family],
                             r->n_dims);
    DT_TRY(read_dims(dims, r, r->n_dims, r->dim, err));
    return read_equal(map, r, err);
}

static enum dt_status read_rule(struct dt_node map, struct rule *r, struct dt_error *err)
{
    static const char *const keys[] = {"kernel", "nvtx",  "cpu_op", "op",     "phase",    "dims",
                                       "sum",    "dtype", "equal",  "ignore", "unmapped", NULL};
    bool any = false;

    DT_TRY(dt_map_check(map, "a rule", keys, err));
    for (int i = 0; i < SUBJECTS; i++) {
        DT_TRY(read_pattern(map, i, r, err));
        any |= r->on[i].has;
    }
    if (!any)
        return dt_node_error(map, err, "a rule needs kernel:, nvtx: or cpu_op:");
    DT_TRY(dt_get_bool(map, "ignore", &r->hit.ignore, err));
    DT_TRY(dt_get_bool(map, "unmapped", &r->hit.unmapped, err));
    if (!r->hit.ignore && !r->hit.unmapped)
        return read_op(map, r, err);
    if ((r->hit.ignore && r->hit.unmapped) || dt_node_present(dt_map_get(map, "op")) ||
        dt_node_present(dt_map_get(map, "dims")))
        return dt_node_error(map, err, "a rule has one of: an op, ignore: true, unmapped: true");
    return DT_OK;
}

static enum dt_status read_rules(const struct dt_doc *doc, struct dt_error *err,
                                 struct dt_import_rules **out)
{
    static const char *const keys[] = {"rules", NULL};
    struct dt_node root = dt_doc_root(doc), list;
    struct dt_import_rules *r;

    DT_TRY(dt_map_check(root, "a rules file", keys, err));
    DT_TRY(dt_map_require(root, "a rules file", "rules", err));
    list = dt_map_get(root, "rules");
    if (!dt_node_is_seq(list) || dt_seq_size(list) == 0 || dt_seq_size(list) > RULES_MAX)
        return dt_node_error(list, err, "rules: a list of 1 to %d rules is expected", RULES_MAX);
    r = dt_calloc(1, sizeof(*r));
    if (r)
        r->rule = dt_calloc(dt_seq_size(list), sizeof(*r->rule));
    if (!r || !r->rule) {
        dt_free(r);
        return dt_error_nomem(err, "rules");
    }
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        enum dt_status st;

        r->n++;
        st = read_rule(dt_seq_at(list, i), &r->rule[i], err);
        if (st != DT_OK) {
            dt_import_rules_free(r);
            return st;
        }
    }
    *out = r;
    return DT_OK;
}

enum dt_status dt_import_rules_parse(const char *name, const char *text, size_t len,
                                     struct dt_error *err, struct dt_import_rules **out)
{
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    st = read_rules(doc, err, out);
    dt_doc_free(doc);
    return st;
}

enum dt_status dt_import_rules_read(const char *path, struct dt_error *err,
                                    struct dt_import_rules **out)
{
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_doc_read(path, err, &doc));
    st = read_rules(doc, err, out);
    dt_doc_free(doc);
    return st;
}

void dt_import_rules_free(struct dt_import_rules *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; k < SUBJECTS; k++)
            if (r->rule[i].on[k].has)
                regfree(&r->rule[i].on[k].re);
    dt_free(r->rule);
    dt_free(r);
}

size_t dt_import_rules_count(const struct dt_import_rules *r)
{
    return r->n;
}

static bool fits(const struct pattern *p, const char *subject, regmatch_t *m)
{
    return subject && strncmp(subject, p->prefix, p->n_prefix) == 0 &&
           strlen(subject) <= SUBJECT_MAX && regexec(&p->re, subject, m ? CAPTURES : 0, m, 0) == 0;
}

void dt_import_rules_select(const struct dt_import_rules *r, const char *kernel, const char *cpu_op,
                            bool *may)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct pattern *on = r->rule[i].on;

        may[i] = (!on[ON_KERNEL].has || fits(&on[ON_KERNEL], kernel, NULL)) &&
                 (!on[ON_CPU_OP].has || fits(&on[ON_CPU_OP], cpu_op, NULL));
    }
}

static bool input_value(const struct term *t, const int64_t *size, int axes, int64_t *v)
{
    if (t->kind == TERM_ROWS) {
        *v = 1;
        for (int i = 0; i < axes - 1; i++)
            if (size[i] < 0 || __builtin_mul_overflow(*v, size[i], v))
                return false;
        return true;
    }
    if (t->kind == TERM_INPUT && t->b >= axes)
        return false;
    *v = size[t->kind == TERM_LAST ? axes - 1 : t->b];
    return *v >= 0;
}

static bool term_value(const struct term *t, const char *subject, const regmatch_t *m,
                       const struct dt_import_trace_inputs *in, int64_t *v)
{
    const char *s;

    switch (t->kind) {
    case TERM_NUMBER:
        *v = t->a;
        return true;
    case TERM_CAPTURE:
        if (m[t->a].rm_so < 0)
            return false;
        s = subject + m[t->a].rm_so;
        return digits(&s, DIM_MAX, v) && s == subject + m[t->a].rm_eo;
    case TERM_INPUT:
    case TERM_LAST:
    case TERM_ROWS:
        break;
    }
    return in && t->a < in->n && in->axes[t->a] > 0 &&
           input_value(t, in->size[t->a], in->axes[t->a], v);
}

static bool dim_value(const struct dim *d, const char *captured, const regmatch_t *m,
                      const struct dt_import_trace_inputs *in, int64_t *out)
{
    *out = 1;
    for (int k = 0; k < d->n; k++) {
        int64_t v = 0;

        if (!term_value(&d->term[k], captured, m, in, &v) || __builtin_mul_overflow(*out, v, out))
            return false;
    }
    return *out <= DIM_MAX;
}

static bool dims(const struct rule *r, const char *captured, const regmatch_t *m,
                 const struct dt_import_trace_inputs *in, int64_t *d)
{
    for (int i = 0; i < r->n_dims; i++)
        if (!dim_value(&r->dim[i], captured, m, in, &d[i]) || (i == 0 && d[i] < 1))
            return false;
    for (int i = 0; i < r->n_equal; i += 2) {
        int64_t a, b;

        if (!dim_value(&r->equal[i], captured, m, in, &a) ||
            !dim_value(&r->equal[i + 1], captured, m, in, &b) || a != b)
            return false;
    }
    return true;
}

/* Its kernel and cpu_op are known to fit. */
static bool rule_fits(const struct rule *r, const struct dt_import_trace_what *w,
                      struct dt_import_hit *hit)
{
    regmatch_t m[CAPTURES];
    const char *captured = NULL;
    int range = -1;

    if (r->on[ON_RANGE].has) {
        for (range = 0; range < w->n_ranges; range++)
            if (fits(&r->on[ON_RANGE], w->range[range], m))
                break;
        if (range == w->n_ranges)
            return false;
        captured = w->range[range];
    } else {
        int from = r->on[ON_KERNEL].has ? ON_KERNEL : ON_CPU_OP;

        captured = from == ON_KERNEL ? w->kernel : w->cpu_op;
        if (!fits(&r->on[from], captured, m))
            return false;
    }
    *hit = r->hit;
    hit->range = range;
    hit->dtype = r->dtype[0] ? r->dtype : NULL;
    return dims(r, captured, m, w->inputs, hit->d);
}

bool dt_import_rules_match(const struct dt_import_rules *r, const bool *may,
                           const struct dt_import_trace_what *w, struct dt_import_hit *hit)
{
    for (size_t i = 0; i < r->n; i++)
        if (may[i] && rule_fits(&r->rule[i], w, hit))
            return true;
    return false;
}
