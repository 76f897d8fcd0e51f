/*
 * kernels/spans.h: which rows of a micro-batch are whose, where the ranks of a group share it. Rows are cut into spans, from
 * the first row on and whatever the documents are, and spans are dealt back and forth: 0 1 2 2 1 0 0 1 2 ... A causal row
 * costs the more the later it is, and so each rank has as many early as late ones. For the CPU and for GPUs.
 */
#ifndef TSR_KERNELS_SPANS_H
#define TSR_KERNELS_SPANS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TSR_SPANS_INLINE static __host__ __device__ __forceinline__
#else
#define TSR_SPANS_INLINE static inline
#endif

/* rows: of a span; on GPUs a multiple of TSR_SPAN_STEP. rows 0 or ranks < 2: everything is this rank's. */
typedef struct {
    int64_t rows;
    int32_t ranks, rank;
} tsr_spans;

#define TSR_SPAN_STEP 128 /* the largest block of rows of a kernel: each then lies in one span */

TSR_SPANS_INLINE bool tsr_spans_shared(const tsr_spans *s)
{
    return s->rows > 0 && s->ranks > 1;
}

/* turn: of 2 ranks. */
TSR_SPANS_INLINE int32_t tsr_turn_owner(int32_t turn, int32_t ranks)
{
    return turn < ranks ? turn : 2 * ranks - 1 - turn;
}

TSR_SPANS_INLINE int32_t tsr_span_owner(const tsr_spans *s, int64_t span)
{
    if (!tsr_spans_shared(s))
        return s->rank;
    return tsr_turn_owner((int32_t)(span % (2 * s->ranks)), s->ranks);
}

TSR_SPANS_INLINE bool tsr_row_is_own(const tsr_spans *s, int64_t row)
{
    return !tsr_spans_shared(s) || tsr_span_owner(s, row / s->rows) == s->rank;
}

/* The place of an own row among the own ones; -1: it is another rank's. */
TSR_SPANS_INLINE int64_t tsr_spans_place(const tsr_spans *s, int64_t row)
{
    if (!tsr_spans_shared(s))
        return row;
    int64_t span = row / s->rows; /* of each `ranks` that follow each other, one is own */
    return tsr_span_owner(s, span) == s->rank ? span / s->ranks * s->rows + row % s->rows : -1;
}

/* The own spans in ascending order, of a micro-batch without end. */
TSR_SPANS_INLINE int64_t tsr_spans_own(const tsr_spans *s, int64_t index)
{
    return tsr_spans_shared(s) ? index * s->ranks + (index % 2 ? s->ranks - 1 - s->rank : s->rank)
                               : index;
}

/* Whether one of rows [first, end) is own. */
TSR_SPANS_INLINE bool tsr_spans_touch(const tsr_spans *s, int64_t first, int64_t end)
{
    for (; first < end && !tsr_row_is_own(s, first); first = (first / s->rows + 1) * s->rows)
        ;
    return first < end;
}

/* How many of a micro-batch's rows are own. */
TSR_SPANS_INLINE int64_t tsr_spans_own_rows(const tsr_spans *s, int64_t tokens)
{
    if (!tsr_spans_shared(s))
        return tokens;
    int64_t own = 0;
    for (int64_t first = 0; first < tokens; first += s->rows)
        if (tsr_row_is_own(s, first))
            own += s->rows < tokens - first ? s->rows : tokens - first;
    return own;
}

/* Rounds of a micro-batch: so many spans as there are ranks, one of each. */
TSR_SPANS_INLINE int64_t tsr_spans_rounds(const tsr_spans *s, int64_t tokens)
{
    return (tokens + s->rows * s->ranks - 1) / (s->rows * s->ranks);
}

/* Of the longest span of the last round: all others but those of that round are whole. */
TSR_SPANS_INLINE int64_t tsr_spans_last_rows(const tsr_spans *s, int64_t tokens)
{
    int64_t rest = tokens - (tsr_spans_rounds(s, tokens) - 1) * s->rows * s->ranks;
    return rest < s->rows ? rest : s->rows;
}

/* Rows of a rank if each span were as long as the longest of its round. */
TSR_SPANS_INLINE int64_t tsr_spans_dealt_rows(const tsr_spans *s, int64_t tokens)
{
    return tokens ? (tsr_spans_rounds(s, tokens) - 1) * s->rows + tsr_spans_last_rows(s, tokens)
                  : 0;
}

/* How many of a micro-batch's rows the rank has that has most of them. */
TSR_SPANS_INLINE int64_t tsr_spans_most_rows(const tsr_spans *s, int64_t tokens)
{
    tsr_spans of = *s;
    int64_t most = 0;
    if (!tsr_spans_shared(s))
        return tokens;
    for (of.rank = 0; of.rank < of.ranks; of.rank++) {
        int64_t own = tsr_spans_own_rows(&of, tokens);
        most = own > most ? own : most;
    }
    return most;
}

#endif
