/*
 * data/findings.h: what is worth a warning about rows that are kept.
 */
#ifndef TSR_DATA_FINDINGS_H
#define TSR_DATA_FINDINGS_H

#include "base/status.h"
#include "base/text.h"

#include <stdint.h>

typedef enum {
    TSR_FINDING_KEYS,    /* keys that seem to say what is trained, and are not read */
    TSR_FINDING_IN_VAIN, /* a message that is not trained says that it is */
    TSR_FINDING_BARE,    /* a turn or completion without words is trained: its end alone */
    TSR_FINDING_HOLLOW, /* and nothing else of the row: said with the former, an error if no row is better */
    TSR_FINDING_CALLS,      /* tool_calls that are not in the template's text */
    TSR_FINDING_THINKING,   /* thinking of a trained turn that is not in the template's text */
    TSR_FINDING_UNPROMPTED, /* a turn that does not begin with all of the generation prompt */
    TSR_FINDING_UNMARKED,   /* no response_template in the text: nothing is trained */
    TSR_FINDING_COUNT
} tsr_finding;

/* How many rows, and the first of them. */
typedef struct {
    int64_t rows, line;
    int32_t file;
} tsr_found;

struct tsr_dataset;

/* "unread_keys" and so on, for JSON. */
const char *tsr_finding_name(tsr_finding finding);

/* Appends all findings but those without a row: "; 3 of 9 rows have ... (first train.jsonl:7)". */
void tsr_findings_put(tsr_text *out, const struct tsr_dataset *dataset);

/* TSR_EDATA: no row of those that train something has more than the ends of empty turns. */
tsr_status tsr_findings_check(const struct tsr_dataset *dataset, const char *key);

/* A warning for each; `key` is what the messages call the data set. */
void tsr_findings_warn(const struct tsr_dataset *dataset, const char *key);

#endif
