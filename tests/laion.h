/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is published of the sizes of LAION-400M's images. */
#ifndef DT_TESTS_LAION_H
#define DT_TESTS_LAION_H

#include "core/model/samples_fit.h"

/* Facts: millions of the 413 million LAION-400M images whose smaller / larger side is at least px.
 */
static const struct dt_samples_ccdf laion[] = {{256, 211 / 413.0, 268 / 413.0},
                                               {512, 67 / 413.0, 112 / 413.0},
                                               {1024, 9.6 / 413.0, 26 / 413.0}};

#endif
