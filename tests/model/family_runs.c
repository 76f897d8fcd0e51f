#include "model/family_runs.h"

#include "support/rows.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *family, *backend = "cpu";

const char *golden(const char *format, ...)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];
    va_list args;
    int used = snprintf(out, 512, "%s/tests/golden/families/%s/", TSR_SOURCE_DIR, family);
    va_start(args, format);
    vsnprintf(out + used, 512 - (size_t)used, format, args);
    va_end(args);
    return out;
}

bool golden_has(const char *name)
{
    return access(golden("%s", name), F_OK) == 0;
}

json_t *load(const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

int setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

void read_rows(row rows[ROWS])
{
    FILE *file = fopen(golden("forward.jsonl"), "r");
    assert_non_null(file);
    for (int i = 0; i < ROWS; i++) {
        json_t *line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
        json_t *ids = json_object_get(line, "input_ids"), *labels = json_object_get(line, "labels");
        rows[i].length = (int32_t)json_array_size(ids);
        assert_in_range(rows[i].length, 2, MOST_TOKENS);
        for (int32_t t = 0; t < rows[i].length; t++) {
            rows[i].id[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
            rows[i].label[t] = (int32_t)json_integer_value(json_array_get(labels, (size_t)t));
        }
        json_decref(line);
    }
    fclose(file);
}

uint64_t golden_tokens(int32_t length)
{
    return (uint64_t)(length - FIRST_TOKEN + TOKEN_STRIDE - 1) / TOKEN_STRIDE;
}

bool on_gpu(void)
{
    return !strcmp(backend, "cuda");
}

static tsr_status evaluate_alone(tsr_job *job, void *user)
{
    test_evaluated *out = user;
    out->evaluation.size = sizeof out->evaluation;
    return tsr_job_evaluate(job, &out->evaluation);
}

job_spec evaluation(const char *base, const char *model)
{
    job_spec spec = {.purpose = TSR_JOB_EVALUATE};
    job_set(&spec, "backend=%s", backend);
    job_set(&spec, "model_name_or_path=%s", model);
    job_set(&spec, "eval_dataset=%s", scratch_path("rows.jsonl"));
    job_set(&spec, "per_device_eval_batch_size=1");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "load_in_4bit=%s", strcmp(base, "nf4") ? "false" : "true");
    return spec;
}

test_evaluated evaluate(const row *rows, int count, const char *base, const char *model)
{
    int32_t ids[ROWS * MOST_TOKENS], labels[ROWS * MOST_TOKENS], lengths[ROWS], at = 0;
    test_evaluated got = {0};
    test_data data;
    job_spec spec = evaluation(base, model);
    for (int i = 0; i < count; i++) {
        memcpy(ids + at, rows[i].id, (size_t)rows[i].length * sizeof *ids);
        memcpy(labels + at, rows[i].label, (size_t)rows[i].length * sizeof *labels);
        labels[at] = -100;
        at += lengths[i] = rows[i].length;
    }
    test_data_begin(&data, scratch_path("rows.jsonl"));
    test_data_row(&data, ids, labels, lengths, count, false);
    test_data_end(&data);
    job_run(&spec, on_gpu() ? evaluate_alone : test_evaluate, &got);
    return got;
}

void write_whole(const row *one)
{
    test_data data;
    test_data_begin(&data, scratch_path("rows.jsonl"));
    test_data_row(&data, one->id, NULL, &one->length, 1, true);
    test_data_end(&data);
}
