/* tokenizer.json: one that is accepted encodes any text, with ids and spans in range. */
#include "fuzz/fuzz.h"
#include "tokenizer/tokenizer.h"

static const char text[] =
    "Natalia sold 48/2 <both> cafe\xcc\x81 <left>\xe2\x80\x83 don't abab\n\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_tokenizer *t;
    tsr_tokens tokens = {0};
    fuzz_begin();
    tsr_status status =
        tsr_tokenizer_parse(&t, "tokenizer.json", (const char *)data, bytes, NULL, 0);
    fuzz_answer(status, TSR_EDATA);
    if (status < 0)
        return 0;
    fuzz_begin();
    status = tsr_tokenizer_encode(&tokens, t, text, sizeof text - 1, true);
    fuzz_answer(status, TSR_EDATA);
    for (size_t i = 0; status == TSR_OK && i < tokens.count; i++) {
        fuzz_check(tokens.ids[i] >= 0 && tokens.ids[i] < tsr_tokenizer_vocab_count(t));
        fuzz_check(tokens.spans[i].begin <= tokens.spans[i].end);
        fuzz_check(tokens.spans[i].end < sizeof text);
    }
    tsr_tokens_free(&tokens);
    tsr_tokenizer_destroy(t);
    return 0;
}
