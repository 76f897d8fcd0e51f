/*
 * jinja/jinja.h: the inside of jinja/template.h: values, syntax tree, and how a rendering runs.
 *
 * lex.c   source to tokens             value.c   equality, order, length of values
 * parse.c tokens to the tree           print.c   str, repr and JSON of values
 * scope.c names not set yet            dict.c    dicts and other tables
 * eval.c  expressions                  filter.c  filters; test.c tests
 * item.c  attributes, items, slices    method.c  methods of strings and dicts
 * run.c   statements                   sort.c    filters that order
 * budget.c memory and steps            text.c    what filters and methods of strings share
 *
 * A template or a row may be hostile, so that a rendering has a budget of steps and of memory. All memory, texts
 * that grow too, comes from an arena, which takes its bytes and the steps of filling them before it gives them.
 * What reads a text without building one takes the steps of reading it first (tsr_jinja_scan): a filter, a method
 * and a test do not have to, as their texts are charged where they are called.
 */
#ifndef TSR_JINJA_JINJA_H
#define TSR_JINJA_JINJA_H

#include "jinja/template.h"

#include <stdint.h>

/* ---- memory and steps: budget.c ---- */

typedef struct arena_chunk arena_chunk;

/* Of a template while it is parsed, or of one rendering. Zero-initialise, but for `steps` and `name`. */
typedef struct {
    arena_chunk *chunks, *open; /* all; the one that small pieces come from */
    size_t held;                /* bytes, of at most 256 MiB */
    int64_t steps;              /* left */
    const char *name;           /* of the template, and its line now (NULL: none), for messages */
    const int *line;
} tsr_jinja_arena;

/* Zeroed memory until tsr_jinja_arena_free. TSR_EDATA: the budget does not have so much. */
tsr_status tsr_jinja_alloc(void *out, tsr_jinja_arena *arena, size_t count, size_t bytes_each);
/* Counts memory that is not the arena's. */
tsr_status tsr_jinja_hold(tsr_jinja_arena *arena, size_t bytes);
void tsr_jinja_arena_free(tsr_jinja_arena *arena);

/* A text that grows in an arena. Zero-initialise. */
typedef struct {
    char *data;
    size_t bytes, capacity;
} jinja_writer;

/* Positions of an array by the hash of what lies there. Zero-initialise: dict.c. */
typedef struct {
    struct jinja_slot *slots;
    size_t count, capacity;
} jinja_index;

#define JINJA_NOWHERE SIZE_MAX

tsr_status tsr_jinja_index_add(jinja_index *index, tsr_jinja_arena *arena, uint32_t hash,
                               size_t position);
/* The next position whose element has the hash, JINJA_NOWHERE behind the last; *probes, 0 at first, counts the
 * slots that were looked at. */
size_t tsr_jinja_index_next(const jinja_index *index, uint32_t hash, size_t *probes);

/* ---- values ---- */

typedef enum {
    V_ABSENT = 0, /* an argument that was not given */
    V_UNDEFINED,  /* text.data: the message of using it */
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_VIEW, /* dict_items, range: has a length, no repr here */
    V_ITER, /* a generator: no length, true, read once */
    V_DICT,
    V_NAMESPACE,
    V_MACRO,
    V_METHOD, /* bound to a value */
    V_GLOBAL, /* a global function */
    V_LOOP
} tsr_jinja_kind;

typedef struct value value;
typedef struct node node;
typedef struct scope scope;

typedef struct {
    value *items;
    size_t count;
    bool consumed; /* V_ITER */
} jinja_list;

typedef struct {
    value *keys, *values;
    size_t count, capacity;
    jinja_index index;
} jinja_dict;

typedef struct {
    jinja_list *items;
    size_t index;
    int depth;
} jinja_loop;

typedef struct {
    const node *macro;
    scope *scope;
} jinja_macro;

typedef struct {
    const char *data;
    size_t bytes;
} jinja_text;

struct value {
    tsr_jinja_kind kind;
    bool safe;  /* V_STRING: markup; only printing it is understood */
    int method; /* V_METHOD, V_GLOBAL: which */
    union {
        bool boolean;
        int64_t integer;
        double real;
        jinja_text text;
        jinja_list *list; /* V_LIST, V_TUPLE, V_VIEW, V_ITER */
        jinja_dict *dict; /* V_DICT, V_NAMESPACE */
        jinja_loop *loop;
        jinja_macro *macro;
        const value *self; /* V_METHOD */
    };
};

/* ---- the tree ---- */

typedef enum {
    /* statements */
    N_TEXT, /* constant */
    N_PRINT,
    N_IF,       /* a condition, b body, c else */
    N_FOR,      /* a target, b iterable, c body, d else, e condition */
    N_SET,      /* a target, b value */
    N_SETBLOCK, /* a target, b body, c filters over N_HOLE or NULL */
    N_WITH,     /* list of N_SET, b body */
    N_MACRO,    /* name, list of parameters (N_NAME, a default), b body */
    N_FILTERED, /* c filters over N_HOLE, b body */
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
    /* expressions */
    N_CONST,
    N_NAME,
    N_NSREF, /* name.text, as the target of set */
    N_LIST,
    N_TUPLE,
    N_DICT,   /* list: key, value, key, value */
    N_ATTR,   /* a.text */
    N_ITEM,   /* a[b] */
    N_SLICE,  /* a begin, b end, c step; as b of N_ITEM */
    N_CALL,   /* a(list) */
    N_FILTER, /* a | which(list) */
    N_TEST,   /* a is which(list) */
    N_NOT,
    N_AND,
    N_OR,
    N_NEG,
    N_POS,
    N_BINARY, /* a op b */
    N_CONCAT,
    N_COMPARE, /* a, then list of N_OPERAND */
    N_OPERAND, /* op, a */
    N_COND,    /* a if b else c */
    N_HOLE     /* what a filter block filters */
} node_kind;

typedef enum {
    T_END,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_IN,
    T_NOTIN,
    T_ASSIGN,
    T_DOT,
    T_COMMA,
    T_COLON,
    T_PIPE,
    T_LPAREN,
    T_RPAREN,
    T_LBRACKET,
    T_RBRACKET,
    T_LBRACE,
    T_RBRACE
} token_kind;

typedef struct {
    token_kind kind;
    int line;
    jinja_text text; /* T_DATA, T_NAME, T_STRING (escapes resolved) */
    int64_t integer;
    double real;
} token;

struct node {
    node_kind kind;
    token_kind op;
    int line;
    int name;  /* interned; the keyword of an argument, or -1 */
    int which; /* of the filter or test */
    jinja_text text;
    value constant;
    node *a, *b, *c, *d, *e;
    node *list; /* of children, through next */
    node *next;
    size_t count;      /* of list */
    const int *hidden; /* of the first statement of a scope: names it sets later; scope.c */
    size_t hidden_count;
};

struct tsr_template {
    tsr_jinja_arena arena;
    char *name;
    node *body;
    jinja_text *names; /* interned */
    size_t name_count, name_capacity;
    jinja_index name_index;
    bool generation;
};

/* Fills *tokens (the arena's), ended by T_END. `source` lives in the arena. */
tsr_status tsr_jinja_lex(token **tokens, size_t *count, tsr_template *t, const char *source,
                         size_t bytes);
tsr_status tsr_jinja_parse(tsr_template *t, const token *tokens);
tsr_status tsr_jinja_intern(int *out, tsr_template *t, jinja_text name);
/* After parsing: fills `hidden` of every scope. */
tsr_status tsr_jinja_find_hidden(tsr_template *t);

/* ---- a rendering ---- */

struct scope {
    scope *parent;
    int *names;
    value *values;
    size_t count, capacity;
    jinja_index index;
};

typedef struct {
    const tsr_template *t;
    tsr_jinja_arena arena;
    jinja_writer *out;        /* where output goes now */
    tsr_rendering *rendering; /* its spans */
    const json_t *variables;
    int64_t now;
    int line, depth;
    enum { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;
    value hole;
} jinja_run;

/* The arguments of a call, with keywords: names[i] is NULL for a positional one. */
typedef struct {
    value *values;
    jinja_text *names;
    size_t count;
} jinja_args;

/* Fails with the template's name and the current line. */
tsr_status tsr_jinja_fail(const jinja_run *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same while parsing. */
tsr_status tsr_jinja_syntax(const tsr_template *t, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

tsr_status tsr_jinja_eval(value *out, jinja_run *r, const node *n, scope *s);
tsr_status tsr_jinja_body(jinja_run *r, const node *body, scope *s);
tsr_status tsr_jinja_call_macro(value *out, jinja_run *r, const jinja_macro *m,
                                const jinja_args *args);
/* The scope in which `body` (NULL: none) runs: the names it hides are V_ABSENT. */
tsr_status tsr_jinja_scope(scope **out, jinja_run *r, scope *parent, const node *body);
tsr_status tsr_jinja_scope_set(jinja_run *r, scope *s, int name, value v);
/* NULL: no scope has the name. */
tsr_status tsr_jinja_scope_get(const value **out, jinja_run *r, const scope *s, int name);

/* Takes steps, and those of reading so many bytes. */
tsr_status tsr_jinja_spend(jinja_run *r, size_t steps);
tsr_status tsr_jinja_scan(jinja_run *r, size_t bytes);
/* The same for the texts among some values. */
tsr_status tsr_jinja_scan_values(jinja_run *r, const value *values, size_t count);

tsr_status tsr_jinja_put(jinja_run *r, jinja_writer *out, const char *data, size_t bytes);
tsr_status tsr_jinja_puts(jinja_run *r, jinja_writer *out, const char *string);
/* At most 63 bytes. */
tsr_status tsr_jinja_putf(jinja_run *r, jinja_writer *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What was written as a string; the writer is used up. */
value tsr_jinja_written(jinja_run *r, jinja_writer *out);

/* part in whole */
tsr_status tsr_jinja_contains(bool *out, jinja_run *r, const value *part, const value *whole);

/* Filters and tests by name; -1 if there is none. */
int tsr_jinja_filter_find(jinja_text name);
int tsr_jinja_test_find(jinja_text name);
/* The name of a filter, test or method by number; NULL behind the last. */
const char *tsr_jinja_filter_name_at(size_t index);
const char *tsr_jinja_test_name_at(size_t index);
const char *tsr_jinja_method_name_at(size_t index);
tsr_status tsr_jinja_filter(value *out, jinja_run *r, int which, value subject,
                            const jinja_args *args);
tsr_status tsr_jinja_test(bool *out, jinja_run *r, int which, value subject,
                          const jinja_args *args);

/* Binds args to the parameters in `spec`, words separated by spaces, a required one ended by '!'.
 */
tsr_status tsr_jinja_bind(value *out, jinja_run *r, const char *what, const char *spec,
                          const jinja_args *args);

/* Global functions by name; false if there is none. */
bool tsr_jinja_global(value *out, jinja_text name);
tsr_status tsr_jinja_call_global(value *out, jinja_run *r, int which, const jinja_args *args);
/* Sets *out to the bound method, or leaves V_ABSENT where Python has no attribute of that name. */
tsr_status tsr_jinja_method(value *out, jinja_run *r, const value *self, jinja_text name);
tsr_status tsr_jinja_call_method(value *out, jinja_run *r, const value *method,
                                 const jinja_args *args);
/* What filters and methods share: text.c. */
/* The first `part`, which is not empty, in text from byte `at` on; NULL if there is none. */
const char *tsr_jinja_find(jinja_text text, size_t at, jinja_text part);
typedef enum { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_FILTER } jinja_case;
tsr_status tsr_jinja_case(value *out, jinja_run *r, jinja_text text, jinja_case how);
typedef enum { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 } jinja_strip;
/* chars: V_ABSENT or none for white space, else a string of characters. */
tsr_status tsr_jinja_strip(value *out, jinja_run *r, jinja_text text, const value *chars,
                           jinja_strip side);
/* count: V_ABSENT or none for all. */
tsr_status tsr_jinja_replace(value *out, jinja_run *r, jinja_text text, jinja_text old,
                             jinja_text with, const value *count);
tsr_status tsr_jinja_join(value *out, jinja_run *r, jinja_text separator, const jinja_list *list,
                          bool strict);
/* Plain text for use beside markup, as MarkupSafe escapes it. */
tsr_status tsr_jinja_escape(value *out, jinja_run *r, jinja_text plain);
/* str.split and str.rsplit with separator (V_ABSENT or none: white space) and a most count. */
tsr_status tsr_jinja_split(value *out, jinja_run *r, jinja_text text, const value *separator,
                           const value *most, bool from_right);

/* item.a.0.b, as the attribute arguments of filters are written. */
tsr_status tsr_jinja_attribute(value *out, jinja_run *r, const value *item, const value *path);

/* The order of keys: (*out)[0] is the position of the least, or of the greatest in reverse; equal ones stay as they
 * are. */
tsr_status tsr_jinja_sorted(size_t **out, jinja_run *r, const value *keys, size_t count,
                            bool reverse);
/* Filters of sort.c: the subject and its bound arguments. */
tsr_status tsr_jinja_filter_sort(value *out, jinja_run *r, const value *v, const value *a);
tsr_status tsr_jinja_filter_dictsort(value *out, jinja_run *r, const value *v, const value *a);
tsr_status tsr_jinja_filter_unique(value *out, jinja_run *r, const value *v, const value *a);
tsr_status tsr_jinja_filter_min(value *out, jinja_run *r, const value *v, const value *a);
tsr_status tsr_jinja_filter_max(value *out, jinja_run *r, const value *v, const value *a);
tsr_status tsr_jinja_filter_indent(value *out, jinja_run *r, const value *v, const value *a);

/* self.name (attribute first) and self[key] (item first). */
tsr_status tsr_jinja_get_attr(value *out, jinja_run *r, value self, jinja_text name);
tsr_status tsr_jinja_get_item(value *out, jinja_run *r, value self, value key);
/* self[begin:end:step], n: an N_SLICE. */
tsr_status tsr_jinja_slice(value *out, jinja_run *r, value self, const node *n, scope *s);
/* Using an undefined value for anything but printing and testing is an error, as in Jinja. */
tsr_status tsr_jinja_defined(jinja_run *r, const value *v);
/* How many bytes of a name or key messages show. */
int tsr_jinja_shown(jinja_text name);

/* ---- values: value.c ---- */

value tsr_jinja_none(void);
value tsr_jinja_bool(bool b);
value tsr_jinja_int(int64_t i);
value tsr_jinja_float(double d);
value tsr_jinja_text(const char *data, size_t bytes);
tsr_status tsr_jinja_copy(value *out, jinja_run *r, const char *data, size_t bytes);
/* An undefined value whose use fails with the message. */
tsr_status tsr_jinja_undefined(value *out, jinja_run *r, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
tsr_status tsr_jinja_list(value *out, jinja_run *r, tsr_jinja_kind kind, size_t count);
tsr_status tsr_jinja_dict(value *out, jinja_run *r, tsr_jinja_kind kind);
tsr_status tsr_jinja_dict_set(jinja_run *r, jinja_dict *dict, value key, value item);
/* For a key that the dict does not have. */
tsr_status tsr_jinja_dict_add(jinja_run *r, jinja_dict *dict, value key, value item);
/* *out: NULL if there is no such key. */
tsr_status tsr_jinja_dict_get(const value **out, jinja_run *r, const jinja_dict *dict, value key);
/* Equal values have one hash. */
tsr_status tsr_jinja_hash(uint32_t *out, jinja_run *r, const value *v);
tsr_status tsr_jinja_from_json(value *out, jinja_run *r, const json_t *json, int depth);

const char *tsr_jinja_type(const value *v); /* Python's name of the type */
bool tsr_jinja_is_text(jinja_text a, const char *b);
bool tsr_jinja_same_text(jinja_text a, jinja_text b);
bool tsr_jinja_truth(const value *v);
tsr_status tsr_jinja_equal(bool *out, jinja_run *r, const value *a, const value *b);
/* < 0, 0, > 0; fails where Python cannot order them. */
tsr_status tsr_jinja_order(int *out, jinja_run *r, const value *a, const value *b);
tsr_status tsr_jinja_length(size_t *out, jinja_run *r, const value *v);
/* The elements of anything that can be iterated, as a list of the arena. */
tsr_status tsr_jinja_iterate(jinja_list **out, jinja_run *r, const value *v);
/* Appends str(v). */
tsr_status tsr_jinja_str(jinja_writer *out, jinja_run *r, const value *v);
/* str(v) as a string value. */
tsr_status tsr_jinja_to_text(value *out, jinja_run *r, const value *v);

/* json.dumps */
typedef struct {
    const char *indent; /* NULL: on one line */
    size_t indent_bytes;
    jinja_text item_separator, key_separator;
    bool ascii, sort_keys;
} jinja_json_style;
tsr_status tsr_jinja_tojson(jinja_writer *out, jinja_run *r, const value *v,
                            const jinja_json_style *style, int depth);

#define JINJA_DEPTH     100 /* of nesting in the source and in data */
#define JINJA_RUN_DEPTH 600 /* of calls and expressions while rendering */
#define JINJA_NAME_LOOP 0   /* the interned "loop" */

#endif
