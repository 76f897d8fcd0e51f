#include "data/duplicates.h"

#include "base/hash.h"
#include "base/phase.h"

#include <stdlib.h>
#include <string.h>

#define AT_ONCE (INT64_C(1) << 22)

/* The first sample of a hash; -1: none. */
typedef struct {
    uint64_t hash;
    int64_t sample;
} slot;

typedef struct {
    const tsr_dataset *data;
    slot *slots;
    uint64_t mask; /* their number less 1 */
    uint64_t used;
    tsr_duplicates *found;
} search;

/* One of the pairs that are named, which are in the order of `again`. */
static void add_pair(tsr_duplicates *found, tsr_duplicate pair)
{
    int at = found->pair_count;
    while (at > 0 && found->pairs[at - 1].again > pair.again)
        at--;
    if (at == TSR_DUPLICATES_NAMED)
        return;
    found->pair_count += found->pair_count < TSR_DUPLICATES_NAMED;
    for (int i = found->pair_count - 1; i > at; i--)
        found->pairs[i] = found->pairs[i - 1];
    found->pairs[at] = pair;
}

static bool is_same(const tsr_sample *a, const tsr_sample *b)
{
    return a->token_count == b->token_count &&
           !memcmp(a->ids, b->ids, (size_t)a->token_count * sizeof *a->ids);
}

/* Notes a sample, or that it was there before. Half of the slots at least are free. */
static void look_up(search *s, int64_t index, const tsr_sample *sample, uint64_t hash)
{
    uint64_t at = hash & s->mask;
    for (; s->slots[at].sample >= 0; at = (at + 1) & s->mask) {
        tsr_sample first = tsr_dataset_sample(s->data, s->slots[at].sample);
        if (s->slots[at].hash != hash || !is_same(&first, sample))
            continue;
        if (first.ids == sample->ids) /* the same one again */
            return;
        s->found->samples++;
        add_pair(s->found, (tsr_duplicate){s->slots[at].sample, index});
        return;
    }
    if (s->used == s->mask) /* one must stay free; with an even hash it never comes to that */
        return;
    s->slots[at] = (slot){hash, index};
    s->used++;
}

/* One pass: the samples whose hash is `pass` of `passes`. */
static void pass_over(search *s, uint64_t pass, uint64_t passes)
{
    int64_t count = tsr_dataset_sample_count(s->data);
    s->used = 0;
    for (uint64_t i = 0; i <= s->mask; i++)
        s->slots[i].sample = -1;
    for (int64_t i = 0; i < count; i++) {
        tsr_sample sample = tsr_dataset_sample(s->data, i);
        uint64_t bytes = (uint64_t)sample.token_count * sizeof *sample.ids;
        uint64_t hash = tsr_hash(TSR_HASH_START, sample.ids, bytes);
        if ((hash >> 32) % passes == pass)
            look_up(s, i, &sample, hash);
        tsr_phase_at("looking for duplicates", (double)pass * (double)count + (double)i + 1,
                     (double)passes * (double)count);
    }
}

tsr_status tsr_duplicates_find(tsr_duplicates *out, const tsr_dataset *data, int64_t at_once)
{
    int64_t count = tsr_dataset_sample_count(data);
    at_once = at_once > 0 ? at_once : AT_ONCE;
    uint64_t passes = (uint64_t)((count + at_once - 1) / at_once), size = 4;
    uint64_t most = (uint64_t)(passes > 1 ? at_once + at_once / 2 : count); /* passes differ */
    while (size < 2 * most)
        size *= 2;
    *out = (tsr_duplicates){0};
    search s = {.data = data, .slots = malloc(size * sizeof(slot)), .mask = size - 1, .found = out};
    if (!s.slots)
        return tsr_fail(TSR_ENOMEM, "no memory to look for duplicates");
    for (uint64_t pass = 0; pass < passes; pass++)
        pass_over(&s, pass, passes);
    free(s.slots);
    return TSR_OK;
}
