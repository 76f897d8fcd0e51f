/*
 * Ids and decoded text against Hugging Face's tokenizers, without tolerance: tiny-llama, and the
 * tokenizers of tests/golden/tokenizers (made by tools/make_tokenizer_golden.py), each of which
 * uses other parts of the format, and in families/ the construction of a model family.
 */
#include "base/unicode.h"
#include "data/golden_lines.h"
#include "support/scratch.h"
#include "tokenizer/tokenizer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <oniguruma.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"

static void check_ids(const tsr_tokens *got, const json_t *want, const char *text)
{
    for (size_t i = 0; i < got->count && i < json_array_size(want); i++)
        if (got->ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("\"%s\": token %zu is %d, not %d", text, i, got->ids[i],
                     (int)json_integer_value(json_array_get(want, i)));
    if (got->count != json_array_size(want))
        fail_msg("\"%s\": %zu tokens, not %zu", text, got->count, json_array_size(want));
}

/* The row's value, or that of the key which stands for it where both are the same. */
static const char *key_or(const json_t *row, const char *key, const char *same)
{
    return json_object_get(row, key) ? key : same;
}

static void check_encoding(tsr_tokenizer *t, const json_t *row, const char *key, bool special)
{
    tsr_tokens got = {0};
    size_t bytes;
    const char *text = golden_text(row, "text", &bytes);
    assert_int_equal(tsr_tokenizer_encode(&got, t, text, bytes, special), TSR_OK);
    check_ids(&got, json_object_get(row, key), text);
    tsr_tokens_free(&got);
}

static void check_decoding(tsr_tokenizer *t, const json_t *row, const char *key, bool skip)
{
    const json_t *ids = json_object_get(row, key_or(row, "ids_without_special_tokens", "ids"));
    size_t count = json_array_size(ids), bytes;
    int32_t *copy = malloc((count + 1) * sizeof *copy);
    tsr_text got = {0};
    for (size_t i = 0; i < count; i++)
        copy[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    assert_int_equal(tsr_tokenizer_decode(&got, t, copy, count, skip), TSR_OK);
    const char *want = golden_text(row, key, &bytes);
    if (got.length != bytes || memcmp(tsr_text_string(&got), want, bytes))
        fail_msg("decoded \"%s\", not \"%s\"", tsr_text_string(&got), want);
    free(copy);
    tsr_text_free(&got);
}

static size_t check_file(tsr_tokenizer *t, const char *path)
{
    json_t *lines = golden_lines(path);
    size_t count = json_array_size(lines);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(lines, i);
        const char *decoded = key_or(row, "decoded", "text");
        check_encoding(t, row, "ids", true);
        check_encoding(t, row, key_or(row, "ids_without_special_tokens", "ids"), false);
        check_decoding(t, row, decoded, false);
        check_decoding(t, row, key_or(row, "decoded_skipping_special_tokens", decoded), true);
    }
    json_decref(lines);
    return count;
}

static void test_tiny_llama(void **state)
{
    (void)state;
    tsr_tokenizer *t;
    if (tsr_tokenizer_open(&t, MODEL, false) < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(check_file(t, "tests/golden/tokens_hard.jsonl"), 300);
    assert_int_equal(tsr_tokenizer_vocab_count(t), 4096);
    assert_int_equal(tsr_tokenizer_id(t, tsr_tokenizer_special(t, "bos_token")), 0);
    assert_int_equal(tsr_tokenizer_eos(t), 4);
    assert_int_equal(tsr_tokenizer_id(t, tsr_tokenizer_special(t, "pad_token")), 5);
    assert_int_equal(tsr_tokenizer_id(t, "<|end_header_id|>"), 3);
    assert_int_equal(tsr_tokenizer_id(t, "no such token"), -1);
    tsr_tokenizer_destroy(t);
}

static void test_golden_tokens(void **state)
{
    (void)state;
    tsr_tokenizer *t;
    assert_int_equal(tsr_tokenizer_open(&t, MODEL, false), TSR_OK);
    json_t *lines = golden_lines("tests/golden/tiny-llama/golden_tokens.jsonl");
    assert_true(json_array_size(lines) > 0);
    for (size_t i = 0; i < json_array_size(lines); i++)
        check_encoding(t, json_array_get(lines, i), "ids", true);
    json_decref(lines);
    tsr_tokenizer_destroy(t);
}

/* Every byte of the text belongs to one token, in order, and its bytes are the token's. */
static void test_spans(void **state)
{
    (void)state;
    tsr_tokenizer *t;
    assert_int_equal(tsr_tokenizer_open(&t, MODEL, false), TSR_OK);
    json_t *lines = golden_lines("tests/golden/tokens_hard.jsonl");
    for (size_t i = 0; i < json_array_size(lines); i++) {
        tsr_tokens got = {0};
        size_t bytes, at = 0;
        const char *text = golden_text(json_array_get(lines, i), "text", &bytes);
        assert_int_equal(tsr_tokenizer_encode(&got, t, text, bytes, false), TSR_OK);
        for (size_t j = 0; j < got.count; j++) {
            assert_int_equal(got.spans[j].begin, at);
            at = got.spans[j].end;
        }
        assert_int_equal(at, bytes);
        tsr_tokens_free(&got);
    }
    json_decref(lines);
    tsr_tokenizer_destroy(t);
}

static tsr_tokenizer *open_golden(const char *name)
{
    tsr_tokenizer *t = NULL;
    char path[256];
    size_t bytes;
    snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", name);
    char *json = golden_file(path, &bytes);
    if (tsr_tokenizer_parse(&t, name, json, bytes, NULL, 0) < 0)
        fail_msg("%s", tsr_last_error());
    free(json);
    return t;
}

static void check_golden(tsr_tokenizer *t, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/tokenizers/%s.jsonl", name);
    assert_true(check_file(t, path) > 100);
}

static void test_other_tokenizers(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2_prefix_space", "nfc_qwen",        "digits",
                                        "behaviors",         "added_flags",     "added_letters",
                                        "spaces_prepended",  "spaces_replaced", "spaces_first",
                                        "spaces_always"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tsr_tokenizer *t = open_golden(names[i]);
        check_golden(t, names[i]);
        tsr_tokenizer_destroy(t);
    }
}

/* From `at`, what an added token that takes white space along has left. */
static size_t skip_space(const char *text, size_t at, size_t end)
{
    uint32_t code;
    size_t length;
    while (at < end && (length = tsr_utf8_next(&code, text + at, end - at)) &&
           tsr_unicode_white_space(code))
        at += length;
    return at;
}

/* Spans of a family's tokens, in order, cover the text. Of a character in several tokens each has its bytes, or,
 * where a normalizer changed the text, all that it changed. */
static void check_cover(tsr_tokenizer *t, const char *name, bool strips)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/tokenizers/%s.jsonl", name);
    json_t *lines = golden_lines(path);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        tsr_tokens got = {0};
        size_t bytes, begin = 0, end = 0;
        const char *text = golden_text(json_array_get(lines, i), "text", &bytes);
        assert_int_equal(tsr_tokenizer_encode(&got, t, text, bytes, false), TSR_OK);
        for (size_t j = 0; j < got.count; j++) {
            tsr_span s = got.spans[j];
            if (strips && s.begin > end)
                end = skip_space(text, end, s.begin);
            if (s.begin < begin || s.begin > end || s.end < s.begin || s.end > bytes)
                fail_msg("%s: \"%s\": token %zu is of the bytes %zu to %zu, after those to %zu",
                         name, text, j, s.begin, s.end, end);
            begin = s.begin;
            end = s.end > end ? s.end : end;
        }
        assert_int_equal(strips ? skip_space(text, end, bytes) : end, bytes);
        tsr_tokens_free(&got);
    }
    json_decref(lines);
}

static void test_families(void **state)
{
    (void)state;
    static const char *const names[] = {"gemma2",      "gemma3",   "gemma4", "phi3",    "phi4",
                                        "phi4_mini",   "glm4",     "olmo2",  "granite", "smollm2",
                                        "smollm3",     "mistral",  "tekken", "qwen3",   "qwen3_5",
                                        "deepseek_v3", "glm4_moe", "gpt_oss"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "families/%s", names[i]);
        tsr_tokenizer *t = open_golden(name);
        check_golden(t, name);
        check_cover(t, name, !strncmp(names[i], "phi", 3));
        tsr_tokenizer_destroy(t);
    }
}

static const char *const flags[] = {"lstrip", "rstrip", "normalized"};

/* Moves what tokenizer.json says of its added tokens into tokenizer_config.json, and the last two there whole. */
static void move_added(json_t *tokenizer, json_t *config)
{
    json_t *added = json_object_get(tokenizer, "added_tokens"), *decoder = json_object();
    json_object_set_new(config, "added_tokens_decoder", decoder);
    for (size_t i = json_array_size(added); i-- > 0;) {
        json_t *token = json_array_get(added, i);
        char id[24];
        snprintf(id, sizeof id, "%lld",
                 (long long)json_integer_value(json_object_get(token, "id")));
        json_object_set_new(decoder, id, json_copy(token));
        for (int j = 0; j < 3; j++)
            json_object_set_new(token, flags[j], json_false());
    }
    json_array_remove(added, json_array_size(added) - 1);
    json_array_remove(added, json_array_size(added) - 1);
}

/* As in transformers the flags of added_tokens_decoder in tokenizer_config.json count, and the tokens that are there
 * alone. */
static void test_added_tokens_decoder(void **state)
{
    (void)state;
    static const char *const names[] = {"families/phi3", "families/phi4", "families/qwen3",
                                        "families/gemma3"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        size_t bytes;
        tsr_tokenizer *t;
        snprintf(path, sizeof path, "tests/golden/tokenizers/%s.json", names[i]);
        char *text = golden_file(path, &bytes);
        json_t *tokenizer = json_loadb(text, bytes, 0, NULL), *config = json_object();
        free(text);
        move_added(tokenizer, config);
        text = json_dumps(tokenizer, 0);
        char *config_text = json_dumps(config, 0);
        if (tsr_tokenizer_parse(&t, names[i], text, strlen(text), config_text,
                                strlen(config_text)) < 0)
            fail_msg("%s", tsr_last_error());
        check_golden(t, names[i]);
        tsr_tokenizer_destroy(t);
        free(text);
        free(config_text);
        json_decref(tokenizer);
        json_decref(config);
    }
}

/* With the class LlamaTokenizer a model of type llama spells spaces as Transformers 5 does, which reads of
 * tokenizer.json the vocabulary alone: the ids are those of another spelling of the same vocabulary. */
static void test_llama_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *type, *config, *same_as;
    } cases[] = {
        {"llama", "{\"tokenizer_class\":\"LlamaTokenizer\"}", "first"},
        {"llama", "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"legacy\":false}", "first"},
        {"llama", "{\"tokenizer_class\":\"LlamaTokenizer\",\"legacy\":true}", "always"},
        {"llama", "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}", "prepended"},
        {"mistral", "{\"tokenizer_class\":\"LlamaTokenizer\",\"legacy\":false}", "prepended"},
    };
    scratch_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_tokenizer *t;
        char directory[600], path[700], text[100];
        snprintf(text, sizeof text, "model%zu", i);
        snprintf(directory, sizeof directory, "%s", scratch_path(text));
        assert_int_equal(mkdir(directory, 0777), 0);
        snprintf(path, sizeof path, "%s/tokenizer.json", directory);
        assert_int_equal(
            symlink(TSR_SOURCE_DIR "/tests/golden/tokenizers/spaces_prepended.json", path), 0);
        snprintf(path, sizeof path, "%s/tokenizer_config.json", directory);
        write_text(path, cases[i].config);
        snprintf(path, sizeof path, "%s/config.json", directory);
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"}", cases[i].type);
        write_text(path, text);
        if (tsr_tokenizer_open(&t, directory, !strcmp(cases[i].type, "llama")) < 0)
            fail_msg("%s", tsr_last_error());
        snprintf(path, sizeof path, "tests/golden/tokenizers/spaces_%s.jsonl", cases[i].same_as);
        assert_true(check_file(t, path) > 100);
        tsr_tokenizer_destroy(t);
    }
    scratch_remove();
}

/* White space that an added token takes along is not of its span. */
static void test_stripped_spans(void **state)
{
    (void)state;
    static const tsr_span want[] = {{0, 1}, {3, 13}, {15, 16}, {16, 28}};
    tsr_tokenizer *t = open_golden("families/phi4");
    tsr_tokens got = {0};
    assert_int_equal(tsr_tokenizer_encode(&got, t, "a \n<|im_sep|>\t b<|im_start|>  ", 30, false),
                     TSR_OK);
    assert_int_equal(got.count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(got.spans[i].begin, want[i].begin);
        assert_int_equal(got.spans[i].end, want[i].end);
    }
    tsr_tokens_free(&got);
    tsr_tokenizer_destroy(t);
}

/* A million bytes without an end of a word: time by the square would be minutes. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const runs[] = {"a", " ", "\n", "-", "ab1 ", "\u4e2d", "\u0301\u0316"};
    const size_t bytes = (size_t)1 << 20;
    tsr_tokenizer *t;
    tsr_tokens got = {0};
    tsr_text decoded = {0};
    char *text = malloc(bytes);
    assert_non_null(text);
    assert_int_equal(tsr_tokenizer_open(&t, MODEL, false), TSR_OK);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        size_t each = strlen(runs[i]), length = bytes / each * each;
        for (size_t at = 0; at < length; at += each)
            memcpy(text + at, runs[i], each);
        tsr_tokens_clear(&got);
        tsr_text_clear(&decoded);
        assert_int_equal(tsr_tokenizer_encode(&got, t, text, length, false), TSR_OK);
        assert_int_equal(tsr_tokenizer_decode(&decoded, t, got.ids, got.count, false), TSR_OK);
        assert_int_equal(decoded.length, length);
        assert_memory_equal(tsr_text_string(&decoded), text, length);
    }
    free(text);
    tsr_text_free(&decoded);
    tsr_tokens_free(&got);
    tsr_tokenizer_destroy(t);
}

static void test_not_utf8(void **state)
{
    (void)state;
    tsr_tokenizer *t;
    tsr_tokens got = {0};
    assert_int_equal(tsr_tokenizer_open(&t, MODEL, false), TSR_OK);
    assert_int_equal(tsr_tokenizer_encode(&got, t, "ab\xff", 3, false), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "byte 2"));
    /* A part of a character decodes to the replacement character. */
    tsr_text text = {0};
    int32_t ids[1] = {-1};
    assert_int_equal(tsr_tokenizer_encode(&got, t, "\xc3\xb8", 2, false), TSR_OK);
    ids[0] = got.ids[0];
    assert_int_equal(tsr_tokenizer_decode(&text, t, ids, 1, false), TSR_OK);
    if (got.count > 1)
        assert_string_equal(tsr_text_string(&text), "\xef\xbf\xbd");
    tsr_text_free(&text);
    tsr_tokens_free(&got);
    tsr_tokenizer_destroy(t);
}

/* ---- what is refused ---- */

#define STEPS(normalizer, pre, post, decoder)                                                      \
    "\"normalizer\":" normalizer ",\"pre_tokenizer\":" pre ",\"post_processor\":" post             \
    ",\"decoder\":" decoder
#define GOOD_STEPS     STEPS("null", "{\"type\":\"ByteLevel\"}", "null", "{\"type\":\"ByteLevel\"}")
#define MODEL_OF(rest) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}," rest "}"
#define GOOD_MODEL     MODEL_OF("\"merges\":[\"a b\"]")

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json, *words[3];
    } cases[] = {
        {"{\"model\": ", {"bad.json", "line 1"}},
        {"[]", {"expected an object", "a list"}},
        {"{" GOOD_STEPS ",\"model\":{\"type\":\"Unigram\"}}", {"model.type", "Unigram", "BPE"}},
        {"{" GOOD_STEPS "}", {"model", "expected an object"}},
        {"{" GOOD_MODEL ",\"extra\":1," GOOD_STEPS "}", {"extra", "not understood"}},
        {"{" STEPS("{\"type\":\"Lowercase\"}", "{\"type\":\"ByteLevel\"}", "null",
                   "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}",
         {"normalizer", "Lowercase"}},
        {"{" STEPS("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Strip\"}"
                   "]}",
                   "{\"type\":\"ByteLevel\"}", "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL
                                                                                   "}",
         {"normalizer.normalizers[1]", "Strip"}},
        {"{" STEPS("null", "{\"type\":\"Metaspace\"}", "null",
                   "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}",
         {"pre_tokenizer", "Metaspace"}},
        {"{" STEPS("null", "null", "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}",
         {"pre_tokenizer", "null"}},
        {"{" STEPS("null",
                   "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                   "\"Regex\":\"(\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":"
                   "\"ByteLevel\"}]}",
                   "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}",
         {"pretokenizers[0]", "not valid"}},
        {"{" STEPS("null", "{\"type\":\"ByteLevel\"}", "{\"type\":\"BertProcessing\"}",
                   "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}",
         {"post_processor", "BertProcessing"}},
        {"{" STEPS("null", "{\"type\":\"ByteLevel\"}", "null",
                   "{\"type\":\"Metaspace\"}") "," GOOD_MODEL "}",
         {"decoder", "Metaspace"}},
        {"{" GOOD_STEPS "," MODEL_OF("\"merges\":[\"a b\",\"b c\"]") "}",
         {"model.merges[1]", "\"c\"", "not in the vocabulary"}},
        {"{" GOOD_STEPS "," MODEL_OF("\"merges\":[\"ab\"]") "}", {"model.merges[0]", "two tokens"}},
        {"{" GOOD_STEPS "," MODEL_OF("\"dropout\":0.1,\"merges\":[]") "}",
         {"model.dropout", "only null"}},
        {"{" GOOD_STEPS "," MODEL_OF("\"byte_fallback\":true,\"merges\":[]") "}",
         {"model.vocab", "\"<0x00>\" is missing"}},
        {"{" STEPS("{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}",
                   "{\"type\":\"ByteLevel\"}", "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL
                                                                                   "}",
         {"normalizer", "byte_fallback"}},
        {"{" STEPS("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}",
                   "{\"type\":\"ByteLevel\"}", "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL
                                                                                   "}",
         {"normalizer", "Replace"}},
        {"{" GOOD_STEPS "," MODEL_OF("\"unk_token\":\"a\",\"merges\":[]") "}",
         {"model.unk_token", "not supported"}},
        {"{" GOOD_STEPS ",\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"type\":\"BPE\",\"merges\":[]}}",
         {"one id"}},
        {"{" GOOD_STEPS ",\"model\":{\"vocab\":{\"a\":99999999},\"type\":\"BPE\",\"merges\":[]}}",
         {"99999999"}},
        {"{" GOOD_STEPS "," GOOD_MODEL ",\"added_tokens\":[{\"id\":7,\"content\":\"<x>\"}]}",
         {"added_tokens[0]", "id 7", "3"}},
        {"{" GOOD_STEPS "," GOOD_MODEL
         ",\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"single_word\":true}]}",
         {"added_tokens[0]", "single_word"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_tokenizer *t;
        tsr_status status =
            tsr_tokenizer_parse(&t, "bad.json", cases[i].json, strlen(cases[i].json), NULL, 0);
        if (status != TSR_EDATA)
            fail_msg("case %zu was not refused", i);
        for (int j = 0; j < 3 && cases[i].words[j]; j++)
            if (!strstr(tsr_last_error(), cases[i].words[j]))
                fail_msg("case %zu: \"%s\" is not in \"%s\"", i, cases[i].words[j],
                         tsr_last_error());
    }
    tsr_tokenizer *t;
    assert_int_equal(tsr_tokenizer_open(&t, TSR_SOURCE_DIR "/no/such/model", false), TSR_EDATA);
    assert_non_null(strstr(tsr_last_error(), "tokenizer.json"));
    scratch_make();
    check_error("no tokenizer", tsr_tokenizer_open(&t, scratch_path("."), false), TSR_EDATA,
                (const char *[MOST_WORDS]){"tokenizer.json: it is missing; download"});
    write_text(scratch_path("tokenizer.model"), "");
    check_error("no tokenizer.json", tsr_tokenizer_open(&t, scratch_path("."), false), TSR_EDATA,
                (const char *[MOST_WORDS]){"tokenizer.json: it is missing", "tokenizer.model",
                                           "save_pretrained"});
    scratch_remove();
}

static void test_refused_decoder(void **state)
{
    (void)state;
    static const char json[] = "{" GOOD_STEPS "," GOOD_MODEL "}";
    static const struct {
        const char *decoder, *words[3];
    } cases[] = {
        {"[]", {"tokenizer_config.json: added_tokens_decoder", "expected an object", "a list"}},
        {"{\"x\":{\"content\":\"a\"}}", {"added_tokens_decoder[\"x\"]", "expected an id"}},
        {"{\"3\":{\"special\":true}}", {"added_tokens_decoder[\"3\"]", "with content"}},
        {"{\"3\":{\"content\":\"<x>\",\"rstrip\":1}}", {"[\"3\"]", "rstrip", "true or false"}},
        {"{\"3\":{\"content\":\"<x>\",\"single_word\":true}}", {"[\"3\"]", "single_word"}},
        {"{\"3\":{\"content\":\"<x>\"},\"5\":{\"content\":\"<y>\"}}",
         {"added_tokens_decoder[\"5\"]", "\"<y>\" has the id 5", "it is 4"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[200];
        tsr_tokenizer *t;
        snprintf(config, sizeof config, "{\"added_tokens_decoder\":%s}", cases[i].decoder);
        const char *words[MOST_WORDS] = {cases[i].words[0], cases[i].words[1], cases[i].words[2]};
        check_error(cases[i].decoder,
                    tsr_tokenizer_parse(&t, "t", json, strlen(json), config, strlen(config)),
                    TSR_EDATA, words);
    }
}

/* byte_fallback with the byte `missing` left out, and a token more, if any. */
static tsr_status parse_without_byte(tsr_tokenizer **t, int missing, const char *token)
{
    char json[8000];
    int at = snprintf(
        json, sizeof json,
        "{" STEPS(
            "null", "null", "null",
            "{\"type\":\"Fuse\"}") ",\"model\":{"
                                   "\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,"
                                   "\"unk_token\":\"<unk>\",\"merges\":[],\"vocab\":{\"<unk>\":0");
    for (int byte = 0; byte < 256; byte++)
        if (byte != missing)
            at += snprintf(json + at, sizeof json - (size_t)at, ",\"<0x%02X>\":%d", (unsigned)byte,
                           byte + 1);
    if (token)
        at += snprintf(json + at, sizeof json - (size_t)at, ",\"%s\":%d", token, missing + 1);
    snprintf(json + at, sizeof json - (size_t)at, "}}}");
    return tsr_tokenizer_parse(t, "bytes.json", json, strlen(json), NULL, 0);
}

/* Without <0x09> there has to be a tab; a letter beside ASCII does not do, as others begin with its byte. */
static void test_missing_bytes(void **state)
{
    (void)state;
    static const struct {
        int byte;
        const char *token, *name;
    } refused[] = {{9, NULL, "<0x09>"},
                   {9, "\\n", "<0x09>"},
                   {9, "\\t\\t", "<0x09>"},
                   {0xc3, "\xc3\xa9", "<0xC3>"}};
    tsr_tokenizer *t;
    tsr_tokens got = {0};
    assert_int_equal(parse_without_byte(&t, 9, "\\t"), TSR_OK);
    assert_int_equal(tsr_tokenizer_encode(&got, t, "\t\n", 2, false), TSR_OK);
    assert_int_equal(got.count, 2);
    assert_int_equal(got.ids[0], 10);
    assert_int_equal(got.ids[1], 11);
    tsr_tokens_free(&got);
    tsr_tokenizer_destroy(t);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_error("a byte is missing", parse_without_byte(&t, refused[i].byte, refused[i].token),
                    TSR_EDATA,
                    (const char *[MOST_WORDS]){"bytes.json", "model.vocab", refused[i].name});
}

/* A pattern whose matches begin before those before them ended: \K in a look-behind. */
static void test_overlapping_matches(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(?<=\\\\Ka)b|a", "(?<=\\\\Kaba)b|a|b"};
    for (size_t i = 0; i < 2; i++) {
        tsr_tokenizer *t;
        tsr_tokens got = {0};
        char json[600];
        snprintf(
            json, sizeof json,
            "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
            "\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\","
            "\"invert\":false},{\"type\":\"ByteLevel\",\"use_regex\":false,"
            "\"add_prefix_space\":false}]},\"post_processor\":null,"
            "\"decoder\":{\"type\":\"ByteLevel\"}," GOOD_MODEL "}",
            patterns[i]);
        assert_int_equal(tsr_tokenizer_parse(&t, "odd.json", json, strlen(json), NULL, 0), TSR_OK);
        assert_int_equal(tsr_tokenizer_encode(&got, t, "abab", 4, false), TSR_EDATA);
        assert_non_null(strstr(tsr_last_error(), "overlap"));
        tsr_tokens_free(&got);
        tsr_tokenizer_destroy(t);
    }
}

/* A pattern that goes back without end is given up, by name, and the tokenizer goes on with the next text. */
static void test_pattern_without_end(void **state)
{
    (void)state;
    static const char json[] =
        "{" STEPS("null",
                  "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                  "\"Regex\":\"(a+)+c\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":"
                  "\"ByteLevel\",\"use_regex\":false}]}",
                  "null", "{\"type\":\"ByteLevel\"}") "," GOOD_MODEL "}";
    char text[300] = "bac ";
    memset(text + 4, 'a', 290);
    strcpy(text + 294, "bac");
    tsr_tokenizer *t;
    tsr_tokens got = {0};
    assert_int_equal(tsr_tokenizer_parse(&t, "endless.json", json, strlen(json), NULL, 0), TSR_OK);
    assert_int_equal(tsr_tokenizer_encode(&got, t, text, strlen(text), false), TSR_EDATA);
    assert_string_equal(
        tsr_last_error(),
        "endless.json: pre_tokenizer.pretokenizers[0]: the pattern was given up at byte 3 of the "
        "text, since it goes back in the text too often (catastrophic backtracking); correct the "
        "pattern, or leave the text out");
    tsr_tokens_clear(&got);
    assert_int_equal(tsr_tokenizer_encode(&got, t, "abab", 4, false), TSR_OK);
    assert_int_equal(got.count, 2);
    tsr_tokens_free(&got);
    tsr_tokenizer_destroy(t);
}

static bool no_memory; /* for a pattern */

int __real_onig_new(OnigRegex *out, const OnigUChar *pattern, const OnigUChar *end,
                    OnigOptionType option, OnigEncoding encoding, OnigSyntaxType *syntax,
                    OnigErrorInfo *info);
int __wrap_onig_new(OnigRegex *out, const OnigUChar *pattern, const OnigUChar *end,
                    OnigOptionType option, OnigEncoding encoding, OnigSyntaxType *syntax,
                    OnigErrorInfo *info);
int __wrap_onig_new(OnigRegex *out, const OnigUChar *pattern, const OnigUChar *end,
                    OnigOptionType option, OnigEncoding encoding, OnigSyntaxType *syntax,
                    OnigErrorInfo *info)
{
    return no_memory ? ONIGERR_MEMORY
                     : __real_onig_new(out, pattern, end, option, encoding, syntax, info);
}

/* The file is not to blame. */
static void test_no_memory(void **state)
{
    tsr_tokenizer *t;
    (void)state;
    no_memory = true;
    assert_int_equal(tsr_tokenizer_open(&t, MODEL, false), TSR_ENOMEM);
    assert_non_null(strstr(tsr_last_error(), "no memory for its pattern"));
    no_memory = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_llama),
        cmocka_unit_test(test_golden_tokens),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_other_tokenizers),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_stripped_spans),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_not_utf8),
        cmocka_unit_test(test_added_tokens_decoder),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_decoder),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_llama_spelling),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_overlapping_matches),
        cmocka_unit_test(test_pattern_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
