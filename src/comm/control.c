/*
 * control.c: what blocks, and what works beside the collectives and after a failure.
 *
 * A poisoned device runs nothing more, so these calls wait until the stream is idle and then do
 * their work on the calling thread; the backend is still used by one thread at a time.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/comm_parts.h"

#include <stdlib.h>
#include <string.h>

#define LAST_WORDS_SECONDS                                                                         \
    5 /* how long a dead communicator waits for the other ranks' statuses                          \
       */

void tsr_comm_publish(tsr_comm *comm, uint64_t step, const char *op, int unit)
{
    tsr_board_publish(comm->gate.board, comm->gate.rank, step, op, unit);
}

void tsr_comm_abort(tsr_comm *comm, tsr_status status, const char *message)
{
    tsr_board_kill(comm->gate.board, comm->gate.rank, status < 0 ? status : TSR_ECOMM, message);
}

/* Waits until the stream is idle. If it does not get there, the communicator is dead. */
static tsr_status settle(tsr_comm *comm, tsr_stream *stream)
{
    tsr_board *board = comm->gate.board;
    tsr_status status = stream ? tsr_stream_synchronize(stream) : TSR_OK;
    if (status == TSR_ETIMEOUT || atomic_load(&comm->root->running))
        tsr_board_kill(board, comm->gate.rank, status < 0 ? status : TSR_EINTERNAL,
                       tsr_last_error());
    TSR_TRY(tsr_board_check(board, comm->gate.rank));
    return status;
}

/* A failed control collective leaves the ranks in different places: dead for all. */
static tsr_status kill_on_failure(tsr_comm *comm, tsr_status status)
{
    if (status < 0) {
        tsr_board_kill(comm->gate.board, comm->gate.rank, status, tsr_last_error());
        if (comm->ops->spread)
            comm->ops->spread(comm);
    }
    return status;
}

static tsr_status gather_notes(tsr_comm *comm, tsr_status status, uint64_t value,
                               tsr_comm_kind kind)
{
    struct tsr_note *mine = &comm->notes[comm->rank];
    tsr_comm_call call = {NULL, kind, 0};
    *mine = (struct tsr_note){status, value};
    tsr_gather_range range = {mine, comm->notes, sizeof *mine};
    return kill_on_failure(comm, comm->ops->all_gather(comm, &call, &range, 1));
}

tsr_status tsr_comm_gather_now(tsr_comm *comm, tsr_stream *stream, const void *send, void *receive,
                               uint64_t bytes, tsr_comm_kind kind)
{
    TSR_TRY(settle(comm, stream));
    tsr_comm_call call = {NULL, kind, bytes};
    tsr_gather_range range = {send, receive, bytes};
    return kill_on_failure(comm, comm->ops->all_gather(comm, &call, &range, 1));
}

/* What blocks is the host communicator's. */
static tsr_status check_blocks(const tsr_comm *comm, const char *what)
{
    if (!comm->ops->enqueues)
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, "%s of communicator \"%s\": call it on the host communicator", what,
                    comm->ops->name);
}

/* ---- agree ---- */

/* Sets the last error of a failed agreement. `everyone`: all ranks found the same. */
static tsr_status fail_agreed(const tsr_comm *comm, int rank, tsr_status status,
                              const char *message, bool everyone)
{
    if (comm->size == 1 || everyone)
        return tsr_fail_lines(status, "%s", message);
    return tsr_fail_lines(status, "rank %d: %s", rank, message);
}

/* Stores nothing in *out and returns false if the communicator died meanwhile. */
static bool agree_alive(tsr_status *out, tsr_comm *comm, tsr_error *error, int *first)
{
    uint64_t hash = tsr_hash(TSR_HASH_START, error->message, strlen(error->message));
    if (gather_notes(comm, error->status, error->status < 0 ? hash : 0, TSR_COMM_AGREE) < 0)
        return false;
    int lowest = comm->size;
    bool everyone = true;
    for (int i = comm->size - 1; i >= 0; i--) {
        if (comm->notes[i].status < 0)
            lowest = i;
        everyone = everyone && comm->notes[i].status == comm->notes[0].status &&
                   comm->notes[i].value == comm->notes[0].value;
    }
    *first = -1;
    *out = TSR_OK;
    if (lowest == comm->size)
        return true;
    tsr_comm_call call = {NULL, TSR_COMM_AGREE, 1};
    tsr_status status = comm->ops->broadcast(comm, &call, error->message, TSR_ERROR_BYTES, lowest);
    if (kill_on_failure(comm, status) < 0)
        return false;
    error->message[TSR_ERROR_BYTES - 1] = 0; /* it came from another process */
    *first = lowest;
    *out =
        fail_agreed(comm, lowest, (tsr_status)comm->notes[lowest].status, error->message, everyone);
    return true;
}

static int rank_of_member(const tsr_comm *comm, int member)
{
    for (int i = 0; i < comm->size; i++)
        if (comm->members[i] == member)
            return i;
    return -1;
}

static void wait_for_posts(const tsr_comm *comm)
{
    const tsr_board_gate *gate = &comm->gate;
    double seconds =
        gate->timeout_seconds < LAST_WORDS_SECONDS ? gate->timeout_seconds : LAST_WORDS_SECONDS;
    double end = tsr_now() + seconds;
    for (;;) {
        uint32_t bell = tsr_board_bell(gate->board);
        tsr_status status;
        const char *message;
        int posted = 0;
        for (int i = 0; i < gate->member_count; i++)
            posted += tsr_board_posted(gate->board, gate->members[i], &status, &message) ||
                      !tsr_board_answers(gate->board, gate->members[i]);
        if (posted == gate->member_count || tsr_now() >= end)
            return;
        tsr_board_sleep(gate->board, bell, end - tsr_now());
    }
}

/* A consequence of another rank's failure is not what failed (0); nor is it that ranks are out of
 * step, where one of them has failed and gone to its agreement while the others are in a collective
 * (1). */
static int weight_of(tsr_status status)
{
    if (status >= 0 || status == TSR_ECOMM || status == TSR_ETIMEOUT)
        return 0;
    return status == TSR_ERANKS ? 1 : 2;
}

/* The board says what the ranks of this node have left there; of other nodes only what killed it is
 * known. The lowest rank with the heaviest cause of its own decides, else what killed the board. */
static tsr_status agree_dead(tsr_comm *comm, const tsr_error *error, int *first)
{
    const tsr_board_gate *gate = &comm->gate;
    tsr_status status, found;
    const char *message, *found_message;
    int member;
    tsr_board_post(gate->board, gate->rank, error->status, error->message);
    if (comm->ops->spread && !atomic_load(&comm->root->running))
        comm->ops->spread(comm);
    wait_for_posts(comm);
    found = tsr_board_death(gate->board, &member, &found_message);
    int rank = rank_of_member(comm, member);
    for (int i = gate->member_count - 1; i >= 0; i--) {
        int other = rank_of_member(comm, gate->members[i]);
        if (!tsr_board_posted(gate->board, gate->members[i], &status, &message))
            continue;
        int more = weight_of(status) - weight_of(found);
        if (more > 0 || (more == 0 && weight_of(status) && (other <= rank || rank < 0))) {
            found = status;
            found_message = message;
            rank = other;
        }
    }
    *first = rank;
    if (found == TSR_ETIMEOUT) /* names its ranks itself */
        return tsr_fail_lines(found, "%s", found_message);
    return fail_agreed(comm, rank >= 0 ? rank : member, found, found_message, false);
}

tsr_status tsr_comm_agree(tsr_comm *comm, tsr_stream *stream, tsr_status status, int *first)
{
    tsr_error error;
    int lowest = -1;
    TSR_TRY(check_blocks(comm, "agreement"));
    error.message[0] = 0;
    tsr_error_take(&error, status);
    if (status >= 0)
        error.message[0] = 0;
    tsr_status settled = settle(comm, stream);
    if (status >= 0 && settled < 0)
        tsr_error_take(&error, settled);
    /* A poisoned device has skipped collectives that the other ranks may wait in. */
    if (settled < 0)
        tsr_board_kill(comm->gate.board, comm->gate.rank, error.status, error.message);
    if (tsr_board_is_dead(comm->gate.board) || !agree_alive(&status, comm, &error, &lowest))
        status = agree_dead(comm, &error, &lowest);
    if (first)
        *first = lowest;
    return status;
}

/* ---- the others ---- */

tsr_status tsr_comm_check_same(tsr_comm *comm, tsr_stream *stream, uint64_t value, const char *what,
                               const char *advice)
{
    TSR_TRY(check_blocks(comm, "check"));
    TSR_TRY(settle(comm, stream));
    TSR_TRY(gather_notes(comm, TSR_OK, value, TSR_COMM_CHECK));
    for (int i = 1; i < comm->size; i++)
        if (comm->notes[i].value != comm->notes[0].value)
            return tsr_fail(TSR_ERANKS,
                            "%s differs between the ranks: rank %d has %016llx, rank 0 "
                            "has %016llx; %s",
                            what, i, (unsigned long long)comm->notes[i].value,
                            (unsigned long long)comm->notes[0].value, advice);
    return TSR_OK;
}

tsr_status tsr_comm_split(tsr_comm **out, tsr_comm *comm, tsr_stream *stream, int color)
{
    TSR_TRY(check_blocks(comm, "split"));
    TSR_TRY(settle(comm, stream));
    TSR_TRY(gather_notes(comm, TSR_OK, (uint64_t)(int64_t)color, TSR_COMM_SPLIT));
    if (comm->root->slots_used == TSR_BOARD_SLOTS)
        return tsr_fail(TSR_EINTERNAL, "a communicator is split more than %d times",
                        TSR_BOARD_SLOTS - 1);
    int slot = comm->root->slots_used++;
    int *members = calloc(2 * (size_t)comm->size, sizeof *members);
    if (!members)
        return kill_on_failure(comm, tsr_fail(TSR_ENOMEM, "no memory to split a communicator"));
    int *nodes = members + comm->size, size = 0, rank = 0;
    for (int i = 0; i < comm->size; i++) {
        if (comm->notes[i].value != comm->notes[comm->rank].value)
            continue;
        if (i == comm->rank)
            rank = size;
        members[size] = comm->members[i];
        nodes[size++] = comm->nodes[i];
    }
    tsr_status status = tsr_comm_new(out, comm->ops, comm->backend, comm->gate.board, comm->root,
                                     slot, rank, size, members, nodes, comm->gate.timeout_seconds);
    free(members);
    return kill_on_failure(comm, status);
}

static int gather_for_share(void *user, const void *send, void *receive, uint64_t bytes)
{
    tsr_comm *comm = user;
    tsr_comm_call call = {NULL, TSR_COMM_SHARE, bytes};
    tsr_gather_range range = {send, receive, bytes};
    return comm->ops->all_gather(comm, &call, &range, 1);
}

tsr_status tsr_comm_share(void **out, tsr_comm *comm, tsr_stream *stream, uint64_t bytes)
{
    TSR_TRY(check_blocks(comm, "shared memory"));
    TSR_TRY(settle(comm, stream));
    tsr_bootstrap all = {comm->rank, comm->size, gather_for_share, comm};
    tsr_shared *shared = malloc(sizeof *shared);
    uint64_t rounded = bytes ? bytes : 1;
    if (!shared)
        return kill_on_failure(comm, tsr_fail(TSR_ENOMEM, "no memory to share memory"));
    tsr_status status = tsr_share_map(&shared->memory, rounded, &all, comm->nodes);
    if (status < 0) {
        free(shared);
        return kill_on_failure(comm, status);
    }
    shared->bytes = rounded;
    shared->next = comm->root->shared;
    comm->root->shared = shared;
    *out = shared->memory;
    return TSR_OK;
}
