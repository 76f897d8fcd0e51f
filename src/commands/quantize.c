/*
 * quantize.c: a checkpoint in bitsandbytes' NF4: `tessera quantize`.
 *
 * The linears of all layers are quantized (quant/nf4_pack.h), and each expert's gate, up and down, which become matrices
 * of their own even where the checkpoint has all experts in one tensor; everything else is copied as it is.
 */
#include "commands/convert.h"
#include "model/stack_reader.h"
#include "quant/nf4_pack.h"

#include <stdlib.h>

struct quantizing;

/* Of a tensor of all experts. */
typedef struct {
    struct quantizing *all;
    const tsr_layout_stack *stack;
    uint64_t matrix;
} expert;

typedef struct quantizing {
    tsr_convert *convert;
    tsr_nf4_packer *packer;
    tsr_copier copier;
    tsr_copied *copied;
    tsr_stack_reader reader; /* of the stack that was read last */
    expert *experts;
    uint64_t expert_count;
    tsr_tensor_source *sources;
    uint64_t count, quantized;
} quantizing;

static tsr_status open_stack(quantizing *all, const tsr_layout_stack *stack)
{
    if (all->reader.stack == stack)
        return TSR_OK;
    tsr_stack_reader_close(&all->reader);
    all->reader.stack = NULL;
    return tsr_stack_reader_open(&all->reader, stack);
}

static tsr_status read_expert(void *out, void *user, uint64_t first, uint64_t count)
{
    const expert *e = user;
    TSR_TRY(open_stack(e->all, e->stack));
    return tsr_stack_reader_read(out, &e->all->reader, e->matrix, first, count,
                                 tsr_device_pool(e->all->convert->device));
}

static tsr_status refuse_expert(void *user, uint64_t element)
{
    const expert *e = user;
    float value;
    TSR_TRY(tsr_stack_reader_read_f32(&value, &e->all->reader, e->matrix, element, 1,
                                      tsr_device_pool(e->all->convert->device)));
    return tsr_fail(TSR_EDATA, "%s is being changed", e->stack->path);
}

static void add_packed(quantizing *all, const tsr_nf4_packed *packed)
{
    all->count += (uint64_t)tsr_nf4_packed_sources(&all->sources[all->count], packed);
    all->quantized++;
}

/* A tensor of all experts becomes a weight for each. */
static tsr_status add_fused(quantizing *all, const tsr_layout_stack *stack)
{
    for (uint64_t i = 0; i < tsr_layout_stack_matrices(stack); i++) {
        expert *e = &all->experts[all->expert_count++];
        *e = (expert){all, stack, i};
        char *name = tsr_stack_one_name(stack, i);
        const tsr_nf4_packed *packed = NULL;
        const tsr_nf4_values values = {.name = name,
                                       .dtype = stack->source->dtype,
                                       .ndim = 2,
                                       .shape = {stack->out / (uint64_t)stack->parts, stack->in},
                                       .read = read_expert,
                                       .refuse = refuse_expert,
                                       .user = e};
        tsr_status status =
            name ? tsr_nf4_packer_add_values(&packed, all->packer, &values)
                 : tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", stack->path);
        free(name);
        TSR_TRY(status);
        add_packed(all, packed);
    }
    return TSR_OK;
}

static tsr_status add_tensor(quantizing *all, uint64_t index)
{
    const tsr_tensor *tensor = tsr_checkpoint_at(all->convert->inputs.checkpoint, index);
    const tsr_weight_use use = tsr_weight_use_of(all->convert->uses, tensor->name);
    const tsr_nf4_packed *packed;
    if (use.stack && use.stack->fused)
        return add_fused(all, use.stack);
    if (!use.linear && !use.stack) {
        all->sources[all->count++] = tsr_copied_source(&all->copied[index], &all->copier, tensor);
        return TSR_OK;
    }
    TSR_TRY(tsr_nf4_packer_add(&packed, all->packer, tensor));
    add_packed(all, packed);
    return TSR_OK;
}

/* Matrices of tensors of all experts. */
static uint64_t count_experts(const tsr_layout *layout)
{
    uint64_t count = 0;
    for (int i = 0; i < layout->layer_count; i++)
        for (int j = 0; j < tsr_layout_stacks(&layout->unit[i]); j++)
            if (layout->unit[i].stack[j].fused)
                count += tsr_layout_stack_matrices(&layout->unit[i].stack[j]);
    return count;
}

static tsr_status add_sources(quantizing *all)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    uint64_t tensors = tsr_checkpoint_count(inputs->checkpoint);
    uint64_t experts = count_experts(&inputs->layout);
    all->copied = calloc(tensors + 1, sizeof *all->copied);
    all->experts = calloc(experts + 1, sizeof *all->experts);
    all->sources = calloc((tensors + experts) * TSR_NF4_PACKED_TENSORS + 1, sizeof *all->sources);
    if (!all->copied || !all->experts || !all->sources)
        return tsr_fail(TSR_ENOMEM, "out of memory for quantizing");
    for (uint64_t i = 0; i < tensors; i++)
        TSR_TRY(add_tensor(all, i));
    return TSR_OK;
}

/* Weights are read twice, and a third time for fp32 scales, which stand before the codes. */
static double bytes_to_read(const tsr_convert *convert)
{
    const tsr_checkpoint *checkpoint = convert->inputs.checkpoint;
    double total = 0;
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++)
        total += (double)tsr_checkpoint_at(checkpoint, i)->bytes;
    return total + (convert->inputs.config.use_bnb_nested_quant ? 1 : 2) *
                       (double)tsr_weight_uses_bytes(convert->uses);
}

static tsr_status write_model(quantizing *all)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    const tsr_config *config = &inputs->config;
    const tsr_model_output output = {
        .dtype = inputs->model.dtype,
        .nf4 = true,
        .double_quant = config->use_bnb_nested_quant,
        .compute_dtype = config->dtype == TSR_CONFIG_DTYPE_FLOAT32 ? TSR_F32 : TSR_BF16,
        .tensors = all->sources,
        .count = all->count};
    return tsr_convert_write(all->convert, &output);
}

static tsr_status quantize(tsr_convert *convert, json_t *report)
{
    const tsr_inputs *inputs = &convert->inputs;
    const tsr_config *config = &inputs->config;
    quantizing all = {.convert = convert};
    const tsr_tensor *already = tsr_weight_uses_4bit(convert->uses);
    if (already)
        return tsr_fail(TSR_EDATA,
                        "%s: the model is quantized to nf4 already (%s); quantize the "
                        "original one",
                        config->model_name_or_path, already->name);
    if (inputs->model.mxfp4)
        return tsr_fail(TSR_EDATA,
                        "%s: its experts are MXFP4 already; quantize a model in bf16, or train "
                        "this one as it is",
                        config->model_name_or_path);
    const tsr_nf4_pack_options options = {.pool = tsr_device_pool(convert->device),
                                          .nested = config->use_bnb_nested_quant,
                                          .tick = tsr_convert_tick,
                                          .user = convert};
    convert->total = bytes_to_read(convert);
    tsr_status status = tsr_nf4_packer_create(&all.packer, &options);
    if (status == TSR_OK)
        status = tsr_copier_open(&all.copier, convert, false);
    if (status == TSR_OK)
        status = add_sources(&all);
    if (status == TSR_OK)
        status = write_model(&all);
    tsr_nf4_packer_destroy(all.packer);
    tsr_copier_close(&all.copier);
    tsr_stack_reader_close(&all.reader);
    free(all.copied);
    free(all.experts);
    free(all.sources);
    tsr_report_string(report, "model", config->model_name_or_path);
    tsr_report_string(report, "quant_type", "nf4");
    tsr_report_bool(report, "double_quantization", config->use_bnb_nested_quant);
    tsr_report_int(report, "quantized_weights", all.quantized);
    return status;
}

tsr_status tsr_quantize(const tsr_job_options *options, int json, char **text)
{
    static const tsr_convert_command command = {"quantize", TSR_CONFIG_QUANTIZE, quantize};
    return tsr_convert_run(text, options, json, &command);
}
