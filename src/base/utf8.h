/*
 * base/utf8.h: UTF-8, read and written.
 */
#ifndef TSR_BASE_UTF8_H
#define TSR_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
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

#endif
