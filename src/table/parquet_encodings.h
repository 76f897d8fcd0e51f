/*
 * table/parquet_encodings.h: decoders of Parquet's encodings, a value at a time (Encodings.md of
 * https://github.com/apache/parquet-format). Private to table/parquet.h.
 *
 * They read [at, end) and allocate nothing: a few bytes can stand for billions of equal values. False means damaged, or no
 * more values.
 */
#ifndef TSR_TABLE_PARQUET_ENCODINGS_H
#define TSR_TABLE_PARQUET_ENCODINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The hybrid of run lengths and bit packing: levels, dictionary indices, booleans. */
typedef struct {
    const uint8_t *at, *end;
    int width; /* bits of a value, 0 to 32 */
    uint64_t left;
    bool packed;
    uint32_t value;       /* of a run */
    const uint8_t *group; /* of packed values, which end at `at` */
    uint64_t bit;         /* in it, of the next value */
} tsr_parquet_runs;

void tsr_parquet_runs_start(tsr_parquet_runs *runs, const uint8_t *at, const uint8_t *end,
                            int width);
bool tsr_parquet_runs_next(uint32_t *value, tsr_parquet_runs *runs);

/* DELTA_BINARY_PACKED; sums wrap around. */
typedef struct {
    const uint8_t *at, *end;
    uint64_t left; /* values */
    uint64_t value, least_delta;
    uint64_t per_miniblock, miniblocks;
    const uint8_t *widths; /* of the block's miniblocks that were not begun */
    uint64_t widths_left;
    const uint8_t *miniblock; /* ends at `at` */
    uint64_t in_miniblock;    /* values left */
    uint64_t bit;
    int width;
    bool first;
} tsr_parquet_delta;

/* False: the header is damaged, or says more than `most` values. */
bool tsr_parquet_delta_start(tsr_parquet_delta *delta, const uint8_t *at, const uint8_t *end,
                             uint64_t most);
bool tsr_parquet_delta_next(int64_t *value, tsr_parquet_delta *delta);

/* Where the values end, found by reading all of them. */
bool tsr_parquet_delta_end(const uint8_t **end, const tsr_parquet_delta *delta);

#endif
