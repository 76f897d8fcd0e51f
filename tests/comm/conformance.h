/*
 * comm/conformance.h: what every communicator must do. Each case is run by every rank, with a fresh
 * communicator, its own device and stream. A check that fails ends the program.
 */
#ifndef TSR_TESTS_COMM_CONFORMANCE_H
#define TSR_TESTS_COMM_CONFORMANCE_H

#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d: %s; last error: %s\n", __FILE__, __LINE__, me->rank,  \
                    #condition, tsr_last_error());                                                 \
            _Exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == TSR_OK)

typedef struct {
    tsr_comm *comm;
    tsr_device *device;
    tsr_stream *stream;
    int rank, size;
} tsr_case_rank;

typedef struct {
    const char *name;
    void (*run)(tsr_case_rank *me);
    int ranks;              /* at least that many */
    double timeout_seconds; /* of the communicator; 0: 60 */
    bool dies;              /* the communicator is dead at the end */
} tsr_case;

extern const tsr_case tsr_conformance[];
extern const int tsr_conformance_count;

/* Runs one case on a communicator; destroys it. */
void tsr_conformance_run(const tsr_case *c, tsr_comm *comm);

#endif
