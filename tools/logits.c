/*
 * tools/logits.c: the logits of one pretokenized row, for comparing Tessera with other programs.
 *
 *     logits OUT.safetensors JOB.yaml [key=value ...]
 *
 * The job's eval_dataset must be one row whose tokens are all labels; logits [tokens - 1,
 * vocabulary] F32 of every token but the last are written. CPU only: it reads the model's buffers
 * where they lie.
 */
#include "job/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* logits = rows head^T, capped where the model does, in double, rounded once. */
static float *multiply(const float *rows, uint64_t count, const float *head,
                       const tsr_model_config *config)
{
    uint64_t vocabulary = config->vocab_size, d = config->hidden_size;
    double cap = config->logits_softcap;
    float *logits = malloc(count * vocabulary * sizeof *logits);
    for (uint64_t i = 0; logits && i < count; i++)
        for (uint64_t v = 0; v < vocabulary; v++) {
            double sum = 0;
            for (uint64_t k = 0; k < d; k++)
                sum += (double)rows[i * d + k] * (double)head[v * d + k];
            logits[i * vocabulary + v] = (float)(cap != 0 ? cap * tanh(sum / cap) : sum);
        }
    return logits;
}

static tsr_status write_logits(const char *path, tsr_job *job, uint64_t rows)
{
    const tsr_layout *layout = &job->inputs.layout;
    uint64_t vocabulary = layout->config.vocab_size, d = layout->config.hidden_size;
    float *head = malloc(vocabulary * d * sizeof *head);
    if (!head)
        return tsr_fail(TSR_ENOMEM, "out of memory");
    tsr_status status = tsr_safetensors_read_f32(head, layout->head, 0, vocabulary * d);
    float *logits = multiply(tsr_model_label_rows(job->model), rows, head, &layout->config);
    tsr_tensor_source source = {
        .name = "logits", .dtype = TSR_F32, .ndim = 2, .shape = {rows, vocabulary}, .data = logits};
    if (status == TSR_OK)
        status = logits ? tsr_safetensors_write(path, &source, 1)
                        : tsr_fail(TSR_ENOMEM, "out of memory");
    free(head);
    free(logits);
    return status;
}

int main(int argc, char **argv)
{
    tsr_job *job = NULL;
    tsr_job_evaluation evaluation = TSR_JOB_EVALUATION_INIT;
    if (argc < 3) {
        fprintf(stderr, "usage: logits OUT.safetensors JOB.yaml [key=value ...]\n");
        return 64;
    }
    tsr_job_options options = {.size = sizeof options,
                               .config_path = argv[2],
                               .overrides = (const char *const *)argv + 3,
                               .override_count = argc - 3,
                               .purpose = TSR_JOB_EVALUATE};
    int status = tsr_job_create(&job, &options);
    if (status == 0)
        status = tsr_job_start(job);
    if (status == 0)
        status = tsr_job_evaluate(job, &evaluation);
    if (status == 0)
        status = write_logits(argv[1], job, (uint64_t)evaluation.label_tokens);
    if (status < 0)
        fprintf(stderr, "logits: %s\n", tsr_last_error());
    tsr_job_destroy(job);
    return tsr_job_exit_code(status);
}
