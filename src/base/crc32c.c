/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/hash.h"

/* Of four bits: RFC 3720's polynomial (appendix B.4), reflected, 0x82f63b78, shifted four times. */
static const uint32_t nibbles[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t n)
{
    while (n--) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return crc;
}

/* Pictures are megabytes: the instruction is some thirty times as fast. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc,
                                                                 const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, word);
    }
    while (n--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}

uint32_t dt_hash_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    if (__builtin_cpu_supports("sse4.2"))
        return ~by_instruction(~crc, bytes, n);
    return ~by_table(~crc, bytes, n);
}
#else
uint32_t dt_hash_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return ~by_table(~crc, bytes, n);
}
#endif
