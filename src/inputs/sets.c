#include "inputs/sets.h"

#include "base/log.h"
#include "data/held_out.h"
#include "data/mix.h"
#include "inputs/objective.h"
#include "inputs/slice.h"
#include "io/user_cache.h"
#include "model/arch/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokenizer and templates ---- */

/* What special_tokens names must be what the tokenizer has: tokens cannot be added, and other words for its own would change
 * the text. Padding is no matter; a name that the tokenizer leaves open may be any of its tokens. */
static tsr_status check_special_tokens(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    for (int i = 0; i < config->special_tokens.count; i++) {
        const char *name = config->special_tokens.items[i].name;
        const char *word = config->special_tokens.items[i].words.items[0];
        const char *own = tsr_tokenizer_special(inputs->tokenizer, name);
        bool ends = !strcmp(name, "eos_token"), begins = !strcmp(name, "bos_token");
        if (ends && config->eos_token)
            own = config->eos_token;
        bool open = !own && !ends && !begins && tsr_tokenizer_id(inputs->tokenizer, word) >= 0;
        if (!strcmp(name, "pad_token") || open || (own && !strcmp(own, word)))
            continue;
        return tsr_fail(
            TSR_ECONFIG, "%s: special_tokens: found %s '%s', but that of %s is %s%s%s; %s",
            tsr_config_where(config, "special_tokens"), name, word, config->model_name_or_path,
            own ? "'" : "", own ? own : "not set", own ? "'" : "",
            ends ? "write it as eos_token" : "leave it out, or change tokenizer_config.json");
    }
    return TSR_OK;
}

/* The tokenizer and the chat template are opened for the first data set that needs them. */
static tsr_status open_tokenizer(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    if (inputs->tokenizer)
        return TSR_OK;
    TSR_TRY(tsr_tokenizer_open(&inputs->tokenizer, config->model_name_or_path,
                               inputs->model.arch->tokenizer_by_class));
    if (config->eos_token && tsr_tokenizer_id(inputs->tokenizer, config->eos_token) < 0)
        return tsr_fail(TSR_ECONFIG,
                        "%s: eos_token: found '%s', which is no token of %s; write one of its "
                        "tokenizer.json, or leave the key out",
                        tsr_config_where(config, "eos_token"), config->eos_token,
                        config->model_name_or_path);
    return check_special_tokens(inputs);
}

/* The chat of a template; the first one is the job's. */
static tsr_status find_chat(tsr_chat **out, tsr_inputs *inputs, const char *template)
{
    const tsr_config *config = &inputs->config;
    TSR_TRY(open_tokenizer(inputs));
    for (int i = 0; i < inputs->chat_count; i++) {
        const char *other = inputs->chats[i].template;
        if (template == other || (template && other && !strcmp(template, other))) {
            *out = inputs->chats[i].chat;
            return TSR_OK;
        }
    }
    void *more = realloc(inputs->chats, (size_t)(inputs->chat_count + 1) * sizeof *inputs->chats);
    if (!more)
        return tsr_fail(TSR_ENOMEM, "no memory for a chat template");
    inputs->chats = more;
    tsr_chat_options options = {
        .template = template, .eos_token = config->eos_token, .now = inputs->today};
    if (config->chat_template_date)
        tsr_config_date(&options.now, config->chat_template_date);
    tsr_status status = tsr_chat_create(out, inputs->tokenizer, &options);
    if (status == TSR_ECONFIG) /* the template's name, or that there is none */
        return tsr_fail(status, "%s: %s",
                        tsr_config_where(config, template ? "chat_template" : "model_name_or_path"),
                        tsr_last_error());
    if (status == TSR_EDATA && strstr(tsr_last_error(), "is not supported"))
        return tsr_fail(status,
                        "%s; write that line another way in a template of your own, or choose one "
                        "by name (chat_template; docs/data.md)",
                        tsr_last_error());
    TSR_TRY(status);
    inputs->chats[inputs->chat_count].template = template;
    inputs->chats[inputs->chat_count++].chat = *out;
    inputs->chat = inputs->chats[0].chat;
    if (*tsr_chat_lacking_tokens(*out))
        tsr_log(TSR_LOG_WARNING,
                "the chat template writes what is no token of %s: %s; the model reads it as plain "
                "text, not as what begins and ends turns (chat_template alpaca, vicuna or llama2 "
                "needs no token but eos_token)",
                config->model_name_or_path, tsr_chat_lacking_tokens(*out));
    return TSR_OK;
}

bool tsr_inputs_dated(const tsr_inputs *inputs)
{
    bool dated = false;
    for (int i = 0; i < inputs->chat_count; i++)
        dated |= tsr_chat_dated(inputs->chats[i].chat);
    return dated;
}

tsr_status tsr_inputs_template(char **text, uint64_t *bytes, tsr_inputs *inputs)
{
    const char *choice = inputs->config.chat_template, *name;
    *text = NULL;
    *bytes = 0;
    if (!choice)
        return TSR_OK;
    TSR_TRY(open_tokenizer(inputs));
    return tsr_chat_is_own(inputs->tokenizer, choice)
               ? TSR_OK
               : tsr_chat_template_text(text, bytes, &name, inputs->tokenizer, choice);
}

/* The token that pads, as TRL's RewardTrainer chooses it: the tokenizer's own, else eos. Where rows are tokens, and no tokenizer
 * is read, config.json's. -1: there is none. */
static int32_t pad_of(const tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const tsr_tokenizer *tokenizer = inputs->tokenizer;
    if (!tokenizer)
        return (int32_t)inputs->model.pad_token_id;
    const char *word = tsr_tokenizer_special(tokenizer, "pad_token");
    for (int i = 0; i < config->special_tokens.count; i++)
        if (!strcmp(config->special_tokens.items[i].name, "pad_token"))
            word = config->special_tokens.items[i].words.items[0];
    if (word)
        return tsr_tokenizer_id(tokenizer, word);
    return config->eos_token ? tsr_tokenizer_id(tokenizer, config->eos_token)
                             : tsr_tokenizer_eos(tokenizer);
}

/* What ends a row of plain text. */
static tsr_status find_eos(int32_t *out, const tsr_inputs *inputs)
{
    const char *word = inputs->config.eos_token;
    *out = word ? tsr_tokenizer_id(inputs->tokenizer, word) : tsr_tokenizer_eos(inputs->tokenizer);
    const char *named = tsr_tokenizer_special(inputs->tokenizer, "eos_token");
    if (*out < 0 && named)
        return tsr_fail(TSR_ECONFIG,
                        "eos_token: tokenizer_config.json of %s names '%s', which is no token of "
                        "tokenizer.json, and rows of text end with it; give one, such as "
                        "eos_token: </s>",
                        inputs->config.model_name_or_path, named);
    if (*out < 0)
        return tsr_fail(TSR_ECONFIG,
                        "eos_token: tokenizer_config.json of %s names none, and rows of text end "
                        "with it; give one, such as eos_token: </s>",
                        inputs->config.model_name_or_path);
    return TSR_OK;
}

static tsr_loss_choice loss_choice(tsr_config_choice choice)
{
    return choice == TSR_CONFIG_CHOICE_AUTO  ? TSR_LOSS_AUTO
           : choice == TSR_CONFIG_CHOICE_YES ? TSR_LOSS_YES
                                             : TSR_LOSS_NO;
}

/* ---- the cache ---- */

#define CACHE_LEAST ((uint64_t)4 << 20) /* bytes of rows that take about a second */

/* NULL: no cache. */
static tsr_token_place *find_cache(tsr_inputs *inputs)
{
    const char *choice = inputs->config.dataset_cache;
    tsr_token_place *place = &inputs->cache;
    bool own = choice && !strcmp(choice, "true");
    if (!choice || place->failed)
        return NULL;
    place->least_bytes = own ? CACHE_LEAST : 0;
    if (!own)
        snprintf(place->directory, sizeof place->directory, "%s", choice);
    else if (!tsr_user_cache_find(place->directory))
        place->directory[0] = 0;
    return place;
}

/* ---- names ---- */

#define MOST_ROLES 64

typedef struct {
    tsr_columns columns;
    tsr_rename roles[MOST_ROLES];
} renamed;

static void add_column(tsr_columns *out, const char *from, const char *to, const char *key,
                       bool optional)
{
    if (from)
        out->columns[out->column_count++] = (tsr_rename){from, to, key, optional};
}

static int count_roles(const tsr_config_set *set)
{
    int count = 2; /* field_human and field_model */
    for (int i = 0; i < set->roles.count; i++)
        count += set->roles.items[i].words.count;
    return count;
}

static void add_role(renamed *out, const char *word, const char *role)
{
    if (word)
        out->roles[out->columns.role_count++] = (tsr_rename){word, role, "roles", true};
}

static void add_members(tsr_columns *out, const tsr_config_names *names, bool sharegpt)
{
    for (int i = 0; i < names->count && out->member_count < TSR_COLUMNS_MOST; i++) {
        const char *name = names->items[i].name;
        bool role = !strcmp(name, "role"), content = !strcmp(name, "content");
        const char *to = sharegpt && role ? "from" : sharegpt && content ? "value" : name;
        out->members[out->member_count++] =
            (tsr_rename){names->items[i].words.items[0], to, "message_property_mappings", !role};
    }
}

static bool has_answers(tsr_data_format format)
{
    return format == TSR_DATA_PREFERENCE || format == TSR_DATA_UNPAIRED;
}

/* What rows of preferences call their parts. An instruction takes the place of a prompt. */
static void name_answers(tsr_columns *out, const tsr_config_set *set)
{
    out->pairs = true;
    out->chat = set->chat_template;
    out->asks = set->field_instruction;
    out->names_prompt = set->field_prompt;
    out->names_system = set->field_system;
    out->names_input = set->field_input;
    out->names_history = set->field_history;
    add_column(out, set->field_prompt, "prompt", "field_prompt", out->chat);
    add_column(out, set->field_chosen, "chosen", "field_chosen", false);
    add_column(out, set->field_rejected, "rejected", "field_rejected", false);
    add_column(out, set->field_completion, "completion", "field_completion", false);
    add_column(out, set->field_label, "label", "field_label", false);
}

/* What the rows of a set call their parts; NULL: as the format does. A set of instructions with a chat template is one of
 * chats, and *format becomes that. */
static const tsr_columns *name_columns(renamed *out, const tsr_config_set *set,
                                       tsr_data_format *format)
{
    tsr_columns *columns = &out->columns;
    bool sharegpt = *format == TSR_DATA_SHAREGPT;
    *columns = (tsr_columns){.roles = out->roles,
                             .list = sharegpt ? "conversations" : "messages",
                             .role = sharegpt ? "from" : "role",
                             .chat = *format == TSR_DATA_ALPACA && set->chat_template};
    if (has_answers(*format))
        name_answers(columns, set);
    else
        add_column(columns, set->field_messages, columns->list, "field_messages", false);
    add_column(columns, set->field_system, "system", "field_system", true);
    add_column(columns, set->field_tools, "tools", "field_tools", true);
    add_column(columns, set->field_instruction, "instruction", "field_instruction", false);
    add_column(columns, set->field_input, "input", "field_input", true);
    add_column(columns, set->field_output, "output", "field_output", false);
    add_column(columns, set->field_history, "history", "field_history", true);
    add_members(columns, &set->message_property_mappings, sharegpt);
    for (int i = 0; i < set->roles.count; i++)
        for (int w = 0; w < set->roles.items[i].words.count; w++)
            add_role(out, set->roles.items[i].words.items[w], set->roles.items[i].name);
    add_role(out, set->field_human, "user");
    add_role(out, set->field_model, "assistant");
    if (columns->chat && !columns->pairs)
        *format = TSR_DATA_MESSAGES;
    return columns->column_count || columns->member_count || columns->role_count || columns->chat
               ? columns
               : NULL;
}

/* Bits of the roles to train; *wrong: a word that is none. */
static unsigned read_roles(const char **wrong, const tsr_config_strings *roles,
                           const tsr_config_set *set)
{
    unsigned bits = TSR_CHAT_ROLES_CHOSEN;
    for (int i = 0; i < roles->count; i++) {
        const char *word = roles->items[i];
        for (int r = 0; r < set->roles.count; r++) /* a word of the set's own */
            for (int w = 0; w < set->roles.items[r].words.count; w++)
                if (!strcmp(set->roles.items[r].words.items[w], word))
                    word = set->roles.items[r].name;
        unsigned bit = tsr_chat_role_bit(word);
        if (!bit)
            *wrong = roles->items[i];
        bits |= bit;
    }
    return bits;
}

/* What the set, or else the job, says about roles and ends of turns. */
static tsr_status choose_training(tsr_dataset_options *options, const tsr_config *config,
                                  const tsr_config_set *set)
{
    static const tsr_chat_ends ends[] = {[TSR_CONFIG_EOT_UNSET] = TSR_CHAT_ENDS_TURN,
                                         [TSR_CONFIG_EOT_TURN] = TSR_CHAT_ENDS_TURN,
                                         [TSR_CONFIG_EOT_ALL] = TSR_CHAT_ENDS_ALL,
                                         [TSR_CONFIG_EOT_LAST] = TSR_CHAT_ENDS_LAST,
                                         [TSR_CONFIG_EOT_NONE] = TSR_CHAT_ENDS_NONE};
    const tsr_config_strings *roles =
        set->roles_to_train.items ? &set->roles_to_train : &config->roles_to_train;
    const char *wrong = NULL, *own = *options->key == 'e' ? "eval_dataset" : "dataset";
    options->training.ends = ends[set->train_on_eot ? set->train_on_eot : config->train_on_eot];
    options->training.roles = roles->items ? read_roles(&wrong, roles, set) : 0;
    if (!wrong)
        return TSR_OK;
    return tsr_fail(
        TSR_ECONFIG,
        "%s: roles_to_train: found '%s'; expected system, user, assistant, tool, or a "
        "word of the data for one of them (docs/data.md)",
        tsr_config_where(config, roles == &set->roles_to_train ? own : "roles_to_train"), wrong);
}

/* Says what is about chats where the rows of a set are none: of the set's own members that is an error. */
static tsr_status check_no_chat(const tsr_dataset_options *options, const tsr_config *config,
                                const tsr_config_set *set)
{
    const struct {
        const char *name;
        bool own, job;
    } keys[] = {
        {"chat_template", set->chat_template, false},
        {"roles_to_train", set->roles_to_train.items, config->roles_to_train.items},
        {"train_on_eot", set->train_on_eot, config->train_on_eot != TSR_CONFIG_EOT_TURN},
        {"drop_system", set->drop_system, false},
        {"default_system", false, config->default_system},
    };
    const char *own = *options->key == 'e' ? "eval_dataset" : "dataset";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i].own)
            return tsr_fail(TSR_ECONFIG,
                            "%s: %s: %s is about chats, but the rows of %s have the format %s; "
                            "leave it out, or write the rows as messages",
                            tsr_config_where(config, own), options->key, keys[i].name,
                            options->files[0], tsr_data_format_name(options->format));
        if (keys[i].job)
            tsr_log(TSR_LOG_WARNING, "%s: %s has no effect on rows of the format %s", options->key,
                    keys[i].name, tsr_data_format_name(options->format));
    }
    return TSR_OK;
}

/* The rows of *options, or of the data set `set` (NULL: it has no members) of which they are. */
static tsr_status load_set(tsr_dataset **out, tsr_inputs *inputs, tsr_dataset_options options,
                           const tsr_config_set *set)
{
    static const tsr_data_format formats[] = {
        [TSR_CONFIG_FORMAT_AUTO] = TSR_DATA_AUTO,
        [TSR_CONFIG_FORMAT_MESSAGES] = TSR_DATA_MESSAGES,
        [TSR_CONFIG_FORMAT_SHAREGPT] = TSR_DATA_SHAREGPT,
        [TSR_CONFIG_FORMAT_ALPACA] = TSR_DATA_ALPACA,
        [TSR_CONFIG_FORMAT_PROMPT_COMPLETION] = TSR_DATA_PROMPT_COMPLETION,
        [TSR_CONFIG_FORMAT_INPUT_OUTPUT] = TSR_DATA_INPUT_OUTPUT,
        [TSR_CONFIG_FORMAT_TEXT] = TSR_DATA_TEXT,
        [TSR_CONFIG_FORMAT_PRETOKENIZED] = TSR_DATA_PRETOKENIZED,
        [TSR_CONFIG_FORMAT_PREFERENCE] = TSR_DATA_PREFERENCE,
        [TSR_CONFIG_FORMAT_PREFERENCE_IDS] = TSR_DATA_PREFERENCE_IDS,
        [TSR_CONFIG_FORMAT_UNPAIRED] = TSR_DATA_UNPAIRED};
    static const tsr_truncation truncations[] = {[TSR_CONFIG_TRUNCATION_ERROR] = TSR_TRUNCATE_ERROR,
                                                 [TSR_CONFIG_TRUNCATION_RIGHT] = TSR_TRUNCATE_RIGHT,
                                                 [TSR_CONFIG_TRUNCATION_DROP] = TSR_TRUNCATE_DROP,
                                                 [TSR_CONFIG_TRUNCATION_SPLIT] =
                                                     TSR_TRUNCATE_SPLIT};
    const tsr_config *config = &inputs->config;
    const tsr_config_set none = {0};
    renamed names;
    set = set ? set : &none;
    if (count_roles(set) > MOST_ROLES)
        return tsr_fail(TSR_ECONFIG, "%s: %s: roles has %d words, %d at most",
                        tsr_config_where(config, *options.key == 'e' ? "eval_dataset" : "dataset"),
                        options.key, count_roles(set), MOST_ROLES);
    const char *text_field = set->text_field ? set->text_field : config->dataset_text_field;
    options.rows = inputs->rows;
    options.format = formats[set->format ? set->format : config->dataset_format];
    options.text_field = text_field;
    options.columns = name_columns(&names, set, &options.format);
    options.assistant_only = loss_choice(config->assistant_only_loss);
    options.completion_only = loss_choice(config->completion_only_loss);
    options.response_template = config->response_template;
    options.max_length = config->max_length;
    options.truncation = truncations[config->truncation];
    options.pairs = tsr_inputs_pairs(config);
    options.answer_begin = config->answer_begin;
    options.bare_conversations = !config->wrap_conversations;
    options.vocab_size = (int64_t)inputs->model.vocab_size;
    options.threads = inputs->threads;
    options.cache = find_cache(inputs);
    bool is_chat;
    TSR_TRY(tsr_dataset_detect(&options.format, &is_chat, &options));
    if (options.format == TSR_DATA_ALPACA &&
        set->chat_template) { /* as where the format is given */
        names.columns.chat = is_chat = true;
        options.columns = &names.columns;
        options.format = TSR_DATA_MESSAGES;
    }
    if (!is_chat)
        TSR_TRY(check_no_chat(&options, config, set));
    if (is_chat) {
        const char *template = set->chat_template ? set->chat_template : config->chat_template;
        TSR_TRY(find_chat(&options.chat, inputs, template));
        options.default_system = config->default_system;
        options.drop_system = set->drop_system;
        TSR_TRY(choose_training(&options, config, set));
        if (options.pairs == TSR_PAIRS_ORPO) /* whose chats end with it too */
            TSR_TRY(find_eos(&options.eos_id, inputs));
    } else if (!tsr_data_has_ids(options.format)) {
        TSR_TRY(open_tokenizer(inputs));
        if (options.format != TSR_DATA_INPUT_OUTPUT) /* which ends as its text does */
            TSR_TRY(find_eos(&options.eos_id, inputs));
        options.tokenizer = inputs->tokenizer;
    }
    if (options.pairs == TSR_PAIRS_REWARD)
        options.pad = pad_of(inputs) + 1;
    return tsr_dataset_load(out, &options);
}

/* ---- files ---- */

/* The names of `more` behind those of *all, which has them then. */
static tsr_status append_paths(tsr_paths *all, tsr_paths *more)
{
    char **items = realloc(all->items, (size_t)(all->count + more->count) * sizeof *items);
    if (!items)
        return tsr_fail(TSR_ENOMEM, "no memory for the names of files");
    all->items = items;
    memcpy(items + all->count, more->items, (size_t)more->count * sizeof *items);
    all->count += more->count;
    more->count = 0;
    return TSR_OK;
}

/* The data sets of one key. */
typedef struct {
    const tsr_config_data *given;
    const char *key, *split;
    int64_t most;     /* rows or, of several sets, samples; 0: all */
    tsr_paths *files; /* gets the names of all files */
} request;

/* With a callback the paths are names that it is asked for. */
static tsr_status find_files(tsr_paths *out, const tsr_inputs *inputs, const char *const *paths,
                             int count, const char *split, const char *key)
{
    return inputs->rows.next ? tsr_paths_copy(out, paths, count, key)
                             : tsr_paths_expand(out, paths, count, split, key);
}

/* Loads set `index` of a list of maps; -1: paths alone, all of them. */
static tsr_status load_part(tsr_dataset **out, tsr_inputs *inputs, const request *r, int index)
{
    const tsr_config_set *set = index < 0 ? NULL : &r->given->sets[index];
    const char *where = tsr_config_where(&inputs->config, r->key);
    char key[64];
    tsr_auto_text folder = {0};
    tsr_slice slice;
    tsr_paths files = {0};
    snprintf(key, sizeof key, index < 0 ? "%s" : "%s[%d]", r->key, index);
    TSR_TRY(tsr_slice_parse(&slice, set && set->split ? set->split : r->split, where, key));
    tsr_text_printf(&folder, "%s/%s", set ? set->path : "", set && set->name ? set->name : "");
    const char *path = set && set->name ? tsr_text_string(&folder) : set ? set->path : NULL;
    if (folder.failed)
        return tsr_fail(TSR_ENOMEM, "%s: no memory for the names of files", key);
    TSR_TRY(set ? find_files(&files, inputs, &path, 1, slice.name, key)
                : find_files(&files, inputs, r->given->items, r->given->count, slice.name, key));
    tsr_dataset_options options = {.files = (const char *const *)files.items,
                                   .file_count = files.count,
                                   .key = key,
                                   .rows = inputs->rows,
                                   .max_rows = set ? set->samples : r->most};
    tsr_status status = tsr_slice_apply(&options, &slice, where);
    if (status >= 0)
        status = load_set(out, inputs, options, set);
    if (status >= 0)
        status = append_paths(r->files, &files);
    tsr_paths_free(&files);
    return status;
}

/* All sets as one. */
static tsr_status load_mix(tsr_dataset **out, tsr_inputs *inputs, const request *r,
                           tsr_dataset **parts, double *weights)
{
    const tsr_config *config = &inputs->config;
    int count = r->given->count;
    for (int i = 0; i < count; i++) {
        TSR_TRY(load_part(&parts[i], inputs, r, i));
        weights[i] = r->given->sets[i].weight;
    }
    const tsr_mix_options options = {.interleave =
                                         config->dataset_mixing == TSR_CONFIG_MIXING_INTERLEAVE,
                                     .weights = weights,
                                     .seed = (uint64_t)config->data_seed,
                                     .most = r->most};
    return tsr_dataset_mix(out, parts, count, &options);
}

/* A message that begins with the key gets its line in front. */
static tsr_status put_where(tsr_status status, const tsr_config *config, const char *key)
{
    size_t length = strlen(key);
    const char *message = tsr_last_error();
    bool of_key = !strncmp(message, key, length) && strchr(":[", message[length]);
    return of_key && tsr_config_is_set(config, key)
               ? tsr_fail(status, "%s: %s", tsr_config_where(config, key), message)
               : status;
}

static tsr_status load_all(tsr_dataset **out, tsr_inputs *inputs, const request *r)
{
    int count = r->given->count;
    if (!r->given->sets)
        return load_part(out, inputs, r, -1);
    tsr_dataset **parts = calloc((size_t)count, sizeof *parts);
    double *weights = calloc((size_t)count, sizeof *weights);
    tsr_status status = parts && weights ? load_mix(out, inputs, r, parts, weights)
                                         : tsr_fail(TSR_ENOMEM, "%s: out of memory", r->key);
    for (int i = 0; parts && status < 0 && i < count; i++)
        tsr_dataset_destroy(parts[i]);
    free(parts);
    free(weights);
    return status;
}

static tsr_status load(tsr_dataset **out, tsr_inputs *inputs, const request *r)
{
    tsr_status status = load_all(out, inputs, r);
    return status < 0 ? put_where(status, &inputs->config, r->key) : status;
}

/* The samples that validation_split names become those of the evaluation. */
static tsr_status hold_out(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const tsr_held_out_options options = {.split = config->validation_split,
                                          .most = config->max_eval_samples,
                                          .seed = (uint64_t)config->data_seed,
                                          .where = tsr_config_where(config, "validation_split")};
    return tsr_dataset_hold_out(&inputs->eval_dataset, inputs->dataset, &options);
}

tsr_status tsr_inputs_load_training(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const request r = {&config->dataset, "dataset", config->dataset_train_split,
                       config->max_train_samples, &inputs->files};
    TSR_TRY(load(&inputs->dataset, inputs, &r));
    return config->validation_split > 0 ? hold_out(inputs) : TSR_OK;
}

tsr_status tsr_inputs_load_evaluation(tsr_inputs *inputs)
{
    const tsr_config *config = &inputs->config;
    const request r = {&config->eval_dataset, "eval_dataset", config->dataset_test_split,
                       config->max_eval_samples, &inputs->eval_files};
    return inputs->eval_dataset ? TSR_OK : load(&inputs->eval_dataset, inputs, &r);
}
