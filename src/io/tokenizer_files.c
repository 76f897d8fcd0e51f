#include "io/tokenizer_files.h"

#include "io/file.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES (512ull << 20) /* about 20 MiB in practice */

/* Names of files that are a template of the model's. */
static bool is_template(const char *name)
{
    return !strcmp(name, TSR_TEMPLATE_FILE) || !strcmp(name, "chat_template.json") ||
           !strcmp(name, "additional_chat_templates/tool_use.jinja");
}

bool tsr_tokenizer_has(const tsr_tokenizer_origin *origin, const char *name)
{
    char path[4096];
    if (origin->chat_template && is_template(name))
        return !strcmp(name, TSR_TEMPLATE_FILE);
    return (size_t)snprintf(path, sizeof path, "%s/%s", origin->model, name) < sizeof path &&
           access(path, F_OK) == 0;
}

static tsr_status copy_template(char **data, uint64_t *bytes, const tsr_tokenizer_origin *origin)
{
    *data = malloc(origin->template_bytes + 1);
    if (!*data)
        return tsr_fail(TSR_ENOMEM, "no memory for a chat template");
    memcpy(*data, origin->chat_template, origin->template_bytes);
    *bytes = origin->template_bytes;
    return TSR_OK;
}

/* Another template than the one used goes; all else stays as it was written. */
static tsr_status drop_template(char **data, uint64_t *bytes, const char *path)
{
    tsr_text out = {0};
    tsr_status status = tsr_json_without(&out, *data, *bytes, "chat_template", path);
    free(*data);
    *data = status < 0 ? NULL : out.data;
    *bytes = out.length;
    if (status < 0)
        tsr_text_free(&out);
    return status;
}

tsr_status tsr_tokenizer_read(char **data, uint64_t *bytes, const tsr_tokenizer_origin *origin,
                              const char *name)
{
    char *path;
    *data = NULL;
    if (!tsr_tokenizer_has(origin, name))
        return TSR_OK;
    if (origin->chat_template && is_template(name))
        return copy_template(data, bytes, origin);
    if (asprintf(&path, "%s/%s", origin->model, name) < 0)
        return tsr_fail(TSR_ENOMEM, "%s: no memory to read its files", origin->model);
    tsr_status status = tsr_file_read(data, bytes, path, MOST_BYTES);
    if (status == TSR_OK && origin->chat_template && !strcmp(name, "tokenizer_config.json"))
        status = drop_template(data, bytes, path);
    free(path);
    return status;
}
