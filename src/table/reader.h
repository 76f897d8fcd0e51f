/*
 * table/reader.h: the bytes of a file in their order, unpacked where they are gzip (RFC 1952) or Zstandard (RFC 8878).
 * What follows the first gzip member or Zstandard frame is unpacked too, as gunzip and zstd do.
 *
 * Memory  Two buffers of 128 KiB and the decoder's window: 32 KiB of gzip, at most 128 MiB of Zstandard.
 * Errors  TSR_EDATA names the file and where in it the stream is cut or damaged; TSR_EIO: reading failed.
 */
#ifndef TSR_TABLE_READER_H
#define TSR_TABLE_READER_H

#include "base/status.h"

#include <stdint.h>

typedef struct tsr_reader tsr_reader;

/* Takes the descriptor, also on failure; `path` is for messages and is borrowed. A byte order mark (UTF-8) at the start is
 * passed over. The caller owns *out. */
tsr_status tsr_reader_open(tsr_reader **out, int fd, const char *path);
void tsr_reader_close(tsr_reader *reader);

/* What comes next: *bytes 0 at the end only, and 128 KiB of it at first where the file has as many. Borrowed until the next
 * call. */
tsr_status tsr_reader_look(const char **data, size_t *bytes, tsr_reader *reader);

/* Passes over the first of these. */
void tsr_reader_take(tsr_reader *reader, size_t bytes);

/* "gzip", "Zstandard", or NULL: the file is not packed. */
const char *tsr_reader_packing(const tsr_reader *reader);

/* What is wrong with the packing of the file, once reading it has failed for that: "the gzip stream is damaged at byte 12 of the
 * file: incorrect data check". NULL: nothing is known. Borrowed. */
const char *tsr_reader_damage(const tsr_reader *reader);

/* Bytes of the file that were read so far. */
uint64_t tsr_reader_done(const tsr_reader *reader);

#endif
