/* Control: agreements, and what a failure does to the ranks. */
#include "comm/conformance_parts.h"

#include "base/clock.h"
#include "comm/comm_parts.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* ---- control ---- */

void tsr_case_agree_ok(tsr_case_rank *me)
{
    int first = 5;
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, &first));
    CHECK(first == -1);
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL));
    OK(tsr_comm_agree(me->host, NULL, TSR_OK, NULL));
}

/* The lowest rank that failed decides, with a long message whole; the communicator lives on. */
void tsr_case_agree_failures(tsr_case_rank *me)
{
    int last = me->size - 1, first;
    char *text = malloc(TSR_ERROR_BYTES);
    CHECK(text);
    memset(text, 'x', 9000);
    snprintf(text + 9000, 64, " end of rank %d", me->rank);
    tsr_status mine = me->rank == last ? tsr_fail(TSR_EDATA, "%s", text) : TSR_OK;
    CHECK(tsr_comm_agree(me->host, me->host_stream, mine, &first) == TSR_EDATA);
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
    CHECK(tsr_comm_agree(me->host, me->host_stream, mine, &first) == TSR_ECONFIG);
    CHECK(first == low);
    snprintf(expected, sizeof expected, "key %d", low);
    CHECK(strstr(tsr_last_error(), expected));

    CHECK(tsr_comm_agree(me->host, me->host_stream, tsr_fail(TSR_ECONFIG, "the same"), &first) ==
          TSR_ECONFIG);
    CHECK(first == 0 && !strcmp(tsr_last_error(), "the same"));
    OK(tsr_comm_barrier(me->comm, me->stream));
    tsr_case_wait(me);
}

void tsr_case_check_same(tsr_case_rank *me)
{
    OK(tsr_comm_check_same(me->host, me->host_stream, 7, "the plan", "update all machines"));
    uint64_t value = me->rank == me->size - 1 ? 8 : 7;
    tsr_status status =
        tsr_comm_check_same(me->host, me->host_stream, value, "the plan", "update all machines");
    CHECK(status == (me->size == 1 ? TSR_OK : TSR_ERANKS));
    if (me->size > 1) {
        char expected[32];
        snprintf(expected, sizeof expected, "rank %d ", me->size - 1);
        CHECK(strstr(tsr_last_error(), expected) && strstr(tsr_last_error(), "the plan") &&
              strstr(tsr_last_error(), "update all machines"));
    }
    OK(tsr_comm_check_same(me->host, me->host_stream, 9, "the plan", ""));
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
    CHECK(tsr_comm_exchange(me->comm, me->stream, NULL, 0) < 0);
    CHECK(tsr_comm_broadcast(me->comm, me->stream, &x, 8, 0) < 0);
    CHECK(tsr_comm_share(&memory, me->comm, me->stream, 8) < 0);
    CHECK(tsr_comm_split(&part, me->comm, me->stream, 0) < 0);
    CHECK(tsr_comm_check_same(me->comm, me->stream, 0, "x", "") < 0);
    CHECK(tsr_now() - start < 5);
}

/* A collective that cannot end without all ranks: a sum, an exchange of words, from exposed memory
 * or from other, or a group of a word from each. */
typedef enum { SUM, EXCHANGE, EXPOSED, GROUP } meeting_kind;

typedef struct {
    meeting_kind kind;
    int64_t *words;
    tsr_exchange_range range;
} meeting;

static meeting make_meeting(tsr_case_rank *me, meeting_kind kind)
{
    uint64_t words = 2 * (uint64_t)me->size;
    int64_t *at = tsr_case_new(me, words * sizeof *at);
    OK(tsr_stream_fill(me->stream, at, 0, words * sizeof *at));
    tsr_case_wait(me);
    if (kind == EXPOSED)
        OK(tsr_comm_expose(me->comm, me->host_stream, at, words * sizeof *at));
    return (meeting){kind, at, {at, at + me->size, sizeof *at}};
}

static tsr_status broadcast_all(tsr_case_rank *me, int64_t *words)
{
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_comm_group_begin(me->comm, me->stream));
    for (int root = 0; root < me->size && status == TSR_OK; root++)
        status = tsr_comm_broadcast(me->comm, me->stream, words + root, sizeof *words, root);
    tsr_status ended = tsr_comm_group_end(me->comm, me->stream);
    return status < 0 ? status : ended;
}

static tsr_status meet(tsr_case_rank *me, const meeting *m)
{
    if (m->kind == GROUP)
        return broadcast_all(me, m->words);
    return m->kind == SUM ? tsr_comm_all_reduce(me->comm, me->stream, m->words, 1, TSR_SUM)
                          : tsr_comm_exchange(me->comm, me->stream, &m->range, 1);
}

/* One rank fails while the others wait: they end soon, with its message, and agree on its status.
 */
static void abort_while_waiting(tsr_case_rank *me, meeting_kind kind)
{
    meeting m = make_meeting(me, kind);
    int last = me->size - 1, first;
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL)); /* all have made it */
    double start = tsr_now();
    tsr_status mine;
    tsr_comm_publish(me->comm, 3, "COMPUTE", 1);
    if (me->rank == last) {
        usleep(50000);
        mine = tsr_fail(TSR_EDATA, "row 9 of data.jsonl is bad");
        tsr_comm_abort(me->comm, mine, tsr_last_error());
        tsr_comm_abort(me->comm, TSR_EIO, "only the first counts");
    } else {
        mine = meet(me, &m);
        bool waits = mine == TSR_OK; /* else it comes too late for that */
        if (waits)
            mine = tsr_stream_synchronize(me->stream);
        CHECK(mine == TSR_ECOMM);
        char expected[64];
        snprintf(expected, sizeof expected, "rank %d failed: row 9 of data.jsonl", last);
        CHECK(strstr(tsr_last_error(), expected));
        CHECK(!waits || tsr_device_check(me->device) == TSR_ECOMM);
    }
    CHECK(tsr_now() - start < 20);
    check_dead(me, "row 9");
    tsr_fail(mine, "%s", mine == TSR_EDATA ? "row 9 of data.jsonl is bad" : "a peer failed");
    CHECK(tsr_comm_agree(me->host, me->host_stream, mine, &first) == TSR_EDATA);
    CHECK(first == last && strstr(tsr_last_error(), "row 9 of data.jsonl is bad"));
    CHECK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL) == TSR_EDATA);
}

void tsr_case_abort_while_waiting(tsr_case_rank *me)
{
    abort_while_waiting(me, SUM);
}

void tsr_case_abort_while_exchanging(tsr_case_rank *me)
{
    abort_while_waiting(me, EXCHANGE);
}

void tsr_case_abort_while_copying(tsr_case_rank *me)
{
    abort_while_waiting(me, EXPOSED);
}

void tsr_case_abort_while_grouped(tsr_case_rank *me)
{
    abort_while_waiting(me, GROUP);
}

/* A rank whose own device fails, and that says nothing, is heard of in the agreement; so is one
 * whose device fails while it waits itself. */
static tsr_status break_device(void *args, tsr_pool *pool)
{
    (void)args;
    (void)pool;
    return tsr_fail(TSR_EINTERNAL, "unit 4 is broken");
}

void tsr_case_device_fails(tsr_case_rank *me)
{
    int64_t *sum = tsr_case_word(me, 1);
    int first;
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL)); /* all have their words */
    double start = tsr_now();
    if (me->rank == 0)
        OK(tsr_stream_call(me->stream, break_device, NULL, 0));
    tsr_status mine = tsr_comm_all_reduce(me->comm, me->stream, sum, 1, TSR_SUM);
    if (mine == TSR_OK)
        mine = tsr_stream_synchronize(me->stream);
    CHECK(tsr_comm_agree(me->host, me->host_stream, mine, &first) == TSR_EINTERNAL);
    CHECK(first == 0 && strstr(tsr_last_error(), "unit 4 is broken"));
    CHECK(tsr_now() - start < 20);
    check_dead(me, "unit 4");
}

/* When the ranks wait, also where their cores are busy with something else. */
static void *poison_soon(void *device)
{
    usleep(500000);
    tsr_device_poison(device, TSR_EDEVICE, "the card has fallen off the bus");
    return NULL;
}

void tsr_case_poison_while_waiting(tsr_case_rank *me)
{
    pthread_t poisoner;
    int64_t *sum = tsr_case_word(me, 1);
    int last = me->size - 1;
    OK(tsr_comm_agree(me->host, me->host_stream, TSR_OK, NULL)); /* all have their words */
    double start = tsr_now();
    if (me->rank < last) { /* the last never comes, but the others need not wait for it */
        if (me->rank == 0)
            CHECK(pthread_create(&poisoner, NULL, poison_soon, me->device) == 0);
        tsr_status status = tsr_comm_all_reduce(me->comm, me->stream, sum, 1, TSR_SUM);
        if (me->rank == 0)
            pthread_join(poisoner, NULL);
        if (status == TSR_OK) /* else it comes too late to wait */
            status = tsr_stream_synchronize(me->stream);
        CHECK(status == (me->rank == 0 ? TSR_EDEVICE : TSR_ECOMM));
        CHECK(strstr(tsr_last_error(), "fallen off the bus"));
    }
    while (!tsr_board_is_dead(me->comm->gate.board)) {
        CHECK(tsr_now() - start < 20);
        usleep(1000);
    }
    tsr_fail(TSR_ECOMM, "a peer");
    CHECK(tsr_comm_agree(me->host, me->host_stream, me->rank < last ? TSR_ECOMM : TSR_OK, NULL) <
          0);
    CHECK(tsr_now() - start < 20);
}

/* A rank that does not come is named, with what it was doing, within the deadline; it learns of it
 * when it comes after all. */
static void laggard(tsr_case_rank *me, meeting_kind kind)
{
    meeting m = make_meeting(me, kind);
    int last = me->size - 1;
    double start = tsr_now();
    tsr_comm_publish(me->comm, 7, "COMPUTE", me->rank);
    OK(tsr_comm_barrier(me->comm, me->stream));
    tsr_case_wait(me);
    tsr_status mine;
    if (me->rank == last) {
        while (!tsr_board_is_dead(me->comm->gate.board))
            usleep(1000);
        mine = meet(me, &m);
        CHECK(mine == TSR_ETIMEOUT);
    } else {
        OK(meet(me, &m));
        mine = tsr_stream_synchronize(me->stream);
        CHECK(mine == TSR_ETIMEOUT);
        CHECK(tsr_now() - start < 20);
    }
    char expected[128];
    snprintf(expected, sizeof expected, "rank %d (last seen at step 7, COMPUTE, unit %d, ", last,
             last);
    CHECK(strstr(tsr_last_error(), expected) &&
          strstr(tsr_last_error(), kind == SUM ? "all-reduce" : "exchange"));
    CHECK(tsr_comm_agree(me->host, me->host_stream, mine, NULL) == TSR_ETIMEOUT);
    CHECK(strstr(tsr_last_error(), expected));
}

void tsr_case_laggard(tsr_case_rank *me)
{
    laggard(me, SUM);
}

void tsr_case_exchange_laggard(tsr_case_rank *me)
{
    laggard(me, EXCHANGE);
}

void tsr_case_copy_laggard(tsr_case_rank *me)
{
    laggard(me, EXPOSED);
}

/* Calls that differ are refused, not mixed up. */
void tsr_case_out_of_step(tsr_case_rank *me)
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
    CHECK(tsr_comm_agree(me->host, me->host_stream, TSR_ERANKS, NULL) == TSR_ERANKS);
}

/* The last rank fails by itself, and says so while the others are in a collective: that counts, and
 * not that the ranks are out of step. */
void tsr_case_fails_beside_a_collective(tsr_case_rank *me)
{
    char who[64];
    int failing = me->size - 1, first;
    tsr_status status;
    snprintf(who, sizeof who, "rank %d: no memory here", failing);
    if (me->rank == failing)
        status = tsr_fail(TSR_ENOMEM, "no memory here");
    else {
        OK(tsr_comm_barrier(me->comm, me->stream));
        status = tsr_stream_synchronize(me->stream);
        CHECK(status < 0);
    }
    CHECK(tsr_comm_agree(me->host, me->host_stream, status, &first) == TSR_ENOMEM);
    CHECK(first == failing && strcmp(tsr_last_error(), who) == 0);
}
