/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Databases: any bytes are refused with a message by the readers of profiles and of Nsight Systems
 * exports, or give a profile that survives a trip through SQL text, and a trace that can be
 * attached. */
#include "fit/kernel_trace.h"
#include "base/mem.h"
#include "core/profile/profile_schema.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static char path[64];

static void remove_file(void)
{
    unlink(path);
}

static void write_file(const uint8_t *data, size_t size)
{
    int fd;

    if (!path[0]) {
        snprintf(path, sizeof(path), "/dev/shm/dt-fuzz-XXXXXX");
        fd = mkstemp(path);
        atexit(remove_file);
    } else {
        fd = open(path, O_WRONLY | O_TRUNC);
    }
    REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    close(fd);
}

static void read_profile(void)
{
    struct dt_profile_table t = {0}, back = {0};
    struct dt_error err = {0};
    size_t len;
    char *text;

    if (dt_profile_table_read(path, &err, &t) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
    } else {
        REQUIRE(dt_profile_table_to_sql(&t, &err, &text, &len) == DT_OK);
        REQUIRE(dt_profile_table_parse_sql("back", text, &err, &back) == DT_OK);
        REQUIRE(back.n_rows == t.n_rows);
        dt_free(text);
        dt_profile_table_free(&back);
    }
    dt_profile_table_free(&t);
}

static void read_trace(void)
{
    struct dt_import_trace t = {0};
    struct dt_error err = {0};

    if (dt_import_trace_read_nsys(path, &err, &t) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return;
    }
    REQUIRE(t.n_kernels > 0);
    REQUIRE(dt_import_trace_attach(&t, &err) == DT_OK);
    for (size_t i = 0; i < t.n_kernels; i++)
        REQUIRE(t.kernels[i].name && t.kernels[i].duration_ns >= 0 &&
                t.kernels[i].range <= t.n_ranges);
    dt_import_trace_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    write_file(data, size);
    read_profile();
    read_trace();
    return 0;
}
