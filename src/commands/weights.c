#include "commands/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 256 /* as tsr_stack_expert_name fills it; names are literals, far shorter */

typedef struct {
    const char *name;
    const tsr_weight *source;
    tsr_weight_use use;
} entry;

struct tsr_weight_uses {
    entry *entries; /* sorted by name */
    uint64_t count;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static uint64_t sources_of(const tsr_layout_stack *stack)
{
    return stack->fused ? 1 : tsr_layout_stack_matrices(stack);
}

static uint64_t count_of(const tsr_layout_unit *unit)
{
    uint64_t count = (uint64_t)tsr_layout_linears(unit);
    for (int i = 0; i < tsr_layout_stacks(unit); i++)
        count += sources_of(&unit->stack[i]) + unit->stack[i].mxfp4;
    return count;
}

static void add(tsr_weight_uses *uses, const tsr_weight *source, tsr_weight_use use)
{
    uses->entries[uses->count++] = (entry){source->weight->name, source, use};
}

static void add_unit(tsr_weight_uses *uses, const tsr_layout_unit *unit)
{
    for (int i = 0; i < tsr_layout_linears(unit); i++)
        add(uses, &unit->linear[i].source, (tsr_weight_use){.linear = &unit->linear[i]});
    for (int i = 0; i < tsr_layout_stacks(unit); i++) {
        const tsr_layout_stack *stack = &unit->stack[i];
        for (uint64_t j = 0; j < sources_of(stack); j++)
            add(uses, &stack->source[j], (tsr_weight_use){.stack = stack, .matrix = j});
        if (stack->mxfp4)
            uses->entries[uses->count++] =
                (entry){stack->stored.scales->name, NULL, {.stack = stack, .part = true}};
    }
}

tsr_status tsr_weight_uses_make(tsr_weight_uses **out, const tsr_layout *layout)
{
    uint64_t count = 0;
    tsr_weight_uses *uses = calloc(1, sizeof *uses);
    for (int i = 0; i < layout->layer_count; i++)
        count += count_of(&layout->unit[i]);
    if (uses)
        uses->entries = calloc(count + 1, sizeof *uses->entries);
    if (!uses || !uses->entries) {
        tsr_weight_uses_free(uses);
        return tsr_fail(TSR_ENOMEM, "out of memory for the names of weights");
    }
    for (int i = 0; i < layout->layer_count; i++)
        add_unit(uses, &layout->unit[i]);
    qsort(uses->entries, uses->count, sizeof *uses->entries, by_name);
    *out = uses;
    return TSR_OK;
}

void tsr_weight_uses_free(tsr_weight_uses *uses)
{
    if (uses)
        free(uses->entries);
    free(uses);
}

/* The one that is called the first `length` characters of the name. */
static const entry *find(const tsr_weight_uses *uses, const char *name, size_t length)
{
    uint64_t first = 0, end = uses->count;
    while (first < end) {
        uint64_t middle = first + (end - first) / 2;
        const char *found = uses->entries[middle].name;
        int order = strncmp(found, name, length);
        if (order == 0)
            order = found[length] != 0;
        if (order == 0)
            return &uses->entries[middle];
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return NULL;
}

tsr_weight_use tsr_weight_use_of(const tsr_weight_uses *uses, const char *tensor)
{
    static const char weight[] = ".weight.";
    size_t end = strlen(tensor);
    const entry *found = find(uses, tensor, end);
    const char *dot = found ? NULL : strstr(tensor, weight);
    if (found)
        return found->use;
    if (dot)
        found = find(uses, tensor, (size_t)(dot - tensor) + strlen(weight) - 1);
    if (!found || !found->source || !found->source->prequantized)
        return (tsr_weight_use){0};
    tsr_weight_use use = found->use;
    use.part = true;
    return use;
}

uint64_t tsr_weight_uses_bytes(const tsr_weight_uses *uses)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < uses->count; i++)
        if (uses->entries[i].source)
            bytes += uses->entries[i].source->weight->bytes;
    return bytes;
}

const tsr_tensor *tsr_weight_uses_4bit(const tsr_weight_uses *uses)
{
    for (uint64_t i = 0; i < uses->count; i++)
        if (uses->entries[i].source && uses->entries[i].source->prequantized)
            return uses->entries[i].source->weight;
    return NULL;
}

/* ---- names ---- */

/* What `tensor` is called with `end` instead of `former`, which ends its name. */
static char *renamed(const char *tensor, const char *former, const char *end)
{
    char *out;
    int kept = (int)(strlen(tensor) - strlen(former));
    return asprintf(&out, "%.*s%s", kept, tensor, end) < 0 ? NULL : out;
}

static void put_one(char out[NAME_BYTES], const tsr_layout_stack *stack, uint64_t matrix)
{
    uint64_t parts = (uint64_t)stack->parts;
    tsr_stack_expert_name(out, stack->files, matrix / parts, (int)(matrix % parts));
    strcat(out, ".weight");
}

char *tsr_stack_one_name(const tsr_layout_stack *stack, uint64_t matrix)
{
    char end[NAME_BYTES];
    if (!stack->fused)
        return strdup(stack->source[matrix].weight->name);
    put_one(end, stack, matrix);
    return renamed(stack->source->weight->name, stack->files->fused, end);
}

char *tsr_stack_fused_name(const tsr_layout_stack *stack)
{
    char former[NAME_BYTES];
    if (stack->mxfp4)
        return renamed(stack->source->weight->name, "_blocks", "");
    if (stack->fused)
        return strdup(stack->source->weight->name);
    put_one(former, stack, 0);
    return renamed(stack->source->weight->name, former, stack->files->fused);
}
