/*
 * cli/key_option.h: keys as HfArgumentParser takes them, --learning_rate 2e-4, as key=value.
 */
#ifndef TSR_CLI_KEY_OPTION_H
#define TSR_CLI_KEY_OPTION_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

/* Whether the argument is --key, --key=value or --no_key with a key that is known; dashes inside may be underscores. */
bool tsr_key_option_known(const char *arg);

/* Writes args[*index] and the values behind it as one "key=value", and moves *index to the last of them. A flag needs no
 * value; a key that takes a list takes all words up to the next option, key=value or, where `has_job` is false, job.yaml.
 * TSR_EUSAGE: the value is missing. */
tsr_status tsr_key_option_parse(tsr_text *out, char *const *args, int count, int *index,
                                bool has_job);

#endif
