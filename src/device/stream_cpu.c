/*
 * stream_cpu.c: streams as worker threads with a FIFO, and events with generations.
 *
 * A worker runs its oldest item in place, in the ring, and only then gives the entry back: a full
 * ring is what makes the enqueuing thread wait.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "device/cpu_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum item_kind { ITEM_CALL, ITEM_COPY, ITEM_FILL, ITEM_RECORD, ITEM_WAIT };

struct item {
    enum item_kind kind;
    union {
        struct {
            tsr_call *function;
            _Alignas(max_align_t) char args[TSR_CALL_BYTES];
        } call;
        struct {
            void *destination;
            const void *source;
            uint64_t bytes;
        } copy;
        struct {
            void *destination;
            uint64_t bytes;
            uint8_t value;
        } fill;
        struct {
            void *event; /* a cpu_event */
            uint64_t generation;
        } event;
    } of;
};

typedef struct {
    tsr_stream base;
    int index;
    pthread_t thread;
    pthread_cond_t work; /* the worker sleeps here */
    struct item *ring;
    uint64_t head, tail; /* enqueued and ended items; [tail, head) lie in the ring */
    bool stop;
} cpu_stream;

typedef struct {
    tsr_event base;
    uint64_t completed; /* generations 1..completed are complete */
    uint64_t beyond;    /* bit i: so is completed + 2 + i, recorded on a faster stream */
    double time;
    int waiters; /* threads that wait for any of its records */
} cpu_event;

/* ---- waits with a deadline that starts again whenever the device gets something done: what counts
 * is how long nothing has moved, not how much work lies before the awaited one ---- */

typedef struct {
    struct timespec limit;
    double begin;
} moving_wait;

/* Both with the device's mutex held. */
static void wait_begin(moving_wait *wait, const tsr_device *device)
{
    wait->begin = tsr_now();
    wait->limit = tsr_deadline(device->options.timeout_seconds);
}

/* Sleeps until `changed`; false after the deadline. */
static bool wait_changed(moving_wait *wait, tsr_device *device)
{
    if (pthread_cond_timedwait(&device->changed, &device->lock, &wait->limit) != ETIMEDOUT)
        return true;
    double progress = ((cpu_device *)device)->progress_time;
    double begin = wait->begin > progress ? wait->begin : progress;
    double left = begin + device->options.timeout_seconds - tsr_now();
    if (left <= 0)
        return false;
    wait->limit = tsr_deadline(left);
    return true;
}

/* ---- events, with the mutex held ---- */

static bool is_complete(const cpu_event *event, uint64_t generation)
{
    if (generation <= event->completed)
        return true;
    uint64_t bit = generation - event->completed - 2; /* wraps for completed + 1 */
    return bit < 64 && (event->beyond >> bit & 1);
}

/* False if the record is too far ahead of an older one on a slower stream. */
static bool complete(cpu_event *event, uint64_t generation)
{
    if (generation != event->completed + 1) {
        uint64_t bit = generation - event->completed - 2;
        if (bit >= 64)
            return false;
        event->beyond |= (uint64_t)1 << bit;
    } else {
        bool next;
        do {
            event->completed++;
            next = event->beyond & 1;
            event->beyond >>= 1;
        } while (next);
    }
    event->time = tsr_now();
    if (event->waiters)
        pthread_cond_broadcast(&event->base.device->changed);
    return true;
}

/* Waits for an event; false if nothing has moved on the device for too long. */
static bool wait_event(cpu_event *event, uint64_t generation)
{
    tsr_device *device = event->base.device;
    moving_wait wait;
    bool moves = true;
    wait_begin(&wait, device);
    event->waiters++;
    while (moves && !is_complete(event, generation) && !atomic_load(&device->poisoned))
        moves = wait_changed(&wait, device);
    event->waiters--;
    return moves;
}

/* Waits on the stream; a poisoned device does not wait. */
static tsr_status wait_on_stream(cpu_stream *stream, cpu_event *event, uint64_t generation)
{
    if (wait_event(event, generation))
        return TSR_OK;
    return tsr_fail(TSR_ETIMEOUT,
                    "stream %s has waited %g s for record %llu of an event of stream %s, "
                    "and nothing has moved on this device in that time",
                    stream->base.name, stream->base.device->options.timeout_seconds,
                    (unsigned long long)generation, event->base.stream);
}

/* ---- the worker ---- */

static void sleep_random(const cpu_stream *stream)
{
    const tsr_device_options *options = &stream->base.device->options;
    if (!options->delay_seed || !options->delay_max_us)
        return;
    uint64_t key[3] = {options->delay_seed, (uint64_t)stream->index, stream->tail};
    uint64_t us = tsr_hash(TSR_HASH_START, key, sizeof key) % ((uint64_t)options->delay_max_us + 1);
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

/* Calls, copies and fills; without the mutex. */
static tsr_status run_work(cpu_stream *stream, struct item *item)
{
    if (item->kind == ITEM_CALL)
        return item->of.call.function(item->of.call.args, stream->base.device->pool);
    if (item->kind == ITEM_COPY)
        memcpy(item->of.copy.destination, item->of.copy.source, item->of.copy.bytes);
    else
        memset(item->of.fill.destination, item->of.fill.value, item->of.fill.bytes);
    return TSR_OK;
}

static tsr_status run_item(cpu_stream *stream, struct item *item)
{
    tsr_device *device = stream->base.device;
    tsr_status status = TSR_OK;
    sleep_random(stream);
    if (item->kind < ITEM_RECORD)
        return atomic_load(&device->poisoned) ? TSR_OK : run_work(stream, item);
    cpu_event *event = item->of.event.event;
    uint64_t generation = item->of.event.generation;
    pthread_mutex_lock(&device->lock);
    if (item->kind == ITEM_WAIT)
        status = wait_on_stream(stream, event, generation);
    else if (!complete(event, generation))
        status = tsr_fail(TSR_EINTERNAL,
                          "record %llu of an event has come while record %llu is still missing: "
                          "too many streams' records of one event are under way",
                          (unsigned long long)generation, (unsigned long long)event->completed + 1);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void *work(void *argument)
{
    cpu_stream *stream = argument;
    tsr_device *device = stream->base.device;
    cpu_device *cpu = (cpu_device *)device;
    if (!device->options.no_pinning)
        tsr_topology_bind_thread(device->topology);
    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (stream->head == stream->tail && !stream->stop)
            pthread_cond_wait(&stream->work, &device->lock);
        if (stream->head == stream->tail)
            break;
        struct item *item = &stream->ring[stream->tail % FIFO_ITEMS];
        pthread_mutex_unlock(&device->lock);
        tsr_status status = run_item(stream, item);
        if (status < 0)
            tsr_device_poison(device, status, tsr_last_error());
        pthread_mutex_lock(&device->lock);
        stream->tail++;
        cpu->progress_time = tsr_now();
        if (cpu->tail_waiters)
            pthread_cond_broadcast(&device->changed);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- streams ---- */

tsr_status tsr_cpu_stream_create(tsr_stream **out, tsr_device *device, const char *name)
{
    cpu_stream *stream = calloc(1, sizeof *stream);
    if (!stream || !(stream->ring = calloc(FIFO_ITEMS, sizeof *stream->ring))) {
        free(stream);
        return tsr_fail(TSR_ENOMEM, "no memory for stream %s", name);
    }
    stream->base.device = device;
    snprintf(stream->base.name, sizeof stream->base.name, "%s", name);
    pthread_cond_init(&stream->work, NULL);
    pthread_mutex_lock(&device->lock);
    stream->index = ((cpu_device *)device)->stream_count++;
    pthread_mutex_unlock(&device->lock);
    tsr_status status = tsr_thread_start(&stream->thread, stream->base.name, work, stream);
    if (status < 0) {
        pthread_cond_destroy(&stream->work);
        free(stream->ring);
        free(stream);
        return status;
    }
    *out = &stream->base;
    return TSR_OK;
}

void tsr_cpu_stream_destroy(tsr_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    pthread_mutex_lock(&base->device->lock);
    stream->stop = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&base->device->lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->work);
    free(stream->ring);
    free(stream);
}

tsr_status tsr_cpu_stream_synchronize(tsr_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    tsr_device *device = base->device;
    cpu_device *cpu = (cpu_device *)device;
    tsr_status status = TSR_OK;
    moving_wait wait;
    pthread_mutex_lock(&device->lock);
    uint64_t head = stream->head;
    wait_begin(&wait, device);
    cpu->tail_waiters++;
    while (stream->tail < head && status == TSR_OK)
        if (!wait_changed(&wait, device))
            status =
                tsr_fail(TSR_ETIMEOUT,
                         "stream %s: %llu enqueued works have not ended, and nothing has moved "
                         "on this device for %g s",
                         base->name, (unsigned long long)(head - stream->tail),
                         device->options.timeout_seconds);
    cpu->tail_waiters--;
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* Takes the mutex and a free entry; on failure the mutex is not held. */
static tsr_status begin_item(struct item **out, tsr_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    tsr_device *device = base->device;
    cpu_device *cpu = (cpu_device *)device;
    moving_wait wait;
    pthread_mutex_lock(&device->lock);
    wait_begin(&wait, device);
    while (stream->head - stream->tail == FIFO_ITEMS) {
        cpu->tail_waiters++;
        bool moves = wait_changed(&wait, device);
        cpu->tail_waiters--;
        if (!moves) {
            pthread_mutex_unlock(&device->lock);
            return tsr_fail(TSR_ETIMEOUT,
                            "stream %s is full (%d works) and nothing has moved on this device for "
                            "%g s",
                            base->name, FIFO_ITEMS, device->options.timeout_seconds);
        }
    }
    *out = &stream->ring[stream->head % FIFO_ITEMS];
    return TSR_OK;
}

static tsr_status end_item(tsr_stream *base)
{
    cpu_stream *stream = (cpu_stream *)base;
    stream->head++;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&base->device->lock);
    return TSR_OK;
}

tsr_status tsr_cpu_stream_call(tsr_stream *stream, tsr_call *function, const void *args,
                               uint32_t args_bytes)
{
    struct item *item;
    TSR_TRY(begin_item(&item, stream));
    item->kind = ITEM_CALL;
    item->of.call.function = function;
    if (args_bytes)
        memcpy(item->of.call.args, args, args_bytes);
    return end_item(stream);
}

tsr_status tsr_cpu_stream_copy(tsr_stream *stream, void *destination, const void *source,
                               uint64_t bytes)
{
    struct item *item;
    TSR_TRY(begin_item(&item, stream));
    item->kind = ITEM_COPY;
    item->of.copy.destination = destination;
    item->of.copy.source = source;
    item->of.copy.bytes = bytes;
    return end_item(stream);
}

tsr_status tsr_cpu_stream_fill(tsr_stream *stream, void *destination, uint8_t value, uint64_t bytes)
{
    struct item *item;
    TSR_TRY(begin_item(&item, stream));
    item->kind = ITEM_FILL;
    item->of.fill.destination = destination;
    item->of.fill.value = value;
    item->of.fill.bytes = bytes;
    return end_item(stream);
}

/* ---- events ---- */

tsr_status tsr_cpu_event_create(tsr_event **out, tsr_device *device, bool timed)
{
    (void)timed; /* all are */
    cpu_event *event = calloc(1, sizeof *event);
    if (!event)
        return tsr_fail(TSR_ENOMEM, "no memory for an event");
    event->base.device = device;
    *out = &event->base;
    return TSR_OK;
}

void tsr_cpu_event_destroy(tsr_event *event)
{
    free(event);
}

tsr_status tsr_cpu_event_record(tsr_event *event, tsr_stream *stream)
{
    struct item *item;
    TSR_TRY(begin_item(&item, stream));
    item->kind = ITEM_RECORD;
    item->of.event.event = event;
    item->of.event.generation = atomic_load(&event->recorded) + 1;
    memcpy(event->stream, stream->name, sizeof event->stream);
    atomic_store(&event->recorded, item->of.event.generation);
    return end_item(stream);
}

tsr_status tsr_cpu_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation)
{
    struct item *item;
    TSR_TRY(begin_item(&item, stream));
    item->kind = ITEM_WAIT;
    item->of.event.event = event;
    item->of.event.generation = generation;
    return end_item(stream);
}

tsr_status tsr_cpu_event_wait_host(tsr_event *event, uint64_t generation)
{
    tsr_device *device = event->device;
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&device->lock);
    if (!wait_event((cpu_event *)event, generation))
        status = tsr_fail(TSR_ETIMEOUT,
                          "record %llu of an event of stream %s is not complete, and nothing "
                          "has moved on this device for %g s",
                          (unsigned long long)generation, event->stream,
                          device->options.timeout_seconds);
    pthread_mutex_unlock(&device->lock);
    return status;
}

double tsr_cpu_event_time(tsr_event *event)
{
    pthread_mutex_lock(&event->device->lock);
    double time = ((cpu_event *)event)->time;
    pthread_mutex_unlock(&event->device->lock);
    return time;
}
