/*
 * chat_tokens.c: whether what a template writes between the words of a chat are tokens.
 *
 * <|im_start|> is one token to a model that was made for it, and eight pieces of text to another. What looks like such
 * a token in the rendering of a small chat is looked up in the tokenizer.
 */
#include "data/chat_parts.h"

#include <string.h>

#define LONGEST 48 /* bytes of what may be a token */

static bool is_one_of(const char *word, size_t bytes, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == bytes && !memcmp(*list, word, bytes))
            return true;
    return false;
}

/* Bytes of what looks like a special token at `text`; 0: nothing does. <think>, <tool_call> and [INST] are
 * text to many models that were trained with them. */
static size_t looks_special(const char *text)
{
    static const char *const plain[] = {"s", "/s", "bos", "eos", "unk", "pad", NULL};
    static const char bar[] = "\xef\xbd\x9c"; /* DeepSeek's */
    const char *inner = text + 1;
    size_t length = strcspn(inner, *text == '<' ? "<> \t\r\n" : "[] \t\r\n");
    if ((*text != '<' && *text != '[') || length > LONGEST ||
        inner[length] != (*text == '<' ? '>' : ']') || strspn(inner, "|") >= length)
        return 0;
    bool bars = *inner == '|' || inner[length - 1] == '|' || !strncmp(inner, bar, 3);
    bool turns = memmem(inner, length, "_of_", 4) != NULL; /* Gemma's */
    if (*text == '[' ? bars : bars || turns || is_one_of(inner, length, plain))
        return length + 2;
    return 0;
}

static tsr_status look_up(tsr_chat *chat, const char *text, size_t bytes)
{
    char word[LONGEST + 3];
    tsr_tokens pieces = {0};
    memcpy(word, text, bytes);
    word[bytes] = 0;
    if (tsr_tokenizer_id(chat->tokenizer, word) >= 0 ||
        strstr(tsr_text_string(&chat->lacking), word))
        return TSR_OK;
    tsr_status status = tsr_tokenizer_encode(&pieces, chat->tokenizer, word, bytes, false);
    if (status == TSR_OK && pieces.count > 1)
        tsr_text_printf(&chat->lacking, "%s%s (%zu pieces)", chat->lacking.length ? ", " : "", word,
                        pieces.count);
    tsr_tokens_free(&pieces);
    return status;
}

/* A chat of one turn each as a prompt, with a system prompt or without. */
static tsr_status render_small(tsr_rendering *out, tsr_chat *chat, bool system)
{
    json_auto_t *list = json_array();
    static const char *const roles[] = {"system", "user", "assistant", "user"};
    bool failed = !list;
    for (int i = !system; i < 4; i++)
        failed = failed || json_array_append_new(list, json_pack("{s:s, s:s}", "role", roles[i],
                                                                 "content", "1")) != 0;
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for messages")
                  : tsr_chat_render(out, chat, list, json_array_size(list), true);
}

tsr_status tsr_chat_look_up_tokens(tsr_chat *chat)
{
    tsr_rendering small = {0};
    TSR_TRY(tsr_chat_set_name(chat, "tools", json_null()));
    tsr_status status = render_small(&small, chat, true);
    if (status == TSR_EDATA)
        status = render_small(&small, chat, false);
    const char *text = status == TSR_OK ? tsr_text_string(&small.text) : "";
    for (size_t bytes; *text && status == TSR_OK; text += bytes ? bytes : 1)
        if ((bytes = looks_special(text)))
            status = look_up(chat, text, bytes);
    text = chat->named && status == TSR_OK ? chat->named->tokens : "";
    for (size_t bytes; *text && status == TSR_OK; text += bytes + (text[bytes] == ' ')) {
        bytes = strcspn(text, " ");
        status = look_up(chat, text, bytes);
    }
    tsr_rendering_free(&small);
    if (chat->lacking.failed)
        status = tsr_fail(TSR_ENOMEM, "no memory for the tokens of a chat template");
    return status == TSR_EDATA ? TSR_OK : status; /* such a template says it of the first row */
}

const char *tsr_chat_lacking_tokens(const tsr_chat *chat)
{
    return tsr_text_string(&chat->lacking);
}
