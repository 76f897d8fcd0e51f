/*
 * io/lfs.h: what Git leaves in place of a large file that was not downloaded.
 */
#ifndef TSR_IO_LFS_H
#define TSR_IO_LFS_H

#include "base/status.h"

#include <stddef.h>

/* As many bytes of a file are enough to tell. */
#define TSR_LFS_BYTES 64

/* TSR_EDATA where the file, which begins with text[0..bytes), is a pointer of Git LFS. */
tsr_status tsr_lfs_refuse(const char *path, const char *text, size_t bytes);

#endif
