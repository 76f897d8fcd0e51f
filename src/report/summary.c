#include "report/summary.h"

#include "base/called.h"
#include "base/escape.h"
#include "config/config_number.h"
#include "inputs/objective.h"

#include <math.h>
#include <string.h>

static void put_count(tsr_text *out, uint64_t count)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e9, " billion"}, {1e6, " million"}};
    for (int i = 0; i < 2; i++)
        if ((double)count >= units[i].unit) {
            tsr_number_put(out, (double)count / units[i].unit, 4);
            tsr_text_puts(out, units[i].name);
            return;
        }
    tsr_text_printf(out, "%llu", (unsigned long long)count);
}

static void put_bytes(tsr_text *out, uint64_t bytes)
{
    bool large = bytes >= (uint64_t)1 << 30;
    tsr_number_put(out, (double)bytes / (large ? 0x1p30 : 0x1p20), 4);
    tsr_text_puts(out, large ? " GiB" : " MiB");
}

static void put_value(tsr_text *out, const tsr_config *config, const char *key)
{
    tsr_config_value_text(out, config, key);
}

static void put_model(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    tsr_text_puts(out, "model    ");
    tsr_text_name(out, config->model_name_or_path ? config->model_name_or_path : "");
    if (s->architecture)
        tsr_text_printf(out, ": %s", s->architecture);
    if (s->parameter_count) {
        tsr_text_puts(out, ", ");
        put_count(out, s->parameter_count);
        tsr_text_puts(out, " parameters");
    }
    if (s->active_count && s->active_count != s->parameter_count) {
        tsr_text_puts(out, ", ");
        put_count(out, s->active_count);
        tsr_text_puts(out, " active (");
        tsr_number_put(out, 100.0 * (double)s->active_count / (double)s->parameter_count, 3);
        tsr_text_puts(out, " %)");
    }
    tsr_text_printf(out, ", base %s\n",
                    config->load_in_8bit           ? "int8"
                    : !config->load_in_4bit        ? "as in the checkpoint"
                    : config->use_bnb_nested_quant ? "NF4 with double quantization"
                                                   : "NF4");
}

static void put_adapter(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    tsr_text_printf(out, "adapter  %s r ",
                    config->use_dora     ? "DoRA"
                    : config->use_rslora ? "rsLoRA"
                                         : "LoRA");
    put_value(out, config, "lora_r");
    tsr_text_puts(out, ", alpha ");
    put_value(out, config, "lora_alpha");
    tsr_text_puts(out, ", dropout ");
    put_value(out, config, "lora_dropout");
    if (strcmp(config->init_lora_weights, "true") != 0) {
        tsr_text_puts(out, ", init ");
        put_value(out, config, "init_lora_weights");
    }
    tsr_text_puts(out, ", on ");
    put_value(out, config, "lora_target_modules");
    if (s->adapter_note)
        tsr_text_printf(out, " %s", s->adapter_note);
    if (s->trainable_count) {
        tsr_text_puts(out, "; ");
        put_count(out, s->trainable_count);
        tsr_text_puts(out, " trainable");
        if (s->parameter_count) {
            tsr_text_puts(out, " (");
            tsr_number_put(out, 100.0 * (double)s->trainable_count / (double)s->parameter_count, 3);
            tsr_text_puts(out, " %)");
        }
    }
    tsr_text_puts(out, "\n");
}

static void put_data(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    if (!config->dataset.count)
        return;
    tsr_text_puts(out, "data     ");
    tsr_text_name(out, config->dataset.items[0]);
    if (config->dataset.count > 1)
        tsr_text_printf(out, " and %d more", config->dataset.count - 1);
    if (s->sample_count)
        tsr_text_printf(out, ": %lld samples", (long long)s->sample_count);
    if (s->row_count && s->row_count != s->sample_count)
        tsr_text_printf(out, " in %lld rows", (long long)s->row_count);
    if (s->token_count)
        tsr_text_printf(out, ", %lld tokens", (long long)s->token_count);
    if (s->label_count)
        tsr_text_printf(out, ", %lld labels", (long long)s->label_count);
    if (s->eval_sample_count)
        tsr_text_printf(out, "; %lld held out", (long long)s->eval_sample_count);
    tsr_text_puts(out, s->notes ? s->notes : "");
    tsr_text_puts(out, "\n");
}

static void put_device(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    tsr_text_puts(out, "device   ");
    if (s->ranks > 1)
        tsr_text_printf(out, "%d ranks, ", s->ranks);
    if (config->context_parallel_size > 1)
        tsr_text_printf(out, "%lld share a long micro-batch, ",
                        (long long)config->context_parallel_size);
    tsr_text_puts(out, s->device ? s->device : "");
    if (s->device_peak_bytes) {
        tsr_text_puts(out, "; peak ");
        put_bytes(out, s->device_peak_bytes);
    }
    if (s->host_peak_bytes) {
        tsr_text_puts(out, ", ");
        put_bytes(out, s->host_peak_bytes);
        tsr_text_puts(out, " on the host");
    }
    tsr_text_puts(out, s->ranks > 1 && s->device_peak_bytes ? ", each rank\n" : "\n");
}

void tsr_summary_plan(tsr_text *out, const tsr_summary *s)
{
    tsr_text_printf(out, "plan: %d units, %d resident; recomputed: %d in full, %d in part",
                    s->unit_count, s->resident_count, s->recompute_full_count,
                    s->recompute_selective_count);
    if (s->offloaded_count)
        tsr_text_printf(out, "; on the host: activations of %d layers", s->offloaded_count);
    if (s->state_offloaded)
        tsr_text_printf(out, "%s optimizer state", s->offloaded_count ? "," : "; on the host:");
    if (s->base_read_bytes) {
        tsr_text_puts(out, "; each rank reads ");
        put_bytes(out, s->base_read_bytes);
        tsr_text_puts(out, " of the base");
    }
}

static void put_every(tsr_text *out, const char *what, tsr_config_every every, double steps,
                      int64_t total)
{
    if (every == TSR_CONFIG_EVERY_EPOCH)
        tsr_text_printf(out, "%s every epoch", what);
    else if (every == TSR_CONFIG_EVERY_STEPS)
        tsr_text_printf(out, "%s every %lld", what, (long long)tsr_config_steps(steps, total, 1));
}

/* "dpo sigmoid, beta 0.1, from the base; " */
static void put_objective(tsr_text *out, const tsr_config *config)
{
    if (config->objective.kind == TSR_OBJECTIVE_SFT)
        return;
    put_value(out, config, "objective");
    if (config->loss_type.count) {
        tsr_text_puts(out, " ");
        put_value(out, config, "loss_type");
    }
    bool scores = config->objective.kind == TSR_OBJECTIVE_REWARD;
    if (!scores) {
        tsr_text_puts(out, ", beta ");
        put_value(out, config, "beta");
    }
    if (config->objective.center > 0) {
        tsr_text_puts(out, ", center_rewards_coefficient ");
        put_value(out, config, "center_rewards_coefficient");
    }
    if (tsr_inputs_has_reference(config))
        tsr_text_printf(out, ", from %s",
                        config->init_adapter && !config->ref_adapter ? "the first adapter"
                                                                     : "the base");
    tsr_text_puts(out, "; ");
}

static void put_steps(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    tsr_text_puts(out, "steps    ");
    put_objective(out, config);
    if (s->total_before)
        tsr_text_printf(out, "%lld instead of %lld, ", (long long)s->total_steps,
                        (long long)s->total_before);
    else if (s->total_steps)
        tsr_text_printf(out, "%lld, ", (long long)s->total_steps);
    if (s->step_samples)
        tsr_text_printf(out, "%lld %s%s each, ", (long long)s->step_samples,
                        config->packing ? "row" : "sample", s->step_samples == 1 ? "" : "s");
    tsr_text_puts(out, "learning rate ");
    put_value(out, config, "learning_rate");
    tsr_text_puts(out, " ");
    put_value(out, config, "lr_scheduler_type");
    if (s->last_rate != s->rate) {
        tsr_text_puts(out, ", which goes from ");
        tsr_number_put(out, s->last_rate, 3);
        tsr_text_printf(out, " in step %lld to ", (long long)s->resumed_step);
        tsr_number_put(out, s->rate, 3);
        tsr_text_printf(out, " in step %lld", (long long)s->resumed_step + 1);
    }
    if (tsr_config_evaluates(config))
        put_every(out, "; evaluation", config->eval_strategy, config->eval_steps, s->total_steps);
    put_every(out, "; checkpoint", config->save_strategy, config->save_steps, s->total_steps);
    tsr_text_puts(out, "\n");
}

void tsr_summary_start(tsr_text *out, const tsr_config *config, const tsr_summary *s)
{
    put_model(out, config, s);
    put_adapter(out, config, s);
    put_data(out, config, s);
    put_device(out, config, s);
    put_steps(out, config, s);
    if (config->output_dir) {
        tsr_text_puts(out, "output   ");
        tsr_text_name(out, config->output_dir);
    }
    if (config->output_dir && s->resumed_step)
        tsr_text_printf(out, ", resuming from checkpoint-%lld", (long long)s->resumed_step);
    if (config->output_dir && config->trl_differences)
        tsr_text_printf(out, "; %d default%s not TRL's (%s train --help; defaults: trl)",
                        config->trl_differences, config->trl_differences > 1 ? "s are" : " is",
                        tsr_called());
    tsr_text_puts(out, config->output_dir ? "\n" : "");
}

/* The path as Python's text, good in any directory. */
static void put_python(tsr_text *out, const char *directory, const char *path)
{
    tsr_auto_text full = {0};
    tsr_text_printf(&full, "%s%s%s", *path == '/' ? "" : directory, *path == '/' ? "" : "/", path);
    tsr_text_puts(out, "\"");
    for (const char *p = tsr_text_string(&full); *p; p++)
        tsr_text_printf(out,
                        (unsigned char)*p < 0x20  ? "\\x%02x"
                        : *p == '"' || *p == '\\' ? "\\%c"
                                                  : "%c",
                        *p);
    tsr_text_puts(out, "\"");
}

/* In the directory of the run, whose job.yaml has paths that start there. */
static void put_evaluate(tsr_text *out, const tsr_summary_call *call, const char *dir)
{
    tsr_auto_text job = {0};
    tsr_text_printf(&job, "%s%s/job.yaml", *dir == '-' ? "./" : "", dir);
    tsr_text_puts(out, "evaluate (cd ");
    tsr_shell_quote(out, call->directory);
    tsr_text_printf(out, " && %s%s", call->launcher, *call->launcher ? " " : "");
    tsr_shell_quote(out, call->program);
    tsr_text_puts(out, " eval ");
    tsr_shell_quote(out, tsr_text_string(&job));
    tsr_text_puts(out, ")\n");
}

void tsr_summary_end(tsr_text *out, const tsr_config *config, const tsr_summary_call *call,
                     double first_eval_loss, double last_eval_loss)
{
    const char *dir = config->output_dir ? config->output_dir : ".";
    bool scores = config->objective.kind == TSR_OBJECTIVE_REWARD;
    const char *model = scores                ? "SequenceClassification"
                        : call->beside_towers ? "ImageTextToText"
                                              : "CausalLM";
    if (isfinite(last_eval_loss)) {
        tsr_text_puts(out, "eval_loss ");
        if (isfinite(first_eval_loss)) {
            tsr_number_put_fixed(out, first_eval_loss, 4);
            tsr_text_puts(out, " before, ");
        }
        tsr_number_put_fixed(out, last_eval_loss, 4);
        tsr_text_puts(out, " after\n");
    }
    tsr_text_puts(out, "adapter  ");
    tsr_text_name(out, dir);
    tsr_text_puts(out, "/adapter_model.safetensors\n");
    if (tsr_config_evaluates(config))
        put_evaluate(out, call, dir);
    tsr_text_printf(out,
                    "python   from peft import PeftModel; from transformers import AutoModelFor%s; "
                    "model = PeftModel.from_pretrained(AutoModelFor%s.from_pretrained(",
                    model, model);
    put_python(out, call->directory, config->model_name_or_path ? config->model_name_or_path : "");
    tsr_text_puts(out, scores ? ", num_labels=1), " : "), ");
    put_python(out, call->directory, dir);
    tsr_text_puts(out, ")\n");
}
