/*
 * base/escape.h: text from outside on its way to people. A name, a path, a key or a row may hold what a terminal obeys or a
 * reader does not see: control characters, bidirectional overrides, line separators, bytes that are no UTF-8. Messages
 * (base/status.h), log lines (base/log.h) and everything that the program prints pass through here; other UTF-8 stays as it is.
 */
#ifndef TSR_BASE_ESCAPE_H
#define TSR_BASE_ESCAPE_H

#include "base/text.h"

#include <stdint.h>

typedef enum {
    TSR_ESCAPE_LINE,   /* nothing stays: a name, a message of one line */
    TSR_ESCAPE_LINES,  /* newlines and tabs stay */
    TSR_ESCAPE_COLOUR, /* and colours (ESC [ 1 ; 32 m), which a terminal can undo */
    TSR_ESCAPE_JSON    /* newlines stay; the others become \u009b, which is the same JSON */
} tsr_escape_form;

/* Whether the character is written as an escape, newlines and tabs among them. */
bool tsr_escape_needed(uint32_t code);

/* Writes text[0..length) to out[0..out_bytes), with a zero: \x1b for an ASCII character or a byte that is no UTF-8, \u{202e}
 * for others. Stops before what does not fit; returns how many bytes of `text` were taken (some, where out_bytes is
 * TSR_ESCAPE_BYTES or more). A backslash stays, so that what was escaped before does not change. */
#define TSR_ESCAPE_BYTES 32
size_t tsr_escape(char *out, size_t out_bytes, const char *text, size_t length,
                  tsr_escape_form form);

void tsr_text_escape(tsr_text *out, const char *text, size_t length, tsr_escape_form form);

/* A name, a path or a value, for a line of a text whose own newlines stay. */
void tsr_text_name(tsr_text *out, const char *name);

#endif
