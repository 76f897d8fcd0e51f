#include "quant/nf4_pack.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMENTS ((uint64_t)4 << 20) /* a whole number of blocks */

/* In the order of tsr_nf4_packed_sources; the last two belong to double quantization. */
enum { CODES, ABSMAX, QUANT_MAP, STATE, NESTED_ABSMAX, NESTED_MAP };

static const char *const suffixes[TSR_NF4_PACKED_TENSORS] = {
    [CODES] = "",
    [ABSMAX] = TSR_WEIGHT_ABSMAX,
    [QUANT_MAP] = TSR_WEIGHT_QUANT_MAP,
    [STATE] = TSR_WEIGHT_STATE,
    [NESTED_ABSMAX] = TSR_WEIGHT_NESTED_ABSMAX,
    [NESTED_MAP] = TSR_WEIGHT_NESTED_MAP,
};

struct tsr_nf4_packed {
    tsr_nf4_packer *packer;
    tsr_nf4_packed *before;
    tsr_nf4_values values;
    tsr_nf4_layout cut;
    char *names[TSR_NF4_PACKED_TENSORS];
    char *state;   /* JSON */
    float *nested; /* [cut.nested_count] */
    float offset;
};

struct tsr_nf4_packer {
    tsr_nf4_pack_options options;
    tsr_nf4_packed *last;
    char *values;   /* a chunk of up to 4 bytes an element */
    uint8_t *codes; /* of that chunk */
    float *absmax;  /* of the first `done` elements of `of` */
    uint8_t *q;     /* of all of its blocks, once nested */
    uint64_t block_capacity;
    const tsr_nf4_packed *of;
    uint64_t done;
};

tsr_status tsr_nf4_packer_create(tsr_nf4_packer **out, const tsr_nf4_pack_options *options)
{
    tsr_nf4_packer *packer = calloc(1, sizeof *packer);
    if (packer) {
        packer->options = *options;
        packer->values = malloc(CHUNK_ELEMENTS * sizeof(float));
        packer->codes = malloc(CHUNK_ELEMENTS / 2);
    }
    if (!packer || !packer->values || !packer->codes) {
        tsr_nf4_packer_destroy(packer);
        return tsr_fail(TSR_ENOMEM, "out of memory for quantizing");
    }
    *out = packer;
    return TSR_OK;
}

static void free_packed(tsr_nf4_packed *packed)
{
    for (int i = 0; i < TSR_NF4_PACKED_TENSORS; i++)
        free(packed->names[i]);
    free(packed->state);
    free(packed->nested);
    free(packed);
}

void tsr_nf4_packer_destroy(tsr_nf4_packer *packer)
{
    if (!packer)
        return;
    for (tsr_nf4_packed *p = packer->last, *before; p; p = before) {
        before = p->before;
        free_packed(p);
    }
    free(packer->values);
    free(packer->codes);
    free(packer->absmax);
    free(packer->q);
    free(packer);
}

static tsr_status reserve(tsr_nf4_packer *packer, const tsr_nf4_packed *packed)
{
    uint64_t blocks = packed->cut.block_count;
    if (blocks <= packer->block_capacity)
        return TSR_OK;
    packer->of = NULL;
    packer->block_capacity = 0;
    free(packer->absmax);
    free(packer->q);
    packer->absmax = malloc(blocks * sizeof *packer->absmax);
    packer->q = malloc(blocks);
    if (!packer->absmax || !packer->q)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", packed->values.name);
    packer->block_capacity = blocks;
    return TSR_OK;
}

/* The codes of the next chunk, elements `first` to packer->done, whose scales join those of the
 * elements before. */
static tsr_status quantize_chunk(const tsr_nf4_packed *packed, uint64_t first)
{
    tsr_nf4_packer *packer = packed->packer;
    const tsr_nf4_values *of = &packed->values;
    uint64_t bad = UINT64_MAX;
    uint64_t left = packed->cut.element_count - first;
    uint64_t some = left < CHUNK_ELEMENTS ? left : CHUNK_ELEMENTS;
    if (first == 0)
        TSR_TRY(reserve(packer, packed));
    TSR_TRY(of->read(packer->values, of->user, first, some));
    tsr_nf4_quantize_args args = {.codes = packer->codes,
                                  .absmax = packer->absmax + first / TSR_NF4_BLOCK,
                                  .bad = &bad,
                                  .values = packer->values,
                                  .first = first,
                                  .count = (int64_t)some,
                                  .dtype = of->dtype};
    TSR_TRY(tsr_nf4_quantize_ref(&args, packer->options.pool));
    if (bad != UINT64_MAX)
        return of->refuse(of->user, bad);
    packer->of = packed;
    packer->done = first + some;
    return packer->options.tick
               ? packer->options.tick(packer->options.user, some * tsr_dtype_bytes(of->dtype))
               : TSR_OK;
}

/* The scales of the whole weight are in packer->absmax. */
static tsr_status need_scales(const tsr_nf4_packed *packed)
{
    tsr_nf4_packer *packer = packed->packer;
    if (packer->of != packed)
        TSR_TRY(quantize_chunk(packed, 0));
    while (packer->done < packed->cut.element_count)
        TSR_TRY(quantize_chunk(packed, packer->done));
    return TSR_OK;
}

static tsr_status nest(float *offset, float *nested, const tsr_nf4_packed *packed)
{
    tsr_nf4_packer *packer = packed->packer;
    tsr_nf4_nest_args args = {.q = packer->q,
                              .nested_absmax = nested,
                              .offset = offset,
                              .absmax = packer->absmax,
                              .map = tsr_nf4_nested_map,
                              .blocks = (int64_t)packed->cut.block_count,
                              .count = (int64_t)packed->cut.block_count};
    TSR_TRY(tsr_nf4_nest_ref(&args, packer->options.pool));
    if (!isfinite(*offset))
        return tsr_fail(TSR_EDATA, "tensor %s: the mean of its scales is %f", packed->values.name,
                        (double)*offset);
    return TSR_OK;
}

static tsr_status measure(tsr_nf4_packed *packed)
{
    tsr_nf4_values *values = &packed->values;
    for (int i = 0; i < TSR_NF4_PACKED_TENSORS; i++)
        if (asprintf(&packed->names[i], "%s%s", values->name, suffixes[i]) < 0) {
            packed->names[i] = NULL;
            return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", values->name);
        }
    values->name = packed->names[CODES]; /* which has no suffix */
    tsr_weight described = {.dtype = values->dtype,
                            .ndim = values->ndim,
                            .blocksize = TSR_NF4_BLOCK,
                            .nested = packed->cut.nested,
                            .nested_blocksize = TSR_NF4_NESTED_BLOCK};
    memcpy(described.shape, values->shape, sizeof values->shape);
    TSR_TRY(need_scales(packed)); /* finds what is not finite before anything is written */
    if (packed->cut.nested) {
        packed->nested = malloc(packed->cut.nested_count * sizeof(float));
        if (!packed->nested)
            return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", values->name);
        TSR_TRY(nest(&packed->offset, packed->nested, packed));
        described.nested_offset = (double)packed->offset;
    }
    return tsr_weight_state_format(&packed->state, &described);
}

tsr_status tsr_nf4_packer_add_values(const tsr_nf4_packed **out, tsr_nf4_packer *packer,
                                     const tsr_nf4_values *values)
{
    tsr_nf4_packed *packed = calloc(1, sizeof *packed);
    if (!packed)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", values->name);
    packed->packer = packer;
    packed->values = *values;
    uint64_t elements = 1;
    for (int i = 0; i < values->ndim; i++)
        elements *= values->shape[i];
    tsr_status status = tsr_nf4_layout_make(&packed->cut, elements, 1, packer->options.nested);
    if (status == TSR_OK)
        status = measure(packed);
    packer->of = NULL; /* its scales may be the last weight's at the same address */
    if (status < 0) {
        free_packed(packed);
        return status;
    }
    packed->before = packer->last;
    packer->last = packed;
    *out = packed;
    return TSR_OK;
}

static tsr_status read_tensor(void *out, void *user, uint64_t first, uint64_t count)
{
    return tsr_safetensors_read_finite(out, user, first, count);
}

static tsr_status refuse_tensor(void *user, uint64_t element)
{
    const tsr_tensor *tensor = user;
    (void)element; /* it was finite when it was read */
    return tsr_fail(TSR_EDATA, "%s: tensor '%s' is being changed",
                    tsr_safetensors_path(tensor->file), tensor->name);
}

tsr_status tsr_nf4_packer_add(const tsr_nf4_packed **out, tsr_nf4_packer *packer,
                              const tsr_tensor *weight)
{
    tsr_nf4_values values = {.name = weight->name,
                             .dtype = weight->dtype,
                             .ndim = weight->ndim,
                             .read = read_tensor,
                             .refuse = refuse_tensor,
                             .user = (void *)weight};
    memcpy(values.shape, weight->shape, sizeof values.shape);
    return tsr_nf4_packer_add_values(out, packer, &values);
}

/* ---- while it is written ---- */

static tsr_status next_codes(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const tsr_nf4_packed *packed = user;
    TSR_TRY(quantize_chunk(packed, 2 * offset));
    *data = packed->packer->codes;
    *bytes = tsr_ceil_div(packed->packer->done - 2 * offset, 2);
    return TSR_OK;
}

/* All of them at once. */
static tsr_status next_absmax(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const tsr_nf4_packed *packed = user;
    (void)offset;
    TSR_TRY(need_scales(packed));
    *data = packed->packer->absmax;
    *bytes = packed->cut.block_count * sizeof(float);
    if (!packed->cut.nested)
        return TSR_OK;
    float again;
    TSR_TRY(nest(&again, packed->nested, packed));
    *data = packed->packer->q;
    *bytes = packed->cut.block_count;
    return TSR_OK;
}

int tsr_nf4_packed_sources(tsr_tensor_source out[TSR_NF4_PACKED_TENSORS],
                           const tsr_nf4_packed *packed)
{
    const tsr_nf4_layout *cut = &packed->cut;
    const tsr_tensor_source sources[TSR_NF4_PACKED_TENSORS] = {
        [CODES] = {.dtype = TSR_U8,
                   .ndim = 2,
                   .shape = {tsr_ceil_div(cut->element_count, 2), 1},
                   .next = next_codes},
        [ABSMAX] = {.dtype = cut->nested ? TSR_U8 : TSR_F32,
                    .ndim = 1,
                    .shape = {cut->block_count},
                    .next = next_absmax},
        [QUANT_MAP] = {.dtype = TSR_F32, .ndim = 1, .shape = {16}, .data = tsr_nf4_level},
        [STATE] = {.dtype = TSR_U8,
                   .ndim = 1,
                   .shape = {strlen(packed->state)},
                   .data = packed->state},
        [NESTED_ABSMAX] = {.dtype = TSR_F32,
                           .ndim = 1,
                           .shape = {cut->nested_count},
                           .data = packed->nested},
        [NESTED_MAP] = {.dtype = TSR_F32, .ndim = 1, .shape = {256}, .data = tsr_nf4_nested_map},
    };
    int count = cut->nested ? TSR_NF4_PACKED_TENSORS : NESTED_ABSMAX;
    for (int i = 0; i < count; i++) {
        out[i] = sources[i];
        out[i].name = packed->names[i];
        out[i].user = (void *)packed;
    }
    return count;
}
