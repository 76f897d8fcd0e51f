/*
 * chat_case.h: tiny-llama's tokenizer, a template and a row given as text, and what of the row is trained.
 */
#ifndef TSR_TESTS_DATA_CHAT_CASE_H
#define TSR_TESTS_DATA_CHAT_CASE_H

#include "data/chat.h"
#include "data/golden_lines.h"
#include "support/scratch.h"

#include <unistd.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"

static tsr_tokenizer *tokenizer;
static tsr_chat_training training; /* roles and ends, of what follows */

static inline int setup(void **state)
{
    (void)state;
    return tsr_tokenizer_open(&tokenizer, MODEL, false);
}

static inline int teardown(void **state)
{
    (void)state;
    tsr_tokenizer_destroy(tokenizer);
    return 0;
}

/* Writes the template to a file, encodes the conversation and gives the status; with a prompt all behind it is
 * trained. */
static inline tsr_status encode_as(tsr_chat_row *row, const char *source, const char *messages,
                                   size_t prompt_count, bool assistant_only)
{
    char path[] = "/tmp/tsr_test_chat_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, source, strlen(source)), strlen(source));
    close(file);
    tsr_chat *chat = NULL;
    tsr_chat_options options = {.template = path};
    tsr_status status = tsr_chat_create(&chat, tokenizer, &options);
    unlink(path);
    if (status == TSR_OK) {
        json_t *json = json_loads(messages, JSON_DECODE_ANY, NULL);
        assert_non_null(json);
        training.assistant_only = assistant_only;
        status = tsr_chat_encode(row, chat, json, NULL, prompt_count, &training);
        json_decref(json);
    }
    tsr_chat_destroy(chat);
    return status;
}

static inline tsr_status encode_with(tsr_chat_row *row, const char *source, const char *messages,
                                     bool assistant_only)
{
    return encode_as(row, source, messages, 0, assistant_only);
}

#define USER(text)      "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"

#define SAYS(role, text, key) "{\"role\":\"" role "\",\"content\":\"" text "\"," key "}"

/* The trained bytes of the text, with '.' for the others. */
static inline void check_trained(const tsr_chat_row *row, const char *want)
{
    char shown[512] = {0};
    assert_true(row->text.length < sizeof shown);
    memset(shown, '.', row->text.length);
    for (size_t i = 0; i < row->tokens.count; i++)
        if (row->mask[i])
            memcpy(shown + row->tokens.spans[i].begin, row->text.data + row->tokens.spans[i].begin,
                   row->tokens.spans[i].end - row->tokens.spans[i].begin);
    assert_string_equal(shown, want);
}

#endif
