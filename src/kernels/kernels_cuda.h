/*
 * kernels/kernels_cuda.h: the CUDA ops, one function each; and what their libraries keep. Included
 * by CUDA code only.
 *
 * tsr_X_cuda judges its arguments as every backend does (tsr_X_check), judges what only CUDA cannot
 * do, and launches on the stream. It neither allocates nor waits.
 */
#ifndef TSR_KERNELS_KERNELS_CUDA_H
#define TSR_KERNELS_KERNELS_CUDA_H

#include "device/cuda.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_KERNEL_CUDA(op) tsr_status tsr_##op##_cuda(tsr_stream *, const tsr_##op##_args *);
TSR_KERNEL_OPS(TSR_KERNEL_CUDA)
#undef TSR_KERNEL_CUDA

/* Into how many parts a sum over tokens is split (kernels/types.h, partials). */
#define TSR_CUDA_PARTIAL_ROWS 64

uint64_t tsr_attention_workspace_bytes_cuda(const tsr_attention_bounds *bounds);
bool tsr_attention_lse_by_token_cuda(const tsr_stream *stream, const tsr_attention_shape *shape);
tsr_attention_sharing tsr_attention_sharing_cuda(const tsr_attention_bounds *bounds);
uint64_t tsr_delta_rule_workspace_bytes_cuda(const tsr_delta_rule_bounds *bounds);
uint64_t tsr_head_workspace_bytes_cuda(const tsr_head_bounds *bounds);

/* What is open on one device; a library that is not there is NULL. */
typedef struct tsr_blas tsr_blas; /* gemm_cublaslt.c */
typedef struct tsr_sdpa tsr_sdpa; /* attention_cudnn.c */
typedef struct {
    tsr_blas *blas;
    tsr_sdpa *sdpa;
    void *boxes; /* what maps boxes for copies, where nf4_merge_wgmma.cu can run */
} tsr_kernels_context;

static inline const tsr_kernels_context *tsr_kernels_kept(const tsr_stream *stream)
{
    return (const tsr_kernels_context *)tsr_device_kept(tsr_stream_device((tsr_stream *)stream));
}

/* tsr_kernels_open of a CUDA device. */
tsr_status tsr_kernels_open_cuda(tsr_device *device);

tsr_status tsr_blas_open(tsr_blas **out, tsr_device *device);
void tsr_blas_close(tsr_blas *blas);
/* kernels.h: turn, job below TSR_KERNELS_TURNS. */
tsr_status tsr_blas_turn(tsr_blas *blas, int job);

/* Brings to the front of `shape`, in its order, what is to be timed, each once, and returns how many. It
 * depends on the shapes and the kind of card alone: not on what has been chosen, nor on memory. */
int tsr_blas_select(const tsr_blas *blas, tsr_gemm_args *shape, int count);

/* Brings to the front those that tsr_blas_tune can time in so much scratch, and returns how many. */
int tsr_blas_fitting(tsr_gemm_args *shape, int count, uint64_t scratch_bytes);

/* Times the candidates for each shape and keeps the fastest, before its first use; a shape that has
 * been chosen for is left alone. Of a shape m, n, k, leading dimensions, transposes, alpha,
 * beta and dtypes count, pointers do not; one number of tokens stands for its bucket. Of `scratch`,
 * device memory, at least tsr_blas_tune_bytes; more is used so that caches do not flatter. If
 * anything is timed, all of it is zero afterwards. Waits. */
tsr_status tsr_blas_tune(tsr_blas *blas, tsr_stream *stream, const tsr_gemm_args *shape, int count,
                         void *scratch, uint64_t scratch_bytes);
uint64_t tsr_blas_tune_bytes(const tsr_gemm_args *shape, int count);

/* What is worth timing and has no choice yet takes the heuristic's first, as it would in a step: so an
 * export has it, and a run that recalls that does not time it, however much memory it has. */
void tsr_blas_settle(tsr_blas *blas, const tsr_gemm_args *shape, int count);

/* All that was chosen before the first step, as text, appended: a line that names device and library,
 * then a line each. */
void tsr_blas_export(tsr_text *out, const tsr_blas *blas);

/* The same of what was timed alone, with what `old`, such a text or NULL or anything, has beside it. */
void tsr_blas_merge(tsr_text *out, tsr_blas *blas, const char *old);

/* All of a text. TSR_EDATA, and nothing is taken: it is another device's or library's, or not such a
 * text. */
tsr_status tsr_blas_import(tsr_blas *blas, const char *text);

/* Of a text (or NULL, or anything) what fits one of the shapes and is not chosen yet. `timed`: all of it
 * was, as in a cache. */
void tsr_blas_recall(tsr_blas *blas, const char *text, const tsr_gemm_args *shape, int count,
                     bool timed);

/* "algorithm 66, tile 15, ...": what would run a call, for messages. */
void tsr_blas_describe(char *text, uint64_t bytes, tsr_blas *blas, const tsr_gemm_args *args);

/* gemm.cu: C = beta C; and uniform [-1, 1), of e4m3 [-448, 448). */
tsr_status tsr_gemm_scale(tsr_stream *stream, const tsr_gemm_args *args);
tsr_status tsr_gemm_randomize(tsr_stream *stream, void *out, int64_t count, tsr_dtype dtype,
                              uint32_t seed);

/* gemm_fp8.c: tsr_kernels_fp8_supported of a CUDA device; and whether mma.sync multiplies e4m3 in this build's code for it. */
tsr_status tsr_fp8_gemm_supported(tsr_device *device);
bool tsr_fp8_mma_here(tsr_device *device);

/* fp8_gemm_mma.cu: fp8_gemm where tsr_fp8_mma_here; m, n and k are not 0. */
tsr_status tsr_fp8_gemm_mma(tsr_stream *stream, const tsr_fp8_gemm_args *args);

/* The matmuls of head_chunk for such a call, for tsr_blas_tune: writes at most
 * TSR_HEAD_MATMULS of them and returns how many. */
#define TSR_HEAD_MATMULS 2
int tsr_head_matmuls_cuda(tsr_gemm_args *out, const tsr_head_bounds *bounds);

/* nf4_merge_wgmma.cu: the driver's cuTensorMapEncodeTiled; NULL: the card, this build's code for it or
 * the driver is not what the kernel needs, and nf4_merge.cu has another. */
void *tsr_nf4_merge_boxes(tsr_device *device);

tsr_status tsr_sdpa_open(tsr_sdpa **out, tsr_device *device);
void tsr_sdpa_close(tsr_sdpa *sdpa);
void tsr_sdpa_turn(tsr_sdpa *sdpa, int job);

/* Makes cuDNN's plans for calls within these bounds, at start-up: half a second each, host memory
 * only. Calls that were not prepared, or that cuDNN refuses (said in the log), go to the own kernel:
 * that is no failure. Both directions of a call choose alike; workspaces are those of the bounds. Not
 * between a forward and its backward. NULL, a build without cuDNN, is fine. */
tsr_status tsr_sdpa_prepare(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds);

#ifdef __cplusplus
}
#endif

#endif
