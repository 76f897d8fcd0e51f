/*
 * bench/model.h: a model of a known shape without a checkpoint's weights, for bench_model.
 *
 * model_files.c writes what a job reads: config.json, a sparse model.safetensors (a correct header,
 * no data on the disk), rows of random tokens that are all labels, and a job.yaml. model_fill.c puts
 * random frozen parts where the loader would put real ones: NF4 codes, scales and plain tensors as
 * weights of a normal distribution of deviation 0.02 give them. attention_roof.c times attention
 * alone at the shape.
 */
#ifndef TSR_BENCH_MODEL_H
#define TSR_BENCH_MODEL_H

#include "base/dtype.h"
#include "base/status.h"
#include "tessera.h"

#include <stdbool.h>

#define BENCH_PATH_BYTES 4096

typedef struct {
    const char *name, *type; /* "llama3-8b", "llama" */
    int64_t d, f, layers, heads, kv_heads, head_dim, vocabulary, positions;
    double rope_theta, eps;
} bench_shape;

/* NULL: unknown. */
const bench_shape *bench_shape_find(const char *name);

/* "llama3-8b, ..." for a message. */
const char *bench_shape_names(void);

/* One run. Strings are the command line's. */
typedef struct {
    bench_shape shape; /* layers: as asked for */
    int64_t batch, length, r, steps, warmup;
    bool dora;
    const char *recompute, *offload, *dtype, *backend, *memory_budget, *resident;
    const char *roofs;   /* what bench_roofs printed; NULL: no floor */
    const char *scratch; /* parent of the run's directory; NULL: $TMPDIR or /tmp */
    const char **overrides;
    int override_count;
    int rank, ranks;
    char directory[BENCH_PATH_BYTES / 4];
} bench_run;

/* Writes all files into run->directory; one rank of the node. 0, or -1 with a message on stderr. */
int bench_files_write(const bench_run *run);

/* The job's hook (src/train/job_parts.h): fills every frozen place of this rank. */
tsr_status bench_fill(tsr_job *job);

/* FLOP/s of attention forward and backward on local rank 0's device, median of several; only the
 * visible half of the scores is counted. */
tsr_status bench_attention_roof(double *forward, double *backward, const bench_run *run,
                                tsr_dtype dtype);

#endif
