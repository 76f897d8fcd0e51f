/*
 * chat_marks.c: where the words of messages are in a rendering.
 *
 * The chat is rendered once more with marks in its contents: strings of letters that nothing of the row has and no
 * template can know. Where the marks are taken away and the rendering is the plain one, byte for byte, the
 * template has treated the contents alike, and the marks say where they are. A template that tests or cuts what a
 * content begins with, say, gives another rendering; then nothing is known.
 */
#include "base/hash.h"
#include "base/unicode.h"
#include "data/chat_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONCE_LENGTH 16
#define NONCE_TRIES  64
#define MARK_LENGTH  (NONCE_LENGTH + 8 + 1) /* with the message's index, and 'b' or 'e' */

static void put_mark(char out[MARK_LENGTH + 1], const tsr_conversation *c, size_t index, char side)
{
    snprintf(out, MARK_LENGTH + 1, "%s%08zx%c", c->nonce, index & 0xffffffff, side);
}

size_t tsr_chat_space(const char *text)
{
    uint32_t code;
    size_t at = 0, step, bytes = strlen(text);
    while (at < bytes && (step = tsr_utf8_next(&code, text + at, bytes - at)) &&
           tsr_unicode_python_space(code))
        at += step;
    return at;
}

/* Where text[0..bytes) ends without white space. */
static size_t space_behind(const char *text, size_t bytes)
{
    uint32_t code;
    while (bytes) {
        size_t begin = bytes - 1;
        while (begin && ((unsigned char)text[begin] & 0xc0) == 0x80)
            begin--;
        if (!tsr_utf8_next(&code, text + begin, bytes - begin) || !tsr_unicode_python_space(code))
            break;
        bytes = begin;
    }
    return bytes;
}

tsr_span tsr_chat_words(const char *content)
{
    static const char thought[] = "</think>";
    tsr_span words = {0, strlen(content)};
    for (const char *at = content; (at = strstr(at, thought)); at += sizeof thought - 1)
        words.begin = (size_t)(at - content) + sizeof thought - 1;
    words.begin += tsr_chat_space(content + words.begin);
    words.end = words.begin + space_behind(content + words.begin, words.end - words.begin);
    return words;
}

/* A copy of a message as the template sees it with marks; NULL: no memory. */
static json_t *mark_message(const tsr_conversation *c, size_t index)
{
    json_t *message = json_copy(json_array_get(c->seen, index)), *content;
    const char *text = json_string_value(json_object_get(message, "content"));
    char mark[MARK_LENGTH + 1];
    tsr_text marked = {0};
    bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    if (!message || !text || (calls && !text[tsr_chat_space(text)]))
        return message; /* beside calls it matters to templates whether there are words */
    tsr_span words = tsr_chat_words(text);
    bool assistant = tsr_chat_is_assistant(json_array_get(c->messages, index));
    words.begin = assistant ? words.begin : words.end;
    tsr_text_append(&marked, text, words.begin);
    put_mark(mark, c, index, 'b');
    tsr_text_puts(&marked, assistant ? mark : "");
    tsr_text_append(&marked, text + words.begin, words.end - words.begin);
    put_mark(mark, c, index, 'e');
    tsr_text_puts(&marked, mark);
    tsr_text_puts(&marked, text + words.end);
    content = marked.failed ? NULL : json_stringn(marked.data, marked.length);
    tsr_text_free(&marked);
    if (content && json_object_set_new(message, "content", content) == 0)
        return message;
    json_decref(message);
    return NULL;
}

json_t *tsr_chat_mark_alone(const tsr_conversation *c, size_t index, const char *role)
{
    char mark[MARK_LENGTH + 1];
    put_mark(mark, c, index, 'e');
    return json_pack("{s:s, s:s}", "role", role, "content", mark);
}

static tsr_status mark_messages(tsr_conversation *c)
{
    bool failed = !(c->marked = json_array());
    for (size_t i = 0; i < json_array_size(c->seen) && !failed; i++)
        failed = json_array_append_new(c->marked, mark_message(c, i)) != 0;
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for messages") : TSR_OK;
}

/* Letters that the row does not have; false: it has all that were tried, which no row has by chance. */
static bool choose_nonce(tsr_conversation *c)
{
    const tsr_text *text = &c->row->text;
    uint64_t hash = tsr_hash(TSR_HASH_START, tsr_text_string(text), text->length);
    for (uint32_t try = 0; try < NONCE_TRIES; try++) {
        uint64_t letters = tsr_hash(hash, &try, sizeof try);
        for (int i = 0; i < NONCE_LENGTH; i++)
            c->nonce[i] = (char)('a' + (letters >> 4 * i & 15));
        c->nonce[NONCE_LENGTH] = 0;
        if (!memmem(tsr_text_string(text), text->length, c->nonce, NONCE_LENGTH))
            return true;
    }
    return false;
}

/* The mark at `mark`, which lies at byte `at` of the plain text. */
static bool read_mark(tsr_span *places, size_t count, const char *mark, size_t left, size_t at)
{
    unsigned index;
    char digits[9] = {0};
    if (left < MARK_LENGTH)
        return false;
    memcpy(digits, mark + NONCE_LENGTH, 8);
    if (strspn(digits, "0123456789abcdef") != 8 || sscanf(digits, "%x", &index) != 1 ||
        index >= count)
        return false;
    size_t *place = mark[MARK_LENGTH - 1] == 'b'   ? &places[index].begin
                    : mark[MARK_LENGTH - 1] == 'e' ? &places[index].end
                                                   : NULL;
    if (!place || *place != TSR_CHAT_NO_PLACE)
        return false;
    *place = at;
    return true;
}

/* Takes the marks out; whether what is left is the plain text. */
static bool read_marks(const tsr_conversation *c, const tsr_text *marked)
{
    const tsr_text *plain = &c->row->text;
    const char *from = tsr_text_string(marked), *end = from + marked->length;
    const char *to = tsr_text_string(plain);
    size_t count = json_array_size(c->seen), left = plain->length;
    for (;;) {
        const char *mark = memmem(from, (size_t)(end - from), c->nonce, NONCE_LENGTH);
        size_t bytes = (size_t)((mark ? mark : end) - from);
        if (bytes > left || memcmp(from, to, bytes) != 0)
            return false;
        to += bytes;
        left -= bytes;
        if (!mark)
            return !left;
        if (!read_mark(c->row->places, count, mark, (size_t)(end - mark), plain->length - left))
            return false;
        from = mark + MARK_LENGTH;
    }
}

/* Whether the words come in the order of the messages; a system prompt may have another place. */
static bool in_order(const tsr_conversation *c)
{
    size_t last = 0;
    for (size_t i = 0; i < json_array_size(c->seen); i++) {
        const json_t *role = json_object_get(json_array_get(c->seen, i), "role");
        tsr_span place = c->row->places[i];
        size_t begin = place.begin != TSR_CHAT_NO_PLACE ? place.begin : place.end;
        if (place.end == TSR_CHAT_NO_PLACE || !strcmp(json_string_value(role), "system"))
            continue;
        if (begin < last || place.end < begin)
            return false;
        last = place.end;
    }
    return true;
}

static tsr_status reserve_places(tsr_chat_row *row, size_t count)
{
    if (count > row->place_capacity) {
        tsr_span *places = realloc(row->places, 2 * count * sizeof *places);
        if (!places)
            return tsr_fail(TSR_ENOMEM, "no memory for the places of %zu messages", count);
        row->places = places;
        row->place_capacity = 2 * count;
    }
    for (size_t i = 0; i < count; i++)
        row->places[i] = (tsr_span){TSR_CHAT_NO_PLACE, TSR_CHAT_NO_PLACE};
    return TSR_OK;
}

tsr_status tsr_chat_place(tsr_conversation *c)
{
    size_t count = json_array_size(c->seen);
    tsr_rendering *rendering = &c->row->scratch[2];
    TSR_TRY(reserve_places(c->row, count));
    c->placed = false;
    if (!choose_nonce(c))
        return TSR_OK;
    TSR_TRY(mark_messages(c));
    tsr_status status = tsr_chat_render(rendering, c->chat, c->marked, count, false);
    c->placed = status == TSR_OK && read_marks(c, &rendering->text) && in_order(c);
    return status == TSR_EDATA ? TSR_OK : status;
}

size_t tsr_chat_behind_mark(const tsr_conversation *c, const tsr_text *marked, size_t index)
{
    char mark[MARK_LENGTH + 1];
    const char *text = tsr_text_string(marked);
    put_mark(mark, c, index, 'e');
    const char *at = memmem(text, marked->length, mark, MARK_LENGTH);
    if (!at)
        return TSR_CHAT_NO_PLACE;
    size_t behind = (size_t)(at - text) + MARK_LENGTH;
    bool last = !memmem(text + behind, marked->length - behind, c->nonce, NONCE_LENGTH);
    return last ? behind : TSR_CHAT_NO_PLACE;
}
