/*
 * tests/model/golden_trace.h: a training as PEFT did it: tests/golden/families/<family>/<trace>, of whose tensors there
 * are some elements, and norms of all (docs/testing.md, "Golden families").
 */
#ifndef TSR_TESTS_MODEL_GOLDEN_TRACE_H
#define TSR_TESTS_MODEL_GOLDEN_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* One tensor of the adapter: every stride-th of `count` elements. */
typedef struct {
    const char *name;
    uint64_t count, stride, samples;
    const float *gradient; /* [samples], at step 1 */
    double gradient_l2, gradient_largest;
    const float *final; /* [samples]; NULL where the trace has none */
    double final_rms;
} golden_tensor;

typedef struct {
    json_t *facts; /* trace.json */
    golden_tensor *tensor;
    uint64_t count;
    float *gradient, *final; /* all samples */
} golden_trace;

/* The test fails where the files are not what they should be. */
void golden_trace_open(golden_trace *trace, const char *directory);
void golden_trace_close(golden_trace *trace);

const golden_tensor *golden_trace_find(const golden_trace *trace, const char *name);

/* The worst so far of a gradient's elements, as parts of its tensor's largest, and of the norms, as parts of them. */
void golden_gradient_apart(double worst[2], const golden_tensor *want, const double *got,
                           uint64_t count);

/* adapter_model.safetensors in `written` has these tensors, no others, and values near the final ones. */
void golden_trace_judge_final(const golden_trace *trace, const char *written, double element,
                              double rms);

/* The adapters in two directories are the same, bit for bit. */
void golden_same_adapter(const char *a, const char *b);

#endif
