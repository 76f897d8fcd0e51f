#include "io/lfs.h"

#include <string.h>

/* https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md */
static const char first_line[] = "version https://git-lfs.github.com/spec/v1";

tsr_status tsr_lfs_refuse(const char *path, const char *text, size_t bytes)
{
    size_t length = strlen(first_line);
    if (bytes < length || memcmp(text, first_line, length))
        return TSR_OK;
    return tsr_fail(TSR_EDATA,
                    "%s: this is a Git LFS pointer, not the file itself, which was not downloaded: "
                    "run `git lfs pull` in the repository, or download the file with `hf download`",
                    path);
}
