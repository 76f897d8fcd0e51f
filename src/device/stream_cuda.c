/*
 * stream_cuda.c: streams, events with generations, and the card's clock.
 *
 * Generations. An event is RECORDS CUDA events, and record g is made with the one at g % RECORDS. A
 * wait for g takes the same one, which by then may hold record g + RECORDS or a later one. That is
 * safe because records of one event are in order: on one stream they are so by themselves, and a
 * record on another stream than the last first makes that stream wait for the last. So whoever waits
 * for a later record has waited for g too; and nothing that is enqueued waits for what is not, so no
 * wait can close a circle. Waits of a plan are for the latest record, and the host waits for it or for
 * the one before: with RECORDS as here neither waits longer than it asks for.
 *
 * Priorities. Streams that move bytes come before those that compute: a collective needs a few
 * multiprocessors at once, and others wait for it. So does the optimizer's: beside the next forward, whose matmuls
 * leave nothing free, an update of some 50 us would else wait for each of them, and its chunk's copies with it.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "device/cuda_parts.h"
#include "device/futex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS      2    /* CUDA events of an event */
#define CALLS        64   /* calls of a stream under way */
#define SPIN_SECONDS 5e-5 /* polled without a pause before the thread sleeps between polls */
#define SLEEP_NS     20000
/* Age of the mark at which a new one is made: a float of ms is exact to 0.1 us by then. */
#define CLOCK_SECONDS 2.0
#define MARK_SECONDS  1e-3 /* a mark that took longer to be seen says too little */

struct call {
    cuda_stream *stream;
    tsr_call *function;
    _Alignas(max_align_t) char args[TSR_CALL_BYTES];
};

struct cuda_stream {
    tsr_stream base;
    cudaStream_t cuda;
    int index;                  /* never used again, unlike the address */
    cuda_stream *next;          /* of the device */
    uint64_t enqueued;          /* works, for random delays */
    uint64_t calls;             /* enqueued */
    _Atomic uint64_t calls_run; /* in order: entries [calls_run, calls) of the ring are in use */
    struct call *ring;
};

typedef struct {
    tsr_event base;
    pthread_mutex_t lock; /* of a record */
    cudaEvent_t cuda[RECORDS];
    _Atomic int last; /* the stream of the last record */
    bool timed;
    double time; /* last seen; the clock's lock */
} cuda_event;

/* ---- waiting ---- */

static cudaError_t query(const tsr_cuda_awaited *awaited)
{
    if (awaited->count &&
        atomic_load_explicit(awaited->count, memory_order_acquire) >= awaited->target)
        return cudaSuccess;
    return awaited->event ? cudaEventQuery(awaited->event) : cudaStreamQuery(awaited->stream);
}

cudaError_t tsr_cuda_poll(cuda_device *device, const tsr_cuda_awaited *awaited)
{
    cudaError_t error = query(awaited);
    if (error == cudaSuccess)
        return error;
    double begin = tsr_now();
    while (error == cudaErrorNotReady && (awaited->drain || !atomic_load(&device->base.poisoned))) {
        double waited = tsr_now() - begin;
        if (waited > device->base.options.timeout_seconds)
            break;
        if (waited > SPIN_SECONDS)
            nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
        else
            tsr_cpu_relax();
        error = query(awaited);
    }
    cudaGetLastError(); /* NotReady would be the thread's last error, and the next launch's */
    return error;
}

tsr_status tsr_cuda_enqueued(tsr_device *device, cudaError_t error, const char *what,
                             const char *stream)
{
    if (error == cudaSuccess)
        return TSR_OK;
    char text[128];
    snprintf(text, sizeof text, "%s, %s, stream %s", ((cuda_device *)device)->name, what, stream);
    cudaGetLastError();
    tsr_status status = tsr_cuda_status(error, text);
    tsr_device_poison(device, status, tsr_last_error());
    return tsr_device_check(device);
}

bool tsr_cuda_drain(cuda_device *device)
{
    pthread_mutex_lock(&device->streams_lock);
    for (cuda_stream *s = device->streams; s && !atomic_load(&device->stuck); s = s->next)
        if (tsr_cuda_poll(device, &(tsr_cuda_awaited){.stream = s->cuda, .drain = true}) ==
            cudaErrorNotReady)
            atomic_store(&device->stuck, true);
    pthread_mutex_unlock(&device->streams_lock);
    return !atomic_load(&device->stuck);
}

/* ---- streams ---- */

/* Highest of the card for the streams that move bytes, and for updates; lowest for all others. */
static int priority_of(const char *name)
{
    static const char *const movers[] = {"comm", "h2d", "d2h", "optim", "state in", "state out"};
    int lowest = 0, highest = 0;
    cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (!strcmp(name, movers[i]))
            return highest;
    return lowest;
}

tsr_status tsr_cuda_stream_create(tsr_stream **out, tsr_device *base, const char *name)
{
    cuda_device *device = (cuda_device *)base;
    cuda_stream *stream = calloc(1, sizeof *stream);
    if (!stream || !(stream->ring = calloc(CALLS, sizeof *stream->ring))) {
        free(stream);
        return tsr_fail(TSR_ENOMEM, "no memory for stream %s", name);
    }
    stream->base.device = base;
    snprintf(stream->base.name, sizeof stream->base.name, "%s", name);
    tsr_cuda_enter(base);
    cudaError_t error =
        cudaStreamCreateWithPriority(&stream->cuda, cudaStreamNonBlocking, priority_of(name));
    if (error != cudaSuccess) {
        free(stream->ring);
        free(stream);
        return tsr_cuda_enqueued(base, error, "making a stream", name);
    }
    pthread_mutex_lock(&device->streams_lock);
    stream->index = device->stream_count++;
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->streams_lock);
    *out = &stream->base;
    return TSR_OK;
}

void tsr_cuda_stream_destroy(tsr_stream *base)
{
    cuda_stream *stream = (cuda_stream *)base;
    cuda_device *device = (cuda_device *)base->device;
    tsr_cuda_enter(base->device);
    if (!atomic_load(&device->stuck) &&
        tsr_cuda_poll(device, &(tsr_cuda_awaited){.stream = stream->cuda, .drain = true}) ==
            cudaErrorNotReady)
        atomic_store(&device->stuck, true);
    pthread_mutex_lock(&device->streams_lock);
    cuda_stream **link = &device->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&device->streams_lock);
    if (atomic_load(&device->stuck)) /* a call that is still to come would read the ring */
        return;
    cudaStreamDestroy(stream->cuda);
    cudaGetLastError();
    free(stream->ring);
    free(stream);
}

cudaStream_t tsr_stream_cuda(const tsr_stream *stream)
{
    tsr_cuda_enter(stream->device);
    return ((const cuda_stream *)stream)->cuda;
}

tsr_status tsr_cuda_stream_synchronize(tsr_stream *base)
{
    cudaStream_t cuda = tsr_stream_cuda(base);
    cudaError_t error =
        tsr_cuda_poll((cuda_device *)base->device, &(tsr_cuda_awaited){.stream = cuda});
    if (error != cudaErrorNotReady)
        return tsr_cuda_enqueued(base->device, error, "running", base->name);
    return tsr_fail(TSR_ETIMEOUT, "stream %s: enqueued work has not ended for %g s", base->name,
                    base->device->options.timeout_seconds);
}

static void CUDART_CB sleep_us(void *us)
{
    uintptr_t count = (uintptr_t)us;
    nanosleep(&(struct timespec){(time_t)(count / 1000000), (long)(count % 1000000) * 1000}, NULL);
}

/* What comes before every enqueued work: the thread's device, and in tests a random delay. */
static cudaStream_t begin(cuda_stream *stream)
{
    const tsr_device_options *options = &stream->base.device->options;
    tsr_cuda_enter(stream->base.device);
    if (!options->delay_seed || !options->delay_max_us)
        return stream->cuda;
    uint64_t key[3] = {options->delay_seed, (uint64_t)stream->index, stream->enqueued++};
    uint64_t us = tsr_hash(TSR_HASH_START, key, sizeof key) % ((uint64_t)options->delay_max_us + 1);
    tsr_cuda_enqueued(stream->base.device,
                      cudaLaunchHostFunc(stream->cuda, sleep_us, (void *)(uintptr_t)us), "a delay",
                      stream->base.name);
    return stream->cuda;
}

/* On a thread of CUDA's, which may not call CUDA. */
static void CUDART_CB run_call(void *user)
{
    struct call *call = user;
    cuda_stream *stream = call->stream;
    tsr_device *device = stream->base.device;
    if (tsr_device_check(device) == TSR_OK) {
        tsr_status status = call->function(call->args, device->pool);
        if (status < 0)
            tsr_device_poison(device, status, tsr_last_error());
    }
    atomic_fetch_add_explicit(&stream->calls_run, 1, memory_order_release);
}

tsr_status tsr_cuda_stream_call(tsr_stream *base, tsr_call *function, const void *args,
                                uint32_t args_bytes)
{
    cuda_stream *stream = (cuda_stream *)base;
    cudaStream_t cuda = begin(stream);
    tsr_cuda_awaited room = {.stream = cuda,
                             .count = &stream->calls_run,
                             .target = stream->calls < CALLS ? 0 : stream->calls - CALLS + 1};
    cudaError_t error =
        room.target ? tsr_cuda_poll((cuda_device *)base->device, &room) : cudaSuccess;
    if (error == cudaErrorNotReady) {
        TSR_TRY(tsr_device_check(base->device));
        return tsr_fail(TSR_ETIMEOUT, "stream %s is full (%d calls) and has not moved for %g s",
                        base->name, CALLS, base->device->options.timeout_seconds);
    }
    TSR_TRY(tsr_cuda_enqueued(base->device, error, "running", base->name));
    struct call *call = &stream->ring[stream->calls % CALLS];
    call->stream = stream;
    call->function = function;
    if (args_bytes)
        memcpy(call->args, args, args_bytes);
    error = cudaLaunchHostFunc(cuda, run_call, call);
    if (error == cudaSuccess)
        stream->calls++;
    return tsr_cuda_enqueued(base->device, error, "a call", base->name);
}

tsr_status tsr_cuda_stream_copy(tsr_stream *base, void *destination, const void *source,
                                uint64_t bytes)
{
    cudaStream_t cuda = begin((cuda_stream *)base);
    return tsr_cuda_enqueued(base->device,
                             cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, cuda),
                             "a copy", base->name);
}

tsr_status tsr_cuda_stream_fill(tsr_stream *base, void *destination, uint8_t value, uint64_t bytes)
{
    cudaStream_t cuda = begin((cuda_stream *)base);
    return tsr_cuda_enqueued(base->device, cudaMemsetAsync(destination, value, bytes, cuda),
                             "a fill", base->name);
}

/* ---- events ---- */

static cudaEvent_t record_at(const tsr_event *event, uint64_t generation)
{
    return ((const cuda_event *)event)->cuda[generation % RECORDS];
}

tsr_status tsr_cuda_event_create(tsr_event **out, tsr_device *device, bool timed)
{
    cuda_event *event = calloc(1, sizeof *event);
    if (!event)
        return tsr_fail(TSR_ENOMEM, "no memory for an event");
    event->base.device = device;
    event->timed = timed;
    event->last = -1;
    pthread_mutex_init(&event->lock, NULL);
    tsr_cuda_enter(device);
    for (int i = 0; i < RECORDS; i++) {
        cudaError_t error = cudaEventCreateWithFlags(
            &event->cuda[i], timed ? cudaEventDefault : cudaEventDisableTiming);
        if (error != cudaSuccess) {
            tsr_cuda_event_destroy(&event->base);
            return tsr_cuda_enqueued(device, error, "making an event", "-");
        }
    }
    *out = &event->base;
    return TSR_OK;
}

/* Returns at once, whether or not its records are complete. */
void tsr_cuda_event_destroy(tsr_event *base)
{
    cuda_event *event = (cuda_event *)base;
    tsr_cuda_enter(base->device);
    for (int i = 0; i < RECORDS; i++)
        if (event->cuda[i])
            cudaEventDestroy(event->cuda[i]);
    cudaGetLastError();
    pthread_mutex_destroy(&event->lock);
    free(event);
}

tsr_status tsr_cuda_event_record(tsr_event *base, tsr_stream *stream)
{
    cuda_event *event = (cuda_event *)base;
    int index = ((cuda_stream *)stream)->index;
    cudaStream_t cuda = begin((cuda_stream *)stream);
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&event->lock);
    uint64_t recorded = atomic_load(&base->recorded);
    if (recorded > 0 && atomic_load(&event->last) != index) /* keeps the records in order */
        error = cudaStreamWaitEvent(cuda, record_at(base, recorded), 0);
    if (error == cudaSuccess)
        error = cudaEventRecord(record_at(base, recorded + 1), cuda);
    if (error == cudaSuccess) {
        memcpy(base->stream, stream->name, sizeof base->stream);
        atomic_store(&event->last, index);
        atomic_store(&base->recorded, recorded + 1);
    }
    pthread_mutex_unlock(&event->lock);
    return tsr_cuda_enqueued(stream->device, error, "a record", stream->name);
}

tsr_status tsr_cuda_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation)
{
    cuda_stream *waiting = (cuda_stream *)stream;
    /* All records up to the last are before this in the stream, or before what it waited for. */
    if (atomic_load(&((cuda_event *)event)->last) == waiting->index)
        return TSR_OK;
    return tsr_cuda_enqueued(stream->device,
                             cudaStreamWaitEvent(begin(waiting), record_at(event, generation), 0),
                             "a wait", stream->name);
}

tsr_status tsr_cuda_event_wait_host(tsr_event *event, uint64_t generation)
{
    tsr_device *device = event->device;
    tsr_cuda_enter(device);
    cudaError_t error = tsr_cuda_poll((cuda_device *)device,
                                      &(tsr_cuda_awaited){.event = record_at(event, generation)});
    if (error != cudaErrorNotReady)
        return tsr_cuda_enqueued(device, error, "running", event->stream);
    return tsr_fail(TSR_ETIMEOUT, "record %llu of an event of stream %s is not complete after %g s",
                    (unsigned long long)generation, event->stream, device->options.timeout_seconds);
}

/* ---- the clock ---- */

/* Records `spare` between *from and *to; false if it took longer than `limit` seconds. */
static bool record_mark(cuda_device *device, double *from, double *to, double limit)
{
    cudaError_t error;
    *from = tsr_now();
    error = cudaEventRecord(device->spare, ((cuda_stream *)device->own)->cuda);
    if (error != cudaSuccess)
        return false;
    do {
        error = cudaEventQuery(device->spare);
        *to = tsr_now();
    } while (error == cudaErrorNotReady && *to - *from < limit);
    return error == cudaSuccess;
}

/* Makes a few marks. Each says that the card's clock then lay between two readings of the host's: the
 * time told by the marks before it is kept if it does, so that the two clocks may drift but times
 * never jump by more than they must. */
static void set_clock(cuda_device *device)
{
    double from, to, best = device->clock_set ? MARK_SECONDS : 1;
    for (int i = 0; i < (device->clock_set ? 3 : 8); i++) {
        float ms = 0;
        if (!record_mark(device, &from, &to, best) || to - from >= best)
            continue;
        best = to - from;
        double time = (from + to) / 2;
        if (device->clock_set &&
            cudaEventElapsedTime(&ms, device->mark, device->spare) == cudaSuccess)
            time = device->mark_time + 1e-3 * (double)ms;
        device->mark_time = time < from ? from : time > to ? to : time;
        device->clock_set = true;
        cudaEvent_t mark = device->spare;
        device->spare = device->mark;
        device->mark = mark;
    }
    cudaGetLastError();
}

tsr_status tsr_cuda_clock_create(cuda_device *device)
{
    tsr_cuda_enter(&device->base);
    TSR_TRY(tsr_cuda_status(cudaEventCreate(&device->mark), device->name));
    TSR_TRY(tsr_cuda_status(cudaEventCreate(&device->spare), device->name));
    set_clock(device);
    if (!device->clock_set)
        return tsr_fail(TSR_EDEVICE, "%s: an event on an idle stream has not ended for a second",
                        device->name);
    return TSR_OK;
}

void tsr_cuda_clock_destroy(cuda_device *device)
{
    if (device->mark)
        cudaEventDestroy(device->mark);
    if (device->spare)
        cudaEventDestroy(device->spare);
}

double tsr_cuda_event_time(tsr_event *base)
{
    cuda_event *event = (cuda_event *)base;
    cuda_device *device = (cuda_device *)base->device;
    uint64_t recorded = atomic_load(&base->recorded);
    if (!event->timed)
        return 0;
    tsr_cuda_enter(base->device);
    pthread_mutex_lock(&device->clock_lock);
    double now = tsr_now();
    if (now - device->mark_time > CLOCK_SECONDS && now - device->mark_tried > CLOCK_SECONDS / 4) {
        device->mark_tried = now; /* on a full card a mark may take too long, again and again */
        set_clock(device);
    }
    for (uint64_t g = recorded; g > 0 && g + RECORDS > recorded; g--) {
        float ms;
        if (cudaEventElapsedTime(&ms, device->mark, record_at(base, g)) == cudaSuccess) {
            event->time = device->mark_time + 1e-3 * (double)ms;
            break;
        }
    }
    cudaGetLastError();
    double time = event->time;
    pthread_mutex_unlock(&device->clock_lock);
    return time;
}
