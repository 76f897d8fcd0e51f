/*
 * toy_parts.h: the toy model's values and arithmetic, shared by its serial and its sharded run.
 */
#ifndef TEST_SHARD_TOY_PARTS_H
#define TEST_SHARD_TOY_PARTS_H

#include "shard/toy.h"

/* What one micro-batch after the other leaves; a rank's is touched on streams only. */
typedef struct {
    uint64_t x, dx, saved[MAX_UNITS], norm[MAX_UNITS];
    int64_t loss;
} toy_state;

/* What a layer with saved_bytes saves of a micro-batch: bytes of its region, [0, saved_bytes], a
 * multiple of 8; the pattern there, of what the layer computed; and that, read back. */
uint64_t toy_saved_bytes(const random_model *model, int layer, uint64_t seed);
void toy_write_region(char *region, uint64_t bytes, uint64_t value);
uint64_t toy_read_region(const char *region, uint64_t bytes);

/* Granules [first, first + count) of a frozen segment. */
void toy_frozen_bytes(char *out, const tsr_segment *s, uint64_t first, uint64_t count);
float toy_first_master(uint32_t param, uint64_t element);
uint64_t toy_micro_seed(bool train, int step, int micro_batch);
void toy_store_work(void *work, tsr_dtype dtype, uint64_t i, float value);
/* Of all real bytes of both parts, in tensor order: the same for any number of ranks. */
uint64_t toy_hash_view(const tsr_unit *unit, const tsr_unit_view *view);
int64_t toy_gradient_at(uint64_t dx, uint32_t param, uint64_t element);
/* Whether a gradient of the micro-batch is not finite: in lost_step an element of the first one's lowest
 * unit. */
bool toy_lost(const toy_job *job, uint64_t seed, const tsr_segment *s, uint64_t element);
/* One element's update, from the exact sum and the exact norm. */
void toy_update(float *master, float *m, int64_t sum, double norm);
/* F, H or B of a unit whose view has that hash. A backward uses t->saved of the unit, every other use
 * that of the unit below. */
void toy_use(toy_state *t, const tsr_unit *unit, tsr_use_phase phase, uint64_t hash, uint64_t seed,
             bool first);
/* Where a trainable segment begins in toy_outcome.master; (-1, -1): the number of elements. */
uint64_t toy_element_base(const random_model *model, int unit, int segment);
bool toy_evaluates(const toy_job *job, int step);

#endif
