#include "model/node_parts.h"

static int matrix_of(const tsr_pass *pass, int value)
{
    return pass->block->value[value].matrix;
}

tsr_output tsr_pass_output(const tsr_pass *pass, int value)
{
    int matrix = matrix_of(pass, value);
    tsr_output out = {.z = pass->value[value], .bias.dtype = TSR_F32};
    if (value == pass->block->in.pending)
        return (tsr_output){out.z, pass->input->g, {NULL, TSR_F32}};
    if (matrix == TSR_NONE || tsr_linear_composes(&pass->linear[matrix]))
        return out;
    out.g = pass->linear[matrix].r ? pass->linear[matrix].g : NULL;
    out.bias = pass->linear[matrix].bias;
    return out;
}

float *tsr_pass_dm(const tsr_pass *pass, int value)
{
    return tsr_value_has_dm(pass->block, pass->traits, value)
               ? pass->gradients[matrix_of(pass, value)].m
               : NULL;
}

const float *tsr_pass_n(const tsr_pass *pass, int value)
{
    int matrix = matrix_of(pass, value);
    return matrix == TSR_NONE ? NULL : pass->linear[matrix].n;
}

bool tsr_value_has_dm(const tsr_block *block, const tsr_matrix_traits *traits, int value)
{
    int matrix = block->value[value].matrix;
    return matrix != TSR_NONE && traits[matrix].r && traits[matrix].dora &&
           !traits[matrix].composes;
}

bool tsr_block_reader_scales(const tsr_block *block, int value)
{
    for (int i = 0; i < block->node_count; i++)
        for (int port = 0; port < TSR_NODE_PORTS; port++)
            if (block->node[i].in[port] == value)
                return block->node[i].kind->scales;
    return false; /* it leaves the block: a norm reads it */
}

static bool is_of_idle(const tsr_block *block, const tsr_step *step, int value)
{
    const tsr_node *node = &block->node[step->node];
    int matrix = block->value[value].matrix;
    for (int i = 0; i < TSR_NODE_PORTS && node->kind == &tsr_node_linear && matrix != TSR_NONE; i++)
        if (node->weight[i] == matrix && !(step->outputs & 1u << i))
            return true;
    return false;
}

void tsr_needs_of(tsr_needs *out, const tsr_block *block, const tsr_matrix_traits *traits,
                  const tsr_step *step)
{
    const tsr_node *node = &block->node[step->node];
    int count = 0;
    *out = (tsr_needs){0};
    node->kind->needs(out, block, node, traits);
    for (int i = 0; i < out->read_count; i++)
        if (!is_of_idle(block, step, out->read[i]))
            out->read[count++] = out->read[i];
    out->read_count = count;
}

void tsr_needs_read(tsr_needs *needs, int16_t value)
{
    needs->read[needs->read_count++] = value;
}

void tsr_needs_over(tsr_needs *needs, int16_t output, int16_t input)
{
    needs->over[needs->over_count].output = output;
    needs->over[needs->over_count++].input = input;
}

void tsr_needs_share(tsr_needs *needs, int16_t input, int16_t with, bool gradient)
{
    needs->share[needs->share_count].input = input;
    needs->share[needs->share_count].with = with;
    needs->share[needs->share_count++].gradient = gradient;
}
