/*
 * model_fill.c: random frozen parts, put where the loader would put those of a checkpoint.
 *
 * Random pieces of one pool are written over and over, so that filling costs little more than the
 * copies: the pool holds 2^24 numbers of N(0, 0.02), as bf16 and quantized to NF4 with fp32 and
 * 8-bit scales; MXFP4's codes are those of NF4 read as e2m1. Codes and scales are drawn apart from each other, and all nested scales are the
 * same, which leaves the numbers normal in all that matters for time.
 */
#include "base/philox.h"
#include "job/parts.h"
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POOL_ELEMENTS ((uint64_t)1 << 24)
#define POOL_BLOCKS   (POOL_ELEMENTS / TSR_NF4_BLOCK)
#define PIECE_BYTES   ((uint64_t)4 << 20)
#define DEVIATION     0.02f
#define MXFP4_POWER   120 /* 2^-7: e2m1's 6 times that is 0.047 */

typedef struct {
    uint16_t *normal, *norm; /* bf16: N(0, 0.02), and N(1, 0.02) for the weights of norms */
    uint8_t *codes, *scales; /* scales: 8-bit */
    uint8_t *powers;         /* MXFP4's scales: the largest of a block is some 2.5 deviations */
    float *absmax, *nested;  /* nested: one value, TSR_NF4_NESTED_BLOCK times */
    float *wide;             /* N(1, 0.02), for vectors that are kept in fp32 */
    float offset;
    uint64_t drawn;
    bool filled;
} pool;

static tsr_status take_pool(pool *p)
{
    p->normal = malloc(POOL_ELEMENTS * sizeof *p->normal);
    p->norm = malloc(POOL_ELEMENTS * sizeof *p->norm);
    p->wide = malloc(POOL_ELEMENTS * sizeof *p->wide);
    p->codes = malloc(POOL_ELEMENTS / 2);
    p->scales = malloc(POOL_BLOCKS);
    p->powers = malloc(POOL_BLOCKS);
    p->absmax = malloc(POOL_BLOCKS * sizeof *p->absmax);
    p->nested = malloc(POOL_BLOCKS / TSR_NF4_NESTED_BLOCK * sizeof *p->nested);
    if (!p->normal || !p->norm || !p->wide || !p->codes || !p->scales || !p->powers || !p->absmax ||
        !p->nested)
        return tsr_fail(TSR_ENOMEM, "out of memory for random weights");
    return TSR_OK;
}

/* Pairs of normal numbers from pairs of uniform ones (Box and Muller). */
static void draw_normal(float *out, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i += 2) {
        uint64_t bits = tsr_mix(seed + i);
        float length = 1 - tsr_philox_uniform((uint32_t)bits); /* not 0 */
        float angle = 6.2831853f * tsr_philox_uniform((uint32_t)(bits >> 32));
        length = DEVIATION * sqrtf(-2 * logf(length));
        out[i] = length * cosf(angle);
        out[i + 1] = length * sinf(angle);
    }
}

static tsr_status fill_pool(pool *p)
{
    float *values = p->wide;
    double sum = 0;
    draw_normal(values, POOL_ELEMENTS, 20241);
    for (uint64_t i = 0; i < POOL_ELEMENTS; i++) {
        p->normal[i] = tsr_f32_to_bf16(values[i]);
        p->norm[i] = tsr_f32_to_bf16(1 + values[i]);
    }
    TSR_TRY(tsr_nf4_quantize(p->codes, p->absmax, values, TSR_F32, POOL_ELEMENTS));
    for (uint64_t i = 0; i < POOL_ELEMENTS; i++)
        values[i] += 1;
    for (uint64_t i = 0; i < POOL_BLOCKS; i++)
        sum += p->absmax[i];
    p->offset = (float)(sum / (double)POOL_BLOCKS);
    tsr_nf4_nest_absmax(p->scales, p->nested, p->absmax, POOL_BLOCKS, 0, POOL_BLOCKS, p->offset);
    for (uint64_t i = 1; i < POOL_BLOCKS / TSR_NF4_NESTED_BLOCK; i++)
        p->nested[i] = p->nested[0];
    for (uint64_t i = 0; i < POOL_BLOCKS; i++)
        p->powers[i] = (uint8_t)(MXFP4_POWER - tsr_mix(i) % 2);
    return TSR_OK;
}

/* Random pieces of `source`, each from a multiple of `unit` bytes on. */
static tsr_status put(tsr_device *device, pool *p, char *out, uint64_t bytes, const void *source,
                      uint64_t source_bytes, uint64_t unit)
{
    uint64_t most = source_bytes / 2 < PIECE_BYTES ? source_bytes / 2 : PIECE_BYTES;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < most ? bytes - done : most;
        uint64_t places = (source_bytes - piece) / unit + 1;
        uint64_t from = tsr_mix(++p->drawn) % places * unit;
        TSR_TRY(tsr_device_write(device, out + done, (const char *)source + from, piece));
        done += piece;
    }
    return TSR_OK;
}

/* The same on the host, of bf16. */
static void put_host(pool *p, char *out, uint64_t bytes)
{
    uint64_t all = POOL_ELEMENTS * sizeof *p->normal;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        uint64_t from = tsr_mix(++p->drawn) % ((all - piece) / 2 + 1) * 2;
        memcpy(out + done, (const char *)p->normal + from, piece);
        done += piece;
    }
}

/* A router's matrix is a vector of the block too. */
static bool is_norm(const tsr_layout_unit *parts, int segment)
{
    bool norm = segment == parts->final_norm;
    for (int i = 0; parts->block && i < parts->block->vector_count; i++)
        norm |= segment == parts->vector[i] && !parts->block->vector[i].rows;
    return norm;
}

static tsr_status fill_segment(tsr_job *job, pool *p, int unit, int segment)
{
    const tsr_layout_unit *parts = &job->inputs.layout.unit[unit];
    const tsr_layout_segment *s = &parts->frozen[segment];
    tsr_load_place place = tsr_load_at(&job->decision.store, job->world, s->unit, s->at);
    uint64_t bytes = place.granule_count * s->granule_bytes;
    bool small_scales = s->dtype == TSR_U8;
    switch (s->kind) {
    case TSR_SEGMENT_CODES:
        return put(job->device, p, place.data, bytes, p->codes, POOL_ELEMENTS / 2,
                   TSR_NF4_GRANULE_CODE_BYTES);
    case TSR_SEGMENT_ABSMAX:
        if (s->of_stack && parts->stack[s->stack_index].mxfp4)
            return put(job->device, p, place.data, bytes, p->powers, POOL_BLOCKS, 1);
        if (small_scales)
            return put(job->device, p, place.data, bytes, p->scales, POOL_BLOCKS, 1);
        return put(job->device, p, place.data, bytes, p->absmax, POOL_BLOCKS * sizeof(float),
                   sizeof(float));
    case TSR_SEGMENT_INT8: /* any bytes */
    case TSR_SEGMENT_FP8:
        return put(job->device, p, place.data, bytes, p->codes, POOL_ELEMENTS / 2, 1);
    case TSR_SEGMENT_INT8_SCALE:
    case TSR_SEGMENT_FP8_SCALE:
        return put(job->device, p, place.data, bytes, p->absmax, POOL_BLOCKS * sizeof(float),
                   sizeof(float));
    case TSR_SEGMENT_PLAIN:
        break;
    }
    if (s->dtype == TSR_F32)
        return put(job->device, p, place.data, bytes, p->wide, POOL_ELEMENTS * sizeof *p->wide,
                   sizeof *p->wide);
    if (s->dtype != TSR_BF16)
        return tsr_fail(TSR_EINTERNAL, "%s is %s, not bf16", s->name, tsr_dtype_name(s->dtype));
    bool norm = parts->linear && is_norm(parts, segment);
    return put(job->device, p, place.data, bytes, norm ? p->norm : p->normal,
               POOL_ELEMENTS * sizeof *p->normal, sizeof *p->normal);
}

/* What every rank keeps of a weight's scales. */
static tsr_status fill_nested(tsr_job *job, const pool *p, int unit, int kind)
{
    const tsr_layout_linear *linear = &job->inputs.layout.unit[unit].linear[kind];
    tsr_nf4_layout cut;
    if (!linear->quantized || !linear->nested)
        return TSR_OK;
    TSR_TRY(tsr_nf4_layout_make(&cut, linear->out * linear->in, 1, true));
    float *out = tsr_model_nested_absmax(job->model, unit, kind);
    uint64_t most = POOL_BLOCKS / TSR_NF4_NESTED_BLOCK;
    for (uint64_t done = 0; done < cut.nested_count;) {
        uint64_t count = cut.nested_count - done < most ? cut.nested_count - done : most;
        TSR_TRY(tsr_device_write(job->device, out + done, p->nested, count * sizeof *out));
        done += count;
    }
    tsr_model_set_offset(job->model, unit, kind, p->offset);
    return tsr_device_write(job->device, tsr_model_nested_map(job->model, unit, kind),
                            tsr_nf4_nested_map, 256 * sizeof(float));
}

/* The same of a stack's matrices. */
static tsr_status fill_stack(tsr_job *job, const pool *p, int unit, int index)
{
    const tsr_layout_stack *stack = &job->inputs.layout.unit[unit].stack[index];
    const tsr_model_stack_state *state = tsr_model_stack(job->model, unit, index);
    uint64_t most = POOL_BLOCKS / TSR_NF4_NESTED_BLOCK, matrices = tsr_layout_stack_matrices(stack);
    uint64_t nested = matrices * tsr_layout_stack_nested(stack);
    if (!stack->quantized || !stack->nested)
        return TSR_OK;
    for (uint64_t done = 0, count; done < nested; done += count) {
        count = nested - done < most ? nested - done : most;
        TSR_TRY(tsr_device_write(job->device, state->nested_absmax + done, p->nested,
                                 count * sizeof(float)));
    }
    for (uint64_t i = 0; i < matrices; i++)
        TSR_TRY(tsr_device_write(job->device, state->offset + i, &p->offset, sizeof p->offset));
    return tsr_device_write(job->device, state->nested_map, tsr_nf4_nested_map,
                            256 * sizeof(float));
}

/* The ranks of a node share the table. */
static void fill_table(tsr_job *job, pool *p, char *table, const tsr_tensor *tensor)
{
    uint64_t bytes = tsr_array_bytes(tsr_host_table(tensor));
    uint64_t ranks = (uint64_t)job->view.local_ranks;
    uint64_t rank = (uint64_t)tsr_comm_local_rank(job->world);
    uint64_t part = (bytes / ranks + 255) / 256 * 256, first = part * rank;
    if (first < bytes)
        put_host(p, table + first, bytes - first < part ? bytes - first : part);
}

static tsr_status fill(tsr_job *job, pool *p)
{
    const tsr_layout *layout = &job->inputs.layout;
    if (!p->filled) {
        TSR_TRY(take_pool(p));
        TSR_TRY(fill_pool(p));
        p->filled = true;
    }
    for (int unit = 0; unit < layout->unit_count; unit++) {
        for (int segment = 0; segment < layout->unit[unit].frozen_count; segment++)
            TSR_TRY(fill_segment(job, p, unit, segment));
        for (int i = 0; i < tsr_layout_linears(&layout->unit[unit]); i++)
            TSR_TRY(fill_nested(job, p, unit, i));
        for (int i = 0; i < tsr_layout_stacks(&layout->unit[unit]); i++)
            TSR_TRY(fill_stack(job, p, unit, i));
    }
    fill_table(job, p, job->embedding, layout->embedding);
    if (layout->layer_rows)
        fill_table(job, p, job->layer_rows, layout->layer_rows);
    return TSR_OK;
}

tsr_status bench_fill(tsr_job *job)
{
    static pool p; /* until the process ends */
    p.drawn = 1000003u * (uint64_t)job->view.rank;
    return tsr_job_agree(job, fill(job, &p));
}
