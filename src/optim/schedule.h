/*
 * optim/schedule.h: the learning rate of each optimizer step, as transformers' schedules give it.
 */
#ifndef TSR_OPTIM_SCHEDULE_H
#define TSR_OPTIM_SCHEDULE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TSR_SCHEDULE_LINEAR,
    TSR_SCHEDULE_COSINE,
    TSR_SCHEDULE_CONSTANT,
    TSR_SCHEDULE_CONSTANT_WITH_WARMUP,
    TSR_SCHEDULE_COSINE_WITH_MIN_LR
} tsr_schedule_kind;

typedef struct {
    tsr_schedule_kind kind;
    uint64_t warmup_steps, total_steps;
    double num_cycles;  /* cosine: 0.5 is down once */
    double min_lr_rate; /* cosine_with_min_lr: the floor, as a share of the base rate */
} tsr_schedule;

/* What a configuration says. Zero-initialise: every *_set false means the key is absent. */
typedef struct {
    const char *name;     /* lr_scheduler_type; NULL: "linear" */
    double warmup_steps;  /* 1 or more: steps; below 1: a share of total_steps, rounded up */
    double warmup_ratio;  /* the older name of that share; used where warmup_steps is 0 */
    double learning_rate; /* the base rate, for min_lr */
    double num_cycles, min_lr, min_lr_rate;
    bool num_cycles_set, min_lr_set, min_lr_rate_set;
} tsr_schedule_options;

/* TSR_ECONFIG: an unknown name, a key the schedule does not take, both or neither of min_lr and
 * min_lr_rate where one is needed, a value out of range. The message names the key. */
tsr_status tsr_schedule_make(tsr_schedule *out, const tsr_schedule_options *options,
                             uint64_t total_steps);

/* The multiplier of optimizer step `index` + 1; with a warm-up, index 0 gives 0. */
double tsr_schedule_multiplier(const tsr_schedule *schedule, uint64_t index);

/* The names, comma-separated, for messages. */
const char *tsr_schedule_names(void);

#endif
