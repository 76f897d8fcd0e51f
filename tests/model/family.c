#include "model/family.h"

#include "model/random_model.h"
#include "support/scratch.h"

#include <stdio.h>
#include <sys/stat.h>

bool family_checkpoint(char out[512], const char *name)
{
    const model_spec spec = {.type = name,
                             .d = 64,
                             .f = 96,
                             .layers = 2,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .vocab = 300,
                             .theta = 10000,
                             .eps = 1e-5,
                             .dtype = TSR_BF16,
                             .seed = 11};
    random_model model;
    struct stat info;
    snprintf(out, 512, "%s/%s/checkpoint", FAMILY_GOLDEN, name);
    if (stat(out, &info) == 0)
        return true;
    snprintf(out, 512, "%s", scratch_path("plain"));
    model_make(&model, &spec);
    model_write(&model, out, TSR_BF16);
    model_free(&model);
    return false;
}
