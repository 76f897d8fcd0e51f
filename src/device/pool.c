/*
 * pool.c: threads that take the indices of one piece of work.
 *
 * `state` says whether a piece of work may be joined and how many helpers are in it. A helper joins
 * only while it is open, and the caller leaves only when it is closed and empty; so the fields of
 * the work are never written while someone reads them, and a helper that wakes late finds it
 * closed.
 */
#include "device/device_parts.h"
#include "device/futex.h"

#include <stdio.h>
#include <stdlib.h>

#define OPEN    0x10000u
#define HELPERS 0xffffu
#define SPINS   2000 /* about 30 us, between two matmuls of one layer */

struct tsr_pool {
    void (*function)(void *context, int index);
    void *context;
    int count;
    _Alignas(64) _Atomic int next;
    _Alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t bell;   /* rings for a new piece of work, and to stop */
    _Atomic uint32_t empty;  /* rings when the last helper has left a closed one */
    _Atomic int sleepers;    /* helpers that sleep on `bell` */
    _Atomic bool busy, stop; /* busy: some thread's work owns the pool */
    const tsr_topology *topology;
    int helper_count, spins;
    pthread_t *helpers;
};

static void take_indices(tsr_pool *pool)
{
    int index;
    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < pool->count)
        pool->function(pool->context, index);
}

/* Joins the open work and does its share. */
static void help(tsr_pool *pool)
{
    uint32_t state = atomic_load(&pool->state);
    do {
        if (!(state & OPEN))
            return;
    } while (!atomic_compare_exchange_weak(&pool->state, &state, state + 1));
    take_indices(pool);
    /* All indices are taken: nobody need join any more. */
    atomic_fetch_and(&pool->state, ~OPEN);
    if ((atomic_fetch_sub(&pool->state, 1) & HELPERS) == 1) {
        atomic_fetch_add(&pool->empty, 1);
        tsr_futex_wake_all(&pool->empty);
    }
}

static void *helper(void *argument)
{
    tsr_pool *pool = argument;
    if (pool->topology)
        tsr_topology_bind_thread(pool->topology);
    uint32_t seen = 0;
    while (!atomic_load(&pool->stop)) {
        for (int i = 0; i < pool->spins && atomic_load(&pool->bell) == seen; i++)
            tsr_cpu_relax();
        atomic_fetch_add(&pool->sleepers, 1);
        while (atomic_load(&pool->bell) == seen)
            tsr_futex_wait(&pool->bell, seen, 3600);
        atomic_fetch_sub(&pool->sleepers, 1);
        seen = atomic_load(&pool->bell);
        help(pool);
    }
    return NULL;
}

static void ring(tsr_pool *pool, int count)
{
    atomic_fetch_add(&pool->bell, 1);
    if (atomic_load(&pool->sleepers) > 0)
        tsr_futex_wake(&pool->bell, count);
}

static void wait_empty(tsr_pool *pool)
{
    for (int i = 0; i < pool->spins && (atomic_load(&pool->state) & HELPERS); i++)
        tsr_cpu_relax();
    for (;;) {
        uint32_t seen = atomic_load(&pool->empty);
        if (!(atomic_load(&pool->state) & HELPERS))
            return;
        tsr_futex_wait(&pool->empty, seen, 3600);
    }
}

void tsr_pool_run(tsr_pool *pool, int count, void (*function)(void *context, int index),
                  void *context)
{
    if (count <= 1 || pool->helper_count == 0 || atomic_exchange(&pool->busy, true)) {
        for (int i = 0; i < count; i++)
            function(context, i);
        return;
    }
    pool->function = function;
    pool->context = context;
    pool->count = count;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->state, OPEN);
    ring(pool, count - 1);
    take_indices(pool);
    atomic_fetch_and(&pool->state, ~OPEN);
    wait_empty(pool);
    atomic_store(&pool->busy, false);
}

int tsr_pool_thread_count(const tsr_pool *pool)
{
    return pool->helper_count + 1;
}

tsr_status tsr_pool_create(tsr_pool **out, int thread_count, const tsr_topology *topology,
                           bool spin)
{
    tsr_status status = TSR_OK;
    tsr_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool)
        return tsr_fail(TSR_ENOMEM, "no memory for a pool of threads");
    *pool = (tsr_pool){.topology = topology, .spins = spin ? SPINS : 0};
    pool->helpers = calloc((size_t)thread_count, sizeof *pool->helpers);
    if (!pool->helpers) {
        status = tsr_fail(TSR_ENOMEM, "no memory for a pool of %d threads", thread_count);
        goto out;
    }
    for (int i = 0; i < thread_count - 1; i++) {
        char name[16];
        snprintf(name, sizeof name, "pool %d", i + 1);
        status = tsr_thread_start(&pool->helpers[i], name, helper, pool);
        if (status < 0)
            goto out;
        pool->helper_count = i + 1;
    }
out:
    if (status == TSR_OK)
        *out = pool;
    else
        tsr_pool_destroy(pool);
    return status;
}

void tsr_pool_destroy(tsr_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->bell, 1);
    tsr_futex_wake_all(&pool->bell);
    for (int i = 0; i < pool->helper_count; i++)
        pthread_join(pool->helpers[i], NULL);
    free(pool->helpers);
    free(pool);
}
