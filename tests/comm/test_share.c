/* Shared memory where memory files are forbidden: /dev/shm has room for it, or says that it has not. */
#include "comm/comm_parts.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

#define TMPFS 0x01021994

/* In libc's place. */
__attribute__((visibility("default"))) int memfd_create(const char *name, unsigned flags)
{
    (void)name;
    (void)flags;
    errno = EPERM;
    return -1;
}

static int gather_alone(void *user, const void *send, void *receive, uint64_t bytes)
{
    (void)user;
    memcpy(receive, send, bytes);
    return 0;
}

static tsr_status share(void **memory, uint64_t bytes)
{
    tsr_bootstrap alone = {0, 1, gather_alone, NULL};
    return tsr_share_map(memory, bytes, &alone, (int[]){0});
}

static void assert_no_names(void)
{
    char mine[64];
    DIR *directory = opendir("/dev/shm");
    snprintf(mine, sizeof mine, "tessera-%ld-", (long)getpid());
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (strncmp(entry->d_name, mine, strlen(mine)) == 0)
            fail_msg("/dev/shm/%s is left", entry->d_name);
    if (directory)
        closedir(directory);
}

static void test_named(void **state)
{
    char *memory;
    (void)state;
    assert_int_equal(share((void **)&memory, 100000), TSR_OK);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(memory[i], 0);
    memset(memory, 1, 100000);
    munmap(memory, 100000);
    assert_no_names();
}

/* More than it could ever hold, which takes nothing of what is free. */
static void test_no_room(void **state)
{
    struct statfs info;
    void *memory;
    char size[32];
    (void)state;
    if (statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS || info.f_blocks == 0)
        skip();
    uint64_t bytes = ((uint64_t)info.f_blocks + 16) * (uint64_t)info.f_bsize;
    snprintf(size, sizeof size, "%llu bytes", (unsigned long long)bytes);
    assert_int_equal(share(&memory, bytes), TSR_ENOMEM);
    print_message("%s\n", tsr_last_error());
    assert_non_null(strstr(tsr_last_error(), size));
    assert_non_null(strstr(tsr_last_error(), "/dev/shm has no room"));
    assert_non_null(strstr(tsr_last_error(), "--shm-size"));
    assert_no_names();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_named),
                                       cmocka_unit_test(test_no_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
