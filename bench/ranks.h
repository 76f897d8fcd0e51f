/* ranks.h: a benchmark's ranks before it has a job. */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include <mpi.h>
#include <stdlib.h>

/* Under mpirun MPI is the benchmark's, so that its ranks can meet outside the job; else one rank. */
static inline void bench_meet(int *rank, int *ranks)
{
    int provided;
    *rank = 0, *ranks = 1;
    if (!getenv("OMPI_COMM_WORLD_SIZE"))
        return;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

#endif
