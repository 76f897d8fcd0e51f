/*
 * shard/context.h: the ranks that share micro-batches, and the rows of all of them brought together.
 *
 * Each rank has the rows of its own spans (kernels/spans.h). What needs all rows of a value, as attention does, puts them
 * into their places in the micro-batch, and gets the others' there; or each rank gets some columns of all rows. Rows are copied; what is added up are integers, or
 * words of which one rank alone has any but zeros. So the bits are those of one rank.
 *
 * Order    All ranks of a group make the same calls in the same order, among the other collectives of a run.
 * Threads  One issues, the same as the executor's.
 * Errors   As of every collective (comm/comm.h).
 */
#ifndef TSR_SHARD_CONTEXT_H
#define TSR_SHARD_CONTEXT_H

#include "comm/comm.h"
#include "kernels/spans.h"

typedef struct tsr_context tsr_context;

/* comm: of the ranks that share, in the order of their spans; for memory of the streams' device. Borrowed, as the streams
 * are. On success the caller owns *out. */
tsr_status tsr_context_create(tsr_context **out, tsr_comm *comm, tsr_stream *compute,
                              tsr_stream *collectives, int64_t span_rows);
/* When the streams are idle. NULL is fine. */
void tsr_context_destroy(tsr_context *context);

/* `wait`, with its user, is called when compute begins to wait for the stream of collectives, and when it is past that:
 * what it enqueues on compute then lies before and behind the wait. NULL: nobody is told. */
void tsr_context_watch(tsr_context *context, tsr_status (*wait)(void *user, bool over), void *user);

/* Which rows are this rank's; of NULL: all. */
tsr_spans tsr_context_spans(const tsr_context *context);

/* A value of a micro-batch: a row of `row_bytes` for each token of all ranks. */
typedef struct {
    void *all; /* [tokens] */
    uint64_t row_bytes;
} tsr_context_rows;

/* Begins to give every rank all rows of `count` values, of which each has put its own into their places on compute. They
 * are there when compute has waited for a mark that is set afterwards. */
tsr_status tsr_context_gather(tsr_context *context, const tsr_context_rows *rows, int count,
                              int64_t tokens);

/* Marks how far the stream of collectives is; compute's next work comes after what lay before the mark, which was set. */
#define TSR_CONTEXT_MARKS 4
tsr_status tsr_context_mark(tsr_context *context, int mark);
tsr_status tsr_context_await(tsr_context *context, int mark);

/* A value of a micro-batch, divided in another way: each rank has some columns of all rows, in the order of tokens. `pieces` are own
 * rows, for each rank with its columns. Rows: as many as tsr_spans_dealt_rows for each rank. */
typedef struct {
    void *pieces; /* [ranks, rows] */
    void *all;    /* [ranks rows] */
    uint64_t row_bytes;
} tsr_context_columns;

/* Begins to bring all rows of own columns from the other ranks' pieces; or, back, pieces of own rows from all rows of theirs. Own
 * rows of own columns are not moved. At most TSR_DEAL_RANGES; else as a gather. */
tsr_status tsr_context_deal(tsr_context *context, const tsr_context_columns *columns, int count,
                            int64_t tokens, bool back);

/* Integers of all ranks added up, in place. */
tsr_status tsr_context_sum(tsr_context *context, int64_t *data, uint64_t count);
/* The same of an even number of int32, on 8 bytes, as attention's kernels ask for it (kernels/attention.h); `stream` is compute. With
 * `rest` the call goes on on the stream of collectives. */
tsr_status tsr_context_sum_narrow(void *context, tsr_stream *stream, int32_t *data, uint64_t count,
                                  tsr_stream **rest);

#endif
