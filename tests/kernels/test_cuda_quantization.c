/*
 * test_cuda_quantization.c: nf4_dequant, widen, gather_rows, scatter_rows, row_square_norm and
 * dora_norm on a GPU against the C references. All but the norms give the reference's bits, rounded
 * once to the dtype of the output.
 */
#include "cuda_nf4.h"

#include "kernels/fp8.h"
#include "kernels/kernels_cuda.h"
#include "kernels/nf4_dequant.h"

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

static uint32_t bits_at(const void *raw, int64_t i, tsr_dtype dtype)
{
    return dtype == TSR_F32 ? ((const uint32_t *)raw)[i] : ((const uint16_t *)raw)[i];
}

static bool is_nan(uint32_t bits, tsr_dtype dtype)
{
    if (dtype == TSR_F32)
        return (bits & 0x7fffffffu) > 0x7f800000u;
    return (bits & 0x7fffu) > (dtype == TSR_BF16 ? 0x7f80u : 0x7c00u);
}

/* The bits of `want` rounded to dtype (any NaN for a NaN), and the guard behind them. */
static void expect_bits(const char *what, const void *device, const float *want, int64_t count,
                        tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)count * tsr_dtype_bytes(dtype);
    uint8_t *raw = malloc(bytes + GUARD);
    assert_non_null(raw);
    cuda_read(raw, device, bytes + GUARD);
    for (int64_t i = 0; i < count; i++) {
        uint32_t got = bits_at(raw, i, dtype), wanted = bits_of(want[i], dtype);
        if (got != wanted && !(is_nan(got, dtype) && is_nan(wanted, dtype)))
            fail_msg("%s, %s: [%lld of %lld] is 0x%x, want 0x%x (%a)", what, tsr_dtype_name(dtype),
                     (long long)i, (long long)count, got, wanted, (double)want[i]);
    }
    for (int i = 0; i < GUARD; i++)
        if (raw[bytes + (uint64_t)i] != 0xff)
            fail_msg("%s: byte %d behind the output was written", what, i);
    free(raw);
}

/* ---- nf4_dequant ---- */

static void one_nf4(const nf4_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    nf4_data d = new_nf4(c);
    tsr_nf4_dequant_args args = {.out = d.want,
                                 .codes = d.codes + c->code_offset,
                                 .absmax = c->nested ? (void *)d.q : (void *)d.absmax,
                                 .nested_absmax = d.nested,
                                 .nested_map = d.map,
                                 .level = d.level,
                                 .row_factor = c->columns ? d.factor : NULL,
                                 .count = c->count,
                                 .columns = c->columns,
                                 .offset = 0.04f,
                                 .nested = c->nested};
    RUN(tsr_nf4_dequant_ref(&args, rig.pool));
    args.dtype = dtype;
    args.out = new_output(c->count, dtype, c->out_offset);
    args.codes = (uint8_t *)cuda_copy(d.codes, (uint64_t)((c->count + 1) / 2 + c->code_offset)) +
                 c->code_offset;
    args.absmax = c->nested ? cuda_copy(d.q, (uint64_t)d.blocks)
                            : cuda_copy(d.absmax, (uint64_t)d.blocks * 4);
    args.nested_absmax = cuda_copy(d.nested, (uint64_t)(d.blocks / 256 + 1) * 4);
    args.nested_map = cuda_copy(d.map, 1024);
    args.level = cuda_copy(d.level, 64);
    if (c->columns)
        args.row_factor = cuda_copy(d.factor, (uint64_t)d.rows * 4);
    RUN(rig.kernels->nf4_dequant(rig.stream, &args));
    char what[128];
    snprintf(what, sizeof what, "nf4_dequant of %lld, columns %lld, %s scales, offsets %d, %d",
             (long long)c->count, (long long)c->columns, c->nested ? "nested" : "fp32",
             c->out_offset, c->code_offset);
    expect_bits(what, args.out, d.want, c->count, dtype);
    /* Codes that are settled are read while the kernel before still writes: here the same output. */
    args.settled = true;
    args.out = new_output(c->count, dtype, c->out_offset);
    RUN(rig.kernels->nf4_dequant(rig.stream, &args));
    RUN(rig.kernels->nf4_dequant(rig.stream, &args));
    expect_bits("settled", args.out, d.want, c->count, dtype);
    free_nf4(&d);
    cuda_free_all();
}

static void nf4_dequant_gives_the_references_bits(void **state)
{
    static const int64_t counts[] = {1, 2, 7, 8, 63, 64, 65, 255, 1000, 1024, 1031, 40000, 70003};
    static const int64_t columns[] = {0, 64, 96, 100, 7, 1};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (int nested = 0; nested < 2; nested++)
                one_nf4(&(nf4_case){counts[i], columns[j], nested, 0, 0},
                        dtypes[(i + j + (size_t)nested) % 3]);
    for (int d = 0; d < 3; d++) {
        one_nf4(&(nf4_case){5003, 0, true, 1, 0}, dtypes[d]);
        one_nf4(&(nf4_case){5003, 0, false, 0, 1}, dtypes[d]);
        one_nf4(&(nf4_case){5008, 16, false, 3, 2}, dtypes[d]);
        one_nf4(&(nf4_case){1 << 20, 4096, true, 0, 4}, dtypes[d]);
    }
    one_nf4(&(nf4_case){4096 * 4096, 0, true, 0, 0}, TSR_BF16);
    one_nf4(&(nf4_case){3 * 8192, 0, false, 8, 4}, TSR_BF16);
    one_nf4(&(nf4_case){1024 * 4096 + 2, 0, false, 0, 0}, TSR_F32);
}

static void nf4_dequant_of_nothing(void **state)
{
    (void)state;
    RUN(rig.kernels->nf4_dequant(rig.stream, &(tsr_nf4_dequant_args){.nested = true}));
    assert_int_equal(rig.kernels->nf4_dequant(rig.stream, &(tsr_nf4_dequant_args){.count = 1}),
                     TSR_EINVAL);
    cuda_wait();
}

/* ---- widen ---- */

/* Random bits are random values, NaN and subnormals among them; a 16-bit dtype has all of its. */
static void one_widen(int64_t count, tsr_dtype from, tsr_dtype to, int offset)
{
    if (!cuda_turn())
        return;
    uint32_t each = tsr_dtype_bytes(from);
    int64_t all = count + offset;
    uint8_t *in = malloc((size_t)all * each + 8);
    float *want = new_floats(count);
    assert_non_null(in);
    for (int64_t i = 0; i < all; i++) {
        uint32_t bits = each == 2 ? (uint32_t)i : (uint32_t)random_bits((uint64_t)i);
        memcpy(in + i * each, &bits, each);
    }
    for (int64_t i = 0; from == TSR_F8_E4M3 && i < count; i++)
        want[i] = tsr_e4m3_to_f32(in[offset + i]);
    if (from != TSR_F8_E4M3)
        assert_true(tsr_widen_f32(want, in + offset * each, from, (uint64_t)count));
    tsr_widen_args args = {.out = new_output(count, to, offset),
                           .in = (char *)cuda_copy(in, (uint64_t)all * each) + offset * each,
                           .count = count,
                           .in_dtype = from,
                           .dtype = to};
    RUN(rig.kernels->widen(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "widen %lld from %s, offset %d", (long long)count,
             tsr_dtype_name(from), offset);
    expect_bits(what, args.out, want, count, to);
    free(in), free(want);
    cuda_free_all();
}

static void widen_between_all_dtypes(void **state)
{
    static const int64_t counts[] = {1, 3, 4, 5, 1023, 65536, 300001};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int pair = 0; pair < 12; pair++)
            for (int offset = 0; offset < 2; offset++)
                one_widen(counts[i], pair < 9 ? dtypes[pair / 3] : TSR_F8_E4M3, dtypes[pair % 3],
                          offset);
    RUN(rig.kernels->widen(rig.stream, &(tsr_widen_args){.dtype = TSR_BF16}));
}

/* ---- gather_rows, scatter_rows ---- */

/* Tokens whose hash is below `share` of 8; -1 for only the last. */
static int64_t choose(int32_t *index, int64_t tokens, int share)
{
    int64_t rows = 0;
    for (int64_t t = 0; t < tokens; t++)
        if (share < 0 ? t == tokens - 1 : (int)(random_bits((uint64_t)t) % 8) < share)
            index[rows++] = (int32_t)t;
    return rows;
}

static void one_rows(int64_t tokens, int64_t d, int share, tsr_dtype dtype, int offset)
{
    if (!cuda_turn())
        return;
    int32_t *index = malloc((size_t)tokens * 4 + 4);
    assert_non_null(index);
    int64_t rows = choose(index, tokens, share), all = tokens * d + offset;
    uint32_t each = tsr_dtype_bytes(dtype);
    float *x = new_random(all, 1, 3), *want = new_floats(tokens * d);
    const void *in = (char *)cuda_values(x, all, dtype) + (uint32_t)offset * each;
    const int32_t *place = cuda_copy(index, (uint64_t)rows * 4);
    char what[96];
    snprintf(what, sizeof what, "%lld of %lld rows of %lld, offset %d", (long long)rows,
             (long long)tokens, (long long)d, offset);

    tsr_gather_rows_args gather = {want, x + offset, index, rows, tokens, d, TSR_F32};
    RUN(tsr_gather_rows_ref(&gather, rig.pool));
    gather = (tsr_gather_rows_args){
        new_output(rows * d, dtype, offset), in, place, rows, tokens, d, dtype};
    RUN(rig.kernels->gather_rows(rig.stream, &gather));
    expect_bits(what, gather.out, want, rows * d, dtype);

    tsr_scatter_rows_args scatter = {want, x + offset, index, rows, tokens, d, TSR_F32};
    RUN(tsr_scatter_rows_ref(&scatter, rig.pool));
    scatter = (tsr_scatter_rows_args){
        new_output(tokens * d, dtype, offset), in, place, rows, tokens, d, dtype};
    RUN(rig.kernels->scatter_rows(rig.stream, &scatter));
    expect_bits(what, scatter.out, want, tokens * d, dtype);
    free(index), free(x), free(want);
    cuda_free_all();
}

static void rows_are_moved(void **state)
{
    static const int64_t tokens[] = {1, 7, 8, 9, 300, 2050}, widths[] = {1, 3, 8, 64, 100};
    static const int shares[] = {0, 8, 3, -1};
    (void)state;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t s = 0; s < sizeof shares / sizeof *shares; s++)
                one_rows(tokens[t], widths[w], shares[s], dtypes[(t + w + s) % 3], (int)(s % 2));
    one_rows(70000, 8, 1, TSR_BF16, 0);
    one_rows(70000, 4, 7, TSR_F32, 0);
    one_rows(500, 4096, 5, TSR_BF16, 0);
    one_rows(60, 14336, 5, TSR_F32, 0);
}

/* ---- row_square_norm ---- */

static void one_square_norm(int64_t rows, int64_t columns, tsr_dtype dtype, float scale)
{
    if (!cuda_turn())
        return;
    float *w = new_random(rows * columns, (uint64_t)columns, scale), *want = new_floats(rows);
    void *aligned = cuda_values(w, rows * columns, dtype);
    tsr_row_square_norm_args args = {want, w, rows, columns, TSR_F32};
    RUN(tsr_row_square_norm_ref(&args, rig.pool));
    args = (tsr_row_square_norm_args){new_output(rows, TSR_F32, 0), aligned, rows, columns, dtype};
    RUN(rig.kernels->row_square_norm(rig.stream, &args));
    char what[64];
    snprintf(what, sizeof what, "row_square_norm %lldx%lld", (long long)rows, (long long)columns);
    cuda_expect(what, args.out, want, rows, TSR_F32, tolerance_of(tolerance_norms, dtype), 1e-30);

    /* Elsewhere in memory: the same bits. */
    uint32_t each = tsr_dtype_bytes(dtype);
    uint64_t bytes = (uint64_t)(rows * columns) * each;
    float *first = cuda_floats(args.out, rows, TSR_F32);
    char *moved = (char *)cuda_copy(NULL, bytes + each) + each;
    void *host = malloc(bytes + 1);
    assert_non_null(host);
    cuda_read(host, aligned, bytes);
    RUN(tsr_device_write(rig.device, moved, host, bytes));
    args.w = moved;
    args.out = new_output(rows, TSR_F32, 0);
    RUN(rig.kernels->row_square_norm(rig.stream, &args));
    expect_bits(what, args.out, first, rows, TSR_F32);
    free(w), free(want), free(first), free(host);
    cuda_free_all();
}

static void row_square_norms(void **state)
{
    static const int64_t columns[] = {0, 1, 7, 8, 100, 256, 1030, 4096, 14336};
    static const int64_t rows[] = {1, 3, 130};
    (void)state;
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (int d = 0; d < 2; d++)
                one_square_norm(rows[r], columns[c], dtypes[d], 0.1f);
    one_square_norm(1024, 4096, TSR_BF16, 1e15f);
    one_square_norm(5, 4096, TSR_F32, 1e-12f);
    one_square_norm(5, 300, TSR_F16, 1);
    tsr_row_square_norm_args none = {.columns = 4};
    RUN(rig.kernels->row_square_norm(rig.stream, &none));
}

/* ---- dora_norm ---- */

static void one_dora_norm(int64_t rows, int64_t r, bool fresh, bool scaled, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    float *squares = new_gain(rows, 1), *m = new_gain(rows, 2), *u = new_random(rows * r, 3, 1);
    float *bg = new_random(rows * r, 4, 1), *b = new_random(rows * r, 5, 0.3f / (float)r);
    float *n = new_floats(rows), *g = new_floats(rows), *row_scale = new_gain(rows, 6);
    void *device_b = cuda_values(b, rows * r, dtype); /* rounds b */
    tsr_dora_norm_args args = {.n = n,
                               .g = g,
                               .m = fresh ? NULL : m,
                               .squares = squares,
                               .u = u,
                               .bg = bg,
                               .row_scale = scaled ? row_scale : NULL,
                               .b = b,
                               .rows = rows,
                               .r = r,
                               .scale = 0.7};
    RUN(tsr_dora_norm_ref(&args, rig.pool));
    args.n = new_output(rows, TSR_F32, 0);
    args.g = new_output(rows, TSR_F32, 0);
    args.m = fresh ? NULL : cuda_copy(m, (uint64_t)rows * 4);
    args.squares = cuda_copy(squares, (uint64_t)rows * 4);
    args.u = cuda_copy(u, (uint64_t)(rows * r) * 4);
    args.bg = cuda_copy(bg, (uint64_t)(rows * r) * 4);
    args.row_scale = scaled ? cuda_copy(row_scale, (uint64_t)rows * 4) : NULL;
    args.b = device_b;
    args.dtype = dtype;
    RUN(rig.kernels->dora_norm(rig.stream, &args));
    cuda_expect("n", args.n, n, rows, TSR_F32, tolerance_of(tolerance_norms, dtype), 1e-30);
    cuda_expect("g", args.g, g, rows, TSR_F32, tolerance_of(tolerance_norms, dtype), 1e-30);
    free(squares), free(m), free(u), free(bg), free(b), free(n), free(g), free(row_scale);
    cuda_free_all();
}

static void dora_norms(void **state)
{
    static const int64_t rows[] = {1, 5, 33, 4099}, ranks[] = {1, 3, 8, 16, 64, 100, 136, 384};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof ranks / sizeof *ranks; j++)
            for (int d = 0; d < 2; d++)
                one_dora_norm(rows[i], ranks[j], (i + j) % 2, j % 3 == 1, dtypes[d]);
}

/* Squares that cancel, vanish or are no numbers: sqrt of what is below 0 is 0, a NaN stays, m / 0 is
 * what the division gives. */
static void dora_norm_of_odd_rows(void **state)
{
    static const float squares[4] = {0, 1, NAN, 4}, m[4] = {2, 2, 2, 2};
    static const float u[4] = {0, -10, 0, 0}, bg[4] = {0}, b[4] = {0, 1, 0, 0};
    static const float n[4] = {0, 0, NAN, 2}, g[4] = {INFINITY, INFINITY, NAN, 1};
    (void)state;
    tsr_dora_norm_args args = {.n = new_output(4, TSR_F32, 0),
                               .g = new_output(4, TSR_F32, 0),
                               .m = cuda_copy(m, sizeof m),
                               .squares = cuda_copy(squares, sizeof squares),
                               .u = cuda_copy(u, sizeof u),
                               .bg = cuda_copy(bg, sizeof bg),
                               .b = cuda_copy(b, sizeof b),
                               .rows = 4,
                               .r = 1,
                               .scale = 1};
    RUN(rig.kernels->dora_norm(rig.stream, &args));
    expect_bits("n of odd rows", args.n, n, 4, TSR_F32);
    expect_bits("g of odd rows", args.g, g, 4, TSR_F32);
    args.rows = 0;
    RUN(rig.kernels->dora_norm(rig.stream, &args));
    cuda_free_all();
}

/* All codes but NaN, scales of every size, edges that are no block, rows on 16 bytes and not. */
static void bytes_are_decoded(void **state)
{
    static const int64_t shapes[][2] = {{0, 16},     {1, 1},     {5, 7},     {3, 48},
                                        {128, 128},  {200, 256}, {37, 4112}, {200, 272},
                                        {300, 2064}, {129, 257}};
    (void)state;
    for (size_t s = 0; s < 2 * sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 3; t++) {
            bool int8 = s % 2;
            int64_t rows = shapes[s / 2][0], columns = shapes[s / 2][1], count = rows * columns;
            int64_t scales =
                int8 || !rows ? rows : 1 + tsr_e4m3_block(columns, rows - 1, columns - 1);
            float *scale = new_random(scales, 4, int8 ? 3 : 1e-2f);
            float *want = malloc((size_t)count * 4 + 1);
            uint8_t *code = malloc((size_t)count + 1);
            assert_true(scale && want && code);
            for (int64_t i = 0; i < count; i++)
                code[i] = (uint8_t)(int8 ? i * 37 % 255 - 127 : i * 37 % 127 + (i % 3 ? 0 : 128));
            tsr_byte_decode_args args = {.out = want,
                                         .code = code,
                                         .scale = scale,
                                         .rows = rows,
                                         .columns = columns,
                                         .code_dtype = int8 ? TSR_I8 : TSR_F8_E4M3,
                                         .dtype = TSR_F32};
            RUN(tsr_byte_decode_ref(&args, rig.pool));
            args.out = cuda_copy(NULL, (uint64_t)count * tsr_dtype_bytes(dtypes[t]));
            args.code = cuda_copy(code, (uint64_t)count);
            args.scale = cuda_copy(scale, (uint64_t)scales * 4);
            args.dtype = dtypes[t];
            RUN(rig.kernels->byte_decode(rig.stream, &args));
            cuda_expect_bits("byte_decode", args.out, want, rows, columns, dtypes[t]);
            free(scale), free(want), free(code);
            cuda_free_all();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_decoded),
        cmocka_unit_test(nf4_dequant_gives_the_references_bits),
        cmocka_unit_test(nf4_dequant_of_nothing),
        cmocka_unit_test(widen_between_all_dtypes),
        cmocka_unit_test(rows_are_moved),
        cmocka_unit_test(row_square_norms),
        cmocka_unit_test(dora_norms),
        cmocka_unit_test(dora_norm_of_odd_rows),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
