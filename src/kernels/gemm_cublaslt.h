/*
 * kernels/gemm_cublaslt.h: what the files of the CUDA matmul share. Inside src/kernels only.
 *
 *     gemm_cublaslt.c   the op, its table of algorithms, and what is asked of cuBLASLt
 *     gemm_fp8.c        the op fp8_gemm, and what cuBLASLt is told of scales by row
 *     gemm_tune.c       which shapes of a run are worth timing, and the timing
 *     gemm_choices.c    the tuned algorithms as text
 *     cublaslt_library  cuBLASLt itself, loaded when it is needed
 */
#ifndef TSR_KERNELS_GEMM_CUBLASLT_H
#define TSR_KERNELS_GEMM_CUBLASLT_H

#include "kernels/cublaslt_library.h"
#include "kernels/kernels_cuda.h"

#define TSR_BLAS_CANDIDATES 8    /* that the heuristic is asked for */
#define TSR_BLAS_TABLE      4096 /* choices; a power of two */

/* A shape, as it is or of its bucket. No padding: compared as bytes. */
typedef struct {
    int32_t m, n, k, lda, ldb, ldc;
    uint32_t flags;
} tsr_matmul_key;

/* flags: these; from bit 4 dtype, c_dtype, log2 of the alignment of A, B, C. */
#define TSR_MATMUL_TRANS_A 1u
#define TSR_MATMUL_TRANS_B 2u
#define TSR_MATMUL_ADD     4u
#define TSR_MATMUL_FAST    8u /* of e4m3: fp8_gemm.h */

static inline tsr_dtype tsr_matmul_dtype(const tsr_matmul_key *key)
{
    return (tsr_dtype)(key->flags >> 4 & 15);
}

static inline tsr_dtype tsr_matmul_c_dtype(const tsr_matmul_key *key)
{
    return (tsr_dtype)(key->flags >> 8 & 15);
}

/* Where a choice is from, and so which texts have it. */
typedef enum {
    TSR_MATMUL_FREE,    /* a place in the table without one */
    TSR_MATMUL_ASKED,   /* the heuristic's first, when a step needed it: none */
    TSR_MATMUL_SETTLED, /* before the first step, not timed now: the run's own */
    TSR_MATMUL_TIMED    /* by this run, or by the one that left it in the cache: the cache's, too */
} tsr_matmul_origin;

typedef struct {
    tsr_matmul_key key;
    cublasLtMatmulAlgo_t algo;
    tsr_matmul_origin origin;
} tsr_matmul_choice;

typedef struct {
    int used;
    tsr_matmul_choice choice[TSR_BLAS_TABLE];
} tsr_matmul_table;

struct tsr_blas {
    cublasLtHandle_t handle;
    void *workspace;
    tsr_stream *last;                          /* stream that has the workspace */
    cublasLtMatmulDescOpaque_t description[4]; /* by TRANS_A and TRANS_B */
    float *ones;        /* [TSR_FP8_GEMM_MOST_ONES]; NULL: cuBLASLt has none */
    char made_for[384]; /* device and library, the head of an export */
    uint64_t l2_bytes;
    double bf16_flops, f32_flops; /* a second, roughly */
    tsr_matmul_table
        *table[TSR_KERNELS_TURNS]; /* of each job that shares the device; NULL: not yet */
    int turn;                      /* whose it is */
};

/* Of e4m3 operands, by row of A and by column of C. */
typedef struct {
    const float *a, *b;
} tsr_matmul_scales;

/* The bucket of a shape with aligned operands, which is where it is timed. */
tsr_matmul_key tsr_matmul_bucket(const tsr_gemm_args *shape);

/* gemm_tune.c: whether a bucket is that of one of the shapes. */
bool tsr_matmul_listed(const tsr_gemm_args *shape, int count, const tsr_matmul_key *key);

/* The place of a shape, used or free; NULL: not in a table that is full. */
tsr_matmul_choice *tsr_matmul_find(tsr_blas *blas, const tsr_matmul_key *key);
void tsr_matmul_keep(tsr_blas *blas, const tsr_matmul_key *key, const cublasLtMatmulAlgo_t *algo,
                     tsr_matmul_origin origin);

/* Of the heuristic's `most` best algorithms (at most TSR_BLAS_CANDIDATES), the best first, those that
 * are exact enough. At least one, or TSR_EUNSUPPORTED. */
tsr_status tsr_matmul_ask(cublasLtMatmulAlgo_t *out, int *count, tsr_blas *blas,
                          const tsr_matmul_key *key, int most);

/* The first of them. */
tsr_status tsr_matmul_ask_first(cublasLtMatmulAlgo_t *out, tsr_blas *blas,
                                const tsr_matmul_key *key);

/* Whether an algorithm from elsewhere runs this shape here, and is exact enough. */
bool tsr_matmul_runs(tsr_blas *blas, const tsr_matmul_choice *choice);

/* `scales` is of e4m3 only, and NULL otherwise. */
cublasStatus_t tsr_matmul_run(tsr_blas *blas, const tsr_matmul_key *key, const tsr_gemm_args *args,
                              const tsr_matmul_scales *scales, const cublasLtMatmulAlgo_t *algo,
                              cudaStream_t stream);

/* A matmul that has been judged and is not empty, with the algorithm of its bucket. */
tsr_status tsr_matmul_call(tsr_stream *stream, const tsr_gemm_args *args,
                           const tsr_matmul_scales *scales);

/* gemm_fp8.c: a description of an e4m3 matmul, both operands along k. */
cublasStatus_t tsr_matmul_describe_fp8(cublasLtMatmulDesc_t out, const tsr_matmul_key *key,
                                       const tsr_matmul_scales *scales);

/* gemm_fp8.c: blas->ones, where cuBLASLt has fp8_gemm. */
tsr_status tsr_blas_open_fp8(tsr_blas *blas, tsr_device *device);

/* Whether this library and card take a shape of a list at all. */
bool tsr_blas_takes(const tsr_blas *blas, const tsr_gemm_args *shape);

/* The workspace is this stream's from now on. */
tsr_status tsr_blas_own_workspace(tsr_blas *blas, tsr_stream *stream);

#endif
