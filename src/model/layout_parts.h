/*
 * model/layout_parts.h: what the files that make a layout share. Inside src/model only.
 */
#ifndef TSR_MODEL_LAYOUT_PARTS_H
#define TSR_MODEL_LAYOUT_PARTS_H

#include "model/layout.h"

#define TSR_LAYOUT_NAME_BYTES 256

typedef struct {
    tsr_layout *layout;
    const tsr_checkpoint *checkpoint;
    tsr_layout_options options;
    bool in_4bit; /* the checkpoint holds a 4-bit weight, whatever its config.json says */
    bool in_8bit; /* likewise an int8 weight */
    const char *prefix, *head; /* of the model's names in the checkpoint; the head's name */
} tsr_layout_builder;

/* The frozen segments of linear `index`, whose weight is called `name` (layout_weight.c). */
tsr_status tsr_layout_weight(const tsr_layout_builder *b, tsr_layout_unit *unit, int index,
                             const char *name);

/* Of a module of a layer or, of_model, of the model. */
void tsr_layout_put_name(char out[TSR_LAYOUT_NAME_BYTES], const char *prefix, int layer,
                         bool of_model, const char *module, const char *what);

/* Both return the segment's number. */
int tsr_layout_add_frozen(tsr_layout_unit *unit, tsr_layout_segment segment);

/* [rows, columns] in memory, `stack` times; `segment` has what it is and the shape that files have. */
int tsr_layout_add_trainable(tsr_layout *layout, tsr_layout_unit *unit, uint64_t rows,
                             uint64_t columns, tsr_layout_segment segment);

/* Finds a plain tensor and checks its shape; its dtype in memory is BF16, else F32. */
tsr_status tsr_layout_plain_tensor(const tsr_tensor **out, tsr_dtype *dtype,
                                   const tsr_layout_builder *b, const char *name, int ndim,
                                   const uint64_t *shape);

/* layout_score.c: how many chunks the head has, and what of it is trained; the score in the head's only chunk. */
void tsr_layout_choose_head(tsr_layout *layout, const tsr_layout_options *options);
void tsr_layout_add_score(const tsr_layout_builder *b);

/* layout_stack.c: stack `index` of a layer, and its adapter. */
tsr_status tsr_layout_make_stack(const tsr_layout_builder *b, tsr_layout_unit *unit, int layer,
                                 int index);
void tsr_layout_adapt_stack(const tsr_layout_builder *b, const tsr_adapter *adapter);
void tsr_layout_free_stack(tsr_layout_stack *stack);

#endif
