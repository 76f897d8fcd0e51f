/*
 * comm_thread.c: the ranks are threads of one process and read each other's memory.
 *
 * A collective meets (it may fail there, on all ranks alike), tells where its data is, and from
 * there on every rank is sure to go on, so the later waits cannot fail: nobody leaves while another
 * reads its memory.
 */
#include "comm/comm_parts.h"

#include <stdlib.h>
#include <string.h>

struct thread_world {
    tsr_board *board;
    _Atomic int users;
    int size;
    const void **data; /* [slot][rank in the root]: what that rank brings to its collective */
};

static const void **data_of(const tsr_comm *comm, int rank)
{
    const struct thread_world *world = comm->backend;
    return &world->data[comm->gate.slot * world->size + comm->members[rank]];
}

static tsr_status meet_with(tsr_comm *comm, const tsr_comm_call *call, const void *data)
{
    *data_of(comm, comm->rank) = data;
    return tsr_comm_meet(&comm->gate, call);
}

static tsr_status thread_all_gather(tsr_comm *comm, const tsr_comm_call *call,
                                    const tsr_gather_range *ranges, int count)
{
    TSR_TRY(meet_with(comm, call, ranges));
    for (int peer = 0; peer < comm->size; peer++) {
        const tsr_gather_range *theirs = *data_of(comm, peer);
        for (int i = 0; i < count; i++) {
            uint64_t bytes = ranges[i].bytes;
            char *place = (char *)ranges[i].receive + (uint64_t)peer * bytes;
            if (bytes && place != theirs[i].send)
                memcpy(place, theirs[i].send, bytes);
        }
    }
    tsr_board_join(&comm->gate);
    return TSR_OK;
}

static tsr_status thread_exchange(tsr_comm *comm, const tsr_comm_call *call,
                                  const tsr_exchange_range *ranges, int count)
{
    TSR_TRY(meet_with(comm, call, ranges));
    for (int peer = 0; peer < comm->size; peer++) {
        const tsr_exchange_range *theirs = *data_of(comm, peer);
        for (int i = 0; i < count && peer != comm->rank; i++)
            if (ranges[i].bytes)
                memcpy(tsr_exchange_from(comm, &ranges[i], peer),
                       tsr_exchange_to(&theirs[i], comm->rank), ranges[i].bytes);
    }
    tsr_board_join(&comm->gate);
    return TSR_OK;
}

/* Each rank reduces its own slice in its own data, then takes the other slices from the others. */
static tsr_status thread_all_reduce(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                    uint64_t count, tsr_reduce_op op)
{
    TSR_TRY(meet_with(comm, call, data));
    uint64_t size = (uint64_t)comm->size, slice = count / size + (count % size != 0);
    for (int peer = 0; peer < comm->size; peer++) {
        uint64_t first = (uint64_t)comm->rank * slice;
        if (peer == comm->rank || first >= count)
            continue;
        uint64_t n = count - first < slice ? count - first : slice;
        tsr_reduce(data + first, (const int64_t *)*data_of(comm, peer) + first, n, op);
    }
    tsr_board_join(&comm->gate);
    for (int peer = 0; peer < comm->size; peer++) {
        uint64_t first = (uint64_t)peer * slice;
        if (peer == comm->rank || first >= count)
            continue;
        uint64_t n = count - first < slice ? count - first : slice;
        memcpy(data + first, (const int64_t *)*data_of(comm, peer) + first, n * sizeof *data);
    }
    tsr_board_join(&comm->gate);
    return TSR_OK;
}

static tsr_status thread_broadcast(tsr_comm *comm, const tsr_comm_call *call, void *data,
                                   uint64_t bytes, int root)
{
    TSR_TRY(meet_with(comm, call, data));
    if (comm->rank != root && bytes)
        memcpy(data, *data_of(comm, root), bytes);
    tsr_board_join(&comm->gate);
    return TSR_OK;
}

static tsr_status thread_barrier(tsr_comm *comm, const tsr_comm_call *call)
{
    return tsr_comm_meet(&comm->gate, call);
}

static void release(struct thread_world *world)
{
    if (atomic_fetch_sub(&world->users, 1) > 1)
        return;
    free(world->board);
    free(world->data);
    free(world);
}

static void thread_close(tsr_comm *root)
{
    release(root->backend);
}

static const tsr_comm_ops thread_ops = {
    .name = "thread",
    .all_gather = thread_all_gather,
    .exchange = thread_exchange,
    .all_reduce = thread_all_reduce,
    .broadcast = thread_broadcast,
    .barrier = thread_barrier,
    .close = thread_close,
};

tsr_status tsr_comm_create_threads(tsr_comm **out, int size, double timeout_seconds)
{
    if (size < 1 || size > 4096)
        return tsr_fail(TSR_EINVAL, "%d ranks in one process, expected 1 to 4096", size);
    tsr_status status = TSR_OK;
    int made = 0;
    int *members = calloc(2 * (size_t)size, sizeof *members); /* then the nodes: all 0 */
    struct thread_world *world = calloc(1, sizeof *world);
    if (!members || !world ||
        !(world->data = calloc((size_t)size * TSR_BOARD_SLOTS, sizeof *world->data))) {
        status = tsr_fail(TSR_ENOMEM, "no memory for %d ranks", size);
        goto out;
    }
    status = tsr_board_create(&world->board, size);
    if (status < 0)
        goto out;
    world->size = size;
    world->users = 1; /* this function, until all are made */
    for (int i = 0; i < size; i++)
        members[i] = i;
    for (; made < size && status == TSR_OK; made++) {
        status = tsr_comm_new(&out[made], &thread_ops, world, world->board, NULL, 0, made, size,
                              members, members + size, timeout_seconds ? timeout_seconds : 300);
        if (status < 0)
            break;
        atomic_fetch_add(&world->users, 1);
    }
    for (; status < 0 && made > 0; made--)
        tsr_comm_destroy(out[made - 1]);
    release(world);
    world = NULL;
out:
    if (world) {
        free(world->data);
        free(world);
    }
    free(members);
    return status;
}

tsr_status tsr_comm_create_self(tsr_comm **out)
{
    return tsr_comm_create_threads(out, 1, 300);
}
