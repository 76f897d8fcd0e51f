#include "tokenizer/split.h"

#include <stdlib.h>
#include <string.h>

struct tsr_split {
    tsr_regex *regex; /* NULL: literal */
    char *place;      /* for messages */
    char *literal;
    size_t literal_bytes;
    tsr_split_behavior behavior;
    bool invert;
    bool shared; /* the texts are another's */
};

static tsr_status compile(tsr_split *s, const char *pattern, size_t bytes, const char *place)
{
    char reason[TSR_REGEX_REASON_BYTES];
    s->place = strdup(place);
    if (!s->place)
        return tsr_fail(TSR_ENOMEM, "no memory for a pattern");
    tsr_status status = tsr_regex_create(&s->regex, reason, pattern, bytes, TSR_REGEX_RUBY);
    if (status == TSR_EDATA)
        return tsr_fail(TSR_EDATA, "%s: the pattern is not valid: %s", place, reason);
    return status < 0 ? tsr_fail(status, "%s: no memory for its pattern", place) : TSR_OK;
}

tsr_status tsr_split_create(tsr_split **out, const char *pattern, size_t bytes, bool literal,
                            tsr_split_behavior behavior, bool invert, const char *place)
{
    tsr_split *s = calloc(1, sizeof *s);
    if (!s)
        return tsr_fail(TSR_ENOMEM, "no memory for a pattern");
    s->behavior = behavior;
    s->invert = invert;
    s->literal_bytes = bytes;
    tsr_status status = TSR_OK;
    if (!literal)
        status = compile(s, pattern, bytes, place);
    else if (!(s->literal = malloc(bytes + 1)))
        status = tsr_fail(TSR_ENOMEM, "no memory for a pattern");
    else
        memcpy(s->literal, pattern, bytes);
    if (status < 0) {
        tsr_split_destroy(s);
        return status;
    }
    *out = s;
    return TSR_OK;
}

void tsr_split_destroy(tsr_split *split)
{
    if (!split)
        return;
    tsr_regex_destroy(split->regex);
    if (!split->shared) {
        free(split->place);
        free(split->literal);
    }
    free(split);
}

tsr_status tsr_split_share(tsr_split **out, const tsr_split *origin)
{
    tsr_split *s = malloc(sizeof *s);
    if (!s)
        return tsr_fail(TSR_ENOMEM, "no memory for a pattern");
    *s = *origin;
    s->shared = true;
    s->regex = NULL;
    tsr_status status = origin->regex ? tsr_regex_share(&s->regex, origin->regex) : TSR_OK;
    if (status < 0) {
        tsr_split_destroy(s);
        return status;
    }
    *out = s;
    return TSR_OK;
}

tsr_status tsr_pieces_add(tsr_pieces *pieces, size_t begin, size_t end)
{
    if (begin == end)
        return TSR_OK;
    if (pieces->count == pieces->capacity) {
        size_t capacity = pieces->capacity ? 2 * pieces->capacity : 256;
        tsr_span *spans = realloc(pieces->spans, capacity * sizeof *spans);
        if (!spans)
            return tsr_fail(TSR_ENOMEM, "no memory for %zu words", capacity);
        pieces->spans = spans;
        pieces->capacity = capacity;
    }
    pieces->spans[pieces->count++] = (tsr_span){begin, end};
    return TSR_OK;
}

/* What is known of the pieces so far: whether the last may still grow. */
typedef struct {
    tsr_pieces *out;
    const tsr_split *split;
    bool any, last_match; /* of this text */
    bool pending;         /* matches that go with the next piece: pending_begin */
    size_t pending_begin;
} cutter;

/* One stretch of the text, in or between matches, in order. */
static tsr_status stretch(cutter *c, size_t begin, size_t end, bool match)
{
    tsr_pieces *out = c->out;
    bool joins = false;
    match = match != c->split->invert;
    switch (c->split->behavior) {
    case TSR_SPLIT_REMOVED:
        return match ? TSR_OK : tsr_pieces_add(out, begin, end);
    case TSR_SPLIT_ISOLATED:
        return tsr_pieces_add(out, begin, end);
    case TSR_SPLIT_CONTIGUOUS:
        joins = c->any && c->last_match == match;
        break;
    case TSR_SPLIT_MERGED_WITH_PREVIOUS:
        joins = c->any && match && !c->last_match;
        break;
    case TSR_SPLIT_MERGED_WITH_NEXT:
        /* From the right: a match joins what follows unless that is a match as well. */
        joins = c->any && c->last_match && !match;
        break;
    }
    c->last_match = match;
    c->any = true;
    if (joins && out->count && out->spans[out->count - 1].end == begin) {
        out->spans[out->count - 1].end = end;
        return TSR_OK;
    }
    return tsr_pieces_add(out, begin, end);
}

/* The next match in text[at..end): its range, or found = false. */
static tsr_status next_match(bool *found, tsr_span *match, const tsr_split *s,
                             tsr_regex_budget *budget, const char *text, size_t begin, size_t at,
                             size_t end)
{
    if (!s->regex) {
        const char *hit =
            s->literal_bytes ? memmem(text + at, end - at, s->literal, s->literal_bytes) : NULL;
        *found = hit != NULL;
        if (hit)
            *match = (tsr_span){(size_t)(hit - text), (size_t)(hit - text) + s->literal_bytes};
        return TSR_OK;
    }
    size_t range[2] = {0};
    tsr_status status = tsr_regex_search(found, range, s->regex, budget, text, begin, at, end);
    if (status == TSR_EDATA)
        return tsr_fail(TSR_EDATA,
                        "%s: the pattern was given up at byte %zu of the text, since %s; correct "
                        "the pattern, or leave the text out",
                        s->place, at, budget->reason);
    *match = (tsr_span){range[0], range[1]};
    return status;
}

tsr_status tsr_split_apply(tsr_pieces *out, const tsr_split *split, tsr_regex_budget *budget,
                           const char *text, size_t begin, size_t end)
{
    cutter c = {.out = out, .split = split};
    size_t prev = begin, at = begin, last_end = SIZE_MAX;
    while (at <= end) {
        bool found;
        tsr_span m = {0};
        TSR_TRY(next_match(&found, &m, split, budget, text, begin, at, end));
        if (!found)
            break;
        if (m.begin < prev) /* \K in a look-behind takes back what an earlier match had */
            return tsr_fail(
                TSR_EDATA,
                "the pre-tokenizer's pattern matches bytes %zu to %zu of a text after a "
                "match that ended at %zu; expected matches that do not overlap (no \\K in "
                "a look-behind)",
                m.begin, m.end, prev);
        at = m.end;
        if (m.begin == m.end) {
            /* An empty match moves on by a character, and counts only away from the last one. */
            for (at++; at < end && ((unsigned char)text[at] & 0xc0) == 0x80; at++)
                ;
            if (last_end == m.end)
                continue;
        }
        last_end = m.end;
        if (prev != m.begin)
            TSR_TRY(stretch(&c, prev, m.begin, false));
        TSR_TRY(stretch(&c, m.begin, m.end, true));
        prev = m.end;
    }
    return prev != end ? stretch(&c, prev, end, false) : TSR_OK;
}
