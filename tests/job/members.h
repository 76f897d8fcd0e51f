/*
 * members.h: runs of several adapters on one base, called member0, member1, ..., on ranks that are threads.
 */
#ifndef TESTS_JOB_MEMBERS_H
#define TESTS_JOB_MEMBERS_H

#include "job/fixture.h"

#define MEMBERS_MAX 4

typedef struct {
    tsr_comm *world; /* of the rank; filled in */
    const char *config;
    int count;           /* members */
    int stop_after;      /* steps of each but its last, on rank 0; 0: never */
    bool resume, poison; /* poison: over what all share, after every step */
    int rank, status;
    volatile int stop;
    char message[1024];
    uint64_t planned, taken;
    job_result result[MEMBERS_MAX];
} members_run;

/* A line `key: value` behind `before`; in it %s is the scratch directory, %d the length of a packed row. */
void members_put_key(tsr_text *out, const char *before, const char *line);

/* Trains them in `all` of the scratch directory; a failure, or another memory than the plan's, fails the test. *out is rank
 * 0's; free with members_free. */
void members_run_all(members_run *out, int ranks, members_run prototype);
void members_free(members_run *run);

#endif
