/*
 * decode.c: ids to text.
 */
#include "base/unicode.h"
#include "tokenizer/parts.h"

static void append_lossy(tsr_text *out, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        size_t bad;
        if (tsr_utf8_check(text + i, bytes - i, &bad)) {
            tsr_text_append(out, text + i, bytes - i);
            return;
        }
        tsr_text_append(out, text + i, bad);
        tsr_text_append(out, "\xef\xbf\xbd", 3);
        i += bad + tsr_utf8_bad_bytes(text + i + bad, bytes - i - bad);
    }
}

/* Bytes spelled as <0x0A>, which lie in raw from `begin` on: in Hugging Face's decoder a run of them is text,
 * or one U+FFFD each. */
static void end_run(tsr_text *raw, size_t begin)
{
    size_t bad, count = raw->length - begin;
    if (!count || raw->failed || tsr_utf8_check(raw->data + begin, count, &bad))
        return;
    raw->length = begin;
    for (size_t i = 0; i < count; i++)
        tsr_text_append(raw, "\xef\xbf\xbd", 3);
}

tsr_status tsr_tokenizer_decode(tsr_text *out, const tsr_tokenizer *tokenizer, const int32_t *ids,
                                size_t count, bool skip_special)
{
    tsr_auto_text raw = {0};
    size_t run = 0; /* where a run of such bytes begins */
    for (size_t i = 0; i < count; i++) {
        bool known = ids[i] >= 0 && (size_t)ids[i] < tokenizer->vocab_count;
        const tsr_vocab_entry *entry = known ? &tokenizer->vocab[ids[i]] : NULL;
        if (!entry || !entry->content || (skip_special && entry->special))
            continue;
        if (tokenizer->bpe.characters && !entry->is_byte)
            end_run(&raw, run);
        tsr_text_append(&raw, entry->bytes, entry->byte_count);
        run = entry->is_byte ? run : raw.length;
    }
    if (tokenizer->bpe.characters)
        end_run(&raw, run);
    size_t skip = tokenizer->strip_start && raw.length && raw.data[0] == ' ';
    append_lossy(out, tsr_text_string(&raw) + skip, raw.length - skip);
    bool failed = raw.failed || out->failed;
    return failed ? tsr_fail(TSR_ENOMEM, "no memory for the text of %zu tokens", count) : TSR_OK;
}
