/*
 * kernels/rope_tables.h: the cosines and sines of rotary embeddings (Su et al. 2021), as Transformers'
 * modeling_rope_utils.py has them, for rope_qkv.h.
 *
 * D = head_dim. Pair i turns by position f_i, f_i = theta^(-2i / D):
 *     none      nothing turns: cosine 1, sine 0
 *     linear    f_i / factor
 *     llama3    long waves / factor, short ones as they are, a smooth change in between
 *     yarn      f_i ((1 - ramp_i) + ramp_i / factor), ramp_i rising from 0 to 1 between the pairs that turn beta_fast
 *               and beta_slow times in original_max_positions (Peng et al. 2023); both tables are multiplied by
 *               attention_factor
 *     long      f_i / factor_i; documents longer than original_max_positions have factors of their own (LongRoPE,
 *               Ding et al. 2024), and a second table; all are multiplied by attention_factor
 *
 *     proportional  f_i for the first `share` of the pairs; the others do not turn (Gemma 4)
 *
 * query_beta: queries are multiplied by 1 + query_beta ln(1 + floor(position / original_max_positions)) (Ministral 3).
 */
#ifndef TSR_KERNELS_ROPE_TABLES_H
#define TSR_KERNELS_ROPE_TABLES_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    TSR_ROPE_DEFAULT,
    TSR_ROPE_LINEAR,
    TSR_ROPE_LLAMA3,
    TSR_ROPE_NONE,
    TSR_ROPE_YARN,
    TSR_ROPE_LONG,
    TSR_ROPE_PROPORTIONAL
} tsr_rope_type;

#define TSR_ROPE_MOST_PAIRS 256

typedef struct {
    tsr_rope_type type;
    double theta;
    double factor;                 /* linear, llama3, yarn */
    double low_frequency_factor;   /* llama3 */
    double high_frequency_factor;  /* llama3 */
    double original_max_positions; /* llama3, yarn */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn, long */
    double
        all_magnitude; /* yarn: m(mscale_all_dim), which latent attention scales scores by; 0: not said */
    double share;        /* proportional */
    bool exact_ends;     /* yarn: the ends of the ramp are not rounded to whole pairs */
    double query_beta;   /* 0: none */
    uint64_t rotary_dim; /* columns of a head that turn; 0: all */
    bool neighbours;     /* pairs are (2i, 2i + 1) */
    float short_factor[TSR_ROPE_MOST_PAIRS], long_factor[TSR_ROPE_MOST_PAIRS]; /* long */
} tsr_rope_scaling;

/* Which table is filled. */
typedef enum {
    TSR_ROPE_TABLE,
    TSR_ROPE_TABLE_OF_LONG,   /* of documents longer than original_max_positions */
    TSR_ROPE_TABLE_OF_QUERIES /* with query_beta */
} tsr_rope_table_kind;

/* Fills cosine and sine, [position_count, head_dim / 2] each (head_dim: the columns that turn), from angles computed
 * in fp64. Host code: for start-up. TSR_EINVAL: an odd head_dim or a scaling out of range. */
tsr_status tsr_rope_tables(float *cosine, float *sine, int32_t position_count, int32_t head_dim,
                           const tsr_rope_scaling *scaling, tsr_rope_table_kind kind);

#endif
