/*
 * Rows of preferences: tokens as TRL 1.16 has them (tests/golden/objectives/tokens), documents cut and rows dropped by
 * max_length, the two keys that depart from TRL, KTO's mismatched documents, what a reward model scores, the parts of micro-batches, and every broken row that must be named.
 */
#include "data/tiny_llama.h"

#include "base/text.h"
#include "data/batch.h"
#include "data/dataset.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTIVES TSR_SOURCE_DIR "/tests/golden/objectives/"

/* What the first row says of the kind of all; options: what is left to say. */
static tsr_status load_file(tsr_dataset **out, const char *path, tsr_dataset_options options)
{
    bool turns;
    options.files = &path;
    options.file_count = 1;
    tsr_status status = tsr_dataset_detect(&options.format, &turns, &options);
    if (status < 0)
        return status;
    options.chat = turns ? chat : NULL;
    options.tokenizer = turns || options.format == TSR_DATA_PREFERENCE_IDS ? NULL : tokenizer;
    options.eos_id = tsr_tokenizer_eos(tokenizer);
    return tsr_dataset_load(out, &options);
}

static tsr_dataset *load(const char *path, tsr_dataset_options options)
{
    tsr_dataset *data = NULL;
    if (load_file(&data, path, options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return data;
}

/* A reward model's: whole, its last token alone is labelled. */
static void check_scored(const tsr_sample *s, int document, const json_t *ids, const char *what)
{
    int32_t offset = document ? s->lengths[0] : 0, last = s->lengths[document] - 1;
    if ((size_t)s->lengths[document] != json_array_size(ids))
        fail_msg("%s:%lld, document %d: %d tokens, expected %zu", what, (long long)s->line,
                 document, s->lengths[document], json_array_size(ids));
    for (int32_t t = 0; t <= last; t++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
        if (s->ids[offset + t] != id || s->labels[offset + t] != (t < last ? -100 : id))
            fail_msg("%s:%lld, document %d, token %d: %d, expected %d", what, (long long)s->line,
                     document, t, s->ids[offset + t], id);
    }
}

/* A document is prompt and answer, of which the answer is trained. */
static void check_document(const tsr_sample *s, int document, const json_t *prompt,
                           const json_t *answer, const char *what)
{
    int32_t offset = document ? s->lengths[0] : 0;
    size_t before = json_array_size(prompt), count = before + json_array_size(answer);
    if ((size_t)s->lengths[document] != count)
        fail_msg("%s:%lld, document %d: %d tokens, expected %zu", what, (long long)s->line,
                 document, s->lengths[document], count);
    for (size_t t = 0; t < count; t++) {
        const json_t *item =
            t < before ? json_array_get(prompt, t) : json_array_get(answer, t - before);
        int32_t id = (int32_t)json_integer_value(item);
        int32_t label = t < before || t == 0 ? TSR_LABEL_IGNORED : id;
        if (s->ids[offset + (int32_t)t] != id || s->labels[offset + (int32_t)t] != label)
            fail_msg("%s:%lld, document %d, token %zu: %d (label %d), expected %d (%d)", what,
                     (long long)s->line, document, t, s->ids[offset + (int32_t)t],
                     s->labels[offset + (int32_t)t], id, label);
    }
}

/* ORPO's whole documents with Hugging Face's labels. */
static void check_labelled(const tsr_sample *s, int document, const json_t *ids,
                           const json_t *labels, const char *what)
{
    int32_t offset = document ? s->lengths[0] : 0;
    assert_int_equal(s->lengths[document], json_array_size(ids));
    for (size_t t = 0; t < json_array_size(ids); t++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, t));
        int32_t label = (int32_t)json_integer_value(json_array_get(labels, t));
        if (s->ids[offset + (int32_t)t] != id || s->labels[offset + (int32_t)t] != label)
            fail_msg("%s:%lld, document %d, token %zu: %d (label %d), expected %d (%d)", what,
                     (long long)s->line, document, t, s->ids[offset + (int32_t)t],
                     s->labels[offset + (int32_t)t], id, label);
    }
}

static void check_row(const tsr_sample *s, tsr_pairs pairs, const json_t *want, const char *what)
{
    const json_t *prompt = json_object_get(want, "prompt_ids");
    assert_int_equal(s->document_count, 2);
    if (pairs == TSR_PAIRS_DPO) {
        check_document(s, 0, prompt, json_object_get(want, "chosen_ids"), what);
        check_document(s, 1, prompt, json_object_get(want, "rejected_ids"), what);
    } else if (pairs == TSR_PAIRS_REWARD) {
        check_scored(s, 0, json_object_get(want, "chosen_ids"), what);
        check_scored(s, 1, json_object_get(want, "rejected_ids"), what);
        assert_true(s->margin == 0 && s->label_count == 2);
    } else if (pairs == TSR_PAIRS_KTO) {
        check_document(s, 0, prompt, json_object_get(want, "completion_ids"), what);
        check_document(s, 1, prompt, json_object_get(want, "KL_completion_ids"), what);
        assert_int_equal(s->desirable, json_is_true(json_object_get(want, "label")));
    } else {
        check_labelled(s, 0, json_object_get(want, "chosen_input_ids"),
                       json_object_get(want, "chosen_labels"), what);
        check_labelled(s, 1, json_object_get(want, "rejected_input_ids"),
                       json_object_get(want, "rejected_labels"), what);
    }
}

/* All rows of one of TRL's token files. */
static void check_tokens(const char *name, const char *data_name, tsr_pairs pairs, int threads)
{
    char path[256];
    uint64_t bytes;
    snprintf(path, sizeof path, OBJECTIVES "data/%s.jsonl", data_name);
    tsr_dataset *data = load(path, (tsr_dataset_options){.pairs = pairs, .threads = threads});
    if (pairs == TSR_PAIRS_KTO)
        assert_int_equal(tsr_dataset_mismatch(&data, 4, 0), TSR_OK);
    snprintf(path, sizeof path, OBJECTIVES "tokens/%s.jsonl", name);
    char *text = read_whole(&bytes, path), *rest = text;
    int64_t rows = 0;
    for (char *line; (line = strtok_r(rest, "\n", &rest)); rows++) {
        json_t *want = json_loads(line, 0, NULL);
        assert_non_null(want);
        assert_true(rows < tsr_dataset_sample_count(data));
        tsr_sample s = tsr_dataset_sample(data, rows);
        check_row(&s, pairs, want, name);
        json_decref(want);
    }
    assert_int_equal(rows, tsr_dataset_sample_count(data));
    free(text);
    tsr_dataset_destroy(data);
}

static void tokens(void **state)
{
    (void)state;
    static const struct {
        const char *name, *data;
        tsr_pairs pairs;
    } files[] = {
        {"dpo_preference_conversational", "preference_conversational", TSR_PAIRS_DPO},
        {"dpo_preference_text", "preference_text", TSR_PAIRS_DPO},
        {"dpo_implicit_conversational", "implicit_conversational", TSR_PAIRS_DPO},
        {"dpo_implicit_text", "implicit_text", TSR_PAIRS_DPO},
        {"kto_kto_conversational", "kto_conversational", TSR_PAIRS_KTO},
        {"kto_kto_text", "kto_text", TSR_PAIRS_KTO},
        {"kto_implicit_conversational", "implicit_conversational", TSR_PAIRS_KTO},
        {"orpo_preference_conversational", "preference_conversational", TSR_PAIRS_ORPO},
        {"orpo_preference_text", "preference_text", TSR_PAIRS_ORPO},
        {"orpo_implicit_conversational", "implicit_conversational", TSR_PAIRS_ORPO},
        {"reward_preference_conversational", "preference_conversational", TSR_PAIRS_REWARD},
        {"reward_preference_text", "preference_text", TSR_PAIRS_REWARD},
        {"reward_implicit_conversational", "implicit_conversational", TSR_PAIRS_REWARD},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int threads = 1; threads <= 3; threads += 2)
            check_tokens(files[i].name, files[i].data, files[i].pairs, threads);
}

/* ---- max_length ---- */

static void check_ids(const tsr_sample *s, int document, const json_t *ids, const char *what)
{
    int32_t offset = document ? s->lengths[0] : 0;
    if ((size_t)s->lengths[document] != json_array_size(ids))
        fail_msg("%s:%lld, document %d: %d tokens, expected %zu", what, (long long)s->line,
                 document, s->lengths[document], json_array_size(ids));
    for (size_t t = 0; t < json_array_size(ids); t++)
        assert_int_equal(s->ids[offset + (int32_t)t], json_integer_value(json_array_get(ids, t)));
}

/* The first batch of four, the chosen documents before the rejected ones. */
static void check_cut(const json_t *all, const char *key, const char *data_name, tsr_pairs pairs)
{
    char path[256];
    const json_t *want = json_object_get(all, key), *documents = json_object_get(want, "documents");
    snprintf(path, sizeof path, OBJECTIVES "data/%s.jsonl", data_name);
    tsr_dataset *data = load(
        path,
        (tsr_dataset_options){.pairs = pairs, .max_length = 60, .truncation = TSR_TRUNCATE_RIGHT});
    if (pairs == TSR_PAIRS_KTO)
        assert_int_equal(tsr_dataset_mismatch(&data, 4, 60), TSR_OK);
    /* ORPO's rows without an answer, whose loss is not a number in TRL, are dropped here. */
    int64_t without = pairs == TSR_PAIRS_ORPO ? tsr_dataset_stats_of(data)->emptied : 0;
    assert_int_equal(tsr_dataset_sample_count(data) + without,
                     json_integer_value(json_object_get(want, "rows_left")));
    assert_true(tsr_dataset_stats_of(data)->longest_document <= 60);
    for (int i = 0; i < 4; i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        const json_t *second = pairs == TSR_PAIRS_KTO
                                   ? json_array_get(json_object_get(want, "mismatched"), (size_t)i)
                                   : json_array_get(documents, (size_t)i + 4);
        check_ids(&s, 0, json_array_get(documents, (size_t)i), key);
        check_ids(&s, 1, second, key);
    }
    tsr_dataset_destroy(data);
}

static void cut(void **state)
{
    (void)state;
    json_t *all = json_load_file(OBJECTIVES "tokens/max_length_60.json", 0, NULL);
    assert_non_null(all);
    check_cut(all, "dpo", "preference_conversational", TSR_PAIRS_DPO);
    check_cut(all, "orpo", "preference_conversational", TSR_PAIRS_ORPO);
    check_cut(all, "kto", "kto_conversational", TSR_PAIRS_KTO);
    json_decref(all);
}

/* ---- where answers begin ---- */

static bool same_rows(const tsr_dataset *a, const tsr_dataset *b)
{
    bool same = tsr_dataset_sample_count(a) == tsr_dataset_sample_count(b);
    for (int64_t i = 0; i < tsr_dataset_sample_count(a) && same; i++) {
        tsr_sample x = tsr_dataset_sample(a, i), y = tsr_dataset_sample(b, i);
        uint64_t bytes = (uint64_t)x.token_count * sizeof *x.ids;
        same = x.token_count == y.token_count && x.lengths[0] == y.lengths[0] &&
               !memcmp(x.ids, y.ids, bytes) && !memcmp(x.labels, y.labels, bytes);
    }
    return same;
}

static bool alike(const char *path, tsr_dataset_options options, const char *other,
                  tsr_dataset_options others)
{
    tsr_dataset *a = load(path, options), *b = load(other, others);
    bool same = same_rows(a, b);
    tsr_dataset_destroy(a);
    tsr_dataset_destroy(b);
    return same;
}

/* Texts without a prompt, whose answers begin alike, are as with their prompt. */
static void begun(void **state)
{
    (void)state;
    static const char whole[] = "{\"chosen\":\"Q: hi\\nA: yes.\\nQ: why?\\nA: it is red\","
                                "\"rejected\":\"Q: hi\\nA: yes.\\nQ: why?\\nA: it is blue\"}\n";
    static const char parted[] = "{\"prompt\":\"Q: hi\\nA: yes.\\nQ: why?\\nA:\","
                                 "\"chosen\":\" it is red\",\"rejected\":\" it is blue\"}\n";
    write_text(scratch_path("whole.jsonl"), whole);
    write_text(scratch_path("parted.jsonl"), parted);
    for (tsr_pairs pairs = TSR_PAIRS_DPO; pairs <= TSR_PAIRS_ORPO; pairs++) {
        tsr_dataset_options trl = {.pairs = pairs}, ours = {.pairs = pairs, .answer_begin = "\nA:"};
        assert_true(alike(scratch_path("whole.jsonl"), ours, scratch_path("parted.jsonl"), trl));
        assert_false(alike(scratch_path("whole.jsonl"), trl, scratch_path("parted.jsonl"), trl));
        assert_true(alike(scratch_path("parted.jsonl"), ours, scratch_path("parted.jsonl"), trl));
    }
}

/* ORPO's conversations without a wrapping have the tokens of DPO's, which are the template's. */
static void bare(void **state)
{
    (void)state;
    static const char turns[] = OBJECTIVES "data/preference_conversational.jsonl";
    static const char text[] = OBJECTIVES "data/preference_text.jsonl";
    tsr_dataset_options dpo = {.pairs = TSR_PAIRS_DPO}, orpo = {.pairs = TSR_PAIRS_ORPO},
                        bare = {.pairs = TSR_PAIRS_ORPO, .bare_conversations = true};
    assert_true(alike(turns, bare, turns, dpo));
    assert_false(alike(turns, orpo, turns, dpo));
    assert_true(alike(text, bare, text, orpo));
}

/* ---- micro-batches ---- */

/* Prompts of 2 and 0 tokens; answers of 3 and 1, and of 1 and 4. */
static const char two_pairs[] =
    "{\"prompt_ids\":[5,6],\"chosen_ids\":[7,8,9],\"rejected_ids\":[7]}\n"
    "{\"prompt_ids\":[],\"chosen_ids\":[1,2],\"rejected_ids\":[1,3,4,5]}\n";

static void check_parts(tsr_batch_options options, const int32_t part[13], int32_t labels)
{
    tsr_batch *batch;
    tsr_micro_batch micro;
    write_text(scratch_path("two.jsonl"), two_pairs);
    tsr_dataset *data =
        load(scratch_path("two.jsonl"), (tsr_dataset_options){.pairs = TSR_PAIRS_DPO});
    options.dataset = data;
    options.per_device = 2;
    options.pairs = TSR_PAIRS_DPO;
    assert_int_equal(tsr_batch_create(&batch, &options), TSR_OK);
    assert_int_equal(tsr_micro_batch_create(&micro, tsr_batch_run_of(batch)), TSR_OK);
    assert_int_equal(tsr_batch_fill(&micro, batch, 0, 0), TSR_OK);
    assert_int_equal(micro.document_count, 4);
    assert_int_equal(micro.label_count, labels);
    assert_int_equal(tsr_batch_run_of(batch)->most_label_rows, labels);
    for (int i = 0; i < 13; i++)
        if (micro.part[i] != part[i])
            fail_msg("part %d begins at %d, expected %d", i, micro.part[i], part[i]);
    tsr_micro_batch_free(&micro);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

static void parts(void **state)
{
    (void)state;
    check_parts((tsr_batch_options){0}, (int32_t[]){0, 0, 3, 3, 3, 4, 4, 4, 5, 5, 5, 8, 8}, 8);
    check_parts((tsr_batch_options){.split_beyond = true},
                (int32_t[]){0, 0, 1, 3, 3, 4, 4, 4, 5, 5, 5, 6, 8}, 8);
    check_parts((tsr_batch_options){.whole_chosen = true},
                (int32_t[]){0, 1, 4, 4, 4, 5, 5, 5, 6, 6, 6, 9, 9}, 9);
}

/* A packed row has room for two documents of max_length, and no pair is divided. */
static void packed(void **state)
{
    (void)state;
    tsr_batch *batch;
    write_text(scratch_path("two.jsonl"), two_pairs);
    tsr_dataset *data =
        load(scratch_path("two.jsonl"), (tsr_dataset_options){.pairs = TSR_PAIRS_DPO});
    tsr_batch_options options = {
        .dataset = data, .packing = true, .max_length = 5, .pairs = TSR_PAIRS_DPO};
    assert_int_equal(tsr_batch_create(&batch, &options), TSR_OK);
    assert_int_equal(tsr_batch_run_of(batch)->units, 2);
    tsr_batch_destroy(batch);
    options.max_length = 7;
    assert_int_equal(tsr_batch_create(&batch, &options), TSR_OK);
    assert_int_equal(tsr_batch_run_of(batch)->units, 1);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

/* ---- documents that are scored ---- */

/* Of 5, 1 and 6 tokens, and of 3; the prompt belongs to the documents. */
static const char scored_pairs[] =
    "{\"prompt_ids\":[5,6],\"chosen_ids\":[7,8,9],\"rejected_ids\":[7],\"margin\":0.5}\n"
    "{\"chosen_ids\":[1],\"rejected_ids\":[1,3,4,5,6,7],\"margin\":-2}\n"
    "{\"chosen_ids\":[1,2,3],\"rejected_ids\":[3,2,1]}\n";

static void fill_scored(tsr_micro_batch *micro, tsr_batch **batch, const tsr_dataset *data)
{
    const tsr_batch_options options = {
        .dataset = data, .per_device = 3, .pairs = TSR_PAIRS_REWARD, .marks_ties = true};
    assert_int_equal(tsr_batch_create(batch, &options), TSR_OK);
    assert_int_equal(tsr_micro_batch_create(micro, tsr_batch_run_of(*batch)), TSR_OK);
    assert_int_equal(tsr_batch_fill(micro, *batch, 0, 0), TSR_OK);
}

/* One label row a document, at its last token; a longer row than max_length is left out whole. */
static void scored(void **state)
{
    (void)state;
    static const int32_t row[] = {4, 7, 8, 14, 17, 20};
    static const float margin[] = {0.5f, -2, 0};
    tsr_batch *batch;
    tsr_micro_batch micro;
    write_text(scratch_path("scored.jsonl"), scored_pairs);
    for (int right = 0; right < 3; right++) {
        bool cut = right > 0;
        tsr_dataset_options options = {.pairs = TSR_PAIRS_REWARD,
                                       .max_length = cut ? 5 : 0,
                                       .truncation =
                                           right > 1 ? TSR_TRUNCATE_RIGHT : TSR_TRUNCATE_DROP};
        tsr_dataset *data = load(scratch_path("scored.jsonl"), options);
        fill_scored(&micro, &batch, data);
        assert_int_equal(tsr_dataset_stats_of(data)->too_long, cut);
        assert_int_equal(micro.label_count, cut ? 4 : 6);
        assert_int_equal(tsr_batch_run_of(batch)->label_tokens, micro.label_count);
        for (int i = 0; i < micro.label_count; i++) {
            int from = cut && i > 1 ? i + 2 : i;
            assert_int_equal(micro.label_rows[i], row[from] - (cut && i > 1 ? 7 : 0));
            assert_int_equal(micro.label_rows[i], micro.cu_seqlens[i + 1] - 1);
            assert_true(micro.margin[i / 2] == margin[from / 2]);
        }
        tsr_micro_batch_free(&micro);
        tsr_batch_destroy(batch);
        tsr_dataset_destroy(data);
    }
}

/* A margin is part of what a data set is. */
static void margins_count(void **state)
{
    (void)state;
    static const char plain[] = "{\"chosen_ids\":[1,2],\"rejected_ids\":[3],\"margin\":null}\n";
    static const char other[] = "{\"chosen_ids\":[1,2],\"rejected_ids\":[3],\"margin\":1}\n";
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        write_text(scratch_path("margin.jsonl"), i ? other : plain);
        tsr_dataset *data =
            load(scratch_path("margin.jsonl"), (tsr_dataset_options){.pairs = TSR_PAIRS_REWARD});
        assert_true(tsr_dataset_sample(data, 0).margin == (float)i);
        hash[i] = tsr_dataset_hash(data);
        tsr_dataset_destroy(data);
    }
    assert_true(hash[0] != hash[1]);
}

/* What pads is not scored, wherever it comes from: as Transformers looks for the last token. */
static void padding_is_not_scored(void **state)
{
    (void)state;
    static const int32_t wanted[] = {-100, 6, -100, -100, 7, -100};
    write_text(scratch_path("padded.jsonl"), "{\"chosen_ids\":[5,6,7,7],\"rejected_ids\":[7,7]}\n");
    tsr_dataset *data = load(scratch_path("padded.jsonl"),
                             (tsr_dataset_options){.pairs = TSR_PAIRS_REWARD, .pad = 1 + 7});
    tsr_sample sample = tsr_dataset_sample(data, 0);
    for (int i = 0; i < 6; i++)
        assert_int_equal(sample.labels[i], wanted[i]);
    assert_int_equal(sample.label_count, 2);
    tsr_dataset_destroy(data);
}

/* ---- the cache ---- */

static void cached(void **state)
{
    (void)state;
    tsr_token_place place = {.least_bytes = 0};
    uint64_t hash[3];
    snprintf(place.directory, sizeof place.directory, "%s", scratch_path("cache"));
    for (int i = 0; i < 3; i++) {
        tsr_dataset *data =
            load(OBJECTIVES "data/kto_conversational.jsonl",
                 (tsr_dataset_options){.pairs = TSR_PAIRS_KTO, .cache = i ? &place : NULL});
        assert_int_equal(tsr_dataset_mismatch(&data, 4, 0), TSR_OK);
        hash[i] = tsr_dataset_hash(data);
        tsr_dataset_destroy(data);
    }
    assert_true(hash[0] == hash[1] && hash[0] == hash[2]);
    assert_int_equal(count_entries(place.directory), 1);
}

/* ---- broken rows ---- */

#define USER     "[{\"role\":\"user\",\"content\":\"a\"}]"
#define SAYS(x)  "[{\"role\":\"assistant\",\"content\":\"" x "\"}]"
#define PAIR     "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n"
#define UNPAIRED "{\"prompt\":\"a\",\"completion\":\"b\",\"label\":true}\n"

static void broken(void **state)
{
    (void)state;
    static const struct {
        tsr_pairs pairs;
        const char *text;
        const char *words[MOST_WORDS];
        const char *begin;
    } rows[] = {
        {TSR_PAIRS_NONE, PAIR, {"rows.jsonl:1", "need objective: dpo"}},
        {TSR_PAIRS_DPO, "{\"prompt\":\"a\",\"rejected\":\"c\"}", {"\"rejected\"", "\"chosen\""}},
        {TSR_PAIRS_DPO,
         PAIR "{\"prompt\":\"a\",\"rejected\":\"c\"}",
         {"rows.jsonl:2", "\"chosen\" and \"rejected\"", "this one has"}},
        {TSR_PAIRS_DPO,
         PAIR "{\"prompt\":" USER ",\"chosen\":\"b\",\"rejected\":\"c\"}",
         {"rows.jsonl:2", "\"prompt\" is a list", "strings"}},
        {TSR_PAIRS_DPO,
         "{\"prompt\":\"a\",\"chosen\":" SAYS("b") ",\"rejected\":" SAYS("c") "}",
         {"rows.jsonl:1", "\"prompt\" is a string", "lists of messages"}},
        {TSR_PAIRS_DPO,
         "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":3}",
         {"\"rejected\" is a", "expected a string or a list"}},
        {TSR_PAIRS_DPO,
         "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}",
         {"rows.jsonl:1", "are equal"}},
        {TSR_PAIRS_DPO, "{\"chosen_ids\":[1],\"rejected_ids\":[1]}", {"rows.jsonl:1", "are equal"}},
        {TSR_PAIRS_DPO,
         "{\"chosen_ids\":[1],\"rejected_ids\":[]}",
         {"\"rejected_ids\" is empty", "needs a token"}},
        {TSR_PAIRS_DPO,
         "{\"prompt\":" USER ",\"chosen\":[],\"rejected\":" SAYS("c") "}",
         {"\"chosen\" is empty"}},
        {TSR_PAIRS_DPO, UNPAIRED, {"rows.jsonl:1", "no known format"}},
        {TSR_PAIRS_DPO,
         "{\"prompt\":" SAYS("a") ",\"chosen\":" SAYS("b") ",\"rejected\":" SAYS("c") "}",
         {"rows.jsonl:1", "ends with an assistant message"}},
        {TSR_PAIRS_KTO,
         "{\"prompt\":\"a\",\"completion\":\"b\",\"label\":1}",
         {"rows.jsonl:1", "\"label\" is 1", "true (good) or false (bad)"}},
        {TSR_PAIRS_KTO, "{\"completion\":\"b\",\"label\":true}", {"no \"prompt\""}},
        {TSR_PAIRS_DPO,
         "{\"chosen\":" USER ",\"rejected\":" SAYS("c") "}",
         {"rows.jsonl:1", "do not begin with the same message"}},
        {TSR_PAIRS_DPO,
         "{\"chosen\":\"a\\nA: b\",\"rejected\":\"a\\nB: c\"}",
         {"rows.jsonl:1", "have no \"\\nA:\" (answer_begin)", "give it a \"prompt\""},
         "\nA:"},
        {TSR_PAIRS_REWARD,
         "{\"chosen\":\"a\",\"rejected\":\"b\",\"margin\":\"2\"}",
         {"rows.jsonl:1", "\"margin\" is \"2\", expected a number"}},
        {TSR_PAIRS_REWARD,
         "{\"chosen_ids\":[1],\"rejected_ids\":[2],\"margin\":1e99}",
         {"rows.jsonl:1", "\"margin\" is 9.99"}},
        {TSR_PAIRS_REWARD,
         "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}",
         {"rows.jsonl:1", "are equal"}},
        {TSR_PAIRS_REWARD,
         "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":" SAYS("c") "}",
         {"rows.jsonl:1", "\"rejected\" is a list", "strings"}},
        {TSR_PAIRS_REWARD, UNPAIRED, {"rows.jsonl:1", "no known format"}},
        {TSR_PAIRS_ORPO, "{\"text\":\"a\"}", {"no known format", "\"chosen\" and \"rejected\""}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_dataset *data;
        const char *path = scratch_path("rows.jsonl");
        write_text(path, rows[i].text);
        check_error(
            rows[i].text,
            load_file(&data, path,
                      (tsr_dataset_options){.pairs = rows[i].pairs, .answer_begin = rows[i].begin}),
            TSR_EDATA, rows[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens),
        cmocka_unit_test(cut),
        cmocka_unit_test(parts),
        cmocka_unit_test(begun),
        cmocka_unit_test(bare),
        cmocka_unit_test(packed),
        cmocka_unit_test(cached),
        cmocka_unit_test(broken),
        cmocka_unit_test(scored),
        cmocka_unit_test(margins_count),
        cmocka_unit_test(padding_is_not_scored),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
