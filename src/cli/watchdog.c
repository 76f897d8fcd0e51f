#include "cli/watchdog.h"

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/launcher.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_SECONDS 0.1
/* What the library waits for in its own way it also gives up by itself, with a better message. */
#define GRACE_SECONDS 5

struct tsr_watchdog {
    pthread_t thread;
    _Atomic bool stopped;
    bool at_end;
    double seconds;
    int code;
};

static void end(const char *message, int code)
{
    for (size_t length = strlen(message); length > 0;) {
        ssize_t written = write(STDERR_FILENO, message, length);
        if (written <= 0)
            break;
        message += written;
        length -= (size_t)written;
    }
    _exit(code);
}

/* "rank 1 of 4 on host": a launcher may keep the number of ranks to itself. */
static void who(char *text, size_t bytes)
{
    const tsr_launched launched = tsr_launcher_look();
    char host[64] = "", of[16] = "";
    gethostname(host, sizeof host - 1);
    if (launched.size > 0)
        snprintf(of, sizeof of, " of %d", launched.size);
    snprintf(text, bytes, "rank %d%s on %s", launched.rank, of, host);
}

/* Who waits, and for whom as far as that is known. */
static void give_up(const tsr_watchdog *w, tsr_mpi_stage stage)
{
    char missing[128], me[128], text[768];
    who(me, sizeof me);
    tsr_comm_mpi_missing(missing, sizeof missing);
    if (w->at_end)
        snprintf(text, sizeof text,
                 "tessera: %s has waited %g s (ddp_timeout) for MPI to end: mpirun or another rank "
                 "is stopped or gone; what this rank had to do was done before\n",
                 me, w->seconds);
    else if (stage == TSR_MPI_MEETING)
        snprintf(text, sizeof text,
                 "tessera: %s has waited %g s (ddp_timeout) for %s to come, inside MPI: a process "
                 "or mpirun is stopped, or a host cannot be reached\n",
                 me, w->seconds, *missing ? missing : "the other ranks");
    else
        snprintf(text, sizeof text,
                 "tessera: %s has waited %g s (ddp_timeout) inside MPI_Init for the other ranks: "
                 "one of them has not started, or mpirun is stopped or gone\n",
                 me, w->seconds);
    end(text, w->code);
}

static void *watch(void *user)
{
    tsr_watchdog *w = user;
    tsr_mpi_stage seen = TSR_MPI_APART;
    double since = tsr_now();
    while (!atomic_load(&w->stopped)) {
        tsr_mpi_stage stage = tsr_comm_mpi_stage();
        double seconds = w->seconds + (stage == TSR_MPI_MEETING ? GRACE_SECONDS : 0);
        if (stage == TSR_MPI_TOGETHER && !w->at_end)
            return NULL;
        if (stage == TSR_MPI_APART || stage != seen)
            since = tsr_now();
        seen = stage;
        if (tsr_now() - since > seconds)
            give_up(w, stage);
        usleep((useconds_t)(LOOK_SECONDS * 1e6));
    }
    return NULL;
}

static tsr_watchdog *start(double seconds, bool at_end, int code)
{
    tsr_watchdog *w = tsr_launcher_look().of_mpi ? calloc(1, sizeof *w) : NULL;
    if (!w)
        return NULL;
    w->at_end = at_end;
    w->seconds = seconds;
    w->code = code ? code : 71;
    if (pthread_create(&w->thread, NULL, watch, w) == 0)
        return w;
    free(w);
    return NULL;
}

tsr_watchdog *tsr_watchdog_start(double seconds)
{
    return start(seconds, false, 0);
}

void tsr_watchdog_stop(tsr_watchdog *watchdog)
{
    if (!watchdog)
        return;
    atomic_store(&watchdog->stopped, true);
    pthread_join(watchdog->thread, NULL);
    free(watchdog);
}

void tsr_watchdog_end(double seconds, int code)
{
    (void)start(seconds, true, code);
}
