#include "base/log.h"

#include "base/escape.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct {
    tsr_log_sink *sink;
    void *user;
    tsr_log_level level;
    bool mute;
} current;

void tsr_log_set(tsr_log_sink *sink, void *user, tsr_log_level level)
{
    current.sink = sink;
    current.user = user;
    current.level = level;
}

tsr_log_listener tsr_log_get(void)
{
    return (tsr_log_listener){current.sink, current.user, current.level};
}

void tsr_log_mute(bool on)
{
    current.mute = on;
}

void tsr_log(tsr_log_level level, const char *format, ...)
{
    if (!current.sink || current.mute || level > current.level)
        return;
    char raw[4096], line[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    tsr_escape(line, sizeof line, raw, strlen(raw), TSR_ESCAPE_LINE);
    current.sink(current.user, level, line);
}
