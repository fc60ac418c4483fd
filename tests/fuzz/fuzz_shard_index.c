/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: kept indexes of shards, as they are and with a checksum that is right.  What is read
 * is written again as the same bytes, and every sample lies inside of the shard, behind the one
 * before. */
#include "base/hash.h"
#include "base/mem.h"
#include "exec/data/shard_kept.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_shard_kept k;
    uint64_t end = 0;
    uint8_t *again;
    size_t n;

    if (dt_shard_kept_decode(data, size, &err, &k) != DT_OK) {
        if (!err.message[0])
            abort();
        return;
    }
    for (size_t i = 0; i < k.n; i++) {
        if (k.samples[i].offset < end || k.samples[i].bytes < 512 || k.samples[i].shard != 0)
            abort();
        end = k.samples[i].offset + k.samples[i].bytes;
    }
    if (end > (uint64_t)k.print.bytes || dt_shard_kept_encode(&k, &err, &again, &n) != DT_OK ||
        n != size || memcmp(again, data, n) != 0)
        abort();
    dt_free(again);
    dt_free(k.samples);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *right;

    try(data, size);
    if (size < 4)
        return 0;
    right = malloc(size);
    if (!right)
        return 0;
    memcpy(right, data, size);
    uint32_t crc = dt_hash_crc32c(0, right, size - 4);
    for (int i = 0; i < 4; i++)
        right[size - 4 + (size_t)i] = (uint8_t)(crc >> 8 * i);
    try(right, size);
    free(right);
    return 0;
}
