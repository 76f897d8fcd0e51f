/*
 * decide_buffers.c: every buffer of a plan, with its shape and what it is for.
 */
#include "train/decide_parts.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const place_names[] = {"device", "host", "node"};

typedef struct {
    const char *name, *why;
} reason;

/* What a buffer is for, by its name; the first pattern that matches. */
static const reason reasons[] = {
    {"slot\\[*", "one unit, gathered for its use"},
    {"stage\\[*", "one unit's shard on its way from host memory"},
    {"frozen.shards", "this rank's part of the base"},
    {"frozen.resident", "units of the base that stay whole"},
    {"frozen.host_shards", "this rank's part of the base, pinned"},
    {"frozen.host_copy", "the base, one copy a node"},
    {"embedding", "rows are looked up by the host, one copy a node"},
    {"trainable.whole", "the adapter as matmuls read it, gathered once a step"},
    {"trainable.work", "this rank's part of the adapter as matmuls read it"},
    {"trainable.master", "this rank's part of the adapter as AdamW changes it"},
    {"trainable.m", "AdamW's first moment"},
    {"trainable.v", "AdamW's second moment"},
    {"trainable.gradient", "sums over micro-batches and ranks, exact in fixed point"},
    {"optimizer state*", "a chunk of master, m and v, on the device for its update"},
    {"gradient", "of a unit each, before they are reduced"},
    {"gradient.received", "the other ranks' share of it"},
    {"gradient.partial", "one replica's sums of it"},
    {"control.word", "what a step is decided by: loss, norm, whether all is finite"},
    {"control.host_words", "the same, for the host"},
    {"step sums", "loss and tokens of a step"},
    {"gathered adapter of a unit", "for saving"},
    {"whole adapter", "for saving, on rank 0"},
    {"NF4 levels", "the 16 values of the code"},
    {"RoPE *", "tables of the rotation"},
    {"micro-batch *",
     "its embedded rows, positions and targets; one is filled while the other is used"},
    {"* nested absmax", "double quantization: scales of the scales"},
    {"* nested map", "double quantization: the 256 values of a scale"},
    {"* squares", "DoRA: |W|^2 of each row, which never changes"},
    {"* n", "DoRA: |W + s B A| of each row"},
    {"* g", "DoRA: m / n"},
    {"layer * saved activations", "what the layer keeps for its backward, meanwhile"},
    {"saved activations *", "of the layer at work; they travel to host memory and back"},
    {"scratch weight", "the weight at work, decoded"},
    {"scratch weight in e4m3", "base_compute: fp8: the same for the base's matmul"},
    {"scratch weight scale", "its scale of each row"},
    {"scratch rows in e4m3",
     "base_compute: fp8: input of the linear at work, or gradient of its output"},
    {"scratch row scale", "its scale of each token"},
    {"scratch * scale ahead *", "the same of gradients that are made in e4m3"},
    {"scratch low", "x A of the linear at work"},
    {"scratch dropped", "its input after dropout"},
    {"scratch lora", "its adapter's output"},
    {"scratch norm *", "DoRA: n of the linear at work"},
    {"scratch MLP, or*", "the layer at work: parts of its MLP, or what its attention needs"},
    {"scratch backward, or*", "gradients within the layer at work, or the loss"},
    {"scratch x final", "the last layer's output"},
    {"scratch rstd final", "1 / rms of the final norm"},
    {"scratch head *", "of each label's row: for the softmax"},
    {"head nll", "of each label: its loss"},
    {"scratch dx", "gradient of the residual"},
    {"scratch partial sums", "DoRA: dm, summed over tokens"},
    {"scratch d_low", "gradient of x A"},
    {"scratch d_dropped", "gradient of the dropped input"},
};

/* What a layer has of its own, or shares with the others ("scratch ..."). */
static const reason activations[] = {
    {"* x", "input of the layer"},
    {"* q", "queries"},
    {"* k", "keys"},
    {"* v", "values"},
    {"* o", "output of attention"},
    {"* x_mid", "the residual after attention"},
    {"* rstd", "1 / rms of the first norm"},
    {"* rstd2", "1 / rms of the second norm"},
    {"* lse", "attention's log-sum-exp"},
    {"* h", "the normed input of attention"},
    {"* h2", "the normed input of the MLP"},
    {"* act", "SwiGLU's output"},
    {"* z *", "output of the linear"},
    {"* y *", "its output with the adapter"},
    {"* low *", "x A of the linear, whose base is not merged"},
};

static const char *find_reason(const reason *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(list[i].name, name, 0) == 0)
            return list[i].why;
    return NULL;
}

static void print_why(tsr_text *out, const char *name)
{
    const char *why = find_reason(reasons, sizeof reasons / sizeof *reasons, name);
    bool kept = strncmp(name, "layer ", 6) == 0;
    if (why) {
        tsr_text_puts(out, why);
        return;
    }
    why = find_reason(activations, sizeof activations / sizeof *activations, name);
    if (why)
        tsr_text_printf(out, "%s, %s", why,
                        kept ? "kept for the backward" : "of the layer at work");
}

/* ---- those of a kind ---- */

/* Buffers with the same name but for numbers, and the same shape. */
typedef struct {
    const tsr_buffer *first;
    uint64_t count;
    char name[sizeof((tsr_buffer *)NULL)->name]; /* numbers are stars */
} kind;

static void without_numbers(char *out, const char *name)
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
        without_numbers(next.name, b->name);
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
    print_why(out, k->first->name);
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
        print_why(out, b->name);
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
