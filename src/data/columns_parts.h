/*
 * data/columns_parts.h: what columns.c and columns_pairs.c share. Private to these.
 */
#ifndef TSR_DATA_COLUMNS_PARTS_H
#define TSR_DATA_COLUMNS_PARTS_H

#include "data/columns.h"

tsr_status tsr_columns_no_memory(const char *place);

/* Renames the members and roles of the list `key` of a row. */
tsr_status tsr_columns_rename_messages(json_t *row, const char *key, const tsr_columns *columns,
                                       const char *place);

/* Appends {role, content: text}. */
tsr_status tsr_columns_add_turn(json_t *list, const char *role, const char *text,
                                const char *place);

/* "": the row has no such key. */
tsr_status tsr_columns_optional_text(const char **out, const json_t *row, const char *key,
                                     const char *place);

/* Appends the turns of {system, history, instruction, input}. */
tsr_status tsr_columns_add_question(json_t *list, const json_t *row, const char *place);

/* A row of preferences whose columns have our names: its parts as the readers of rows_pairs.c take them. (columns_pairs.c) */
tsr_status tsr_columns_pair(json_t *row, const tsr_columns *columns, const char *place);

#endif
