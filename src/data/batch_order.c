#include "data/batch_order.h"

#include "base/philox.h"

#include <stdlib.h>

/* Fisher-Yates. A 64-bit number times the count, its high half: uniform to 2^-32 for any count. */
void tsr_permute(int32_t *items, int64_t count, uint64_t key, tsr_permute_purpose purpose)
{
    for (int64_t i = count - 1; i > 0; i--) {
        tsr_philox random = tsr_philox_at(key, (uint64_t)purpose, (uint64_t)i);
        uint64_t bits = (uint64_t)random.word[1] << 32 | random.word[0];
        int64_t j = (int64_t)((unsigned __int128)bits * (uint64_t)(i + 1) >> 64);
        int32_t item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

static void permute(int32_t *items, int64_t count, const tsr_order_source *source, int64_t epoch,
                    tsr_permute_purpose purpose)
{
    for (int64_t i = 0; i < count; i++)
        items[i] = (int32_t)i;
    if (source->shuffle)
        tsr_permute(items, count, tsr_mix(tsr_mix(source->seed) ^ (uint64_t)epoch), purpose);
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* As transformers' get_length_grouped_indices: `group` samples at a time, the longest of them first, equal ones in
 * the order that they had; then the longest of all comes first, so that what it needs shows early. */
static void group_by_length(int32_t *items, const tsr_order_source *source)
{
    int64_t count = source->sample_count, longest = 0;
    for (int64_t first = 0; first < count; first += source->group) {
        int64_t end = first + source->group < count ? first + source->group : count;
        for (int64_t i = first; i < end; i++)
            source->keys[i] =
                (uint64_t)(INT32_MAX - source->lengths[items[i]]) << 32 | (uint32_t)(i - first);
        qsort(source->keys + first, (size_t)(end - first), sizeof *source->keys, compare_keys);
        for (int64_t i = first; i < end; i++)
            source->keys[i] = (uint64_t)items[first + (int64_t)(uint32_t)source->keys[i]];
        for (int64_t i = first; i < end; i++)
            items[i] = (int32_t)source->keys[i];
        if (source->lengths[items[first]] > source->lengths[items[longest]])
            longest = first;
    }
    int32_t item = items[0];
    items[0] = items[longest];
    items[longest] = item;
}

/* Longest processing time first (Graham 1969): samples by falling length, each to the micro-batch with the fewest tokens so far, the
 * first of equal ones. No micro-batch stays empty. Within one, samples keep their order. */
static void deal(int32_t *items, int32_t *first, int64_t count, int64_t micros,
                 const tsr_order_source *source)
{
    for (int64_t m = 0; m < micros; m++)
        source->load[m] = 0;
    for (int64_t i = 0; i < count; i++)
        source->keys[i] = (uint64_t)(INT32_MAX - source->lengths[items[i]]) << 32 | (uint32_t)i;
    qsort(source->keys, (size_t)count, sizeof *source->keys, compare_keys);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = (int64_t)(uint32_t)source->keys[i], least = 0;
        for (int64_t m = 1; m < micros; m++)
            least = source->load[m] < source->load[least] ? m : least;
        source->load[least] += source->lengths[items[at]];
        source->dealt[at] = (int32_t)least;
    }
    for (int64_t i = 0; i < count; i++)
        source->keys[i] = (uint64_t)source->dealt[i] << 32 | (uint32_t)items[i];
    int64_t at = 0;
    for (int64_t m = 0; m < micros; m++) {
        first[m] = (int32_t)at;
        for (int64_t i = 0; i < count; i++)
            if (source->dealt[i] == m)
                items[at++] = (int32_t)(uint32_t)source->keys[i];
    }
}

static void deal_steps(tsr_order *out, const tsr_order_source *source)
{
    int64_t n = source->sample_count, micro = 0;
    for (int64_t first = 0; first < n; first += source->step) {
        int64_t count = first + source->step < n ? source->step : n - first;
        int64_t micros = (count + source->per - 1) / source->per;
        deal(out->samples + first, out->micro_first + micro, count, micros, source);
        for (int64_t m = 0; m < micros; m++)
            out->micro_first[micro++] += (int32_t)first;
    }
    out->micro_first[micro] = (int32_t)n;
}

/* Rows in an order of their own when shuffled (by their first sample, full rows of many short
 * samples would come early); otherwise by their first sample in the file. */
static void order_rows(const tsr_order_source *source, int64_t rows, int64_t epoch,
                       int32_t *scratch)
{
    if (source->shuffle) {
        permute(scratch, rows, source, epoch, TSR_PERMUTE_ROWS);
        for (int64_t i = 0; i < rows; i++)
            source->row_at[scratch[i]] = (int32_t)i;
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        source->row_at[i] = -1;
    int32_t seen = 0;
    for (int64_t i = 0; i < source->sample_count; i++)
        if (source->row_at[source->row_of[i]] < 0)
            source->row_at[source->row_of[i]] = seen++;
}

void tsr_order_fill(tsr_order *out, const tsr_order_source *source, int64_t epoch)
{
    int64_t n = source->sample_count;
    out->epoch = epoch;
    if (!source->pack) {
        permute(out->samples, n, source, epoch, TSR_PERMUTE_SAMPLES);
        if (source->group)
            group_by_length(out->samples, source);
        for (int64_t i = 0; i <= n; i++)
            out->unit_first[i] = (int32_t)i;
        out->units = n;
        if (source->step)
            deal_steps(out, source);
        return;
    }
    permute(source->order, n, source, epoch, TSR_PERMUTE_SAMPLES);
    int64_t rows = tsr_pack_run(source->row_of, source->pack, source->lengths, source->order);
    order_rows(source, rows, epoch, out->samples);
    /* Samples by their row's place; inside a row in the epoch's order. */
    int32_t *first = out->unit_first;
    for (int64_t i = 0; i <= rows; i++)
        first[i] = 0;
    for (int64_t i = 0; i < n; i++)
        first[source->row_at[source->row_of[i]] + 1]++;
    for (int64_t i = 0; i < rows; i++)
        first[i + 1] += first[i];
    for (int64_t i = 0; i < n; i++) {
        int32_t sample = source->order[i];
        out->samples[first[source->row_at[source->row_of[sample]]]++] = sample;
    }
    for (int64_t i = rows; i > 0; i--) /* the loop above moved every start to the next one's */
        first[i] = first[i - 1];
    first[0] = 0;
    out->units = rows;
}
