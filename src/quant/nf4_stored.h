/*
 * quant/nf4_stored.h: an NF4 weight of a bitsandbytes checkpoint: the state that belongs to the whole
 * tensor, checked, and its values piece by piece.
 *
 * Threads  An open one is read-only.
 */
#ifndef TSR_QUANT_NF4_STORED_H
#define TSR_QUANT_NF4_STORED_H

#include "io/checkpoint.h"
#include "quant/nf4_tensor.h"

/* How the scales are decoded, with the checkpoint's own map. */
typedef struct {
    tsr_nf4_scales scales; /* points into the two below */
    float *nested;         /* [nested_count], owned; NULL: scales are fp32 */
    float map[256];
} tsr_nf4_state;

/* Reads what is replicated of `source`, which is prequantized, and holds it against `cut`
 * (tsr_nf4_check_checkpoint). *out must stay where it is; on success free it with
 * tsr_nf4_state_free. */
tsr_status tsr_nf4_state_read(tsr_nf4_state *out, const tsr_weight *source,
                              const tsr_nf4_layout *cut);
void tsr_nf4_state_free(tsr_nf4_state *state);

typedef struct tsr_nf4_stored tsr_nf4_stored;

/* Borrows the weight's tensors. Holds the fp32 scales of all blocks: 1/16 byte an element. */
tsr_status tsr_nf4_stored_open(tsr_nf4_stored **out, const tsr_weight *source);
void tsr_nf4_stored_close(tsr_nf4_stored *stored);

/* Elements [first, first + count) as fp32: level * absmax, rounded once. */
tsr_status tsr_nf4_stored_read(float *out, const tsr_nf4_stored *stored, uint64_t first,
                               uint64_t count);

#endif
