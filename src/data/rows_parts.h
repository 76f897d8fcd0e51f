/*
 * data/rows_parts.h: the readers of the formats, private to rows*.c.
 */
#ifndef TSR_DATA_ROWS_PARTS_H
#define TSR_DATA_ROWS_PARTS_H

#include "data/rows.h"

/* Fills ids, labels and lengths of *row; what is not trained is -100. */
typedef tsr_status (*tsr_row_reader)(tsr_row *row, const json_t *object,
                                     const tsr_dataset_options *options, const char *place);

/* rows_chat.c */
tsr_status tsr_row_read_messages(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place);
tsr_status tsr_row_read_sharegpt(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place);
/* `prompt` and `completion` are lists of messages. */
tsr_status tsr_row_read_turns(tsr_row *row, const json_t *object, const json_t *prompt,
                              const json_t *completion, const tsr_dataset_options *options,
                              const char *place);
/* rows_text.c */
tsr_status tsr_row_read_text(tsr_row *row, const json_t *object, const tsr_dataset_options *options,
                             const char *place);
tsr_status tsr_row_read_alpaca(tsr_row *row, const json_t *object,
                               const tsr_dataset_options *options, const char *place);
tsr_status tsr_row_read_prompt_completion(tsr_row *row, const json_t *object,
                                          const tsr_dataset_options *options, const char *place);
/* rows_segments.c */
tsr_status tsr_row_read_input_output(tsr_row *row, const json_t *object,
                                     const tsr_dataset_options *options, const char *place);
/* rows_ids.c */
tsr_status tsr_row_read_pretokenized(tsr_row *row, const json_t *object,
                                     const tsr_dataset_options *options, const char *place);
/* out[0..count) from list `key`, each in [least, most], or -100 where `ignored`. */
tsr_status tsr_row_read_integers(int32_t *out, const json_t *list, const char *key, int64_t least,
                                 int64_t most, bool ignored, const char *place);
/* rows_pairs.c */
tsr_status tsr_row_read_preference(tsr_row *row, const json_t *object,
                                   const tsr_dataset_options *options, const char *place);
tsr_status tsr_row_read_preference_ids(tsr_row *row, const json_t *object,
                                       const tsr_dataset_options *options, const char *place);
tsr_status tsr_row_read_unpaired(tsr_row *row, const json_t *object,
                                 const tsr_dataset_options *options, const char *place);

/* rows_chat.c: the row's own tools, a list or, as in TRL and LLaMA-Factory, JSON in a string; the caller owns *out, which is
 * NULL without tools. */
tsr_status tsr_row_read_tools(json_t **out, const json_t *object, const char *place);

/* rows_messages.c: the messages of a row as data/chat.h takes them; the caller owns *out. *shift: by how
 * many places those of the row have moved, for the system turn that was dropped or put before them. TSR_EDATA: a content has
 * parts that are no text. */
tsr_status tsr_row_prepare_messages(json_t **out, int *shift, const json_t *messages,
                                    const tsr_dataset_options *options, const char *place);

/* Room for so many tokens and documents, which are the row's from now on. */
tsr_status tsr_row_reserve(tsr_row *row, size_t tokens, size_t documents);

/* Notes the keys of a row or of a message that seem to say what is trained; `read` are those that do, NULL at
 * the end. */
void tsr_row_note_keys(tsr_row *row, const json_t *object, const char *const *read);

/* Where the last response_template in a text ends; false, with its finding: it has none. */
bool tsr_row_find_response(size_t *end, tsr_row *row, const tsr_text *text,
                           const tsr_dataset_options *options);

/* The key of text rows. */
const char *tsr_row_text_field(const tsr_dataset_options *options);

#endif
