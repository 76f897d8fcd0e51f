#include "data/columns_parts.h"

#include "data/rows.h"
#include "io/json.h"

#include <string.h>

tsr_status tsr_columns_no_memory(const char *place)
{
    return tsr_fail(TSR_ENOMEM, "%s: no memory for the row", place);
}

static tsr_status lacks(const json_t *object, const tsr_rename *rename, const char *place)
{
    tsr_auto_text has = {0};
    tsr_row_own_keys(&has, object);
    return tsr_fail(TSR_EDATA, "%s: has no \"%s\", which %s names; it has %.300s", place,
                    rename->from, rename->key, has.length ? tsr_text_string(&has) : "no key");
}

/* A shallow copy of `object` under the new names; the caller owns it. */
static tsr_status rename_keys(json_t **out, const json_t *object, const tsr_rename *renames,
                              int count, const char *place)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)object);
    bool failed = !copy;
    for (int i = 0; i < count; i++) {
        json_object_del(copy, renames[i].from);
        json_object_del(copy, renames[i].to);
    }
    *out = copy;
    for (int i = 0; i < count && !failed; i++) {
        json_t *value = json_object_get(object, renames[i].from);
        if (value)
            failed = json_object_set(copy, renames[i].to, value) != 0;
        else if (!renames[i].optional)
            return lacks(object, &renames[i], place);
    }
    return failed ? tsr_columns_no_memory(place) : TSR_OK;
}

static tsr_status rename_role(json_t *message, const tsr_columns *columns, const char *place)
{
    const char *word = json_string_value(json_object_get(message, columns->role));
    for (int i = 0; word && i < columns->role_count; i++)
        if (!strcmp(columns->roles[i].from, word))
            return json_object_set_new(message, columns->role, json_string(columns->roles[i].to))
                       ? tsr_columns_no_memory(place)
                       : TSR_OK;
    return TSR_OK;
}

tsr_status tsr_columns_rename_messages(json_t *row, const char *key, const tsr_columns *columns,
                                       const char *place)
{
    json_t *old, *list = json_array();
    tsr_status status = list ? tsr_json_array(&old, row, key, place) : tsr_columns_no_memory(place);
    for (size_t i = 0; status >= 0 && i < json_array_size(old); i++) {
        const json_t *message = json_array_get(old, i);
        json_t *renamed = NULL;
        char where[4300];
        snprintf(where, sizeof where, "%s: \"%s\"[%zu]", place, key, i);
        if (!json_is_object(message))
            status =
                tsr_fail(TSR_EDATA, "%s is %s, expected an object", where, tsr_json_kind(message));
        if (status >= 0)
            status = rename_keys(&renamed, message, columns->members, columns->member_count, where);
        if (status >= 0)
            status = rename_role(renamed, columns, where);
        if (status >= 0 && json_array_append(list, renamed))
            status = tsr_columns_no_memory(place);
        json_decref(renamed);
    }
    if (status >= 0 && json_object_set(row, key, list))
        status = tsr_columns_no_memory(place);
    json_decref(list);
    return status;
}

/* A system prompt in a column of its own goes before the messages, unless they begin with one. ShareGPT's reader does
 * that itself. */
static tsr_status move_system(json_t *row, const char *place)
{
    const char *text;
    json_t *list = json_object_get(row, "messages"), *first = json_array_get(list, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    if (!tsr_json_has(row, "system") || !list || (role && !strcmp(role, "system")))
        return TSR_OK;
    TSR_TRY(tsr_json_string(&text, row, "system", place));
    if (!*text)
        return TSR_OK;
    json_t *longer = json_pack("[{s:s, s:s}]", "role", "system", "content", text);
    bool failed =
        !longer || json_array_extend(longer, list) || json_object_set(row, "messages", longer);
    json_decref(longer);
    return failed ? tsr_columns_no_memory(place) : TSR_OK;
}

/* ---- instruction and output as a chat ---- */

tsr_status tsr_columns_add_turn(json_t *list, const char *role, const char *text, const char *place)
{
    return json_array_append_new(list, json_pack("{s:s, s:s}", "role", role, "content", text))
               ? tsr_columns_no_memory(place)
               : TSR_OK;
}

tsr_status tsr_columns_optional_text(const char **out, const json_t *row, const char *key,
                                     const char *place)
{
    *out = "";
    return tsr_json_has(row, key) ? tsr_json_string(out, row, key, place) : TSR_OK;
}

/* [[question, answer], ...] */
static tsr_status add_history(json_t *list, const json_t *row, const char *place)
{
    json_t *history;
    if (!tsr_json_has(row, "history"))
        return TSR_OK;
    TSR_TRY(tsr_json_array(&history, row, "history", place));
    for (size_t i = 0; i < json_array_size(history); i++) {
        const json_t *pair = json_array_get(history, i);
        const char *question = json_string_value(json_array_get(pair, 0));
        const char *answer = json_string_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !question || !answer)
            return tsr_fail(TSR_EDATA, "%s: \"history\"[%zu] is not a question and an answer",
                            place, i);
        TSR_TRY(tsr_columns_add_turn(list, "user", question, place));
        TSR_TRY(tsr_columns_add_turn(list, "assistant", answer, place));
    }
    return TSR_OK;
}

/* As LLaMA-Factory's AlpacaDatasetConverter: the instruction and the input, where there is one, in two lines. */
tsr_status tsr_columns_add_question(json_t *list, const json_t *row, const char *place)
{
    const char *system, *instruction, *input;
    TSR_TRY(tsr_columns_optional_text(&system, row, "system", place));
    TSR_TRY(tsr_columns_optional_text(&instruction, row, "instruction", place));
    TSR_TRY(tsr_columns_optional_text(&input, row, "input", place));
    if (!*instruction && !*input)
        return tsr_fail(TSR_EDATA, "%s: \"instruction\" is missing or empty", place);
    tsr_auto_text question = {0};
    tsr_text_printf(&question, "%s%s%s", instruction, *instruction && *input ? "\n" : "", input);
    if (question.failed)
        return tsr_columns_no_memory(place);
    if (*system)
        TSR_TRY(tsr_columns_add_turn(list, "system", system, place));
    TSR_TRY(add_history(list, row, place));
    return tsr_columns_add_turn(list, "user", tsr_text_string(&question), place);
}

static tsr_status add_chat(json_t *list, const json_t *row, const char *place)
{
    const char *output;
    TSR_TRY(tsr_json_string(&output, row, "output", place));
    TSR_TRY(tsr_columns_add_question(list, row, place));
    return tsr_columns_add_turn(list, "assistant", output, place);
}

static tsr_status make_chat(json_t **row, const char *place)
{
    json_t *list = json_array(), *chat = json_object();
    tsr_status status = list && chat ? add_chat(list, *row, place) : tsr_columns_no_memory(place);
    json_t *tools = json_object_get(*row, "tools");
    if (status >= 0 && (json_object_set(chat, "messages", list) ||
                        (tools && json_object_set(chat, "tools", tools))))
        status = tsr_columns_no_memory(place);
    json_decref(list);
    json_decref(*row);
    *row = chat;
    return status;
}

tsr_status tsr_columns_map(json_t **row, const tsr_columns *columns, const char *place)
{
    json_t *old = *row;
    tsr_status status = rename_keys(row, old, columns->columns, columns->column_count, place);
    json_decref(old);
    if (status >= 0 && columns->pairs)
        status = tsr_columns_pair(*row, columns, place);
    else if (status >= 0 && columns->chat)
        status = make_chat(row, place);
    else if (status >= 0 && columns->list && (columns->member_count || columns->role_count))
        status = tsr_columns_rename_messages(*row, columns->list, columns, place);
    if (status >= 0 && columns->list && !strcmp(columns->list, "messages"))
        status = move_system(*row, place);
    if (status < 0) {
        json_decref(*row);
        *row = NULL;
    }
    return status;
}
