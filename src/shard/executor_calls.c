/*
 * executor_calls.c: what the executor itself runs on the streams, around the work of an op.
 */
#include "shard/executor_parts.h"

#include <signal.h>

/* ---- faults ---- */

static void sleep_ms(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

static tsr_status inject(const tsr_op_call *call)
{
    const tsr_executor *executor = call->executor;
    switch (call->fault) {
    case TSR_FAULT_FAIL:
        return tsr_fail(TSR_EDEVICE, "injected failure at %s, operation %llu",
                        tsr_op_name((tsr_op_kind)call->op.kind), (unsigned long long)call->serial);
    case TSR_FAULT_STOP:
        while (tsr_device_check(executor->options.device) == TSR_OK)
            sleep_ms(1);
        return tsr_device_check(executor->options.device);
    case TSR_FAULT_DELAY:
        sleep_ms(executor->options.debug.delay_ms);
        return TSR_OK;
    case TSR_FAULT_KILL:
        raise(SIGKILL);
        return TSR_OK;
    default:
        return TSR_OK;
    }
}

/* ---- slots ---- */

/* The part of a slot that an op fills; -1: none. */
static int filled_part(const tsr_plan_op *op)
{
    if (op->slot < 0)
        return -1;
    if (op->kind == TSR_OP_GATHER_T)
        return TSR_PART_TRAINABLE;
    return op->kind == TSR_OP_GATHER || op->kind == TSR_OP_H2D ? TSR_PART_FROZEN : -1;
}

static void slot_lives(tsr_executor *executor, int slot)
{
    unsigned live = atomic_fetch_or(&executor->live, 1u << slot) | 1u << slot;
    int count = __builtin_popcount(live);
    int most = atomic_load(&executor->live_most);
    while (count > most && !atomic_compare_exchange_weak(&executor->live_most, &most, count))
        ;
}

/* I6: the slot holds the unit, as the plan last filled it. */
static tsr_status check_slot(const tsr_op_call *call)
{
    const tsr_plan_op *op = &call->op;
    for (int part = 0; part < TSR_PART_COUNT; part++) {
        const tsr_slot_stamp *stamp = &call->executor->stamp[op->slot][part];
        if (call->expected[part] == 0)
            continue;
        if (stamp->unit != op->unit || stamp->serial != call->expected[part])
            return tsr_fail(TSR_EINTERNAL,
                            "%s of unit %d: slot %d holds the %s part of unit %d, fill %llu, "
                            "instead of fill %llu",
                            tsr_op_name((tsr_op_kind)op->kind), op->unit, op->slot,
                            part == TSR_PART_FROZEN ? "frozen" : "trainable", stamp->unit,
                            (unsigned long long)stamp->serial,
                            (unsigned long long)call->expected[part]);
    }
    return TSR_OK;
}

/* ---- around an op ---- */

tsr_status tsr_op_call_begin(void *args, tsr_pool *pool)
{
    (void)pool;
    const tsr_op_call *call = args;
    tsr_executor *executor = call->executor;
    const tsr_plan_op *op = &call->op;
    if (op->stream == TSR_STREAM_COMM)
        tsr_comm_publish(executor->options.world, call->step, tsr_op_name((tsr_op_kind)op->kind),
                         op->unit);
    int part = filled_part(op);
    if (part >= 0) {
        executor->stamp[op->slot][part] = (tsr_slot_stamp){.unit = -1};
        slot_lives(executor, op->slot);
    }
    bool uses = op->slot >= 0 && (op->kind == TSR_OP_COMPUTE || op->kind == TSR_OP_NORM);
    if (uses && executor->options.debug.check)
        TSR_TRY(check_slot(call));
    return inject(call);
}

tsr_status tsr_op_call_end(void *args, tsr_pool *pool)
{
    (void)pool;
    const tsr_op_call *call = args;
    tsr_executor *executor = call->executor;
    const tsr_plan_op *op = &call->op;
    int part = filled_part(op);
    if (part >= 0)
        executor->stamp[op->slot][part] =
            (tsr_slot_stamp){.unit = op->unit, .serial = call->serial};
    if (op->releases)
        atomic_fetch_and(&executor->live, ~(1u << op->slot));
    return TSR_OK;
}
