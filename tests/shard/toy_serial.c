#include "base/hash.h"
#include "shard/toy_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

void toy_frozen_bytes(char *out, const tsr_segment *s, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count * s->granule_bytes; i += 8) {
        uint64_t value = tsr_mix((uint64_t)s->param << 40 ^ (first * s->granule_bytes + i));
        memcpy(out + i, &value, 8);
    }
}

float toy_first_master(uint32_t param, uint64_t element)
{
    uint64_t bits = tsr_mix((uint64_t)param << 40 ^ element ^ 0x5eedu);
    return (float)(int32_t)(bits >> 40) * 0x1p-24f - 0.5f;
}

uint64_t toy_micro_seed(bool train, int step, int micro_batch)
{
    return tsr_mix((uint64_t)step << 20 ^ (uint64_t)micro_batch ^ (train ? 0 : 1ull << 50));
}

void toy_store_work(void *work, tsr_dtype dtype, uint64_t i, float value)
{
    if (dtype == TSR_F32)
        ((float *)work)[i] = value;
    else
        ((uint16_t *)work)[i] = tsr_f32_to_bf16(value);
}

/* The real bytes of a part, in tensor order: the same for any number of ranks. */
static uint64_t hash_part(uint64_t hash, const tsr_unit_part *part, const char *base)
{
    for (int i = 0; i < part->segment_count; i++) {
        const tsr_segment *s = &part->segment[i];
        hash = tsr_hash(hash, base + s->gathered_offset, s->granule_count * s->granule_bytes);
    }
    return hash;
}

uint64_t toy_hash_view(const tsr_unit *unit, const tsr_unit_view *view)
{
    return hash_part(hash_part(TSR_HASH_START, &unit->frozen, view->frozen), &unit->trainable,
                     view->trainable);
}

int64_t toy_gradient_at(uint64_t dx, uint32_t param, uint64_t element)
{
    return (int64_t)(tsr_mix(dx ^ (uint64_t)param << 32 ^ element) % 2001) - 1000;
}

static int lowest_unit(const tsr_plan_options *o)
{
    int lowest = 0;
    while (lowest < o->layer_count && o->units[lowest].trainable.gradient_count == 0)
        lowest++;
    return lowest;
}

bool toy_lost(const toy_job *job, uint64_t seed, const tsr_segment *s, uint64_t element)
{
    const tsr_plan_options *o = &job->model->options;
    return job->lost_step > 0 && seed == toy_micro_seed(true, job->lost_step, 0) &&
           s == &o->units[lowest_unit(o)].trainable.segment[0] && element == s->element_count / 2;
}

/* One element's update, from the exact sum and the exact norm. */
void toy_update(float *master, float *m, int64_t sum, double norm)
{
    float g = (float)((double)sum / (1.0 + norm));
    *m = 0.75f * *m + g;
    *master -= 0.125f * *m;
}

/* ---- what a micro-batch does, serial or not ---- */

uint64_t toy_saved_bytes(const random_model *model, int layer, uint64_t seed)
{
    return tsr_mix(seed ^ (uint64_t)layer) % (model->saved_bytes[layer] / 8 + 1) * 8;
}

void toy_write_region(char *region, uint64_t bytes, uint64_t value)
{
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = tsr_mix(value + i);
        memcpy(region + i, &word, 8);
    }
}

uint64_t toy_read_region(const char *region, uint64_t bytes)
{
    return tsr_hash(TSR_HASH_START, region, bytes);
}

void toy_use(toy_state *t, const tsr_unit *unit, tsr_use_phase phase, uint64_t hash, uint64_t seed,
             bool first)
{
    hash ^= unit->has_norm ? t->norm[unit->id] : 0;
    if (first)
        t->x = seed;
    if (phase == TSR_USE_BACKWARD) {
        t->dx = tsr_mix(t->dx ^ hash ^ t->saved[unit->id]);
        return;
    }
    if (phase == TSR_USE_AGAIN) /* as after the layer below, which leaves in x what it saves */
        t->x = unit->id > 0 ? t->saved[unit->id - 1] : seed;
    if (unit->id > 0)
        t->x ^= t->saved[unit->id - 1];
    t->x = tsr_mix(t->x ^ hash);
    t->saved[unit->id] = t->x;
    if (phase == TSR_USE_HEAD) {
        t->loss += (int64_t)(t->x >> 40);
        t->dx = t->x;
    }
}

/* ---- outcome ---- */

uint64_t toy_element_base(const random_model *model, int unit, int segment)
{
    uint64_t base = 0;
    for (int u = 0; u < model->options.unit_count; u++)
        for (int i = 0; i < model->unit[u].trainable.segment_count; i++) {
            if (u == unit && i == segment)
                return base;
            base += model->unit[u].trainable.segment[i].granule_count * TSR_GRANULE_ELEMENTS;
        }
    return base;
}

void toy_outcome_make(toy_outcome *out, const random_model *model)
{
    memset(out, 0, sizeof *out);
    out->element_count = toy_element_base(model, -1, -1);
    for (int i = 0; i < 2; i++) {
        out->master[i] = calloc(out->element_count + 1, sizeof(float));
        if (!out->master[i])
            abort();
    }
}

void toy_outcome_free(toy_outcome *outcome)
{
    free(outcome->master[0]);
    free(outcome->master[1]);
}

bool toy_outcome_equal(const toy_outcome *a, const toy_outcome *b)
{
    size_t bytes = a->element_count * sizeof(float);
    return a->word_count == b->word_count && a->element_count == b->element_count &&
           memcmp(a->word, b->word, (size_t)a->word_count * sizeof a->word[0]) == 0 &&
           memcmp(a->master[0], b->master[0], bytes) == 0 &&
           memcmp(a->master[1], b->master[1], bytes) == 0;
}

bool toy_evaluates(const toy_job *job, int step)
{
    return job->eval_micro_batches > 0 && step % 2 == 1;
}

/* ---- serial ---- */

typedef struct {
    const toy_job *job;
    const random_model *model;
    toy_outcome *out;
    toy_state state;
    char *frozen[MAX_UNITS], *trainable[MAX_UNITS];
    int64_t *sum;
} serial_run;

static void serial_work(serial_run *r)
{
    for (int u = 0; u < r->model->options.unit_count; u++)
        for (int i = 0; i < r->model->unit[u].trainable.segment_count; i++) {
            const tsr_segment *s = &r->model->unit[u].trainable.segment[i];
            const float *master = r->out->master[0] + toy_element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++)
                toy_store_work(r->trainable[u] + s->gathered_offset, s->dtype, e, master[e]);
        }
    for (int u = 0; u < r->model->options.unit_count; u++) {
        tsr_unit_view view = {u, r->frozen[u], r->trainable[u]};
        r->state.norm[u] = toy_hash_view(&r->model->unit[u], &view);
    }
}

static void serial_begin(serial_run *r)
{
    r->sum = calloc(r->out->element_count + 1, sizeof *r->sum);
    for (int u = 0; u < r->model->options.unit_count; u++) {
        const tsr_unit *unit = &r->model->unit[u];
        r->frozen[u] = calloc(1, unit->frozen.gathered_bytes + 1);
        r->trainable[u] = calloc(1, unit->trainable.gathered_bytes + 1);
        if (!r->frozen[u] || !r->trainable[u] || !r->sum)
            abort();
        for (int i = 0; i < unit->frozen.segment_count; i++) {
            const tsr_segment *s = &unit->frozen.segment[i];
            toy_frozen_bytes(r->frozen[u] + s->gathered_offset, s, 0, s->granule_count);
        }
        for (int i = 0; i < unit->trainable.segment_count; i++) {
            const tsr_segment *s = &unit->trainable.segment[i];
            float *master = r->out->master[0] + toy_element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->granule_count * TSR_GRANULE_ELEMENTS; e++)
                master[e] = toy_first_master(s->param, e);
        }
    }
    serial_work(r);
}

static void serial_use(serial_run *r, int u, tsr_use_phase phase, uint64_t seed)
{
    tsr_unit_view view = {u, r->frozen[u], r->trainable[u]};
    const tsr_unit *unit = &r->model->unit[u];
    toy_use(&r->state, unit, phase, toy_hash_view(unit, &view), seed,
            u == 0 && phase == TSR_USE_FORWARD);
    if (r->model->saved_bytes[u] > 0 && phase == TSR_USE_FORWARD) {
        char region[MAX_SAVED_BYTES];
        uint64_t bytes = toy_saved_bytes(r->model, u, seed);
        toy_write_region(region, bytes, r->state.x);
        r->state.saved[u] = toy_read_region(region, bytes);
    }
}

static void serial_micro_batch(serial_run *r, bool train, uint64_t seed)
{
    const tsr_plan_options *o = &r->model->options;
    int lowest = lowest_unit(o);
    for (int u = 0; u < o->unit_count; u++)
        serial_use(r, u, u < o->layer_count ? TSR_USE_FORWARD : TSR_USE_HEAD, seed);
    for (int u = o->layer_count - 1; train && u >= lowest; u--) {
        serial_use(r, u, TSR_USE_BACKWARD, seed);
        for (int i = 0; i < o->units[u].trainable.segment_count; i++) {
            const tsr_segment *s = &o->units[u].trainable.segment[i];
            int64_t *sum = r->sum + toy_element_base(r->model, u, i);
            for (uint64_t e = 0; e < s->element_count; e++)
                if (!toy_lost(r->job, seed, s, e))
                    sum[e] += toy_gradient_at(r->state.dx, s->param, e);
        }
    }
}

static int64_t *serial_word(serial_run *r)
{
    int64_t *word = r->out->word[r->out->word_count++];
    word[TSR_WORD_LOSS] = r->state.loss;
    r->state.loss = 0;
    return word;
}

static void serial_step_end(serial_run *r, int step)
{
    int64_t *word = serial_word(r);
    word[TSR_WORD_ERROR] = step > 0 && step == r->job->discard_step;
    word[TSR_WORD_NON_FINITE] = step > 0 && step == r->job->lost_step;
    bool discard = tsr_word_discards(word);
    tsr_exact_sum *norm = tsr_word_norm(word);
    for (uint64_t e = 0; e < r->out->element_count; e++)
        tsr_exact_add(norm, (double)r->sum[e] * (double)r->sum[e]);
    double rounded = tsr_exact_round(norm);
    for (uint64_t e = 0; e < r->out->element_count; e++) {
        if (!discard)
            toy_update(&r->out->master[0][e], &r->out->master[1][e], r->sum[e], rounded);
        r->sum[e] = 0;
    }
    serial_work(r);
}

void toy_run_serial(toy_outcome *out, const toy_job *job)
{
    serial_run *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    *r = (serial_run){.job = job, .model = job->model, .out = out};
    serial_begin(r);
    for (int step = 0; step < job->steps; step++) {
        for (int k = 0; job->model->options.train && k < job->micro_batches; k++)
            serial_micro_batch(r, true, toy_micro_seed(true, step, k));
        if (job->model->options.train)
            serial_step_end(r, step);
        for (int k = 0; toy_evaluates(job, step) && k < job->eval_micro_batches; k++)
            serial_micro_batch(r, false, toy_micro_seed(false, step, k));
        if (toy_evaluates(job, step))
            serial_word(r);
    }
    for (int u = 0; u < MAX_UNITS; u++) {
        free(r->frozen[u]);
        free(r->trainable[u]);
    }
    free(r->sum);
    free(r);
}
