/*
 * kernels/mma.cuh: warp-wide matrix instructions of sm_80 and later, on bf16, and the asynchronous
 * copies that feed them.
 *
 * Fragments of mma.m16n8k16, lane = 4 g + t: c[0], c[1] are row g, columns 2t and 2t + 1; c[2], c[3] row
 * g + 8. a[0] is row g, columns 2t and 2t + 1 of the 16 products, a[1] row g + 8; a[2], a[3] the same
 * 8 columns on. b[0] is column g, products 2t and 2t + 1; b[1] 8 products on.
 */
#ifndef TSR_KERNELS_MMA_CUH
#define TSR_KERNELS_MMA_CUH

#include "kernels/cuda.cuh"

static __device__ __forceinline__ uint32_t tsr_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void tsr_ldmatrix(uint32_t r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tsr_shared_address(p))
                 : "memory");
}

/* The same, each matrix transposed. */
static __device__ __forceinline__ void tsr_ldmatrix_t(uint32_t r[4], const __nv_bfloat16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tsr_shared_address(p))
                 : "memory");
}

/* An 8 x 8 matrix that the warp holds (lane 4 g + t: row g, columns 2t and 2t + 1), transposed. */
static __device__ __forceinline__ uint32_t tsr_transpose(uint32_t pair)
{
    uint32_t out;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
    return out;
}

/* c += a b */
static __device__ __forceinline__ void tsr_mma(float c[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A float with the 11 bits of fraction that mma.m16n8k8 takes. */
static __device__ __forceinline__ uint32_t tsr_tf32(float value)
{
    uint32_t out;
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
    return out;
}

/* c += a b, of tf32: a[0] is row g, product t, a[1] row g + 8; a[2], a[3] the same 4 products on. b0 is column g, product t,
 * b1 4 products on; c as above. */
static __device__ __forceinline__ void tsr_mma_tf32(float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t tsr_pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* Word m of lane t of a quad becomes word t of lane m. */
static __device__ __forceinline__ void tsr_quad_words(uint32_t word[4])
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? word[i] : word[i + 1], 1);
        word[i] = odd ? other : word[i];
        word[i + 1] = odd ? word[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, high ? word[i] : word[i + 2], 2);
        word[i] = high ? other : word[i];
        word[i + 2] = high ? word[i + 2] : other;
    }
}

/* 16 bytes to shared memory, zeros where not `valid`; `from` is then not read. */
static __device__ __forceinline__ void tsr_copy16_at(uint32_t to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void tsr_copy16(void *to, const void *from, bool valid)
{
    tsr_copy16_at(tsr_shared_address(to), from, valid);
}

static __device__ __forceinline__ void tsr_copy4(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(tsr_shared_address(to)),
                 "l"(from), "r"(valid ? 4 : 0)
                 : "memory");
}

/* Copies since the last commit are a group. */
static __device__ __forceinline__ void tsr_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups of this thread, or all but the latest, or but the latest two, have arrived. */
static __device__ __forceinline__ void tsr_copy_wait(void)
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

static __device__ __forceinline__ void tsr_copy_wait_but_one(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

static __device__ __forceinline__ void tsr_copy_wait_but_two(void)
{
    asm volatile("cp.async.wait_group 2;" ::: "memory");
}

/* Each thread that has written to shared memory, before tsr_bulk_store; code for older cards has neither. */
static __device__ __forceinline__ void tsr_bulk_written(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* `bytes` from shared to global memory, a multiple of 16 as both addresses. One thread asks, and waits until
 * they have been read; they are in memory when the kernel has ended. */
static __device__ __forceinline__ void tsr_bulk_store(void *to, const void *shared, unsigned bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(tsr_shared_address(shared)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#else
    (void)to, (void)shared, (void)bytes;
#endif
}

#endif
