/*
 * adapters/linear.h: one frozen linear with its adapter, forward and backward, as matmuls on a
 * stream.
 *
 *     LoRA    z = W x + s B A drop(x)      the consumer computes y = z + bias
 *     DoRA    z = W x + s B A x            the consumer computes y = g z + bias, g = m / n
 *     DoRA with dropout (FORMATS 2)        y = W x + bias + (g - 1) W xd + g s B A xd
 *
 * The consumer of an output (RoPE, SwiGLU, the residual) multiplies by g in fp32 and adds the bias,
 * so no pass of its own is spent on them, and its backward gives dz = g dy and dm. Only DoRA with
 * dropout cannot be written so: there `y` is composed here, the consumer gets it with g and bias
 * NULL, and its backward's dy comes back here.
 *
 * The low-rank product X A^T is kept for the backward where every forward makes it (tsr_graph_keeps_low): of
 * a base that is not merged with its adapter, and with dropout, where it is that of the dropped x. Elsewhere the
 * backward makes it from x.
 *
 * In which order the products of an adapter are multiplied is chosen for each shape (adapters/graph.h);
 * here it is done. W + s B A is then one weight: one matmul gives z, one dx, and nothing is added to
 * either afterwards. DoRA with dropout is then
 *
 *     y = W (x - xd) + bias + g z, z = (W + s B A) xd
 *
 * with no product of rank r beside the base's. x - xd is what dropout leaves of x, exact for p up to 1/2:
 * nothing is rounded that was not before. Its backward does not merge: of dx = u + drop((W + s B A)^T g dy - u)
 * with u = W^T dy both products are rounded before they are subtracted, and bf16's dx is 1.2 times as far off.
 *
 * With an fp8 base (base_compute: fp8) W x and W^T dz are matmuls in e4m3, of W with a scale for each
 * of its rows, x and dz with one for each token; all else is as above, with the weight that e4m3 can hold
 * wherever W stands, in DoRA's norms too, which are made before a forward, never in it. The scales of W are
 * part of what is quantized of dz.
 *
 * Of a micro-batch with documents of several adapters each has a range of the tokens. W x and W^T dz are one matmul of
 * all tokens, products of rank r are of each range (linear_mixed.c) or of several that are stacked (linear_stacked.c): nothing
 * is merged then.
 *
 * Cost     that of the graphs, and of making the weight from its codes, once per call: a frozen W has no
 *          gradient.
 */
#ifndef TSR_ADAPTERS_LINEAR_H
#define TSR_ADAPTERS_LINEAR_H

#include "adapters/graph_book.h"
#include "kernels/kernels.h"

/* A frozen weight [out, in] as it lies in the gathered unit. Borrowed. */
typedef struct {
    const void *
        data; /* a plain weight of `dtype`, or codes of LLM.int8 (I8) or e4m3 (F8_E4M3); NULL: NF4 */
    tsr_dtype dtype;
    const float *code_scale; /* of codes (kernels/byte_decode.h); else NULL */
    const uint8_t *codes;
    const void *absmax; /* uint8_t if nested, else float */
    const float *nested_absmax, *nested_map, *level;
    float offset;
    bool nested;
} tsr_base_weight;

/* DoRA's row norms for the A, B and W that the matmuls use (FORMATS 3), and g = m / n, in fp32. */
typedef struct {
    const float *m; /* [out]; NULL: fresh, m is n (g = 1) */
    float *n, *g;   /* [out], written */
    /* Where s B A is added to W as that is decoded (tsr_linear_norm_merges) they come of that: */
    float *partials; /* scratch, tsr_nf4_merge_partials of the weight */
    /* Elsewhere they are factored, of values in the compute dtype; the rest stays fp32: */
    float *squares; /* [out]: ||w||^2; of an fp8 base without its scales */
    bool known;     /* squares are already right: W is frozen */
    float *u;       /* scratch [out, r]: W A^T, the same */
    float *gram;    /* scratch [r, r]: A A^T */
    float *b;       /* scratch [out, r]: B widened; unused where the compute dtype is F32 */
    float *bg;      /* scratch [out, r]: B A A^T */
} tsr_linear_norm_args;

/* One of several adapters, on tokens [first, first + tokens) of a micro-batch; without magnitudes. */
typedef struct {
    int64_t first, tokens;
    uint64_t r; /* 0: it has none here */
    double scale;
    const void *a, *b; /* as tsr_linear's */
    bool drops;
    tsr_dropout dropout;
    float *da, *db; /* of a backward: written */
} tsr_linear_range;

typedef struct {
    uint64_t out, in;
    tsr_base_weight weight;
    tsr_frozen bias; /* [out], or NULL data */
    uint64_t r;      /* 0: no adapter, and nothing below is used */
    double scale;    /* s */
    const void *a;   /* [r, in] of the compute dtype */
    const void *b;   /* [out, r] */
    const float *g;  /* [out], DoRA only */
    const float *n;  /* [out], DoRA only */
    /* g and n are to be made in the forward, with the weight: only where tsr_linear_merges. Else NULL. */
    const tsr_linear_norm_args *norm;
    bool drops; /* dropout is active */
    tsr_dropout dropout;
    bool apart; /* it is never merged */
    /* [range_count], all tokens in their order; of what is above of an adapter then only r counts, their largest. NULL: there
     * is one adapter, or none. */
    const tsr_linear_range *range;
    int range_count;
    uint64_t low; /* columns of what is left of x A^T for the backward; 0: r */
} tsr_linear;

/* Ranges are stacked in 16 bits only: in fp32 each has the bits of a linear of its tokens alone. */
static inline bool tsr_linear_stacks(tsr_dtype dtype)
{
    return dtype != TSR_F32;
}

/* Columns of x A^T, at most, of ranges that are stacked; linear_stacked.c says why. */
#define TSR_LINEAR_STACK 128

/* Whether one kernel adds s B A to such a base while it decodes it. DoRA's norms are then of that, whatever
 * is multiplied with: so their bits do not depend on the micro-batch that they are made in. */
static inline bool tsr_linear_norm_merges(tsr_dtype dtype, bool nf4, uint64_t in, uint64_t r)
{
    return nf4 && tsr_nf4_merge_fused(dtype, (int64_t)in, (int64_t)r);
}

/* Whether what it makes, rounded once, may be multiplied with (adapters/graph.h). Norms come with the weight
 * of a forward then, merged or not; with an fp8 base, which is multiplied with as e4m3, by themselves. */
static inline bool tsr_linear_merges(tsr_dtype dtype, bool fp8, bool nf4, uint64_t in, uint64_t r)
{
    return !fp8 && tsr_linear_norm_merges(dtype, nf4, in, r);
}

/* Whether y is composed here (DoRA with dropout). */
static inline bool tsr_linear_composes(const tsr_linear *linear)
{
    return linear->r && linear->g && linear->drops;
}

#define TSR_LINEAR_MADE 2 /* gradients that wait at once: of gate and up */

/* Of an fp8 base. */
typedef struct {
    bool on, fast;       /* fast: kernels/fp8_gemm.h */
    void *weight;        /* largest out * in, e4m3 */
    float *weight_scale; /* [largest out] */
    void *rows;          /* T * largest in or out, e4m3: x, or dz times the weight's scales */
    float *row_scale;    /* [T] */
    /* The same of gradients that are put into e4m3 where they are made, until their linear's turn. */
    float *made_weight_scale[TSR_LINEAR_MADE], *made_row_scale[TSR_LINEAR_MADE];
} tsr_linear_fp8;

/* Of ranges that are stacked: A and B of the compute dtype, and their gradients. NULL: none are. */
typedef struct {
    void *a, *b;    /* as many columns of x A^T as there are, times largest in, largest out */
    float *da, *db; /* the same */
} tsr_linear_stack;

/* Where the work goes and its scratch, shared by all linears; T is the tokens of the micro-batch.
 */
typedef struct {
    const tsr_kernels *kernels;
    tsr_stream *stream;
    tsr_dtype dtype;
    int64_t tokens;
    int64_t step_micro;           /* micro-batches of a step, of all ranks: for choosing graphs */
    const tsr_graph_book *graphs; /* what was chosen at start-up; NULL: nothing */
    void *weight;                 /* largest out * in elements */
    tsr_linear_fp8 fp8;
    void *low, *d_low; /* T * largest r, or tsr_linear.low, each; low where it is not kept */
    tsr_linear_stack stack;
    void *dropped;            /* T * largest in, with dropout */
    void *d_dropped;          /* T * largest in, with dropout; in a forward of DoRA x - xd */
    void *lora;               /* T * largest out, with dropout and DoRA */
    float *partials;          /* scratch of dm (kernels/types.h) */
    const int64_t *samples;   /* [T], of each token, for dropout */
    const int32_t *positions; /* [T], in its sample */
} tsr_linear_context;

/* What the choice of its graph depends on. linear->r is not 0. */
tsr_graph_shape tsr_linear_graph_shape(const tsr_linear_context *context, const tsr_linear *linear,
                                       bool backward);

/* Where the op that makes x [T, in] puts what the forwards of all linears that read it share, or who does
 * so afterwards: one of the two, before the first of them. */
tsr_fp8_rows tsr_linear_rows(const tsr_linear_context *context);
tsr_status tsr_linear_input(const tsr_linear_context *context, const void *x, int64_t in);

/* z [T, out]; y [T, out] only if tsr_linear_composes, else NULL. low [T, r], or of ranges [T, tsr_linear.low]: where
 * X A^T is left for the backward; not by a graph that merges, which has none. NULL: it is not kept. */
tsr_status tsr_linear_forward(const tsr_linear_context *context, const tsr_linear *linear,
                              const void *x, void *z, void *y, void *low);

/* What the backward of one linear reads and writes. */
typedef struct {
    const void *x; /* [T, in], the forward's */
    const void
        *low;  /* what the forward left; NULL, or where a forward may merge: it is made again */
    void *dz;  /* [T, out]: gradient of z; of y if tsr_linear_composes */
    void *z;   /* [T, out], only if tsr_linear_composes: the forward's; overwritten */
    void *dx;  /* [T, in]; NULL: not wanted */
    bool add;  /* dx is added to */
    float *da; /* [r, in], written */
    float *db; /* [out, r], written */
    float *dm; /* [out], written here only if tsr_linear_composes */
    tsr_fp8_rows dz8; /* of tsr_linear_gradient_rows, filled by what made dz; else out is NULL */
} tsr_linear_gradients;

/* Where the op that makes dz [T, out] puts what the backward of this linear multiplies for its dx: into
 * `codes`, T * out bytes, the caller's until then. `which` of TSR_LINEAR_MADE scales go with it; those of W,
 * which are part of what is quantized, are made here. out->out is NULL where there is nothing to be put:
 * without an fp8 base, and where the linear composes, which takes dz apart first. */
tsr_status tsr_linear_gradient_rows(tsr_fp8_rows *out, const tsr_linear_context *context,
                                    const tsr_linear *linear, void *codes, int which);

tsr_status tsr_linear_backward(const tsr_linear_context *context, const tsr_linear *linear,
                               const tsr_linear_gradients *gradients);

/* The weight in the compute dtype (not that of an fp8 base): made in context->weight, or where it lies if
 * it is of that dtype. */
tsr_status tsr_linear_weight(const void **out, const tsr_linear_context *context,
                             const tsr_linear *linear);

/* DoRA's norms by themselves: before a forward that does not make them. The weight's memory is scratch. */
tsr_status tsr_linear_norm(const tsr_linear_context *context, const tsr_linear *linear,
                           const tsr_linear_norm_args *args);

#endif
