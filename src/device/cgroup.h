/*
 * device/cgroup.h: how much memory and how many processors the control groups of this process leave it,
 * in version 1, 2 and both side by side.
 *
 * A process belongs to a group of each hierarchy (/proc/self/cgroup), which is found where that is mounted
 * (/proc/self/mountinfo). What a group allows holds for all groups below it together, so every one
 * from the own up to the mount's root counts. What cannot be read sets no limit.
 */
#ifndef TSR_DEVICE_CGROUP_H
#define TSR_DEVICE_CGROUP_H

#include <stdint.h>

#define TSR_CGROUP_LEVELS 16

/* One group that limits memory. */
typedef struct {
    uint64_t id;    /* processes with the same one share it, on one host */
    uint64_t limit; /* bytes: memory.max or memory.high; memory.limit_in_bytes */
    uint64_t free;  /* less what is in use and is no file cache that can be given up at once */
} tsr_cgroup_memory;

typedef struct {
    tsr_cgroup_memory memory[TSR_CGROUP_LEVELS]; /* from the own group upwards */
    int memory_count;
    int cpus; /* that the smallest quota pays for, rounded up; 0: no quota */
} tsr_cgroup;

/* root: a directory with the files' paths below it, for tests; "": the machine's. */
void tsr_cgroup_read(tsr_cgroup *out, const char *root);

/* The least of all levels; UINT64_MAX: no limit. */
uint64_t tsr_cgroup_limit(const tsr_cgroup *cgroup);
uint64_t tsr_cgroup_free(const tsr_cgroup *cgroup);

#endif
