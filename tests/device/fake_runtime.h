/* fake_runtime.h: what a test tells the made-up CUDA runtime, and what that counts. */
#ifndef TSR_TESTS_DEVICE_FAKE_RUNTIME_H
#define TSR_TESTS_DEVICE_FAKE_RUNTIME_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#define FAKE_FREE  12345678u /* bytes of device memory */
#define FAKE_TOTAL 98765432u

/* Calls that take memory, or any that may fail. */
enum fake_calls { FAKE_ALLOCATIONS, FAKE_ANY, FAKE_KINDS };

/* Zero is a runtime that works. */
struct fake_runtime {
    enum fake_calls fails;
    int fail_at; /* which call of these fails, from 1; 0: none */
    cudaError_t error;
    int count[FAKE_KINDS]; /* calls so far */
    int failed;            /* of them */
    int live;              /* allocations, registrations, streams and events */
    bool entered;          /* the context is made */
    int major;             /* compute capability; 0: 9 */
    int driver;            /* CUDA that the driver knows, if `cards` is an error */
    cudaError_t cards;     /* what counting them returns */
    int more_cards;        /* beside the first */
    cudaError_t probe;     /* what loading a kernel returns */
    int arch;              /* that kernels are compiled for; 0: 90 */
};

extern struct fake_runtime fake;

#endif
