/*
 * comm_callback.c: everything over an all-gather that an embedder gives.
 *
 * The ranks of a node meet on the board first, so that whoever is missing there is named and the
 * wait has a deadline; across nodes the given all-gather must have a deadline of its own. Each
 * collective tells what it is and its bytes, which must be those of all its members, and then sends
 * them in chunks. All ranks of the root take part in the calls of every split, and pick out what
 * their own members sent.
 */
#include "comm/comm_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_BYTES (256u << 10) /* a multiple of 8, so that an integer is never cut */

/* What a rank tells before it sends. */
struct heading {
    uint64_t tag, bytes; /* of its call; of its contribution */
};

struct callback_world {
    tsr_bootstrap all;
    struct heading *headings; /* of each rank */
    char *send, *receive;
};

/* Takes `bytes` bytes at `offset` of what member `peer` sent. */
typedef void visit(void *context, int peer, uint64_t offset, const void *data, uint64_t bytes);

static tsr_status gather(const struct callback_world *world, const void *send, void *receive,
                         uint64_t bytes)
{
    int code = world->all.all_gather(world->all.user, send, receive, bytes);
    if (code == 0)
        return TSR_OK;
    return tsr_fail(TSR_ECOMM, "the caller's all_gather failed on rank %d with code %d",
                    world->all.rank, code);
}

static tsr_status meet(tsr_comm *comm, const tsr_comm_call *call)
{
    tsr_comm_call together = {call->device, call->kind, 0};
    TSR_TRY(tsr_comm_meet(&comm->gate, call)); /* the members: the sizes are the same */
    return comm->root == comm ? TSR_OK : tsr_comm_meet(&comm->root->gate, &together);
}

/* The board has compared the calls of this node's ranks alone. What another rank sends is written
 * only where this one expects it. `from`: the member that sends, -1: each does. */
static tsr_status compare(const tsr_comm *comm, const tsr_comm_call *call, uint64_t bytes, int from)
{
    const struct callback_world *world = comm->backend;
    const struct heading *mine = &world->headings[world->all.rank];
    if (mine->tag != tsr_comm_tag(call) ||
        mine->bytes != (from < 0 || from == comm->rank ? bytes : 0))
        return tsr_fail(TSR_ECOMM,
                        "the caller's all_gather returned, as rank %d's, other bytes than rank %d "
                        "sent; it must place them in the order of the ranks",
                        world->all.rank, world->all.rank);
    for (int peer = 0; peer < comm->size; peer++) {
        const struct heading *theirs = &world->headings[comm->members[peer]];
        uint64_t expected = from < 0 || from == peer ? bytes : 0;
        if (theirs->tag != tsr_comm_tag(call) || theirs->bytes != expected)
            return tsr_comm_out_of_step(call, world->all.rank, comm->members[peer], theirs->tag);
    }
    return TSR_OK;
}

/* Without meeting. Members are visited in their order, chunk after chunk; each sends `bytes`, or
 * member `from` alone does. */
static tsr_status send_all(tsr_comm *comm, const tsr_comm_call *call, const void *send,
                           uint64_t bytes, int from, visit *function, void *context)
{
    struct callback_world *world = comm->backend;
    struct heading mine = {tsr_comm_tag(call), from < 0 || from == comm->rank ? bytes : 0};
    TSR_TRY(gather(world, &mine, world->headings, sizeof mine));
    TSR_TRY(compare(comm, call, bytes, from));
    uint64_t most = 0;
    for (int i = 0; i < world->all.size; i++)
        most = world->headings[i].bytes > most ? world->headings[i].bytes : most;
    for (uint64_t offset = 0; offset < most; offset += CHUNK_BYTES) {
        uint64_t chunk = most - offset < CHUNK_BYTES ? most - offset : CHUNK_BYTES;
        if (offset < mine.bytes)
            memcpy(world->send, (const char *)send + offset,
                   mine.bytes - offset < chunk ? mine.bytes - offset : chunk);
        TSR_TRY(gather(world, world->send, world->receive, chunk));
        for (int peer = 0; peer < comm->size; peer++) {
            int rank = comm->members[peer];
            uint64_t theirs = world->headings[rank].bytes;
            if (offset < theirs)
                function(context, peer, offset, world->receive + (uint64_t)rank * chunk,
                         theirs - offset < chunk ? theirs - offset : chunk);
        }
    }
    return TSR_OK;
}

static void place_range(void *context, int peer, uint64_t offset, const void *data, uint64_t bytes)
{
    const tsr_gather_range *range = context;
    memcpy((char *)range->receive + (uint64_t)peer * range->bytes + offset, data, bytes);
}

static tsr_status callback_all_gather(tsr_comm *comm, const tsr_comm_call *call,
                                      const tsr_gather_range *ranges, int count)
{
    TSR_TRY(meet(comm, call));
    for (int i = 0; i < count; i++)
        TSR_TRY(send_all(comm, call, ranges[i].send, ranges[i].bytes, -1, place_range,
                         (void *)&ranges[i]));
    return TSR_OK;
}

struct exchange {
    const tsr_comm *comm;
    const tsr_exchange_range *range;
    uint64_t first; /* byte for this rank of what each sends */
};

/* Of what a peer has for everybody the piece for this rank is taken. */
static void place_piece(void *context, int peer, uint64_t offset, const void *data, uint64_t bytes)
{
    const struct exchange *e = context;
    uint64_t first = e->first, last = first + e->range->bytes;
    uint64_t from = offset > first ? offset : first;
    uint64_t to = offset + bytes < last ? offset + bytes : last;
    if (from < to && peer != e->comm->rank)
        memcpy(tsr_exchange_from(e->comm, e->range, peer) + (from - first),
               (const char *)data + (from - offset), to - from);
}

static tsr_status callback_exchange(tsr_comm *comm, const tsr_comm_call *call,
                                    const tsr_exchange_range *ranges, int count)
{
    TSR_TRY(meet(comm, call));
    for (int i = 0; i < count; i++) {
        const tsr_exchange_range *r = &ranges[i];
        struct exchange context = {comm, r, (uint64_t)comm->rank * r->bytes};
        bool apart = r->send_step && r->send_step != (int64_t)r->bytes;
        if (!apart)
            TSR_TRY(send_all(comm, call, r->send, (uint64_t)comm->size * r->bytes, -1, place_piece,
                             &context));
        for (int to = 0; apart && to < comm->size; to++) {
            context.first = to == comm->rank ? 0 : UINT64_MAX - r->bytes;
            TSR_TRY(
                send_all(comm, call, tsr_exchange_to(r, to), r->bytes, -1, place_piece, &context));
        }
    }
    return TSR_OK;
}

struct reduction {
    int64_t *data;
    tsr_reduce_op op;
};

static void reduce_part(void *context, int peer, uint64_t offset, const void *data, uint64_t bytes)
{
    const struct reduction *r = context;
    int64_t *mine = r->data + offset / sizeof *mine;
    if (peer == 0)
        memcpy(mine, data, bytes);
    else
        tsr_reduce(mine, data, bytes / sizeof *mine, r->op);
}

/* In place: a chunk has been sent before its results are written. */
static tsr_status callback_all_reduce(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                      uint64_t count, tsr_reduce_op op)
{
    struct reduction reduction = {data, op};
    TSR_TRY(meet(comm, call));
    return send_all(comm, call, data, count * sizeof *data, -1, reduce_part, &reduction);
}

static void place_bytes(void *context, int peer, uint64_t offset, const void *data, uint64_t bytes)
{
    (void)peer; /* only the root sends anything */
    memcpy((char *)context + offset, data, bytes);
}

static tsr_status callback_broadcast(tsr_comm *comm, const tsr_comm_call *call, void *data,
                                     uint64_t bytes, int root)
{
    TSR_TRY(meet(comm, call));
    return send_all(comm, call, data, bytes, root, place_bytes, data);
}

static tsr_status callback_barrier(tsr_comm *comm, const tsr_comm_call *call)
{
    TSR_TRY(meet(comm, call));
    return send_all(comm, call, NULL, 0, -1, place_bytes, NULL);
}

static void free_world(struct callback_world *world)
{
    if (!world)
        return;
    free(world->headings);
    free(world->send);
    free(world->receive);
    free(world);
}

static void callback_close(tsr_comm *root)
{
    munmap(root->gate.board, tsr_board_bytes(root->size));
    free_world(root->backend);
}

static const tsr_comm_ops callback_ops = {
    .name = "callback",
    .all_gather = callback_all_gather,
    .exchange = callback_exchange,
    .all_reduce = callback_all_reduce,
    .broadcast = callback_broadcast,
    .barrier = callback_barrier,
    .close = callback_close,
};

static struct callback_world *make_world(const tsr_bootstrap *bootstrap)
{
    size_t size = (size_t)bootstrap->size;
    struct callback_world *world = calloc(1, sizeof *world);
    if (!world)
        return NULL;
    world->all = *bootstrap;
    world->headings = calloc(size, sizeof *world->headings);
    world->send = calloc(1, CHUNK_BYTES);
    world->receive = calloc(size, CHUNK_BYTES);
    if (world->headings && world->send && world->receive)
        return world;
    free_world(world);
    return NULL;
}

tsr_status tsr_comm_create_callback_with(tsr_comm **out, const tsr_bootstrap *bootstrap,
                                         double timeout_seconds, int ranks_per_node)
{
    int size = bootstrap->size;
    tsr_board *board = NULL;
    if (size < 1 || bootstrap->rank < 0 || bootstrap->rank >= size || !bootstrap->all_gather)
        return tsr_fail(TSR_EINVAL, "bootstrap: rank %d of %d, %s all_gather", bootstrap->rank,
                        size, bootstrap->all_gather ? "with" : "without");
    struct callback_world *world = make_world(bootstrap);
    int *nodes = calloc(2 * (size_t)size, sizeof *nodes), *members = nodes + size;
    tsr_status status =
        world && nodes ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for %d ranks", size);
    if (status == TSR_OK)
        status = tsr_share_find_nodes(nodes, &world->all);
    for (int i = 0; i < size && status == TSR_OK; i++) {
        members[i] = i;
        nodes[i] = ranks_per_node ? i / ranks_per_node : nodes[i];
    }
    if (status == TSR_OK)
        status = tsr_share_board(&board, &world->all, nodes);
    if (status == TSR_OK)
        status = tsr_comm_new(out, &callback_ops, world, board, NULL, 0, bootstrap->rank, size,
                              members, nodes, timeout_seconds ? timeout_seconds : 300);
    if (status < 0) {
        if (board)
            tsr_share_leave_board(board, bootstrap, status);
        free_world(world);
    }
    free(nodes);
    return status;
}

tsr_status tsr_comm_create_callback(tsr_comm **out, const tsr_bootstrap *bootstrap,
                                    double timeout_seconds)
{
    return tsr_comm_create_callback_with(out, bootstrap, timeout_seconds, 0);
}
