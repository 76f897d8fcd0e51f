/*
 * device.c: the functions of device.h: what all backends do alike, then the backend's table.
 */
#include "base/status.h"
#include "device/device_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation ---- */

static tsr_status check_options(tsr_device_options *options)
{
    if (options->local_rank_count == 0)
        options->local_rank_count = 1;
    if (options->timeout_seconds == 0)
        options->timeout_seconds = 300;
    if (options->thread_count < 0 || options->thread_count > 4096)
        return tsr_fail(TSR_EINVAL, "device: %d threads, expected 0 (this rank's share) to 4096",
                        options->thread_count);
    if (options->local_rank < 0 || options->local_rank >= options->local_rank_count)
        return tsr_fail(TSR_EINVAL, "device: local rank %d of %d", options->local_rank,
                        options->local_rank_count);
    if (!(options->timeout_seconds > 0))
        return tsr_fail(TSR_EINVAL, "device: a deadline of %g seconds, expected more than 0",
                        options->timeout_seconds);
    return TSR_OK;
}

tsr_status tsr_device_begin(tsr_device *device, const tsr_device_ops *ops, tsr_device_kind kind,
                            const tsr_device_options *options)
{
    device->ops = ops;
    device->kind = kind;
    if (options)
        device->options = *options;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return check_options(&device->options);
}

tsr_status tsr_device_begin_host(tsr_device *device, const char *pci_bus_id)
{
    const tsr_device_options *options = &device->options;
    int ranks = options->local_rank_count;
    TSR_TRY(tsr_topology_create(&device->topology, options->local_rank, ranks, pci_bus_id));
    int share = tsr_topology_share_count(device->topology);
    int threads = options->thread_count ? options->thread_count : share;
    bool roomy = threads <= share && share * ranks <= tsr_topology_core_count(device->topology);
    return tsr_pool_create(&device->pool, threads, options->no_pinning ? NULL : device->topology,
                           roomy);
}

void tsr_device_destroy(tsr_device *device)
{
    if (!device)
        return;
    if (device->ops->settle && !device->ops->settle(device))
        return;
    if (device->destroy_kept)
        device->destroy_kept(device->kept);
    if (device->ops->destroy)
        device->ops->destroy(device);
    tsr_pool_destroy(device->pool);
    tsr_topology_destroy(device->topology);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* ---- what a device is ---- */

const char *tsr_device_description(const tsr_device *device)
{
    return device->description;
}

tsr_pool *tsr_device_pool(tsr_device *device)
{
    return device->pool;
}

double tsr_device_timeout(const tsr_device *device)
{
    return device->options.timeout_seconds;
}

tsr_device_kind tsr_device_kind_of(const tsr_device *device)
{
    return device->kind;
}

tsr_status tsr_device_memory(uint64_t *free_bytes, uint64_t *total, tsr_device *device)
{
    TSR_TRY(tsr_device_check(device));
    return device->ops->memory(free_bytes, total, device);
}

void tsr_device_keep(tsr_device *device, void *context, void (*destroy)(void *context))
{
    device->kept = context;
    device->destroy_kept = destroy;
}

void *tsr_device_kept(const tsr_device *device)
{
    return device->kept;
}

/* ---- poison ---- */

void tsr_device_poison(tsr_device *device, tsr_status status, const char *message)
{
    if (status >= 0)
        return;
    pthread_mutex_lock(&device->lock);
    if (!atomic_load_explicit(&device->poisoned, memory_order_relaxed)) {
        device->error.status = status;
        snprintf(device->error.message, sizeof device->error.message, "%s", message);
        atomic_store_explicit(&device->poisoned, true, memory_order_release);
        pthread_cond_broadcast(&device->changed);
    }
    pthread_mutex_unlock(&device->lock);
}

void tsr_device_set_outside(tsr_device *device, tsr_device_outside *check, const void *user,
                            int rank)
{
    if (check) {
        device->outside_user = user;
        device->outside_rank = rank;
    }
    atomic_store_explicit(&device->outside, check, memory_order_release);
}

tsr_status tsr_device_check(tsr_device *device)
{
    if (!atomic_load_explicit(&device->poisoned, memory_order_acquire)) {
        tsr_device_outside *check = atomic_load_explicit(&device->outside, memory_order_acquire);
        tsr_status status = check ? check(device->outside_user, device->outside_rank) : TSR_OK;
        if (status >= 0)
            return TSR_OK;
        tsr_device_poison(device, status, tsr_last_error());
    }
    return tsr_error_put(&device->error);
}

/* ---- streams ---- */

tsr_status tsr_stream_create(tsr_stream **out, tsr_device *device, const char *name)
{
    TSR_TRY(tsr_device_check(device));
    return device->ops->stream_create(out, device, name);
}

void tsr_stream_destroy(tsr_stream *stream)
{
    if (stream)
        stream->device->ops->stream_destroy(stream);
}

tsr_device *tsr_stream_device(tsr_stream *stream)
{
    return stream->device;
}

tsr_status tsr_stream_synchronize(tsr_stream *stream)
{
    tsr_status status = stream->device->ops->stream_synchronize(stream);
    TSR_TRY(tsr_device_check(stream->device));
    return status;
}

tsr_status tsr_stream_call(tsr_stream *stream, tsr_call *function, const void *args,
                           uint32_t args_bytes)
{
    if (args_bytes > TSR_CALL_BYTES)
        return tsr_fail(TSR_EINVAL, "stream %s: a call with %u bytes of arguments, at most %d",
                        stream->name, args_bytes, TSR_CALL_BYTES);
    TSR_TRY(tsr_device_check(stream->device));
    return stream->device->ops->stream_call(stream, function, args, args_bytes);
}

tsr_status tsr_stream_copy(tsr_stream *stream, void *destination, const void *source,
                           uint64_t bytes)
{
    TSR_TRY(tsr_device_check(stream->device));
    return bytes ? stream->device->ops->stream_copy(stream, destination, source, bytes) : TSR_OK;
}

tsr_status tsr_stream_fill(tsr_stream *stream, void *destination, uint8_t value, uint64_t bytes)
{
    TSR_TRY(tsr_device_check(stream->device));
    return bytes ? stream->device->ops->stream_fill(stream, destination, value, bytes) : TSR_OK;
}

/* ---- events ---- */

tsr_status tsr_event_create(tsr_event **out, tsr_device *device)
{
    return device->ops->event_create(out, device, false);
}

tsr_status tsr_event_create_timed(tsr_event **out, tsr_device *device)
{
    return device->ops->event_create(out, device, true);
}

void tsr_event_destroy(tsr_event *event)
{
    if (event)
        event->device->ops->event_destroy(event);
}

uint64_t tsr_event_recorded(const tsr_event *event)
{
    return atomic_load(&event->recorded);
}

tsr_status tsr_event_record(tsr_event *event, tsr_stream *stream)
{
    TSR_TRY(tsr_device_check(stream->device));
    return stream->device->ops->event_record(event, stream);
}

static tsr_status check_generation(const tsr_event *event, uint64_t generation, const char *who)
{
    uint64_t recorded = tsr_event_recorded(event);
    if (generation >= 1 && generation <= recorded)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL,
                    "%s would wait for record %llu of an event that has %llu records: nobody would "
                    "record it in time",
                    who, (unsigned long long)generation, (unsigned long long)recorded);
}

tsr_status tsr_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation)
{
    TSR_TRY(tsr_device_check(stream->device));
    TSR_TRY(check_generation(event, generation, stream->name));
    return stream->device->ops->stream_wait(stream, event, generation);
}

tsr_status tsr_event_wait_host(tsr_event *event, uint64_t generation)
{
    tsr_device *device = event->device;
    TSR_TRY(tsr_device_check(device));
    TSR_TRY(check_generation(event, generation, "the calling thread"));
    tsr_status status = device->ops->event_wait_host(event, generation);
    TSR_TRY(tsr_device_check(device));
    return status;
}

double tsr_event_time(const tsr_event *event)
{
    return event->device->ops->event_time((tsr_event *)event);
}

/* ---- host memory and device memory ---- */

tsr_status tsr_device_write(tsr_device *device, void *destination, const void *source,
                            uint64_t bytes)
{
    TSR_TRY(tsr_device_check(device));
    return bytes ? device->ops->write(device, destination, source, bytes) : TSR_OK;
}

tsr_status tsr_device_read(tsr_device *device, void *destination, const void *source,
                           uint64_t bytes)
{
    TSR_TRY(tsr_device_check(device));
    return bytes ? device->ops->read(device, destination, source, bytes) : TSR_OK;
}

tsr_status tsr_device_pin(tsr_device *device, void *memory, uint64_t bytes)
{
    TSR_TRY(tsr_device_check(device));
    return bytes ? device->ops->pin(device, memory, bytes) : TSR_OK;
}

void tsr_device_unpin(tsr_device *device, void *memory)
{
    if (memory)
        device->ops->unpin(device, memory);
}

/* ---- a build without CUDA ---- */

bool tsr_device_cuda_built(void)
{
#ifdef TSR_CUDA
    return true;
#else
    return false;
#endif
}

#ifndef TSR_CUDA
static tsr_status no_cuda(void)
{
    return tsr_fail(
        TSR_EUNSUPPORTED,
        "this build has no CUDA backend: build it where nvcc 12.4 or newer with cuBLASLt "
        "and NCCL are found (cmake -DTESSERA_CUDA=ON says what is missing), or use the CPU "
        "backend");
}

tsr_status tsr_device_cuda_count(int *count)
{
    *count = 0;
    return no_cuda();
}

tsr_status tsr_device_create_cuda(tsr_device **out, const tsr_device_options *options)
{
    (void)out;
    (void)options;
    return no_cuda();
}
#endif
