/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing HTML and SVG: nothing that comes from outside gets into a page unescaped.  Pages are well-formed XML too, need
 * no network, and read well light, dark, printed and without scripts. */
#ifndef DT_REPORT_HTML_H
#define DT_REPORT_HTML_H

#include "base/text.h"

/* Adds `s` as text, also within quoted attributes: &, <, >, " and ' escaped; what is no UTF-8, and characters that XML
 * does not know, become U+FFFD.  NULL adds nothing. */
void dt_html_escape(struct dt_text *t, const char *s);
/* Escaped text of a format, of at most 1023 bytes. */
void dt_html_text(struct dt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Text as it stands, of any length: ours. */
void dt_html_raw(struct dt_text *t, const char *s);

/* From the doctype to <main>, with the style of pages and charts; from </main> to the end, with the script that zooms
 * timelines. */
enum dt_status dt_html_page_begin(struct dt_text *t, const char *title, struct dt_error *err);
void dt_html_page_end(struct dt_text *t);
/* The parts of it, for pages that are put together elsewhere. */
extern const char dt_html_style[], dt_html_script[];

/* ---- tables: a caption, heads, rows of cells; wide ones scroll in a box of their own ---- */

struct dt_html_column {
    const char *head; /* with the unit */
    bool number;      /* flush right */
};
struct dt_html_table {
    struct dt_text *t;
    const struct dt_html_column *column;
    int n, at;
};
void dt_html_table_begin(struct dt_html_table *b, struct dt_text *t, const char *caption,
                         const struct dt_html_column *columns, int n);
/* The first cell of a row is its head. */
void dt_html_cell(struct dt_html_table *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same with a number that programs may read: <data value="...">. */
void dt_html_cell_number(struct dt_html_table *b, const char *key, double v, const char *text);
void dt_html_table_end(struct dt_html_table *b);

#endif
