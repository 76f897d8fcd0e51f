/*
 * kernels/rope_odd.cuh: rope_odd.cu for rope_qkv.cu.
 */
#ifndef TSR_KERNELS_ROPE_ODD_CUH
#define TSR_KERNELS_ROPE_ODD_CUH

#include "kernels/cuda.cuh"

typedef struct {
    const void *z, *in; /* in: dout, of a backward */
    void *out;
    const float *g;
    tsr_frozen bias;
    bool sums; /* of dy z over the tokens, into the partials */
} rope_odd_part;

typedef struct {
    rope_odd_part part[3];
    const float *cosine, *sine, *q_cosine, *q_sine;
    const int32_t *positions;
    float *partials; /* [chunks, columns] */
    int64_t columns, tokens, stride;
    int64_t chunk; /* tokens; 0: as many as are best without sums */
    int q_heads, kv_heads, heads, dim, pairs, slots;
    bool neighbours;
    tsr_dtype dtype;
} rope_odd_args;

void tsr_rope_odd(tsr_stream *stream, rope_odd_args *args);
void tsr_rope_odd_back(tsr_stream *stream, rope_odd_args *args);

#endif
