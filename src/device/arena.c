/* arena.c: host memory by itself, device memory through the backend; both handed out from the start. */
#include "base/checked.h"
#include "device/device_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Under AddressSanitizer the bytes that belong to no buffer are forbidden. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(address, bytes) __asan_poison_memory_region(address, bytes)
#define ALLOW(address, bytes)  __asan_unpoison_memory_region(address, bytes)
#else
#define FORBID(address, bytes) (void)0
#define ALLOW(address, bytes)  (void)0
#endif

#define TOUCH_BYTES (16u << 20) /* one thread's turn of the first touch */

struct tsr_arena {
    tsr_device *device;
    tsr_memory memory;
    bool on_host; /* else the base is an address that the host must not touch */
    char *base;
    uint64_t bytes, used;
};

/* Bytes of memory and swap that are free, or what the control groups leave; UINT64_MAX if the system does not
 * tell. */
static uint64_t available_bytes(const char **of)
{
    tsr_cgroup cgroup;
    tsr_cgroup_read(&cgroup, "");
    uint64_t left = tsr_cgroup_free(&cgroup);
    FILE *file = fopen("/proc/meminfo", "re");
    *of = "control group";
    if (!file)
        return left;
    uint64_t sum = 0;
    bool told = false;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        unsigned long long kib;
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            sum += kib * 1024;
            told = true;
        } else if (sscanf(line, "SwapFree: %llu kB", &kib) == 1)
            sum += kib * 1024;
    }
    fclose(file);
    if (!told || left <= sum)
        return left;
    *of = "system";
    return sum;
}

static void touch(void *context, int index)
{
    tsr_arena *arena = context;
    uint64_t first = (uint64_t)index * TOUCH_BYTES;
    uint64_t bytes = arena->bytes - first < TOUCH_BYTES ? arena->bytes - first : TOUCH_BYTES;
    memset(arena->base + first, 0, bytes);
}

static const char *kind(tsr_memory memory)
{
    return memory == TSR_MEMORY_HOST ? "host" : "device";
}

static tsr_status map(tsr_arena *arena)
{
    tsr_device *device = arena->device;
    /* Linux promises more than it has and then kills the process, so look first. */
    const char *of;
    uint64_t available = available_bytes(&of);
    void *base = MAP_FAILED;
    if (arena->bytes <= available && arena->bytes <= (uint64_t)PTRDIFF_MAX)
        base = mmap(NULL, arena->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return tsr_fail(TSR_ENOMEM,
                        "the %s arena of %llu bytes cannot be allocated: the %s has %llu bytes "
                        "available; use a smaller memory_budget, more ranks on more machines, or "
                        "free memory",
                        kind(arena->memory), (unsigned long long)arena->bytes, of,
                        (unsigned long long)available);
    arena->base = base;
    madvise(base, arena->bytes, MADV_HUGEPAGE);
    if (!device->options.no_pinning)
        tsr_topology_bind_memory(device->topology, base, arena->bytes);
    tsr_pool_run(device->pool, (int)tsr_ceil_div(arena->bytes, TOUCH_BYTES), touch, arena);
    return TSR_OK;
}

static tsr_status allocate(tsr_arena *arena)
{
    tsr_device *device = arena->device;
    if (!arena->on_host) {
        void *base;
        TSR_TRY(device->ops->allocate(&base, device, arena->bytes));
        arena->base = base;
        return TSR_OK;
    }
    TSR_TRY(map(arena));
    tsr_status status = device->ops->pin(device, arena->base, arena->bytes);
    if (status < 0) {
        munmap(arena->base, arena->bytes);
        return status;
    }
    FORBID(arena->base, arena->bytes);
    return TSR_OK;
}

tsr_status tsr_arena_create(tsr_arena **out, tsr_device *device, tsr_memory memory, uint64_t bytes)
{
    TSR_TRY(tsr_device_check(device));
    tsr_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return tsr_fail(TSR_ENOMEM, "no memory for an arena");
    arena->device = device;
    arena->memory = memory;
    arena->on_host = memory == TSR_MEMORY_HOST || !device->ops->allocate;
    arena->bytes = bytes;
    tsr_status status = bytes ? allocate(arena) : TSR_OK;
    if (status < 0) {
        free(arena);
        return status;
    }
    *out = arena;
    return TSR_OK;
}

void tsr_arena_destroy(tsr_arena *arena)
{
    if (!arena)
        return;
    if (arena->base && arena->on_host) {
        ALLOW(arena->base, arena->bytes);
        if (arena->device->ops->unpin(arena->device, arena->base))
            munmap(arena->base, arena->bytes);
    } else if (arena->base)
        arena->device->ops->release(arena->device, arena->base);
    free(arena);
}

tsr_status tsr_arena_take(void **out, tsr_arena *arena, const char *name, uint64_t bytes)
{
    uint64_t end;
    bool fits = tsr_add_u64(&end, arena->used, bytes) && end <= arena->bytes;
    if (!fits)
        return tsr_fail(
            TSR_EINTERNAL,
            "buffer %s of %llu bytes does not fit the %s arena: %llu of its %llu bytes "
            "are left; the plan counted too little",
            name, (unsigned long long)bytes, kind(arena->memory),
            (unsigned long long)(arena->bytes > arena->used ? arena->bytes - arena->used : 0),
            (unsigned long long)arena->bytes);
    if (bytes == 0) {
        *out = NULL;
        return TSR_OK;
    }
    *out = arena->base + arena->used;
    if (arena->on_host)
        ALLOW(*out, bytes);
    arena->used = tsr_align_up(end, TSR_ALIGNMENT);
    return TSR_OK;
}

void tsr_arena_rewind(tsr_arena *arena)
{
    arena->used = 0;
}

uint64_t tsr_arena_high_water(const tsr_arena *arena)
{
    return arena->used;
}

uint64_t tsr_arena_bytes(const tsr_arena *arena)
{
    return arena->bytes;
}
