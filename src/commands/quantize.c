/*
 * quantize.c: a checkpoint in bitsandbytes' NF4: `tessera quantize`.
 *
 * The linears of all layers are quantized (quant/nf4_pack.h), everything else is copied as it is.
 */
#include "commands/convert.h"
#include "quant/nf4_pack.h"

#include <stdlib.h>

typedef struct {
    tsr_convert *convert;
    tsr_nf4_packer *packer;
    tsr_copier copier;
    tsr_copied *copied;
    tsr_tensor_source *sources;
    uint64_t count, quantized;
} quantizing;

static tsr_status add_sources(quantizing *all)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    uint64_t tensors = tsr_checkpoint_count(inputs->checkpoint);
    all->copied = calloc(tensors + 1, sizeof *all->copied);
    all->sources = calloc(tensors * TSR_NF4_PACKED_TENSORS + 1, sizeof *all->sources);
    if (!all->copied || !all->sources)
        return tsr_fail(TSR_ENOMEM, "out of memory for quantizing");
    for (uint64_t i = 0; i < tensors; i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(inputs->checkpoint, i);
        const tsr_nf4_packed *packed;
        bool part;
        if (tsr_convert_linear(&part, &inputs->layout, tensor->name)) {
            TSR_TRY(tsr_nf4_packer_add(&packed, all->packer, tensor));
            all->count += (uint64_t)tsr_nf4_packed_sources(&all->sources[all->count], packed);
            all->quantized++;
        } else {
            all->sources[all->count++] = tsr_copied_source(&all->copied[i], &all->copier, tensor);
        }
    }
    return TSR_OK;
}

/* Linears are read twice, and a third time for fp32 scales, which stand before the codes. */
static double bytes_to_read(const tsr_convert *convert)
{
    const tsr_inputs *inputs = &convert->inputs;
    double total = 0;
    for (uint64_t i = 0; i < tsr_checkpoint_count(inputs->checkpoint); i++)
        total += (double)tsr_checkpoint_at(inputs->checkpoint, i)->bytes;
    for (int i = 0; i < inputs->layout.layer_count; i++)
        for (int j = 0; j < tsr_layout_linears(&inputs->layout.unit[i]); j++)
            total += (double)inputs->layout.unit[i].linear[j].source.weight->bytes *
                     (inputs->config.use_bnb_nested_quant ? 1 : 2);
    return total;
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
    const tsr_layout_linear *already = tsr_convert_4bit(&inputs->layout);
    if (already)
        return tsr_fail(TSR_EDATA,
                        "%s: the model is quantized to nf4 already (%s.weight); quantize the "
                        "original one",
                        config->model_name_or_path, already->path);
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
    free(all.copied);
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
