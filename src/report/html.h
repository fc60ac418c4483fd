/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing HTML and SVG: nothing that comes from outside gets into a page unescaped. */
#ifndef DT_REPORT_HTML_H
#define DT_REPORT_HTML_H

#include "base/text.h"

/* Adds `s` as text, also within quoted attributes: &, <, >, " and ' escaped; what is no UTF-8, and characters that XML
 * does not know, become U+FFFD.  NULL adds nothing. */
void dt_html_escape(struct dt_text *t, const char *s);

#endif
