/*
 * peer.c: a long training under mpirun in which one rank stands still or dies.
 *
 *     peer stop RANK | peer die RANK | peer bystander
 *
 * A bystander starts MPI and does nothing more. Each of the others says how long after that it came to its end, and with what message, and ends
 * with its exit code.
 */
#include "deadline.h"
#include "tessera.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAST_STEP 5

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* one clock for all processes of a machine */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void leave_time(void)
{
    FILE *file = fopen("moment", "w");
    if (!file || fprintf(file, "%.6f", now()) < 0 || fclose(file) != 0)
        exit(99);
}

static double read_time(void)
{
    double moment = 0;
    FILE *file = fopen("moment", "r");
    if (!file || fscanf(file, "%lf", &moment) != 1)
        moment = 0;
    if (file)
        fclose(file);
    return moment;
}

int main(int argc, char **argv)
{
    static const char *const overrides[] = {"max_steps=1000000", "progress=none"};
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_path = "job.yaml",
                               .overrides = overrides,
                               .override_count = 2,
                               .use_mpi = 1,
                               .threads = 1,
                               .timeout_seconds = DEADLINE};
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    if (argc == 2 && strcmp(argv[1], "bystander") == 0) {
        MPI_Init(NULL, NULL);
        pause();
    }
    if (argc != 3)
        return 64;
    int status = tsr_job_create(&job, &options);
    if (status == 0)
        status = tsr_job_start(job);
    int rank = job ? tsr_job_rank(job) : -1;
    while (status == 0 && (status = tsr_job_step(job, &report)) == 0)
        if (report.step == LAST_STEP && rank == atoi(argv[2])) {
            leave_time();
            raise(strcmp(argv[1], "stop") == 0 ? SIGSTOP : SIGKILL);
        }
    double after = now() - read_time();
    char line[8192];
    int length =
        snprintf(line, sizeof line, "peer %d after %.2f s: %s\n", rank, after, tsr_last_error());
    if (length > 0)
        fwrite(line, 1, (size_t)length, stderr);
    tsr_job_destroy(job);
    return tsr_job_exit_code(status);
}
