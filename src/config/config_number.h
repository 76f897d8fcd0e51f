/*
 * config/config_number.h: numbers as text, the same in every locale of the embedding program.
 */
#ifndef TSR_CONFIG_NUMBER_H
#define TSR_CONFIG_NUMBER_H

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

/* A decimal number, the whole of `text`: sign, digits, point, exponent; no hexadecimal, infinity or
 * NaN. False: it is not one. Too large a number gives an infinity. */
bool tsr_number_parse(double *out, const char *text);

/* A whole number, also written as 1e3 or 8.0. False: not a whole number. What does not fit in 64
 * bits is clamped. */
bool tsr_number_parse_whole(int64_t *out, const char *text);

/* `digits` significant ones as printf's %g; 0: a whole number's digits, or the shortest text that reads
 * back as `value`. */
void tsr_number_put(tsr_text *out, double value, int digits);

/* `decimals` digits after the point. */
void tsr_number_put_fixed(tsr_text *out, double value, int decimals);

#endif
