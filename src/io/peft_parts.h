/*
 * io/peft_parts.h: what peft.c and peft_experts.c share. Inside src/io only.
 */
#ifndef TSR_IO_PEFT_PARTS_H
#define TSR_IO_PEFT_PARTS_H

#include "io/peft.h"

struct tsr_peft {
    tsr_peft_config config;
    tsr_safetensors *file;
    tsr_peft_module *modules; /* sorted by path */
    uint64_t count;
};

/* Of two modules, for qsort and bsearch. */
int tsr_peft_by_path(const void *x, const void *y);

#endif
