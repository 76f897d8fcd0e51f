#include "commands/merger.h"

#include "adapters/merge.h"
#include "quant/nf4_stored.h"

#include <stdlib.h>

#define CHUNK_ELEMENTS ((uint64_t)4 << 20)

struct tsr_merger {
    const tsr_inputs *inputs;
    tsr_pool *pool;
    uint64_t chunk_elements;
    float *w, *a, *b, *m;
    /* The linear that a and stored belong to. */
    const tsr_layout_linear *linear;
    const tsr_peft_module *module; /* NULL: it has no adapter */
    tsr_nf4_stored *stored;        /* NULL: its weight is plain */
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* At least one. */
static uint64_t chunk_rows(uint64_t chunk_elements, const tsr_layout_linear *linear)
{
    uint64_t rows = larger(chunk_elements / linear->in, 1);
    return rows < linear->out ? rows : linear->out;
}

tsr_status tsr_merger_create(tsr_merger **out, const tsr_inputs *inputs, tsr_pool *pool,
                             uint64_t chunk_elements)
{
    const tsr_layout *layout = &inputs->layout;
    uint64_t w = 1, a = 1, b = 1, m = 1;
    uint64_t elements = chunk_elements ? chunk_elements : CHUNK_ELEMENTS;
    for (int i = 0; i < layout->layer_count; i++)
        for (int j = 0; j < tsr_layout_linears(&layout->unit[i]); j++) {
            const tsr_layout_linear *l = &layout->unit[i].linear[j];
            uint64_t rows = chunk_rows(elements, l);
            w = larger(w, rows * l->in);
            a = larger(a, l->r * l->in);
            b = larger(b, rows * l->r);
            m = larger(m, rows);
        }
    tsr_merger *merger = calloc(1, sizeof *merger);
    if (merger) {
        merger->inputs = inputs;
        merger->pool = pool;
        merger->chunk_elements = elements;
        merger->w = malloc(w * sizeof(float));
        merger->a = malloc(a * sizeof(float));
        merger->b = malloc(b * sizeof(float));
        merger->m = malloc(m * sizeof(float));
    }
    if (!merger || !merger->w || !merger->a || !merger->b || !merger->m) {
        tsr_merger_destroy(merger);
        return tsr_fail(TSR_ENOMEM, "out of memory for merging");
    }
    *out = merger;
    return TSR_OK;
}

void tsr_merger_destroy(tsr_merger *merger)
{
    if (!merger)
        return;
    tsr_nf4_stored_close(merger->stored);
    free(merger->w);
    free(merger->a);
    free(merger->b);
    free(merger->m);
    free(merger);
}

static tsr_status begin(tsr_merger *merger, const tsr_layout_linear *linear)
{
    tsr_nf4_stored_close(merger->stored);
    merger->stored = NULL;
    merger->module = NULL;
    merger->linear = NULL;
    if (linear->source.prequantized)
        TSR_TRY(tsr_nf4_stored_open(&merger->stored, &linear->source));
    if (linear->r) {
        merger->module = tsr_peft_module_find(merger->inputs->adapter.init, linear->path);
        TSR_TRY(tsr_safetensors_read_f32(merger->a, merger->module->a, 0,
                                         merger->module->r * linear->in));
    }
    merger->linear = linear;
    return TSR_OK;
}

static tsr_status add_adapter(tsr_merger *merger, uint64_t first, uint64_t rows)
{
    const tsr_layout_linear *linear = merger->linear;
    const tsr_peft_module *module = merger->module;
    TSR_TRY(tsr_safetensors_read_f32(merger->b, module->b, first * module->r, rows * module->r));
    if (linear->dora)
        TSR_TRY(tsr_safetensors_read_f32(merger->m, module->magnitude, first, rows));
    const tsr_adapter_merge_args args = {.rows = rows,
                                         .in = linear->in,
                                         .r = module->r,
                                         .a = merger->a,
                                         .b = merger->b,
                                         .m = linear->dora ? merger->m : NULL,
                                         .scale = linear->scale};
    return tsr_adapter_merge(merger->w, &args, merger->pool);
}

tsr_status tsr_merger_rows(const float **rows, uint64_t *count, tsr_merger *merger,
                           const tsr_layout_linear *linear, uint64_t first)
{
    uint64_t most = chunk_rows(merger->chunk_elements, linear), left = linear->out - first;
    uint64_t some = left < most ? left : most, element = first * linear->in;
    if (merger->linear != linear)
        TSR_TRY(begin(merger, linear));
    if (merger->stored)
        TSR_TRY(tsr_nf4_stored_read(merger->w, merger->stored, element, some * linear->in));
    else
        TSR_TRY(
            tsr_safetensors_read_f32(merger->w, linear->source.weight, element, some * linear->in));
    if (merger->module)
        TSR_TRY(add_adapter(merger, first, some));
    *rows = merger->w;
    *count = some;
    return TSR_OK;
}
