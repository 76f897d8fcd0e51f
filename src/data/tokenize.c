#include "data/tokenize.h"

#include "base/aside.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_PER_THREAD                                                                            \
    64 /* under way: short rows take microseconds, and threads must not wait for each other */
#define TOGETHER 16 /* rows that a thread takes at once */

/* One thread's. */
typedef struct {
    tsr_tokenize *all;
    pthread_t thread;
    tsr_dataset_options options; /* with a tokenizer and a chat of its own */
    tsr_tokenizer *chat_tokenizer;
    tsr_row row;
} worker;

/* Rows are numbered from 0; row i is in slot i % capacity. taken <= done, claimed <= put <= given. */
struct tsr_tokenize {
    pthread_mutex_t lock;
    pthread_cond_t some, ready; /* rows are there; the oldest row is done, perhaps */
    tsr_data_format format;
    tsr_tokenized *slots;
    bool *done;
    uint64_t capacity, taken, claimed, put;
    uint64_t given; /* of these, `put` are known to the threads */
    bool waits, stop;
    worker *workers;
    int count; /* of threads that were started; 0: the caller's does it all */
};

/* ---- one row ---- */

void tsr_tokenized_fail(tsr_tokenized *row, tsr_status status)
{
    row->status = status;
    row->error = malloc(sizeof *row->error);
    if (row->error)
        tsr_error_take(row->error, status);
}

/* What is of one row alone. */
static void clear(tsr_tokenized *row)
{
    tsr_text place = row->place, keys = row->keys;
    json_decref(row->object);
    free(row->error);
    free(row->words);
    free(row->parts);
    tsr_text_clear(&place);
    tsr_text_clear(&keys);
    *row = (tsr_tokenized){.place = place, .keys = keys};
}

/* Each document by itself; what is left of an answer must be something. Those of KTO are cut when all their documents are there
 * (tsr_dataset_mismatch). */
static tsr_status cut_pair(tsr_tokenized *out, tsr_row *row, const tsr_dataset_options *options)
{
    if (options->pairs != TSR_PAIRS_KTO) {
        tsr_row_cut_documents(row, options->max_length);
        out->fate = tsr_row_least_labels(row) ? TSR_ROW_CUT : TSR_ROW_EMPTIED;
        return TSR_OK;
    }
    int64_t prompt = row->lengths[0];
    while (prompt > 0 && row->labels[prompt - 1] != TSR_LABEL_IGNORED)
        prompt--;
    out->fate = prompt < options->max_length ? TSR_ROW_CUT : TSR_ROW_EMPTIED;
    return TSR_OK;
}

/* Applies max_length. */
static tsr_status truncate_row(tsr_tokenized *out, tsr_row *row, const tsr_dataset_options *options)
{
    int64_t labels = row->label_count;
    bool pairs = options->pairs != TSR_PAIRS_NONE;
    out->length = pairs ? (size_t)tsr_row_longest(row) : row->token_count;
    if (options->max_length <= 0 || (int64_t)out->length <= options->max_length)
        return TSR_OK;
    if (options->truncation == TSR_TRUNCATE_ERROR)
        return tsr_fail(
            TSR_EDATA,
            "%s: the row has %zu tokens, max_length is %lld; raise max_length (this row "
            "needs %zu), or set truncation to %sdrop",
            tsr_text_string(&out->place), out->length, (long long)options->max_length, out->length,
            options->pairs == TSR_PAIRS_REWARD ? ""
            : pairs                            ? "right (cuts) or "
                                               : "split (into several), right (cuts) or ");
    out->fate = TSR_ROW_TOO_LONG;
    if (options->truncation == TSR_TRUNCATE_DROP || options->pairs == TSR_PAIRS_REWARD)
        return TSR_OK;
    if (options->truncation == TSR_TRUNCATE_SPLIT) {
        out->fate = TSR_ROW_SPLIT;
        return TSR_OK;
    }
    if (pairs)
        return cut_pair(out, row, options);
    tsr_row_cut(row, options->max_length);
    out->fate = row->label_count || !labels ? TSR_ROW_CUT : TSR_ROW_EMPTIED;
    return TSR_OK;
}

static tsr_status allocate(tsr_tokenized *out, size_t parts, size_t words)
{
    out->words = malloc(words * sizeof *out->words);
    out->parts = malloc(parts * sizeof *out->parts);
    if (!out->words || !out->parts)
        return tsr_fail(TSR_ENOMEM, "no memory for the %zu tokens of a row", words / 2);
    out->word_count = words;
    out->part_count = (int32_t)parts;
    return TSR_OK;
}

static tsr_status copy_whole(tsr_tokenized *out, const tsr_row *row)
{
    size_t tokens = row->token_count, documents = row->document_count;
    TSR_TRY(allocate(out, 1, 2 * tokens + documents));
    memcpy(out->words, row->ids, tokens * sizeof *out->words);
    memcpy(out->words + tokens, row->labels, tokens * sizeof *out->words);
    memcpy(out->words + 2 * tokens, row->lengths, documents * sizeof *out->words);
    *out->parts =
        (tsr_tokenized_part){0, (int32_t)tokens, (int32_t)documents, (int32_t)row->label_count};
    return TSR_OK;
}

/* The words of a part; returns where the next ones go. */
static int32_t *copy_part(int32_t *words, const tsr_row *row, const tsr_row_part *part)
{
    size_t tokens = part->end - part->begin, left = tokens;
    memcpy(words, row->ids + part->begin, tokens * sizeof *words);
    words += tokens;
    memcpy(words, row->labels + part->begin, tokens * sizeof *words);
    words[0] = TSR_LABEL_IGNORED; /* a label of the part before, or of none */
    words += tokens;
    size_t length = (size_t)row->lengths[part->document] - (part->begin - part->document_begin);
    for (int32_t d = 0; d < part->document_count; d++) {
        if (d)
            length = (size_t)row->lengths[part->document + (size_t)d];
        *words = (int32_t)(length < left ? length : left);
        left -= (size_t)*words++;
    }
    return words;
}

static bool is_kept(const tsr_row_part *part, const tsr_row *row)
{
    return part->label_count || !row->label_count;
}

static tsr_status copy_parts(tsr_tokenized *out, const tsr_row *row, int64_t most)
{
    size_t count = 0, words = 0;
    for (tsr_row_part part = {0}; tsr_row_next_part(&part, row, most);) {
        if (is_kept(&part, row)) {
            count++;
            words += 2 * (part.end - part.begin) + (size_t)part.document_count;
        }
    }
    TSR_TRY(allocate(out, count, words));
    int32_t *at = out->words, number = 0;
    tsr_tokenized_part *next = out->parts;
    for (tsr_row_part part = {0}; tsr_row_next_part(&part, row, most);) {
        number++;
        if (is_kept(&part, row)) {
            at = copy_part(at, row, &part);
            *next++ = (tsr_tokenized_part){number, (int32_t)(part.end - part.begin),
                                           part.document_count, part.label_count};
        }
    }
    out->empty_parts = number - out->part_count;
    return TSR_OK;
}

static tsr_status copy(tsr_tokenized *out, const tsr_row *row, const tsr_dataset_options *options)
{
    out->desirable = row->desirable;
    out->margin = row->margin;
    out->findings = row->findings;
    return out->fate == TSR_ROW_SPLIT ? copy_parts(out, row, options->max_length)
                                      : copy_whole(out, row);
}

static tsr_status read_row(tsr_tokenized *out, worker *w)
{
    const tsr_dataset_options *options = &w->options;
    TSR_TRY(
        tsr_row_read(&w->row, out->object, w->all->format, options, tsr_text_string(&out->place)));
    TSR_TRY(truncate_row(out, &w->row, options));
    if (w->row.keys.length)
        tsr_text_append(&out->keys, w->row.keys.data, w->row.keys.length);
    return out->fate <= TSR_ROW_SPLIT ? copy(out, &w->row, options) : TSR_OK;
}

static void tokenize(tsr_tokenized *out, worker *w)
{
    if (!out->object)
        return;
    tsr_status status = read_row(out, w);
    if (status < 0)
        tsr_tokenized_fail(out, status);
    json_decref(out->object);
    out->object = NULL;
}

/* ---- threads ---- */

static void work_on(tsr_tokenize *t, worker *w)
{
    while (!t->stop) {
        uint64_t first = t->claimed, end = first + TOGETHER < t->put ? first + TOGETHER : t->put;
        if (first == end) {
            pthread_cond_wait(&t->some, &t->lock);
            continue;
        }
        t->claimed = end;
        pthread_mutex_unlock(&t->lock);
        for (uint64_t i = first; i < end; i++)
            tokenize(&t->slots[i % t->capacity], w);
        pthread_mutex_lock(&t->lock);
        for (uint64_t i = first; i < end; i++)
            t->done[i % t->capacity] = true;
        if (t->waits && t->done[t->taken % t->capacity])
            pthread_cond_signal(&t->ready);
    }
}

static void *work(void *argument)
{
    worker *w = argument;
    tsr_aside aside = {0};
    tsr_aside_begin(&aside);
    pthread_mutex_lock(&w->all->lock);
    work_on(w->all, w);
    pthread_mutex_unlock(&w->all->lock);
    tsr_aside_end(&aside);
    return NULL;
}

static void free_worker(worker *w)
{
    tsr_chat_destroy(w->options.chat);
    tsr_tokenizer_destroy(w->chat_tokenizer);
    tsr_tokenizer_destroy(w->options.tokenizer);
    tsr_row_free(&w->row);
}

static tsr_status start_worker(worker *w, const tsr_dataset_options *options)
{
    tsr_status status = TSR_OK;
    w->options = *options;
    w->options.chat = NULL;
    w->options.tokenizer = NULL;
    if (options->tokenizer)
        status = tsr_tokenizer_share(&w->options.tokenizer, options->tokenizer);
    if (status == TSR_OK && options->chat)
        status = tsr_tokenizer_share(&w->chat_tokenizer, tsr_chat_tokenizer(options->chat));
    if (status == TSR_OK && options->chat)
        status = tsr_chat_share(&w->options.chat, options->chat, w->chat_tokenizer);
    if (status == TSR_OK)
        status = tsr_thread_start(&w->thread, "tokenize", work, w);
    if (status < 0)
        free_worker(w);
    return status;
}

tsr_status tsr_tokenize_create(tsr_tokenize **out, tsr_data_format format,
                               const tsr_dataset_options *options)
{
    int threads = options->threads > 1 ? options->threads : 1;
    tsr_tokenize *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "no memory for the rows");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->some, NULL);
    pthread_cond_init(&t->ready, NULL);
    t->format = format;
    t->capacity = threads > 1 ? (uint64_t)threads * ROWS_PER_THREAD : 1;
    t->slots = calloc(t->capacity, sizeof *t->slots);
    t->done = calloc(t->capacity, sizeof *t->done);
    t->workers = calloc((size_t)threads, sizeof *t->workers);
    tsr_status status = TSR_OK;
    if (!t->slots || !t->done || !t->workers)
        status = tsr_fail(TSR_ENOMEM, "no memory for the rows");
    for (int i = 0; i < threads && status == TSR_OK; i++)
        t->workers[i].all = t;
    if (status == TSR_OK && threads == 1)
        t->workers[0].options = *options;
    for (int i = 0; threads > 1 && i < threads && status == TSR_OK; i++) {
        status = start_worker(&t->workers[i], options);
        t->count += status == TSR_OK;
    }
    if (status < 0) {
        tsr_tokenize_destroy(t);
        return status;
    }
    *out = t;
    return TSR_OK;
}

void tsr_tokenize_destroy(tsr_tokenize *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->some);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->count; i++) {
        pthread_join(t->workers[i].thread, NULL);
        free_worker(&t->workers[i]);
    }
    if (t->workers && !t->count)
        tsr_row_free(&t->workers[0].row);
    for (uint64_t i = 0; t->slots && i < t->capacity; i++) {
        clear(&t->slots[i]);
        tsr_text_free(&t->slots[i].place);
        tsr_text_free(&t->slots[i].keys);
    }
    free(t->workers);
    free(t->slots);
    free(t->done);
    pthread_cond_destroy(&t->ready);
    pthread_cond_destroy(&t->some);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- the caller's thread ---- */

tsr_tokenized *tsr_tokenize_slot(tsr_tokenize *t)
{
    if (t->given - t->taken == t->capacity)
        return NULL;
    tsr_tokenized *slot = &t->slots[t->given % t->capacity];
    clear(slot);
    return slot;
}

/* Lets the threads know of what was given. */
static void publish(tsr_tokenize *t)
{
    pthread_mutex_lock(&t->lock);
    t->put = t->given;
    pthread_cond_signal(&t->some);
    pthread_mutex_unlock(&t->lock);
}

void tsr_tokenize_put(tsr_tokenize *t)
{
    uint64_t at = t->given % t->capacity;
    t->given++;
    if (!t->count) {
        tokenize(&t->slots[at], &t->workers[0]);
        t->done[at] = true;
    } else if (t->given % TOGETHER == 0) {
        publish(t);
    }
}

tsr_tokenized *tsr_tokenize_take(tsr_tokenize *t, bool wait)
{
    uint64_t at = t->taken % t->capacity;
    if (t->taken == t->given)
        return NULL;
    if (wait && t->taken >= t->put)
        publish(t);
    pthread_mutex_lock(&t->lock);
    for (t->waits = wait; wait && !t->done[at];)
        pthread_cond_wait(&t->ready, &t->lock);
    t->waits = false;
    bool done = t->done[at];
    if (done) {
        t->done[at] = false;
        t->taken++;
    }
    pthread_mutex_unlock(&t->lock);
    return done ? &t->slots[at] : NULL;
}
