/*
 * budget.c: what a template may take: memory, steps, and the texts that grow in them.
 */
#include "jinja/jinja.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)16 << 10)
/* Far above any conversation: a template that needs more has run away. */
#define ARENA_BYTES  ((size_t)256 << 20)
#define STEP_BYTES   16 /* read or written in the time of a step */
#define ALIGN        sizeof(max_align_t)
#define WRITER_BYTES 64 /* of a writer at first */

/* A piece beyond CHUNK_BYTES has a chunk of its own. */
struct arena_chunk {
    arena_chunk *before, *next;
    size_t used, capacity;
    max_align_t data[];
};

static const char advice[] = "a row far too long, or a template that runs away; shorten the row "
                             "or give another template with chat_template_path";

static tsr_status too_much(const tsr_jinja_arena *arena, const char *what)
{
    char line[16] = "";
    if (arena->line)
        snprintf(line, sizeof line, ":%d", *arena->line);
    return tsr_fail(TSR_EDATA, "%s%s: the template %s: %s", arena->name, line, what, advice);
}

/* ---- steps ---- */

static tsr_status spend(tsr_jinja_arena *arena, size_t steps)
{
    arena->steps -= steps < (size_t)1 << 40 ? (int64_t)steps : (int64_t)1 << 40;
    return arena->steps >= 0 ? TSR_OK : too_much(arena, "does not come to an end in time");
}

tsr_status tsr_jinja_spend(jinja_run *r, size_t steps)
{
    return spend(&r->arena, steps);
}

tsr_status tsr_jinja_scan(jinja_run *r, size_t bytes)
{
    return spend(&r->arena, 1 + bytes / STEP_BYTES);
}

tsr_status tsr_jinja_scan_values(jinja_run *r, const value *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i].kind == V_STRING)
            TSR_TRY(tsr_jinja_scan(r, values[i].text.bytes));
    return TSR_OK;
}

/* ---- memory ---- */

tsr_status tsr_jinja_hold(tsr_jinja_arena *arena, size_t bytes)
{
    if (bytes > ARENA_BYTES - arena->held)
        return too_much(arena, "needs more than 256 MiB of memory");
    arena->held += bytes;
    return TSR_OK;
}

static tsr_status out_of_memory(const tsr_jinja_arena *arena, size_t bytes)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory for a chat template (%zu bytes)", arena->name,
                    bytes);
}

/* What a chunk is known by to those before and behind it. */
static void link_chunk(tsr_jinja_arena *arena, arena_chunk *chunk)
{
    if (chunk->before)
        chunk->before->next = chunk;
    else
        arena->chunks = chunk;
    if (chunk->next)
        chunk->next->before = chunk;
}

static tsr_status add_chunk(arena_chunk **out, tsr_jinja_arena *arena, size_t capacity)
{
    size_t bytes = sizeof(arena_chunk) + capacity;
    TSR_TRY(tsr_jinja_hold(arena, bytes));
    arena_chunk *chunk = malloc(bytes);
    if (!chunk)
        return out_of_memory(arena, bytes);
    *chunk = (arena_chunk){.next = arena->chunks, .capacity = capacity};
    link_chunk(arena, chunk);
    *out = chunk;
    return TSR_OK;
}

/* `bytes` that are not zeroed; a multiple of ALIGN, at most ARENA_BYTES. */
static tsr_status take(void **out, tsr_jinja_arena *arena, size_t bytes)
{
    arena_chunk *chunk = arena->open;
    if (bytes > CHUNK_BYTES) {
        TSR_TRY(add_chunk(&chunk, arena, bytes));
    } else if (!chunk || chunk->capacity - chunk->used < bytes) {
        TSR_TRY(add_chunk(&chunk, arena, CHUNK_BYTES));
        arena->open = chunk;
    }
    *out = (char *)chunk->data + chunk->used;
    chunk->used += bytes;
    return TSR_OK;
}

tsr_status tsr_jinja_alloc(void *out, tsr_jinja_arena *arena, size_t count, size_t bytes_each)
{
    void *data = NULL;
    memcpy(out, &data, sizeof data);
    if (count > ARENA_BYTES / bytes_each)
        return tsr_jinja_hold(arena, SIZE_MAX);
    size_t bytes = (count * bytes_each + ALIGN - 1) / ALIGN * ALIGN;
    TSR_TRY(spend(arena, bytes / STEP_BYTES));
    TSR_TRY(take(&data, arena, bytes));
    memset(data, 0, bytes);
    memcpy(out, &data, sizeof data);
    return TSR_OK;
}

void tsr_jinja_arena_free(tsr_jinja_arena *arena)
{
    while (arena->chunks) {
        arena_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    memset(arena, 0, sizeof *arena);
}

/* ---- texts that grow ---- */

/* Whether the writer's memory ends where the open chunk's next piece begins. */
static bool is_last(const tsr_jinja_arena *arena, const jinja_writer *w)
{
    const arena_chunk *open = arena->open;
    return open && w->data && w->data + w->capacity == (const char *)open->data + open->used;
}

/* Another size for the chunk of a writer that has one of its own. */
static tsr_status resize(tsr_jinja_arena *arena, jinja_writer *w, size_t capacity)
{
    arena_chunk *chunk = (arena_chunk *)(void *)(w->data - offsetof(arena_chunk, data));
    if (capacity > w->capacity)
        TSR_TRY(tsr_jinja_hold(arena, capacity - w->capacity));
    arena_chunk *moved = realloc(chunk, sizeof *chunk + capacity);
    if (!moved)
        return out_of_memory(arena, capacity);
    if (capacity < w->capacity)
        arena->held -= w->capacity - capacity;
    link_chunk(arena, moved);
    moved->used = moved->capacity = capacity;
    w->data = (char *)moved->data;
    w->capacity = capacity;
    return TSR_OK;
}

static tsr_status grow(tsr_jinja_arena *arena, jinja_writer *w, size_t more)
{
    void *data = NULL;
    if (more > ARENA_BYTES)
        return tsr_jinja_hold(arena, SIZE_MAX);
    size_t capacity = w->bytes + more > 2 * w->capacity ? w->bytes + more : 2 * w->capacity;
    capacity = capacity < WRITER_BYTES ? WRITER_BYTES : (capacity + ALIGN - 1) / ALIGN * ALIGN;
    if (w->capacity > CHUNK_BYTES)
        return resize(arena, w, capacity);
    size_t wider = capacity - w->capacity;
    if (is_last(arena, w) && arena->open->capacity - arena->open->used >= wider) {
        arena->open->used += wider;
        w->capacity = capacity;
        return TSR_OK;
    }
    TSR_TRY(take(&data, arena, capacity));
    if (w->bytes)
        memcpy(data, w->data, w->bytes);
    w->data = data;
    w->capacity = capacity;
    return TSR_OK;
}

tsr_status tsr_jinja_put(jinja_run *r, jinja_writer *out, const char *data, size_t bytes)
{
    TSR_TRY(tsr_jinja_scan(r, bytes));
    if (bytes > out->capacity - out->bytes)
        TSR_TRY(grow(&r->arena, out, bytes));
    if (bytes)
        memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
    return TSR_OK;
}

tsr_status tsr_jinja_puts(jinja_run *r, jinja_writer *out, const char *string)
{
    return tsr_jinja_put(r, out, string, strlen(string));
}

tsr_status tsr_jinja_putf(jinja_run *r, jinja_writer *out, const char *format, ...)
{
    char text[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tsr_jinja_puts(r, out, text);
}

value tsr_jinja_written(jinja_run *r, jinja_writer *out)
{
    size_t capacity = (out->bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (is_last(&r->arena, out))
        r->arena.open->used -= out->capacity - capacity;
    else if (capacity > CHUNK_BYTES && out->capacity > CHUNK_BYTES)
        (void)resize(&r->arena, out, capacity); /* the larger one serves as well */
    value text = tsr_jinja_text(out->bytes ? out->data : "", out->bytes);
    *out = (jinja_writer){0};
    return text;
}
