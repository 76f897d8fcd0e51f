/*
 * The suite on the communicators of CUDA devices: test_comm_nccl -t|-p|-m|-1|-b [-n RANKS] CASE
 *
 * -t  the ranks are threads of this program
 * -p  the ranks are processes that it starts; also ranks that die
 * -m  the ranks are those of mpirun
 * -1  ranks that share one GPU, threads and processes: exposing and pulling alone
 * -b  no test: prints what gathers, pulls and sums take; ranks as with -p
 *
 * CASE "live" is all cases after which the communicator lives, "all" (not with -m) is all cases. As
 * in test_mpi.c, a case that kills it ends with exit code 71. 77: not enough GPUs.
 */
#include "base/clock.h"
#include "comm/conformance_parts.h"
#include "comm/nccl_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST         8
#define SKIP         77
#define DEAD         71
#define SHARED_BYTES (1u << 20) /* of one rank, in a gather */

/* CUDA must not be started in a process that is going to fork. */
static int count_gpus(void)
{
    int count = 0, state = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(tsr_device_cuda_count(&count) == TSR_OK && count < SKIP ? count : 0);
    if (child < 0 || waitpid(child, &state, 0) != child || !WIFEXITED(state))
        return 0;
    return WEXITSTATUS(state);
}

static double timeout_of(const tsr_case *test)
{
    /* Creating takes seconds too. */
    return test->timeout_seconds ? 6 + test->timeout_seconds : 60;
}

static bool is_chosen(const tsr_case *test, const char *name, int ranks)
{
    if (test->host_only || ranks < test->ranks)
        return false;
    return !strcmp(name, test->name) || !strcmp(name, "all") ||
           (!test->dies && !test->exposes && !strcmp(name, "live"));
}

/* ---- ranks that are threads ---- */

struct thread_arg {
    void (*run)(const void *what, tsr_comm *comm);
    const void *what;
    tsr_comm *comm;
};

static void *run_thread(void *argument)
{
    struct thread_arg *arg = argument;
    arg->run(arg->what, arg->comm);
    return NULL;
}

static void run_threads(void (*run)(const void *what, tsr_comm *comm), const void *what, int ranks,
                        double timeout)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    tsr_comm *comms[MOST];
    struct thread_arg args[MOST];
    pthread_t threads[MOST];
    OK(tsr_comm_create_threads(comms, ranks, timeout));
    for (int i = 0; i < ranks; i++) {
        args[i] = (struct thread_arg){run, what, comms[i]};
        CHECK(pthread_create(&threads[i], NULL, run_thread, &args[i]) == 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
}

/* ---- ranks that are processes ---- */

/* An embedder's all-gather, in memory that the processes share. It gives up after a minute. */
struct table {
    _Atomic int arrived;
    _Atomic unsigned round;
    int size;
    char data[MOST][SHARED_BYTES];
};

struct seat {
    struct table *table;
    int rank;
};

static bool arrive(struct table *table)
{
    unsigned round = atomic_load(&table->round);
    double end = tsr_now() + 60;
    if (atomic_fetch_add(&table->arrived, 1) + 1 == table->size) {
        atomic_store(&table->arrived, 0);
        atomic_fetch_add(&table->round, 1);
    }
    while (atomic_load(&table->round) == round) {
        if (tsr_now() > end)
            return false;
        usleep(100);
    }
    return true;
}

static int gather_by_table(void *user, const void *send, void *receive, uint64_t bytes)
{
    struct seat *seat = user;
    struct table *table = seat->table;
    if (bytes > SHARED_BYTES)
        return 2;
    memcpy(table->data[seat->rank], send, bytes);
    if (!arrive(table))
        return 1;
    for (int i = 0; i < table->size; i++)
        memcpy((char *)receive + (uint64_t)i * bytes, table->data[i], bytes);
    return arrive(table) ? 0 : 1;
}

typedef void run_rank(const void *what, tsr_comm *comm);

static struct table *new_tables(int count, int ranks)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    struct table *tables = mmap(NULL, (size_t)count * sizeof *tables, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(tables != MAP_FAILED);
    for (int i = 0; i < count; i++)
        tables[i].size = ranks;
    return tables;
}

/* Starts the ranks, each with a host communicator; codes[i] becomes the exit code of rank i, minus
 * the signal that ended it. */
static void run_processes(int *codes, run_rank *run, const void *what, int ranks, double timeout)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    struct table *table = new_tables(1, ranks);
    pid_t children[MOST];
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            struct seat seat = {table, i};
            tsr_bootstrap bootstrap = {i, ranks, gather_by_table, &seat};
            tsr_comm *comm;
            none.rank = i;
            OK(tsr_comm_create_callback(&comm, &bootstrap, timeout));
            run(what, comm);
            exit(0);
        }
    }
    for (int i = 0; i < ranks; i++) {
        int state = 0;
        CHECK(waitpid(children[i], &state, 0) == children[i]);
        codes[i] = WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
    }
    munmap(table, sizeof *table);
}

/* ---- the suite ---- */

static void run_case(const void *what, tsr_comm *host)
{
    tsr_conformance_run_nccl(what, host);
}

static void run_live(const void *what, tsr_comm *host)
{
    (void)what;
    tsr_case_rank rank, *me = &rank;
    tsr_case_open_nccl(me, host);
    for (int i = 0; i < tsr_conformance_count; i++)
        if (is_chosen(&tsr_conformance[i], "live", me->size)) {
            tsr_conformance[i].run(me);
            OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL));
        }
    tsr_case_close(me);
}

static void check_threads(void (*run)(const void *what, tsr_comm *comm), const void *what,
                          const char *name, int ranks, double timeout)
{
    double start = tsr_now();
    run_threads(run, what, ranks, timeout);
    printf("threads, %d ranks: %s, %.1f s\n", ranks, name, tsr_now() - start);
    fflush(stdout);
}

/* One communicator for all cases that it outlives, a new one for each other. */
static bool is_alone(const tsr_case *test, const char *name, int ranks)
{
    return is_chosen(test, name, ranks) &&
           (test->dies || test->exposes || !strcmp(name, test->name));
}

/* CUDA may put the streams of one process behind each other: they do not wait for each other's words,
 * and what changes goes through NCCL. */
static void run_no_meeting(const void *what, tsr_comm *host)
{
    enum { WORDS = 64 };
    (void)what;
    tsr_case_rank rank, *me = &rank;
    tsr_comm *comm;
    tsr_case_open_nccl(me, host);
    OK(tsr_comm_create_nccl(&comm, host, me->host_stream, me->device));
    int64_t *sent = tsr_case_new(me, WORDS * sizeof *sent * (uint64_t)me->size);
    int64_t *received = tsr_case_new(me, WORDS * sizeof *received * (uint64_t)me->size);
    tsr_exchange_range range = {sent, received, WORDS * sizeof *sent};
    OK(tsr_comm_expose(comm, me->host_stream, sent, WORDS * sizeof *sent * (uint64_t)me->size));
    CHECK(!((const tsr_nccl *)comm->backend)->meets);
    OK(tsr_comm_exchange(comm, me->stream, &range, 1));
    tsr_case_wait(me);
    tsr_comm_destroy(comm);
    tsr_case_close(me);
}

static int suite_of_threads(const char *name, int ranks)
{
    if (!strcmp(name, "all") || !strcmp(name, "live"))
        check_threads(run_live, NULL, "live", ranks, 60);
    if (!strcmp(name, "all") || !strcmp(name, "no_meeting"))
        check_threads(run_no_meeting, NULL, "no meeting", ranks, 60);
    for (int i = 0; i < tsr_conformance_count; i++) {
        const tsr_case *test = &tsr_conformance[i];
        if (is_alone(test, name, ranks))
            check_threads(run_case, test, test->name, ranks, timeout_of(test));
    }
    return 0;
}

/* ---- ranks that die ---- */

enum ending { KILLED, LEAVES };

/* The last rank goes in the middle of sums; the others end with a message that names it. */
static void run_dying(const void *what, tsr_comm *host)
{
    const enum ending *ending = what;
    tsr_case_rank rank, *me = &rank;
    tsr_case_open_nccl(me, host);
    uint64_t count = 4u << 20;
    int last = me->size - 1, sums = me->rank == last ? 100 : 200;
    int64_t *data = tsr_case_new(me, count * sizeof *data);
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL));
    tsr_comm_publish(me->comm, 5, "REDUCE", 2);
    for (int i = 0; i < sums; i++) {
        tsr_status status = tsr_comm_all_reduce(me->comm, me->stream, data, count, TSR_SUM);
        CHECK(status == TSR_OK || (me->rank != last && status == TSR_ECOMM));
        if (me->rank == last && i == sums / 2) {
            usleep(3000);
            if (*ending == LEAVES)
                _exit(9);
            kill(getpid(), SIGKILL);
        }
    }
    double start = tsr_now();
    CHECK(tsr_stream_synchronize(me->stream) == TSR_ECOMM);
    char expected[96];
    snprintf(expected, sizeof expected, "rank %d (last seen at step 5, REDUCE, unit 2", last);
    CHECK(strstr(tsr_last_error(), expected));
    CHECK(tsr_comm_agree(me->host, NULL, TSR_ECOMM, NULL) == TSR_ECOMM);
    fprintf(stderr, "rank %d: %s\n", me->rank, tsr_last_error());
    tsr_case_close(me);
    CHECK(tsr_now() - start < 30);
    exit(DEAD);
}

static int check_dying(enum ending ending, int ranks)
{
    int codes[MOST], failed = 0, gone = ending == KILLED ? -SIGKILL : 9;
    double start = tsr_now();
    run_processes(codes, run_dying, &ending, ranks, 60);
    for (int i = 0; i < ranks; i++) {
        int expected = i == ranks - 1 ? gone : DEAD;
        if (codes[i] != expected)
            fprintf(stderr, "rank %d of %d ended with %d, expected %d\n", i, ranks, codes[i],
                    expected);
        failed |= codes[i] != expected;
    }
    if (tsr_now() - start > 50) {
        fprintf(stderr, "the others took %.0f s to notice\n", tsr_now() - start);
        failed = 1;
    }
    printf("processes, %d ranks: a rank %s, %.1f s\n", ranks,
           ending == KILLED ? "is killed" : "leaves", tsr_now() - start);
    fflush(stdout);
    return failed;
}

static int check_processes(run_rank *run, const void *what, const char *name, int ranks,
                           double timeout)
{
    int codes[MOST], failed = 0;
    double start = tsr_now();
    run_processes(codes, run, what, ranks, timeout);
    for (int i = 0; i < ranks; i++) {
        if (codes[i] != 0)
            fprintf(stderr, "%s: rank %d of %d ended with %d\n", name, i, ranks, codes[i]);
        failed |= codes[i] != 0;
    }
    printf("processes, %d ranks: %s, %.1f s\n", ranks, name, tsr_now() - start);
    fflush(stdout);
    return failed;
}

struct turns {
    const char *name; /* of what is run */
    struct table
        *tables; /* [tsr_conformance_count]: what a dead communicator leaves is no other's */
};

/* One case after the other in the same processes, each on communicators of its own: a process goes on
 * when they have died, and CUDA starts once. */
static void run_in_turn(const void *what, tsr_comm *first)
{
    const struct turns *turns = what;
    tsr_case_rank rank = {.rank = tsr_comm_rank(first), .size = tsr_comm_size(first)}, *me = &rank;
    for (int i = 0; i < tsr_conformance_count; i++) {
        const tsr_case *test = &tsr_conformance[i];
        struct seat seat = {&turns->tables[i], me->rank};
        tsr_bootstrap bootstrap = {me->rank, me->size, gather_by_table, &seat};
        double start = tsr_now();
        tsr_comm *host;
        if (!is_alone(test, turns->name, me->size))
            continue;
        OK(tsr_comm_create_callback(&host, &bootstrap, timeout_of(test)));
        run_case(test, host);
        if (me->rank == 0)
            printf("processes, %d ranks: %s, %.1f s\n", me->size, test->name, tsr_now() - start);
        fflush(stdout);
    }
    tsr_comm_destroy(first);
}

static int suite_of_processes(const char *name, int ranks)
{
    int failed = 0;
    bool all = !strcmp(name, "all");
    if (all || !strcmp(name, "live"))
        failed |= check_processes(run_live, NULL, "live", ranks, 60);
    struct turns turns = {name, new_tables(tsr_conformance_count, ranks)};
    failed |= check_processes(run_in_turn, &turns, "in turn", ranks, 60);
    munmap(turns.tables, (size_t)tsr_conformance_count * sizeof *turns.tables);
    if (ranks > 1 && (all || !strcmp(name, "killed")))
        failed |= check_dying(KILLED, ranks);
    if (ranks > 1 && (all || !strcmp(name, "leaves")))
        failed |= check_dying(LEAVES, ranks);
    return failed;
}

static int suite_of_mpi(const char *name)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    int ran = 0, code = 0, count = 0;
    bool live = !strcmp(name, "live");
    for (int i = 0; i < tsr_conformance_count; i++) {
        const tsr_case *test = &tsr_conformance[i];
        tsr_comm *host;
        if (live ? i > 0 : strcmp(name, test->name) != 0)
            continue;
        OK(tsr_comm_create_mpi(&host, live ? 60 : timeout_of(test)));
        if (tsr_device_cuda_count(&count) < 0 || count < tsr_comm_local_size(host)) {
            tsr_comm_destroy(host);
            return SKIP;
        }
        if (live)
            run_live(NULL, host);
        else
            run_case(test, host);
        ran++;
        code = !live && test->dies ? DEAD : 0;
    }
    return ran ? code : 64;
}

/* ---- one GPU for several ranks ---- */

static void open_shared(tsr_case_rank *me, tsr_comm *host)
{
    tsr_device_options options = {.thread_count = 1, .no_pinning = true, .timeout_seconds = 90};
    *me = (tsr_case_rank){.host = host, .rank = tsr_comm_rank(host), .size = tsr_comm_size(host)};
    OK(tsr_device_create_cpu(&me->host_device, &options));
    OK(tsr_stream_create(&me->host_stream, me->host_device, "host"));
    OK(tsr_device_create_cuda(&me->device, &options));
    OK(tsr_stream_create(&me->stream, me->device, "comm"));
    if (me->size > 1)
        CHECK(tsr_comm_create_nccl(&me->comm, host, me->host_stream, me->device) == TSR_ECONFIG &&
              strstr(tsr_last_error(), "same GPU"));
    OK(tsr_comm_create_nccl_with(&me->comm, host, me->host_stream, me->device,
                                 &(tsr_nccl_options){.without_nccl = true}));
}

static void pull_shared(const void *what, tsr_comm *host)
{
    enum { PARTS = 3, BYTES = 100003 };
    (void)what;
    tsr_case_rank rank, *me = &rank;
    open_shared(me, host);
    char *base = tsr_case_new(me, PARTS * BYTES), *mine = malloc(PARTS * BYTES);
    char *receive = tsr_case_new(me, PARTS * BYTES * (uint64_t)me->size);
    char *result = malloc(PARTS * BYTES * (size_t)me->size);
    tsr_gather_range ranges[PARTS];
    CHECK(mine && result);
    for (int i = 0; i < PARTS * BYTES; i++)
        mine[i] = (char)(i * 31 + me->rank * 7 + i / 1000);
    for (int i = 0; i < PARTS; i++)
        ranges[i] = (tsr_gather_range){base + i * BYTES, receive + i * BYTES * me->size, BYTES};
    tsr_case_put(me, base, mine, PARTS * BYTES);
    OK(tsr_comm_expose(me->comm, me->host_stream, base, PARTS * BYTES));
    CHECK(me->size == 1 || tsr_nccl_is_direct(me->comm, base));
    OK(tsr_comm_agree(host, me->host_stream, TSR_OK, NULL));
    for (int lanes = 1; lanes <= TSR_PULL_LANES && me->size > 1; lanes++) {
        OK(tsr_stream_fill(me->stream, receive, 0x5a, PARTS * BYTES * (uint64_t)me->size));
        OK(tsr_nccl_set_lanes(me->comm, lanes));
        OK(tsr_comm_pull(me->comm, me->stream, ranges, PARTS));
        OK(tsr_stream_synchronize(me->stream));
        tsr_case_get(me, result, receive, PARTS * BYTES * (uint64_t)me->size);
        for (int p = 0; p < PARTS; p++)
            for (int r = 0; r < me->size; r++)
                for (int k = 0, at = p * BYTES; k < BYTES; k++, at++)
                    CHECK(result[(p * me->size + r) * BYTES + k] ==
                          (char)(at * 31 + r * 7 + at / 1000));
    }
    free(mine);
    free(result);
    tsr_case_close(me);
}

/* Streams of several processes meet on one GPU too. (Those of one process there may stand behind each
 * other in a queue of the device.) */
static void meet_shared(const void *what, tsr_comm *host)
{
    tsr_case_rank rank, *me = &rank;
    (void)what;
    open_shared(me, host);
    tsr_case_exposed_changes(me);
    tsr_case_close(me);
}

static int suite_of_one_gpu(void)
{
    int failed = 0;
    for (int ranks = 1; ranks <= 4; ranks++)
        failed |= check_processes(pull_shared, NULL, "one GPU", ranks, 60);
    for (int ranks = 1; ranks <= 4; ranks++)
        failed |= check_processes(meet_shared, NULL, "one GPU, meetings", ranks, 60);
    for (int ranks = 1; ranks <= 4; ranks++)
        check_threads(pull_shared, NULL, "one GPU", ranks, 60);
    return failed;
}

/* ---- what it takes ---- */

enum { SEGMENTS = 14, REPEATS = 50 };

/* An 8B layer's frozen part: codes and absmax of its seven weights. */
static uint64_t lay_out(tsr_gather_range *ranges, char *base, char *receive, int size)
{
    static const uint64_t elements[7] = {4096 * 4096,  1024 * 4096,  1024 * 4096, 4096 * 4096,
                                         14336 * 4096, 14336 * 4096, 4096 * 14336};
    uint64_t sent = 0, received = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        uint64_t bytes = elements[i / 2] / (i % 2 ? 64 : 2) / (uint64_t)size;
        if (base)
            ranges[i] = (tsr_gather_range){base + sent, receive + received, bytes};
        sent += (bytes + 255) & ~(uint64_t)255;
        received += (bytes * (uint64_t)size + 255) & ~(uint64_t)255;
    }
    return base ? received : sent;
}

static void report(tsr_case_rank *me, const char *what, double enqueued, double total,
                   uint64_t bytes)
{
    if (me->rank == 0)
        printf("%d ranks: %-22s %8.1f us, %6.1f GB/s received, enqueuing %6.1f us\n", me->size,
               what, total / REPEATS * 1e6, (double)bytes * REPEATS / total * 1e-9,
               enqueued / REPEATS * 1e6);
}

static void time_one(tsr_case_rank *me, const char *what, const tsr_gather_range *ranges,
                     int64_t *words, uint64_t count)
{
    uint64_t others = (uint64_t)me->size - 1, bytes = 0;
    for (int i = 0; i < SEGMENTS; i++)
        bytes += ranges[i].bytes * others;
    if (what[0] == 's' || what[0] == 'e')
        bytes = count * 8 * (what[0] == 's' ? 1 : others);
    tsr_exchange_range pieces = {words, words + count * (uint64_t)me->size, count * 8};
    for (int warm = 1; warm >= 0; warm--) {
        OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL));
        double start = tsr_now();
        for (int i = 0; i < REPEATS; i++) {
            if (what[0] == 'g')
                OK(tsr_comm_all_gather(me->comm, me->stream, ranges, SEGMENTS));
            else if (what[0] == 'p')
                OK(tsr_comm_pull(me->comm, me->stream, ranges, SEGMENTS));
            else if (what[0] == 's')
                OK(tsr_comm_all_reduce(me->comm, me->stream, words, count, TSR_SUM));
            else
                OK(tsr_comm_exchange(me->comm, me->stream, &pieces, 1));
        }
        double enqueued = tsr_now() - start;
        OK(tsr_stream_synchronize(me->stream));
        if (!warm)
            report(me, what, enqueued, tsr_now() - start, bytes);
    }
}

static void time_all(const void *what, tsr_comm *host)
{
    (void)what;
    tsr_case_rank rank, *me = &rank;
    tsr_gather_range ranges[SEGMENTS];
    double start = tsr_now();
    tsr_case_open_nccl(me, host);
    if (me->rank == 0)
        printf("%d ranks: created in %.2f s\n", me->size, tsr_now() - start);
    uint64_t sent = lay_out(ranges, NULL, NULL, me->size), words = 1u << 20;
    char *base = tsr_case_new(me, sent), *receive = tsr_case_new(me, 256u << 20);
    int64_t *sums = tsr_case_new(me, words * 8 * (uint64_t)(2 * me->size));
    lay_out(ranges, base, receive, me->size);
    time_one(me, "gather", ranges, sums, words);
    OK(tsr_comm_expose(me->comm, me->host_stream, base, sent));
    if (me->rank == 0)
        printf("%d ranks: pulls are %s\n", me->size,
               tsr_nccl_is_direct(me->comm, base) ? "direct" : "all-gathers");
    for (int lanes = 1; lanes <= TSR_PULL_LANES; lanes++) {
        char name[32];
        snprintf(name, sizeof name, "pull, %d lanes", lanes);
        OK(tsr_nccl_set_lanes(me->comm, lanes));
        time_one(me, name, ranges, sums, words);
    }
    time_one(me, "exchange of 8 MiB", ranges, sums, words);
    time_one(me, "sum of 1 word", ranges, sums, 1);
    time_one(me, "sum of 8 MiB", ranges, sums, words);
    fflush(stdout);
    tsr_case_close(me);
}

/* ---- the command ---- */

int main(int argc, char **argv)
{
    int ranks = 1, way = 0;
    for (int option; (option = getopt(argc, argv, "tpm1bn:")) != -1;) {
        if (option == 'n')
            ranks = atoi(optarg);
        else if (option == '?')
            return 64;
        else
            way = option;
    }
    const char *name = optind < argc ? argv[optind] : "all";
    if (ranks < 1 || ranks > MOST || !way)
        return 64;
    if (way == 'm')
        return suite_of_mpi(name);
    int gpus = count_gpus();
    if (gpus < (way == '1' ? 1 : ranks)) {
        printf("%d ranks need as many GPUs: %d here\n", ranks, gpus);
        return SKIP;
    }
    if (way == '1')
        return suite_of_one_gpu();
    if (way == 'b')
        return check_processes(time_all, NULL, "times", ranks, 60);
    return way == 't' ? suite_of_threads(name, ranks) : suite_of_processes(name, ranks);
}
