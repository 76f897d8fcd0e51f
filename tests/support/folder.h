/*
 * tests/support/folder.h: a folder that must be there.
 */
#ifndef TSR_TESTS_SUPPORT_FOLDER_H
#define TSR_TESTS_SUPPORT_FOLDER_H

#include "support/scratch.h"

#include "io/folder.h"

/* The caller's, to be closed. */
static inline tsr_folder *open_folder(const char *path)
{
    tsr_folder *folder;
    if (tsr_folder_open(&folder, path) != TSR_OK || !folder)
        fail_msg("%s cannot be opened", path);
    return folder;
}

#endif
