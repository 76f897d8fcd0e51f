/*
 * The NF4 weights of a family as a job has them in memory: the CRC-32 of each matrix's codes and of its absmax codes
 * is what bitsandbytes' rules give (nf4.json), and no matrix is missing. Experts are a stack of matrices, each of which
 * begins at a granule of its own: gate and up of expert 0, of expert 1, ..
 */
#include "model/family_runs.h"

#include "model/model_parts.h"
#include "support/crc32.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>

#define GRANULE 1024 /* elements */

typedef struct {
    const json_t *matrices;
    uint64_t compared;
    char wrong[200]; /* the first */
} comparison;

/* A frozen segment where compute finds it; a job of one rank. */
static const uint8_t *frozen(const tsr_job *job, const tsr_layout_segment *segment)
{
    const tsr_unit *unit = &job->model->options.units[segment->unit];
    tsr_unit_view view = tsr_store_view(&job->decision.store, segment->unit, 0);
    return (const uint8_t *)view.frozen + unit->frozen.segment[segment->at].gathered_offset;
}

/* Matrix `index` of a linear, `count` elements, against the facts of `name`. */
static void compare(comparison *c, const char *name, uint64_t index, uint64_t count,
                    const uint8_t *codes, const uint8_t *absmax)
{
    char plain[GOLDEN_NAME_BYTES];
    const json_t *facts = json_object_get(c->matrices, golden_name(plain, name));
    uint64_t granule = index * ((count + GRANULE - 1) / GRANULE);
    uint32_t got[2] = {crc32_of(codes + granule * GRANULE / 2, (count + 1) / 2),
                       crc32_of(absmax + granule * GRANULE / 64, (count + 63) / 64)};
    /* A block alone has nested scale 0, and any code. */
    bool same =
        got[0] == json_integer_value(json_object_get(facts, "codes_crc32")) &&
        (count <= 64 || got[1] == json_integer_value(json_object_get(facts, "absmax_crc32")));
    c->compared++;
    if (!same && !c->wrong[0])
        snprintf(c->wrong, sizeof c->wrong, "%s is%s", name, facts ? " another" : " not golden");
}

/* Every expert's matrices: "<path>.<expert>.gate_proj" and so on, whatever the checkpoint calls them. */
static void compare_stack(comparison *c, const tsr_layout_stack *stack, const uint8_t *codes,
                          const uint8_t *absmax)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    uint64_t parts = (uint64_t)stack->parts;
    int stem = (int)(strrchr(stack->path, '.') - stack->path);
    for (uint64_t i = 0; i < tsr_layout_stack_matrices(stack); i++) {
        char name[300];
        snprintf(name, sizeof name, "%.*s.%d.%s", stem, stack->path, (int)(i / parts),
                 names[parts == 2 ? i % 2 : 2]);
        compare(c, name, i, tsr_layout_stack_elements(stack), codes, absmax);
    }
}

static tsr_status take_codes(tsr_job *job, void *user)
{
    const tsr_layout *layout = &job->inputs.layout;
    for (int u = 0; u < layout->layer_count; u++) {
        const tsr_layout_unit *unit = &layout->unit[u];
        for (int i = 0; i < tsr_layout_linears(unit); i++) {
            const tsr_layout_linear *linear = &unit->linear[i];
            if (linear->quantized)
                compare(user, linear->path, 0, linear->out * linear->in,
                        frozen(job, &unit->frozen[linear->codes]),
                        frozen(job, &unit->frozen[linear->absmax]));
        }
        for (int i = 0; i < tsr_layout_stacks(unit); i++) {
            const tsr_layout_stack *stack = &unit->stack[i];
            if (stack->quantized)
                compare_stack(user, stack, frozen(job, &unit->frozen[stack->codes]),
                              frozen(job, &unit->frozen[stack->absmax]));
        }
    }
    return TSR_OK;
}

void test_codes(void **state)
{
    (void)state;
    row rows[ROWS];
    json_t *root = load(golden("nf4.json"));
    comparison c = {.matrices = json_object_get(root, "matrices")};
    read_rows(rows);
    write_whole(&rows[0]);
    job_spec spec = evaluation("nf4", golden("checkpoint"));
    job_run(&spec, take_codes, &c);
    if (c.wrong[0])
        fail_msg("%s", c.wrong);
    assert_true(c.compared > 0);
    assert_int_equal(c.compared, json_object_size(c.matrices));
    json_decref(root);
}
