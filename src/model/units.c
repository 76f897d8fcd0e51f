/*
 * model/units.c: the model's layout as the units of src/shard.
 */
#include "model/layout.h"

#include "kernels/fixed_point.h"

#include <stdlib.h>

_Static_assert(3 * TSR_BLOCK_MATRICES <= TSR_FIXED_PARTS, "A, B and m of every linear of a unit");

static tsr_status make_part(tsr_unit_part *out, const tsr_layout_segment *segments, int count,
                            uint32_t *param)
{
    out->segment = calloc((size_t)count + 1, sizeof *out->segment);
    if (!out->segment)
        return tsr_fail(TSR_ENOMEM, "out of memory for the units");
    out->segment_count = count;
    for (int i = 0; i < count; i++)
        out->segment[i] = (tsr_segment){.name = segments[i].name,
                                        .param = (*param)++,
                                        .dtype = segments[i].dtype,
                                        .granule_bytes = segments[i].granule_bytes,
                                        .granule_count = segments[i].granule_count,
                                        .element_count = segments[i].element_count};
    return TSR_OK;
}

tsr_status tsr_layout_units(tsr_unit **out, const tsr_layout *layout, const tsr_home *home,
                            int ranks)
{
    tsr_unit *units = calloc((size_t)layout->unit_count, sizeof *units);
    tsr_status status = TSR_OK;
    uint32_t param = 0;
    if (!units)
        return tsr_fail(TSR_ENOMEM, "out of memory for the units");
    for (int i = 0; i < layout->unit_count && status == TSR_OK; i++) {
        const tsr_layout_unit *source = &layout->unit[i];
        units[i].id = i;
        units[i].home = home[i];
        units[i].has_norm = source->dora;
        status = make_part(&units[i].frozen, source->frozen, source->frozen_count, &param);
        if (status == TSR_OK)
            status =
                make_part(&units[i].trainable, source->trainable, source->trainable_count, &param);
        if (status == TSR_OK)
            status = tsr_unit_lay_out(&units[i], ranks);
    }
    if (status < 0) {
        tsr_layout_units_free(units, layout->unit_count);
        return status;
    }
    *out = units;
    return TSR_OK;
}

void tsr_layout_units_free(tsr_unit *units, int unit_count)
{
    for (int i = 0; units && i < unit_count; i++) {
        free(units[i].frozen.segment);
        free(units[i].trainable.segment);
    }
    free(units);
}
