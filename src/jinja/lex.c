/*
 * lex.c: the source of a template to tokens, with white space treated as Jinja does under
 * trim_blocks and lstrip_blocks.
 */
#include "base/unicode.h"
#include "jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_template *t;
    const char *source;
    size_t bytes, at;
    int line;
    bool line_start; /* the last tag ended a line */
    token *tokens;
    size_t count, capacity;
    char closers[JINJA_DEPTH]; /* open brackets of the expression */
    int open;
} lexer;

static tsr_status push(lexer *x, token_kind kind, const char *data, size_t bytes)
{
    if (x->count == x->capacity) {
        size_t capacity = x->capacity ? 2 * x->capacity : 256;
        token *tokens;
        TSR_TRY(tsr_jinja_alloc(&tokens, &x->t->arena, capacity, sizeof *tokens));
        if (x->count)
            memcpy(tokens, x->tokens, x->count * sizeof *tokens);
        x->tokens = tokens;
        x->capacity = capacity;
    }
    token *next = &x->tokens[x->count++];
    memset(next, 0, sizeof *next);
    next->kind = kind;
    next->line = x->line;
    next->text.data = data;
    next->text.bytes = bytes;
    return TSR_OK;
}

static bool here(const lexer *x, size_t at, const char *string)
{
    size_t length = strlen(string);
    return x->bytes - at >= length && !memcmp(x->source + at, string, length);
}

/* Length of the white space at `at`. */
static size_t spaces(const lexer *x, size_t at)
{
    size_t start = at;
    while (at < x->bytes) {
        uint32_t code;
        size_t length = tsr_utf8_next(&code, x->source + at, x->bytes - at);
        if (!length || !tsr_unicode_python_space(code))
            break;
        at += length;
    }
    return at - start;
}

static void advance(lexer *x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        x->line += x->source[x->at + i] == '\n';
    x->at += bytes;
}

/* Length of the end of a tag ("%}", "}}" or "#}") at `at` with its sign and the white space that it
 * takes; 0 if there is none. */
static size_t tag_end(const lexer *x, size_t at, const char *end)
{
    if (at >= x->bytes)
        return 0;
    char sign = x->source[at];
    if (sign == '-' && here(x, at + 1, end))
        return 3 + spaces(x, at + 3);
    bool print = end[0] == '}';
    if (sign == '+' && !print && here(x, at + 1, end))
        return 3;
    if (!here(x, at, end))
        return 0;
    return 2 + (!print && at + 2 < x->bytes && x->source[at + 2] == '\n');
}

/* Takes a tag's end, which says whether the next text starts a line. */
static void take_end(lexer *x, size_t length)
{
    x->line_start = x->source[x->at + length - 1] == '\n';
    advance(x, length);
}

/* Emits the text source[begin..end) before a tag whose sign is `sign` (0: none). */
static tsr_status text_before(lexer *x, size_t begin, size_t end, char sign, bool print)
{
    if (sign == '-') {
        size_t last = begin;
        for (size_t i = begin; i < end;) {
            uint32_t code = 0;
            size_t length = tsr_utf8_next(&code, x->source + i, end - i);
            i += length ? length : 1;
            if (!tsr_unicode_python_space(code))
                last = i;
        }
        end = last;
    } else if (sign != '+' && !print) {
        size_t start = end;
        while (start > begin && x->source[start - 1] != '\n')
            start--;
        bool starts_line = start > begin || x->line_start;
        if (starts_line && start + spaces(x, start) >= end)
            end = start;
    }
    return end > begin ? push(x, T_DATA, x->source + begin, end - begin) : TSR_OK;
}

static tsr_status comment(lexer *x)
{
    int line = x->line;
    for (size_t at = x->at; at < x->bytes; at++) {
        size_t end = tag_end(x, at, "#}");
        if (end) {
            advance(x, at - x->at);
            take_end(x, end);
            return TSR_OK;
        }
    }
    return tsr_jinja_syntax(x->t, line, "the comment {# is not closed by #}");
}

/* Length of "raw" or "endraw" with the white space around it at `at`, or 0. */
static size_t raw_word(const lexer *x, size_t at, const char *word)
{
    size_t start = at;
    at += spaces(x, at);
    if (!here(x, at, word))
        return 0;
    at += strlen(word);
    at += spaces(x, at);
    return at - start;
}

/* After "{%" and its sign: takes a raw block whole, if this is one. */
static tsr_status raw_block(bool *taken, lexer *x)
{
    size_t word = raw_word(x, x->at, "raw"), after = x->at + word;
    size_t end = 0;
    if (word && here(x, after, "-%}"))
        end = 3 + spaces(x, after + 3);
    else if (word && here(x, after, "%}"))
        end = 2;
    *taken = end != 0;
    if (!end)
        return TSR_OK;
    int line = x->line;
    advance(x, word);
    take_end(x, end);
    size_t begin = x->at;
    for (size_t at = begin; at < x->bytes; at++) {
        if (!here(x, at, "{%"))
            continue;
        size_t inside = at + 2;
        char sign = inside < x->bytes ? x->source[inside] : 0;
        inside += sign == '-' || sign == '+';
        word = raw_word(x, inside, "endraw");
        end = word ? tag_end(x, inside + word, "%}") : 0;
        if (!end)
            continue;
        TSR_TRY(text_before(x, begin, at, sign, false));
        advance(x, inside + word - x->at);
        take_end(x, end);
        return TSR_OK;
    }
    return tsr_jinja_syntax(x->t, line, "{%% raw %%} is not closed by {%% endraw %%}");
}

static tsr_status number(lexer *x)
{
    const char *s = x->source + x->at;
    size_t left = x->bytes - x->at, whole = 0, i;
    while (whole < left && s[whole] >= '0' && s[whole] <= '9')
        whole++;
    i = whole;
    bool real = false, after_dot = x->at > 0 && s[-1] == '.';
    if (!after_dot && i + 1 < left && s[i] == '.' && s[i + 1] >= '0' && s[i + 1] <= '9') {
        real = true;
        for (i++; i < left && s[i] >= '0' && s[i] <= '9'; i++)
            ;
    }
    if (!after_dot && i < left && (s[i] == 'e' || s[i] == 'E')) {
        size_t e = i + 1;
        e += e < left && (s[e] == '+' || s[e] == '-');
        size_t digits = e;
        while (e < left && s[e] >= '0' && s[e] <= '9')
            e++;
        if (e > digits) {
            real = true;
            i = e;
        }
    }
    char copy[64];
    if (i >= sizeof copy || (!real && whole > 1 && s[0] == '0'))
        return tsr_jinja_syntax(x->t, x->line, "the number \"%.*s\" is not understood",
                                (int)(i < 40 ? i : 40), s);
    memcpy(copy, s, i);
    copy[i] = 0;
    TSR_TRY(push(x, real ? T_FLOAT : T_INT, s, i));
    errno = 0;
    if (real)
        x->tokens[x->count - 1].real = strtod(copy, NULL);
    else
        x->tokens[x->count - 1].integer = strtoll(copy, NULL, 10);
    if (errno == ERANGE)
        return tsr_jinja_syntax(x->t, x->line, "the number %s is too large", copy);
    x->at += i;
    return TSR_OK;
}

/* Resolves one escape of a Python string at s[0] == '\\'; returns its length, 0 if it is not
 * understood. */
static size_t escape(char *out, size_t *written, const char *s, size_t left)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = left > 1 && s[1] ? strchr(from, s[1]) : NULL;
    if (known) {
        out[(*written)++] = to[known - from];
        return 2;
    }
    if (left > 1 && s[1] == '\n')
        return 2;
    if (left > 1 && (s[1] == 'x' || s[1] == 'u' || s[1] == 'U')) {
        size_t digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : 8;
        uint32_t code = 0;
        for (size_t i = 0; i < digits; i++) {
            char c = 2 + i < left ? s[2 + i] : 0;
            int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
            if (digit < 0)
                return 0;
            code = code << 4 | (uint32_t)digit;
        }
        if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            return 0;
        *written += tsr_utf8_put(out + *written, code);
        return 2 + digits;
    }
    if (left > 1 && ((s[1] >= '0' && s[1] <= '7') || s[1] == 'N'))
        return 0;             /* octal and named characters */
    out[(*written)++] = '\\'; /* Python leaves an unknown escape as it is */
    return 1;
}

static tsr_status string(lexer *x)
{
    char quote = x->source[x->at];
    size_t end = x->at + 1;
    while (end < x->bytes && x->source[end] != quote)
        end += x->source[end] == '\\' ? 2 : 1;
    if (end >= x->bytes)
        return tsr_jinja_syntax(x->t, x->line, "a string is not closed");
    char *copy;
    size_t written = 0;
    TSR_TRY(tsr_jinja_alloc(&copy, &x->t->arena, end - x->at + 4, 1));
    for (size_t i = x->at + 1; i < end;) {
        if (x->source[i] != '\\') {
            copy[written++] = x->source[i++];
            continue;
        }
        size_t length = escape(copy, &written, x->source + i, end - i);
        if (!length)
            return tsr_jinja_syntax(x->t, x->line, "the escape \"%.*s\" is not understood", 2,
                                    x->source + i);
        i += length;
    }
    TSR_TRY(push(x, T_STRING, copy, written));
    advance(x, end + 1 - x->at);
    return TSR_OK;
}

static tsr_status operator(lexer *x)
{
    static const struct {
        const char *text;
        token_kind kind;
    } table[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
        {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
        {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
        {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
        {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!here(x, x->at, table[i].text))
            continue;
        char c = table[i].text[0];
        if (c == '(' || c == '[' || c == '{') {
            if (x->open == JINJA_DEPTH)
                return tsr_jinja_syntax(x->t, x->line, "brackets nested deeper than %d",
                                        JINJA_DEPTH);
            x->closers[x->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!x->open || x->closers[x->open - 1] != c)
                return tsr_jinja_syntax(x->t, x->line, "'%c' closes nothing", c);
            x->open--;
        }
        TSR_TRY(push(x, table[i].kind, x->source + x->at, strlen(table[i].text)));
        x->at += strlen(table[i].text);
        return TSR_OK;
    }
    return tsr_jinja_syntax(x->t, x->line, "unexpected character '%c' in a tag", x->source[x->at]);
}

static bool name_byte(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

/* The tokens of a tag up to its end. */
static tsr_status tag(lexer *x, const char *end, token_kind end_kind)
{
    int line = x->line;
    x->open = 0;
    for (;;) {
        size_t length = x->open ? 0 : tag_end(x, x->at, end);
        if (length) {
            TSR_TRY(push(x, end_kind, x->source + x->at, length));
            take_end(x, length);
            return TSR_OK;
        }
        advance(x, spaces(x, x->at));
        if (x->at >= x->bytes)
            return tsr_jinja_syntax(x->t, line, "the tag is not closed by %s", end);
        if (!x->open && tag_end(x, x->at, end))
            continue;
        char c = x->source[x->at];
        if (c >= '0' && c <= '9') {
            TSR_TRY(number(x));
        } else if (name_byte(c, true)) {
            size_t stop = x->at;
            while (stop < x->bytes && name_byte(x->source[stop], false))
                stop++;
            TSR_TRY(push(x, T_NAME, x->source + x->at, stop - x->at));
            x->at = stop;
        } else if (c == '\'' || c == '"') {
            TSR_TRY(string(x));
        } else {
            TSR_TRY(operator(x));
        }
    }
}

/* One piece of text and the tag that follows it. */
static tsr_status piece(lexer *x)
{
    size_t begin = x->at, at = begin;
    while (at < x->bytes && !here(x, at, "{%") && !here(x, at, "{{") && !here(x, at, "{#"))
        at++;
    if (at >= x->bytes) {
        if (x->bytes > begin)
            TSR_TRY(push(x, T_DATA, x->source + begin, x->bytes - begin));
        x->at = x->bytes;
        return TSR_OK;
    }
    char type = x->source[at + 1], sign = at + 2 < x->bytes ? x->source[at + 2] : 0;
    bool signed_tag = sign == '-' || sign == '+';
    TSR_TRY(text_before(x, begin, at, signed_tag ? sign : 0, type == '{'));
    advance(x, at + 2 + signed_tag - begin);
    if (type == '#')
        return comment(x);
    if (type == '%') {
        bool raw;
        TSR_TRY(raw_block(&raw, x));
        if (raw)
            return TSR_OK;
    }
    TSR_TRY(push(x, type == '{' ? T_PRINT_BEGIN : T_BLOCK_BEGIN, x->source + at, 2));
    return type == '{' ? tag(x, "}}", T_PRINT_END) : tag(x, "%}", T_BLOCK_END);
}

/* Line ends become \n, and one at the very end is dropped, before anything else. */
static tsr_status normalize(lexer *x, const char *source, size_t bytes)
{
    char *copy;
    size_t written = 0;
    TSR_TRY(tsr_jinja_alloc(&copy, &x->t->arena, bytes + 1, 1));
    for (size_t i = 0; i < bytes; i++) {
        bool pair = source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n';
        copy[written++] = source[i] == '\r' ? '\n' : source[i];
        i += pair;
    }
    if (written && copy[written - 1] == '\n')
        written--;
    x->source = copy;
    x->bytes = written;
    return TSR_OK;
}

tsr_status tsr_jinja_lex(token **tokens, size_t *count, tsr_template *t, const char *source,
                         size_t bytes)
{
    lexer x = {.t = t, .line = 1, .line_start = true};
    size_t bad;
    if (!tsr_utf8_check(source, bytes, &bad))
        return tsr_fail(TSR_EDATA, "%s: byte %zu is not UTF-8", t->name, bad);
    TSR_TRY(normalize(&x, source, bytes));
    while (x.at < x.bytes)
        TSR_TRY(piece(&x));
    TSR_TRY(push(&x, T_END, "", 0));
    *tokens = x.tokens;
    *count = x.count;
    return TSR_OK;
}
