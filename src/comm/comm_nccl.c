/*
 * comm_nccl.c: collectives of device memory, through NCCL and, of memory that the ranks of a node
 * expose, by copies.
 *
 * A communicator mirrors the ranks of a host communicator and has a slot on its board, so that
 * whoever is missing is named, and a death of either is one of both. Collectives are enqueued and
 * watched (comm_nccl_watch.c). With one rank nothing of NCCL is used: a gather is a copy.
 *
 * NVLink multicast (NVLS) is never used on this library's own account: a program that is killed in
 * the middle of it can put the GPUs of a host out of service. ncclConfig_t has no field for it, so
 * NCCL_NVLS_ENABLE is set to 0 where the environment does not name it; whoever sets it decides. That
 * is the process's, once, before NCCL is loaded: NCCL reads it once too, for all jobs alike.
 */
#include "base/clock.h"
#include "comm/nccl_library.h"
#include "comm/nccl_parts.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof(((tsr_nccl_card *)0)->id), "NCCL's id fits a card");
_Static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 1), "as nccl_library.c wants");

static double timeout_of(const tsr_nccl *n)
{
    return n->comm->gate.timeout_seconds;
}

/* ---- what NCCL returns ---- */

static tsr_status check(ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return TSR_OK;
    const char *more = tsr_nccl_lib.GetLastError(NULL);
    return tsr_fail(TSR_ECOMM, "NCCL: %s: %s%s%s", what, tsr_nccl_lib.GetErrorString(result),
                    more && *more ? ": " : "", more ? more : "");
}

/* A nonblocking call is done when the communicator is no longer in progress. It never is for long,
 * but at creation and with the first collective of a kind. */
static tsr_status complete(tsr_nccl *n, ncclResult_t result, const char *what)
{
    double end = tsr_now() + timeout_of(n);
    for (int polls = 0; result == ncclInProgress; polls++) {
        if (tsr_nccl_lib.CommGetAsyncError(n->nccl, &result) != ncclSuccess)
            result = ncclInternalError;
        if (result != ncclInProgress)
            break;
        if (polls % 64 == 63)
            TSR_TRY(tsr_watch_why_stop(n, end, what));
        if (polls < 20000)
            sched_yield();
        else
            usleep(200);
    }
    return tsr_watch_blame(n, check(result, what));
}

tsr_status tsr_nccl_check(tsr_nccl *n)
{
    ncclResult_t result = ncclSuccess;
    if (!n->nccl)
        return TSR_OK;
    if (tsr_nccl_lib.CommGetAsyncError(n->nccl, &result) != ncclSuccess)
        result = ncclInternalError;
    if (result == ncclSuccess || result == ncclInProgress)
        return TSR_OK;
    char me[256];
    tsr_board_describe(n->comm->gate.board, n->comm->gate.rank, me, sizeof me);
    return tsr_watch_blame(n, check(result, me));
}

void tsr_nccl_abort(tsr_nccl *n)
{
    ncclComm_t nccl = n->nccl;
    n->nccl = NULL;
    if (nccl)
        tsr_nccl_lib.CommAbort(nccl);
}

/* ---- collectives ---- */

/* One rank has everything already. */
static bool is_alone(const tsr_comm *comm)
{
    return comm->size == 1;
}

static tsr_status copy(const tsr_comm_call *call, void *destination, const void *source,
                       uint64_t bytes)
{
    if (bytes == 0 || destination == source)
        return TSR_OK;
    return tsr_stream_copy(call->stream, destination, source, bytes);
}

static tsr_status begin(tsr_nccl *n, const tsr_comm_call *call)
{
    if (n->without_nccl)
        return tsr_fail(TSR_EUNSUPPORTED, "%s of several ranks on one GPU",
                        tsr_comm_kind_name(call->kind));
    TSR_TRY(tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice"));
    TSR_TRY(tsr_watch_begin(n, tsr_stream_cuda(call->stream)));
    TSR_TRY(tsr_watch_lock(n, tsr_comm_kind_name(call->kind)));
    tsr_status status = check(tsr_nccl_lib.GroupStart(), "group");
    if (status < 0)
        tsr_watch_unlock(n);
    return status;
}

/* CUDA loads a kernel when it is first launched. That waits for all that runs on the device, and with it wait
 * the CUDA calls of the process's other threads: if one of those has yet to enqueue the collective that runs
 * there, for ever. So ranks that are threads of one process launch nothing while a collective runs. */
static tsr_status end(tsr_nccl *n, const tsr_comm_call *call, ncclResult_t result)
{
    const char *what = tsr_comm_kind_name(call->kind);
    ncclResult_t ended = tsr_nccl_lib.GroupEnd();
    tsr_status status = tsr_watch_blame(n, check(result, what));
    if (status == TSR_OK)
        status = complete(n, ended, what);
    tsr_watch_unlock(n);
    if (status == TSR_OK)
        status = tsr_watch_end(n, tsr_stream_cuda(call->stream), call->kind);
    if (status == TSR_OK && n->threads)
        tsr_watch_outlast(n);
    return status;
}

static bool is_fine(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

static tsr_status nccl_all_gather(tsr_comm *comm, const tsr_comm_call *call,
                                  const tsr_gather_range *ranges, int count)
{
    tsr_nccl *n = comm->backend;
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes += ranges[i].bytes;
        if (is_alone(comm))
            TSR_TRY(copy(call, ranges[i].receive, ranges[i].send, ranges[i].bytes));
    }
    tsr_status status;
    if (is_alone(comm) || bytes == 0)
        return TSR_OK;
    if (tsr_nccl_gather_by_copies(&status, comm, call, ranges, count))
        return status;
    TSR_TRY(begin(n, call));
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && is_fine(result); i++)
        if (ranges[i].bytes)
            result = tsr_nccl_lib.AllGather(ranges[i].send, ranges[i].receive, ranges[i].bytes,
                                            ncclInt8, n->nccl, tsr_stream_cuda(call->stream));
    return end(n, call, result);
}

/* The pieces of one pair of ranks: what is sent to `to`, and what comes from `from`. */
static ncclResult_t send_and_receive(tsr_nccl *n, cudaStream_t stream,
                                     const tsr_exchange_range *ranges, int count, int to, int from)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < count && is_fine(result); i++) {
        uint64_t bytes = ranges[i].bytes;
        if (bytes == 0)
            continue;
        result = tsr_nccl_lib.Send(tsr_exchange_to(&ranges[i], to), bytes, ncclInt8, to, n->nccl,
                                   stream);
        if (is_fine(result))
            result = tsr_nccl_lib.Recv(tsr_exchange_from(n->comm, &ranges[i], from), bytes,
                                       ncclInt8, from, n->nccl, stream);
    }
    return result;
}

static tsr_status nccl_exchange(tsr_comm *comm, const tsr_comm_call *call,
                                const tsr_exchange_range *ranges, int count)
{
    tsr_nccl *n = comm->backend;
    uint64_t bytes = 0;
    int rank = comm->rank, size = comm->size;
    for (int i = 0; i < count; i++)
        bytes += ranges[i].bytes;
    tsr_status status;
    if (is_alone(comm) || bytes == 0)
        return TSR_OK;
    if (tsr_nccl_exchange_by_copies(&status, comm, call, ranges, count))
        return status;
    TSR_TRY(begin(n, call));
    ncclResult_t result = ncclSuccess;
    for (int k = 1; k < size && is_fine(result); k++)
        result = send_and_receive(n, tsr_stream_cuda(call->stream), ranges, count,
                                  (rank + k) % size, (rank - k + size) % size);
    return end(n, call, result);
}

static tsr_status nccl_all_reduce(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                  uint64_t count, tsr_reduce_op op)
{
    tsr_nccl *n = comm->backend;
    bool halves = op == TSR_SUM_HALVES;
    ncclRedOp_t how = op == TSR_MIN ? ncclMin : op == TSR_MAX ? ncclMax : ncclSum;
    if (is_alone(comm) || count == 0)
        return TSR_OK;
    TSR_TRY(begin(n, call));
    return end(n, call,
               tsr_nccl_lib.AllReduce(data, data, halves ? 2 * count : count,
                                      halves ? ncclInt32 : ncclInt64, how, n->nccl,
                                      tsr_stream_cuda(call->stream)));
}

static tsr_status nccl_broadcast(tsr_comm *comm, const tsr_comm_call *call, void *data,
                                 uint64_t bytes, int root)
{
    tsr_nccl *n = comm->backend;
    bool grouped = n->grouped;
    if (is_alone(comm) || bytes == 0 || (grouped && !is_fine(n->group_result)))
        return TSR_OK;
    if (!grouped)
        TSR_TRY(begin(n, call));
    ncclResult_t result = tsr_nccl_lib.Broadcast(data, data, bytes, ncclInt8, root, n->nccl,
                                                 tsr_stream_cuda(call->stream));
    if (!grouped)
        return end(n, call, result);
    n->group_result = result;
    return TSR_OK;
}

/* NCCL makes one launch of a group, in which ranks send and receive at the same time. */
static tsr_status nccl_group_begin(tsr_comm *comm, const tsr_comm_call *call)
{
    tsr_nccl *n = comm->backend;
    if (is_alone(comm))
        return TSR_OK;
    TSR_TRY(begin(n, call));
    n->grouped = true;
    n->group_result = ncclSuccess;
    return TSR_OK;
}

static tsr_status nccl_group_end(tsr_comm *comm, const tsr_comm_call *call)
{
    tsr_nccl *n = comm->backend;
    if (!n->grouped)
        return TSR_OK;
    n->grouped = false;
    return end(n, call, (ncclResult_t)n->group_result);
}

static tsr_status nccl_barrier(tsr_comm *comm, const tsr_comm_call *call)
{
    const tsr_nccl *n = comm->backend;
    return nccl_all_reduce(comm, call, n->scratch, 1, TSR_MAX);
}

/* ---- the end ---- */

static void free_nccl(tsr_nccl *n)
{
    if (!n)
        return;
    for (int i = 1; i < TSR_PULL_LANES; i++) {
        if (n->join[i])
            cudaEventDestroy(n->join[i]);
        if (n->lane[i])
            cudaStreamDestroy(n->lane[i]);
    }
    if (n->fork)
        cudaEventDestroy(n->fork);
    if (n->scratch)
        cudaFree(n->scratch);
    tsr_meet_destroy(n);
    for (int i = 0; i < n->peer_count; i++)
        if (n->peers[i].file >= 0)
            close(n->peers[i].file);
    free(n->peers);
    free(n->cards);
    free(n);
}

/* Of a communicator that lives: all ranks come here, and leave together. */
static tsr_status finish(tsr_nccl *n)
{
    TSR_TRY(tsr_watch_drain(n));
    tsr_status status = complete(n, tsr_nccl_lib.CommFinalize(n->nccl), "end");
    if (status == TSR_OK) {
        tsr_nccl_lib.CommDestroy(n->nccl);
        n->nccl = NULL;
    }
    tsr_watch_unlock(n);
    return status;
}

/* Nobody frees memory that another rank still maps, and nobody ends its process while another takes
 * that for a death: so the ranks meet when they have closed what was the others'. */
static void nccl_close(tsr_comm *comm)
{
    tsr_nccl *n = comm->backend;
    tsr_board *board = comm->gate.board;
    tsr_comm_call call = {NULL, TSR_COMM_GOODBYE, 0, NULL};
    cudaSetDevice(n->index);
    if (n->watch && !tsr_board_is_dead(board) && finish(n) < 0)
        tsr_board_kill(board, comm->gate.rank, TSR_ECOMM, tsr_last_error());
    if (n->watch && tsr_board_is_dead(board) && !tsr_watch_given_up(n))
        return; /* its kernels may run for ever: the process ends with what they use */
    tsr_nccl_close_regions(n);
    tsr_watch_leave(n);
    if (!is_alone(comm) && !tsr_board_is_dead(board) && n->host->ops->barrier(n->host, &call) < 0)
        tsr_board_kill(board, comm->gate.rank, TSR_ECOMM, tsr_last_error());
    free_nccl(n);
}

static const tsr_comm_ops nccl_ops = {
    .name = "nccl",
    .enqueues = true,
    .all_gather = nccl_all_gather,
    .exchange = nccl_exchange,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .barrier = nccl_barrier,
    .group_begin = nccl_group_begin,
    .group_end = nccl_group_end,
    .expose = tsr_nccl_expose,
    .pull = tsr_nccl_pull,
    .close = nccl_close,
};

/* ---- creation ---- */

static void leave_multicast_alone(void)
{
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

/* What this rank can do without the others; the communicator is freed by the caller. */
static tsr_status prepare(tsr_nccl *n, tsr_nccl_card *mine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const tsr_comm *host = n->host;
    struct cudaDeviceProp properties;
    uint64_t words = 2 * (uint64_t)host->size + 2;
    bool with_nccl = host->size > 1 && !n->without_nccl;
    if (with_nccl) {
        pthread_once(&once, leave_multicast_alone);
        TSR_TRY(tsr_nccl_load(NULL));
    }
    TSR_TRY(tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice"));
    TSR_TRY(
        tsr_cuda_status(cudaGetDeviceProperties(&properties, n->index), "cudaGetDeviceProperties"));
    TSR_TRY(tsr_cuda_status(cudaMalloc((void **)&n->scratch, words * sizeof *n->scratch),
                            "memory for a communicator"));
    TSR_TRY(tsr_cuda_status(cudaMemset(n->scratch, 0, words * sizeof *n->scratch),
                            "memory for a communicator"));
    memcpy(mine->gpu, &properties.uuid, sizeof mine->gpu);
    mine->pid = getpid();
    mine->index = n->index;
    if (host->rank == 0 && with_nccl) {
        ncclUniqueId id;
        TSR_TRY(check(tsr_nccl_lib.GetUniqueId(&id), "making an id"));
        memcpy(mine->id, &id, sizeof id);
    }
    return tsr_nccl_set_lanes(n->comm, 2);
}

/* The same result on all ranks. */
static tsr_status check_cards(const tsr_nccl *n)
{
    const tsr_comm *host = n->host;
    for (int i = 0; i < host->size && !n->without_nccl; i++)
        for (int j = 0; j < i; j++)
            if (host->nodes[i] == host->nodes[j] &&
                !memcmp(n->cards[i].gpu, n->cards[j].gpu, sizeof n->cards[i].gpu))
                return tsr_fail(
                    TSR_ECONFIG,
                    "ranks %d and %d are on the same GPU; NCCL needs one for each rank: "
                    "start as many ranks as the machine has GPUs",
                    j, i);
    return TSR_OK;
}

static bool have_threads(const tsr_nccl *n)
{
    for (int i = 0; i < n->comm->size; i++)
        for (int j = 0; j < i; j++)
            if (n->cards[i].pid == n->cards[j].pid && n->comm->nodes[i] == n->comm->nodes[j])
                return true;
    return false;
}

static tsr_status connect(tsr_nccl *n)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    TSR_TRY(tsr_watch_find_peers(n));
    memcpy(&id, n->cards[0].id, sizeof id);
    tsr_status status = complete(
        n, tsr_nccl_lib.CommInitRankConfig(&n->nccl, n->comm->size, id, n->comm->rank, &config),
        "creation");
    if (status == TSR_OK)
        status = tsr_watch_join(n);
    if (status < 0)
        tsr_nccl_abort(n);
    return status;
}

/* A word of each rank, in a group. */
static tsr_status broadcast_words(tsr_nccl *n, const tsr_comm_call *call)
{
    TSR_TRY(nccl_group_begin(n->comm, call));
    tsr_status status = TSR_OK;
    for (int root = 0; root < n->comm->size && status == TSR_OK; root++)
        status = nccl_broadcast(n->comm, call, n->scratch + 2 + root, sizeof *n->scratch, root);
    tsr_status ended = nccl_group_end(n->comm, call);
    return status < 0 ? status : ended;
}

/* One collective of each kind: what NCCL makes with the first is made here, its memory too, and a
 * link that does not work is found here. */
static tsr_status warm_up(tsr_nccl *n)
{
    tsr_stream *stream;
    int64_t *word = n->scratch;
    uint64_t size = (uint64_t)n->comm->size;
    TSR_TRY(tsr_stream_create(&stream, n->device, "warm-up"));
    tsr_comm_call call = {n->device, TSR_COMM_BARRIER, 0, stream};
    tsr_gather_range range = {word + 1, word + 2, sizeof *word};
    tsr_exchange_range pieces = {word + 2, word + 2 + size, sizeof *word};
    tsr_status status = nccl_barrier(n->comm, &call);
    if (status == TSR_OK)
        status = nccl_all_gather(n->comm, &call, &range, 1);
    if (status == TSR_OK)
        status = nccl_exchange(n->comm, &call, &pieces, 1);
    if (status == TSR_OK)
        status = broadcast_words(n, &call);
    if (status == TSR_OK)
        status = tsr_stream_synchronize(stream);
    tsr_stream_destroy(stream);
    return status;
}

/* Blocking, and collective; a failure is everybody's. */
static tsr_status set_up(tsr_nccl *n, tsr_stream *host_stream)
{
    tsr_nccl_card mine = {{0}};
    n->cards = calloc((size_t)n->host->size, sizeof *n->cards);
    tsr_status status = n->cards ? prepare(n, &mine) : tsr_fail(TSR_ENOMEM, "no memory for NCCL");
    TSR_TRY(tsr_comm_agree(n->host, host_stream, status, NULL));
    TSR_TRY(
        tsr_comm_gather_now(n->host, host_stream, &mine, n->cards, sizeof mine, TSR_COMM_CREATE));
    TSR_TRY(check_cards(n));
    n->threads = have_threads(n);
    if (is_alone(n->comm) || n->without_nccl)
        return TSR_OK;
    status = connect(n);
    if (status == TSR_OK)
        status = warm_up(n);
    if (status < 0) /* the others may be in the middle of it */
        tsr_board_kill(n->comm->gate.board, n->comm->gate.rank, status, tsr_last_error());
    return tsr_comm_agree(n->host, host_stream, status, NULL);
}

tsr_status tsr_comm_create_nccl_with(tsr_comm **out, tsr_comm *host, tsr_stream *host_stream,
                                     tsr_device *device, const tsr_nccl_options *options)
{
    if (host->ops->enqueues || tsr_device_kind_of(device) != TSR_DEVICE_CUDA)
        return tsr_fail(TSR_EINVAL,
                        "a communicator of CUDA devices needs a host communicator, "
                        "which \"%s\" is%s, and a CUDA device, which %s is%s",
                        host->ops->name, host->ops->enqueues ? " not" : "",
                        tsr_device_description(device),
                        tsr_device_kind_of(device) == TSR_DEVICE_CUDA ? "" : " not");
    if (host->root->slots_used == TSR_BOARD_SLOTS)
        return tsr_fail(TSR_EINTERNAL, "a communicator is split more than %d times",
                        TSR_BOARD_SLOTS - 1);
    int slot = host->root->slots_used++;
    tsr_comm *comm = NULL;
    tsr_nccl *n = calloc(1, sizeof *n);
    tsr_status status = n ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory for NCCL");
    if (status == TSR_OK)
        status = tsr_comm_new(&comm, &nccl_ops, n, host->gate.board, NULL, slot, host->rank,
                              host->size, host->members, host->nodes, host->gate.timeout_seconds);
    /* The others must not wait for a rank without memory. */
    status = tsr_comm_agree(host, host_stream, status, NULL);
    if (status < 0) {
        tsr_comm_free(comm);
        free(n);
        return status;
    }
    *n = (tsr_nccl){.comm = comm,
                    .host = host,
                    .device = device,
                    .index = tsr_device_cuda_properties(device)->index,
                    .without_nccl = options->without_nccl,
                    .meets_in_process = options->meets_in_process,
                    .abort_seconds = options->abort_seconds};
    status = set_up(n, host_stream);
    if (status == TSR_OK) {
        *out = comm;
        return TSR_OK;
    }
    tsr_error error;
    tsr_error_take(&error, status);
    if (n->watch)
        tsr_board_kill(comm->gate.board, comm->gate.rank, status, error.message);
    tsr_comm_destroy(comm);
    return tsr_error_put(&error);
}

tsr_status tsr_comm_create_nccl(tsr_comm **out, tsr_comm *host, tsr_stream *host_stream,
                                tsr_device *device)
{
    return tsr_comm_create_nccl_with(out, host, host_stream, device, &(tsr_nccl_options){0});
}

tsr_status tsr_comm_nccl_version(tsr_library_version *out)
{
    return tsr_nccl_load(out);
}
