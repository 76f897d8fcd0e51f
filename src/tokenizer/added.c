#include "tokenizer/added.h"

#include <stdlib.h>

#define MOST_BYTES ((size_t)4 << 20) /* of all matches; published ones have some kilobytes */

/* A state: what was read last, backwards, is the end of a match of this many bytes. Its children lie one behind the
 * other, in the order of their bytes. */
typedef struct tsr_added_node {
    int32_t first_child;
    int32_t fail;  /* the state of the longest shorter end */
    int32_t token; /* the longest that begins where the text was read to; -1: none */
    uint16_t child_count;
    unsigned char byte;
} node;

/* The tokens of a state while it is made: sorted[low..high), which agree in their last `depth` bytes. */
typedef struct {
    size_t low, high, depth;
} branch;

tsr_status tsr_added_append(tsr_added_set *set, const tsr_added_token *token)
{
    if (token->match_bytes > MOST_BYTES - set->bytes)
        return tsr_fail(TSR_EDATA, "the tokens have more than %zu bytes", MOST_BYTES);
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 64;
        tsr_added_token *tokens = realloc(set->tokens, capacity * sizeof *tokens);
        if (!tokens)
            return tsr_fail(TSR_ENOMEM, "no memory for %zu added tokens", capacity);
        set->tokens = tokens;
        set->capacity = capacity;
    }
    set->tokens[set->count++] = *token;
    set->bytes += token->match_bytes;
    return TSR_OK;
}

/* The byte of a match that is `depth` bytes before its last. */
static unsigned char byte_at(const tsr_added_token *t, size_t depth)
{
    return (unsigned char)t->match[t->match_bytes - 1 - depth];
}

/* How many bytes two matches have in common at their ends. */
static size_t common(const tsr_added_token *a, const tsr_added_token *b)
{
    size_t depth = 0;
    while (depth < a->match_bytes && depth < b->match_bytes &&
           byte_at(a, depth) == byte_at(b, depth))
        depth++;
    return depth;
}

static int from_the_end(const void *left, const void *right)
{
    const tsr_added_token *a = left, *b = right;
    size_t same = common(a, b);
    if (same == a->match_bytes || same == b->match_bytes)
        return (a->match_bytes > b->match_bytes) - (a->match_bytes < b->match_bytes);
    return byte_at(a, same) < byte_at(b, same) ? -1 : 1;
}

/* The child of a state by its byte, or -1. */
static int32_t child(const node *nodes, int32_t state, unsigned char byte)
{
    const node *children = &nodes[nodes[state].first_child];
    int low = 0, high = nodes[state].child_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (children[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < nodes[state].child_count && children[low].byte == byte
               ? nodes[state].first_child + low
               : -1;
}

static int32_t step(const node *nodes, int32_t state, unsigned char byte)
{
    int32_t next;
    while ((next = child(nodes, state, byte)) < 0 && state)
        state = nodes[state].fail;
    return next < 0 ? 0 : next;
}

/* Makes the children of a state, which become the states from *count on. */
static void add_children(node *nodes, branch *branches, size_t *count, size_t state,
                         const tsr_added_set *set)
{
    branch b = branches[state];
    nodes[state].first_child = (int32_t)*count;
    for (size_t end; b.low < b.high; b.low = end) {
        unsigned char byte = byte_at(&set->tokens[b.low], b.depth);
        for (end = b.low + 1; end < b.high && byte_at(&set->tokens[end], b.depth) == byte; end++)
            ;
        nodes[*count].byte = byte;
        nodes[*count].fail = state ? step(nodes, nodes[state].fail, byte) : 0;
        branches[(*count)++] = (branch){b.low, end, b.depth + 1};
        nodes[state].child_count++;
    }
}

/* Fills nodes[0..count), level by level. */
static void make_states(node *nodes, branch *branches, const tsr_added_set *set)
{
    size_t made = 1;
    nodes[0].token = -1;
    branches[0] = (branch){0, set->count, 0};
    for (size_t state = 0; state < made; state++) {
        branch *b = &branches[state];
        if (state)
            nodes[state].token = nodes[nodes[state].fail].token;
        if (state && set->tokens[b->low].match_bytes == b->depth)
            nodes[state].token = (int32_t)b->low++;
        add_children(nodes, branches, &made, state, set);
    }
}

tsr_status tsr_added_finish(tsr_added_set *set)
{
    size_t states = 1;
    if (!set->count)
        return TSR_OK;
    qsort(set->tokens, set->count, sizeof *set->tokens, from_the_end);
    for (size_t i = 0; i < set->count; i++) {
        const tsr_added_token *t = &set->tokens[i];
        size_t same = i ? common(t - 1, t) : 0;
        if (i && same == t->match_bytes && same == t[-1].match_bytes)
            return tsr_fail(TSR_EDATA, "\"%.*s\" is there twice", (int)(same < 200 ? same : 200),
                            t->match);
        states += t->match_bytes - same;
    }
    set->nodes = calloc(states, sizeof *set->nodes);
    branch *branches = calloc(states, sizeof *branches);
    if (set->nodes && branches)
        make_states(set->nodes, branches, set);
    free(branches);
    return set->nodes && branches
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "no memory for %zu added tokens", set->count);
}

tsr_status tsr_added_search(tsr_added_set *set, const char *text, size_t begin, size_t end)
{
    int32_t state = 0;
    set->hit_count = 0;
    for (size_t at = end; set->nodes && at-- > begin;) {
        state = step(set->nodes, state, (unsigned char)text[at]);
        if (set->nodes[state].token < 0)
            continue;
        if (set->hit_count == set->hit_capacity) {
            size_t capacity = set->hit_capacity ? 2 * set->hit_capacity : 64;
            tsr_added_hit *hits = realloc(set->hits, capacity * sizeof *hits);
            if (!hits)
                return tsr_fail(TSR_ENOMEM, "no memory for %zu added tokens of a text", capacity);
            set->hits = hits;
            set->hit_capacity = capacity;
        }
        set->hits[set->hit_count++] = (tsr_added_hit){at, set->nodes[state].token};
    }
    return TSR_OK;
}

const tsr_added_token *tsr_added_next(size_t *where, tsr_added_set *set, size_t at)
{
    while (set->hit_count) {
        const tsr_added_hit *hit = &set->hits[--set->hit_count];
        *where = hit->begin;
        if (hit->begin >= at)
            return &set->tokens[hit->token];
    }
    return NULL;
}

tsr_added_set tsr_added_share(const tsr_added_set *origin)
{
    tsr_added_set set = *origin;
    set.hits = NULL;
    set.hit_count = set.hit_capacity = 0;
    return set;
}

void tsr_added_forget(tsr_added_set *set)
{
    free(set->hits);
    *set = tsr_added_share(set);
}

void tsr_added_free(tsr_added_set *set)
{
    tsr_added_forget(set);
    for (size_t i = 0; i < set->count; i++)
        free(set->tokens[i].match);
    free(set->tokens);
    free(set->nodes);
    *set = (tsr_added_set){0};
}
