#include "shard/context.h"

#include <stdlib.h>

struct tsr_context {
    tsr_comm *comm;
    tsr_stream *compute, *collectives;
    tsr_event *placed, *arrived, *mark[TSR_CONTEXT_MARKS];
    tsr_spans spans;
    tsr_status (*wait)(void *user, bool over); /* NULL: nobody is told */
    void *user;
};

tsr_status tsr_context_create(tsr_context **out, tsr_comm *comm, tsr_stream *compute,
                              tsr_stream *collectives, int64_t span_rows)
{
    tsr_device *device = tsr_stream_device(compute);
    tsr_context *context = calloc(1, sizeof *context);
    if (!context)
        return tsr_fail(TSR_ENOMEM, "out of memory for the ranks that share micro-batches");
    *context = (tsr_context){.comm = comm,
                             .compute = compute,
                             .collectives = collectives,
                             .spans = {span_rows, tsr_comm_size(comm), tsr_comm_rank(comm)}};
    tsr_status status = tsr_event_create(&context->placed, device);
    if (status == TSR_OK)
        status = tsr_event_create(&context->arrived, device);
    for (int i = 0; i < TSR_CONTEXT_MARKS && status == TSR_OK; i++)
        status = tsr_event_create(&context->mark[i], device);
    if (status == TSR_OK)
        *out = context;
    else
        tsr_context_destroy(context);
    return status;
}

void tsr_context_destroy(tsr_context *context)
{
    if (!context)
        return;
    tsr_event_destroy(context->placed);
    tsr_event_destroy(context->arrived);
    for (int i = 0; i < TSR_CONTEXT_MARKS; i++)
        tsr_event_destroy(context->mark[i]);
    free(context);
}

void tsr_context_watch(tsr_context *context, tsr_status (*wait)(void *user, bool over), void *user)
{
    context->wait = wait;
    context->user = user;
}

tsr_spans tsr_context_spans(const tsr_context *context)
{
    return context ? context->spans : (tsr_spans){0};
}

/* Bytes from a row on. */
static char *row_at(void *rows, int64_t row, uint64_t row_bytes)
{
    return (char *)rows + (uint64_t)row * row_bytes;
}

/* The rows of a value from each rank, a broadcast each. */
static tsr_status send(tsr_context *context, const tsr_context_rows *rows, int64_t tokens)
{
    const tsr_spans *spans = &context->spans;
    for (int64_t span = 0, next; span * spans->rows < tokens; span = next) {
        int32_t owner = tsr_span_owner(spans, span);
        next = span + 1 + (tsr_span_owner(spans, span + 1) == owner); /* where the deal turns */
        int64_t first = span * spans->rows, end = next * spans->rows;
        uint64_t count = (uint64_t)((end < tokens ? end : tokens) - first);
        TSR_TRY(tsr_comm_broadcast(context->comm, context->collectives,
                                   row_at(rows->all, first, rows->row_bytes),
                                   count * rows->row_bytes, owner));
    }
    return TSR_OK;
}

/* What the stream of collectives is given from here on comes after what compute has. */
static tsr_status follow(tsr_context *context)
{
    TSR_TRY(tsr_event_record(context->placed, context->compute));
    return tsr_stream_wait(context->collectives, context->placed,
                           tsr_event_recorded(context->placed));
}

tsr_status tsr_context_gather(tsr_context *context, const tsr_context_rows *rows, int count,
                              int64_t tokens)
{
    TSR_TRY(follow(context));
    TSR_TRY(tsr_comm_group_begin(context->comm, context->collectives));
    tsr_status status = TSR_OK;
    for (int i = 0; i < count && status == TSR_OK; i++)
        status = send(context, &rows[i], tokens);
    tsr_status ended = tsr_comm_group_end(context->comm, context->collectives);
    return status < 0 ? status : ended;
}

tsr_status tsr_context_deal(tsr_context *context, const tsr_context_columns *columns, int count,
                            int64_t tokens, bool back)
{
    tsr_deal_range ranges[TSR_DEAL_RANGES];
    const tsr_spans *s = &context->spans;
    if (count > TSR_DEAL_RANGES)
        return tsr_fail(TSR_EINTERNAL, "%d values to be dealt", count);
    for (int i = 0; i < count; i++) {
        uint64_t row_bytes = columns[i].row_bytes;
        ranges[i] =
            (tsr_deal_range){columns[i].pieces, columns[i].all, (uint64_t)s->rows * row_bytes,
                             (uint64_t)tsr_spans_last_rows(s, tokens) * row_bytes};
    }
    TSR_TRY(follow(context));
    return tsr_comm_deal(context->comm, context->collectives, ranges, count,
                         tsr_spans_rounds(s, tokens), back);
}

tsr_status tsr_context_mark(tsr_context *context, int mark)
{
    return tsr_event_record(context->mark[mark], context->collectives);
}

/* For the latest record. */
static tsr_status await(tsr_context *context, tsr_event *event)
{
    if (context->wait)
        TSR_TRY(context->wait(context->user, false));
    TSR_TRY(tsr_stream_wait(context->compute, event, tsr_event_recorded(event)));
    return context->wait ? context->wait(context->user, true) : TSR_OK;
}

tsr_status tsr_context_await(tsr_context *context, int mark)
{
    return await(context, context->mark[mark]);
}

static tsr_status catch_up(tsr_context *context)
{
    TSR_TRY(tsr_event_record(context->arrived, context->collectives));
    return await(context, context->arrived);
}

/* On the stream of collectives, behind what compute has. */
static tsr_status sum(tsr_context *context, int64_t *data, uint64_t count, tsr_reduce_op op)
{
    TSR_TRY(follow(context));
    return tsr_comm_all_reduce(context->comm, context->collectives, data, count, op);
}

tsr_status tsr_context_sum(tsr_context *context, int64_t *data, uint64_t count)
{
    TSR_TRY(sum(context, data, count, TSR_SUM));
    return catch_up(context);
}

tsr_status tsr_context_sum_narrow(void *user, tsr_stream *stream, int32_t *data, uint64_t count,
                                  tsr_stream **rest)
{
    tsr_context *context = user;
    if (stream != context->compute || count % 2)
        return tsr_fail(TSR_EINTERNAL, "%llu int32 to be added up, on another stream or odd",
                        (unsigned long long)count);
    TSR_TRY(sum(context, (int64_t *)(void *)data, count / 2, TSR_SUM_HALVES));
    if (!rest)
        return catch_up(context);
    *rest = context->collectives;
    return TSR_OK;
}
