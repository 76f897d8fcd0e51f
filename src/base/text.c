#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(tsr_text *text, size_t more)
{
    if (text->failed)
        return false;
    if (more >= SIZE_MAX / 4 - text->length) {
        text->failed = true;
        return false;
    }
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return true;
    size_t capacity = 2 * text->capacity > need ? 2 * text->capacity : need;
    capacity = capacity > 64 ? capacity : 64;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void tsr_text_append(tsr_text *text, const char *data, size_t length)
{
    if (!reserve(text, length))
        return;
    if (length)
        memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

void tsr_text_puts(tsr_text *text, const char *string)
{
    tsr_text_append(text, string, strlen(string));
}

void tsr_text_printf(tsr_text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length >= 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void tsr_text_wrap(tsr_text *text, const char *words, int indent, int columns)
{
    for (size_t room = (size_t)(columns - indent);;) {
        size_t length = strlen(words), end = length > room ? room : length;
        if (length > room) {
            while (end > 0 && words[end] != ' ')
                end--;
            end = end ? end : strcspn(words, " "); /* one long word */
        }
        tsr_text_append(text, words, end);
        words += end + (words[end] == ' ');
        if (!*words)
            return;
        tsr_text_printf(text, "\n%*s", indent, "");
    }
}

void tsr_text_join(char *out, size_t room, const char *first, const char *second)
{
    size_t head = strnlen(first, room - 1), tail = strnlen(second, room - 1 - head);
    memcpy(out, first, head);
    memcpy(out + head, second, tail);
    out[head + tail] = 0;
}

const char *tsr_text_string(const tsr_text *text)
{
    return text->data ? text->data : "";
}

void tsr_text_clear(tsr_text *text)
{
    text->length = 0;
    if (text->data)
        text->data[0] = 0;
}

void tsr_text_free(tsr_text *text)
{
    free(text->data);
    *text = (tsr_text){0};
}
