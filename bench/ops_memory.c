/*
 * ops_memory.c: see ops_memory.h.
 */
#include "ops_memory.h"

#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>

#define ARENA_BYTES ((uint64_t)12 << 30)
#define POOL_BYTES  ((uint64_t)64 << 20)

static tsr_device *device;
static tsr_stream *stream;
static tsr_arena *all;
static char *arena, *bf16_pool, *f32_pool;
static uint64_t arena_used, pools_end, drawn;

_Noreturn void ops_die(const char *what)
{
    fprintf(stderr, "bench_ops: %s: %s\n", what, tsr_last_error());
    exit(71);
}

void ops_must(tsr_status status, const char *what)
{
    if (status < 0)
        ops_die(what);
}

void *ops_take(uint64_t bytes)
{
    char *at = arena + arena_used;
    arena_used += (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
    if (arena_used > ARENA_BYTES) {
        fprintf(stderr, "bench_ops: the arena is too small\n");
        exit(70);
    }
    return at;
}

/* What is still being copied there would come after what is written next. */
void ops_forget(void)
{
    ops_must(tsr_stream_synchronize(stream), "random data");
    arena_used = pools_end;
}

static void *random_from(const char *pool, uint64_t bytes)
{
    char *out = ops_take(bytes);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < POOL_BYTES / 2 ? bytes - done : POOL_BYTES / 2;
        uint64_t from = tsr_mix(++drawn) % ((POOL_BYTES - piece) / 256 + 1) * 256;
        ops_must(tsr_stream_copy(stream, out + done, pool + from, piece), "random data");
        done += piece;
    }
    return out;
}

void *ops_bf16(int64_t count)
{
    return random_from(bf16_pool, (uint64_t)count * 2);
}

float *ops_f32(int64_t count)
{
    return (float *)(void *)random_from(f32_pool, (uint64_t)count * 4);
}

void *ops_host_copy(const void *host, uint64_t bytes)
{
    void *out = ops_take(bytes);
    ops_must(tsr_device_write(device, out, host, bytes), "a copy");
    return out;
}

int32_t *ops_integers(int64_t count, int64_t modulus, bool random)
{
    int32_t *host = malloc((size_t)count * sizeof *host);
    if (!host)
        ops_die("memory");
    for (int64_t i = 0; i < count; i++)
        host[i] = (int32_t)((random ? (int64_t)(tsr_mix((uint64_t)i) >> 1) : i) % modulus);
    int32_t *out = ops_host_copy(host, (uint64_t)count * sizeof *host);
    free(host);
    return out;
}

/* Pools of N(0, 1), about. */
static void make_pools(void)
{
    uint64_t count = POOL_BYTES / 4;
    float *wide = malloc(POOL_BYTES);
    uint16_t *narrow = malloc(POOL_BYTES);
    if (!wide || !narrow)
        ops_die("memory");
    for (uint64_t i = 0; i < 2 * count; i++) {
        uint64_t bits = tsr_mix(i);
        float sum = -2;
        for (int part = 0; part < 4; part++)
            sum += (float)((bits >> (16 * part)) & 0xffff) * 0x1p-16f;
        narrow[i] = tsr_f32_to_bf16(1.732f * sum);
        if (i < count)
            wide[i] = 1.732f * sum;
    }
    bf16_pool = ops_host_copy(narrow, POOL_BYTES);
    f32_pool = ops_host_copy(wide, POOL_BYTES);
    pools_end = arena_used;
    free(wide);
    free(narrow);
}

void ops_open(tsr_device **out_device, tsr_stream **out_stream)
{
    void *base;
    if (tsr_device_create_cuda(&device, NULL) < 0) {
        fprintf(stderr, "bench_ops: %s\n", tsr_last_error());
        exit(77);
    }
    ops_must(tsr_stream_create(&stream, device, "bench"), "a stream");
    ops_must(tsr_arena_create(&all, device, TSR_MEMORY_DEVICE, ARENA_BYTES), "the arena");
    ops_must(tsr_arena_take(&base, all, "all", ARENA_BYTES), "the arena");
    arena = base;
    make_pools();
    *out_device = device;
    *out_stream = stream;
}

void ops_close(void)
{
    ops_must(tsr_stream_synchronize(stream), "the end");
    tsr_arena_destroy(all);
    tsr_stream_destroy(stream);
}
