/*
 * fake_nccl.c: the part of fake_cuda.c that is NCCL's. Communicators of one process: a collective is
 * a call on the ranks' streams, which meet, read each other's memory, and meet again. The linker puts
 * its tsr_nccl_load in the place of the one that loads the library (CMakeLists.txt).
 */
#include "comm/nccl_library.h"
#include "device/device.h"
#include "fake_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 16

struct group {
    struct group *next;
    ncclUniqueId id;
    int size;
    _Atomic int present; /* ranks that have come, until they leave */
    _Atomic int left;
    _Atomic int arrived;
    _Atomic unsigned round;
    _Atomic bool broken; /* a rank has aborted: it lets the others go */
    _Atomic(const void *) data[MOST];
};

struct ncclComm {
    struct group *group;
    int rank;
    _Atomic int aborted, users;
    int busy; /* polls that it stays in progress */
    bool leaving;
};

static struct {
    pthread_mutex_t lock;
    struct group *first;
} groups = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What a group sends and receives. */
#define MESSAGES 512

struct message {
    bool receives;
    int peer;
    void *data;
    size_t bytes;
};

struct messages {
    struct messages *next; /* of those that are kept */
    int count;
    struct message message[MESSAGES];
};

static _Thread_local int depth;
static _Thread_local ncclComm_t grouped;
static _Thread_local struct messages *messages;
static _Thread_local cudaStream_t messages_on;

static _Noreturn void wrong(const char *what)
{
    fprintf(stderr, "fake_nccl.c: %s\n", what);
    _Exit(4);
}

static void enter(ncclComm_t comm)
{
    if (atomic_fetch_add(&comm->users, 1) != 0)
        wrong("two threads call NCCL at once");
    if (atomic_load(&comm->aborted))
        wrong("a communicator is used after it was aborted");
}

static void leave(ncclComm_t comm)
{
    atomic_fetch_sub(&comm->users, 1);
}

/* ---- communicators ---- */

_Atomic int fake_nccl_abort_ms[2], fake_nccl_aborts;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static _Atomic int count;
    int number = atomic_fetch_add(&count, 1) + 1;
    memset(id, 0, sizeof *id);
    memcpy(id, &number, sizeof number);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "fake error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    if (config->blocking != 0 || size > MOST)
        wrong("a blocking communicator, or one of too many ranks");
    ncclComm_t comm = calloc(1, sizeof *comm);
    pthread_mutex_lock(&groups.lock);
    struct group *group = groups.first;
    while (group && memcmp(&group->id, &id, sizeof id) != 0)
        group = group->next;
    if (!group && (group = calloc(1, sizeof *group))) {
        group->id = id;
        group->size = size;
        group->next = groups.first;
        groups.first = group;
    }
    pthread_mutex_unlock(&groups.lock);
    if (!comm || !group)
        wrong("no memory");
    comm->group = group;
    comm->rank = rank;
    atomic_fetch_add(&group->present, 1);
    *out = comm;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    enter(comm);
    bool waits = comm->leaving ? atomic_load(&comm->group->left) < comm->group->size
                               : atomic_load(&comm->group->present) < comm->group->size;
    *result = waits || comm->busy > 0 ? ncclInProgress : ncclSuccess;
    comm->busy -= comm->busy > 0;
    leave(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    enter(comm);
    comm->leaving = true;
    atomic_fetch_add(&comm->group->left, 1);
    leave(comm);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    enter(comm);
    if (!comm->leaving)
        wrong("a communicator is destroyed before its end");
    leave(comm);
    free(comm);
    return ncclSuccess;
}

/* What runs on the streams may still look at it: it stays. A real kernel that is aborted in a sum
 * passes on what it has not received, so that those of other ranks end before their own abort. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    enter(comm);
    atomic_store(&comm->aborted, 1);
    atomic_store(&comm->group->broken, true);
    usleep(20000 + 1000 * (useconds_t)(comm->rank < 2 ? fake_nccl_abort_ms[comm->rank] : 0));
    leave(comm);
    atomic_fetch_add(&fake_nccl_aborts, 1);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void); /* nccl.h declares them without their arguments */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}

/* ---- collectives ---- */

static int64_t sum_of_halves(int64_t a, int64_t b)
{
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    return (int64_t)(((x >> 32) + (y >> 32)) << 32 | (uint32_t)(x + y));
}

enum kind { GATHER, REDUCE, BROADCAST, EXCHANGE };

struct collective {
    ncclComm_t comm;
    enum kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclRedOp_t op;
    int root;
    bool halves; /* the words are pairs of int32 */
};

/* False when this communicator is aborted, or another rank's: for good, as those who have come to this
 * collective do not count for the next. */
static bool meet(ncclComm_t comm)
{
    struct group *group = comm->group;
    unsigned round = atomic_load(&group->round);
    if (atomic_load(&group->broken))
        return false;
    if (atomic_fetch_add(&group->arrived, 1) + 1 == group->size) {
        atomic_store(&group->arrived, 0);
        atomic_fetch_add(&group->round, 1);
    }
    while (atomic_load(&group->round) == round) {
        if (atomic_load(&group->broken))
            return false;
        usleep(20);
    }
    return true;
}

static void reduce(const struct collective *c, int64_t *out)
{
    struct group *group = c->comm->group;
    memcpy(out, (const int64_t *)group->data[0], c->count * sizeof *out);
    for (int r = 1; r < group->size; r++) {
        const int64_t *theirs = group->data[r];
        for (size_t i = 0; i < c->count; i++) {
            int64_t sum = c->halves ? sum_of_halves(out[i], theirs[i]) : out[i] + theirs[i];
            bool less = theirs[i] < out[i];
            out[i] = c->op == ncclSum ? sum : less == (c->op == ncclMin) ? theirs[i] : out[i];
        }
    }
}

/* The first of `theirs` for this rank that was not taken yet. */
static const struct message *sent_to(const struct messages *theirs, int rank, int *from)
{
    for (; *from < theirs->count; (*from)++)
        if (!theirs->message[*from].receives && theirs->message[*from].peer == rank)
            return &theirs->message[(*from)++];
    wrong("more is received than sent");
}

static void exchange(const ncclComm_t comm, const struct messages *mine)
{
    int from[MOST] = {0};
    for (int i = 0; i < mine->count; i++) {
        const struct message *m = &mine->message[i];
        if (!m->receives)
            continue;
        const struct message *sent =
            sent_to(comm->group->data[m->peer], comm->rank, &from[m->peer]);
        if (sent->bytes != m->bytes)
            wrong("a message is received with another size");
        memcpy(m->data, sent->data, m->bytes);
    }
}

/* After an abort another rank may still look at them. */
static void forget(struct messages *list, bool keep)
{
    static _Atomic(struct messages *) kept;
    if (!keep) {
        free(list);
        return;
    }
    list->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &list->next, list))
        ;
}

/* What has not come is no error: the host is to notice. */
static tsr_status run_exchange(void *args, tsr_pool *pool)
{
    (void)pool;
    const struct collective *c = args;
    c->comm->group->data[c->comm->rank] = c->send;
    bool met = meet(c->comm);
    if (met)
        exchange(c->comm, c->send);
    met = met && meet(c->comm);
    forget(c->receive, !met);
    return TSR_OK;
}

/* Results are written when all have read. */
static tsr_status run(void *args, tsr_pool *pool)
{
    (void)pool;
    const struct collective *c = args;
    struct group *group = c->comm->group;
    size_t width = c->kind == GATHER || c->kind == BROADCAST ? 1 : sizeof(int64_t);
    void *result = malloc(c->count * width + 1);
    group->data[c->comm->rank] = c->send;
    if (!result || !meet(c->comm))
        goto out;
    for (int r = 0; c->kind == GATHER && r < group->size; r++) {
        char *to = (char *)c->receive + (size_t)r * c->count;
        if (to != group->data[r])
            memcpy(to, group->data[r], c->count);
    }
    if (c->kind == BROADCAST)
        memcpy(result, group->data[c->root], c->count);
    else if (c->kind != GATHER)
        reduce(c, result);
    if (!meet(c->comm))
        goto out;
    if (c->kind != GATHER)
        memcpy(c->receive, result, c->count * width);
    meet(c->comm);
out:
    free(result);
    return TSR_OK;
}

static ncclResult_t enqueue(struct collective c, cudaStream_t stream)
{
    if (depth == 0)
        wrong("a collective outside of a group");
    enter(c.comm);
    grouped = c.comm;
    tsr_status status = tsr_stream_call((tsr_stream *)stream,
                                        c.kind == EXCHANGE ? run_exchange : run, &c, sizeof c);
    leave(c.comm);
    return status == TSR_OK ? ncclInProgress : ncclUnhandledCudaError;
}

static ncclResult_t add_message(struct message message, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream)
{
    if (depth == 0 || type != ncclInt8 || message.peer == comm->rank)
        wrong("a message outside of a group, of no bytes, or to itself");
    if (!messages && !(messages = calloc(1, sizeof *messages)))
        wrong("no memory");
    if (messages->count == MESSAGES)
        wrong("too many messages");
    messages->message[messages->count++] = message;
    messages_on = stream;
    grouped = comm;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return add_message((struct message){false, peer, (void *)data, count}, type, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add_message((struct message){true, peer, data, count}, type, comm, stream);
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclInProgress;
    if (messages)
        result = enqueue((struct collective){grouped, EXCHANGE, messages, messages}, messages_on);
    messages = NULL;
    if (--depth != 0)
        wrong("a group in a group");
    if (grouped)
        grouped->busy = 2;
    grouped = NULL;
    return result;
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt8)
        wrong("a gather of no bytes");
    return enqueue((struct collective){comm, GATHER, send, receive, count}, stream);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    bool halves = type == ncclInt32 && op == ncclSum && count % 2 == 0;
    if (type != ncclInt64 && !halves)
        wrong("a sum of no words");
    return enqueue((struct collective){comm, REDUCE, send, receive, halves ? count / 2 : count, op,
                                       .halves = halves},
                   stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclInt8)
        wrong("a broadcast of no bytes");
    return enqueue((struct collective){comm, BROADCAST, send, receive, count, ncclSum, root},
                   stream);
}

/* ---- in the place of the library ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

tsr_status __wrap_tsr_nccl_load(tsr_library_version *found);

static void fill_in(void)
{
#define PUT(name) tsr_nccl_lib.name = nccl##name;
    TSR_NCCL_FUNCTIONS(PUT)
}

tsr_status __wrap_tsr_nccl_load(tsr_library_version *found)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_in);
    if (found)
        *found = (tsr_library_version){NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};
    return TSR_OK;
}
