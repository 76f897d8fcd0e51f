/*
 * base/process.h: processes of this machine as /proc shows them: whether one that was noted down is still there,
 * and what started this one.
 */
#ifndef TSR_BASE_PROCESS_H
#define TSR_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A number is given again, but not with the same time of start. pid 0: none. */
typedef struct {
    long pid;
    uint64_t start; /* clock ticks after the boot */
} tsr_process;

tsr_process tsr_process_self(void);

/* What started this one as a rank of a job: mpirun, or its daemon on this machine. None: it is no rank. */
tsr_process tsr_process_launcher(void);

/* False also of one that was killed and is still giving back what it has. */
bool tsr_process_lives(const tsr_process *process);

/* Of the machine's boot and of the namespace of process numbers: those of two that differ mean nothing to
 * each other. */
uint64_t tsr_process_host(void);

#endif
