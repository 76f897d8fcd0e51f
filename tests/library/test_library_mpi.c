/*
 * tessera_mpi.h: jobs on parts of MPI_COMM_WORLD. Every rank first trains alone, then all together
 * and, with four ranks, each half beside the other; every run has the same losses. Prints what is
 * wrong and exits with 1.
 */
#include <tessera_mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 2

static int fail(int rank, const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, tsr_last_error());
    return 1;
}

/* Trains on the ranks of comm; the loss of each step. */
static int train(double *loss, MPI_Comm comm, const char *what, const char *directory)
{
    int rank, world;
    char output[600];
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    snprintf(output, sizeof output, "output_dir=%s/%s", directory, what);
    const char *overrides[] = {output};
    tsr_job_options options = {
        .size = sizeof(tsr_job_options),
        .config_text = "model_name_or_path: " TSR_SOURCE_DIR "/examples/tiny-llama\n"
                       "dataset: " TSR_SOURCE_DIR "/tests/golden/traces/padded.jsonl\n"
                       "max_steps: 2\nlearning_rate: 2e-3\nlora_r: 4\ntotal_batch_size: 4\n"
                       "overwrite_output_dir: true\n",
        .overrides = overrides,
        .override_count = 1,
        .threads = 1,
        .timeout_seconds = 60};
    if (tsr_job_bootstrap_mpi(&options.bootstrap, &comm) != MPI_SUCCESS)
        return fail(world, "tsr_job_bootstrap_mpi");
    MPI_Comm_rank(comm, &rank);
    int status = tsr_job_create(&job, &options);
    if (status == 0 && (tsr_job_rank(job) != rank || options.bootstrap.rank != rank))
        status = -1;
    if (status == 0)
        status = tsr_job_start(job);
    for (int i = 0; i < STEPS && status == 0; i++) {
        status = tsr_job_step(job, &report);
        loss[i] = report.loss;
    }
    if (status == 0)
        status = tsr_job_save(job);
    tsr_job_destroy(job);
    return status == 0 ? 0 : fail(world, what);
}

/* All ranks of MPI_COMM_WORLD serve one job at a time, and after it the next. */
static int one_at_a_time(int world)
{
    tsr_job *job[2] = {NULL, NULL};
    tsr_job_options options = TSR_JOB_OPTIONS_INIT;
    options.config_text = "dataset: " TSR_SOURCE_DIR "/tests/golden/traces/padded.jsonl\n"
                          "model_name_or_path: " TSR_SOURCE_DIR "/examples/tiny-llama\n"
                          "output_dir: unused\n";
    options.purpose = TSR_JOB_DATA;
    options.use_mpi = 1;
    options.threads = 1;
    for (int turn = 0; turn < 2; turn++) {
        if (tsr_job_create(&job[0], &options) != 0)
            return fail(world, "a job on MPI_COMM_WORLD");
        if (tsr_job_create(&job[1], &options) != TSR_EINVAL ||
            !strstr(tsr_last_error(), "one at a time"))
            return fail(world, "a second job on MPI_COMM_WORLD");
        tsr_job_destroy(job[0]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int provided, world, size, failed = 0;
    char directory[256] = "/tmp/tessera-mpi-XXXXXX", name[32];
    double alone[STEPS], loss[STEPS];
    MPI_Comm comm;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (world == 0 && !mkdtemp(directory))
        return 1;
    MPI_Bcast(directory, sizeof directory, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int groups = size; groups >= 1 && !failed; groups /= 2) {
        int members = size / groups;
        snprintf(name, sizeof name, "%d-ranks-%d", members, world / members);
        MPI_Comm_split(MPI_COMM_WORLD, world / members, 0, &comm);
        failed = train(loss, comm, name, directory);
        MPI_Comm_free(&comm);
        if (groups == size)
            memcpy(alone, loss, sizeof alone);
        if (!failed && memcmp(alone, loss, sizeof alone) != 0) {
            fprintf(stderr, "rank %d: %s: other losses than alone\n", world, name);
            failed = 1;
        }
        MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    failed |= one_at_a_time(world);
    if (world == 0) {
        char command[300];
        snprintf(command, sizeof command, "rm -rf '%s'", directory);
        failed |= system(command) != 0;
    }
    MPI_Finalize();
    return failed;
}
