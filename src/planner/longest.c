/*
 * longest.c: the longest row that fits, found by asking the planner: `tessera plan --longest`.
 */
#include "base/log.h"
#include "planner/parts.h"

#include <inttypes.h>

/* Lengths that are tried: of number 1, 2, ... 15 the multiples of FINE below STEP, from there on those of STEP. */
#define STEP 256
#define FINE 16
#define FEW  (STEP / FINE - 1)

static int64_t length_of(int64_t number)
{
    return number <= FEW ? FINE * number : STEP * (number - FEW);
}

/* How many lengths there are up to `limit`. */
static int64_t lengths_to(int64_t limit)
{
    return limit < STEP ? limit / FINE : limit / STEP + FEW;
}

typedef struct {
    tsr_inputs *inputs;
    const tsr_topology_view *view;
    const tsr_room *room;
    const tsr_speeds *speeds;
} question;

/* From the beginning, as a run with such rows is planned: what layers may keep depends on the length too. */
static tsr_status ask(bool *fits, const question *q, int64_t length)
{
    tsr_decision d;
    tsr_allowance allowed = tsr_decide_allowed(&q->inputs->config);
    tsr_inputs_assume_row(q->inputs, length);
    tsr_status status = tsr_decide_begin(&d, q->inputs, q->view, true, q->room, q->speeds);
    if (status == TSR_OK)
        status = tsr_decide_fits(fits, &d, q->inputs, q->view, &q->inputs->bounds, &allowed);
    tsr_decide_clear(&d, &q->inputs->layout);
    tsr_decision_free(&d);
    return status;
}

/* The number of the longest that fits; 0: none does; more than `count`: the limit itself does. From the limit down and not by
 * bisection, for a length that does not fit may have longer ones above it that do: attention's backward needs less scratch
 * from the length on at which it is cut into tiles. Strides of a 32nd, then one by one within the last. */
static tsr_status search(int64_t *out, const question *q, int64_t limit, int64_t count)
{
    int64_t number = count + 1, above = number; /* which does not fit, or is the limit */
    bool fits;
    TSR_TRY(ask(&fits, q, limit));
    while (!fits && number > 1) {
        above = number;
        number -= number / 32 + 1;
        number = number > 0 ? number : 1;
        TSR_TRY(ask(&fits, q, length_of(number)));
    }
    *out = fits ? number : 0;
    for (int64_t i = above - 1; i > number && *out == number; i--) {
        TSR_TRY(ask(&fits, q, length_of(i)));
        *out = fits ? i : number;
    }
    return TSR_OK;
}

static tsr_longest limit_of(const tsr_inputs *inputs)
{
    tsr_longest l = {0};
    uint64_t positions = tsr_model_positions(&l.limit_key, &inputs->model);
    if (!positions || positions > TSR_MOST_TOKENS)
        return (tsr_longest){.limit = TSR_MOST_TOKENS};
    l.limit = (int64_t)positions;
    return l;
}

tsr_status tsr_decide_longest(tsr_decision *out, tsr_longest *found, tsr_inputs *inputs,
                              const tsr_topology_view *view, const tsr_room *room,
                              const tsr_speeds *speeds)
{
    const question q = {inputs, view, room, speeds};
    tsr_longest l = limit_of(inputs);
    int64_t number, count = lengths_to(l.limit);
    tsr_log_mute(true);
    tsr_status status = search(&number, &q, l.limit, count);
    tsr_log_mute(false);
    TSR_TRY(status);
    do { /* what is named has been decided as a run decides it: once, unless the search was wrong */
        l.length = number > count ? l.limit : length_of(number > 0 ? number : 1);
        l.length = l.length < l.limit ? l.length : l.limit;
        tsr_inputs_assume_row(inputs, l.length);
        status = tsr_decide(out, inputs, view, true, room, speeds);
    } while (status == TSR_ECONFIG && --number > 0);
    TSR_TRY(status);
    int64_t next = number < count ? length_of(number + 1) : l.limit;
    l.beyond = l.length < l.limit ? next : 0;
    *found = l;
    return TSR_OK;
}

/* ---- what is said of it ---- */

static uint64_t host_bytes(const tsr_decision *d)
{
    return d->memory.total[TSR_PLACE_HOST] + d->memory.total[TSR_PLACE_NODE];
}

static void put_limit(tsr_text *out, const tsr_longest *l)
{
    if (l->beyond)
        tsr_text_printf(out, "; %" PRId64 " do not fit", l->beyond);
    else if (l->limit_key)
        tsr_text_printf(out, ", all positions that the model has (%s in its config.json)",
                        l->limit_key);
    else
        tsr_text_puts(out, " or more");
}

static void print_people(tsr_text *out, const tsr_longest *l, const tsr_decision *d,
                         const tsr_inputs *inputs, const char *keys, const char *command)
{
    tsr_auto_text line = {0}, bytes = {0};
    bool pairs = inputs->bounds.documents > 1;
    tsr_text_printf(&line, "a row of %s%" PRId64 " tokens%s fits", pairs ? "two documents of " : "",
                    l->length, pairs ? " each" : "");
    put_limit(&line, l);
    tsr_decide_put_line(out, "longest", tsr_text_string(&line));
    tsr_decide_put_line(out, "keys", keys);
    if (command) /* in one line, to be pasted */
        tsr_text_printf(out, "train    %s\n", command);
    tsr_text_printf(&bytes, "%" PRIu64 " on the device, %" PRIu64 " in host memory",
                    tsr_decide_bytes(d), host_bytes(d));
    tsr_decide_put_line(out, "bytes", tsr_text_string(&bytes));
    out->failed |= line.failed | bytes.failed;
}

static void print_json(tsr_text *out, const tsr_longest *l, const tsr_decision *d,
                       const tsr_inputs *inputs, const char *keys)
{
    tsr_text_printf(out,
                    "{\"max_length\":%" PRId64 ",\"documents\":%" PRId64
                    ",\"keys\":\"%s\",\"does_not_fit\":",
                    l->length, inputs->bounds.documents, keys);
    if (l->beyond)
        tsr_text_printf(out, "%" PRId64, l->beyond);
    else
        tsr_text_puts(out, "null");
    tsr_text_printf(out, ",\"limit\":%" PRId64 ",\"limit_key\":%s%s%s", l->limit,
                    l->limit_key ? "\"" : "", l->limit_key ? l->limit_key : "null",
                    l->limit_key ? "\"" : "");
    tsr_text_printf(out, ",\"device_bytes\":%" PRIu64 ",\"host_bytes\":%" PRIu64 ",\n\"plan\":",
                    tsr_decide_bytes(d), host_bytes(d));
}

tsr_status tsr_longest_print(tsr_text *out, const tsr_longest *found, const tsr_decision *decision,
                             const tsr_inputs *inputs, const char *keys, const char *command,
                             bool json)
{
    if (json)
        print_json(out, found, decision, inputs, keys);
    else
        print_people(out, found, decision, inputs, keys, command);
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while printing the plan") : TSR_OK;
}
