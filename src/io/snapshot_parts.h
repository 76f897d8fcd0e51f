/*
 * io/snapshot_parts.h: what snapshot.c (a checkpoint's content) and snapshot_place.c (its directory)
 * share. Inside src/io.
 */
#ifndef TSR_IO_SNAPSHOT_PARTS_H
#define TSR_IO_SNAPSHOT_PARTS_H

#include "base/status.h"

/* "<directory>/<name>"; TSR_ECONFIG: too long. */
tsr_status tsr_snapshot_join(char *out, size_t bytes, const char *directory, const char *name);

#endif
