/*
 * peer_axolotl_data.c: axolotl's data sets and chat templates.
 */
#include "config/peer_axolotl.h"

#include <stdio.h>
#include <string.h>

#define MEMBERS 24 /* of a data set here, at most */

/* ---- chat templates ---- */

/* Names that the two programs share, which data/chat_names.c knows. */
static const char shared[] =
    "chatml llama3 alpaca gemma gemma3 phi_3 phi_35 qwen_25 mistral_v1 mistral_v2v3 "
    "mistral_v3_tekken mistral_v7_tekken tokenizer_default";
/* Templates that are those of the models of that name. */
static const char own[] =
    "qwen3 qwen3_5 gemma3n gemma4 gemma4_unified llama3_2_vision llama4 cohere command_a "
    "command_a_tool_use aya deepseek_v2 deepseek_v3 exaone exaone4 falcon_h1 jamba nemotron_h "
    "pixtral llava qwen2_vl";

/* What is not quite the same text. */
static const struct {
    const char *name, *differs;
} unlike[] = {
    {"alpaca", "Stanford's introduction where a chat has no system prompt"},
    {"phi_3", "no bos_token first"},
    {"mistral_v7_tekken", "no default system prompt"},
};

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* The template's name here; NULL: there is none. */
static const char *find_template(const tsr_yaml_value *value)
{
    static const char fallback[] = "tokenizer_default_fallback_";
    if (tsr_peers_is_one_of(value, shared))
        return value->text;
    if (value->kind == TSR_YAML_SCALAR && !strncmp(value->text, fallback, sizeof fallback - 1))
        return value->text;
    return tsr_peers_is_one_of(value, own) ? "tokenizer_default" : NULL;
}

/* The same; NULL: it is refused. */
static const char *name_template(tsr_peers_work *work, const tsr_config_entry *entry,
                                 const tsr_yaml_value *value)
{
    const char *name = find_template(value);
    for (int i = 0; i < COUNT(unlike); i++)
        if (tsr_peers_is_one_of(value, unlike[i].name))
            tsr_peers_remark(work, "chat_template %s: %s", unlike[i].name, unlike[i].differs);
    if (tsr_peers_is_one_of(value, own))
        tsr_peers_remark(work, "chat_template %s is the model's own template", value->text);
    if (name)
        return name;
    tsr_peers_refuse(work, entry, value,
                     "no template of this name is here; name one of docs/data.md, or write the "
                     "template to a file and name that in chat_template_jinja");
    return NULL;
}

/* A template's file; text is told by its braces. */
static const char *name_file(tsr_peers_work *work, const tsr_config_entry *entry,
                             const tsr_yaml_value *value)
{
    if (value->kind == TSR_YAML_SCALAR && !strpbrk(value->text, "{}\n"))
        return value->text;
    tsr_peers_refuse(work, entry, value,
                     "a template is read from a file: write it to chat.jinja, and "
                     "chat_template_jinja: chat.jinja");
    return NULL;
}

void tsr_axolotl_template(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_config_entry *file = tsr_peers_find(work, "chat_template_jinja");
    if (file && entry != file) /* chat_template: jinja */
        return;
    const char *name = entry == file ? name_file(work, entry, &entry->value)
                                     : name_template(work, entry, &entry->value);
    if (name)
        tsr_peers_give_text(work, entry, "chat_template", name);
}

const char *tsr_axolotl_template_of(tsr_peers_work *work, const tsr_config_entry *entry,
                                    const tsr_yaml_value *set)
{
    const tsr_yaml_value *file = tsr_peers_member(set, "chat_template_jinja");
    const tsr_yaml_value *name = tsr_peers_member(set, "chat_template");
    if (file || name)
        return file ? name_file(work, entry, file) : name_template(work, entry, name);
    const tsr_config_entry *all_file = tsr_peers_find(work, "chat_template_jinja");
    const tsr_config_entry *all_name = tsr_peers_find(work, "chat_template");
    const char *found = all_file && all_file->value.kind == TSR_YAML_SCALAR ? all_file->value.text
                        : all_name ? find_template(&all_name->value) /* which else is refused */
                                   : NULL;
    return found ? found : "tokenizer_default";
}

/* ---- data sets ---- */

/* Members that are taken as they are, by their name here; or that say nothing new, or that are refused. */
static const struct {
    const char *name, *here;
    const char *nothing; /* without `here`: values that do nothing */
    const char *why;
} members[] = {
    {"split", "split", NULL, NULL},
    {"name", "name", NULL, NULL},
    {"field_messages", "field_messages", NULL, NULL},
    {"message_property_mappings", "message_property_mappings", NULL, NULL},
    {"roles", "roles", NULL, NULL},
    {"roles_to_train", "roles_to_train", NULL, NULL},
    {"train_on_eot", "train_on_eot", NULL, NULL},
    {"train_on_eos", "train_on_eot", NULL, NULL},
    {"field_system", "field_system", NULL, NULL},
    {"field_tools", "field_tools", NULL, NULL},
    {"field_instruction", "field_instruction", NULL, NULL},
    {"field_input", "field_input", NULL, NULL},
    {"field_output", "field_output", NULL, NULL},
    {"field_human", "field_human", NULL, NULL},
    {"field_model", "field_model", NULL, NULL},
    {"field", "text_field", NULL, NULL},
    {"text_column", "text_field", NULL, NULL},
    {"drop_system_message", "drop_system", NULL, NULL},
    {"split_thinking", NULL, "false", "put the thinking into reasoning_content"},
    {"message_field_training_detail", NULL, "training_detail",
     "parts of a turn cannot be trained alone"},
    {"template_thinking_key", NULL, "reasoning_content", "the template sees reasoning_content"},
    {"shards", NULL, "1", "split: train[:10%] takes a part"},
    {"shards_idx", NULL, "0", "split: train[:10%] takes a part"},
    {"skip", NULL, "0", "split: train[1000:] leaves rows out"},
    {"input_transform", NULL, "", "rewrite the rows beforehand"},
    {"input_format", NULL, "", "rewrite the rows beforehand"},
    {"conversation", NULL, "chatml", "name it as chat_template"},
    {"logprobs_field", NULL, "", "knowledge distillation is not in this version"},
};

/* Of no meaning here. */
static const char idle[] =
    "path type data_files ds_type trust_remote_code revision preprocess_shards "
    "message_field_role message_field_content message_field_training field_thinking chat_template "
    "chat_template_jinja "
    "field_chosen field_rejected temperature";

static const char mine[] = "a prompt of its own cannot be given; write such rows as "
                           "{\"prompt\": ..., \"completion\": ...}, or as messages";

/* The `type` of a data set: its format here; NULL: it is refused. */
static const char *name_format(tsr_peers_work *work, const tsr_config_entry *entry,
                               const tsr_yaml_value *type)
{
    static const struct {
        const char *type, *format;
    } known[] = {
        {"alpaca", "alpaca"},          {"chat_template", "messages"},
        {"sharegpt", "sharegpt"},      {"completion", "text"},
        {"pretrain", "text"},          {"input_output", "input_output"},
        {"alpaca:instruct", "alpaca"},
    };
    if (!type)
        return !strcmp(entry->name, "pretraining_dataset") ? "text" : "pretokenized";
    if (type->kind == TSR_YAML_MAP) {
        tsr_peers_refuse(work, entry, type, "%s", mine);
        return NULL;
    }
    for (int i = 0; type->kind == TSR_YAML_SCALAR && i < COUNT(known); i++)
        if (!strcmp(known[i].type, type->text))
            return known[i].format;
    tsr_peers_refuse(work, entry, type,
                     "expected alpaca, chat_template, sharegpt, completion, pretrain or "
                     "input_output; %s",
                     mine);
    return NULL;
}

static bool is_text(const tsr_yaml_value *value, const char *text)
{
    return value && value->kind == TSR_YAML_SCALAR && !strcmp(value->text, text);
}

/* A path, or a data file of it: the Hub's names and directories hold several. */
static tsr_yaml_value join_path(const tsr_peers_work *work, const tsr_yaml_value *path,
                                const tsr_yaml_value *file)
{
    tsr_text joined = {0};
    if (!file || file->kind != TSR_YAML_SCALAR)
        return *path;
    if (tsr_peers_is_one_of(path, "json csv parquet text arrow"))
        return *file;
    tsr_text_printf(&joined, "%s/%s", path->text, file->text);
    tsr_yaml_value value = tsr_peers_text(work, tsr_text_string(&joined));
    work->store->failed |= joined.failed;
    tsr_text_free(&joined);
    return value;
}

/* A member of messages that a set calls otherwise than rows are read; NULL: it does not. */
static const tsr_yaml_value *other_name(const tsr_yaml_value *set, const char *key,
                                        const char *usual)
{
    const tsr_yaml_value *name = tsr_peers_member(set, key);
    return name && !tsr_peers_is_one_of(name, usual) ? name : NULL;
}

/* Chats under other names. ShareGPT's, with its roles, have a format of their own. */
static void put_messages(const tsr_peers_work *work, tsr_yaml_value *out, const tsr_yaml_value *set,
                         const char *format)
{
    const tsr_yaml_value *role = tsr_peers_member(set, "message_field_role");
    const tsr_yaml_value *content = tsr_peers_member(set, "message_field_content");
    const tsr_yaml_value *names = tsr_peers_member(set, "message_property_mappings");
    const tsr_yaml_value *field = tsr_peers_member(set, "field_messages");
    if (names) {
        role = tsr_peers_member(names, "role");
        content = tsr_peers_member(names, "content");
    }
    const tsr_yaml_value *flag = other_name(set, "message_field_training", "training train");
    const tsr_yaml_value *thought =
        other_name(set, "field_thinking", "reasoning_content thinking reasoning");
    bool others = (names && names->count > 2) || flag || thought,
         roles = tsr_peers_member(set, "roles");
    bool plain = (!role || is_text(role, "role")) && (!content || is_text(content, "content"));
    if (is_text(field, "conversations") && is_text(role, "from") && is_text(content, "value") &&
        !others && !roles) {
        tsr_peers_put(work, out, "format", tsr_peers_text(work, "sharegpt"));
        return;
    }
    tsr_peers_put(work, out, "format", tsr_peers_text(work, format));
    if (field && !is_text(field, "messages"))
        tsr_peers_put(work, out, "field_messages", *field);
    if (plain && !others)
        return;
    tsr_yaml_value map = tsr_peers_room(work, TSR_YAML_MAP, 4 + (names ? names->count : 0));
    for (int i = 0; names && others && i < names->count; i++)
        tsr_peers_put(work, &map, names->keys[i].text, names->items[i]);
    if (!map.count && !plain) {
        tsr_peers_put(work, &map, "role", role ? *role : tsr_peers_text(work, "role"));
        tsr_peers_put(work, &map, "content", content ? *content : tsr_peers_text(work, "content"));
    }
    if (flag)
        tsr_peers_put(work, &map, "training", *flag);
    if (thought)
        tsr_peers_put(work, &map, "reasoning_content", *thought);
    tsr_peers_put(work, out, "message_property_mappings", map);
}

/* Whether the value is what is done without it. */
static bool is_usual(const char *name, const tsr_yaml_value *value)
{
    const bool list = value->kind == TSR_YAML_LIST && value->count == 1;
    return (!strcmp(name, "split") && is_text(value, "train")) ||
           (!strcmp(name, "roles_to_train") && list && is_text(&value->items[0], "assistant")) ||
           (!strncmp(name, "train_on_eo", 11) && is_text(value, "turn")) ||
           (!strcmp(name, "drop_system_message") && tsr_peers_is_one_of(value, "false")) ||
           (!strcmp(name, "field_system") && is_text(value, "system")) ||
           (!strcmp(name, "field_tools") && is_text(value, "tools"));
}

static void put_member(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                       const tsr_yaml_value *set, int member)
{
    const tsr_yaml_value *key = &set->keys[member], *value = &set->items[member];
    if (tsr_yaml_is_null(value) || tsr_peers_is_one_of(key, idle) ||
        !strcmp(key->text, "field_messages") || !strcmp(key->text, "message_property_mappings"))
        return;
    if (!strcmp(key->text, "train_on_eos") && tsr_peers_member(set, "train_on_eot"))
        return; /* of which it is the default there */
    int m = 0;
    while (m < COUNT(members) && strcmp(members[m].name, key->text) != 0)
        m++;
    if (m == COUNT(members) || (tsr_axolotl_rl_of(work) && members[m].here &&
                                !tsr_peers_is_one_of(key, "split name roles field_tools")))
        tsr_peers_refuse(work, entry, key, "a data set%s has no such member here",
                         m < COUNT(members) ? " of preferences" : "");
    else if (members[m].here && !is_usual(key->text, value))
        tsr_peers_put(work, out, members[m].here, *value);
    else if (!members[m].here && !tsr_peers_is_one_of(value, members[m].nothing))
        tsr_peers_refuse(work, entry, value, "%s: %s", key->text, members[m].why);
}

/* Of chats; rows of other types have no template there. */
static void put_template(tsr_peers_work *work, tsr_yaml_value *out, const tsr_config_entry *entry,
                         const tsr_yaml_value *set, const char *format)
{
    const tsr_yaml_value *file = tsr_peers_member(set, "chat_template_jinja");
    const tsr_yaml_value *name = tsr_peers_member(set, "chat_template");
    const char *text = file   ? name_file(work, entry, file)
                       : name ? name_template(work, entry, name)
                              : NULL;
    if (text && (!strcmp(format, "messages") || !strcmp(format, "sharegpt")))
        tsr_peers_put(work, out, "chat_template", tsr_peers_text(work, text));
}

/* One map of theirs, of which `file` (may be NULL) is read, as one of ours. */
static void add_set(tsr_peers_work *work, tsr_yaml_value *list, const tsr_config_entry *entry,
                    const tsr_yaml_value *set, const tsr_yaml_value *file)
{
    const tsr_yaml_value *path = tsr_peers_member(set, "path");
    tsr_axolotl_rl rl = tsr_axolotl_rl_of(work);
    const char *format =
        rl ? "preference" : name_format(work, entry, tsr_peers_member(set, "type"));
    if (!path || path->kind != TSR_YAML_SCALAR) {
        tsr_peers_refuse(work, entry, set, "expected a path in each data set");
        return;
    }
    if (!format || rl == TSR_AXOLOTL_OTHER) /* which is refused, and has types of its own */
        return;
    tsr_yaml_value out = tsr_peers_room(work, TSR_YAML_MAP, MEMBERS + set->count);
    tsr_peers_put(work, &out, "path", join_path(work, path, file));
    if (rl) {
        if (!tsr_axolotl_put_pairs(work, &out, entry, set))
            return;
    } else if (!strcmp(format, "messages"))
        put_messages(work, &out, set, format);
    else
        tsr_peers_put(work, &out, "format", tsr_peers_text(work, format));
    for (int i = 0; i < set->count; i++)
        put_member(work, &out, entry, set, i);
    put_template(work, &out, entry, set, format);
    tsr_peers_push(list, out);
    if (!strcmp(format, "alpaca"))
        tsr_peers_remark(work,
                         "alpaca rows have no newline between `### Response:` and the output");
    if (!strcmp(format, "text"))
        tsr_peers_remark(work, "a text beyond sequence_len is not cut into several rows");
}

void tsr_axolotl_datasets(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const tsr_yaml_value *sets = &entry->value;
    const char *key = !strcmp(entry->name, "test_datasets") ? "eval_dataset" : "dataset";
    int count = 0;
    tsr_config_entry bad = *entry;
    bad.bad = true;
    if (sets->kind != TSR_YAML_LIST) {
        tsr_peers_refuse(work, entry, sets, "expected a list of maps, each with a path and a type");
        tsr_peers_give(work, &bad, key, *sets);
        return;
    }
    for (int i = 0; i < sets->count; i++) {
        const tsr_yaml_value *files = tsr_peers_member(&sets->items[i], "data_files");
        count += files && files->kind == TSR_YAML_LIST ? files->count : 1;
    }
    int errors = work->errors->count;
    tsr_yaml_value list = tsr_peers_room(work, TSR_YAML_LIST, count);
    for (int i = 0; i < sets->count; i++) {
        const tsr_yaml_value *files = tsr_peers_member(&sets->items[i], "data_files");
        bool several = files && files->kind == TSR_YAML_LIST;
        for (int f = 0; f < (several ? files->count : 1); f++)
            add_set(work, &list, entry, &sets->items[i], several ? &files->items[f] : files);
    }
    if (work->errors->count > errors || !list.count)
        tsr_peers_give(work, &bad, key, *sets);
    else
        tsr_peers_give_data(work, entry, key, &list);
}
