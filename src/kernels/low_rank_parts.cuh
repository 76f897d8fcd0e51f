/*
 * kernels/low_rank_parts.cuh: what the kernels of low_rank_backward.h share.
 */
#ifndef TSR_KERNELS_LOW_RANK_PARTS_CUH
#define TSR_KERNELS_LOW_RANK_PARTS_CUH

#include "kernels/cuda.cuh"

typedef struct {
    tsr_low_rank_backward_args args;
    tsr_low_rank_tiling tiling;
    float *db, *d_low; /* partial sums: [splits, out, r]; [strips, tokens, r] */
} low_rank_call;

/* low_rank_backward_wgmma.cu: whether this card, this build's code for it and the driver can; and the
 * partial sums of a call that tsr_low_rank_boxes_make has cut. */
bool tsr_low_rank_backward_boxes(const tsr_stream *stream);
tsr_status tsr_low_rank_backward_wgmma(tsr_stream *stream, const low_rank_call *call);

#endif
