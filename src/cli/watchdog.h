/*
 * cli/watchdog.h: ends the program where MPI waits for ever. Of the program, not of the library: no
 * other thread can end such a wait than by ending the process.
 */
#ifndef TSR_CLI_WATCHDOG_H
#define TSR_CLI_WATCHDOG_H

typedef struct tsr_watchdog tsr_watchdog;

/* Looks after the ranks' coming together (tsr_comm_mpi_stage), which may take so many seconds; then the program says
 * who waits for whom, and ends with 71. NULL where no launcher of MPI's started it, or no thread could be. */
tsr_watchdog *tsr_watchdog_start(double seconds);

/* The ranks are together, or have given up. NULL is fine. */
void tsr_watchdog_stop(tsr_watchdog *watchdog);

/* Looks after the end, where MPI waits for mpirun and for all ranks: the program, which has nothing else to do, says so
 * and ends with `code`, or with 71 where that is 0. */
void tsr_watchdog_end(double seconds, int code);

#endif
