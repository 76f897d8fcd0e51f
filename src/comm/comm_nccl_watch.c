/*
 * comm_nccl_watch.c: nothing that was given to NCCL may hang.
 *
 * One thread for each device (and board) looks a few hundred times a second: has the board died, is
 * the device poisoned, has a process of the node ended, does NCCL report an error, and has a
 * collective begun but not ended within the deadline? An event before and one after each collective
 * tell how far the stream is, so that a collective that stands behind long work is not taken for a
 * late one, and ranks that have not come to it are named.
 *
 * A failure kills the board (the other ranks learn of it), poisons the device (this rank's calls
 * fail) and aborts the NCCL communicators, in this order: the kernels that waited in them end, and
 * the streams run dry. A kernel that is aborted passes on what it has not received, and lets those of
 * other ranks end as if all had come: so every device of the board asks the board itself after each
 * wait (tsr_device_set_outside), and does not depend on its own watchdog's next look. Other nodes hear
 * of it from the host communicator when this rank comes to its agreement, or from NCCL itself, whose
 * connections are gone.
 */
#include "base/clock.h"
#include "comm/nccl_parts.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PERIOD        0.004 /* s between two looks */
#define PEER_LOOKS    8     /* looks between two at the other processes */
#define RING          1024  /* collectives under way; more make the caller wait */
#define ABORT_SECONDS 20    /* how long the end of a communicator waits for an abort */

/* A collective under way. */
struct entry {
    tsr_nccl *owner;
    tsr_comm_kind kind;
    uint64_t number; /* of the owner's */
    cudaEvent_t begin, end;
};

struct tsr_watch {
    tsr_watch *next;
    int users; /* communicators; of the list's lock */
    tsr_device *device;
    int index;
    tsr_board *board;
    int rank; /* in the root */
    pthread_t thread;
    _Atomic bool stop, failed, aborted;
    pthread_mutex_t release_lock; /* of release_all, which ends for good with `stop` */
    double busy_since;            /* the watchdog's: 0, or when it first found the lock taken */
    unsigned looks;

    pthread_mutex_t lock; /* of NCCL's calls, and all below */
    tsr_nccl *first;
    struct entry ring[RING];
    uint64_t issued, done;
    bool has_begun; /* the oldest entry */
    double since;   /* when it was first seen to */
    double entered; /* 0, or when a collective began to be enqueued */
};

static struct {
    pthread_mutex_t lock;
    tsr_watch *first;
    tsr_watch *left_behind; /* their aborts may still run: they stay */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the other processes ---- */

static bool has_ended(const tsr_peer *peer)
{
    if (peer->file < 0)
        return kill((pid_t)peer->pid, 0) != 0 && errno == ESRCH;
    struct pollfd end = {.fd = peer->file, .events = POLLIN};
    return poll(&end, 1, 0) == 1 && (end.revents & POLLIN);
}

static tsr_status check_peers(const tsr_nccl *n)
{
    char who[256];
    for (int i = 0; i < n->peer_count; i++) {
        if (!has_ended(&n->peers[i]))
            continue;
        tsr_board *board = n->comm->gate.board;
        tsr_board_describe(board, n->peers[i].rank, who, sizeof who);
        tsr_fail(TSR_ECOMM, "the process of %s has ended", who);
        tsr_board_kill(board, n->peers[i].rank, TSR_ECOMM, tsr_last_error());
        return tsr_board_check(board, n->comm->gate.rank);
    }
    return TSR_OK;
}

tsr_status tsr_watch_blame(const tsr_nccl *n, tsr_status status)
{
    tsr_error error;
    if (status >= 0)
        return status;
    tsr_error_take(&error, status);
    usleep(50000);
    TSR_TRY(tsr_board_check(n->comm->gate.board, n->comm->gate.rank));
    TSR_TRY(check_peers(n));
    return tsr_error_put(&error);
}

tsr_status tsr_watch_find_peers(tsr_nccl *n)
{
    const tsr_comm *comm = n->comm;
    n->peers = calloc((size_t)comm->size, sizeof *n->peers);
    if (!n->peers)
        return tsr_fail(TSR_ENOMEM, "no memory to watch %d ranks", comm->size);
    for (int i = 0; i < comm->size; i++) {
        if (comm->nodes[i] != comm->nodes[comm->rank] ||
            n->cards[i].pid == n->cards[comm->rank].pid)
            continue;
        tsr_peer *peer = &n->peers[n->peer_count++];
        *peer = (tsr_peer){comm->members[i], (int)n->cards[i].pid, -1};
#ifdef SYS_pidfd_open
        peer->file = (int)syscall(SYS_pidfd_open, peer->pid, 0);
#endif
    }
    return TSR_OK;
}

/* ---- looking; the lock is held ---- */

static tsr_status is_done(bool *out, cudaEvent_t event)
{
    cudaError_t error = cudaEventQuery(event);
    *out = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        cudaGetLastError(); /* no error, but kept as one */
        return TSR_OK;
    }
    return tsr_cuda_status(error, "a collective");
}

/* Forgets what has completed, and tells the others how far this rank is. */
static tsr_status advance(tsr_watch *w)
{
    bool done = true;
    while (w->done < w->issued) {
        const struct entry *oldest = &w->ring[w->done % RING];
        TSR_TRY(is_done(&done, oldest->end));
        if (!done && !w->has_begun) {
            TSR_TRY(is_done(&w->has_begun, oldest->begin));
            w->since = tsr_now();
        }
        if ((done || w->has_begun) && oldest->owner->arrived != oldest->number) {
            oldest->owner->arrived = oldest->number;
            tsr_board_arrive(&oldest->owner->comm->gate, oldest->number);
        }
        if (!done)
            return TSR_OK;
        w->has_begun = false;
        w->done++;
    }
    return TSR_OK;
}

static tsr_status look(tsr_watch *w)
{
    TSR_TRY(advance(w));
    if (w->entered > 0 && tsr_now() - w->entered >= 2 * tsr_device_timeout(w->device))
        return tsr_fail(TSR_ETIMEOUT, "a collective has not been enqueued for %g s",
                        tsr_now() - w->entered);
    for (tsr_nccl *n = w->first; n; n = n->next) {
        TSR_TRY(tsr_nccl_check(n));
        if (w->looks % PEER_LOOKS == 0)
            TSR_TRY(check_peers(n));
    }
    if (w->done == w->issued || !w->has_begun)
        return TSR_OK;
    const struct entry *oldest = &w->ring[w->done % RING];
    const tsr_board_gate *gate = &oldest->owner->comm->gate;
    if (tsr_now() - w->since < gate->timeout_seconds)
        return TSR_OK;
    return tsr_board_late(gate, tsr_comm_kind_name(oldest->kind));
}

/* ---- the thread ---- */

/* What killed the board counts, if another rank was first. */
static void fail(tsr_watch *w, tsr_status status)
{
    tsr_board_kill(w->board, w->rank, status, tsr_last_error());
    tsr_status death = tsr_board_check(w->board, w->rank);
    tsr_device_poison(w->device, death < 0 ? death : status, tsr_last_error());
    atomic_store(&w->failed, true);
}

/* Not any more once the communicators may be gone (leave_behind). */
static void release_all(tsr_watch *w)
{
    pthread_mutex_lock(&w->release_lock);
    for (tsr_nccl *n = w->first; n && !atomic_load(&w->stop); n = n->next)
        tsr_meet_release(n);
    pthread_mutex_unlock(&w->release_lock);
}

static void abort_all(tsr_watch *w)
{
    release_all(w);
    for (tsr_nccl *n = w->first; n; n = n->next)
        tsr_nccl_abort(n);
    w->done = w->issued;
    atomic_store(&w->aborted, true);
}

/* Without the lock: what needs none. */
static tsr_status look_outside(tsr_watch *w, bool busy)
{
    TSR_TRY(tsr_board_check(w->board, w->rank));
    TSR_TRY(tsr_device_check(w->device));
    if (!busy) {
        w->busy_since = 0;
        return TSR_OK;
    }
    if (w->busy_since == 0)
        w->busy_since = tsr_now();
    if (tsr_now() - w->busy_since < 2 * tsr_device_timeout(w->device))
        return TSR_OK;
    return tsr_fail(TSR_ETIMEOUT, "a call of NCCL has not returned for %g s",
                    tsr_now() - w->busy_since);
}

static void *watch(void *argument)
{
    tsr_watch *w = argument;
    cudaSetDevice(w->index);
    for (; !atomic_load(&w->stop); usleep((useconds_t)(PERIOD * 1e6))) {
        bool held = pthread_mutex_trylock(&w->lock) == 0, aborted = atomic_load(&w->aborted);
        if (held && aborted)
            release_all(w);
        if (!atomic_load(&w->failed)) {
            tsr_status status = look_outside(w, !held);
            if (status == TSR_OK && held)
                status = look(w);
            if (status < 0)
                fail(w, status);
            w->looks++;
        }
        if (held && !aborted && atomic_load(&w->failed))
            abort_all(w);
        if (held)
            pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

/* Signals are for the program's own threads. */
static int start(tsr_watch *w)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int error = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- joining and leaving ---- */

static tsr_status ask_board(const void *board, int rank)
{
    return tsr_board_check(board, rank);
}

static void free_watch(tsr_watch *w)
{
    for (int i = 0; i < RING; i++) {
        if (w->ring[i].begin)
            cudaEventDestroy(w->ring[i].begin);
        if (w->ring[i].end)
            cudaEventDestroy(w->ring[i].end);
    }
    pthread_mutex_destroy(&w->release_lock);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static tsr_status make(tsr_watch **out, const tsr_nccl *n)
{
    tsr_watch *w = calloc(1, sizeof *w);
    if (!w)
        return tsr_fail(TSR_ENOMEM, "no memory to watch a device");
    w->device = n->device;
    w->index = n->index;
    w->board = n->comm->gate.board;
    w->rank = n->comm->gate.rank;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->release_lock, NULL);
    tsr_status status = TSR_OK;
    for (int i = 0; i < RING && status == TSR_OK; i++) {
        status = tsr_cuda_status(
            cudaEventCreateWithFlags(&w->ring[i].begin, cudaEventDisableTiming), "an event");
        if (status == TSR_OK)
            status = tsr_cuda_status(
                cudaEventCreateWithFlags(&w->ring[i].end, cudaEventDisableTiming), "an event");
    }
    if (status == TSR_OK && start(w) != 0)
        status = tsr_fail(TSR_ENOMEM, "the thread that watches a device cannot be started");
    if (status < 0) {
        free_watch(w);
        return status;
    }
    tsr_device_set_outside(w->device, ask_board, w->board, w->rank);
    *out = w;
    return TSR_OK;
}

/* Kernels of two jobs' collectives would each hold multiprocessors of one card and wait for those of another, and what
 * comm_nccl_meet.c says of the order of waits holds for one rank in a process. */
static tsr_status check_alone(const tsr_nccl *n)
{
    for (const tsr_watch *w = all.first; w; w = w->next)
        if (w->index == n->index && w->board != n->comm->gate.board)
            return tsr_fail(
                TSR_EINVAL,
                "GPU %d belongs to another job of several GPUs in this process, and collectives of "
                "both could "
                "wait for each other: destroy that job first, or give this one other GPUs",
                n->index);
    return TSR_OK;
}

tsr_status tsr_watch_join(tsr_nccl *n)
{
    pthread_mutex_lock(&all.lock);
    tsr_status status = check_alone(n);
    tsr_watch *w = all.first;
    while (w && (w->device != n->device || w->board != n->comm->gate.board))
        w = w->next;
    if (!w && status == TSR_OK) {
        status = make(&w, n);
        if (status == TSR_OK) {
            w->next = all.first;
            all.first = w;
        }
    }
    if (status == TSR_OK)
        w->users++;
    pthread_mutex_unlock(&all.lock);
    TSR_TRY(status);
    pthread_mutex_lock(&w->lock);
    n->watch = w;
    n->next = w->first;
    w->first = n;
    pthread_mutex_unlock(&w->lock);
    return TSR_OK;
}

/* The list's lock is held. */
static void take_off(tsr_watch *w)
{
    for (tsr_watch **at = &all.first; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
}

void tsr_watch_leave(tsr_nccl *n)
{
    tsr_watch *w = n->watch;
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    for (tsr_nccl **at = &w->first; *at; at = &(*at)->next)
        if (*at == n) {
            *at = n->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_lock(&all.lock);
    bool last = --w->users == 0;
    if (last)
        take_off(w);
    pthread_mutex_unlock(&all.lock);
    n->watch = NULL;
    if (!last)
        return;
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    tsr_device_set_outside(w->device, NULL, NULL, 0);
    free_watch(w);
}

/* ---- what the enqueuing thread does ---- */

tsr_status tsr_watch_why_stop(const tsr_nccl *n, double end, const char *what)
{
    TSR_TRY(tsr_board_check(n->comm->gate.board, n->comm->gate.rank));
    TSR_TRY(tsr_device_check(n->device));
    TSR_TRY(check_peers(n));
    if (tsr_now() < end)
        return TSR_OK;
    return tsr_fail(TSR_ETIMEOUT, "NCCL: %s: rank %d has waited %g s for the other ranks", what,
                    n->comm->gate.rank, n->comm->gate.timeout_seconds);
}

/* A communicator whose failure is known to nobody else yet is not left without one. */
static tsr_status why_dead(const tsr_nccl *n)
{
    TSR_TRY(tsr_watch_why_stop(n, tsr_now() + 1, "collective"));
    return tsr_fail(TSR_ECOMM, "the NCCL communicator was given up");
}

static void rest(int polls)
{
    if (polls < 200)
        sched_yield();
    else
        usleep(50);
}

/* The watchdog holds the lock for microseconds, or while it aborts. */
static tsr_status acquire(tsr_nccl *n, double end, const char *what)
{
    tsr_watch *w = n->watch;
    for (int polls = 0; pthread_mutex_trylock(&w->lock) != 0; polls++) {
        if (atomic_load(&w->failed))
            return why_dead(n);
        if (polls % 64 == 63)
            TSR_TRY(tsr_watch_why_stop(n, end, what));
        rest(polls);
    }
    if (!atomic_load(&w->failed) && n->nccl)
        return TSR_OK;
    pthread_mutex_unlock(&w->lock);
    return why_dead(n);
}

/* Takes the lock when at most `most` collectives are under way. */
static tsr_status acquire_at(tsr_nccl *n, uint64_t most, const char *what)
{
    tsr_watch *w = n->watch;
    double end = tsr_now() + n->comm->gate.timeout_seconds;
    uint64_t done = 0;
    for (int polls = 0;; polls++) {
        TSR_TRY(acquire(n, end, what));
        if (w->issued - w->done <= most)
            return TSR_OK;
        tsr_status status = advance(w);
        if (status == TSR_OK && w->issued - w->done <= most)
            return TSR_OK;
        if (w->done != done) { /* what proceeds is not late */
            done = w->done;
            end = tsr_now() + n->comm->gate.timeout_seconds;
        }
        pthread_mutex_unlock(&w->lock);
        TSR_TRY(status);
        TSR_TRY(tsr_watch_why_stop(n, end, what));
        rest(polls);
    }
}

tsr_status tsr_watch_lock(tsr_nccl *n, const char *what)
{
    return acquire(n, tsr_now() + n->comm->gate.timeout_seconds, what);
}

/* What enqueues is called without the lock: where a stream is full it waits, for as long as the work in
 * front of it waits for a rank that is gone; and it is the watchdog, which needs the lock, that ends that.
 * It sees no entry before that is issued, and one thread issues. */
tsr_status tsr_watch_begin(tsr_nccl *n, cudaStream_t stream)
{
    tsr_watch *w = n->watch;
    TSR_TRY(acquire_at(n, RING - 1, "collective"));
    w->entered = tsr_now();
    pthread_mutex_unlock(&w->lock);
    return tsr_cuda_status(cudaEventRecord(w->ring[w->issued % RING].begin, stream),
                           "a collective");
}

tsr_status tsr_watch_end(tsr_nccl *n, cudaStream_t stream, tsr_comm_kind kind)
{
    tsr_watch *w = n->watch;
    struct entry *entry = &w->ring[w->issued % RING];
    TSR_TRY(tsr_cuda_status(cudaEventRecord(entry->end, stream), "a collective"));
    TSR_TRY(tsr_watch_lock(n, tsr_comm_kind_name(kind)));
    entry->owner = n;
    entry->kind = kind;
    entry->number = ++n->issued;
    w->issued++;
    w->entered = 0;
    pthread_mutex_unlock(&w->lock);
    return TSR_OK;
}

void tsr_watch_outlast(tsr_nccl *n)
{
    tsr_watch *w = n->watch;
    for (int polls = 0; !atomic_load(&w->failed); polls++) {
        if (pthread_mutex_trylock(&w->lock) == 0) {
            bool over = advance(w) < 0 || w->issued == w->done;
            pthread_mutex_unlock(&w->lock);
            if (over)
                return;
        }
        rest(polls);
    }
}

tsr_status tsr_watch_drain(tsr_nccl *n)
{
    return acquire_at(n, 0, "end");
}

void tsr_watch_unlock(tsr_nccl *n)
{
    pthread_mutex_unlock(&n->watch->lock);
}

/* The abort goes on alone. What it has of NCCL stays, with the watchdog, for as long as the process;
 * the board, the device and what the ranks share do not: of these it touches nothing from here on. */
static void leave_behind(tsr_watch *w)
{
    pthread_mutex_lock(&w->release_lock);
    bool before = atomic_exchange(&w->stop, true);
    pthread_mutex_unlock(&w->release_lock);
    if (before)
        return;
    pthread_detach(w->thread);
    pthread_mutex_lock(&all.lock);
    take_off(w);
    w->next = all.left_behind;
    all.left_behind = w;
    pthread_mutex_unlock(&all.lock);
}

bool tsr_watch_given_up(tsr_nccl *n)
{
    tsr_watch *w = n->watch;
    double end = tsr_now() + (n->abort_seconds > 0 ? n->abort_seconds : ABORT_SECONDS);
    while (!atomic_load(&w->aborted)) {
        if (atomic_load(&w->stop) || tsr_now() >= end) {
            leave_behind(w);
            return false;
        }
        usleep(1000);
    }
    return true;
}
