/*
 * jinja/template.h: Hugging Face chat templates, a subset of Jinja 3.1 as transformers sets it up
 * (trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson, raise_exception,
 * strftime_now).
 *
 * Statements  for (if, else, unpacking, break, continue), if, set (names, namespace attributes,
 *             blocks), with, macro, filter, generation, raw, comments.
 * Refused     by name and line when the template is parsed: every other statement, filter, test,
 *             global function; every other method when it is called. Nothing is approximated.
 * Strings     are UTF-8, and counted, sliced and stripped by code points as Python does.
 * Threads     A template is never changed by rendering; renderings may run side by side.
 */
#ifndef TSR_JINJA_TEMPLATE_H
#define TSR_JINJA_TEMPLATE_H

#include "base/status.h"
#include "base/text.h"

#include <jansson.h>

typedef struct tsr_template tsr_template;

/* Zero-initialise; free with tsr_rendering_free. A rendering may be used again: it is cleared
 * first. spans[0..span_count) are the byte ranges of `text` that {% generation %} marks, in order.
 */
typedef struct {
    tsr_text text;
    tsr_span *spans;
    size_t span_count, span_capacity;
    bool dated; /* the template asked for the date */
} tsr_rendering;

void tsr_rendering_free(tsr_rendering *rendering);

/* Parses source[0..bytes), which is not kept. `name` is what messages call it. On success the
 * caller owns *out. TSR_EDATA: a syntax error or a construct outside the subset, with its line. */
tsr_status tsr_template_parse(tsr_template **out, const char *name, const char *source,
                              size_t bytes);
void tsr_template_destroy(tsr_template *template);

/* Whether the template has {% generation %} blocks. */
bool tsr_template_marks_generation(const tsr_template *template);

/* What a rendering may take: a step is an operation, or 16 bytes that are read or written; about 50 ns, so that it
 * ends in a second. A conversation takes some thousand. It holds at most 256 MiB, with its text. */
#define TSR_TEMPLATE_STEPS ((int64_t)20000000)

/* Renders with the members of the object `variables` as global names. now: what strftime_now says,
 * in seconds of a calendar without time zones from 1970; 0: not given, and a template that asks is
 * refused. *steps: what is left to several renderings together, of which this one takes its own (steps may be
 * NULL). TSR_EDATA: the template raised, an operation failed, or it takes too much, with its line. */
tsr_status tsr_template_render(tsr_rendering *out, const tsr_template *template,
                               const json_t *variables, int64_t now, int64_t *steps);

#endif
