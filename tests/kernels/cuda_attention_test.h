/*
 * tests/kernels/cuda_attention_test.h: a case of the CUDA attention: its data, what the C reference makes of them, runs
 * and comparisons. Outputs begin as NaN.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_ATTENTION_TEST_H
#define TSR_TESTS_KERNELS_CUDA_ATTENTION_TEST_H

#include "kernels/attention_cudnn.h"

#include "cuda_test.h"

#define MAX_DOCUMENTS 12

typedef struct {
    int64_t tokens;
    int32_t documents, q_heads, kv_heads, dim, window;
    int32_t length[MAX_DOCUMENTS];
    float scores; /* the size of q and k; 0: 1 */
    float softcap, scale;
    int32_t v_dim;    /* of a head of v and o; 0: dim */
    float sinks;      /* their size; 0: none */
    float long_key;   /* one token's k is so many times as large; 0: it is not */
    float long_value; /* likewise its v */
} attention_case;

#define ODD_LENGTHS                                                                                \
    {                                                                                              \
        1, 0, 2, 30, 65, 128, 0, 129, 300, 0                                                       \
    }

typedef struct {
    const attention_case *c;
    tsr_dtype dtype;
    int32_t cu_seqlens[MAX_DOCUMENTS + 1];
    int64_t q_count, k_count, v_count, o_count, lse_count;
    float *q, *k, *v, *d_o;        /* rounded to dtype */
    float *sinks;                  /* rounded to dtype, to bf16 for fp16; or NULL */
    float *o, *lse, *dq, *dk, *dv; /* wanted */
    const void *dev_q, *dev_k, *dev_v, *dev_d_o, *dev_cu, *dev_sinks;
    bool transposed; /* lse is [tokens, heads] */
} problem;

/* What a call reads and writes, on the host or on the device. */
typedef struct {
    const void *q, *k, *v, *d_o, *cu_seqlens;
    void *o, *dq, *dk, *dv, *workspace;
    float *lse;
    uint64_t workspace_bytes;
    tsr_dtype dtype;
    tsr_frozen sinks;
    int32_t all_kv_heads;
    tsr_spans spans;
    tsr_attention_sum sum;
    const float *delta; /* what a shared backward gets instead of o; NULL: o */
} operands;

typedef tsr_status forward_function(tsr_stream *, const tsr_attention_args *);
typedef tsr_status backward_function(tsr_stream *, const tsr_attention_backward_args *);

tsr_attention_shape shape_of(const attention_case *c, const operands *x);
tsr_attention_args forward_of(const attention_case *c, const operands *x);
tsr_attention_backward_args backward_of(const attention_case *c, const operands *x);

/* padding: what q, k, v and d_o hold for tokens of no document. */
void make_problem(problem *p, const attention_case *c, tsr_dtype dtype, float padding);
void free_problem(problem *p);

/* Both directions into new outputs, each with a workspace of NaN. */
operands run(const problem *p, forward_function *forward, backward_function *backward,
             void *workspace, uint64_t workspace_bytes);

/* Of the first run with the reference, and of both bit by bit; `repeats`: of dq too. */
void compare(const problem *p, const operands *first, const operands *second, bool repeats);

/* Each group of so many key heads alone has the bits that it has in `whole`, what the functions give of all. */
void check_heads(const problem *p, const operands *whole, forward_function *forward,
                 backward_function *backward, int32_t kv_heads);

/* `whole` is what the functions give; spans: of a rank. That rank's own rows have the same bits. */
void check_shared(const problem *p, const operands *whole, forward_function *forward,
                  backward_function *backward, tsr_spans spans);

/* Spans of TSR_SPAN_STEP dealt to so many ranks: own rows of each have the same bits, with delta instead of o, with dq from
 * all keys and with its sums added up over the ranks. */
void check_ranks(const problem *p, const operands *whole, forward_function *forward,
                 backward_function *backward, int ranks);

#endif
