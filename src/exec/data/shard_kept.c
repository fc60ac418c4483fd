/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/shard_kept.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

/* "DTSI" */
#define MAGIC UINT32_C(0x49535444)
enum { HEAD_BYTES = 60, PLACE_BYTES = 16, CRC_BYTES = 4, BLOCK_BYTES = 512 };

/* ---- writing ---- */

static uint8_t *put(uint8_t *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *to++ = (uint8_t)(v >> 8 * i);
    return to;
}

enum dt_status dt_shard_kept_encode(const struct dt_shard_kept *k, struct dt_error *err,
                                    uint8_t **out, size_t *len)
{
    const struct dt_shard_print *s = &k->print;
    size_t name = strlen(s->name), n = HEAD_BYTES + name + PLACE_BYTES * k->n + CRC_BYTES;
    uint8_t *bytes = dt_malloc(n), *at = bytes;

    if (!bytes)
        return dt_error_nomem(err, "a shard's index");
    at = put(at, MAGIC, 4);
    at = put(at, DT_SHARD_KEPT_VERSION, 4);
    at = put(at, (uint64_t)s->bytes, 8);
    at = put(at, (uint64_t)s->inode, 8);
    at = put(at, (uint64_t)s->modified_ns, 8);
    at = put(at, (uint64_t)s->changed_ns, 8);
    at = put(at, s->crc, 4);
    at = put(at, name, 8);
    at = put(at, k->n, 8);
    memcpy(at, s->name, name);
    at += name;
    for (size_t i = 0; i < k->n; i++) {
        at = put(at, k->samples[i].offset, 8);
        at = put(at, k->samples[i].bytes, 8);
    }
    put(at, dt_hash_crc32c(0, bytes, n - CRC_BYTES), CRC_BYTES);
    *out = bytes;
    *len = n;
    return DT_OK;
}

/* ---- reading ---- */

static uint64_t get(const uint8_t **at, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v |= (uint64_t) * (*at)++ << 8 * i;
    return v;
}

static enum dt_status wrong(struct dt_error *err, const char *what)
{
    return dt_error_set(err, DT_ERR_INPUT, "the index of a shard %s", what);
}

static enum dt_status get_places(const uint8_t *at, struct dt_error *err, struct dt_shard_kept *k)
{
    uint64_t end = 0;

    k->samples = dt_malloc((k->n + 1) * sizeof *k->samples);
    if (!k->samples)
        return dt_error_nomem(err, "a shard's index");
    for (size_t i = 0; i < k->n; i++) {
        uint64_t offset = get(&at, 8), bytes = get(&at, 8);

        if (offset < end || offset % BLOCK_BYTES || bytes % BLOCK_BYTES || bytes == 0 ||
            offset > (uint64_t)k->print.bytes || bytes > (uint64_t)k->print.bytes - offset)
            return wrong(err, "has samples that overlap or lie outside of it");
        end = offset + bytes;
        k->samples[i] = (struct dt_shard_place){.offset = offset, .bytes = bytes};
    }
    return DT_OK;
}

enum dt_status dt_shard_kept_decode(const uint8_t *bytes, size_t len, struct dt_error *err,
                                    struct dt_shard_kept *out)
{
    struct dt_shard_kept k = {.print = {.sampled = true}};
    const uint8_t *at = bytes, *crc;
    uint64_t name, n;
    enum dt_status st;

    if (len < HEAD_BYTES + CRC_BYTES)
        return wrong(err, "is cut short");
    crc = bytes + len - CRC_BYTES;
    if (get(&at, 4) != MAGIC || get(&at, 4) != DT_SHARD_KEPT_VERSION)
        return wrong(err, "is something else, or of another version");
    k.print.bytes = (int64_t)get(&at, 8);
    k.print.inode = (int64_t)get(&at, 8);
    k.print.modified_ns = (int64_t)get(&at, 8);
    k.print.changed_ns = (int64_t)get(&at, 8);
    k.print.crc = (uint32_t)get(&at, 4);
    name = get(&at, 8);
    n = get(&at, 8);
    if (get(&crc, CRC_BYTES) != dt_hash_crc32c(0, bytes, len - CRC_BYTES))
        return wrong(err, "has a wrong checksum");
    if (name >= sizeof k.print.name || n > len / PLACE_BYTES ||
        len != HEAD_BYTES + name + PLACE_BYTES * n + CRC_BYTES || k.print.bytes < 0 ||
        k.print.inode < 0 || memchr(at, '\0', name))
        return wrong(err, "does not have the length that it says");
    memcpy(k.print.name, at, name);
    k.n = (size_t)n;
    st = get_places(at + name, err, &k);
    if (st == DT_OK)
        *out = k;
    else
        dt_free(k.samples);
    return st;
}
