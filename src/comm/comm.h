/*
 * comm/comm.h: collectives between the ranks of a job.
 *
 * Implementations: thread (1 rank, or N in one process, for tests and embedders),
 * callback (over an embedder's all-gather), mpi; and nccl, for device memory of the same ranks. One
 * conformance suite runs on all of them.
 *
 * Order    All ranks make the same calls in the same order on a communicator and all its splits.
 *          Calls enqueue on `stream` and return; all communicators of a job use the same stream.
 * Threads  Host implementations run inside the stream's worker; what blocks waits until the stream
 *          is idle and then runs on the calling thread. So MPI is called by one thread at a time.
 *          Blocking calls take a NULL stream while nothing is enqueued. nccl enqueues on a stream
 *          of its CUDA device, and a thread of its own watches that all of it ends.
 * Errors   A peer that fails, aborts or does not arrive before the deadline poisons the device of
 *          every rank that waits, with TSR_ECOMM or TSR_ETIMEOUT naming the rank, and its step, op
 *          and unit as last published. After that every call fails.
 * Memory   Nothing allocates after creation but create, split and share.
 */
#ifndef TSR_COMM_COMM_H
#define TSR_COMM_COMM_H

#include "base/library.h"
#include "device/device.h"

typedef struct tsr_comm tsr_comm;

/* HALVES: sums of int32, of which a word has two. Sums wrap. */
typedef enum { TSR_SUM, TSR_MIN, TSR_MAX, TSR_SUM_HALVES } tsr_reduce_op;

/* What an embedder gives: every rank's `bytes` bytes, gathered in rank order into `receive`.
 * Blocking; returns 0 on success. Called by one thread at a time. The ranks of one node meet, with a
 * deadline, before they call it, but not while a communicator is created; so for a rank that never
 * comes, and for one that dies in the middle of it, it must return by itself. */
typedef struct {
    int rank, size;
    int (*all_gather)(void *user, const void *send, void *receive, uint64_t bytes);
    void *user;
} tsr_bootstrap;

/* timeout_seconds 0: 300. On success the caller owns *out. One rank is a thread alone. */
tsr_status tsr_comm_create_self(tsr_comm **out);
tsr_status tsr_comm_create_callback(tsr_comm **out, const tsr_bootstrap *bootstrap,
                                    double timeout_seconds);

/* N communicators of one process: out[0..size). Each is then used by its own rank's threads. */
tsr_status tsr_comm_create_threads(tsr_comm **out, int size, double timeout_seconds);

/* Under mpirun: initialises MPI (MPI_THREAD_SERIALIZED; refused clearly if the library gives less)
 * unless the program already did, and duplicates the world. A program started without mpirun gets
 * one rank; TSR_ECONFIG: the environment says that it is one of several (comm/launcher.h). */
tsr_status tsr_comm_create_mpi(tsr_comm **out, double timeout_seconds);

/* How far that has come. Some waits end by nothing that the library could do: those of MPI_Init for a rank that never
 * starts, and those for an mpirun that is stopped. A watchdog of the program's asks this, from any thread. */
typedef enum {
    TSR_MPI_APART,    /* MPI is not used */
    TSR_MPI_STARTING, /* inside MPI_Init */
    TSR_MPI_MEETING,  /* the ranks greet each other */
    TSR_MPI_TOGETHER  /* or the library has given up */
} tsr_mpi_stage;
tsr_mpi_stage tsr_comm_mpi_stage(void);

/* "rank 2, rank 5": who has not been heard of since TSR_MPI_MEETING; "": nobody. */
void tsr_comm_mpi_missing(char *text, size_t bytes);

/* "Open MPI v4.1.4, ..." in `text`: the library, which need not be initialised. */
#define TSR_MPI_LIBRARY_BYTES 8192 /* the most that the standard lets it say */
void tsr_comm_mpi_library(char text[TSR_MPI_LIBRARY_BYTES]);

/* The same ranks as `host` (a root or a split), for device memory of a CUDA device: collectives run
 * on its streams, through NCCL. What blocks (agree, check_same, split, share: TSR_EINVAL here) is
 * called on the host communicator; publish and abort are the same on both, and so is death. `host`
 * must outlive it. Blocking, collective on `host`; a failure is all ranks'. NCCL is loaded for the
 * first one of several ranks. TSR_EUNSUPPORTED in a build without CUDA; TSR_EDEVICE: NCCL cannot be
 * loaded; TSR_ECONFIG: two ranks are on one GPU. */
tsr_status tsr_comm_create_nccl(tsr_comm **out, tsr_comm *host, tsr_stream *host_stream,
                                tsr_device *device);

/* The version of NCCL on this machine. TSR_EUNSUPPORTED in a build without CUDA; TSR_EDEVICE: it
 * cannot be loaded. */
tsr_status tsr_comm_nccl_version(tsr_library_version *out);

/* NULL is fine. Not collective on an aborted communicator; never waits longer than the deadline. Of
 * nccl: when its streams are idle, before its host communicator and before exposed memory is freed.
 */
void tsr_comm_destroy(tsr_comm *comm);

/* Ranks of one `color`, ordered by rank. Collective and blocking. The caller owns *out and destroys
 * it before its parent. */
tsr_status tsr_comm_split(tsr_comm **out, tsr_comm *comm, tsr_stream *stream, int color);

int tsr_comm_rank(const tsr_comm *comm);
int tsr_comm_size(const tsr_comm *comm);
int tsr_comm_node(const tsr_comm *comm);       /* index of this rank's node, 0 .. nodes-1 */
int tsr_comm_node_count(const tsr_comm *comm); /* nodes of the job */
int tsr_comm_local_rank(const tsr_comm *comm); /* among the ranks of its node */
int tsr_comm_local_size(const tsr_comm *comm);
const char *tsr_comm_name(const tsr_comm *comm); /* "thread", "callback", "mpi", "nccl" */

/* ---- collectives; enqueued on `stream` ---- */

/* One range of a grouped all-gather: `bytes` from every rank; rank i's lands at receive + i *
 * bytes. `send` may be that very place (in place). `bytes` may be 0. */
typedef struct {
    const void *send;
    void *receive;
    uint64_t bytes;
} tsr_gather_range;

/* All ranges in one call. Each rank sends sum(bytes) and receives size times that. `ranges` is
 * borrowed until the call has run. What all of them send lies at the same place of exposed memory on
 * every rank, or on none in such memory (tsr_comm_expose). */
tsr_status tsr_comm_all_gather(tsr_comm *comm, tsr_stream *stream, const tsr_gather_range *ranges,
                               int count);

/* Lets the other ranks of the node read this rank's device memory [base, base + bytes), which stays
 * as long as the communicator: gathers and exchanges of what lies in it go by copy engines where
 * they can, and tsr_comm_pull needs no rendezvous. Blocking, collective on the host stream. Nothing
 * to do on communicators of host memory. */
tsr_status tsr_comm_expose(tsr_comm *comm, tsr_stream *host_stream, void *base, uint64_t bytes);

/* tsr_comm_all_gather of ranges that no rank writes any more (frozen parts): each rank may take them
 * at its own time, by copy engines where the ranks can read each other's memory. All ranges lie in
 * exposed memory, at the same place of it on every rank. */
tsr_status tsr_comm_pull(tsr_comm *comm, tsr_stream *stream, const tsr_gather_range *ranges,
                         int count);

/* One range of an exchange: a piece of `bytes` for each rank, in their order, at `send`. What the
 * other ranks have for this one lands at `receive`, in their order; its own piece stays where it is.
 * `bytes` may be 0. Pieces follow each other, and what lands has no place for the own one; or they are so many bytes apart
 * as a step says, which may be negative: then `send` and `receive` are the places of rank 0, and the own one has one too. */
typedef struct {
    const void *send;
    void *receive;
    uint64_t bytes;
    int64_t send_step, receive_step; /* 0: they follow each other */
} tsr_exchange_range;

/* All ranges in one call. Each rank sends and receives (size - 1) sum(bytes). receive must not
 * overlap send. `ranges` is borrowed until the call has run. Exposed memory: as in an all-gather. */
tsr_status tsr_comm_exchange(tsr_comm *comm, tsr_stream *stream, const tsr_exchange_range *ranges,
                             int count);

/* One range of a deal, which turns rows that have a piece for each rank into rows of all ranks, or back. `pieces` has for each rank
 * `rounds` pieces that follow each other; `places` has rounds of one piece from each rank, which are dealt back and forth: the
 * first one in the order of ranks, the next from the last rank on. Pieces of the last round may be shorter. */
typedef struct {
    void *pieces, *places;
    uint64_t bytes, last_bytes; /* of a piece, and of one of the last round */
} tsr_deal_range;

#define TSR_DEAL_RANGES 6

/* All ranges in one call: what a rank has for another lands in that one's places; or, back, what it has in the other's places
 * lands among the other's pieces for it. Own pieces stay where they are. At most TSR_DEAL_RANGES, copied; pieces and places must
 * not overlap. Exposed memory: as in an all-gather, of both. */
tsr_status tsr_comm_deal(tsr_comm *comm, tsr_stream *stream, const tsr_deal_range *ranges,
                         int count, int64_t rounds, bool back);

/* In place over all ranks. */
tsr_status tsr_comm_all_reduce(tsr_comm *comm, tsr_stream *stream, int64_t *data, uint64_t count,
                               tsr_reduce_op op);
tsr_status tsr_comm_broadcast(tsr_comm *comm, tsr_stream *stream, void *data, uint64_t bytes,
                              int root);
tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_stream *stream);

/* Broadcasts on `stream` between the two run together where they can, so that every rank sends at once. None may read what
 * another one writes. Nothing else of the communicator is called in between. A group that has begun must be ended, even if
 * something in it fails. */
tsr_status tsr_comm_group_begin(tsr_comm *comm, tsr_stream *stream);
tsr_status tsr_comm_group_end(tsr_comm *comm, tsr_stream *stream);

/* ---- control: works beside the collectives and after a failure ---- */

/* What this rank is doing, for the message of a rank that waits in vain. Any thread, cheap, never
 * blocks. */
void tsr_comm_publish(tsr_comm *comm, uint64_t step, const char *op, int unit);

/* Tells all ranks that this one has failed: their waits end with TSR_ECOMM and this message. Any
 * thread. */
void tsr_comm_abort(tsr_comm *comm, tsr_status status, const char *message);

/* The end of a phase that may fail on some ranks only. Blocking, collective on `stream`. Returns
 * the status of the lowest rank that failed, on every rank, with its message ("rank 2: ...") as
 * last error; *first (may be NULL) is that rank, -1 if none failed. Works on an aborted
 * communicator too (then it waits at most 5 seconds for the others and decides with what it knows).
 */
tsr_status tsr_comm_agree(tsr_comm *comm, tsr_stream *stream, tsr_status status, int *first);

/* TSR_ERANKS unless `value` is the same on all ranks; names the first rank that differs from rank 0
 * and `what`, and `advice`. Blocking, collective. */
tsr_status tsr_comm_check_same(tsr_comm *comm, tsr_stream *stream, uint64_t value, const char *what,
                               const char *advice);

/* Host memory shared by the ranks of a node, zeroed: every local rank gets the same bytes, at its
 * own address. Blocking, collective. Freed by tsr_comm_destroy. */
tsr_status tsr_comm_share(void **out, tsr_comm *comm, tsr_stream *stream, uint64_t bytes);

#endif
