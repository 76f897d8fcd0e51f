/*
 * The suite on MPI ranks: test_comm_mpi [-r RANKS_PER_NODE] [-m MESSAGE_BYTES] CASE
 *
 * CASE "live" is all cases after which the communicator lives, in one run. A case that kills it
 * ends with exit code 71 on every rank, like the program would.
 */
#include "comm/comm_parts.h"
#include "comm/conformance.h"

#include <string.h>
#include <unistd.h>

static tsr_comm *create(const tsr_comm_mpi_options *options, double timeout_seconds)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    tsr_comm *comm;
    OK(tsr_comm_create_mpi_with(&comm, timeout_seconds ? timeout_seconds : 60, options));
    return comm;
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
        tsr_conformance_run(test, create(&options, test->timeout_seconds));
        ran++;
        code = test->dies ? 71 : 0;
    }
    return ran ? code : 64;
}
