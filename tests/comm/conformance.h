/*
 * comm/conformance.h: what every communicator must do. Each case is run by every rank, with a fresh
 * communicator, its own device and stream; the data lies in the device's memory. A check that fails
 * ends the program.
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

#define TSR_CASE_BUFFERS 64

typedef struct {
    tsr_comm *comm; /* under test */
    tsr_device *device;
    tsr_stream *stream;
    /* For what blocks: the same, but for communicators of CUDA devices. */
    tsr_comm *host;
    tsr_device *host_device;
    tsr_stream *host_stream;
    int rank, size;
    tsr_arena *arena[TSR_CASE_BUFFERS];
    int arena_count;
} tsr_case_rank;

typedef struct {
    const char *name;
    void (*run)(tsr_case_rank *me);
    int ranks;              /* at least that many */
    double timeout_seconds; /* of the communicator; 0: 60 */
    bool dies;              /* the communicator is dead at the end */
    bool exposes;   /* it exposes memory, which then is gone: the communicator's last case */
    bool host_only; /* no communicator of CUDA devices does that */
} tsr_case;

extern const tsr_case tsr_conformance[];
extern const int tsr_conformance_count;

/* Runs one case on a communicator; destroys it. */
void tsr_conformance_run(const tsr_case *c, tsr_comm *comm);

/* The same on the NCCL communicator of its ranks; each needs a GPU. */
void tsr_conformance_run_nccl(const tsr_case *c, tsr_comm *host);

/* The two halves of that, for other tests. */
void tsr_case_open_nccl(tsr_case_rank *me, tsr_comm *host);
void tsr_case_close(tsr_case_rank *me);

/* Device memory until tsr_case_free, or the end of the case. */
void *tsr_case_new(tsr_case_rank *me, uint64_t bytes);
void tsr_case_free(tsr_case_rank *me);
void tsr_case_put(tsr_case_rank *me, void *device, const void *host, uint64_t bytes);
void tsr_case_get(tsr_case_rank *me, void *host, const void *device, uint64_t bytes);

#endif
