/*
 * inputs/earlier.h: what an earlier run left in its directory: its own job.yaml, how it ended, and the
 * adapter that stands for it.
 */
#ifndef TSR_INPUTS_EARLIER_H
#define TSR_INPUTS_EARLIER_H

#include "config/config.h"

typedef enum {
    TSR_EARLIER_NONE, /* no metrics.jsonl */
    TSR_EARLIER_OPEN, /* under way, stopped or failed */
    TSR_EARLIER_DONE
} tsr_earlier_state;

/* The state of the run whose output_dir `directory` is, and the last step that it did (0: none). */
tsr_status tsr_earlier_end(tsr_earlier_state *state, int64_t *step, const char *directory);

/* Steps of a run that came to its end, with its adapter; 0: it has not. */
tsr_status tsr_earlier_done(int64_t *steps, const char *directory);

/* Whether a run wrote the file, as the resolved configuration in its output_dir. */
bool tsr_earlier_wrote(const char *path);

/* tsr_config_load. Where the file is a run's own job.yaml, an evaluation and a merge are of what that run
 * trained, unless an override names another init_adapter: of the adapter in its directory, or of the newest
 * checkpoint there while the run has not ended. The directory is the one that holds the file (a run may have
 * been moved), or, of a copy that lies elsewhere, the output_dir that it names. TSR_ECONFIG: the run has no
 * adapter yet. A merge of it writes to the
 * file's directory with "-merged" behind its name, unless an override names another output_dir. */
tsr_status tsr_earlier_config(tsr_config *out, const tsr_config_source *source);

#endif
