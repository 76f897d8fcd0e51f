/*
 * cli_bad.h: broken inputs, and what the program must say to each.
 */
#ifndef TESTS_MULTI_CLI_BAD_H
#define TESTS_MULTI_CLI_BAD_H

#include <stddef.h>

typedef struct {
    const char *name;
    void (*breaks)(void); /* in the case's directory; NULL: the words below are what is wrong */
    const char *words;    /* key=value ..., after `train job.yaml`; NULL: none */
    int code;             /* exit code */
    const char *says[3];  /* stand in the message */
    int ranks;            /* 0: 1 */
    const char *model;    /* checkpoint that is linked; NULL: tiny-llama */
    const char *wrapper;  /* see cli_start; NULL: none */
    const char *command;  /* instead of `train job.yaml` */
} cli_bad_case;

extern const cli_bad_case cli_bad_config[], cli_bad_data[], cli_bad_model[], cli_bad_adapter[],
    cli_bad_tools[], cli_bad_escape[];
extern const size_t cli_bad_config_count, cli_bad_data_count, cli_bad_model_count,
    cli_bad_adapter_count, cli_bad_tools_count, cli_bad_escape_count;

#endif
