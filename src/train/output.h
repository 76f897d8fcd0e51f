/*
 * train/output.h: the directory that something is written to. TSR_ECONFIG, TSR_EIO: with the path.
 */
#ifndef TSR_TRAIN_OUTPUT_H
#define TSR_TRAIN_OUTPUT_H

#include "config/config.h"

/* What is there already of output_dir's path is directories, and the last of them can be written to.
 */
tsr_status tsr_output_check_place(const tsr_config *config);

/* mkdir -p. */
tsr_status tsr_output_make_directory(const char *directory);

#endif
