#include "adapters/init.h"

#include "base/hash.h"
#include "base/philox.h"

#include <math.h>
#include <string.h>

#define INIT_TAG 0x41u /* sets these numbers apart from dropout's with the same seed */

uint64_t tsr_adapter_module_key(const char *path)
{
    return tsr_hash(TSR_HASH_START, path, strlen(path));
}

void tsr_adapter_init_a(float *out, uint64_t first, uint64_t count, uint64_t in_features,
                        uint64_t seed, uint64_t module_key)
{
    uint64_t key = tsr_mix(tsr_mix(seed) ^ module_key);
    float bound = (float)(1 / sqrt((double)in_features));
    for (uint64_t i = 0; i < count;) {
        uint64_t e = first + i;
        tsr_philox four = tsr_philox_at(key, INIT_TAG, e / 4);
        for (uint64_t k = e % 4; k < 4 && i < count; k++)
            out[i++] = (2 * tsr_philox_uniform(four.word[k]) - 1) * bound;
    }
}
