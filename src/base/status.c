#include "base/status.h"

#include "base/escape.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_message[TSR_ERROR_BYTES];

static void keep(const char *format, va_list args, tsr_escape_form form)
{
    char message[TSR_ERROR_BYTES]; /* the arguments may point into last_message */
    vsnprintf(message, sizeof message, format, args);
    tsr_escape(last_message, sizeof last_message, message, strlen(message), form);
}

tsr_status tsr_fail(tsr_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    keep(format, args, TSR_ESCAPE_LINE);
    va_end(args);
    return code;
}

tsr_status tsr_fail_lines(tsr_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    keep(format, args, TSR_ESCAPE_LINES);
    va_end(args);
    return code;
}

/* Part of the public interface (tessera.h) too. */
__attribute__((visibility("default"))) const char *tsr_last_error(void)
{
    return last_message;
}

static const struct {
    tsr_status status;
    int exit_code;
    const char *name;
} codes[] = {
    {TSR_OK, 0, "TSR_OK"},
    {TSR_JOB_DONE, 0, "TSR_JOB_DONE"},
    {TSR_EINVAL, 70, "TSR_EINVAL"},
    {TSR_EUNSUPPORTED, 70, "TSR_EUNSUPPORTED"},
    {TSR_EUSAGE, 64, "TSR_EUSAGE"},
    {TSR_ECONFIG, 78, "TSR_ECONFIG"},
    {TSR_EDATA, 65, "TSR_EDATA"},
    {TSR_EIO, 71, "TSR_EIO"},
    {TSR_ENOMEM, 71, "TSR_ENOMEM"},
    {TSR_EINTERNAL, 70, "TSR_EINTERNAL"},
    {TSR_ESTOPPED, 75, "TSR_ESTOPPED"},
    {TSR_ESTOPPED_UNSAVED, 71, "TSR_ESTOPPED_UNSAVED"},
    {TSR_ECOMM, 71, "TSR_ECOMM"},
    {TSR_ETIMEOUT, 71, "TSR_ETIMEOUT"},
    {TSR_ERANKS, 76, "TSR_ERANKS"},
    {TSR_EDEVICE, 71, "TSR_EDEVICE"},
};

int tsr_status_exit_code(tsr_status status)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == status)
            return codes[i].exit_code;
    return 70;
}

tsr_status tsr_status_of_open(int error)
{
    static const int data[] = {EACCES, EPERM, ENOENT, ENOTDIR, ELOOP,
                               EISDIR, ENXIO, ENODEV, EINVAL,  ENAMETOOLONG};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        if (error == data[i])
            return TSR_EDATA;
    return error == ENOMEM ? TSR_ENOMEM : TSR_EIO;
}

/* As tsr_last_error. */
__attribute__((visibility("default"))) const char *tsr_status_name(tsr_status status)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == status)
            return codes[i].name;
    return "unknown status";
}

void tsr_error_take(tsr_error *error, tsr_status status)
{
    error->status = status;
    memcpy(error->message, last_message, strlen(last_message) + 1);
}

tsr_status tsr_error_put(const tsr_error *error)
{
    if (error->status < 0)
        memmove(last_message, error->message, strlen(error->message) + 1);
    return error->status;
}
