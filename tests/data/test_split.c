/* Rows that are longer than max_length, split: no token and no label is lost, and none is there twice. */
#include "support/scratch.h"

#include "base/log.h"
#include "base/text.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#define IGNORED TSR_LABEL_IGNORED

static int setup(void **state)
{
    (void)state;
    scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

static tsr_dataset *load_with(const char *text, tsr_dataset_options options)
{
    const char *path = scratch_path("rows.jsonl");
    tsr_dataset *data = NULL;
    write_text(path, text);
    options.files = &path;
    options.file_count = 1;
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s: %s", text, tsr_last_error());
    return data;
}

static tsr_dataset *load(const char *text, int64_t most)
{
    return load_with(text,
                     (tsr_dataset_options){.max_length = most, .truncation = TSR_TRUNCATE_SPLIT});
}

/* A sample, as text: part, ids, labels where they are trained, lengths. */
static const char *show(const tsr_dataset *data, int64_t index)
{
    static char line[512];
    tsr_sample s = tsr_dataset_sample(data, index);
    tsr_text text = {0};
    int32_t labels = 0;
    tsr_text_printf(&text, "%lld/%d:", (long long)s.line, s.part);
    for (int32_t i = 0; i < s.token_count; i++) {
        bool trained = s.labels[i] != IGNORED;
        tsr_text_printf(&text, trained ? " %d" : " (%d)", s.ids[i]);
        assert_true(!trained || s.labels[i] == s.ids[i]);
        labels += trained;
    }
    for (int32_t d = 0; d < s.document_count; d++)
        tsr_text_printf(&text, "%s%d", d ? "+" : " of ", s.lengths[d]);
    assert_int_equal(labels, s.label_count);
    snprintf(line, sizeof line, "%s", tsr_text_string(&text));
    tsr_text_free(&text);
    return line;
}

static void check(const char *text, int64_t most, const char *const *expected)
{
    tsr_dataset *data = load(text, most);
    int64_t count = 0;
    for (; expected[count]; count++) {
        assert_true(count < tsr_dataset_sample_count(data));
        assert_string_equal(show(data, count), expected[count]);
    }
    assert_int_equal(tsr_dataset_sample_count(data), count);
    tsr_dataset_destroy(data);
}

/* A part begins with the token before it, so that its first own token can be predicted. */
static void one_document(void **state)
{
    (void)state;
    check("{\"input_ids\":[0,1,2,3,4,5,6,7,8,9]}", 4,
          (const char *[]){"1/1: (0) 1 2 3 of 4", "1/2: (3) 4 5 6 of 4", "1/3: (6) 7 8 9 of 4",
                           NULL});
    check("{\"input_ids\":[0,1,2,3,4]}\n{\"input_ids\":[5,6,7,8]}", 4,
          (const char *[]){"1/1: (0) 1 2 3 of 4", "1/2: (3) 4 of 2", "2/0: (5) 6 7 8 of 4", NULL});
    check("{\"input_ids\":[0,1,2]}", 2,
          (const char *[]){"1/1: (0) 1 of 2", "1/2: (1) 2 of 2", NULL});
}

/* No document is cut that fits into a row. */
static void several_documents(void **state)
{
    (void)state;
    check("{\"input_ids\":[0,1,2,3,4,5],\"seq_lengths\":[3,3]}", 4,
          (const char *[]){"1/1: (0) 1 2 of 3", "1/2: (3) 4 5 of 3", NULL});
    check("{\"input_ids\":[0,1,2,3,4,5,6,7,8,9,10],\"seq_lengths\":[2,2,6,1]}", 4,
          (const char *[]){"1/1: (0) 1 (2) 3 of 2+2", "1/2: (4) 5 6 7 of 4",
                           "1/3: (7) 8 9 (10) of 3+1", NULL});
    check("{\"input_ids\":[0,1,2,3,4,5,6,7,8],\"seq_lengths\":[4,1,4]}", 4,
          (const char *[]){"1/1: (0) 1 2 3 of 4", "1/3: (5) 6 7 8 of 4", NULL});
}

static char warnings[4096];

static void note(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    (void)level;
    strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

/* Parts of a prompt alone go; of a row that never trained anything all stay, as the row would. */
static void parts_without_labels(void **state)
{
    (void)state;
    const char *text = "{\"input_ids\":[0,1,2,3,4,5,6],\"labels\":[-100,-100,-100,-100,-100,5,6]}\n"
                       "{\"input_ids\":[0,1,2,3,4,5,6],\"labels\":[-100,-100,-100,3,-100,-100,6]}\n"
                       "{\"input_ids\":[0,1,2,3,4],\"labels\":[-100,-100,-100,-100,-100]}\n";
    check(text, 4,
          (const char *[]){"1/2: (3) (4) 5 6 of 4", "2/1: (0) (1) (2) 3 of 4",
                           "2/2: (3) (4) (5) 6 of 4", "3/1: (0) (1) (2) (3) of 4",
                           "3/2: (3) (4) of 2", NULL});
    warnings[0] = 0;
    tsr_log_set(note, NULL, TSR_LOG_INFO);
    tsr_dataset *data = load(text, 4);
    tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
    const tsr_dataset_stats *stats = tsr_dataset_stats_of(data);
    assert_int_equal(stats->rows, 3);
    assert_int_equal(stats->samples, 5);
    assert_int_equal(stats->split, 3);
    assert_int_equal(stats->parts, 5);
    assert_int_equal(stats->empty_parts, 1);
    assert_int_equal(stats->unlabelled, 2);
    assert_int_equal(stats->truncated + stats->too_long + stats->emptied, 0);
    assert_int_equal(stats->first_split.line, 1);
    assert_int_equal(stats->first_split.rows, 3);
    assert_non_null(strstr(warnings, "max_length 4 split 3 of 3 rows into 5 samples"));
    assert_non_null(strstr(warnings, "1 parts of split rows have no token to train"));
    tsr_dataset_destroy(data);
}

/* Rows of random documents, of which every third token is trained, or each. */
static void put_rows(tsr_text *out, int rows, int every)
{
    for (int r = 0, id = 0; r < rows; r++) {
        tsr_auto_text labels = {0}, lengths = {0};
        tsr_text_puts(out, "{\"input_ids\":[");
        for (int d = 0, documents = 1 + rand() % 4; d < documents; d++) {
            int length = 1 + rand() % 40;
            tsr_text_printf(&lengths, "%s%d", d ? "," : "", length);
            for (int i = 0; i < length; i++, id++) {
                tsr_text_printf(out, "%s%d", d + i ? "," : "", id);
                tsr_text_printf(&labels, "%s%d", d + i ? "," : "", rand() % every ? IGNORED : id);
            }
        }
        tsr_text_printf(out, "],\"labels\":[%s],\"seq_lengths\":[%s]}\n", tsr_text_string(&labels),
                        tsr_text_string(&lengths));
    }
}

/* The labels of all samples, in order; every token is there where each is trained. */
static int64_t collect(int32_t *labels, int32_t *seen, const tsr_dataset *data, int64_t most)
{
    int64_t count = 0;
    for (int64_t i = 0; i < tsr_dataset_sample_count(data); i++) {
        tsr_sample s = tsr_dataset_sample(data, i);
        int32_t tokens = 0;
        assert_true(!most || s.token_count <= most);
        for (int32_t d = 0; d < s.document_count; tokens += s.lengths[d++])
            assert_int_equal(s.labels[tokens], IGNORED);
        assert_int_equal(tokens, s.token_count);
        for (int32_t t = 0; t < s.token_count; t++) {
            seen[s.ids[t]]++;
            if (s.labels[t] != IGNORED)
                labels[count++] = s.labels[t];
        }
    }
    return count;
}

#define IDS (100 * 160)

static void nothing_is_lost(void **state)
{
    (void)state;
    int32_t *room = calloc(4 * IDS, sizeof *room), *labels = room, *whole = room + IDS;
    int32_t *seen = room + 2 * IDS, *once = room + 3 * IDS;
    assert_non_null(room);
    srand(3);
    for (int64_t most = 2; most < 60; most += 1 + most / 8) {
        for (int every = 1; every < 4; every += 2) {
            tsr_text text = {0};
            put_rows(&text, 100, every);
            memset(room, 0, 4 * IDS * sizeof *room);
            tsr_dataset *plain = load(tsr_text_string(&text), 0);
            tsr_dataset *split = load(tsr_text_string(&text), most);
            int64_t count = collect(whole, once, plain, 0);
            assert_int_equal(collect(labels, seen, split, most), count);
            assert_memory_equal(labels, whole, (size_t)count * sizeof *labels);
            assert_int_equal(tsr_dataset_stats_of(split)->label_tokens, count);
            for (int i = 0; i < IDS; i++) /* twice where a part begins behind it */
                assert_true(every > 1 || seen[i] == once[i] || seen[i] == once[i] + 1 ||
                            (seen[i] == 0 && once[i] == 1));
            tsr_dataset_destroy(plain);
            tsr_dataset_destroy(split);
            tsr_text_free(&text);
        }
    }
    free(room);
}

/* The same samples for any number of threads. */
static void threads(void **state)
{
    (void)state;
    tsr_text text = {0};
    uint64_t hash[2];
    srand(4);
    put_rows(&text, 100, 2);
    for (int i = 0; i < 2; i++) {
        tsr_dataset *data = load_with(tsr_text_string(&text),
                                      (tsr_dataset_options){.max_length = 16,
                                                            .truncation = TSR_TRUNCATE_SPLIT,
                                                            .threads = i ? 4 : 0});
        hash[i] = tsr_dataset_hash(data);
        tsr_dataset_destroy(data);
    }
    assert_true(hash[0] == hash[1]);
    tsr_text_free(&text);
}

/* max_rows counts rows, not what becomes of them. */
static void rows_are_counted(void **state)
{
    (void)state;
    tsr_dataset *data = load_with(
        "{\"input_ids\":[0,1,2,3,4]}\n{\"input_ids\":[5,6,7]}\n"
        "{\"input_ids\":[8,9]}\n",
        (tsr_dataset_options){.max_length = 3, .truncation = TSR_TRUNCATE_SPLIT, .max_rows = 2});
    assert_int_equal(tsr_dataset_sample_count(data), 3);
    assert_string_equal(show(data, 2), "2/0: (5) 6 7 of 3");
    tsr_dataset_destroy(data);
}

static void refused(void **state)
{
    (void)state;
    const char *path = scratch_path("rows.jsonl");
    tsr_dataset_options options = {
        .files = &path, .file_count = 1, .max_length = 1, .truncation = TSR_TRUNCATE_SPLIT};
    tsr_dataset *data = NULL;
    write_text(path, "{\"input_ids\":[1,2]}\n");
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_EINVAL);
    write_text(path, "{\"prompt_ids\":[1],\"chosen_ids\":[2],\"rejected_ids\":[3]}\n");
    options.max_length = 8;
    options.pairs = TSR_PAIRS_DPO;
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_EINVAL);
    assert_null(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_document),
        cmocka_unit_test(several_documents),
        cmocka_unit_test(parts_without_labels),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(threads),
        cmocka_unit_test(rows_are_counted),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
