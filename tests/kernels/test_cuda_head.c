/*
 * test_cuda_head.c: the head on a GPU against the C reference: chunks in any order, every dtype of W,
 * logits that grow from chunk to chunk; and, with the argument "time", how fast it is for an 8B model.
 */
#include "cuda_time.h"
#include "kernels/head_rows.h"

/* Of the largest nll; tensor cores cut off where fp32 rounds. */
#define F32_NLL_TOLERANCE  5e-6
#define BF16_NLL_TOLERANCE 5e-5
/* The reference point of the sums lags the maximum by up to 20, which the entropy is the difference of. */
#define ENTROPY_TOLERANCE 2e-5

#define SKIPPED 3

typedef struct {
    int64_t rows, d, vocabulary, chunk;
    float size; /* of h */
    tsr_dtype dtype, w_dtype;
    bool train;
} head_case;

#define EACH_DTYPE(rows, d, v, chunk, size)                                                        \
    {rows, d, v, chunk, size, TSR_F32, TSR_F32, true},                                             \
        {rows, d, v, chunk, size, TSR_F32, TSR_BF16, true},                                        \
        {rows, d, v, chunk, size, TSR_BF16, TSR_BF16, true},                                       \
        {rows, d, v, chunk, size, TSR_BF16, TSR_F32, true},                                        \
        {rows, d, v, chunk, size, TSR_BF16, TSR_BF16, false},                                      \
    {                                                                                              \
        rows, d, v, chunk, size, TSR_F32, TSR_F32, false                                           \
    }

static const head_case head_cases[] = {
    EACH_DTYPE(1, 1, 1, 1, 1),
    EACH_DTYPE(1, 8, 5, 2, 1),
    EACH_DTYPE(7, 16, 100, 33, 1),
    EACH_DTYPE(70, 24, 700, 700, 3),
    EACH_DTYPE(129, 33, 1301, 1030, 1),
    EACH_DTYPE(40, 16, 900, 128, 500),
    EACH_DTYPE(0, 8, 16, 16, 1),
    EACH_DTYPE(2100, 64, 3000, 2048, 1),
    EACH_DTYPE(300, 256, 20011, 20011, 2),
    EACH_DTYPE(33, 64, 32001, 16384, 4),
};

typedef struct {
    const head_case *c;
    float *h, *w, *dh; /* host; dh of the reference */
    double *nll;
    float *ref_state;
    void *ref_workspace;
    int32_t *labels, overflow;
    int32_t skip[SKIPPED]; /* of the larger vocabularies: rows that do not count */
    int64_t skip_count;
    int64_t loss, correct, entropy;
    float scale;
    double smoothing;
    float *row_parts; /* and behind them mean_row */
    float *
        squares; /* and behind them log_squares, entropies, hits and mean logits; NULL: not wanted */
} head_fixture;

static void make_head(head_fixture *f, const head_case *c)
{
    *f = (head_fixture){.c = c, .scale = 0.125f, .loss = 100, .correct = 100, .entropy = 100};
    f->h = new_random(c->rows * c->d, 1, c->size);
    f->w = new_random(c->vocabulary * c->d, 2, 1);
    f->dh = new_floats(c->rows * c->d);
    f->nll = new_doubles(NULL, c->rows);
    f->ref_state = new_floats(5 * c->rows + 2 * c->rows * c->d);
    f->row_parts = new_floats((TSR_HEAD_PARTS + 1) * c->d);
    f->labels = malloc((size_t)(c->rows + 1) * sizeof(int32_t));
    f->ref_workspace = malloc(tsr_head_workspace_bytes(&(tsr_head_bounds){.d = c->d}));
    assert_true(f->labels && f->ref_workspace);
    for (int64_t i = 0; i < c->rows; i++)
        f->labels[i] = (int32_t)(tsr_mix((uint64_t)i) % (uint64_t)c->vocabulary);
    f->skip_count = c->vocabulary > 1000 ? SKIPPED : 0;
    for (int i = 0; i < SKIPPED; i++)
        f->skip[i] = (int32_t)(c->vocabulary / (i + 1) - 1);
    for (int64_t i = 0; i < c->rows && f->skip_count; i++)
        for (int j = 0; j < SKIPPED; j++)
            if (f->labels[i] == f->skip[j]) /* no label is skipped */
                f->labels[i] = 1;
}

static void free_head(head_fixture *f)
{
    free(f->h), free(f->w), free(f->dh), free(f->nll), free(f->ref_state), free(f->labels);
    free(f->ref_workspace), free(f->row_parts);
    cuda_free_all();
}

static tsr_head_state head_state(float *at, const head_case *c)
{
    tsr_head_state s = {.max = at,
                        .sum = at + c->rows,
                        .label_logit = at + 2 * c->rows,
                        .rival = at + 3 * c->rows,
                        .spread = at + 4 * c->rows};
    if (c->train) {
        s.acc = at + (5 * c->rows + 63) / 64 * 64;
        s.wy = s.acc + c->rows * c->d;
    }
    return s;
}

/* What the compute dtype makes of W; then the reference over the whole vocabulary at once. */
static void run_reference(head_fixture *f)
{
    const head_case *c = f->c;
    free(f->ref_state);
    f->ref_state = new_floats(5 * c->rows + 64 + 2 * c->rows * c->d);
    tsr_head_state s = head_state(f->ref_state, c);
    s.row_parts = f->smoothing > 0 ? f->row_parts : NULL;
    s.squares = f->squares;
    if (f->squares)
        s.row_parts = f->row_parts;
    RUN(tsr_head_begin_ref(&(tsr_head_begin_args){s, c->rows, c->d}, rig.pool));
    RUN(tsr_head_chunk_ref(&(tsr_head_chunk_args){.state = s,
                                                  .h = f->h,
                                                  .w = {f->w, TSR_F32},
                                                  .labels = f->labels,
                                                  .workspace = f->ref_workspace,
                                                  .workspace_bytes = tsr_head_workspace_bytes(
                                                      &(tsr_head_bounds){.d = c->d}),
                                                  .rows = c->rows,
                                                  .d = c->d,
                                                  .count = c->vocabulary,
                                                  .skip = f->skip,
                                                  .skip_count = f->skip_count},
                           rig.pool));
    RUN(tsr_head_finish_ref(
        &(tsr_head_finish_args){.state = s,
                                .dh = c->train ? f->dh : NULL,
                                .nll = f->nll,
                                .loss = &f->loss,
                                .loss_overflow = &f->overflow,
                                .correct = &f->correct,
                                .entropy = &f->entropy,
                                .log_squares = f->squares ? f->squares + c->rows : NULL,
                                .row_entropy = f->squares ? f->squares + 2 * c->rows : NULL,
                                .row_correct = f->squares ? f->squares + 3 * c->rows : NULL,
                                .row_logit = f->squares ? f->squares + 4 * c->rows : NULL,
                                .rows = c->rows,
                                .d = c->d,
                                .scale = f->scale,
                                .smoothing = f->smoothing,
                                .h = f->h,
                                .mean_row = f->row_parts + TSR_HEAD_PARTS * c->d,
                                .vocabulary = c->vocabulary},
        rig.pool));
}

typedef struct {
    void *h, *dh;
    char *w;
    int32_t *labels, *overflow, *skip;
    int64_t *loss; /* and behind it overflow's word, correct, entropy */
    double *nll;
    tsr_head_state state;
    void *workspace;
    uint64_t workspace_bytes;
    float *row_parts;
    bool summed;        /* mean_row is known */
    float *log_squares; /* and behind them entropies, hits and mean logits; NULL: not wanted */
} head_device;

static void copy_head(head_device *g, head_fixture *f)
{
    const head_case *c = f->c;
    int64_t zero[4] = {100, 0, 100, 100};
    tsr_head_bounds bounds = {c->rows, c->d, c->chunk, c->dtype, c->train};
    g->h = cuda_values(f->h, c->rows * c->d, c->dtype);
    g->w = cuda_values(f->w, c->vocabulary * c->d, c->w_dtype);
    if (c->dtype == TSR_BF16) /* the matmul's W */
        free(new_bf16(f->w, c->vocabulary * c->d));
    g->skip = cuda_copy(f->skip, sizeof f->skip);
    g->labels = cuda_copy(f->labels, (uint64_t)c->rows * sizeof(int32_t));
    g->state = head_state(
        cuda_copy(NULL, (uint64_t)(5 * c->rows + 64 + 2 * c->rows * c->d) * sizeof(float)), c);
    g->dh = cuda_copy(NULL, (uint64_t)(c->rows * c->d) * tsr_dtype_bytes(c->dtype));
    g->nll = cuda_copy(NULL, (uint64_t)c->rows * sizeof(double));
    g->loss = cuda_copy(zero, sizeof zero);
    g->overflow = (int32_t *)(g->loss + 1);
    g->row_parts = cuda_copy(NULL, (uint64_t)((TSR_HEAD_PARTS + 1) * c->d) * sizeof(float));
    g->summed = false;
    g->log_squares = NULL;
    g->workspace_bytes = rig.kernels->head_workspace_bytes(&bounds);
    g->workspace = cuda_copy(NULL, g->workspace_bytes);
}

static void run_head(head_device *g, const head_fixture *f, bool backwards)
{
    const head_case *c = f->c;
    int64_t chunks = (c->vocabulary + c->chunk - 1) / c->chunk;
    int64_t *correct = g->state.rival ? g->loss + 2 : NULL;
    int64_t *entropy = g->state.rival ? g->loss + 3 : NULL;
    bool sums = f->smoothing > 0 || g->log_squares;
    g->state.row_parts = sums && !g->summed ? g->row_parts : NULL;
    RUN(rig.kernels->head_begin(rig.stream, &(tsr_head_begin_args){g->state, c->rows, c->d}));
    for (int64_t i = 0; i < chunks; i++) {
        int64_t first = (backwards ? chunks - 1 - i : i) * c->chunk;
        int64_t count = first + c->chunk > c->vocabulary ? c->vocabulary - first : c->chunk;
        tsr_head_chunk_args chunk = {.state = g->state,
                                     .h = g->h,
                                     .labels = g->labels,
                                     .workspace = g->workspace,
                                     .workspace_bytes = g->workspace_bytes,
                                     .rows = c->rows,
                                     .d = c->d,
                                     .first = first,
                                     .count = count,
                                     .skip = g->skip,
                                     .skip_count = f->skip_count,
                                     .dtype = c->dtype};
        chunk.w = (tsr_frozen){g->w + first * c->d * tsr_dtype_bytes(c->w_dtype), c->w_dtype};
        RUN(rig.kernels->head_chunk(rig.stream, &chunk));
    }
    RUN(rig.kernels->head_finish(
        rig.stream,
        &(tsr_head_finish_args){.state = g->state,
                                .dh = c->train ? g->dh : NULL,
                                .nll = g->nll,
                                .loss = g->loss,
                                .loss_overflow = g->overflow,
                                .correct = correct,
                                .entropy = entropy,
                                .log_squares = g->log_squares,
                                .row_entropy = g->log_squares ? g->log_squares + c->rows : NULL,
                                .row_correct = g->log_squares ? g->log_squares + 2 * c->rows : NULL,
                                .row_logit = g->log_squares ? g->log_squares + 3 * c->rows : NULL,
                                .rows = c->rows,
                                .d = c->d,
                                .scale = f->scale,
                                .dtype = c->dtype,
                                .smoothing = f->smoothing,
                                .h = g->h,
                                .mean_row = g->row_parts + TSR_HEAD_PARTS * c->d,
                                .vocabulary = c->vocabulary}));
}

/* tolerance: of a logit. A label that leads or trails by less may be either. */
static void check_report(const char *what, const head_fixture *f, const int64_t *word,
                         double tolerance)
{
    const head_case *c = f->c;
    const float *label = f->ref_state + 2 * c->rows, *rival = f->ref_state + 3 * c->rows;
    int64_t close = 0;
    for (int64_t i = 0; i < c->rows; i++)
        close += fabs((double)label[i] - (double)rival[i]) <= tolerance;
    double want = ldexp((double)(f->entropy - 100), -TSR_LOSS_SHIFT);
    double got = ldexp((double)(word[3] - 100), -TSR_LOSS_SHIFT);
    if (!(fabs(got - want) <= fmax(ENTROPY_TOLERANCE, tolerance) * (double)(c->rows + 1)))
        fail_msg("%s: entropy %.9g, want %.9g", what, got, want);
    if (!(llabs(word[2] - f->correct) <= close))
        fail_msg("%s: %lld correct, want %lld, %lld in doubt", what, (long long)word[2] - 100,
                 (long long)f->correct - 100, (long long)close);
}

static void check_head(const head_device *g, const head_fixture *f, int run)
{
    char what[160];
    const head_case *c = f->c;
    double *got = new_doubles(NULL, c->rows), most = 1e-30;
    int64_t word[4];
    snprintf(what, sizeof what, "head %lldx%lld of %lld by %lld, size %g, %s, W %s, run %d",
             (long long)c->rows, (long long)c->d, (long long)c->vocabulary, (long long)c->chunk,
             (double)c->size, tsr_dtype_name(c->dtype), tsr_dtype_name(c->w_dtype), run);
    /* Logits of 500 are rounded to 3e-5: a weight near 1/2 moves by as much. */
    double loose = 1;
    for (int64_t i = 0; i < c->rows; i++)
        if (isfinite(f->ref_state[i])) /* where the label is not all there is */
            loose = fmax(loose, fabs((double)f->ref_state[i]) / 16);
    double nll_tolerance = c->dtype == TSR_F32 ? F32_NLL_TOLERANCE : BF16_NLL_TOLERANCE;
    cuda_read(got, g->nll, (uint64_t)c->rows * sizeof(double));
    for (int64_t i = 0; i < c->rows; i++)
        most = fmax(most, fabs(f->nll[i]));
    /* A loss near 0 is the difference of two logits. */
    most = fmax(most, (double)c->size);
    for (int64_t i = 0; i < c->rows; i++)
        if (!(fabs(got[i] - f->nll[i]) <= nll_tolerance * most))
            fail_msg("%s: nll[%lld] = %.9g, want %.9g", what, (long long)i, got[i], f->nll[i]);
    cuda_read(word, g->loss, sizeof word);
    double sum = ldexp((double)(f->loss - 100), -TSR_LOSS_SHIFT);
    double loss = ldexp((double)(word[0] - 100), -TSR_LOSS_SHIFT);
    if (!(fabs(loss - sum) <= nll_tolerance * most * (double)(c->rows + 1)))
        fail_msg("%s: loss %.9g, want %.9g", what, loss, sum);
    assert_int_equal((int32_t)word[1], 0);
    check_report(what, f, word, nll_tolerance * most);
    /* What is rounded, weights and sums, is as large as without smoothing; what comes of it is that much smaller. */
    loose /= 1 - f->smoothing;
    if (c->train)
        cuda_expect(what, g->dh, f->dh, c->rows * c->d, c->dtype,
                    tolerance_of(tolerance_head, c->dtype) * loose, 1e-6);
    free(got);
}

static void head_matches_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof head_cases / sizeof *head_cases; i++) {
        head_fixture f;
        head_device g;
        if (!cuda_turn())
            continue;
        make_head(&f, &head_cases[i]);
        copy_head(&g, &f);
        run_reference(&f);
        for (int run = 0; run < 3; run++) {
            int64_t word[4] = {100, 0, 100, 100};
            RUN(tsr_device_write(rig.device, g.loss, word, sizeof word));
            g.state.wy_dtype = run == 2 ? f.c->dtype : TSR_F32;
            run_head(&g, &f, run == 1);
            check_head(&g, &f, run);
        }
        free_head(&f);
    }
}

/* Labels smoothed, with W's rows summed in either order of the chunks and with the mean row of the pass before; the
 * sums of one order have the reference's bits. */
static void smoothed_labels_match_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof head_cases / sizeof *head_cases; i++) {
        head_fixture f;
        head_device g;
        const head_case *c = &head_cases[i];
        uint64_t bytes = (uint64_t)(TSR_HEAD_PARTS * c->d) * sizeof(float);
        if (!cuda_turn() || c->rows == 0)
            continue;
        make_head(&f, c);
        f.smoothing = i % 2 ? 0.1 : 0.6;
        copy_head(&g, &f);
        run_reference(&f);
        float *parts = new_floats(TSR_HEAD_PARTS * c->d);
        for (int run = 0; run < 3; run++) {
            int64_t word[4] = {100, 0, 100, 100};
            RUN(tsr_device_write(rig.device, g.loss, word, sizeof word));
            g.summed = run == 2;
            run_head(&g, &f, run == 1);
            check_head(&g, &f, run);
            cuda_read(parts, g.row_parts, bytes);
            if (run == 0 && (c->w_dtype == c->dtype || c->dtype == TSR_F32))
                assert_memory_equal(parts, f.row_parts, bytes);
        }
        free(parts);
        free_head(&f);
    }
}

/* The reference point follows the maximum late: rows whose logits grow from chunk to chunk by less
 * and by more than it waits for, and rows that only fall. */
static void growing_logits_are_rescaled(void **state)
{
    (void)state;
    static const head_case shape = {64, 64, 800, 100, 1, TSR_F32, TSR_F32, true};
    for (int dtype = 0; dtype < 2; dtype++) {
        head_case c = shape;
        head_fixture f;
        head_device g;
        if (dtype)
            c.dtype = c.w_dtype = TSR_BF16;
        make_head(&f, &c);
        for (int64_t i = 0; i < c.rows * c.d; i++)
            f.h[i] += (float)(i / c.d - 32) / 32;
        for (int64_t i = 0; i < c.vocabulary * c.d; i++)
            f.w[i] += (float)(i / c.d / 100) / 4;
        copy_head(&g, &f);
        run_reference(&f);
        run_head(&g, &f, false);
        check_head(&g, &f, 0);
        int64_t word[4] = {100, 0, 100, 100};
        RUN(tsr_device_write(rig.device, g.loss, word, sizeof word));
        run_head(&g, &f, true);
        check_head(&g, &f, 1);
        free_head(&f);
    }
}

/* Labels beyond the first tile whose p is up to 1 - 1e-6: dh, 1 - p times W[label] less little of the others, is as
 * exact row by row as a bf16 dh can be. */
static void what_is_left_of_a_known_label_is_exact(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        head_case c = {8, 64, 33000, 33000, 1, TSR_F32, TSR_F32, true};
        head_fixture f;
        head_device g;
        if (dtype)
            c.dtype = c.w_dtype = TSR_BF16;
        make_head(&f, &c);
        for (int64_t i = 0; i < c.rows; i++) {
            f.labels[i] = (int32_t)(i % 2 ? 16384 + 2000 * i : 100 * i);
            put_along(f.h + i * c.d, f.w + f.labels[i] * c.d, c.d, 14 + 4 * (double)i);
        }
        copy_head(&g, &f);
        run_reference(&f);
        run_head(&g, &f, false);
        check_head(&g, &f, 0);
        assert_true(f.nll[0] < 0.5 && f.nll[7] < 1e-5);
        float *dh = cuda_floats(g.dh, c.rows * c.d, c.dtype);
        double *want = new_doubles(f.dh, c.rows * c.d);
        for (int64_t i = 0; i < c.rows; i++) {
            double off = row_distance(dh + i * c.d, want + i * c.d, c.d);
            if (!(off <= (dtype ? 8e-3 : 1e-3)))
                fail_msg("%s, nll %g: dh is %g off", tsr_dtype_name(c.dtype), f.nll[i], off);
        }
        free(dh), free(want);
        free_head(&f);
    }
}

/* Equal logits at either side of the label, in its tile and in others: the first is the argmax. */
static void of_equal_logits_the_first_is_the_argmax(void **state)
{
    (void)state;
    static const struct {
        int32_t label, other;
        bool correct;
    } ties[] = {{700, 710, true},     {700, 699, false},     {701, 700, false},
                {700, 30000, true},   {20000, 100, false},   {20000, 19999, false},
                {0, 32999, true},     {32999, 32998, false}, {20000, 20001, true},
                {16384, 16383, false}};
    for (size_t i = 0; i < 2 * sizeof ties / sizeof *ties; i++) {
        const int32_t label = ties[i / 2].label, other = ties[i / 2].other;
        head_case c = {3, 8, 33000, 33000, 1, TSR_F32, TSR_F32, i % 2};
        head_fixture f;
        head_device g;
        int64_t word[4];
        make_head(&f, &c);
        for (int64_t j = 0; j < c.vocabulary * c.d; j++)
            f.w[j] = 0;
        for (int64_t r = 0; r < c.rows; r++) {
            f.labels[r] = label;
            f.h[r * c.d] = 4;
        }
        f.w[label * c.d] = f.w[other * c.d] = 1;
        copy_head(&g, &f);
        run_head(&g, &f, false);
        cuda_read(word, g.loss, sizeof word);
        assert_int_equal(word[2] - 100, ties[i / 2].correct ? c.rows : 0);
        free_head(&f);
    }
}

/* With and without what is reported. */
static void a_report_changes_no_bit(void **state)
{
    (void)state;
    static const head_case shape = {300, 64, 9000, 4096, 1, TSR_BF16, TSR_BF16, true};
    uint64_t bytes = 300 * 64 * 2;
    uint16_t *with = malloc(bytes), *without = malloc(bytes);
    int64_t word[4], again[4];
    head_fixture f;
    head_device g;
    make_head(&f, &shape);
    copy_head(&g, &f);
    run_head(&g, &f, false);
    cuda_read(with, g.dh, bytes);
    cuda_read(word, g.loss, sizeof word);
    g.state.rival = g.state.spread = NULL;
    RUN(tsr_device_write(rig.device, g.loss, (int64_t[4]){100, 0, 100, 100}, sizeof again));
    run_head(&g, &f, false);
    cuda_read(without, g.dh, bytes);
    cuda_read(again, g.loss, sizeof again);
    assert_memory_equal(with, without, bytes);
    assert_true(word[0] == again[0] && word[3] > 100 && again[2] == 100 && again[3] == 100);
    free(with), free(without);
    free_head(&f);
}

/* And changes no bit of the gradient. */
static void how_sure_a_row_is_matches_the_reference(void **state)
{
    (void)state;
    static const head_case shapes[] = {{300, 64, 9000, 4096, 3, TSR_BF16, TSR_BF16, true},
                                       {70, 33, 20011, 20011, 1, TSR_F32, TSR_F32, true},
                                       {5, 8, 40, 16, 20, TSR_F32, TSR_F32, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const head_case *c = &shapes[i];
        uint64_t bytes = c->train ? (uint64_t)(c->rows * c->d) * tsr_dtype_bytes(c->dtype) : 0;
        uint8_t *with = malloc(bytes + 1), *without = malloc(bytes + 1);
        head_fixture f;
        head_device g;
        make_head(&f, c);
        copy_head(&g, &f);
        f.squares = new_floats(5 * c->rows);
        run_reference(&f);
        run_head(&g, &f, false);
        cuda_read(without, g.dh, bytes);
        g.state.squares = cuda_copy(NULL, (uint64_t)c->rows * sizeof(float));
        g.log_squares = cuda_copy(NULL, 4 * (uint64_t)c->rows * sizeof(float));
        run_head(&g, &f, true);
        run_head(&g, &f, false);
        cuda_read(with, g.dh, bytes);
        assert_memory_equal(with, without, bytes);
        float *got = cuda_floats(g.log_squares, 4 * c->rows, TSR_F32);
        double loose = c->dtype == TSR_F32 ? 1e-4 : 2e-2, hits = 0;
        for (int64_t r = 2 * c->rows; r < 3 * c->rows; r++) /* some may be in doubt */
            hits += (double)(got[r] - f.squares[c->rows + r]);
        assert_true(fabs(hits) <= 1 + 0.01 * (double)c->rows);
        for (int64_t r = 0; r < 4 * c->rows; r++) {
            double want = (double)f.squares[c->rows + r];
            if (r / c->rows == 2)
                continue;
            if (!(fabs((double)got[r] - want) <= loose * (1 + fabs(want))))
                fail_msg("number %lld: %.9g, want %.9g", (long long)r, (double)got[r], want);
        }
        free(got), free(with), free(without), free(f.squares);
        free_head(&f);
    }
}

static void head_gives_the_same_bits(void **state)
{
    (void)state;
    static const head_case shape = {700, 128, 9000, 4096, 1, TSR_BF16, TSR_BF16, true};
    head_fixture f;
    head_device g;
    uint64_t bytes = 700 * 128 * 2;
    uint16_t *first = malloc(bytes), *again = malloc(bytes);
    double *nll = new_doubles(NULL, 700), *nll_again = new_doubles(NULL, 700);
    make_head(&f, &shape);
    copy_head(&g, &f);
    for (int run = 0; run < 4; run++) {
        g.state.wy_dtype = run > 1 ? TSR_BF16 : TSR_F32;
        run_head(&g, &f, false);
        cuda_read(run ? again : first, g.dh, bytes);
        cuda_read(run ? nll_again : nll, g.nll, 700 * sizeof(double));
        if (run) {
            assert_memory_equal(first, again, bytes);
            assert_memory_equal(nll, nll_again, 700 * sizeof(double));
        }
    }
    free(first), free(again), free(nll), free(nll_again);
    free_head(&f);
}

/* dh over acc or wy, fp32; with bf16 it is refused. */
static void dh_may_be_acc_or_wy(void **state)
{
    (void)state;
    static const head_case shape = {50, 40, 300, 300, 1, TSR_F32, TSR_F32, true};
    for (int i = 0; i < 2; i++) {
        head_fixture f;
        head_device g;
        make_head(&f, &shape);
        copy_head(&g, &f);
        run_reference(&f);
        g.dh = i ? g.state.wy : g.state.acc;
        run_head(&g, &f, false);
        check_head(&g, &f, i);
        tsr_head_finish_args bad = {.state = g.state,
                                    .dh = g.dh,
                                    .nll = g.nll,
                                    .loss = g.loss,
                                    .loss_overflow = g.overflow,
                                    .correct = g.loss + 2,
                                    .entropy = g.loss + 3,
                                    .rows = 50,
                                    .d = 40,
                                    .dtype = TSR_BF16};
        assert_int_equal(rig.kernels->head_finish(rig.stream, &bad), TSR_EUNSUPPORTED);
        free_head(&f);
    }
}

/* A label that no chunk has, an infinite h, a loss above 2^29: the flag, and nothing added. */
static void a_loss_that_is_not_finite_is_flagged(void **state)
{
    (void)state;
    static const head_case shape = {40, 16, 200, 64, 1, TSR_F32, TSR_F32, true};
    for (int i = 0; i < 3; i++) {
        head_fixture f;
        head_device g;
        int64_t word[4];
        make_head(&f, &shape);
        if (i == 0)
            f.labels[3] = 200;
        if (i == 1)
            f.h[0] = INFINITY;
        for (int64_t j = 0; j < 40 * 16 && i == 2; j++)
            f.h[j] *= 3e8f;
        copy_head(&g, &f);
        run_head(&g, &f, false);
        cuda_read(word, g.loss, sizeof word);
        assert_int_equal((int32_t)word[1], 1);
        assert_true(word[0] == 100 && word[2] == 100 && word[3] == 100);
        free_head(&f);
    }
}

static void a_small_workspace_is_refused(void **state)
{
    (void)state;
    static const head_case shape = {40, 16, 200, 200, 1, TSR_F32, TSR_F32, true};
    head_fixture f;
    head_device g;
    make_head(&f, &shape);
    copy_head(&g, &f);
    tsr_head_chunk_args chunk = {.state = g.state,
                                 .h = g.h,
                                 .w = {g.w, TSR_F32},
                                 .labels = g.labels,
                                 .workspace = g.workspace,
                                 .workspace_bytes = g.workspace_bytes - 1,
                                 .rows = 40,
                                 .d = 16,
                                 .count = 200};
    assert_int_equal(rig.kernels->head_chunk(rig.stream, &chunk), TSR_EINVAL);
    free_head(&f);
}

/* ---- speed ---- */

typedef struct {
    head_case shape;
    head_fixture fixture;
    head_device device;
} head_speed;

static void run_speed(void *context)
{
    head_speed *s = context;
    run_head(&s->device, &s->fixture, false);
}

/* report: accuracy and entropy too, as in a run. */
static void time_head(int64_t rows, bool train, bool report)
{
    head_speed s = {.shape = {rows, 4096, 128256, 16384, 1, TSR_BF16, TSR_BF16, train}};
    const head_case *c = &s.shape;
    head_device *g = &s.device;
    tsr_head_bounds bounds = {rows, c->d, c->chunk, c->dtype, train};
    tsr_gemm_args matmul[2 * TSR_HEAD_MATMULS];
    int64_t zero[4] = {0};
    s.fixture = (head_fixture){.c = c, .scale = 1};
    int count = tsr_head_matmuls_cuda(matmul, &bounds);
    bounds.chunk = c->vocabulary % c->chunk;
    count += tsr_head_matmuls_cuda(matmul + count, &bounds);
    bounds.chunk = c->chunk;
    uint64_t bytes = 2 * tsr_blas_tune_bytes(matmul, count);
    RUN(tsr_blas_tune(tsr_kernels_kept(rig.stream)->blas, rig.stream, matmul, count,
                      cuda_copy(NULL, bytes), bytes));
    int32_t *labels = malloc((size_t)rows * sizeof *labels);
    assert_non_null(labels);
    for (int64_t i = 0; i < rows; i++)
        labels[i] = (int32_t)(tsr_mix((uint64_t)i) % (uint64_t)c->vocabulary);
    g->labels = cuda_copy(labels, (uint64_t)rows * sizeof *labels);
    g->h = random_array(rows * c->d, TSR_BF16);
    g->w = random_array(c->vocabulary * c->d, TSR_BF16);
    g->dh = cuda_copy(NULL, (uint64_t)(rows * c->d) * 2);
    g->state =
        head_state(cuda_copy(NULL, (uint64_t)(5 * rows + 64 + 2 * rows * c->d) * sizeof(float)), c);
    if (!report)
        g->state.rival = g->state.spread = NULL;
    g->nll = cuda_copy(NULL, (uint64_t)rows * sizeof(double));
    g->loss = cuda_copy(zero, sizeof zero);
    g->overflow = (int32_t *)(g->loss + 1);
    g->workspace_bytes = rig.kernels->head_workspace_bytes(&bounds);
    g->workspace = cuda_copy(NULL, g->workspace_bytes);
    double ms = median_ms(run_speed, &s, 7);
    double flops = (train ? 4 : 2) * (double)rows * (double)c->d * (double)c->vocabulary;
    printf("head %lld x 4096 of 128256, %s%s: %.2f ms, %.0f TFLOP/s, workspace %.0f MiB\n",
           (long long)rows, train ? "loss and gradient" : "loss", report ? "" : " alone", ms,
           flops * 1e-9 / ms, (double)g->workspace_bytes / MIB);
    free(labels);
    cuda_free_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_matches_the_reference),
        cmocka_unit_test(smoothed_labels_match_the_reference),
        cmocka_unit_test(growing_logits_are_rescaled),
        cmocka_unit_test(what_is_left_of_a_known_label_is_exact),
        cmocka_unit_test(of_equal_logits_the_first_is_the_argmax),
        cmocka_unit_test(a_report_changes_no_bit),
        cmocka_unit_test(how_sure_a_row_is_matches_the_reference),
        cmocka_unit_test(head_gives_the_same_bits),
        cmocka_unit_test(dh_may_be_acc_or_wy),
        cmocka_unit_test(a_loss_that_is_not_finite_is_flagged),
        cmocka_unit_test(a_small_workspace_is_refused),
    };
    if (argc < 2 || strcmp(argv[1], "time") != 0)
        return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
    cuda_setup(NULL);
    printf("%s\n", tsr_device_description(rig.device));
    time_head(8192, true, false);
    time_head(8192, true, true);
    time_head(8192, false, false);
    time_head(8192, false, true);
    time_head(6000, true, true);
    time_head(2048, true, true);
    time_head(500, true, false);
    time_head(500, true, true);
    return cuda_teardown(NULL);
}
