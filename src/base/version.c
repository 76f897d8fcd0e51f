#include "base/version.h"

#include "base/version_commit.h"

const char *tsr_build_version(void)
{
    return TSR_VERSION;
}

const char *tsr_build_commit(void)
{
    return TSR_COMMIT;
}
