#include "comm/board.h"

#include "base/checked.h"
#include "base/clock.h"
#include "device/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OP_WORDS  (TSR_BOARD_OP_BYTES / 8)
#define SLICE     0.02 /* s; how often a waiter looks at its own device */
#define GATE_SHUT ((uint64_t)1 << 63)

struct rank_state {
    /* published */
    _Alignas(64) _Atomic uint64_t step;
    _Atomic uint64_t op[OP_WORDS];
    _Atomic int unit;
    _Atomic int pid;          /* 0: not known */
    _Atomic uint64_t seen_us; /* tsr_now of the last publish, 0: never; one clock for the node */
    _Atomic uint64_t entered[TSR_BOARD_SLOTS];
    _Atomic uint64_t tag[TSR_BOARD_SLOTS][2]; /* of the last two: nobody is two gates ahead */
    /* left when the board is dead; the message is written before the status */
    _Atomic bool posted;
    _Atomic int status;
    char message[TSR_BOARD_MESSAGE_BYTES];
};

struct tsr_board {
    _Atomic uint32_t bell; /* rings whenever a waiter may have something new to see */
    _Atomic int death;     /* 0 alive, 1 the record is being written, 2 dead */
    int size;
    int dead_rank;
    tsr_status dead_status;
    char dead_message[TSR_BOARD_MESSAGE_BYTES];
    _Atomic int left;
    struct rank_state ranks[];
    /* then size * SLOTS gates: how often all have passed * 2^16 + how many have entered since */
};

uint64_t tsr_board_bytes(int size)
{
    return sizeof(tsr_board) + (uint64_t)size * (sizeof(struct rank_state) +
                                                 TSR_BOARD_SLOTS * sizeof(_Atomic uint64_t));
}

void tsr_board_init(tsr_board *board, int size)
{
    board->size = size;
}

tsr_status tsr_board_create(tsr_board **out, int size)
{
    uint64_t bytes = tsr_align_up(tsr_board_bytes(size), 64);
    tsr_board *board = aligned_alloc(64, bytes);
    if (!board)
        return tsr_fail(TSR_ENOMEM, "no memory for the board of %d ranks", size);
    memset(board, 0, bytes);
    tsr_board_init(board, size);
    *out = board;
    return TSR_OK;
}

static _Atomic uint64_t *gate_word(const tsr_board_gate *gate)
{
    char *gates = (char *)(gate->board->ranks + gate->board->size);
    return (_Atomic uint64_t *)gates + (size_t)gate->slot * (size_t)gate->board->size + gate->gate;
}

static void ring(tsr_board *board)
{
    atomic_fetch_add(&board->bell, 1);
    tsr_futex_wake_all(&board->bell);
}

uint32_t tsr_board_bell(const tsr_board *board)
{
    return atomic_load(&board->bell);
}

void tsr_board_sleep(tsr_board *board, uint32_t bell, double seconds)
{
    if (seconds > 0)
        tsr_futex_wait(&board->bell, bell, seconds < SLICE ? seconds : SLICE);
}

/* ---- what a rank is doing ---- */

/* Words are stored one by one: a reader may see two publishes mixed, in a message for people. */
void tsr_board_publish(tsr_board *board, int rank, uint64_t step, const char *op, int unit)
{
    struct rank_state *mine = &board->ranks[rank];
    uint64_t words[OP_WORDS] = {0};
    size_t length = strlen(op);
    memcpy(words, op, length < TSR_BOARD_OP_BYTES - 1 ? length : TSR_BOARD_OP_BYTES - 1);
    for (int i = 0; i < OP_WORDS; i++)
        atomic_store_explicit(&mine->op[i], words[i], memory_order_relaxed);
    if (!atomic_load_explicit(&mine->pid, memory_order_relaxed))
        atomic_store_explicit(&mine->pid, (int)getpid(), memory_order_relaxed);
    atomic_store_explicit(&mine->step, step, memory_order_relaxed);
    atomic_store_explicit(&mine->unit, unit, memory_order_relaxed);
    atomic_store_explicit(&mine->seen_us, (uint64_t)(tsr_now() * 1e6), memory_order_relaxed);
}

/* Of a process of this node, as /proc says; where that tells nothing, it runs. */
typedef enum { RUNS, STOPPED, GONE } life;

static life life_of(const tsr_board *board, int rank)
{
    int pid = atomic_load(&board->ranks[rank].pid);
    char path[32], text[512];
    if (!pid || pid == (int)getpid())
        return RUNS;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) /* not without a /proc at all */
        return errno == ENOENT && access("/proc/self/stat", F_OK) == 0 ? GONE : RUNS;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *state = strrchr(text, ')'); /* "pid (name) state ..." */
    if (!state || strlen(state) < 3)
        return length < 0 && errno == ESRCH ? GONE : RUNS;
    return strchr("Tt", state[2]) ? STOPPED : strchr("ZXx", state[2]) ? GONE : RUNS;
}

bool tsr_board_answers(const tsr_board *board, int rank)
{
    return life_of(board, rank) == RUNS;
}

void tsr_board_describe(const tsr_board *board, int rank, char *out, size_t out_bytes)
{
    const struct rank_state *other = &board->ranks[rank];
    uint64_t seen = atomic_load(&other->seen_us), words[OP_WORDS];
    if (!seen) {
        snprintf(out, out_bytes, "rank %d", rank);
        return;
    }
    char op[TSR_BOARD_OP_BYTES], unit[32] = "";
    for (int i = 0; i < OP_WORDS; i++)
        words[i] = atomic_load(&other->op[i]);
    memcpy(op, words, sizeof op);
    op[sizeof op - 1] = 0;
    if (atomic_load(&other->unit) >= 0)
        snprintf(unit, sizeof unit, ", unit %d", atomic_load(&other->unit));
    double ago = tsr_now() - (double)seen * 1e-6;
    char host[64] = "this host"; /* who publishes on a board is of its node */
    static const char *const lives[] = {
        [RUNS] = "", [STOPPED] = "; its process is stopped", [GONE] = "; its process is gone"};
    gethostname(host, sizeof host - 1);
    snprintf(out, out_bytes, "rank %d (last seen at step %llu, %s%s, %.*f s ago, on %s%s)", rank,
             (unsigned long long)atomic_load(&other->step), op, unit, ago < 10 ? 1 : 0, ago, host,
             lives[life_of(board, rank)]);
}

/* ---- death ---- */

void tsr_board_kill(tsr_board *board, int rank, tsr_status status, const char *message)
{
    int alive = 0;
    if (!atomic_compare_exchange_strong(&board->death, &alive, 1)) {
        /* Whoever fails at the same moment finds it dead afterwards. The bound is for a writer that
         * was itself killed half-way. */
        double end = tsr_now() + 1;
        while (atomic_load(&board->death) == 1 && tsr_now() < end)
            sched_yield();
        return;
    }
    board->dead_rank = rank;
    board->dead_status = status;
    snprintf(board->dead_message, sizeof board->dead_message, "%s", message);
    atomic_store(&board->death, 2);
    ring(board);
}

bool tsr_board_is_dead(const tsr_board *board)
{
    return atomic_load(&board->death) == 2;
}

tsr_status tsr_board_death(const tsr_board *board, int *rank, const char **message)
{
    *rank = board->dead_rank;
    *message = board->dead_message;
    return board->dead_status;
}

tsr_status tsr_board_check(const tsr_board *board, int rank)
{
    if (!tsr_board_is_dead(board))
        return TSR_OK;
    if (board->dead_status == TSR_ETIMEOUT || board->dead_status == TSR_ERANKS ||
        board->dead_rank == rank)
        return tsr_fail_lines(board->dead_status, "%s", board->dead_message);
    return tsr_fail_lines(TSR_ECOMM, "rank %d failed: %s", board->dead_rank, board->dead_message);
}

/* ---- gates ---- */

/* Appends the members that have not entered (or, with `unfinished`, have entered but do not run any
 * more); how many. */
static int name_members(char *out, size_t out_bytes, const tsr_board_gate *gate, bool unfinished)
{
    char one[256];
    size_t used = 0;
    int count = 0;
    uint64_t mine = atomic_load(&gate->board->ranks[gate->rank].entered[gate->slot]);
    *out = 0;
    for (int i = 0; i < gate->member_count; i++) {
        int rank = gate->members[i];
        bool late = atomic_load(&gate->board->ranks[rank].entered[gate->slot]) < mine;
        if (late == unfinished || (!late && tsr_board_answers(gate->board, rank)))
            continue;
        tsr_board_describe(gate->board, rank, one, sizeof one);
        if (used < out_bytes - 1)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", count ? ", " : "", one);
        count++;
    }
    return count;
}

tsr_status tsr_board_late(const tsr_board_gate *gate, const char *op)
{
    char names[1024];
    const char *what = "arrived at";
    int late = name_members(names, sizeof names, gate, false);
    if (!late) {
        late = name_members(names, sizeof names, gate, true);
        what = "finished";
    }
    if (!late)
        return tsr_fail(TSR_ETIMEOUT,
                        "rank %d has waited %g s for the other ranks at %s; all ranks of this node "
                        "have arrived there, so look at the other nodes and the links between them",
                        gate->rank, gate->timeout_seconds, op);
    return tsr_fail(TSR_ETIMEOUT, "%s %s not %s %s within %g s of rank %d", names,
                    late > 1 ? "have" : "has", what, op, gate->timeout_seconds, gate->rank);
}

void tsr_board_arrive(const tsr_board_gate *gate, uint64_t count)
{
    atomic_store(&gate->board->ranks[gate->rank].entered[gate->slot], count);
}

/* Gives up on a gate; false if all have passed it in the meantime. */
static bool shut(_Atomic uint64_t *word, uint64_t passed)
{
    uint64_t now = atomic_load(word);
    while (!(now & GATE_SHUT) && now >> 16 == passed)
        if (atomic_compare_exchange_weak(word, &now, now | GATE_SHUT))
            return true;
    return (now & GATE_SHUT) && (now & ~GATE_SHUT) >> 16 == passed;
}

/* Why a wait must end now; TSR_OK to go on. */
static tsr_status why_stop(const tsr_board_gate *gate, tsr_device *device, double end,
                           const char *op)
{
    TSR_TRY(tsr_board_check(gate->board, gate->rank));
    tsr_status status = device ? tsr_device_check(device) : TSR_OK;
    return status < 0 || tsr_now() < end ? status : tsr_board_late(gate, op);
}

/* Enters; returns true if that completes the round, whose number goes to *round. */
static bool enter(const tsr_board_gate *gate, uint64_t tag, uint64_t *round)
{
    _Atomic uint64_t *word = gate_word(gate);
    struct rank_state *mine = &gate->board->ranks[gate->rank];
    uint64_t now = atomic_load(word), next;
    bool last;
    uint64_t entered = atomic_load(&mine->entered[gate->slot]);
    atomic_store(&mine->tag[gate->slot][(entered + 1) % 2], tag);
    atomic_store(&mine->entered[gate->slot], entered + 1);
    do {
        *round = (now & ~GATE_SHUT) >> 16;
        if (now & GATE_SHUT)
            return false;
        last = (int)(now & 0xffff) + 1 == gate->member_count;
        next = last ? (*round + 1) << 16 : now + 1;
    } while (!atomic_compare_exchange_weak(word, &now, next));
    if (last)
        ring(gate->board);
    return last;
}

static bool is_over(const tsr_board_gate *gate, uint64_t round)
{
    return (atomic_load(gate_word(gate)) & ~GATE_SHUT) >> 16 != round;
}

tsr_status tsr_board_pass(const tsr_board_gate *gate, tsr_device *device, const char *op,
                          uint64_t tag)
{
    tsr_board *board = gate->board;
    double end = tsr_now() + gate->timeout_seconds;
    uint64_t round;
    TSR_TRY(tsr_board_check(board, gate->rank));
    if (enter(gate, tag, &round))
        return TSR_OK;
    for (;;) {
        uint32_t bell = tsr_board_bell(board);
        if (is_over(gate, round))
            return TSR_OK;
        tsr_status status = why_stop(gate, device, end, op);
        if (status < 0) {
            if (!shut(gate_word(gate), round))
                return TSR_OK;
            tsr_board_kill(board, gate->rank, status, tsr_last_error());
            tsr_status death = tsr_board_check(board, gate->rank);
            return death < 0 ? death : status;
        }
        tsr_board_sleep(board, bell, end - tsr_now());
    }
}

int tsr_board_differs(const tsr_board_gate *gate, uint64_t *tag)
{
    const struct rank_state *ranks = gate->board->ranks;
    uint64_t entered = atomic_load(&ranks[gate->rank].entered[gate->slot]);
    uint64_t mine = atomic_load(&ranks[gate->rank].tag[gate->slot][entered % 2]);
    for (int i = 0; i < gate->member_count; i++) {
        *tag = atomic_load(&ranks[gate->members[i]].tag[gate->slot][entered % 2]);
        if (*tag != mine)
            return gate->members[i];
    }
    return -1;
}

void tsr_board_join(const tsr_board_gate *gate)
{
    uint64_t round;
    if (enter(gate, 0, &round))
        return;
    for (;;) {
        uint32_t bell = tsr_board_bell(gate->board);
        if (is_over(gate, round))
            return;
        tsr_board_sleep(gate->board, bell, SLICE);
    }
}

/* ---- the end ---- */

void tsr_board_post(tsr_board *board, int rank, tsr_status status, const char *message)
{
    struct rank_state *mine = &board->ranks[rank];
    if (atomic_load(&mine->status) == 0) { /* else a reader may hold the message */
        if (status < 0)
            snprintf(mine->message, sizeof mine->message, "%s", message);
        atomic_store(&mine->status, (int)status);
    }
    atomic_store(&mine->posted, true);
    ring(board);
}

bool tsr_board_posted(const tsr_board *board, int rank, tsr_status *status, const char **message)
{
    const struct rank_state *other = &board->ranks[rank];
    if (!atomic_load(&other->posted))
        return false;
    *status = (tsr_status)atomic_load(&other->status);
    *message = other->message;
    return true;
}

void tsr_board_leave(tsr_board *board)
{
    atomic_fetch_add(&board->left, 1);
    ring(board);
}

int tsr_board_left(const tsr_board *board)
{
    return atomic_load(&board->left);
}
