/*
 * adapters/init.h: the values a fresh adapter starts from: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0
 * (PEFT's kaiming uniform with a = sqrt 5). A value depends on the seed, the module's path and its
 * flat index only, so a rank can make any range of it.
 */
#ifndef TSR_ADAPTERS_INIT_H
#define TSR_ADAPTERS_INIT_H

#include <stdint.h>

/* A 64-bit name of a module for counter-based generators. */
uint64_t tsr_adapter_module_key(const char *path);

/* Elements [first, first + count) of lora_A [r, in_features], flat. */
void tsr_adapter_init_a(float *out, uint64_t first, uint64_t count, uint64_t in_features,
                        uint64_t seed, uint64_t module_key);

#endif
