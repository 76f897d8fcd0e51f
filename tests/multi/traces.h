/*
 * tests/multi/traces.h: the golden traces of tests/golden/traces: how each is run, and what it must
 * give. Tolerances are those of the golden files' README.
 */
#ifndef TSR_TESTS_MULTI_TRACES_H
#define TSR_TESTS_MULTI_TRACES_H

#include "support/job.h"

#define TRACES        TSR_SOURCE_DIR "/tests/golden/traces"
#define TRACE_MODEL   TSR_SOURCE_DIR "/examples/tiny-llama"
#define TRACE_STEPS   20
#define TRACE_MOMENTS 3 /* steps whose gradients are known */

extern const int trace_moment[TRACE_MOMENTS];

/* One run of a trace. */
typedef struct {
    const char *name;      /* of the run */
    const char *directory; /* of the trace */
    const char *data;      /* NULL: its packed batches, as pretokenized rows with seq_lengths */
    int total_batch_size;
    const char *keys[4]; /* what else the configuration says */
} trace_case;

/* Fails the test where no case has the name. */
const trace_case *trace_find(const char *name);

/* The configuration of a run; writes its data into the scratch directory where it has to. */
void trace_configure(job_spec *spec, const trace_case *run, const char *output_dir);

typedef struct {
    double loss, grad_norm, learning_rate;
    int64_t label_tokens;
} trace_step;

/* An element of B whose gradient at step 1 is rounding noise, where B starts at 0. Adam's first step
 * is lr g / (|g| + eps): the element becomes +lr or -lr by the sign of that noise, and the gradient
 * of A at step 2 hangs on it. (g_lora_packed has one, in a k_proj: 4.5e-9 where the largest is
 * 2.3e-2. In float64 it is 4.4e-9; PyTorch's mean error in that tensor is 1.5e-8, ours 1.2e-8, and
 * with all matmuls summed in double precision still 1e-8: fp32 does not hold the sign.)
 */
typedef struct {
    int tensor, a; /* this B, and the A beside it */
    uint64_t element;
    double gradient; /* the golden trace's */
} trace_noise;

/* A golden trace. Tensors lie one after the other in the order of trace.json. */
typedef struct {
    const trace_case *run;
    trace_step step[TRACE_STEPS];
    tsr_safetensors *file;
    int tensor_count;
    char **tensor;      /* PEFT's names */
    uint64_t *begin;    /* [tensor_count + 1] */
    trace_noise *noise; /* of the tensors whose whole gradient is known */
    uint64_t noise_count;
} trace_golden;

void trace_open(trace_golden *out, const trace_case *run);
void trace_close(trace_golden *golden);

/* The index of a tensor, or -1. */
int trace_tensor(const trace_golden *golden, const char *name);

/* Each judges, and prints what it measured; `all` holds the tensors one after the other. */
void trace_judge_steps(const trace_golden *golden, const trace_step *got);
/* `except` (may be NULL) [tensor_count]: tensors whose norm is not judged. */
void trace_judge_gradients(const trace_golden *golden, int moment, const double *all,
                           const bool *except);
void trace_judge_adam(const trace_golden *golden, const float *m, const float *v);
void trace_judge_final(const trace_golden *golden, const float *all);
/* In bf16 compute: distances from the golden losses, against those of PEFT in bf16, where the trace
 * has them (traces_bf16.c). */
bool trace_has_bf16(const trace_case *run);
void trace_judge_bf16(const trace_golden *golden, const trace_step *got);
/* The magnitudes that c0_dora starts from; nothing where a trace has none. */
void trace_judge_magnitudes(const trace_golden *golden, const float *all);

#endif
