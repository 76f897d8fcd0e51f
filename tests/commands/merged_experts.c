#include "commands/merged_experts.h"

#include "base/dtype.h"
#include "io/peft.h"
#include "model/arch/config.h"
#include "quant/nf4_stored.h"
#include "support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What is read of: gate 0, up 1 or down 2 of an expert, [rows, in]. */
typedef struct {
    uint64_t layer, expert, experts, rows, in;
    int part;
    bool turned;
} matrix;

static const char *const prefixes[] = {"model.layers", "model.language_model.layers"};
static const char *const modules[] = {"mlp.experts", "block_sparse_moe.experts", "experts"};
static const char *const parts[][3] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};

static float *floats(uint64_t count)
{
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    return out;
}

static void read_one(float *out, const tsr_checkpoint *checkpoint, const char *name,
                     const matrix *m)
{
    tsr_weight weight;
    tsr_nf4_stored *stored;
    assert_int_equal(tsr_checkpoint_weight(&weight, checkpoint, name), TSR_OK);
    assert_true(weight.shape[0] == m->rows && weight.shape[1] == m->in);
    if (!weight.prequantized) {
        assert_int_equal(tsr_safetensors_read_f32(out, weight.weight, 0, m->rows * m->in), TSR_OK);
        return;
    }
    assert_int_equal(tsr_nf4_stored_open(&stored, &weight), TSR_OK);
    assert_int_equal(tsr_nf4_stored_read(out, stored, 0, m->rows * m->in), TSR_OK);
    tsr_nf4_stored_close(stored);
}

/* The row that row i of a part is in a tensor of all parts. */
static uint64_t file_row(const matrix *m, uint64_t i)
{
    if (m->part == 2)
        return i;
    return m->turned ? 2 * i + (uint64_t)m->part : (uint64_t)m->part * m->rows + i;
}

static void read_fused(float *out, const tsr_tensor *tensor, const matrix *m)
{
    uint64_t all = m->part == 2 ? m->rows : 2 * m->rows, elements = all * m->in;
    float *expert = floats(elements);
    assert_int_equal(tensor->ndim, 3);
    assert_int_equal(tensor->shape[m->turned ? 2 : 1], all);
    assert_int_equal(tsr_safetensors_read_f32(expert, tensor, m->expert * elements, elements),
                     TSR_OK);
    for (uint64_t i = 0; i < m->rows; i++)
        for (uint64_t j = 0; j < m->in; j++)
            out[i * m->in + j] =
                m->turned ? expert[j * all + file_row(m, i)] : expert[file_row(m, i) * m->in + j];
    free(expert);
}

/* Whichever way the checkpoint has it; false: it does not. */
static bool read_matrix(float *out, const tsr_checkpoint *checkpoint, const matrix *m)
{
    char name[200];
    for (size_t i = 0; i < 2 * 3 * 2; i++) {
        const char *prefix = prefixes[i % 2], *module = modules[i / 2 % 3];
        snprintf(name, sizeof name, "%s.%d.%s.%d.%s.weight", prefix, (int)m->layer, module,
                 (int)m->expert, parts[i / 6][m->part]);
        if (tsr_checkpoint_find(checkpoint, name)) {
            read_one(out, checkpoint, name, m);
            return true;
        }
        snprintf(name, sizeof name, "%s.%d.%s.%s", prefix, (int)m->layer, module,
                 m->part == 2 ? "down_proj" : "gate_up_proj");
        if (tsr_checkpoint_find(checkpoint, name)) {
            read_fused(out, tsr_checkpoint_find(checkpoint, name), m);
            return true;
        }
    }
    return false;
}

/* Of the file alone, which has names as the model's class; false: it has other layers. */
static bool read_dequantized(float *out, const char *path, const matrix *m)
{
    char name[200];
    tsr_safetensors *file = golden_open(path);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", (int)m->layer,
             m->part == 2 ? "down_proj" : "gate_up_proj");
    const tsr_tensor *tensor = tsr_safetensors_find(file, name);
    if (tensor)
        read_fused(out, tensor, m);
    tsr_safetensors_close(file);
    return tensor;
}

/* PEFT wraps the module twice: the first parameter is the inner one. */
static const tsr_peft_module *find_module(const tsr_peft *peft, const matrix *m)
{
    char path[200];
    const tsr_peft_module *found = NULL;
    for (int i = 0; i < 6 && !found; i++) {
        snprintf(path, sizeof path, "%s.%d.%s%s", prefixes[i % 2], (int)m->layer, modules[i / 2],
                 m->part == 2 ? "" : ".base_layer");
        found = tsr_peft_module_find(peft, path);
    }
    if (!found)
        fail_msg("the adapter has none for the experts of layer %d", (int)m->layer);
    return found;
}

static uint64_t count_others(const float *w, const float *merged, const tsr_peft *peft,
                             const matrix *m)
{
    const tsr_peft_config *config = tsr_peft_config_of(peft);
    const tsr_peft_module *module = find_module(peft, m);
    uint64_t r = module->a->shape[0] / m->experts, others = 0;
    float *a = floats(module->a->element_count), *b = floats(module->b->element_count);
    double scale = config->lora_alpha / (double)config->r;
    assert_int_equal(tsr_safetensors_read_f32(a, module->a, 0, module->a->element_count), TSR_OK);
    assert_int_equal(tsr_safetensors_read_f32(b, module->b, 0, module->b->element_count), TSR_OK);
    assert_true(r == config->r && module->b->shape[1] == r * m->experts);
    for (uint64_t i = 0; i < m->rows * m->in; i++) {
        const float *row = b + file_row(m, i / m->in) * r * m->experts;
        double sum = (double)w[i];
        for (uint64_t k = 0; k < r; k++)
            sum += scale * (double)row[k * m->experts + m->expert] *
                   (double)a[(m->expert * r + k) * m->in + i % m->in];
        others += tsr_bf16_to_f32(tsr_f32_to_bf16((float)sum)) != merged[i];
        if (!(fabs(sum - (double)merged[i]) <= 0x1p-7 * fabs(sum) + 1e-6))
            fail_msg("layer %d, expert %d, part %d: element %d is %g, expected %g", (int)m->layer,
                     (int)m->expert, m->part, (int)i, (double)merged[i], sum);
    }
    free(a);
    free(b);
    return others;
}

double merged_experts_others(const merged_experts *of)
{
    tsr_model_config c;
    tsr_checkpoint *base, *merged;
    tsr_peft *peft;
    uint64_t others = 0, elements = 0;
    assert_int_equal(tsr_model_config_load(&c, of->base), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&base, of->base), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&merged, of->merged), TSR_OK);
    assert_int_equal(tsr_peft_open(&peft, of->adapter), TSR_OK);
    for (uint64_t i = 0; i < c.layer_count * c.experts.count * 3; i++) {
        matrix m = {i / 3 / c.experts.count,
                    i / 3 % c.experts.count,
                    c.experts.count,
                    i % 3 == 2 ? c.hidden_size : c.experts.width,
                    i % 3 == 2 ? c.experts.width : c.hidden_size,
                    (int)(i % 3),
                    of->turned};
        if (!tsr_layer_is_in(&c.experts.sparse, m.layer))
            continue;
        float *w = floats(m.rows * m.in), *got = floats(m.rows * m.in);
        bool known =
            of->dequantized ? read_dequantized(w, of->dequantized, &m) : read_matrix(w, base, &m);
        assert_true(known || of->dequantized);
        assert_true(read_matrix(got, merged, &m));
        others += known ? count_others(w, got, peft, &m) : 0;
        elements += known ? m.rows * m.in : 0;
        free(w);
        free(got);
    }
    tsr_peft_close(peft);
    tsr_checkpoint_close(base);
    tsr_checkpoint_close(merged);
    assert_true(elements > 0);
    return (double)others / (double)elements;
}
