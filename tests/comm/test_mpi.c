/*
 * The suite on MPI ranks: test_comm_mpi [-r RANKS_PER_NODE] [-m MESSAGE_BYTES] CASE
 *
 * CASE "live" is all cases after which the communicator lives, in one run. A case that kills it
 * ends with exit code 71 on every rank, like the program would.
 */
#include "base/clock.h"
#include "comm/comm_parts.h"
#include "comm/conformance.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static tsr_comm *create(const tsr_comm_mpi_options *options, double timeout_seconds)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    tsr_comm *comm;
    OK(tsr_comm_create_mpi_with(&comm, timeout_seconds ? timeout_seconds : 60, options));
    return comm;
}

/* Ranks that passed, counted in memory that is named after mpirun's process. */
static bool wait_for_all(int size)
{
    char name[64];
    snprintf(name, sizeof name, "/tessera-test-%ld", (long)getppid());
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(int)) != 0)
        return false;
    int *passed = mmap(NULL, sizeof *passed, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (passed == MAP_FAILED)
        return false;
    __atomic_add_fetch(passed, 1, __ATOMIC_SEQ_CST);
    double end = tsr_now() + 60;
    while (__atomic_load_n(passed, __ATOMIC_SEQ_CST) < size && tsr_now() < end)
        usleep(1000);
    bool all = __atomic_load_n(passed, __ATOMIC_SEQ_CST) == size;
    munmap(passed, sizeof *passed);
    shm_unlink(name); /* whoever comes second finds none */
    return all;
}

int main(int argc, char **argv)
{
    tsr_comm_mpi_options options = {0};
    for (int option; (option = getopt(argc, argv, "r:m:")) != -1;) {
        if (option == 'r')
            options.ranks_per_node = atoi(optarg);
        else if (option == 'm')
            options.message_bytes = (uint64_t)atoll(optarg);
        else
            return 64;
    }
    if (optind + 1 != argc)
        return 64;
    int ran = 0, code = 0;
    for (int i = 0; i < tsr_conformance_count; i++) {
        const tsr_case *test = &tsr_conformance[i];
        if (strcmp(argv[optind], test->dies ? test->name : "live"))
            continue;
        tsr_comm *comm = create(&options, test->timeout_seconds);
        int size = tsr_comm_size(comm);
        tsr_conformance_run(test, comm);
        ran++;
        if (test->dies)
            code = wait_for_all(size) ? 71 : 4;
    }
    return ran ? code : 64;
}
