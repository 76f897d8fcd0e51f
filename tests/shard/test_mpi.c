/*
 * test_mpi.c: the toy model under mpirun.
 *
 *     test_shard_mpi live                 all homes, equal to the serial run
 *     test_shard_mpi kill KIND RANK       that rank is killed at its second op of the kind
 *     test_shard_mpi fail KIND RANK       that rank fails there; all ranks end with its exit code
 *
 * Exit code: that of the status; 1 if the result is wrong.
 */
#include "shard/toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ranks_of_job(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    return size ? atoi(size) : 1;
}

static void make_model(random_model *model, int home, int ranks)
{
    random_source random = {.key = 11};
    random_limits limits = {
        .max_layers = 4, .max_chunks = 2, .max_ranks = 1, .max_replicas = 1, .home = home};
    do
        random_model_make(model, &random, &limits);
    while (model->options.layer_count < 3 || model->unit[0].trainable.segment_count == 0);
    random_model_set(model, ranks, 1, true);
    random_model_make_full(model);
}

/* Words are compared on rank 0: losses, norms and so, by the next step's, all masters. */
static int run(const toy_job *job, tsr_comm *world)
{
    toy_outcome serial, out;
    toy_report report;
    bool first = tsr_comm_rank(world) == 0;
    toy_outcome_make(&serial, job->model);
    toy_outcome_make(&out, job->model);
    toy_run_serial(&serial, job);
    toy_run_rank(&report, &out, job, world);
    int code = tsr_status_exit_code(report.status);
    if (report.status < 0)
        fprintf(stderr, "%s\n", report.message);
    else if (first &&
             (serial.word_count != out.word_count ||
              memcmp(serial.word, out.word, (size_t)out.word_count * sizeof out.word[0]) != 0))
        code = 1;
    toy_outcome_free(&serial);
    toy_outcome_free(&out);
    return code;
}

int main(int argc, char **argv)
{
    bool kill = argc == 4 && strcmp(argv[1], "kill") == 0;
    bool fail = argc == 4 && strcmp(argv[1], "fail") == 0;
    int home = argc == 3 ? atoi(argv[2]) : TSR_HOME_HOST_SHARDED;
    random_model model;
    make_model(&model, home, ranks_of_job());
    toy_job job = {.model = &model, .steps = 4, .micro_batches = 5, .eval_micro_batches = 3};
    if (kill || fail) {
        job.debug.fault = kill ? TSR_FAULT_KILL : TSR_FAULT_FAIL;
        job.debug.kind = (tsr_op_kind)atoi(argv[2]);
        job.debug.index = 1;
        job.fault_rank = atoi(argv[3]);
    } else if (argc != 3 || strcmp(argv[1], "live") != 0) {
        fprintf(stderr, "usage: %s live HOME | kill KIND RANK | fail KIND RANK\n", argv[0]);
        return 64;
    }
    tsr_comm *world;
    tsr_status status = tsr_comm_create_mpi(&world, 60);
    if (status < 0) {
        fprintf(stderr, "%s\n", tsr_last_error());
        return tsr_status_exit_code(status);
    }
    return run(&job, world);
}
