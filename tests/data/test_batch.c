/* The batches of a run: what must hold for any data, any number of ranks and any sizes. */
#include "support/scratch.h"

#include "base/philox.h"
#include "base/text.h"
#include "data/batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows with one to three documents; token t of sample s is 1000 s + t. Every `unlabelled`-th row
 * has no labels, others have some. */
static tsr_dataset *make_data(int rows, int longest, int unlabelled, uint64_t seed)
{
    tsr_text text = {0};
    for (int s = 0; s < rows; s++) {
        seed = tsr_mix(seed);
        int documents = (int)(seed >> 20 & 0xffff) % 3 + 1, lengths[3], total = 0;
        for (int d = 0; d < documents; d++) {
            lengths[d] = (int)(tsr_mix(seed + (uint64_t)d) % (uint64_t)longest) + 2;
            total += lengths[d];
        }
        tsr_text_puts(&text, "{\"input_ids\":[");
        for (int t = 0; t < total; t++)
            tsr_text_printf(&text, "%s%d", t ? "," : "", 1000 * s + t);
        tsr_text_puts(&text, "],\"labels\":[");
        for (int t = 0; t < total; t++)
            tsr_text_printf(
                &text, "%s%d", t ? "," : "",
                (unlabelled && s % unlabelled == 0) || (t % 3 == 0 && t > 1) ? -100 : 1000 * s + t);
        tsr_text_puts(&text, "],\"seq_lengths\":[");
        for (int d = 0; d < documents; d++)
            tsr_text_printf(&text, "%s%d", d ? "," : "", lengths[d]);
        tsr_text_puts(&text, "]}\n");
    }
    const char *path = scratch_path("rows.jsonl");
    write_text(path, tsr_text_string(&text));
    tsr_text_free(&text);
    tsr_dataset *data;
    tsr_dataset_options options = {.files = &path, .file_count = 1};
    assert_int_equal(tsr_dataset_load(&data, &options), TSR_OK);
    return data;
}

static tsr_batch *open_batch(const tsr_batch_options *options)
{
    tsr_batch *batch;
    if (tsr_batch_create(&batch, options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return batch;
}

/* What one micro-batch must be, given the data; counts each sample in seen[]. */
static void check_micro(const tsr_micro_batch *m, const tsr_batch_run *run, const tsr_dataset *data,
                        int *seen)
{
    int32_t labels = 0;
    assert_int_equal(m->cu_seqlens[0], 0);
    assert_int_equal(m->cu_seqlens[m->document_count], m->token_count);
    assert_in_range(m->bucket, 0, run->bucket_count - 1);
    const tsr_batch_bucket *bucket = &run->bucket[m->bucket];
    assert_true(m->token_count <= bucket->tokens && m->label_count <= bucket->label_rows);
    if (m->bucket)
        assert_true(m->token_count > run->bucket[m->bucket - 1].tokens);
    for (int32_t d = 0; d < m->document_count; d++) {
        tsr_sample s = tsr_dataset_sample(data, m->sample[d]);
        int32_t offset = m->first_position[d], begin = m->cu_seqlens[d];
        int32_t length = m->cu_seqlens[d + 1] - begin;
        seen[m->sample[d]] += length;
        for (int32_t t = 0; t < length; t++) {
            int32_t target = t + 1 < length ? s.labels[offset + t + 1] : TSR_LABEL_IGNORED;
            assert_int_equal(m->ids[begin + t], s.ids[offset + t]);
            assert_int_equal(m->positions[begin + t], t);
            assert_int_equal(m->targets[begin + t], target);
            if (target != TSR_LABEL_IGNORED) {
                assert_int_equal(m->label_rows[labels], begin + t);
                assert_int_equal(m->labels[labels++], target);
            }
        }
    }
    assert_int_equal(labels, m->label_count);
    for (int32_t t = m->token_count; t < bucket->tokens; t++)
        assert_true(!m->ids[t] && !m->positions[t] && m->targets[t] == TSR_LABEL_IGNORED);
    for (int32_t i = labels; i < bucket->label_rows; i++)
        assert_true(!m->labels[i] && !m->label_rows[i]);
}

typedef struct {
    int64_t tokens, documents, labels;
} most;

static void keep_most(most *all, const tsr_micro_batch *m)
{
    if (m->token_count > all->tokens)
        all->tokens = m->token_count;
    if (m->document_count > all->documents)
        all->documents = m->document_count;
    if (m->label_count > all->labels)
        all->labels = m->label_count;
}

/* Walks a run; with every_sample each epoch has every token of every sample exactly once. */
static void check_run(const tsr_batch_options *options, bool every_sample)
{
    const tsr_dataset *data = options->dataset;
    int64_t n = tsr_dataset_sample_count(data);
    tsr_batch *batch = open_batch(options);
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    int *seen = calloc((size_t)n, sizeof *seen);
    int64_t labels = 0, tokens = 0, ranks = options->ranks ? options->ranks : 1, rounds = 0;
    most largest = {0};
    for (int64_t step = 0; step < run->steps; step++) {
        tsr_batch_step_info info;
        int64_t step_labels = 0, step_tokens = 0;
        assert_int_equal(tsr_batch_step(batch, step, &info), TSR_OK);
        assert_int_equal(info.epoch, step / run->steps_per_epoch);
        assert_int_equal(info.rounds, (info.micro_count + ranks - 1) / ranks);
        rounds = info.rounds > rounds ? info.rounds : rounds;
        for (int64_t k = 0; k < info.rounds * ranks; k++) {
            assert_int_equal(tsr_batch_fill(&m, batch, step, k), TSR_OK);
            assert_int_equal(m.epoch, info.epoch);
            assert_true((k < info.micro_count) == (m.token_count > 0));
            check_micro(&m, run, data, seen);
            keep_most(&largest, &m);
            step_labels += m.label_count;
            step_tokens += m.token_count;
        }
        assert_int_equal(step_labels, info.label_tokens);
        assert_int_equal(step_tokens, info.input_tokens);
        labels += step_labels;
        tokens += step_tokens;
        for (int64_t i = 0; info.ends_epoch && every_sample && i < n; i++) {
            assert_int_equal(seen[i], tsr_dataset_sample(data, i).token_count);
            seen[i] = 0;
        }
        if (info.ends_epoch) {
            assert_true(info.progress == (double)(info.epoch + 1));
            assert_int_equal(info.samples_seen, (info.epoch + 1) * n);
        } else {
            assert_true(info.progress > (double)info.epoch &&
                        info.progress < (double)(info.epoch + 1));
        }
    }
    assert_int_equal(labels, run->label_tokens);
    assert_int_equal(tokens, run->input_tokens);
    assert_int_equal(rounds, run->rounds);
    assert_int_equal(largest.tokens, run->most_tokens);
    assert_int_equal(largest.documents, run->most_documents);
    assert_int_equal(largest.labels, run->most_label_rows);
    assert_int_equal(run->bucket[run->bucket_count - 1].tokens, run->most_tokens);
    free(seen);
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
}

static void every_sample_once_an_epoch(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 120; seed++) {
        uint64_t r = tsr_mix(seed);
        tsr_dataset *data = make_data((int)(r % 60) + 1, (int)(r >> 8 & 31) + 1, 0, seed);
        tsr_batch_options options = {.dataset = data,
                                     .shuffle = r >> 16 & 1,
                                     .seed = seed,
                                     .packing = r >> 17 & 1,
                                     .max_length = 110,
                                     .per_device = (int64_t)(r >> 20 & 3) + 1,
                                     .accumulation = (int64_t)(r >> 22 & 3) + 1,
                                     .ranks = (int64_t)(r >> 24 & 7) + 1,
                                     .epochs = 3};
        if (r >> 30 & 1)
            options.total_batch = options.per_device * ((int64_t)(r >> 32 & 7) + 1);
        check_run(&options, true);
        options.max_steps = (int64_t)(r >> 40 & 15) + 1;
        check_run(&options, true);
        tsr_dataset_destroy(data);
    }
}

/* A hash of everything that a step's kernels see. */
static uint64_t content(tsr_batch *batch, tsr_micro_batch *m, int64_t step)
{
    tsr_batch_step_info info;
    uint64_t hash = 1;
    assert_int_equal(tsr_batch_step(batch, step, &info), TSR_OK);
    for (int64_t k = 0; k < info.micro_count; k++) {
        assert_int_equal(tsr_batch_fill(m, batch, step, k), TSR_OK);
        const int32_t tokens = tsr_batch_run_of(batch)->bucket[m->bucket].tokens;
        for (int32_t t = 0; t < tokens; t++)
            hash = tsr_mix(hash ^ (uint64_t)(uint32_t)m->ids[t]) ^ (uint32_t)m->targets[t];
        for (int32_t d = 0; d < m->document_count; d++)
            hash = tsr_mix(hash ^ (uint64_t)m->cu_seqlens[d + 1]) ^ (uint64_t)m->sample[d];
    }
    return hash;
}

static void any_number_of_ranks_trains_the_same(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(41, 20, 5, 3);
    for (int packing = 0; packing < 2; packing++) {
        uint64_t expected[64];
        int64_t steps = 0;
        for (int64_t ranks = 1; ranks <= 8; ranks++) {
            tsr_batch_options options = {.dataset = data,
                                         .shuffle = true,
                                         .seed = 7,
                                         .packing = packing,
                                         .max_length = 80,
                                         .per_device = 2,
                                         .total_batch = 6,
                                         .ranks = ranks,
                                         .epochs = 2.5};
            tsr_batch *batch = open_batch(&options);
            const tsr_batch_run *run = tsr_batch_run_of(batch);
            tsr_micro_batch m;
            assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
            if (ranks == 1)
                steps = run->steps;
            assert_int_equal(run->steps, steps);
            assert_in_range(steps, 3, 64);
            for (int64_t step = 0; step < steps; step++) {
                uint64_t found = content(batch, &m, step);
                if (ranks == 1)
                    expected[step] = found;
                assert_true(found == expected[step]);
            }
            /* A jump back finds the same again. */
            assert_true(content(batch, &m, 0) == expected[0]);
            tsr_micro_batch_free(&m);
            tsr_batch_destroy(batch);
        }
        for (int64_t step = 1; step < steps; step++)
            assert_true(expected[step] != expected[step - 1]);
    }
    tsr_dataset_destroy(data);
}

static uint64_t run_hash(const tsr_batch_options *options)
{
    tsr_batch *batch = open_batch(options);
    uint64_t hash = tsr_batch_run_of(batch)->hash;
    tsr_batch_destroy(batch);
    return hash;
}

static void seeds_and_epochs_differ(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(30, 10, 0, 5);
    tsr_batch_options options = {.dataset = data, .shuffle = true, .seed = 42, .epochs = 2};
    uint64_t hash = run_hash(&options);
    assert_true(hash == run_hash(&options));
    options.seed = 43;
    assert_true(hash != run_hash(&options));
    options.seed = 42;
    options.packing = true;
    options.max_length = 60;
    uint64_t packed = run_hash(&options);
    assert_true(packed != hash && packed == run_hash(&options));
    options.packing = false;
    tsr_batch *batch = open_batch(&options);
    tsr_micro_batch m;
    int64_t first[60];
    assert_int_equal(tsr_micro_batch_create(&m, tsr_batch_run_of(batch)), TSR_OK);
    for (int64_t step = 0; step < 60; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        first[step] = m.sample[0];
    }
    int moved = 0, fixed = 0;
    for (int i = 0; i < 30; i++) {
        moved += first[i] != first[30 + i];
        fixed += first[i] == i;
    }
    assert_true(moved > 20 && fixed < 10);
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

/* Each of 5 places gets each of 5 samples about 400 times in 2000 epochs. */
/* The samples of an epoch of steps of `per_device` samples, in their order. */
static void order_of_epoch(int64_t *out, const tsr_batch_options *options)
{
    tsr_batch *batch = open_batch(options);
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    tsr_micro_batch m;
    int count = 0;
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    for (int64_t step = 0; step < run->steps_per_epoch; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        for (int32_t d = 0; d < m.document_count; d++)
            if (!m.first_position[d])
                out[count++] = m.sample[d];
    }
    assert_int_equal(count, run->samples);
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
}

/* transformers' rule, written down again: `group` samples of the shuffled order at a time, by falling length, Python's
 * sort leaving equal ones where they were; and the longest of all is swapped to the front. */
static void group_plainly(int64_t *items, int count, int group, const tsr_dataset *data)
{
    int longest = 0;
    for (int first = 0; first < count; first += group) {
        int end = first + group < count ? first + group : count;
        for (int i = first + 1; i < end; i++)
            for (int j = i; j > first && tsr_dataset_sample(data, items[j]).token_count >
                                             tsr_dataset_sample(data, items[j - 1]).token_count;
                 j--) {
                int64_t item = items[j];
                items[j] = items[j - 1];
                items[j - 1] = item;
            }
        if (tsr_dataset_sample(data, items[first]).token_count >
            tsr_dataset_sample(data, items[longest]).token_count)
            longest = first;
    }
    int64_t item = items[0];
    items[0] = items[longest];
    items[longest] = item;
}

static void grouped_by_length(void **state)
{
    (void)state;
    static const struct {
        int rows, per_device, group;
    } cases[] = {{83, 2, 20}, {83, 5, 20}, {7, 4, 4}, {3, 4, 3}, {1, 1, 1}, {450, 2, 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsr_dataset *data = make_data(cases[i].rows, 9, 0, i);
        tsr_batch_options options = {
            .dataset = data, .shuffle = i % 2 == 0, .seed = 3, .per_device = cases[i].per_device};
        int64_t plain[450], grouped[450];
        order_of_epoch(plain, &options);
        options.group_by_length = true;
        order_of_epoch(grouped, &options);
        group_plainly(plain, cases[i].rows, cases[i].group, data);
        for (int k = 0; k < cases[i].rows; k++)
            if (plain[k] != grouped[k])
                fail_msg("case %zu: place %d has sample %d, expected %d", i, k, (int)grouped[k],
                         (int)plain[k]);
        tsr_dataset_destroy(data);
    }
}

static void shuffling_is_uniform(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(5, 4, 0, 1);
    tsr_batch_options options = {.dataset = data, .shuffle = true, .seed = 1, .epochs = 2000};
    tsr_batch *batch = open_batch(&options);
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, tsr_batch_run_of(batch)), TSR_OK);
    int count[5][5] = {{0}};
    for (int64_t step = 0; step < 10000; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        count[step % 5][m.sample[0]]++;
    }
    for (int i = 0; i < 25; i++) /* six standard deviations */
        assert_in_range(count[i / 5][i % 5], 400 - 108, 400 + 108);
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

static void rows_of_a_file_in_order(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(23, 12, 0, 9);
    tsr_batch_options options = {.dataset = data, .per_device = 3, .epochs = 2};
    for (int packing = 0; packing < 2; packing++) {
        options.packing = packing;
        options.max_length = 90;
        tsr_batch *batch = open_batch(&options);
        const tsr_batch_run *run = tsr_batch_run_of(batch);
        tsr_micro_batch m;
        assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
        assert_int_equal(run->steps_per_epoch, (run->units + 2) / 3);
        int64_t next = 0;
        for (int64_t step = 0; step < run->steps; step++) {
            if (step == run->steps_per_epoch)
                next = 0;
            assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
            if (packing && step % run->steps_per_epoch == 0)
                assert_int_equal(m.sample[0], 0);
            for (int32_t d = 0; !packing && d < m.document_count; d++)
                if (m.first_position[d] == 0)
                    assert_int_equal(m.sample[d], next++);
        }
        tsr_micro_batch_free(&m);
        tsr_batch_destroy(batch);
    }
    tsr_dataset_destroy(data);
}

/* No row of packed samples is longer than max_length, none is split: a micro-batch of one row has
 * whole samples only. */
static void packed_rows_hold_whole_samples(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(80, 15, 0, 4);
    tsr_batch_options options = {
        .dataset = data, .packing = true, .max_length = 64, .shuffle = true, .epochs = 2};
    tsr_batch *batch = open_batch(&options);
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    assert_true(run->units < 80);
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    for (int64_t step = 0; step < run->steps; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        assert_true(m.token_count <= 64);
        for (int32_t d = 0; d < m.document_count; d++) {
            tsr_sample s = tsr_dataset_sample(data, m.sample[d]);
            if (m.first_position[d] == 0)
                for (int32_t i = 0; i < s.document_count; i++)
                    assert_int_equal(m.cu_seqlens[d + i + 1] - m.cu_seqlens[d + i], s.lengths[i]);
        }
    }
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

/* INTERFACE's arithmetic, by hand: 10 samples, 2 a micro-batch, 2 x 2 micro-batches a step. */
static void steps_by_hand(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(10, 6, 0, 2);
    tsr_batch_options options = {
        .dataset = data, .per_device = 2, .accumulation = 2, .ranks = 2, .epochs = 1.5};
    const struct {
        bool drop_last;
        int64_t max_steps, total_batch, steps, steps_per_epoch, rounds;
    } cases[] = {{false, 0, 0, 3, 2, 2},  {true, 0, 0, 2, 1, 2},  {false, 7, 0, 7, 2, 2},
                 {false, -1, 6, 3, 2, 2}, {false, 0, 2, 8, 5, 1}, {false, 0, 100, 2, 1, 3},
                 {true, 0, 4, 3, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options.drop_last = cases[i].drop_last;
        options.max_steps = cases[i].max_steps;
        options.total_batch = cases[i].total_batch;
        tsr_batch *batch = open_batch(&options);
        const tsr_batch_run *run = tsr_batch_run_of(batch);
        assert_int_equal(run->steps, cases[i].steps);
        assert_int_equal(run->steps_per_epoch, cases[i].steps_per_epoch);
        assert_int_equal(run->rounds, cases[i].rounds);
        tsr_batch_destroy(batch);
        check_run(&options, !cases[i].drop_last);
    }
    tsr_batch_step_info info;
    options.total_batch = options.max_steps = 0;
    options.drop_last = false;
    tsr_batch *batch = open_batch(&options);
    assert_int_equal(tsr_batch_step(batch, 1, &info), TSR_OK);
    assert_int_equal(info.micro_count, 1); /* samples 8 and 9: rank 1 has none */
    assert_int_equal(info.first_micro, 4);
    assert_int_equal(info.rounds, 1);
    assert_true(info.ends_epoch && info.progress == 1.0);
    assert_int_equal(tsr_batch_step(batch, 3, &info), TSR_EINVAL);
    assert_int_equal(tsr_batch_step(batch, -1, &info), TSR_EINVAL);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

static void evaluation_is_one_step(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(11, 9, 0, 8);
    tsr_batch_options options = {.dataset = data,
                                 .evaluation = true,
                                 .shuffle = true,
                                 .drop_last = true,
                                 .per_device = 4,
                                 .ranks = 2,
                                 .max_steps = 9};
    check_run(&options, true);
    tsr_batch *batch = open_batch(&options);
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    assert_int_equal(run->steps, 1);
    assert_int_equal(run->step_micro, 3);
    assert_int_equal(run->rounds, 2);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

/* With many different lengths: 16 shapes, little padding; with few: each its own. */
static void buckets_cover_closely(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(900, 700, 0, 6);
    tsr_batch_options options = {.dataset = data, .per_device = 1, .shuffle = true};
    tsr_batch *batch = open_batch(&options);
    const tsr_batch_run *run = tsr_batch_run_of(batch);
    assert_int_equal(run->bucket_count, TSR_BATCH_BUCKETS);
    int64_t padded = 0;
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    for (int64_t step = 0; step < run->steps; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        padded += run->bucket[m.bucket].tokens;
    }
    assert_true((double)padded < 1.08 * (double)run->input_tokens);
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
    data = make_data(40, 2, 0, 6); /* 2 to 9 tokens */
    options.dataset = data;
    batch = open_batch(&options);
    run = tsr_batch_run_of(batch);
    assert_in_range(run->bucket_count, 2, 8);
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    for (int64_t step = 0; step < run->steps; step++) {
        assert_int_equal(tsr_batch_fill(&m, batch, step, 0), TSR_OK);
        assert_int_equal(m.token_count, run->bucket[m.bucket].tokens);
    }
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

static void refusals_name_the_rows(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(12, 9, 4, 8); /* rows 1, 5, 9 have no label */
    tsr_batch *batch = NULL;
    tsr_batch_options options = {.dataset = data, .per_device = 1, .name = "dataset"};
    check_error("a step without label", tsr_batch_create(&batch, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"dataset: step 1 (epoch 1)", "rows.jsonl:1 "});
    options.per_device = 2;
    options.shuffle = true;
    tsr_status status = TSR_OK;
    for (options.seed = 0; options.seed < 50 && status == TSR_OK; options.seed++) {
        status = tsr_batch_create(&batch, &options);
        if (status == TSR_OK)
            tsr_batch_destroy(batch);
    }
    check_error("an unlucky order", status, TSR_EDATA,
                (const char *[MOST_WORDS]){"step ", "rows.jsonl:", ", ", "data_seed"});
    options.per_device = 4;
    options.total_batch = 6;
    check_error("total", tsr_batch_create(&batch, &options), TSR_ECONFIG,
                (const char *[MOST_WORDS]){"total_batch_size 6", "multiple", "4"});
    options.total_batch = 16;
    options.drop_last = true;
    check_error("nothing left", tsr_batch_create(&batch, &options), TSR_ECONFIG,
                (const char *[MOST_WORDS]){"12 rows", "16", "dataloader_drop_last"});
    options.drop_last = false;
    options.packing = true;
    check_error("packing", tsr_batch_create(&batch, &options), TSR_ECONFIG,
                (const char *[MOST_WORDS]){"max_length"});
    options.max_length = 4;
    check_error("too long", tsr_batch_create(&batch, &options), TSR_EDATA,
                (const char *[MOST_WORDS]){"rows.jsonl:", "max_length 4"});
    options.packing = false;
    options.epochs = 1e300;
    check_error("epochs", tsr_batch_create(&batch, &options), TSR_ECONFIG,
                (const char *[MOST_WORDS]){"num_train_epochs"});
    tsr_dataset_destroy(data);
}

/* Dealt by tokens: the step's samples are those of without, no micro-batch is empty, and none has more than an even share and the
 * longest sample. */
static void check_balance(tsr_dataset *data, int64_t per, int64_t total, bool shuffle, bool grouped)
{
    tsr_batch_options options = {.dataset = data,
                                 .shuffle = shuffle,
                                 .seed = 5,
                                 .group_by_length = grouped,
                                 .per_device = per,
                                 .total_batch = total,
                                 .epochs = 2};
    tsr_batch *plain = open_batch(&options);
    options.balance = true;
    tsr_batch *even = open_batch(&options);
    const tsr_batch_run *run = tsr_batch_run_of(even);
    int64_t n = tsr_dataset_sample_count(data);
    int *seen = calloc((size_t)n, sizeof *seen);
    tsr_micro_batch m, p;
    assert_int_equal(tsr_micro_batch_create(&m, run), TSR_OK);
    assert_int_equal(tsr_micro_batch_create(&p, tsr_batch_run_of(plain)), TSR_OK);
    assert_int_equal(run->steps, tsr_batch_run_of(plain)->steps);
    assert_true(run->most_tokens <= tsr_batch_run_of(plain)->most_tokens || per == 1);
    for (int64_t step = 0; step < run->steps; step++) {
        tsr_batch_step_info info;
        int64_t longest = 0;
        assert_int_equal(tsr_batch_step(even, step, &info), TSR_OK);
        memset(seen, 0, (size_t)n * sizeof *seen);
        for (int64_t k = 0; k < info.micro_count; k++) {
            assert_int_equal(tsr_batch_fill(&p, plain, step, k), TSR_OK);
            for (int32_t d = 0; d < p.document_count; d++) {
                int64_t tokens = tsr_dataset_sample(data, p.sample[d]).token_count;
                seen[p.sample[d]]++;
                longest = tokens > longest ? tokens : longest;
            }
        }
        for (int64_t k = 0; k < info.micro_count; k++) {
            assert_int_equal(tsr_batch_fill(&m, even, step, k), TSR_OK);
            assert_true(m.token_count > 0);
            assert_true(m.token_count * info.micro_count <=
                        info.input_tokens + longest * info.micro_count);
            for (int32_t d = 0; d < m.document_count; d++)
                seen[m.sample[d]]--;
        }
        assert_int_equal(tsr_batch_fill(&m, even, step, info.micro_count), TSR_OK);
        assert_int_equal(m.token_count, 0);
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(seen[i], 0);
    }
    free(seen);
    tsr_micro_batch_free(&m);
    tsr_micro_batch_free(&p);
    tsr_batch_destroy(plain);
    tsr_batch_destroy(even);
}

static void samples_are_dealt_by_tokens(void **state)
{
    (void)state;
    tsr_dataset *data = make_data(53, 60, 0, 9);
    check_balance(data, 4, 16, true, false);
    check_balance(data, 4, 16, false, false);
    check_balance(data, 3, 12, true, true);
    check_balance(data, 1, 8, true, false);
    check_balance(data, 7, 700, true, false);
    tsr_dataset_destroy(data);
}

/* By hand: 10, 2, 9, 3, 8 and 4 tokens in two micro-batches of three rows each. */
static void the_longest_goes_first(void **state)
{
    (void)state;
    static const int lengths[] = {9, 1, 8, 2, 7, 3};
    static const int64_t want[2][4] = {{0, 1, 3, 5}, {2, 4}}, count[2] = {4, 2};
    tsr_text text = {0};
    for (int s = 0; s < 6; s++) {
        tsr_text_puts(&text, "{\"input_ids\":[7");
        for (int t = 1; t <= lengths[s]; t++)
            tsr_text_puts(&text, ",7");
        tsr_text_puts(&text, "]}\n");
    }
    const char *path = scratch_path("six.jsonl");
    write_text(path, tsr_text_string(&text));
    tsr_text_free(&text);
    tsr_dataset *data;
    tsr_dataset_options rows = {.files = &path, .file_count = 1};
    assert_int_equal(tsr_dataset_load(&data, &rows), TSR_OK);
    tsr_batch *batch = open_batch(
        &(tsr_batch_options){.dataset = data, .per_device = 3, .total_batch = 6, .balance = true});
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, tsr_batch_run_of(batch)), TSR_OK);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tsr_batch_fill(&m, batch, 0, k), TSR_OK);
        assert_int_equal(m.document_count, count[k]);
        for (int d = 0; d < m.document_count; d++) /* in the order of the file */
            assert_int_equal(m.sample[d], want[k][d]);
    }
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_dealt_by_tokens),
        cmocka_unit_test(the_longest_goes_first),
        cmocka_unit_test(every_sample_once_an_epoch),
        cmocka_unit_test(any_number_of_ranks_trains_the_same),
        cmocka_unit_test(seeds_and_epochs_differ),
        cmocka_unit_test(grouped_by_length),
        cmocka_unit_test(shuffling_is_uniform),
        cmocka_unit_test(rows_of_a_file_in_order),
        cmocka_unit_test(packed_rows_hold_whole_samples),
        cmocka_unit_test(steps_by_hand),
        cmocka_unit_test(evaluation_is_one_step),
        cmocka_unit_test(buckets_cover_closely),
        cmocka_unit_test(refusals_name_the_rows),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
