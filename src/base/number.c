/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX                                                                                 \
    120 /* characters; no double needs more, and a bound keeps the copy on the stack */

static size_t digits(const char *s)
{
    size_t n = 0;

    while (s[n] >= '0' && s[n] <= '9')
        n++;
    return n;
}

/* Length of the number at s; *point is where its '.' is, or SIZE_MAX. */
static size_t number_length(const char *s, size_t *point)
{
    size_t n = s[0] == '+' || s[0] == '-', whole, fraction = 0, e;

    *point = SIZE_MAX;
    whole = digits(s + n);
    n += whole;
    if (s[n] == '.') {
        fraction = digits(s + n + 1);
        if (whole + fraction == 0)
            return 0;
        *point = n;
        n += 1 + fraction;
    }
    if (whole + fraction == 0)
        return 0;
    if (s[n] == 'e' || s[n] == 'E') {
        size_t sign = s[n + 1] == '+' || s[n + 1] == '-';

        e = digits(s + n + 1 + sign);
        if (e > 0)
            n += 1 + sign + e;
    }
    return n;
}

size_t dt_number_scan(const char *s, double *out)
{
    char text[NUMBER_MAX + 16];
    size_t point, n = number_length(s, &point);

    if (n == 0 || n > NUMBER_MAX)
        return 0;
    if (point == SIZE_MAX) {
        memcpy(text, s, n);
        text[n] = '\0';
    } else { /* strtod wants the locale's decimal point */
        const char *dp = localeconv()->decimal_point;
        size_t m = strlen(dp);

        if (m == 0 || m > 8)
            return 0;
        memcpy(text, s, point);
        memcpy(text + point, dp, m);
        memcpy(text + point + m, s + point + 1, n - point - 1);
        text[n + m - 1] = '\0';
    }
    *out = strtod(text, NULL);
    return n;
}

bool dt_number_double(const char *s, double *out)
{
    double v;
    size_t n = dt_number_scan(s, &v);

    if (n == 0 || s[n] != '\0' || !isfinite(v))
        return false;
    *out = v;
    return true;
}

bool dt_number_int(const char *s, int64_t *out)
{
    size_t sign = s[0] == '+' || s[0] == '-', n = digits(s + sign);
    long long v;

    if (n == 0 || s[sign + n] != '\0')
        return false;
    errno = 0;
    v = strtoll(s, NULL, 10);
    if (errno != 0)
        return false;
    *out = v;
    return true;
}

bool dt_number_count(const char *s, double *out)
{
    static const char suffixes[] = "KMBGTQ";
    static const double factors[] = {1e3, 1e6, 1e9, 1e9, 1e12, 1e15};
    double v;
    size_t n = dt_number_scan(s, &v);
    const char *suffix = n > 0 && s[n] ? strchr(suffixes, s[n] == 'k' ? 'K' : s[n]) : NULL;

    if (n == 0 || (s[n] && (!suffix || s[n + 1])))
        return false;
    if (suffix)
        v *= factors[suffix - suffixes];
    if (!(v > 0) || !isfinite(v))
        return false;
    *out = v;
    return true;
}

bool dt_number_ns(double ns, int64_t *out)
{
    if (!(ns > -0.5 && ns < (double)DT_TIME_MAX_NS))
        return false;
    *out = ns > 0 ? (int64_t)(ns + 0.5) : 0;
    return true;
}
