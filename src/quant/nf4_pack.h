/*
 * quant/nf4_pack.h: weights of a checkpoint as bitsandbytes stores them in NF4 (FORMATS 1): each
 * becomes six tensors, or four without double quantization, made while they are written.
 *
 * A file has its F32 tensors first and the size of a state's JSON depends on the offset in it, so a
 * weight is read twice: when it is added, for offset and nested scales, and when its codes are
 * written. The bytes are those of quantizing on load: the same kernels see the same values.
 *
 * Order    create, add each weight, give the sources of all to tsr_safetensors_write, destroy.
 * Memory   A chunk, and of the largest weight 1/16 byte an element for its fp32 scales; of each weight
 *          its nested scales, 1/4096 byte an element.
 * Threads  One thread at a time.
 */
#ifndef TSR_QUANT_NF4_PACK_H
#define TSR_QUANT_NF4_PACK_H

#include "io/checkpoint.h"
#include "quant/nf4_tensor.h"

typedef struct tsr_nf4_packer tsr_nf4_packer;
typedef struct tsr_nf4_packed tsr_nf4_packed;

typedef struct {
    tsr_pool *pool;
    bool nested; /* double quantization */
    /* Called after `bytes` more of the checkpoint were read; a failure ends the work. NULL: none. */
    tsr_status (*tick)(void *user, uint64_t bytes);
    void *user;
} tsr_nf4_pack_options;

tsr_status tsr_nf4_packer_create(tsr_nf4_packer **out, const tsr_nf4_pack_options *options);
/* With all that was added. */
void tsr_nf4_packer_destroy(tsr_nf4_packer *packer);

/* Measures a weight of F32, BF16 or F16, which is borrowed. *out belongs to the packer. TSR_EDATA: a
 * value is not finite. */
tsr_status tsr_nf4_packer_add(const tsr_nf4_packed **out, tsr_nf4_packer *packer,
                              const tsr_tensor *weight);

/* Values that are no tensor of their own: part of one that holds several weights. */
typedef struct {
    const char
        *name; /* that the weight gets: "model.layers.0.mlp.experts.7.up_proj.weight"; copied */
    tsr_dtype dtype;
    int ndim;
    uint64_t shape[TSR_TENSOR_MAX_DIMS];
    /* Elements [first, first + count) of `dtype`; what is not finite is passed on. */
    tsr_status (*read)(void *out, void *user, uint64_t first, uint64_t count);
    /* Names this element, which is not finite: TSR_EDATA. */
    tsr_status (*refuse)(void *user, uint64_t element);
    void *user;
} tsr_nf4_values;

/* The same of such values; `user` is borrowed as long as the packer. */
tsr_status tsr_nf4_packer_add_values(const tsr_nf4_packed **out, tsr_nf4_packer *packer,
                                     const tsr_nf4_values *values);

/* The tensors of one weight, the codes first: their number. Borrowed from the packer. */
#define TSR_NF4_PACKED_TENSORS 6
int tsr_nf4_packed_sources(tsr_tensor_source out[TSR_NF4_PACKED_TENSORS],
                           const tsr_nf4_packed *packed);

#endif
