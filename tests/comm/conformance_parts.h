/*
 * comm/conformance_parts.h: the cases, each run by every rank, and what they share.
 */
#ifndef TSR_TESTS_COMM_CONFORMANCE_PARTS_H
#define TSR_TESTS_COMM_CONFORMANCE_PARTS_H

#include "comm/conformance.h"

/* The stream is idle, and nothing has failed. */
void tsr_case_wait(tsr_case_rank *me);

/* A word of device memory. */
int64_t *tsr_case_word(tsr_case_rank *me, int64_t value);

/* conformance_collectives.c and conformance_control.c */
void tsr_case_place(tsr_case_rank *me);
void tsr_case_all_gather(tsr_case_rank *me);
void tsr_case_pull(tsr_case_rank *me);
void tsr_case_exchange(tsr_case_rank *me);
void tsr_case_deal(tsr_case_rank *me);
void tsr_case_exposed_changes(tsr_case_rank *me);
void tsr_case_all_reduce(tsr_case_rank *me);
void tsr_case_broadcast(tsr_case_rank *me);
void tsr_case_group(tsr_case_rank *me);
void tsr_case_barrier(tsr_case_rank *me);
void tsr_case_pipeline(tsr_case_rank *me);
void tsr_case_share(tsr_case_rank *me);
void tsr_case_split(tsr_case_rank *me);
void tsr_case_refuse_to_block(tsr_case_rank *me);
void tsr_case_agree_ok(tsr_case_rank *me);
void tsr_case_agree_failures(tsr_case_rank *me);
void tsr_case_check_same(tsr_case_rank *me);
void tsr_case_abort_while_waiting(tsr_case_rank *me);
void tsr_case_abort_while_exchanging(tsr_case_rank *me);
void tsr_case_abort_while_copying(tsr_case_rank *me);
void tsr_case_abort_while_grouped(tsr_case_rank *me);
void tsr_case_device_fails(tsr_case_rank *me);
void tsr_case_poison_while_waiting(tsr_case_rank *me);
void tsr_case_laggard(tsr_case_rank *me);
void tsr_case_exchange_laggard(tsr_case_rank *me);
void tsr_case_copy_laggard(tsr_case_rank *me);
void tsr_case_out_of_step(tsr_case_rank *me);
void tsr_case_fails_beside_a_collective(tsr_case_rank *me);

#endif
