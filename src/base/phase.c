#include "base/phase.h"

#include <stddef.h>

static _Thread_local struct {
    tsr_phase_sink *sink;
    void *user;
} current;

void tsr_phase_set(tsr_phase_sink *sink, void *user)
{
    current.sink = sink;
    current.user = user;
}

tsr_phase_listener tsr_phase_get(void)
{
    return (tsr_phase_listener){current.sink, current.user};
}

void tsr_phase_at(const char *phase, double done, double total)
{
    if (current.sink)
        current.sink(current.user, phase, done < total ? done : total, total);
}
