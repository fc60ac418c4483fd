/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where a value of the cluster comes from: the job, a preset, the data sheet of a GPU; and what the preset's file says of
 * it.  Files of clusters name their sources in comments:
 *
 *     # source: what a benchmark showed
 *     # in two lines (measured)
 *     nic_latency: 24 us
 *     nic_efficiency: 0.94
 *
 * Such a comment is about the keys behind it, up to the next comment. */
#include "cli/page.h"

#include "base/file.h"
#include "core/model/cluster_gpu.h"
#include "core/model/shape.h"

#include <stdio.h>
#include <string.h>

enum { LAYERS_MAX = 16, FILE_MAX = 1 << 20, SOURCE_SIZE = 800 };

static const char *after(const char *s, const char *start)
{
    size_t n = strlen(start);

    return strncmp(s, start, n) == 0 ? s + n : NULL;
}

/* The comment that the line (counted from 1) stands under, its lines joined, without the '#'s; "" = none. */
static void comment_above(const char *text, int line, char *buf, size_t size)
{
    bool before = false; /* was the line before this one a comment */
    size_t n = 0;

    buf[0] = '\0';
    for (int i = 1; i < line && *text; i++) {
        size_t length = strcspn(text, "\n"), skip = strspn(text, " \t");
        bool is = text[skip] == '#';

        if (is) {
            size_t from = skip + 1 + strspn(text + skip + 1, " \t");

            if (!before)
                n = 0;
            if (from < length && n < size)
                n += (size_t)snprintf(buf + n, size - n, "%s%.*s", n ? " " : "",
                                      (int)(length - from), text + from);
        }
        before = is;
        text += length + (text[length] == '\n');
    }
}

static const char *file_source(struct dt_report_page_run *r, const char *file, int line)
{
    const char *folder = strstr(file, "/traces/"), *said;
    const char *name = folder ? folder + strlen("/traces/") : file;
    char comment[SOURCE_SIZE], *text;
    size_t size;

    if (dt_file_read(file, FILE_MAX, NULL, &text, &size) != DT_OK)
        return dt_cli_page_print(r, "%s:%d", name, line);
    comment_above(text, line, comment, sizeof comment);
    dt_free(text);
    said = after(comment, "source: ");
    return said ? dt_cli_page_print(r, "%s (%s:%d)", said, name, line)
                : dt_cli_page_print(r, "%s:%d, which names no source", name, line);
}

/* Does the device that a cluster's map names bring this value. */
static bool on_data_sheet(struct dt_node map, const char *key)
{
    const char *device = dt_node_text(dt_map_get(map, "device"));

    return device && dt_cluster_gpu_find(device) &&
           (strcmp(key, "peak_flops") == 0 || strcmp(key, "memory") == 0 ||
            strcmp(key, "hbm_bandwidth") == 0 || strcmp(key, "nvlink_bandwidth") == 0);
}

static const char *source_in(struct dt_report_page_run *r, struct dt_node node, const char *key,
                             int depth)
{
    struct dt_node preset = dt_node_is_scalar(node) ? node : dt_map_get(node, "preset");
    struct dt_node value = dt_map_get(node, key);
    const char *file, *found;
    struct dt_doc *doc;
    int line, column;

    dt_node_where(value, &file, &line, &column);
    if (dt_node_present(value))
        return depth == 0 ? "stated by the job" : file_source(r, file, line);
    if (on_data_sheet(node, key))
        return dt_cli_page_print(r, "data sheet of the %s",
                                 dt_node_text(dt_map_get(node, "device")));
    if (!dt_node_text(preset) || depth == LAYERS_MAX ||
        dt_preset_open(preset, "clusters", dt_node_text(preset), NULL, &doc) != DT_OK)
        return "default";
    found = source_in(r, dt_doc_root(doc), key, depth + 1);
    dt_doc_free(doc);
    return found;
}

const char *dt_cli_page_cluster_source(struct dt_report_page_run *r, const struct dt_job *job,
                                       const char *key)
{
    return source_in(r, dt_map_get(dt_doc_root(job->doc), "cluster"), key, 0);
}
