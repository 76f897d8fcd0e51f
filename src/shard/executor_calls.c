/*
 * executor_calls.c: what the executor itself runs on the streams, around the work of an op.
 */
#include "base/clock.h"
#include "shard/executor_parts.h"

#include <signal.h>
#include <string.h>

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
    executor->op_start[op->stream] = tsr_now();
    if (op->stream == TSR_STREAM_COMM) {
        tsr_comm_publish(executor->options.world, call->step, tsr_op_name((tsr_op_kind)op->kind),
                         op->unit);
        if (op->kind == TSR_OP_GATHER && op->stage >= 0) {
            executor->stage_wait[op->slot][0] = executor->stage_wait_start;
            executor->stage_wait[op->slot][1] = executor->op_start[op->stream];
        }
    }
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

static void log_append(tsr_executor *executor, const tsr_op_call *call)
{
    const tsr_plan_op *op = &call->op;
    tsr_op_record record = {.step = call->step,
                            .kind = op->kind,
                            .stream = op->stream,
                            .phase = op->phase,
                            .unit = op->unit,
                            .bytes = op->bytes,
                            .issue = call->issue,
                            .start = executor->op_start[op->stream],
                            .end = tsr_now()};
    pthread_mutex_lock(&executor->log_lock);
    executor->log[executor->log_count++ % executor->options.log_count] = record;
    pthread_mutex_unlock(&executor->log_lock);
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
    if (executor->log)
        log_append(executor, call);
    return TSR_OK;
}

/* ---- exposed time ---- */

tsr_status tsr_wait_call_begin(void *args, tsr_pool *pool)
{
    (void)pool;
    const tsr_wait_call *call = args;
    call->executor->wait_start = tsr_now();
    return TSR_OK;
}

static void add_exposed(tsr_executor *executor, tsr_wait_cause cause, double seconds)
{
    if (seconds > 0)
        atomic_fetch_add(&executor->exposed_ns[cause], (uint64_t)(seconds * 1e9));
}

/* A gather that stood waiting for its stage passes that part of the blame on to the copy. */
tsr_status tsr_wait_call_end(void *args, tsr_pool *pool)
{
    (void)pool;
    const tsr_wait_call *call = args;
    tsr_executor *executor = call->executor;
    double now = tsr_now(), from = executor->wait_start, copy = 0;
    if (call->cause == TSR_CAUSE_GATHER && call->slot >= 0) {
        const double *wait = executor->stage_wait[call->slot];
        double begin = wait[0] > from ? wait[0] : from, end = wait[1] < now ? wait[1] : now;
        copy = end > begin ? end - begin : 0;
        add_exposed(executor, TSR_CAUSE_H2D, copy);
    }
    add_exposed(executor, call->cause, now - from - copy);
    executor->wait_start = now;
    return TSR_OK;
}

tsr_status tsr_wait_call_stage(void *args, tsr_pool *pool)
{
    (void)pool;
    const tsr_wait_call *call = args;
    call->executor->stage_wait_start = tsr_now();
    return TSR_OK;
}
