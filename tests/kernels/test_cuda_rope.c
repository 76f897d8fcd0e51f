/*
 * test_cuda_rope.c: magnitude, bias, head norm and rotation of q, k and v on the GPU against the C reference: shapes that
 * fit vectors and that do not, buffers off their alignment, every optional pointer, every alias that the contract allows;
 * and its odd forms: heads of which a part turns, pairs of neighbours, tables of the queries' own, q, k and v as columns
 * of wider rows, v or both k and v missing.
 */
#include "cuda_case.h"

#define POSITIONS 4096

typedef struct {
    int64_t tokens;
    int32_t q_heads, kv_heads, dim;
    bool norm, vectors, alias;
    bool scaled; /* all parts have a g, and no bias */
    int sums;    /* bits: which parts have a dm */
    tsr_dtype dtype;
    int32_t rotary; /* 0: all of the head */
    bool neighbours, own_queries, fused, no_v;
    int64_t gap; /* columns behind q, k and v, where they are fused */
} rope_kind;

typedef struct {
    input cosine, sine;
} rope_table;

typedef struct {
    rope_table table, queries;
    input z[3], dout[3], g[3], n[3], bias[3], norm[3];
    input wide, old; /* all of z in one row; what all of dz is written over */
    int32_t *host_positions;
    const int32_t *positions;
    int64_t width[3], column[3], columns, stride, wide_count;
    int parts; /* 1: no k and v; 2: no v */
} rope_inputs;

static rope_table make_table(int32_t turning, tsr_rope_table_kind kind)
{
    tsr_rope_scaling scaling = {.theta = 10000, .original_max_positions = 512, .query_beta = 0.1};
    int64_t count = POSITIONS * (int64_t)(turning / 2);
    float *cosine = new_floats(count + shift), *sine = new_floats(count + shift);
    cosine[0] = sine[0] = 0;
    RUN(tsr_rope_tables(cosine + shift, sine + shift, POSITIONS, turning, &scaling, kind));
    return (rope_table){upload(cosine, count, TSR_F32), upload(sine, count, TSR_F32)};
}

static void make_part(rope_inputs *in, const rope_kind *k, int p)
{
    uint64_t seed = 10 * (uint64_t)p;
    int64_t width = in->width[p], count = k->tokens * width;
    in->z[p] = k->fused ? columns_of(in->wide, in->column[p], k->dtype)
                        : random_input(count, seed + 1, 1, k->dtype);
    in->dout[p] = random_input(count, seed + 2, 1, k->dtype);
    in->n[p] = gain(width, seed + 3);
    in->g[p] = k->scaled || (k->vectors && p != 1) ? gain(width, seed + 4) : no_input();
    in->bias[p] = k->vectors ? random_input(width, seed + 5, 1, TSR_BF16) : no_input();
    if (k->norm && p < 2)
        in->norm[p] = random_input(k->dim, seed + 6, 2, TSR_BF16);
}

static rope_inputs make_rope(rope_kind k)
{
    rope_inputs in = {.parts = k.kv_heads == 0 ? 1 : k.no_v ? 2 : 3};
    int32_t turning = k.rotary ? k.rotary : k.dim;
    in.table = make_table(turning, TSR_ROPE_TABLE);
    if (k.own_queries)
        in.queries = make_table(turning, TSR_ROPE_TABLE_OF_QUERIES);
    in.host_positions = (int32_t *)want_of(k.tokens); /* of the same size */
    for (int64_t t = 0; t < k.tokens; t++)
        in.host_positions[t] = (int32_t)(t * 997 % POSITIONS);
    in.positions = cuda_copy(in.host_positions, (uint64_t)k.tokens * sizeof(int32_t));
    for (int p = 0; p < 3; p++) {
        in.width[p] = (p == 0 ? k.q_heads : k.kv_heads) * (int64_t)k.dim;
        in.column[p] = in.columns;
        in.columns += in.width[p];
    }
    if (k.fused) {
        in.stride = in.columns + k.gap;
        in.wide_count = k.tokens * in.stride + PAD;
        in.wide = random_input(in.wide_count, 1, 1, k.dtype);
        in.old = random_input(in.wide_count, 2, 1, k.dtype);
    }
    for (int p = 0; p < in.parts; p++)
        make_part(&in, &k, p);
    return in;
}

static tsr_rope_shape host_shape(rope_kind k, const rope_inputs *in)
{
    return (tsr_rope_shape){.cosine = in->table.cosine.host,
                            .sine = in->table.sine.host,
                            .q_cosine = in->queries.cosine.host,
                            .q_sine = in->queries.sine.host,
                            .positions = in->host_positions,
                            .tokens = k.tokens,
                            .stride = in->stride,
                            .q_heads = k.q_heads,
                            .kv_heads = k.kv_heads,
                            .head_dim = k.dim,
                            .position_count = POSITIONS,
                            .rotary_dim = k.rotary,
                            .neighbours = k.neighbours,
                            .norm_eps = 1e-6f};
}

static tsr_rope_shape device_shape(rope_kind k, const rope_inputs *in)
{
    tsr_rope_shape shape = host_shape(k, in);
    shape.cosine = in->table.cosine.device, shape.sine = in->table.sine.device;
    shape.q_cosine = in->queries.cosine.device, shape.q_sine = in->queries.sine.device;
    shape.positions = in->positions, shape.dtype = k.dtype;
    return shape;
}

static void rope_forward(rope_kind k, const rope_inputs *in)
{
    tsr_rope_qkv_args ref = {.shape = host_shape(k, in)};
    tsr_rope_qkv_args args = {.shape = device_shape(k, in)};
    output out[3];
    for (int p = 0; p < in->parts; p++) {
        int64_t count = k.tokens * in->width[p];
        out[p] = k.alias && !k.fused ? over(in->z[p], count, k.dtype) : blank(count, k.dtype);
        ref.part[p] = (tsr_rope_part){in->z[p].host, want_of(count), in->g[p].host,
                                      on_host(in->bias[p]), on_host(in->norm[p])};
        args.part[p] =
            (tsr_rope_part){in->z[p].device, out[p].device, in->g[p].device,
                            on_device(in->bias[p], TSR_BF16), on_device(in->norm[p], TSR_BF16)};
    }
    RUN(tsr_rope_qkv_ref(&ref, rig.pool));
    RUN(rig.kernels->rope_qkv(rig.stream, &args));
    for (int p = 0; p < in->parts; p++)
        expect("rotated", out[p], ref.part[p].out, tolerance_rope.f32);
}

/* dz on both sides: a buffer of each part, or columns of one of wider rows, of which all is compared. */
typedef struct {
    float *want[3], *want_wide;
    output dz[3], wide;
} rope_gradients;

static rope_gradients make_gradients(const rope_kind *k, const rope_inputs *in)
{
    rope_gradients out = {.want_wide = NULL};
    input target = k->alias ? in->wide : in->old;
    if (k->fused) {
        out.want_wide = copy_of(target.host, in->wide_count);
        out.wide = over(target, in->wide_count, k->dtype);
    }
    for (int p = 0; p < in->parts; p++) {
        int64_t count = k->tokens * in->width[p];
        input own = p == 1 ? in->z[p] : in->dout[p];
        out.want[p] = k->fused ? out.want_wide + in->column[p] : want_of(count);
        out.dz[p] = k->fused   ? over(columns_of(target, in->column[p], k->dtype), 0, k->dtype)
                    : k->alias ? over(own, count, k->dtype)
                               : blank(count, k->dtype);
    }
    return out;
}

static void rope_backward(rope_kind k, const rope_inputs *in)
{
    tsr_rope_qkv_backward_args ref = {.shape = host_shape(k, in)};
    tsr_rope_qkv_backward_args args = {.shape = device_shape(k, in)};
    rope_gradients out = make_gradients(&k, in);
    output dm[3];
    args.partials = k.sums ? new_partials(in->columns) : NULL;
    for (int p = 0; p < in->parts; p++) {
        bool summed = k.sums >> p & 1, with_z = summed || in->norm[p].host;
        dm[p] = blank(in->width[p], TSR_F32);
        ref.part[p] = (tsr_rope_backward_part){.dout = in->dout[p].host,
                                               .z = in->z[p].host,
                                               .dz = out.want[p],
                                               .g = in->g[p].host,
                                               .n = in->n[p].host,
                                               .dm = want_of(in->width[p]),
                                               .bias = on_host(in->bias[p]),
                                               .norm = on_host(in->norm[p])};
        args.part[p] = (tsr_rope_backward_part){.dout = in->dout[p].device,
                                                .z = with_z ? in->z[p].device : NULL,
                                                .dz = out.dz[p].device,
                                                .g = in->g[p].device,
                                                .n = in->n[p].device,
                                                .dm = summed ? dm[p].device : NULL,
                                                .bias = on_device(in->bias[p], TSR_BF16),
                                                .norm = on_device(in->norm[p], TSR_BF16)};
    }
    RUN(tsr_rope_qkv_backward_ref(&ref, rig.pool));
    RUN(rig.kernels->rope_qkv_backward(rig.stream, &args));
    if (k.fused)
        expect("dz", out.wide, out.want_wide, tolerance_rope.f32);
    for (int p = 0; p < in->parts; p++) {
        if (!k.fused)
            expect("dz", out.dz[p], out.want[p], tolerance_rope.f32);
        if (k.sums >> p & 1)
            expect("dm", dm[p], ref.part[p].dm, tolerance_column_sum.f32);
    }
}

static void both_directions(rope_kind k)
{
    rope_inputs in = make_rope(k);
    rope_forward(k, &in);
    end_case();
    in = make_rope(k);
    rope_backward(k, &in);
    end_case();
}

static void rope_matches(void **state)
{
    (void)state;
    static const int64_t shape[][4] = {
        {1, 1, 1, 2},   {3, 3, 1, 6},      {5, 2, 1, 20},  {9, 4, 2, 64},     {40, 5, 3, 64},
        {33, 4, 4, 80}, {17, 6, 2, 96},    {0, 2, 1, 64},  {130, 8, 2, 128},  {12, 3, 1, 256},
        {4, 1, 1, 512}, {260, 32, 8, 128}, {7, 2, 1, 100}, {1100, 2, 1, 128}, {33000, 1, 1, 16}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int variant = 0; variant < 18; variant++) {
            rope_kind k = {.tokens = shape[i][0],
                           .q_heads = (int32_t)shape[i][1],
                           .kv_heads = (int32_t)shape[i][2],
                           .dim = (int32_t)shape[i][3],
                           .norm = variant % 2,
                           .vectors = variant / 3 % 2,
                           .alias = variant % 5 == 1,
                           .sums = variant % 6 == 4  ? 0
                                   : variant % 9 < 3 ? 7
                                                     : variant % 8,
                           .dtype = all_dtypes[variant / 6]};
            if (k.tokens * (k.q_heads + 2 * k.kv_heads) * k.dim > 500000 && variant % 4)
                continue;
            if (!cuda_turn())
                continue;
            shift = variant % 7 == 3;
            both_directions(k);
        }
    shift = 0;
}

/* What has a kernel of its own: all g or none, all dm or none, norms. Strips that are not full, with heads of two
 * parts; chunks that are not full, and of more than 32 turns. */
static void rope_heads_of_128_match(void **state)
{
    (void)state;
    static const int64_t shape[][3] = {{1, 1, 1},    {7, 3, 1},    {33, 5, 3},   {130, 8, 2},
                                       {260, 32, 8}, {1100, 2, 1}, {17000, 1, 1}};
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int variant = 0; variant < 16; variant++) {
            rope_kind k = {.tokens = shape[i][0],
                           .q_heads = (int32_t)shape[i][1],
                           .kv_heads = (int32_t)shape[i][2],
                           .dim = 128,
                           .norm = variant / 8,
                           .scaled = variant % 2,
                           .sums = variant / 2 % 2 ? 7 : 0,
                           .alias = variant / 4 % 2,
                           .dtype = TSR_BF16};
            if (!cuda_turn())
                continue;
            both_directions(k);
        }
}

/* One of 15 ways to be odd: bits of `form`. What else varies goes by `turn`. */
static rope_kind odd_kind(const int64_t shape[5], int form, tsr_dtype dtype, int turn)
{
    rope_kind k = {.tokens = shape[0],
                   .q_heads = (int32_t)shape[1],
                   .kv_heads = (int32_t)shape[2],
                   .dim = (int32_t)shape[3],
                   .rotary = form & 1 ? (int32_t)shape[4] : 0,
                   .neighbours = form & 2,
                   .own_queries = form & 4,
                   .fused = form & 8,
                   .gap = turn / 3 % 3 * 4 - (turn / 3 % 3 == 1), /* 0, 3, 8 */
                   .vectors = turn % 2,
                   .scaled = turn / 2 % 4 == 3,
                   .alias = turn / 2 % 2,
                   .no_v = turn % 7 == 5,
                   .norm = turn / 5 % 2,
                   .sums = (turn / 3 + turn / 12) % 3 == 0 ? 0 : 1 + turn % 7,
                   .dtype = dtype};
    k.sums &= k.kv_heads == 0 ? 1 : k.no_v ? 3 : 7;
    return k;
}

static void odd_forms_match(void **state)
{
    (void)state;
    static const int64_t shape[][5] = {
        {1, 1, 1, 4, 2},    {3, 3, 1, 6, 2},       {5, 2, 1, 20, 10},    {9, 4, 2, 64, 32},
        {40, 5, 3, 64, 16}, {33, 4, 4, 80, 20},    {17, 6, 2, 96, 48},   {0, 2, 1, 64, 32},
        {9, 4, 0, 64, 32},  {130, 8, 2, 128, 64},  {12, 3, 1, 256, 64},  {4, 1, 1, 512, 128},
        {7, 2, 1, 100, 50}, {1100, 2, 1, 128, 96}, {33000, 1, 1, 16, 8}, {260, 32, 8, 128, 32}};
    int turn = 0;
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        for (int form = 1; form < 16; form++)
            for (int j = 0; j < 3; j++, turn++) {
                rope_kind k = odd_kind(shape[i], form, all_dtypes[j], turn);
                bool large = k.tokens * (k.q_heads + 2 * k.kv_heads) * k.dim > 500000;
                if ((large && form % 5 != j) || !cuda_turn())
                    continue;
                shift = turn % 5 == 3;
                both_directions(k);
            }
    shift = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_matches),
        cmocka_unit_test(rope_heads_of_128_match),
        cmocka_unit_test(odd_forms_match),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
