#include "multi/cli.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char launcher[PATH_MAX], program[PATH_MAX], only[64];
static char root[64], directory[96];
static const char *case_name = "";
static int failures;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "cannot %s: %s\n", what, strerror(errno));
    exit(99);
}

void cli_open(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s LAUNCH_RUN TESSERA [CASE]\n", argv[0]);
        exit(64);
    }
    if (!realpath(argv[1], launcher) || !realpath(argv[2], program))
        die("find launch/run and tessera");
    snprintf(only, sizeof only, "%s", argc > 3 ? argv[3] : "");
    strcpy(root, "/tmp/tessera-cli-XXXXXX");
    if (!mkdtemp(root))
        die("make a directory");
    snprintf(directory, sizeof directory, "%s/case", root);
}

const char *cli_launcher(void)
{
    return launcher;
}

const char *cli_program(void)
{
    return program;
}

const char *cli_only(void)
{
    return only[0] ? only : NULL;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

void cli_close(void)
{
    nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- files ---- */

void cli_write(const char *path, const char *text)
{
    cli_remove(path);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0)
        die(path);
}

char *cli_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(size + 1);
    if (!text || fread(text, 1, size, file) != size)
        die(path);
    fclose(file);
    text[size] = 0;
    if (bytes)
        *bytes = size;
    return text;
}

bool cli_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

void cli_remove(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static char *load(const char *path, size_t *bytes)
{
    char *data = cli_read(path, bytes);
    if (!data)
        die(path);
    return data;
}

static void store(const char *path, const void *data, size_t bytes)
{
    cli_remove(path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        die(path);
}

/* `text` with every `find` replaced; the caller's. */
static char *replaced(const char *text, const char *find, const char *replace)
{
    int count = cli_count(text, find);
    if (!count) {
        cli_fail("the test is wrong: there is no %s to replace", find);
        return strdup(text);
    }
    char *out = malloc(strlen(text) + (size_t)count * strlen(replace) + 1);
    if (!out)
        die("allocate");
    char *end = out;
    for (const char *p = text, *next; *p; p = next) {
        const char *found = strstr(p, find);
        size_t length = found ? (size_t)(found - p) : strlen(p);
        memcpy(end, p, length);
        end += length;
        next = p + length;
        if (found) {
            end = stpcpy(end, replace);
            next += strlen(find);
        }
    }
    *end = 0;
    return out;
}

void cli_edit(const char *path, const char *find, const char *replace)
{
    char *text = load(path, NULL);
    char *edited = replaced(text, find, replace);
    store(path, edited, strlen(edited));
    free(text);
    free(edited);
}

void cli_edit_header(const char *path, const char *find, const char *replace)
{
    size_t bytes;
    uint64_t length;
    char *data = load(path, &bytes);
    memcpy(&length, data, 8);
    char *header = strndup(data + 8, length);
    char *edited = replaced(header, find, replace);
    uint64_t changed = strlen(edited);
    size_t total = 8 + changed + (bytes - 8 - length);
    char *out = malloc(total);
    if (!out)
        die("allocate");
    memcpy(out, &changed, 8);
    memcpy(out + 8, edited, changed);
    memcpy(out + 8 + changed, data + 8 + length, bytes - 8 - length);
    store(path, out, total);
    free(data);
    free(header);
    free(edited);
    free(out);
}

void cli_cut(const char *path, long bytes)
{
    size_t size;
    char *data = load(path, &size);
    store(path, data, bytes < 0 ? size - (size_t)-bytes : (size_t)bytes);
    free(data);
}

void cli_poke(const char *path, long offset, const void *data, size_t bytes)
{
    size_t size;
    char *copy = load(path, &size);
    memcpy(copy + offset, data, bytes);
    store(path, copy, size);
    free(copy);
}

void cli_link_all(const char *from, const char *to)
{
    char full[PATH_MAX];
    if (!realpath(from, full))
        die(from);
    DIR *entries = opendir(full);
    if (!entries || mkdir(to, 0777) != 0)
        die(from);
    for (struct dirent *entry; (entry = readdir(entries));) {
        char source[PATH_MAX + 300], target[PATH_MAX];
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, to))
            continue;
        stpcpy(stpcpy(stpcpy(source, full), "/"), entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, basename(source));
        if (symlink(source, target) != 0)
            die(target);
    }
    closedir(entries);
}

static const char job_yaml[] = "model_name_or_path: model\n"
                               "dataset: data.jsonl\n"
                               "output_dir: out\n"
                               "lora_r: 2\n"
                               "max_steps: 2\n"
                               "total_batch_size: 4\n";

void cli_case_begin(const char *model)
{
    cli_remove(directory);
    if (mkdir(directory, 0777) != 0 || chdir(directory) != 0)
        die(directory);
    cli_link_all(model, "model");
    cli_write("data.jsonl", "{\"input_ids\": [10, 11, 12, 13, 14]}\n"
                            "{\"input_ids\": [20, 21, 22], \"labels\": [-100, 21, 22]}\n"
                            "{\"input_ids\": [30, 31, 32, 33, 34, 35], \"seq_lengths\": [2, 4]}\n"
                            "{\"input_ids\": [40, 41, 42, 43]}\n"
                            "{\"input_ids\": [50, 51, 52]}\n");
    cli_write("job.yaml", job_yaml);
}

const char *cli_here(void)
{
    return directory;
}

void cli_case_end(void)
{
    if (chdir("/") != 0)
        die("leave");
    cli_remove(directory);
}

static char **listed;
static int listed_count;

static int list_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    listed = realloc(listed, (size_t)(listed_count + 1) * sizeof *listed);
    if (!listed)
        die("allocate");
    listed[listed_count++] = strdup(path);
    return 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char *cli_listing(void)
{
    size_t bytes = 1;
    listed = NULL;
    listed_count = 0;
    nftw(".", list_entry, 16, FTW_PHYS);
    qsort(listed, (size_t)listed_count, sizeof *listed, compare_names);
    for (int i = 0; i < listed_count; i++)
        bytes += strlen(listed[i]) + 1;
    char *text = malloc(bytes), *end = text;
    if (!text)
        die("allocate");
    for (int i = 0; i < listed_count; i++) {
        end = stpcpy(stpcpy(end, listed[i]), "\n");
        free(listed[i]);
    }
    *end = 0;
    free(listed);
    return text;
}

/* ---- runs ---- */

double cli_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static const char *in_root(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

static void write_wrapper(const char *text)
{
    char script[4096];
    snprintf(script, sizeof script, "#!/bin/sh\nRANK=${OMPI_COMM_WORLD_RANK:-0}\n%s\n", text);
    cli_write(in_root("wrapper"), script);
    chmod(in_root("wrapper"), 0755);
}

/* Of the child: its own process group, no terminal, its output in files. */
static void redirect(void)
{
    setpgid(0, 0);
    int in = open("/dev/null", O_RDONLY);
    int out = open(in_root("out"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int err = open(in_root("err"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(99);
}

static void execute(int ranks, const char *wrapper, const char *words)
{
    char number[16], copy[4096];
    char *argv[64] = {launcher, "-n", number};
    int count = 3;
    snprintf(number, sizeof number, "%d", ranks);
    snprintf(copy, sizeof copy, "%s", words);
    if (wrapper)
        argv[count++] = (char *)in_root("wrapper");
    argv[count++] = program;
    char *state = NULL;
    for (char *word = strtok_r(copy, " ", &state); word && count < 63;
         word = strtok_r(NULL, " ", &state))
        argv[count++] = word;
    redirect();
    execv(launcher, argv);
    _exit(99);
}

/* In a directory that has nothing to do with it. */
static _Noreturn void execute_line(const char *line)
{
    redirect();
    if (chdir("/") == 0)
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(99);
}

static void started(cli_process *process)
{
    if (process->pid < 0)
        die("fork");
    setpgid(process->pid, process->pid);
}

void cli_start(cli_process *process, int ranks, const char *wrapper, const char *words)
{
    if (wrapper)
        write_wrapper(wrapper);
    process->started = cli_now();
    process->pid = fork();
    if (process->pid == 0)
        execute(ranks, wrapper, words);
    started(process);
}

void cli_wait(cli_output *output, cli_process *process, double timeout)
{
    int status = 0;
    pid_t ended = 0;
    double end = cli_now() + timeout;
    while ((ended = waitpid(process->pid, &status, WNOHANG)) == 0 && cli_now() < end)
        cli_sleep(0.002);
    *output = (cli_output){.code = -1, .seconds = cli_now() - process->started};
    if (ended == 0) {
        kill(-process->pid, SIGKILL);
        waitpid(process->pid, &status, 0);
    } else {
        output->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    output->out = load(in_root("out"), NULL);
    output->err = load(in_root("err"), NULL);
}

void cli_run(cli_output *output, int ranks, const char *wrapper, const char *words)
{
    cli_process process;
    cli_start(&process, ranks, wrapper, words);
    cli_wait(output, &process, CLI_PATIENCE);
    if (output->code < 0)
        cli_fail("%s: no end after %d seconds\n%s", words, CLI_PATIENCE, output->err);
}

void cli_type(cli_output *output, const char *line)
{
    cli_process process = {.started = cli_now(), .pid = fork()};
    if (process.pid == 0)
        execute_line(line);
    started(&process);
    cli_wait(output, &process, CLI_PATIENCE);
    if (output->code < 0)
        cli_fail("%s: no end after %d seconds\n%s", line, CLI_PATIENCE, output->err);
}

char *cli_line(const char *text, const char *begin)
{
    char label[128];
    snprintf(label, sizeof label, "\n%s", begin);
    const char *line = strstr(text, label);
    if (!line)
        cli_fail("no line %s in\n%s", begin, text);
    line = line ? line + strlen(label) : "";
    return strndup(line, strcspn(line, "\n"));
}

void cli_output_free(cli_output *output)
{
    free(output->out);
    free(output->err);
    *output = (cli_output){0};
}

pid_t cli_parent(pid_t pid)
{
    char path[32];
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d (%*[^)]) %*c %ld", &parent) != 1)
        cli_fail("%s cannot be read", path);
    if (file)
        fclose(file);
    return (pid_t)parent;
}

int cli_count(const char *text, const char *words)
{
    int count = 0;
    for (const char *p = text; (p = strstr(p, words)); p += strlen(words))
        count++;
    return count;
}

void cli_check_harmless(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool c0 = (*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f;
        bool c1 = p[0] == 0xc2 && p[1] < 0xa0;
        bool turns = p[0] == 0xe2 && ((p[1] == 0x80 && p[2] >= 0xa8 && p[2] <= 0xae) ||
                                      (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9));
        if (c0 || c1 || turns) {
            cli_fail("byte %02x at %td is not for a terminal: %s", *p, (const char *)p - text,
                     text);
            return;
        }
    }
}

/* ---- verdicts ---- */

void cli_name(const char *name)
{
    case_name = name;
}

void cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "FAILED: %s: ", case_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failures++;
}

int cli_failures(void)
{
    return failures;
}
