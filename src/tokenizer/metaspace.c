#include "tokenizer/metaspace.h"

#include <stdlib.h>
#include <string.h>

static bool at_metaspace(const char *text, size_t bytes)
{
    return bytes >= TSR_METASPACE_BYTES && !memcmp(text, TSR_METASPACE, TSR_METASPACE_BYTES);
}

bool tsr_metaspace_begins(const char *text, size_t bytes)
{
    return at_metaspace(text, bytes) || (bytes && text[0] == ' ');
}

/* Appends `count` bytes that came from [begin, begin + source) of the source; those of a character that is
 * kept map one to one. */
static void append(char *out, size_t *map, size_t *at, const char *bytes, size_t count,
                   size_t begin, size_t source)
{
    for (size_t i = 0; i < count; i++, ++*at) {
        bool kept = source == count;
        out[*at] = bytes[i];
        map[2 * *at] = begin + (kept ? i : 0);
        map[2 * *at + 1] = begin + (kept ? i + 1 : source);
    }
}

tsr_status tsr_metaspace_write(char **out, size_t *out_bytes, size_t **map, const char *text,
                               size_t bytes, bool prepend)
{
    size_t most = TSR_METASPACE_BYTES * (bytes + 1);
    *out = malloc(most);
    *map = malloc(2 * most * sizeof **map);
    if (!*out || !*map) {
        free(*out);
        free(*map);
        return tsr_fail(TSR_ENOMEM, "no memory for a text of %zu bytes", bytes);
    }
    *out_bytes = 0;
    if (prepend)
        append(*out, *map, out_bytes, TSR_METASPACE, TSR_METASPACE_BYTES, 0, 0);
    for (size_t i = 0; i < bytes; i++) {
        bool space = text[i] == ' ';
        append(*out, *map, out_bytes, space ? TSR_METASPACE : text + i,
               space ? TSR_METASPACE_BYTES : 1, i, 1);
    }
    return TSR_OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

void tsr_metaspace_read(char *out, size_t *out_bytes, bool *is_byte, const char *token,
                        size_t bytes)
{
    *is_byte = bytes == 6 && !memcmp(token, "<0x", 3) && token[5] == '>' &&
               hex_digit(token[3]) >= 0 && hex_digit(token[4]) >= 0;
    *out_bytes = *is_byte;
    if (*is_byte) {
        out[0] = (char)(16 * hex_digit(token[3]) + hex_digit(token[4]));
        return;
    }
    for (size_t i = 0; i < bytes;) {
        bool space = at_metaspace(token + i, bytes - i);
        out[(*out_bytes)++] = space ? ' ' : token[i];
        i += space ? TSR_METASPACE_BYTES : 1;
    }
}
