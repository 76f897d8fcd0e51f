/*
 * comm/launcher.h: what the environment says of how this process was started: alone, or as one of
 * several ranks by mpirun, srun or another launcher.
 *
 * An allocation of Slurm is no launcher: only a step of several tasks (srun) is.
 */
#ifndef TSR_COMM_LAUNCHER_H
#define TSR_COMM_LAUNCHER_H

#include <stdbool.h>

typedef struct {
    /* MPI knows the launcher, and is to be initialised, which may change the variables. */
    bool of_mpi;
    int rank, size;     /* -1, 0: not said */
    const char *claims; /* the variable that says that there are several ranks; NULL: none does */
    int claimed;        /* its value */
} tsr_launched;

tsr_launched tsr_launcher_look(void);

#endif
