/*
 * base/called.h: lines that somebody will type: the program's name, and words that a shell reads as they are.
 */
#ifndef TSR_BASE_CALLED_H
#define TSR_BASE_CALLED_H

#include "base/text.h"

/* What messages call the program, as it can be typed anywhere: "tessera" until the program has said how it
 * was called (before anything else; `name` stays). */
const char *tsr_called(void);
void tsr_called_set(const char *name);

/* `word` for a shell: quoted where it must be. */
void tsr_shell_quote(tsr_text *out, const char *word);

#endif
