/*
 * tests/model/reference.h: the model in double precision, written for clarity: one document at a
 * time, so that none can see another, no fixed point, no fused op. Independent of src but for the
 * dropout mask, which is a random choice and not a result.
 */
#ifndef TSR_TESTS_MODEL_REFERENCE_H
#define TSR_TESTS_MODEL_REFERENCE_H

#include "model/random_model.h"

/* One document. label[t] is what token t predicts, -1: nothing. */
typedef struct {
    const int32_t *ids, *label;
    int length;
    uint64_t sample;
    int first_position; /* in its sample */
} reference_document;

typedef struct {
    const reference_document *document;
    int count;
    double dropout; /* 0: none */
    uint64_t seed, epoch;
} reference_batch;

/* The sum of the losses of all labels. nll: one for each label, in order; hidden: [labels, d], the
 * final norm's output there; both may be NULL. DoRA's n is the model's (a constant). */
double reference_loss(const random_model *model, const reference_batch *batch, double *nll,
                      double *hidden);

#endif
