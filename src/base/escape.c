#include "base/escape.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

bool tsr_escape_needed(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
           (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

/* The length of the colour that `text` begins with; 0: none. */
static size_t colour_bytes(const char *text, size_t length)
{
    if (length < 3 || text[0] != '\033' || text[1] != '[')
        return 0;
    size_t digits = 0;
    while (digits < 16 && 2 + digits < length && text[2 + digits] &&
           strchr("0123456789;", text[2 + digits]))
        digits++;
    return 2 + digits < length && text[2 + digits] == 'm' ? digits + 3 : 0;
}

/* The length of what stays as it is at the beginning of `text`; 0, and *code and *bytes of what does not. */
static size_t kept_bytes(uint32_t *code, size_t *bytes, const char *text, size_t length,
                         tsr_escape_form form)
{
    *bytes = tsr_utf8_next(code, text, length);
    if (*bytes == 0) {
        *bytes = 1;
        *code = form == TSR_ESCAPE_JSON ? 0xfffd : (unsigned char)*text;
        return 0;
    }
    if (!tsr_escape_needed(*code) || (*code == '\n' && form != TSR_ESCAPE_LINE) ||
        (*code == '\t' && (form == TSR_ESCAPE_LINES || form == TSR_ESCAPE_COLOUR)))
        return *bytes;
    return form == TSR_ESCAPE_COLOUR ? colour_bytes(text, length) : 0;
}

size_t tsr_escape(char *out, size_t out_bytes, const char *text, size_t length,
                  tsr_escape_form form)
{
    size_t taken = 0, used = 0;
    while (taken < length) {
        char escape[TSR_ESCAPE_BYTES];
        const char *piece = text + taken;
        uint32_t code;
        size_t bytes, piece_bytes = kept_bytes(&code, &bytes, piece, length - taken, form);
        if (piece_bytes) {
            bytes = piece_bytes;
        } else {
            const char *how = form == TSR_ESCAPE_JSON ? "\\u%04x"
                              : bytes == 1            ? "\\x%02x"
                                                      : "\\u{%04x}";
            piece_bytes = (size_t)snprintf(escape, sizeof escape, how, (unsigned)code);
            piece = escape;
        }
        if (used + piece_bytes >= out_bytes)
            break;
        memcpy(out + used, piece, piece_bytes);
        used += piece_bytes;
        taken += bytes;
    }
    out[used] = 0;
    return taken;
}

void tsr_text_escape(tsr_text *out, const char *text, size_t length, tsr_escape_form form)
{
    char part[512];
    for (size_t taken; length > 0; text += taken, length -= taken) {
        taken = tsr_escape(part, sizeof part, text, length, form);
        tsr_text_puts(out, part);
    }
}

void tsr_text_name(tsr_text *out, const char *name)
{
    tsr_text_escape(out, name, strlen(name), TSR_ESCAPE_LINE);
}
