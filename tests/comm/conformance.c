/* The suite, and what a case runs with. */
#include "comm/conformance_parts.h"

/* ---- device memory ---- */

void *tsr_case_new(tsr_case_rank *me, uint64_t bytes)
{
    void *memory;
    CHECK(me->arena_count < TSR_CASE_BUFFERS);
    tsr_arena **arena = &me->arena[me->arena_count];
    OK(tsr_arena_create(arena, me->device, TSR_MEMORY_DEVICE, bytes + TSR_ALIGNMENT));
    me->arena_count++;
    OK(tsr_arena_take(&memory, *arena, "case", bytes ? bytes : 1));
    return memory;
}

void tsr_case_free(tsr_case_rank *me)
{
    while (me->arena_count > 0)
        tsr_arena_destroy(me->arena[--me->arena_count]);
}

void tsr_case_put(tsr_case_rank *me, void *device, const void *host, uint64_t bytes)
{
    if (bytes)
        OK(tsr_device_write(me->device, device, host, bytes));
}

void tsr_case_get(tsr_case_rank *me, void *host, const void *device, uint64_t bytes)
{
    if (bytes)
        OK(tsr_device_read(me->device, host, device, bytes));
}

int64_t *tsr_case_word(tsr_case_rank *me, int64_t value)
{
    int64_t *word = tsr_case_new(me, sizeof value);
    tsr_case_put(me, word, &value, sizeof value);
    return word;
}

void tsr_case_wait(tsr_case_rank *me)
{
    OK(tsr_stream_synchronize(me->stream));
}

/* ---- the suite ---- */

const tsr_case tsr_conformance[] = {
    {"place", tsr_case_place, 1},
    {"all_gather", tsr_case_all_gather, 1},
    {"pull", tsr_case_pull, 1, .exposes = true},
    {"exchange", tsr_case_exchange, 1},
    {"deal", tsr_case_deal, 1},
    {"exposed_changes", tsr_case_exposed_changes, 1, .exposes = true},
    {"all_reduce", tsr_case_all_reduce, 1},
    {"broadcast", tsr_case_broadcast, 1},
    {"group", tsr_case_group, 1},
    {"barrier", tsr_case_barrier, 1},
    {"pipeline", tsr_case_pipeline, 1},
    {"share", tsr_case_share, 1, .host_only = true},
    {"split", tsr_case_split, 1},
    {"refuse_to_block", tsr_case_refuse_to_block, 1},
    {"agree_ok", tsr_case_agree_ok, 1},
    {"agree_failures", tsr_case_agree_failures, 1},
    {"check_same", tsr_case_check_same, 1},
    {"abort_while_waiting", tsr_case_abort_while_waiting, 1, .dies = true},
    {"abort_while_exchanging", tsr_case_abort_while_exchanging, 2, .dies = true},
    {"abort_while_copying", tsr_case_abort_while_copying, 2, .dies = true},
    {"abort_while_grouped", tsr_case_abort_while_grouped, 2, .dies = true},
    {"device_fails", tsr_case_device_fails, 1, .dies = true},
    {"poison_while_waiting", tsr_case_poison_while_waiting, 2, .dies = true},
    {"laggard", tsr_case_laggard, 2, .timeout_seconds = 2, .dies = true},
    {"exchange_laggard", tsr_case_exchange_laggard, 2, .timeout_seconds = 2, .dies = true},
    {"copy_laggard", tsr_case_copy_laggard, 2, .timeout_seconds = 2, .dies = true},
    {"out_of_step", tsr_case_out_of_step, 2, .dies = true, .host_only = true},
    {"fails_beside_a_collective", tsr_case_fails_beside_a_collective, 2, .dies = true,
     .host_only = true},
};
const int tsr_conformance_count = sizeof tsr_conformance / sizeof *tsr_conformance;

static const tsr_device_options host_options = {
    .thread_count = 1, .no_pinning = true, .timeout_seconds = 90};

static void open_host(tsr_case_rank *me, tsr_comm *host)
{
    *me = (tsr_case_rank){.rank = tsr_comm_rank(host), .size = tsr_comm_size(host)};
    me->host = me->comm = host;
    OK(tsr_device_create_cpu(&me->host_device, &host_options));
    OK(tsr_stream_create(&me->host_stream, me->host_device, "host"));
    me->device = me->host_device;
    me->stream = me->host_stream;
}

#ifdef TSR_FAKE_CUDA
#include "comm/nccl_parts.h"

static tsr_status create_nccl(tsr_case_rank *me)
{
    return tsr_comm_create_nccl_with(&me->comm, me->host, me->host_stream, me->device,
                                     &(tsr_nccl_options){.meets_in_process = true});
}
#else
static tsr_status create_nccl(tsr_case_rank *me)
{
    return tsr_comm_create_nccl(&me->comm, me->host, me->host_stream, me->device);
}
#endif

void tsr_case_open_nccl(tsr_case_rank *me, tsr_comm *host)
{
    tsr_device_options options = host_options;
    options.local_rank = tsr_comm_local_rank(host);
    options.local_rank_count = tsr_comm_local_size(host);
    open_host(me, host);
    OK(tsr_device_create_cuda(&me->device, &options));
    OK(tsr_stream_create(&me->stream, me->device, "comm"));
    OK(create_nccl(me));
}

/* The order is a job's: first what is made of the device and of the host communicator. */
void tsr_case_close(tsr_case_rank *me)
{
    bool host = me->device == me->host_device;
    if (me->comm != me->host)
        tsr_comm_destroy(me->comm);
    tsr_case_free(me);
    if (!host) {
        tsr_stream_destroy(me->stream);
        tsr_device_destroy(me->device);
    }
    tsr_stream_destroy(me->host_stream);
    tsr_device_destroy(me->host_device);
    tsr_comm_destroy(me->host);
}

void tsr_conformance_run(const tsr_case *c, tsr_comm *comm)
{
    tsr_case_rank me;
    open_host(&me, comm);
    c->run(&me);
    tsr_case_close(&me);
}

void tsr_conformance_run_nccl(const tsr_case *c, tsr_comm *host)
{
    tsr_case_rank me;
    tsr_case_open_nccl(&me, host);
    c->run(&me);
    tsr_case_close(&me);
}
