/*
 * dataset_pairs.c: KTO's samples: an answer, and its prompt with the answer of another row.
 */
#include "base/auto.h"
#include "data/dataset_parts.h"

#include <stdlib.h>
#include <string.h>

#define TOGETHER 1000 /* rows whose pairs TRL splits at a time */

/* One answer of a sample. */
typedef struct {
    const int32_t *ids; /* prompt, then answer */
    int32_t prompt, count, desirable, file;
    int64_t line;
} answer;

static answer answer_of(const tsr_sample *sample, int32_t document, int32_t desirable)
{
    int32_t offset = document ? sample->lengths[0] : 0, length = sample->lengths[document];
    const int32_t *labels = sample->labels + offset;
    answer a = {sample->ids + offset, length, length, desirable, sample->file, sample->line};
    while (a.prompt > 1 && labels[a.prompt - 1] != TSR_LABEL_IGNORED)
        a.prompt--;
    return a;
}

/* In TRL's order; how many. A sample of one document is an answer; of a pair the chosen ones come first. */
static int64_t list_answers(answer *out, const tsr_dataset *data)
{
    int64_t count = 0, samples = tsr_dataset_sample_count(data);
    for (int64_t first = 0; first < samples; first += TOGETHER)
        for (int side = 0; side < 2; side++)
            for (int64_t i = first; i < samples && i < first + TOGETHER; i++) {
                tsr_sample s = tsr_dataset_sample(data, i);
                bool pair = s.document_count == 2;
                if (pair || side == 0)
                    out[count++] = answer_of(&s, pair ? side : 0, pair ? !side : s.desirable);
            }
    return count;
}

typedef struct {
    int32_t *words;
    tsr_sample *view;
    int64_t max_length;
} maker;

static int32_t cut(int64_t length, int64_t most)
{
    return (int32_t)(most > 0 && length > most ? most : length);
}

/* A document of a prompt and an answer into ids and labels; its tokens. */
static int32_t put_document(int32_t *ids, int32_t *labels, const answer *prompt, const answer *of,
                            int64_t max_length)
{
    int32_t whole = prompt->prompt + of->count - of->prompt, length = cut(whole, max_length);
    for (int32_t t = 0; t < length; t++) {
        bool before = t < prompt->prompt;
        ids[t] = before ? prompt->ids[t] : of->ids[of->prompt + t - prompt->prompt];
        labels[t] = before || t == 0 ? TSR_LABEL_IGNORED : ids[t];
    }
    return length;
}

static int32_t length_of(const answer *prompt, const answer *of, int64_t max_length)
{
    return cut((int64_t)prompt->prompt + of->count - of->prompt, max_length);
}

/* The sample of an answer beside another one's. */
static void put_sample(maker *m, const answer *own, const answer *other)
{
    int32_t tokens = length_of(own, own, m->max_length) + length_of(own, other, m->max_length);
    int32_t *ids = m->words, *labels = ids + tokens, *lengths = labels + tokens, count = 0;
    lengths[0] = put_document(ids, labels, own, own, m->max_length);
    lengths[1] = put_document(ids + lengths[0], labels + lengths[0], own, other, m->max_length);
    for (int32_t t = 0; t < tokens; t++)
        count += labels[t] != TSR_LABEL_IGNORED;
    *m->view++ = (tsr_sample){.ids = ids,
                              .labels = labels,
                              .lengths = lengths,
                              .token_count = tokens,
                              .document_count = 2,
                              .label_count = count,
                              .desirable = own->desirable,
                              .file = own->file,
                              .line = own->line};
    m->words += 2 * (int64_t)tokens + 2;
}

/* The answer beside number i. */
static int64_t beside(int64_t i, int64_t group, int64_t count)
{
    int64_t first = i / group * group, end = first + group < count ? first + group : count;
    return i == first ? end - 1 : i - 1;
}

static uint64_t count_words(const answer *answers, int64_t count, int64_t group, int64_t max_length)
{
    uint64_t words = 0;
    for (int64_t i = 0; i < count; i++)
        words += 2 + 2 * ((uint64_t)length_of(&answers[i], &answers[i], max_length) +
                          (uint64_t)length_of(&answers[i], &answers[beside(i, group, count)],
                                              max_length));
    return words;
}

tsr_status tsr_dataset_mismatch(tsr_dataset **data, int64_t group, int64_t max_length)
{
    tsr_dataset *from = *data, *out = NULL;
    int64_t samples = tsr_dataset_sample_count(from), count;
    TSR_AUTO_FREE answer *answers = malloc(2 * (size_t)samples * sizeof *answers);
    TSR_AUTO_FREE tsr_sample_ref *refs = calloc(2 * (size_t)samples, sizeof *refs);
    if (!answers || !refs)
        return tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)samples);
    count = list_answers(answers, from);
    uint64_t words = count_words(answers, count, group, max_length);
    int32_t *own = malloc(words * sizeof *own);
    if (!own)
        return tsr_fail(TSR_ENOMEM, "no memory for %lld samples", (long long)count);
    tsr_status status = tsr_dataset_join(&out, &from, 1, refs, count);
    if (status < 0) {
        free(own);
        return status;
    }
    maker m = {own, out->view, max_length};
    for (int64_t i = 0; i < count; i++)
        put_sample(&m, &answers[i], &answers[beside(i, group, count)]);
    out->own_words = own;
    out->bytes = words * sizeof *own;
    tsr_dataset_measure(out);
    *data = out;
    return TSR_OK;
}
