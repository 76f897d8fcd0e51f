/*
 * device/range.h: named ranges of the calling thread's time, which a profiler shows above what was
 * launched inside them (NVTX). They cost a few nanoseconds where none is attached, and are nothing
 * in a build without CUDA or without NVTX's headers.
 */
#ifndef TSR_DEVICE_RANGE_H
#define TSR_DEVICE_RANGE_H

#include <stdbool.h>

/* Whether ranges do anything: a name need not be made where they do not. */
bool tsr_ranges_built(void);

/* `name` is copied. Ranges nest; each begin has its end on the same thread. */
void tsr_range_begin(const char *name);
void tsr_range_end(void);

#endif
