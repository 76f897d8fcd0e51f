#include "model/fixture.h"

#include "support/rows.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t lengths[FIXTURE_ROWS][3] = {{9, 1, 6}, {12}, {5}, {1}, {1, 14}, {7}};

/* Labels of a document: two thirds of its tokens but the first; none in row 2. */
static void make_document(fixture *f, int index, int row, int32_t begin, int32_t length,
                          int32_t *stored)
{
    uint64_t seed = f->model.spec.seed;
    int32_t vocab = f->model.spec.vocab;
    for (int32_t t = begin; t < begin + length; t++) {
        f->ids[t] = (int32_t)((model_uniform(seed, (uint64_t)t) + 1) / 2 * vocab);
        stored[t] = -100;
        if (row != 2 && model_uniform(seed + 1, (uint64_t)t) < 0.33)
            stored[t] = (int32_t)((model_uniform(seed + 2, (uint64_t)t) + 1) / 2 * vocab);
    }
    for (int32_t t = begin; t < begin + length; t++) {
        f->label[t] = t + 1 < begin + length && stored[t + 1] >= 0 ? stored[t + 1] : -1;
        f->labels += f->label[t] >= 0;
    }
    f->document[index].ids = f->ids + begin;
    f->document[index].label = f->label + begin;
    f->document[index].length = length;
    f->document[index].sample = (uint64_t)row;
}

void fixture_make(fixture *out, const char *name, const model_spec *spec, double dropout)
{
    int32_t stored[FIXTURE_TOKENS], begin = 0;
    int index = 0;
    test_data data;
    memset(out, 0, sizeof *out);
    out->dropout = dropout;
    model_make(&out->model, spec);
    snprintf(out->checkpoint, sizeof out->checkpoint, "%s", scratch_path(name));
    snprintf(out->adapter, sizeof out->adapter, "%s-adapter", out->checkpoint);
    snprintf(out->data, sizeof out->data, "%s.jsonl", out->checkpoint);
    model_write(&out->model, out->checkpoint, spec->dtype);
    if (spec->r)
        model_write_adapter(&out->model, out->adapter);
    test_data_begin(&data, out->data);
    for (int row = 0; row < FIXTURE_ROWS; row++) {
        int32_t first = begin;
        int documents = 0;
        for (; documents < 3 && lengths[row][documents]; documents++, index++) {
            make_document(out, index, row, begin, lengths[row][documents], stored);
            out->document[index].first_position = begin - first;
            begin += lengths[row][documents];
        }
        test_data_row(&data, out->ids + first, stored + first, lengths[row], documents, false);
    }
    test_data_end(&data);
    assert_int_equal(index, FIXTURE_DOCUMENTS);
    assert_true(begin <= FIXTURE_TOKENS && out->labels > 10);
}

void fixture_free(fixture *f)
{
    model_free(&f->model);
}

job_spec fixture_job(const fixture *f, const char *output)
{
    job_spec spec = {.purpose = TSR_JOB_TRAIN};
    job_set(&spec, "model_name_or_path=%s", f->checkpoint);
    job_set(&spec, "load_in_4bit=false");
    job_set(&spec, "dtype=float32");
    job_set(&spec, "dataset=%s", f->data);
    job_set(&spec, "eval_dataset=%s", f->data);
    job_set(&spec, "init_adapter=%s", f->adapter);
    job_set(&spec, "per_device_train_batch_size=2");
    job_set(&spec, "per_device_eval_batch_size=2");
    job_set(&spec, "total_batch_size=6");
    job_set(&spec, "num_train_epochs=%d", f->epoch + 1);
    job_set(&spec, "shuffle=false");
    job_set(&spec, "seed=7");
    job_set(&spec, "lora_dropout=%g", f->dropout);
    job_set(&spec, "gradient_checkpointing=none");
    job_set(&spec, "output_dir=%s-%s", f->checkpoint, output);
    return spec;
}

reference_batch fixture_batch(const fixture *f, bool train)
{
    return (reference_batch){.document = f->document,
                             .count = FIXTURE_DOCUMENTS,
                             .dropout = train ? f->dropout : 0,
                             .seed = 7,
                             .epoch = (uint64_t)f->epoch};
}

static void take_nll(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    fixture_result *out = user;
    (void)index;
    assert_true(out->labels + micro->label_count <= FIXTURE_TOKENS);
    memcpy(out->nll + out->labels, tsr_model_nll(job->model),
           (size_t)micro->label_count * sizeof *out->nll);
    out->labels += micro->label_count;
}

tsr_status fixture_compute(tsr_job *job, void *result)
{
    fixture_result *out = result;
    int64_t word[TSR_WORD_COUNT];
    TSR_TRY(test_evaluate(job, &out->evaluated));
    TSR_TRY(tsr_executor_eval_end(job->executor, &(tsr_host_flags){0}));
    TSR_TRY(tsr_executor_wait_word(job->executor, word));
    TSR_TRY(job_micro_batches(job, true, out->step, take_nll, out));
    for (int layer = 0; layer < job->inputs.layout.layer_count; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const tsr_layout_linear *linear = &job->inputs.layout.unit[layer].linear[kind];
            const int segment[3] = {linear->a, linear->b, linear->m};
            for (int part = 0; linear->r && part < 3; part++)
                if (part < 2 || linear->dora)
                    out->gradient[layer][kind][part] =
                        job_gradient(&out->count[layer][kind][part], job, layer, segment[part]);
        }
    out->recompute_full = job->decision.full_count;
    out->recompute_selective = job->decision.selective_count;
    return TSR_OK;
}

void fixture_result_free(fixture_result *result)
{
    test_rows_free(&result->evaluated.rows);
    for (int layer = 0; layer < MODEL_MOST_LAYERS; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            for (int part = 0; part < 3; part++)
                free(result->gradient[layer][kind][part]);
}
