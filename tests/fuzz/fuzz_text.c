/* Any text through a real tokenizer: byte-level BPE gives back what went in, or the text is refused as no UTF-8. */
#include "fuzz/fuzz.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static tsr_tokenizer *t;
    tsr_tokens tokens = {0};
    tsr_text back = {0};
    if (!t)
        fuzz_check(tsr_tokenizer_open(&t, TSR_SOURCE_DIR "/examples/tiny-llama", false) == TSR_OK);
    fuzz_begin();
    tsr_status status = tsr_tokenizer_encode(&tokens, t, (const char *)data, bytes, false);
    fuzz_answer(status, TSR_EDATA);
    if (status == TSR_OK) {
        fuzz_check(tsr_tokenizer_decode(&back, t, tokens.ids, tokens.count, false) == TSR_OK);
        fuzz_check(back.length == bytes && memcmp(back.data ? back.data : "", data, bytes) == 0);
    }
    tsr_text_free(&back);
    tsr_tokens_free(&tokens);
    return 0;
}
