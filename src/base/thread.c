#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

tsr_status tsr_thread_start(pthread_t *out, const char *name, void *(*function)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, NULL, function, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return tsr_fail(TSR_EDEVICE, "thread %s cannot be started: %s", name, strerror(error));
    char short_name[16]; /* what the kernel keeps */
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*out, short_name);
    return TSR_OK;
}
