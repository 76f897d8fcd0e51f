/* fake_cuda.h: what a test tells the made-up CUDA, and what that counts. */
#ifndef TSR_TESTS_COMM_FAKE_CUDA_H
#define TSR_TESTS_COMM_FAKE_CUDA_H

#include <stdbool.h>

/* Memory and events that a thread, a rank, asks for. */
struct fake_cuda {
    int allocations; /* so far */
    int fail_at;     /* which one there is no memory for, from 1; 0: none */
    bool full;       /* its streams have no room while one waits for a value: enqueuing waits too */
    int no_device;   /* 1: its device cannot be chosen any more */
};
extern _Thread_local struct fake_cuda fake_cuda;

/* What a rank's abort of NCCL takes, and how many are over. */
extern _Atomic int fake_nccl_abort_ms[2], fake_nccl_aborts;

/* Those of all ranks that are not given back. */
extern _Atomic int fake_cuda_live;

#endif
