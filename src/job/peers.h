/*
 * job/peers.h: all ranks are the same program, and what they compute with gives the same bits.
 *
 * The checks are collective on `stream` and block. TSR_ERANKS, on every rank, names two ranks that
 * differ, their hosts, and what each has.
 */
#ifndef TSR_JOB_PEERS_H
#define TSR_JOB_PEERS_H

#include "comm/comm.h"
#include "kernels/kernels.h"

/* Lets the CPU's kernels of this process be changed to those that the processors of all ranks have,
 * where there are any, instead of refusing. For the program to say, before it creates a job: they are
 * all of the process, and an embedder's bits would change between two jobs. */
void tsr_peers_take_common(void);

/* Version and commit. */
tsr_status tsr_peers_check_program(tsr_comm *world, tsr_stream *stream);

/* OpenBLAS and its kernels, or the model of the GPUs and their libraries. Before anything is computed. */
tsr_status tsr_peers_check_kernels(const tsr_kernels *kernels, tsr_device *device, tsr_comm *world,
                                   tsr_stream *stream);

/* A text that must be the same on all ranks; `what` says what it is, `advice` what to do. */
#define TSR_PEERS_TEXT_BYTES 448
tsr_status tsr_peers_compare(const char *text, const char *what, const char *advice,
                             tsr_comm *world, tsr_stream *stream);

#endif
