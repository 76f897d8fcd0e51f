/*
 * merge.c: the adapter into the base: `tessera merge`.
 *
 * Tensor by tensor, a chunk of rows at a time, into a checkpoint in bf16. Weights without an adapter
 * are copied; those of a 4-bit base are dequantized. Experts are written as the checkpoint has them, one tensor each or
 * all in one; of a 4-bit base, which has one each, as its family publishes them. Of experts in MXFP4 all are dequantized
 * where some have an adapter, and else copied.
 */
#include "adapters/merge.h"
#include "base/auto.h"
#include "base/log.h"
#include "commands/convert.h"
#include "commands/merger.h"
#include "io/tokenizer_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_convert *convert;
    tsr_merger *merger;
    tsr_copier copier;
    uint16_t *narrow; /* one chunk of rows */
    uint64_t narrow_count;
    uint16_t *turned; /* an expert, transposed */
    uint64_t turned_count;
    bool unpacks; /* experts in MXFP4 */
    struct item *items;
    tsr_tensor_source *sources;
    uint64_t count;
} merging;

typedef struct item {
    merging *all;
    const tsr_layout_linear *linear;
    /* Of experts: this matrix, or the whole stack in one tensor, the name of which is the item's. */
    const tsr_layout_stack *stack;
    uint64_t matrix;
    char *name;
    tsr_copied copied;
    /* A table, of which some rows are the adapter's. */
    const tsr_tensor *table, *rows;
    const tsr_layout_rows *ids;
    /* With a LoRA: A [r, d], and behind it B [rows, r], of an embedding both transposed; else NULL. */
    float *low;
    uint64_t r;
    double scale;
} item;

/* Makes room for `count` elements. */
static tsr_status reserve(uint16_t **elements, uint64_t *room, uint64_t count, const char *path)
{
    if (count <= *room)
        return TSR_OK;
    free(*elements);
    *elements = malloc(count * sizeof **elements);
    *room = *elements ? count : 0;
    return *elements ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory while merging %s", path);
}

/* Rows of a weight, fp32. `path` with `end` is its name in messages. */
typedef struct {
    const char *path, *end;
    const float *rows;
    uint64_t first, count, in;
} merged_rows;

/* Rounded to bf16, which can overflow where fp32 did not. */
static tsr_status narrow_rows(merging *all, const merged_rows *m)
{
    uint64_t elements = m->count * m->in;
    TSR_TRY(reserve(&all->narrow, &all->narrow_count, elements, m->path));
    for (uint64_t i = 0; i < elements; i++) {
        all->narrow[i] = tsr_f32_to_bf16(m->rows[i]);
        if (!isfinite(tsr_bf16_to_f32(all->narrow[i])))
            return tsr_fail(TSR_EDATA,
                            "%s%s: row %llu, column %llu would be %f after merging: the base "
                            "or the adapter has a value that is not finite, or a row of zeros has "
                            "a magnitude",
                            m->path, m->end, (unsigned long long)(m->first + i / m->in),
                            (unsigned long long)(i % m->in),
                            isnan(m->rows[i]) ? (double)NAN : (double)m->rows[i]);
    }
    return TSR_OK;
}

static tsr_status next_merged(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    item *it = user;
    const tsr_layout_linear *linear = it->linear;
    uint64_t first = offset / (linear->in * sizeof *it->all->narrow), count = 0;
    const float *rows;
    TSR_TRY(tsr_merger_rows(&rows, &count, it->all->merger, linear, first));
    TSR_TRY(narrow_rows(it->all,
                        &(merged_rows){linear->path, ".weight", rows, first, count, linear->in}));
    *data = it->all->narrow;
    *bytes = count * linear->in * sizeof *it->all->narrow;
    /* as a part of what is stored, so that the sum is the checkpoint's bytes */
    return tsr_convert_tick(it->all->convert, linear->source.weight->bytes * count / linear->out);
}

/* ---- experts ---- */

/* Rows of one matrix of a stack from `first` on, to all->narrow: their number. */
static tsr_status merge_expert(uint64_t *count, const item *it, uint64_t matrix, uint64_t first)
{
    const tsr_layout_stack *stack = it->stack;
    const float *rows;
    char end[40];
    snprintf(end, sizeof end, ", expert %llu",
             (unsigned long long)(matrix / (uint64_t)stack->parts));
    TSR_TRY(tsr_merger_expert_rows(&rows, count, it->all->merger, stack, matrix, first));
    TSR_TRY(narrow_rows(it->all, &(merged_rows){stack->path, end, rows, first, *count, stack->in}));
    uint64_t bytes = stack->source->weight->bytes; /* as of linears */
    if (stack->fused)
        bytes /= tsr_layout_stack_matrices(stack);
    return tsr_convert_tick(it->all->convert,
                            bytes * *count / (stack->out / (uint64_t)stack->parts));
}

/* One matrix, or all of them one behind the other. */
static tsr_status next_expert(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const item *it = user;
    uint64_t elements = tsr_layout_stack_elements(it->stack);
    uint64_t at = offset / sizeof *it->all->narrow, count = 0;
    TSR_TRY(merge_expert(&count, it, it->matrix + at / elements, at % elements / it->stack->in));
    *data = it->all->narrow;
    *bytes = count * it->stack->in * sizeof *it->all->narrow;
    return TSR_OK;
}

#define TURNED_COLUMNS 64 /* at a time, a line of a cache or two */

typedef struct {
    uint16_t *out;                          /* [in, width] */
    const uint16_t *rows;                   /* [count, in] */
    uint64_t count, in, width, first, step; /* row i is column first + i step */
} turning;

static void turn_columns(void *context, int index)
{
    const turning *t = context;
    uint64_t begin = (uint64_t)index * TURNED_COLUMNS, end = begin + TURNED_COLUMNS;
    end = end < t->in ? end : t->in;
    for (uint64_t i = 0; i < t->count; i++)
        for (uint64_t j = begin; j < end; j++)
            t->out[j * t->width + t->first + i * t->step] = t->rows[i * t->in + j];
}

/* An expert at a time, transposed, its parts by turns. */
static tsr_status next_turned(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const item *it = user;
    merging *all = it->all;
    const tsr_layout_stack *stack = it->stack;
    uint64_t parts = (uint64_t)stack->parts, elements = stack->out * stack->in, count = 0;
    uint64_t expert = offset / (elements * sizeof *all->turned);
    TSR_TRY(reserve(&all->turned, &all->turned_count, elements, stack->path));
    for (uint64_t part = 0; part < parts; part++)
        for (uint64_t first = 0; first < stack->out / parts; first += count) {
            TSR_TRY(merge_expert(&count, it, expert * parts + part, first));
            turning t = {all->turned, all->narrow,          count, stack->in,
                         stack->out,  first * parts + part, parts};
            tsr_pool_run(tsr_device_pool(all->convert->device),
                         (int)((stack->in + TURNED_COLUMNS - 1) / TURNED_COLUMNS), turn_columns,
                         &t);
        }
    *data = all->turned;
    *bytes = elements * sizeof *all->turned;
    return TSR_OK;
}

#define HEAD "lm_head.weight"

/* What the adapter has of a module that modules_to_save trained; NULL: nothing. */
static const tsr_tensor *whole_of(const tsr_inputs *inputs, bool trained, const char *path)
{
    const tsr_peft_module *module =
        trained ? tsr_peft_module_find(inputs->adapter.init, path) : NULL;
    return module ? module->whole : NULL;
}

/* Embedding and head were one, and are no more. */
static bool unties(const tsr_inputs *inputs)
{
    const tsr_layout *layout = &inputs->layout;
    bool rows = layout->embedding_rows.count + layout->head_rows.count > 0 ||
                layout->embedding_lora.r || layout->head_lora.r;
    return layout->head == layout->embedding &&
           (inputs->adapter.trains_head || inputs->adapter.trains_embedding ||
            (rows && !layout->rows_tied));
}

/* The part of the adapter's rows that is in elements [first, first + count) of the table. */
static tsr_status put_rows(float *values, const item *it, uint64_t first, uint64_t count)
{
    uint64_t d = it->table->shape[1];
    for (int i = 0; i < it->ids->count; i++) {
        uint64_t begin = (uint64_t)it->ids->id[i] * d;
        uint64_t from = begin > first ? begin : first;
        uint64_t end = begin + d < first + count ? begin + d : first + count;
        if (from < end)
            TSR_TRY(tsr_safetensors_read_f32(values + (from - first), it->rows,
                                             (uint64_t)i * d + from - begin, end - from));
    }
    return TSR_OK;
}

/* Rows [first, first + count) of a table with a LoRA. */
static tsr_status add_lora(float *values, const item *it, uint64_t first, uint64_t count)
{
    const tsr_adapter_merge_args args = {.rows = count,
                                         .in = it->table->shape[1],
                                         .r = it->r,
                                         .a = it->low,
                                         .b = it->low + it->r * (it->table->shape[1] + first),
                                         .scale = it->scale};
    return tsr_adapter_merge(values, &args, tsr_device_pool(it->all->convert->device));
}

static tsr_status next_table(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const item *it = user;
    tsr_copier *c = &it->all->copier;
    uint64_t first = offset / sizeof *c->out, left = it->table->element_count - first;
    uint64_t d = it->table->shape[1], most = TSR_CONVERT_CHUNK_BYTES / sizeof(float) / d * d;
    uint64_t count = left < most ? left : most;
    float *values = (float *)(void *)c->in;
    TSR_TRY(tsr_safetensors_read_f32(values, it->table, first, count));
    if (it->rows)
        TSR_TRY(put_rows(values, it, first, count));
    if (it->low)
        TSR_TRY(add_lora(values, it, first / d, count / d));
    for (uint64_t i = 0; i < count; i++)
        c->out[i] = tsr_f32_to_bf16(values[i]);
    *data = c->out;
    *bytes = count * sizeof *c->out;
    return tsr_convert_tick(it->all->convert, count * tsr_dtype_bytes(it->table->dtype));
}

/* out [columns, rows] of a tensor [rows, columns], or, whole, as it is. */
static tsr_status read_turned(float *out, const tsr_tensor *tensor, bool turn)
{
    uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
    if (!turn)
        return tsr_safetensors_read_f32(out, tensor, 0, rows * columns);
    TSR_AUTO_FREE float *row = malloc(columns * sizeof *row);
    if (!row)
        return tsr_fail(TSR_ENOMEM, "out of memory while merging %s", tensor->name);
    for (uint64_t i = 0; i < rows; i++) {
        TSR_TRY(tsr_safetensors_read_f32(row, tensor, i * columns, columns));
        for (uint64_t j = 0; j < columns; j++)
            out[j * rows + i] = row[j];
    }
    return TSR_OK;
}

static tsr_status read_lora(item *it, const tsr_peft_module *module, bool embedding)
{
    const tsr_layout *layout = &it->all->convert->inputs.layout;
    uint64_t d = it->table->shape[1], rows = it->table->shape[0];
    it->r = module->r;
    it->scale = embedding ? layout->embedding_lora.scale : layout->head_lora.scale;
    it->low = malloc(it->r * (d + rows) * sizeof *it->low);
    if (!it->low)
        return tsr_fail(TSR_ENOMEM, "out of memory while merging %s", module->path);
    TSR_TRY(read_turned(it->low, embedding ? module->b : module->a, embedding));
    return read_turned(it->low + it->r * d, embedding ? module->a : module->b, embedding);
}

static tsr_status add_table(merging *all, const char *name, const tsr_tensor *table,
                            const tsr_layout_rows *ids, const char *path)
{
    item *it = &all->items[all->count];
    *it = (item){.all = all, .table = table, .ids = ids};
    const tsr_peft_module *module = tsr_peft_module_find(all->convert->inputs.adapter.init, path);
    it->rows = module->rows;
    if (module->a)
        TSR_TRY(read_lora(it, module, strcmp(path, "lm_head") != 0));
    all->sources[all->count++] = (tsr_tensor_source){.name = name,
                                                     .dtype = TSR_BF16,
                                                     .ndim = 2,
                                                     .shape = {table->shape[0], table->shape[1]},
                                                     .next = next_table,
                                                     .user = it};
    all->convert->total += (double)table->bytes;
    return TSR_OK;
}

static void add_copied(merging *all, const char *name, const tsr_tensor *tensor)
{
    tsr_tensor_source *source = &all->sources[all->count];
    *source = tsr_copied_source(&all->items[all->count++].copied, &all->copier, tensor);
    source->name = name;
    all->convert->total += (double)tensor->bytes;
}

/* A tensor that no linear of a layer has. */
static tsr_status add_other(merging *all, const tsr_tensor *tensor)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    const tsr_layout *layout = &inputs->layout;
    const tsr_tensor *whole = NULL;
    bool embedding = tensor == layout->embedding, head = tensor == layout->head && !embedding;
    if (inputs->router_bias)
        whole = tsr_safetensors_find(inputs->router_bias, tensor->name);
    if (unties(inputs) && !strcmp(tensor->name, HEAD)) /* a copy of the embedding */
        return TSR_OK;
    if (embedding && (layout->embedding_rows.count || layout->embedding_lora.r))
        return add_table(all, tensor->name, tensor, &layout->embedding_rows,
                         layout->embedding_path);
    if (head && (layout->head_rows.count || layout->head_lora.r))
        return add_table(all, tensor->name, tensor, &layout->head_rows, "lm_head");
    if (embedding)
        whole = whole_of(inputs, inputs->adapter.trains_embedding, inputs->layout.embedding_path);
    else if (head)
        whole = whole_of(inputs, inputs->adapter.trains_head, "lm_head");
    add_copied(all, tensor->name, whole ? whole : tensor);
    return TSR_OK;
}

/* A stack is one tensor where the checkpoint, or of a 4-bit one the family, has it so. */
static bool becomes_fused(const tsr_layout_stack *stack)
{
    return stack->fused || (stack->source->prequantized && stack->files->fused);
}

static tsr_status add_experts(merging *all, const tsr_tensor *tensor, const tsr_weight_use *use)
{
    const tsr_layout_stack *stack = use->stack;
    uint64_t rows = stack->out / (uint64_t)stack->parts;
    bool fused = becomes_fused(stack), turned = fused && stack->files->transposed;
    all->convert->total += (double)tensor->bytes;
    if (fused && use->matrix)
        return TSR_OK; /* in the tensor that stands for the first */
    item *it = &all->items[all->count];
    *it = (item){.all = all, .stack = stack, .matrix = use->matrix};
    tsr_tensor_source source = {.name = tensor->name,
                                .dtype = TSR_BF16,
                                .ndim = 2,
                                .shape = {rows, stack->in},
                                .next = turned ? next_turned : next_expert,
                                .user = it};
    if (fused) {
        it->name = tsr_stack_fused_name(stack);
        if (!it->name)
            return tsr_fail(TSR_ENOMEM, "out of memory while merging %s", stack->path);
        source.name = it->name;
        source.ndim = 3;
        source.shape[0] = stack->experts;
        source.shape[1] = turned ? stack->in : stack->out;
        source.shape[2] = turned ? stack->out : stack->in;
    }
    all->sources[all->count++] = source;
    return TSR_OK;
}

static void add_linear(merging *all, const tsr_tensor *tensor, const tsr_layout_linear *linear)
{
    item *it = &all->items[all->count];
    *it = (item){.all = all, .linear = linear};
    all->sources[all->count++] = (tsr_tensor_source){.name = tensor->name,
                                                     .dtype = TSR_BF16,
                                                     .ndim = 2,
                                                     .shape = {linear->out, linear->in},
                                                     .next = next_merged,
                                                     .user = it};
    all->convert->total += (double)tensor->bytes;
}

/* Whether some stack in MXFP4 has an adapter: a model has all of its experts so, or none. */
static bool unpacks(const tsr_layout *layout)
{
    bool adapted = false;
    for (int i = 0; i < layout->layer_count; i++)
        for (int j = 0; j < tsr_layout_stacks(&layout->unit[i]); j++)
            adapted |= layout->unit[i].stack[j].mxfp4 && layout->unit[i].stack[j].r;
    return adapted;
}

static tsr_status add_tensor(merging *all, const tsr_tensor *tensor)
{
    const tsr_weight_use use = tsr_weight_use_of(all->convert->uses, tensor->name);
    if (use.stack && use.stack->mxfp4 && !all->unpacks)
        return add_other(all, tensor);
    if (use.part)
        return TSR_OK; /* of a 4-bit weight, which becomes a plain one */
    if (use.linear && (use.linear->r || use.linear->source.prequantized)) {
        add_linear(all, tensor, use.linear);
        return TSR_OK;
    }
    return use.stack && (use.stack->r || use.stack->source->prequantized || use.stack->mxfp4)
               ? add_experts(all, tensor, &use)
               : add_other(all, tensor);
}

static tsr_status add_sources(merging *all)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    uint64_t tensors = tsr_checkpoint_count(inputs->checkpoint);
    const tsr_tensor *head = whole_of(inputs, inputs->adapter.trains_head, "lm_head");
    all->items = calloc(tensors + 1, sizeof *all->items);
    all->sources = calloc(tensors + 1, sizeof *all->sources);
    if (!all->items || !all->sources)
        return tsr_fail(TSR_ENOMEM, "out of memory for merging");
    for (uint64_t i = 0; i < tensors; i++)
        TSR_TRY(add_tensor(all, tsr_checkpoint_at(inputs->checkpoint, i)));
    if (unties(inputs) && (inputs->layout.head_rows.count || inputs->layout.head_lora.r))
        return add_table(all, HEAD, inputs->layout.head, &inputs->layout.head_rows, "lm_head");
    if (unties(inputs))
        add_copied(all, HEAD, head ? head : inputs->layout.embedding);
    return TSR_OK;
}

static void warn_4bit(const tsr_config *config)
{
    tsr_log(TSR_LOG_WARNING,
            "model_name_or_path %s is quantized to 4 bits (bitsandbytes nf4). The merged model is "
            "its dequantized weights and the adapter, rounded to bfloat16: what the adapter was "
            "trained on, with the error of quantization. To merge into the original weights, name "
            "the model that was quantized: model_name_or_path=DIRECTORY",
            config->model_name_or_path);
}

static tsr_status check(const tsr_convert *convert)
{
    const tsr_inputs *inputs = &convert->inputs;
    const tsr_config *config = &inputs->config;
    if (inputs->layout.scores)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: objective: reward: the adapter %s is a reward model's, whose score has no "
            "place in a merged model, which writes text; PEFT loads it beside its base",
            tsr_config_where(config, "objective"), config->init_adapter);
    if (inputs->adapter.fresh_magnitudes)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: use_dora: the adapter %s has no magnitudes to merge; leave the key out",
            tsr_config_where(config, "use_dora"), config->init_adapter);
    if (tsr_weight_uses_4bit(convert->uses))
        warn_4bit(config);
    return TSR_OK;
}

/* The template that the adapter was trained with: that of the keys, else the one beside it. */
static tsr_status find_template(tsr_convert *convert)
{
    const tsr_config *config = &convert->inputs.config;
    const tsr_tokenizer_origin beside = {.model = config->init_adapter};
    TSR_TRY(tsr_inputs_template(&convert->template, &convert->template_bytes, &convert->inputs));
    return convert->template ? TSR_OK
                             : tsr_tokenizer_read(&convert->template, &convert->template_bytes,
                                                  &beside, TSR_TEMPLATE_FILE);
}

static tsr_status merge(tsr_convert *convert, json_t *report)
{
    const tsr_inputs *inputs = &convert->inputs;
    merging all = {.convert = convert, .unpacks = unpacks(&inputs->layout)};
    TSR_TRY(check(convert));
    TSR_TRY(find_template(convert));
    tsr_status status = tsr_merger_create(&all.merger, inputs, tsr_device_pool(convert->device), 0);
    if (status == TSR_OK)
        status = tsr_copier_open(&all.copier, convert, true);
    if (status == TSR_OK)
        status = add_sources(&all);
    const tsr_model_output output = {.dtype = TSR_BF16,
                                     .untied = unties(inputs),
                                     .mxfp4 = inputs->model.mxfp4 && !all.unpacks,
                                     .tensors = all.sources,
                                     .count = all.count};
    if (status == TSR_OK)
        status = tsr_convert_write(convert, &output);
    tsr_merger_destroy(all.merger);
    tsr_copier_close(&all.copier);
    free(all.narrow);
    free(all.turned);
    for (uint64_t i = 0; all.items && i <= all.count; i++) {
        free(all.items[i].low);
        free(all.items[i].name);
    }
    free(all.items);
    free(all.sources);
    tsr_report_string(report, "model", inputs->config.model_name_or_path);
    tsr_report_bool(report, "model_4bit", tsr_weight_uses_4bit(convert->uses));
    tsr_report_string(report, "adapter", inputs->config.init_adapter);
    tsr_report_bool(report, "use_dora", inputs->adapter.spec.dora);
    tsr_report_int(report, "merged_modules", inputs->adapter.set.count);
    tsr_report_string(report, "dtype", "bfloat16");
    return status;
}

tsr_status tsr_merge(const tsr_job_options *options, int json, char **text)
{
    static const tsr_convert_command command = {"merge", TSR_CONFIG_MERGE, merge};
    return tsr_convert_run(text, options, json, &command);
}
