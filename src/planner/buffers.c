/*
 * buffers.c: every buffer of a plan, with its shape and what it is for.
 */
#include "planner/parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const place_names[] = {"device", "host", "node"};

const char *tsr_decide_place_name(tsr_place place)
{
    return place_names[place];
}

bool tsr_decide_is_kept(const tsr_buffer *buffer)
{
    return buffer->place == TSR_PLACE_DEVICE && strncmp(buffer->name, "layer ", 6) == 0;
}

static void print_why(tsr_text *out, const tsr_buffer *buffer)
{
    tsr_text_printf(out, "%s%s", buffer->why, tsr_decide_is_kept(buffer) ? TSR_DECIDE_KEPT : "");
}

/* ---- those of a kind ---- */

/* Buffers with the same name but for numbers, and the same shape. */
typedef struct {
    const tsr_buffer *first;
    uint64_t count;
    char name[TSR_BUFFER_NAME_BYTES]; /* numbers are stars */
} kind;

void tsr_decide_without_numbers(char *out, const char *name)
{
    char before = 'a';
    while (*name) {
        bool number = isdigit((unsigned char)*name) && !isalnum((unsigned char)before);
        before = *name;
        *out++ = number ? '*' : *name++;
        while (number && isdigit((unsigned char)*name))
            name++;
    }
    *out = 0;
}

static int by_place_and_size(const void *left, const void *right)
{
    const kind *a = left, *b = right;
    uint64_t bytes_a = a->count * a->first->bytes, bytes_b = b->count * b->first->bytes;
    if (a->first->place != b->first->place)
        return a->first->place < b->first->place ? -1 : 1;
    if (bytes_a != bytes_b)
        return bytes_a > bytes_b ? -1 : 1;
    return a->first < b->first ? -1 : 1;
}

static bool alike(const kind *a, const kind *b)
{
    const tsr_array *one = &a->first->array, *other = &b->first->array;
    return a->first->place == b->first->place && one->dtype == other->dtype &&
           one->rows == other->rows && one->columns == other->columns &&
           strcmp(a->name, b->name) == 0;
}

static int sort_out(kind *kinds, const tsr_memory_plan *memory)
{
    int count = 0;
    for (int i = 0; i < memory->count; i++) {
        const tsr_buffer *b = &memory->buffer[i];
        kind next = {.first = b};
        int at = 0;
        tsr_decide_without_numbers(next.name, b->name);
        while (at < count && !alike(&kinds[at], &next))
            at++;
        if (at == count)
            kinds[count++] = next;
        kinds[at].count++;
    }
    qsort(kinds, (size_t)count, sizeof *kinds, by_place_and_size);
    return count;
}

static void print_kind(tsr_text *out, const kind *k)
{
    const tsr_array *array = &k->first->array;
    char count[24] = "", shape[64];
    if (k->count > 1)
        snprintf(count, sizeof count, "%" PRIu64 " x ", k->count);
    snprintf(shape, sizeof shape, "[%" PRIu64, array->rows);
    if (array->columns > 1)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), ", %" PRIu64, array->columns);
    tsr_text_printf(out, "%-7s %13" PRIu64 " %6s%-4s %-16s %s: ", place_names[k->first->place],
                    k->count * k->first->bytes, count, tsr_dtype_name(array->dtype),
                    strcat(shape, "]"), k->count > 1 ? k->name : k->first->name);
    print_why(out, k->first);
    tsr_text_puts(out, "\n");
}

static tsr_status print_people(tsr_text *out, const tsr_memory_plan *memory)
{
    kind *kinds = calloc((size_t)memory->count + 1, sizeof *kinds);
    if (!kinds)
        return tsr_fail(TSR_ENOMEM, "out of memory while printing the plan");
    tsr_text_printf(out, "%-7s %13s %6s%-4s %-16s %s\n", "place", "bytes", "", "type", "shape",
                    "buffer");
    int count = sort_out(kinds, memory);
    for (int i = 0; i < count; i++)
        print_kind(out, &kinds[i]);
    free(kinds);
    return TSR_OK;
}

static void print_json(tsr_text *out, const tsr_memory_plan *memory)
{
    for (int i = 0; i < memory->count; i++) {
        const tsr_buffer *b = &memory->buffer[i];
        tsr_text_printf(
            out, "%s\n{\"name\":\"%s\",\"place\":\"%s\",\"dtype\":\"%s\",\"shape\":[%" PRIu64,
            i ? "," : "", b->name, place_names[b->place], tsr_dtype_name(b->array.dtype),
            b->array.rows);
        if (b->array.columns > 1)
            tsr_text_printf(out, ",%" PRIu64, b->array.columns);
        tsr_text_printf(out, "],\"bytes\":%" PRIu64 ",\"why\":\"", b->bytes);
        print_why(out, b);
        tsr_text_puts(out, "\"}");
    }
}

tsr_status tsr_decide_print_buffers(tsr_text *out, const tsr_memory_plan *memory, bool json)
{
    if (!json)
        return print_people(out, memory);
    print_json(out, memory);
    return TSR_OK;
}
