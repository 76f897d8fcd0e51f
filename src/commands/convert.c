#include "commands/convert.h"

#include "base/aside.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "job/output.h"
#include "job/sized.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the place ---- */

/* A model's files beside an adapter's would make Transformers load both; beside a run's, one would
 * be taken for the other's. */
static tsr_status check_entry(const tsr_config *config, const char *name)
{
    const char *where = tsr_config_where(config, "output_dir");
    if (!strcmp(name, TSR_PEFT_CONFIG_FILE) || !strcmp(name, "metrics.jsonl"))
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s contains %s (%s); choose another directory for the "
                        "model, such as output_dir=%s-model",
                        where, config->output_dir, *name == 'a' ? "an adapter" : "a training run",
                        name, config->output_dir);
    if (tsr_model_write_replaces(name) && !config->overwrite_output_dir)
        return tsr_fail(TSR_ECONFIG,
                        "%s: output_dir %s already holds a model (%s); name another directory, or "
                        "set overwrite_output_dir: true to replace it",
                        where, config->output_dir, name);
    return TSR_OK;
}

static tsr_status check_entries(const tsr_convert *convert)
{
    tsr_auto_dir *entries = NULL;
    TSR_TRY(tsr_folder_list(&entries, convert->output));
    for (const char *name; (name = tsr_folder_next(entries));)
        TSR_TRY(check_entry(&convert->inputs.config, name));
    return TSR_OK;
}

static tsr_status open_output(tsr_convert *convert)
{
    const tsr_config *config = &convert->inputs.config;
    TSR_TRY(tsr_output_check_place(config));
    TSR_TRY(tsr_output_open(&convert->output, config, tsr_model_write_makes, false));
    if (!convert->output)
        return TSR_OK;
    TSR_TRY(check_entries(convert));
    const tsr_output_patience patience = {TSR_OUTPUT_SECONDS, convert->options->stop, NULL};
    return tsr_output_ask(convert->output, config, &patience);
}

/* From here on the directory is this command's; another may have come and gone since it was looked at. */
static tsr_status take_output(tsr_convert *convert)
{
    const tsr_config *config = &convert->inputs.config;
    const tsr_output_patience patience = {TSR_OUTPUT_SECONDS, convert->options->stop, NULL};
    if (!convert->output)
        TSR_TRY(tsr_output_open(&convert->output, config, tsr_model_write_makes, true));
    TSR_TRY(tsr_output_take(&convert->output_lock, convert->output, config, &patience));
    return check_entries(convert);
}

static void leave_output(tsr_convert *convert)
{
    tsr_output_leave(convert->output_lock, convert->output);
    convert->output_lock = -1;
}

/* A model that is replaced stays until the new one is whole. */
static tsr_status check_space(const tsr_config *config, const tsr_model_output *output)
{
    tsr_output_need need = {.what = "the model's weights", .advice = ""};
    uint64_t bytes;
    for (uint64_t i = 0; i < output->count; i++) {
        TSR_TRY(tsr_tensor_source_bytes(&bytes, &output->tensors[i], config->output_dir));
        if (!tsr_add_u64(&need.bytes, need.bytes, bytes))
            need.bytes = UINT64_MAX;
    }
    return tsr_output_check_space(config, &need);
}

tsr_status tsr_convert_write(tsr_convert *convert, const tsr_model_output *output)
{
    const tsr_config *config = &convert->inputs.config;
    const tsr_composite *composite = convert->inputs.model.composite;
    bool there = convert->output;
    TSR_TRY(check_space(config, output));
    tsr_status status = take_output(convert);
    if (status == TSR_OK) {
        tsr_model_output o = *output;
        o.folder = convert->output;
        o.source = config->model_name_or_path;
        o.parameter_count = convert->inputs.layout.parameter_count +
                            convert->inputs.layout.tower_elements +
                            (o.untied ? convert->inputs.layout.embedding->element_count : 0);
        o.plain_modules = composite ? composite->towers : NULL;
        o.chat_template = convert->template;
        o.template_bytes = convert->template_bytes;
        status = tsr_model_write(&convert->written, &o);
    }
    leave_output(convert);
    if (status < 0 && !there)
        (void)rmdir(config->output_dir); /* as it was, if nothing is in it */
    return status;
}

/* ---- running ---- */

tsr_status tsr_convert_tick(void *user, uint64_t bytes)
{
    tsr_convert *c = user;
    const tsr_job_options *o = c->options;
    c->done += (double)bytes;
    if (o->progress)
        o->progress(o->user, c->phase, c->done < c->total ? c->done : c->total, c->total);
    if (o->stop && *o->stop)
        return tsr_fail(TSR_ESTOPPED_UNSAVED, "%s was stopped; nothing was written", c->phase);
    return TSR_OK;
}

static void log_line(void *user, tsr_log_level level, const char *line)
{
    static const int severities[] = {
        [TSR_LOG_ERROR] = TSR_JOB_ERROR,
        [TSR_LOG_WARNING] = TSR_JOB_WARNING,
        [TSR_LOG_INFO] = TSR_JOB_INFO,
        [TSR_LOG_DEBUG] = TSR_JOB_DEBUG,
    };
    const tsr_job_options *o = user;
    o->log(o->user, severities[level], line);
}

static void listen(const tsr_job_options *options, tsr_log_level level)
{
    if (options->log)
        tsr_log_set(log_line, (void *)options, level);
}

static tsr_status open_convert(tsr_convert *c, const tsr_convert_command *command)
{
    const tsr_job_options *o = c->options;
    tsr_config_source source = {.path = o->config_path,
                                .text = o->config_text,
                                .overrides = o->overrides,
                                .override_count = o->override_count,
                                .use = command->use,
                                .has_cuda = tsr_device_cuda_built()};
    tsr_device_options device = {.thread_count = o->threads};
    TSR_TRY(tsr_inputs_read_config(&c->inputs, &source));
    listen(o, (tsr_log_level)c->inputs.config.log_level);
    c->inputs.config.load_in_8bit = false;
    c->inputs.config.load_in_4bit = true; /* a 4-bit base is understood whatever training needs */
    c->inputs.config.lora_graph = TSR_CONFIG_GRAPH_AUTO; /* and what its GPU did is not asked */
    if (!c->inputs.config.init_adapter)                  /* nor what an adapter would learn */
        c->inputs.config.objective.kind = TSR_OBJECTIVE_SFT;
    c->inputs.compute = TSR_F32;
    TSR_TRY(tsr_inputs_read_model(&c->inputs, false, false));
    TSR_TRY(tsr_weight_uses_make(&c->uses, &c->inputs.layout));
    TSR_TRY(open_output(c));
    return tsr_device_create_cpu(&c->device, &device);
}

tsr_status tsr_convert_run(char **text, const tsr_job_options *options, bool json,
                           const tsr_convert_command *command)
{
    tsr_job_options taken;
    TSR_TRY(tsr_job_options_take(&taken, options));
    options = &taken;
    if (!text || (options->config_path && options->config_text) || options->bootstrap.size > 1)
        return tsr_fail(TSR_EINVAL, "tsr_%s: text is needed, one configuration and one rank",
                        command->name);
    tsr_convert c = {.options = options, .phase = command->name, .output_lock = -1};
    json_t *report = json_object();
    double start = tsr_now();
    tsr_aside aside = {0};
    tsr_aside_begin(&aside);
    const tsr_log_listener former = tsr_log_get();
    listen(options, TSR_LOG_INFO);
    tsr_status status = open_convert(&c, command);
    if (status == TSR_OK)
        status = command->run(&c, report);
    tsr_log_set(former.sink, former.user, former.level);
    if (status == TSR_OK) {
        tsr_report_string(report, "output_dir", c.inputs.config.output_dir);
        tsr_report_int(report, "shards", c.written.shard_count);
        tsr_report_int(report, "weights_bytes", c.written.total_bytes);
        tsr_report_real(report, "seconds", tsr_now() - start);
        status = tsr_report_print(text, json_incref(report), json);
    }
    tsr_aside_end(&aside);
    json_decref(report);
    tsr_error error; /* closing must not lose the message */
    tsr_error_take(&error, status);
    tsr_folder_close(c.output);
    tsr_device_destroy(c.device);
    tsr_weight_uses_free(c.uses);
    tsr_inputs_close(&c.inputs);
    free(c.template);
    return status < 0 ? tsr_error_put(&error) : TSR_OK;
}

/* ---- tensors that stay as they are ---- */

tsr_status tsr_copier_open(tsr_copier *copier, tsr_convert *convert, bool narrow)
{
    *copier = (tsr_copier){.convert = convert,
                           .narrow = narrow,
                           .in = malloc(TSR_CONVERT_CHUNK_BYTES),
                           .out = malloc(TSR_CONVERT_CHUNK_BYTES / 2)};
    if (copier->in && copier->out)
        return TSR_OK;
    tsr_copier_close(copier);
    return tsr_fail(TSR_ENOMEM, "out of memory for copying tensors");
}

void tsr_copier_close(tsr_copier *copier)
{
    free(copier->in);
    free(copier->out);
    *copier = (tsr_copier){0};
}

/* Whether a family has this vector in fp32 whatever the rest is, as a router's correction: rounded it could choose other
 * experts. */
static bool is_wide(const tsr_layout *layout, const tsr_tensor *tensor)
{
    for (int i = 0; i < layout->layer_count; i++) {
        const tsr_layout_unit *unit = &layout->unit[i];
        for (int j = 0; j < unit->block->vector_count; j++)
            if (unit->block->vector[j].wide && unit->frozen[unit->vector[j]].source == tensor)
                return true;
    }
    return false;
}

/* Other towers stay as they are. */
static bool narrows(const tsr_copier *copier, const tsr_tensor *tensor)
{
    const tsr_inputs *inputs = &copier->convert->inputs;
    const char *tower;
    return copier->narrow && (tensor->dtype == TSR_F32 || tensor->dtype == TSR_F16) &&
           !is_wide(&inputs->layout, tensor) && tensor->file != inputs->router_bias &&
           !tsr_composite_is_tower(&tower, inputs->model.composite, tensor->name);
}

static tsr_status next_copied(const void **data, uint64_t *bytes, void *user, uint64_t offset)
{
    const tsr_copied *item = user;
    const tsr_tensor *tensor = item->tensor;
    tsr_copier *c = item->copier;
    uint64_t element = tsr_dtype_bytes(tensor->dtype);
    if (!narrows(c, tensor)) {
        uint64_t left = tensor->bytes - offset;
        *bytes = left < TSR_CONVERT_CHUNK_BYTES ? left : TSR_CONVERT_CHUNK_BYTES;
        *data = c->in;
        TSR_TRY(tsr_safetensors_read_finite(c->in, tensor, offset / element, *bytes / element));
        return tsr_convert_tick(c->convert, *bytes);
    }
    uint64_t first = offset / sizeof *c->out, left = tensor->element_count - first;
    uint64_t most = TSR_CONVERT_CHUNK_BYTES / sizeof(float), count = left < most ? left : most;
    float *values = (float *)(void *)c->in;
    TSR_TRY(tsr_safetensors_read_f32(values, tensor, first, count));
    for (uint64_t i = 0; i < count; i++)
        c->out[i] = tsr_f32_to_bf16(values[i]);
    *data = c->out;
    *bytes = count * sizeof *c->out;
    return tsr_convert_tick(c->convert, count * element);
}

tsr_tensor_source tsr_copied_source(tsr_copied *item, tsr_copier *copier, const tsr_tensor *tensor)
{
    *item = (tsr_copied){copier, tensor};
    tsr_tensor_source source = {.name = tensor->name,
                                .dtype = narrows(copier, tensor) ? TSR_BF16 : tensor->dtype,
                                .ndim = tensor->ndim,
                                .next = next_copied,
                                .user = item};
    memcpy(source.shape, tensor->shape, sizeof source.shape);
    return source;
}
