/*
 * model/matmuls.c: the matmuls of a run, listed before its first step, so that the kernels can choose
 * how to do them.
 *
 * They are not written down a second time: the layers run, forward and backward, with kernels that
 * only note which matmuls they are asked for. The pointers that they get mean nothing; some must not
 * be NULL, which is how a layer is told what to do.
 */
#include "model/model_parts.h"

#include <stdlib.h>

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
           (a->beta != 0) == (b->beta != 0) && a->dtype == b->dtype && a->c_dtype == b->c_dtype;
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

#define DO_NOTHING(op)                                                                             \
    static tsr_status ignore_##op(tsr_stream *stream, const tsr_##op##_args *args)                 \
    {                                                                                              \
        (void)stream;                                                                              \
        (void)args;                                                                                \
        return TSR_OK;                                                                             \
    }
TSR_KERNEL_OPS(DO_NOTHING)

#define IGNORE_SLOT(op) .op = ignore_##op,
static const tsr_kernels ignoring = {.name = "none", TSR_KERNEL_OPS(IGNORE_SLOT)};

/* ---- the layers ---- */

/* What one pass over the layers passes along. */
typedef struct {
    const tsr_model_options *options;
    tsr_linear_context context;
    tsr_layer_shape shape;
    bool train;
} listing;

static float something; /* where a pointer must not be NULL */

static tsr_layer layer_of(const listing *l, int unit)
{
    const tsr_layout_linear *linear = l->options->layout->unit[unit].linear;
    float *pointer = &something;
    tsr_layer layer = {0};
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
        bool dora = linear[kind].r && linear[kind].dora;
        layer.linear[kind] = (tsr_linear){.out = linear[kind].out,
                                          .in = linear[kind].in,
                                          .r = linear[kind].r,
                                          .weight.data = linear[kind].quantized ? NULL : pointer,
                                          .scale = linear[kind].scale,
                                          .g = dora ? pointer : NULL,
                                          .n = dora ? pointer : NULL,
                                          .drops = l->train && l->options->dropout > 0};
    }
    return layer;
}

static tsr_status list_layer(const listing *l, int unit)
{
    const tsr_layout *layout = l->options->layout;
    tsr_layer layer = layer_of(l, unit);
    tsr_layer_batch batch = {.tokens = l->context.tokens, .documents = 1};
    tsr_layer_buffers buffers = {0};
    TSR_TRY(tsr_layer_forward(&l->context, &l->shape, &layer, &batch, &buffers,
                              &(tsr_layer_input){NULL, NULL, NULL}));
    if (!l->train || unit < layout->first_trained)
        return TSR_OK;
    float *pointer = &something;
    tsr_layer_scratch scratch = {
        .d_act = pointer, .d_h = pointer, .d_z = pointer, .d_o = pointer, .d_q = pointer};
    scratch.d_k = scratch.d_v = pointer;
    tsr_layer_gradients gradients[TSR_LINEAR_COUNT];
    for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++)
        gradients[kind] = (tsr_layer_gradients){pointer, pointer, pointer};
    return tsr_layer_backward(&l->context, &l->shape, &layer, &batch, &buffers, &scratch, pointer,
                              unit == layout->first_trained, gradients);
}

static tsr_status list_norms(const listing *l)
{
    const tsr_layout *layout = l->options->layout;
    for (int unit = 0; unit < layout->layer_count; unit++)
        for (int kind = 0; kind < TSR_LINEAR_COUNT; kind++) {
            tsr_layer layer = layer_of(l, unit);
            if (layout->unit[unit].linear[kind].dora)
                TSR_TRY(
                    tsr_linear_norm(&l->context, &layer.linear[kind], &(tsr_linear_norm_args){0}));
        }
    return TSR_OK;
}

static tsr_status list_matmuls(matmul_list *out, const tsr_model_options *options,
                               const tsr_batch_shape *shapes, int count)
{
    tsr_kernels kernels = ignoring;
    listing l = {.options = options, .context = {.kernels = &kernels, .dtype = options->dtype}};
    kernels.gemm = note;
    kernels.low_rank_backward = note_low_rank_backward;
    noted = out;
    tsr_status status = list_norms(&l);
    for (int i = 0; i < count && status == TSR_OK; i++) {
        l.context.tokens = shapes[i].tokens;
        l.train = shapes[i].train;
        for (int unit = 0; unit < options->layout->layer_count && status == TSR_OK; unit++)
            status = list_layer(&l, unit);
    }
    noted = NULL;
    return status;
}

/* ---- the head ---- */

/* The chunks of the vocabulary are alike but for the last. */
static int list_heads(tsr_head_bounds *out, const tsr_model_options *options,
                      const tsr_batch_shape *shapes, int count)
{
    const tsr_layout *layout = options->layout;
    int written = 0;
    for (int i = 0; i < count; i++)
        for (int unit = layout->layer_count; unit < layout->unit_count; unit++) {
            int64_t chunk = (int64_t)layout->unit[unit].row_count;
            if (unit > layout->layer_count && chunk == out[written - 1].chunk)
                continue;
            out[written++] = (tsr_head_bounds){.rows = shapes[i].label_rows,
                                               .d = (int64_t)layout->config.hidden_size,
                                               .chunk = chunk,
                                               .dtype = options->dtype,
                                               .train = shapes[i].train};
        }
    return written;
}

tsr_status tsr_model_prepare(tsr_model *model, const tsr_batch_shape *shapes, int count,
                             tsr_prepare_args *args)
{
    const tsr_model_options *options = &model->options;
    size_t chunks = (size_t)options->layout->chunk_count;
    matmul_list list = {0};
    tsr_head_bounds *heads = calloc((size_t)count * chunks + 1, sizeof *heads);
    if (!heads)
        return tsr_fail(TSR_ENOMEM, "out of memory for a list of matmuls");
    tsr_status status = list_matmuls(&list, options, shapes, count);
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
    return status;
}
