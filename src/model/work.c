#include "model/work.h"

#include "kernels/nf4_merge.h"

#include <math.h>

/* NF4 with double quantization: half a byte of code, an 8-bit scale for 64 elements. */
#define NF4_BYTES (0.5 + 1.0 / 64)
/* AdamW: master, m and v read and written, the gradient read here and for its norm; the working copy is
 * written too. */
#define OPTIMIZER_BYTES (6 * 4 + 2 * 4)
/* Norms of an fp8 base take as long as moving so many bytes for each element of W, even at the smallest rank:
 * on an H200 (bench_ops, nf4_merge norms alone, r 16) 52 us for 14336 x 4096, 19 for 4096 x 4096, less the pass
 * over their sums, which is counted by itself. */
#define NORMS_ALONE_BYTES 2.6

const char *tsr_work_term_name(tsr_work_term term)
{
    static const char *const names[TSR_WORK_TERMS] = {
        "linears forward",   "linears backward",  "adapters forward",
        "adapters backward", "attention forward", "attention backward",
        "memory forward",    "memory backward",   "nf4",
        "fp8 quantization",  "dora norms and dm", "head and loss",
        "recomputation",     "optimizer"};
    return names[term];
}

double tsr_work_seconds(const tsr_work_rates *rates, const tsr_work_op *op)
{
    double reached = rates->reached[op->kind], rate = rates->matmul;
    const tsr_work_amount *work = reached > 0 ? &op->here : &op->least;
    if (op->kind == TSR_WORK_MATMUL_FP8)
        rate = rates->matmul_fp8;
    if (op->kind == TSR_WORK_ATTEND)
        rate = rates->attention_forward;
    if (op->kind == TSR_WORK_ATTEND_BACK)
        rate = rates->attention_backward;
    double copy = work->bytes / rates->copy, compute = work->flops / rate;
    double seconds = (copy > compute ? copy : compute) / (reached > 0 ? reached : 1);
    return hypot(seconds, rates->ends_s[op->kind]);
}

/* ---- operations ---- */

typedef struct {
    const tsr_work_layer *layer;
    tsr_work_call *call;
    void *user;
    bool again; /* a forward that the backward runs */
} walk;

static void emit_both(const walk *w, tsr_work_term term, tsr_work_kind kind, tsr_work_amount least,
                      tsr_work_amount here)
{
    const tsr_work_op op = {w->again ? TSR_WORK_RECOMPUTE : term, kind, least, here};
    w->call(w->user, &op);
}

static void emit(const walk *w, tsr_work_term term, tsr_work_kind kind, tsr_work_amount work)
{
    emit_both(w, term, kind, work, work);
}

static void emit_bytes(const walk *w, tsr_work_term term, double bytes)
{
    emit(w, term, TSR_WORK_STREAM, (tsr_work_amount){0, bytes});
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

/* Of [tokens, width], for the base's matmul; made where the rows are, or from them. */
static void emit_quantize(const walk *w, double width, bool made)
{
    double bytes = w->layer->tokens * width, read = made ? 0 : bytes * w->layer->element;
    if (w->layer->fp8)
        emit_both(w, TSR_WORK_QUANTIZE, TSR_WORK_STREAM, (tsr_work_amount){0, bytes},
                  (tsr_work_amount){0, bytes + read});
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
        emit_both(
            w, term, TSR_WORK_MERGED, least,
            (tsr_work_amount){2 * x->in * x->out * r, TSR_GRAPH_MERGE_BYTES * x->in * x->out});
    else
        emit_both(w, term, TSR_WORK_ADDED, least,
                  (tsr_work_amount){flops, w->layer->element * (t * r + r * n + t * n)});
}

/* ---- forward ---- */

/* Linears that read the same x: one pass over it would serve their adapters. */
static const int groups[][2] = {
    {TSR_Q, TSR_V}, {TSR_O, TSR_O}, {TSR_GATE, TSR_UP}, {TSR_DOWN, TSR_DOWN}};
#define GROUPS 4

static void add_amount(tsr_work_amount *sum, double times, tsr_work_amount one)
{
    sum->flops += times * one.flops;
    sum->bytes += times * one.bytes;
}

/* x A^T of a group forward, dA from x backward: x once at least. Here each linear reads it itself; its
 * forward only where the adapter is not merged, and its backward for dA, and for x A^T where that is not kept, or
 * for dY^T x. Where down_proj's forward is not run again, its x A^T is counted as if it were: the backward
 * makes it. */
static void emit_group(const walk *w, tsr_work_term term, int group, bool backward)
{
    const tsr_work_layer *l = w->layer;
    double r = 0, in = l->linear[groups[group][0]].in;
    tsr_work_amount here = {0, 0};
    for (int i = groups[group][0]; i <= groups[group][1]; i++) {
        const tsr_work_linear *x = &l->linear[i];
        if (x->r <= 0)
            continue;
        const tsr_graph *graph = &tsr_graph_table[graph_of(w, x, backward).graph];
        tsr_work_amount one = matmul(w, l->tokens, x->r, in);
        if (!backward)
            add_amount(&here, !graph->merged, one);
        else if (!graph->outer_da)
            add_amount(&here,
                       tsr_graph_keeps_low(merges(w, x), x->drops, x->drops && x->dora) ? 1 : 2,
                       one);
        else {
            add_amount(&here, 1, matmul(w, x->out, in, l->tokens));
            add_amount(&here, 1, matmul(w, x->r, in, x->out));
        }
        r += x->r;
    }
    if (r > 0)
        emit_both(w, term, TSR_WORK_NARROW, matmul(w, l->tokens, r, in), here);
}

static double norm_bytes(const tsr_work_layer *l)
{
    /* x + z, its norm: reads two, writes two; backward reads dh, x, dx and writes dx */
    return 4 * l->element * l->tokens * l->linear[TSR_O].out;
}

static double rope_bytes(const tsr_work_layer *l)
{
    return 2 * l->element * l->tokens * (l->linear[TSR_Q].out + 2 * l->linear[TSR_K].out);
}

/* So many of attention's matmuls, all heads. */
static void emit_attention(const walk *w, tsr_work_term term, tsr_work_kind kind, int matmuls,
                           double bytes)
{
    const tsr_work_layer *l = w->layer;
    double pair = 2 * matmuls * l->linear[TSR_Q].out;
    double here = l->pairs_here > 0 ? l->pairs_here : l->pairs;
    emit_both(w, term, kind, (tsr_work_amount){pair * l->pairs, bytes},
              (tsr_work_amount){pair * here, bytes});
}

static tsr_work_amount decoded(const tsr_work_layer *l, const tsr_work_linear *x)
{
    return (tsr_work_amount){0, (NF4_BYTES + (l->fp8 ? 1 : l->element)) * x->in * x->out};
}

/* What passes through memory because of dropout. */
static void emit_passes(const walk *w, tsr_work_term term, double elements)
{
    double bytes = w->layer->element * w->layer->tokens * elements;
    emit_both(w, term, TSR_WORK_STREAM, (tsr_work_amount){0, 0}, (tsr_work_amount){0, bytes});
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
    emit_quantize(w, x->in, false);
    emit_base(w, TSR_WORK_LINEARS_FORWARD, x->out, x->in);
    if (merged)
        emit_both(w, TSR_WORK_NF4, TSR_WORK_DECODE, (tsr_work_amount){0, 0}, decoded(w->layer, x));
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
        emit_quantize(w, x->out, false);
        emit_base(w, TSR_WORK_LINEARS_BACKWARD, x->in, x->out);
    }
    /* Of four passes dm, which is counted elsewhere, needs one. */
    emit_passes(w, TSR_WORK_DORA, 3 * x->out);
}

static void forward(const walk *w, bool down)
{
    const tsr_work_layer *l = w->layer;
    double io = l->element * l->tokens;
    int linears = down ? TSR_LINEAR_COUNT : TSR_DOWN;
    for (int i = 0; i < linears; i++) {
        emit_base(w, TSR_WORK_LINEARS_FORWARD, l->linear[i].out, l->linear[i].in);
        if (l->linear[i].r > 0)
            emit_added(w, TSR_WORK_ADAPTERS_FORWARD, &l->linear[i], l->linear[i].out,
                       tsr_graph_table[graph_of(w, &l->linear[i], false).graph].merged);
        if (l->linear[i].drops)
            drop_forward(w, &l->linear[i]);
    }
    for (int i = 0; i < GROUPS; i++) {
        emit_group(w, TSR_WORK_ADAPTERS_FORWARD, i, false);
        if (groups[i][0] < linears)
            emit_quantize(w, l->linear[groups[i][0]].in, groups[i][0] != TSR_O);
    }
    double bytes = io * (2 * l->linear[TSR_Q].out + 2 * l->linear[TSR_K].out);
    emit_attention(w, TSR_WORK_ATTENTION_FORWARD, TSR_WORK_ATTEND, 2, bytes);
    emit_bytes(w, TSR_WORK_MEMORY_FORWARD, norm_bytes(l));
    emit_bytes(w, TSR_WORK_MEMORY_FORWARD, norm_bytes(l));
    emit_bytes(w, TSR_WORK_MEMORY_FORWARD, rope_bytes(l));
    emit_bytes(w, TSR_WORK_MEMORY_FORWARD, 3 * io * l->linear[TSR_UP].out); /* SwiGLU */
}

static void decode(const walk *w, int from)
{
    const tsr_work_layer *l = w->layer;
    for (int i = from; i < TSR_LINEAR_COUNT; i++)
        if (l->linear[i].nf4)
            emit(w, TSR_WORK_NF4, TSR_WORK_DECODE, decoded(l, &l->linear[i]));
}

/* For a forward that runs again, where those from `from` on are decoded for the backward too: at least at
 * once, in e4m3 as they lie and transposed; here apart. */
static void decode_again(const walk *w, int linears, int from)
{
    const tsr_work_layer *l = w->layer;
    for (int i = 0; i < linears; i++) {
        const tsr_work_linear *x = &l->linear[i];
        tsr_work_amount here = decoded(l, x), least = here;
        if (i >= from)
            least.bytes = l->fp8 ? x->in * x->out : 0;
        if (x->nf4)
            emit_both(w, TSR_WORK_NF4, TSR_WORK_DECODE, least, here);
    }
}

void tsr_work_forward(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    walk w = {layer, call, user, false};
    decode(&w, 0);
    forward(&w, true);
    if (layer->last)
        emit_bytes(&w, TSR_WORK_MEMORY_FORWARD, norm_bytes(layer));
}

/* ---- backward ---- */

/* The first linear whose input's gradient is wanted. */
static int first_wanted(const tsr_work_layer *layer)
{
    return layer->first ? TSR_V + 1 : TSR_Q;
}

/* Full: the forward again, but down_proj only where its output is read again, for dm. Selective: norms
 * (two without a residual) and SwiGLU. */
static void recompute(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    walk w = {layer, call, user, true};
    bool down = layer->linear[TSR_DOWN].dora;
    if (layer->recompute == TSR_RECOMPUTE_FULL) {
        decode_again(&w, down ? TSR_LINEAR_COUNT : TSR_DOWN, first_wanted(layer));
        forward(&w, down);
    }
    if (layer->recompute != TSR_RECOMPUTE_SELECTIVE)
        return;
    emit_bytes(&w, TSR_WORK_RECOMPUTE, norm_bytes(layer));
    emit_bytes(&w, TSR_WORK_RECOMPUTE,
               3 * layer->element * layer->tokens * layer->linear[TSR_UP].out);
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
    emit_both(w, TSR_WORK_ADAPTERS_BACKWARD, TSR_WORK_NARROW, least, choice.once ? least : here);
}

/* Whether dZ is put into e4m3 where it is made: by SwiGLU's backward and by the norm's, where no dm is summed
 * there. */
static bool made_backward(const tsr_work_linear *x, int kind)
{
    return !x->dora && (kind == TSR_GATE || kind == TSR_UP || kind == TSR_O);
}

/* dX of each linear; of its adapter dB and dS from dY, and dS A beside the base's dX. */
static void linears_backward(const walk *w)
{
    const tsr_work_layer *l = w->layer;
    for (int i = 0; i < TSR_LINEAR_COUNT; i++) {
        const tsr_work_linear *x = &l->linear[i];
        bool wanted = i >= first_wanted(l);
        if (wanted) {
            emit_quantize(w, x->out, made_backward(x, i));
            emit_base(w, TSR_WORK_LINEARS_BACKWARD, x->in, x->out);
        }
        if (x->r <= 0)
            continue;
        emit_low_rank(w, x, wanted);
        if (wanted)
            emit_added(w, TSR_WORK_ADAPTERS_BACKWARD, x, x->in,
                       tsr_graph_table[graph_of(w, x, true).graph].merged);
        if (x->drops)
            drop_backward(w, x, wanted);
    }
    for (int i = 0; i < GROUPS; i++)
        emit_group(w, TSR_WORK_ADAPTERS_BACKWARD, i, true);
}

/* dm of q, k, v reads their z beside RoPE's backward, dm of o and down is a pass of its own; that of
 * gate and up is part of SwiGLU's. */
static void magnitudes_backward(const walk *w)
{
    const tsr_work_layer *l = w->layer;
    double read = 0;
    for (int i = TSR_Q; i <= TSR_V; i++)
        read += l->linear[i].dora ? l->linear[i].out : 0;
    if (read > 0)
        emit_bytes(w, TSR_WORK_DORA, l->element * l->tokens * read);
    for (int i = TSR_O; i <= TSR_DOWN; i += TSR_DOWN - TSR_O)
        if (l->linear[i].dora)
            emit_bytes(w, TSR_WORK_DORA, 3 * l->element * l->tokens * l->linear[i].out);
}

void tsr_work_backward(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    walk w = {layer, call, user, false};
    double io = layer->element * layer->tokens;
    recompute(layer, call, user);
    decode(&w, first_wanted(layer));
    linears_backward(&w);
    double bytes = io * (4 * layer->linear[TSR_Q].out + 4 * layer->linear[TSR_K].out);
    emit_attention(&w, TSR_WORK_ATTENTION_BACKWARD, TSR_WORK_ATTEND_BACK, 5, bytes);
    for (int i = 0; i < 2 + layer->last; i++)
        emit_bytes(&w, TSR_WORK_MEMORY_BACKWARD, norm_bytes(layer));
    emit_bytes(&w, TSR_WORK_MEMORY_BACKWARD, rope_bytes(layer));
    emit_bytes(&w, TSR_WORK_MEMORY_BACKWARD, 5 * io * layer->linear[TSR_UP].out); /* SwiGLU */
    magnitudes_backward(&w);
}

/* ||W + s B A|| by rows, of a linear to whose W one kernel adds s B A: in a forward that merges they cost
 * their partial sums; another adds s B A for them to the weight that it decodes. With an fp8 base they are
 * made by themselves, from the codes and the scales of W's rows; at least, their FLOPs go with a decoding. */
static void norm_of_merged(const walk *w, const tsr_work_linear *x)
{
    double weight = x->in * x->out, flops = 2 * weight * x->r;
    if (w->layer->fp8) {
        emit_both(w, TSR_WORK_DORA, TSR_WORK_MERGED, (tsr_work_amount){flops, 0},
                  (tsr_work_amount){flops, NORMS_ALONE_BYTES * weight});
        emit_both(w, TSR_WORK_DORA, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
                  (tsr_work_amount){0, weight / TSR_NF4_BLOCK});
    } else if (!tsr_graph_table[graph_of(w, x, false).graph].merged)
        emit_both(w, TSR_WORK_DORA, TSR_WORK_MERGED, (tsr_work_amount){0, 0},
                  (tsr_work_amount){flops, TSR_GRAPH_MERGE_BYTES * weight});
    emit_both(
        w, TSR_WORK_DORA, TSR_WORK_STREAM, (tsr_work_amount){0, 0},
        (tsr_work_amount){0, 2 * sizeof(float) *
                                 (double)tsr_nf4_merge_partials((int64_t)x->out, (int64_t)x->in)});
}

/* Else factored, with ||w||^2 known: W A^T, A A^T and B (A A^T). */
void tsr_work_norm(const tsr_work_layer *layer, tsr_work_call *call, void *user)
{
    walk w = {layer, call, user, false};
    for (int i = 0; i < TSR_LINEAR_COUNT; i++) {
        const tsr_work_linear *x = &layer->linear[i];
        bool merged = tsr_linear_norm_merges(dtype_of(&w), x->nf4, (uint64_t)x->in, (uint64_t)x->r);
        if (x->dora && merged)
            norm_of_merged(&w, x);
        if (!x->dora || merged)
            continue;
        emit_matmul(&w, TSR_WORK_DORA, TSR_WORK_NARROW, x->out, x->r, x->in);
        emit_matmul(&w, TSR_WORK_DORA, TSR_WORK_NARROW, x->r, x->r, x->in);
        emit_matmul(&w, TSR_WORK_DORA, TSR_WORK_NARROW, x->out, x->r, x->r);
    }
}

/* ---- the head, the update ---- */

/* Logits, and the gradient of the rows from them; between the two the logits are read for their
 * sum, then read and replaced by their gradient. */
void tsr_work_chunk(const tsr_work_head *head, tsr_work_call *call, void *user)
{
    const tsr_work_layer shape = {.element = head->element};
    walk w = {&shape, call, user, false};
    double logits = head->element * head->rows * head->vocabulary;
    emit_matmul(&w, TSR_WORK_HEAD, TSR_WORK_MATMUL, head->rows, head->vocabulary, head->d);
    emit_bytes(&w, TSR_WORK_HEAD, head->train ? 3 * logits : logits);
    if (head->train)
        emit_matmul(&w, TSR_WORK_HEAD, TSR_WORK_MATMUL, head->rows, head->d, head->vocabulary);
}

void tsr_work_update(double elements, double element, tsr_work_call *call, void *user)
{
    const tsr_work_layer shape = {.element = element};
    emit_bytes(&(walk){&shape, call, user, false}, TSR_WORK_OPTIMIZER,
               (OPTIMIZER_BYTES + element) * elements);
}

/* ---- shapes ---- */

void tsr_work_set_widths(tsr_work_layer *layer, double d, double f, double q, double kv)
{
    const double widths[TSR_LINEAR_COUNT][2] = {{d, q}, {d, kv}, {d, kv}, {q, d},
                                                {d, f}, {d, f},  {f, d}};
    for (int i = 0; i < TSR_LINEAR_COUNT; i++) {
        layer->linear[i].in = widths[i][0];
        layer->linear[i].out = widths[i][1];
    }
}

void tsr_work_layer_of(tsr_work_layer *out, const tsr_layout *layout, int unit)
{
    for (int i = 0; i < TSR_LINEAR_COUNT; i++) {
        const tsr_layout_linear *linear = &layout->unit[unit].linear[i];
        out->linear[i] = (tsr_work_linear){.in = (double)linear->in,
                                           .out = (double)linear->out,
                                           .r = (double)linear->r,
                                           .dora = linear->r && linear->dora,
                                           .nf4 = linear->quantized};
    }
    out->first = unit == layout->first_trained;
    out->last = unit == layout->layer_count - 1;
}
