/*
 * io/checkpoint.h: the weights of a Hugging Face checkpoint directory, one file or many.
 *
 * model.safetensors, or model.safetensors.index.json with its shards. Opening reads the headers
 * only. Each rank then reads the byte ranges it owns.
 *
 * Refused, naming file and tensor: no weights (with what is there instead), an index whose file
 * names are absolute or leave the directory, a shard that is missing or lies, a tensor that the
 * index places in a shard that does not have it, a tensor in two shards.
 *
 * Weights in e4m3 with a scale for each block are tensors in BF16 here (io/fp8_blocks.h).
 *
 * Threads  Reads may run at the same time.
 */
#ifndef TSR_IO_CHECKPOINT_H
#define TSR_IO_CHECKPOINT_H

#include "io/safetensors.h"

#include <stdbool.h>

typedef struct tsr_checkpoint tsr_checkpoint;

tsr_status tsr_checkpoint_open(tsr_checkpoint **out, const char *directory);
void tsr_checkpoint_close(tsr_checkpoint *checkpoint);

/* Whether the directory has weights, in whatever form: then a checkpoint is opened, or refused. */
bool tsr_checkpoint_has_weights(const char *directory);

/* A checkpoint whose weights are not there, of tensors of these names, shapes and dtypes, which are copied. For a
 * plan: nothing can be read from them. */
tsr_status tsr_checkpoint_describe(tsr_checkpoint **out, const char *directory,
                                   const tsr_tensor *tensors, uint64_t count);

const char *tsr_checkpoint_directory(const tsr_checkpoint *checkpoint);

/* All tensors of all shards, sorted by name; borrowed. Read them with tsr_safetensors_read. */
uint64_t tsr_checkpoint_count(const tsr_checkpoint *checkpoint);
const tsr_tensor *tsr_checkpoint_at(const tsr_checkpoint *checkpoint, uint64_t index);

/* NULL: no tensor has this name. */
const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *checkpoint, const char *name);

/* A hash of a sample of every tensor (tsr_safetensors_sample); not of a described one. */
tsr_status tsr_checkpoint_sample(uint64_t *hash, const tsr_checkpoint *checkpoint);

/* Bytes of tensor data that this process has read from all shards, and what they hold. */
uint64_t tsr_checkpoint_bytes_read(const tsr_checkpoint *checkpoint);
uint64_t tsr_checkpoint_total_bytes(const tsr_checkpoint *checkpoint);

/* How a weight is stored: as plain numbers, 4-bit as bitsandbytes saves it (FORMATS 1), or its int8: I8 codes and the scale
 * of each row. */
typedef struct {
    const tsr_tensor *weight; /* the numbers, or the packed codes */
    bool prequantized;
    const tsr_tensor
        *int8_scale; /* F32 [rows], of an int8 weight, whose `dtype` is F16; else NULL */
    /* Of the weight as the model sees it, whichever way it is stored. Pre-quantized: `dtype` is
     * the one that it was quantized from. */
    tsr_dtype dtype;
    int ndim;
    uint64_t shape[TSR_TENSOR_MAX_DIMS];
    uint64_t element_count;
    /* Only if prequantized; quant_type is "nf4" always. */
    const tsr_tensor *absmax;    /* U8 if nested, else F32: [blocks] */
    const tsr_tensor *quant_map; /* F32 [16] */
    uint64_t blocksize;          /* elements of a block */
    uint64_t code_bytes;         /* (element_count + 1) / 2 */
    uint64_t block_count;
    /* Only if nested (double quantization). */
    bool nested;
    const tsr_tensor *nested_absmax;    /* F32 [nested_count] */
    const tsr_tensor *nested_quant_map; /* F32 [256] */
    uint64_t nested_blocksize, nested_count;
    double nested_offset;
} tsr_weight;

/* Describes the weight `name` ("model.layers.0.mlp.up_proj.weight"). TSR_EDATA: there is none, a
 * part of a pre-quantized set is missing or has the wrong dtype or number of elements, the stored
 * state is not understood, fp4 instead of nf4. */
tsr_status tsr_checkpoint_weight(tsr_weight *out, const tsr_checkpoint *checkpoint,
                                 const char *name);

/* Beside an int8 weight "<module>.weight": its rows' scales, and how it lies, 0 for row by row. */
#define TSR_WEIGHT_INT8_SCALE  "SCB"
#define TSR_WEIGHT_INT8_FORMAT "weight_format"

/* The suffixes of the tensors beside a 4-bit weight, as "<name>.absmax". */
#define TSR_WEIGHT_ABSMAX        ".absmax"
#define TSR_WEIGHT_QUANT_MAP     ".quant_map"
#define TSR_WEIGHT_NESTED_ABSMAX ".nested_absmax"
#define TSR_WEIGHT_NESTED_MAP    ".nested_quant_map"
#define TSR_WEIGHT_STATE         ".quant_state.bitsandbytes__nf4"

/* The JSON of a 4-bit weight's state, byte for byte as bitsandbytes writes it, from shape, dtype,
 * block sizes and nested_offset. *out is the caller's (free). */
tsr_status tsr_weight_state_format(char **out, const tsr_weight *weight);

#endif
