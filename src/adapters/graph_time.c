#include "adapters/graph_time.h"

#include "adapters/linear.h"
#include "base/philox.h"
#include "kernels/nf4_quantize.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define IN_DOUBT      1.25 /* of the cheapest price */
#define FASTER        0.98 /* of the cheapest's time */
#define ROUNDS        5    /* timed, after one that loads code */
#define ROUND_SECONDS 200e-6
#define MOST_REPEATS  10
#define F32_FLOPS     40e12 /* of a GPU: for judging only */
#define SMALL_SECONDS 2e-6

/* ---- which ---- */

int tsr_graph_doubts(tsr_graph_choice out[TSR_GRAPH_CHOICES], const tsr_graph_shape *shape)
{
    int count = 0;
    out[count++] = tsr_graph_cheapest(shape);
    double most = IN_DOUBT * tsr_graph_cost_of(shape, out[0]).price;
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        tsr_graph_choice other = tsr_graph_choice_at(i);
        if (tsr_graph_allowed(shape, other) && !tsr_graph_same_choice(other, out[0]) &&
            tsr_graph_cost_of(shape, other).price <= most)
            out[count++] = other;
    }
    return count;
}

static double seconds_at(const tsr_graph_shape *shape, double price)
{
    return shape->dtype == TSR_F32 ? price / F32_FLOPS : price;
}

static double seconds_of(const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    return seconds_at(shape, tsr_graph_cost_of(shape, choice).price);
}

bool tsr_graph_is_small(const tsr_graph_shape *shape)
{
    double work = tsr_graph_cost_of(shape, tsr_graph_cheapest(shape)).work;
    return seconds_at(shape, work) < SMALL_SECONDS;
}

static int repeats_of(double seconds)
{
    return (int)fmin(MOST_REPEATS, ceil(ROUND_SECONDS / seconds));
}

double tsr_graph_time_seconds(const tsr_graph_shape *shape)
{
    tsr_graph_choice choice[TSR_GRAPH_CHOICES];
    double sum = 0;
    int count = tsr_graph_doubts(choice, shape);
    for (int i = 0; i < count && count > 1; i++) {
        double seconds = seconds_of(shape, choice[i]);
        sum += seconds * (1 + ROUNDS * repeats_of(seconds));
    }
    return sum;
}

/* ---- a linear that is made up ---- */

#define PATTERN_BYTES (1 << 20)

typedef struct {
    char *begin, *at; /* begin NULL: only bytes are counted */
} cutter;

static void *cut(cutter *c, uint64_t bytes)
{
    char *at = c->at;
    c->at += (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
    return c->begin ? at : NULL;
}

typedef struct {
    tsr_linear_context context;
    tsr_linear linear;
    tsr_linear_gradients gradients;
    void *z, *y;
    uint64_t random_bytes; /* from the scratch's beginning on: what the linear reads */
} rig;

/* Lays out a rig; returns its bytes. What is to be random comes first. */
static uint64_t lay_out(rig *out, char *scratch, const tsr_graph_shape *s)
{
    cutter c = {scratch, scratch};
    uint64_t element = tsr_dtype_bytes(s->dtype), t = (uint64_t)s->tokens, r = (uint64_t)s->r;
    uint64_t in = (uint64_t)s->in, out_ = (uint64_t)s->out, weight = in * out_;
    tsr_linear *linear = &out->linear;
    *linear = (tsr_linear){.out = out_, .in = in, .r = r, .scale = 1, .drops = s->drops};
    linear->a = cut(&c, r * in * element);
    linear->b = cut(&c, out_ * r * element);
    out->gradients = (tsr_linear_gradients){.x = cut(&c, t * in * element)};
    out->gradients.dz = cut(&c, t * out_ * element);
    out->context = (tsr_linear_context){.dtype = s->dtype, .tokens = s->tokens};
    out->context.low = cut(&c, t * r * element);
    if (tsr_graph_keeps_low(s->merges, s->drops, s->composes))
        out->gradients.low = out->context.low;
    if (s->merges) {
        linear->weight.codes = cut(&c, (weight + 1) / 2);
        linear->weight.absmax = cut(&c, (weight / TSR_NF4_BLOCK + 1) * sizeof(float));
    } else {
        linear->weight.data = cut(&c, weight * element);
        linear->weight.dtype = s->dtype;
    }
    float *g = cut(&c, s->composes ? out_ * sizeof(float) : 0);
    out->random_bytes = (uint64_t)(c.at - c.begin);
    linear->g = linear->n = s->composes ? g : NULL;
    linear->weight.level = cut(&c, sizeof tsr_nf4_level);
    out->context.samples = cut(&c, t * sizeof(int64_t));
    out->context.positions = cut(&c, t * sizeof(int32_t));
    out->context.weight = cut(&c, weight * element);
    out->context.d_low = cut(&c, t * r * element);
    out->context.dropped = cut(&c, s->drops ? t * in * element : 0);
    out->context.d_dropped = cut(&c, s->drops ? t * in * element : 0);
    out->context.lora = cut(&c, s->composes ? t * out_ * element : 0);
    out->z = out->gradients.z = cut(&c, t * out_ * element);
    out->y = cut(&c, s->composes ? t * out_ * element : 0);
    out->gradients.dx = cut(&c, t * in * element);
    out->gradients.da = cut(&c, r * in * sizeof(float));
    out->gradients.db = cut(&c, out_ * r * sizeof(float));
    linear->dropout = tsr_dropout_make(0.1, 1, 1, 1);
    return (uint64_t)(c.at - c.begin);
}

uint64_t tsr_graph_time_bytes(const tsr_graph_shape *shape)
{
    rig r;
    return lay_out(&r, NULL, shape) + PATTERN_BYTES;
}

/* Uniform in [-1, 1), as numbers of the dtype. Taken for codes or scales they are as good as any. */
static void make_pattern(char *out, tsr_dtype dtype)
{
    for (uint64_t i = 0; i < PATTERN_BYTES / tsr_dtype_bytes(dtype); i++) {
        float value = (float)(int32_t)(tsr_mix(i) >> 32) * 0x1p-31f;
        uint16_t low = tsr_f32_to_bf16(value);
        if (dtype == TSR_F32)
            memcpy(out + 4 * i, &value, 4);
        else
            memcpy(out + 2 * i, &low, 2);
    }
}

/* The pattern lands behind the first bytes that are random too, and is doubled from there. */
static tsr_status fill(const rig *r, const tsr_graph_bench *bench)
{
    char *pattern = malloc(PATTERN_BYTES), *scratch = bench->scratch;
    tsr_device *device = tsr_stream_device(bench->stream);
    if (!pattern)
        return tsr_fail(TSR_ENOMEM, "out of memory for timing an adapter's graphs");
    make_pattern(pattern, r->context.dtype);
    tsr_status status = tsr_device_write(device, scratch, pattern, PATTERN_BYTES);
    if (status == TSR_OK)
        status = tsr_device_write(device, (void *)r->linear.weight.level, tsr_nf4_level,
                                  sizeof tsr_nf4_level);
    free(pattern);
    for (uint64_t done = PATTERN_BYTES; status == TSR_OK && done < r->random_bytes;) {
        uint64_t left = r->random_bytes - done, bytes = left < done ? left : done;
        status = tsr_stream_copy(bench->stream, scratch + done, scratch, bytes);
        done += bytes;
    }
    return status;
}

/* ---- timing ---- */

typedef struct {
    rig rig;
    tsr_graph_book book; /* of the one choice that is timed */
    tsr_event *event[TSR_GRAPH_CHOICES + 1];
    double time[TSR_GRAPH_CHOICES][ROUNDS];
} timer;

static tsr_status run(timer *t, const tsr_graph_shape *shape, tsr_graph_choice choice, int repeats)
{
    rig *r = &t->rig;
    tsr_graph_keep(&t->book, shape, choice);
    for (int i = 0; i < repeats; i++)
        TSR_TRY(shape->backward ? tsr_linear_backward(&r->context, &r->linear, &r->gradients)
                                : tsr_linear_forward(&r->context, &r->linear, r->gradients.x, r->z,
                                                     r->y, NULL));
    return TSR_OK;
}

/* Every choice once; round -1 is not timed. */
static tsr_status time_round(timer *t, const tsr_graph_shape *shape, const tsr_graph_choice *choice,
                             int count, int round)
{
    tsr_stream *stream = t->rig.context.stream;
    int repeats = round < 0 ? 1 : repeats_of(seconds_of(shape, choice[0]));
    for (int i = 0; i < count; i++) {
        TSR_TRY(tsr_event_record(t->event[i], stream));
        TSR_TRY(run(t, shape, choice[i], repeats));
    }
    TSR_TRY(tsr_event_record(t->event[count], stream));
    TSR_TRY(tsr_stream_synchronize(stream));
    for (int i = 0; i < count && round >= 0; i++)
        t->time[i][round] =
            (tsr_event_time(t->event[i + 1]) - tsr_event_time(t->event[i])) / repeats;
    return TSR_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tsr_status measure(timer *t, double *seconds, const tsr_graph_bench *bench,
                          const tsr_graph_shape *shape, const tsr_graph_choice *choice, int count)
{
    t->rig.context.kernels = bench->kernels;
    t->rig.context.stream = bench->stream;
    t->rig.context.graphs = &t->book;
    TSR_TRY(fill(&t->rig, bench));
    for (int i = 0; i <= count; i++)
        TSR_TRY(tsr_event_create_timed(&t->event[i], tsr_stream_device(bench->stream)));
    for (int round = -1; round < ROUNDS; round++)
        TSR_TRY(time_round(t, shape, choice, count, round));
    for (int i = 0; i < count; i++) {
        qsort(t->time[i], ROUNDS, sizeof t->time[i][0], compare);
        seconds[i] =
            t->time[i][ROUNDS / 2] + seconds_at(shape, tsr_graph_norms_price(shape, choice[i]));
    }
    return TSR_OK;
}

tsr_status tsr_graph_measure(double *seconds, const tsr_graph_bench *bench,
                             const tsr_graph_shape *shape, const tsr_graph_choice *choice,
                             int count)
{
    if (bench->scratch_bytes < tsr_graph_time_bytes(shape) || count > TSR_GRAPH_CHOICES)
        return tsr_fail(TSR_EINVAL, "graphs: %" PRIu64 " bytes to time %d of what takes %" PRIu64,
                        bench->scratch_bytes, count, tsr_graph_time_bytes(shape));
    timer *t = calloc(1, sizeof *t);
    if (!t)
        return tsr_fail(TSR_ENOMEM, "out of memory for timing an adapter's graphs");
    lay_out(&t->rig, bench->scratch, shape);
    tsr_status status = measure(t, seconds, bench, shape, choice, count);
    for (int i = 0; i <= TSR_GRAPH_CHOICES; i++)
        tsr_event_destroy(t->event[i]);
    free(t);
    return status;
}

int tsr_graph_fastest(const double *seconds, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (seconds[i] < seconds[best] && seconds[i] < FASTER * seconds[0])
            best = i;
    return best;
}

tsr_status tsr_graph_time(tsr_graph_choice *out, const tsr_graph_bench *bench,
                          const tsr_graph_shape *shape)
{
    tsr_graph_choice choice[TSR_GRAPH_CHOICES];
    double seconds[TSR_GRAPH_CHOICES];
    int count = tsr_graph_doubts(choice, shape);
    if (count > 1)
        TSR_TRY(tsr_graph_measure(seconds, bench, shape, choice, count));
    *out = choice[count > 1 ? tsr_graph_fastest(seconds, count) : 0];
    return TSR_OK;
}
