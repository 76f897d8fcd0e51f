/* device_cpu.c: the CPU playing an accelerator: device memory is host memory. */
#include "device/cpu_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *vector_set(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return "AVX-512";
    if (__builtin_cpu_supports("avx2"))
        return "AVX2";
    return "SSE2";
#elif defined(__aarch64__)
    return "NEON";
#else
    return "no vectors";
#endif
}

static void describe(tsr_device *device)
{
    int cores = tsr_topology_core_count(device->topology);
    int threads = tsr_pool_thread_count(device->pool);
    snprintf(device->description, sizeof device->description,
             "CPU (%s, %d core%s, %s), %d thread%s", tsr_topology_model(device->topology), cores,
             cores == 1 ? "" : "s", vector_set(), threads, threads == 1 ? "" : "s");
}

static tsr_status memory(uint64_t *free_bytes, uint64_t *total, tsr_device *device)
{
    (void)device;
    tsr_cgroup cgroup;
    tsr_cgroup_read(&cgroup, "");
    uint64_t left = tsr_cgroup_free(&cgroup);
    *total = tsr_topology_memory(&cgroup);
    *free_bytes = left < *total ? left : *total;
    return TSR_OK;
}

static tsr_status move(tsr_device *device, void *destination, const void *source, uint64_t bytes)
{
    (void)device;
    memcpy(destination, source, bytes);
    return TSR_OK;
}

static tsr_status pin(tsr_device *device, void *pinned, uint64_t bytes)
{
    (void)device;
    (void)pinned;
    (void)bytes;
    return TSR_OK;
}

static bool unpin(tsr_device *device, void *pinned)
{
    (void)device;
    (void)pinned;
    return true;
}

static const tsr_device_ops cpu_ops = {
    .memory = memory,
    .write = move,
    .read = move,
    .pin = pin,
    .unpin = unpin,
    .stream_create = tsr_cpu_stream_create,
    .stream_destroy = tsr_cpu_stream_destroy,
    .stream_synchronize = tsr_cpu_stream_synchronize,
    .stream_call = tsr_cpu_stream_call,
    .stream_copy = tsr_cpu_stream_copy,
    .stream_fill = tsr_cpu_stream_fill,
    .stream_wait = tsr_cpu_stream_wait,
    .event_create = tsr_cpu_event_create,
    .event_destroy = tsr_cpu_event_destroy,
    .event_record = tsr_cpu_event_record,
    .event_wait_host = tsr_cpu_event_wait_host,
    .event_time = tsr_cpu_event_time,
};

tsr_status tsr_device_create_cpu(tsr_device **out, const tsr_device_options *options)
{
    cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return tsr_fail(TSR_ENOMEM, "no memory for a device");
    tsr_device *device = &cpu->base;
    tsr_status status = tsr_device_begin(device, &cpu_ops, TSR_DEVICE_CPU, options);
    if (status == TSR_OK)
        status = tsr_device_begin_host(device, NULL);
    if (status < 0) {
        tsr_device_destroy(device);
        return status;
    }
    describe(device);
    *out = device;
    return TSR_OK;
}
