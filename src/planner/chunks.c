/*
 * chunks.c: how the optimizer's state that lives in host memory is cut, and how many chunks of it the device has room
 * for.
 *
 * An update begins with what the buffers hold and goes on as fast as copies run, while the next forward follows it
 * unit by unit. So buffers should hold much, chunks should be small, since nothing of a chunk is used before all of
 * it is there, and copies large, or issuing them takes longer than running them.
 */
#include "planner/parts.h"

#include "base/checked.h"

#define CHUNKS      48 /* of what a rank owns: eight buffers are a sixth of the state, */
#define MOST_BYTES  ((uint64_t)64 << 20) /* but together at most 512 MiB */
#define COPY_BYTES  ((uint64_t)1 << 20)  /* of an array of a chunk, where that still leaves */
#define FEW_CHUNKS  32                   /* so many; */
#define LEAST_COUNT ((uint64_t)1 << 14)  /* and of so many elements always */
#define SHARE       4 /* buffers are for one of so many chunks, or nothing would be saved, */
#define LEAST       2 /* but so many always */

void tsr_decide_chunks(tsr_plan_options *options, const tsr_decision *d, const tsr_layout *layout,
                       bool coded)
{
    uint64_t owned = 0, array = coded ? 1 : sizeof(float), each = sizeof(float) + 2 * array;
    for (int i = 0; i < layout->plan_unit_count; i++)
        owned += d->units[i].trainable.gradient_count;
    uint64_t few = tsr_ceil_div(owned, FEW_CHUNKS), copy = COPY_BYTES / array;
    uint64_t chunk = tsr_ceil_div(owned, CHUNKS), least = copy < few ? copy : few;
    uint64_t most = MOST_BYTES / each / TSR_GRANULE_ELEMENTS * TSR_GRANULE_ELEMENTS;
    chunk = chunk < most ? chunk : most;
    chunk = chunk > least ? chunk : least;
    chunk = tsr_align_up(chunk > LEAST_COUNT ? chunk : LEAST_COUNT, TSR_GRANULE_ELEMENTS);
    uint64_t buffers = tsr_ceil_div(owned, chunk) / SHARE;
    buffers = buffers < TSR_STATE_BUFFERS ? buffers : TSR_STATE_BUFFERS;
    options->chunk_elements = chunk;
    options->state_buffers = buffers > LEAST ? (int)buffers : LEAST;
}
