/*
 * bench/model.h: a model of a known shape without a checkpoint's weights, for bench_model.
 *
 * model_files.c writes what a job reads: config.json, a sparse model.safetensors (a correct header,
 * no data on the disk), rows of random tokens that are all labels, and a job.yaml. model_fill.c puts
 * random frozen parts where the loader would put real ones: NF4 codes, scales and plain tensors as
 * weights of a normal distribution of deviation 0.02 give them. model_run.c runs the steps,
 * model_longest.c asks plan how long rows may be, model_timeline.c says what a step's time is spent on,
 * model_floor.c what it would take at the roofs, attention_roof.c times attention alone at the shape, and
 * model_report.c prints it all.
 */
#ifndef TSR_BENCH_MODEL_H
#define TSR_BENCH_MODEL_H

#include "base/dtype.h"
#include "base/status.h"
#include "model/arch/config.h"
#include "model/program.h"
#include "tessera.h"

#include <jansson.h>
#include <stdbool.h>

#define BENCH_PATH_BYTES     4096
#define BENCH_MOST_STEPS     4096
#define BENCH_MOST_DOCUMENTS 1024
#define BENCH_MOST_LAYERS    256
#define BENCH_MOST_ADAPTERS  16

typedef struct {
    const char *name, *type, *class; /* "llama3-8b", "llama", "LlamaForCausalLM" */
    int64_t d, f, layers, heads, kv_heads, head_dim, vocabulary, positions;
    double rope_theta, eps;
    const char *more; /* what else the family has in config.json */
} bench_shape;

/* NULL: unknown. */
const bench_shape *bench_shape_find(const char *name);

/* "llama3-8b, ..." for a message. */
const char *bench_shape_names(void);

/* One run. Strings are the command line's, or the file's of --runs. */
typedef struct {
    bench_shape shape; /* layers: as asked for */
    int64_t layers;    /* 0: all of the shape */
    int64_t batch, length, r, steps, warmup;
    int64_t part;     /* length is a part of `longest`, 2: a half; 0: as asked for */
    int64_t longest;  /* what plan named; 0: it was not asked */
    int64_t adapters; /* on one base, that step in turns: a step is one adapter's */
    bool dora, timeline;
    bool pairs; /* rows are answers, two of them a pair, which DPO is trained on */
    const char *recompute, *offload, *dtype, *backend, *memory_budget, *resident;
    const char *documents; /* "64:1500": batch x length tokens as documents of such lengths */
    const char *roofs;     /* what bench_roofs printed; NULL: no floor */
    const char *scratch;   /* parent of the run's directory; NULL: $TMPDIR or /tmp */
    const char *line;      /* of the file of --runs; NULL: there is none */
    const char **overrides;
    int override_count;
    int rank, ranks;
    /* Tokens of each row of a micro-batch; without `documents` batch times length. */
    int64_t row[BENCH_MOST_DOCUMENTS];
    int64_t row_count;
    char directory[BENCH_PATH_BYTES / 4];
} bench_run;

/* How a run's attention is computed: as in tsr_attention_bounds. */
typedef struct {
    tsr_dtype dtype;
    bool atomics;
    int wider;
} bench_attention;

/* What it gave. */
typedef struct {
    double step_s[BENCH_MOST_STEPS], exposed_s[BENCH_MOST_STEPS];
    double issue_s[BENCH_MOST_STEPS]; /* the host's time to give the step to the streams */
    double start_s;                   /* until the first step could begin */
    double train_s;                   /* all timed steps, with the last one's end */
    double first_loss, last_loss, grad_norm;
    int64_t skipped, tokens; /* tokens: of a step, all ranks; with mixing in the mean */
    /* With adapter_mixing: tokens one step does the work of several, and the next none: of whole rounds of adapters */
    struct {
        int64_t steps;        /* timed, a multiple of the adapters; 0: there is no mixing */
        int64_t micro, count; /* micro-batches of the schedule; steps of all adapters in it */
        int64_t capacity;
        double fill;
    } mixing;
    uint64_t arena_planned, arena_used, host_bytes;
    uint64_t budget;                       /* of device memory */
    uint64_t free_first, free_last, total; /* device memory after step 1 and at the end */
    int64_t most_change;                   /* of free memory between the two, over all ranks */
    int units, resident, decoded, selective, full, offloaded, host_units;
    tsr_keep keep[BENCH_MOST_LAYERS]; /* what each layer may keep */
    uint64_t slot_bytes;
    double host_traffic; /* bytes that a step copies to the device on this rank */
    double dropout;
    tsr_dtype dtype;
    bool cuda, nf4, int8, fp8;
    bench_attention attention;
    json_t *timeline; /* NULL: not asked for */
    char device[256];
} bench_result;

/* Micro-batches of a step; with mixing in the mean, a rank's share. */
double bench_micro_batches(const bench_run *run, const bench_result *r);

/* Fills `row` and row_count. 0, or -1: no such documents, with a message on stderr. */
int bench_rows_make(bench_run *run);

/* What config.json of the run's shape says. */
tsr_status bench_config_make(tsr_model_config *out, const bench_run *run);

/* Writes all files into run->directory; one rank of the node. 0, or -1 with a message on stderr. */
int bench_files_write(const bench_run *run);

/* With `part`: `longest` as plan names it for the job that lies in run->directory; 0, or -1 with a message on stderr. */
int bench_longest_ask(bench_run *run);
/* Then rows of that length, or a part of it; the files are to be written anew. 0, or -1: none is left, with a message on stderr. */
int bench_longest_take(bench_run *run);
/* That such a run took the memory of its plan, and no more than its budget; 0, or -1 with a message on stderr. */
int bench_longest_check(const bench_run *run, const bench_result *r);

/* The job's hook (src/job/parts.h): fills every frozen place of this rank. The pool that it
 * draws from stays for the process's next job. */
tsr_status bench_fill(tsr_job *job);

/* A job from its creation to its end, with its files; collective. 0, or -1 with a message on
 * stderr. */
int bench_run_steps(bench_result *out, bench_run *run);

/* What the last traced steps of a job whose streams are idle were spent on. NULL: there are none. */
json_t *bench_timeline(tsr_job *job);

/* FLOP/s of attention forward and backward on local rank 0's device, median of several; only the
 * visible half of the scores is counted. Measured once a process for each shape. Documents are taken as
 * equally long ones, each as long as that of the average token. */
tsr_status bench_attention_roof(double *forward, double *backward, const bench_run *run,
                                const bench_attention *how);

/* Adds the floor, term by term, and what the step is of it, and tells both on stderr. 0, or -1: no
 * roofs. */
int bench_floor_add(json_t *all, const bench_run *run, const bench_result *r, double step_s);

/* One line of JSON on stdout, a summary on stderr; rank 0. */
int bench_report(const bench_run *run, const bench_result *r);
/* The line of a run that failed. */
void bench_report_failure(const bench_run *run);

#endif
