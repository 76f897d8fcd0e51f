/*
 * model/layout_score.c: what the head is: chunks of the vocabulary, or a reward model's score, one row of weights that is trained.
 */
#include "model/layout_parts.h"

#include "base/checked.h"

void tsr_layout_choose_head(tsr_layout *layout, const tsr_layout_options *options)
{
    uint64_t chunks = tsr_ceil_div(layout->config.vocab_size, TSR_HEAD_CHUNK_ROWS);
    layout->scores = options->train_score;
    layout->chunk_count = layout->scores ? 1 : (int)chunks;
    layout->head_whole = options->train_head;
    layout->head_trained = layout->scores || layout->head_whole;
}

/* It is used in fp32, as the masters have it: a row costs nothing. */
void tsr_layout_add_score(const tsr_layout_builder *b)
{
    tsr_layout *layout = b->layout;
    tsr_layout_unit *unit = &layout->unit[layout->layer_count];
    uint64_t d = layout->config.hidden_size;
    unit->row_count = 1;
    tsr_layout_add_trainable(layout, unit, 1, d,
                             (tsr_layout_segment){.name = "score",
                                                  .linear = -1,
                                                  .dtype = TSR_F32,
                                                  .stored_rows = 1,
                                                  .stored_columns = d,
                                                  .module = "score"});
}
