/*
 * ops_memory.h: the device of bench_ops, and memory on it: one arena, cut from its front, filled from two
 * pools of random numbers. Whatever fails ends the program.
 */
#ifndef TSR_BENCH_OPS_MEMORY_H
#define TSR_BENCH_OPS_MEMORY_H

#include "kernels/kernels.h"

_Noreturn void ops_die(const char *what);
void ops_must(tsr_status status, const char *what);

/* Exit 77 without a GPU. */
void ops_open(tsr_device **device, tsr_stream **stream);
void ops_close(void);

/* Everything that was taken is free again. */
void ops_forget(void);

/* Not initialized. */
void *ops_take(uint64_t bytes);
void *ops_host_copy(const void *host, uint64_t bytes);

/* N(0, 1), about. */
void *ops_bf16(int64_t count);
float *ops_f32(int64_t count);

/* [count] numbers from 0 on, modulo `modulus`, or random below it. */
int32_t *ops_integers(int64_t count, int64_t modulus, bool random);

#endif
