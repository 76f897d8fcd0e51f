/*
 * train/output.h: output_dir, which a training, merge or quantize writes to. TSR_ECONFIG, TSR_EIO: with the
 * path.
 */
#ifndef TSR_TRAIN_OUTPUT_H
#define TSR_TRAIN_OUTPUT_H

#include "config/config.h"
#include "io/folder.h"

/* What is there already of output_dir's path is directories, and the last of them can be written to.
 */
tsr_status tsr_output_check_place(const tsr_config *config);

/* What a command makes of a name in output_dir: S_IFREG, S_IFDIR, or 0: nothing. */
typedef mode_t tsr_output_type(const char *name);

/* Opens output_dir, through which everything in it is reached from then on; `make`: makes it first, as
 * mkdir -p does. TSR_ECONFIG: something in it has a name that the command uses, or a temporary file's,
 * and is a link or of another type. *out NULL: it is not there. */
tsr_status tsr_output_open(tsr_folder **out, const tsr_config *config, tsr_output_type *type_of,
                           bool make);

/* The same names, of a folder that is open. */
tsr_status tsr_output_check_names(const tsr_folder *folder, tsr_output_type *type_of);

/* Takes it for this job alone (LOCK_EX), or asks whether another has it (LOCK_SH); to be let go. A file
 * system that has no locks stops nobody. */
tsr_status tsr_output_lock(const tsr_folder *folder, const tsr_config *config, int kind);
void tsr_output_unlock(const tsr_folder *folder);

/* Removes the temporary files that were left of what the command writes. */
tsr_status tsr_output_tidy(const tsr_folder *folder, tsr_output_type *type_of);

#endif
