/*
 * model/factors.h: the first A and B of every adapter of a model that starts from the principal parts of
 * its weights (adapters/principal.h), as one array of floats: of each linear with an adapter, in the
 * order of the layers, A [r, in], then B [out, r], with the true rank.
 *
 * They are needed twice: the base is loaded without scale B A (model/load.h), and an adapter that is
 * saved takes them out of the whole base again.
 */
#ifndef TSR_MODEL_FACTORS_H
#define TSR_MODEL_FACTORS_H

#include "adapters/principal.h"
#include "model/layout.h"

typedef struct {
    float *a, *b;
} tsr_factors;

/* Floats of all of them. */
uint64_t tsr_factors_count(const tsr_layout *layout);

/* Where a linear, which has an adapter, has its own in `all`. */
tsr_factors tsr_factors_at(float *all, const tsr_layout *layout, int unit, int linear);

/* The true rank of a linear's adapter. */
uint64_t tsr_factors_rank(const tsr_layout_unit *unit, int linear);

/* Elements [first, first + count) of a linear's weight as the checkpoint has it, as fp32: an NF4 one is
 * dequantized. TSR_EDATA: one is not finite. */
typedef struct tsr_weight_reader tsr_weight_reader;
tsr_status tsr_weight_reader_open(tsr_weight_reader **out, const tsr_weight *source);
void tsr_weight_reader_close(tsr_weight_reader *reader);
tsr_status tsr_weight_reader_read(float *out, const tsr_weight_reader *reader, uint64_t first,
                                  uint64_t count, tsr_pool *pool);

typedef struct {
    int64_t rounds; /* as in tsr_principal_args */
    uint64_t seed;
    tsr_dtype dtype;
} tsr_factors_options;

/* Reads the weight of a linear and finds its A and B. Allocates the weight as fp32 and what
 * adapters/principal.h says, and frees them. */
tsr_status tsr_factors_find(tsr_factors out, const tsr_layout *layout, int unit, int linear,
                            const tsr_factors_options *options, tsr_pool *pool);

/* What that costs, to be compared with others'. */
double tsr_factors_work(const tsr_layout *layout, int unit, int linear);

#endif
