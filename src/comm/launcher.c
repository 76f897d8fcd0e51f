#include "comm/launcher.h"

#include <stdlib.h>

/* Open MPI's mpirun, what talks to any MPI by PMIx or PMI, and a step of Slurm's. The first whose `sign` is
 * there counts: mpirun may itself have been started by srun. */
static const struct {
    const char *sign, *rank, *size;
    bool of_mpi;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"PMIX_RANK", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", true},
    {"PMI_RANK", "PMI_RANK", "PMI_SIZE", true},
    {"PMI_SIZE", "PMI_RANK", "PMI_SIZE", true},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", false},
};

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text >= '0' && *text <= '9' ? atoi(text) : otherwise;
}

tsr_launched tsr_launcher_look(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (!getenv(launchers[i].sign))
            continue;
        tsr_launched found = {.of_mpi = launchers[i].of_mpi,
                              .rank = number(launchers[i].rank, -1),
                              .size = number(launchers[i].size, 0)};
        found.claims = found.size > 1   ? launchers[i].size
                       : found.rank > 0 ? launchers[i].rank
                                        : NULL;
        found.claimed = found.size > 1 ? found.size : found.rank;
        return found;
    }
    return (tsr_launched){.rank = -1};
}
