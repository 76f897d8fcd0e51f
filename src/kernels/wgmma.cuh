/*
 * kernels/wgmma.cuh: what sm_90a has for products of tiles: copies of whole boxes by one thread, barriers
 * in shared memory that know what has arrived, and products that four warps do together and do not
 * wait for.
 *
 * Shared addresses are 32 bits. A tile of bf16 has rows of 64 elements, 128 bytes, of which the copies
 * swap the 16-byte parts: part c of row i lies at c ^ i % 8. A tile begins on 1024 bytes.
 */
#ifndef TSR_KERNELS_WGMMA_CUH
#define TSR_KERNELS_WGMMA_CUH

#include "kernels/mma.cuh"

#include <cuda.h> /* CUtensorMap */

#define TSR_WARPGROUP 128 /* threads: four warps, from a multiple of four on */

/* ---- barriers: a phase ends when all have arrived, and all bytes that were announced ---- */

static __device__ __forceinline__ void tsr_barrier_init(uint32_t barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

/* After all are made, before any other thread or copy uses them. */
static __device__ __forceinline__ void tsr_barrier_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void tsr_barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and announces bytes that copies will bring. */
static __device__ __forceinline__ void tsr_barrier_expect(uint32_t barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Arrives when all asynchronous copies of this thread until now have come: an arrival as any other. Who waits
 * calls tsr_bulk_written before products that read what they brought. */
static __device__ __forceinline__ void tsr_barrier_arrive_copied(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Until the phase of that parity has ended: 0 is the first; of parity 1 one has ended before. */
static __device__ __forceinline__ void tsr_barrier_wait(uint32_t barrier, unsigned parity)
{
    uint32_t done;
    do
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    while (!done);
}

/* ---- copies ---- */

/* The map's box whose first element is column x of row y; zeros for what does not exist. */
static __device__ __forceinline__ void tsr_box_copy(uint32_t to, const CUtensorMap *map, int x,
                                                    int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

/* The same of matrix z of a stack. */
static __device__ __forceinline__ void tsr_box_copy_of(uint32_t to, const CUtensorMap *map, int x,
                                                       int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* `bytes` that lie in order, a multiple of 16 as both addresses. */
static __device__ __forceinline__ void tsr_bulk_fetch(uint32_t to, const void *from, unsigned bytes,
                                                      uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Integers from shared memory are added to those in global memory, in any order with others. One thread asks,
 * after tsr_bulk_written of all that wrote them. */
static __device__ __forceinline__ void tsr_bulk_add(int32_t *to, uint32_t from, unsigned bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(to),
        "r"(from), "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* The same, stored. */
static __device__ __forceinline__ void tsr_bulk_store_at(void *to, uint32_t from, unsigned bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* What this thread has asked to add or store has been read from shared memory. */
static __device__ __forceinline__ void tsr_bulk_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* And is in global memory. */
static __device__ __forceinline__ void tsr_bulk_finish(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- warpgroups ---- */

/* Of a warpgroup's threads; `id` is 1 to 15. */
static __device__ __forceinline__ void tsr_group_barrier(int id)
{
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

/* Four matrices of 8 x 8 of a warp, as mma leaves their rows: their columns become rows of 16 bytes. Lane i
 * has where row i % 8 of matrix i / 8 goes. */
static __device__ __forceinline__ void tsr_store_turned(uint32_t to, const uint32_t word[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
}

/* ---- bounds ---- */

/* Of a kernel whose code for other cards has no body, and does not let so many threads in. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TSR_SM90_BOUNDS(threads) __launch_bounds__(threads, 1)
#else
#define TSR_SM90_BOUNDS(threads) __launch_bounds__(TSR_WARP)
#endif

/* ---- registers ---- */

/* Of a kernel that begins with fewer or more of them than a warpgroup's part of it needs: each of its
 * threads has `count` from here on. What some give back, others take. */
#define TSR_REGISTERS_DOWN(count) asm volatile("setmaxnreg.dec.sync.aligned.u32 " #count ";")
#define TSR_REGISTERS_UP(count)   asm volatile("setmaxnreg.inc.sync.aligned.u32 " #count ";")

/* ---- products ---- */

/* A left operand whose rows are the tile's, from column 16 n on: + 32 n; of tiles of 64 rows. Or a right
 * operand whose columns are the tile's rows. */
static __device__ __forceinline__ uint64_t tsr_wgmma_rows(uint32_t tile)
{
    const uint64_t swizzled = 1, eight_rows = 1024 / 16;
    return swizzled << 62 | eight_rows << 32 | (tile & 0x3ffff) >> 4;
}

/* A right operand whose columns are the tile's, from row 16 n on: + 2048 n. 64 columns more lie
 * `next` bytes further. */
static __device__ __forceinline__ uint64_t tsr_wgmma_columns(uint32_t tile, uint32_t next)
{
    const uint64_t swizzled = 1, eight_rows = 1024 / 16;
    return swizzled << 62 | eight_rows << 32 | (uint64_t)(next / 16) << 16 | (tile & 0x3ffff) >> 4;
}

/* Before the first product after other instructions have written its sums. */
static __device__ __forceinline__ void tsr_wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Products since the last commit are a group. */
static __device__ __forceinline__ void tsr_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All groups but the latest have ended: what they read may be overwritten. */
static __device__ __forceinline__ void tsr_wgmma_wait_but_one(void)
{
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/* All groups but the latest N have ended; their sums are read after tsr_wgmma_sums. */
template <int N> static __device__ __forceinline__ void tsr_wgmma_wait_but(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Nothing reads these sums before. */
template <int N> static __device__ __forceinline__ void tsr_wgmma_sums(float c[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

/* All groups have ended, and their sums may be read. */
static __device__ __forceinline__ void tsr_wgmma_wait(float c[32][4])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

#define TSR_SUM(i)  "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define TSR_SUMS(i) TSR_SUM(i), TSR_SUM((i) + 1), TSR_SUM((i) + 2), TSR_SUM((i) + 3)

/* c += left right, or c = left right: 64 rows, 256 columns, 16 products. Warp w of the group has rows
 * 16 w to 16 w + 15, and c[j] is its column group j of 8, as mma.m16n8 leaves it. Columns are 1 where
 * `right` is of tsr_wgmma_columns, 0 where it is of tsr_wgmma_rows. */
template <int COLUMNS = 1>
static __device__ __forceinline__ void tsr_wgmma(float c[32][4], uint64_t left, uint64_t right,
                                                 bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "
                 "%110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
                 "%125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, %131;\n"
                 "}"
                 : TSR_SUMS(0), TSR_SUMS(4), TSR_SUMS(8), TSR_SUMS(12), TSR_SUMS(16), TSR_SUMS(20),
                   TSR_SUMS(24), TSR_SUMS(28)
                 : "l"(left), "l"(right), "r"((int)add), "n"(COLUMNS));
}

/* The same of 128 columns: c[j], j < 16. */
template <int COLUMNS>
static __device__ __forceinline__ void tsr_wgmma_128(float c[16][4], uint64_t left, uint64_t right,
                                                     bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, %67;\n"
                 "}"
                 : TSR_SUMS(0), TSR_SUMS(4), TSR_SUMS(8), TSR_SUMS(12)
                 : "l"(left), "l"(right), "r"((int)add), "n"(COLUMNS));
}

/* The same of a left operand in registers: a[j] as mma.m16n8k16 has it, of 16 products. */
template <int COLUMNS>
static __device__ __forceinline__ void tsr_wgmma_128_of(float c[16][4], const uint32_t a[4],
                                                        uint64_t right)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
                 : TSR_SUMS(0), TSR_SUMS(4), TSR_SUMS(8), TSR_SUMS(12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(COLUMNS));
}

/* The same of 64 columns: c[j], j < 8. */
template <int COLUMNS>
static __device__ __forceinline__ void tsr_wgmma_64_of(float c[8][4], const uint32_t a[4],
                                                       uint64_t right)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                 : TSR_SUMS(0), TSR_SUMS(4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(COLUMNS));
}

/* As tsr_wgmma_128, of 64 columns: c[j], j < 8. LEFT_COLUMNS: the left operand's rows are the columns of its tile, of
 * tsr_wgmma_columns. */
template <int LEFT_COLUMNS, int COLUMNS>
static __device__ __forceinline__ void tsr_wgmma_64(float c[8][4], uint64_t left, uint64_t right,
                                                    bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, %35, %36;\n"
                 "}"
                 : TSR_SUMS(0), TSR_SUMS(4)
                 : "l"(left), "l"(right), "r"((int)add), "n"(LEFT_COLUMNS), "n"(COLUMNS));
}

/* The sums of the first columns among 192: 16, and so on. */
#define TSR_SUMS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TSR_SUMS_32                                                                                \
    TSR_SUMS_16 ", "                                                                               \
                "%8, %9, %10, %11, %12, %13, %14, %15"
#define TSR_SUMS_48                                                                                \
    TSR_SUMS_32 ", "                                                                               \
                "%16, %17, %18, %19, %20, %21, %22, %23"
#define TSR_SUMS_64                                                                                \
    TSR_SUMS_48 ", "                                                                               \
                "%24, %25, %26, %27, %28, %29, %30, %31"
#define TSR_SUMS_80                                                                                \
    TSR_SUMS_64 ", "                                                                               \
                "%32, %33, %34, %35, %36, %37, %38, %39"
#define TSR_SUMS_96                                                                                \
    TSR_SUMS_80 ", "                                                                               \
                "%40, %41, %42, %43, %44, %45, %46, %47"
#define TSR_SUMS_112                                                                               \
    TSR_SUMS_96 ", "                                                                               \
                "%48, %49, %50, %51, %52, %53, %54, %55"
#define TSR_SUMS_128                                                                               \
    TSR_SUMS_112 ", "                                                                              \
                 "%56, %57, %58, %59, %60, %61, %62, %63"
#define TSR_SUMS_144                                                                               \
    TSR_SUMS_128 ", "                                                                              \
                 "%64, %65, %66, %67, %68, %69, %70, %71"
#define TSR_SUMS_160                                                                               \
    TSR_SUMS_144 ", "                                                                              \
                 "%72, %73, %74, %75, %76, %77, %78, %79"
#define TSR_SUMS_176                                                                               \
    TSR_SUMS_160 ", "                                                                              \
                 "%80, %81, %82, %83, %84, %85, %86, %87"
#define TSR_SUMS_192                                                                               \
    TSR_SUMS_176 ", "                                                                              \
                 "%88, %89, %90, %91, %92, %93, %94, %95"

#define TSR_CASE(n)                                                                                \
    if (N == n)                                                                                    \
        asm volatile("{\n"                                                                         \
                     ".reg .pred p;\n"                                                             \
                     "setp.ne.b32 p, %98, 0;\n"                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" TSR_SUMS_##n     \
                     "}, %96, %97, p, 1, 1, %99, %100;\n"                                          \
                     "}"                                                                           \
                     : TSR_SUMS(0), TSR_SUMS(4), TSR_SUMS(8), TSR_SUMS(12), TSR_SUMS(16),          \
                       TSR_SUMS(20)                                                                \
                     : "l"(left), "l"(right), "r"((int)add), "n"(LEFT_COLUMNS), "n"(COLUMNS));

/* The same of N columns, 16 to 192 in steps of 16: c[j], 8 j < N. */
template <int N, int LEFT_COLUMNS, int COLUMNS = 0>
static __device__ __forceinline__ void tsr_wgmma_n(float c[24][4], uint64_t left, uint64_t right,
                                                   bool add)
{
    static_assert(N > 0 && N <= 192 && N % 16 == 0, "there is such a product");
    TSR_CASE(16)
    TSR_CASE(32)
    TSR_CASE(48)
    TSR_CASE(64)
    TSR_CASE(80)
    TSR_CASE(96)
    TSR_CASE(112)
    TSR_CASE(128)
    TSR_CASE(144)
    TSR_CASE(160)
    TSR_CASE(176)
    TSR_CASE(192)
}

#undef TSR_CASE

/* c += left right, or c = left right, in e4m3: 64 rows, 192 columns, 32 products. Rows of both tiles have 128 elements, and
 * both operands are of tsr_wgmma_rows, the next 32 columns + 32 bytes. */
static __device__ __forceinline__ void tsr_wgmma_e4m3(float c[24][4], uint64_t left, uint64_t right,
                                                      bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {" TSR_SUMS_192
                 "}, %96, %97, p, 1, 1;\n"
                 "}"
                 : TSR_SUMS(0), TSR_SUMS(4), TSR_SUMS(8), TSR_SUMS(12), TSR_SUMS(16), TSR_SUMS(20)
                 : "l"(left), "l"(right), "r"((int)add));
}

#undef TSR_SUMS_16
#undef TSR_SUMS_32
#undef TSR_SUMS_48
#undef TSR_SUMS_64
#undef TSR_SUMS_80
#undef TSR_SUMS_96
#undef TSR_SUMS_112
#undef TSR_SUMS_128
#undef TSR_SUMS_144
#undef TSR_SUMS_160
#undef TSR_SUMS_176
#undef TSR_SUMS_192
#undef TSR_SUMS
#undef TSR_SUM

#endif
