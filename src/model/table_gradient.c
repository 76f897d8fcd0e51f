/*
 * model/table_gradient.c: gradients of the embedding and of the head, which are sums over tokens. Those of a micro-batch that
 * is divided are made span by span, rounded to fixed point and added as integers, as those of adapters are: so their bits do
 * not depend on which spans a rank has.
 */
#include "model/model_parts.h"

tsr_table_gradient tsr_model_table_gradient(const tsr_model *model, void *to, uint64_t count)
{
    bool divided = tsr_model_tiles(&model->options);
    return (tsr_table_gradient){.to = to,
                                .part = divided ? model->activations.head.part : to,
                                .count = count,
                                .divided = divided};
}

tsr_status tsr_model_add_part(const tsr_model *model, tsr_table_gradient *gradient)
{
    bool first = !gradient->begun;
    gradient->begun = true;
    if (!gradient->divided)
        return first ? TSR_OK : tsr_fail(TSR_EINTERNAL, "a second part of an undivided gradient");
    return model->options.kernels->fixed_accumulate(
        model->compute, &(tsr_fixed_accumulate_args){.sum = gradient->to,
                                                     .g = gradient->part,
                                                     .count = gradient->count,
                                                     .shift = TSR_FIXED_SHIFT,
                                                     .limit = tsr_model_gradient_limit(model),
                                                     .store = first});
}

tsr_status tsr_model_end_parts(const tsr_model *model, const tsr_table_gradient *gradient)
{
    uint64_t element = gradient->divided ? sizeof(int64_t) : sizeof(float);
    return gradient->begun
               ? TSR_OK
               : tsr_stream_fill(model->compute, gradient->to, 0, gradient->count * element);
}
