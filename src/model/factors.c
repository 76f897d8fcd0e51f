/*
 * factors.c: contract factors.h.
 */
#include "model/factors.h"

#include "base/auto.h"
#include "base/checked.h"
#include "quant/int8.h"
#include "quant/nf4_stored.h"

#include <stdatomic.h>
#include <stdlib.h>

#define PIECE_ELEMENTS ((uint64_t)1 << 17) /* that one thread reads at a time */

uint64_t tsr_factors_rank(const tsr_layout_unit *unit, int linear)
{
    const tsr_layout_linear *l = &unit->linear[linear];
    return l->r ? unit->trainable[l->a].stored_rows : 0;
}

/* Floats of the linears before this one. */
static uint64_t count_before(const tsr_layout *layout, int unit, int linear)
{
    uint64_t count = 0;
    for (int u = 0; u <= unit && u < layout->unit_count; u++) {
        const tsr_layout_unit *parts = &layout->unit[u];
        for (int i = 0; i < (u < unit ? tsr_layout_linears(parts) : linear); i++)
            count += tsr_factors_rank(parts, i) * (parts->linear[i].in + parts->linear[i].out);
    }
    return count;
}

uint64_t tsr_factors_count(const tsr_layout *layout)
{
    return count_before(layout, layout->unit_count, 0);
}

tsr_factors tsr_factors_at(float *all, const tsr_layout *layout, int unit, int linear)
{
    const tsr_layout_unit *parts = &layout->unit[unit];
    float *a = all + count_before(layout, unit, linear);
    return (tsr_factors){a, a + tsr_factors_rank(parts, linear) * parts->linear[linear].in};
}

/* ---- weights as fp32 ---- */

struct tsr_weight_reader {
    const tsr_weight *source;
    tsr_nf4_stored *stored; /* NULL: plain numbers */
};

tsr_status tsr_weight_reader_open(tsr_weight_reader **out, const tsr_weight *source)
{
    tsr_weight_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return tsr_fail(TSR_ENOMEM, "out of memory while reading %s", source->weight->name);
    reader->source = source;
    tsr_status status =
        source->prequantized ? tsr_nf4_stored_open(&reader->stored, source) : TSR_OK;
    if (status < 0) {
        tsr_weight_reader_close(reader);
        return status;
    }
    *out = reader;
    return TSR_OK;
}

void tsr_weight_reader_close(tsr_weight_reader *reader)
{
    if (reader)
        tsr_nf4_stored_close(reader->stored);
    free(reader);
}

typedef struct {
    const tsr_weight_reader *reader;
    float *out;
    uint64_t first, count;
    _Atomic bool failed;
} reading;

static tsr_status read_range(const tsr_weight_reader *reader, float *out, uint64_t first,
                             uint64_t count)
{
    const tsr_tensor *tensor = reader->source->weight;
    if (reader->stored)
        return tsr_nf4_stored_read(out, reader->stored, first, count);
    if (reader->source->int8_scale)
        return tsr_int8_stored_read(out, reader->source, first, count);
    TSR_TRY(tsr_safetensors_read_f32(out, tensor, first, count));
    uint64_t bad = tsr_first_not_finite(out, TSR_F32, count);
    return bad == count ? TSR_OK
                        : tsr_safetensors_read_finite(out, tensor, first + bad, 1); /* says so */
}

static void read_piece(void *context, int index)
{
    reading *r = context;
    uint64_t at = (uint64_t)index * PIECE_ELEMENTS, left = r->count - at;
    if (read_range(r->reader, r->out + at, r->first + at,
                   left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS) < 0)
        atomic_store(&r->failed, true);
}

tsr_status tsr_weight_reader_read(float *out, const tsr_weight_reader *reader, uint64_t first,
                                  uint64_t count, tsr_pool *pool)
{
    reading r = {.reader = reader, .out = out, .first = first, .count = count};
    tsr_pool_run(pool, (int)tsr_ceil_div(count, PIECE_ELEMENTS), read_piece, &r);
    if (!atomic_load(&r.failed))
        return TSR_OK;
    return read_range(reader, out, first, count); /* again, for this thread's message */
}

/* ---- A and B ---- */

tsr_status tsr_factors_find(tsr_factors out, const tsr_layout *layout, int unit, int linear,
                            const tsr_factors_options *options, tsr_pool *pool)
{
    const tsr_layout_linear *l = &layout->unit[unit].linear[linear];
    TSR_AUTO_FREE float *weight = malloc(l->out * l->in * sizeof *weight);
    tsr_weight_reader *reader = NULL;
    if (!weight)
        return tsr_fail(TSR_ENOMEM, "out of memory for the principal part of %s", l->path);
    TSR_TRY(tsr_weight_reader_open(&reader, &l->source));
    tsr_status status = tsr_weight_reader_read(weight, reader, 0, l->out * l->in, pool);
    tsr_weight_reader_close(reader);
    TSR_TRY(status);
    const tsr_principal_args args = {.w = weight,
                                     .out = l->out,
                                     .in = l->in,
                                     .r = tsr_factors_rank(&layout->unit[unit], linear),
                                     .scale = l->scale,
                                     .rounds = options->rounds,
                                     .seed = options->seed,
                                     .module_key = l->module_key,
                                     .dtype = options->dtype};
    return tsr_principal_factors(out.a, out.b, &args, pool);
}

double tsr_factors_work(const tsr_layout *layout, int unit, int linear)
{
    const tsr_layout_linear *l = &layout->unit[unit].linear[linear];
    double side = (double)(l->out < l->in ? l->out : l->in);
    return side * side * (double)(l->out + l->in);
}
