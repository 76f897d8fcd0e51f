/*
 * report/report.h: what a command found out, as one JSON object: printed as it is, or for people.
 *
 * For people: scalars a line each, objects indented below their key, a list of objects as a table. A
 * number whose key ends in "bytes", "_bytes_per_s" or "_flops_per_s" has its unit behind it instead of
 * in the key; true and false are yes and no, null is a dash.
 */
#ifndef TSR_REPORT_REPORT_H
#define TSR_REPORT_REPORT_H

#include "base/status.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Takes the reference of `root`, NULL: memory ran out while it was made. *text is the caller's
 * (free). */
tsr_status tsr_report_print(char **text, json_t *root, bool json);

/* "1.5 MiB". */
void tsr_report_put_bytes(tsr_text *out, uint64_t bytes);

/* What goes in: integers of 64 bits, strings of any bytes (those that are no UTF-8 become '?'; NULL
 * becomes null). A key for which memory ran out is left out. */
void tsr_report_int(json_t *object, const char *key, uint64_t value);
void tsr_report_real(json_t *object, const char *key, double value); /* not finite: null */
void tsr_report_bool(json_t *object, const char *key, bool value);
void tsr_report_string(json_t *object, const char *key, const char *value);
/* A new object or array under the key, borrowed; NULL: no memory, which all of these take. */
json_t *tsr_report_object(json_t *object, const char *key);
json_t *tsr_report_array(json_t *object, const char *key);
/* A new object at the end of an array, borrowed. */
json_t *tsr_report_row(json_t *array);
json_t *tsr_report_text(const char *value); /* a string of any bytes */

#endif
