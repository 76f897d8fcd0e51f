/*
 * tiny_llama.h: the tokenizer and the chat template of examples/tiny-llama, and a scratch directory, for the tests of a program.
 */
#ifndef TSR_TESTS_DATA_TINY_LLAMA_H
#define TSR_TESTS_DATA_TINY_LLAMA_H

#include "data/dataset.h"
#include "support/scratch.h"

static tsr_tokenizer *tokenizer;
static tsr_chat *chat;

static inline int setup(void **state)
{
    (void)state;
    scratch_make();
    assert_int_equal(tsr_tokenizer_open(&tokenizer, TSR_SOURCE_DIR "/examples/tiny-llama", false),
                     TSR_OK);
    return tsr_chat_create(&chat, tokenizer, NULL);
}

static inline int teardown(void **state)
{
    (void)state;
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(tokenizer);
    scratch_remove();
    return 0;
}

#endif
