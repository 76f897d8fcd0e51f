/*
 * table/snappy.h: one block in Snappy's format, as Parquet's pages are packed
 * (https://github.com/google/snappy/blob/main/format_description.txt).
 *
 * Debian's library is C++: libtessera.a would need its run-time library at every link, for what takes 60 lines here.
 */
#ifndef TSR_TABLE_SNAPPY_H
#define TSR_TABLE_SNAPPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Unpacks packed[0..packed_bytes) into out[0..bytes). False: it is damaged, or has another length. */
bool tsr_snappy_unpack(uint8_t *out, size_t bytes, const uint8_t *packed, size_t packed_bytes);

#endif
