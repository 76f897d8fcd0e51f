#include "model/layout_parts.h"

#include "adapters/init.h"
#include "base/checked.h"
#include "base/log.h"
#include "kernels/adamw_8bit.h"
#include "model/arch/arch.h"
#include "model/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPARED_ELEMENTS (1ull << 16) /* of two tensors at a time */

static bool holds(const tsr_checkpoint *checkpoint, const char *part)
{
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++)
        if (strstr(tsr_checkpoint_at(checkpoint, i)->name, part))
            return true;
    return false;
}

/* Of a module of a layer or, of_model, of the model. */
void tsr_layout_put_name(char out[TSR_LAYOUT_NAME_BYTES], const char *prefix, int layer,
                         bool of_model, const char *module, const char *what)
{
    if (of_model)
        snprintf(out, TSR_LAYOUT_NAME_BYTES, "%s%s%s", prefix, module, what);
    else
        snprintf(out, TSR_LAYOUT_NAME_BYTES, "%slayers.%d.%s%s", prefix, layer, module, what);
}

static bool has_layers(const tsr_checkpoint *checkpoint, const char *prefix)
{
    static const char *const begins[] = {"layers.", "embed_tokens."};
    size_t length = strlen(prefix);
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const char *name = tsr_checkpoint_at(checkpoint, i)->name;
        for (int j = 0; j < 2 && !strncmp(name, prefix, length); j++)
            if (!strncmp(name + length, begins[j], strlen(begins[j])))
                return true;
    }
    return false;
}

/* How the checkpoint spells the names of a model with other towers; of a plain one there is one way. */
static tsr_status find_names(tsr_layout_builder *b)
{
    static const char inner_head[] = "language_model.lm_head.weight";
    const tsr_composite *composite = b->layout->config.composite;
    b->prefix = tsr_composite_prefix(composite);
    b->head = "lm_head.weight";
    if (!composite)
        return TSR_OK;
    if (tsr_checkpoint_find(b->checkpoint, inner_head))
        b->head = inner_head;
    for (int i = 0; (b->prefix = tsr_composite_spelling(composite, i)); i++)
        if (has_layers(b->checkpoint, b->prefix))
            return TSR_OK;
    const tsr_tensor *first = tsr_checkpoint_at(b->checkpoint, 0);
    return tsr_fail(
        TSR_EDATA,
        "%s: no text decoder is in it: config.json says %s, but no tensor's name begins "
        "with %slayers., %slayers. or %slayers. (the first is %s)",
        tsr_checkpoint_directory(b->checkpoint), composite->model_type,
        tsr_composite_spelling(composite, 0), tsr_composite_spelling(composite, 1),
        tsr_composite_spelling(composite, 2), first ? first->name : "none");
}

int tsr_layout_add_frozen(tsr_layout_unit *unit, tsr_layout_segment segment)
{
    bool nf4 = segment.kind == TSR_SEGMENT_CODES || segment.kind == TSR_SEGMENT_ABSMAX;
    segment.granule_count = tsr_ceil_div(segment.element_count, nf4 ? TSR_NF4_GRANULE : 64);
    if (!nf4)
        segment.granule_bytes = 64 * tsr_dtype_bytes(segment.dtype);
    unit->frozen[unit->frozen_count] = segment;
    return unit->frozen_count++;
}

/* [rows, columns] in memory; `segment` has what it is and the shape that files have. */
int tsr_layout_add_trainable(tsr_layout *layout, tsr_layout_unit *unit, uint64_t rows,
                             uint64_t columns, tsr_layout_segment segment)
{
    segment.kind = TSR_SEGMENT_PLAIN;
    uint64_t matrices = segment.stack ? segment.stack : 1;
    segment.columns = columns;
    segment.element_count = matrices * rows * columns;
    segment.granule_count = tsr_ceil_div(segment.element_count, TSR_GRANULE_ELEMENTS);
    segment.granule_bytes = TSR_GRANULE_ELEMENTS * tsr_dtype_bytes(segment.dtype);
    unit->trainable[unit->trainable_count] = segment;
    layout->trainable_count += matrices * segment.stored_rows * segment.stored_columns;
    return unit->trainable_count++;
}

/* Finds a plain tensor and checks its shape; its dtype in memory is BF16, else F32. */
tsr_status tsr_layout_plain_tensor(const tsr_tensor **out, tsr_dtype *dtype,
                                   const tsr_layout_builder *b, const char *name, int ndim,
                                   const uint64_t *shape)
{
    char found[TSR_SHAPE_TEXT_BYTES], wanted[TSR_SHAPE_TEXT_BYTES];
    const char *directory = tsr_checkpoint_directory(b->checkpoint);
    const tsr_tensor *tensor = tsr_checkpoint_find(b->checkpoint, name);
    if (!tensor)
        return tsr_fail(TSR_EDATA,
                        "%s: the tensor %s is missing, but config.json describes a model that has "
                        "it; is the checkpoint complete?",
                        directory, name);
    if (tensor->ndim != ndim || memcmp(tensor->shape, shape, (size_t)ndim * sizeof *shape))
        return tsr_fail(TSR_EDATA, "%s: %s has the shape %s, but config.json needs %s", directory,
                        name, tsr_shape_text(found, tensor->shape, tensor->ndim),
                        tsr_shape_text(wanted, shape, ndim));
    if (tensor->dtype != TSR_BF16 && tensor->dtype != TSR_F16 && tensor->dtype != TSR_F32)
        return tsr_fail(TSR_EDATA, "%s: %s has the dtype %s; BF16, F16 and F32 are read", directory,
                        name, tsr_dtype_name(tensor->dtype));
    *out = tensor;
    *dtype = tensor->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32; /* F16 is widened: exact */
    return TSR_OK;
}

/* What is kept of a vector: (w + plus) / divisor, in fp32 where that is not w; one: of its only element. */
typedef struct {
    float plus, divisor;
    bool one;
    uint64_t taps; /* as of a tsr_vector */
} vector_use;

static tsr_status add_vector(int *index, const tsr_layout_builder *b, tsr_layout_unit *unit,
                             int linear, const char *name, const tsr_vector *vector, vector_use use)
{
    const tsr_tensor *tensor = NULL;
    tsr_dtype dtype = TSR_F32;
    uint64_t rows = vector->rows ? vector->rows : 1, count = rows * vector->count;
    uint64_t stored = use.one ? 1 : count;
    const uint64_t matrix[2] = {vector->rows, vector->count};
    const uint64_t shape[3] = {use.taps ? count / use.taps : stored, 1, use.taps};
    TSR_TRY(tsr_layout_plain_tensor(&tensor, &dtype, b, name,
                                    vector->rows ? 2
                                    : use.taps   ? 3
                                                 : 1,
                                    vector->rows ? matrix : shape));
    bool divides = use.divisor != 0 && use.divisor != 1;
    bool changed = use.plus != 0 || divides || use.one || (vector->wide && dtype != TSR_F32);
    *index = tsr_layout_add_frozen(unit, (tsr_layout_segment){.name = tensor->name,
                                                              .source = tensor,
                                                              .linear = linear,
                                                              .dtype = changed ? TSR_F32 : dtype,
                                                              .element_count = count,
                                                              .plus = use.plus,
                                                              .divisor = !changed  ? 0
                                                                         : divides ? use.divisor
                                                                                   : 1,
                                                              .one = use.one});
    b->layout->parameter_count += stored;
    return TSR_OK;
}

static tsr_status make_linear(const tsr_layout_builder *b, tsr_layout_unit *unit, int layer,
                              int index)
{
    const tsr_matrix *matrix = &unit->block->matrix[index];
    tsr_layout_linear *linear = &unit->linear[index];
    char name[TSR_LAYOUT_NAME_BYTES];
    linear->out = matrix->out;
    linear->in = matrix->in;
    linear->bias = linear->a = linear->b = linear->m = TSR_NO_SEGMENT;
    const char *prefix = tsr_composite_prefix(b->layout->config.composite);
    linear->path = tsr_module_path(prefix, layer, matrix->of_model, matrix->name);
    if (!linear->path)
        return tsr_fail(TSR_ENOMEM, "out of memory for module names");
    /* The same random numbers for a decoder alone and beside towers. */
    tsr_layout_put_name(name, tsr_composite_prefix(NULL), layer, matrix->of_model, matrix->name,
                        "");
    linear->module_key = tsr_adapter_module_key(name);
    tsr_layout_put_name(name, b->prefix, layer, matrix->of_model, matrix->name, ".weight");
    TSR_TRY(tsr_layout_weight(b, unit, index, name));
    if (!matrix->bias)
        return TSR_OK;
    tsr_layout_put_name(name, b->prefix, layer, matrix->of_model, matrix->name, ".bias");
    return add_vector(&linear->bias, b, unit, index, name, &(tsr_vector){.count = linear->out},
                      (vector_use){0});
}

static tsr_status make_layer(const tsr_layout_builder *b, int layer)
{
    tsr_layout_unit *unit = &b->layout->unit[layer];
    char name[TSR_LAYOUT_NAME_BYTES];
    for (int i = 0; i < unit->block->matrix_count; i++)
        TSR_TRY(make_linear(b, unit, layer, i));
    for (int i = 0; i < unit->block->stack_count; i++)
        TSR_TRY(tsr_layout_make_stack(b, unit, layer, i));
    for (int i = 0; i < unit->block->vector_count; i++) {
        const tsr_vector *vector = &unit->block->vector[i];
        tsr_layout_put_name(name, b->prefix, layer, vector->of_model, vector->name,
                            vector->one || vector->bare ? "" : ".weight");
        TSR_TRY(add_vector(&unit->vector[i], b, unit, -1, name, vector,
                           (vector_use){.plus = vector->plus_one,
                                        .divisor = vector->divisor,
                                        .one = vector->one,
                                        .taps = vector->taps}));
    }
    if (layer < b->layout->layer_count - 1)
        return TSR_OK;
    /* The logits' divisor is the final norm's: nothing but the head reads what it makes. */
    const tsr_model_config *config = &b->layout->config;
    tsr_layout_put_name(name, b->prefix, 0, true, "norm", ".weight");
    return add_vector(
        &unit->final_norm, b, unit, -1, name, &(tsr_vector){.count = config->hidden_size},
        (vector_use){.plus = config->norm_plus_one,
                     .divisor = b->layout->scores ? 0 : (float)config->logits_divisor});
}

/* Whether two tensors of one shape have the same values, up to the first chunk that differs. */
static tsr_status same_values(bool *out, const tsr_tensor *a, const tsr_tensor *b)
{
    float *values = malloc(2 * COMPARED_ELEMENTS * sizeof *values);
    tsr_status status = TSR_OK;
    if (!values)
        return tsr_fail(TSR_ENOMEM, "out of memory for comparing %s and %s", a->name, b->name);
    *out = true;
    for (uint64_t done = 0; status == TSR_OK && *out && done < a->element_count;) {
        uint64_t left = a->element_count - done;
        uint64_t count = left < COMPARED_ELEMENTS ? left : COMPARED_ELEMENTS;
        status = tsr_safetensors_read_f32(values, a, done, count);
        if (status == TSR_OK)
            status = tsr_safetensors_read_f32(values + count, b, done, count);
        *out = status == TSR_OK && !memcmp(values, values + count, count * sizeof *values);
        done += count;
    }
    free(values);
    return status;
}

/* The head of a model that says that it is tied: a head that is stored and is not the embedding is
 * what Transformers uses. */
static tsr_status tied_head(const tsr_layout_builder *b, tsr_dtype *dtype, const uint64_t *shape)
{
    tsr_layout *layout = b->layout;
    tsr_dtype stored_dtype = TSR_F32;
    const tsr_tensor *stored;
    bool same = false;
    layout->head = layout->embedding;
    if (!tsr_checkpoint_find(b->checkpoint, b->head))
        return TSR_OK;
    TSR_TRY(tsr_layout_plain_tensor(&stored, &stored_dtype, b, b->head, 2, shape));
    TSR_TRY(same_values(&same, layout->embedding, stored));
    if (same)
        return TSR_OK;
    tsr_log(TSR_LOG_WARNING,
            "%s: config.json says tie_word_embeddings, but %s is not %s: the head is %s, as in "
            "Transformers; write \"tie_word_embeddings\": false, or take %s out",
            tsr_checkpoint_directory(b->checkpoint), b->head, layout->embedding->name, b->head,
            b->head);
    layout->head = stored;
    *dtype = stored_dtype;
    return TSR_OK;
}

/* The table of what every layer takes of a token. */
static tsr_status find_layer_rows(const tsr_layout_builder *b)
{
    const tsr_model_config *config = &b->layout->config;
    uint64_t shape[2] = {config->vocab_size, config->layer_count * config->layer_input_width};
    tsr_dtype dtype;
    char name[TSR_LAYOUT_NAME_BYTES];
    if (!config->layer_input_width)
        return TSR_OK;
    tsr_layout_put_name(name, b->prefix, 0, true, config->arch->layer_table, ".weight");
    b->layout->parameter_count += shape[0] * shape[1];
    return tsr_layout_plain_tensor(&b->layout->layer_rows, &dtype, b, name, 2, shape);
}

/* Rows of a table [vocabulary, d], as it is or, as part of a module that is trained whole, in the working copies' dtype. */
static void make_chunk(const tsr_layout_builder *b, int index, int chunk, const tsr_tensor *table,
                       tsr_dtype dtype, const char *module)
{
    tsr_layout *layout = b->layout;
    tsr_layout_unit *unit = &layout->unit[index];
    uint64_t d = layout->config.hidden_size;
    unit->first_row = (uint64_t)chunk * TSR_HEAD_CHUNK_ROWS;
    uint64_t left = layout->config.vocab_size - unit->first_row;
    unit->row_count = left < TSR_HEAD_CHUNK_ROWS ? left : TSR_HEAD_CHUNK_ROWS;
    tsr_layout_segment segment = {.name = module ? module : table->name,
                                  .source = table,
                                  .linear = -1,
                                  .dtype = module ? b->options.compute : dtype,
                                  .first_element = unit->first_row * d,
                                  .element_count = unit->row_count * d,
                                  .stored_rows = unit->row_count,
                                  .stored_columns = d,
                                  .module = module};
    if (module)
        tsr_layout_add_trainable(layout, unit, unit->row_count, d, segment);
    else
        tsr_layout_add_frozen(unit, segment);
}

static void add_rows(const tsr_layout_builder *b, tsr_layout_rows *rows, const tsr_tensor *table,
                     const char *module)
{
    tsr_layout_unit *unit = &b->layout->unit[tsr_layout_head_end(b->layout)];
    uint64_t count = (uint64_t)rows->count, d = b->layout->config.hidden_size;
    if (!count)
        return;
    rows->segment = tsr_layout_add_trainable(b->layout, unit, count, d,
                                             (tsr_layout_segment){.name = module,
                                                                  .source = table,
                                                                  .linear = -1,
                                                                  .dtype = b->options.compute,
                                                                  .stored_rows = count,
                                                                  .stored_columns = d,
                                                                  .module = module});
}

static bool same_rows(const tsr_layout_rows *a, const tsr_layout_rows *b)
{
    return a->count == b->count &&
           (!a->count || !memcmp(a->id, b->id, (size_t)a->count * sizeof *a->id));
}

/* Rows of tokens. One table with rows of the embedding, and the same of the head or none, is one module for PEFT. */
static void make_rows(const tsr_layout_builder *b)
{
    tsr_layout *layout = b->layout;
    layout->embedding_rows = b->options.embedding_rows;
    layout->head_rows = b->options.head_rows;
    layout->rows_tied =
        layout->head == layout->embedding && layout->embedding_rows.count &&
        (!layout->head_rows.count || same_rows(&layout->embedding_rows, &layout->head_rows));
    add_rows(b, &layout->embedding_rows, layout->embedding, layout->embedding_path);
    if (layout->rows_tied)
        layout->head_rows = layout->embedding_rows;
    else
        add_rows(b, &layout->head_rows, layout->head, "lm_head");
}

/* Embedding and head; their chunks are units. */
static tsr_status make_head(const tsr_layout_builder *b)
{
    tsr_layout *layout = b->layout;
    const tsr_model_config *config = &layout->config;
    uint64_t shape[2] = {config->vocab_size, config->hidden_size};
    tsr_dtype dtype = TSR_F32;
    char name[TSR_LAYOUT_NAME_BYTES];
    tsr_layout_put_name(name, b->prefix, 0, true, "embed_tokens", ".weight");
    TSR_TRY(tsr_layout_plain_tensor(&layout->embedding, &dtype, b, name, 2, shape));
    layout->parameter_count += shape[0] * shape[1];
    TSR_TRY(find_layer_rows(b));
    if (layout->scores)
        tsr_layout_add_score(b);
    else if (config->tie_word_embeddings)
        TSR_TRY(tied_head(b, &dtype, shape));
    else
        TSR_TRY(tsr_layout_plain_tensor(&layout->head, &dtype, b, b->head, 2, shape));
    if (layout->head && layout->head != layout->embedding)
        layout->parameter_count += shape[0] * shape[1];
    for (int chunk = 0; layout->head && chunk < layout->chunk_count; chunk++)
        make_chunk(b, layout->layer_count + chunk, chunk, layout->head, dtype,
                   b->options.train_head ? "lm_head" : NULL);
    for (int chunk = 0; layout->embedding_whole && chunk < layout->embedding_count; chunk++)
        make_chunk(b, tsr_layout_head_end(layout) + chunk, chunk, layout->embedding, dtype,
                   layout->embedding_path);
    make_rows(b);
    return TSR_OK;
}

/* The linear that a module of tsr_layout_modules is: they are in the order of layers and of their blocks. */
static tsr_layout_linear *find_linear(int *layer, int *index, const tsr_layout *layout,
                                      uint64_t module)
{
    for (*layer = 0; module >= (uint64_t)tsr_layout_linears(&layout->unit[*layer]); ++*layer)
        module -= (uint64_t)tsr_layout_linears(&layout->unit[*layer]);
    *index = (int)module;
    return &layout->unit[*layer].linear[module];
}

static void add_head_lora(const tsr_layout_builder *b, const tsr_adapter *adapter)
{
    tsr_layout *layout = b->layout;
    tsr_layout_table_lora *lora = &layout->head_lora;
    tsr_layout_segment segment = {
        .name = "lm_head", .linear = -1, .dtype = b->options.compute, .module = "lm_head"};
    lora->key = tsr_adapter_module_key("lm_head");
    lora->r = tsr_ceil_div(adapter->r, TSR_RANK_STEP) * TSR_RANK_STEP;
    lora->scale = adapter->scale;
    segment.stored_rows = adapter->r;
    segment.stored_columns = layout->config.hidden_size;
    tsr_layout_add_trainable(layout, &layout->unit[layout->layer_count], lora->r,
                             segment.stored_columns, segment);
    segment.stored_columns = adapter->r;
    for (int i = layout->layer_count; i < tsr_layout_head_end(layout); i++) {
        segment.stored_rows = layout->unit[i].row_count;
        tsr_layout_add_trainable(layout, &layout->unit[i], segment.stored_rows, lora->r, segment);
    }
    layout->head_trained = true;
    if (lora->r > layout->largest_r)
        layout->largest_r = lora->r;
}

static void add_embedding_lora(const tsr_layout_builder *b, const tsr_adapter *adapter)
{
    tsr_layout *layout = b->layout;
    tsr_layout_table_lora *lora = &layout->embedding_lora;
    tsr_layout_unit *unit = &layout->unit[tsr_layout_head_end(layout)];
    tsr_layout_segment segment = {.name = layout->embedding_path,
                                  .linear = -1,
                                  .dtype = b->options.compute,
                                  .module = layout->embedding_path};
    char name[TSR_LAYOUT_NAME_BYTES];
    tsr_layout_put_name(name, tsr_composite_prefix(NULL), 0, true, "embed_tokens", "");
    lora->key = tsr_adapter_module_key(name);
    lora->r = tsr_ceil_div(adapter->r, TSR_RANK_STEP) * TSR_RANK_STEP;
    lora->scale = adapter->scale;
    segment.stored_rows = adapter->r;
    segment.stored_columns = layout->config.vocab_size;
    lora->a = tsr_layout_add_trainable(layout, unit, lora->r, segment.stored_columns, segment);
    segment.stored_rows = layout->config.hidden_size;
    segment.stored_columns = adapter->r;
    lora->b = tsr_layout_add_trainable(layout, unit, segment.stored_rows, lora->r, segment);
    if (lora->r > layout->largest_r)
        layout->largest_r = lora->r;
}

/* A and B of a linear; `number`: of several adapters which. */
static void add_linear(const tsr_layout_builder *b, const tsr_adapter *adapter, int number)
{
    tsr_layout *layout = b->layout;
    int layer, index;
    tsr_layout_linear *linear = find_linear(&layer, &index, layout, adapter->module);
    tsr_layout_unit *unit = &layout->unit[layer];
    uint64_t r = tsr_ceil_div(adapter->r, TSR_RANK_STEP) * TSR_RANK_STEP;
    tsr_layout_segment segment = {
        .name = linear->path, .linear = index, .dtype = b->options.compute, .adapter = number};
    segment.stored_rows = adapter->r;
    segment.stored_columns = linear->in;
    int a_at = tsr_layout_add_trainable(layout, unit, r, linear->in, segment);
    segment.stored_rows = linear->out;
    segment.stored_columns = adapter->r;
    int b_at = tsr_layout_add_trainable(layout, unit, linear->out, r, segment);
    if (linear->mixed)
        linear->mixed[number] = (tsr_layout_mixed){r, adapter->scale, a_at, b_at};
    if (layer < layout->first_trained)
        layout->first_trained = layer;
    if (r > layout->largest_r)
        layout->largest_r = r;
    if (r <= linear->r)
        return;
    linear->r = r;
    linear->alpha = adapter->alpha;
    linear->scale = adapter->scale;
    linear->dora = adapter->dora;
    linear->a = a_at;
    linear->b = b_at;
    unit->dora |= linear->dora;
}

static void add_adapter(const tsr_layout_builder *b, const tsr_adapter *adapter)
{
    if (adapter->table == TSR_TABLE_EMBEDDING)
        add_embedding_lora(b, adapter);
    if (adapter->table == TSR_TABLE_HEAD)
        add_head_lora(b, adapter);
    if (adapter->experts)
        tsr_layout_adapt_stack(b, adapter);
    if (!adapter->table && !adapter->experts)
        add_linear(b, adapter, 0);
}

/* After all A and B of the unit, so that what has one dtype lies together. */
static void add_magnitude(tsr_layout *layout, const tsr_adapter *adapter)
{
    int layer, index;
    if (adapter->table || adapter->experts)
        return;
    tsr_layout_linear *linear = find_linear(&layer, &index, layout, adapter->module);
    if (!linear->dora)
        return;
    linear->m = tsr_layout_add_trainable(layout, &layout->unit[layer], linear->out, 1,
                                         (tsr_layout_segment){.name = linear->path,
                                                              .linear = index,
                                                              .dtype = TSR_F32,
                                                              .stored_rows = linear->out,
                                                              .stored_columns = 1});
}

static void add_adapters(const tsr_layout_builder *b, const tsr_adapter_set *set)
{
    for (uint64_t i = 0; set && i < set->count; i++)
        add_adapter(b, &set->adapter[i]);
    for (uint64_t i = 0; set && i < set->count; i++)
        add_magnitude(b->layout, &set->adapter[i]);
    for (int k = 0; k < b->options.mixed_count; k++)
        for (uint64_t i = 0; i < b->options.mixed[k]->count; i++)
            add_linear(b, &b->options.mixed[k]->adapter[i], k);
}

/* Layers that are alike share a block. */
static tsr_status share_block(const tsr_block **out, tsr_layout *layout, const tsr_block *block)
{
    for (int i = layout->block_count - 1; i >= 0; i--)
        if (tsr_block_same(layout->block[i], block)) {
            *out = layout->block[i];
            return TSR_OK;
        }
    tsr_block **grown =
        realloc(layout->block, ((size_t)layout->block_count + 1) * sizeof *layout->block);
    if (grown)
        layout->block = grown;
    tsr_block *copy = grown ? malloc(sizeof *copy) : NULL;
    if (!copy)
        return tsr_fail(TSR_ENOMEM, "out of memory for the layers");
    memcpy(copy, block, sizeof *copy);
    layout->block[layout->block_count++] = copy;
    *out = copy;
    return TSR_OK;
}

/* Codes, absmax and bias of each linear and stack, or its weight, the vectors, the final norm; A, B and m. */
static tsr_status allocate_unit(tsr_layout_unit *unit, int mixed_count)
{
    size_t linears = (size_t)tsr_layout_linears(unit);
    size_t vectors = unit->block ? (size_t)unit->block->vector_count : 0;
    size_t stacks = (size_t)tsr_layout_stacks(unit);
    unit->linear = calloc(linears + 1, sizeof *unit->linear);
    unit->vector = calloc(vectors + 1, sizeof *unit->vector);
    unit->stack = calloc(stacks + 1, sizeof *unit->stack);
    unit->frozen = calloc(3 * (linears + stacks) + vectors + 1, sizeof *unit->frozen);
    size_t most = 3 * (linears + stacks) + 2 * linears * (size_t)mixed_count + 4;
    unit->trainable = calloc(most, sizeof *unit->trainable);
    unit->final_norm = TSR_NO_SEGMENT;
    bool made = unit->linear && unit->stack && unit->vector && unit->frozen && unit->trainable;
    for (size_t i = 0; made && mixed_count && i < linears; i++) {
        unit->linear[i].mixed = calloc((size_t)mixed_count, sizeof *unit->linear[i].mixed);
        made = unit->linear[i].mixed != NULL;
    }
    return made ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory for the layout");
}

static tsr_status allocate_units(tsr_layout *layout)
{
    tsr_block block;
    layout->unit = calloc((size_t)layout->unit_count, sizeof *layout->unit);
    if (!layout->unit)
        return tsr_fail(TSR_ENOMEM, "out of memory for the layout");
    for (int i = 0; i < layout->unit_count; i++) {
        if (i < layout->layer_count) {
            TSR_TRY(tsr_arch_block(&block, &layout->config, i));
            TSR_TRY(share_block(&layout->unit[i].block, layout, &block));
        }
        TSR_TRY(allocate_unit(&layout->unit[i], layout->mixed_count));
    }
    return TSR_OK;
}

static bool adapts_embedding(const tsr_adapter_set *set)
{
    bool found = false;
    for (uint64_t i = 0; set && i < set->count; i++)
        found |= set->adapter[i].table == TSR_TABLE_EMBEDDING;
    return found;
}

/* Elements of the whole tensor as files have it, of which a chunk of a table has some rows. */
static uint64_t whole_elements(const tsr_layout *layout, const tsr_layout_unit *unit,
                               const tsr_layout_segment *s)
{
    bool chunk = !layout->scores && unit->row_count && s->stored_rows == unit->row_count;
    uint64_t rows = chunk ? layout->config.vocab_size : s->stored_rows;
    return rows * s->stored_columns * (s->stack ? s->stack : 1);
}

/* A whole trained embedding keeps fp32 moments at any size: Transformers overrides bitsandbytes there. */
static void code_moments(tsr_layout *layout)
{
    for (int u = 0; u < layout->unit_count; u++) {
        tsr_layout_unit *unit = &layout->unit[u];
        bool embedding = layout->embedding_whole && u >= tsr_layout_head_end(layout);
        for (int i = 0; i < unit->trainable_count; i++)
            unit->trainable[i].coded =
                !embedding &&
                whole_elements(layout, unit, &unit->trainable[i]) >= TSR_ADAMW_CODED_LEAST;
    }
}

tsr_status tsr_layout_make(tsr_layout *out, const tsr_model_config *config,
                           const tsr_checkpoint *checkpoint, const tsr_adapter_set *set,
                           const tsr_layout_options *options)
{
    tsr_layout layout = {.config = *config,
                         .layer_count = (int)config->layer_count,
                         .mixed_count = options->mixed_count};
    tsr_layout_builder b = {.layout = &layout,
                            .checkpoint = checkpoint,
                            .options = *options,
                            .in_4bit = holds(checkpoint, TSR_WEIGHT_STATE),
                            .in_8bit = holds(checkpoint, "." TSR_WEIGHT_INT8_SCALE)};
    tsr_status status;
    tsr_layout_choose_head(&layout, options);
    layout.embedding_whole = options->train_embedding;
    bool rows = options->embedding_rows.count + options->head_rows.count > 0;
    layout.embedding_count =
        options->train_embedding ? layout.chunk_count : rows || adapts_embedding(set);
    layout.unit_count = tsr_layout_head_end(&layout) + layout.embedding_count;
    layout.first_trained = layout.layer_count;
    if ((status = find_names(&b)) < 0 || (status = allocate_units(&layout)) < 0)
        goto out;
    for (int layer = 0; layer < layout.layer_count; layer++)
        if ((status = make_layer(&b, layer)) < 0)
            goto out;
    for (int layer = 0; layer < layout.layer_count; layer++)
        layout.idle_count += tsr_block_idle_parameters(layout.unit[layer].block);
    if (layout.embedding_count)
        layout.embedding_path =
            tsr_module_path(tsr_composite_prefix(config->composite), 0, true, "embed_tokens");
    if (layout.embedding_count && !layout.embedding_path) {
        status = tsr_fail(TSR_ENOMEM, "out of memory for module names");
        goto out;
    }
    if ((status = make_head(&b)) < 0)
        goto out;
    add_adapters(&b, set);
    if (options->coded_moments)
        code_moments(&layout);
    if (layout.embedding_count) /* every layer leads to it */
        layout.first_trained = 0;
    if ((status = tsr_layout_warn_unused(&layout, checkpoint)) < 0 ||
        (status = tsr_layout_group(&layout, &(tsr_unit_policy){0})) < 0)
        goto out;
    *out = layout;
out:
    if (status < 0)
        tsr_layout_free(&layout);
    return status;
}

void tsr_layout_free(tsr_layout *layout)
{
    for (int i = 0; layout->unit && i < layout->unit_count; i++) {
        tsr_layout_unit *unit = &layout->unit[i];
        for (int j = 0; unit->linear && j < tsr_layout_linears(unit); j++) {
            free(unit->linear[j].path);
            free(unit->linear[j].mixed);
        }
        for (int j = 0; unit->stack && j < tsr_layout_stacks(unit); j++)
            tsr_layout_free_stack(&unit->stack[j]);
        free(unit->linear);
        free(unit->stack);
        free(unit->vector);
        free(unit->frozen);
        free(unit->trainable);
    }
    for (int i = 0; i < layout->block_count; i++)
        free(layout->block[i]);
    free(layout->block);
    free(layout->embedding_path);
    free(layout->unit);
    *layout = (tsr_layout){0};
}

/* Of matrices one behind the other each on its own. */
static bool next_in_matrix(tsr_stored_run *run, const tsr_layout_segment *segment, uint64_t at,
                           uint64_t end)
{
    uint64_t columns = segment->columns, stored = segment->stored_columns;
    uint64_t row = at / columns, column = at % columns;
    if (column >= stored) {
        row++;
        column = 0;
    }
    at = row * columns + column;
    if (row >= segment->stored_rows || at >= end)
        return false;
    /* Whole rows follow each other where no column is padding. */
    uint64_t left = columns == stored ? segment->stored_rows * columns - at : stored - column;
    *run = (tsr_stored_run){at, row * stored + column, left < end - at ? left : end - at};
    return true;
}

bool tsr_stored_next(tsr_stored_run *run, const tsr_layout_segment *segment, uint64_t first,
                     uint64_t end)
{
    uint64_t matrices = segment->stack ? segment->stack : 1;
    uint64_t elements = segment->element_count / matrices;
    uint64_t stored = segment->stored_rows * segment->stored_columns;
    uint64_t at = run->count ? run->memory + run->count : first;
    for (uint64_t i = elements ? at / elements : matrices; i < matrices; i++) {
        uint64_t begin = i * elements, from = at > begin ? at - begin : 0;
        if (begin >= end)
            return false;
        uint64_t until = end - begin < elements ? end - begin : elements;
        if (!next_in_matrix(run, segment, from, until))
            continue;
        run->memory += begin;
        run->stored += i * stored;
        return true;
    }
    return false;
}
