/*
 * One rank has no memory for something that the communicator of GPUs is made of, whatever it is: all
 * ranks are told, by the rank's name, before any deadline, and nothing is left behind. One fails or
 * stays away while memory is exposed: all are told just that. A second job on the same cards is refused. One gives up while another has no room left to
 * enqueue a collective: that ends. CUDA and NCCL are made up.
 */
#include "base/clock.h"
#include "comm/conformance.h"
#include "comm/nccl_parts.h"
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS   2
#define SECONDS 30 /* the deadline, which nothing comes near */

typedef struct {
    tsr_comm *host;
    int fail_at;     /* of this rank */
    int allocations; /* what it came to */
    tsr_status status;
    char message[1024];
} rank_run;

/* What a rank has beside its host communicator. */
typedef struct {
    tsr_device *host_device, *device;
    tsr_stream *host_stream;
    tsr_comm *comm;
} rank_parts;

static void open_rank(rank_parts *p, const rank_run *run, tsr_case_rank *me)
{
    tsr_device_options options = {.thread_count = 1,
                                  .no_pinning = true,
                                  .timeout_seconds = SECONDS,
                                  .local_rank = tsr_comm_local_rank(run->host),
                                  .local_rank_count = tsr_comm_local_size(run->host)};
    *p = (rank_parts){0};
    OK(tsr_device_create_cpu(&p->host_device, &options));
    OK(tsr_stream_create(&p->host_stream, p->host_device, "host"));
    OK(tsr_device_create_cuda(&p->device, &options));
    fake_cuda = (struct fake_cuda){.fail_at = run->fail_at};
}

static void close_rank(rank_parts *p, const rank_run *run)
{
    tsr_comm_destroy(p->comm);
    tsr_device_destroy(p->device);
    tsr_stream_destroy(p->host_stream);
    tsr_device_destroy(p->host_device);
    tsr_comm_destroy(run->host);
}

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    rank_parts p;
    open_rank(&p, run, me);
    run->status = tsr_comm_create_nccl(&p.comm, run->host, p.host_stream, p.device);
    run->allocations = fake_cuda.allocations;
    snprintf(run->message, sizeof run->message, "%s", tsr_last_error());
    close_rank(&p, run);
    return NULL;
}

static void run_ranks(rank_run *run, void *(*function)(void *), int rank, int fail_at,
                      double seconds)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    tsr_comm *host[RANKS];
    pthread_t thread[RANKS];
    double start = tsr_now();
    OK(tsr_comm_create_threads(host, RANKS, seconds));
    for (int i = 0; i < RANKS; i++) {
        run[i] = (rank_run){.host = host[i], .fail_at = i == rank ? fail_at : 0};
        CHECK(pthread_create(&thread[i], NULL, function, &run[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    CHECK(tsr_now() - start < SECONDS / 2.0);
}

static void create(rank_run *run, int rank, int fail_at)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    run_ranks(run, run_rank, rank, fail_at, SECONDS);
    CHECK(fake_cuda_live == 0);
}

/* ---- exposing memory, which rank 1 does not ---- */

#define FEW_SECONDS 2 /* the deadline that it misses */

static const char cause[] = "shard 3 cannot be read";
/* Stays away for too long; fails before it comes; fails in it. */
static enum { STAYS_AWAY, ABORTS, HAS_NO_DEVICE } rank_1;

static tsr_status expose(tsr_comm *comm, tsr_comm *host, tsr_stream *host_stream)
{
    static char memory[RANKS][4096];
    int rank = tsr_comm_rank(host);
    fake_cuda.no_device = rank == 1 && rank_1 == HAS_NO_DEVICE;
    if (rank == 0 || fake_cuda.no_device)
        return tsr_comm_expose(comm, host_stream, memory[rank], sizeof memory[rank]);
    if (rank_1 == STAYS_AWAY) {
        usleep((FEW_SECONDS + 1) * 1000000);
        return TSR_OK;
    }
    tsr_comm_abort(host, TSR_EIO, cause);
    return tsr_fail(TSR_EIO, "%s", cause);
}

static void *run_exposing_rank(void *argument)
{
    rank_run *run = argument;
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    rank_parts p;
    open_rank(&p, run, me);
    OK(tsr_comm_create_nccl(&p.comm, run->host, p.host_stream, p.device));
    run->status = expose(p.comm, run->host, p.host_stream);
    CHECK(run->status == TSR_OK || tsr_board_is_dead(run->host->gate.board));
    run->status = tsr_comm_agree(run->host, p.host_stream, run->status, NULL);
    snprintf(run->message, sizeof run->message, "%s", tsr_last_error());
    close_rank(&p, run);
    return NULL;
}

static void fail_to_expose(int how, tsr_status status, const char *expected)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    rank_1 = how;
    run_ranks(run, run_exposing_rank, -1, 0, FEW_SECONDS);
    for (int i = 0; i < RANKS; i++) {
        CHECK(run[i].status == status);
        if (!strstr(run[i].message, "rank 1") || !strstr(run[i].message, expected))
            fprintf(stderr, "rank %d says: %s\n", i, run[i].message);
        CHECK(strstr(run[i].message, "rank 1"));
        CHECK(strstr(run[i].message, expected));
    }
}

/* ---- a second job on the same cards ---- */

static pthread_barrier_t together;

static void *run_first_rank(void *argument)
{
    rank_run *run = argument, second[RANKS];
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    rank_parts p;
    open_rank(&p, run, me);
    OK(tsr_comm_create_nccl(&p.comm, run->host, p.host_stream, p.device));
    pthread_barrier_wait(&together);
    if (me->rank == 0)
        run_ranks(second, run_rank, -1, 0, SECONDS);
    for (int i = 0; i < RANKS && me->rank == 0; i++)
        CHECK(second[i].status == TSR_EINVAL && strstr(second[i].message, "another job"));
    pthread_barrier_wait(&together);
    run->status = tsr_comm_agree(run->host, p.host_stream, TSR_OK, NULL);
    close_rank(&p, run);
    return NULL;
}

static void refuse_a_second_job(void)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    pthread_barrier_init(&together, NULL, RANKS);
    run_ranks(run, run_first_rank, -1, 0, SECONDS);
    pthread_barrier_destroy(&together);
    CHECK(run[0].status == TSR_OK && run[1].status == TSR_OK);
    CHECK(fake_cuda_live == 0);
}

/* ---- a stream without room, behind a meeting with a rank that gives up ---- */

static void *run_full_rank(void *argument)
{
    rank_run *run = argument;
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    static char memory[RANKS][4096];
    rank_parts p;
    tsr_stream *stream;
    open_rank(&p, run, me);
    OK(tsr_stream_create(&stream, p.device, "comm"));
    OK(tsr_comm_create_nccl_with(&p.comm, run->host, p.host_stream, p.device,
                                 &(tsr_nccl_options){.meets_in_process = true}));
    OK(tsr_comm_expose(p.comm, p.host_stream, memory[me->rank], sizeof memory[me->rank]));
    OK(tsr_comm_agree(run->host, p.host_stream, TSR_OK, NULL));
    if (me->rank == 1) {
        usleep(300000);
        tsr_comm_abort(run->host, TSR_EIO, cause);
    } else {
        char *mine = memory[me->rank];
        fake_cuda.full = true;
        tsr_comm_all_gather(p.comm, stream, &(tsr_gather_range){mine, mine + 1024, 64}, 1);
        fake_cuda.full = false;
    }
    run->status = tsr_comm_agree(run->host, p.host_stream, TSR_OK, NULL);
    tsr_stream_destroy(stream);
    close_rank(&p, run);
    return NULL;
}

static void give_up_on_a_full_stream(void)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    run_ranks(run, run_full_rank, -1, 0, SECONDS);
    CHECK(run[0].status == TSR_EIO && run[1].status == TSR_EIO);
    CHECK(fake_cuda_live == 0);
}

/* ---- an abort that takes longer than the end waits for it ---- */

static void *run_slow_rank(void *argument)
{
    rank_run *run = argument;
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    static char memory[RANKS][4096];
    rank_parts p;
    open_rank(&p, run, me);
    OK(tsr_comm_create_nccl_with(
        &p.comm, run->host, p.host_stream, p.device,
        &(tsr_nccl_options){.meets_in_process = true, .abort_seconds = 0.2}));
    OK(tsr_comm_expose(p.comm, p.host_stream, memory[me->rank], sizeof memory[me->rank]));
    CHECK(((tsr_nccl *)p.comm->backend)->meets);
    OK(tsr_comm_agree(run->host, p.host_stream, TSR_OK, NULL));
    if (me->rank == 1)
        tsr_comm_abort(run->host, TSR_EIO, cause);
    run->status = tsr_comm_agree(run->host, p.host_stream, TSR_OK, NULL);
    close_rank(&p, run);
    return NULL;
}

/* A new job's watchdog is its own, and the program ends well, whatever is still under way. */
static void abort_slowly(void)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    int before = fake_nccl_aborts, live = fake_cuda_live;
    fake_nccl_abort_ms[0] = 1500;
    run_ranks(run, run_slow_rank, -1, 0, SECONDS);
    CHECK(run[0].status == TSR_EIO && run[1].status == TSR_EIO);
    CHECK(fake_nccl_aborts == before + 1); /* all that the ranks had is gone, but NCCL's */
    fake_nccl_abort_ms[0] = 0;
    run_ranks(run, run_rank, -1, 0, SECONDS);
    CHECK(run[0].status == TSR_OK && run[1].status == TSR_OK);
    while (fake_nccl_aborts < before + 2)
        usleep(1000);
    usleep(100000); /* what the watchdog does after it */
    CHECK(fake_cuda_live > live);
    fake_cuda_live = live;
}

int main(void)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    fail_to_expose(ABORTS, TSR_EIO, cause);
    fail_to_expose(STAYS_AWAY, TSR_ETIMEOUT, "exposure");
    fail_to_expose(HAS_NO_DEVICE, TSR_EDEVICE, "cudaSetDevice");
    refuse_a_second_job();
    give_up_on_a_full_stream();
    abort_slowly();
    create(run, 0, 0);
    CHECK(run[0].status == TSR_OK && run[1].status == TSR_OK);
    /* Each of the first, of the communicator; some of the many that its watchdog has. */
    for (int rank = 0, all = run[0].allocations; rank < RANKS; rank++)
        for (int n = 1; n <= all; n = n < 8 ? n + 1 : n < all ? (n + all + 1) / 2 : n + 1) {
            char who[32];
            create(run, rank, n);
            snprintf(who, sizeof who, "rank %d", rank);
            for (int i = 0; i < RANKS; i++) {
                CHECK(run[i].status < 0 && tsr_status_exit_code(run[i].status) == 71);
                if (!strstr(run[i].message, who) || !strstr(run[i].message, "CUDA: "))
                    fprintf(stderr, "allocation %d of rank %d: rank %d says: %s\n", n, rank, i,
                            run[i].message);
                CHECK(strstr(run[i].message, who) && strstr(run[i].message, "CUDA: "));
            }
        }
    printf("%s\n", run[0].message);
    return 0;
}
