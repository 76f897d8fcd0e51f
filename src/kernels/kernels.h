/*
 * kernels/kernels.h: the table of device operations.
 *
 * Every slot is required. A call judges its arguments, copies them and enqueues; what the pointers
 * point to must stay until the stream has run the op. types.h has the conventions, each op's header
 * its contract, cost and source.
 */
#ifndef TSR_KERNELS_KERNELS_H
#define TSR_KERNELS_KERNELS_H

#include "base/library.h"
#include "base/text.h"
#include "kernels/adamw.h"
#include "kernels/adamw_8bit.h"
#include "kernels/attention.h"
#include "kernels/balance.h"
#include "kernels/byte_decode.h"
#include "kernels/combine.h"
#include "kernels/compose.h"
#include "kernels/convolution.h"
#include "kernels/copy_columns.h"
#include "kernels/delta_rule.h"
#include "kernels/dora_norm.h"
#include "kernels/dropout.h"
#include "kernels/expert_fp8.h"
#include "kernels/expert_low_rank.h"
#include "kernels/expert_low_rank_backward.h"
#include "kernels/expert_weight.h"
#include "kernels/fixed_point.h"
#include "kernels/fp8_decode.h"
#include "kernels/fp8_gemm.h"
#include "kernels/fp8_quantize.h"
#include "kernels/gate.h"
#include "kernels/gated_norm.h"
#include "kernels/gemm.h"
#include "kernels/grouped_fp8.h"
#include "kernels/grouped_gemm.h"
#include "kernels/head.h"
#include "kernels/head_weight.h"
#include "kernels/latent_qkv.h"
#include "kernels/layer_inputs.h"
#include "kernels/low_rank_backward.h"
#include "kernels/low_rank_stack.h"
#include "kernels/mxfp4_dequant.h"
#include "kernels/nf4_dequant.h"
#include "kernels/nf4_merge.h"
#include "kernels/nf4_quantize.h"
#include "kernels/noise.h"
#include "kernels/objective.h"
#include "kernels/rms_norm.h"
#include "kernels/rope_qkv.h"
#include "kernels/route.h"
#include "kernels/route_sort.h"
#include "kernels/routed_glu.h"
#include "kernels/row_square_norm.h"
#include "kernels/rows.h"
#include "kernels/score.h"
#include "kernels/swiglu.h"
#include "kernels/table_rows.h"
#include "kernels/types.h"
#include "kernels/widen.h"

/* X(op) for every op: tsr_<op>_args, tsr_<op>_check, tsr_<op>_ref, and tsr_<op>_cuda. */
#define TSR_KERNEL_OPS(X)                                                                          \
    X(gemm)                                                                                        \
    X(low_rank_backward)                                                                           \
    X(low_rank_stack)                                                                              \
    X(low_rank_mask)                                                                               \
    X(fp8_quantize)                                                                                \
    X(fp8_decode)                                                                                  \
    X(fp8_gemm)                                                                                    \
    X(nf4_dequant)                                                                                 \
    X(nf4_merge)                                                                                   \
    X(nf4_quantize)                                                                                \
    X(nf4_nest)                                                                                    \
    X(mxfp4_dequant)                                                                               \
    X(expert_weight)                                                                               \
    X(expert_fp8)                                                                                  \
    X(grouped_gemm)                                                                                \
    X(grouped_fp8)                                                                                 \
    X(expert_low_rank)                                                                             \
    X(expert_low_rank_backward)                                                                    \
    X(widen)                                                                                       \
    X(byte_decode)                                                                                 \
    X(rms_norm)                                                                                    \
    X(rms_norm_backward)                                                                           \
    X(rope_qkv)                                                                                    \
    X(rope_qkv_backward)                                                                           \
    X(latent_qkv)                                                                                  \
    X(latent_qkv_backward)                                                                         \
    X(attention)                                                                                   \
    X(attention_backward)                                                                          \
    X(attention_delta)                                                                             \
    X(swiglu)                                                                                      \
    X(swiglu_backward)                                                                             \
    X(layer_inputs)                                                                                \
    X(layer_inputs_backward)                                                                       \
    X(route)                                                                                       \
    X(route_sort)                                                                                  \
    X(route_backward)                                                                              \
    X(route_stats)                                                                                 \
    X(combine)                                                                                     \
    X(balance)                                                                                     \
    X(balance_bias)                                                                                \
    X(combine_backward)                                                                            \
    X(routed_glu_backward)                                                                         \
    X(convolution)                                                                                 \
    X(convolution_backward)                                                                        \
    X(delta_rule)                                                                                  \
    X(delta_rule_backward)                                                                         \
    X(gated_norm)                                                                                  \
    X(gated_norm_backward)                                                                         \
    X(gate)                                                                                        \
    X(gate_backward)                                                                               \
    X(split_heads)                                                                                 \
    X(split_heads_backward)                                                                        \
    X(head_begin)                                                                                  \
    X(head_chunk)                                                                                  \
    X(head_finish)                                                                                 \
    X(head_weight)                                                                                 \
    X(objective)                                                                                   \
    X(scale_rows)                                                                                  \
    X(score)                                                                                       \
    X(copy_columns)                                                                                \
    X(gather_rows)                                                                                 \
    X(scatter_rows)                                                                                \
    X(table_rows)                                                                                  \
    X(table_sum)                                                                                   \
    X(compose)                                                                                     \
    X(compose_merged)                                                                              \
    X(compose_backward)                                                                            \
    X(row_square_norm)                                                                             \
    X(dora_norm)                                                                                   \
    X(dropout)                                                                                     \
    X(noise)                                                                                       \
    X(fixed_sum)                                                                                   \
    X(fixed_accumulate)                                                                            \
    X(fixed_add)                                                                                   \
    X(grad_norm)                                                                                   \
    X(adamw)                                                                                       \
    X(adamw_8bit)                                                                                  \
    X(step_sums)                                                                                   \
    X(step_control)

/* What a run prepares at start-up, so that nothing is compiled, timed or chosen inside a step. Parts
 * that are NULL or 0 are left out. */
typedef struct {
    const tsr_attention_bounds *attention;
    /* Matmuls: those that are worth it are timed, once, on `stream`, which is idle, in `scratch`,
     * device memory of any size that nothing else uses and that is zero before and after. */
    const tsr_gemm_args *gemm; /* [gemm_count]; of what they point to nothing is used */
    const tsr_head_bounds *head;
    int gemm_count, head_count;
    tsr_stream *stream;
    void *scratch;
    uint64_t scratch_bytes;
    /* What was chosen before, as text: `known` and then `cached` save timing and may be anything;
     * `agreed` (without gemm and head) is another rank's `chosen` and is taken whole. TSR_EDATA: it
     * is of another kind of device or library, or no such text. */
    const char *known, *cached, *agreed;
    /* Appended, nothing on the CPU: a line that names device and libraries, and all that was chosen, timed
     * or not: as `known` of the same list it leaves nothing to be chosen, however much scratch there is;
     * and the same of what was timed, with what else `cached` holds. */
    tsr_text *chosen, *cache;
} tsr_prepare_args;

/* Jobs that may share a device. */
#define TSR_KERNELS_TURNS 64

#define TSR_KERNEL_SLOT(op) tsr_status (*op)(tsr_stream *, const tsr_##op##_args *);

typedef struct {
    const char *name; /* "cpu", "cuda" */
    TSR_KERNEL_OPS(TSR_KERNEL_SLOT)
    /* Scratch that the plan gives; known without a device. */
    uint64_t (*attention_workspace_bytes)(const tsr_attention_bounds *bounds);
    uint64_t (*delta_rule_workspace_bytes)(const tsr_delta_rule_bounds *bounds);
    uint64_t (*head_workspace_bytes)(const tsr_head_bounds *bounds);
    /* Whether the lse of such a call is [tokens, Hq] and not [Hq, tokens]: what ranks that share rows need to know. */
    bool (*attention_lse_by_token)(const tsr_stream *stream, const tsr_attention_shape *shape);
    /* How they go about it; known without a device. */
    tsr_attention_sharing (*attention_sharing)(const tsr_attention_bounds *bounds);
    int64_t partial_rows; /* of sums over tokens (types.h); 0: none needed */
    /* At start-up; waits. */
    tsr_status (*prepare)(tsr_device *device, const tsr_prepare_args *args);
    /* Jobs that share a device keep their choices apart: from now on, what is prepared and used is that of job `job` (0 at
     * first). The first turn of each job is at start-up, since it allocates. */
    tsr_status (*turn)(tsr_device *device, int job);
} tsr_kernels;

const tsr_kernels *tsr_kernels_cpu(void);

/* Ops that do nothing, to be copied by who wants to know what is called; without the rest. */
extern const tsr_kernels tsr_kernels_none;

/* Known without a GPU, so that a plan can be made; NULL in a build without CUDA. */
const tsr_kernels *tsr_kernels_cuda(void);

/* Loads the libraries of a device's kernels and makes them ready (cuBLASLt, and cuDNN where it is;
 * nothing on the CPU), once, before the first op: handles and workspaces of at most
 * TSR_KERNELS_LIBRARY_BYTES of device memory. They go with the device. TSR_EDEVICE: cuBLASLt cannot
 * be loaded. */
#define TSR_KERNELS_LIBRARY_BYTES (64u << 20)
tsr_status tsr_kernels_open(const tsr_kernels **out, tsr_device *device);

/* The versions of the GPUs' libraries on this machine. TSR_EUNSUPPORTED: not in this build;
 * TSR_EDEVICE: it cannot be loaded, with what to do. Without cuDNN the own attention runs. */
tsr_status tsr_kernels_cublaslt_version(tsr_library_version *out);
tsr_status tsr_kernels_cudnn_version(tsr_library_version *out);

/* Whether fp8_gemm runs on this device, for aligned shapes (fp8_gemm.h); the CPU always can.
 * TSR_EUNSUPPORTED: what it needs and what is there. */
tsr_status tsr_kernels_fp8_supported(tsr_device *device);

/* The instruction set and the matmul's core that this process uses, "x86-64-v4, OpenBLAS Zen" for
 * the log: bits are promised per kernel set. Borrowed. */
const char *tsr_kernels_cpu_set(void);

#endif
