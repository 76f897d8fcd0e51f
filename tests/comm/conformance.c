#include "comm/conformance.h"

#include "base/clock.h"
#include "comm/comm_parts.h"

#include <string.h>
#include <unistd.h>

static void synchronize(tsr_case_rank *me)
{
    OK(tsr_stream_synchronize(me->stream));
}

static unsigned char byte_of(int rank, int range, uint64_t i)
{
    return (unsigned char)((uint64_t)rank * 57 + (uint64_t)range * 13 + i * 7 + (i >> 8));
}

/* ---- collectives ---- */

static void place(tsr_case_rank *me)
{
    int nodes = tsr_comm_node_count(me->comm), local = tsr_comm_local_size(me->comm);
    CHECK(me->rank >= 0 && me->rank < me->size);
    CHECK(tsr_comm_node(me->comm) >= 0 && tsr_comm_node(me->comm) < nodes);
    CHECK(tsr_comm_local_rank(me->comm) >= 0 && tsr_comm_local_rank(me->comm) < local);
    CHECK(nodes > 1 || local == me->size);
    CHECK(strlen(tsr_comm_name(me->comm)) > 0);
}

static const uint64_t range_bytes[] = {1, 0, 7, 4096, 1000003, 256, 33, 300000};
#define RANGES ((int)(sizeof range_bytes / sizeof *range_bytes))

static void fill_range(tsr_case_rank *me, tsr_gather_range *range, int i, bool in_place)
{
    uint64_t bytes = range_bytes[i];
    unsigned char *receive = malloc(bytes * (uint64_t)me->size + 1);
    unsigned char *send = in_place ? receive + (uint64_t)me->rank * bytes : malloc(bytes + 1);
    CHECK(receive && send);
    memset(receive, 0xee, bytes * (uint64_t)me->size + 1);
    for (uint64_t k = 0; k < bytes; k++)
        send[k] = byte_of(me->rank, i, k);
    *range = (tsr_gather_range){send, receive, bytes};
}

static void all_gather(tsr_case_rank *me)
{
    tsr_gather_range ranges[RANGES];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < RANGES; i++)
            fill_range(me, &ranges[i], i, (round + i) % 2);
        OK(tsr_comm_all_gather(me->comm, me->stream, ranges, RANGES));
        OK(tsr_comm_all_gather(me->comm, me->stream, ranges, 0));
        synchronize(me);
        for (int i = 0; i < RANGES; i++) {
            const unsigned char *receive = ranges[i].receive;
            for (int r = 0; r < me->size; r++)
                for (uint64_t k = 0; k < ranges[i].bytes; k++)
                    CHECK(receive[(uint64_t)r * ranges[i].bytes + k] == byte_of(r, i, k));
            CHECK(receive[ranges[i].bytes * (uint64_t)me->size] == 0xee);
            if (!((round + i) % 2))
                free((void *)ranges[i].send);
            free(ranges[i].receive);
        }
    }
}

static int64_t value_of(int rank, uint64_t i)
{
    return (int64_t)(i * 1000003) * (rank % 2 ? -1 : 1) + rank * 17 - (int64_t)(i % 5);
}

static const uint64_t counts[] = {0, 1, 2, 3, 5, 1000, 4096, 5003, 600001};
#define COUNTS ((int)(sizeof counts / sizeof *counts))

static void reduce_scatter(tsr_case_rank *me)
{
    for (int c = 0; c < COUNTS; c++) {
        uint64_t count = counts[c], all = count * (uint64_t)me->size;
        int64_t *send = malloc(all * sizeof *send + 8), *receive = malloc(count * 8 + 8);
        CHECK(send && receive);
        for (uint64_t i = 0; i < all; i++)
            send[i] = value_of(me->rank, i);
        receive[count] = 42;
        OK(tsr_comm_reduce_scatter(me->comm, me->stream, receive, send, count));
        synchronize(me);
        for (uint64_t i = 0; i < count; i++) {
            int64_t sum = 0;
            for (int r = 0; r < me->size; r++)
                sum += value_of(r, (uint64_t)me->rank * count + i);
            CHECK(receive[i] == sum);
        }
        for (uint64_t i = 0; i < all; i++)
            CHECK(send[i] == value_of(me->rank, i));
        CHECK(receive[count] == 42);
        free(send);
        free(receive);
    }
}

static int64_t reduced(int size, uint64_t i, tsr_reduce_op op)
{
    int64_t result = value_of(0, i);
    for (int r = 1; r < size; r++) {
        int64_t value = value_of(r, i);
        result = op == TSR_SUM   ? result + value
                 : op == TSR_MIN ? (value < result ? value : result)
                                 : (value > result ? value : result);
    }
    return result;
}

static void all_reduce(tsr_case_rank *me)
{
    for (int c = 0; c < COUNTS; c++)
        for (tsr_reduce_op op = TSR_SUM; op <= TSR_MAX; op++) {
            int64_t *data = malloc(counts[c] * sizeof *data + 8);
            CHECK(data);
            for (uint64_t i = 0; i < counts[c]; i++)
                data[i] = value_of(me->rank, i);
            data[counts[c]] = 42;
            OK(tsr_comm_all_reduce(me->comm, me->stream, data, counts[c], op));
            synchronize(me);
            for (uint64_t i = 0; i < counts[c]; i++)
                CHECK(data[i] == reduced(me->size, i, op));
            CHECK(data[counts[c]] == 42);
            free(data);
        }
    CHECK(tsr_comm_all_reduce(me->comm, me->stream, NULL, 0, (tsr_reduce_op)7) == TSR_EINVAL);
}

static void broadcast(tsr_case_rank *me)
{
    static const uint64_t sizes[] = {0, 1, 999, 1000001};
    for (int root = 0; root < me->size; root++)
        for (int s = 0; s < 4; s++) {
            unsigned char *data = malloc(sizes[s] + 1);
            CHECK(data);
            memset(data, 0xee, sizes[s] + 1);
            for (uint64_t i = 0; me->rank == root && i < sizes[s]; i++)
                data[i] = byte_of(root, s, i);
            OK(tsr_comm_broadcast(me->comm, me->stream, data, sizes[s], root));
            synchronize(me);
            for (uint64_t i = 0; i < sizes[s]; i++)
                CHECK(data[i] == byte_of(root, s, i));
            CHECK(data[sizes[s]] == 0xee);
            free(data);
        }
    CHECK(tsr_comm_broadcast(me->comm, me->stream, NULL, 0, me->size) == TSR_EINVAL);
    CHECK(tsr_comm_broadcast(me->comm, me->stream, NULL, 0, -1) == TSR_EINVAL);
}

/* Nobody leaves a barrier before the slowest has come. */
static void barrier(tsr_case_rank *me)
{
    int64_t *flags;
    void *shared;
    OK(tsr_comm_share(&shared, me->comm, me->stream, sizeof(int64_t) * (uint64_t)me->size));
    flags = shared;
    for (int round = 0; round < 30; round++) {
        if (round % me->size == me->rank)
            usleep(2000);
        __atomic_store_n(&flags[me->rank], round + 1, __ATOMIC_SEQ_CST);
        OK(tsr_comm_barrier(me->comm, me->stream));
        synchronize(me);
        if (tsr_comm_node_count(me->comm) == 1)
            for (int r = 0; r < me->size; r++)
                CHECK(__atomic_load_n(&flags[r], __ATOMIC_SEQ_CST) > round);
    }
}

/* Many collectives in a row without waiting on the host. */
static void pipeline(tsr_case_rank *me)
{
    enum { STEPS = 300 };
    static _Thread_local int64_t sums[STEPS], all[16 * STEPS];
    static _Thread_local tsr_gather_range range[STEPS];
    CHECK(me->size <= 16);
    for (int i = 0; i < STEPS; i++) {
        sums[i] = me->rank + i;
        range[i] = (tsr_gather_range){&sums[i], &all[i * me->size], sizeof(int64_t)};
        OK(tsr_comm_all_reduce(me->comm, me->stream, &sums[i], 1, TSR_SUM));
        OK(tsr_comm_all_gather(me->comm, me->stream, &range[i], 1));
    }
    synchronize(me);
    for (int i = 0; i < STEPS; i++)
        for (int r = 0; r < me->size; r++)
            CHECK(all[i * me->size + r] == (int64_t)me->size * (me->size - 1) / 2 + me->size * i);
}

static void share(tsr_case_rank *me)
{
    for (int round = 0; round < 3; round++) {
        void *memory;
        uint64_t bytes = round == 0 ? 1 : round == 1 ? 100000 : 0;
        OK(tsr_comm_share(&memory, me->comm, me->stream, bytes));
        CHECK(memory != NULL);
        char *text = memory;
        for (uint64_t i = 0; i < bytes; i++)
            CHECK(text[i] == 0);
        OK(tsr_comm_barrier(me->comm, me->stream));
        synchronize(me);
        if (bytes && tsr_comm_local_rank(me->comm) == 0)
            text[bytes - 1] = 'x';
        OK(tsr_comm_barrier(me->comm, me->stream));
        synchronize(me);
        CHECK(!bytes || text[bytes - 1] == 'x');
    }
}

/* Odd and even ranks apart, each with collectives of other sizes; then a split of the split. */
static void split(tsr_case_rank *me)
{
    tsr_comm *half, *pair;
    OK(tsr_comm_split(&half, me->comm, me->stream, me->rank % 2));
    int size = (me->size + 1 - me->rank % 2) / 2;
    CHECK(tsr_comm_size(half) == size && tsr_comm_rank(half) == me->rank / 2);
    CHECK(tsr_comm_local_rank(half) < tsr_comm_local_size(half));
    uint64_t count = me->rank % 2 ? 3 : 70001;
    int64_t *data = malloc(count * sizeof *data), *all = malloc(8 * (size_t)me->size);
    CHECK(data && all);
    for (int round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < count; i++)
            data[i] = me->rank + (int64_t)i;
        OK(tsr_comm_all_reduce(half, me->stream, data, count, TSR_SUM));
        int64_t mine = me->rank;
        tsr_gather_range range = {&mine, all, 8};
        OK(tsr_comm_all_gather(me->comm, me->stream, &range, 1));
        synchronize(me);
        int64_t members = (int64_t)size * (size - 1) + (int64_t)size * (me->rank % 2);
        for (uint64_t i = 0; i < count; i++)
            CHECK(data[i] == members + size * (int64_t)i);
        for (int r = 0; r < me->size; r++)
            CHECK(all[r] == r);
    }
    OK(tsr_comm_split(&pair, half, me->stream, tsr_comm_rank(half) / 2));
    int64_t lowest = me->rank;
    OK(tsr_comm_all_reduce(pair, me->stream, &lowest, 1, TSR_MIN));
    synchronize(me);
    CHECK(lowest == me->rank - 2 * tsr_comm_rank(pair));
    int first;
    OK(tsr_comm_agree(pair, me->stream, TSR_OK, &first));
    tsr_comm_destroy(pair);
    tsr_comm_destroy(half);
    free(data);
    free(all);
}

/* ---- control ---- */

static void agree_ok(tsr_case_rank *me)
{
    int first = 5;
    OK(tsr_comm_agree(me->comm, me->stream, TSR_OK, &first));
    CHECK(first == -1);
    OK(tsr_comm_agree(me->comm, me->stream, TSR_OK, NULL));
    OK(tsr_comm_agree(me->comm, NULL, TSR_OK, NULL));
}

/* The lowest rank that failed decides, with a long message whole; the communicator lives on. */
static void agree_failures(tsr_case_rank *me)
{
    int last = me->size - 1, first;
    char *text = malloc(TSR_ERROR_BYTES);
    CHECK(text);
    memset(text, 'x', 9000);
    snprintf(text + 9000, 64, " end of rank %d", me->rank);
    tsr_status mine = me->rank == last ? tsr_fail(TSR_EDATA, "%s", text) : TSR_OK;
    CHECK(tsr_comm_agree(me->comm, me->stream, mine, &first) == TSR_EDATA);
    CHECK(first == last);
    char expected[64];
    snprintf(expected, sizeof expected, " end of rank %d", last);
    CHECK(strstr(tsr_last_error(), expected));
    CHECK(me->size == 1 || !strncmp(tsr_last_error(), "rank ", 5));
    free(text);

    int low = me->size / 2;
    mine = me->rank == low  ? tsr_fail(TSR_ECONFIG, "key %d", me->rank)
           : me->rank > low ? tsr_fail(TSR_EIO, "disk %d", me->rank)
                            : TSR_OK;
    CHECK(tsr_comm_agree(me->comm, me->stream, mine, &first) == TSR_ECONFIG);
    CHECK(first == low);
    snprintf(expected, sizeof expected, "key %d", low);
    CHECK(strstr(tsr_last_error(), expected));

    CHECK(tsr_comm_agree(me->comm, me->stream, tsr_fail(TSR_ECONFIG, "the same"), &first) ==
          TSR_ECONFIG);
    CHECK(first == 0 && !strcmp(tsr_last_error(), "the same"));
    OK(tsr_comm_barrier(me->comm, me->stream));
    synchronize(me);
}

static void check_same(tsr_case_rank *me)
{
    OK(tsr_comm_check_same(me->comm, me->stream, 7, "the plan", "update all machines"));
    uint64_t value = me->rank == me->size - 1 ? 8 : 7;
    tsr_status status =
        tsr_comm_check_same(me->comm, me->stream, value, "the plan", "update all machines");
    CHECK(status == (me->size == 1 ? TSR_OK : TSR_ERANKS));
    if (me->size > 1) {
        char expected[32];
        snprintf(expected, sizeof expected, "rank %d ", me->size - 1);
        CHECK(strstr(tsr_last_error(), expected) && strstr(tsr_last_error(), "the plan") &&
              strstr(tsr_last_error(), "update all machines"));
    }
    OK(tsr_comm_check_same(me->comm, me->stream, 9, "the plan", ""));
}

/* ---- failures ---- */

/* Every later call fails at once, with the same cause. */
static void check_dead(tsr_case_rank *me, const char *cause)
{
    int64_t x = 0;
    void *memory;
    tsr_comm *part;
    tsr_gather_range range = {&x, &x, 0};
    double start = tsr_now();
    CHECK(tsr_comm_barrier(me->comm, me->stream) < 0);
    CHECK(strstr(tsr_last_error(), cause));
    CHECK(tsr_comm_all_reduce(me->comm, me->stream, &x, 1, TSR_SUM) < 0);
    CHECK(tsr_comm_all_gather(me->comm, me->stream, &range, 1) < 0);
    CHECK(tsr_comm_reduce_scatter(me->comm, me->stream, &x, &x, 0) < 0);
    CHECK(tsr_comm_broadcast(me->comm, me->stream, &x, 8, 0) < 0);
    CHECK(tsr_comm_share(&memory, me->comm, me->stream, 8) < 0);
    CHECK(tsr_comm_split(&part, me->comm, me->stream, 0) < 0);
    CHECK(tsr_comm_check_same(me->comm, me->stream, 0, "x", "") < 0);
    CHECK(tsr_now() - start < 5);
}

/* One rank fails while the others wait: they end soon, with its message, and agree on its status.
 */
static void abort_while_waiting(tsr_case_rank *me)
{
    int64_t sum = 1;
    int last = me->size - 1, first;
    double start = tsr_now();
    tsr_status mine;
    tsr_comm_publish(me->comm, 3, "COMPUTE", 1);
    if (me->rank == last) {
        usleep(50000);
        mine = tsr_fail(TSR_EDATA, "row 9 of data.jsonl is bad");
        tsr_comm_abort(me->comm, mine, tsr_last_error());
        tsr_comm_abort(me->comm, TSR_EIO, "only the first counts");
    } else {
        OK(tsr_comm_all_reduce(me->comm, me->stream, &sum, 1, TSR_SUM));
        mine = tsr_stream_synchronize(me->stream);
        CHECK(mine == TSR_ECOMM);
        char expected[64];
        snprintf(expected, sizeof expected, "rank %d failed: row 9 of data.jsonl", last);
        CHECK(strstr(tsr_last_error(), expected));
        CHECK(tsr_device_check(me->device) == TSR_ECOMM);
    }
    CHECK(tsr_now() - start < 20);
    check_dead(me, "row 9");
    tsr_fail(mine, "%s", mine == TSR_EDATA ? "row 9 of data.jsonl is bad" : "a peer failed");
    CHECK(tsr_comm_agree(me->comm, me->stream, mine, &first) == TSR_EDATA);
    CHECK(first == last && strstr(tsr_last_error(), "row 9 of data.jsonl is bad"));
    CHECK(tsr_comm_agree(me->comm, me->stream, TSR_OK, NULL) == TSR_EDATA);
}

/* A rank whose own device fails, and that says nothing, is heard of in the agreement; so is one
 * whose device fails while it waits itself. */
static tsr_status break_device(void *args, tsr_pool *pool)
{
    (void)args;
    (void)pool;
    return tsr_fail(TSR_EINTERNAL, "unit 4 is broken");
}

static void device_fails(tsr_case_rank *me)
{
    int64_t sum = 1;
    int first;
    double start = tsr_now();
    if (me->rank == 0)
        OK(tsr_stream_call(me->stream, break_device, NULL, 0));
    tsr_status mine = tsr_comm_all_reduce(me->comm, me->stream, &sum, 1, TSR_SUM);
    if (mine == TSR_OK)
        mine = tsr_stream_synchronize(me->stream);
    CHECK(tsr_comm_agree(me->comm, me->stream, mine, &first) == TSR_EINTERNAL);
    CHECK(first == 0 && strstr(tsr_last_error(), "unit 4 is broken"));
    CHECK(tsr_now() - start < 20);
    check_dead(me, "unit 4");
}

static void poison_while_waiting(tsr_case_rank *me)
{
    int64_t sum = 1;
    int last = me->size - 1;
    double start = tsr_now();
    if (me->rank < last) { /* the last never comes, but the others need not wait for it */
        OK(tsr_comm_all_reduce(me->comm, me->stream, &sum, 1, TSR_SUM));
        usleep(20000);
        if (me->rank == 0)
            tsr_device_poison(me->device, TSR_EDEVICE, "the card has fallen off the bus");
        tsr_status status = tsr_stream_synchronize(me->stream);
        CHECK(status == (me->rank == 0 ? TSR_EDEVICE : TSR_ECOMM));
        CHECK(strstr(tsr_last_error(), "fallen off the bus"));
    }
    while (!tsr_board_is_dead(me->comm->gate.board))
        usleep(1000);
    tsr_fail(TSR_ECOMM, "a peer");
    CHECK(tsr_comm_agree(me->comm, me->stream, me->rank < last ? TSR_ECOMM : TSR_OK, NULL) < 0);
    CHECK(tsr_now() - start < 20);
}

/* A rank that does not come is named, with what it was doing, within the deadline; it learns of it
 * when it comes after all. */
static void laggard(tsr_case_rank *me)
{
    int64_t sum = 1;
    int last = me->size - 1;
    double start = tsr_now();
    tsr_comm_publish(me->comm, 7, "COMPUTE", me->rank);
    OK(tsr_comm_barrier(me->comm, me->stream));
    synchronize(me);
    tsr_status mine;
    if (me->rank == last) {
        while (!tsr_board_is_dead(me->comm->gate.board))
            usleep(1000);
        mine = tsr_comm_all_reduce(me->comm, me->stream, &sum, 1, TSR_SUM);
        CHECK(mine == TSR_ETIMEOUT);
    } else {
        OK(tsr_comm_all_reduce(me->comm, me->stream, &sum, 1, TSR_SUM));
        mine = tsr_stream_synchronize(me->stream);
        CHECK(mine == TSR_ETIMEOUT);
        CHECK(tsr_now() - start < 20);
    }
    char expected[128];
    snprintf(expected, sizeof expected, "rank %d (last seen at step 7, COMPUTE, unit %d, ", last,
             last);
    CHECK(strstr(tsr_last_error(), expected) && strstr(tsr_last_error(), "all-reduce"));
    CHECK(tsr_comm_agree(me->comm, me->stream, mine, NULL) == TSR_ETIMEOUT);
    CHECK(strstr(tsr_last_error(), expected));
}

/* Calls that differ are refused, not mixed up. */
static void out_of_step(tsr_case_rank *me)
{
    int64_t x[2] = {0};
    tsr_gather_range range = {x, x, 8};
    if (me->rank == 0)
        OK(tsr_comm_barrier(me->comm, me->stream));
    else
        OK(tsr_comm_broadcast(me->comm, me->stream, &x, 8, 0));
    CHECK(tsr_stream_synchronize(me->stream) == TSR_ERANKS);
    CHECK(strstr(tsr_last_error(), "barrier") && strstr(tsr_last_error(), "broadcast"));
    CHECK(tsr_comm_all_gather(me->comm, me->stream, &range, 1) == TSR_ERANKS);
    CHECK(tsr_comm_agree(me->comm, me->stream, TSR_ERANKS, NULL) == TSR_ERANKS);
}

/* ---- the suite ---- */

const tsr_case tsr_conformance[] = {
    {"place", place, 1},
    {"all_gather", all_gather, 1},
    {"reduce_scatter", reduce_scatter, 1},
    {"all_reduce", all_reduce, 1},
    {"broadcast", broadcast, 1},
    {"barrier", barrier, 1},
    {"pipeline", pipeline, 1},
    {"share", share, 1},
    {"split", split, 1},
    {"agree_ok", agree_ok, 1},
    {"agree_failures", agree_failures, 1},
    {"check_same", check_same, 1},
    {"abort_while_waiting", abort_while_waiting, 1, .dies = true},
    {"device_fails", device_fails, 1, .dies = true},
    {"poison_while_waiting", poison_while_waiting, 2, .dies = true},
    {"laggard", laggard, 2, .timeout_seconds = 2, .dies = true},
    {"out_of_step", out_of_step, 2, .dies = true},
};
const int tsr_conformance_count = sizeof tsr_conformance / sizeof *tsr_conformance;

void tsr_conformance_run(const tsr_case *c, tsr_comm *comm)
{
    tsr_case_rank rank = {.comm = comm, .rank = tsr_comm_rank(comm), .size = tsr_comm_size(comm)},
                  *me = &rank;
    tsr_device_options options = {.thread_count = 1, .no_pinning = true, .timeout_seconds = 90};
    OK(tsr_device_create_cpu(&me->device, &options));
    OK(tsr_stream_create(&me->stream, me->device, "comm"));
    c->run(me);
    tsr_stream_destroy(me->stream);
    tsr_device_destroy(me->device);
    tsr_comm_destroy(comm);
}
