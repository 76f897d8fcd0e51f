/*
 * load_mxfp4.c: the rank's part of a stack of experts that the checkpoint has in MXFP4: taken as it is, its rows sorted
 * by part (quant/mxfp4_stack.h). Some experts at a time, each by one thread.
 */
#include "model/load_parts.h"

#include "shard/granule.h"

#include <stdatomic.h>
#include <stdlib.h>

#define CHUNK_BYTES ((uint64_t)64 << 20) /* of codes at a time, or one expert's */

/* Granules [first, end) of the stack, to codes and scales. */
typedef struct {
    const tsr_mxfp4_stack *stack;
    uint64_t first, end, of_expert;
    uint8_t *codes, *scales;
    atomic_bool failed;
} chunk;

static tsr_status read_expert(const chunk *c, uint64_t expert)
{
    uint64_t from = expert * c->of_expert, to = from + c->of_expert;
    from = from > c->first ? from : c->first;
    to = to < c->end ? to : c->end;
    uint64_t at = from - c->first;
    return tsr_mxfp4_stack_read(c->codes + at * TSR_MXFP4_GRANULE_CODE_BYTES,
                                c->scales + at * TSR_MXFP4_GRANULE_SCALE_BYTES, c->stack, from,
                                to - from);
}

static void read_one(void *context, int index)
{
    chunk *c = context;
    if (read_expert(c, c->first / c->of_expert + (uint64_t)index) < 0)
        atomic_store(&c->failed, true);
}

static tsr_status read_chunk(chunk *c, tsr_pool *pool)
{
    uint64_t expert = c->first / c->of_expert, last = (c->end - 1) / c->of_expert;
    tsr_pool_run(pool, (int)(last - expert) + 1, read_one, c);
    for (; atomic_load(&c->failed) && expert <= last; expert++)
        TSR_TRY(read_expert(c, expert)); /* again, for this thread's message */
    return TSR_OK;
}

static tsr_status load(const tsr_load_job *job, const tsr_layout_stack *stack, uint64_t most,
                       chunk *c)
{
    const tsr_model_loader *loader = job->loader;
    char *codes = loader->frozen(loader->user, job->unit, stack->codes);
    char *scales = loader->frozen(loader->user, job->unit, stack->absmax);
    uint64_t own, count, all = tsr_mxfp4_stack_granules(c->stack);
    tsr_granule_range(&own, &count, all, (uint64_t)job->ranks, (uint64_t)job->rank);
    for (uint64_t done = 0; done < count; done = c->end - own) {
        uint64_t whole = (own + done) / c->of_expert * c->of_expert + most;
        c->first = own + done;
        c->end = whole < own + count ? whole : own + count;
        TSR_TRY(read_chunk(c, tsr_device_pool(loader->device)));
        TSR_TRY(tsr_device_write(loader->device, codes + done * TSR_MXFP4_GRANULE_CODE_BYTES,
                                 c->codes, (c->end - c->first) * TSR_MXFP4_GRANULE_CODE_BYTES));
        TSR_TRY(tsr_device_write(loader->device, scales + done * TSR_MXFP4_GRANULE_SCALE_BYTES,
                                 c->scales, (c->end - c->first) * TSR_MXFP4_GRANULE_SCALE_BYTES));
    }
    return TSR_OK;
}

tsr_status tsr_load_mxfp4_stack(tsr_load_job *job, int index)
{
    const tsr_layout_unit *unit = &tsr_model_layout(job->model)->unit[job->unit];
    const tsr_layout_stack *stack = &unit->stack[index];
    uint64_t of_expert = (uint64_t)stack->parts * stack->stored.granules;
    uint64_t experts = CHUNK_BYTES / (of_expert * TSR_MXFP4_GRANULE_CODE_BYTES);
    uint64_t most = (experts ? experts : 1) * of_expert;
    chunk c = {.stack = &stack->stored,
               .of_expert = of_expert,
               .codes = malloc(most * TSR_MXFP4_GRANULE_CODE_BYTES),
               .scales = malloc(most * TSR_MXFP4_GRANULE_SCALE_BYTES)};
    tsr_status status = c.codes && c.scales
                            ? load(job, stack, most, &c)
                            : tsr_fail(TSR_ENOMEM, "out of memory while loading %s", stack->path);
    free(c.codes);
    free(c.scales);
    return tsr_load_agree(job, status);
}
