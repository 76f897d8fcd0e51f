/*
 * cli/directory.h: a directory where a command expects a job.yaml: the job of a run, of its checkpoint, or
 * of an adapter or a model alone.
 */
#ifndef TSR_CLI_DIRECTORY_H
#define TSR_CLI_DIRECTORY_H

#include "cli/usage.h"

/* The most keys that a directory stands for. */
#define TSR_DIRECTORY_KEYS 4

/* What a directory stands for. */
typedef struct {
    char *job;                      /* its job.yaml; NULL: keys alone */
    char *keys[TSR_DIRECTORY_KEYS]; /* "key=value", before those of the command line */
    int key_count;
} tsr_directory_job;

/* What `directory` means to `command`; with `resumes`: to continue. On success free *out with
 * tsr_directory_job_free. TSR_EUSAGE: nothing that it could be used for. */
tsr_status tsr_directory_job_find(tsr_directory_job *out, const char *directory,
                                  tsr_command command, bool resumes);
void tsr_directory_job_free(tsr_directory_job *job);

#endif
