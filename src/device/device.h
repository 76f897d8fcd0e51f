/*
 * device/device.h: memory, streams and events of one accelerator, or of the CPU playing one.
 *
 * A device has a few streams. Work given to a stream runs in order; streams run beside each other
 * and are ordered by events only. device_cpu.c makes each stream a worker thread with a FIFO, so
 * that the whole scheduler runs, and is tested, without a GPU; device_cuda.c drives a GPU.
 *
 * Order    Calls on streams enqueue and return; synchronize, destroy and the *_host waits block.
 * Threads  One thread enqueues on a given stream. Events may be recorded and awaited by any thread.
 * Errors   The first failure of any enqueued work poisons the device: all work enqueued before or
 *          after that has not begun is skipped, every event still completes (nothing hangs), and
 *          every later call returns the first error. A GPU cannot recall what it was given: kernels
 *          and copies enqueued before run to their end, calls are skipped, and the host's waits
 *          return the error without waiting for either. Destroying waits for them, at most the
 *          deadline, once for all; what is still in use then is left to the end of the process. A
 *          faulty kernel is noticed by the next wait or enqueuing call.
 * Memory   Nothing here allocates after creation: a full FIFO makes the enqueuing call wait (with
 *          the device's deadline; a GPU's driver has a queue of its own, of about a thousand works,
 *          without one: only what ends the work that blocks it ends such a wait).
 */
#ifndef TSR_DEVICE_DEVICE_H
#define TSR_DEVICE_DEVICE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tsr_device tsr_device;
typedef struct tsr_stream tsr_stream;
typedef struct tsr_event tsr_event;
typedef struct tsr_arena tsr_arena;
typedef struct tsr_pool tsr_pool;

typedef enum { TSR_DEVICE_CPU, TSR_DEVICE_CUDA } tsr_device_kind;

/* Zero-initialise; zero is the default of every field. */
typedef struct {
    int thread_count;       /* threads of the pool; 0: this rank's share of the cores it may use */
    int local_rank;         /* this rank among the ranks of the node, for sharing cores out */
    int local_rank_count;   /* 0: 1 */
    int first_card;         /* of those that the process sees: local rank 0's */
    bool no_pinning;        /* true: leave threads where the system puts them */
    double timeout_seconds; /* deadline of every wait; 0: 300 */
    uint64_t
        delay_seed; /* tests: not 0 makes every enqueued work sleep a random 0 .. delay_max_us */
    uint32_t delay_max_us;
} tsr_device_options;

/* The CPU device. On success the caller owns *out. */
tsr_status tsr_device_create_cpu(tsr_device **out, const tsr_device_options *options);

/* Whether this build has the CUDA backend. */
bool tsr_device_cuda_built(void);

/* CUDA devices that this process may use. TSR_EUNSUPPORTED: a build without CUDA; TSR_EDEVICE: no
 * driver, or one too old, with what to do. */
tsr_status tsr_device_cuda_count(int *count);

/* Of `count` cards that the process sees, a local rank's. */
static inline int tsr_device_card(int first_card, int local_rank, int count)
{
    return (int)(((int64_t)first_card + local_rank) % count);
}

/* The CUDA device of tsr_device_card. TSR_EUNSUPPORTED, TSR_EDEVICE as above, or
 * a card that this build has no code for. Its pool and threads are those of the host. */
tsr_status tsr_device_create_cuda(tsr_device **out, const tsr_device_options *options);

/* Waits for enqueued work to end or be skipped. All streams, events and arenas must be destroyed.
 * NULL is fine. */
void tsr_device_destroy(tsr_device *device);

/* "CPU, 2 threads, AVX-512 ..." for the summary; borrowed. */
const char *tsr_device_description(const tsr_device *device);
tsr_pool *tsr_device_pool(tsr_device *device);
double tsr_device_timeout(const tsr_device *device);
tsr_device_kind tsr_device_kind_of(const tsr_device *device);

/* Bytes of device memory: all, and free now. Of the CPU: physical memory, both the same, or what the process' control
 * groups allow and what of it is not in use. */
tsr_status tsr_device_memory(uint64_t *free, uint64_t *total, tsr_device *device);

/* What a layer above keeps with the device (the kernels' library handles): `destroy` is called with
 * it before the device goes. At most one. */
void tsr_device_keep(tsr_device *device, void *context, void (*destroy)(void *context));
void *tsr_device_kept(const tsr_device *device);

/* Sets the poison from outside (a dead communicator, a stop). Only the first counts. Any thread. */
void tsr_device_poison(tsr_device *device, tsr_status status, const char *message);

/* TSR_OK, or the first error, which becomes the calling thread's last error. Any thread. */
tsr_status tsr_device_check(tsr_device *device);

/* What tsr_device_check asks besides, until it is NULL again: what it returns poisons the device. So a
 * failure outside of this process (of a communicator) is one of the device from the moment it is
 * published: nobody who looks after a wait takes for done what that failure has let go. `check`, of
 * any thread, is cheap and never blocks; `user` is borrowed. At most one. */
typedef tsr_status tsr_device_outside(const void *user, int rank);
void tsr_device_set_outside(tsr_device *device, tsr_device_outside *check, const void *user,
                            int rank);

/* ---- streams ---- */

/* `name` is for traces, error messages and thread names (at most 15 characters); copied. A GPU
 * schedules "comm", "h2d", "d2h", "optim", "state in" and "state out" before all others. */
tsr_status tsr_stream_create(tsr_stream **out, tsr_device *device, const char *name);
void tsr_stream_destroy(tsr_stream *stream);
tsr_device *tsr_stream_device(tsr_stream *stream);

/* Blocks until all that was enqueued has run; returns the device's first error. */
tsr_status tsr_stream_synchronize(tsr_stream *stream);

/* Runs function(args copy, pool) on the host when the stream gets there. args_bytes <=
 * TSR_CALL_BYTES. It is how the CPU device works; on a GPU it halts the stream for microseconds and
 * may not call the device, and calls of several streams may run one after the other: for tests and
 * faults. */
#define TSR_CALL_BYTES 512
typedef tsr_status tsr_call(void *args, tsr_pool *pool);
tsr_status tsr_stream_call(tsr_stream *stream, tsr_call *function, const void *args,
                           uint32_t args_bytes);

/* Copies on the stream; host (from an arena, or pinned) and device memory alike, ranges must not
 * overlap. A GPU's copy from host to host blocks the caller until it is done. */
tsr_status tsr_stream_copy(tsr_stream *stream, void *destination, const void *source,
                           uint64_t bytes);
/* Every byte becomes `value`; device memory. */
tsr_status tsr_stream_fill(tsr_stream *stream, void *destination, uint8_t value, uint64_t bytes);

/* ---- events: a counter of records; a wait names a generation (the first record is 1) ---- */

tsr_status tsr_event_create(tsr_event **out, tsr_device *device);
/* One whose tsr_event_time is known; on a GPU others have none. */
tsr_status tsr_event_create_timed(tsr_event **out, tsr_device *device);
void tsr_event_destroy(tsr_event *event);

/* How many records have been enqueued. */
uint64_t tsr_event_recorded(const tsr_event *event);

/* Enqueues a record: when the stream gets there, one more generation is complete. */
tsr_status tsr_event_record(tsr_event *event, tsr_stream *stream);

/* What is enqueued on `stream` later waits until `generation` is complete. A generation that has
 * not been enqueued yet, or 0, is TSR_EINTERNAL: nobody would record it in time. A GPU may wait for
 * a later one that is enqueued, if it is not one of the last two; there a record on another stream
 * than the last also waits for the last, so that generations complete in order. */
tsr_status tsr_stream_wait(tsr_stream *stream, tsr_event *event, uint64_t generation);

/* The calling thread waits until `generation` is complete. TSR_ETIMEOUT after the device's
 * deadline. */
tsr_status tsr_event_wait_host(tsr_event *event, uint64_t generation);

/* Of a timed event: when the latest completed record completed, in seconds of tsr_now; 0 before the
 * first. */
double tsr_event_time(const tsr_event *event);

/* ---- arenas: all memory of a run, taken once ---- */

typedef enum { TSR_MEMORY_DEVICE, TSR_MEMORY_HOST } tsr_memory;

#define TSR_ALIGNMENT 256 /* of every buffer, and of every segment in a slot */

/* One allocation of `bytes`, zeroed, touched, and never grown. TSR_ENOMEM names the bytes. bytes
 * may be 0. */
tsr_status tsr_arena_create(tsr_arena **out, tsr_device *device, tsr_memory memory, uint64_t bytes);
void tsr_arena_destroy(tsr_arena *arena);

/* Takes a named buffer, aligned to TSR_ALIGNMENT; borrowed from the arena for good. bytes 0 gives
 * NULL. A buffer that does not fit is TSR_EINTERNAL and names what the plan had left. */
tsr_status tsr_arena_take(void **out, tsr_arena *arena, const char *name, uint64_t bytes);

/* What was taken may be taken again, for whoever uses the memory in turns with the first. */
void tsr_arena_rewind(tsr_arena *arena);

/* Bytes taken so far, each buffer rounded up to TSR_ALIGNMENT. */
uint64_t tsr_arena_high_water(const tsr_arena *arena);
uint64_t tsr_arena_bytes(const tsr_arena *arena);

/* ---- host memory and device memory, at start-up and when saving; the streams are idle ---- */

/* Between any host memory and device memory, at once. */
tsr_status tsr_device_write(tsr_device *device, void *destination, const void *source,
                            uint64_t bytes);
tsr_status tsr_device_read(tsr_device *device, void *destination, const void *source,
                           uint64_t bytes);

/* Makes host memory that is no arena's (shared by the ranks of a node) good for stream copies.
 * Until tsr_device_unpin, before it is unmapped. */
tsr_status tsr_device_pin(tsr_device *device, void *memory, uint64_t bytes);
void tsr_device_unpin(tsr_device *device, void *memory);

/* ---- the pool: splits one piece of work over threads ---- */

/* Runs function(context, index) for index 0 .. count-1, on this thread and idle pool threads, and
 * returns when all are done. The split into `count` is the caller's and must depend on shapes only,
 * never on the number of threads: that is what keeps results the same. A busy pool (another
 * stream's work) means the caller does all of it; nested calls do too. */
void tsr_pool_run(tsr_pool *pool, int count, void (*function)(void *context, int index),
                  void *context);
int tsr_pool_thread_count(const tsr_pool *pool);

#endif
