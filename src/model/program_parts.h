/*
 * model/program_parts.h: tiles while a program is made (program_tiles.c). Inside src/model only.
 */
#ifndef TSR_MODEL_PROGRAM_PARTS_H
#define TSR_MODEL_PROGRAM_PARTS_H

#include "model/program.h"

/* The rows of a tile, the nodes that have so many at a time, and the parts. */
void tsr_program_find_tiled(tsr_layer_program *program, const tsr_layer_program_options *options);

/* Whether two steps that follow each other in a pass have the same rows at a time: all, or a tile's. */
bool tsr_program_together(const tsr_layer_program *program, const tsr_step *a, const tsr_step *b);

/* Steps of a pass that go through a tile together are a group; TSR_NO_GROUP: those that do not go through tiles, and what
 * is not of one group alone. */
enum { TSR_NO_GROUP = -1, TSR_UNSEEN_GROUP = -2 };

typedef struct {
    int first, end;
} tsr_tile_group;

typedef struct {
    int16_t of_step[2 * TSR_BLOCK_NODES];
    tsr_tile_group group[2 * TSR_BLOCK_NODES];
    int count;
    /* Of what is made and read in one group and nowhere else: values, and in a backward their gradients. */
    int16_t value[TSR_BLOCK_VALUES], gradient[TSR_BLOCK_VALUES];
} tsr_tile_groups;

/* *of is made or read in this group too. */
void tsr_tile_group_join(int16_t *of, int16_t group);

void tsr_program_find_groups(tsr_tile_groups *out, const tsr_layer_program *program, bool backward);

#endif
