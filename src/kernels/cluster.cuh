/*
 * kernels/cluster.cuh: what blocks of a cluster do together, on sm_90: a barrier in two halves, and stores to each other's
 * shared memory.
 *
 * Such stores go to blocks that run: those that have arrived at a barrier, and wait at another before they end. What a
 * thread wrote anywhere before it arrived, all threads of the cluster see after they have waited.
 */
#ifndef TSR_KERNELS_CLUSTER_CUH
#define TSR_KERNELS_CLUSTER_CUH

#include "kernels/cuda.cuh"

/* All threads of all blocks arrive, then wait, in turn. Warps may have parted before. */
static __device__ __forceinline__ void tsr_cluster_arrive(void)
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void tsr_cluster_wait(void)
{
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The block's place in its cluster. */
static __device__ __forceinline__ int tsr_cluster_place(void)
{
    uint32_t place;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(place));
    return (int)place;
}

/* Where the block at `place` has what lies at this shared address in the own one. */
static __device__ __forceinline__ uint32_t tsr_cluster_address(uint32_t own, int place)
{
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(place));
    return address;
}

static __device__ __forceinline__ void tsr_cluster_store2(uint32_t address, float first,
                                                          float second)
{
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
                 : "memory");
}

#endif
