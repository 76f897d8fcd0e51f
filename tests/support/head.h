/*
 * tests/support/head.h: the final norm's output of label rows, and logits from it in double.
 */
#ifndef TSR_TESTS_SUPPORT_HEAD_H
#define TSR_TESTS_SUPPORT_HEAD_H

#include "support/job.h"

/* The head of a checkpoint, transposed, as doubles: weight[k * vocab + v]. */
typedef struct {
    double *weight;
    uint64_t vocab, d;
} test_head;

void test_head_load(test_head *out, const char *checkpoint, const char *tensor);
void test_head_free(test_head *head);

/* logits [vocab] of one row h [d]. */
void test_head_logits(double *logits, const test_head *head, const float *h);
double test_logsumexp(const double *logits, uint64_t vocab);

/* What the micro-batches of an evaluation left, in the order of their indices: rows [count, d] and
 * nll [count]. Fill with test_rows_take, a job_seen that adds to it (one thread at a time). */
typedef struct {
    float *rows;
    double *nll;
    int64_t count;
} test_rows;

void test_rows_take(void *user, tsr_job *job, const tsr_micro_batch *micro, int64_t index);
void test_rows_free(test_rows *rows);

/* A body for job_run: an evaluation by tsr_job_evaluate, then its rows; one rank. */
typedef struct {
    tsr_job_evaluation evaluation;
    test_rows rows;
} test_evaluated;

tsr_status test_evaluate(tsr_job *job, void *user);

#endif
