/*
 * model/layout_unused.c: tensors of a checkpoint that are no part of the model that config.json describes.
 */
#include "model/layout.h"

#include "base/log.h"
#include "base/text.h"
#include "model/arch/arch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAMED 3 /* in the warning */

static int by_address(const void *a, const void *b)
{
    const tsr_tensor *x = *(const tsr_tensor *const *)a, *y = *(const tsr_tensor *const *)b;
    return x < y ? -1 : x > y;
}

static uint64_t list_of_unit(const tsr_tensor **used, const tsr_layout_unit *unit)
{
    uint64_t made = 0;
    for (int i = 0; i < unit->frozen_count; i++)
        used[made++] = unit->frozen[i].source;
    for (int i = 0; i < tsr_layout_stacks(unit); i++)
        for (uint64_t j = 0;
             !unit->stack[i].fused && j < tsr_layout_stack_matrices(&unit->stack[i]); j++)
            used[made++] = unit->stack[i].source[j].weight;
    return made;
}

/* What the layout reads, sorted by address; *out is the caller's. */
static tsr_status list_used(const tsr_tensor ***out, uint64_t *count, const tsr_layout *layout)
{
    uint64_t most = 3, made = 0;
    for (int i = 0; i < layout->unit_count; i++) {
        const tsr_layout_unit *unit = &layout->unit[i];
        most += (uint64_t)unit->frozen_count;
        for (int j = 0; j < tsr_layout_stacks(unit); j++)
            most += tsr_layout_stack_matrices(&unit->stack[j]);
    }
    const tsr_tensor **used = malloc(most * sizeof *used);
    if (!used)
        return tsr_fail(TSR_ENOMEM, "out of memory for %" PRIu64 " tensors", most);
    used[made++] = layout->embedding;
    used[made++] = layout->head;
    used[made++] = layout->layer_rows;
    for (int i = 0; i < layout->unit_count; i++)
        made += list_of_unit(used + made, &layout->unit[i]);
    qsort(used, made, sizeof *used, by_address);
    *out = used;
    *count = made;
    return TSR_OK;
}

/* The weight that a 4-bit state "<name>.weight.absmax" belongs to, or the tensor itself. */
static const tsr_tensor *owner(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor)
{
    static const char weight[] = ".weight";
    const char *end = strstr(tensor->name, ".weight.");
    char name[256];
    size_t length = end ? (size_t)(end - tensor->name) + sizeof weight - 1 : 0;
    if (!end || length >= sizeof name)
        return tensor;
    memcpy(name, tensor->name, length);
    name[length] = 0;
    const tsr_tensor *found = tsr_checkpoint_find(checkpoint, name);
    return found ? found : tensor;
}

/* The head of a tied model, which is its embedding, or that a reward model has no use for, and buffers that old versions saved. */
static bool is_known(const tsr_layout *layout, const char *name)
{
    static const char buffer[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), tail = sizeof buffer - 1;
    return ((!layout->head || layout->head == layout->embedding) &&
            (!strcmp(name, "lm_head.weight") || !strcmp(name, "language_model.lm_head.weight"))) ||
           (length >= tail && !strcmp(name + length - tail, buffer));
}

/* Of a layer behind the last one, which predicts a further token: in Transformers no part of the model either. */
static bool is_further(const tsr_layout *layout, const char *name)
{
    static const char layers[] = "model.layers.";
    if (!layout->config.arch->further_tokens || strncmp(name, layers, sizeof layers - 1))
        return false;
    char *end;
    const char *number = name + sizeof layers - 1;
    unsigned long long layer = strtoull(number, &end, 10);
    return end > number && *end == '.' && layer >= layout->config.layer_count;
}

/* Tensors that nothing reads: of the other towers, each named once, of further layers, and the rest. */
typedef struct {
    uint64_t towers, further, rest;
    tsr_text tower_names, rest_names;
    const char *last_tower; /* tensors come sorted by name */
} unused;

static void add_unused(unused *to, tsr_layout *layout, const tsr_tensor *tensor)
{
    const char *tower;
    if (tsr_composite_is_tower(&tower, layout->config.composite, tensor->name)) {
        layout->tower_elements += tensor->element_count;
        if (tower != to->last_tower)
            tsr_text_printf(&to->tower_names, "%s%s", to->towers ? ", " : "", tower);
        to->last_tower = tower;
        to->towers++;
    } else if (is_further(layout, tensor->name)) {
        to->further++;
    } else if (to->rest++ < NAMED) {
        tsr_text_printf(&to->rest_names, "%s%s", to->rest > 1 ? ", " : "", tensor->name);
    }
}

tsr_status tsr_layout_warn_unused(tsr_layout *layout, const tsr_checkpoint *checkpoint)
{
    const tsr_tensor **used = NULL;
    uint64_t used_count = 0;
    unused found = {0};
    TSR_TRY(list_used(&used, &used_count, layout));
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++) {
        const tsr_tensor *tensor = tsr_checkpoint_at(checkpoint, i);
        const tsr_tensor *key = owner(checkpoint, tensor);
        if (!bsearch(&key, used, used_count, sizeof *used, by_address) &&
            !is_known(layout, tensor->name))
            add_unused(&found, layout, tensor);
    }
    if (found.towers)
        tsr_log(TSR_LOG_INFO,
                "%s: only its text decoder is used, and %" PRIu64 " tensors beside it are not: %s",
                tsr_checkpoint_directory(checkpoint), found.towers,
                tsr_text_string(&found.tower_names));
    if (found.further)
        tsr_log(TSR_LOG_INFO,
                "%s: %" PRIu64 " tensors of layers from %" PRIu64 " on are not used: they predict "
                "tokens further on (num_nextn_predict_layers)",
                tsr_checkpoint_directory(checkpoint), found.further, layout->config.layer_count);
    if (found.rest)
        tsr_log(TSR_LOG_WARNING,
                "%s: %" PRIu64 " tensors are not used, for config.json describes a model without "
                "them: %s%s",
                tsr_checkpoint_directory(checkpoint), found.rest,
                tsr_text_string(&found.rest_names), found.rest > NAMED ? ", ..." : "");
    tsr_text_free(&found.tower_names);
    tsr_text_free(&found.rest_names);
    free(used);
    return TSR_OK;
}
