/*
 * model/matmuls.c: the matmuls of a run, listed before its first step, so that the kernels can choose
 * how to do them.
 *
 * They are not written down a second time: the layers run, forward and backward, with kernels that
 * only note which matmuls they are asked for. The pointers that they get mean nothing; some must not
 * be NULL, which is how a layer is told what to do. Where graphs of adapters are in doubt (model/graphs.c),
 * the matmuls of all their candidates are listed, whether they are still to be timed or were found: the
 * kernels time a part of the list, and a shorter one would have them time others than the first run did.
 */
#include "base/auto.h"
#include "model/model_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- kernels that note ---- */

typedef struct {
    tsr_gemm_args *item;
    int count, room;
} matmul_list;

/* A kernel is told nothing but its stream: the list of the thread that lists. */
static _Thread_local matmul_list *noted;

static bool same(const tsr_gemm_args *a, const tsr_gemm_args *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->trans_a == b->trans_a && a->trans_b == b->trans_b &&
           (a->beta != 0) == (b->beta != 0) && a->dtype == b->dtype && a->c_dtype == b->c_dtype &&
           a->fast == b->fast;
}

static tsr_status note(tsr_stream *stream, const tsr_gemm_args *args)
{
    matmul_list *list = noted;
    (void)stream;
    for (int i = list->count - 1; i >= 0; i--) /* layers are alike: it was noted lately */
        if (same(&list->item[i], args))
            return TSR_OK;
    if (list->count == list->room) {
        int room = 2 * list->room + 64;
        tsr_gemm_args *item = realloc(list->item, (size_t)room * sizeof *item);
        if (!item)
            return tsr_fail(TSR_ENOMEM, "out of memory for a list of matmuls");
        list->item = item;
        list->room = room;
    }
    list->item[list->count] = *args;
    list->item[list->count].a = list->item[list->count].b = list->item[list->count].c = NULL;
    list->count++;
    return TSR_OK;
}

static tsr_status note_fp8(tsr_stream *stream, const tsr_fp8_gemm_args *args)
{
    tsr_gemm_args shape = tsr_fp8_gemm_shape(args);
    return note(stream, &shape);
}

/* Two matmuls, where it is not one kernel on any card. */
static tsr_status note_low_rank_backward(tsr_stream *stream, const tsr_low_rank_backward_args *args)
{
    tsr_gemm_args product[2];
    if (tsr_low_rank_backward_fused(args) && args->r <= TSR_LOW_RANK_MMA)
        return TSR_OK;
    tsr_low_rank_backward_products(product, args);
    TSR_TRY(note(stream, &product[0]));
    return note(stream, &product[1]);
}

/* ---- the layers ---- */

/* What one pass over the layers passes along. */
typedef struct {
    const tsr_model_options *options;
    tsr_linear_context context;
    bool train;
    tsr_linear_range *range; /* [TSR_BLOCK_MATRICES, mixed_count]; NULL: of one adapter */
} listing;

static float something; /* where a pointer must not be NULL */

/* A micro-batch of all adapters, with as many tokens of each. */
static void add_ranges(tsr_linear *out, const listing *l, const tsr_layout_linear *linear,
                       tsr_linear_range *range)
{
    int count = l->options->layout->mixed_count;
    float *pointer = &something;
    for (int k = 0; k < count; k++) {
        int64_t first = l->context.tokens * k / count;
        range[k] = (tsr_linear_range){.first = first,
                                      .tokens = l->context.tokens * (k + 1) / count - first,
                                      .r = linear->mixed[k].r,
                                      .scale = linear->mixed[k].scale,
                                      .drops = l->train && l->options->adapter[k].dropout > 0,
                                      .da = pointer,
                                      .db = pointer};
    }
    out->range = range;
    out->range_count = linear->r ? count : 0;
}

static void layer_of(tsr_layer *out, const listing *l, int unit)
{
    const tsr_layout_unit *layout = &l->options->layout->unit[unit];
    float *pointer = &something;
    *out = (tsr_layer){.program = tsr_layer_program_of(l->options->programs, unit)};
    for (int i = 0; i < layout->block->matrix_count; i++) {
        const tsr_layout_linear *linear = &layout->linear[i];
        bool dora = linear->r && linear->dora;
        out->linear[i] = (tsr_linear){.out = linear->out,
                                      .in = linear->in,
                                      .r = linear->r,
                                      .weight.data = linear->quantized ? NULL : pointer,
                                      .scale = linear->scale,
                                      .g = dora ? pointer : NULL,
                                      .n = dora ? pointer : NULL,
                                      .drops = l->train && l->options->dropout > 0};
        if (l->range)
            add_ranges(&out->linear[i], l, linear, l->range + i * l->options->layout->mixed_count);
    }
}

static tsr_status list_layer(const listing *l, int unit)
{
    void *kept[TSR_BLOCK_VALUES], *shared[TSR_SHARED_SLOTS], *pointer = &something;
    tsr_layer layer;
    tsr_fp8_rows made8[TSR_BLOCK_MATRICES] = {{0}};
    const tsr_layer_run whole = TSR_WHOLE_LAYER;
    tsr_layer_batch batch = {.tokens = l->context.tokens, .documents = 1};
    tsr_layer_memory memory = {kept, pointer, pointer, pointer, pointer, shared, shared};
    tsr_model_tables tables = {0};
    tsr_layer_input input = {pointer, NULL, NULL};
    tsr_layer_gradients gradients[TSR_BLOCK_WEIGHTS];
    layer_of(&layer, l, unit);
    layer.made8 = made8;
    for (int i = 0; i < TSR_BLOCK_VALUES; i++)
        kept[i] = pointer;
    for (int i = 0; i < TSR_SHARED_SLOTS; i++)
        shared[i] = pointer;
    for (int i = 0; i < TSR_BLOCK_WEIGHTS; i++)
        gradients[i] = (tsr_layer_gradients){pointer, pointer, pointer};
    TSR_TRY(tsr_layer_forward(&l->context, &tables, &layer, &batch, &memory, &input, &whole));
    if (!l->train || unit < l->options->layout->first_trained)
        return TSR_OK;
    return tsr_layer_backward(&l->context, &tables, &layer, &batch, &memory, gradients, &whole);
}

static tsr_status list_norms(const listing *l)
{
    const tsr_layout *layout = l->options->layout;
    for (int unit = 0; unit < layout->layer_count; unit++) {
        tsr_layer layer;
        layer_of(&layer, l, unit);
        for (int i = 0; i < layout->unit[unit].block->matrix_count; i++)
            if (layout->unit[unit].linear[i].dora)
                TSR_TRY(tsr_linear_norm(&l->context, &layer.linear[i], &(tsr_linear_norm_args){0}));
    }
    return TSR_OK;
}

static tsr_status list_layers(listing *l, const tsr_batch_shape *shapes, int count)
{
    for (int i = 0; i < count; i++) {
        l->context.tokens = shapes[i].tokens;
        l->train = shapes[i].train;
        for (int unit = 0; unit < l->options->layout->layer_count; unit++)
            TSR_TRY(list_layer(l, unit));
    }
    return TSR_OK;
}

/* Of several adapters: most micro-batches have rows of more than one of them. */
static tsr_status list_mixed(const listing *l, const tsr_batch_shape *shapes, int count)
{
    listing mixed = *l;
    int adapters = l->options->layout->mixed_count;
    if (adapters < 2)
        return TSR_OK;
    mixed.range = calloc(TSR_BLOCK_MATRICES * (size_t)adapters, sizeof *mixed.range);
    if (!mixed.range)
        return tsr_fail(TSR_ENOMEM, "out of memory for a list of matmuls");
    if (tsr_linear_stacks(l->options->dtype))
        mixed.context.stack = (tsr_linear_stack){&something, &something, &something, &something};
    tsr_status status = list_layers(&mixed, shapes, count);
    free(mixed.range);
    return status;
}

/* The graphs of the adapters that are in doubt, each its `pass`th candidate. Returns whether there is a
 * later pass. */
static bool take_candidates(tsr_graph_book *book, const tsr_graph_search *search, int pass)
{
    bool more = false;
    for (int i = 0; i < search->doubted_count; i++) {
        tsr_graph_choice choice[TSR_GRAPH_CHOICES];
        int choices = tsr_graph_doubts(choice, &search->doubted[i]);
        tsr_graph_keep(book, &search->doubted[i], choice[pass % choices]);
        more = more || pass + 1 < choices;
    }
    return more;
}

/* Of all candidates of the graphs in doubt, and of those in the model's book: what an earlier run chose may
 * be none of them. `book` is scratch. */
static tsr_status list_matmuls(matmul_list *out, const tsr_model *model,
                               const tsr_batch_shape *shapes, int count, tsr_graph_book *book,
                               const tsr_graph_search *search)
{
    const tsr_model_options *options = &model->options;
    tsr_kernels kernels = tsr_kernels_none;
    listing l = {.options = options,
                 .context = {.kernels = &kernels,
                             .dtype = options->dtype,
                             .step_micro = options->step_micro,
                             .graphs = book,
                             .fp8 = {.on = options->fp8, .fast = options->fp8_fast}}};
    kernels.gemm = note;
    kernels.fp8_gemm = note_fp8;
    kernels.low_rank_backward = note_low_rank_backward;
    noted = out;
    *book = model->graphs;
    tsr_status status = list_norms(&l);
    if (status == TSR_OK)
        status = list_mixed(&l, shapes, count);
    bool more = search->doubted_count > 0;
    for (int pass = 0; more && status == TSR_OK; pass++) {
        more = take_candidates(book, search, pass);
        status = list_layers(&l, shapes, count);
    }
    l.context.graphs = &model->graphs;
    if (status == TSR_OK)
        status = list_layers(&l, shapes, count);
    noted = NULL;
    return status;
}

/* ---- the head ---- */

/* The chunks of the vocabulary are alike but for the last. Of a span all tokens may be labels. */
static int list_heads(tsr_head_bounds *out, const tsr_model_options *options,
                      const tsr_batch_shape *shapes, int count)
{
    const tsr_layout *layout = options->layout;
    const tsr_activation_options activation = tsr_model_activation(options);
    int64_t span = tsr_activation_tile_rows(&activation);
    int written = 0;
    if (layout->scores) /* which are no matmul */
        return 0;
    for (int i = 0; i < count; i++) {
        int64_t rows = shapes[i].label_rows;
        for (int unit = layout->layer_count; unit < tsr_layout_head_end(layout); unit++) {
            int64_t chunk = (int64_t)layout->unit[unit].row_count;
            if (unit > layout->layer_count && chunk == out[written - 1].chunk)
                continue;
            out[written++] =
                (tsr_head_bounds){.rows = span && span < rows ? span : rows,
                                  .d = (int64_t)(layout->config.hidden_size + layout->head_lora.r),
                                  .chunk = chunk,
                                  .dtype = options->dtype,
                                  .train = shapes[i].train};
        }
    }
    return written;
}

/* The kernels choose how to do the matmuls. */
static tsr_status prepare_matmuls(tsr_model *model, const tsr_batch_shape *shapes, int count,
                                  tsr_prepare_args *args, const tsr_graph_search *search)
{
    const tsr_model_options *options = &model->options;
    size_t chunks = (size_t)options->layout->chunk_count;
    matmul_list list = {0};
    tsr_graph_book *book = malloc(sizeof *book);
    tsr_head_bounds *heads = calloc((size_t)count * chunks + 1, sizeof *heads);
    tsr_status status =
        book && heads ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for a list of matmuls");
    if (status == TSR_OK)
        status = list_matmuls(&list, model, shapes, count, book, search);
    if (status == TSR_OK) {
        args->gemm = list.item;
        args->gemm_count = list.count;
        args->head = heads;
        args->head_count = list_heads(heads, options, shapes, count);
        args->stream = model->compute;
        args->scratch = model->activation_begin;
        args->scratch_bytes = (uint64_t)(model->activation_end - model->activation_begin);
        status = options->kernels->prepare(tsr_stream_device(model->compute), args);
    }
    args->gemm = NULL;
    args->head = NULL;
    args->gemm_count = args->head_count = 0;
    free(list.item);
    free(heads);
    free(book);
    return status;
}

/* The line that names what choices are for, with its end; empty where nothing is to be chosen. */
static tsr_status device_line(tsr_text *out, const tsr_model *model)
{
    tsr_prepare_args args = {.chosen = out};
    TSR_TRY(model->options.kernels->prepare(tsr_stream_device(model->compute), &args));
    const char *end = strchr(tsr_text_string(out), '\n');
    if (out->failed)
        return tsr_fail(TSR_ENOMEM, "out of memory for the choices of matmuls");
    if (end)
        out->data[end + 1 - out->data] = 0;
    return TSR_OK;
}

/* Matmuls first: what a graph takes depends on them. */
static tsr_status prepare(tsr_model *model, const tsr_batch_shape *shapes, int count,
                          tsr_prepare_args *args, tsr_graph_search *search)
{
    tsr_auto_text device = {0};
    tsr_status status = args->chosen ? device_line(&device, model) : TSR_OK;
    tsr_graph_rule rule = model->options.graph_rule;
    if (status == TSR_OK && device.length && (rule == TSR_GRAPHS_AUTO || rule == TSR_GRAPHS_TIMED))
        tsr_model_recall_graphs(search, model, shapes, count, args, device.data);
    if (status == TSR_OK)
        status = prepare_matmuls(model, shapes, count, args, search);
    if (status == TSR_OK)
        status = tsr_model_time_graphs(model, search);
    if (status == TSR_OK && args->chosen)
        tsr_graph_export(args->chosen, &model->graphs);
    if (status == TSR_OK && args->cache)
        tsr_graph_merge(args->cache, &model->graphs, tsr_graph_text_for(args->cached, device.data));
    return status;
}

tsr_status tsr_model_prepare(tsr_model *model, const tsr_batch_shape *shapes, int count,
                             tsr_prepare_args *args)
{
    TSR_AUTO_FREE tsr_graph_search *search = calloc(1, sizeof *search);
    if (!search)
        return tsr_fail(TSR_ENOMEM, "out of memory for a list of graphs");
    return prepare(model, shapes, count, args, search);
}

tsr_status tsr_model_agree(tsr_model *model, const char *chosen)
{
    const char *lines = tsr_graph_lines(chosen);
    tsr_auto_text matmuls = {0};
    tsr_text_append(&matmuls, chosen, (size_t)(lines - chosen));
    TSR_TRY(matmuls.failed ? tsr_fail(TSR_ENOMEM, "out of memory for the choices of matmuls")
                           : tsr_graph_import(&model->graphs, lines));
    return model->options.kernels->prepare(
        tsr_stream_device(model->compute),
        &(tsr_prepare_args){.agreed = tsr_text_string(&matmuls)});
}
