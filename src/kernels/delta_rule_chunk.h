/*
 * kernels/delta_rule_chunk.h: one chunk of one value head of the gated delta rule on the CPU (delta_rule.h). Inside
 * src/kernels only.
 *
 * Letters are those of the contract. Rows of a chunk beyond its length are not read.
 */
#ifndef TSR_KERNELS_DELTA_RULE_CHUNK_H
#define TSR_KERNELS_DELTA_RULE_CHUNK_H

#include "kernels/delta_rule.h"

typedef struct {
    const tsr_delta_rule_inputs *in;
    const tsr_delta_rule_shape *shape;
    int64_t first;  /* token */
    int64_t length; /* of the chunk */
    int32_t head, key_head;
    float sum[TSR_DELTA_CHUNK];  /* c */
    float grow[TSR_DELTA_CHUNK]; /* exp(c) */
    float left[TSR_DELTA_CHUNK]; /* exp(c_last - c) */
    float beta[TSR_DELTA_CHUNK];
    float slope[TSR_DELTA_CHUNK]; /* of decay by g_a a */
    float q_rstd[TSR_DELTA_CHUNK], k_rstd[TSR_DELTA_CHUNK];
    float *q, *k;         /* [64, dk], normed; q with its scale */
    float *rest, *u;      /* [64, dv]: V - diag(exp c) K S, U */
    float *kk, *p, *e;    /* [64, 64]: E_ij k_i.k_j for j < i, P, E; else 0 */
    float *state;         /* [dk, dv]: S before the chunk, then after it */
    float *wide, *narrow; /* [64, the larger of dk and dv] each: scratch */
} tsr_delta_chunk;

/* Floats that the pointers of one need; sets them. */
uint64_t tsr_delta_chunk_floats(int64_t key_dim, int64_t value_dim);
float *tsr_delta_chunk_place(tsr_delta_chunk *out, float *memory, int64_t key_dim,
                             int64_t value_dim);

/* Reads the chunk and solves for U, with the state before it. */
void tsr_delta_chunk_solve(tsr_delta_chunk *chunk);

/* O of the chunk to o, rows of `stride` floats. Before the state is moved on. */
void tsr_delta_chunk_output(float *o, int64_t stride, const tsr_delta_chunk *chunk);

/* S before the chunk becomes S after it. */
void tsr_delta_chunk_advance(tsr_delta_chunk *chunk);

/* c = alpha op(a) op(b) + beta c, [m, n], over k. */
void tsr_delta_multiply(float *c, int64_t ldc, const float *a, int64_t lda, bool trans_a,
                        const float *b, int64_t ldb, bool trans_b, const int64_t mnk[3],
                        float beta);

#endif
