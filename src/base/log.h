/*
 * base/log.h: messages for people. The library prints nothing by itself: without a sink a message
 * is dropped. Each thread has its own sink, so that ranks that are threads do not take each
 * other's; a call of the library sets the caller's for as long as it runs. A message is one line of which no terminal obeys
 * anything: what it quotes is escaped (base/escape.h).
 */
#ifndef TSR_BASE_LOG_H
#define TSR_BASE_LOG_H

#include <stdbool.h>

typedef enum { TSR_LOG_ERROR, TSR_LOG_WARNING, TSR_LOG_INFO, TSR_LOG_DEBUG } tsr_log_level;

/* Called with one line without its newline. */
typedef void tsr_log_sink(void *user, tsr_log_level level, const char *line);

/* For this thread. `sink` NULL: messages are dropped. Messages above `level` are dropped. */
void tsr_log_set(tsr_log_sink *sink, void *user, tsr_log_level level);

/* What is set for this thread, for a call to put back at its end: a sink may call the library too. */
typedef struct {
    tsr_log_sink *sink;
    void *user;
    tsr_log_level level;
} tsr_log_listener;

tsr_log_listener tsr_log_get(void);

/* For this thread, while on: messages are dropped. For what is tried and not done. */
void tsr_log_mute(bool on);

void tsr_log(tsr_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
