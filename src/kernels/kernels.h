/*
 * kernels/kernels.h: the table of device operations.
 *
 * Every slot is required. A call judges its arguments, copies them and enqueues; what the pointers
 * point to must stay until the stream has run the op. types.h has the conventions, each op's header
 * its contract, cost and source.
 */
#ifndef TSR_KERNELS_KERNELS_H
#define TSR_KERNELS_KERNELS_H

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/compose.h"
#include "kernels/dora_norm.h"
#include "kernels/dropout.h"
#include "kernels/fixed_point.h"
#include "kernels/gemm.h"
#include "kernels/head.h"
#include "kernels/nf4_dequant.h"
#include "kernels/rms_norm.h"
#include "kernels/rope_qkv.h"
#include "kernels/row_square_norm.h"
#include "kernels/rows.h"
#include "kernels/scale_backward.h"
#include "kernels/swiglu.h"
#include "kernels/types.h"
#include "kernels/widen.h"

typedef struct {
    const char *name; /* "cpu" */
    tsr_status (*gemm)(tsr_stream *, const tsr_gemm_args *);
    tsr_status (*nf4_dequant)(tsr_stream *, const tsr_nf4_dequant_args *);
    tsr_status (*widen)(tsr_stream *, const tsr_widen_args *);
    tsr_status (*rms_norm)(tsr_stream *, const tsr_rms_norm_args *);
    tsr_status (*rms_norm_backward)(tsr_stream *, const tsr_rms_norm_backward_args *);
    tsr_status (*rope_qkv)(tsr_stream *, const tsr_rope_qkv_args *);
    tsr_status (*rope_qkv_backward)(tsr_stream *, const tsr_rope_qkv_backward_args *);
    tsr_status (*attention)(tsr_stream *, const tsr_attention_args *);
    tsr_status (*attention_backward)(tsr_stream *, const tsr_attention_backward_args *);
    tsr_status (*swiglu)(tsr_stream *, const tsr_swiglu_args *);
    tsr_status (*swiglu_backward)(tsr_stream *, const tsr_swiglu_backward_args *);
    tsr_status (*scale_backward)(tsr_stream *, const tsr_scale_backward_args *);
    tsr_status (*head_begin)(tsr_stream *, const tsr_head_begin_args *);
    tsr_status (*head_chunk)(tsr_stream *, const tsr_head_chunk_args *);
    tsr_status (*head_finish)(tsr_stream *, const tsr_head_finish_args *);
    tsr_status (*gather_rows)(tsr_stream *, const tsr_gather_rows_args *);
    tsr_status (*scatter_rows)(tsr_stream *, const tsr_scatter_rows_args *);
    tsr_status (*compose)(tsr_stream *, const tsr_compose_args *);
    tsr_status (*compose_backward)(tsr_stream *, const tsr_compose_backward_args *);
    tsr_status (*row_square_norm)(tsr_stream *, const tsr_row_square_norm_args *);
    tsr_status (*dora_norm)(tsr_stream *, const tsr_dora_norm_args *);
    tsr_status (*dropout)(tsr_stream *, const tsr_dropout_args *);
    tsr_status (*fixed_scatter)(tsr_stream *, const tsr_fixed_scatter_args *);
    tsr_status (*grad_norm)(tsr_stream *, const tsr_grad_norm_args *);
    tsr_status (*adamw)(tsr_stream *, const tsr_adamw_args *);
    tsr_status (*step_sums)(tsr_stream *, const tsr_step_sums_args *);
    tsr_status (*step_control)(tsr_stream *, const tsr_step_control_args *);
} tsr_kernels;

const tsr_kernels *tsr_kernels_cpu(void);

/* The instruction set and the matmul's core that this process uses, "x86-64-v4, OpenBLAS Zen" for
 * the log: bits are promised per kernel set. Borrowed. */
const char *tsr_kernels_cpu_set(void);

#endif
