/*
 * peft_experts.c: PEFT's layout of an adapter on a parameter that has a matrix for each expert (target_parameters).
 *
 * lora_A [experts r, in] has one expert's A behind the other; lora_B [out, r experts] has B of expert e in columns e,
 * experts + e, 2 experts + e, and so on.
 */
#include "io/peft_parts.h"

#include "base/auto.h"

#include <stdlib.h>
#include <string.h>

/* The row of the file that row i is. */
static uint64_t file_row(const tsr_peft_expert_b *shape, uint64_t i)
{
    uint64_t half = shape->rows / 2;
    if (!shape->by_turns)
        return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

tsr_status tsr_peft_read_expert_b(float *out, const tsr_tensor *stored,
                                  const tsr_peft_expert_b *shape, uint64_t first, uint64_t count)
{
    uint64_t rows = shape->rows, experts = shape->experts, r = shape->r, columns = experts * r;
    TSR_AUTO_FREE float *row = malloc(columns * sizeof *row);
    if (!row)
        return tsr_fail(TSR_ENOMEM, "out of memory for %s", stored->name);
    if (!count)
        return TSR_OK;
    uint64_t end_expert = (first + count - 1) / (rows * r) + 1;
    for (uint64_t i = 0; i < rows; i++) {
        TSR_TRY(tsr_safetensors_read_f32(row, stored, file_row(shape, i) * columns, columns));
        for (uint64_t e = first / (rows * r); e < end_expert; e++)
            for (uint64_t k = 0; k < r; k++) {
                uint64_t at = (e * rows + i) * r + k;
                if (at >= first && at < first + count)
                    out[at - first] = row[k * experts + e];
            }
    }
    return TSR_OK;
}

void tsr_peft_put_expert_b(float *file, const float *values, const tsr_peft_expert_b *shape,
                           uint64_t first, uint64_t count)
{
    uint64_t rows = shape->rows, experts = shape->experts, r = shape->r;
    for (uint64_t j = 0; j < count; j++) {
        uint64_t at = first + j, row = at / r, k = at % r;
        uint64_t e = row / rows, i = row % rows;
        file[(file_row(shape, i) * r + k) * experts + e] = values[j];
    }
}

/* ---- a linear an expert ---- */

static tsr_peft_module *find(const tsr_peft *peft, const char *path)
{
    const tsr_peft_module *found = tsr_peft_module_find(peft, path);
    return found ? &peft->modules[found - peft->modules] : NULL;
}

/* Moves the modules of the linears out of the list, which loses as many. */
static void move_linears(tsr_peft_module *one, tsr_peft *peft, const tsr_peft_joint *joint)
{
    uint64_t kept = 0, count = joint->experts * (uint64_t)joint->parts;
    for (uint64_t i = 0; i < count; i++) {
        tsr_peft_module *module = find(peft, joint->linear[i]);
        one[i] = *module;
        module->r = 0; /* moved; its path stays until all are found */
    }
    for (uint64_t i = 0; i < peft->count; i++) {
        const tsr_peft_module *m = &peft->modules[i];
        bool moved = m->r == 0 && m->a && !m->one;
        if (!moved)
            peft->modules[kept++] = *m;
    }
    peft->count = kept;
}

tsr_status tsr_peft_join(tsr_peft *peft, const tsr_peft_joint *joint)
{
    uint64_t count = joint->experts * (uint64_t)joint->parts;
    tsr_peft_module *one = calloc(count, sizeof *one);
    char *path = strdup(joint->path);
    if (!one || !path) {
        free(one);
        free(path);
        return tsr_fail(TSR_ENOMEM, "no memory for the adapter of %s", joint->path);
    }
    move_linears(one, peft, joint);
    peft->modules[peft->count++] =
        (tsr_peft_module){.path = path,
                          .one = one,
                          .experts = joint->experts,
                          .parts = joint->parts,
                          .r = count * one[0].r,
                          .in_features = one[0].in_features,
                          .out_features = (uint64_t)joint->parts * one[0].out_features};
    qsort(peft->modules, peft->count, sizeof *peft->modules, tsr_peft_by_path);
    return TSR_OK;
}

static tsr_status add_pattern(tsr_peft_pattern **to, uint64_t *count, const char *name,
                              double value)
{
    tsr_peft_pattern *grown = realloc(*to, (*count + 1) * sizeof *grown);
    char *key = strdup(name);
    if (grown)
        *to = grown;
    if (!grown || !key) {
        free(key);
        return tsr_fail(TSR_ENOMEM, "no memory for the adapter of %s", name);
    }
    grown[(*count)++] = (tsr_peft_pattern){key, value};
    return TSR_OK;
}

static tsr_status add_name(tsr_peft_match *to, const char *name)
{
    char **grown = realloc(to->names, (to->count + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown)
        to->names = grown;
    if (!grown || !copy) {
        free(copy);
        return tsr_fail(TSR_ENOMEM, "no memory for the adapter of %s", name);
    }
    grown[to->count++] = copy;
    return TSR_OK;
}

static void drop_name(tsr_peft_match *from, uint64_t index)
{
    free(from->names[index]);
    from->count--;
    memmove(from->names + index, from->names + index + 1,
            (from->count - index) * sizeof *from->names);
}

tsr_status tsr_peft_add_parameter(tsr_peft *peft, const char *name, uint64_t r, double alpha)
{
    tsr_peft_config *c = &peft->config;
    TSR_TRY(add_name(&c->parameter, name));
    if (r != c->r)
        TSR_TRY(add_pattern(&c->rank_pattern, &c->rank_pattern_count, name, (double)r));
    return alpha == c->lora_alpha
               ? TSR_OK
               : add_pattern(&c->alpha_pattern, &c->alpha_pattern_count, name, alpha);
}

void tsr_peft_drop_target(tsr_peft *peft, uint64_t index)
{
    drop_name(&peft->config.target, index);
}

tsr_status tsr_peft_add_target(tsr_peft *peft, const char *name)
{
    return add_name(&peft->config.target, name);
}

void tsr_peft_drop_parameter(tsr_peft *peft, uint64_t index)
{
    drop_name(&peft->config.parameter, index);
}

tsr_status tsr_peft_rename_key(tsr_peft *peft, bool alpha, uint64_t index, const char *key)
{
    tsr_peft_config *c = &peft->config;
    tsr_peft_pattern *pattern = alpha ? c->alpha_pattern : c->rank_pattern;
    uint64_t *count = alpha ? &c->alpha_pattern_count : &c->rank_pattern_count;
    char *copy = key ? strdup(key) : NULL;
    if (key && !copy)
        return tsr_fail(TSR_ENOMEM, "no memory for the adapter of %s", key);
    free(pattern[index].key);
    pattern[index].key = copy;
    if (copy)
        return TSR_OK;
    (*count)--;
    memmove(pattern + index, pattern + index + 1, (*count - index) * sizeof *pattern);
    return TSR_OK;
}

/* Elements from `at` on, no more than `most`, that lie in one row of one part: of a joined A or B. Returns how many. */
static tsr_status read_run(float *out, uint64_t *some, const tsr_peft_module *m, bool is_b,
                           uint64_t at, uint64_t most)
{
    uint64_t parts = (uint64_t)m->parts, r = m->one[0].r;
    uint64_t rows = is_b ? m->out_features : parts * r;
    uint64_t columns = is_b ? parts * r : m->in_features;
    uint64_t expert = at / (rows * columns), row = at / columns % rows, column = at % columns;
    uint64_t part = row / (rows / parts), own_row = row % (rows / parts);
    const tsr_peft_module *one = &m->one[expert * parts + part];
    uint64_t piece = is_b ? r : columns; /* B's columns of one part */
    uint64_t within = column % piece;
    *some = piece - within < most ? piece - within : most;
    if (is_b && column / r != part) {
        memset(out, 0, *some * sizeof *out);
        return TSR_OK;
    }
    return tsr_safetensors_read_f32(out, is_b ? one->b : one->a, own_row * piece + within, *some);
}

tsr_status tsr_peft_read_joined(float *out, const tsr_peft_module *module, bool is_b,
                                uint64_t first, uint64_t count)
{
    for (uint64_t done = 0, some; done < count; done += some)
        TSR_TRY(read_run(out + done, &some, module, is_b, first + done, count - done));
    return TSR_OK;
}
