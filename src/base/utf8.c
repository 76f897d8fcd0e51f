#include "base/utf8.h"

size_t tsr_utf8_next(uint32_t *code, const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *code = p[0];
        return 1;
    }
    size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (p[0] < 0xc2 || p[0] > 0xf4 || bytes < length)
        return 0;
    uint32_t value = p[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (p[i] & 0x3f);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return 0;
    *code = value;
    return length;
}

size_t tsr_utf8_bad_bytes(const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0xc2 || p[0] > 0xf4 || bytes < 2)
        return 1;
    /* The second byte has a narrower range after these leads. */
    unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[0] < 0xe0 || p[1] < low || p[1] > high)
        return 1;
    if (p[0] < 0xf0 || bytes < 3 || (p[2] & 0xc0) != 0x80)
        return 2;
    return 3;
}

size_t tsr_utf8_put(char out[4], uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

bool tsr_utf8_check(const char *text, size_t bytes, size_t *at)
{
    for (size_t i = 0; i < bytes;) {
        uint32_t code;
        size_t length = tsr_utf8_next(&code, text + i, bytes - i);
        if (!length) {
            *at = i;
            return false;
        }
        i += length;
    }
    return true;
}

size_t tsr_utf8_count(const char *text, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}
