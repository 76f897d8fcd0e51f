/*
 * work_linear.c: what frozen linears with their adapters cost.
 */
#include "kernels/nf4_merge.h"
#include "model/node_parts.h"
#include "model/work_parts.h"

/* NF4 with double quantization: half a byte of code, an 8-bit scale for 64 elements. */
#define NF4_BYTES (0.5 + 1.0 / 64)
/* Norms of an fp8 base take as long as moving so many bytes for each element of W, even at the smallest rank:
 * on an H200 (bench_ops, nf4_merge norms alone, r 16) 52 us for 14336 x 4096, 19 for 4096 x 4096, less the pass
 * over their sums, which is counted by itself. */
#define NORMS_ALONE_BYTES 2.6

typedef tsr_costing walk;

static void emit(const walk *w, tsr_work_term term, tsr_work_kind kind, tsr_work_amount work)
{
    tsr_cost_both(w, term, kind, work, work);
}

/* [m, k] x [k, n]. */
static tsr_work_amount matmul(const walk *w, double m, double n, double k)
{
    return (tsr_work_amount){2 * m * n * k, w->layer->element * (m * k + k * n + m * n)};
}

static void emit_matmul(const walk *w, tsr_work_term term, tsr_work_kind kind, double m, double n,
                        double k)
{
    emit(w, term, kind, matmul(w, m, n, k));
}

/* The base's matmul of tokens, [t, k] x [k, n]. */
static void emit_base(const walk *w, tsr_work_term term, double n, double k)
{
    double t = w->layer->tokens;
    if (!w->layer->fp8)
        emit_matmul(w, term, TSR_WORK_MATMUL, t, n, k);
    else
        emit(w, term, TSR_WORK_MATMUL_FP8,
             (tsr_work_amount){2 * t * n * k, t * k + k * n + w->layer->element * t * n});
}

static tsr_dtype dtype_of(const walk *w)
{
    return w->layer->element == 2 ? TSR_BF16 : TSR_F32;
}

static bool merges(const walk *w, const tsr_work_linear *x)
{
    return tsr_linear_merges(dtype_of(w), w->layer->fp8, x->nf4, (uint64_t)x->in, (uint64_t)x->r);
}

/* The graph that a linear takes, where nothing else was measured. */
static tsr_graph_choice graph_of(const walk *w, const tsr_work_linear *x, bool backward)
{
    bool norms = x->dora && merges(w, x) && !backward;
    tsr_graph_shape shape = {.tokens = (int64_t)w->layer->tokens,
                             .in = (int64_t)x->in,
                             .out = (int64_t)x->out,
                             .r = (int64_t)x->r,
                             .dtype = dtype_of(w),
                             .drops = x->drops,
                             .composes = x->drops && x->dora && x->r > 0,
                             .backward = backward,
                             .merges = merges(w, x),
                             .norms_every = norms ? w->layer->step_micro : 0};
    return tsr_graph_cheapest(&shape);
}

/* A product [T, r] x [r, n] beside the base's: at least, it rides on that one
 * (K-concatenated), so that its FLOPs are all it costs. Here it is B A, added to the weight as that is
 * decoded, or a matmul of its own, whose result is written; that the base's matmul reads it hides behind its
 * FLOPs. */
static void emit_added(const walk *w, tsr_work_term term, const tsr_work_linear *x, double n,
                       bool merged)
{
    double t = w->layer->tokens, r = x->r, flops = 2 * t * n * r;
    const tsr_work_amount least = {flops, 0};
    if (merged)
        tsr_cost_both(
            w, term, TSR_WORK_MERGED, least,
            (tsr_work_amount){2 * x->in * x->out * r, TSR_GRAPH_MERGE_BYTES * x->in * x->out});
    else
        tsr_cost_both(w, term, TSR_WORK_ADDED, least,
                      (tsr_work_amount){flops, w->layer->element * (t * r + r * n + t * n)});
}

static void add_amount(tsr_work_amount *sum, double times, tsr_work_amount one)
{
    sum->flops += times * one.flops;
    sum->bytes += times * one.bytes;
}

static tsr_work_amount decoded(const tsr_work_layer *l, const tsr_work_linear *x)
{
    return (tsr_work_amount){0, ((x->in_8bit ? 1 : NF4_BYTES) + (l->fp8 ? 1 : l->element)) * x->in *
                                    x->out};
}

/* What passes through memory because of dropout. */
static void emit_passes(const walk *w, tsr_work_term term, double elements)
{
    double bytes = w->layer->element * w->layer->tokens * elements;
    tsr_cost_both(w, term, TSR_WORK_STREAM, (tsr_work_amount){0, 0}, (tsr_work_amount){0, bytes});
}

/* Dropout forward: its input is written; with a magnitude the base multiplies that too, and what y is
 * composed of passes through memory: three and two outputs, or, merged, two and one, and what of the input
 * was dropped is written too, and W decoded beside W + s B A. */
static void drop_forward(const walk *w, const tsr_work_linear *x)
{
    bool merged = tsr_graph_table[graph_of(w, x, false).graph].merged;
    emit_passes(w, TSR_WORK_ADAPTERS_FORWARD, (merged ? 3 : 2) * x->in);
    if (!x->dora)
        return;
    tsr_cost_quantize(w, x->in, false);
    emit_base(w, TSR_WORK_LINEARS_FORWARD, x->out, x->in);
    if (merged)
        tsr_cost_both(w, TSR_WORK_NF4, TSR_WORK_DECODE, (tsr_work_amount){0, 0},
                      decoded(w->layer, x));
    emit_passes(w, TSR_WORK_DORA, (merged ? 3 : 5) * x->out);
}

/* Backward: the input is dropped again, and the gradient behind the mask is added to dX; with a
 * magnitude dY is taken apart, and both parts go through the base. */
static void drop_backward(const walk *w, const tsr_work_linear *x, bool wanted)
{
    emit_passes(w, TSR_WORK_ADAPTERS_BACKWARD, (wanted ? 5 : 2) * x->in);
    if (!x->dora)
        return;
    if (wanted) {
        tsr_cost_quantize(w, x->out, false);
        emit_base(w, TSR_WORK_LINEARS_BACKWARD, x->in, x->out);
    }
    /* Of four passes dm, which is counted elsewhere, needs one. */
    emit_passes(w, TSR_WORK_DORA, 3 * x->out);
}

/* dB and dS from dY: at least, it is read once for both. Here, where one kernel does it; its partial
 * sums are not counted. Else it is read twice, or dB comes from dY^T x and dS is made where dX needs it. */
static void emit_low_rank(const walk *w, const tsr_work_linear *x, bool wanted)
{
    double t = w->layer->tokens, dy = w->layer->element * t * x->out;
    tsr_graph_choice choice = graph_of(w, x, true);
    const tsr_graph *graph = &tsr_graph_table[choice.graph];
    tsr_work_amount one = matmul(w, x->out, x->r, t), here = {0, 0};
    const tsr_work_amount least = {2 * one.flops, 2 * one.bytes - dy};
    add_amount(&here, graph->outer_db ? wanted && !graph->merged : 2, one);
    if (graph->outer_db)
        add_amount(&here, 1, matmul(w, x->out, x->r, x->in));
    tsr_cost_both(w, TSR_WORK_ADAPTERS_BACKWARD, TSR_WORK_NARROW, least,
                  choice.once ? least : here);
}

tsr_matrix_traits tsr_work_traits(const tsr_work_layer *layer, int linear)
{
    const walk w = {.layer = layer};
    const tsr_work_linear *x = &layer->linear[linear];
    bool composes = x->r > 0 && x->dora && x->drops;
    bool keeps = tsr_graph_keeps_low(merges(&w, x), x->drops, composes);
    return (tsr_matrix_traits){.r = (uint64_t)x->r,
                               .dora = x->r > 0 && x->dora,
                               .composes = composes,
                               .low = keeps ? (uint64_t)x->r : 0};
}

/* ---- the linears of a node ---- */

static const tsr_work_linear *linear_at(const walk *w, const tsr_node *node, int port)
{
    return &w->layer->linear[node->weight[port]];
}

static bool keeps_low(const walk *w, const tsr_work_linear *x)
{
    return tsr_graph_keeps_low(merges(w, x), x->drops, x->drops && x->dora);
}

/* The step of a pass that a node takes; NULL: none. */
static const tsr_step *step_of(const walk *w, const tsr_steps *steps, const tsr_node *node)
{
    for (int i = 0; i < steps->count; i++)
        if (&w->layer->program->block->node[steps->step[i].node] == node)
            return &steps->step[i];
    return NULL;
}

/* Whether x A^T of a linear is there no more: not kept, and its forward is not among what is run again. */
static bool lost_low(const walk *w, const tsr_node *node, int port)
{
    const tsr_layer_program *program = w->layer->program;
    const tsr_step *again = step_of(w, &program->remade, node);
    return !tsr_keep_has(&program->keep, program->block->matrix[node->weight[port]].low) &&
           !(again && again->outputs & 1u << port);
}

/* A matmul of [T, in] and r columns for each of several linears: at least, one pass over x serves them all. Here
 * each reads it itself. */
static void emit_narrow(const walk *w, tsr_work_term term, double in, double r,
                        tsr_work_amount here)
{
    if (r > 0)
        tsr_cost_both(w, term, TSR_WORK_NARROW, matmul(w, w->layer->tokens, r, in), here);
}

/* A weight that the backward decodes too: at least at once, in e4m3 as it lies and transposed. */
static void decode_again(const walk *w, const tsr_node *node, const tsr_work_linear *x)
{
    const tsr_step *back = step_of(w, &w->layer->program->backward, node);
    tsr_work_amount here = decoded(w->layer, x), least = here;
    if (back && back->inputs & 1)
        least.bytes = w->layer->fp8 ? x->in * x->out : 0;
    tsr_cost_both(w, TSR_WORK_NF4, TSR_WORK_DECODE, least, here);
}

void tsr_cost_linears_forward(const tsr_costing *w, const tsr_node *node, const tsr_step *step)
{
    double in = linear_at(w, node, 0)->in, r = 0;
    tsr_work_amount here = {0, 0};
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (!(step->outputs & 1u << i))
            continue;
        const tsr_work_linear *x = linear_at(w, node, i);
        bool merged = x->r > 0 && tsr_graph_table[graph_of(w, x, false).graph].merged;
        if ((x->nf4 || x->in_8bit) && w->again)
            decode_again(w, node, x);
        else if (x->nf4 || x->in_8bit)
            emit(w, TSR_WORK_NF4, TSR_WORK_DECODE, decoded(w->layer, x));
        emit_base(w, TSR_WORK_LINEARS_FORWARD, x->out, x->in);
        if (x->r > 0)
            emit_added(w, TSR_WORK_ADAPTERS_FORWARD, x, x->out, merged);
        if (x->drops)
            drop_forward(w, x);
        if (x->r > 0)
            add_amount(&here, !merged, matmul(w, w->layer->tokens, x->r, in));
        r += x->r;
    }
    emit_narrow(w, TSR_WORK_ADAPTERS_FORWARD, in, r, here);
    tsr_cost_quantize(w, in, !step->needs_rows);
}

void tsr_cost_low(const tsr_costing *w, const tsr_node *node, int port)
{
    const tsr_work_linear *x = linear_at(w, node, port);
    tsr_work_amount none = {0, 0}, one = matmul(w, w->layer->tokens, x->r, x->in);
    emit_narrow(w, TSR_WORK_RECOMPUTE, x->in, x->r, keeps_low(w, x) ? one : none);
}

/* dA from x, and x A^T where the forward did not leave it; or dY^T x for both. What it makes because a forward was
 * not run again counts as if that had made it. */
static void cost_da(const walk *w, const tsr_node *node, const tsr_step *step)
{
    double in = linear_at(w, node, 0)->in, r = 0;
    tsr_work_amount here = {0, 0};
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        const tsr_work_linear *x = node->weight[i] == TSR_NONE ? NULL : linear_at(w, node, i);
        if (!x || !(step->outputs & 1u << i) || x->r <= 0)
            continue;
        tsr_work_amount one = matmul(w, w->layer->tokens, x->r, in);
        if (!tsr_graph_table[graph_of(w, x, true).graph].outer_da) {
            add_amount(&here, keeps_low(w, x) ? 1 : 2, one);
        } else {
            add_amount(&here, 1, matmul(w, x->out, in, w->layer->tokens));
            add_amount(&here, 1, matmul(w, x->r, in, x->out));
        }
        if (lost_low(w, node, i))
            tsr_cost_low(w, node, i);
        r += x->r;
    }
    emit_narrow(w, TSR_WORK_ADAPTERS_BACKWARD, in, r, here);
}

/* Whether the gradient of a linear's result is put into e4m3 where it is made: by the step before, where no dm is
 * summed there. */
static bool made_backward(const walk *w, const tsr_step *step, const tsr_work_linear *x)
{
    const tsr_steps *steps = &w->layer->program->backward;
    return step > steps->step && step[-1].makes_rows && !x->dora;
}

void tsr_cost_linears_backward(const tsr_costing *w, const tsr_node *node, const tsr_step *step)
{
    bool wanted = step->inputs & 1;
    const tsr_block *block = w->layer->program->block;
    for (int i = 0; i < TSR_NODE_PORTS; i++) {
        if (!(step->outputs & 1u << i))
            continue;
        const tsr_work_linear *x = linear_at(w, node, i);
        if (wanted) {
            if (x->nf4 || x->in_8bit)
                emit(w, TSR_WORK_NF4, TSR_WORK_DECODE, decoded(w->layer, x));
            tsr_cost_quantize(w, x->out, made_backward(w, step, x));
            emit_base(w, TSR_WORK_LINEARS_BACKWARD, x->in, x->out);
        }
        if (x->dora && !tsr_block_reader_scales(block, node->out[i])) /* dm, in a pass of its own */
            tsr_cost_bytes(w, TSR_WORK_DORA, 3 * tsr_cost_column(w) * x->out);
        if (x->r <= 0)
            continue;
        emit_low_rank(w, x, wanted);
        if (wanted)
            emit_added(w, TSR_WORK_ADAPTERS_BACKWARD, x, x->in,
                       tsr_graph_table[graph_of(w, x, true).graph].merged);
        if (x->drops)
            drop_backward(w, x, wanted);
    }
    cost_da(w, node, step);
}

/* ---- DoRA's norms ---- */

/* ||W + s B A|| by rows, of a linear to whose W one kernel adds s B A: in a forward that merges they cost
 * their partial sums; another adds s B A for them to the weight that it decodes. With an fp8 base they are
 * made by themselves, from the codes and the scales of W's rows; at least, their FLOPs go with a decoding. */
static void norm_of_merged(const walk *w, const tsr_work_linear *x)
{
    double weight = x->in * x->out, flops = 2 * weight * x->r;
    if (w->layer->fp8) {
        tsr_cost_both(w, TSR_WORK_DORA, TSR_WORK_MERGED, (tsr_work_amount){flops, 0},
                      (tsr_work_amount){flops, NORMS_ALONE_BYTES * weight});
        tsr_cost_both(w, TSR_WORK_DORA, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
                      (tsr_work_amount){0, weight / TSR_NF4_BLOCK});
    } else if (!tsr_graph_table[graph_of(w, x, false).graph].merged)
        tsr_cost_both(w, TSR_WORK_DORA, TSR_WORK_MERGED, (tsr_work_amount){0, 0},
                      (tsr_work_amount){flops, TSR_GRAPH_MERGE_BYTES * weight});
    tsr_cost_both(
        w, TSR_WORK_DORA, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
        (tsr_work_amount){0, 2 * sizeof(float) *
                                 (double)tsr_nf4_merge_partials((int64_t)x->out, (int64_t)x->in)});
}

/* Else factored, with ||w||^2 known: W A^T, A A^T and B (A A^T). */
void tsr_cost_norm(const tsr_costing *w, const tsr_work_linear *x)
{
    if (tsr_linear_norm_merges(dtype_of(w), x->nf4, (uint64_t)x->in, (uint64_t)x->r)) {
        norm_of_merged(w, x);
        return;
    }
    emit_matmul(w, TSR_WORK_DORA, TSR_WORK_NARROW, x->out, x->r, x->in);
    emit_matmul(w, TSR_WORK_DORA, TSR_WORK_NARROW, x->r, x->r, x->in);
    emit_matmul(w, TSR_WORK_DORA, TSR_WORK_NARROW, x->out, x->r, x->r);
}
