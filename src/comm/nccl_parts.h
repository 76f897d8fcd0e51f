/*
 * comm/nccl_parts.h: the parts of the NCCL communicator.
 *
 * comm_nccl.c        creation, collectives, end; the only caller of NCCL
 * comm_nccl_watch.c  the watchdog: what was enqueued, whether it proceeds, what ends it
 * comm_nccl_pull.c   memory of the other ranks of the node, and copies from it
 * comm_nccl_meet.c   where the streams of these ranks meet, for copies of what changes
 * nccl_library.c     NCCL itself, loaded when it is needed
 *
 * NCCL is called by the thread that enqueues and by the watchdog, one at a time: by who holds the
 * watch's lock. Communicators are made nonblocking, so that no call of NCCL waits for another rank
 * and the lock is never held for long.
 */
#ifndef TSR_COMM_NCCL_PARTS_H
#define TSR_COMM_NCCL_PARTS_H

#include "comm/comm_parts.h"
#include "device/cuda.h"

#define TSR_PULL_LANES 4

typedef struct tsr_nccl tsr_nccl;
typedef struct tsr_watch tsr_watch;
typedef struct tsr_region tsr_region;

/* Another rank of the node that is a process of its own. */
typedef struct {
    int rank; /* in the root of the host communicator */
    int pid;
    int file; /* pidfd; -1: this system has none */
} tsr_peer;

/* What each rank tells the others at creation. */
typedef struct {
    char gpu[16]; /* its UUID */
    int64_t pid;
    int64_t index; /* of the device in its process */
    char id[128];  /* ncclUniqueId, of rank 0 */
} tsr_nccl_card;

/* The backend of a communicator of CUDA devices. */
struct tsr_nccl {
    tsr_comm *comm, *host;
    tsr_device *device;
    int index;                /* of the CUDA device */
    tsr_nccl_card *cards;     /* [size] */
    struct ncclComm *nccl;    /* NULL: one rank, or given up */
    int64_t *scratch;         /* device memory; the first word is the barrier's */
    bool grouped;             /* between the begin and the end of a group: the lock is held */
    int group_result;         /* ncclResult_t of its calls: the first that failed */
    bool threads;             /* two ranks are one process; the same on all ranks */
    bool without_nccl;        /* see tsr_nccl_options */
    bool meets_in_process;    /* likewise */
    double abort_seconds;     /* likewise */
    tsr_watch *watch;         /* NULL: one rank */
    tsr_nccl *next;           /* of the watch */
    uint64_t issued, arrived; /* collectives: enqueued, and seen to have begun */
    tsr_peer *peers;
    int peer_count;
    tsr_region *regions;
    char *words;               /* host memory of the node, comm_nccl_meet.c; NULL: none */
    uint64_t device_words;     /* the same, as the device sees it */
    bool words_pinned, meets;  /* meets: on all ranks alike */
    _Atomic uint32_t meetings; /* enqueued */
    int lane_count;            /* streams of a pull, its own among them */
    cudaStream_t lane[TSR_PULL_LANES];
    cudaEvent_t fork, join[TSR_PULL_LANES];
};

/* ---- comm_nccl.c, for the watchdog; the caller holds the lock ---- */

/* TSR_OK, or what NCCL has found out meanwhile. */
tsr_status tsr_nccl_check(tsr_nccl *n);
/* Ends its kernels; may take long if the device does not answer. */
void tsr_nccl_abort(tsr_nccl *n);

/* ---- comm_nccl_watch.c ---- */

/* Fills in `peers`, from the cards: from here on a wait ends when one of them does. */
tsr_status tsr_watch_find_peers(tsr_nccl *n);

/* Begins to watch; starts the thread of this device and board if it is the first. */
tsr_status tsr_watch_join(tsr_nccl *n);
/* Ends it, with the thread if it was the last. */
void tsr_watch_leave(tsr_nccl *n);

/* Records that the stream has come to a collective, and that it is past it: the collective is enqueued in
 * between. Both may wait for room in the stream, and so does what copies: none of them with the lock. */
tsr_status tsr_watch_begin(tsr_nccl *n, cudaStream_t stream);
tsr_status tsr_watch_end(tsr_nccl *n, cudaStream_t stream, tsr_comm_kind kind);

/* The lock, for calls of NCCL; fails when the communicator is dead. tsr_watch_unlock. */
tsr_status tsr_watch_lock(tsr_nccl *n, const char *what);

/* Waits until all that was enqueued on the device has completed, or the watchdog has found a failure: of that
 * hears who waits for the stream. */
void tsr_watch_outlast(tsr_nccl *n);

/* The same, when all that was enqueued on `n` has completed. */
tsr_status tsr_watch_drain(tsr_nccl *n);
void tsr_watch_unlock(tsr_nccl *n);

/* Why a wait that ends at `end` must end now; TSR_OK to go on. */
tsr_status tsr_watch_why_stop(const tsr_nccl *n, double end, const char *what);

/* `status`, or what lies behind a failure of NCCL: it may notice that a process has gone before that
 * is quite gone, and who it was is worth a short wait. */
tsr_status tsr_watch_blame(const tsr_nccl *n, tsr_status status);

/* The communicator is dead: waits until the watchdog has given `n` up. False: it has not within its
 * deadline; nothing of `n` may be freed, whose abort may still run, but all that `n` does not own. */
bool tsr_watch_given_up(tsr_nccl *n);

/* ---- comm_nccl_meet.c ---- */

/* Decides n->meets: not if two ranks are one process. Blocking, collective; at most once for a
 * communicator. */
tsr_status tsr_meet_create(tsr_nccl *n, tsr_stream *host_stream);
void tsr_meet_destroy(tsr_nccl *n);

/* What all ranks enqueued before it is done, and visible, before what any enqueues after it runs.
 * Only if n->meets. */
tsr_status tsr_meet_enqueue(tsr_nccl *n, cudaStream_t stream);

/* Ends the waits of a dead communicator. A rank that has not noticed may undo it: to be repeated. */
void tsr_meet_release(tsr_nccl *n);

/* ---- comm_nccl_pull.c ---- */

tsr_status tsr_nccl_expose(tsr_comm *comm, tsr_stream *host_stream, void *base, uint64_t bytes);
tsr_status tsr_nccl_pull(tsr_comm *comm, const tsr_comm_call *call, const tsr_gather_range *ranges,
                         int count);
/* Between two meetings: what ranks of the node have in exposed memory, by copies. False: it is not
 * there, or they cannot meet; on all ranks alike. *status is the call's. */
bool tsr_nccl_gather_by_copies(tsr_status *status, tsr_comm *comm, const tsr_comm_call *call,
                               const tsr_gather_range *ranges, int count);
bool tsr_nccl_exchange_by_copies(tsr_status *status, tsr_comm *comm, const tsr_comm_call *call,
                                 const tsr_exchange_range *ranges, int count);
/* Whether all ranks find it good. Blocking, collective; not if *status is a failure then. */
bool tsr_nccl_all_good(tsr_status *status, const tsr_nccl *n, bool good);
/* True if pulls of memory from `base` on are copies from the peers, not all-gathers. */
bool tsr_nccl_is_direct(const tsr_comm *comm, const void *base);
tsr_status tsr_nccl_set_lanes(tsr_comm *comm, int count);
void tsr_nccl_close_regions(tsr_nccl *n);

/* ---- for tests ---- */

typedef struct {
    /* Several ranks on one GPU, which NCCL refuses: then expose and pull are all there is. */
    bool without_nccl;
    /* Ranks of one process meet too: where CUDA is made up, which puts nothing behind anything. */
    bool meets_in_process;
    /* How long the end of a communicator waits for an abort; 0: 20. */
    double abort_seconds;
} tsr_nccl_options;
tsr_status tsr_comm_create_nccl_with(tsr_comm **out, tsr_comm *host, tsr_stream *host_stream,
                                     tsr_device *device, const tsr_nccl_options *options);

#endif
