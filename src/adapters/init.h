/*
 * adapters/init.h: the values a fresh adapter starts from: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0
 * (PEFT's kaiming uniform with a = sqrt 5), or what else init_lora_weights asks for; those of PiSSA are
 * made from the weight (principal.h). A value depends on the seed, the module's path and its
 * flat index only, so a rank can make any range of it.
 */
#ifndef TSR_ADAPTERS_INIT_H
#define TSR_ADAPTERS_INIT_H

#include <stdint.h>

typedef enum {
    TSR_START_KAIMING,
    TSR_START_RANDOM,   /* B too: ~ U(-1/sqrt(r), 1/sqrt(r)) */
    TSR_START_NORMAL,   /* A ~ N(0, 1/r^2) */
    TSR_START_PRINCIPAL /* PiSSA */
} tsr_adapter_start;

/* A 64-bit name of a module for counter-based generators. */
uint64_t tsr_adapter_module_key(const char *path);

/* The same of one expert's part of a module. */
uint64_t tsr_adapter_expert_key(uint64_t module_key, uint64_t expert);

/* Elements [first, first + count) of lora_A [r, in_features], flat. */
void tsr_adapter_init_a(float *out, uint64_t first, uint64_t count, uint64_t in_features,
                        uint64_t seed, uint64_t module_key);

/* The same of lora_B [out, r] with TSR_START_RANDOM. */
void tsr_adapter_init_b(float *out, uint64_t first, uint64_t count, uint64_t r, uint64_t seed,
                        uint64_t module_key);

/* Elements [first, first + count) of numbers ~ N(0, deviation^2). */
void tsr_adapter_init_normal(float *out, uint64_t first, uint64_t count, double deviation,
                             uint64_t seed, uint64_t module_key);

#endif
