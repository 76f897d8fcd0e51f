/*
 * comm_mpi.c: the ranks are MPI processes. The only user of mpi.h.
 *
 * The ranks of a node meet on the board first: there they sleep, are woken by an abort, and name
 * who is missing. Then the bytes go by nonblocking messages, polled against the deadline, straight
 * between the ranks' buffers. All messages of a communicator and its splits carry the tag of their
 * slot, and every rank posts its messages in the same order.
 *
 * A collective that is given up leaves messages under way. Then the library is not used again, and
 * not finalized: the process exits with its own code, which mpirun passes on if it is not 0.
 */
#include "base/clock.h"
#include "comm/comm_parts.h"
#include "comm/launcher.h"

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REQUESTS         256        /* under way at once */
#define MESSAGE_BYTES    (1u << 30) /* longest message: MPI counts in int */
#define SCRATCH_BYTES    (8u << 20) /* for all peers' contributions to a sum */
#define SMALL_ELEMENTS   4096       /* a sum this short is sent to everybody at once */
#define ABORT_BYTES      1024       /* short enough to be sent without an answer */
#define FAREWELL_SECONDS 2          /* a dead job's ranks wait this long for each other's output */

/* What crosses to other nodes when the board dies. */
struct abort_message {
    int rank, status;
    char message[ABORT_BYTES - 2 * sizeof(int)];
};

struct mpi_world {
    MPI_Comm data, control;
    MPI_Request requests[REQUESTS];
    bool is_receive[REQUESTS];
    int pending;
    int64_t *scratch;
    uint64_t slot_elements; /* of scratch, for one peer */
    uint64_t message_bytes;
    bool given_up, spread;
    struct abort_message abort;
};

/* MPI can be initialised once in a process, so it is finalized when the process exits. */
static struct {
    bool ours, dead;  /* dead: some communicator was, or creation failed half-way */
    int open;         /* roots that are not destroyed */
    tsr_board *board; /* of the dead one */
    int local_size;
} process;

static tsr_status check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return TSR_OK;
    MPI_Error_string(code, text, &length);
    return tsr_fail(TSR_ECOMM, "MPI: %s: %.*s", what, length, text);
}

/* ---- messages ---- */

/* Another node's death becomes ours. */
static void hear(tsr_comm *comm)
{
    struct mpi_world *world = comm->backend;
    struct abort_message message;
    int found = 0;
    if (comm->root->node_count == 1)
        return;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, world->control, &found, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
        !found)
        return;
    MPI_Recv(&message, sizeof message, MPI_BYTE, MPI_ANY_SOURCE, 0, world->control,
             MPI_STATUS_IGNORE);
    message.message[sizeof message.message - 1] = 0;
    world->spread = true; /* whoever told us tells everybody */
    tsr_board_kill(comm->gate.board, message.rank, (tsr_status)message.status, message.message);
}

static void give_up(struct mpi_world *world)
{
    world->given_up = true;
    for (int i = 0; i < world->pending; i++) {
        if (world->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (world->is_receive[i])
            MPI_Cancel(&world->requests[i]);
        MPI_Request_free(&world->requests[i]);
    }
    world->pending = 0;
}

/* Why the wait must end; TSR_OK to go on. */
static tsr_status why_stop(tsr_comm *comm, const tsr_comm_call *call, double end)
{
    hear(comm);
    TSR_TRY(tsr_board_check(comm->gate.board, comm->gate.rank));
    if (call->device)
        TSR_TRY(tsr_device_check(call->device));
    if (tsr_now() >= end)
        return tsr_board_late(&comm->gate, tsr_comm_kind_name(call->kind));
    return TSR_OK;
}

/* The ranks of this node are all here, so a wait is short; for other nodes it is not, and the core
 * may be needed by another thread. */
static void rest(int polls)
{
    if (polls < 2000)
        sched_yield();
    else
        usleep(polls < 4000 ? 20 : 200);
}

/* Forgets the requests that are done. */
static void compact(struct mpi_world *world)
{
    int kept = 0;
    for (int i = 0; i < world->pending; i++) {
        if (world->requests[i] == MPI_REQUEST_NULL)
            continue;
        world->is_receive[kept] = world->is_receive[i];
        world->requests[kept++] = world->requests[i];
    }
    world->pending = kept;
}

/* Waits until at most `most` messages are under way. */
static tsr_status drain(tsr_comm *comm, const tsr_comm_call *call, int most)
{
    struct mpi_world *world = comm->backend;
    double end = tsr_now() + comm->gate.timeout_seconds;
    for (int polls = 0; world->pending > most; polls++) {
        int done = 0, places[REQUESTS];
        tsr_status status =
            check(MPI_Testsome(world->pending, world->requests, &done, places, MPI_STATUSES_IGNORE),
                  tsr_comm_kind_name(call->kind));
        if (status == TSR_OK && done == 0 && polls % 64 == 63)
            status = why_stop(comm, call, end);
        if (status < 0) {
            give_up(world);
            return status;
        }
        if (done > 0) { /* also MPI_UNDEFINED is not */
            compact(world);
            polls = 0;
            end = tsr_now() + comm->gate.timeout_seconds;
        } else
            rest(polls);
    }
    return TSR_OK;
}

static tsr_status complete(tsr_comm *comm, const tsr_comm_call *call)
{
    return drain(comm, call, 0);
}

/* Bytes from or to a member. */
struct message {
    void *buffer;
    uint64_t bytes;
    int peer; /* -1: none */
};

/* Posts part `part` of a message that is cut into parts; false if there is no such part. An empty
 * message is one part. */
static tsr_status post_part(tsr_comm *comm, const tsr_comm_call *call, bool receive,
                            const struct message *message, uint64_t part, bool *posted)
{
    struct mpi_world *world = comm->backend;
    uint64_t offset = part * world->message_bytes;
    *posted = message->peer >= 0 && (part == 0 || offset < message->bytes);
    if (!*posted)
        return TSR_OK;
    TSR_TRY(drain(comm, call, REQUESTS - 1));
    uint64_t left = message->bytes - offset;
    int n = (int)(left < world->message_bytes ? left : world->message_bytes);
    int rank = comm->members[message->peer], tag = comm->gate.slot;
    char *at = message->buffer ? (char *)message->buffer + offset : NULL;
    MPI_Request *request = &world->requests[world->pending];
    int code = receive ? MPI_Irecv(at, n, MPI_BYTE, rank, tag, world->data, request)
                       : MPI_Isend(at, n, MPI_BYTE, rank, tag, world->data, request);
    tsr_status status = check(code, tsr_comm_kind_name(call->kind));
    if (status < 0) {
        give_up(world);
        return status;
    }
    world->is_receive[world->pending++] = receive;
    return TSR_OK;
}

/* Posts a message from one member beside one to another, part by part. Every rank posts its parts
 * in the same order, so the oldest part that is not done is always posted on both sides, and a full
 * table of requests cannot lock the ranks up. */
static tsr_status post(tsr_comm *comm, const tsr_comm_call *call, struct message receive,
                       struct message send)
{
    bool receiving = true, sending = true;
    for (uint64_t part = 0; receiving || sending; part++) {
        TSR_TRY(post_part(comm, call, true, &receive, part, &receiving));
        TSR_TRY(post_part(comm, call, false, &send, part, &sending));
    }
    return TSR_OK;
}

static tsr_status meet(tsr_comm *comm, const tsr_comm_call *call)
{
    struct mpi_world *world = comm->backend;
    if (world->given_up)
        return tsr_fail(TSR_ECOMM, "MPI: an earlier collective was given up");
    return tsr_comm_meet(&comm->gate, call);
}

/* ---- collectives ---- */

/* Step k of size - 1: receive from rank - k, send to rank + k. */
static int before(const tsr_comm *comm, int k)
{
    return (comm->rank - k + comm->size) % comm->size;
}

static int after(const tsr_comm *comm, int k)
{
    return (comm->rank + k) % comm->size;
}

static tsr_status mpi_all_gather(tsr_comm *comm, const tsr_comm_call *call,
                                 const tsr_gather_range *ranges, int count)
{
    TSR_TRY(meet(comm, call));
    for (int i = 0; i < count; i++) {
        uint64_t bytes = ranges[i].bytes;
        char *receive = ranges[i].receive, *mine = receive + (uint64_t)comm->rank * bytes;
        if (bytes == 0)
            continue;
        if (mine != ranges[i].send)
            memcpy(mine, ranges[i].send, bytes);
        for (int k = 1; k < comm->size; k++) {
            int peer = before(comm, k);
            TSR_TRY(post(comm, call,
                         (struct message){receive + (uint64_t)peer * bytes, bytes, peer},
                         (struct message){mine, bytes, after(comm, k)}));
        }
    }
    return complete(comm, call);
}

static tsr_status mpi_exchange(tsr_comm *comm, const tsr_comm_call *call,
                               const tsr_exchange_range *ranges, int count)
{
    TSR_TRY(meet(comm, call));
    for (int i = 0; i < count; i++) {
        uint64_t bytes = ranges[i].bytes;
        for (int k = 1; bytes && k < comm->size; k++) {
            int from = before(comm, k), to = after(comm, k);
            TSR_TRY(post(comm, call,
                         (struct message){tsr_exchange_from(comm, &ranges[i], from), bytes, from},
                         (struct message){tsr_exchange_to(&ranges[i], to), bytes, to}));
        }
    }
    return complete(comm, call);
}

/* Rank i's piece of an array: `count` elements from i * stride on, cut off at `total`. */
struct pieces {
    const int64_t *base;
    uint64_t stride, count, total;
};

static uint64_t piece_count(const struct pieces *p, int rank)
{
    uint64_t first = (uint64_t)rank * p->stride;
    if (first >= p->total)
        return 0;
    return p->total - first < p->count ? p->total - first : p->count;
}

static int64_t *piece_at(const struct pieces *p, int rank)
{
    return (int64_t *)p->base + (piece_count(p, rank) ? (uint64_t)rank * p->stride : 0);
}

/* Sends every peer its piece, and reduces what the peers send of this rank's piece into `data`,
 * which holds its own already. A piece has at most slot_elements. */
static tsr_status reduce_pieces(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                const struct pieces *p, tsr_reduce_op op)
{
    struct mpi_world *world = comm->backend;
    uint64_t mine = piece_count(p, comm->rank);
    for (int k = 1; k < comm->size; k++) {
        int64_t *slot = world->scratch + (uint64_t)(k - 1) * world->slot_elements;
        int to = after(comm, k);
        TSR_TRY(post(comm, call, (struct message){slot, mine * sizeof *slot, before(comm, k)},
                     (struct message){piece_at(p, to), piece_count(p, to) * sizeof *slot, to}));
    }
    TSR_TRY(complete(comm, call));
    for (int k = 1; k < comm->size; k++)
        tsr_reduce(data, world->scratch + (uint64_t)(k - 1) * world->slot_elements, mine, op);
    return TSR_OK;
}

static tsr_status mpi_all_reduce(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                 uint64_t count, tsr_reduce_op op)
{
    const struct mpi_world *world = comm->backend;
    uint64_t size = (uint64_t)comm->size, block = world->slot_elements * size;
    TSR_TRY(meet(comm, call));
    if (count <= SMALL_ELEMENTS && count <= world->slot_elements) {
        struct pieces all = {data, 0, count, count};
        return reduce_pieces(comm, call, data, &all, op);
    }
    for (uint64_t offset = 0; offset < count; offset += block) {
        uint64_t n = count - offset < block ? count - offset : block;
        uint64_t slice = n / size + (n % size != 0);
        struct pieces p = {data + offset, slice, slice, n};
        TSR_TRY(reduce_pieces(comm, call, piece_at(&p, comm->rank), &p, op));
        for (int k = 1; k < comm->size; k++) {
            int from = before(comm, k), me = comm->rank;
            TSR_TRY(post(
                comm, call,
                (struct message){piece_at(&p, from), piece_count(&p, from) * sizeof *data, from},
                (struct message){piece_at(&p, me), piece_count(&p, me) * sizeof *data,
                                 after(comm, k)}));
        }
        TSR_TRY(complete(comm, call));
    }
    return TSR_OK;
}

static tsr_status mpi_broadcast(tsr_comm *comm, const tsr_comm_call *call, void *data,
                                uint64_t bytes, int root)
{
    TSR_TRY(meet(comm, call));
    struct message none = {.peer = -1};
    if (comm->rank != root)
        TSR_TRY(post(comm, call, (struct message){data, bytes, root}, none));
    for (int peer = 0; comm->rank == root && peer < comm->size; peer++)
        if (peer != root)
            TSR_TRY(post(comm, call, none, (struct message){data, bytes, peer}));
    return complete(comm, call);
}

/* The board has done it, if there is one node. */
static tsr_status mpi_barrier(tsr_comm *comm, const tsr_comm_call *call)
{
    TSR_TRY(meet(comm, call));
    for (int k = 1; comm->node_count > 1 && k < comm->size; k++)
        TSR_TRY(post(comm, call, (struct message){NULL, 0, before(comm, k)},
                     (struct message){NULL, 0, after(comm, k)}));
    return complete(comm, call);
}

/* ---- the end ---- */

/* One message to every rank of the other nodes; once for each process, which need not be the one
 * that failed. They are short enough to be on their way at once. */
static void mpi_spread(tsr_comm *comm)
{
    struct mpi_world *world = comm->backend;
    tsr_comm *root = comm->root;
    const char *message;
    if (root->node_count == 1 || world->spread || !tsr_board_is_dead(root->gate.board))
        return;
    give_up(world);
    world->spread = true;
    world->abort.status = (int)tsr_board_death(root->gate.board, &world->abort.rank, &message);
    strncpy(world->abort.message, message, sizeof world->abort.message - 1);
    for (int i = 0; i < root->size; i++)
        if (root->nodes[i] != root->nodes[root->rank] && world->pending < REQUESTS) {
            world->is_receive[world->pending] = false;
            MPI_Isend(&world->abort, sizeof world->abort, MPI_BYTE, i, 0, world->control,
                      &world->requests[world->pending++]);
        }
    for (int polls = 0, done = 0; polls < 100 && !done; polls++) {
        MPI_Testall(world->pending, world->requests, &done, MPI_STATUSES_IGNORE);
        if (!done)
            usleep(1000);
    }
    give_up(world);
}

/* A live communicator ends when all have come to its end: then MPI_Finalize, which knows no
 * deadline, will not wait in vain. A dead one stays as it is, for messages may be under way. */
static void mpi_close(tsr_comm *root)
{
    struct mpi_world *world = root->backend;
    tsr_comm_call call = {NULL, TSR_COMM_GOODBYE, 0};
    tsr_board *board = root->gate.board;
    if (!tsr_board_is_dead(board) && mpi_barrier(root, &call) < 0)
        tsr_board_kill(board, root->gate.rank, TSR_ECOMM, tsr_last_error());
    process.open--;
    if (tsr_board_is_dead(board)) {
        mpi_spread(root);
        process.dead = true;
        process.board = board; /* until the process ends, see at_exit */
        process.local_size = root->local_size;
    } else {
        munmap(board, tsr_board_bytes(root->size));
        MPI_Comm_free(&world->data);
        MPI_Comm_free(&world->control);
    }
    free(world->scratch);
    free(world);
}

/* mpirun stops all ranks as soon as one has ended with an error: so that none is stopped before it
 * has printed its own, the ranks of a dead job wait a little for each other. */
static void at_exit(void)
{
    int finalized = 0;
    if (process.dead && process.board) {
        double end = tsr_now() + FAREWELL_SECONDS;
        tsr_board_leave(process.board);
        while (tsr_board_left(process.board) < process.local_size && tsr_now() < end)
            tsr_board_sleep(process.board, tsr_board_bell(process.board), end - tsr_now());
    }
    if (process.dead || process.open > 0)
        return;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Finalize();
}

static const tsr_comm_ops mpi_ops = {
    .name = "mpi",
    .all_gather = mpi_all_gather,
    .exchange = mpi_exchange,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .spread = mpi_spread,
    .close = mpi_close,
};

/* ---- creation ---- */

/* One that believes to be alone would train all, into the output_dir of the others. */
static tsr_status check_alone(const tsr_launched *launched)
{
    char library[TSR_MPI_LIBRARY_BYTES];
    if (!launched->claims)
        return TSR_OK;
    tsr_comm_mpi_library(library);
    return tsr_fail(TSR_ECONFIG,
                    "%s=%d says that this process is one of several ranks, but MPI knows of one "
                    "rank only: start the ranks with the mpirun of the MPI that this program was "
                    "built with (%.*s), or with srun --mpi=pmix; or, to run one rank, unset %s",
                    launched->claims, launched->claimed, (int)strcspn(library, ","), library,
                    launched->claims);
}

static tsr_status start_library(void)
{
    int provided = MPI_THREAD_SINGLE, initialized = 0, finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        return tsr_fail(TSR_EINVAL, "MPI has been finalized already in this process");
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Query_thread(&provided);
    else {
        TSR_TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "start"));
        process.ours = true;
        atexit(at_exit);
    }
    if (provided < MPI_THREAD_SERIALIZED)
        return tsr_fail(TSR_EUNSUPPORTED,
                        "the MPI library gives thread level %d, and %d (MPI_THREAD_SERIALIZED) is "
                        "needed%s",
                        provided, MPI_THREAD_SERIALIZED,
                        initialized ? "; the program must ask for it in MPI_Init_thread" : "");
    return TSR_OK;
}

static int gather_plain(void *user, const void *send, void *receive, uint64_t bytes)
{
    struct mpi_world *world = user;
    return MPI_Allgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE,
                         world->control) == MPI_SUCCESS
               ? 0
               : -1;
}

static tsr_status make_world(struct mpi_world **out, int *rank, int *size)
{
    struct mpi_world *world = calloc(1, sizeof *world);
    if (!world)
        return tsr_fail(TSR_ENOMEM, "no memory for an MPI communicator");
    *out = world;
    TSR_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &world->data), "duplicate the world"));
    TSR_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &world->control), "duplicate the world"));
    MPI_Comm_set_errhandler(world->data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(world->control, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world->data, rank);
    MPI_Comm_size(world->data, size);
    uint64_t peers = *size > 1 ? (uint64_t)*size - 1 : 1;
    world->slot_elements = SCRATCH_BYTES / sizeof *world->scratch / peers;
    if (world->slot_elements > SCRATCH_BYTES / 32)
        world->slot_elements = SCRATCH_BYTES / 32;
    if (world->slot_elements < SMALL_ELEMENTS)
        world->slot_elements = SMALL_ELEMENTS;
    world->scratch = malloc(world->slot_elements * peers * sizeof *world->scratch);
    return world->scratch ? TSR_OK
                          : tsr_fail(TSR_ENOMEM, "no memory for sums over %d ranks", *size);
}

tsr_status tsr_comm_create_mpi_with(tsr_comm **out, double timeout_seconds,
                                    const tsr_comm_mpi_options *options)
{
    int initialized = 0, rank = 0, size = 0, *nodes = NULL;
    struct mpi_world *world = NULL;
    tsr_board *board = NULL;
    tsr_launched launched = tsr_launcher_look();
    MPI_Initialized(&initialized);
    if (!initialized && !launched.of_mpi) {
        TSR_TRY(check_alone(&launched));
        return tsr_comm_create_self(out);
    }
    tsr_status status = start_library();
    if (status == TSR_OK)
        status = make_world(&world, &rank, &size);
    if (status == TSR_OK && size == 1)
        status = check_alone(&launched);
    if (status < 0)
        goto out;
    world->message_bytes = options->message_bytes ? options->message_bytes : MESSAGE_BYTES;
    nodes = calloc(2 * (size_t)size, sizeof *nodes);
    if (!nodes) {
        status = tsr_fail(TSR_ENOMEM, "no memory for an MPI communicator of %d ranks", size);
        goto out;
    }
    tsr_bootstrap all = {rank, size, gather_plain, world};
    status = tsr_share_find_nodes(nodes, &all);
    for (int i = 0; i < size; i++) {
        nodes[size + i] = i; /* the members */
        if (options->ranks_per_node)
            nodes[i] = i / options->ranks_per_node;
    }
    if (status == TSR_OK)
        status = tsr_share_board(&board, &all, nodes);
    if (status == TSR_OK)
        status = tsr_comm_new(out, &mpi_ops, world, board, NULL, 0, rank, size, nodes + size, nodes,
                              timeout_seconds ? timeout_seconds : 300);
out:
    free(nodes);
    if (status == TSR_OK) {
        process.open++;
        return TSR_OK;
    }
    process.dead = true; /* the other ranks may still be in there */
    if (board)
        tsr_share_leave_board(board, &(tsr_bootstrap){.rank = rank, .size = size}, status);
    if (world)
        free(world->scratch);
    free(world);
    return status;
}

tsr_status tsr_comm_create_mpi(tsr_comm **out, double timeout_seconds)
{
    return tsr_comm_create_mpi_with(out, timeout_seconds, &(tsr_comm_mpi_options){0});
}

_Static_assert(MPI_MAX_LIBRARY_VERSION_STRING <= TSR_MPI_LIBRARY_BYTES, "room for its version");

void tsr_comm_mpi_library(char text[TSR_MPI_LIBRARY_BYTES])
{
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        length = 0;
    text[length] = 0;
}
