/*
 * dataset_make.c: a data set from its rows, or from a cache (data/token_cache.h).
 */
#include "data/dataset_parts.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/phase.h"

#include <stdlib.h>

const char *tsr_dataset_key(const tsr_dataset_options *options)
{
    return options->key ? options->key : "dataset";
}

tsr_status tsr_dataset_kept(tsr_dataset *data, tsr_status status)
{
    data->cache_failed = status < 0;
    return status;
}

/* Gives back what growing took too much; a failure only keeps it. */
static void shrink(void *array, uint64_t *capacity, uint64_t count, uint64_t entry_bytes)
{
    void **at = array, *smaller = count ? realloc(*at, count * entry_bytes) : NULL;
    if (!smaller)
        return;
    *at = smaller;
    *capacity = count;
}

/* There must be a row, and in some row something to train. */
static tsr_status check_left(const tsr_dataset *data, const tsr_dataset_options *options)
{
    const tsr_dataset_stats *stats = &data->stats;
    const char *key = tsr_dataset_key(options), *first = data->files[0];
    long long rows = stats->rows, dropped = stats->too_long + stats->emptied;
    if (!stats->samples)
        return tsr_fail(TSR_EDATA,
                        "%s: none of the %lld rows (%s:1 and on) is left: %lld were dropped by "
                        "truncation to max_length %lld; raise it",
                        key, rows, first, dropped, (long long)options->max_length);
    if (stats->label_tokens)
        return tsr_findings_check(data, key);
    const tsr_sample_entry *from = &data->samples[0], *to = &data->samples[stats->samples - 1];
    if (dropped)
        return tsr_fail(TSR_EDATA,
                        "%s: nothing to train is left: truncation to max_length %lld dropped %lld "
                        "of %lld rows, and the others (%s:%lld to %s:%lld) have no token to train; "
                        "raise max_length",
                        key, (long long)options->max_length, dropped, rows, data->files[from->file],
                        (long long)from->line, data->files[to->file], (long long)to->line);
    if (options->response_template)
        return tsr_fail(TSR_EDATA,
                        "%s: no token of the %lld rows (%s:%lld to %s:%lld) is trained: no text "
                        "has anything behind the response_template \"%.200s\"",
                        key, rows, data->files[from->file], (long long)from->line,
                        data->files[to->file], (long long)to->line, options->response_template);
    return tsr_fail(TSR_EDATA,
                    "%s: no token of the %lld rows (%s:%lld to %s:%lld) is trained: every label is "
                    "-100%s",
                    key, rows, data->files[from->file], (long long)from->line,
                    data->files[to->file], (long long)to->line,
                    options->chat && options->assistant_only != TSR_LOSS_NO
                        ? "; no chat has an assistant's turn (assistant_only_loss: false trains "
                          "all tokens)"
                        : "");
}

void tsr_dataset_measure(tsr_dataset *data)
{
    tsr_dataset_stats *stats = &data->stats;
    stats->samples = (int64_t)data->sample_count;
    stats->documents = stats->tokens = stats->label_tokens = 0;
    stats->longest_sample = stats->longest_document = stats->unlabelled = 0;
    uint64_t hash = tsr_hash(TSR_HASH_START, &data->sample_count, sizeof data->sample_count);
    for (uint64_t i = 0; i < data->sample_count; i++) {
        tsr_sample s = tsr_dataset_sample(data, (int64_t)i);
        int64_t count[] = {s.token_count, s.document_count};
        hash = tsr_hash(hash, count, sizeof count);
        hash = tsr_hash(hash, s.ids, 4 * (uint64_t)s.token_count);
        hash = tsr_hash(hash, s.labels, 4 * (uint64_t)s.token_count);
        hash = tsr_hash(hash, s.lengths, 4 * (uint64_t)s.document_count);
        if (s.desirable)
            hash = tsr_hash(hash, &s.desirable, sizeof s.desirable);
        if (s.margin != 0)
            hash = tsr_hash(hash, &s.margin, sizeof s.margin);
        stats->documents += s.document_count;
        stats->tokens += s.token_count;
        stats->label_tokens += s.label_count;
        stats->unlabelled += !s.label_count;
        if (s.token_count > stats->longest_sample)
            stats->longest_sample = s.token_count;
        for (int32_t d = 0; d < s.document_count; d++)
            if (s.lengths[d] > stats->longest_document)
                stats->longest_document = s.lengths[d];
        tsr_phase_at("hashing the data", (double)i + 1, (double)data->sample_count);
    }
    data->hash = hash;
}

/* Once everything is read; refuses what trains nothing. */
static tsr_status measure(tsr_dataset *data, const tsr_dataset_options *options)
{
    tsr_dataset_measure(data);
    return check_left(data, options);
}

void tsr_dataset_warn(const tsr_dataset *data, const tsr_dataset_options *options)
{
    const tsr_dataset_stats *stats = &data->stats;
    int64_t dropped = stats->too_long + stats->emptied;
    const char *key = tsr_dataset_key(options);
    if (stats->unlabelled)
        tsr_log(TSR_LOG_WARNING, "%s: %lld of %lld rows have no token to train", key,
                (long long)stats->unlabelled, (long long)stats->samples);
    if (stats->truncated || dropped)
        tsr_log(TSR_LOG_WARNING, "%s: max_length %lld cut %lld rows and dropped %lld of %lld", key,
                (long long)options->max_length, (long long)stats->truncated, (long long)dropped,
                (long long)stats->rows);
    if (stats->split)
        tsr_log(TSR_LOG_INFO, "%s: max_length %lld split %lld of %lld rows into %lld samples", key,
                (long long)options->max_length, (long long)stats->split, (long long)stats->rows,
                (long long)stats->parts);
    if (stats->empty_parts)
        tsr_log(TSR_LOG_WARNING,
                "%s: %lld parts of split rows have no token to train and are dropped", key,
                (long long)stats->empty_parts);
    tsr_findings_warn(data, key);
}

/* ---- with a cache, and without ---- */

/* What a cache holds besides words and samples; the unread keys follow. */
typedef struct {
    tsr_dataset_stats stats;
    uint64_t hash;
    int64_t dated;
} rest;

/* Everything from the cache; false: it does not hold it. */
static bool restore(tsr_dataset *data, const tsr_dataset_options *options)
{
    tsr_token_parts parts;
    rest r;
    if (!tsr_token_cache_read(&parts, data->cache) || parts.rest_bytes < sizeof r)
        return false;
    memcpy(&r, parts.rest, sizeof r);
    data->words = parts.words;
    data->samples = parts.samples;
    data->sample_count = parts.sample_bytes / sizeof *data->samples;
    data->bytes = parts.file_bytes;
    data->stats = r.stats;
    data->hash = r.hash;
    tsr_text_clear(&data->unread_keys);
    tsr_text_append(&data->unread_keys, (const char *)parts.rest + sizeof r,
                    parts.rest_bytes - sizeof r);
    if (r.dated)
        tsr_chat_set_dated(options->chat);
    return true;
}

static tsr_status publish(tsr_dataset *data, const tsr_dataset_options *options)
{
    rest r;
    tsr_auto_text text = {0};
    memset(&r, 0, sizeof r); /* with what lies between the members */
    r.stats = data->stats;
    r.hash = data->hash;
    r.dated = options->chat && tsr_chat_dated(options->chat);
    tsr_text_append(&text, (const char *)&r, sizeof r);
    tsr_text_puts(&text, tsr_text_string(&data->unread_keys));
    if (text.failed)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", tsr_dataset_key(options));
    TSR_TRY(tsr_token_cache_publish(data->cache, text.data, text.length));
    return restore(data, options)
               ? TSR_OK
               : tsr_fail(TSR_EIO, "%s cannot be read back", tsr_token_cache_path(data->cache));
}

static tsr_status make_cached(tsr_dataset *data, const tsr_dataset_options *options)
{
    tsr_token_parts parts;
    TSR_TRY(tsr_dataset_kept(data, tsr_token_cache_begin(data->cache)));
    TSR_TRY(tsr_dataset_read_files(data, options));
    TSR_TRY(tsr_dataset_kept(data,
                             tsr_token_cache_look(&parts, data->cache, data->own_samples,
                                                  data->sample_count * sizeof *data->own_samples)));
    data->words = parts.words;
    data->samples = data->own_samples;
    TSR_TRY(measure(data, options));
    TSR_TRY(tsr_dataset_kept(data, publish(data, options)));
    free(data->own_samples);
    data->own_samples = NULL;
    tsr_log(TSR_LOG_INFO, "%s: its tokens are kept in %s", tsr_dataset_key(options),
            tsr_token_cache_path(data->cache));
    return TSR_OK;
}

static tsr_status make_plain(tsr_dataset *data, const tsr_dataset_options *options)
{
    TSR_TRY(tsr_dataset_read_files(data, options));
    shrink(&data->own_words, &data->word_capacity, data->word_count, sizeof *data->own_words);
    shrink(&data->own_samples, &data->sample_capacity, data->sample_count,
           sizeof *data->own_samples);
    data->words = data->own_words;
    data->samples = data->own_samples;
    data->bytes = data->word_capacity * sizeof *data->own_words +
                  data->sample_capacity * sizeof *data->own_samples;
    return measure(data, options);
}

/* Back to before anything was read. */
static void drop_cache(tsr_dataset *data)
{
    tsr_token_cache_close(data->cache);
    free(data->own_samples);
    tsr_text_free(&data->unread_keys);
    *data =
        (tsr_dataset){.files = data->files, .file_count = data->file_count, .format = data->format};
}

tsr_status tsr_dataset_make(tsr_dataset *data, const tsr_dataset_options *options)
{
    TSR_TRY(tsr_token_cache_open(&data->cache, data->format, options));
    if (data->cache && restore(data, options)) {
        tsr_log(TSR_LOG_INFO, "%s: %lld samples, tokenized before (%s)", tsr_dataset_key(options),
                (long long)data->stats.samples, tsr_token_cache_path(data->cache));
        return TSR_OK;
    }
    tsr_status status = data->cache ? make_cached(data, options) : make_plain(data, options);
    if (status >= 0 || !data->cache_failed)
        return status;
    tsr_token_cache_give_up(options);
    drop_cache(data);
    return make_plain(data, options);
}
