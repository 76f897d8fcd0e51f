/*
 * comm/comm_parts.h: what the communicators share.
 *
 * A root and its splits have one board and one backend. A host backend's collectives block; comm.c
 * runs them on the stream's worker, control.c on the calling thread once the stream is idle. A
 * device backend enqueues its collectives itself, and leaves what blocks to a host communicator.
 */
#ifndef TSR_COMM_COMM_PARTS_H
#define TSR_COMM_COMM_PARTS_H

#include "comm/board.h"
#include "comm/comm.h"

typedef enum {
    TSR_COMM_ALL_GATHER,
    TSR_COMM_EXCHANGE,
    TSR_COMM_ALL_REDUCE,
    TSR_COMM_BROADCAST,
    TSR_COMM_BARRIER,
    TSR_COMM_AGREE,
    TSR_COMM_CHECK,
    TSR_COMM_SPLIT,
    TSR_COMM_SHARE,
    TSR_COMM_CREATE,
    TSR_COMM_EXPOSE,
    TSR_COMM_GOODBYE,
    TSR_COMM_KIND_COUNT
} tsr_comm_kind;

/* One collective under way. */
typedef struct {
    tsr_device *device; /* its poison ends the waits; NULL on the calling thread */
    tsr_comm_kind kind;
    uint64_t signature; /* of the sizes, which must be the same on all ranks */
    tsr_stream *stream; /* where a device backend enqueues; host backends have none */
} tsr_comm_call;

/* Every slot is required but those that say so. All ranks of the communicator call them alike; any
 * failure kills the board. */
typedef struct {
    const char *name;
    /* The collectives enqueue on call->stream, of a CUDA device, and return. They cannot compare
     * the ranks' sizes (call->signature is 0): that would need a rendezvous of the hosts. The plan,
     * from which all sizes follow, is compared when a job starts. */
    bool enqueues;
    tsr_status (*all_gather)(tsr_comm *comm, const tsr_comm_call *call,
                             const tsr_gather_range *ranges, int count);
    tsr_status (*exchange)(tsr_comm *comm, const tsr_comm_call *call,
                           const tsr_exchange_range *ranges, int count);
    tsr_status (*all_reduce)(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                             uint64_t count, tsr_reduce_op op);
    tsr_status (*broadcast)(tsr_comm *comm, const tsr_comm_call *call, void *data, uint64_t bytes,
                            int root);
    tsr_status (*barrier)(tsr_comm *comm, const tsr_comm_call *call);
    /* Around broadcasts that may run together; both NULL where they cannot. */
    tsr_status (*group_begin)(tsr_comm *comm, const tsr_comm_call *call);
    tsr_status (*group_end)(tsr_comm *comm, const tsr_comm_call *call);
    /* tsr_comm_expose, tsr_comm_pull. NULL where the hosts' memory is all there is: nothing to do,
     * and an all-gather. */
    tsr_status (*expose)(tsr_comm *comm, tsr_stream *host_stream, void *base, uint64_t bytes);
    tsr_status (*pull)(tsr_comm *comm, const tsr_comm_call *call, const tsr_gather_range *ranges,
                       int count);
    /* May be NULL. Tells the other nodes, whom the board does not reach, that it is dead. No collective of this
     * rank is under way. */
    void (*spread)(tsr_comm *comm);
    /* The root is destroyed: gives up the backend, and the board. */
    void (*close)(tsr_comm *root);
} tsr_comm_ops;

/* Memory that is shared by the ranks of a node, until the root is gone. */
typedef struct tsr_shared {
    struct tsr_shared *next;
    void *memory;
    uint64_t bytes;
} tsr_shared;

struct tsr_comm {
    const tsr_comm_ops *ops;
    void *backend;
    tsr_comm *root; /* itself, for a root */
    tsr_board_gate gate;
    int rank, size;
    int *members; /* ranks in the root, ascending */
    int *nodes;   /* the node of each member */
    int node, node_count, local_rank, local_size;
    int slots_used;         /* of a root */
    _Atomic int running;    /* of a root: collectives that run on the stream's worker now */
    tsr_shared *shared;     /* of a root */
    struct tsr_note *notes; /* one for each rank, for agreements */
};

/* What an agreement gathers from each rank. */
struct tsr_note {
    int64_t status;
    uint64_t value;
};

/* `nodes` names the node of each of the `size` members (any numbers; copied), `members` their ranks
 * in the root (copied). `root` NULL makes a root. */
tsr_status tsr_comm_new(tsr_comm **out, const tsr_comm_ops *ops, void *backend, tsr_board *board,
                        tsr_comm *root, int slot, int rank, int size, const int *members,
                        const int *nodes, double timeout_seconds);
void tsr_comm_free(tsr_comm *comm);

/* Waits until all ranks of this node have come to the same call (tsr_board_pass); TSR_ERANKS, on
 * all of them, if their calls differ. */
tsr_status tsr_comm_meet(const tsr_board_gate *gate, const tsr_comm_call *call);

/* Names a call, with its sizes: ranks whose calls have different ones are out of step. Says so of
 * ranks `rank`, whose call it is, and `other`, which came with `tag`; returns TSR_ERANKS. */
uint64_t tsr_comm_tag(const tsr_comm_call *call);
tsr_status tsr_comm_out_of_step(const tsr_comm_call *call, int rank, int other, uint64_t tag);

/* An all-gather of host memory at once, once `stream` (may be NULL) is idle. Collective. */
tsr_status tsr_comm_gather_now(tsr_comm *comm, tsr_stream *stream, const void *send, void *receive,
                               uint64_t bytes, tsr_comm_kind kind);

/* Where the piece of an exchange goes that this rank has for `peer`, and where the peer's for this
 * one. */
char *tsr_exchange_to(const tsr_exchange_range *range, int peer);
char *tsr_exchange_from(const tsr_comm *comm, const tsr_exchange_range *range, int peer);

/* All that a rank has for others lies in *bytes from here on. */
const char *tsr_exchange_sent(const tsr_comm *comm, const tsr_exchange_range *range,
                              uint64_t *bytes);

/* "all-gather" and the like. */
const char *tsr_comm_kind_name(tsr_comm_kind kind);

/* dst[i] = dst[i] op src[i]; sums wrap. */
void tsr_reduce(int64_t *destination, const int64_t *source, uint64_t count, tsr_reduce_op op);

/* ---- share.c ---- */

/* Zeroed memory for the ranks of each node, exchanged through `all`; nodes[i] is the node of rank
 * i. Collective and blocking. The caller unmaps it. */
tsr_status tsr_share_map(void **out, uint64_t bytes, const tsr_bootstrap *all, const int *nodes);

/* A board for the ranks of each node. Collective; unmapped with tsr_board_bytes. */
tsr_status tsr_share_board(tsr_board **out, const tsr_bootstrap *all, const int *nodes);

/* Unmaps the board of a rank that cannot make its communicator (`status`, this thread's last error):
 * the others, who may have theirs, are told. */
void tsr_share_leave_board(tsr_board *board, const tsr_bootstrap *all, tsr_status status);

/* Hosts as numbers, the same for ranks that see the same memory. nodes[size]. Collective. */
tsr_status tsr_share_find_nodes(int *nodes, const tsr_bootstrap *all);

/* ---- for tests: several nodes on one machine, and small messages ---- */

typedef struct {
    int ranks_per_node;     /* 0: as the machine is */
    uint64_t message_bytes; /* longest message; 0: 1 GiB */
} tsr_comm_mpi_options;
tsr_status tsr_comm_create_callback_with(tsr_comm **out, const tsr_bootstrap *bootstrap,
                                         double timeout_seconds, int ranks_per_node);
tsr_status tsr_comm_create_mpi_with(tsr_comm **out, double timeout_seconds,
                                    const tsr_comm_mpi_options *options);

#endif
