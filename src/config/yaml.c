#include "config/yaml.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_DEPTH                                                                                  \
    16 /* a data set with roles needs six: the document, the list, its map, roles, a role, a name */
#define MAX_VALUES     10000 /* before and after anchors are followed */
#define MAX_DIRECTIVES 100   /* %TAG and the like, which job.yaml has no use for */

struct tsr_yaml_block {
    struct tsr_yaml_block *next;
    max_align_t data[];
};

typedef struct {
    tsr_yaml_tree *tree;
    yaml_document_t *document;
    const char *name;
    int values;
} reader;

static void *allocate(tsr_yaml_tree *tree, size_t bytes)
{
    struct tsr_yaml_block *block = calloc(1, sizeof *block + bytes);
    if (!block)
        return NULL;
    block->next = tree->blocks;
    tree->blocks = block;
    return block->data;
}

static tsr_status out_of_memory(const reader *r)
{
    return tsr_fail(TSR_ENOMEM, "%s: out of memory while reading", r->name);
}

static tsr_status too_deep(const reader *r, int line)
{
    return tsr_fail(TSR_ECONFIG,
                    "%s:%d: nested too deep; expected a word, a list or a map as a key's value",
                    r->name, line);
}

static tsr_status too_many(const reader *r, int line)
{
    return tsr_fail(TSR_ECONFIG, "%s:%d: more than %d values", r->name, line, MAX_VALUES);
}

static tsr_status read_value(reader *r, tsr_yaml_value *out, int index, int depth);

static tsr_status read_scalar(reader *r, tsr_yaml_value *out, const yaml_node_t *node)
{
    size_t length = node->data.scalar.length;
    const char *text = (const char *)node->data.scalar.value;
    if (memchr(text, 0, length))
        return tsr_fail(TSR_ECONFIG, "%s:%d: a text holds a zero byte; remove it", r->name,
                        out->line);
    char *copy = allocate(r->tree, length + 1);
    if (!copy)
        return out_of_memory(r);
    memcpy(copy, text, length);
    out->text = copy;
    out->quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return TSR_OK;
}

static tsr_status read_list(reader *r, tsr_yaml_value *out, const yaml_node_t *node, int depth)
{
    out->count = (int)(node->data.sequence.items.top - node->data.sequence.items.start);
    out->items = allocate(r->tree, (size_t)out->count * sizeof *out->items);
    if (!out->items)
        return out_of_memory(r);
    for (int i = 0; i < out->count; i++)
        TSR_TRY(read_value(r, &out->items[i], node->data.sequence.items.start[i], depth + 1));
    return TSR_OK;
}

static tsr_status read_map(reader *r, tsr_yaml_value *out, const yaml_node_t *node, int depth)
{
    out->count = (int)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    out->items = allocate(r->tree, (size_t)out->count * sizeof *out->items);
    out->keys = allocate(r->tree, (size_t)out->count * sizeof *out->keys);
    if (!out->items || !out->keys)
        return out_of_memory(r);
    for (int i = 0; i < out->count; i++) {
        const yaml_node_pair_t *pair = &node->data.mapping.pairs.start[i];
        TSR_TRY(read_value(r, &out->keys[i], pair->key, depth + 1));
        if (out->keys[i].kind != TSR_YAML_SCALAR)
            return tsr_fail(TSR_ECONFIG, "%s:%d: a key is a %s; expected a word", r->name,
                            out->keys[i].line, out->keys[i].kind == TSR_YAML_LIST ? "list" : "map");
        TSR_TRY(read_value(r, &out->items[i], pair->value, depth + 1));
    }
    return TSR_OK;
}

static tsr_status read_value(reader *r, tsr_yaml_value *out, int index, int depth)
{
    const yaml_node_t *node = yaml_document_get_node(r->document, index);
    if (!node)
        return tsr_fail(TSR_EINTERNAL, "%s: a YAML node is missing", r->name);
    out->line = (int)node->start_mark.line + 1;
    if (depth >= MAX_DEPTH)
        return too_deep(r, out->line);
    if (++r->values > MAX_VALUES)
        return too_many(r, out->line);
    switch (node->type) {
    case YAML_SCALAR_NODE:
        out->kind = TSR_YAML_SCALAR;
        return read_scalar(r, out, node);
    case YAML_SEQUENCE_NODE:
        out->kind = TSR_YAML_LIST;
        return read_list(r, out, node, depth);
    case YAML_MAPPING_NODE:
        out->kind = TSR_YAML_MAP;
        return read_map(r, out, node, depth);
    default:
        return tsr_fail(TSR_ECONFIG,
                        "%s:%d: a value of this form is not read; expected a word, a list or a map",
                        r->name, out->line);
    }
}

/* What to do about libyaml's words. */
static const char *advice(const char *problem)
{
    static const struct {
        const char *problem, *advice;
    } rows[] = {
        {"could not find expected ':'", "; a key is followed by a colon and a space"},
        {"mapping values are not allowed", "; a value that has a colon and a space is quoted"},
        {"tab character", "; indent with spaces"},
        {"cannot start any token", "; indent with spaces, and quote a value that begins with @, %, "
                                   "` or a tab"},
        {"control characters are not allowed", "; expected a job.yaml, lines of `key: value`"},
        {"invalid leading UTF-8 octet", "; expected a job.yaml in UTF-8, lines of `key: value`"},
        {"did not find expected <document start>",
         "; expected a job.yaml, lines of `key: value` from the first column on"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strstr(problem, rows[i].problem))
            return rows[i].advice;
    return "";
}

/* The reader's errors have a byte offset, the scanner's and the parser's a mark: that of a key without its colon is where
 * it begins, not where the colon was given up. */
static tsr_status syntax_error(const yaml_parser_t *parser, const char *text, const char *name)
{
    const char *problem = parser->problem;
    if (parser->error == YAML_MEMORY_ERROR || !problem) /* it names every problem but that one */
        return tsr_fail(TSR_ENOMEM, "%s: out of memory while reading", name);
    if (parser->error == YAML_READER_ERROR) {
        int line = 1, column = 1;
        for (size_t i = 0; i < parser->problem_offset; i++, column++)
            if (text[i] == '\n') {
                line++;
                column = 0;
            }
        return tsr_fail(TSR_ECONFIG, "%s:%d:%d: not YAML: %s%s", name, line, column, problem,
                        advice(problem));
    }
    bool key = parser->context && strstr(parser->context, "scanning a simple key");
    const yaml_mark_t *at = key ? &parser->context_mark : &parser->problem_mark;
    return tsr_fail(TSR_ECONFIG, "%s:%d:%d: not YAML: %s%s%s%s", name, (int)at->line + 1,
                    (int)at->column + 1, problem, parser->context ? ", " : "",
                    parser->context ? parser->context : "", advice(problem));
}

/* Counts one event of the text: the lists and maps that are open, and all values so far. */
static tsr_status check_event(const reader *r, const yaml_event_t *event, int *depth, int *values)
{
    bool begins =
        event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT;
    bool value = begins || event->type == YAML_SCALAR_EVENT || event->type == YAML_ALIAS_EVENT;
    int line = (int)event->start_mark.line + 1;
    if (begins && *depth == MAX_DEPTH)
        return too_deep(r, line);
    *values += value;
    if (*values > MAX_VALUES)
        return too_many(r, line);
    *depth += begins;
    *depth -= event->type == YAML_SEQUENCE_END_EVENT || event->type == YAML_MAPPING_END_EVENT;
    return TSR_OK;
}

/* A text that libyaml takes long for, since it looks through all open brackets at each token, and through all anchors and
 * tags at each of them, is refused before it is loaded. What is no YAML is left to the loading. */
static tsr_status check_size(const reader *r, const char *text, size_t bytes)
{
    yaml_parser_t parser;
    yaml_event_t event;
    int depth = 0, values = 0, directives = 0;
    for (size_t i = 0; i < bytes; i++) /* behind a zero in UTF-16 */
        directives += text[i] == '%' && (!i || strchr("\r\n", text[i - 1]));
    if (directives > MAX_DIRECTIVES)
        return tsr_fail(TSR_ECONFIG, "%s: more than %d lines begin with %%", r->name,
                        MAX_DIRECTIVES);
    if (!yaml_parser_initialize(&parser))
        return out_of_memory(r);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    tsr_status status = TSR_OK;
    bool ends = false;
    while (status == TSR_OK && !ends && yaml_parser_parse(&parser, &event)) {
        status = check_event(r, &event, &depth, &values);
        ends = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

static tsr_status read_document(reader *r, yaml_parser_t *parser)
{
    const yaml_node_t *root = yaml_document_get_root_node(r->document);
    if (!root) {
        r->tree->root = (tsr_yaml_value){.kind = TSR_YAML_MAP, .line = 1};
        return TSR_OK;
    }
    TSR_TRY(read_value(r, &r->tree->root, 1, 0));
    yaml_document_t second;
    if (!yaml_parser_load(parser, &second)) {
        if (!parser->problem)
            return out_of_memory(r);
        return tsr_fail(TSR_ECONFIG, "%s:%d:%d: not YAML after the document: %s%s", r->name,
                        (int)parser->problem_mark.line + 1, (int)parser->problem_mark.column + 1,
                        parser->problem, advice(parser->problem));
    }
    const yaml_node_t *more = yaml_document_get_root_node(&second);
    int line = more ? (int)more->start_mark.line + 1 : 0;
    yaml_document_delete(&second);
    if (more)
        return tsr_fail(
            TSR_ECONFIG,
            "%s:%d: a second document; expected one; remove it, or put it into a file of its own",
            r->name, line);
    return TSR_OK;
}

tsr_status tsr_yaml_parse(tsr_yaml_tree *out, const char *text, size_t bytes, const char *name)
{
    yaml_parser_t parser;
    yaml_document_t document;
    tsr_yaml_tree tree = {0};
    reader r = {.tree = &tree, .document = &document, .name = name};
    tsr_status status = check_size(&r, text, bytes);
    if (status < 0)
        return status;
    if (!yaml_parser_initialize(&parser))
        return out_of_memory(&r);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    if (!yaml_parser_load(&parser, &document)) {
        status = syntax_error(&parser, text, name);
    } else {
        status = read_document(&r, &parser);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    if (status < 0)
        tsr_yaml_free(&tree);
    else
        *out = tree;
    return status;
}

void tsr_yaml_free(tsr_yaml_tree *tree)
{
    struct tsr_yaml_block *block = tree->blocks;
    while (block) {
        struct tsr_yaml_block *next = block->next;
        free(block);
        block = next;
    }
    *tree = (tsr_yaml_tree){0};
}

bool tsr_yaml_is_null(const tsr_yaml_value *value)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    if (value->kind != TSR_YAML_SCALAR || value->quoted)
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(value->text, words[i]))
            return true;
    return false;
}

const char *tsr_yaml_library(void)
{
    return yaml_get_version_string();
}
