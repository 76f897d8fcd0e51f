/*
 * optim/schedule.h: the learning rate of each optimizer step, as transformers 5's schedules give it
 * (optimization.py, get_scheduler). The names, and which of lr_scheduler_kwargs each takes, are in
 * one table: the configuration follows it.
 */
#ifndef TSR_OPTIM_SCHEDULE_H
#define TSR_OPTIM_SCHEDULE_H

#include "base/status.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TSR_SCHEDULE_LINEAR,
    TSR_SCHEDULE_COSINE,
    TSR_SCHEDULE_CONSTANT,
    TSR_SCHEDULE_CONSTANT_WITH_WARMUP,
    TSR_SCHEDULE_COSINE_WITH_MIN_LR,
    TSR_SCHEDULE_COSINE_WITH_RESTARTS,
    TSR_SCHEDULE_POLYNOMIAL,
    TSR_SCHEDULE_INVERSE_SQRT,
    TSR_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR,
    TSR_SCHEDULE_WARMUP_STABLE_DECAY,
    TSR_SCHEDULE_KINDS
} tsr_schedule_kind;

/* The members of lr_scheduler_kwargs. */
typedef enum {
    TSR_SCHEDULE_NUM_CYCLES,       /* waves; restarts: runs from the peak to 0 */
    TSR_SCHEDULE_MIN_LR,           /* the floor, */
    TSR_SCHEDULE_MIN_LR_RATE,      /* or the floor over the peak */
    TSR_SCHEDULE_WARMUP_LR_RATE,   /* the first rate over the peak */
    TSR_SCHEDULE_LR_END,           /* the last rate */
    TSR_SCHEDULE_POWER,            /* of what is left of the decay */
    TSR_SCHEDULE_TIMESCALE,        /* steps; the warm-up's unless given, 10000 without one */
    TSR_SCHEDULE_NUM_DECAY_STEPS,  /* the last steps, which decay */
    TSR_SCHEDULE_NUM_STABLE_STEPS, /* those before; the rest of the run unless given */
    TSR_SCHEDULE_MIN_LR_RATIO,     /* warmup_stable_decay's name of min_lr_rate */
    TSR_SCHEDULE_WARMUP_TYPE,      /* a tsr_schedule_shape */
    TSR_SCHEDULE_DECAY_TYPE,       /* likewise */
    TSR_SCHEDULE_ARGUMENTS
} tsr_schedule_argument;

typedef enum {
    TSR_SCHEDULE_BY_LINE,
    TSR_SCHEDULE_BY_COSINE,
    TSR_SCHEDULE_BY_ROOT
} tsr_schedule_shape;

/* What a configuration says; NaN: not given. */
typedef struct {
    double value[TSR_SCHEDULE_ARGUMENTS];
} tsr_schedule_arguments;

#define TSR_SCHEDULE_NO_ARGUMENTS                                                                  \
    ((tsr_schedule_arguments){{NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}})

typedef struct {
    tsr_schedule_kind kind;
    uint64_t warmup_steps, total_steps;
    tsr_schedule_arguments arguments; /* resolved; min_lr as min_lr_rate, lr_end over the peak */
} tsr_schedule;

typedef struct {
    tsr_schedule_kind kind;
    double warmup_steps;  /* 1 or more: steps; below 1: a share of total_steps, rounded up */
    double learning_rate; /* the peak */
    tsr_schedule_arguments arguments;
} tsr_schedule_options;

/* "cosine". */
const char *tsr_schedule_name(tsr_schedule_kind kind);

/* "num_cycles"; the largest value, the least is 0; the words of a value that is one ("linear", ended by
 * NULL), or NULL. */
const char *tsr_schedule_argument_name(tsr_schedule_argument argument);
double tsr_schedule_argument_most(tsr_schedule_argument argument);
const char *const *tsr_schedule_argument_words(tsr_schedule_argument argument);

/* TSR_ECONFIG: an argument that the schedule does not take or cannot do without, both of min_lr and
 * min_lr_rate, a value out of range. The message names the key. */
tsr_status tsr_schedule_make(tsr_schedule *out, const tsr_schedule_options *options,
                             uint64_t total_steps);

/* The multiplier of optimizer step `index` + 1; with a warm-up, index 0 mostly gives 0. */
double tsr_schedule_multiplier(const tsr_schedule *schedule, uint64_t index);

#endif
