/*
 * merge.c: the adapter into the base: `tessera merge`.
 *
 * Tensor by tensor, a chunk of rows at a time, into a checkpoint in bf16. Weights without an adapter
 * are copied; those of a 4-bit base are dequantized.
 */
#include "base/log.h"
#include "commands/convert.h"
#include "commands/merger.h"
#include "io/tokenizer_files.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    tsr_convert *convert;
    tsr_merger *merger;
    tsr_copier copier;
    uint16_t *narrow; /* one chunk of rows */
    uint64_t narrow_count;
    struct item *items;
    tsr_tensor_source *sources;
    uint64_t count;
} merging;

typedef struct item {
    merging *all;
    const tsr_layout_linear *linear;
    tsr_copied copied;
} item;

/* Rounded to bf16, which can overflow where fp32 did not. */
static tsr_status narrow_rows(merging *all, const tsr_layout_linear *linear, const float *rows,
                              uint64_t first, uint64_t count)
{
    uint64_t elements = count * linear->in;
    if (elements > all->narrow_count) {
        free(all->narrow);
        all->narrow = malloc(elements * sizeof *all->narrow);
        all->narrow_count = all->narrow ? elements : 0;
        if (!all->narrow)
            return tsr_fail(TSR_ENOMEM, "out of memory while merging %s", linear->path);
    }
    for (uint64_t i = 0; i < elements; i++) {
        all->narrow[i] = tsr_f32_to_bf16(rows[i]);
        if (!isfinite(tsr_bf16_to_f32(all->narrow[i])))
            return tsr_fail(TSR_EDATA,
                            "%s.weight: row %llu, column %llu would be %f after merging: the base "
                            "or the adapter has a value that is not finite, or a row of zeros has "
                            "a magnitude",
                            linear->path, (unsigned long long)(first + i / linear->in),
                            (unsigned long long)(i % linear->in),
                            isnan(rows[i]) ? (double)NAN : (double)rows[i]);
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
    TSR_TRY(narrow_rows(it->all, linear, rows, first, count));
    *data = it->all->narrow;
    *bytes = count * linear->in * sizeof *it->all->narrow;
    /* as a part of what is stored, so that the sum is the checkpoint's bytes */
    return tsr_convert_tick(it->all->convert, linear->source.weight->bytes * count / linear->out);
}

static tsr_status add_sources(merging *all)
{
    const tsr_inputs *inputs = &all->convert->inputs;
    uint64_t tensors = tsr_checkpoint_count(inputs->checkpoint);
    all->items = calloc(tensors + 1, sizeof *all->items);
    all->sources = calloc(tensors + 1, sizeof *all->sources);
    if (!all->items || !all->sources)
        return tsr_fail(TSR_ENOMEM, "out of memory for merging");
    for (uint64_t i = 0; i < tensors; i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(inputs->checkpoint, i);
        bool part = false;
        const tsr_layout_linear *linear = tsr_convert_linear(&part, &inputs->layout, tensor->name);
        item *it = &all->items[all->count];
        tsr_tensor_source *source = &all->sources[all->count];
        if (part && linear)
            continue; /* of a 4-bit weight, which becomes a plain one */
        all->count++;
        it->all = all;
        it->linear = linear;
        if (linear && (linear->r || linear->source.prequantized))
            *source = (tsr_tensor_source){.name = tensor->name,
                                          .dtype = TSR_BF16,
                                          .ndim = 2,
                                          .shape = {linear->out, linear->in},
                                          .next = next_merged,
                                          .user = it};
        else
            *source = tsr_copied_source(&it->copied, &all->copier, tensor);
        all->convert->total += (double)tensor->bytes;
    }
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

static tsr_status check(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (inputs->adapter.fresh_magnitudes)
        return tsr_fail(
            TSR_ECONFIG,
            "%s: use_dora: the adapter %s has no magnitudes to merge; leave the key out",
            tsr_config_where(config, "use_dora"), config->init_adapter);
    if (tsr_convert_4bit(&inputs->layout))
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
    merging all = {.convert = convert};
    TSR_TRY(check(inputs));
    TSR_TRY(find_template(convert));
    tsr_status status = tsr_merger_create(&all.merger, inputs, tsr_device_pool(convert->device), 0);
    if (status == TSR_OK)
        status = tsr_copier_open(&all.copier, convert, true);
    if (status == TSR_OK)
        status = add_sources(&all);
    const tsr_model_output output = {.dtype = TSR_BF16, .tensors = all.sources, .count = all.count};
    if (status == TSR_OK)
        status = tsr_convert_write(convert, &output);
    tsr_merger_destroy(all.merger);
    tsr_copier_close(&all.copier);
    free(all.narrow);
    free(all.items);
    free(all.sources);
    tsr_report_string(report, "model", inputs->config.model_name_or_path);
    tsr_report_bool(report, "model_4bit", tsr_convert_4bit(&inputs->layout));
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
