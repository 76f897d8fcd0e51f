/*
 * job/output.h: output_dir, which a training, merge or quantize writes to. TSR_ECONFIG, TSR_EIO: with the
 * path.
 */
#ifndef TSR_JOB_OUTPUT_H
#define TSR_JOB_OUTPUT_H

#include "config/config.h"
#include "io/file.h"

#include <stdatomic.h>

/* What is there already of output_dir's path is directories, and the last of them can be written to.
 */
tsr_status tsr_output_check_place(const tsr_config *config);

/* Opens output_dir, through which everything in it is reached from then on; `make`: makes it first, as
 * mkdir -p does. tsr_file_check_names has passed. *out NULL: it is not there. */
tsr_status tsr_output_open(tsr_folder **out, const tsr_config *config, tsr_file_types *type_of,
                           bool make);

/* Who has output_dir (output_lock.c): taken by one command at a time, from before it is written to until it
 * leaves, or asked for. A file system that has no locks stops nobody. TSR_ECONFIG, at once: another command
 * that goes on has it; TSR_EIO: a run that was killed has it, and was waited for in vain. */
#define TSR_OUTPUT_LOCK ".tessera.lock"

typedef struct {
    double seconds;           /* to wait for what was killed */
    const volatile int *stop; /* not 0 ends the waiting: TSR_ESTOPPED_UNSAVED; NULL: nothing does */
    const atomic_int *asked;  /* likewise */
} tsr_output_patience;

#define TSR_OUTPUT_SECONDS 30.0

tsr_status tsr_output_ask(const tsr_folder *folder, const tsr_config *config,
                          const tsr_output_patience *patience);
tsr_status tsr_output_take(int *lock, const tsr_folder *folder, const tsr_config *config,
                           const tsr_output_patience *patience);
/* lock -1: it was not taken. */
void tsr_output_leave(int lock, const tsr_folder *folder);

/* What is to be written there: bytes, of which that many go before; what it is, for people, and what would
 * make it less ("" or ", or ..."). */
typedef struct {
    uint64_t bytes, freed;
    const char *what, *advice;
} tsr_output_need;

/* TSR_ECONFIG: there is no room for it. A file system that does not say what is free refuses nothing. */
tsr_status tsr_output_check_space(const tsr_config *config, const tsr_output_need *need);

#endif
