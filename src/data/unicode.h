/*
 * data/unicode.h: UTF-8, the two notions of white space, and normalization form C.
 *
 * The tables (unicode_tables.h) are made by tools/make_unicode_tables.py.
 */
#ifndef TSR_DATA_UNICODE_H
#define TSR_DATA_UNICODE_H

#include "base/status.h"

#include <stdint.h>

/* Reads one code point of text[0..bytes), bytes > 0, into *code; returns its length, or 0 where the
 * bytes are not UTF-8 (surrogates and overlong forms are not). */
size_t tsr_utf8_next(uint32_t *code, const char *text, size_t bytes);

/* How many bytes at `text`, which is not UTF-8 there, one U+FFFD replaces: the longest prefix of a
 * well-formed sequence, at least 1 (as Rust and Python replace). */
size_t tsr_utf8_bad_bytes(const char *text, size_t bytes);

/* Writes a code point; returns its length, 1 to 4. */
size_t tsr_utf8_put(char out[4], uint32_t code);

/* Whether all of it is UTF-8; otherwise *at is the first byte that is not. */
bool tsr_utf8_check(const char *text, size_t bytes, size_t *at);

/* Number of code points; the text must be UTF-8. */
size_t tsr_utf8_count(const char *text, size_t bytes);

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

#endif
