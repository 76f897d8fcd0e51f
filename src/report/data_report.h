/*
 * report/data_report.h: what `tessera data` says: statistics of the tokenised data, and examples
 * with the trained tokens marked.
 */
#ifndef TSR_REPORT_DATA_REPORT_H
#define TSR_REPORT_DATA_REPORT_H

#include "inputs/inputs.h"

/* PLAIN marks trained text with brackets, COLOUR with ANSI colours; JSON is one object; PAGE is HTML, which loads nothing. */
typedef enum {
    TSR_REPORT_PLAIN,
    TSR_REPORT_COLOUR,
    TSR_REPORT_JSON,
    TSR_REPORT_PAGE
} tsr_report_form;

/* Writes about every data set of `inputs`, which tsr_inputs_read_data_alone filled, with its first
 * `show` samples. Control characters of the data are shown as escapes. TSR_ENOMEM. */
tsr_status tsr_data_report(tsr_text *out, const tsr_inputs *inputs, int64_t show,
                           tsr_report_form form);

#endif
