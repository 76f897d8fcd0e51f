/*
 * output_lock.c: output_dir for one command at a time.
 *
 * .tessera.lock in it is locked (flock) for as long as it is written to, says who that is, and goes with it. What
 * was killed lets go of it, but not at once: ranks notice a second later that their mpirun is gone. Such a
 * one is waited for; one that lives is not.
 */
#include "job/output.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#define POLL_MICROSECONDS 100000

typedef struct {
    tsr_process process, launcher; /* launcher: none where it is no rank of mpirun's */
    uint64_t host;
    char name[256]; /* of the machine */
} holder;

static bool read_holder(holder *out, int fd)
{
    char text[512];
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    *out = (holder){0};
    text[bytes > 0 ? bytes : 0] = 0;
    return sscanf(text,
                  "process %ld started %" SCNu64 " launcher %ld started %" SCNu64 " host %" SCNx64
                  " %255s",
                  &out->process.pid, &out->process.start, &out->launcher.pid, &out->launcher.start,
                  &out->host, out->name) == 6;
}

/* For those that come meanwhile; nobody needs it to be there. */
static void write_holder(int fd)
{
    char text[512];
    holder own = {tsr_process_self(), tsr_process_launcher(), tsr_process_host(), "?"};
    (void)gethostname(own.name, sizeof own.name - 1);
    int length = snprintf(text, sizeof text,
                          "process %ld started %" PRIu64 " launcher %ld started %" PRIu64
                          " host %" PRIx64 " %s\n",
                          own.process.pid, own.process.start, own.launcher.pid, own.launcher.start,
                          own.host, own.name);
    bool written = ftruncate(fd, 0) == 0 && write(fd, text, (size_t)length) == length;
    if (!written && ftruncate(fd, 0) != 0)
        return; /* what is there then names nobody who goes on */
}

/* Whether it is seen to live, and nobody has killed what it is part of. */
static bool goes_on(const holder *h)
{
    return h->host == tsr_process_host() && tsr_process_lives(&h->process) &&
           (!h->launcher.pid || tsr_process_lives(&h->launcher));
}

static void describe(char out[400], const holder *h)
{
    if (!h->process.pid)
        snprintf(out, 400, "somebody");
    else
        snprintf(out, 400, "process %ld on %s", h->process.pid, h->name);
}

/* One look. *fd -1 afterwards: there is nothing to lock (make: any more), or another has it. */
static tsr_status try_lock(tsr_hold *hold, int *fd, holder *who, const tsr_folder *folder,
                           bool make)
{
    *hold = TSR_LOST;
    *fd = -1;
    if (make)
        TSR_TRY(tsr_folder_open_append(fd, folder, TSR_OUTPUT_LOCK, false));
    else
        *fd = tsr_folder_reach(folder, TSR_OUTPUT_LOCK);
    if (*fd < 0)
        return TSR_OK;
    *hold = tsr_folder_hold(folder, TSR_OUTPUT_LOCK, *fd);
    if (*hold == TSR_HELD || *hold == TSR_UNLOCKED)
        return TSR_OK;
    (void)read_holder(who, *fd);
    close(*fd);
    *fd = -1;
    return TSR_OK;
}

static tsr_status refuse(const tsr_config *config, const holder *who)
{
    char text[400];
    describe(text, who);
    return tsr_fail(TSR_ECONFIG,
                    "%s: another job is writing to output_dir %s (%s); name another directory, or "
                    "wait for that job's end",
                    tsr_config_where(config, "output_dir"), config->output_dir, text);
}

static tsr_status give_up(const tsr_config *config, const holder *who, double waited)
{
    char text[400];
    describe(text, who);
    return tsr_fail(TSR_EIO,
                    "%s: output_dir %s is held by %s, which was killed or cannot be seen from "
                    "here, and has not let go of it in %.0f seconds; end that process, or name "
                    "another directory",
                    tsr_config_where(config, "output_dir"), config->output_dir, text, waited);
}

static void tell(const tsr_config *config, const holder *who, double patience)
{
    char text[400];
    describe(text, who);
    tsr_log(TSR_LOG_WARNING,
            "output_dir %s is still locked by %s, which was killed or is on another machine: "
            "waiting up to %.0f seconds for it",
            config->output_dir, text, patience);
}

/* make: to have it; else to ask. */
static tsr_status wait_for(int *fd, const tsr_folder *folder, const tsr_config *config,
                           const tsr_output_patience *patience, bool make)
{
    holder who = {0};
    tsr_hold hold;
    bool told = false;
    for (double end = tsr_now() + patience->seconds;;) {
        TSR_TRY(try_lock(&hold, fd, &who, folder, make));
        bool busy = hold == TSR_BUSY;
        if (!busy && !(make && hold == TSR_LOST))
            return TSR_OK;
        if (busy && goes_on(&who))
            return refuse(config, &who);
        if (tsr_now() >= end)
            return give_up(config, &who, patience->seconds);
        if ((patience->stop && *patience->stop) ||
            (patience->asked && atomic_load(patience->asked)))
            return tsr_fail(TSR_ESTOPPED_UNSAVED, "stopped while it waited for output_dir %s",
                            config->output_dir);
        if (busy && !told)
            tell(config, &who, patience->seconds);
        told |= busy;
        usleep(POLL_MICROSECONDS);
    }
}

tsr_status tsr_output_ask(const tsr_folder *folder, const tsr_config *config,
                          const tsr_output_patience *patience)
{
    int fd;
    TSR_TRY(wait_for(&fd, folder, config, patience, false));
    if (fd >= 0)
        close(fd);
    return TSR_OK;
}

tsr_status tsr_output_take(int *lock, const tsr_folder *folder, const tsr_config *config,
                           const tsr_output_patience *patience)
{
    TSR_TRY(wait_for(lock, folder, config, patience, true));
    write_holder(*lock);
    return TSR_OK;
}

void tsr_output_leave(int lock, const tsr_folder *folder)
{
    if (lock < 0)
        return;
    tsr_error error; /* what ended the job is told, not this */
    tsr_error_take(&error, TSR_EIO);
    (void)tsr_folder_remove(folder, TSR_OUTPUT_LOCK);
    (void)tsr_error_put(&error);
    (void)flock(lock, LOCK_UN); /* a child of the caller's may have it open still */
    close(lock);
}
