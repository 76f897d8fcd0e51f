/*
 * io/checkpoint_parts.h: a checkpoint from the inside.
 */
#ifndef TSR_IO_CHECKPOINT_PARTS_H
#define TSR_IO_CHECKPOINT_PARTS_H

#include "io/checkpoint.h"

struct tsr_checkpoint {
    char *directory;
    char **shard_names; /* as the index names them */
    tsr_safetensors **shards;
    uint64_t shard_count, shard_capacity;
    const tsr_tensor **tensors; /* of all shards, sorted by name */
    uint64_t tensor_count, total_bytes;
    tsr_tensor *described; /* what `tensors` points to where there is no shard; owns its names */
};

/* Sorts `tensors` for tsr_checkpoint_find. */
void tsr_checkpoint_sort(tsr_checkpoint *checkpoint);

#endif
