/*
 * tessera_mpi.h: a job on the ranks of the caller's own MPI communicator.
 *
 * All ranks of MPI_COMM_WORLD need no more than tsr_job_options.use_mpi = 1, and are faster that
 * way. This header is for some of them: it fills in the bootstrap with MPI's all-gather.
 * tessera.h itself does not include mpi.h.
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
 *     MPI_Comm comm;
 *     MPI_Comm_split(MPI_COMM_WORLD, color, 0, &comm);
 *     tsr_job_options options = TSR_JOB_OPTIONS_INIT;
 *     options.config_path = "job.yaml";
 *     if (tsr_job_bootstrap_mpi(&options.bootstrap, &comm) != MPI_SUCCESS) ...
 *     tsr_job_create(&job, &options); ... tsr_job_destroy(job);
 *     MPI_Comm_free(&comm);
 *
 * Threads  The library calls MPI from a thread of its own, one call at a time, and only while the
 *          caller is inside a call of the library. That needs MPI_THREAD_SERIALIZED.
 */
#ifndef TESSERA_MPI_H
#define TESSERA_MPI_H

#include "tessera.h"

#include <limits.h>
#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline int tsr_job_mpi_all_gather(void *user, const void *send, void *receive,
                                         uint64_t bytes)
{
    if (bytes > INT_MAX)
        return MPI_ERR_COUNT;
    return MPI_Allgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE,
                         *(MPI_Comm *)user);
}

/* Fills *out. `comm` is borrowed until tsr_job_destroy and carries nothing else meanwhile; its
 * errors are returned from now on instead of ending the program. MPI_SUCCESS, or MPI_ERR_OTHER: MPI
 * was started with less than MPI_THREAD_SERIALIZED. */
static inline int tsr_job_bootstrap_mpi(tsr_job_bootstrap *out, MPI_Comm *comm)
{
    int rank = 0, size = 0, provided = 0;
    int code = MPI_Query_thread(&provided);
    if (code == MPI_SUCCESS && provided < MPI_THREAD_SERIALIZED)
        code = MPI_ERR_OTHER;
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(*comm, &rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(*comm, &size);
    if (code != MPI_SUCCESS)
        return code;
    out->rank = rank;
    out->size = size;
    out->all_gather = tsr_job_mpi_all_gather;
    out->user = comm;
    return MPI_SUCCESS;
}

#ifdef __cplusplus
}
#endif

#endif
