/*
 * comm_nccl_pull.c: what the other ranks of the node have is taken from them by copy engines, without
 * a kernel that takes multiprocessors from others: what no rank writes any more without a rendezvous,
 * what changes between two meetings (comm_nccl_meet.c).
 *
 * Ranks of one process read each other's memory by its own address; other processes map it (CUDA
 * IPC). Whether all of it works is tried out once, with words written at both ends of every rank's
 * memory, and decided for all ranks alike: if not, pulls are all-gathers. The copies of one pull go
 * over a few streams, so that their latencies overlap.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/nccl_parts.h"

#include <stdlib.h>
#include <string.h>

#define MARK_BYTES 16

struct tsr_region {
    tsr_region *next;
    char *base;
    uint64_t bytes;
    bool direct; /* the same on all ranks */
    char **peer; /* [size]: `base` of each rank, at this rank's address */
    void **open; /* [size]: what was mapped, NULL where nothing was */
};

/* What a rank tells of its memory. */
struct offer {
    int64_t pid, device;
    uint64_t address;       /* good in its own process */
    uint64_t bytes, offset; /* offset: in the allocation that the handle is of */
    int64_t has_handle;
    cudaIpcMemHandle_t handle;
};

/* ---- offering ---- */

typedef int get_range(uint64_t *base, size_t *bytes, uint64_t address);

/* The allocation that `address` lies in: the driver knows, the runtime does not tell. */
static bool find_allocation(uint64_t *base, const void *address)
{
    void *found = tsr_cuda_driver("cuMemGetAddressRange");
    size_t bytes;
    get_range *function;
    if (!found)
        return false;
    memcpy(&function, &found, sizeof function);
    return function(base, &bytes, (uint64_t)(uintptr_t)address) == 0;
}

static void make_offer(struct offer *offer, const tsr_nccl *n, char *base, uint64_t bytes)
{
    uint64_t allocation;
    memset(offer, 0, sizeof *offer);
    offer->pid = n->cards[n->comm->rank].pid;
    offer->device = n->index;
    offer->address = (uint64_t)(uintptr_t)base;
    offer->bytes = bytes;
    if (find_allocation(&allocation, base) &&
        cudaIpcGetMemHandle(&offer->handle, (void *)(uintptr_t)allocation) == cudaSuccess) {
        offer->offset = offer->address - allocation;
        offer->has_handle = 1;
    }
    cudaGetLastError(); /* what does not work here is no error */
}

/* ---- opening ---- */

/* Another device of this process. */
static bool reach(int device, int mine)
{
    int can = 0;
    if (device == mine)
        return true;
    if (cudaDeviceCanAccessPeer(&can, mine, device) != cudaSuccess || !can)
        return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

static bool open_peer(const tsr_nccl *n, tsr_region *region, int rank, const struct offer *offer)
{
    void *opened;
    if (offer->bytes != region->bytes)
        return false;
    if (offer->pid == n->cards[n->comm->rank].pid) {
        region->peer[rank] = (char *)(uintptr_t)offer->address;
        return reach((int)offer->device, n->index);
    }
    if (!offer->has_handle ||
        cudaIpcOpenMemHandle(&opened, offer->handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return false;
    region->open[rank] = opened;
    region->peer[rank] = (char *)opened + offer->offset;
    return true;
}

static bool open_peers(const tsr_nccl *n, tsr_region *region, const struct offer *offers)
{
    bool good = true;
    for (int i = 0; i < n->comm->size && good; i++)
        if (i != n->comm->rank)
            good = open_peer(n, region, i, &offers[i]);
    region->peer[n->comm->rank] = region->base;
    cudaGetLastError();
    return good;
}

static void close_peers(const tsr_nccl *n, tsr_region *region)
{
    for (int i = 0; i < n->comm->size; i++) {
        if (region->open[i])
            cudaIpcCloseMemHandle(region->open[i]);
        region->open[i] = NULL;
    }
    cudaGetLastError();
}

/* ---- trying out ---- */

struct mark {
    unsigned char low[MARK_BYTES], high[MARK_BYTES];
};

static tsr_status copy_marks(struct mark *mark, char *base, uint64_t bytes, bool write)
{
    uint64_t length = bytes < MARK_BYTES ? bytes : MARK_BYTES;
    char *high = base + bytes - length;
    cudaError_t error = write ? cudaMemcpy(base, mark->low, length, cudaMemcpyDefault)
                              : cudaMemcpy(mark->low, base, length, cudaMemcpyDefault);
    if (error == cudaSuccess)
        error = write ? cudaMemcpy(high, mark->high, length, cudaMemcpyDefault)
                      : cudaMemcpy(mark->high, high, length, cudaMemcpyDefault);
    if (error == cudaSuccess) /* a copy from pageable memory may still be on its way */
        error = cudaStreamSynchronize(cudaStreamLegacy);
    return tsr_cuda_status(error, "exposing memory");
}

bool tsr_nccl_all_good(tsr_status *status, const tsr_nccl *n, bool good)
{
    tsr_comm *host = n->host;
    char mine = good, *theirs = malloc((size_t)host->size);
    *status = theirs ? TSR_OK : tsr_fail(TSR_ENOMEM, "no memory to share memory");
    if (*status < 0)
        tsr_board_kill(host->gate.board, host->gate.rank, *status, tsr_last_error());
    else
        *status = tsr_comm_gather_now(host, NULL, &mine, theirs, 1, TSR_COMM_EXPOSE);
    for (int i = 0; i < host->size && *status == TSR_OK; i++)
        good = good && theirs[i];
    free(theirs);
    return *status == TSR_OK && good;
}

/* Every rank writes marks in its own memory and looks for those of the others. */
static tsr_status try_out(bool *good, const tsr_nccl *n, tsr_region *region, uint64_t secret)
{
    struct mark before, mark, seen;
    tsr_status status = TSR_OK;
    uint64_t length = region->bytes < MARK_BYTES ? region->bytes : MARK_BYTES;
    uint64_t words[2] = {tsr_hash(secret, &n->comm->rank, sizeof n->comm->rank), 0x5eed};
    memcpy(mark.low, words, MARK_BYTES);
    words[0] = ~words[0];
    memcpy(mark.high, words, MARK_BYTES);
    TSR_TRY(copy_marks(&before, region->base, region->bytes, false));
    TSR_TRY(copy_marks(&mark, region->base, region->bytes, true));
    *good = tsr_nccl_all_good(&status, n, *good);
    for (int i = 0; i < n->comm->size && *good; i++) {
        words[0] = tsr_hash(secret, &i, sizeof i);
        memcpy(mark.low, words, MARK_BYTES);
        words[0] = ~words[0];
        memcpy(mark.high, words, MARK_BYTES);
        *good = copy_marks(&seen, region->peer[i], region->bytes, false) == TSR_OK &&
                (region->bytes < 2 * MARK_BYTES || !memcmp(seen.low, mark.low, length)) &&
                !memcmp(seen.high, mark.high, length);
    }
    cudaGetLastError();
    if (status == TSR_OK)
        *good = tsr_nccl_all_good(&status, n, *good); /* all have looked */
    tsr_status restored = copy_marks(&before, region->base, region->bytes, true);
    return status < 0 ? status : restored;
}

/* ---- exposing ---- */

static tsr_region *make_region(int size, void *base, uint64_t bytes)
{
    tsr_region *region = calloc(1, sizeof *region);
    if (!region)
        return NULL;
    region->base = base;
    region->bytes = bytes;
    region->peer = calloc((size_t)size, sizeof *region->peer);
    region->open = calloc((size_t)size, sizeof *region->open);
    if (region->peer && region->open)
        return region;
    free(region->peer);
    free(region->open);
    free(region);
    return NULL;
}

/* Decides region->direct. */
static tsr_status connect(tsr_nccl *n, tsr_stream *host_stream, tsr_region *region,
                          struct offer *offers)
{
    struct offer mine;
    make_offer(&mine, n, region->base, region->bytes);
    TSR_TRY(tsr_comm_gather_now(n->host, host_stream, &mine, offers, sizeof mine, TSR_COMM_EXPOSE));
    uint64_t secret = tsr_hash(TSR_HASH_START, &offers[0], sizeof offers[0]);
    bool good = n->comm->node_count == 1 && open_peers(n, region, offers);
    tsr_status status = try_out(&good, n, region, secret);
    region->direct = status == TSR_OK && good;
    if (!region->direct)
        close_peers(n, region);
    return status;
}

tsr_status tsr_nccl_expose(tsr_comm *comm, tsr_stream *host_stream, void *base, uint64_t bytes)
{
    tsr_nccl *n = comm->backend;
    if (comm->size == 1 || bytes == 0)
        return TSR_OK;
    tsr_status status = tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice");
    tsr_region *region = make_region(comm->size, base, bytes);
    struct offer *offers = calloc((size_t)comm->size, sizeof *offers);
    if (status == TSR_OK && (!region || !offers))
        status = tsr_fail(TSR_ENOMEM, "no memory to expose memory");
    if (status == TSR_OK)
        status = connect(n, host_stream, region, offers);
    if (status == TSR_OK)
        status = tsr_meet_create(n, host_stream);
    free(offers);
    if (region) {
        region->next = n->regions;
        n->regions = region;
    }
    if (status < 0) /* the other ranks wait */
        tsr_board_kill(comm->gate.board, comm->gate.rank, status, tsr_last_error());
    return status;
}

void tsr_nccl_close_regions(tsr_nccl *n)
{
    while (n->regions) {
        tsr_region *region = n->regions;
        n->regions = region->next;
        close_peers(n, region);
        free(region->peer);
        free(region->open);
        free(region);
    }
}

static bool holds(const tsr_region *region, const char *at, uint64_t bytes)
{
    return bytes == 0 || (at >= region->base && at + bytes <= region->base + region->bytes);
}

bool tsr_nccl_is_direct(const tsr_comm *comm, const void *base)
{
    const tsr_nccl *n = comm->backend;
    const tsr_region *region = n->regions;
    while (region && !holds(region, base, 1))
        region = region->next;
    return region && region->direct;
}

/* ---- pulling ---- */

tsr_status tsr_nccl_set_lanes(tsr_comm *comm, int count)
{
    tsr_nccl *n = comm->backend;
    int least, greatest;
    if (count < 1 || count > TSR_PULL_LANES)
        return tsr_fail(TSR_EINVAL, "%d lanes, expected 1 to %d", count, TSR_PULL_LANES);
    TSR_TRY(tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice"));
    TSR_TRY(tsr_cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities"));
    if (!n->fork)
        TSR_TRY(tsr_cuda_status(cudaEventCreateWithFlags(&n->fork, cudaEventDisableTiming),
                                "an event"));
    for (int i = 1; i < count; i++) {
        if (!n->join[i])
            TSR_TRY(tsr_cuda_status(cudaEventCreateWithFlags(&n->join[i], cudaEventDisableTiming),
                                    "an event"));
        if (!n->lane[i])
            TSR_TRY(tsr_cuda_status(
                cudaStreamCreateWithPriority(&n->lane[i], cudaStreamNonBlocking, greatest),
                "a stream"));
    }
    n->lane_count = count;
    return TSR_OK;
}

/* The lanes begin when the stream has come here. */
static tsr_status fork_lanes(tsr_nccl *n, cudaStream_t stream)
{
    if (n->lane_count > 1)
        TSR_TRY(tsr_cuda_status(cudaEventRecord(n->fork, stream), "pull"));
    n->lane[0] = stream;
    for (int i = 1; i < n->lane_count; i++)
        TSR_TRY(tsr_cuda_status(cudaStreamWaitEvent(n->lane[i], n->fork, 0), "pull"));
    return TSR_OK;
}

static tsr_status join_lanes(tsr_nccl *n, cudaStream_t stream)
{
    for (int i = 1; i < n->lane_count; i++) {
        TSR_TRY(tsr_cuda_status(cudaEventRecord(n->join[i], n->lane[i]), "pull"));
        TSR_TRY(tsr_cuda_status(cudaStreamWaitEvent(stream, n->join[i], 0), "pull"));
    }
    n->lane[0] = NULL;
    return TSR_OK;
}

static tsr_status copy_one(const tsr_nccl *n, int lane, void *to, const void *from, uint64_t bytes)
{
    if (bytes == 0)
        return TSR_OK;
    return tsr_cuda_status(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, n->lane[lane % n->lane_count]),
        "a copy from another GPU");
}

#define BATCH 32 /* copies in one call */

typedef struct {
    void *to[BATCH];
    const void *from[BATCH];
    size_t bytes[BATCH];
    int count;
} batch;

/* Copies inside this device go to its multiprocessors, unless the driver is asked to leave those to
 * others; one that is too old for that question copies all the same. */
static tsr_status copy_batch(const batch *b, cudaStream_t lane)
{
    if (b->count == 0)
        return TSR_OK;
#if CUDART_VERSION >= 13000
    size_t first = 0;
    struct cudaMemcpyAttributes how = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream,
                                       .flags = cudaMemcpyFlagPreferOverlapWithCompute};
    if (cudaMemcpyBatchAsync((void *const *)b->to, b->from, b->bytes, (size_t)b->count, &how,
                             &first, 1, lane) == cudaSuccess)
        return TSR_OK;
    cudaGetLastError();
#endif
    for (int i = 0; i < b->count; i++)
        TSR_TRY(tsr_cuda_status(
            cudaMemcpyAsync(b->to[i], b->from[i], b->bytes[i], cudaMemcpyDefault, lane),
            "a copy inside a GPU"));
    return TSR_OK;
}

/* What this rank itself has of a gather. */
static tsr_status copy_own(const tsr_nccl *n, const tsr_gather_range *ranges, int count)
{
    batch b = {.count = 0};
    cudaStream_t lane = n->lane[n->lane_count - 1];
    for (int i = 0; i < count; i++) {
        char *to = (char *)ranges[i].receive + (uint64_t)n->comm->rank * ranges[i].bytes;
        if (ranges[i].bytes == 0 || to == ranges[i].send)
            continue;
        b.to[b.count] = to;
        b.from[b.count] = ranges[i].send;
        b.bytes[b.count++] = ranges[i].bytes;
        if (b.count == BATCH) {
            TSR_TRY(copy_batch(&b, lane));
            b.count = 0;
        }
    }
    return copy_batch(&b, lane);
}

/* The same place of the region, on another rank. */
static const char *of_peer(const tsr_region *region, int peer, const void *mine)
{
    return region->peer[peer] + ((const char *)mine - region->base);
}

/* Each rank begins with the next one, so that not all read from the same. */
static tsr_status copy_ranges(const tsr_nccl *n, const tsr_region *region,
                              const tsr_gather_range *ranges, int count)
{
    int rank = n->comm->rank, size = n->comm->size;
    TSR_TRY(copy_own(n, ranges, count));
    for (int k = 1; k < size; k++) {
        int peer = (rank + k) % size;
        for (int i = 0; i < count; i++)
            TSR_TRY(copy_one(n, i + k, (char *)ranges[i].receive + (uint64_t)peer * ranges[i].bytes,
                             of_peer(region, peer, ranges[i].send), ranges[i].bytes));
    }
    return TSR_OK;
}

static tsr_status copy_pieces(const tsr_nccl *n, const tsr_region *region,
                              const tsr_exchange_range *ranges, int count)
{
    int rank = n->comm->rank, size = n->comm->size;
    for (int k = 1; k < size; k++) {
        int peer = (rank + k) % size;
        for (int i = 0; i < count; i++)
            TSR_TRY(copy_one(n, i + k, tsr_exchange_from(n->comm, &ranges[i], peer),
                             of_peer(region, peer, tsr_exchange_to(&ranges[i], rank)),
                             ranges[i].bytes));
    }
    return TSR_OK;
}

/* What a rank sends of range i. */
typedef const char *sent_by(const tsr_comm *comm, const void *ranges, int i, uint64_t *bytes);

static const char *gathered(const tsr_comm *comm, const void *ranges, int i, uint64_t *bytes)
{
    const tsr_gather_range *range = (const tsr_gather_range *)ranges + i;
    (void)comm;
    *bytes = range->bytes;
    return range->send;
}

static const char *exchanged(const tsr_comm *comm, const void *ranges, int i, uint64_t *bytes)
{
    const tsr_exchange_range *range = (const tsr_exchange_range *)ranges + i;
    const char *at = tsr_exchange_sent(comm, range, bytes);
    *bytes = range->bytes ? *bytes : 0;
    return at;
}

/* The newest region that others can read and that has all that a call sends; it is the same on every rank. NULL: there is none. Regions may
 * overlap: what jobs on one base expose. */
static const tsr_region *region_of(const tsr_comm *comm, const void *ranges, int count,
                                   sent_by *sent)
{
    const tsr_nccl *n = comm->backend;
    for (const tsr_region *region = n->regions; region; region = region->next) {
        int i = 0;
        for (uint64_t bytes; region->direct && i < count; i++) {
            const char *at = sent(comm, ranges, i, &bytes);
            if (!holds(region, at, bytes))
                break;
        }
        if (region->direct && i == count)
            return region;
    }
    return NULL;
}

tsr_status tsr_nccl_pull(tsr_comm *comm, const tsr_comm_call *call, const tsr_gather_range *ranges,
                         int count)
{
    tsr_nccl *n = comm->backend;
    const tsr_region *region = region_of(comm, ranges, count, gathered);
    if (!region)
        return comm->ops->all_gather(comm, call, ranges, count);
    cudaStream_t stream = tsr_stream_cuda(call->stream);
    TSR_TRY(tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice"));
    TSR_TRY(fork_lanes(n, stream));
    TSR_TRY(copy_ranges(n, region, ranges, count));
    return join_lanes(n, stream);
}

/* ---- between two meetings ---- */

/* All have written what is to be read, and the lanes begin. */
static tsr_status begin_copies(tsr_nccl *n, cudaStream_t stream)
{
    TSR_TRY(tsr_cuda_status(cudaSetDevice(n->index), "cudaSetDevice"));
    if (n->watch) /* without NCCL, in tests, nobody watches */
        TSR_TRY(tsr_watch_begin(n, stream));
    TSR_TRY(tsr_meet_enqueue(n, stream));
    return fork_lanes(n, stream);
}

/* All have read it. */
static tsr_status end_copies(tsr_nccl *n, const tsr_comm_call *call, tsr_status status)
{
    cudaStream_t stream = tsr_stream_cuda(call->stream);
    if (status == TSR_OK)
        status = join_lanes(n, stream);
    if (status == TSR_OK)
        status = tsr_meet_enqueue(n, stream);
    return status == TSR_OK && n->watch ? tsr_watch_end(n, stream, call->kind) : status;
}

bool tsr_nccl_gather_by_copies(tsr_status *status, tsr_comm *comm, const tsr_comm_call *call,
                               const tsr_gather_range *ranges, int count)
{
    tsr_nccl *n = comm->backend;
    const tsr_region *region = n->meets ? region_of(comm, ranges, count, gathered) : NULL;
    if (!region)
        return false;
    *status = begin_copies(n, tsr_stream_cuda(call->stream));
    if (*status == TSR_OK)
        *status = end_copies(n, call, copy_ranges(n, region, ranges, count));
    return true;
}

bool tsr_nccl_exchange_by_copies(tsr_status *status, tsr_comm *comm, const tsr_comm_call *call,
                                 const tsr_exchange_range *ranges, int count)
{
    tsr_nccl *n = comm->backend;
    const tsr_region *region = n->meets ? region_of(comm, ranges, count, exchanged) : NULL;
    if (!region)
        return false;
    *status = begin_copies(n, tsr_stream_cuda(call->stream));
    if (*status == TSR_OK)
        *status = end_copies(n, call, copy_pieces(n, region, ranges, count));
    return true;
}
