/*
 * test_cgroup.c: what control groups leave, from files as the kernel shows them: both versions, side by
 * side, in containers with and without a namespace of their own, at every level.
 */
#include "device/cgroup.h"

#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MIB ((uint64_t)1 << 20)

/* A file below the made-up root, with the directories above it. */
static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "root/%s", path);
    for (char *p = strchr(name, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        mkdir(scratch_path(name), 0777);
        *p = '/';
    }
    write_bytes(scratch_path(name), text, strlen(text));
}

static tsr_cgroup look(void)
{
    tsr_cgroup cgroup;
    tsr_cgroup_read(&cgroup, scratch_path("root"));
    return cgroup;
}

#define V2_MOUNT "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

static void test_nothing_to_read(void **state)
{
    (void)state;
    tsr_cgroup cgroup = look();
    assert_int_equal(cgroup.memory_count, 0);
    assert_int_equal(cgroup.cpus, 0);
    assert_true(tsr_cgroup_limit(&cgroup) == UINT64_MAX && tsr_cgroup_free(&cgroup) == UINT64_MAX);
    put("proc/self/cgroup", "0::/a\nnonsense\n::\n");
    put("proc/self/mountinfo", "1 2 3\n" V2_MOUNT);
    assert_int_equal(look().memory_count, 0);
}

/* A service of systemd's: limits at three levels, of which another one is the least in each respect. */
static void test_version_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/job.slice/run:1.scope/task\n");
    put("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/root rw\n" V2_MOUNT);
#define TOP "sys/fs/cgroup/job.slice/"
    put(TOP "memory.max", "2147483648\n");
    put(TOP "memory.high", "1073741824\n");
    put(TOP "memory.current", "943718400\n");
    put(TOP "memory.stat", "anon 1\nfile 9\ninactive_file 314572800\nactive_file 7\n");
    put(TOP "cpu.max", "max 100000\n");
#define MIDDLE TOP "run:1.scope/"
    put(MIDDLE "memory.max", "max\n");
    put(MIDDLE "memory.high", "max\n");
    put(MIDDLE "cpu.max", "150000 100000\n");
#define OWN MIDDLE "task/"
    put(OWN "memory.max", "629145600\n");
    put(OWN "memory.high", "max\n");
    put(OWN "memory.current", "104857600\n");
    put(OWN "memory.stat", "inactive_file 0\n");
    put(OWN "cpu.max", "400000 100000\n");
    tsr_cgroup cgroup = look();
    assert_int_equal(cgroup.memory_count, 2);
    assert_int_equal(cgroup.memory[0].limit, 600 * MIB);
    assert_int_equal(cgroup.memory[0].free, 500 * MIB);
    assert_int_equal(cgroup.memory[1].limit, 1024 * MIB);
    assert_int_equal(cgroup.memory[1].free, (1024 - 600) * MIB); /* 900 in use, 300 of it cache */
    assert_true(cgroup.memory[0].id != cgroup.memory[1].id);
    assert_int_equal(tsr_cgroup_limit(&cgroup), 600 * MIB);
    assert_int_equal(tsr_cgroup_free(&cgroup), 424 * MIB);
    assert_int_equal(cgroup.cpus, 2);
    /* More than the limit is in use, as after it was lowered; a limit of nothing. */
    put(OWN "memory.current", "700000000\n");
    cgroup = look();
    assert_int_equal(tsr_cgroup_free(&cgroup), 0);
    /* A sibling knows only the groups above. */
    put("proc/self/cgroup", "0::/job.slice/other\n");
    cgroup = look();
    assert_int_equal(cgroup.memory_count, 1);
    assert_int_equal(tsr_cgroup_limit(&cgroup), 1024 * MIB);
    assert_int_equal(cgroup.cpus, 0);
}

/* Each controller has its hierarchy; memory and cpu are side by side in a directory of mounts. */
static void test_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,cpuacct:/batch\n4:memory:/batch/a job\n0::/\n");
    put("proc/self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "419430400\n");
    put("sys/fs/cgroup/memory/batch/memory.usage_in_bytes", "209715200\n");
    put("sys/fs/cgroup/memory/batch/memory.stat",
        "inactive_file 0\ntotal_cache 157286400\ntotal_inactive_file 104857600\n");
    put("sys/fs/cgroup/memory/batch/a job/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_quota_us", "250000\n");
    put("sys/fs/cgroup/cpu,cpuacct/batch/cpu.cfs_period_us", "100000\n");
    tsr_cgroup cgroup = look();
    assert_int_equal(cgroup.memory_count, 1);
    assert_int_equal(tsr_cgroup_limit(&cgroup), 400 * MIB);
    assert_int_equal(tsr_cgroup_free(&cgroup), 300 * MIB);
    assert_int_equal(cgroup.cpus, 3);
    /* One hierarchy for both, whose mount's name has a blank; memory is limited by version 2 as well. */
    put("proc/self/cgroup", "4:cpu,memory:/batch\n0::/unified\n");
    put("proc/self/mountinfo",
        "35 31 0:32 / /cgroup/me\\040too rw - cgroup cgroup rw,cpu,memory\n" V2_MOUNT);
    put("cgroup/me too/batch/memory.limit_in_bytes", "419430400\n");
    put("cgroup/me too/batch/cpu.cfs_quota_us", "100000\n");
    put("cgroup/me too/batch/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/unified/memory.max", "104857600\n");
    cgroup = look();
    assert_int_equal(cgroup.memory_count, 2);
    assert_int_equal(tsr_cgroup_limit(&cgroup), 100 * MIB);
    assert_int_equal(cgroup.cpus, 1);
}

/* Without a namespace a container sees its group as the mount's root; a path outside of that, as of a process that was
 * moved, leaves the mount's root as what is known. */
static void test_containers(void **state)
{
    (void)state;
    static const char *const paths[] = {"4:memory:/docker/0123/inner\n", "4:memory:/docker/0123\n",
                                        "4:memory:/../other\n", "4:memory:/docker/01234\n"};
    static const uint64_t limits[] = {50 * MIB, 100 * MIB, 100 * MIB, 100 * MIB};
    put("proc/self/mountinfo",
        "35 31 0:32 /elsewhere /mnt rw - cgroup cgroup rw,memory\n"
        "36 31 0:32 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    put("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "52428800\n");
    put("mnt/memory.limit_in_bytes", "104857600\n");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        put("proc/self/cgroup", paths[i]);
        tsr_cgroup cgroup = look();
        assert_int_equal(cgroup.memory_count, 1 + (i == 0));
        assert_int_equal(tsr_cgroup_limit(&cgroup), limits[i]);
    }
}

/* More groups above each other than are kept: the least of all is not lost. */
static void test_many_levels(void **state)
{
    (void)state;
    char path[256] = "sys/fs/cgroup", name[300], text[32], own[300] = "0::";
    put("proc/self/mountinfo", V2_MOUNT);
    for (int i = 0; i < 24; i++) {
        strcat(path, "/g");
        strcat(own, "/g");
        snprintf(name, sizeof name, "%s/memory.max", path);
        snprintf(text, sizeof text, "%llu\n", (unsigned long long)((i ? 100 + i : 1) * MIB));
        put(name, text);
    }
    put("proc/self/cgroup", own);
    tsr_cgroup cgroup = look();
    assert_int_equal(cgroup.memory_count, TSR_CGROUP_LEVELS);
    assert_int_equal(tsr_cgroup_limit(&cgroup), MIB);
}

int main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_to_read), TEST(test_version_2),   TEST(test_version_1),
        TEST(test_containers),      TEST(test_many_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
