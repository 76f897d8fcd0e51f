/*
 * device_cuda.c: an NVIDIA card: finding it, saying what is wrong with it, and its memory.
 */
#include "device/cuda_parts.h"
#include "device/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define LEAST_MAJOR 8                     /* compute capability: bf16 and asynchronous copies */
#define EARLY_ARCH  90                    /* code for older cards has no instruction to wait */
#define MOVE_BYTES  ((uint64_t)256 << 20) /* of a write or read at a time, each with the deadline */
#define CPU_INSTEAD "or use the CPU (backend: cpu)"

/* ---- errors ---- */

tsr_status tsr_cuda_status(cudaError_t error, const char *what)
{
    char memory[96] = "";
    size_t left, all;
    if (error == cudaSuccess)
        return TSR_OK;
    if (error != cudaErrorMemoryAllocation)
        return tsr_fail(TSR_EDEVICE, "CUDA: %s: %s (%s)", what, cudaGetErrorString(error),
                        cudaGetErrorName(error));
    if (cudaMemGetInfo(&left, &all) == cudaSuccess)
        snprintf(memory, sizeof memory, "%zu of the GPU's %zu bytes are free; ", left, all);
    cudaGetLastError();
    return tsr_fail(TSR_ENOMEM,
                    "CUDA: %s: %s (%s): %send what else runs on the GPU (nvidia-smi), or use a "
                    "smaller memory_budget",
                    what, cudaGetErrorString(error), cudaGetErrorName(error), memory);
}

/* Why there is no card. CUDA numbers version 13.1 as 13010. */
static tsr_status explain(cudaError_t error)
{
    int driver = 0, runtime = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaGetLastError();
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return tsr_fail(TSR_EDEVICE,
                        "no NVIDIA driver was found (libcuda.so.1): install one for CUDA %d, start "
                        "the container with its GPUs, " CPU_INSTEAD,
                        runtime / 1000);
    if (error == cudaErrorInsufficientDriver)
        return tsr_fail(TSR_EDEVICE,
                        "the NVIDIA driver knows CUDA %d.%d, and this build was made with CUDA "
                        "%d.%d: update the driver, build with CUDA %d, " CPU_INSTEAD,
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                        driver / 1000);
    if (error == cudaErrorNoDevice)
        return tsr_fail(TSR_EDEVICE,
                        "the NVIDIA driver (CUDA %d.%d) shows this process no GPU, and "
                        "CUDA_VISIBLE_DEVICES is %s: see nvidia-smi, start the container with its "
                        "GPUs, " CPU_INSTEAD,
                        driver / 1000, driver % 1000 / 10, visible ? visible : "not set");
    if (error == cudaErrorStubLibrary)
        return tsr_fail(TSR_EDEVICE,
                        "libcuda.so.1 is the CUDA toolkit's stub and no driver: take the stubs "
                        "folder out of LD_LIBRARY_PATH, install the NVIDIA driver, " CPU_INSTEAD);
    return tsr_cuda_status(error, "no GPU can be used; see nvidia-smi, " CPU_INSTEAD);
}

/* ---- memory ---- */

static bool settle(tsr_device *device)
{
    tsr_cuda_enter(device);
    return tsr_cuda_drain((cuda_device *)device);
}

static tsr_status memory(uint64_t *free_bytes, uint64_t *total, tsr_device *device)
{
    size_t left = 0, all = 0;
    tsr_cuda_enter(device);
    TSR_TRY(tsr_cuda_enqueued(device, cudaMemGetInfo(&left, &all), "reading its memory", "-"));
    *free_bytes = left;
    *total = all;
    return TSR_OK;
}

/* Until the device's own stream is idle. */
static tsr_status wait_own(cuda_device *device, const char *what)
{
    cudaError_t error =
        tsr_cuda_poll(device, &(tsr_cuda_awaited){.stream = tsr_stream_cuda(device->own)});
    if (error != cudaErrorNotReady)
        return tsr_cuda_enqueued(&device->base, error, what, device->own->name);
    TSR_TRY(tsr_device_check(&device->base));
    return tsr_fail(TSR_ETIMEOUT, "%s has not ended for %g s", what,
                    device->base.options.timeout_seconds);
}

static tsr_status move(tsr_device *base, void *destination, const void *source, uint64_t bytes)
{
    cuda_device *device = (cuda_device *)base;
    for (uint64_t at = 0; at < bytes; at += MOVE_BYTES) {
        uint64_t part = bytes - at < MOVE_BYTES ? bytes - at : MOVE_BYTES;
        TSR_TRY(tsr_cuda_stream_copy(device->own, (char *)destination + at,
                                     (const char *)source + at, part));
        TSR_TRY(wait_own(device, "a copy between host and device"));
    }
    return TSR_OK;
}

static tsr_status pin(tsr_device *device, void *pinned, uint64_t bytes)
{
    char limit_text[64] = "none";
    struct rlimit limit;
    tsr_cuda_enter(device);
    cudaError_t error =
        cudaHostRegister(pinned, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaSuccess)
        return TSR_OK;
    cudaGetLastError();
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(limit_text, sizeof limit_text, "%llu KiB",
                 (unsigned long long)limit.rlim_cur / 1024);
    return tsr_fail(TSR_ENOMEM,
                    "%llu bytes of host memory cannot be pinned for %s: %s (%s); the limit of "
                    "locked memory (ulimit -l) is %s: raise it, keep less in host memory, or free "
                    "memory",
                    (unsigned long long)bytes, ((cuda_device *)device)->name,
                    cudaGetErrorString(error), cudaGetErrorName(error), limit_text);
}

static bool unpin(tsr_device *device, void *pinned)
{
    if (!settle(device))
        return false;
    cudaHostUnregister(pinned);
    cudaGetLastError();
    return true;
}

static void release(tsr_device *device, void *base)
{
    if (settle(device))
        cudaFree(base);
    cudaGetLastError();
}

static tsr_status allocate(void **out, tsr_device *base, uint64_t bytes)
{
    cuda_device *device = (cuda_device *)base;
    uint64_t left = 0, all = 0;
    void *taken = NULL;
    tsr_cuda_enter(base);
    cudaError_t error = cudaMalloc(&taken, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        TSR_TRY(memory(&left, &all, base));
        return tsr_fail(TSR_ENOMEM,
                        "the device arena of %llu bytes cannot be allocated: %s has %llu of its "
                        "%llu bytes free; use a smaller memory_budget, shorter micro-batches or "
                        "more GPUs, or end what else runs on it (nvidia-smi)",
                        (unsigned long long)bytes, device->name, (unsigned long long)left,
                        (unsigned long long)all);
    }
    TSR_TRY(tsr_cuda_enqueued(base, error, "allocating an arena", "-"));
    tsr_status status = tsr_cuda_stream_fill(device->own, taken, 0, bytes);
    if (status == TSR_OK)
        status = wait_own(device, "clearing an arena");
    if (status < 0)
        release(base, taken);
    else
        *out = taken;
    return status;
}

/* ---- the device ---- */

void tsr_cuda_enter(const tsr_device *device)
{
    int current = -1, index = ((const cuda_device *)device)->properties.index;
    if (index >= 0 && (cudaGetDevice(&current) != cudaSuccess || current != index))
        cudaSetDevice(index);
}

const tsr_cuda_properties *tsr_device_cuda_properties(const tsr_device *device)
{
    return &((const cuda_device *)device)->properties;
}

tsr_status tsr_device_cuda_count(int *count)
{
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    if (error != cudaSuccess) {
        *count = 0;
        return explain(error);
    }
    return *count > 0 ? TSR_OK : explain(cudaErrorNoDevice);
}

static void destroy(tsr_device *base)
{
    cuda_device *device = (cuda_device *)base;
    tsr_cuda_clock_destroy(device);
    tsr_stream_destroy(device->own);
    pthread_mutex_destroy(&device->streams_lock);
    pthread_mutex_destroy(&device->clock_lock);
    cudaGetLastError();
}

static const tsr_device_ops cuda_ops = {
    .settle = settle,
    .destroy = destroy,
    .memory = memory,
    .write = move,
    .read = move,
    .pin = pin,
    .unpin = unpin,
    .allocate = allocate,
    .release = release,
    .stream_create = tsr_cuda_stream_create,
    .stream_destroy = tsr_cuda_stream_destroy,
    .stream_synchronize = tsr_cuda_stream_synchronize,
    .stream_call = tsr_cuda_stream_call,
    .stream_copy = tsr_cuda_stream_copy,
    .stream_fill = tsr_cuda_stream_fill,
    .stream_wait = tsr_cuda_stream_wait,
    .event_create = tsr_cuda_event_create,
    .event_destroy = tsr_cuda_event_destroy,
    .event_record = tsr_cuda_event_record,
    .event_wait_host = tsr_cuda_event_wait_host,
    .event_time = tsr_cuda_event_time,
};

/* Whether this build has code for the card, which is current, and which. */
static tsr_status check_code(cuda_device *device)
{
    int arch;
    cudaError_t error = tsr_cuda_probe(&arch);
    device->properties.arch = arch;
    device->properties.early_kernels = TSR_CUDA_EARLY && arch >= EARLY_ARCH;
    if (error == cudaSuccess)
        return TSR_OK;
    cudaGetLastError();
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
        error != cudaErrorUnsupportedPtxVersion && error != cudaErrorInvalidPtx)
        return tsr_cuda_status(error, device->name);
    return tsr_fail(TSR_EDEVICE,
                    "%s has compute capability %d.%d, and this build holds code for " TSR_CUDA_ARCHS
                    " (%s): build with -DTSR_CUDA_ARCHS=%d%d-real, " CPU_INSTEAD,
                    device->name, device->properties.major, device->properties.minor,
                    cudaGetErrorName(error), device->properties.major, device->properties.minor);
}

/* Takes card number `index` for this process; the context is made here. */
static tsr_status open_card(cuda_device *device, int index)
{
    struct cudaDeviceProp card;
    char pci_bus_id[32];
    int runtime = 0;
    TSR_TRY(tsr_cuda_status(cudaGetDeviceProperties(&card, index), "reading a GPU's properties"));
    snprintf(device->name, sizeof device->name, "%.63s", card.name);
    if (card.major < LEAST_MAJOR)
        return tsr_fail(TSR_EDEVICE,
                        "%s has compute capability %d.%d, expected %d.0 or newer (Ampere): use a "
                        "newer card, " CPU_INSTEAD,
                        device->name, card.major, card.minor, LEAST_MAJOR);
    TSR_TRY(tsr_cuda_status(cudaSetDevice(index), "making a context"));
    device->properties = (tsr_cuda_properties){
        .index = index,
        .sm_count = card.multiProcessorCount,
        .major = card.major,
        .minor = card.minor,
        .l2_bytes = (uint64_t)card.l2CacheSize,
        .shared_bytes = card.sharedMemPerBlockOptin,
    };
    TSR_TRY(check_code(device));
    cudaRuntimeGetVersion(&runtime);
    snprintf(device->base.description, sizeof device->base.description,
             "%s, %d SMs, %.1f GiB, CUDA %d.%d", device->name, card.multiProcessorCount,
             (double)card.totalGlobalMem / (1 << 30), runtime / 1000, runtime % 1000 / 10);
    TSR_TRY(
        tsr_cuda_status(cudaDeviceGetPCIBusId(pci_bus_id, sizeof pci_bus_id, index), device->name));
    return tsr_device_begin_host(&device->base, pci_bus_id);
}

tsr_status tsr_device_create_cuda(tsr_device **out, const tsr_device_options *options)
{
    int count = 0;
    cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return tsr_fail(TSR_ENOMEM, "no memory for a device");
    const tsr_device_options *o = &device->base.options;
    device->properties.index = -1;
    pthread_mutex_init(&device->streams_lock, NULL);
    pthread_mutex_init(&device->clock_lock, NULL);
    tsr_status status = tsr_device_begin(&device->base, &cuda_ops, TSR_DEVICE_CUDA, options);
    if (status == TSR_OK)
        status = tsr_device_cuda_count(&count);
    if (status == TSR_OK)
        status = open_card(device, tsr_device_card(o->first_card, o->local_rank, count));
    if (status == TSR_OK)
        status = tsr_cuda_stream_create(&device->own, &device->base, "own");
    if (status == TSR_OK)
        status = tsr_cuda_clock_create(device);
    if (status < 0)
        tsr_device_destroy(&device->base);
    else
        *out = &device->base;
    return status;
}
