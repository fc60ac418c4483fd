/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The values of tensors: reading them as floats, and the 16-bit formats. */
#include "base/bf16.h"
#include "exec/checkpoint/safetensors_impl.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)1 << 16)

/* ---- 16-bit formats ---- */

static uint32_t bits_of(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float v;

    memcpy(&v, &u, sizeof(v));
    return v;
}

uint16_t dt_tensor_f16_from_f32(float v)
{
    uint32_t u = bits_of(v), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu, shift, kept, rest, half;

    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | (a >> 13 & 0x3FFu));
    if (a >= 0x47800000u) /* 65536 and above */
        return (uint16_t)(sign | 0x7C00u);
    if (a < 0x33000000u) /* below 2^-25: zero, its half included */
        return (uint16_t)sign;
    if (a >= 0x38800000u) { /* normal from 2^-14 on: the carry of rounding may reach infinity */
        kept = (a - 0x38000000u) >> 13;
        rest = a & 0x1FFFu;
        half = 0x1000u;
    } else { /* subnormal: units of 2^-24 */
        uint32_t mantissa = (a & 0x7FFFFFu) | 0x800000u;

        shift = 126u - (a >> 23);
        kept = mantissa >> shift;
        rest = mantissa & ((1u << shift) - 1);
        half = 1u << (shift - 1);
    }
    if (rest > half || (rest == half && (kept & 1u)))
        kept++;
    return (uint16_t)(sign | kept);
}

float dt_tensor_f16_to_f32(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000u) << 16, e = v >> 10 & 0x1Fu, m = v & 0x3FFu;

    if (e == 0x1F)
        return float_of(sign | 0x7F800000u | m << 13);
    if (e == 0)
        return float_of(sign | bits_of(ldexpf((float)m, -24)));
    return float_of(sign | (e + 112u) << 23 | m << 13);
}

/* ---- reading ---- */

enum dt_status dt_tensors_read(const struct dt_tensors *t, const struct dt_tensor *x,
                               uint64_t first, uint64_t bytes, struct dt_error *err, void *out)
{
    if (bytes > x->bytes || first > x->bytes - bytes)
        return dt_error_at(err, DT_ERR_INTERNAL, t->files[x->file].name, 0, 0,
                           "read beyond the end of tensor \"%s\"", x->name);
    return dt_tensor_file_read(&t->files[x->file], x->at + first, (size_t)bytes, err, out);
}

static void to_floats(enum dt_tensor_type type, const uint8_t *from, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        uint32_t w;
        uint64_t d;
        double v;

        switch (type) {
        case DT_TENSOR_F32:
            memcpy(&w, from + 4 * i, 4);
            out[i] = float_of(le32toh(w));
            break;
        case DT_TENSOR_F64:
            memcpy(&d, from + 8 * i, 8);
            d = le64toh(d);
            memcpy(&v, &d, 8);
            out[i] = (float)v;
            break;
        case DT_TENSOR_BF16:
            memcpy(&h, from + 2 * i, 2);
            out[i] = dt_bf16_to_f32(le16toh(h));
            break;
        case DT_TENSOR_F16:
            memcpy(&h, from + 2 * i, 2);
            out[i] = dt_tensor_f16_to_f32(le16toh(h));
            break;
        case DT_TENSOR_I64: /* refused by the caller */
        case DT_TENSOR_I32:
        case DT_TENSOR_I16:
        case DT_TENSOR_I8:
        case DT_TENSOR_U8:
        case DT_TENSOR_BOOL:
        case DT_TENSOR_TYPE_N:
            break;
        }
    }
}

enum dt_status dt_tensors_read_f32(const struct dt_tensors *t, const struct dt_tensor *x,
                                   struct dt_error *err, float *out, uint32_t *crc)
{
    size_t each = dt_tensor_type_bytes(x->type), chunk = CHUNK_BYTES / each;
    uint8_t buf[CHUNK_BYTES];
    uint32_t sum = 0;

    if (x->type != DT_TENSOR_F32 && x->type != DT_TENSOR_BF16 && x->type != DT_TENSOR_F16 &&
        x->type != DT_TENSOR_F64)
        return dt_error_at(err, DT_ERR_INPUT, t->files[x->file].name, 0, 0,
                           "tensor \"%s\" is %s, not a floating-point type", x->name,
                           dt_tensor_type_names[x->type]);
    for (uint64_t i = 0; i < x->n; i += chunk) {
        size_t n = x->n - i < chunk ? (size_t)(x->n - i) : chunk;

        DT_TRY(dt_tensors_read(t, x, i * each, n * each, err, buf));
        sum = dt_tensor_crc(sum, buf, n * each);
        to_floats(x->type, buf, n, out + i);
    }
    if (crc)
        *crc = sum;
    return DT_OK;
}
