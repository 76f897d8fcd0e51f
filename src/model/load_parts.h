/*
 * model/load_parts.h: what the files of loading share. Inside src/model only.
 *
 * Bytes of the checkpoint travel in chunks: read by all threads of the pool into the host side of a
 * micro-batch's staging, which is pinned and still unused, and taken from there by the compute stream
 * while the next chunk is read into the other one.
 */
#ifndef TSR_MODEL_LOAD_PARTS_H
#define TSR_MODEL_LOAD_PARTS_H

#include "model/load.h"
#include "model/model_parts.h"

typedef struct {
    tsr_model *model;
    const tsr_model_loader *loader;
    int unit;
    int rank, ranks; /* of loader->comm */
    uint64_t chunks; /* so far */
} tsr_load_job;

uint64_t tsr_load_chunk_bytes(const tsr_load_job *job);

/* Host memory for the next chunk, once the stream has done with it; then, when all work with it is
 * enqueued, the end. */
tsr_status tsr_load_chunk_begin(char **out, tsr_load_job *job);
tsr_status tsr_load_chunk_end(tsr_load_job *job);

/* Bytes [first, first + bytes) of the tensor's data, in pieces by the pool's threads. */
tsr_status tsr_load_read(tsr_pool *pool, void *out, const tsr_tensor *tensor, uint64_t first,
                         uint64_t bytes);

/* The same of elements [first, first + count), which must be finite (tsr_safetensors_read_finite). */
tsr_status tsr_load_read_finite(tsr_pool *pool, void *out, const tsr_tensor *tensor, uint64_t first,
                                uint64_t count);

/* A linear of job->unit whose base gives up its adapter's first B A; elements as fp32, in any order. */
typedef struct {
    tsr_weight_reader *reader;
    const tsr_layout_linear *linear;
    tsr_factors factors;
    uint64_t r;
} tsr_load_residual;

/* Leaves zeros where it is not one. The caller closes either. */
tsr_status tsr_load_residual_open(tsr_load_residual *residual, const tsr_load_job *job, int linear);
void tsr_load_residual_close(tsr_load_residual *residual);
tsr_status tsr_load_residual_read(float *out, const tsr_load_residual *residual, tsr_pool *pool,
                                  uint64_t first, uint64_t count);

/* Ends a phase of one weight: all ranks return the lowest failing rank's status. */
tsr_status tsr_load_agree(const tsr_load_job *job, tsr_status status);

/* load_nf4.c: one quantized linear. Collective. */
tsr_status tsr_load_nf4(tsr_load_job *job, int linear);

/* load_int8.c: a segment of a linear that is quantized to LLM.int8. */
tsr_status tsr_load_int8(tsr_load_job *job, int index);

/* load_stack.c: one quantized stack, collective; or the plain one of this segment. */
tsr_status tsr_load_stack(tsr_load_job *job, int stack);
tsr_status tsr_load_mxfp4_stack(tsr_load_job *job, int stack); /* load_mxfp4.c, of MXFP4 */
tsr_status tsr_load_plain_stack(tsr_load_job *job, const tsr_layout_segment *segment, int index);

#endif
