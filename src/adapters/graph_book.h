/*
 * adapters/graph_book.h: the graphs chosen for the shapes of a run, and the same as text: for the other
 * ranks, the run's directory and a cache, behind the choices of matmuls.
 *
 *     graph BF16 merges - 8192 4096 14336 16 B5.once
 *
 * is one line: dtype, whether W + s B A can be made, "drops" with dropout, "composes" with that and
 * a magnitude, tokens, in, out, r, and what
 * was chosen; before that "norms/4" where DoRA's norms are made in one forward of four. Lines of another
 * kind are not looked at. A run's text says also which of its shapes keep the cheapest because there was no
 * time or memory to time them, so that it is found whatever there is of that the next time; a cache has what
 * was timed.
 */
#ifndef TSR_ADAPTERS_GRAPH_BOOK_H
#define TSR_ADAPTERS_GRAPH_BOOK_H

#include "adapters/graph.h"
#include "base/status.h"
#include "base/text.h"

typedef struct {
    tsr_graph_shape shape;
    tsr_graph_choice choice;
    bool timed; /* by this run, or by the one that left it in the cache */
} tsr_graph_entry;

/* Zero-initialise. A shape beyond the last place keeps the cheapest graphs. */
#define TSR_GRAPH_PLACES 1024
typedef struct {
    bool plain; /* all shapes take tsr_graph_plain */
    int count;
    tsr_graph_entry entry[TSR_GRAPH_PLACES];
} tsr_graph_book;

/* Borrowed; NULL: the shape is not in the book (or there is none). */
const tsr_graph_entry *tsr_graph_find(const tsr_graph_book *book, const tsr_graph_shape *shape);

/* What the book has for a shape, else the cheapest; of a plain one tsr_graph_plain. */
tsr_graph_choice tsr_graph_choose(const tsr_graph_book *book, const tsr_graph_shape *shape);

/* In place of what it had. The choice is allowed for the shape. */
void tsr_graph_keep(tsr_graph_book *book, const tsr_graph_shape *shape, tsr_graph_choice choice);
void tsr_graph_keep_timed(tsr_graph_book *book, const tsr_graph_shape *shape,
                          tsr_graph_choice choice);

/* ---- as text ---- */

/* `text` if its first line is `device`, which ends with a newline; else, or of NULL, NULL: other devices'
 * choices say nothing. */
const char *tsr_graph_text_for(const char *text, const char *device);

/* Where the lines of graphs begin in a text: the kernels' own choices stand before them. */
const char *tsr_graph_lines(const char *text);

void tsr_graph_export(tsr_text *out, const tsr_graph_book *book);

/* Those that were timed, and what `old`, text or NULL, has beside them. */
void tsr_graph_merge(tsr_text *out, const tsr_graph_book *book, const char *old);

/* Of a text, or NULL, what it has for one shape, if that is allowed. */
bool tsr_graph_recall(tsr_graph_choice *out, const char *text, const tsr_graph_shape *shape);

/* All lines of a text from tsr_graph_lines on. TSR_EDATA, and the book is as it was: one is wrong. */
tsr_status tsr_graph_import(tsr_graph_book *book, const char *lines);

#endif
