/*
 * adapters/regex.h: regular expressions over module paths, as Python's re.fullmatch. Private to
 * this folder.
 */
#ifndef TSR_ADAPTERS_REGEX_H
#define TSR_ADAPTERS_REGEX_H

#include "base/regex.h"

typedef struct tsr_path_regex tsr_path_regex;

/* `any_parent`: the expression may stand behind any "parent." of the path, as a key of a PEFT
 * pattern does. `key` is the configuration key that messages name. TSR_ECONFIG: not a regular
 * expression. The caller frees *out. */
tsr_status tsr_path_regex_create(tsr_path_regex **out, const char *key, const char *expression,
                                 bool any_parent);

/* *out: whether all of `path` matches. TSR_ECONFIG: it was given up, since the budget is used up. */
tsr_status tsr_path_regex_match(bool *out, const tsr_path_regex *regex, tsr_regex_budget *budget,
                                const char *path);

void tsr_path_regex_free(tsr_path_regex *regex);

#endif
