/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: files of captions, CSV and JSON lines.  Every name that is read is found again, its
 * caption ends where it says, and whatever is refused has its place. */
#include "base/mem.h"
#include "exec/data/pack_captions.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = malloc(size + 1);
    struct dt_data_report r = {.fatal = size % 2};
    struct dt_pack_captions *c;
    struct dt_error err = {0};

    if (!bytes)
        return 0;
    memcpy(bytes, data, size);
    bytes[size] = '\0';
    if (dt_pack_captions_parse("fuzz", bytes, size, "file_name", "text", &r, &err, &c) != DT_OK) {
        if (!err.message[0] || err.line < 1)
            abort();
        free(bytes);
        return 0;
    }
    for (size_t i = 0; i < dt_pack_captions_count(c); i++) {
        struct dt_pack_caption *row = dt_pack_captions_at(c, i);
        if (!row->name[0] || strlen(row->text) != row->len ||
            dt_pack_captions_find(c, row->name) != row)
            abort();
    }
    dt_pack_captions_free(c);
    free(bytes);
    return 0;
}
