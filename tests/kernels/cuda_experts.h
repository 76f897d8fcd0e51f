/*
 * tests/kernels/cuda_experts.h: rows of experts on the device, for the CUDA ops that read them.
 */
#ifndef TSR_TESTS_KERNELS_CUDA_EXPERTS_H
#define TSR_TESTS_KERNELS_CUDA_EXPERTS_H

#include "cuda_case.h"
#include "expert_rows_test.h"

/* Of the same counts and slots; `gather`: with the slots. */
static inline tsr_expert_rows device_rows(const expert_case *c, bool gather)
{
    tsr_expert_rows rows = c->rows;
    rows.offset = cuda_copy(c->offset, (uint64_t)(rows.experts + 1) * sizeof *c->offset);
    rows.slot = gather ? cuda_copy(c->slot, (uint64_t)rows.most * sizeof *c->slot) : NULL;
    return rows;
}

static inline tsr_expert_rows host_rows(const expert_case *c, bool gather)
{
    tsr_expert_rows rows = c->rows;
    rows.slot = gather ? c->slot : NULL;
    return rows;
}

/* Runs `run` as on a card whose driver maps no boxes. */
static inline void without_boxes(void (*run)(void))
{
    tsr_kernels_context *context = tsr_device_kept(rig.device);
    void *boxes = context->boxes;
    context->boxes = NULL;
    run();
    context->boxes = boxes;
}

#endif
