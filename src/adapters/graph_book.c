#include "adapters/graph_book.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WORD  "graph "
#define NORMS "norms/"

const tsr_graph_entry *tsr_graph_find(const tsr_graph_book *book, const tsr_graph_shape *shape)
{
    for (int i = 0; book && i < book->count; i++)
        if (tsr_graph_same_shape(&book->entry[i].shape, shape))
            return &book->entry[i];
    return NULL;
}

tsr_graph_choice tsr_graph_choose(const tsr_graph_book *book, const tsr_graph_shape *shape)
{
    const tsr_graph_entry *found = tsr_graph_find(book, shape);
    if (book && book->plain)
        return tsr_graph_plain(shape);
    return found ? found->choice : tsr_graph_cheapest(shape);
}

static void keep(tsr_graph_book *book, const tsr_graph_entry *entry)
{
    const tsr_graph_entry *found = tsr_graph_find(book, &entry->shape);
    int place = found ? (int)(found - book->entry) : book->count;
    if (place == TSR_GRAPH_PLACES)
        return;
    book->entry[place] = *entry;
    book->count += !found;
}

void tsr_graph_keep(tsr_graph_book *book, const tsr_graph_shape *shape, tsr_graph_choice choice)
{
    keep(book, &(tsr_graph_entry){*shape, choice, false});
}

void tsr_graph_keep_timed(tsr_graph_book *book, const tsr_graph_shape *shape,
                          tsr_graph_choice choice)
{
    keep(book, &(tsr_graph_entry){*shape, choice, true});
}

/* ---- out ---- */

static void print_entry(tsr_text *out, const tsr_graph_entry *entry)
{
    const tsr_graph_shape *s = &entry->shape;
    char name[TSR_GRAPH_NAME];
    tsr_graph_name(name, entry->choice);
    tsr_text_printf(out, WORD "%s %s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " ",
                    tsr_dtype_name(s->dtype), s->merges ? "merges" : "-",
                    s->composes ? "composes"
                    : s->drops  ? "drops"
                                : "-",
                    s->tokens, s->in, s->out, s->r);
    if (s->norms_every > 0)
        tsr_text_printf(out, NORMS "%" PRId64 " ", s->norms_every);
    tsr_text_printf(out, "%s\n", name);
}

void tsr_graph_export(tsr_text *out, const tsr_graph_book *book)
{
    for (int i = 0; i < book->count; i++)
        print_entry(out, &book->entry[i]);
}

/* ---- in ---- */

static const char *line_after(const char *line)
{
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

const char *tsr_graph_lines(const char *text)
{
    while (*text && strncmp(text, WORD, strlen(WORD)) != 0)
        text = line_after(text);
    return text;
}

const char *tsr_graph_text_for(const char *text, const char *device)
{
    return text && device && strncmp(text, device, strlen(device)) == 0 ? text : NULL;
}

static bool parse_choice(tsr_graph_choice *out, const char *name)
{
    for (int i = 0; i < TSR_GRAPH_CHOICES; i++) {
        char known[TSR_GRAPH_NAME];
        *out = tsr_graph_choice_at(i);
        tsr_graph_name(known, *out);
        if (strcmp(known, name) == 0)
            return true;
    }
    return false;
}

static bool parse_flag(bool *out, const char *word, const char *set)
{
    *out = strcmp(word, set) == 0;
    return *out || strcmp(word, "-") == 0;
}

static bool parse_dropout(tsr_graph_shape *out, const char *word)
{
    out->composes = strcmp(word, "composes") == 0;
    out->drops = out->composes;
    return out->composes || parse_flag(&out->drops, word, "drops");
}

#define MOST_SIDE (INT64_C(1) << 30) /* of a shape: products of two fit */

static bool is_side(int64_t value)
{
    return value > 0 && value <= MOST_SIDE;
}

/* What follows the shape: the norms, if there are any, and the choice. */
static bool parse_rest(tsr_graph_entry *out, const char *rest)
{
    int end = 0;
    out->shape.norms_every = 0;
    if (sscanf(rest, NORMS "%10" SCNd64 "%n", &out->shape.norms_every, &end) == 1) {
        if (!is_side(out->shape.norms_every) || rest[end] != ' ')
            return false;
        rest += end + 1;
    }
    return parse_choice(&out->choice, rest);
}

/* One line; false: it is not one, or not allowed. */
static bool parse_entry(tsr_graph_entry *out, const char *line)
{
    char copy[160], dtype[8], merges[8], drops[16];
    tsr_graph_shape *s = &out->shape;
    int end = 0;
    size_t length = (size_t)(line_after(line) - line);
    if (length == 0 || length >= sizeof copy || line[length - 1] != '\n')
        return false;
    memcpy(copy, line, length);
    copy[length - 1] = 0;
    int fields =
        sscanf(copy, WORD "%7s %7s %15s %10" SCNd64 " %10" SCNd64 " %10" SCNd64 " %10" SCNd64 " %n",
               dtype, merges, drops, &s->tokens, &s->in, &s->out, &s->r, &end);
    if (fields != 7 || !end || !tsr_dtype_parse(&s->dtype, dtype) ||
        !parse_flag(&s->merges, merges, "merges") || !parse_dropout(s, drops) ||
        !is_side(s->tokens) || !is_side(s->in) || !is_side(s->out) || !is_side(s->r))
        return false;
    if (!parse_rest(out, copy + end))
        return false;
    s->backward = tsr_graph_table[out->choice.graph].backward;
    return tsr_graph_allowed(s, out->choice);
}

bool tsr_graph_recall(tsr_graph_choice *out, const char *text, const tsr_graph_shape *shape)
{
    for (const char *line = text ? tsr_graph_lines(text) : ""; *line; line = line_after(line)) {
        tsr_graph_entry entry;
        if (parse_entry(&entry, line) && tsr_graph_same_shape(&entry.shape, shape)) {
            *out = entry.choice;
            return true;
        }
    }
    return false;
}

void tsr_graph_merge(tsr_text *out, const tsr_graph_book *book, const char *old)
{
    for (const char *line = old ? tsr_graph_lines(old) : ""; *line; line = line_after(line)) {
        tsr_graph_entry entry;
        if (!parse_entry(&entry, line))
            continue;
        const tsr_graph_entry *ours = tsr_graph_find(book, &entry.shape);
        if (!ours || !ours->timed)
            print_entry(out, &entry);
    }
    for (int i = 0; i < book->count; i++)
        if (book->entry[i].timed)
            print_entry(out, &book->entry[i]);
}

tsr_status tsr_graph_import(tsr_graph_book *book, const char *lines)
{
    for (int pass = 0; pass < 2; pass++)
        for (const char *line = lines; *line; line = line_after(line)) {
            tsr_graph_entry entry;
            if (!parse_entry(&entry, line))
                return tsr_fail(TSR_EDATA, "choices of graphs: \"%.*s\" is wrong",
                                (int)(strcspn(line, "\n") < 150 ? strcspn(line, "\n") : 150), line);
            if (pass == 1)
                tsr_graph_keep(book, &entry.shape, entry.choice);
        }
    return TSR_OK;
}
