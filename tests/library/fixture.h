/*
 * fixture.h: what the tests of the library share; of this tree they know include/tessera.h alone.
 */
#ifndef TESTS_LIBRARY_FIXTURE_H
#define TESTS_LIBRARY_FIXTURE_H

#include <tessera.h>

#include <pthread.h>

#define LIBRARY_RANKS 3
#define LIBRARY_MOST  4
#define LIBRARY_STEPS 3

extern char library_directory[]; /* of this test: out/, train.jsonl, eval.jsonl */
extern char library_config[2048];

/* Fixtures of a CMocka group: the directory, its rows, and the configuration of a short training. */
int library_set_up(void **state);
int library_tear_down(void **state);

/* Options of a job with this configuration, one thread, and lora_r 4. */
tsr_job_options library_options(const char *text);

/* A whole run: evaluated, trained, evaluated, saved. */
typedef struct {
    int status, steps;
    double loss[LIBRARY_STEPS], eval_loss, eval_before;
    uint64_t planned, used;
} library_result;

int library_run(library_result *r, const tsr_job_options *options);
void library_trained(const library_result *r);

/* Entries of a directory but those that begin with a dot. */
int library_entries(const char *path);

/* A progress callback: the job's files (not those that were there when they were noted) are not
 * inherited by a program that the caller starts meanwhile. How often one was seen. */
void library_note_descriptors(void);
void library_look_at_descriptors(void *user, const char *phase, double done, double total);
extern int library_descriptors_seen;

/* Ranks that are threads of this process, and meet in an all-gather. */
typedef struct {
    pthread_barrier_t barrier;
    const void *send[LIBRARY_MOST];
    int ranks;          /* 0: LIBRARY_RANKS */
    int calls, fail_at; /* rank 0 counts; all fail in that call; 0: none fails */
} library_meeting;

typedef struct {
    library_meeting *meeting;
    int rank;
} library_seat;

/* The all_gather of a tsr_job_bootstrap; user: a library_seat. */
int library_all_gather(void *user, const void *send, void *receive, uint64_t bytes);

#endif
