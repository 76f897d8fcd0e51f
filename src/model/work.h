/*
 * model/work.h: the work of a step, operation by operation: the bytes and FLOPs of each use of a unit.
 * What a step is expected to take and the floor that a measured one is held against are sums over
 * these.
 *
 * A frozen linear costs 2 T in out forward and as much for dX (the base has no gradient); an adapter
 * 2 T r (in + out) forward and twice that backward; attention counts the visible half of the scores
 * only, five matmuls backward against two forward. What is counted stands with each
 * kind of node, node_<kind>.c; biases and the norms of q and k are not. Dropout is a second matmul of the base each way where
 * there is a magnitude (adapters/linear.h); at least, its mask costs nothing.
 *
 * Each operation is counted twice: the least that any implementation does, and what this one does by
 * the graphs of its adapters (adapters/graph.h, the cheapest: what a run measures is not known here),
 * where a product of rank r is a matmul of its own or goes into the weight instead of riding on the
 * base's, and every linear reads its input for its adapter itself.
 *
 * Of a micro-batch that several ranks share, what one of them does is counted. Attention then waits for rows of the others
 * that go to its first heads (those of others arrive meanwhile, as far as there is time), and copies its own to where all
 * rows lie and back (model/attention_shared.h); at least, it does neither.
 *
 * With an fp8 base its matmuls read one byte an element, its weights are decoded to as much, and x, once
 * for all linears that read it, and dz are quantized: at least that writes a byte where they are made; here
 * so for what norms and SwiGLU make, without dm, all else is read for it. What goes to experts is quantized for each of
 * their matmuls.
 */
#ifndef TSR_MODEL_WORK_H
#define TSR_MODEL_WORK_H

#include "model/layout.h"
#include "model/units.h"

typedef enum {
    TSR_WORK_LINEARS_FORWARD,
    TSR_WORK_LINEARS_BACKWARD,
    TSR_WORK_ADAPTERS_FORWARD,
    TSR_WORK_ADAPTERS_BACKWARD,
    TSR_WORK_ATTENTION_FORWARD,
    TSR_WORK_ATTENTION_BACKWARD,
    TSR_WORK_MEMORY_FORWARD, /* norms with the residual, RoPE, SwiGLU */
    TSR_WORK_MEMORY_BACKWARD,
    TSR_WORK_NF4,
    TSR_WORK_QUANTIZE, /* an fp8 base: of x and dz to e4m3 */
    TSR_WORK_DORA,     /* norms of W + sBA once a step; what dm reads */
    TSR_WORK_HEAD,     /* and the loss */
    TSR_WORK_RECOMPUTE,
    TSR_WORK_OPTIMIZER,
    TSR_WORK_TERMS
} tsr_work_term;

const char *tsr_work_term_name(tsr_work_term term);

/* What bounds an operation. */
typedef enum {
    TSR_WORK_MATMUL,
    TSR_WORK_MATMUL_FP8,
    TSR_WORK_GROUPED, /* the matmuls of experts */
    TSR_WORK_GROUPED_FP8,
    TSR_WORK_NARROW, /* a matmul with the rank as one side */
    TSR_WORK_ADDED,  /* a product of rank r, added to or under the base's */
    TSR_WORK_MERGED, /* a product of rank r, added to the base's weight */
    TSR_WORK_ATTEND,
    TSR_WORK_ATTEND_BACK,
    TSR_WORK_STREAM,   /* reads and writes */
    TSR_WORK_DECODE,   /* NF4 to the compute dtype, or to e4m3 */
    TSR_WORK_EXCHANGE, /* with other ranks: what arrives */
    TSR_WORK_KINDS
} tsr_work_kind;

typedef struct {
    double flops, bytes;
} tsr_work_amount;

typedef struct tsr_work_op {
    tsr_work_term term;
    tsr_work_kind kind;
    tsr_work_amount least, here;
    /* Of an exchange in so many parts: all but one go on beside this operation, as long as it takes. NULL: it is waited for. */
    const struct tsr_work_op *beside;
    int parts;
    double calls;    /* that do `here`, one after the other; 0: 1 */
    bool least_only; /* `here` is told by another: of what is done in tiles */
} tsr_work_op;

typedef void tsr_work_call(void *user, const tsr_work_op *op);

/* ---- the uses of a unit ---- */

typedef struct {
    double in, out, r; /* r 0: no adapter */
    bool dora, nf4;
    bool in_8bit; /* LLM.int8, or e4m3 in blocks */
    bool drops;   /* has dropout */
} tsr_work_linear;

/* Of experts; the sizes are the node's. */
typedef struct {
    double r;
    bool nf4;
    bool decoded; /* and stays so */
    bool fp8;     /* multiplied in e4m3 */
} tsr_work_stack;

typedef struct {
    const tsr_layer_program *program; /* what it runs (model/program.h) */
    tsr_work_linear linear[TSR_BLOCK_MATRICES];
    tsr_work_stack stack[TSR_BLOCK_STACKS];
    double element;       /* bytes of one of the compute dtype */
    bool fp8;             /* the base's matmuls run in e4m3 */
    double tokens, pairs; /* pairs: of tokens that see each other, over all documents */
    double pairs_here;    /* as many as this device's attention takes as long for; 0: pairs */
    double pairs_back;    /* the same of its backward; 0: as many as forward */
    double all_tokens;    /* of all ranks that share a micro-batch of which this is one's; else 0 */
    int head_groups;      /* of key heads, which attention then has one after the other */
    int head_ranks; /* those ranks, if each computes all rows of its own heads; 0: each its own rows of all heads */
    bool adds_dq;       /* and then dq is added up over these ranks, as int32 */
    int64_t step_micro; /* micro-batches of a step, of all ranks: for the choice of graphs; or 0 */
    bool last;          /* has the final norm */
    const tsr_layer_run *run; /* of one use of it; NULL: all of it */
} tsr_work_layer;

/* The linears and stacks of layer `unit` of a layout, and whether it is the last; the caller fills in the rest, fp8 before. */
void tsr_work_layer_of(tsr_work_layer *out, const tsr_layout *layout, int unit);

/* What such a linear means for the layer's program. */
tsr_matrix_traits tsr_work_traits(const tsr_work_layer *layer, int linear);

void tsr_work_forward(const tsr_work_layer *layer, tsr_work_call *call, void *user);
/* With what it recomputes. */
void tsr_work_backward(const tsr_work_layer *layer, tsr_work_call *call, void *user);
/* DoRA's norms, once a step; of a run, those of the linears in that of a forward. */
void tsr_work_norm(const tsr_work_layer *layer, tsr_work_call *call, void *user);

/* A chunk of the vocabulary, with the gradient of its rows if `train`. */
typedef struct {
    double rows, d, vocabulary, element;
    bool train;
} tsr_work_head;

void tsr_work_chunk(const tsr_work_head *head, tsr_work_call *call, void *user);

/* AdamW over so many elements, and the norm of their gradients. state: bytes of masters and moments, read and written; gradient:
 * of an element's, which both read; the working copy is written too. */
void tsr_work_update(double elements, double state, double gradient, double element,
                     tsr_work_call *call, void *user);

/* ---- its time ---- */

/* What a device sustains, in FLOP/s and bytes/s (read + write). */
typedef struct {
    double matmul, copy, attention_forward, attention_backward, matmul_fp8;
    double exchange; /* bytes/s that arrive */
    /* The share of these that each kind of operation reaches, doing what it does here; 0: all of it, and
     * only the least: the floor. */
    double reached[TSR_WORK_KINDS];
    /* Seconds that an operation of each kind loses at its ends, where it does not fill the device: added as
     * the root of the sum of squares, since a longer one has more to fill it with. */
    double ends_s[TSR_WORK_KINDS];
} tsr_work_rates;

double tsr_work_seconds(const tsr_work_rates *rates, const tsr_work_op *op);

#endif
