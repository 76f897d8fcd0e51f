/* comm_self.c: one rank, which has everything already. */
#include "comm/comm_parts.h"

#include <stdlib.h>
#include <string.h>

static tsr_status self_all_gather(tsr_comm *comm, const tsr_comm_call *call,
                                  const tsr_gather_range *ranges, int count)
{
    (void)comm;
    (void)call;
    for (int i = 0; i < count; i++)
        if (ranges[i].bytes && ranges[i].receive != ranges[i].send)
            memcpy(ranges[i].receive, ranges[i].send, ranges[i].bytes);
    return TSR_OK;
}

/* There is no other piece than its own. */
static tsr_status self_exchange(tsr_comm *comm, const tsr_comm_call *call,
                                const tsr_exchange_range *ranges, int count)
{
    (void)comm;
    (void)call;
    (void)ranges;
    (void)count;
    return TSR_OK;
}

static tsr_status self_all_reduce(tsr_comm *comm, const tsr_comm_call *call, int64_t *data,
                                  uint64_t count, tsr_reduce_op op)
{
    (void)comm;
    (void)call;
    (void)data;
    (void)count;
    (void)op;
    return TSR_OK;
}

static tsr_status self_broadcast(tsr_comm *comm, const tsr_comm_call *call, void *data,
                                 uint64_t bytes, int root)
{
    (void)comm;
    (void)call;
    (void)data;
    (void)bytes;
    (void)root;
    return TSR_OK;
}

static tsr_status self_barrier(tsr_comm *comm, const tsr_comm_call *call)
{
    (void)comm;
    (void)call;
    return TSR_OK;
}

static void self_close(tsr_comm *root)
{
    free(root->gate.board);
}

static const tsr_comm_ops self_ops = {
    .name = "self",
    .all_gather = self_all_gather,
    .exchange = self_exchange,
    .all_reduce = self_all_reduce,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
    .close = self_close,
};

tsr_status tsr_comm_create_self(tsr_comm **out)
{
    int zero = 0;
    tsr_board *board;
    TSR_TRY(tsr_board_create(&board, 1));
    tsr_status status = tsr_comm_new(out, &self_ops, NULL, board, NULL, 0, 0, 1, &zero, &zero, 300);
    if (status < 0)
        free(board);
    return status;
}
