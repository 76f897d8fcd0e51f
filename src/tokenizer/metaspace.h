/*
 * tokenizer/metaspace.h: text as SentencePiece's vocabularies spell it: a space is U+2581, and one may be put
 * before the text.
 */
#ifndef TSR_TOKENIZER_METASPACE_H
#define TSR_TOKENIZER_METASPACE_H

#include "base/status.h"

#include <stdbool.h>

#define TSR_METASPACE       "\xe2\x96\x81"
#define TSR_METASPACE_BYTES ((size_t)3)

/* Whether a text begins with a space in either spelling. */
bool tsr_metaspace_begins(const char *text, size_t bytes);

/* map[i] for each byte i of the result is the byte range of the source that it came from: begin in
 * map[2 * i], end in map[2 * i + 1]; what was put before the text is of the range [0, 0). The caller frees
 * *out and *map. TSR_ENOMEM. */
tsr_status tsr_metaspace_write(char **out, size_t *out_bytes, size_t **map, const char *text,
                               size_t bytes, bool prepend);

/* What a token of such a vocabulary stands for: one byte for <0x0A> (*is_byte), else its text with spaces. Of
 * out there are as many bytes as of the token. */
void tsr_metaspace_read(char *out, size_t *out_bytes, bool *is_byte, const char *token,
                        size_t bytes);

#endif
