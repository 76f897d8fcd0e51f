/*
 * comm_mpi.c: the ranks are MPI processes; comm_mpi_start.c brings them together.
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
#include "comm/mpi_parts.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL_ELEMENTS 4096 /* a sum this short is sent to everybody at once */

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
void tsr_mpi_rest(int polls)
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
        tsr_status status = tsr_mpi_check(
            MPI_Testsome(world->pending, world->requests, &done, places, MPI_STATUSES_IGNORE),
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
            tsr_mpi_rest(polls);
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
    tsr_status status = tsr_mpi_check(code, tsr_comm_kind_name(call->kind));
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
        return tsr_fail(TSR_ECOMM, "MPI is not called again: an earlier collective failed");
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
    tsr_mpi_closed(root);
    if (tsr_board_is_dead(board)) {
        mpi_spread(root); /* the board stays until the process ends */
    } else {
        munmap(board, tsr_board_bytes(root->size));
        MPI_Comm_free(&world->data);
        MPI_Comm_free(&world->control);
    }
    free(world->scratch);
    free(world);
}

const tsr_comm_ops tsr_mpi_ops = {
    .name = "mpi",
    .all_gather = mpi_all_gather,
    .exchange = mpi_exchange,
    .all_reduce = mpi_all_reduce,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .spread = mpi_spread,
    .close = mpi_close,
};
