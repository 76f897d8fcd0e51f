#include "tokenizer/bpe.h"

#include "base/philox.h"
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_WORD_BYTES 48 /* longer words seldom come again */
#define CACHE_WORDS      ((size_t)1 << 17)
#define LINEAR_BYTES     64 /* below it scanning all pairs is faster than a heap */

/* ---- merges ---- */

static tsr_bpe_merge *find_merge(const tsr_bpe *bpe, uint64_t pair)
{
    size_t mask = bpe->merge_capacity - 1;
    for (size_t i = tsr_mix(pair) & mask;; i = (i + 1) & mask) {
        tsr_bpe_merge *merge = &bpe->merges[i];
        if (merge->rank < 0 || merge->pair == pair)
            return merge;
    }
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

tsr_status tsr_bpe_add_merge(tsr_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    if (2 * bpe->merge_count >= bpe->merge_capacity) {
        tsr_bpe bigger = {.merge_capacity = bpe->merge_capacity ? 2 * bpe->merge_capacity : 1024};
        bigger.merges = malloc(bigger.merge_capacity * sizeof *bigger.merges);
        if (!bigger.merges)
            return tsr_fail(TSR_ENOMEM, "no memory for %zu merges", bigger.merge_capacity);
        for (size_t i = 0; i < bigger.merge_capacity; i++)
            bigger.merges[i].rank = -1;
        for (size_t i = 0; i < bpe->merge_capacity; i++)
            if (bpe->merges[i].rank >= 0)
                *find_merge(&bigger, bpe->merges[i].pair) = bpe->merges[i];
        free(bpe->merges);
        bpe->merges = bigger.merges;
        bpe->merge_capacity = bigger.merge_capacity;
    }
    tsr_bpe_merge *merge = find_merge(bpe, pair_of(left, right));
    bpe->merge_count += merge->rank < 0;
    *merge = (tsr_bpe_merge){pair_of(left, right), rank, id};
    return TSR_OK;
}

/* The merge of two neighbours, or NULL. */
static const tsr_bpe_merge *merge_of(const tsr_bpe *bpe, int32_t left, int32_t right)
{
    if (!bpe->merge_count)
        return NULL;
    const tsr_bpe_merge *merge = find_merge(bpe, pair_of(left, right));
    return merge->rank < 0 ? NULL : merge;
}

/* ---- one word ---- */

typedef struct {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev, next;
    uint32_t end;
} symbol;

typedef struct {
    int32_t rank, at, id;
} candidate;

static tsr_status scratch(void **out, tsr_bpe *bpe, size_t bytes)
{
    if (bytes > bpe->scratch_bytes) {
        free(bpe->scratch);
        bpe->scratch_bytes = 0;
        bpe->scratch = malloc(2 * bytes);
        if (!bpe->scratch)
            return tsr_fail(TSR_ENOMEM, "no memory for a word of %zu bytes", bytes);
        bpe->scratch_bytes = 2 * bytes;
    }
    *out = bpe->scratch;
    return TSR_OK;
}

/* The bytes of a word as tokens, or its characters where they have one; bytes without one are left out. */
static size_t first_pieces(tsr_bpe_piece *pieces, const tsr_bpe *bpe, const char *word,
                           size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t code;
        size_t length = bpe->characters ? tsr_utf8_next(&code, word + i, bytes - i) : 0;
        int32_t id = length ? tsr_map_get(&bpe->words, word + i, length) : -1;
        size_t end = i + (length ? length : 1);
        if (id >= 0)
            pieces[count++] = (tsr_bpe_piece){id, (uint32_t)end};
        for (; id < 0 && i < end; i++)
            if (bpe->byte_ids[(unsigned char)word[i]] >= 0)
                pieces[count++] =
                    (tsr_bpe_piece){bpe->byte_ids[(unsigned char)word[i]], (uint32_t)(i + 1)};
        i = end;
    }
    return count;
}

/* Merges in place by scanning; returns the new count. */
static size_t merge_linear(tsr_bpe_piece *pieces, size_t count, const tsr_bpe *bpe)
{
    const tsr_bpe_merge *merges[LINEAR_BYTES];
    for (size_t i = 0; i + 1 < count; i++)
        merges[i] = merge_of(bpe, pieces[i].id, pieces[i + 1].id);
    for (;;) {
        size_t best = count;
        for (size_t i = 0; i + 1 < count; i++)
            if (merges[i] && (best == count || merges[i]->rank < merges[best]->rank))
                best = i;
        if (best == count)
            return count;
        pieces[best] = (tsr_bpe_piece){merges[best]->id, pieces[best + 1].end};
        count--;
        memmove(&pieces[best + 1], &pieces[best + 2], (count - best - 1) * sizeof *pieces);
        if (best + 1 < count)
            memmove(&merges[best + 1], &merges[best + 2], (count - best - 1) * sizeof *merges);
        merges[best] =
            best + 1 < count ? merge_of(bpe, pieces[best].id, pieces[best + 1].id) : NULL;
        if (best > 0)
            merges[best - 1] = merge_of(bpe, pieces[best - 1].id, pieces[best].id);
    }
}

static bool before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(candidate *heap, size_t *count, candidate c)
{
    size_t at = (*count)++;
    for (; at > 0 && before(&c, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = c;
}

static candidate heap_pop(candidate *heap, size_t *count)
{
    candidate top = heap[0], last = heap[--*count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= *count)
            break;
        if (child + 1 < *count && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static void consider(candidate *heap, size_t *count, const tsr_bpe *bpe, const symbol *s,
                     int32_t left)
{
    if (left < 0 || s[left].next < 0)
        return;
    const tsr_bpe_merge *merge = merge_of(bpe, s[left].id, s[s[left].next].id);
    if (merge)
        heap_push(heap, count, (candidate){merge->rank, left, merge->id});
}

/* The same with a heap, for long words. `symbols` and `heap` have room for count and 3 x count. */
static size_t merge_heap(tsr_bpe_piece *pieces, size_t count, const tsr_bpe *bpe, symbol *symbols,
                         candidate *heap)
{
    size_t waiting = 0, left = 0;
    for (size_t i = 0; i < count; i++)
        symbols[i] = (symbol){pieces[i].id, (int32_t)i - 1, i + 1 < count ? (int32_t)i + 1 : -1,
                              pieces[i].end};
    for (size_t i = 0; i + 1 < count; i++)
        consider(heap, &waiting, bpe, symbols, (int32_t)i);
    while (waiting) {
        candidate c = heap_pop(heap, &waiting);
        symbol *s = &symbols[c.at];
        if (s->id < 0 || s->next < 0)
            continue;
        symbol *right = &symbols[s->next];
        const tsr_bpe_merge *merge = merge_of(bpe, s->id, right->id);
        if (!merge || merge->id != c.id) /* a neighbour has changed since */
            continue;
        s->id = c.id;
        s->end = right->end;
        s->next = right->next;
        right->id = -1;
        if (s->next >= 0)
            symbols[s->next].prev = c.at;
        consider(heap, &waiting, bpe, symbols, s->prev);
        consider(heap, &waiting, bpe, symbols, c.at);
    }
    for (size_t i = 0; i < count; i++)
        if (symbols[i].id >= 0)
            pieces[left++] = (tsr_bpe_piece){symbols[i].id, symbols[i].end};
    return left;
}

/* Splits a word into *pieces, which lie in the scratch memory. */
static tsr_status split_word(tsr_bpe_piece **pieces, size_t *count, tsr_bpe *bpe, const char *word,
                             size_t bytes)
{
    void *memory = NULL;
    if (bytes >= INT32_MAX / 4)
        return tsr_fail(TSR_EDATA, "a word of %zu bytes is too long to tokenise", bytes);
    size_t each = sizeof(tsr_bpe_piece) + sizeof(symbol) + 3 * sizeof(candidate);
    TSR_TRY(scratch(&memory, bpe, (bytes + 1) * each));
    symbol *symbols = memory;
    candidate *heap = (candidate *)(symbols + bytes + 1);
    *pieces = (tsr_bpe_piece *)(heap + 3 * (bytes + 1));
    *count = first_pieces(*pieces, bpe, word, bytes);
    *count = *count <= LINEAR_BYTES ? merge_linear(*pieces, *count, bpe)
                                    : merge_heap(*pieces, *count, bpe, symbols, heap);
    return TSR_OK;
}

/* ---- words ---- */

tsr_status tsr_tokens_reserve(tsr_tokens *tokens, size_t more)
{
    if (more <= tokens->capacity - tokens->count)
        return TSR_OK;
    size_t capacity = 2 * tokens->capacity + more + 64;
    int32_t *ids = realloc(tokens->ids, capacity * sizeof *ids);
    if (ids)
        tokens->ids = ids;
    tsr_span *spans = realloc(tokens->spans, capacity * sizeof *spans);
    if (spans)
        tokens->spans = spans;
    if (!ids || !spans)
        return tsr_fail(TSR_ENOMEM, "no memory for %zu tokens", capacity);
    tokens->capacity = capacity;
    return TSR_OK;
}

static tsr_status append(tsr_tokens *out, const tsr_bpe_piece *pieces, size_t count, size_t source,
                         size_t inserted)
{
    size_t begin = 0;
    TSR_TRY(tsr_tokens_reserve(out, count));
    for (size_t i = 0; i < count; i++) {
        size_t end = pieces[i].end > inserted ? pieces[i].end - inserted : 0;
        out->ids[out->count] = pieces[i].id;
        out->spans[out->count++] = (tsr_span){source + begin, source + end};
        begin = end;
    }
    return TSR_OK;
}

/* Remembers a word: its count, then its pieces. */
static tsr_status remember(tsr_bpe *bpe, const char *word, size_t bytes,
                           const tsr_bpe_piece *pieces, size_t count)
{
    if (bytes > CACHE_WORD_BYTES || bpe->cache.count >= CACHE_WORDS)
        return TSR_OK;
    if (bpe->cached_capacity - bpe->cached_count < count + 1) {
        size_t capacity = 2 * bpe->cached_capacity + count + 1024;
        tsr_bpe_piece *cached = realloc(bpe->cached, capacity * sizeof *cached);
        if (!cached)
            return tsr_fail(TSR_ENOMEM, "no memory to remember words (%zu)", capacity);
        bpe->cached = cached;
        bpe->cached_capacity = capacity;
    }
    TSR_TRY(tsr_map_set(&bpe->cache, word, bytes, (int32_t)bpe->cached_count));
    bpe->cached[bpe->cached_count++] = (tsr_bpe_piece){(int32_t)count, 0};
    memcpy(bpe->cached + bpe->cached_count, pieces, count * sizeof *pieces);
    bpe->cached_count += count;
    return TSR_OK;
}

tsr_status tsr_bpe_encode(tsr_tokens *out, tsr_bpe *bpe, const char *word, size_t bytes,
                          size_t source, size_t inserted)
{
    tsr_bpe_piece *pieces = NULL;
    size_t count = 0;
    if (bpe->ignore_merges) {
        int32_t id = tsr_map_get(&bpe->words, word, bytes);
        if (id >= 0)
            return append(out, &(tsr_bpe_piece){id, (uint32_t)bytes}, 1, source, inserted);
    }
    int32_t known = bytes <= CACHE_WORD_BYTES ? tsr_map_get(&bpe->cache, word, bytes) : -1;
    if (known >= 0)
        return append(out, bpe->cached + known + 1, (size_t)bpe->cached[known].id, source,
                      inserted);
    TSR_TRY(split_word(&pieces, &count, bpe, word, bytes));
    TSR_TRY(remember(bpe, word, bytes, pieces, count));
    return append(out, pieces, count, source, inserted);
}

tsr_bpe tsr_bpe_share(const tsr_bpe *origin)
{
    tsr_bpe bpe = *origin;
    bpe.cache = (tsr_map){0};
    bpe.cached = NULL;
    bpe.scratch = NULL;
    bpe.cached_count = bpe.cached_capacity = bpe.scratch_bytes = 0;
    return bpe;
}

void tsr_bpe_forget(tsr_bpe *bpe)
{
    tsr_map_free(&bpe->cache);
    free(bpe->cached);
    free(bpe->scratch);
    *bpe = tsr_bpe_share(bpe);
}

void tsr_bpe_free(tsr_bpe *bpe)
{
    tsr_bpe_forget(bpe);
    tsr_map_free(&bpe->words);
    free(bpe->merges);
    memset(bpe, 0, sizeof *bpe);
}
