#include "model/random_model.h"

#include "adapters/init.h"
#include "base/philox.h"
#include "io/peft.h"
#include "support/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

double model_uniform(uint64_t seed, uint64_t index)
{
    return (double)(tsr_mix(tsr_mix(seed) ^ index) >> 11) * 0x1p-52 - 1;
}

static float rounded(double x, tsr_dtype dtype)
{
    if (dtype == TSR_BF16)
        return tsr_bf16_to_f32(tsr_f32_to_bf16((float)x));
    if (dtype == TSR_F16)
        return tsr_f16_to_f32(tsr_f32_to_f16((float)x));
    return (float)x;
}

/* A new tensor, centre + spread * uniform, rounded to the dtype. */
static model_tensor *add(random_model *m, const char *name, uint64_t rows, uint64_t columns,
                         double centre, double spread, tsr_dtype dtype)
{
    model_tensor *tensor = &m->tensor[m->count++];
    uint64_t count = (rows ? rows : 1) * columns;
    assert_true(m->count <= MODEL_MOST_TENSORS);
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->data = malloc(count * sizeof *tensor->data);
    assert_non_null(tensor->data);
    uint64_t seed = m->spec.seed * 1000 + (uint64_t)m->count;
    for (uint64_t i = 0; i < count; i++)
        tensor->data[i] = (double)rounded(centre + spread * model_uniform(seed, i), dtype);
    return tensor;
}

/* ||W_j + s (B A)_j|| for every row j. */
static void row_norms(double *n, const model_linear *l, int r)
{
    for (uint64_t j = 0; j < l->out; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < l->in; i++) {
            double low = 0;
            for (int k = 0; k < r; k++)
                low +=
                    l->b->data[j * (uint64_t)r + (uint64_t)k] * l->a->data[(uint64_t)k * l->in + i];
            double w = l->w->data[j * l->in + i] + l->scale * low;
            sum += w * w;
        }
        n[j] = sqrt(sum);
    }
}

static void add_adapter(random_model *m, model_linear *l, const char *path)
{
    const model_spec *s = &m->spec;
    char name[128];
    uint64_t r = (uint64_t)s->r;
    l->scale = s->alpha / (s->rslora ? sqrt(s->r) : s->r);
    snprintf(name, sizeof name, "%s.lora_A", path);
    l->a = add(m, name, r, l->in, 0, 1.5 / sqrt((double)l->in), TSR_F32);
    snprintf(name, sizeof name, "%s.lora_B", path);
    l->b = add(m, name, l->out, r, 0, 0.3 / sqrt((double)r), TSR_F32);
    if (!s->dora)
        return;
    snprintf(name, sizeof name, "%s.lora_m", path);
    l->m = add(m, name, 0, l->out, 1, 0.5, TSR_F32);
    l->n = malloc(l->out * sizeof *l->n);
    assert_non_null(l->n);
    row_norms(l->n, l, s->r);
    for (uint64_t j = 0; j < l->out; j++)
        l->m->data[j] = (double)(float)(l->m->data[j] * l->n[j]);
}

static void make_linear(random_model *m, int layer, int kind)
{
    const model_spec *s = &m->spec;
    model_linear *l = &m->linear[layer][kind];
    uint64_t d = (uint64_t)s->d, f = (uint64_t)s->f;
    uint64_t q = (uint64_t)(s->heads * s->head_dim), kv = (uint64_t)(s->kv_heads * s->head_dim);
    const uint64_t out[] = {q, kv, kv, d, f, f, d}, in[] = {d, d, d, q, d, d, f};
    char path[96], name[128];
    l->out = out[kind];
    l->in = in[kind];
    snprintf(path, sizeof path, "model.layers.%d.%s", layer, llama_linear[kind]);
    l->key = tsr_adapter_module_key(path);
    snprintf(name, sizeof name, "%s.weight", path);
    l->w = add(m, name, l->out, l->in, 0, 1.7 / sqrt((double)l->in), s->dtype);
    bool bias = kind <= LLAMA_V ? s->attention_bias || !strcmp(s->type, "qwen2")
                                : kind == LLAMA_O && s->attention_bias;
    snprintf(name, sizeof name, "%s.bias", path);
    if (bias)
        l->bias = add(m, name, 0, l->out, 0, 0.5, s->dtype);
    if (s->r && layer >= s->first_layer && s->targets & (1u << kind))
        add_adapter(m, l, path);
}

void model_make(random_model *out, const model_spec *spec)
{
    memset(out, 0, sizeof *out);
    out->spec = *spec;
    uint64_t d = (uint64_t)spec->d, vocab = (uint64_t)spec->vocab, h = (uint64_t)spec->head_dim;
    tsr_dtype t = spec->dtype;
    char name[96];
    out->embedding = add(out, "model.embed_tokens.weight", vocab, d, 0, spec->tied ? 0.4 : 1, t);
    for (int layer = 0; layer < spec->layers; layer++) {
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            make_linear(out, layer, kind);
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", layer);
        out->input_norm[layer] = add(out, name, 0, d, 1, 0.4, t);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", layer);
        out->post_norm[layer] = add(out, name, 0, d, 1, 0.4, t);
        if (strcmp(spec->type, "qwen3"))
            continue;
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_norm.weight", layer);
        out->q_norm[layer] = add(out, name, 0, h, 1, 0.4, t);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_norm.weight", layer);
        out->k_norm[layer] = add(out, name, 0, h, 1, 0.4, t);
    }
    out->final_norm = add(out, "model.norm.weight", 0, d, 1, 0.4, t);
    out->head = spec->tied ? out->embedding
                           : add(out, "lm_head.weight", vocab, d, 0, 3 / sqrt((double)d), t);
}

void model_free(random_model *model)
{
    for (int i = 0; i < model->count; i++)
        free(model->tensor[i].data);
    for (int layer = 0; layer < model->spec.layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            free(model->linear[layer][kind].n);
}

/* ---- on the disk ---- */

static void write_config(const random_model *m, const char *directory)
{
    const model_spec *s = &m->spec;
    static const char *const rope[] = {
        [ROPE_DEFAULT] = "",
        [ROPE_LINEAR] = ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}",
        [ROPE_LLAMA3] = ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
                        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                        "\"original_max_position_embeddings\": 32}"};
    char path[600], window[64] = "", bias[64] = "";
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    if (s->window)
        snprintf(window, sizeof window, ", \"sliding_window\": %d", s->window);
    if (s->attention_bias)
        snprintf(bias, sizeof bias, ", \"attention_bias\": true");
    fprintf(file,
            "{\"model_type\": \"%s\", \"hidden_size\": %d, \"intermediate_size\": %d,\n"
            "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,\n"
            "\"head_dim\": %d, \"vocab_size\": %d, \"rms_norm_eps\": %.17g, \"rope_theta\": %.17g,"
            "\n\"tie_word_embeddings\": %s, \"hidden_act\": \"silu\", \"torch_dtype\": \"%s\",\n"
            "\"max_position_embeddings\": 4096%s%s%s}\n",
            s->type, s->d, s->f, s->layers, s->heads, s->kv_heads, s->head_dim, s->vocab, s->eps,
            s->theta, s->tied ? "true" : "false",
            s->dtype == TSR_BF16  ? "bfloat16"
            : s->dtype == TSR_F16 ? "float16"
                                  : "float32",
            window, bias, rope[s->rope]);
    assert_int_equal(fclose(file), 0);
}

static void *stored(const model_tensor *tensor, tsr_dtype dtype)
{
    uint64_t count = (tensor->rows ? tensor->rows : 1) * tensor->columns;
    char *out = malloc(count * tsr_dtype_bytes(dtype));
    assert_non_null(out);
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)tensor->data[i];
        uint16_t half = dtype == TSR_BF16 ? tsr_f32_to_bf16(value) : tsr_f32_to_f16(value);
        assert_true(rounded((double)value, dtype) == value);
        if (dtype == TSR_F32)
            memcpy(out + i * 4, &value, 4);
        else
            memcpy(out + i * 2, &half, 2);
    }
    return out;
}

static bool is_adapter(const model_tensor *tensor)
{
    return strstr(tensor->name, ".lora_") != NULL;
}

void model_write(const random_model *model, const char *directory, tsr_dtype dtype)
{
    tsr_tensor_source source[MODEL_MOST_TENSORS] = {{0}};
    uint64_t count = 0;
    char path[600];
    assert_int_equal(mkdir(directory, 0700), 0);
    write_config(model, directory);
    for (int i = 0; i < model->count; i++) {
        const model_tensor *t = &model->tensor[i];
        if (is_adapter(t))
            continue;
        source[count++] = (tsr_tensor_source){.name = t->name,
                                              .dtype = dtype,
                                              .ndim = t->rows ? 2 : 1,
                                              .shape = {t->rows ? t->rows : t->columns, t->columns},
                                              .data = stored(t, dtype)};
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    if (tsr_safetensors_write(path, source, count) < 0)
        fail_msg("%s", tsr_last_error());
    for (uint64_t i = 0; i < count; i++)
        free((void *)source[i].data);
}

void model_write_adapter(const random_model *model, const char *directory)
{
    const model_spec *s = &model->spec;
    static const char *const suffixes[] = {"lora_A", "lora_B", "lora_m"};
    tsr_peft_tensor tensor[MODEL_MOST_TENSORS] = {{0}};
    char *names[LLAMA_LINEARS];
    int64_t layers[MODEL_MOST_LAYERS];
    tsr_peft_config config = {.r = (uint64_t)s->r,
                              .lora_alpha = s->alpha,
                              .use_rslora = s->rslora,
                              .use_dora = s->dora,
                              .target = {.names = names},
                              .layers_to_transform = s->first_layer ? layers : NULL};
    uint64_t count = 0;
    for (int kind = 0; kind < LLAMA_LINEARS; kind++)
        if (s->targets & (1u << kind))
            names[config.target.count++] = strchr(llama_linear[kind], '.') + 1;
    for (int layer = s->first_layer; s->first_layer && layer < s->layers; layer++)
        layers[config.layer_count++] = layer;
    for (int i = 0; i < model->count; i++) {
        const model_tensor *t = &model->tensor[i];
        char *name = NULL, path[96];
        tsr_peft_part part = TSR_PEFT_A;
        if (!is_adapter(t))
            continue;
        snprintf(path, sizeof path, "%s", t->name);
        char *suffix = strstr(path, ".lora_");
        while (strcmp(suffixes[part], suffix + 1))
            part++;
        *suffix = 0;
        assert_int_equal(tsr_peft_tensor_name(&name, path, part), TSR_OK);
        tensor[count++] = (tsr_peft_tensor){.name = name,
                                            .ndim = t->rows ? 2 : 1,
                                            .shape = {t->rows ? t->rows : t->columns, t->columns},
                                            .data = stored(t, TSR_F32)};
    }
    assert_int_equal(mkdir(directory, 0700), 0);
    tsr_folder *folder = open_folder(directory);
    if (tsr_peft_write(folder, &config, tensor, count) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_folder_close(folder);
    for (uint64_t i = 0; i < count; i++) {
        free((void *)tensor[i].name);
        free((void *)tensor[i].data);
    }
}
