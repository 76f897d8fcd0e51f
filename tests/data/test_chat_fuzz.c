/*
 * Mutations of templates and of tokenizer.json, seeded and bounded in time: whatever comes out is
 * TSR_OK or TSR_EDATA with a message, and nothing is read or written out of place (the sanitizers
 * look on).
 */
#include "base/clock.h"
#include "base/philox.h"
#include "data/golden_lines.h"
#include "data/template.h"
#include "data/tokenizer.h"

#define SECONDS 1.0 /* for each of the two */

static uint64_t seed = 1;

static size_t draw(size_t below)
{
    seed = tsr_mix(seed + 0x9e3779b97f4a7c15u);
    return below ? (size_t)(seed % below) : 0;
}

/* Changes `text` of `bytes` bytes in place, within `capacity`: bytes, cuts, copies of parts. */
static size_t mutate(char *text, size_t bytes, size_t capacity)
{
    static const char *const words[] = {
        "{% ", " %}", "{{ ",  " }}",      "for ", "endfor", "| ",   "is ",      "[::-1]", "(",
        ")",   "'",   "{",    "}",        "[",    "]",      "null", "-1",       "\"",     "\\",
        "-%}", "{#",  "loop", "messages", "1e9",  "true",   ",",    "\xc3\xa9", "not ",   "\n"};
    for (size_t change = 0, changes = 1 + draw(4); change < changes && bytes; change++) {
        size_t at = draw(bytes), length = 1 + draw(20);
        length = length < bytes - at ? length : bytes - at;
        switch (draw(4)) {
        case 0:
            text[at] = (char)draw(256);
            break;
        case 1:
            memmove(text + at, text + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 2: {
            const char *word = words[draw(sizeof words / sizeof *words)];
            size_t more = strlen(word);
            if (bytes + more > capacity)
                break;
            memmove(text + at + more, text + at, bytes - at);
            memcpy(text + at, word, more);
            bytes += more;
            break;
        }
        default:
            memmove(text + draw(bytes - length + 1), text + at, length);
        }
    }
    return bytes;
}

static void check_status(tsr_status status)
{
    if (status == TSR_OK)
        return;
    assert_int_equal(status, TSR_EDATA);
    assert_true(strlen(tsr_last_error()) > 5);
}

static void test_templates(void **state)
{
    (void)state;
    static const char *const names[] = {"llama3",  "llama31", "qwen25",     "qwen3",
                                        "mistral", "llama2",  "generation", "chatml"};
    size_t bytes;
    char *text = golden_file("tests/golden/templates/variables.json", &bytes);
    json_t *variables = json_loadb(text, bytes, 0, NULL);
    const json_t *sets = json_object_get(variables, "sets");
    tsr_rendering got = {0};
    int64_t runs = 0, parsed = 0;
    for (double end = tsr_now() + SECONDS; tsr_now() < end; runs++) {
        char path[128], copy[16384];
        snprintf(path, sizeof path, "tests/golden/templates/%s.jinja", names[runs % 8]);
        char *source = golden_file(path, &bytes);
        memcpy(copy, source, bytes);
        free(source);
        bytes = mutate(copy, bytes, sizeof copy);
        tsr_template *t;
        tsr_status status = tsr_template_parse(&t, path, copy, bytes);
        check_status(status);
        if (status < 0)
            continue;
        parsed++;
        check_status(
            tsr_template_render(&got, t, json_array_get(sets, draw(json_array_size(sets))), 0));
        tsr_template_destroy(t);
    }
    assert_true(runs > 20 && parsed > 0);
    tsr_rendering_free(&got);
    json_decref(variables);
    free(text);
}

static void test_tokenizers(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2_prefix_space", "nfc_qwen", "digits", "behaviors",
                                        "added_flags"};
    static const char text[] = "Natalia sold 48/2 <both> cafe\xcc\x81 <left>\xe2\x80\x83 don't\n\n";
    tsr_tokens tokens = {0};
    int64_t runs = 0, loaded = 0;
    for (double end = tsr_now() + SECONDS; tsr_now() < end; runs++) {
        char path[128], copy[16384];
        size_t bytes;
        snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", names[runs % 5]);
        char *source = golden_file(path, &bytes);
        assert_true(bytes < sizeof copy);
        memcpy(copy, source, bytes);
        free(source);
        bytes = mutate(copy, bytes, sizeof copy);
        tsr_tokenizer *t;
        tsr_status status = tsr_tokenizer_parse(&t, path, copy, bytes, NULL, 0);
        check_status(status);
        if (status < 0)
            continue;
        loaded++;
        tsr_tokens_clear(&tokens);
        check_status(tsr_tokenizer_encode(&tokens, t, text, sizeof text - 1, true));
        for (size_t i = 0; i < tokens.count; i++) {
            assert_in_range(tokens.ids[i], 0, tsr_tokenizer_vocab_count(t) - 1);
            assert_true(tokens.spans[i].begin <= tokens.spans[i].end);
            assert_true(tokens.spans[i].end < sizeof text);
        }
        tsr_tokenizer_destroy(t);
    }
    assert_true(runs > 20 && loaded > 0);
    tsr_tokens_free(&tokens);
}

/* Text at random, valid or not, through every tokenizer. */
static void test_texts(void **state)
{
    (void)state;
    size_t bytes;
    char *json = golden_file("tests/golden/tokenizers/nfc_qwen.json", &bytes);
    tsr_tokenizer *t;
    tsr_tokens tokens = {0};
    assert_int_equal(tsr_tokenizer_parse(&t, "nfc", json, bytes, NULL, 0), TSR_OK);
    for (int i = 0; i < 20000; i++) {
        char text[64];
        size_t length = draw(sizeof text);
        for (size_t j = 0; j < length; j++)
            text[j] = (char)(draw(3) ? 0xcc + (draw(2) ? 0 : -0xcc + 0x80 + (int)draw(32)) : 'a');
        tsr_tokens_clear(&tokens);
        check_status(tsr_tokenizer_encode(&tokens, t, text, length, true));
    }
    tsr_tokens_free(&tokens);
    tsr_tokenizer_destroy(t);
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
