#include "support/head.h"

#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

void test_head_load(test_head *out, const char *checkpoint, const char *name)
{
    tsr_checkpoint *open = NULL;
    if (tsr_checkpoint_open(&open, checkpoint) < 0)
        fail_msg("%s", tsr_last_error());
    const tsr_tensor *tensor = tsr_checkpoint_find(open, name);
    assert_non_null(tensor);
    test_head head = {.vocab = tensor->shape[0], .d = tensor->shape[1]};
    float *rows = malloc(tensor->element_count * sizeof *rows);
    head.weight = malloc(tensor->element_count * sizeof *head.weight);
    assert_true(rows && head.weight);
    assert_int_equal(tsr_safetensors_read_f32(rows, tensor, 0, tensor->element_count), TSR_OK);
    for (uint64_t v = 0; v < head.vocab; v++)
        for (uint64_t k = 0; k < head.d; k++)
            head.weight[k * head.vocab + v] = (double)rows[v * head.d + k];
    free(rows);
    tsr_checkpoint_close(open);
    *out = head;
}

void test_head_free(test_head *head)
{
    free(head->weight);
    *head = (test_head){0};
}

void test_head_logits(double *logits, const test_head *head, const float *h)
{
    memset(logits, 0, head->vocab * sizeof *logits);
    for (uint64_t k = 0; k < head->d; k++) {
        const double *weight = head->weight + k * head->vocab;
        for (uint64_t v = 0; v < head->vocab; v++)
            logits[v] += (double)h[k] * weight[v];
    }
}

double test_logsumexp(const double *logits, uint64_t vocab)
{
    double most = logits[0], sum = 0;
    for (uint64_t v = 1; v < vocab; v++)
        most = worse(logits[v], most);
    for (uint64_t v = 0; v < vocab; v++)
        sum += exp(logits[v] - most);
    return most + log(sum);
}

void test_rows_take(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index)
{
    test_rows *out = user;
    uint64_t d = job->inputs.model.hidden_size;
    uint64_t before = (uint64_t)out->count, more = (uint64_t)micro->label_count;
    (void)index;
    out->rows = realloc(out->rows, (before + more) * d * sizeof *out->rows + 1);
    out->nll = realloc(out->nll, (before + more) * sizeof *out->nll + 1);
    memcpy(out->rows + before * d, tsr_model_label_rows(job->model), more * d * sizeof *out->rows);
    memcpy(out->nll + before, tsr_model_nll(job->model), more * sizeof *out->nll);
    out->count += micro->label_count;
}

void test_rows_free(test_rows *rows)
{
    free(rows->rows);
    free(rows->nll);
    *rows = (test_rows){0};
}

tsr_status test_evaluate(tsr_job *job, void *user)
{
    test_evaluated *out = user;
    out->evaluation.size = sizeof out->evaluation;
    TSR_TRY(tsr_job_evaluate(job, &out->evaluation));
    return job_micro_batches(job, false, 0, test_rows_take, &out->rows);
}
