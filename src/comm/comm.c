#include "base/hash.h"
#include "comm/comm_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- creation ---- */

/* Numbers the nodes in the order of their first rank, and finds this rank's place. */
static void find_places(tsr_comm *comm)
{
    int mine = comm->nodes[comm->rank];
    for (int i = 0; i < comm->size; i++) {
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = comm->nodes[j] != comm->nodes[i];
        if (first && comm->nodes[i] == mine)
            comm->node = comm->node_count;
        comm->node_count += first;
        comm->local_rank += comm->nodes[i] == mine && i < comm->rank;
        comm->local_size += comm->nodes[i] == mine;
    }
}

static tsr_status find_gate(tsr_comm *comm, tsr_board *board, int slot, double timeout_seconds)
{
    int *local = calloc((size_t)comm->local_size, sizeof *local);
    if (!local)
        return tsr_fail(TSR_ENOMEM, "no memory for a communicator of %d ranks", comm->size);
    int count = 0;
    for (int i = 0; i < comm->size; i++)
        if (comm->nodes[i] == comm->nodes[comm->rank])
            local[count++] = comm->members[i];
    comm->gate = (tsr_board_gate){.board = board,
                                  .slot = slot,
                                  .gate = local[0],
                                  .rank = comm->members[comm->rank],
                                  .members = local,
                                  .member_count = count,
                                  .timeout_seconds = timeout_seconds};
    return TSR_OK;
}

tsr_status tsr_comm_new(tsr_comm **out, const tsr_comm_ops *ops, void *backend, tsr_board *board,
                        tsr_comm *root, int slot, int rank, int size, const int *members,
                        const int *nodes, double timeout_seconds)
{
    tsr_status status = TSR_OK;
    tsr_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return tsr_fail(TSR_ENOMEM, "no memory for a communicator of %d ranks", size);
    size_t bytes = (size_t)size * sizeof(int);
    comm->members = malloc(bytes);
    comm->nodes = malloc(bytes);
    comm->notes = calloc((size_t)size, sizeof *comm->notes);
    if (!comm->members || !comm->nodes || !comm->notes) {
        status = tsr_fail(TSR_ENOMEM, "no memory for a communicator of %d ranks", size);
        goto out;
    }
    memcpy(comm->members, members, bytes);
    memcpy(comm->nodes, nodes, bytes);
    comm->ops = ops;
    comm->backend = backend;
    comm->root = root ? root : comm;
    comm->rank = rank;
    comm->size = size;
    comm->slots_used = 1;
    find_places(comm);
    status = find_gate(comm, board, slot, timeout_seconds);
out:
    if (status == TSR_OK)
        *out = comm;
    else
        tsr_comm_free(comm);
    return status;
}

void tsr_comm_free(tsr_comm *comm)
{
    if (!comm)
        return;
    while (comm->shared) {
        tsr_shared *shared = comm->shared;
        comm->shared = shared->next;
        munmap(shared->memory, shared->bytes);
        free(shared);
    }
    free((void *)comm->gate.members);
    free(comm->members);
    free(comm->nodes);
    free(comm->notes);
    free(comm);
}

void tsr_comm_destroy(tsr_comm *comm)
{
    if (!comm)
        return;
    if (comm->root == comm)
        comm->ops->close(comm);
    tsr_comm_free(comm);
}

#ifndef TSR_CUDA
static tsr_status no_nccl(void)
{
    return tsr_fail(TSR_EUNSUPPORTED, "communicators of CUDA devices are not in this build; build "
                                      "where nvcc and NCCL are installed");
}

tsr_status tsr_comm_create_nccl(tsr_comm **out, tsr_comm *host, tsr_stream *host_stream,
                                tsr_device *device)
{
    (void)out;
    (void)host;
    (void)host_stream;
    (void)device;
    return no_nccl();
}

tsr_status tsr_comm_nccl_version(tsr_library_version *out)
{
    (void)out;
    return no_nccl();
}
#endif

int tsr_comm_rank(const tsr_comm *comm)
{
    return comm->rank;
}

int tsr_comm_size(const tsr_comm *comm)
{
    return comm->size;
}

int tsr_comm_node(const tsr_comm *comm)
{
    return comm->node;
}

int tsr_comm_node_count(const tsr_comm *comm)
{
    return comm->node_count;
}

int tsr_comm_local_rank(const tsr_comm *comm)
{
    return comm->local_rank;
}

int tsr_comm_local_size(const tsr_comm *comm)
{
    return comm->local_size;
}

const char *tsr_comm_name(const tsr_comm *comm)
{
    return comm->ops->name;
}

void tsr_reduce(int64_t *destination, const int64_t *source, uint64_t count, tsr_reduce_op op)
{
    switch (op) {
    case TSR_SUM:
        for (uint64_t i = 0; i < count; i++)
            destination[i] = (int64_t)((uint64_t)destination[i] + (uint64_t)source[i]);
        break;
    case TSR_MIN:
        for (uint64_t i = 0; i < count; i++)
            destination[i] = source[i] < destination[i] ? source[i] : destination[i];
        break;
    case TSR_MAX:
        for (uint64_t i = 0; i < count; i++)
            destination[i] = source[i] > destination[i] ? source[i] : destination[i];
        break;
    case TSR_SUM_HALVES:
        for (uint64_t i = 0; i < count; i++) {
            uint64_t a = (uint64_t)destination[i], b = (uint64_t)source[i];
            uint64_t high = (a >> 32) + (b >> 32), low = (uint32_t)(a + b);
            destination[i] = (int64_t)(high << 32 | low);
        }
        break;
    }
}

static int64_t send_step(const tsr_exchange_range *range)
{
    return range->send_step ? range->send_step : (int64_t)range->bytes;
}

char *tsr_exchange_to(const tsr_exchange_range *range, int peer)
{
    return (char *)range->send + peer * send_step(range);
}

char *tsr_exchange_from(const tsr_comm *comm, const tsr_exchange_range *range, int peer)
{
    if (range->receive_step)
        return (char *)range->receive + peer * range->receive_step;
    return (char *)range->receive + (uint64_t)(peer - (peer > comm->rank)) * range->bytes;
}

const char *tsr_exchange_sent(const tsr_comm *comm, const tsr_exchange_range *range,
                              uint64_t *bytes)
{
    int64_t step = send_step(range), all = (comm->size - 1) * step;
    *bytes = (uint64_t)(all < 0 ? -all : all) + range->bytes;
    return (const char *)range->send + (all < 0 ? all : 0);
}

/* ---- collectives: enqueued here, run by the stream's worker or by the device ---- */

static const char *const kind_names[TSR_COMM_KIND_COUNT] = {
    [TSR_COMM_ALL_GATHER] = "all-gather", [TSR_COMM_EXCHANGE] = "exchange",
    [TSR_COMM_ALL_REDUCE] = "all-reduce", [TSR_COMM_BROADCAST] = "broadcast",
    [TSR_COMM_BARRIER] = "barrier",       [TSR_COMM_AGREE] = "agreement",
    [TSR_COMM_CHECK] = "check",           [TSR_COMM_SPLIT] = "split",
    [TSR_COMM_SHARE] = "shared memory",   [TSR_COMM_CREATE] = "creation",
    [TSR_COMM_EXPOSE] = "exposure",       [TSR_COMM_GOODBYE] = "end"};

const char *tsr_comm_kind_name(tsr_comm_kind kind)
{
    return kind_names[kind];
}

uint64_t tsr_comm_tag(const tsr_comm_call *call)
{
    return call->signature << 8 | (uint64_t)call->kind;
}

tsr_status tsr_comm_out_of_step(const tsr_comm_call *call, int rank, int other, uint64_t tag)
{
    uint64_t kind = tag & 0xff;
    if (kind == (uint64_t)call->kind)
        return tsr_fail(TSR_ERANKS, "ranks %d and %d call %s with different sizes", rank, other,
                        kind_names[kind]);
    return tsr_fail(TSR_ERANKS,
                    "the ranks are out of step: rank %d calls %s where rank %d calls %s", rank,
                    kind_names[call->kind], other,
                    kind < TSR_COMM_KIND_COUNT ? kind_names[kind] : "what is no collective");
}

tsr_status tsr_comm_meet(const tsr_board_gate *gate, const tsr_comm_call *call)
{
    uint64_t other;
    TSR_TRY(tsr_board_pass(gate, call->device, kind_names[call->kind], tsr_comm_tag(call)));
    int rank = tsr_board_differs(gate, &other);
    return rank < 0 ? TSR_OK : tsr_comm_out_of_step(call, gate->rank, rank, other);
}

struct collective {
    tsr_comm_kind kind;
    tsr_comm *comm;
    tsr_device *device;
    void *receive;
    const void *send; /* ranges of an all-gather or an exchange */
    uint64_t count;   /* ranges, elements or bytes */
    int extra;        /* reduce operation, or root */
    /* An exchange that is a deal. */
    int64_t rounds;
    bool back;
    tsr_deal_range dealt[TSR_DEAL_RANGES];
};

_Static_assert(sizeof(struct collective) <= TSR_CALL_BYTES, "a collective is one call");

/* ---- deals ---- */

#define DEAL_BATCH 64 /* ranges of one exchange */

/* Round i of a deal's range. */
static tsr_exchange_range round_of(const struct collective *work, const tsr_deal_range *range,
                                   int64_t i)
{
    uint64_t rounds = (uint64_t)work->rounds, at = (uint64_t)i * range->bytes;
    int64_t last = work->comm->size - 1;
    int64_t bytes = (int64_t)(i + 1 < work->rounds ? range->bytes : range->last_bytes);
    int64_t place_step = i % 2 ? -bytes : bytes;
    int64_t piece_step = (int64_t)((rounds - 1) * range->bytes + range->last_bytes);
    char *piece = (char *)range->pieces + at;
    char *place =
        (char *)range->places + at * (uint64_t)work->comm->size + (i % 2 ? last * bytes : 0);
    if (work->back)
        return (tsr_exchange_range){place, piece, (uint64_t)bytes, place_step, piece_step};
    return (tsr_exchange_range){piece, place, (uint64_t)bytes, piece_step, place_step};
}

static tsr_status deal(const struct collective *work, const tsr_comm_call *call)
{
    tsr_exchange_range batch[DEAL_BATCH];
    int count = 0;
    for (int64_t i = 0; i < work->rounds; i++)
        for (uint64_t k = 0; k < work->count; k++) {
            batch[count++] = round_of(work, &work->dealt[k], i);
            if (count < DEAL_BATCH && (i + 1 < work->rounds || k + 1 < work->count))
                continue;
            TSR_TRY(work->comm->ops->exchange(work->comm, call, batch, count));
            count = 0;
        }
    return TSR_OK;
}

static tsr_status dispatch(const struct collective *work, const tsr_comm_call *call)
{
    tsr_comm *comm = work->comm;
    switch (work->kind) {
    case TSR_COMM_ALL_GATHER:
        return comm->ops->all_gather(comm, call, work->send, (int)work->count);
    case TSR_COMM_EXCHANGE:
        return work->rounds ? deal(work, call)
                            : comm->ops->exchange(comm, call, work->send, (int)work->count);
    case TSR_COMM_ALL_REDUCE:
        return comm->ops->all_reduce(comm, call, work->receive, work->count,
                                     (tsr_reduce_op)work->extra);
    case TSR_COMM_BROADCAST:
        return comm->ops->broadcast(comm, call, work->receive, work->count, work->extra);
    case TSR_COMM_BARRIER:
        return comm->ops->barrier(comm, call);
    default:
        break;
    }
    return tsr_fail(TSR_EINTERNAL, "comm: collective %d", (int)work->kind);
}

static uint64_t sign(const struct collective *work)
{
    uint64_t signature =
        tsr_hash(TSR_HASH_START, (uint64_t[]){work->count, (uint64_t)work->extra}, 16);
    const tsr_gather_range *gathered = work->send;
    const tsr_exchange_range *exchanged = work->send;
    for (uint64_t i = 0; work->kind == TSR_COMM_ALL_GATHER && i < work->count; i++)
        signature = tsr_hash(signature, &gathered[i].bytes, sizeof gathered[i].bytes);
    for (uint64_t i = 0; work->kind == TSR_COMM_EXCHANGE && i < work->count; i++)
        signature =
            work->rounds
                ? tsr_hash(signature, &work->dealt[i].bytes, 2 * sizeof work->dealt[i].bytes)
                : tsr_hash(signature, &exchanged[i].bytes, sizeof exchanged[i].bytes);
    signature = tsr_hash(signature, &work->rounds, sizeof work->rounds);
    return tsr_hash(signature, &work->back, sizeof work->back);
}

static tsr_status run(void *args, tsr_pool *pool)
{
    (void)pool;
    struct collective *work = args;
    tsr_comm *comm = work->comm;
    tsr_comm_call call = {work->device, work->kind, sign(work)};
    atomic_fetch_add(&comm->root->running, 1);
    tsr_status status = tsr_board_check(comm->gate.board, comm->gate.rank);
    if (status == TSR_OK)
        status = dispatch(work, &call);
    if (status < 0) {
        tsr_board_kill(comm->gate.board, comm->gate.rank, status, tsr_last_error());
        if (comm->ops->spread)
            comm->ops->spread(comm);
    }
    atomic_fetch_sub(&comm->root->running, 1);
    return status;
}

/* TSR_OK, and *device, if collectives of `comm` can be enqueued on `stream`. */
static tsr_status begin(tsr_device **device, const tsr_comm *comm, tsr_stream *stream)
{
    TSR_TRY(tsr_board_check(comm->gate.board, comm->gate.rank));
    *device = tsr_stream_device(stream);
    if (comm->ops->enqueues != (tsr_device_kind_of(*device) == TSR_DEVICE_CUDA))
        return tsr_fail(TSR_EINVAL, "a collective of communicator \"%s\" on a stream of %s",
                        comm->ops->name, tsr_device_description(*device));
    return comm->ops->enqueues ? tsr_device_check(*device) : TSR_OK;
}

/* What could not be enqueued leaves the ranks in different places. A poison that came meanwhile is
 * the cause. */
static tsr_status enqueued(tsr_comm *comm, tsr_device *device, tsr_status status)
{
    if (status >= 0)
        return status;
    tsr_device_poison(device, status, tsr_last_error());
    status = tsr_device_check(device);
    tsr_board_kill(comm->gate.board, comm->gate.rank, status, tsr_last_error());
    return status;
}

static tsr_status enqueue(struct collective *work, tsr_stream *stream)
{
    TSR_TRY(begin(&work->device, work->comm, stream));
    if (!work->comm->ops->enqueues)
        return tsr_stream_call(stream, run, work, sizeof *work);
    tsr_comm_call call = {work->device, work->kind, 0, stream};
    return enqueued(work->comm, work->device, dispatch(work, &call));
}

tsr_status tsr_comm_all_gather(tsr_comm *comm, tsr_stream *stream, const tsr_gather_range *ranges,
                               int count)
{
    if (count < 0)
        return tsr_fail(TSR_EINVAL, "all-gather of %d ranges", count);
    struct collective work = {
        .kind = TSR_COMM_ALL_GATHER, .comm = comm, .send = ranges, .count = (uint64_t)count};
    return enqueue(&work, stream);
}

tsr_status tsr_comm_expose(tsr_comm *comm, tsr_stream *host_stream, void *base, uint64_t bytes)
{
    return comm->ops->expose ? comm->ops->expose(comm, host_stream, base, bytes) : TSR_OK;
}

tsr_status tsr_comm_pull(tsr_comm *comm, tsr_stream *stream, const tsr_gather_range *ranges,
                         int count)
{
    if (!comm->ops->pull)
        return tsr_comm_all_gather(comm, stream, ranges, count);
    if (count < 0)
        return tsr_fail(TSR_EINVAL, "pull of %d ranges", count);
    tsr_comm_call call = {NULL, TSR_COMM_ALL_GATHER, 0, stream};
    TSR_TRY(begin(&call.device, comm, stream));
    return enqueued(comm, call.device, comm->ops->pull(comm, &call, ranges, count));
}

tsr_status tsr_comm_exchange(tsr_comm *comm, tsr_stream *stream, const tsr_exchange_range *ranges,
                             int count)
{
    if (count < 0)
        return tsr_fail(TSR_EINVAL, "exchange of %d ranges", count);
    struct collective work = {
        .kind = TSR_COMM_EXCHANGE, .comm = comm, .send = ranges, .count = (uint64_t)count};
    return enqueue(&work, stream);
}

tsr_status tsr_comm_deal(tsr_comm *comm, tsr_stream *stream, const tsr_deal_range *ranges,
                         int count, int64_t rounds, bool back)
{
    if (count < 0 || count > TSR_DEAL_RANGES || rounds < 0)
        return tsr_fail(TSR_EINVAL, "deal of %d ranges in %lld rounds", count, (long long)rounds);
    struct collective work = {.kind = TSR_COMM_EXCHANGE,
                              .comm = comm,
                              .count = (uint64_t)count,
                              .rounds = rounds,
                              .back = back};
    if (count == 0 || rounds == 0)
        return TSR_OK;
    memcpy(work.dealt, ranges, (size_t)count * sizeof *ranges);
    return enqueue(&work, stream);
}

tsr_status tsr_comm_all_reduce(tsr_comm *comm, tsr_stream *stream, int64_t *data, uint64_t count,
                               tsr_reduce_op op)
{
    if (op < TSR_SUM || op > TSR_SUM_HALVES)
        return tsr_fail(TSR_EINVAL, "all-reduce with operation %d", (int)op);
    struct collective work = {.kind = TSR_COMM_ALL_REDUCE,
                              .comm = comm,
                              .receive = data,
                              .count = count,
                              .extra = (int)op};
    return enqueue(&work, stream);
}

tsr_status tsr_comm_broadcast(tsr_comm *comm, tsr_stream *stream, void *data, uint64_t bytes,
                              int root)
{
    if (root < 0 || root >= comm->size)
        return tsr_fail(TSR_EINVAL, "broadcast from rank %d of %d", root, comm->size);
    struct collective work = {
        .kind = TSR_COMM_BROADCAST, .comm = comm, .receive = data, .count = bytes, .extra = root};
    return enqueue(&work, stream);
}

tsr_status tsr_comm_group_begin(tsr_comm *comm, tsr_stream *stream)
{
    if (!comm->ops->group_begin)
        return TSR_OK;
    tsr_comm_call call = {NULL, TSR_COMM_BROADCAST, 0, stream};
    TSR_TRY(begin(&call.device, comm, stream));
    return enqueued(comm, call.device, comm->ops->group_begin(comm, &call));
}

tsr_status tsr_comm_group_end(tsr_comm *comm, tsr_stream *stream)
{
    if (!comm->ops->group_end)
        return TSR_OK;
    tsr_comm_call call = {tsr_stream_device(stream), TSR_COMM_BROADCAST, 0, stream};
    return enqueued(comm, call.device, comm->ops->group_end(comm, &call));
}

tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_stream *stream)
{
    struct collective work = {.kind = TSR_COMM_BARRIER, .comm = comm};
    return enqueue(&work, stream);
}
