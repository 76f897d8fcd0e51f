/*
 * share.c: memory that the processes of a node share.
 *
 * The first rank of a node makes a memory file (memfd) and the others open it through /proc. Where
 * that is forbidden, a named object is used, whose name is removed as soon as all have opened it, and
 * whose memory is reserved: /dev/shm may be small, as in containers, and whoever writes what it has no
 * room for is killed (SIGBUS).
 */
#include "base/process.h"
#include "comm/comm_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum way { WAY_MEMFD, WAY_NAMED, WAY_COUNT };

/* What the first rank of a node tells the others; the file's numbers prove that it is the one. */
struct place {
    int64_t pid;
    int64_t fd; /* below 0: minus errno */
    uint64_t device, inode;
    char name[64];
};

struct region {
    uint64_t bytes;
    const tsr_bootstrap *all;
    const int *nodes;
    int leader; /* lowest rank of this node */
    struct place *places;
    int *failures; /* errno of each rank, 0 if none */
    int fd;
    void *memory;
};

static int exchange(const struct region *region, const void *send, void *receive, uint64_t bytes)
{
    if (region->all->all_gather(region->all->user, send, receive, bytes) == 0)
        return TSR_OK;
    if (!*tsr_last_error())
        tsr_fail(TSR_ECOMM, "the caller's all_gather failed");
    return TSR_ECOMM;
}

/* 0 or errno. */
static int give_size(int fd, enum way way, uint64_t bytes)
{
    int error;
    if (way == WAY_MEMFD)
        return ftruncate(fd, (off_t)bytes) == 0 ? 0 : errno;
    do
        error = posix_fallocate(fd, 0, (off_t)bytes);
    while (error == EINTR);
    return error;
}

static void make(struct region *region, enum way way, struct place *place)
{
    static _Atomic unsigned counter;
    struct stat info;
    memset(place, 0, sizeof *place);
    place->pid = getpid();
    snprintf(place->name, sizeof place->name, "/tessera-%ld-%u", (long)getpid(),
             atomic_fetch_add(&counter, 1));
    region->fd = way == WAY_MEMFD
                     ? memfd_create(place->name + 1, MFD_CLOEXEC)
                     : shm_open(place->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int error = region->fd < 0 ? errno : give_size(region->fd, way, region->bytes);
    if (!error && fstat(region->fd, &info) != 0)
        error = errno;
    if (error) {
        place->fd = -error;
        return;
    }
    place->fd = region->fd;
    place->device = info.st_dev;
    place->inode = info.st_ino;
}

/* 0 or errno. */
static int map(struct region *region, enum way way)
{
    const struct place *place = &region->places[region->leader];
    struct stat info;
    if (place->fd < 0)
        return (int)-place->fd;
    if (region->fd < 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)place->pid,
                 (long long)place->fd);
        region->fd = way == WAY_MEMFD ? open(path, O_RDWR | O_CLOEXEC)
                                      : shm_open(place->name, O_RDWR | O_CLOEXEC, 0600);
        if (region->fd < 0)
            return errno;
    }
    if (fstat(region->fd, &info) != 0)
        return errno;
    if (info.st_dev != place->device || info.st_ino != place->inode)
        return ENOENT; /* another process of that number, in another namespace */
    void *memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
    if (memory == MAP_FAILED)
        return errno;
    region->memory = memory;
    return 0;
}

/* Sets *error to the first failure of any rank. */
static tsr_status try_way(struct region *region, enum way way, int *error)
{
    struct place mine = {0};
    int rank = region->all->rank;
    region->fd = -1;
    region->memory = NULL;
    if (rank == region->leader)
        make(region, way, &mine);
    tsr_status status = exchange(region, &mine, region->places, sizeof mine);
    int failure = status < 0 ? 0 : map(region, way);
    if (status == TSR_OK)
        status = exchange(region, &failure, region->failures, sizeof failure);
    if (region->fd >= 0)
        close(region->fd);
    if (rank == region->leader && way == WAY_NAMED && region->fd >= 0)
        shm_unlink(mine.name);
    *error = 0;
    for (int i = 0; i < region->all->size && status == TSR_OK && !*error; i++)
        *error = region->failures[i];
    if (region->memory && (*error || status < 0))
        munmap(region->memory, region->bytes);
    return status;
}

static tsr_status cannot_share(uint64_t bytes, int error)
{
    unsigned long long number = bytes;
    if (error == ENOSPC)
        return tsr_fail(
            TSR_ENOMEM,
            "/dev/shm has no room for the %llu bytes that the ranks of a node share, and "
            "/proc/PID/fd cannot be used instead; make it larger (df -h /dev/shm shows "
            "its size; of a container: docker run --shm-size, or --ipc=host)",
            number);
    return tsr_fail(TSR_ENOMEM,
                    "%llu bytes cannot be shared between the ranks of a node (%s), neither "
                    "through /proc/PID/fd nor through /dev/shm",
                    number, strerror(error));
}

tsr_status tsr_share_map(void **out, uint64_t bytes, const tsr_bootstrap *all, const int *nodes)
{
    tsr_status status = TSR_OK;
    int error = 0;
    struct region region = {.bytes = bytes, .all = all, .nodes = nodes};
    region.places = calloc((size_t)all->size, sizeof *region.places);
    region.failures = calloc((size_t)all->size, sizeof *region.failures);
    if (!region.places || !region.failures) {
        status = tsr_fail(TSR_ENOMEM, "no memory to share memory among %d ranks", all->size);
        goto out;
    }
    while (nodes[region.leader] != nodes[all->rank])
        region.leader++;
    for (enum way way = WAY_MEMFD; way < WAY_COUNT; way++) {
        status = try_way(&region, way, &error);
        if (status < 0 || !error)
            break;
    }
    if (status == TSR_OK && error)
        status = cannot_share(bytes, error);
    if (status == TSR_OK)
        *out = region.memory;
out:
    free(region.places);
    free(region.failures);
    return status;
}

tsr_status tsr_share_board(tsr_board **out, const tsr_bootstrap *all, const int *nodes)
{
    void *memory;
    TSR_TRY(tsr_share_map(&memory, tsr_board_bytes(all->size), all, nodes));
    bool leads = true;
    for (int i = 0; i < all->rank; i++)
        leads = leads && nodes[i] != nodes[all->rank];
    if (leads)
        tsr_board_init(memory, all->size);
    /* Nobody uses it before it is initialised. */
    char mine = 0, *theirs = malloc((size_t)all->size);
    int failed = theirs ? all->all_gather(all->user, &mine, theirs, 1) : 0;
    bool have_memory = theirs != NULL;
    free(theirs);
    if (failed || !have_memory) {
        munmap(memory, tsr_board_bytes(all->size));
        return have_memory ? tsr_fail(TSR_ECOMM, "the caller's all_gather failed")
                           : tsr_fail(TSR_ENOMEM, "no memory to share memory");
    }
    *out = memory;
    return TSR_OK;
}

void tsr_share_leave_board(tsr_board *board, const tsr_bootstrap *all, tsr_status status)
{
    tsr_board_kill(board, all->rank, status, tsr_last_error());
    tsr_board_post(board, all->rank, status, tsr_last_error());
    munmap(board, tsr_board_bytes(all->size));
}

tsr_status tsr_share_find_nodes(int *nodes, const tsr_bootstrap *all)
{
    uint64_t mine = tsr_process_host();
    uint64_t *hosts = calloc((size_t)all->size, sizeof *hosts);
    if (!hosts)
        return tsr_fail(TSR_ENOMEM, "no memory to find the nodes of %d ranks", all->size);
    if (all->all_gather(all->user, &mine, hosts, sizeof mine) != 0) {
        free(hosts);
        return tsr_fail(TSR_ECOMM, "the caller's all_gather failed");
    }
    for (int i = 0; i < all->size; i++)
        for (nodes[i] = 0; hosts[nodes[i]] != hosts[i];)
            nodes[i]++;
    free(hosts);
    return TSR_OK;
}
