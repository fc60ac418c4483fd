/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * page.html, page.css and page.js as the build has made arrays of them. */
#ifndef DT_SERVE_PAGE_H
#define DT_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char dt_serve_page_html[], dt_serve_page_css[], dt_serve_page_js[];
extern const size_t dt_serve_page_html_size, dt_serve_page_css_size, dt_serve_page_js_size;

#endif
