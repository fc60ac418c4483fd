/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/html.h"

#include "base/utf8.h"

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
