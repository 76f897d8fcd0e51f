#include "shard/bucket.h"

tsr_status tsr_buckets_make(tsr_buckets *out, int64_t largest, int64_t step)
{
    if (largest < 1 || step < 1 || largest > INT64_MAX / (2 * TSR_BUCKET_MAX) ||
        step > INT64_MAX / 2)
        return tsr_fail(TSR_EINVAL, "buckets up to %lld in steps of %lld", (long long)largest,
                        (long long)step);
    tsr_buckets buckets = {0};
    for (int i = 1; i < TSR_BUCKET_MAX; i++) {
        int64_t even = largest * i / TSR_BUCKET_MAX;
        int64_t size = (even + step - 1) / step * step;
        bool grows = buckets.count == 0 || size > buckets.size[buckets.count - 1];
        if (size > 0 && size < largest && grows)
            buckets.size[buckets.count++] = size;
    }
    buckets.size[buckets.count++] = largest;
    *out = buckets;
    return TSR_OK;
}

int tsr_bucket_of(const tsr_buckets *buckets, int64_t count)
{
    for (int i = 0; i < buckets->count; i++)
        if (count <= buckets->size[i])
            return i;
    return -1;
}
