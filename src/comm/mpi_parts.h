/*
 * comm/mpi_parts.h: what comm_mpi.c and comm_mpi_start.c share. They alone use mpi.h.
 */
#ifndef TSR_COMM_MPI_PARTS_H
#define TSR_COMM_MPI_PARTS_H

#include "comm/comm_parts.h"

#include <mpi.h>

#define REQUESTS    256  /* under way at once */
#define ABORT_BYTES 1024 /* short enough to be sent without an answer */

/* What crosses to other nodes when the board dies. */
struct abort_message {
    int rank, status;
    char message[ABORT_BYTES - 2 * sizeof(int)];
};

struct mpi_world {
    MPI_Comm data, control;
    MPI_Request requests[REQUESTS];
    bool is_receive[REQUESTS];
    int pending;
    int64_t *scratch;
    uint64_t slot_elements; /* of scratch, for one peer */
    uint64_t message_bytes;
    bool given_up, spread;
    struct abort_message abort;
};

extern const tsr_comm_ops tsr_mpi_ops;

/* TSR_ECOMM with what MPI says of its code; TSR_OK: success. */
tsr_status tsr_mpi_check(int code, const char *what);

/* Between two polls. */
void tsr_mpi_rest(int polls);

/* A root is closed, dead or alive: when the process exits MPI is finalized, or left as it is. */
void tsr_mpi_closed(const tsr_comm *root);

#endif
