#include "base/clock.h"
#include "device/cpu_parts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

tsr_status tsr_device_create_cpu(tsr_device **out, const tsr_device_options *options)
{
    tsr_device *device = calloc(1, sizeof *device);
    if (!device)
        return tsr_fail(TSR_ENOMEM, "no memory for a device");
    if (options)
        device->options = *options;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);

    tsr_status status = check_options(&device->options);
    if (status < 0)
        goto out;
    int ranks = device->options.local_rank_count;
    status = tsr_topology_create(&device->topology, device->options.local_rank, ranks);
    if (status < 0)
        goto out;
    int share = tsr_topology_share_count(device->topology);
    int threads = device->options.thread_count ? device->options.thread_count : share;
    bool roomy = threads <= share && share * ranks <= tsr_topology_core_count(device->topology);
    status = tsr_pool_create(&device->pool, threads,
                             device->options.no_pinning ? NULL : device->topology, roomy);
    if (status < 0)
        goto out;
    describe(device);
out:
    if (status == TSR_OK)
        *out = device;
    else
        tsr_device_destroy(device);
    return status;
}

void tsr_device_destroy(tsr_device *device)
{
    if (!device)
        return;
    tsr_pool_destroy(device->pool);
    tsr_topology_destroy(device->topology);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

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

tsr_status tsr_device_check(tsr_device *device)
{
    if (!atomic_load_explicit(&device->poisoned, memory_order_acquire))
        return TSR_OK;
    return tsr_error_put(&device->error);
}

void tsr_device_wait_begin(tsr_device_wait *wait, const tsr_device *device)
{
    wait->begin = tsr_now();
    wait->limit = tsr_deadline(device->options.timeout_seconds);
}

bool tsr_device_wait_changed(tsr_device_wait *wait, tsr_device *device)
{
    if (pthread_cond_timedwait(&device->changed, &device->lock, &wait->limit) != ETIMEDOUT)
        return true;
    double begin = wait->begin > device->progress_time ? wait->begin : device->progress_time;
    double left = begin + device->options.timeout_seconds - tsr_now();
    if (left <= 0)
        return false;
    wait->limit = tsr_deadline(left);
    return true;
}

tsr_status tsr_thread_start(pthread_t *out, const char *name, void *(*function)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, NULL, function, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return tsr_fail(TSR_EDEVICE, "thread %s cannot be started: %s", name, strerror(error));
    char short_name[16]; /* what the kernel keeps */
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*out, short_name);
    return TSR_OK;
}
