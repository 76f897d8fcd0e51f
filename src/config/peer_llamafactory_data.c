/*
 * peer_llamafactory_data.c: LLaMA-Factory's data sets, which dataset_info.json describes, and its templates.
 */
#include "config/config_number.h"
#include "config/peer_llamafactory.h"

#include <string.h>
#include <sys/stat.h>

#define MEMBERS 24 /* of a data set here, at most */

/* ---- templates ---- */

/* Names that the two programs share, which data/chat_names.c knows. */
static const char shared[] = "alpaca chatml gemma llama2 llama3 mistral vicuna zephyr";

/* Templates that render the same text under another name. */
static const struct {
    const char *names, *here;
} same[] = {
    {"gemma2 gemma3", "gemma"},
    {"ministral", "mistral_v3_tekken"},
    {"mistral_small", "mistral_v7_tekken"},
    {"phi", "phi_3"},
    {"phi4", "phi_4"},
    {"qwen", "qwen_25"},
    {"qwen3_nothink yi", "chatml"},
};

/* What is not quite the same text. */
static const struct {
    const char *name, *differs;
} unlike[] = {
    {"alpaca", "bos_token first, and a blank line behind a system prompt"},
    {"llama2", "a space before and behind an answer, as Meta's"},
    {"vicuna", "bos_token first, and spaces before USER and an answer"},
    {"zephyr", "newlines behind turns, and no default system prompt"},
};

/* Templates that are those of the models of that name. */
static const char own[] =
    "cohere deepseek deepseek3 deepseekr1 exaone falcon gemma3n gemma4 gemma4n glm4 glm4_moe "
    "glm4_7 glmz1 granite3 granite4 intern2 llama4 mimo ministral3 mllama olmo phi4_mini "
    "phi_small qwen2_vl qwen3 qwen3_vl qwen3_vl_nothink qwen3_5 qwen3_5_nothink seed_oss smollm "
    "smollm2 solar";

const char *tsr_llamafactory_template_name(const tsr_yaml_value *value)
{
    if (tsr_peers_is_one_of(value, shared))
        return value->text;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (tsr_peers_is_one_of(value, same[i].names))
            return same[i].here;
    return tsr_peers_is_one_of(value, own) ? "tokenizer_default" : NULL;
}

void tsr_llamafactory_template(tsr_peers_work *work, const tsr_config_entry *entry)
{
    const char *name = tsr_llamafactory_template_name(&entry->value);
    if (!name) {
        tsr_peers_refuse(work, entry, &entry->value,
                         "no template of this name is here; leave it out for the model's own, or "
                         "write chat_template: with a name of docs/data.md or a Jinja file");
        return;
    }
    for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++)
        if (tsr_peers_is_one_of(&entry->value, unlike[i].name))
            tsr_peers_remark(work, "template %s: %s", unlike[i].name, unlike[i].differs);
    if (!strcmp(name, "tokenizer_default"))
        tsr_peers_remark(work, "template %s is the model's own template", entry->value.text);
    tsr_peers_give_text(work, entry, "chat_template", name);
}

/* ---- data sets ---- */

typedef struct {
    tsr_peers_work *work;
    const tsr_config_entry *entry; /* dataset or eval_dataset */
    const char *directory;
    const tsr_yaml_value *info; /* dataset_info.json; NULL: not read */
    bool texts;                 /* stage: pt */
} reader;

static const char *text_of(const tsr_config_entry *entry, const char *otherwise)
{
    return entry && entry->value.kind == TSR_YAML_SCALAR ? entry->value.text : otherwise;
}

static void put_text(const reader *r, tsr_yaml_value *out, const char *key, const char *text)
{
    tsr_peers_put(r->work, out, key, tsr_peers_text(r->work, text));
}

/* directory/dataset_info.json, once for both keys' names; false: why is said. JSON is YAML. */
static bool read_info(reader *r, const tsr_yaml_value *name)
{
    tsr_text path = {0}, file = {0};
    if (r->info)
        return true;
    if (!strncmp(r->directory, "REMOTE:", 7) || !strcmp(r->directory, "ONLINE")) {
        const char *hub = *r->directory == 'R' ? r->directory + 7 : "NAME";
        tsr_peers_refuse(r->work, r->entry, name,
                         "dataset_dir %s is on the Hub: `hf download --repo-type dataset %s "
                         "--local-dir data`, then write dataset_dir: data",
                         r->directory, hub);
        return false;
    }
    tsr_text_printf(&path, "%s/dataset_info.json", r->directory);
    bool right = tsr_config_read_file(&file, tsr_text_string(&path)) == TSR_OK &&
                 tsr_config_store_parse(&r->info, r->work->store, tsr_text_string(&file),
                                        file.length, tsr_text_string(&path)) == TSR_OK;
    if (!right)
        tsr_peers_refuse(
            r->work, r->entry, name,
            "dataset_info.json says which file that is (dataset_dir: its directory), or "
            "name files: %s",
            tsr_last_error());
    r->work->store->failed |= path.failed;
    tsr_text_free(&path);
    tsr_text_free(&file);
    return right;
}

/* What cannot be read here. */
static bool is_refused(const reader *r, const tsr_yaml_value *name, const tsr_yaml_value *set)
{
    static const char *const media[] = {"images", "videos", "audios"};
    const tsr_yaml_value *hub = tsr_peers_member(set, "hf_hub_url");
    const tsr_yaml_value *columns = tsr_peers_member(set, "columns");
    const tsr_yaml_value *ranking = tsr_peers_member(set, "ranking");
    if (hub && hub->kind == TSR_YAML_SCALAR) {
        tsr_peers_refuse(
            r->work, r->entry, name,
            "it is on the Hub: `hf download --repo-type dataset %s --local-dir %s/%s`, "
            "then name its file in %s/dataset_info.json as \"file_name\"",
            hub->text, r->directory, name->text, r->directory);
        return true;
    }
    if (!tsr_peers_member(set, "file_name")) {
        tsr_peers_refuse(r->work, r->entry, name,
                         "dataset_info.json gives it no \"file_name\"; data sets are local files");
        return true;
    }
    if (ranking && tsr_peers_is_true(ranking) && !tsr_llamafactory_has_pairs(r->work)) {
        tsr_peers_refuse(r->work, r->entry, name, "it has preferences: write stage: dpo");
        return true;
    }
    for (int i = 0; columns && i < 3; i++)
        if (tsr_peers_member(columns, media[i])) {
            tsr_peers_refuse(r->work, r->entry, name,
                             "its column \"%s\" cannot be read here; rows are text", media[i]);
            return true;
        }
    return false;
}

static void put_column(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *columns,
                       const char *theirs, const char *usual, const char *here)
{
    const tsr_yaml_value *column = columns ? tsr_peers_member(columns, theirs) : NULL;
    if (column && !tsr_peers_is_one_of(column, usual))
        tsr_peers_put(r->work, out, here, *column);
}

/* instruction, input and output, which become a chat. */
static void put_alpaca(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *set)
{
    const tsr_yaml_value *columns = tsr_peers_member(set, "columns");
    const tsr_config_entry *template = tsr_peers_find(r->work, "template");
    const char *name = template ? tsr_llamafactory_template_name(&template->value) : NULL;
    put_text(r, out, "format", "alpaca");
    put_column(r, out, columns, "prompt", "instruction", "field_instruction");
    put_column(r, out, columns, "query", "input", "field_input");
    put_column(r, out, columns, "response", "output", "field_output");
    put_column(r, out, columns, "history", "history", "field_history");
    put_column(r, out, columns, "system", "system", "field_system");
    put_column(r, out, columns, "tools", "tools", "field_tools");
    put_text(r, out, "chat_template", name ? name : "tokenizer_default");
}

/* The roles that a set calls otherwise, as {user: [...], ...}. */
static void put_roles(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *tags)
{
    static const struct {
        const char *tag, *role, *known; /* synonyms that data/chat_roles.c has */
    } roles[] = {
        {"user_tag", "user", "user human prompter"},
        {"assistant_tag", "assistant", "assistant gpt chatgpt bing bard model bot chatbot ai"},
        {"system_tag", "system", "system developer"},
        {"observation_tag", "tool",
         "tool observation function function_response ipython "
         "tool_response"},
        {"function_tag", "assistant", "function_call"}};
    tsr_yaml_value map = tsr_peers_room(r->work, TSR_YAML_MAP, 4);
    for (int i = 0; i < 4; i++) {
        const tsr_yaml_value *tag = tsr_peers_member(tags, roles[i].tag);
        if (!tag || tsr_peers_is_one_of(tag, roles[i].known))
            continue;
        tsr_yaml_value list = tsr_peers_room(r->work, TSR_YAML_LIST, 1);
        tsr_peers_push(&list, *tag);
        tsr_peers_put(r->work, &map, roles[i].role, list);
    }
    const tsr_yaml_value *call = tsr_peers_member(tags, roles[4].tag);
    if (call && !tsr_peers_is_one_of(call, roles[4].known))
        tsr_peers_refuse(r->work, r->entry, call, "a turn with a call is named function_call here");
    if (map.count)
        tsr_peers_put(r->work, out, "roles", map);
}

static void put_chat(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *set, bool openai)
{
    const tsr_yaml_value *columns = tsr_peers_member(set, "columns");
    const tsr_yaml_value *tags = tsr_peers_member(set, "tags");
    const tsr_yaml_value *field = columns ? tsr_peers_member(columns, "messages") : NULL;
    const tsr_yaml_value *role = tags ? tsr_peers_member(tags, "role_tag") : NULL;
    const tsr_yaml_value *content = tags ? tsr_peers_member(tags, "content_tag") : NULL;
    const char *list = field && field->kind == TSR_YAML_SCALAR ? field->text : "conversations";
    bool from = (!role || tsr_peers_is_one_of(role, "from")) &&
                (!content || tsr_peers_is_one_of(content, "value"));
    bool sharegpt = from && !openai && !strcmp(list, "conversations");
    put_text(r, out, "format", sharegpt ? "sharegpt" : "messages");
    if (!sharegpt && strcmp(list, "messages") != 0)
        put_text(r, out, "field_messages", list);
    if (!sharegpt && (from || !tsr_peers_is_one_of(role ? role : content, "role") || !content ||
                      !tsr_peers_is_one_of(content, "content"))) {
        tsr_yaml_value map = tsr_peers_room(r->work, TSR_YAML_MAP, 2);
        tsr_peers_put(r->work, &map, "role", role ? *role : tsr_peers_text(r->work, "from"));
        tsr_peers_put(r->work, &map, "content",
                      content ? *content : tsr_peers_text(r->work, "value"));
        tsr_peers_put(r->work, out, "message_property_mappings", map);
    }
    put_column(r, out, columns, "system", "system", "field_system");
    put_column(r, out, columns, "tools", "tools", "field_tools");
    if (tags)
        put_roles(r, out, tags);
}

/* The first max_samples rows, or num_samples of dataset_info.json. */
static void put_rows(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *set)
{
    const tsr_config_entry *most = tsr_peers_find(r->work, "max_samples");
    const tsr_yaml_value *rows = set ? tsr_peers_member(set, "num_samples") : NULL;
    double a, b;
    if (most && (!rows || (tsr_number_parse(&a, text_of(most, "")) &&
                           tsr_number_parse(&b, rows->text ? rows->text : "") && a < b)))
        rows = &most->value;
    if (rows)
        tsr_peers_put(r->work, out, "samples", *rows);
}

static bool is_file(const char *name)
{
    struct stat info;
    const char *dot = strrchr(name, '.');
    return strchr(name, '/') || stat(name, &info) == 0 ||
           (dot && tsr_peers_is_one_of(
                       &(tsr_yaml_value){.kind = TSR_YAML_SCALAR, .text = dot, .quoted = true},
                       ".json .jsonl .parquet .csv .txt"));
}

/* false: it is refused. */
static bool put_described(const reader *r, tsr_yaml_value *out, const tsr_yaml_value *name,
                          const tsr_yaml_value *set)
{
    const tsr_yaml_value *format = tsr_peers_member(set, "formatting");
    const tsr_yaml_value *columns = tsr_peers_member(set, "columns");
    const tsr_yaml_value *prompt = columns ? tsr_peers_member(columns, "prompt") : NULL;
    tsr_text path = {0};
    tsr_text_printf(&path, "%s/%s", r->directory, tsr_peers_member(set, "file_name")->text);
    put_text(r, out, "path", tsr_text_string(&path));
    r->work->store->failed |= path.failed;
    tsr_text_free(&path);
    if (tsr_llamafactory_has_pairs(r->work)) {
        const tsr_yaml_value *tags = tsr_peers_member(set, "tags");
        if (!tsr_llamafactory_put_pairs(r->work, out, r->entry, name, set))
            return false;
        if (tags)
            put_roles(r, out, tags);
    } else if (r->texts) {
        put_text(r, out, "format", "text");
        tsr_peers_put(r->work, out, "text_field",
                      prompt ? *prompt : tsr_peers_text(r->work, "instruction"));
    } else if (format && tsr_peers_is_one_of(format, "sharegpt openai")) {
        put_chat(r, out, set, tsr_peers_is_one_of(format, "openai"));
    } else {
        put_alpaca(r, out, set);
    }
    put_column(r, out, set, "split", "train", "split");
    put_column(r, out, set, "subset", "", "name");
    return true;
}

static bool add_set(reader *r, tsr_yaml_value *list, const tsr_yaml_value *name,
                    const tsr_yaml_value *weight)
{
    const tsr_yaml_value *set = NULL;
    if (name->kind != TSR_YAML_SCALAR) {
        tsr_peers_refuse(r->work, r->entry, name, "expected names, as in dataset: identity,mine");
        return false;
    }
    tsr_yaml_value out = tsr_peers_room(r->work, TSR_YAML_MAP, MEMBERS);
    if (is_file(name->text)) {
        tsr_peers_put(r->work, &out, "path", *name);
    } else {
        if (!read_info(r, name))
            return false;
        set = tsr_peers_member(r->info, name->text);
        if (!set || set->kind != TSR_YAML_MAP) {
            tsr_peers_refuse(r->work, r->entry, name, "%s/dataset_info.json has no such data set",
                             r->directory);
            return false;
        }
        if (is_refused(r, name, set) || !put_described(r, &out, name, set))
            return false;
    }
    if (weight)
        tsr_peers_put(r->work, &out, "weight", *weight);
    put_rows(r, &out, set);
    tsr_peers_push(list, out);
    return true;
}

void tsr_llamafactory_data(tsr_peers_work *work, const tsr_config_entry *entry)
{
    reader r = {.work = work, .entry = entry};
    const tsr_config_entry *stage = tsr_peers_find(work, "stage");
    const tsr_config_entry *probabilities = tsr_peers_find(work, "interleave_probs");
    const tsr_config_entry *mix = tsr_peers_find(work, "mix_strategy");
    r.directory = text_of(tsr_peers_find(work, "dataset_dir"), "data");
    r.texts = stage && tsr_peers_is_one_of(&stage->value, "pt");
    bool weighed = probabilities && mix && !tsr_peers_is_one_of(&mix->value, "concat");
    tsr_yaml_value names = tsr_peers_split(work, &entry->value), weights = {0};
    if (weighed)
        weights = tsr_peers_split(work, &probabilities->value);
    bool one = names.kind != TSR_YAML_LIST, right = true;
    int count = one ? 1 : names.count;
    tsr_yaml_value list = tsr_peers_room(work, TSR_YAML_LIST, count);
    for (int i = 0; i < count && right; i++)
        right = add_set(&r, &list, one ? &names : &names.items[i],
                        weighed && weights.kind == TSR_YAML_LIST && i < weights.count
                            ? &weights.items[i]
                            : NULL);
    tsr_config_entry bad = *entry;
    bad.bad = true;
    if (right && list.count)
        tsr_peers_give_data(work, entry, entry->name, &list);
    else
        tsr_peers_give(work, &bad, entry->name, entry->value);
}
