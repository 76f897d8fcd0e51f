/*
 * comm/board.h: memory that all ranks of one node see, beside the collectives.
 *
 * It says what each rank is doing, who has entered which collective, and whether the communicator
 * is dead and why. Everything in it is a lock-free atomic, so it works between threads and, in
 * shared memory, between processes, and a process that is killed leaves no lock behind.
 *
 * A communicator and all its splits have one board; each of them has a slot in it.
 */
#ifndef TSR_COMM_BOARD_H
#define TSR_COMM_BOARD_H

#include "device/device.h"

#include <stdatomic.h>
#include <stdint.h>

#define TSR_BOARD_SLOTS         16   /* a root and its splits, over the whole life of the root */
#define TSR_BOARD_MESSAGE_BYTES 4096 /* a longer message is cut */
#define TSR_BOARD_OP_BYTES      24

typedef struct tsr_board tsr_board;

/* Bytes of a board of `size` ranks, zeroed bytes of which become one by tsr_board_init (called once
 * for all that share it). */
uint64_t tsr_board_bytes(int size);
void tsr_board_init(tsr_board *board, int size);

/* A board in this process's own memory; the caller frees it with free. */
tsr_status tsr_board_create(tsr_board **out, int size);

/* ---- what a rank is doing ---- */

void tsr_board_publish(tsr_board *board, int rank, uint64_t step, const char *op, int unit);

/* Whether a rank's process is there and not stopped, as far as can be told. */
bool tsr_board_answers(const tsr_board *board, int rank);

/* "rank 2 (last seen at step 7, COMPUTE, unit 3, 12 s ago, on node4; its process is stopped)" or
 * "rank 2". */
void tsr_board_describe(const tsr_board *board, int rank, char *out, size_t out_bytes);

/* ---- death ---- */

/* The first call decides; `rank` is who failed or who noticed. It is dead when any call returns. */
void tsr_board_kill(tsr_board *board, int rank, tsr_status status, const char *message);

/* TSR_OK, or what a waiter of rank `rank` gets: TSR_ETIMEOUT as it was found, anything else that
 * another rank reported as TSR_ECOMM. Stores the message. */
tsr_status tsr_board_check(const tsr_board *board, int rank);
bool tsr_board_is_dead(const tsr_board *board);

/* Who killed it, with what; only for a dead board. */
tsr_status tsr_board_death(const tsr_board *board, int *rank, const char **message);

/* ---- gates: where the ranks of a communicator wait for each other ---- */

typedef struct {
    tsr_board *board;
    int slot;           /* of the communicator */
    int gate;           /* its gate in the slot: the lowest rank that passes it */
    int rank;           /* of the caller, in the root */
    const int *members; /* in the root, those of this node, ascending */
    int member_count;
    double timeout_seconds;
} tsr_board_gate;

/* Waits until all members have entered. Either all pass or none does, once and for ever: after a
 * rank has given up, the gate stays shut. `device` (may be NULL) ends the wait when it is poisoned,
 * and kills the board. Nobody waits longer than the deadline: then the board is killed with
 * TSR_ETIMEOUT, which names who has not entered `op`. `tag` says what the caller is about to do. */
tsr_status tsr_board_pass(const tsr_board_gate *gate, tsr_device *device, const char *op,
                          uint64_t tag);

/* After a pass: the first member that came with another tag than the caller's, and its tag; -1 if
 * none did. All members see the same tags. */
int tsr_board_differs(const tsr_board_gate *gate, uint64_t *tag);

/* The same after tsr_board_pass, when every member is sure to come: nothing ends the wait. */
void tsr_board_join(const tsr_board_gate *gate);

/* The message of a wait that reached its deadline, naming the members that are behind; returns
 * TSR_ETIMEOUT. */
tsr_status tsr_board_late(const tsr_board_gate *gate, const char *op);

/* For collectives that meet elsewhere, in a slot that nobody passes gates of: this rank has come to
 * its collective number `count`. */
void tsr_board_arrive(const tsr_board_gate *gate, uint64_t count);

/* ---- the end ---- */

/* Leaves this rank's status for the others, who cannot be reached by collectives any more. The
 * first failure stays. */
void tsr_board_post(tsr_board *board, int rank, tsr_status status, const char *message);

/* True, and the posted status and message (borrowed), if `rank` has posted. */
bool tsr_board_posted(const tsr_board *board, int rank, tsr_status *status, const char **message);

/* Counts the ranks that have nothing more to say. */
void tsr_board_leave(tsr_board *board);
int tsr_board_left(const tsr_board *board);

/* Sleeps until something on the board changes, `seconds` at most. */
uint32_t tsr_board_bell(const tsr_board *board);
void tsr_board_sleep(tsr_board *board, uint32_t bell, double seconds);

#endif
