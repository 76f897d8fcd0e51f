#include "commands/inspect.h"

#include "base/aside.h"
#include "base/phase.h"
#include "inputs/kind.h"
#include "io/missing.h"
#include "io/peft.h"
#include "job/sized.h"
#include "tessera.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static tsr_status (*const fills[])(json_t *report, const char *directory) = {
    [TSR_KIND_RUN] = tsr_inspect_run,         [TSR_KIND_CHECKPOINT] = tsr_inspect_checkpoint,
    [TSR_KIND_ADAPTER] = tsr_inspect_adapter, [TSR_KIND_MODEL] = tsr_inspect_model,
    [TSR_KIND_UNKNOWN] = tsr_inspect_runs,
};

tsr_status tsr_inspect_join(char path[TSR_INSPECT_PATH_BYTES], const char *directory,
                            const char *name)
{
    int length = snprintf(path, TSR_INSPECT_PATH_BYTES, "%s/%s", directory, name);
    if (length < 0 || length >= TSR_INSPECT_PATH_BYTES)
        return tsr_fail(TSR_EDATA, "%s: the path is too long", directory);
    return TSR_OK;
}

/* ---- tensors ---- */

json_t *tsr_inspect_tensor(json_t *rows, const tsr_tensor *tensor)
{
    json_t *row = tsr_report_row(rows);
    tsr_report_string(row, "name", tensor->name);
    tsr_report_string(row, "dtype", tsr_dtype_name(tensor->dtype));
    json_t *shape = tsr_report_array(row, "shape");
    for (int i = 0; i < tensor->ndim && shape; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    tsr_report_int(row, "bytes", tensor->bytes);
    return row;
}

void tsr_inspect_count_dtype(json_t *dtypes, const tsr_tensor *tensor)
{
    char key[32];
    snprintf(key, sizeof key, "%s_bytes", tsr_dtype_name(tensor->dtype));
    json_int_t before = json_integer_value(json_object_get(dtypes, key));
    tsr_report_int(dtypes, key, (uint64_t)before + tensor->bytes);
}

static void add_metadata(void *user, const char *key, const char *value)
{
    tsr_report_string(user, key, value);
}

tsr_status tsr_inspect_safetensors(json_t *report, const char *path)
{
    tsr_safetensors *file;
    TSR_TRY(tsr_safetensors_open(&file, path));
    uint64_t elements = 0, bytes = 0, count = tsr_safetensors_count(file);
    json_t *dtypes = json_object(), *rows = json_array();
    for (uint64_t i = 0; i < count; i++) {
        const tsr_tensor *tensor = tsr_safetensors_at(file, i);
        elements += tensor->element_count;
        bytes += tensor->bytes;
        tsr_inspect_tensor(rows, tensor);
        tsr_inspect_count_dtype(dtypes, tensor);
    }
    tsr_report_int(report, "tensor_count", count);
    tsr_report_int(report, "elements", elements);
    tsr_report_int(report, "data_bytes", bytes);
    tsr_safetensors_each_metadata(file, add_metadata, tsr_report_object(report, "metadata"));
    json_object_set_new(report, "dtypes", dtypes);
    json_object_set_new(report, "tensors", rows);
    tsr_safetensors_close(file);
    return TSR_OK;
}

/* ---- an adapter ---- */

static void add_match(json_t *report, const char *key, const tsr_peft_match *match, bool all_linear)
{
    if (all_linear || match->regex) {
        tsr_report_string(report, key, all_linear ? "all-linear" : match->regex);
        return;
    }
    json_t *names = tsr_report_array(report, key);
    for (uint64_t i = 0; i < match->count && names; i++)
        json_array_append_new(names, tsr_report_text(match->names[i]));
}

static void add_pattern(json_t *report, const char *key, const tsr_peft_pattern *pattern,
                        uint64_t count)
{
    json_t *map = count ? tsr_report_object(report, key) : NULL;
    for (uint64_t i = 0; i < count; i++)
        tsr_report_real(map, pattern[i].key, pattern[i].value);
}

static void add_config(json_t *report, const tsr_peft_config *config)
{
    tsr_report_string(report, "method",
                      config->use_dora     ? (config->use_rslora ? "DoRA, rank-stabilized" : "DoRA")
                      : config->use_rslora ? "rsLoRA"
                                           : "LoRA");
    tsr_report_string(report, "base_model", config->base_model_name_or_path);
    tsr_report_int(report, "r", config->r);
    tsr_report_real(report, "lora_alpha", config->lora_alpha);
    tsr_report_real(report, "lora_dropout", config->lora_dropout);
    tsr_report_bool(report, "use_dora", config->use_dora);
    tsr_report_bool(report, "use_rslora", config->use_rslora);
    add_match(report, "target_modules", &config->target, config->all_linear);
    if (config->parameter.count)
        add_match(report, "target_parameters", &config->parameter, false);
    if (config->save.count)
        add_match(report, "modules_to_save", &config->save, false);
    if (config->scores)
        tsr_report_string(report, "task_type", "SEQ_CLS");
    if (config->exclude.count || config->exclude.regex)
        add_match(report, "exclude_modules", &config->exclude, false);
    if (config->layers_to_transform) {
        json_t *layers = tsr_report_array(report, "layers_to_transform");
        for (uint64_t i = 0; i < config->layer_count && layers; i++)
            json_array_append_new(layers, json_integer(config->layers_to_transform[i]));
    }
    add_pattern(report, "rank_pattern", config->rank_pattern, config->rank_pattern_count);
    add_pattern(report, "alpha_pattern", config->alpha_pattern, config->alpha_pattern_count);
}

static tsr_status add_adapter(json_t *report, const char *directory, json_t *rows)
{
    tsr_peft *peft;
    TSR_TRY(tsr_peft_open(&peft, directory));
    uint64_t trainable = 0, bytes = 0;
    json_t *dtypes = json_object();
    add_config(report, tsr_peft_config_of(peft));
    for (uint64_t i = 0; i < tsr_peft_module_count(peft); i++) {
        const tsr_peft_module *module = tsr_peft_module_at(peft, i);
        const tsr_tensor *parts[] = {module->a, module->b, module->magnitude, module->whole,
                                     module->rows};
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            if (!parts[p])
                continue;
            trainable += parts[p]->element_count;
            bytes += parts[p]->bytes;
            if (rows)
                tsr_inspect_tensor(rows, parts[p]);
            tsr_inspect_count_dtype(dtypes, parts[p]);
        }
    }
    tsr_report_int(report, "modules", tsr_peft_module_count(peft));
    tsr_report_int(report, "trainable_parameters", trainable);
    tsr_report_int(report, "data_bytes", bytes);
    json_object_set_new(report, "dtypes", dtypes);
    tsr_peft_close(peft);
    return TSR_OK;
}

tsr_status tsr_inspect_adapter(json_t *report, const char *directory)
{
    json_t *rows = json_array();
    tsr_status status = add_adapter(report, directory, rows);
    json_object_set_new(report, "tensors", rows);
    return status;
}

tsr_status tsr_inspect_adapter_within(json_t *report, const char *directory)
{
    return add_adapter(tsr_report_object(report, "adapter"), directory, NULL);
}

/* ---- any path ---- */

static tsr_status inspect_directory(json_t *report, const char *directory)
{
    tsr_kind kind = tsr_kind_of(directory);
    tsr_report_string(report, "kind", kind == TSR_KIND_UNKNOWN ? "runs" : tsr_kind_name(kind));
    return fills[kind](report, directory);
}

/* What other commands show. */
static tsr_status refuse_file(const char *path)
{
    static const struct {
        const char *end, *what;
    } rows[] = {
        {"metrics.jsonl", "the steps of a run; name the run's directory"},
        {".parquet",
         "rows in Parquet; name it after a job.yaml: tessera data job.yaml --show 2 dataset="},
        {".jsonl", "rows; name it after a job.yaml: tessera data job.yaml --show 2 dataset="},
        {".csv", "rows; name it after a job.yaml: tessera data job.yaml --show 2 dataset="},
        {".yaml", "a configuration; what it needs: tessera plan "},
        {".yml", "a configuration; what it needs: tessera plan "},
    };
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t end = strlen(rows[i].end), said = strlen(rows[i].what);
        bool open = strchr("= ", rows[i].what[said - 1]) != NULL; /* the path follows */
        if (length >= end && !strcmp(path + length - end, rows[i].end))
            return tsr_fail(TSR_EDATA,
                            "%s: expected a run, checkpoint, adapter, model, safetensors file or "
                            "trace; this is %s%s",
                            path, rows[i].what, open ? path : "");
    }
    return TSR_OK;
}

static tsr_status inspect_path(json_t *report, const char *path)
{
    char hint[TSR_MISSING_BYTES];
    struct stat info;
    if (stat(path, &info) != 0) {
        int error = errno;
        return tsr_fail(error == ENOENT || error == ENOTDIR ? TSR_EDATA : TSR_EIO, "%s: %s%s", path,
                        strerror(error), tsr_missing_hint(hint, path, error));
    }
    tsr_report_string(report, "path", path);
    if (S_ISDIR(info.st_mode))
        return inspect_directory(report, path);
    TSR_TRY(refuse_file(path));
    bool trace = S_ISREG(info.st_mode) && tsr_inspect_is_trace(path);
    tsr_report_string(report, "kind", trace ? "trace" : "safetensors");
    tsr_report_int(report, "file_bytes", (uint64_t)info.st_size);
    return trace ? tsr_inspect_trace(report, path) : tsr_inspect_safetensors(report, path);
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static tsr_status inspect_two(json_t *report, const char *path, const char *other)
{
    return (is_directory(path) && is_directory(other)
                ? tsr_inspect_two_runs
                : tsr_inspect_two_traces)(report, path, other);
}

/* other NULL: `path` alone. */
static tsr_status inspect(const char *path, const char *other, const tsr_job_options *options,
                          int json, char **text)
{
    tsr_job_options taken = TSR_JOB_OPTIONS_INIT;
    if (options)
        TSR_TRY(tsr_job_options_take(&taken, options));
    json_t *report = json_object();
    tsr_aside aside = {0};
    tsr_aside_begin(&aside);
    const tsr_phase_listener former = tsr_phase_get();
    tsr_phase_set(taken.progress, taken.user);
    tsr_status status = other ? inspect_two(report, path, other) : inspect_path(report, path);
    tsr_phase_set(former.sink, former.user);
    if (status < 0)
        json_decref(report);
    else
        status = tsr_report_print(text, report, json);
    tsr_aside_end(&aside);
    return status;
}

tsr_status tsr_inspect(const char *path, const tsr_job_options *options, int json, char **text)
{
    if (!path || !text)
        return tsr_fail(TSR_EINVAL, "tsr_inspect: path or text is NULL");
    return inspect(path, NULL, options, json, text);
}

tsr_status tsr_inspect_traces(const char *path, const char *other, const tsr_job_options *options,
                              int json, char **text)
{
    if (!path || !other || !text)
        return tsr_fail(TSR_EINVAL, "tsr_inspect_traces: path, other or text is NULL");
    return inspect(path, other, options, json, text);
}
