/*
 * base/text.h: a growing string, for messages, JSON lines and rendered chats.
 *
 * A failed allocation is remembered: later calls do nothing and tsr_text_failed tells at the end.
 */
#ifndef TSR_BASE_TEXT_H
#define TSR_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* A byte range [begin, end) of a text. */
typedef struct {
    size_t begin, end;
} tsr_span;

/* Zero-initialise. `data` is zero-terminated whenever length > 0; it may hold zeros inside. */
typedef struct {
    char *data;
    size_t length, capacity;
    bool failed;
} tsr_text;

void tsr_text_append(tsr_text *text, const char *data, size_t length);
void tsr_text_puts(tsr_text *text, const char *string);
void tsr_text_printf(tsr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* `words` of a line that begins at column `indent`, broken at spaces so that none is longer than `columns`; what follows
 * a break is indented as far. Without the last newline. */
void tsr_text_wrap(tsr_text *text, const char *words, int indent, int columns);

/* first and second into out, cut to room - 1 bytes: what snprintf("%s%s") does, in a fifth of its time. */
void tsr_text_join(char *out, size_t room, const char *first, const char *second);

/* The string so far, "" when empty. Borrowed until the next call. */
const char *tsr_text_string(const tsr_text *text);

/* Forgets the content but keeps the memory. */
void tsr_text_clear(tsr_text *text);
void tsr_text_free(tsr_text *text);

/* A local of this type is freed where its scope ends. */
#define tsr_auto_text __attribute__((cleanup(tsr_text_free))) tsr_text

#endif
