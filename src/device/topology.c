#include "device/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tsr_topology {
    hwloc_topology_t hwloc;
    hwloc_cpuset_t share;
    hwloc_nodeset_t card; /* the memory next to the card; NULL: no card, or all memory is */
    int core_count, share_count;
    bool bind;
    char model[96];
};

/* True when the launcher gave each rank cores of its own: then they must not be shared again. */
static bool bound_by_launcher(void)
{
    const char *open_mpi = getenv("OMPI_MCA_orte_bound_at_launch");
    const char *slurm = getenv("SLURM_CPU_BIND_TYPE");
    return (open_mpi && !strcmp(open_mpi, "1")) || (slurm && strcmp(slurm, "none") && *slurm);
}

/* The cores that `set` touches, one after the other; returns how many of them lie in
 * [first, last) by count, and adds those, cut to `set`, to *out (may be NULL). */
static int collect_cores(hwloc_topology_t hwloc, hwloc_const_cpuset_t set, int first, int last,
                         hwloc_cpuset_t out)
{
    int seen = 0, taken = 0;
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_CORE, core)) != NULL) {
        if (!hwloc_bitmap_intersects(core->cpuset, set))
            continue;
        if (seen >= first && seen < last) {
            taken++;
            if (out)
                hwloc_bitmap_or(out, out, core->cpuset);
        }
        seen++;
    }
    if (out)
        hwloc_bitmap_and(out, out, set);
    return taken;
}

static void find_model(tsr_topology *topology)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    snprintf(topology->model, sizeof topology->model, "%s", model && *model ? model : "unknown");
    for (size_t n = strlen(topology->model); n && topology->model[n - 1] == ' '; n--)
        topology->model[n - 1] = 0;
}

static tsr_status find_share(tsr_topology *topology, int local_rank, int local_rank_count)
{
    tsr_status status = TSR_OK;
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    topology->share = hwloc_bitmap_alloc();
    if (!allowed || !topology->share) {
        status = tsr_fail(TSR_ENOMEM, "no memory for the set of allowed cores");
        goto out;
    }
    if (hwloc_get_cpubind(topology->hwloc, allowed, HWLOC_CPUBIND_PROCESS) != 0 ||
        hwloc_bitmap_iszero(allowed))
        hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology->hwloc));
    int cores = collect_cores(topology->hwloc, allowed, 0, INT32_MAX, NULL);
    if (cores < 1) /* a platform that describes no cores */
        cores = hwloc_bitmap_weight(allowed) > 0 ? hwloc_bitmap_weight(allowed) : 1;
    int ranks = bound_by_launcher() ? 1 : local_rank_count;
    int rank = ranks == 1 ? 0 : local_rank;
    tsr_cgroup cgroup;
    tsr_cgroup_read(&cgroup, "");
    int quota = cgroup.cpus ? cgroup.cpus : INT32_MAX;
    int usable = quota < cores ? quota : cores;
    int share = usable / ranks;
    if (share >
        quota / local_rank_count) /* of ranks with cores of their own, the quota is common */
        share = quota / local_rank_count;
    topology->core_count = usable;
    topology->share_count = share > 1 ? share : 1;
    topology->bind = ranks > 1 && ranks <= cores &&
                     collect_cores(topology->hwloc, allowed, (int)((int64_t)cores * rank / ranks),
                                   (int)((int64_t)cores * (rank + 1) / ranks), topology->share) > 0;
out:
    hwloc_bitmap_free(allowed);
    return status;
}

/* A card that hwloc does not see (a container without /sys) is no error: memory is not bound. */
static void find_card(tsr_topology *topology, const char *pci_bus_id)
{
    hwloc_obj_t card = hwloc_get_pcidev_by_busidstring(topology->hwloc, pci_bus_id);
    hwloc_obj_t near = card ? hwloc_get_non_io_ancestor_obj(topology->hwloc, card) : NULL;
    hwloc_const_nodeset_t all = hwloc_topology_get_topology_nodeset(topology->hwloc);
    if (near && near->nodeset && !hwloc_bitmap_iszero(near->nodeset) &&
        !hwloc_bitmap_isequal(near->nodeset, all))
        topology->card = hwloc_bitmap_dup(near->nodeset);
}

tsr_status tsr_topology_create(tsr_topology **out, int local_rank, int local_rank_count,
                               const char *pci_bus_id)
{
    tsr_status status = TSR_OK;
    tsr_topology *topology = calloc(1, sizeof *topology);
    if (!topology)
        return tsr_fail(TSR_ENOMEM, "no memory for the topology of the machine");
    if (hwloc_topology_init(&topology->hwloc) != 0) {
        free(topology);
        return tsr_fail(TSR_ENOMEM, "hwloc cannot be started");
    }
    if (pci_bus_id) /* else left out: it takes time */
        hwloc_topology_set_type_filter(topology->hwloc, HWLOC_OBJ_PCI_DEVICE,
                                       HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology->hwloc) != 0) {
        status = tsr_fail(TSR_EDEVICE, "hwloc cannot read the topology of this machine");
        goto out;
    }
    find_model(topology);
    if (pci_bus_id)
        find_card(topology, pci_bus_id);
    status = find_share(topology, local_rank, local_rank_count);
out:
    if (status == TSR_OK)
        *out = topology;
    else
        tsr_topology_destroy(topology);
    return status;
}

void tsr_topology_destroy(tsr_topology *topology)
{
    if (!topology)
        return;
    hwloc_bitmap_free(topology->share);
    hwloc_bitmap_free(topology->card);
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
}

int tsr_topology_core_count(const tsr_topology *topology)
{
    return topology->core_count;
}

int tsr_topology_share_count(const tsr_topology *topology)
{
    return topology->share_count;
}

const char *tsr_topology_model(const tsr_topology *topology)
{
    return topology->model;
}

void tsr_topology_bind_thread(const tsr_topology *topology)
{
    if (topology->bind)
        hwloc_set_cpubind(topology->hwloc, topology->share, HWLOC_CPUBIND_THREAD);
}

void tsr_topology_bind_memory(const tsr_topology *topology, void *memory, uint64_t bytes)
{
    /* Without HWLOC_MEMBIND_STRICT Linux prefers the nodes and takes others when they are full. */
    if (topology->card)
        hwloc_set_area_membind(topology->hwloc, memory, bytes, topology->card, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET);
    else if (topology->bind && hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE) > 1)
        hwloc_set_area_membind(topology->hwloc, memory, bytes, topology->share, HWLOC_MEMBIND_BIND,
                               0);
}

static int count_of(hwloc_topology_t hwloc, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(hwloc, type);
    return count > 0 ? count : 0;
}

static uint64_t machine_memory(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t tsr_topology_memory(const tsr_cgroup *cgroup)
{
    uint64_t limit = tsr_cgroup_limit(cgroup), machine = machine_memory();
    return limit < machine ? limit : machine;
}

void tsr_topology_describe(tsr_topology_facts *out, const tsr_topology *topology)
{
    hwloc_topology_t hwloc = topology->hwloc;
    hwloc_obj_t cache = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_L3CACHE, 0);
    if (!cache)
        cache = hwloc_get_obj_by_type(hwloc, HWLOC_OBJ_L2CACHE, 0);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    tsr_cgroup cgroup;
    tsr_cgroup_read(&cgroup, "");
    uint64_t limit = tsr_cgroup_limit(&cgroup);
    *out = (tsr_topology_facts){.packages = count_of(hwloc, HWLOC_OBJ_PACKAGE),
                                .numa_nodes = count_of(hwloc, HWLOC_OBJ_NUMANODE),
                                .cores = count_of(hwloc, HWLOC_OBJ_CORE),
                                .threads = count_of(hwloc, HWLOC_OBJ_PU),
                                .last_level_cache_bytes =
                                    cache && cache->attr ? cache->attr->cache.size : 0,
                                .memory_bytes = machine_memory(),
                                .memory_free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page,
                                .memory_limit_bytes = limit < machine_memory() ? limit : 0};
}

void tsr_topology_library(char text[32])
{
    unsigned version = hwloc_get_api_version();
    snprintf(text, 32, "%u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff);
}
