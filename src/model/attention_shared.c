#include "model/attention_ways.h"

#include "base/checked.h"

/* ---- what both ways need ---- */

void *tsr_attention_take(tsr_attention_room *room, uint64_t bytes)
{
    void *at = room->base ? room->base + room->bytes : NULL;
    room->bytes += tsr_align_up(bytes, TSR_ALIGNMENT);
    return at;
}

tsr_status tsr_attention_move(const tsr_pass *pass, const tsr_attention_columns *columns)
{
    const tsr_copy_columns_args args = {.out = columns->out,
                                        .in = columns->in,
                                        .rows = columns->rows,
                                        .columns = columns->columns,
                                        .out_stride = columns->out_stride,
                                        .in_stride = columns->in_stride,
                                        .in_dtype = columns->dtype,
                                        .dtype = columns->dtype,
                                        .scale = 1};
    return pass->context->kernels->copy_columns(pass->context->stream, &args);
}

tsr_status tsr_attention_own_delta(const tsr_pass *pass, const tsr_attention_backward_args *args,
                                   float *out)
{
    tsr_attention_delta_args delta = {.out = out, .o = args->o, .d_o = args->d_o};
    delta.tokens = pass->batch->tokens, delta.q_heads = args->shape.q_heads;
    delta.v_dim = tsr_attention_v_dim(args->shape.v_dim, args->shape.head_dim);
    delta.dtype = args->shape.dtype;
    return pass->context->kernels->attention_delta(pass->context->stream, &delta);
}

tsr_status tsr_attention_fits(const tsr_attention_room *room, const tsr_attention_shape *shape)
{
    if (room->bytes <= shape->workspace_bytes)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "shared attention needs %llu bytes, %llu are there",
                    (unsigned long long)room->bytes, (unsigned long long)shape->workspace_bytes);
}

void tsr_attention_give_heads(tsr_attention_shape *shape, const tsr_attention_bounds *call)
{
    shape->q_heads = call->q_heads;
    shape->kv_heads = call->kv_heads;
    shape->all_kv_heads = call->all_kv_heads;
}

tsr_frozen tsr_attention_sinks(tsr_frozen all, int64_t first)
{
    if (all.data)
        all.data = (const char *)all.data + (uint64_t)first * tsr_dtype_bytes(all.dtype);
    return all;
}

/* ---- which way ---- */

static bool by_heads(const tsr_kernels *kernels, const tsr_attention_bounds *bounds)
{
    return kernels->attention_sharing(bounds).by_heads;
}

static bool goes_by_heads(const tsr_pass *pass, const tsr_node *node)
{
    const tsr_attention_bounds bounds = tsr_attention_bounds_of(node, pass->batch->attention);
    return by_heads(pass->context->kernels, &bounds);
}

uint64_t tsr_attention_shared_bytes(const tsr_kernels *kernels, const tsr_attention_bounds *bounds)
{
    uint64_t most = 0;
    if (!tsr_attention_is_shared(bounds))
        return 0;
    for (int backward = 0; backward <= bounds->train; backward++) {
        uint64_t bytes = by_heads(kernels, bounds)
                             ? tsr_attention_heads_bytes(kernels, bounds, backward)
                             : tsr_attention_rows_bytes(kernels, bounds, backward);
        most = bytes > most ? bytes : most;
    }
    return most;
}

tsr_status tsr_attention_shared(const tsr_pass *pass, const tsr_node *node,
                                const tsr_attention_args *args)
{
    return goes_by_heads(pass, node) ? tsr_attention_heads(pass, node, args)
                                     : tsr_attention_rows(pass, node, args);
}

tsr_status tsr_attention_shared_backward(const tsr_pass *pass, const tsr_node *node,
                                         const tsr_attention_backward_args *args)
{
    return goes_by_heads(pass, node) ? tsr_attention_heads_backward(pass, node, args)
                                     : tsr_attention_rows_backward(pass, node, args);
}
