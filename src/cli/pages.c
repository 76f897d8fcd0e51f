/*
 * pages.c: man pages in roff, with the macros of man(7).
 */
#include "cli/pages.h"

#include "base/version.h"
#include "cli/options.h"
#include "config/config.h"
#include "config/keys.h"

#include <ctype.h>
#include <string.h>

/* As README lists them, against which tests/cli/check_pages.sh holds them. */
static const struct {
    const char *code, *meaning;
} exits[] = {
    {"0", "done"},
    {"64", "wrong command line"},
    {"65", "bad data or model files"},
    {"70", "internal error"},
    {"71", "device or system failure"},
    {"75", "stopped by a signal or time_limit, with a checkpoint: run it again to continue"},
    {"76", "the ranks have different jobs, files, programs or machines"},
    {"78", "configuration refused: unknown key, wrong value, does not fit"},
};

/* ---- roff ---- */

/* A text of one line, or of several; nothing in it is roff. */
static void put_roff(tsr_text *out, const char *text, size_t bytes)
{
    bool begins = true;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (begins && (c == '.' || c == '\''))
            tsr_text_puts(out, "\\&");
        begins = c == '\n';
        if (c == '\\')
            tsr_text_puts(out, "\\e");
        else if (c == '-')
            tsr_text_puts(out, "\\-");
        else if (c == '`' || c == '\'' || c == '^' || c == '~')
            tsr_text_printf(out, "\\(%s",
                            c == '`'    ? "ga"
                            : c == '\'' ? "aq"
                            : c == '^'  ? "ha"
                                        : "ti");
        else
            tsr_text_append(out, &c, 1);
    }
}

static void put(tsr_text *out, const char *text)
{
    put_roff(out, text, strlen(text));
}

static void put_line(tsr_text *out, const char *macro, const char *text)
{
    tsr_text_puts(out, macro);
    put(out, text);
    tsr_text_puts(out, "\n");
}

/* Lines as they are. */
static void put_lines(tsr_text *out, const char *lines)
{
    tsr_text_puts(out, ".PP\n.nf\n");
    put(out, lines);
    tsr_text_puts(out, ".fi\n");
}

static void put_title(tsr_text *out, const char *name, const char *section, const char *what)
{
    tsr_text_puts(out, ".TH \"");
    for (const char *p = name; *p; p++)
        tsr_text_printf(out, *p == '-' ? "\\-" : "%c", toupper((unsigned char)*p));
    tsr_text_printf(out, "\" \"%s\" \"\" \"tessera %s\" \"Tessera\"\n.SH NAME\n", section,
                    tsr_build_version());
    put(out, name);
    put_line(out, " \\- ", what);
}

static void put_term(tsr_text *out, const char *term, const char *argument)
{
    tsr_text_puts(out, ".TP\n\\fB");
    put(out, term);
    tsr_text_puts(out, "\\fR");
    if (argument && *argument) {
        tsr_text_puts(out, " \\fI");
        put(out, argument);
        tsr_text_puts(out, "\\fR");
    }
    tsr_text_puts(out, "\n");
}

static void put_option(tsr_text *out, const char *name, const char *argument, const char *what)
{
    put_term(out, name, argument);
    put_line(out, "", what);
}

static tsr_status done(const tsr_text *out)
{
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory: a man page") : TSR_OK;
}

/* ---- tessera.1 ---- */

static void put_exits(tsr_text *out)
{
    tsr_text_puts(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < sizeof exits / sizeof *exits; i++)
        put_option(out, exits[i].code, NULL, exits[i].meaning);
    put_line(out, ".PP\n", "The code is the same on every rank, and from mpirun.");
}

static void put_see(tsr_text *out, const char *but)
{
    const tsr_usage_verb *verb;
    tsr_text_puts(out, ".SH SEE ALSO\n");
    if (strcmp(but, "tessera"))
        tsr_text_puts(out, ".BR tessera (1),\n");
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++)
        if (strcmp(but, verb->name))
            tsr_text_printf(out, ".BR tessera\\-%s (1),\n", verb->name);
    tsr_text_puts(out, strcmp(but, "job") ? ".BR tessera\\-job (5)\n" : ".BR mpirun (1)\n");
}

tsr_status tsr_pages_overview(tsr_text *out)
{
    const tsr_usage_verb *verb;
    put_title(out, "tessera", "1", "distributed QLoRA and DoRA fine-tuning");
    tsr_text_puts(
        out, ".SH SYNOPSIS\n.B tessera\n.I COMMAND\n.RI [ argument \" ...]\"\n"
             ".br\n.B tessera version\n.br\n.B tessera \\-\\-help\n.RI [ COMMAND \" or \" KEY ]\n");
    put_line(out, ".SH DESCRIPTION\n",
             "Fine-tunes language models with LoRA and DoRA on NF4 or plain checkpoints of Hugging "
             "Face, on any "
             "number of GPUs or CPUs. A job is a file, job.yaml, and keys behind it on the command "
             "line, which "
             "win. The adapter that it writes is PEFT's.");
    tsr_text_puts(out, ".SH COMMANDS\n");
    for (int i = 0; (verb = tsr_usage_verb_at(i)) != NULL; i++)
        put_option(out, verb->name, verb->also ? verb->also : NULL, verb->what);
    put_line(out, ".SH SIGNALS\n",
             "SIGINT, SIGTERM, SIGUSR1 and SIGHUP end train, merge and quantize in order: a "
             "training finishes its "
             "step and writes a checkpoint. A second one ends the program at once.");
    put_exits(out);
    tsr_text_puts(out, ".SH ENVIRONMENT\n");
    put_option(
        out, "XDG_CACHE_HOME", NULL,
        "where what tessera env --measure found, choices of matmuls and tokenised data are kept "
        "(~/.cache without it)");
    put_option(out, "CUDA_VISIBLE_DEVICES", NULL, "the GPUs that ranks may take");
    put_see(out, "tessera");
    return done(out);
}

/* ---- tessera-VERB.1 ---- */

static void put_options(tsr_text *out, const tsr_usage_verb *verb)
{
    const char *line = verb->options;
    tsr_option option;
    tsr_text_puts(out, ".SH OPTIONS\n");
    while (tsr_option_next(&option, &line)) {
        put_option(out, option.name, option.argument, tsr_text_string(&option.what));
        out->failed |= option.what.failed;
        tsr_text_free(&option.what);
    }
    if (tsr_usage_takes_job(verb)) {
        put_option(out, "--config", "job.yaml", "the job, instead of its name alone");
        put_option(out, "--KEY", "VALUE",
                   "a key of job.yaml, as KEY=VALUE; of several values a list");
    }
    put_option(out, "--help", "[KEY]", "this command in short; with a key, that key in full");
    if (*line)
        put_lines(out, line);
}

tsr_status tsr_pages_verb(tsr_text *out, const tsr_usage_verb *verb)
{
    tsr_auto_text name = {0};
    tsr_text_printf(&name, "tessera-%s", verb->name);
    put_title(out, tsr_text_string(&name), "1", verb->what);
    put_line(out, ".SH SYNOPSIS\n.B ", verb->line);
    tsr_text_puts(out, ".SH DESCRIPTION\n");
    tsr_text_printf(out, "%c", toupper((unsigned char)*verb->what));
    put(out, verb->what + 1);
    tsr_text_puts(out, ".\n");
    if (verb->also)
        tsr_text_printf(out, "Also called\n.BR %s .\n", verb->also);
    if (tsr_usage_takes_job(verb))
        tsr_text_puts(out, "The keys of job.yaml are in\n.BR tessera\\-job (5).\n");
    put_options(out, verb);
    tsr_text_puts(out, ".SH EXAMPLES\n");
    put_lines(out, verb->example);
    put_line(out, ".SH EXIT STATUS\n", "As listed in tessera(1).");
    put_see(out, verb->name);
    out->failed |= name.failed;
    return done(out);
}

/* ---- tessera-job.5 ---- */

static void put_key(tsr_text *out, const tsr_key *key)
{
    tsr_auto_text line = {0};
    put_term(out, key->name, tsr_keys_type_name(key));
    put_line(out, "", key->help);
    tsr_text_puts(&line, "Default: ");
    tsr_keys_default(&line, key);
    put_line(out, ".br\n", tsr_text_string(&line));
    tsr_text_clear(&line);
    tsr_text_puts(&line, "Accepts: ");
    if (key->later)
        tsr_text_printf(&line, "only %s in this version", key->initial);
    else
        tsr_keys_expects(&line, key);
    put_line(out, ".br\n", tsr_text_string(&line));
    tsr_text_clear(&line);
    tsr_keys_other_names(&line, key);
    if (line.length) {
        tsr_text_puts(out, ".br\nElsewhere: ");
        put_line(out, "", tsr_text_string(&line));
    }
    out->failed |= line.failed;
}

static void put_members(tsr_text *out)
{
    int count;
    const tsr_key *member = tsr_keys_of_set(&count);
    put_line(out, ".SH DATA SETS\n",
             "dataset and eval_dataset may be lists of maps, with these members (docs/data.md):");
    for (int i = 0; i < count; i++) {
        tsr_auto_text line = {0};
        tsr_keys_expects(&line, &member[i]);
        put_option(out, member[i].name, tsr_keys_type_name(&member[i]), tsr_text_string(&line));
        out->failed |= line.failed;
    }
}

tsr_status tsr_pages_job(tsr_text *out)
{
    const char *group = "";
    put_title(out, "tessera-job", "5", "the keys of job.yaml");
    put_line(out, ".SH SYNOPSIS\n.B ", "job.yaml");
    put_line(out, ".SH DESCRIPTION\n",
             "A job is a YAML map of keys, most of them TRL's. Each may also be written behind it "
             "on the command "
             "line, as key=value or --key value, which wins; lists and maps there in YAML flow: "
             "lora_target_modules=[q_proj,v_proj]. Files of axolotl, LLaMA-Factory and TRL are "
             "read as they are.");
    for (int i = 0; i < tsr_keys_count(); i++) {
        const tsr_key *key = tsr_keys_at(i);
        if (strcmp(group, key->group)) {
            group = key->group;
            tsr_text_puts(out, ".SH KEYS: ");
            for (const char *p = group; *p; p++)
                tsr_text_printf(out, "%c", toupper((unsigned char)*p));
            tsr_text_puts(out, "\n");
        }
        put_key(out, key);
    }
    put_members(out);
    tsr_text_puts(out, ".SH EXAMPLES\n");
    put_lines(out,
              "model_name_or_path: Llama-3.2-1B\ndataset: chats.jsonl\nuse_dora: true\nlora_r: 16\n"
              "learning_rate: 2e-4\ntotal_batch_size: 16\noutput_dir: runs/first\n");
    put_see(out, "job");
    return done(out);
}
