/*
 * bench/llama_layer.h: the work of a layer of given widths, whose linears are all adapted alike: of the configuration's
 * family, or where it has none a Llama's.
 */
#ifndef TSR_BENCH_LLAMA_LAYER_H
#define TSR_BENCH_LLAMA_LAYER_H

#include "model/arch/arch.h"
#include "model/arch/decoder.h"
#include "model/work.h"

typedef struct {
    tsr_block block;
    tsr_layer_program program;
    tsr_work_layer layer; /* with everything but tokens and pairs */
} llama_layer;

/* The program of the lowest layer that trains, or of one above it, with what its linears have and what it may keep. */
static inline void llama_layer_program(llama_layer *l, bool first, tsr_keep keep)
{
    tsr_matrix_traits traits[TSR_BLOCK_WEIGHTS] = {{0}};
    for (int i = 0; i < l->block.matrix_count; i++)
        traits[i] = tsr_work_traits(&l->layer, i);
    for (int i = 0; i < l->block.stack_count; i++)
        traits[tsr_stack_weight(i)].r = (uint64_t)l->layer.stack[i].r;
    tsr_layer_program_make(&l->program, &(tsr_layer_program_options){.block = &l->block,
                                                                     .traits = traits,
                                                                     .trains = true,
                                                                     .below = !first,
                                                                     .fp8 = l->layer.fp8,
                                                                     .keep = keep});
    l->layer.program = &l->program;
}

/* *out, of layer `index`, is written; `like` is what every linear has beside its sides, and every stack of experts. */
static inline tsr_status llama_layer_make(llama_layer *out, const tsr_model_config *config,
                                          int index, tsr_work_linear like, double element, bool fp8)
{
    *out = (llama_layer){.layer = {.element = element, .fp8 = fp8}};
    TSR_TRY(config->arch ? tsr_arch_block(&out->block, config, index)
                         : tsr_decoder_block(&out->block, config, index));
    for (int i = 0; i < out->block.matrix_count; i++) {
        out->layer.linear[i] = like;
        out->layer.linear[i].in = (double)out->block.matrix[i].in;
        out->layer.linear[i].out = (double)out->block.matrix[i].out;
    }
    for (int i = 0; i < out->block.stack_count; i++)
        out->layer.stack[i] =
            (tsr_work_stack){.r = like.r, .nf4 = like.nf4, .fp8 = fp8 && like.nf4};
    return TSR_OK;
}

#endif
