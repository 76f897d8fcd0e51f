/*
 * tests/model/fixture.h: a random model with data on the disk, the job over it, and what the job
 * computed: losses, hidden states and the gradient of every trained tensor.
 */
#ifndef TSR_TESTS_MODEL_FIXTURE_H
#define TSR_TESTS_MODEL_FIXTURE_H

#include "model/reference.h"
#include "support/head.h"

enum { FIXTURE_ROWS = 6, FIXTURE_DOCUMENTS = 9, FIXTURE_TOKENS = 64 };

/* Six rows, two in a micro-batch: documents of one token, a row without labels beside a row of one
 * token (a micro-batch without labels), labels that are not the tokens. */
typedef struct {
    random_model model;
    char checkpoint[300], adapter[310], data[310];
    double dropout;
    int epoch; /* that is trained: one step each */
    int32_t ids[FIXTURE_TOKENS], label[FIXTURE_TOKENS];
    reference_document document[FIXTURE_DOCUMENTS];
    int labels;
} fixture;

/* Under the scratch directory; `name` is new. */
void fixture_make(fixture *out, const char *name, const model_spec *spec, double dropout);
void fixture_free(fixture *f);

/* A training job with evaluation, six rows a step. */
job_spec fixture_job(const fixture *f, const char *output);
reference_batch fixture_batch(const fixture *f, bool train);

/* What a job left. step: which one it is to run. */
typedef struct {
    int64_t step;
    test_evaluated evaluated;
    double nll[FIXTURE_TOKENS]; /* of training */
    int labels;
    double *gradient[MODEL_MOST_LAYERS][LLAMA_LINEARS][3]; /* A, B, m; NULL: not trained */
    uint64_t count[MODEL_MOST_LAYERS][LLAMA_LINEARS][3];
    int recompute_full, recompute_selective;
} fixture_result;

/* A body for job_run on one rank: an evaluation, then the micro-batches of one step. */
tsr_status fixture_compute(tsr_job *job, void *result);
void fixture_result_free(fixture_result *result);

#endif
