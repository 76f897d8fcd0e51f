#include "base/process.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXITING 0x4 /* Linux's PF_EXITING */

typedef struct {
    char state;
    long parent;
    unsigned flags;
    unsigned long long start;
} facts;

static bool read_facts(facts *out, long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    const char *end = strrchr(text, ')'); /* the name before it may hold anything */
    return end && sscanf(end,
                         ") %c %ld %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                         "%*d %llu",
                         &out->state, &out->parent, &out->flags, &out->start) == 4;
}

static tsr_process process(long pid)
{
    facts f;
    return pid > 0 && read_facts(&f, pid) ? (tsr_process){pid, f.start} : (tsr_process){0};
}

tsr_process tsr_process_self(void)
{
    return process((long)getpid());
}

bool tsr_process_lives(const tsr_process *process)
{
    facts f;
    return process->pid > 0 && read_facts(&f, process->pid) && f.start == process->start &&
           !strchr("ZXx", f.state) && !(f.flags & EXITING);
}

/* Whether the process was started with this in its environment. */
static bool has_variable(long pid, const char *variable)
{
    char path[64], *text = NULL;
    size_t capacity = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&text, &capacity, 0, file) > 0)
        found = !strcmp(text, variable);
    if (file)
        fclose(file);
    free(text);
    return found;
}

/* Scripts may stand between: they have the job's variables, which what started the job has not. */
tsr_process tsr_process_launcher(void)
{
    static const char name[] = "PMIX_NAMESPACE";
    char variable[512];
    const char *job = getenv(name);
    facts f;
    if (!job || (size_t)snprintf(variable, sizeof variable, "%s=%s", name, job) >= sizeof variable)
        return (tsr_process){0};
    long pid = (long)getppid();
    while (pid > 1 && has_variable(pid, variable) && read_facts(&f, pid))
        pid = f.parent;
    return process(pid);
}

uint64_t tsr_process_host(void)
{
    char text[256] = "";
    struct stat info = {0};
    gethostname(text, sizeof text - 1);
    uint64_t hash = tsr_hash(TSR_HASH_START, text, strlen(text));
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (fgets(text, sizeof text, file))
            hash = tsr_hash(hash, text, strlen(text));
        fclose(file);
    }
    if (stat("/proc/self/ns/pid", &info) == 0)
        hash = tsr_hash(hash, &info.st_ino, sizeof info.st_ino);
    return hash;
}
