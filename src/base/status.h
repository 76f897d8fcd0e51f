/*
 * base/status.h: what a call returns, and the message of the first detector.
 *
 * Every function that can fail returns a tsr_status: zero or a negative code. The first detector
 * calls tsr_fail, which stores a message for the calling thread; callers only pass the code on. A
 * worker thread's error is carried to the thread that waits for it (tsr_error_take, tsr_error_put).
 *
 * A message names the file, tensor or key, what was found, what was expected and what to do. It is a line; what a terminal
 * would obey, in a name that it quotes, is escaped (base/escape.h).
 */
#ifndef TSR_BASE_STATUS_H
#define TSR_BASE_STATUS_H

#include "tessera_status.h"

#include <stdbool.h>
#include <stddef.h>

#define TSR_ERROR_BYTES 16384 /* longest message, with its zero */

/* Stores the message (printf) for this thread and returns `code`, which must be negative. */
tsr_status tsr_fail(tsr_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Likewise, where newlines stay: for a message that is made of lines, and for one that another rank made. */
tsr_status tsr_fail_lines(tsr_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The message of this thread's last tsr_fail; "" if there was none. Borrowed, until the next
 * tsr_fail. */
const char *tsr_last_error(void);

/* The exit code of the program for a status: 0, 64, 65, 70, 71, 75, 76 or 78. */
int tsr_status_exit_code(tsr_status status);

/* Why a path could not be opened for reading, by its errno. TSR_EDATA: another path or another permission
 * mends it; TSR_EIO, TSR_ENOMEM: the system failed, or ran out of something. */
tsr_status tsr_status_of_open(int error);

/* "TSR_EDATA" and the like. */
const char *tsr_status_name(tsr_status status);

/* An error on its way from one thread to another. */
typedef struct {
    tsr_status status;
    char message[TSR_ERROR_BYTES];
} tsr_error;

/* Copies this thread's last message and `status` into *error. */
void tsr_error_take(tsr_error *error, tsr_status status);

/* Makes *error this thread's last error and returns its status (TSR_OK leaves the message alone).
 */
tsr_status tsr_error_put(const tsr_error *error);

/* Passes a failure on: if (status < 0) return it. */
#define TSR_TRY(call)                                                                              \
    do {                                                                                           \
        tsr_status tsr_try_status_ = (call);                                                       \
        if (tsr_try_status_ < 0)                                                                   \
            return tsr_try_status_;                                                                \
    } while (0)

#endif
