/*
 * row_case.h: rows given as text, loaded with a template, and what of them is trained, as text, with '.' for what is not.
 */
#ifndef TSR_TESTS_DATA_ROW_CASE_H
#define TSR_TESTS_DATA_ROW_CASE_H

#include "data/dataset.h"
#include "support/scratch.h"

#include <string.h>

static tsr_tokenizer *tokenizer;

static inline int setup(void **state)
{
    (void)state;
    scratch_make();
    return tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false);
}

static inline int teardown(void **state)
{
    (void)state;
    tsr_tokenizer_destroy(tokenizer);
    scratch_remove();
    return 0;
}

/* Turns of "<role>content<|eot_id|>". */
static const char plain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|eot_id|>\n"
                            "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

static inline tsr_status load_with(tsr_dataset **out, const char *text, const char *source,
                                   tsr_dataset_options options)
{
    tsr_chat *chat = NULL;
    char path[4096];
    const char *files[] = {path};
    write_text(scratch_path("template.jinja"), source);
    snprintf(path, sizeof path, "%s", scratch_path("template.jinja"));
    tsr_status status = tsr_chat_create(&chat, tokenizer, &(tsr_chat_options){.template = path});
    if (status < 0)
        fail_msg("%s", tsr_last_error());
    write_text(scratch_path("rows.jsonl"), text);
    snprintf(path, sizeof path, "%s", scratch_path("rows.jsonl"));
    options.files = files;
    options.file_count = 1;
    options.chat = chat;
    options.tokenizer = tokenizer;
    options.eos_id = tsr_tokenizer_eos(tokenizer);
    status = tsr_dataset_load(out, &options);
    tsr_chat_destroy(chat);
    return status;
}

static inline tsr_dataset *load(const char *text, const char *source, tsr_dataset_options options)
{
    tsr_dataset *data = NULL;
    if (load_with(&data, text, source, options) < 0)
        fail_msg("%s: %s", text, tsr_last_error());
    return data;
}

/* Each part of it is in the message of what cannot be loaded. */
static inline void refuses(const char *text, const char *source, tsr_dataset_options options,
                           tsr_status status, const char *const *parts)
{
    tsr_dataset *data = NULL;
    assert_int_equal(load_with(&data, text, source, options), status);
    for (int i = 0; parts[i]; i++)
        if (!strstr(tsr_last_error(), parts[i]))
            fail_msg("no '%s' in: %s", parts[i], tsr_last_error());
}

/* Appends the text of tokens [from, to) of sample `s`. */
static inline void append_tokens(tsr_text *out, const tsr_sample *s, int32_t from, int32_t to)
{
    assert_int_equal(
        tsr_tokenizer_decode(out, tokenizer, s->ids + from, (size_t)(to - from), false), TSR_OK);
}

/* The trained text of sample `index`, with '.' for each run of other tokens. */
static inline void check_row(const tsr_dataset *data, int64_t index, const char *want)
{
    tsr_sample s = tsr_dataset_sample(data, index);
    tsr_text shown = {0};
    for (int32_t from = 0, to; from < s.token_count; from = to) {
        bool trained = s.labels[from] != TSR_LABEL_IGNORED;
        for (to = from; to < s.token_count && (s.labels[to] != TSR_LABEL_IGNORED) == trained; to++)
            assert_true(!trained || s.labels[to] == s.ids[to]);
        if (trained)
            append_tokens(&shown, &s, from, to);
        else
            tsr_text_puts(&shown, ".");
    }
    assert_string_equal(tsr_text_string(&shown), want);
    tsr_text_free(&shown);
}

/* All of its text. */
static inline void check_text(const tsr_dataset *data, int64_t index, const char *want)
{
    tsr_sample s = tsr_dataset_sample(data, index);
    tsr_text text = {0};
    append_tokens(&text, &s, 0, s.token_count);
    assert_string_equal(tsr_text_string(&text), want);
    tsr_text_free(&text);
}

#endif
