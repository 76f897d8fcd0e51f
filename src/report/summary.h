/*
 * report/summary.h: the six lines before a run and the few after it.
 */
#ifndef TSR_REPORT_SUMMARY_H
#define TSR_REPORT_SUMMARY_H

#include "base/text.h"
#include "config/config.h"

/* Zero or NULL facts are left out of their line. */
typedef struct {
    const char *architecture;                                /* "llama, 6 layers" */
    uint64_t parameter_count, active_count, trainable_count; /* active: of one token */
    const char *adapter_note;        /* "and all experts", after the targets */
    int64_t sample_count, row_count; /* rows differ from samples when packed */
    int64_t token_count, label_count;
    int64_t eval_sample_count;
    const char *notes; /* about chats and rows: "; 2 of 9 rows have ... (first train.jsonl:7)" */
    int ranks;
    const char *device;
    uint64_t device_peak_bytes, host_peak_bytes; /* of one rank */
    int unit_count, resident_count, recompute_full_count, recompute_selective_count;
    int offloaded_count; /* layers whose activations go to host memory */
    bool state_offloaded;
    int64_t total_steps;
    int64_t total_before;     /* of a run that goes on longer than it was to be; 0: as long */
    double last_rate, rate;   /* its learning rate jumps from the one to the other; both 0: not */
    int64_t resumed_step;     /* of the checkpoint that the run goes on from; 0: none */
    int64_t step_samples;     /* samples or rows of one whole step */
    uint64_t base_read_bytes; /* of one rank, at most */
} tsr_summary;

/* At most six lines, each ending in a newline. */
void tsr_summary_start(tsr_text *out, const tsr_config *config, const tsr_summary *summary);

/* What the plan does to units and layers, and what is read: one line, without its newline. */
void tsr_summary_plan(tsr_text *out, const tsr_summary *summary);

/* How the program was called. */
typedef struct {
    const char *program;   /* its name, as typed */
    const char *launcher;  /* what stands before it, for a shell: "mpirun -n 2"; "": nothing */
    const char *directory; /* where: the working directory */
    bool beside_towers;    /* the adapter is of a vision-language model's text decoder */
} tsr_summary_call;

/* Where the adapter is, and the lines that evaluate it and load it in Python, to be typed as they are in any
 * directory. NaN: no such evaluation. */
void tsr_summary_end(tsr_text *out, const tsr_config *config, const tsr_summary_call *call,
                     double first_eval_loss, double last_eval_loss);

#endif
