/*
 * base/unicode.h: the two notions of white space, and normalization form C (by utf8proc); with UTF-8 (base/utf8.h).
 */
#ifndef TSR_BASE_UNICODE_H
#define TSR_BASE_UNICODE_H

#include "base/status.h"
#include "base/utf8.h"

#include <stdint.h>

/* What Python's str.strip takes. */
bool tsr_unicode_python_space(uint32_t code);

/* Unicode's White_Space, the \s of Rust's regex: without U+001C to U+001F. */
bool tsr_unicode_white_space(uint32_t code);

/* Whether the text certainly is in NFC already (so that it need not be composed). */
bool tsr_unicode_nfc_quick(const char *text, size_t bytes);

/* NFC of a text that is UTF-8. map[i] for each byte i of the result is the byte range of the source
 * that it came from: begin in map[2 * i], end in map[2 * i + 1]. The caller frees *out and *map.
 * TSR_ENOMEM. */
tsr_status tsr_unicode_nfc(char **out, size_t *out_bytes, size_t **map, const char *text,
                           size_t bytes);

/* utf8proc's version. */
const char *tsr_unicode_library(void);

#endif
