/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/protobuf.h"

#include "base/mem.h"

#include <string.h>

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put(struct dt_pb *b, const void *bytes, size_t n)
{
    void *p = b->p;

    if (b->failed || (b->fixed ? n > b->cap - b->n : dt_grow(&p, &b->cap, b->n + n, 1) != 0)) {
        b->failed = true;
        return;
    }
    b->p = p;
    if (n > 0)
        memcpy(b->p + b->n, bytes, n);
    b->n += n;
}

static void put_varint(struct dt_pb *b, uint64_t v)
{
    uint8_t text[10];
    size_t n = 0;

    do {
        text[n++] = (uint8_t)((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
        v >>= 7;
    } while (v > 0);
    put(b, text, n);
}

static void put_key(struct dt_pb *b, unsigned field, unsigned wire)
{
    put_varint(b, (uint64_t)field << 3 | wire);
}

static void put_fixed(struct dt_pb *b, uint64_t v, size_t n)
{
    uint8_t le[8];

    for (size_t i = 0; i < n; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    put(b, le, n);
}

static void put_field(struct dt_pb *b, unsigned field, const void *bytes, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, bytes, n);
}

void dt_pb_int(struct dt_pb *b, unsigned field, uint64_t v)
{
    put_key(b, field, WIRE_VARINT);
    put_varint(b, v);
}

void dt_pb_fixed64(struct dt_pb *b, unsigned field, uint64_t v)
{
    put_key(b, field, WIRE_64);
    put_fixed(b, v, 8);
}

void dt_pb_double(struct dt_pb *b, unsigned field, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    dt_pb_fixed64(b, field, bits);
}

void dt_pb_float(struct dt_pb *b, unsigned field, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    put_key(b, field, WIRE_32);
    put_fixed(b, bits, 4);
}

void dt_pb_text(struct dt_pb *b, unsigned field, const char *text)
{
    put_field(b, field, text, strlen(text));
}

void dt_pb_message(struct dt_pb *b, unsigned field, const struct dt_pb *message)
{
    b->failed |= message->failed;
    put_field(b, field, message->p, message->n);
}
