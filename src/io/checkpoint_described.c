/*
 * checkpoint_described.c: the tensors that config.json describes, for a plan made before the weights are
 * there.
 */
#include "io/checkpoint_parts.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_OF_LAYER 18 /* seven linears with their biases, four norms */
#define OTHER_TENSORS    3

/* [rows, columns], or [rows] where columns is 0. */
__attribute__((format(printf, 5, 6))) static tsr_status
add(tsr_checkpoint *c, tsr_dtype dtype, uint64_t rows, uint64_t columns, const char *format, ...)
{
    tsr_tensor *t = &c->described[c->tensor_count];
    char *name;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&name, format, arguments);
    va_end(arguments);
    if (length < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for its tensors", c->directory);
    *t = (tsr_tensor){.name = name,
                      .dtype = dtype,
                      .ndim = columns ? 2 : 1,
                      .shape = {rows, columns},
                      .element_count = columns ? rows * columns : rows};
    t->bytes = t->element_count * tsr_dtype_bytes(dtype);
    c->total_bytes += t->bytes;
    c->tensors[c->tensor_count++] = t;
    return TSR_OK;
}

static tsr_status add_layer(tsr_checkpoint *c, const tsr_model_config *m, uint64_t layer)
{
    uint64_t d = m->hidden_size, f = m->intermediate_size;
    uint64_t q = m->head_count * m->head_dim, kv = m->kv_head_count * m->head_dim;
    const struct {
        const char *name;
        uint64_t out, in;
        bool bias;
    } linear[] = {{"self_attn.q_proj", q, d, m->q_bias},  {"self_attn.k_proj", kv, d, m->k_bias},
                  {"self_attn.v_proj", kv, d, m->v_bias}, {"self_attn.o_proj", d, q, m->o_bias},
                  {"mlp.gate_proj", f, d, m->mlp_bias},   {"mlp.up_proj", f, d, m->mlp_bias},
                  {"mlp.down_proj", d, f, m->mlp_bias}};
    const struct {
        const char *name;
        uint64_t count;
        bool present;
    } norm[] = {{"input_layernorm", d, true},
                {"post_attention_layernorm", d, true},
                {"self_attn.q_norm", m->head_dim, m->qk_norm},
                {"self_attn.k_norm", m->head_dim, m->qk_norm}};
    unsigned long long number = layer;
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        TSR_TRY(add(c, m->dtype, linear[i].out, linear[i].in, "model.layers.%llu.%s.weight", number,
                    linear[i].name));
        if (linear[i].bias)
            TSR_TRY(add(c, m->dtype, linear[i].out, 0, "model.layers.%llu.%s.bias", number,
                        linear[i].name));
    }
    for (size_t i = 0; i < sizeof norm / sizeof *norm; i++)
        if (norm[i].present)
            TSR_TRY(add(c, m->dtype, norm[i].count, 0, "model.layers.%llu.%s.weight", number,
                        norm[i].name));
    return TSR_OK;
}

static tsr_status add_all(tsr_checkpoint *c, const tsr_model_config *m)
{
    TSR_TRY(add(c, m->dtype, m->vocab_size, m->hidden_size, "model.embed_tokens.weight"));
    for (uint64_t layer = 0; layer < m->layer_count; layer++)
        TSR_TRY(add_layer(c, m, layer));
    TSR_TRY(add(c, m->dtype, m->hidden_size, 0, "model.norm.weight"));
    if (!m->tie_word_embeddings)
        TSR_TRY(add(c, m->dtype, m->vocab_size, m->hidden_size, "lm_head.weight"));
    tsr_checkpoint_sort(c);
    return TSR_OK;
}

tsr_status tsr_checkpoint_describe(tsr_checkpoint **out, const char *directory,
                                   const tsr_model_config *model)
{
    if (model->prequantized)
        return tsr_fail(TSR_EDATA,
                        "%s: its weights are not there, and how a 4-bit checkpoint is stored is "
                        "said in their headers only: download them, or plan with the config.json "
                        "of the model that it was quantized from",
                        directory);
    uint64_t most = model->layer_count * TENSORS_OF_LAYER + OTHER_TENSORS;
    tsr_checkpoint *c = calloc(1, sizeof *c);
    if (c) {
        c->directory = strdup(directory);
        c->described = calloc(most, sizeof *c->described);
        c->tensors = calloc(most, sizeof *c->tensors);
    }
    tsr_status status = TSR_OK;
    if (!c || !c->directory || !c->described || !c->tensors)
        status = tsr_fail(TSR_ENOMEM, "%s: no memory for its tensors", directory);
    if (status == TSR_OK)
        status = add_all(c, model);
    if (status < 0) {
        tsr_checkpoint_close(c);
        return status;
    }
    *out = c;
    return TSR_OK;
}
