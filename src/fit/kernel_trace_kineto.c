/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * PyTorch Kineto traces: kernels, the operators that launched them with the shapes and types of
 * their inputs, and the annotations around those.  Names of keys and categories as in libkineto's
 * output_json.cpp, from the first ("Operator", "Runtime", "Kernel", "external id") to today's
 * ("cpu_op", "cuda_runtime", "kernel", "External id"); events of others are left out. */
#include "base/doc.h"
#include "fit/kernel_dtype.h"
#include "fit/kernel_trace.h"
#include "base/hash.h"
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TIME_MAX_US                                                                                \
    INT64_C(4000000000000000) /* of an epoch or of a boot; times in ns stay in 63 bits */

struct host { /* an operator, or a runtime call */
    int64_t id, thread, at_ns;
    int64_t external; /* of a call: its operator */
    bool has_external;
};
struct hosts {
    struct host *at;
    size_t n, cap;
};
struct pending { /* ids of a kernel, to be joined when all events have been seen */
    int64_t correlation;
    bool has_correlation;
};
struct reading {
    struct dt_import_trace *t;
    struct dt_error *err;
    struct hosts ops, calls;
    struct pending *pending;
    size_t cap_pending;
    uint64_t devices; /* that kernels say they ran on, a bit each */
    bool unsaid;      /* some say nothing of the kind */
};

static const char *text_of(struct dt_node map, const char *key)
{
    struct dt_node n = dt_map_get(map, key);

    return dt_node_present(n) ? dt_node_text(n) : NULL;
}

/* Microseconds with up to three decimals -> ns, in integers: a double of a time since 1970 would
 * lose 256 ns. */
static bool micros(const char *s, int64_t *out)
{
    bool minus = *s == '-';
    int64_t v = 0, unit = 1000;
    double d;

    if (strpbrk(s, "eE")) {
        if (!dt_number_double(s, &d) || fabs(d) > (double)TIME_MAX_US)
            return false;
        *out = llrint(d * 1000);
        return true;
    }
    s += minus;
    if (*s < '0' || *s > '9')
        return false;
    for (; *s >= '0' && *s <= '9'; s++)
        if ((v = 10 * v + (*s - '0')) > TIME_MAX_US)
            return false;
    v *= 1000;
    if (*s == '.')
        for (s++; *s >= '0' && *s <= '9'; s++)
            v += (*s - '0') * (unit /= 10);
    *out = minus ? -v : v;
    return *s == '\0';
}

static enum dt_status time_of(struct dt_node event, const char *key, struct dt_error *err,
                              int64_t *out)
{
    struct dt_node n = dt_map_get(event, key);
    const char *text = dt_node_present(n) ? dt_node_text(n) : NULL;

    if (!text)
        return dt_node_error(event, err, "an event without %s", key);
    if (!micros(text, out))
        return dt_node_error(n, err, "%s: '%.40s' is not a time in microseconds", key, text);
    return DT_OK;
}

static bool id_of(struct dt_node args, const char *key, int64_t *out)
{
    const char *text = dt_node_is_map(args) ? text_of(args, key) : NULL;

    return text && dt_number_int(text, out);
}

/* The operator of a kernel or call.  Versions of 2022 and 2023 write the correlation there, and 0
 * stands for none: neither is the id of an operator. */
static bool external_of(struct dt_node args, int64_t *out)
{
    int64_t id, correlation;

    if (!id_of(args, "External id", &id) && !id_of(args, "external id", &id))
        return false;
    if (id == 0 || (id_of(args, "correlation", &correlation) && id == correlation))
        return false;
    *out = id;
    return true;
}

/* pid and tid are numbers or words ("stream 7"). */
static int64_t thread_of(struct dt_node event)
{
    static const char *const keys[] = {"pid", "tid"};
    uint64_t h = DT_HASH_START;

    for (int i = 0; i < 2; i++) {
        const char *s = text_of(event, keys[i]);

        h = dt_hash_text(dt_hash_text(h, s ? s : ""), "/");
    }
    return (int64_t)(h >> 1);
}

/* [[4096, 1024], [1024, 1024], []]; anything else in it, as of lists of tensors, has no sizes. */
static void read_sizes(struct dt_node dims, struct dt_import_trace_inputs *in)
{
    for (size_t i = 0; i < dt_seq_size(dims) && i < DT_KTRACE_OPERANDS; i++) {
        struct dt_node one = dt_seq_at(dims, i);

        in->n = (int)i + 1;
        for (size_t k = 0; dt_node_is_seq(one) && k < dt_seq_size(one) && k < DT_KTRACE_AXES; k++) {
            const char *s = dt_node_text(dt_seq_at(one, k));

            if (!s || !dt_number_int(s, &in->size[i][k]))
                break;
            in->axes[i] = (int)k + 1;
        }
    }
}

/* Names of tensors' element types, as Kineto writes them: "c10::BFloat16". */
static void read_types(struct dt_node types, struct dt_import_trace_inputs *in)
{
    for (size_t i = 0; dt_node_is_seq(types) && i < dt_seq_size(types) && i < (size_t)in->n; i++) {
        const char *s = dt_node_text(dt_seq_at(types, i));

        if (s)
            in->type[i] = dt_import_type_of(s);
    }
}

static enum dt_status read_inputs(struct reading *rd, struct dt_node args,
                                  const struct dt_import_trace_inputs **out)
{
    struct dt_node dims = dt_map_get(args, "Input Dims");
    struct dt_import_trace_inputs *in;

    if (!dt_node_is_seq(dims))
        return DT_OK;
    in = DT_ARENA_NEW(&rd->t->arena, struct dt_import_trace_inputs, 1);
    if (!in)
        return dt_error_nomem(rd->err, "shapes of a trace");
    read_sizes(dims, in);
    read_types(dt_map_get(args, "Input type"), in);
    *out = in;
    return DT_OK;
}

static enum dt_status add_host(struct reading *rd, struct hosts *h, const struct host *one)
{
    if (dt_grow((void **)&h->at, &h->cap, h->n + 1, sizeof(*one)))
        return dt_error_nomem(rd->err, "operators of a trace");
    h->at[h->n++] = *one;
    return DT_OK;
}

static enum dt_status copy_name(struct reading *rd, struct dt_node event, const char **out)
{
    const char *name = text_of(event, "name");

    *out = dt_arena_strdup(&rd->t->arena, name ? name : "(no name)");
    return *out ? DT_OK : dt_error_nomem(rd->err, "names of a trace");
}

static enum dt_status read_kernel(struct reading *rd, struct dt_node event, struct dt_node args)
{
    struct dt_import_trace_kernel k = {.thread = -1};
    struct pending p = {0};

    DT_TRY(time_of(event, "ts", rd->err, &k.at_ns));
    DT_TRY(time_of(event, "dur", rd->err, &k.duration_ns));
    if (k.duration_ns < 0 || k.duration_ns > DT_KTRACE_DURATION_MAX_NS)
        return dt_node_error(event, rd->err, "a kernel of less than no time or of over 100 s");
    DT_TRY(copy_name(rd, event, &k.name));
    p.has_correlation = id_of(args, "correlation", &p.correlation);
    k.has_op = external_of(args, &k.op_id);
    if (dt_grow((void **)&rd->pending, &rd->cap_pending, rd->t->n_kernels + 1, sizeof(p)))
        return dt_error_nomem(rd->err, "kernels of a trace");
    rd->pending[rd->t->n_kernels] = p;
    return dt_import_trace_add_kernel(rd->t, &k, rd->err);
}

static enum dt_status read_call(struct reading *rd, struct dt_node event, struct dt_node args)
{
    struct host h = {.thread = thread_of(event)};

    if (!id_of(args, "correlation", &h.id))
        return DT_OK;
    h.has_external = external_of(args, &h.external);
    DT_TRY(time_of(event, "ts", rd->err, &h.at_ns));
    return add_host(rd, &rd->calls, &h);
}

static enum dt_status read_range(struct reading *rd, struct dt_node event, struct dt_node args,
                                 bool op)
{
    struct dt_import_trace_range r = {.thread = thread_of(event), .op = op};
    struct host h = {.thread = r.thread};
    int64_t dur = 0;

    DT_TRY(time_of(event, "ts", rd->err, &r.start_ns));
    DT_TRY(time_of(event, "dur", rd->err, &dur));
    if (dur < 0)
        return dt_node_error(event, rd->err, "a range that ends before it starts");
    r.end_ns = r.start_ns + dur;
    DT_TRY(copy_name(rd, event, &r.text));
    if (op && external_of(args, &r.id)) {
        h.id = r.id;
        h.at_ns = r.start_ns;
        DT_TRY(add_host(rd, &rd->ops, &h));
    }
    if (op && dt_node_is_map(args))
        DT_TRY(read_inputs(rd, args, &r.inputs));
    return dt_import_trace_add_range(rd->t, &r, rd->err);
}

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(s, *words) == 0)
            return true;
    return false;
}

/* A machine has no more devices than there are bits. */
static void see_device(struct reading *rd, struct dt_node args)
{
    int64_t id;

    if (id_of(args, "device", &id) && id >= 0 && id < 64)
        rd->devices |= UINT64_C(1) << id;
    else
        rd->unsaid = true;
}

static enum dt_status read_event(struct reading *rd, struct dt_node event)
{
    static const char *const gpu[] = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel",
                                      "Memcpy", "Memset",     NULL};
    static const char *const calls[] = {
        "cuda_runtime",        "cuda_driver", "hip_runtime", "xpu_runtime",
        "privateuse1_runtime", "Runtime",     NULL};
    static const char *const ops[] = {"cpu_op", "Operator", NULL};
    const char *ph, *cat;
    struct dt_node args;

    if (!dt_node_is_map(event))
        return dt_node_error(event, rd->err, "traceEvents: an event is a map");
    ph = text_of(event, "ph");
    cat = text_of(event, "cat");
    args = dt_map_get(event, "args");
    if (!ph || !cat || strcmp(ph, "X") != 0)
        return DT_OK;
    if (strcasecmp(cat, "kernel") == 0)
        see_device(rd, args);
    if (is_one_of(cat, gpu))
        return read_kernel(rd, event, args);
    if (is_one_of(cat, ops))
        return read_range(rd, event, args, true);
    if (is_one_of(cat, calls))
        return read_call(rd, event, args);
    if (strcmp(cat, "user_annotation") == 0)
        return read_range(rd, event, args, false);
    return DT_OK;
}

static int by_id(const void *x, const void *y)
{
    const struct host *a = x, *b = y;

    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns ? -1 : 1;
    return (a->thread > b->thread) - (a->thread < b->thread);
}

/* The first with this id; NULL if several threads have one, as in traces of ranks put together. */
static const struct host *find(const struct hosts *h, bool has, int64_t id)
{
    size_t lo = 0, hi = has ? h->n : 0;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (h->at[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (!has || lo >= h->n || h->at[lo].id != id)
        return NULL;
    for (size_t i = lo + 1; i < h->n && h->at[i].id == id; i++)
        if (h->at[i].thread != h->at[lo].thread)
            return NULL;
    return &h->at[lo];
}

/* A kernel was launched by its runtime call, or if that is not there in its operator. */
static void join(struct reading *rd)
{
    if (rd->ops.n)
        qsort(rd->ops.at, rd->ops.n, sizeof(*rd->ops.at), by_id);
    if (rd->calls.n)
        qsort(rd->calls.at, rd->calls.n, sizeof(*rd->calls.at), by_id);
    for (size_t i = 0; i < rd->t->n_kernels; i++) {
        struct dt_import_trace_kernel *k = &rd->t->kernels[i];
        const struct pending *p = &rd->pending[i];
        const struct host *from = find(&rd->calls, p->has_correlation, p->correlation);

        if (from && from->has_external && !k->has_op) {
            k->has_op = true;
            k->op_id = from->external;
        }
        if (!from)
            from = find(&rd->ops, k->has_op, k->op_id);
        if (from) {
            k->thread = from->thread;
            k->at_ns = from->at_ns;
        }
    }
}

/* The names of these; returns which of them the list has. */
static uint64_t name_devices(struct reading *rd, struct dt_node list, uint64_t which)
{
    uint64_t found = 0;

    for (size_t i = 0; i < dt_seq_size(list); i++) {
        struct dt_node one = dt_seq_at(list, i);
        int64_t id = (int64_t)i;

        if (!dt_node_is_map(one))
            continue;
        id_of(one, "id", &id);
        if (which != UINT64_MAX && (id < 0 || id >= 64 || !(which >> id & 1)))
            continue;
        if (id >= 0 && id < 64)
            found |= UINT64_C(1) << id;
        dt_import_trace_add_device(rd->t, text_of(one, "name"));
    }
    return found;
}

/* Those that kernels ran on; all that are listed where a kernel's may be any of them. */
static void read_device(struct reading *rd, struct dt_node root)
{
    struct dt_node list = dt_node_is_map(root) ? dt_map_get(root, "deviceProperties") : root;

    if (!dt_node_is_map(root) || !dt_node_is_seq(list))
        return;
    if (name_devices(rd, list, rd->devices) != rd->devices || rd->unsaid || rd->devices == 0)
        name_devices(rd, list, UINT64_MAX);
}

/* ---- the list of events, piece by piece: whole, it is more than a document may hold ---- */

#define PIECE_BYTES ((size_t)1 << 20)

struct scan { /* over JSON text */
    const char *name, *text;
    size_t len, at;
    int line;
    size_t line_start;
};

static void step(struct scan *s)
{
    if (s->text[s->at++] == '\n') {
        s->line++;
        s->line_start = s->at;
    }
}

/* Past a string that begins here; to the end of the text if it has no end. */
static void skip_string(struct scan *s)
{
    for (step(s); s->at < s->len && s->text[s->at] != '"'; step(s))
        if (s->text[s->at] == '\\' && s->at + 1 < s->len)
            step(s);
    if (s->at < s->len)
        step(s);
}

static void skip_space(struct scan *s)
{
    while (s->at < s->len && strchr(" \t\r\n", s->text[s->at]) && s->text[s->at])
        step(s);
}

/* To the [ of the events: that of the whole text, or of the root's key traceEvents. */
static bool find_events(struct scan *s)
{
    static const char key[] = "\"traceEvents\"";
    int depth = 0;

    for (skip_space(s); s->at < s->len;) {
        char c = s->text[s->at];
        size_t from = s->at;

        if (c == '[' && depth == 0)
            return true;
        if (c != '"') {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            step(s);
            continue;
        }
        skip_string(s);
        if (depth != 1 || s->at - from != sizeof(key) - 1 ||
            memcmp(s->text + from, key, sizeof(key) - 1) != 0)
            continue;
        skip_space(s);
        if (s->at < s->len && s->text[s->at] == ':') {
            step(s);
            skip_space(s);
            return s->at < s->len && s->text[s->at] == '[';
        }
    }
    return false;
}

/* An error's place in a piece that begins at `from` is that in the file. */
static enum dt_status moved(struct dt_error *err, const struct scan *from, enum dt_status st)
{
    if (st != DT_OK && err && err->line > 0) {
        if (err->line == 1)
            err->col += (int)(from->at - from->line_start);
        err->line += from->line;
    }
    return st;
}

/* The events between from->at, a [ or comma, and `end`, a comma, ] or the end of the text. */
static enum dt_status read_piece(struct reading *rd, const struct scan *from, size_t end)
{
    size_t n = end - from->at;
    char *text = dt_malloc(n + 2);
    struct dt_doc *doc;
    enum dt_status st;

    if (!text)
        return dt_error_nomem(rd->err, "a piece of a trace");
    memcpy(text, from->text + from->at, n);
    text[0] = '[';
    if (end < from->len)
        text[n++] = ']';
    st = moved(rd->err, from, dt_doc_parse(from->name, text, n, rd->err, &doc));
    dt_free(text);
    if (st != DT_OK)
        return st;
    for (size_t i = 0; i < dt_seq_size(dt_doc_root(doc)) && st == DT_OK; i++)
        st = moved(rd->err, from, read_event(rd, dt_seq_at(dt_doc_root(doc), i)));
    dt_doc_free(doc);
    return st;
}

static enum dt_status read_pieces(struct reading *rd, struct scan *s)
{
    struct scan from = *s;
    int depth = 0;

    for (step(s); s->at < s->len;) {
        char c = s->text[s->at];

        if (depth == 0 && (c == ']' || (c == ',' && s->at - from.at >= PIECE_BYTES))) {
            DT_TRY(read_piece(rd, &from, s->at));
            if (c == ']')
                return DT_OK;
            from = *s;
        }
        if (c == '"') {
            skip_string(s);
            continue;
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        step(s);
    }
    DT_TRY(read_piece(rd, &from, s->len)); /* says where the text breaks off */
    return dt_error_at(rd->err, DT_ERR_INPUT, s->name, s->line + 1, 0,
                       "the list of events has no end");
}

/* What is around the events. */
static enum dt_status read_rest(struct reading *rd, const struct scan *open, const struct scan *end)
{
    size_t head = open->at + 1, tail = end->len - end->at;
    char *text = dt_malloc(head + tail + 1);
    struct dt_doc *doc;
    enum dt_status st;

    if (!text)
        return dt_error_nomem(rd->err, "a piece of a trace");
    memcpy(text, open->text, head);
    memcpy(text + head, end->text + end->at, tail);
    st = dt_doc_parse(open->name, text, head + tail, rd->err, &doc);
    dt_free(text);
    if (st != DT_OK) {
        if (rd->err && rd->err->line > open->line + 1)
            rd->err->line += end->line - open->line;
        return st;
    }
    read_device(rd, dt_doc_root(doc));
    dt_doc_free(doc);
    return DT_OK;
}

static enum dt_status no_events(struct reading *rd, const char *name, const char *text, size_t len)
{
    struct dt_doc *doc;

    DT_TRY(dt_doc_parse(name, text, len, rd->err, &doc)); /* no JSON at all: where it breaks off */
    dt_doc_free(doc);
    return dt_error_at(rd->err, DT_ERR_INPUT, name, 1, 1,
                       "no list traceEvents: not a Kineto trace (torch.profiler, "
                       "export_chrome_trace)");
}

static enum dt_status read_all(struct reading *rd, const char *name, const char *text, size_t len)
{
    struct scan s = {.name = name, .text = text, .len = len}, open;

    if (!find_events(&s))
        return no_events(rd, name, text, len);
    open = s;
    DT_TRY(read_pieces(rd, &s));
    DT_TRY(read_rest(rd, &open, &s));
    if (rd->t->n_kernels == 0)
        return dt_error_at(rd->err, DT_ERR_INPUT, name, open.line + 1, 0,
                           "the trace holds no kernel (was ProfilerActivity.CUDA on?)");
    join(rd);
    return DT_OK;
}

enum dt_status dt_import_trace_parse_kineto(const char *name, const char *text, size_t len,
                                            struct dt_error *err, struct dt_import_trace *out)
{
    struct dt_import_trace t = {0};
    struct reading rd = {.t = &t, .err = err};
    enum dt_status st = read_all(&rd, name, text, len);

    dt_free(rd.ops.at);
    dt_free(rd.calls.at);
    dt_free(rd.pending);
    if (st == DT_OK)
        *out = t;
    else
        dt_import_trace_free(&t);
    return st;
}
