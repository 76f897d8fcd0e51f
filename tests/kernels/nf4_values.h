/*
 * tests/kernels/nf4_values.h: inputs of quantization that find a wrong bit: blocks of plain values, of
 * any bits, of subnormal numbers, of zeros, and of values on thresholds and beside them; absmax of
 * every magnitude; and the cases of golden/nf4_dq. Include kernel_test.h and golden_plain.h first.
 */
#ifndef TSR_TESTS_KERNELS_NF4_VALUES_H
#define TSR_TESTS_KERNELS_NF4_VALUES_H

#include "kernels/kernel_test.h"
#include "kernels/nf4_quantize.h"
#include "support/golden_plain.h"

static inline float nf4_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A finite value of a block of this kind. */
static inline float nf4_value(int kind, uint64_t random)
{
    uint32_t bits = (uint32_t)random, choice = (uint32_t)(random >> 32);
    float threshold = tsr_nf4_threshold[choice % 15];
    switch (kind) {
    case 0:
        return (float)((int32_t)(bits >> 8) - (1 << 23)) * 0x1p-28f;
    case 1:
        return nf4_from_bits((bits & 0x7f800000u) == 0x7f800000u ? bits & 0xff7fffffu : bits);
    case 2:
        return nf4_from_bits(bits & 0x800fffffu);
    case 3:
        return choice % 2 ? -0.0f : 0;
    case 4: /* with absmax 1, or nearly always */
        return choice / 16 % 4 ? threshold : 1;
    case 5:
        return choice / 16 % 4 ? nextafterf(threshold, bits % 2 ? 2 : -2) : -1;
    default: /* absmax 3 times a power of two: the reciprocal is rounded */
        return choice / 16 % 4 ? 3 * threshold : 3;
    }
}

#define NF4_VALUE_KINDS 7

/* malloc'd elements of dtype; blocks take turns at random. */
static inline void *nf4_new_values(int64_t count, tsr_dtype dtype, uint64_t seed)
{
    uint64_t each = tsr_dtype_bytes(dtype);
    char *out = malloc((size_t)count * each + 1);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++) {
        int kind = (int)(tsr_mix(seed * 1000003 + (uint64_t)i / 64) % NF4_VALUE_KINDS);
        float value = nf4_value(kind, tsr_mix(seed + (uint64_t)i * 0x9E3779B97F4A7C15u));
        uint16_t narrow = dtype == TSR_BF16 ? tsr_f32_to_bf16(value) : tsr_f32_to_f16(value);
        uint16_t infinity = dtype == TSR_BF16 ? 0x7f80 : 0x7c00;
        if ((narrow & infinity) == infinity) /* too large for it */
            narrow = (uint16_t)((narrow & 0x8000) | (infinity - 1));
        memcpy(out + (uint64_t)i * each, dtype == TSR_F32 ? (void *)&value : (void *)&narrow, each);
    }
    return out;
}

#define NF4_ABSMAX_KINDS 6

/* Plain, any magnitude, subnormal, all the same, all zero, and a few units of the last place. */
static inline float *nf4_new_absmax(int64_t blocks, int kind)
{
    float *out = new_floats(blocks);
    for (int64_t i = 0; i < blocks; i++) {
        uint32_t bits = (uint32_t)tsr_mix((uint64_t)i + 77 * (uint64_t)kind) & 0x7fffffffu;
        switch (kind) {
        case 0:
            out[i] = (float)(bits >> 7) * 0x1p-28f;
            break;
        case 1:
            out[i] = nf4_from_bits(bits >= 0x7f800000u ? bits - 0x00800000u : bits);
            break;
        case 2:
            out[i] = nf4_from_bits(bits & 0x7fffffu);
            break;
        case 3:
            out[i] = 0.1f;
            break;
        case 4:
            out[i] = 0;
            break;
        default:
            out[i] = nf4_from_bits(bits % 4);
        }
    }
    return out;
}

/* One case of golden/nf4_dq: input, and the codes of the rule (bitsandbytes', or where its build
 * departs from it, the rule's). */
typedef struct {
    const void *values;
    const uint8_t *codes;
    int64_t count;
    tsr_dtype dtype;
} nf4_golden;

typedef void nf4_golden_use(void *context, const char *name, const nf4_golden *golden);

static inline void nf4_each_golden(nf4_golden_use *use, void *context)
{
    golden_file file = golden_open(TSR_SOURCE_DIR "/tests/golden/nf4_dq.safetensors");
    const char *key;
    json_t *entry;
    json_object_foreach(file.header, key, entry)
    {
        const char *end = strstr(key, ".input");
        char name[256], codes_key[300];
        if (!end || end[strlen(".input")])
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(end - key), key);
        snprintf(codes_key, sizeof codes_key, "%s.codes_rule", name);
        if (!golden_find(&file, codes_key).data)
            snprintf(codes_key, sizeof codes_key, "%s.codes", name);
        nf4_golden golden = {.dtype = TSR_F32};
        uint64_t bytes = 0;
        assert_true(tsr_dtype_parse(&golden.dtype, golden_find(&file, key).dtype));
        void *values = golden_copy(&file, key, &bytes);
        void *codes = golden_copy(&file, codes_key, NULL);
        golden.values = values;
        golden.codes = codes;
        golden.count = (int64_t)(bytes / tsr_dtype_bytes(golden.dtype));
        use(context, name, &golden);
        free(values), free(codes);
    }
    golden_close(&file);
}

#endif
