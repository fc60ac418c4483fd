/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing protocol buffers (protobuf.dev, "Encoding"): a field is its number and kind, then its value;
 * numbers are little-endian in base 128, the high bit says that more follow; a message within a
 * message is its length, then its bytes.
 *
 *     uint8_t room[100];
 *     struct dt_pb in = DT_PB_IN(room), out = {0};
 *
 *     dt_pb_text(&in, 1, "name");
 *     dt_pb_message(&out, 5, &in);
 *
 * A writer that runs out of memory or room has failed: it takes no more, and so has what it goes into. */
#ifndef DT_BASE_PROTOBUF_H
#define DT_BASE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_pb { /* all zero: empty, grows; dt_free(p) at the end */
    uint8_t *p;
    size_t n, cap;
    bool fixed; /* p is the caller's and does not grow */
    bool failed;
};
#define DT_PB_IN(array)                                                                            \
    {                                                                                              \
        (array), 0, sizeof(array), true, false                                                     \
    }

void dt_pb_int(struct dt_pb *b, unsigned field, uint64_t v);
void dt_pb_fixed64(struct dt_pb *b, unsigned field, uint64_t v);
void dt_pb_double(struct dt_pb *b, unsigned field, double v);
void dt_pb_float(struct dt_pb *b, unsigned field, float v);
void dt_pb_text(struct dt_pb *b, unsigned field, const char *text);
void dt_pb_message(struct dt_pb *b, unsigned field, const struct dt_pb *message);

#endif
