/* What a program does at its end: launch_program ok | agreed | abort | leaves. Rank 0 prints. */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static tsr_status work(tsr_comm *comm, tsr_stream *stream, const char *how)
{
    int rank = tsr_comm_rank(comm), last = tsr_comm_size(comm) - 1;
    tsr_status status = TSR_OK;
    if (!strcmp(how, "agreed") && rank == last)
        status = tsr_fail(TSR_EDATA, "row 9 is bad");
    if (!strcmp(how, "abort") && rank == last) {
        status = tsr_fail(TSR_EDATA, "row 9 is bad");
        tsr_comm_abort(comm, status, tsr_last_error());
    } else if (!strcmp(how, "abort")) {
        status = tsr_comm_barrier(comm, stream);
        if (status == TSR_OK)
            status = tsr_stream_synchronize(stream);
    }
    return tsr_comm_agree(comm, stream, status, NULL);
}

int main(int argc, char **argv)
{
    tsr_comm *comm;
    tsr_device *device;
    tsr_stream *stream;
    if (argc != 2 || tsr_comm_create_mpi(&comm, 20) < 0 ||
        tsr_device_create_cpu(&device, NULL) < 0 || tsr_stream_create(&stream, device, "comm") < 0)
        return 3;
    int rank = tsr_comm_rank(comm);
    if (!strcmp(argv[1], "leaves") && rank == tsr_comm_size(comm) - 1)
        _exit(70);
    tsr_status status = work(comm, stream, argv[1]);
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    tsr_comm_destroy(comm);
    if (status < 0 && rank == 0) {
        usleep(300000); /* the other ranks are long done by now */
        fprintf(stderr, "error: %s\n", tsr_last_error());
    }
    return tsr_status_exit_code(status);
}
