/*
 * shard/control.h: the control word, what all ranks agree on once per step.
 *
 * An array of int64 that is all-reduced by SUM over the world, so every field is a count or a sum:
 * a flag is set if it is not 0. OPTIM is predicated on it on the device; the host reads a copy.
 *
 * Order    GRAD_NORM (or TALLY after an evaluation) fills it, CONTROL reduces it, OPTIM and WORD
 *          read it.
 */
#ifndef TSR_SHARD_CONTROL_H
#define TSR_SHARD_CONTROL_H

#include "base/exact_sum.h"

#include <stdbool.h>

enum {
    TSR_WORD_STOP,         /* ranks that were asked to stop */
    TSR_WORD_ERROR,        /* ranks with an error: the step is discarded */
    TSR_WORD_NON_FINITE,   /* ranks that saw a loss or a gradient that is not finite: likewise */
    TSR_WORD_TIME_LIMIT,   /* ranks whose time is up */
    TSR_WORD_LOSS,         /* sum of losses, fixed point TSR_WORD_LOSS_SHIFT */
    TSR_WORD_LABEL_TOKENS, /* of the step's micro-batches */
    TSR_WORD_INPUT_TOKENS,
    TSR_WORD_CORRECT,                   /* labels that are the argmax */
    TSR_WORD_ENTROPY,                   /* sum of entropies, TSR_WORD_LOSS_SHIFT */
    TSR_WORD_AUX,                       /* sum of auxiliary losses, TSR_WORD_LOSS_SHIFT */
    TSR_WORD_DROPPED,                   /* slots of experts that were left out */
    TSR_WORD_SPARE,                     /* 4 words for later, 0 */
    TSR_WORD_NORM = TSR_WORD_SPARE + 4, /* tsr_exact_sum: squared norm of the gradient */
    TSR_WORD_COUNT = TSR_WORD_NORM + TSR_EXACT_WORDS
    /* then what the plan's options ask for beside: of each router in a step, slots of each expert */
};

#define TSR_WORD_LOSS_SHIFT 32

/* What the host knows when it issues the end of a step or of an evaluation. */
typedef struct {
    bool stop, error, time_limit;
    int64_t label_tokens, input_tokens; /* of this rank's micro-batches */
} tsr_host_flags;

/* OPTIM must leave everything as it is. */
static inline bool tsr_word_discards(const int64_t *word)
{
    return word[TSR_WORD_ERROR] != 0 || word[TSR_WORD_NON_FINITE] != 0;
}

static inline double tsr_word_loss(const int64_t *word)
{
    return (double)word[TSR_WORD_LOSS] * 0x1p-32;
}

static inline double tsr_word_entropy(const int64_t *word)
{
    return (double)word[TSR_WORD_ENTROPY] * 0x1p-32;
}

static inline double tsr_word_aux(const int64_t *word)
{
    return (double)word[TSR_WORD_AUX] * 0x1p-32;
}

static inline tsr_exact_sum *tsr_word_norm(int64_t *word)
{
    return (tsr_exact_sum *)(void *)(word + TSR_WORD_NORM);
}

#endif
