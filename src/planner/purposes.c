#include "planner/purposes.h"

#include "planner/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_purpose(const tsr_buffer *a, const tsr_buffer *b)
{
    return a->place == b->place && strcmp(a->why, b->why) == 0 &&
           tsr_decide_is_kept(a) == tsr_decide_is_kept(b);
}

static void put_name(tsr_purpose *out, const tsr_buffer *b, const char *name)
{
    snprintf(out->name, sizeof out->name, "%s %s%s%s%s", tsr_decide_place_name(b->place), name,
             *name ? ": " : "", b->why, tsr_decide_is_kept(b) ? TSR_DECIDE_KEPT : "");
}

/* One more buffer of a purpose, which has no name once they differ. */
static void add(tsr_purpose *purpose, const tsr_buffer *first, const tsr_buffer *b)
{
    char name[TSR_BUFFER_NAME_BYTES], other[TSR_BUFFER_NAME_BYTES];
    tsr_decide_without_numbers(name, first->name);
    tsr_decide_without_numbers(other, b->name);
    bool alone = purpose->bytes == 0, alike = purpose->named && strcmp(name, other) == 0;
    purpose->named = alone || alike;
    purpose->bytes += b->bytes;
    put_name(purpose, first, alone ? first->name : alike ? name : "");
}

tsr_status tsr_purposes_make(tsr_purposes *out, const tsr_memory_plan *memory)
{
    size_t most = (size_t)memory->count + 1;
    const tsr_buffer **first = calloc(most, sizeof *first);
    tsr_purposes p = {.purpose = calloc(most, sizeof *p.purpose), .of = calloc(most, sizeof *p.of)};
    bool made = first && p.purpose && p.of;
    for (int i = 0; made && i < memory->count; i++) {
        const tsr_buffer *b = &memory->buffer[i];
        int at = 0;
        while (at < p.count && !same_purpose(first[at], b))
            at++;
        if (at == p.count)
            first[p.count++] = b;
        add(&p.purpose[at], first[at], b);
        p.of[i] = at;
    }
    free(first);
    if (!made) {
        tsr_purposes_free(&p);
        return tsr_fail(TSR_ENOMEM, "out of memory for the purposes of %d buffers", memory->count);
    }
    *out = p;
    return TSR_OK;
}

void tsr_purposes_free(tsr_purposes *purposes)
{
    free(purposes->purpose);
    free(purposes->of);
    *purposes = (tsr_purposes){0};
}
