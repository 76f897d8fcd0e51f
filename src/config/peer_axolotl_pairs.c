/*
 * peer_axolotl_pairs.c: axolotl's data sets of preferences (its src/axolotl/prompt_strategies/dpo, kto and orpo, 2026).
 *
 * A type names the template and the columns. It makes text of them, which TRL then tokenizes; here such rows are chats with
 * that template. Rows without a type, and of a type that only names columns, are text there and here.
 */
#include "config/peer_axolotl.h"

#include <stdio.h>
#include <string.h>

#define DPO  (TSR_AXOLOTL_DPO | TSR_AXOLOTL_IPO | TSR_AXOLOTL_SIMPO)
#define ORPO TSR_AXOLOTL_ORPO
#define KTO  TSR_AXOLOTL_KTO

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* "chatml.intel" is chatml's type intel. */
static const struct {
    unsigned kinds;
    const char *templates; /* "chatml llama3", or the data set's own */
    const char *name;
    const char *prompt; /* its column; NULL: the answers are conversations; "": field_messages */
    bool system;        /* the column system goes first */
} types[] = {
    {DPO, "chatml llama3", "intel", "question", true},
    {DPO, "chatml llama3", "icr", "input", true},
    {DPO, "chatml llama3", "prompt_pairs", "prompt", true},
    {DPO, "chatml llama3", "ultra", "prompt", true},
    {DPO, "chatml llama3", "argilla_chat", NULL, false},
    {KTO, "chatml llama3", "argilla", "instruction", true},
    {KTO, "chatml llama3", "argilla_chat", NULL, false},
    {KTO, "chatml llama3", "intel", "question", true},
    {KTO, "chatml llama3", "prompt_pairs", "prompt", true},
    {KTO, "chatml llama3", "ultra", "prompt", true},
    {DPO, "chat_template", "default", "", false},
    {DPO, "chat_template", "argilla_chat", NULL, false},
    {ORPO, "chat_template", "argilla", "prompt", true},
};

/* The names of the columns, unless they are what is read without. */
static void put_column(const tsr_peers_work *work, tsr_yaml_value *out, const char *here,
                       const tsr_yaml_value *map, const char *theirs, const char *usual)
{
    const tsr_yaml_value *name = tsr_peers_member(map, theirs);
    if (name && !tsr_peers_is_one_of(name, usual))
        tsr_peers_put(work, out, here, *name);
}

/* ---- types that name columns ---- */

static bool is_same(const tsr_yaml_value *format, const char *column)
{
    return format->kind == TSR_YAML_SCALAR && *format->text == '{' &&
           !strncmp(format->text + 1, column, strlen(column)) &&
           !strcmp(format->text + 1 + strlen(column), "}");
}

static bool put_named(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                      const tsr_yaml_value *map, bool kto)
{
    static const char *const columns[] = {"prompt", "chosen", "rejected", "completion", "label"};
    static const char known[] = "field_prompt field_system field_chosen field_rejected "
                                "field_completion field_label prompt_format chosen_format "
                                "rejected_format completion_format";
    for (int i = 0; i < map->count; i++)
        if (!tsr_peers_is_one_of(&map->keys[i], known)) {
            tsr_peers_refuse(work, entry, &map->keys[i], "expected field_prompt, %s",
                             kto ? "field_completion or field_label"
                                 : "field_chosen or field_rejected");
            return false;
        }
    for (int i = 0; i < COUNT(columns); i++) {
        char format[32], field[32];
        snprintf(format, sizeof format, "%s_format", columns[i]);
        snprintf(field, sizeof field, "field_%s", columns[i]);
        const tsr_yaml_value *text = tsr_peers_member(map, format);
        if (text && !tsr_peers_is_one_of(text, "null") && !is_same(text, columns[i])) {
            tsr_peers_refuse(work, entry, text,
                             "%s: a text around a column cannot be given; write the rows with it, "
                             "as {\"prompt\": ..., %s}, or as messages",
                             format,
                             kto ? "\"completion\": ..., \"label\": true"
                                 : "\"chosen\": ..., \"rejected\": ...");
            return false;
        }
        if (kto ? i == 0 || i > 2 : i < 3)
            put_column(work, out, field, map, field, columns[i]);
    }
    return true;
}

/* ---- types with a template ---- */

/* Whether it is "chatml.intel", or "chat_template" for "chat_template.default". */
static bool matches(const char *type, const char *templates, const char *name)
{
    size_t length = strcspn(type, ".");
    const char *rest = type[length] ? type + length + 1 : "default";
    for (const char *word = templates; *word;) {
        size_t n = strcspn(word, " ");
        if (n == length && !strncmp(word, type, n) && !strcmp(rest, name))
            return true;
        word += n + (word[n] == ' ');
    }
    return false;
}

static int find_type(const tsr_yaml_value *type, unsigned kind)
{
    for (int i = 0; type->kind == TSR_YAML_SCALAR && i < COUNT(types); i++)
        if (types[i].kinds & kind && matches(type->text, types[i].templates, types[i].name))
            return i;
    return -1;
}

static void refuse_type(tsr_peers_work *work, const tsr_config_entry *entry,
                        const tsr_yaml_value *type, unsigned kind)
{
    tsr_peers_refuse(work, entry, type, "expected %s, or no type where rows are text",
                     kind & ORPO  ? "chat_template.argilla"
                     : kind & KTO ? "argilla, argilla_chat, intel, prompt_pairs or ultra behind "
                                    "chatml. or llama3., a map with the names of columns"
                                  : "chat_template.default, chat_template.argilla_chat, intel, "
                                    "icr, prompt_pairs, ultra or argilla_chat behind chatml. or "
                                    "llama3., a map with the names of columns");
}

/* What messages call their parts, and the columns that can be named. */
static void put_names(const tsr_peers_work *work, tsr_yaml_value *out, const tsr_yaml_value *set)
{
    const tsr_yaml_value *names = tsr_peers_member(set, "message_property_mappings");
    const tsr_yaml_value *role = tsr_peers_member(set, "message_field_role");
    const tsr_yaml_value *content = tsr_peers_member(set, "message_field_content");
    if (names) {
        role = tsr_peers_member(names, "role");
        content = tsr_peers_member(names, "content");
    }
    put_column(work, out, "field_chosen", set, "field_chosen", "chosen");
    put_column(work, out, "field_rejected", set, "field_rejected", "rejected");
    if ((!role || tsr_peers_is_one_of(role, "role")) &&
        (!content || tsr_peers_is_one_of(content, "content")))
        return;
    tsr_yaml_value map = tsr_peers_room(work, TSR_YAML_MAP, 2);
    tsr_peers_put(work, &map, "role", role ? *role : tsr_peers_text(work, "role"));
    tsr_peers_put(work, &map, "content", content ? *content : tsr_peers_text(work, "content"));
    tsr_peers_put(work, out, "message_property_mappings", map);
}

static bool put_chat(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                     const tsr_yaml_value *set, int type)
{
    const tsr_yaml_value *given = tsr_peers_member(set, "type");
    const tsr_yaml_value *messages = tsr_peers_member(set, "field_messages");
    bool own = strchr(types[type].templates, ' ') == NULL;
    const char *template = own ? tsr_axolotl_template_of(work, entry, set)
                           : !strncmp(given->text, "chatml", 6) ? "chatml"
                                                                : "llama3";
    if (!template)
        return false;
    if (own)
        put_names(work, out, set);
    if (types[type].prompt && *types[type].prompt)
        tsr_peers_put(work, out, "field_prompt", tsr_peers_text(work, types[type].prompt));
    else if (types[type].prompt)
        tsr_peers_put(work, out, "field_prompt",
                      messages ? *messages : tsr_peers_text(work, "messages"));
    if (types[type].system)
        tsr_peers_put(work, out, "field_system", tsr_peers_text(work, "system"));
    tsr_peers_put(work, out, "chat_template", tsr_peers_text(work, template));
    if (types[type].kinds & ORPO) /* whose answers are cut out of the rendered chat, as here */
        return true;
    tsr_peers_remark(work, "an answer ends as the chat template ends a turn, with the newline that "
                           "it may write there");
    if (tsr_axolotl_rl_of(work) != TSR_AXOLOTL_SIMPO)
        tsr_peers_remark(work, "behind an answer's end of turn goes no eos_token");
    return true;
}

bool tsr_axolotl_put_pairs(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                           const tsr_yaml_value *set)
{
    unsigned kind = (unsigned)tsr_axolotl_rl_of(work);
    const tsr_yaml_value *type = tsr_peers_member(set, "type");
    bool kto = kind & KTO;
    tsr_peers_put(work, out, "format", tsr_peers_text(work, kto ? "unpaired" : "preference"));
    if (!type || (kind & DPO && tsr_peers_is_one_of(type, "passthrough passthrough.default")))
        return true;
    if (type->kind == TSR_YAML_MAP && !(kind & ORPO))
        return put_named(work, out, entry, type, kto);
    int found = find_type(type, kind);
    if (found < 0)
        refuse_type(work, entry, type, kind);
    return found >= 0 && put_chat(work, out, entry, set, found);
}
