#include "model/activation.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Memory that buffers are cut from, from its front. While it is measured, and while planning, there is no base. */
typedef struct {
    char *base;
    uint64_t used;
} region;

static void *cut(region *r, uint64_t bytes)
{
    char *out = r->base && bytes ? r->base + r->used : NULL;
    r->used += tsr_align_up(bytes, TSR_ALIGNMENT);
    return out;
}

/* What one walk passes along. */
typedef struct {
    const tsr_activation_options *options;
    const tsr_layer_programs *programs;
    tsr_take_buffer *take;
    void *user;
    uint64_t tokens, rows, d;
} walk;

static tsr_status take(const walk *w, void **out, const char *name, const char *why,
                       tsr_array array)
{
    void *unused;
    return w->take(w->user, out ? out : &unused, name, why, array);
}

/* A [tokens, width] activation that layers share. */
static tsr_status take_rows(const walk *w, void **out, const char *what, const char *why,
                            uint64_t width)
{
    char name[96];
    snprintf(name, sizeof name, "scratch %s", what);
    return take(w, out, name, why, (tsr_array){w->options->dtype, w->tokens, width});
}

static tsr_status take_floats(const walk *w, float **out, const char *what, const char *why,
                              uint64_t rows, uint64_t columns)
{
    char name[96];
    void *address = NULL;
    snprintf(name, sizeof name, "scratch %s", what);
    TSR_TRY(take(w, &address, name, why, (tsr_array){TSR_F32, rows, columns}));
    if (out)
        *out = address;
    return TSR_OK;
}

int64_t tsr_activation_tile_rows(const tsr_activation_options *options)
{
    bool whole = tsr_batch_all_tokens(&options->bounds) <= options->tile_rows ||
                 options->layout->mixed_count > 0;
    return whole ? 0 : options->tile_rows;
}

tsr_attention_bounds tsr_activation_attention(const tsr_activation_options *options)
{
    return (tsr_attention_bounds){.tokens = tsr_batch_all_tokens(&options->bounds),
                                  .own_tokens = options->bounds.tokens,
                                  .spans = options->spans,
                                  .documents = options->bounds.documents,
                                  .longest = options->bounds.longest,
                                  .dtype = options->dtype,
                                  .train = options->train,
                                  .atomics = options->train && options->atomics,
                                  .wider = options->train ? options->wider : 0};
}

/* ---- programs ---- */

/* Columns of x A^T where ranges may be stacked: of all of them, or of the widest stack or range. 0: they are not. */
static uint64_t stack_columns(const tsr_activation_options *options,
                              const tsr_layout_linear *linear)
{
    uint64_t columns = 0;
    if (!linear->mixed || !tsr_linear_stacks(options->dtype))
        return 0;
    for (int k = 0; k < options->layout->mixed_count; k++)
        columns += linear->mixed[k].r;
    columns = columns < TSR_LINEAR_STACK ? columns : TSR_LINEAR_STACK;
    return larger(columns, linear->r);
}

tsr_matrix_traits tsr_activation_traits(const tsr_activation_options *options,
                                        const tsr_layout_linear *linear)
{
    bool dora = linear->r && linear->dora, composes = dora && options->dropout;
    bool merges =
        tsr_linear_merges(options->dtype, options->fp8, linear->quantized, linear->in, linear->r);
    bool keeps = tsr_graph_keeps_low(merges, options->dropout, composes);
    uint64_t stacked = stack_columns(options, linear);
    return (tsr_matrix_traits){.r = linear->r,
                               .dora = dora,
                               .composes = composes,
                               .low = stacked ? stacked
                                      : keeps ? linear->r
                                              : 0};
}

static bool trains(const tsr_activation_options *o, int layer)
{
    return o->train && layer >= o->layout->first_trained;
}

static bool same_traits(const tsr_matrix_traits *a, const tsr_matrix_traits *b)
{
    return a->r == b->r && a->dora == b->dora && a->composes == b->composes && a->low == b->low &&
           a->fp8 == b->fp8;
}

static void fill_traits(tsr_matrix_traits *out, const tsr_activation_options *o, int layer)
{
    const tsr_layout_unit *unit = &o->layout->unit[layer];
    for (int i = 0; i < unit->block->matrix_count; i++)
        out[i] = tsr_activation_traits(o, &unit->linear[i]);
    for (int i = 0; i < unit->block->stack_count; i++) {
        const tsr_layout_stack *stack = &unit->stack[i];
        out[tsr_stack_weight(i)] =
            tsr_stack_traits(unit->block, i, stack->r, o->fp8 && tsr_layout_stack_fp8(stack));
    }
}

/* The slots that a block takes from: whole ones, or those of which every layer has a part. */
static unsigned slots_taken(const tsr_block *block, bool of_layer)
{
    unsigned slots = 0;
    for (int v = 0; v < block->value_count; v++) {
        const tsr_value *value = &block->value[v];
        if (value->slot != TSR_NONE && value->node == TSR_NONE && value->of_layer == of_layer)
            slots |= 1u << value->slot;
    }
    return slots;
}

/* From the last layer down: what layers above have taken, and of what has parts this one too. */
static void find_begun(tsr_layer_programs *programs, const tsr_layout *layout)
{
    unsigned above = 0;
    for (int i = layout->layer_count - 1; i >= 0; i--) {
        above |= slots_taken(layout->unit[i].block, true);
        programs->begun[i] = (uint8_t)above;
        above |= slots_taken(layout->unit[i].block, false);
    }
}

/* The slots whose gradient a layer below wants. */
static unsigned slots_wanted(const tsr_layer_programs *programs, int layer)
{
    return layer ? tsr_layer_program_of(programs, layer - 1)->wanted_slots : 0;
}

/* Whether two layers do the same. */
static bool are_alike(const tsr_layer_programs *programs, const tsr_activation_options *o, int a,
                      int b)
{
    const tsr_layout_unit *x = &o->layout->unit[a], *y = &o->layout->unit[b];
    tsr_matrix_traits left[TSR_BLOCK_WEIGHTS], right[TSR_BLOCK_WEIGHTS];
    int first = o->layout->first_trained;
    bool same = x->block == y->block && trains(o, a) == trains(o, b) &&
                (a == first) == (b == first) &&
                !memcmp(&o->keep[a], &o->keep[b], sizeof *o->keep) &&
                slots_wanted(programs, a) == slots_wanted(programs, b) &&
                programs->begun[a] == programs->begun[b] &&
                !memcmp(x->part, y->part, (size_t)x->block->node_count * sizeof *x->part);
    if (!same)
        return false;
    fill_traits(left, o, a);
    fill_traits(right, o, b);
    for (int i = 0; i < x->block->matrix_count; i++)
        same = same && same_traits(&left[i], &right[i]);
    for (int i = 0; i < x->block->stack_count; i++)
        same = same && same_traits(&left[tsr_stack_weight(i)], &right[tsr_stack_weight(i)]);
    return same;
}

static tsr_status make_program(tsr_layer_programs *out, const tsr_activation_options *o, int layer)
{
    tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS];
    const tsr_layer_program_options options = {.block = o->layout->unit[layer].block,
                                               .traits = traits,
                                               .trains = trains(o, layer),
                                               .below = layer > o->layout->first_trained ||
                                                        o->layout->embedding_count > 0,
                                               .wanted_slots = (uint8_t)slots_wanted(out, layer),
                                               .begun_slots = out->begun[layer],
                                               .fp8 = o->fp8,
                                               .keep = o->keep[layer],
                                               .tile_rows = tsr_activation_tile_rows(o),
                                               .part = o->layout->unit[layer].part};
    const tsr_layer_program_sizes sizes = {o->kernels, tsr_activation_attention(o), o->dtype};
    tsr_layer_program *grown = realloc(out->program, ((size_t)out->count + 1) * sizeof *grown);
    if (!grown)
        return tsr_fail(TSR_ENOMEM, "out of memory for the plan of a layer");
    out->program = grown;
    fill_traits(traits, o, layer);
    tsr_layer_program_make(&grown[out->count], &options);
    return tsr_layer_program_place(&grown[out->count++], &sizes);
}

static tsr_status fill_programs(tsr_layer_programs *programs, const tsr_activation_options *options,
                                int *first)
{
    find_begun(programs, options->layout);
    for (int layer = 0; layer < options->layout->layer_count; layer++) {
        int i = programs->count - 1; /* most are as the one before */
        while (i >= 0 && !are_alike(programs, options, first[i], layer))
            i--;
        if (i < 0) {
            i = programs->count;
            first[i] = layer;
            TSR_TRY(make_program(programs, options, layer));
        }
        programs->of_layer[layer] = i;
    }
    return TSR_OK;
}

tsr_status tsr_layer_programs_make(tsr_layer_programs **out, const tsr_activation_options *options)
{
    size_t layers = (size_t)options->layout->layer_count;
    tsr_layer_programs *programs = calloc(1, sizeof *programs);
    int *first = calloc(layers + 1, sizeof *first); /* layer of each program */
    if (programs) {
        programs->of_layer = calloc(layers + 1, sizeof *programs->of_layer);
        programs->begun = calloc(layers + 1, sizeof *programs->begun);
    }
    tsr_status status = programs && programs->of_layer && programs->begun && first
                            ? fill_programs(programs, options, first)
                            : tsr_fail(TSR_ENOMEM, "out of memory for the layers");
    free(first);
    if (status < 0) {
        tsr_layer_programs_free(programs);
        return status;
    }
    *out = programs;
    return TSR_OK;
}

void tsr_layer_programs_free(tsr_layer_programs *programs)
{
    if (!programs)
        return;
    free(programs->program);
    free(programs->of_layer);
    free(programs->begun);
    free(programs);
}

/* ---- what layers keep ---- */

/* As the plan shows it: [tokens, width], a statistic of several columns the other way round. */
static tsr_array array_of(const walk *w, const tsr_layer_program *program, int value)
{
    uint64_t width = tsr_value_width(program, value);
    const tsr_value *v = &program->block->value[value];
    if (!v->statistic)
        return (tsr_array){w->options->dtype, w->tokens, width};
    if (v->fixed)
        return (tsr_array){
            TSR_F32, tsr_value_bytes(program, value, (int64_t)w->tokens, TSR_F32) / sizeof(float),
            1};
    return width == 1 ? (tsr_array){TSR_F32, w->tokens, 1} : (tsr_array){TSR_F32, width, w->tokens};
}

tsr_stride tsr_activation_stride(const tsr_activation_options *options)
{
    return (tsr_stride){options->layout->first_trained, options->layout->layer_count,
                        options->train ? options->stride : 0};
}

/* With a stride the input is all that it keeps. */
static tsr_status take_layer(const walk *w, void **all, int layer)
{
    const tsr_layer_program *program = tsr_layer_program_of(w->programs, layer);
    const tsr_stride stride = tsr_activation_stride(w->options);
    void **kept = all ? &all[(size_t)layer * TSR_BLOCK_VALUES] : NULL;
    int lender = stride.lowest + tsr_stride_place(stride, layer); /* of the lowest span */
    if (tsr_stride_place(stride, layer) > 0 && lender < layer) {
        if (kept)
            kept[0] = all[(size_t)lender * TSR_BLOCK_VALUES];
        return TSR_OK;
    }
    for (int i = 0; i < program->kept_count; i++) {
        int value = program->kept_buffer[i];
        char name[96];
        int length = snprintf(name, sizeof name, "layer %d ", layer);
        tsr_value_print(name + length, sizeof name - (size_t)length, program->block, value);
        TSR_TRY(take(w, kept ? &kept[i] : NULL, name, program->block->value[value].why,
                     array_of(w, program, value)));
    }
    return TSR_OK;
}

/* Of all offloaded layers the largest, as many times as layers take turns. */
static tsr_status take_regions(const walk *w, tsr_activations *out)
{
    const uint64_t *saved = w->options->saved_bytes;
    uint64_t bytes[TSR_REGIONS] = {0};
    int turn = 0;
    for (int layer = 0; saved && layer < w->options->layout->layer_count; layer++) {
        if (saved[layer] == 0)
            continue;
        uint64_t *most = &bytes[turn++ % TSR_REGIONS]; /* tsr_saved_region */
        *most = larger(*most, saved[layer]);
    }
    for (int i = 0; i < TSR_REGIONS; i++) {
        char name[48];
        snprintf(name, sizeof name, "saved activations %d", i);
        TSR_TRY(take(w, &out->region[i], name,
                     "of the layer at work; they travel to host memory and back",
                     tsr_array_of_bytes(bytes[i])));
    }
    return TSR_OK;
}

static void cut_kept(void **kept, region *r, const tsr_layer_program *program, int64_t tokens,
                     tsr_dtype dtype)
{
    for (int i = 0; i < program->kept_count; i++)
        kept[i] = cut(r, tsr_value_bytes(program, program->kept_buffer[i], tokens, dtype));
}

uint64_t tsr_activations_kept_bytes(const tsr_activation_options *options,
                                    const tsr_layer_programs *programs, int layer, int64_t tokens)
{
    region r = {0};
    void *unused[TSR_BLOCK_VALUES];
    cut_kept(unused, &r, tsr_layer_program_of(programs, layer), tokens, options->dtype);
    return r.used;
}

void tsr_activations_kept(void *out[TSR_BLOCK_VALUES], const tsr_activations *activations,
                          const tsr_activation_options *options, const tsr_layer_programs *programs,
                          int layer, int64_t tokens)
{
    int turn = tsr_saved_region(options->saved_bytes, layer);
    if (turn >= 0) {
        region r = {.base = activations->region[turn]};
        cut_kept(out, &r, tsr_layer_program_of(programs, layer), tokens, options->dtype);
    } else {
        memcpy(out, &activations->kept[(size_t)layer * TSR_BLOCK_VALUES],
               TSR_BLOCK_VALUES * sizeof *out);
    }
}

/* ---- what layers and the head share ---- */

/* Bytes in fp32 of the largest tensor that is trained of the head or the embedding. */
static uint64_t largest_table_gradient(const tsr_layout *layout)
{
    uint64_t most = 0;
    for (int i = layout->layer_count; i < layout->unit_count; i++)
        for (int j = 0; j < layout->unit[i].trainable_count; j++)
            most = larger(most, layout->unit[i].trainable[j].element_count);
    return most * sizeof(float);
}

/* The head runs between the last layer's forward and its backward. */
static uint64_t cut_head(region *to, const walk *w, tsr_activations *out)
{
    uint64_t element = tsr_dtype_bytes(w->options->dtype);
    const tsr_layout *layout = w->options->layout;
    uint64_t r = layout->head_lora.r, span = (uint64_t)tsr_activation_tile_rows(w->options);
    uint64_t width = w->d + r, floats = w->rows * width * sizeof(float);
    uint64_t chunk = tsr_layout_chunk_rows(layout);
    bool train = w->options->train;
    out->head.h_whole = !span || layout->head_whole || layout->head_rows.count;
    out->head.h = cut(to, (out->head.h_whole ? w->tokens : span) * w->d * element);
    out->head.d_h = out->head.h; /* h was read by then */
    out->head.rstd = cut(to, w->tokens * sizeof(float));
    out->head.rows = cut(to, w->rows * width * element);
    out->head.part = cut(to, span && train ? largest_table_gradient(layout) : 0);
    if (layout->scores) {
        out->head.score_gradient = cut(to, train ? w->d * sizeof(float) : 0);
        return to->used;
    }
    out->head.d_rows = cut(to, r && train ? w->rows * width * element : 0);
    out->head.joined = cut(to, r ? chunk * width * element : 0);
    out->head.label_h = cut(to, r ? w->rows * w->d * element : 0);
    out->head.state.acc = cut(to, train ? floats : 0);
    out->head.state.wy_dtype = layout->config.logits_softcap > 0 ? TSR_F32 : w->options->dtype;
    out->head.state.wy =
        cut(to, train ? w->rows * width * tsr_dtype_bytes(out->head.state.wy_dtype) : 0);
    out->head.state.max = cut(to, w->rows * sizeof(float));
    out->head.state.sum = cut(to, w->rows * sizeof(float));
    out->head.state.label_logit = cut(to, w->rows * sizeof(float));
    out->head.state.rival = cut(to, w->rows * sizeof(float));
    out->head.state.spread = cut(to, w->rows * sizeof(float));
    out->head.workspace = cut(to, out->head.workspace_bytes);
    return to->used;
}

static tsr_status take_scratch(const walk *w, tsr_activations *out)
{
    const tsr_activation_options *o = w->options;
    region measured = {0};
    void *base = NULL;
    int64_t span = tsr_activation_tile_rows(o), rows = o->bounds.label_rows;
    out->head.workspace_bytes = o->kernels->head_workspace_bytes(
        &(tsr_head_bounds){.rows = span && span < rows ? span : rows,
                           .d = (int64_t)(w->d + o->layout->head_lora.r),
                           .chunk = TSR_HEAD_CHUNK_ROWS,
                           .dtype = o->dtype,
                           .train = o->train});
    uint64_t bytes = cut_head(&measured, w, out);
    for (int i = 0; i < w->programs->count; i++)
        bytes = larger(bytes, w->programs->program[i].scratch_bytes);
    TSR_TRY(take(w, &base, "scratch layer at work, or head",
                 "values, gradients and workspaces of a layer, or of the loss",
                 tsr_array_of_bytes(bytes)));
    cut_head(&(region){.base = base}, w, out);
    out->scratch = base;
    out->scratch_bytes = bytes;
    return TSR_OK;
}

/* What layers leave to layers further up, beside the residual stream. */
static tsr_status take_shared_values(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    unsigned wanted = slots_wanted(w->programs, layout->layer_count);
    for (int slot = 0; slot < TSR_SHARED_SLOTS; slot++) {
        const tsr_value *given = NULL;
        for (int i = 0; i < layout->block_count; i++)
            for (int v = 0; v < layout->block[i]->value_count; v++)
                if (layout->block[i]->value[v].slot == slot && layout->block[i]->value[v].node >= 0)
                    given = &layout->block[i]->value[v];
        if (!given)
            continue;
        char name[48];
        snprintf(name, sizeof name, "shared %s %d", given->name, slot);
        TSR_TRY(take(w, &out->shared[slot], name, given->why,
                     (tsr_array){w->options->dtype, w->tokens, given->width}));
        snprintf(name, sizeof name, "gradient of shared %s %d", given->name, slot);
        if (wanted >> slot & 1)
            TSR_TRY(take(w, &out->shared_gradient[slot], name, given->why,
                         (tsr_array){w->options->dtype, w->tokens, given->width}));
    }
    return TSR_OK;
}

static bool carries(const walk *w, tsr_place_kind place)
{
    for (int i = 0; i < w->programs->count; i++)
        for (int v = 0; v < w->programs->program[i].block->value_count; v++)
            if (w->programs->program[i].in_forward[v].kind == place)
                return true;
    return false;
}

/* Of the sums over tokens that give dm: all columns of whoever sums them. */
static uint64_t partial_columns(const walk *w)
{
    const tsr_layout *layout = w->options->layout;
    uint64_t most = 0;
    for (int layer = 0; layer < layout->layer_count; layer++) {
        const tsr_block *b = layout->unit[layer].block;
        for (int i = 0; i < b->node_count && layout->unit[layer].dora; i++) {
            uint64_t sum = 0, tallest = 0;
            for (int port = 0; port < TSR_NODE_PORTS; port++) {
                const tsr_node *node = &b->node[i];
                if (node->kind->scales && node->in[port] != TSR_NONE)
                    sum += b->value[node->in[port]].width;
                if (node->kind == &tsr_node_linear && node->weight[port] != TSR_NONE)
                    tallest = larger(tallest, b->matrix[node->weight[port]].out);
            }
            most = larger(most, larger(sum, tallest));
        }
    }
    return most;
}

/* The largest sides of all linears; what the rows take that one has at a time; and stacked adapters. */
typedef struct {
    uint64_t out;
    tsr_array in_rows, out_rows, low_rows,
        side_rows; /* its input, result, x A^T; the larger side */
    tsr_array weight, stack_a, stack_b;
} extent;

static void enlarge(tsr_array *a, uint64_t rows, uint64_t columns)
{
    tsr_array b = {a->dtype, rows, columns};
    if (tsr_array_bytes(b) > tsr_array_bytes(*a))
        *a = b;
}

static void include_linear(extent *e, const walk *w, int layer, int index)
{
    const tsr_layer_program *program = tsr_layer_program_of(w->programs, layer);
    const tsr_layout_linear *linear = &w->options->layout->unit[layer].linear[index];
    uint64_t columns = stack_columns(w->options, linear);
    uint64_t low = larger(columns, w->options->layout->largest_r);
    tsr_tile_kind kinds[2];
    tsr_tile_kinds(kinds, program, program->block->matrix[index].node, (int64_t)w->tokens);
    uint64_t rows = (uint64_t)kinds[0].tokens;
    e->out = larger(e->out, linear->out);
    enlarge(&e->weight, linear->out, linear->in);
    enlarge(&e->stack_a, columns, linear->in);
    enlarge(&e->stack_b, linear->out, columns);
    enlarge(&e->in_rows, rows, linear->in);
    enlarge(&e->out_rows, rows, linear->out);
    enlarge(&e->side_rows, rows, larger(linear->in, linear->out));
    enlarge(&e->low_rows, rows, low);
}

static extent find_extent(const walk *w)
{
    const tsr_array none = {w->options->dtype, 0, 0};
    extent e = {0, none, none, none, {TSR_F8_E4M3, 0, 0}, none, none, none};
    for (int layer = 0; layer < w->options->layout->layer_count; layer++)
        for (int i = 0; i < w->options->layout->unit[layer].block->matrix_count; i++)
            include_linear(&e, w, layer, i);
    return e;
}

static tsr_status take_backward(const walk *w, tsr_activations *out, const extent *e)
{
    uint64_t columns = partial_columns(w);
    uint64_t rows = columns ? (uint64_t)w->options->kernels->partial_rows : 0;
    TSR_TRY(take_rows(w, &out->dx, "dx", "gradient of the residual stream", w->d));
    out->head.x = out->dx;
    TSR_TRY(take_floats(w, &out->context.partials, "partial sums", "DoRA: dm, summed over tokens",
                        rows, columns));
    TSR_TRY(take(w, &out->context.d_low, "scratch d_low", "gradient of x A", e->low_rows));
    TSR_TRY(take_floats(w, &out->context.stack.da, "stacked dA", "of several adapters",
                        e->stack_a.rows, e->stack_a.columns));
    TSR_TRY(take_floats(w, &out->context.stack.db, "stacked dB", "of several adapters",
                        e->stack_b.rows, e->stack_b.columns));
    if (w->options->dropout)
        TSR_TRY(take(w, &out->context.d_dropped, "scratch d_dropped",
                     "gradient of the dropped input", e->in_rows));
    return TSR_OK;
}

/* Rows are a linear's input, or the gradient of its output. */
static tsr_status take_fp8(const walk *w, tsr_linear_fp8 *out, const extent *e)
{
    TSR_TRY(take(w, &out->weight, "scratch weight in e4m3",
                 "base_compute: fp8: the weight at work for the base's matmul",
                 (tsr_array){TSR_F8_E4M3, e->weight.rows, e->weight.columns}));
    TSR_TRY(take_floats(w, &out->weight_scale, "weight scale", "its scale of each row", e->out, 1));
    for (int i = 0; i < TSR_LINEAR_MADE && w->options->train; i++) {
        static const char ahead[] = "the same of gradients that are made in e4m3";
        char what[32];
        snprintf(what, sizeof what, "weight scale ahead %d", i);
        TSR_TRY(take_floats(w, &out->made_weight_scale[i], what, ahead, e->out, 1));
        snprintf(what, sizeof what, "row scale ahead %d", i);
        TSR_TRY(take_floats(w, &out->made_row_scale[i], what, ahead, w->tokens, 1));
    }
    TSR_TRY(take(w, &out->rows, "scratch rows in e4m3",
                 "base_compute: fp8: input of the linear at work, or gradient of its output",
                 e->side_rows));
    return take_floats(w, &out->row_scale, "row scale", "its scale of each token", w->tokens, 1);
}

/* Of DoRA's norms: what those need that the kernel that merges makes, and those that are factored. */
static tsr_status take_norm_scratch(const walk *w, tsr_activations *out)
{
    const tsr_layout *layout = w->options->layout;
    uint64_t partials = 0, products = 0, r = 0;
    for (int layer = 0; layer < layout->layer_count; layer++)
        for (int i = 0; i < layout->unit[layer].block->matrix_count; i++) {
            const tsr_layout_linear *one = &layout->unit[layer].linear[i];
            if (!one->r || !one->dora)
                continue;
            if (tsr_linear_norm_merges(w->options->dtype, one->quantized, one->in, one->r))
                partials = larger(partials, (uint64_t)tsr_nf4_merge_partials((int64_t)one->out,
                                                                             (int64_t)one->in));
            else {
                products = larger(products, one->out * one->r);
                r = larger(r, one->r);
            }
        }
    TSR_TRY(take_floats(w, &out->norm_partials, "norm partial sums",
                        "DoRA: n of the linear at work", partials, 1));
    TSR_TRY(take_floats(w, &out->norm_u, "norm u", "DoRA: n of the linear at work", products, 1));
    TSR_TRY(take_floats(w, &out->norm_gram, "norm gram", "DoRA: n of the linear at work", r, r));
    if (w->options->dtype != TSR_F32)
        TSR_TRY(
            take_floats(w, &out->norm_b, "norm b", "DoRA: n of the linear at work", products, 1));
    return take_floats(w, &out->norm_bg, "norm bg", "DoRA: n of the linear at work", products, 1);
}

static tsr_status take_linear(const walk *w, tsr_activations *out, const extent *e)
{
    TSR_TRY(
        take(w, &out->context.weight, "scratch weight", "the weight at work, decoded", e->weight));
    if (w->options->fp8)
        TSR_TRY(take_fp8(w, &out->context.fp8, e));
    TSR_TRY(take(w, &out->context.low, "scratch low", "x A of the linear at work", e->low_rows));
    TSR_TRY(take(w, &out->context.stack.a, "scratch stacked A",
                 "of several adapters, of the linear at work", e->stack_a));
    TSR_TRY(take(w, &out->context.stack.b, "scratch stacked B",
                 "of several adapters, of the linear at work", e->stack_b));
    if (w->options->dropout) {
        TSR_TRY(take(w, &out->context.dropped, "scratch dropped", "its input after dropout",
                     e->in_rows));
        TSR_TRY(take(w, &out->context.lora, "scratch lora", "its adapter's output", e->out_rows));
    }
    return take_norm_scratch(w, out);
}

static tsr_status take_shared(const walk *w, tsr_activations *out)
{
    void *nll = NULL;
    TSR_TRY(take_scratch(w, out));
    TSR_TRY(take_shared_values(w, out));
    if (carries(w, TSR_PLACE_CARRIED_X))
        TSR_TRY(take_rows(w, &out->carried_x, "x between layers",
                          "the residual stream on its way to the next layer", w->d));
    if (carries(w, TSR_PLACE_CARRIED_Z))
        TSR_TRY(take_rows(w, &out->carried_z, "z between layers", "what the next layer adds to it",
                          w->d));
    if (w->options->layout->scores)
        return TSR_OK;
    TSR_TRY(take(w, &nll, "head nll", "of each label: its loss", (tsr_array){TSR_F64, w->rows, 1}));
    out->nll = nll;
    return TSR_OK;
}

tsr_status tsr_activations_walk(tsr_activations *out, const tsr_activation_options *options,
                                const tsr_layer_programs *programs, tsr_take_buffer *take_buffer,
                                void *user)
{
    tsr_activations ignored = {0}, *a = out ? out : &ignored;
    const walk w = {.options = options,
                    .programs = programs,
                    .take = take_buffer,
                    .user = user,
                    .tokens = (uint64_t)options->bounds.tokens,
                    .rows = (uint64_t)options->bounds.label_rows,
                    .d = options->layout->config.hidden_size};
    extent e = find_extent(&w);
    TSR_TRY(take_shared(&w, a));
    for (int layer = 0; layer < options->layout->layer_count; layer++)
        if (tsr_saved_region(options->saved_bytes, layer) < 0)
            TSR_TRY(take_layer(&w, out ? out->kept : NULL, layer));
    TSR_TRY(take_regions(&w, a));
    TSR_TRY(take_linear(&w, a, &e));
    return options->train ? take_backward(&w, a, &e) : TSR_OK;
}
