/*
 * floor.c: see floor.h.
 */
#include "floor.h"

double tsr_floor_step(tsr_floor_term term[TSR_FLOOR_TERMS], const tsr_floor_shape *s)
{
    double tokens = s->rows * s->row_count;
    double q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    double qkv = s->d * (q + 2 * kv);
    double weights = qkv + q * s->d + 3 * s->d * s->f;
    double sides = 3 * s->d + q + 2 * kv + (q + s->d) + 3 * (s->d + s->f); /* in + out of all */
    double pairs = s->row_count * s->rows * (s->rows + 1) / 2;             /* query and key */
    double scores = 2 * pairs * q; /* one matmul of all heads: scores, or weights times values */
    double linear = 2 * tokens * s->layers * weights;
    double adapter = 2 * tokens * s->layers * s->r * sides;
    double head = 2 * tokens * s->d * s->vocabulary;
    const tsr_floor_term all[TSR_FLOOR_TERMS] = {
        {"linears forward", linear},
        /* nothing below the first layer is trained: its q, k and v need no dX */
        {"linears backward", linear - 2 * tokens * qkv},
        {"adapters forward", adapter},
        {"adapters backward", 2 * adapter},
        {"attention forward", 2 * s->layers * scores},
        {"attention backward", 5 * s->layers * scores},
        {"head forward", head},
        {"head backward", head},
    };
    double sum = 0;
    for (int i = 0; i < TSR_FLOOR_TERMS; i++) {
        term[i] = all[i];
        sum += all[i].flops;
    }
    return sum;
}

/* ---- on a GPU ---- */

#define ELEMENT 2.0 /* bytes of bf16 */
/* NF4 with double quantization: half a byte of code, an 8-bit scale for 64 elements. */
#define NF4_BYTES (0.5 + 1.0 / 64)
/* AdamW: master, m and v read and written, the gradient read here and for its norm, the working copy
 * written. */
#define OPTIMIZER_BYTES (6 * 4 + 2 * 4 + ELEMENT)

typedef struct {
    double in, out;
} linear;

enum { Q, K, V, O, GATE, UP, DOWN, LINEARS };

/* Linears that read the same x: one pass over it serves their adapters. */
typedef struct {
    double in;
    int count;
} group;

#define GROUPS 4

typedef struct {
    const tsr_floor_gpu_options *options;
    linear linear[LINEARS];
    group group[GROUPS];
    double tokens, scores; /* scores: FLOPs of one of attention's matmuls, all heads */
} layer;

/* `times` operations of so many bytes and FLOPs. */
static void add(tsr_floor_gpu_term *term, const layer *l, double times, double bytes, double flops,
                double flop_rate)
{
    double copy = bytes / l->options->roofs.copy, compute = flops / flop_rate;
    term->bytes += times * bytes;
    term->flops += times * flops;
    term->seconds += times * (copy > compute ? copy : compute);
}

/* A matmul [m, k] x [k, n] of bf16. */
static void add_matmul(tsr_floor_gpu_term *term, const layer *l, double times, double m, double n,
                       double k)
{
    add(term, l, times, ELEMENT * (m * k + k * n + m * n), 2 * m * n * k, l->options->roofs.gemm);
}

/* A matmul that rides on a larger one (K-concatenated): its FLOPs alone. */
static void add_riding(tsr_floor_gpu_term *term, const layer *l, double times, double flops)
{
    add(term, l, times, 0, flops, l->options->roofs.gemm);
}

static void add_bytes(tsr_floor_gpu_term *term, const layer *l, double times, double bytes)
{
    add(term, l, times, bytes, 0, l->options->roofs.gemm);
}

static void linears(tsr_floor_gpu_term *forward, tsr_floor_gpu_term *backward, const layer *l)
{
    double layers = l->options->shape.layers;
    for (int i = 0; i < LINEARS; i++) {
        const linear *x = &l->linear[i];
        /* nothing below the first layer is trained: its q, k and v need no dX */
        add_matmul(forward, l, layers, l->tokens, x->out, x->in);
        add_matmul(backward, l, i <= V ? layers - 1 : layers, l->tokens, x->in, x->out);
    }
}

/* Forward: x A^T for all that read x, and the up-projection beside the base's matmul. Backward: dB and
 * dS from dY, dA from x, and dS A beside the base's dX. */
static void adapters(tsr_floor_gpu_term *forward, tsr_floor_gpu_term *backward, const layer *l)
{
    double layers = l->options->shape.layers, r = l->options->shape.r;
    if (r <= 0)
        return;
    for (int i = 0; i < GROUPS; i++) {
        add_matmul(forward, l, layers, l->tokens, r * l->group[i].count, l->group[i].in);
        add_matmul(backward, l, layers, r * l->group[i].count, l->group[i].in, l->tokens);
    }
    for (int i = 0; i < LINEARS; i++) {
        const linear *x = &l->linear[i];
        add_riding(forward, l, layers, 2 * l->tokens * r * x->out);
        add_matmul(backward, l, layers, x->out, r, l->tokens);
        add_matmul(backward, l, layers, l->tokens, r, x->out);
        add_riding(backward, l, i <= V ? layers - 1 : layers, 2 * l->tokens * r * x->in);
    }
}

static void attention(tsr_floor_gpu_term *forward, tsr_floor_gpu_term *backward, const layer *l)
{
    double layers = l->options->shape.layers, io = ELEMENT * l->tokens;
    double q = l->linear[O].in, kv = l->linear[K].out;
    const tsr_floor_roofs *roofs = &l->options->roofs;
    add(forward, l, layers, io * (2 * q + 2 * kv), 2 * l->scores, roofs->attention_forward);
    add(backward, l, layers, io * (4 * q + 4 * kv), 5 * l->scores, roofs->attention_backward);
}

static double norm_bytes(const layer *l)
{
    /* x + z, its norm: reads two, writes two; backward reads dh, x, dx and writes dx */
    return 4 * ELEMENT * l->tokens * l->options->shape.d;
}

static double rope_bytes(const layer *l)
{
    return 2 * ELEMENT * l->tokens * (l->linear[Q].out + 2 * l->linear[K].out);
}

static void memory(tsr_floor_gpu_term *forward, tsr_floor_gpu_term *backward, const layer *l)
{
    double layers = l->options->shape.layers, f = ELEMENT * l->tokens * l->options->shape.f;
    tsr_floor_gpu_term *both[] = {forward, backward};
    for (int i = 0; i < 2; i++) {
        add_bytes(both[i], l, 2 * layers + 1, norm_bytes(l)); /* and the final norm */
        add_bytes(both[i], l, layers, rope_bytes(l));
        add_bytes(both[i], l, layers, (i ? 5 : 3) * f); /* SwiGLU */
    }
}

/* Each weight once for the forward, once for the backward. */
static void nf4(tsr_floor_gpu_term *term, const layer *l)
{
    double layers = l->options->shape.layers;
    for (int i = 0; l->options->nf4 && i < LINEARS; i++) {
        const linear *x = &l->linear[i];
        add_bytes(term, l, i <= V ? 2 * layers - 1 : 2 * layers,
                  (NF4_BYTES + ELEMENT) * x->in * x->out);
    }
}

/* ||W + s B A|| by rows, once a step, with ||w||^2 known: W A^T, A A^T and B (A A^T). dm of q, k, v
 * reads their z beside RoPE's backward, dm of o and down is a pass of its own. */
static void dora(tsr_floor_gpu_term *term, const layer *l)
{
    double layers = l->options->shape.layers, r = l->options->shape.r;
    if (!l->options->dora)
        return;
    for (int i = 0; i < LINEARS; i++) {
        const linear *x = &l->linear[i];
        add_matmul(term, l, layers, x->out, r, x->in);
        add_matmul(term, l, layers, r, r, x->in);
        add_matmul(term, l, layers, x->out, r, r);
    }
    add_bytes(term, l, layers, rope_bytes(l) / 2);
    add_bytes(term, l, 2 * layers, 3 * ELEMENT * l->tokens * l->options->shape.d);
}

/* Logits, and the gradient of the rows from them; between the two the logits are read for their
 * sum, then read and replaced by their gradient. */
static void head(tsr_floor_gpu_term *term, const layer *l)
{
    const tsr_floor_shape *s = &l->options->shape;
    add_matmul(term, l, 1, l->tokens, s->vocabulary, s->d);
    add_matmul(term, l, 1, l->tokens, s->d, s->vocabulary);
    add_bytes(term, l, 3, ELEMENT * l->tokens * s->vocabulary);
}

/* A layer that recomputes in full runs its forward again, but down_proj only where its output is read
 * again, for dm; a selective one its norms and SwiGLU. Both find the weights dequantized for the
 * backward. */
static void recompute(tsr_floor_gpu_term *term, const tsr_floor_gpu_term *all, const layer *l)
{
    static const int again[] = {TSR_FLOOR_LINEARS_FORWARD, TSR_FLOOR_ADAPTERS_FORWARD,
                                TSR_FLOOR_ATTENTION_FORWARD};
    const tsr_floor_shape *s = &l->options->shape;
    double full = l->options->full, share = full / s->layers;
    for (int i = 0; i < 3; i++) {
        term->bytes += share * all[again[i]].bytes;
        term->flops += share * all[again[i]].flops;
        term->seconds += share * all[again[i]].seconds;
    }
    if (!l->options->dora) {
        add_matmul(term, l, -full, l->tokens, s->d, s->f);
        add_riding(term, l, -full, 2 * l->tokens * s->r * s->d);
    }
    add_bytes(term, l, full, 2 * norm_bytes(l) + rope_bytes(l));
    add_bytes(term, l, l->options->selective, norm_bytes(l)); /* two without a residual */
    add_bytes(term, l, full + l->options->selective, 3 * ELEMENT * l->tokens * s->f);
}

static void optimizer(tsr_floor_gpu_term *term, const layer *l)
{
    double count = 0;
    for (int i = 0; i < LINEARS; i++) {
        count += l->options->shape.r * (l->linear[i].in + l->linear[i].out);
        count += l->options->dora ? l->linear[i].out : 0;
    }
    add_bytes(term, l, 1, OPTIMIZER_BYTES * count * l->options->shape.layers);
}

double tsr_floor_gpu(tsr_floor_gpu_term term[TSR_FLOOR_GPU_TERMS],
                     const tsr_floor_gpu_options *options)
{
    static const char *const names[TSR_FLOOR_GPU_TERMS] = {
        "linears forward",   "linears backward",  "adapters forward",
        "adapters backward", "attention forward", "attention backward",
        "memory forward",    "memory backward",   "nf4",
        "dora norms and dm", "head and loss",     "recomputation",
        "optimizer"};
    const tsr_floor_shape *s = &options->shape;
    double q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const layer l = {.options = options,
                     .linear = {{s->d, q},
                                {s->d, kv},
                                {s->d, kv},
                                {q, s->d},
                                {s->d, s->f},
                                {s->d, s->f},
                                {s->f, s->d}},
                     .group = {{s->d, 3}, {q, 1}, {s->d, 2}, {s->f, 1}},
                     .tokens = s->rows * s->row_count,
                     .scores = s->row_count * s->rows * (s->rows + 1) * q};
    for (int i = 0; i < TSR_FLOOR_GPU_TERMS; i++)
        term[i] = (tsr_floor_gpu_term){.name = names[i]};
    linears(&term[TSR_FLOOR_LINEARS_FORWARD], &term[TSR_FLOOR_LINEARS_BACKWARD], &l);
    adapters(&term[TSR_FLOOR_ADAPTERS_FORWARD], &term[TSR_FLOOR_ADAPTERS_BACKWARD], &l);
    attention(&term[TSR_FLOOR_ATTENTION_FORWARD], &term[TSR_FLOOR_ATTENTION_BACKWARD], &l);
    memory(&term[TSR_FLOOR_MEMORY_FORWARD], &term[TSR_FLOOR_MEMORY_BACKWARD], &l);
    nf4(&term[TSR_FLOOR_NF4], &l);
    dora(&term[TSR_FLOOR_DORA], &l);
    head(&term[TSR_FLOOR_HEAD], &l);
    recompute(&term[TSR_FLOOR_RECOMPUTE], term, &l);
    optimizer(&term[TSR_FLOOR_OPTIMIZER], &l);
    double sum = 0;
    for (int i = 0; i < TSR_FLOOR_GPU_TERMS; i++)
        sum += term[i].seconds;
    return sum;
}
