/*
 * gemm_block.c: contract gemm_block.h. One serial matmul, by OpenBLAS.
 *
 * OpenBLAS multiplies a small matmul with AVX-512 straight from where its operands lie, without
 * packing, unless B is transposed. Such tiles run at 0.97 of the processor's peak, a matmul that
 * packs at 0.88 (Zen 4: 114 and 104 GFLOP/s a core), so a large one is cut into tiles of that size,
 * and a transposed B is turned around, one panel of 64 columns at a time. Tiles depend on the shape
 * only. Other processors have no such kernels: there OpenBLAS gets the whole matmul.
 *
 * Its small kernel calls malloc where a few columns are left over; those are multiplied here.
 *
 * A serial OpenBLAS hands out its packing buffers without a lock (found on 0.3.21: two threads get
 * the same buffer and wrong results), so the allocation is wrapped at link time (--wrap, see
 * CMakeLists.txt) and locked here; giving a buffer back is one store.
 */
#include "kernels/gemm_block.h"

#include "kernels/gemm_core.h"
#include "kernels/loops.h"

#include <cblas.h>
#include <pthread.h>

#define TILE_WORK    1000000 /* multiply-adds that OpenBLAS does not pack */
#define PANEL        16384   /* elements of B, 64 KiB: they stay in the second cache */
#define TILE_COLUMNS 64
#define LEAST_ROWS   32 /* below, turning B around costs more than it gains */
#define LEAST_WIDTH  8  /* of columns, likewise */

static pthread_mutex_t buffer_lock = PTHREAD_MUTEX_INITIALIZER;

void *__real_blas_memory_alloc(int kind);
void *__wrap_blas_memory_alloc(int kind);

void *__wrap_blas_memory_alloc(int kind)
{
    pthread_mutex_lock(&buffer_lock);
    void *buffer = __real_blas_memory_alloc(kind);
    pthread_mutex_unlock(&buffer_lock);
    return buffer;
}

static void call_blas(const tsr_gemm_block_args *b)
{
    cblas_sgemm(CblasRowMajor, b->trans_a ? CblasTrans : CblasNoTrans,
                b->trans_b ? CblasTrans : CblasNoTrans, (int)b->m, (int)b->n, (int)b->k, b->alpha,
                b->a, (int)b->lda, b->b, (int)b->ldb, b->beta, b->c, (int)b->ldc);
}

/* ---- the columns that OpenBLAS would allocate memory for ---- */

#define NARROW      8 /* its small kernel calls malloc for 1 to 8 columns beyond a multiple of 16 */
#define NARROW_ROWS 4 /* rows whose sums stay in registers */
#define NARROW_K    2048 /* rows of B turned into lines of NARROW at a time: 64 KiB */

typedef float narrow_lanes __attribute__((vector_size(4 * NARROW), aligned(4), may_alias));

/* sum[row] += a[row, k] line[k]; rows beyond `rows` repeat the last one. */
TSR_INLINE void narrow_rows(narrow_lanes sum[NARROW_ROWS], const float *a, int64_t lda,
                            int64_t rows, const float *line, int64_t k)
{
    const float *row[NARROW_ROWS];
    for (int r = 0; r < NARROW_ROWS; r++)
        row[r] = a + tsr_min(r, rows - 1) * lda;
    for (int64_t i = 0; i < k; i++) {
        const narrow_lanes b = *(const narrow_lanes *)(line + i * NARROW);
        for (int r = 0; r < NARROW_ROWS; r++)
            sum[r] += row[r][i] * b;
    }
}

/* C[m, n <= NARROW] = alpha A B + beta C; neither is transposed. */
TSR_CLONES static void multiply_narrow(const tsr_gemm_block_args *b)
{
    float line[NARROW_K * NARROW];
    for (int64_t first = 0; first < b->k; first += NARROW_K) {
        int64_t k = tsr_min(NARROW_K, b->k - first);
        float beta = first ? 1 : b->beta;
        for (int64_t i = 0; i < k; i++)
            for (int l = 0; l < NARROW; l++)
                line[i * NARROW + l] = l < b->n ? b->b[(first + i) * b->ldb + l] : 0;
        for (int64_t i = 0; i < b->m; i += NARROW_ROWS) {
            narrow_lanes sum[NARROW_ROWS] = {{0}};
            int64_t rows = tsr_min(NARROW_ROWS, b->m - i);
            narrow_rows(sum, b->a + i * b->lda + first, b->lda, rows, line, k);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t l = 0; l < b->n; l++) {
                    float *c = &b->c[(i + r) * b->ldc + l];
                    *c = b->alpha * sum[r][l] + (beta != 0 ? beta * *c : 0);
                }
        }
    }
}

static void multiply(const tsr_gemm_block_args *b)
{
    int64_t beyond = b->n % 16;
    bool small = (double)b->m * (double)b->n * (double)b->k <= TILE_WORK;
    if (b->trans_a || b->trans_b || !small || b->k < 32 || !beyond || beyond > NARROW ||
        !tsr_gemm_core_is_small()) {
        call_blas(b);
        return;
    }
    tsr_gemm_block_args part = *b;
    part.n = b->n - beyond;
    if (part.n)
        call_blas(&part);
    part.b += part.n;
    part.c += part.n;
    part.n = beyond;
    multiply_narrow(&part);
}

/* ---- turning B around ---- */

/* Swaps, between rows `half` apart, the lanes where `half` is set in one and clear in the other:
 * after 8, 4, 2 and 1 the 16 x 16 elements are transposed. */
TSR_INLINE void swap_lanes(tsr_lanes *row, int half)
{
    tsr_lane_mask low, high;
    for (int l = 0; l < 16; l++) {
        low[l] = l & half ? 16 + l - half : l;
        high[l] = l & half ? 16 + l : l + half;
    }
    for (int i = 0; i < 16; i++)
        if (!(i & half)) {
            tsr_lanes first = row[i], second = row[i + half];
            row[i] = TSR_SHUFFLE2(first, second, low);
            row[i + half] = TSR_SHUFFLE2(first, second, high);
        }
}

/* out[16, ldo] = in[rows, 16] transposed; zeros where there is no row. */
TSR_INLINE void transpose_16(float *out, int64_t ldo, const float *in, int64_t ldi, int64_t rows)
{
    tsr_lanes row[16];
    for (int i = 0; i < 16; i++)
        row[i] = i < rows ? *(const tsr_lanes *)(in + i * ldi) : (tsr_lanes){0};
    swap_lanes(row, 8);
    swap_lanes(row, 4);
    swap_lanes(row, 2);
    swap_lanes(row, 1);
    for (int i = 0; i < 16; i++)
        *(tsr_lanes *)(out + i * ldo) = row[i];
}

/* out[columns, ldo] = in[rows, columns] transposed; ldo is a multiple of 16 and not below rows. */
TSR_CLONES static void transpose(float *out, int64_t ldo, const float *in, int64_t ldi,
                                 int64_t rows, int64_t columns)
{
    int64_t whole = columns / 16 * 16;
    for (int64_t i = 0; i < rows; i += 16)
        for (int64_t j = 0; j < whole; j += 16)
            transpose_16(out + j * ldo + i, ldo, in + i * ldi + j, ldi, rows - i);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = whole; j < columns; j++)
            out[j * ldo + i] = in[i * ldi + j];
}

/* ---- tiles ---- */

/* All rows of one panel of B: `panel` has its depth and columns, and its B is not transposed. */
static void run_panel(const tsr_gemm_block_args *panel)
{
    tsr_gemm_block_args tile = *panel;
    int64_t most = TILE_WORK / (panel->n * panel->k) / 4 * 4;
    int64_t rows = tsr_even_block(panel->m, most, 4);
    for (int64_t row = 0; row < panel->m; row += rows) {
        tile.m = tsr_min(rows, panel->m - row);
        tile.a = panel->a + (panel->trans_a ? row : row * panel->lda);
        tile.c = panel->c + row * panel->ldc;
        multiply(&tile);
    }
}

static void run_tiles(const tsr_gemm_block_args *b)
{
    _Alignas(64) float turned[PANEL];
    int64_t width = tsr_min(TILE_COLUMNS, (b->n + 15) / 16 * 16);
    int64_t depth = tsr_even_block(b->k, PANEL / width, 16);
    tsr_gemm_block_args panel = *b;
    panel.trans_b = false;
    for (int64_t k = 0; k < b->k; k += depth)
        for (int64_t column = 0; column < b->n; column += width) {
            panel.k = tsr_min(depth, b->k - k);
            panel.n = tsr_min(width, b->n - column);
            panel.a = b->a + (b->trans_a ? k * b->lda : k);
            panel.c = b->c + column;
            panel.beta = k ? 1 : b->beta;
            if (b->trans_b) {
                transpose(turned, width, b->b + column * b->ldb + k, b->ldb, panel.n, panel.k);
                panel.b = turned;
                panel.ldb = width;
            } else {
                panel.b = b->b + k * b->ldb + column;
            }
            run_panel(&panel);
        }
}

void tsr_gemm_block(const tsr_gemm_block_args *b)
{
    bool small = (double)b->m * (double)b->n * (double)b->k <= TILE_WORK;
    bool thin = b->m < LEAST_ROWS || b->n < LEAST_WIDTH || b->k < 1;
    if (!tsr_gemm_core_is_small() || thin || (small && !b->trans_b))
        multiply(b);
    else
        run_tiles(b);
}

void tsr_gemm_block_double(const tsr_gemm_block_double_args *b)
{
    (void)tsr_gemm_core(); /* which cores multiply is settled first */
    cblas_dgemm(CblasRowMajor, b->trans_a ? CblasTrans : CblasNoTrans,
                b->trans_b ? CblasTrans : CblasNoTrans, (int)b->m, (int)b->n, (int)b->k, b->alpha,
                b->a, (int)b->lda, b->b, (int)b->ldb, b->beta, b->c, (int)b->ldc);
}

const char *tsr_gemm_block_library(void)
{
    return openblas_get_config();
}
