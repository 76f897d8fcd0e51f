#include "model/layer.h"

const char *const tsr_linear_name[TSR_LINEAR_COUNT] = {
    [TSR_Q] = "self_attn.q_proj", [TSR_K] = "self_attn.k_proj", [TSR_V] = "self_attn.v_proj",
    [TSR_O] = "self_attn.o_proj", [TSR_GATE] = "mlp.gate_proj", [TSR_UP] = "mlp.up_proj",
    [TSR_DOWN] = "mlp.down_proj",
};

/* What the consumer of a linear reads: z with g and bias, or the composed y as it is. */
typedef struct {
    const void *z;
    const float *g;
    tsr_frozen bias;
} output;

static output consumed(const tsr_layer *layer, const tsr_layer_buffers *buffers,
                       tsr_linear_kind kind)
{
    const tsr_linear *linear = &layer->linear[kind];
    if (tsr_linear_composes(linear))
        return (output){buffers->y[kind], NULL, {NULL, TSR_F32}};
    return (output){buffers->z[kind], linear->r ? linear->g : NULL, linear->bias};
}

static tsr_status linear_forward(const tsr_linear_context *context, const tsr_layer *layer,
                                 const tsr_layer_buffers *buffers, tsr_linear_kind kind,
                                 const void *x)
{
    return tsr_linear_forward(context, &layer->linear[kind], x, buffers->z[kind], buffers->y[kind],
                              buffers->low[kind]);
}

tsr_layer_input tsr_layer_output(const tsr_layer *layer, const tsr_layer_buffers *buffers)
{
    output down = consumed(layer, buffers, TSR_DOWN);
    return (tsr_layer_input){buffers->x_mid, down.z, down.g};
}

static tsr_status attention_forward(const tsr_linear_context *context, const tsr_layer_shape *shape,
                                    const tsr_layer *layer, const tsr_layer_batch *batch,
                                    const tsr_layer_buffers *buffers)
{
    void *out[3] = {buffers->q, buffers->k, buffers->v};
    tsr_rope_qkv_args rope = {.cosine = shape->cosine,
                              .sine = shape->sine,
                              .positions = batch->positions,
                              .tokens = batch->tokens,
                              .q_heads = shape->q_heads,
                              .kv_heads = shape->kv_heads,
                              .head_dim = shape->head_dim,
                              .position_count = shape->position_count,
                              .norm_eps = shape->eps,
                              .dtype = context->dtype};
    for (tsr_linear_kind kind = TSR_Q; kind <= TSR_V; kind++) {
        TSR_TRY(linear_forward(context, layer, buffers, kind, buffers->h));
        output y = consumed(layer, buffers, kind);
        rope.part[kind] = (tsr_rope_part){.z = y.z, .out = out[kind], .g = y.g, .bias = y.bias};
    }
    rope.part[TSR_Q].norm = layer->q_norm;
    rope.part[TSR_K].norm = layer->k_norm;
    TSR_TRY(context->kernels->rope_qkv(context->stream, &rope));
    return context->kernels->attention(
        context->stream, &(tsr_attention_args){.q = buffers->q,
                                               .k = buffers->k,
                                               .v = buffers->v,
                                               .o = buffers->o,
                                               .lse = buffers->lse,
                                               .cu_seqlens = batch->cu_seqlens,
                                               .workspace = shape->attention_workspace,
                                               .workspace_bytes = shape->attention_workspace_bytes,
                                               .tokens = batch->tokens,
                                               .documents = batch->documents,
                                               .q_heads = shape->q_heads,
                                               .kv_heads = shape->kv_heads,
                                               .head_dim = shape->head_dim,
                                               .window = shape->window,
                                               .dtype = context->dtype});
}

/* x_out = x + g z + bias, h = norm(x_out); with z NULL, h = norm(x). */
static tsr_status norm(const tsr_linear_context *context, const tsr_layer_shape *shape,
                       const void *x, output residual, tsr_frozen w, void *x_out, void *h,
                       float *rstd, tsr_fp8_rows h8)
{
    return context->kernels->rms_norm(context->stream,
                                      &(tsr_rms_norm_args){.x = x,
                                                           .z = residual.z,
                                                           .g = residual.g,
                                                           .bias = residual.bias,
                                                           .w = w,
                                                           .x_out = x_out,
                                                           .h = h,
                                                           .rstd = rstd,
                                                           .tokens = context->tokens,
                                                           .d = shape->d,
                                                           .eps = shape->eps,
                                                           .dtype = context->dtype,
                                                           .h8 = h8});
}

static tsr_status swiglu(const tsr_linear_context *context, const tsr_layer_shape *shape,
                         const tsr_layer *layer, const tsr_layer_buffers *buffers,
                         tsr_fp8_rows act8)
{
    output gate = consumed(layer, buffers, TSR_GATE), up = consumed(layer, buffers, TSR_UP);
    return context->kernels->swiglu(context->stream, &(tsr_swiglu_args){.z_gate = gate.z,
                                                                        .z_up = up.z,
                                                                        .g_gate = gate.g,
                                                                        .g_up = up.g,
                                                                        .bias_gate = gate.bias,
                                                                        .bias_up = up.bias,
                                                                        .act = buffers->act,
                                                                        .tokens = context->tokens,
                                                                        .f = shape->f,
                                                                        .dtype = context->dtype,
                                                                        .act8 = act8});
}

static const tsr_fp8_rows no_rows; /* no linear reads them */

/* Everything after h = norm(x), up to act: the input of down_proj, which follows if `down`. */
static tsr_status forward_body(const tsr_linear_context *context, const tsr_layer_shape *shape,
                               const tsr_layer *layer, const tsr_layer_batch *batch,
                               const tsr_layer_buffers *buffers, bool down)
{
    TSR_TRY(attention_forward(context, shape, layer, batch, buffers));
    TSR_TRY(tsr_linear_input(context, buffers->o, (int64_t)layer->linear[TSR_O].in));
    TSR_TRY(linear_forward(context, layer, buffers, TSR_O, buffers->o));
    TSR_TRY(norm(context, shape, buffers->x, consumed(layer, buffers, TSR_O), layer->post_norm,
                 buffers->x_mid, buffers->h2, buffers->rstd2, tsr_linear_rows(context)));
    TSR_TRY(linear_forward(context, layer, buffers, TSR_GATE, buffers->h2));
    TSR_TRY(linear_forward(context, layer, buffers, TSR_UP, buffers->h2));
    return swiglu(context, shape, layer, buffers, down ? tsr_linear_rows(context) : no_rows);
}

static const output nothing = {NULL, NULL, {NULL, TSR_F32}};

tsr_status tsr_layer_forward(const tsr_linear_context *context, const tsr_layer_shape *shape,
                             const tsr_layer *layer, const tsr_layer_batch *batch,
                             const tsr_layer_buffers *buffers, const tsr_layer_input *input)
{
    output residual = {input->z, input->g, {NULL, TSR_F32}};
    TSR_TRY(norm(context, shape, input->x, residual, layer->input_norm, buffers->x, buffers->h,
                 buffers->rstd, tsr_linear_rows(context)));
    TSR_TRY(forward_body(context, shape, layer, batch, buffers, true));
    return linear_forward(context, layer, buffers, TSR_DOWN, buffers->act);
}

/* Whether a backward reads what down_proj computed: for dm. Only the layer above, which has it
 * already, adds it to the residual. Where it does not, no x A^T of down_proj is kept either
 * (activation.c). */
static bool needs_down(const tsr_layer *layer)
{
    const tsr_linear *down = &layer->linear[TSR_DOWN];
    return down->r && down->g;
}

tsr_status tsr_layer_recompute(const tsr_linear_context *context, const tsr_layer_shape *shape,
                               const tsr_layer *layer, const tsr_layer_batch *batch,
                               const tsr_layer_buffers *buffers, tsr_recompute recompute)
{
    if (recompute == TSR_RECOMPUTE_NONE)
        return TSR_OK;
    bool full = recompute == TSR_RECOMPUTE_FULL;
    TSR_TRY(norm(context, shape, buffers->x, nothing, layer->input_norm, NULL, buffers->h,
                 buffers->rstd, full ? tsr_linear_rows(context) : no_rows));
    if (full) {
        TSR_TRY(forward_body(context, shape, layer, batch, buffers, needs_down(layer)));
        return needs_down(layer) ? linear_forward(context, layer, buffers, TSR_DOWN, buffers->act)
                                 : TSR_OK;
    }
    TSR_TRY(norm(context, shape, buffers->x_mid, nothing, layer->post_norm, NULL, buffers->h2,
                 buffers->rstd2, no_rows));
    return swiglu(context, shape, layer, buffers, no_rows);
}

/* What a backward passes along. */
typedef struct {
    const tsr_linear_context *context;
    const tsr_layer_shape *shape;
    const tsr_layer *layer;
    const tsr_layer_batch *batch;
    const tsr_layer_buffers *buffers;
    const tsr_layer_scratch *scratch;
    const tsr_layer_gradients *gradients; /* [TSR_LINEAR_COUNT] */
} pass;

/* The dm that a consumer's backward computes: DoRA without dropout. */
static float *consumer_dm(const pass *p, tsr_linear_kind kind)
{
    const tsr_linear *linear = &p->layer->linear[kind];
    return linear->r && linear->g && !linear->drops ? p->gradients[kind].m : NULL;
}

static tsr_status linear_backward(const pass *p, tsr_linear_kind kind, const void *x, void *dz,
                                  tsr_fp8_rows dz8, void *dx, bool add)
{
    tsr_linear_gradients gradients = {.x = x,
                                      .low = p->buffers->low[kind],
                                      .dz8 = dz8,
                                      .dz = dz,
                                      .z = p->buffers->z[kind],
                                      .dx = dx,
                                      .add = add,
                                      .da = p->gradients[kind].a,
                                      .db = p->gradients[kind].b,
                                      .dm = p->gradients[kind].m};
    return tsr_linear_backward(p->context, &p->layer->linear[kind], &gradients);
}

/* The linears that feed the residual: dz = g dx, dm, then the linear's own backward. dx8: of dx, where that
 * is dz and was put into e4m3. */
static tsr_status residual_backward(const pass *p, tsr_linear_kind kind, const void *x, void *dx,
                                    tsr_fp8_rows dx8, void *d_in)
{
    const tsr_linear *linear = &p->layer->linear[kind];
    float *dm = consumer_dm(p, kind);
    if (!dm) /* dz is dx itself: linear_backward only reads it */
        return linear_backward(p, kind, x, dx, dx8, d_in, false);
    TSR_TRY(p->context->kernels->scale_backward(
        p->context->stream, &(tsr_scale_backward_args){.dy = dx,
                                                       .z = p->buffers->z[kind],
                                                       .g = linear->g,
                                                       .n = linear->n,
                                                       .dz = p->scratch->d_z,
                                                       .dm = dm,
                                                       .partials = p->context->partials,
                                                       .tokens = p->context->tokens,
                                                       .d = (int64_t)linear->out,
                                                       .dtype = p->context->dtype}));
    return linear_backward(p, kind, x, p->scratch->d_z, no_rows, d_in, false);
}

static tsr_status norm_backward(const pass *p, const void *x, const float *rstd, tsr_frozen w,
                                void *dx, tsr_fp8_rows dx8)
{
    return p->context->kernels->rms_norm_backward(
        p->context->stream, &(tsr_rms_norm_backward_args){.dh = p->scratch->d_h,
                                                          .x = x,
                                                          .rstd = rstd,
                                                          .w = w,
                                                          .dx = dx,
                                                          .tokens = p->context->tokens,
                                                          .d = p->shape->d,
                                                          .dtype = p->context->dtype,
                                                          .dx8 = dx8});
}

/* dz of gate and up in e4m3 lies where act did, which the backward of down_proj was the last to read. */
static tsr_status mlp_rows(const pass *p, tsr_fp8_rows *gate, tsr_fp8_rows *up)
{
    const tsr_linear *linear = p->layer->linear;
    uint8_t *codes = p->buffers->act; /* NULL where the kernels do nothing */
    TSR_TRY(tsr_linear_gradient_rows(gate, p->context, &linear[TSR_GATE], codes, 0));
    return tsr_linear_gradient_rows(up, p->context, &linear[TSR_UP],
                                    codes ? codes + p->context->tokens * p->shape->f : NULL, 1);
}

/* dx8 is of the residual between the two halves of the layer: what o_proj's backward multiplies by, where dz
 * is dx there; what is quantized in the meantime lies elsewhere. */
static tsr_status mlp_backward(const pass *p, void *dx, tsr_fp8_rows *dx8)
{
    const tsr_layer_buffers *buffers = p->buffers;
    const tsr_linear *gate = &p->layer->linear[TSR_GATE], *up = &p->layer->linear[TSR_UP];
    output y_gate = consumed(p->layer, buffers, TSR_GATE),
           y_up = consumed(p->layer, buffers, TSR_UP);
    tsr_fp8_rows gate8, up8;
    TSR_TRY(residual_backward(p, TSR_DOWN, buffers->act, dx, no_rows, p->scratch->d_act));
    TSR_TRY(mlp_rows(p, &gate8, &up8));
    /* The gradients replace what they were computed from. */
    TSR_TRY(p->context->kernels->swiglu_backward(
        p->context->stream, &(tsr_swiglu_backward_args){.dact = p->scratch->d_act,
                                                        .z_gate = y_gate.z,
                                                        .z_up = y_up.z,
                                                        .g_gate = y_gate.g,
                                                        .g_up = y_up.g,
                                                        .bias_gate = y_gate.bias,
                                                        .bias_up = y_up.bias,
                                                        .dz_gate = (void *)y_gate.z,
                                                        .dz_up = (void *)y_up.z,
                                                        .n_gate = gate->n,
                                                        .n_up = up->n,
                                                        .dm_gate = consumer_dm(p, TSR_GATE),
                                                        .dm_up = consumer_dm(p, TSR_UP),
                                                        .partials = p->context->partials,
                                                        .tokens = p->context->tokens,
                                                        .f = p->shape->f,
                                                        .dtype = p->context->dtype,
                                                        .dz_gate8 = gate8,
                                                        .dz_up8 = up8}));
    TSR_TRY(
        linear_backward(p, TSR_GATE, buffers->h2, (void *)y_gate.z, gate8, p->scratch->d_h, false));
    TSR_TRY(linear_backward(p, TSR_UP, buffers->h2, (void *)y_up.z, up8, p->scratch->d_h, true));
    *dx8 = no_rows;
    if (!consumer_dm(p, TSR_O))
        TSR_TRY(tsr_linear_gradient_rows(dx8, p->context, &p->layer->linear[TSR_O],
                                         p->context->fp8.rows, 0));
    return norm_backward(p, buffers->x_mid, buffers->rstd2, p->layer->post_norm, dx, *dx8);
}

static tsr_status rope_backward(const pass *p)
{
    void *d[3] = {p->scratch->d_q, p->scratch->d_k, p->scratch->d_v};
    tsr_rope_qkv_backward_args args = {.partials = p->context->partials,
                                       .cosine = p->shape->cosine,
                                       .sine = p->shape->sine,
                                       .positions = p->batch->positions,
                                       .tokens = p->batch->tokens,
                                       .q_heads = p->shape->q_heads,
                                       .kv_heads = p->shape->kv_heads,
                                       .head_dim = p->shape->head_dim,
                                       .position_count = p->shape->position_count,
                                       .norm_eps = p->shape->eps,
                                       .dtype = p->context->dtype};
    for (tsr_linear_kind kind = TSR_Q; kind <= TSR_V; kind++) {
        output y = consumed(p->layer, p->buffers, kind);
        args.part[kind] = (tsr_rope_backward_part){.dout = d[kind],
                                                   .z = y.z,
                                                   .dz = d[kind],
                                                   .g = y.g,
                                                   .n = p->layer->linear[kind].n,
                                                   .dm = consumer_dm(p, kind),
                                                   .bias = y.bias};
    }
    args.part[TSR_Q].norm = p->layer->q_norm;
    args.part[TSR_K].norm = p->layer->k_norm;
    return p->context->kernels->rope_qkv_backward(p->context->stream, &args);
}

static tsr_status attention_backward(const pass *p, void *dx, tsr_fp8_rows dx8, bool first)
{
    const tsr_layer_scratch *scratch = p->scratch;
    const tsr_layer_buffers *buffers = p->buffers;
    void *d[3] = {scratch->d_q, scratch->d_k, scratch->d_v};
    TSR_TRY(residual_backward(p, TSR_O, buffers->o, dx, dx8, scratch->d_o));
    TSR_TRY(p->context->kernels->attention_backward(
        p->context->stream,
        &(tsr_attention_backward_args){.q = buffers->q,
                                       .k = buffers->k,
                                       .v = buffers->v,
                                       .o = buffers->o,
                                       .d_o = scratch->d_o,
                                       .lse = buffers->lse,
                                       .dq = d[TSR_Q],
                                       .dk = d[TSR_K],
                                       .dv = d[TSR_V],
                                       .cu_seqlens = p->batch->cu_seqlens,
                                       .workspace = p->shape->attention_workspace,
                                       .workspace_bytes = p->shape->attention_workspace_bytes,
                                       .tokens = p->batch->tokens,
                                       .documents = p->batch->documents,
                                       .q_heads = p->shape->q_heads,
                                       .kv_heads = p->shape->kv_heads,
                                       .head_dim = p->shape->head_dim,
                                       .window = p->shape->window,
                                       .dtype = p->context->dtype}));
    TSR_TRY(rope_backward(p));
    for (tsr_linear_kind kind = TSR_Q; kind <= TSR_V; kind++)
        TSR_TRY(linear_backward(p, kind, buffers->h, d[kind], no_rows, first ? NULL : scratch->d_h,
                                kind != TSR_Q));
    if (first)
        return TSR_OK;
    return norm_backward(p, buffers->x, buffers->rstd, p->layer->input_norm, dx, no_rows);
}

tsr_status tsr_layer_backward(const tsr_linear_context *context, const tsr_layer_shape *shape,
                              const tsr_layer *layer, const tsr_layer_batch *batch,
                              const tsr_layer_buffers *buffers, const tsr_layer_scratch *scratch,
                              void *dx, bool first,
                              const tsr_layer_gradients gradients[TSR_LINEAR_COUNT])
{
    pass p = {context, shape, layer, batch, buffers, scratch, gradients};
    tsr_fp8_rows dx8;
    TSR_TRY(mlp_backward(&p, dx, &dx8));
    return attention_backward(&p, dx, dx8, first);
}
