/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/html.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "report/chart.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *entity(char c)
{
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    }
    return NULL;
}

/* XML 1.0 allows neither other control characters nor U+FFFE and U+FFFF. */
static bool is_xml(const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;

    if (n == 1)
        return (c >= 0x20 && c != 0x7f) || c == '\t' || c == '\n' || c == '\r';
    if (n == 3 && c == 0xef && (unsigned char)s[1] == 0xbf)
        return (unsigned char)s[2] < 0xbe;
    return !(n == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0); /* C1 controls */
}

void dt_html_escape(struct dt_text *t, const char *s)
{
    size_t left = s ? strlen(s) : 0;

    while (left > 0) {
        size_t n = dt_utf8_length(s, left);
        const char *e = n == 1 ? entity(*s) : NULL;

        if (e)
            dt_text_add(t, "%s", e);
        else if (n > 0 && is_xml(s, n))
            dt_text_add(t, "%.*s", (int)n, s);
        else
            dt_text_add(t, "\xef\xbf\xbd");
        n = n > 0 ? n : 1;
        s += n;
        left -= n;
    }
}

void dt_html_text(struct dt_text *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    dt_html_escape(t, text);
}

void dt_html_raw(struct dt_text *t, const char *s)
{
    enum { PIECE = 500 };

    for (size_t n = strlen(s), at = 0; at < n; at += PIECE)
        dt_text_add(t, "%.*s", (int)(n - at < PIECE ? n - at : PIECE), s + at);
}

/* ---- pages ---- */

enum dt_status dt_html_page_begin(struct dt_text *t, const char *title, struct dt_error *err)
{
    char *charts;

    DT_TRY(dt_chart_page_style(err, &charts));
    dt_html_raw(t, "<!DOCTYPE html>\n"
                   "<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
                   "<meta charset=\"utf-8\"/>\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                   "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                   "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n<title>");
    dt_html_escape(t, title);
    dt_html_raw(t, "</title>\n<style>\n");
    dt_html_raw(t, charts);
    dt_html_raw(t, dt_html_style);
    dt_html_raw(t, "</style>\n</head>\n<body>\n<main>\n");
    dt_free(charts);
    return DT_OK;
}

void dt_html_page_end(struct dt_text *t)
{
    dt_html_raw(t, "</main>\n<script>\n//<![CDATA[\n");
    dt_html_raw(t, dt_html_script);
    dt_html_raw(t, "//]]>\n</script>\n</body>\n</html>\n");
}

/* ---- tables ---- */

void dt_html_table_begin(struct dt_html_table *b, struct dt_text *t, const char *caption,
                         const struct dt_html_column *columns, int n)
{
    *b = (struct dt_html_table){t, columns, n, 0};
    dt_html_raw(t, "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"");
    dt_html_escape(t, caption);
    dt_html_raw(t, "\"><table><caption>");
    dt_html_escape(t, caption);
    dt_html_raw(t, "</caption>\n<thead><tr>");
    for (int i = 0; i < n; i++) {
        dt_text_add(t, "<th scope=\"col\"%s>", columns[i].number ? " class=\"n\"" : "");
        dt_html_escape(t, columns[i].head);
        dt_html_raw(t, "</th>");
    }
    dt_html_raw(t, "</tr></thead>\n<tbody>\n");
}

static void open_cell(struct dt_html_table *b)
{
    dt_html_raw(b->t, b->at == 0                ? "<tr><th scope=\"row\">"
                      : b->column[b->at].number ? "<td class=\"n\">"
                                                : "<td>");
}

static void close_cell(struct dt_html_table *b)
{
    dt_html_raw(b->t, b->at == 0 ? "</th>" : "</td>");
    if (++b->at == b->n) {
        dt_html_raw(b->t, "</tr>\n");
        b->at = 0;
    }
}

void dt_html_cell(struct dt_html_table *b, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    open_cell(b);
    dt_html_escape(b->t, text);
    close_cell(b);
}

void dt_html_cell_number(struct dt_html_table *b, const char *key, double v, const char *text)
{
    open_cell(b);
    dt_text_add(b->t, "<data value=\"%.17g\" data-key=\"%s\">", v, key);
    dt_html_escape(b->t, text);
    dt_html_raw(b->t, "</data>");
    close_cell(b);
}

void dt_html_table_end(struct dt_html_table *b)
{
    dt_html_raw(b->t, "</tbody></table></div>\n");
}
