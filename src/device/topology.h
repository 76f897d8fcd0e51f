/*
 * device/topology.h: which cores this rank may use, which of them are its share, and which memory
 * lies next to its card. The only user of hwloc.
 */
#ifndef TSR_DEVICE_TOPOLOGY_H
#define TSR_DEVICE_TOPOLOGY_H

#include "base/status.h"
#include "device/cgroup.h"

#include <stdint.h>

typedef struct tsr_topology tsr_topology;

/* Shares the cores that the process may use (affinity, cgroup's quota) among `local_rank_count` ranks of
 * the node. Ranks that were bound one by one by their launcher keep what they were bound to.
 * pci_bus_id: of the rank's card, "0000:18:00.0"; NULL: it has none. */
tsr_status tsr_topology_create(tsr_topology **out, int local_rank, int local_rank_count,
                               const char *pci_bus_id);
void tsr_topology_destroy(tsr_topology *topology);

int tsr_topology_core_count(const tsr_topology *topology);  /* that the process may use */
int tsr_topology_share_count(const tsr_topology *topology); /* of this rank, at least 1 */
const char *tsr_topology_model(const tsr_topology *topology);

/* What the machine has, whatever this process may use of it; 0: not known. */
typedef struct {
    int packages, numa_nodes, cores, threads;
    uint64_t last_level_cache_bytes; /* of one cache */
    uint64_t memory_bytes, memory_free_bytes;
    uint64_t memory_limit_bytes; /* of the control groups; 0: none */
} tsr_topology_facts;

void tsr_topology_describe(tsr_topology_facts *out, const tsr_topology *topology);

/* Bytes that the process may have: the machine's memory, or what its control groups allow. */
uint64_t tsr_topology_memory(const tsr_cgroup *cgroup);

/* hwloc's version, as "2.9.0", in `text`. */
void tsr_topology_library(char text[32]);

/* Keeps the calling thread on the rank's share. Does nothing where the shares overlap (more ranks
 * than cores) or the share is all there is. A refusal by the system is ignored. */
void tsr_topology_bind_thread(const tsr_topology *topology);

/* Asks for memory next to the card, or without one to the rank's share, before it is touched. Where
 * that is full, other memory is taken. A refusal is ignored. */
void tsr_topology_bind_memory(const tsr_topology *topology, void *memory, uint64_t bytes);

#endif
