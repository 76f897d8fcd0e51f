/*
 * model/load.h: a rank's own part of every tensor, from the checkpoint into its place.
 *
 * Each rank reads the byte range of its granules and no other: plain tensors are copied, NF4
 * weights quantized on the device while the next bytes are read (or, from a bitsandbytes checkpoint,
 * copied as they are). The scale statistics of a weight belong to the whole tensor: the fp32 absmax
 * of all blocks are all-gathered (4 bytes for 64 elements), every rank computes the same offset and
 * nested scales and keeps its own codes. The bytes are the same for any number of ranks.
 *
 * Every value of the model and of an adapter must be finite: TSR_EDATA names the file, the tensor and
 * the first element of a rank's part that is not.
 *
 * Start-up only, between tsr_model_start and the first micro-batch, whose staging and activations are
 * what the bytes pass through; what else it needs on the host it allocates and frees.
 */
#ifndef TSR_MODEL_LOAD_H
#define TSR_MODEL_LOAD_H

#include "adapters/init.h"
#include "comm/comm.h"
#include "io/peft.h"
#include "model/factors.h"
#include "model/model.h"

typedef struct {
    tsr_comm *comm; /* of host memory: the group over which segments are cut */
    tsr_stream *stream;
    tsr_device *device;
    /* Where this rank's part of a frozen segment goes, granules_per_rank granules: device memory, or
     * host memory where that is its home. */
    char *(*frozen)(void *user, int unit, int segment);
    /* Takes this rank's values of a trainable segment, fp32, granules_per_rank granules. */
    tsr_status (*trainable)(void *user, int unit, int segment, const float *values);
    tsr_adapter_start start; /* of a fresh adapter */
    /* TSR_START_PRINCIPAL: the first A and B of all adapters (model/factors.h), without which the base
     * is loaded; with NF4 what is left of a weight is quantized, whether the checkpoint's is or not.
     * NULL: the base is the checkpoint's. */
    float *factors;
    void *user;
} tsr_model_loader;

/* A part of a unit of the layout, which is a unit of the plan. Collective over loader->comm; on failure all ranks return the
 * lowest failing rank's status. */
tsr_status tsr_model_load_unit(tsr_model *model, int unit, int part,
                               const tsr_model_loader *loader);

/* Masters of one unit's A and B, and of m where the adapter stores it: from `init` or, where it is
 * NULL, fresh from `seed` as loader->start says (m is left 0 until the first norms are known). Reads only the
 * owned range. Not collective. */
tsr_status tsr_model_load_trainable(const tsr_layout *layout, int unit, const tsr_peft *init,
                                    uint64_t seed, const tsr_model_loader *loader);

/* Elements [first, first + count) that a rank holds of a tensor cut in granules of 64, without
 * padding. */
void tsr_plain_range(uint64_t *first, uint64_t *count, const tsr_layout_segment *segment, int rank,
                     int ranks);

/* Rows [first, first + count) of the embedding, or of the layout's layer_rows, into `table` (at row `first`), as BF16
 * or, from F16 and F32, F32. */
tsr_status tsr_model_load_table(char *table, const tsr_tensor *tensor, uint64_t first,
                                uint64_t count, tsr_pool *pool);

#endif
