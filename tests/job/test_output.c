/*
 * Nothing outside output_dir is read for ours, changed or removed. The names come from what the program
 * really opens, makes, renames and removes there: a link stands under each of them in turn, and the run is
 * refused in words, or does not mind.
 */
#include "job/faulty_system.h"
#include "job/fixture.h"
#include "support/folder.h"

#include "base/hash.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_NAMES 256

static char output[600], victim[600];

/* ---- trees ---- */

static uint64_t tree_hash;

static int hash_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    char target[512];
    uint64_t bytes = 0;
    (void)type, (void)walk;
    char *data = S_ISREG(info->st_mode) ? read_whole(&bytes, path) : NULL;
    ssize_t length = S_ISLNK(info->st_mode) ? readlink(path, target, sizeof target) : 0;
    uint64_t parts[] = {tsr_hash(TSR_HASH_START, path, strlen(path)), info->st_mode, bytes,
                        tsr_hash(TSR_HASH_START, data, bytes),
                        tsr_hash(TSR_HASH_START, target, (size_t)length)};
    tree_hash += tsr_hash(TSR_HASH_START, parts, sizeof parts); /* in any order */
    free(data);
    return 0;
}

/* Of all names and contents below a directory; nothing is followed. */
static uint64_t hash_of(const char *directory)
{
    tree_hash = 0;
    nftw(directory, hash_entry, 16, FTW_PHYS);
    return tree_hash;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void copy_tree(const char *from, const char *to)
{
    char command[1400];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* ---- what is run ---- */

typedef struct {
    const char *name, *before; /* before: what output_dir holds; NULL: it is empty */
    const char *keys[8];
    int (*call)(const tsr_job_options *options);
    bool dangling; /* links to files lead nowhere */
} scenario;

static int train(const tsr_job_options *options)
{
    tsr_job *job = NULL;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    int status = tsr_job_create(&job, options);
    if (status == 0)
        status = tsr_job_start(job);
    while (status == 0 && (status = tsr_job_step(job, &report)) == 0)
        if (report.save)
            status = tsr_job_checkpoint(job);
    if (status == TSR_JOB_DONE)
        status = tsr_job_save(job);
    tsr_job_destroy(job);
    return status;
}

static int merge(const tsr_job_options *options)
{
    char *text = NULL;
    int status = tsr_merge(options, 1, &text);
    free(text);
    return status;
}

static int quantize(const tsr_job_options *options)
{
    char *text = NULL;
    int status = tsr_quantize(options, 1, &text);
    free(text);
    return status;
}

static int run(const scenario *s)
{
    const char *overrides[24] = {"model_name_or_path=" JOB_MODEL,
                                 "lora_r=2",
                                 "max_steps=2",
                                 "lora_target_modules=[q_proj]",
                                 "layers_to_transform=[5]",
                                 "save_strategy=steps",
                                 "save_steps=1",
                                 "report_to=tensorboard"};
    char place[700], dataset[700], trace[700];
    int count = 8;
    snprintf(place, sizeof place, "output_dir=%s", output);
    snprintf(dataset, sizeof dataset, "dataset=%s", scratch_path("train.jsonl"));
    snprintf(trace, sizeof trace, "trace=%s/trace.json", output);
    overrides[count++] = place;
    overrides[count++] = dataset;
    if (s->call == train)
        overrides[count++] = trace;
    for (int i = 0; s->keys[i]; i++)
        overrides[count++] = s->keys[i];
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .overrides = overrides,
                                     .override_count = count,
                                     .threads = 1};
    return s->call(&options);
}

/* output_dir as the scenario finds it. */
static void prepare(const scenario *s)
{
    remove_tree(output);
    remove_tree(victim);
    assert_int_equal(mkdir(victim, 0777), 0);
    if (s->before)
        copy_tree(scratch_path(s->before), output);
    else
        assert_int_equal(mkdir(output, 0777), 0);
}

/* ---- names ---- */

typedef struct {
    char name[256]; /* below output_dir */
    bool folder;
} entry;

static entry names[MOST_NAMES];
static int name_count;

static void add_name(const char *path, bool folder)
{
    size_t length = strlen(output);
    if (strncmp(path, output, length) != 0 || path[length] != '/' || !path[length + 1])
        return;
    path += length + 1;
    const char *last = strrchr(path, '/');
    if (!strcmp(last ? last + 1 : path, ".")) /* a listing */
        return;
    for (int i = 0; i < name_count; i++)
        if (!strcmp(names[i].name, path)) {
            names[i].folder |= folder;
            return;
        }
    assert_true(name_count < MOST_NAMES);
    snprintf(names[name_count].name, sizeof names[0].name, "%s", path);
    names[name_count++].folder = folder;
}

static bool has_name(const char *name)
{
    for (int i = 0; i < name_count; i++)
        if (!strcmp(names[i].name, name))
            return true;
    return false;
}

/* What is left under a name is one that the program was seen to make, of a checkpoint's files before it got its
 * name. */
static int is_known(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    char staged[600];
    const char *name = path + strlen(output), *inside;
    (void)info, (void)type, (void)walk;
    if (!*name++)
        return 0;
    inside = strchr(name, '/');
    snprintf(staged, sizeof staged, ".%.*s.tmp%s", inside ? (int)(inside - name) : 0, name,
             inside ? inside : "");
    if (!has_name(name) && !has_name(staged))
        fail_msg("%s was made, and nobody saw how", path);
    return 0;
}

static void find_names(const scenario *s)
{
    int count;
    name_count = 0;
    prepare(s);
    system_record();
    int status = run(s);
    system_op *ops = system_recorded(&count);
    if (status != 0)
        fail_msg("%s: %s", s->name, tsr_last_error());
    for (int i = 0; i < count; i++) {
        bool folder = ops[i].folder || ops[i].kind == SYSTEM_MKDIR || ops[i].kind == SYSTEM_RMDIR;
        add_name(ops[i].path, folder);
        if (ops[i].kind == SYSTEM_RENAME)
            add_name(ops[i].to, folder);
    }
    system_free(ops, count);
    nftw(output, is_known, 16, FTW_PHYS);
}

/* ---- a link under each ---- */

/* Its target has what had the name; else it is a file or a directory, or a file that is not there. */
static void put_link(const entry *e, bool dangling)
{
    char path[900], target[700], inside[720];
    snprintf(path, sizeof path, "%.600s/%.255s", output, e->name);
    snprintf(target, sizeof target, "%s/target", victim);
    snprintf(inside, sizeof inside, "%s/precious", target);
    for (char *p = path + strlen(output) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0777);
    }
    if (rename(path, target) != 0 && e->folder)
        assert_int_equal(mkdir(target, 0777), 0);
    if (e->folder)
        write_text(inside, "precious");
    else if (!dangling && access(target, F_OK) != 0)
        write_text(target, "precious");
    else if (dangling)
        unlink(target);
    assert_int_equal(symlink(target, path), 0);
}

static void try_link(const scenario *s, const entry *e)
{
    prepare(s);
    put_link(e, s->dangling);
    uint64_t outside = hash_of(victim), inside = hash_of(output);
    int status = run(s), code = tsr_job_exit_code(status);
    if (hash_of(victim) != outside)
        fail_msg("%s: through a link at %s something else was changed", s->name, e->name);
    if (code != 0 && code != 65 && code != 78)
        fail_msg("%s: a link at %s: exit code %d: %s", s->name, e->name, code, tsr_last_error());
    if (code != 0 && !strstr(tsr_last_error(), e->name))
        fail_msg("%s: a link at %s is not named: %s", s->name, e->name, tsr_last_error());
    if (code != 0 && hash_of(output) != inside)
        fail_msg("%s: refused because of %s after something was written", s->name, e->name);
}

static const scenario fresh = {
    "train", NULL, {"max_steps=1", "save_total_limit=1"}, train, .dangling = true};
static const scenario replaced = {
    "train over a run", "done", {"max_steps=1", "overwrite_output_dir=true"}, train};
static const scenario resumed = {
    "go on", "half", {"resume_from_checkpoint=true", "save_total_limit=1"}, train};
static const scenario quantized = {"quantize", NULL, {NULL}, quantize, .dangling = true};
static scenario merged = {
    "merge over a model", "model", {"overwrite_output_dir=true", NULL}, merge};

static void test_links(void **state)
{
    const scenario *s = *state;
    int tried = 0;
    find_names(s);
    for (int i = 0; i < name_count; i++) {
        /* What is in a checkpoint that is being written is the same whatever was there before. */
        if (s != &fresh && names[i].name[0] == '.' && strchr(names[i].name, '/'))
            continue;
        try_link(s, &names[i]);
        tried++;
    }
    print_message("%s: a link at each of %d names\n", s->name, tried);
    assert_true(tried > 10);
}

/* ---- other things than links ---- */

/* The directory itself may be a link, and is the one that it led to at first. */
static void test_output_is_link(void **state)
{
    (void)state;
    prepare(&fresh);
    assert_int_equal(rename(output, scratch_path("real")), 0);
    assert_int_equal(symlink("real", output), 0);
    assert_int_equal(run(&fresh), 0);
    assert_int_equal(access(scratch_path("real/adapter_model.safetensors"), F_OK), 0);
    remove_tree(scratch_path("real"));
}

/* A pipe would be waited for, a directory be no file, a file no directory. */
static void test_other_kinds(void **state)
{
    char path[700];
    (void)state;
    prepare(&fresh);
    snprintf(path, sizeof path, "%s/metrics.jsonl", output);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_error("pipe", run(&fresh), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"metrics.jsonl is a pipe"});
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0);
    check_error("directory", run(&fresh), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"metrics.jsonl is a directory"});
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof path, "%s/.checkpoint-3.tmp", output);
    write_text(path, "");
    check_error("file", run(&fresh), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){".checkpoint-3.tmp is a file"});
}

/* ---- room ---- */

static int64_t tree_bytes;

static int add_bytes(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)path, (void)type, (void)walk;
    tree_bytes += S_ISREG(info->st_mode) ? info->st_size : 0;
    return 0;
}

/* With that much room. */
static void run_within(const scenario *s, int64_t bytes, const char *refused)
{
    prepare(s);
    uint64_t inside = hash_of(output);
    system_free_bytes(&bytes);
    int status = run(s);
    system_free_bytes(NULL);
    if (refused) {
        check_error(s->name, status, TSR_ECONFIG,
                    (const char *const[MOST_WORDS]){"will be written there", "there is room for",
                                                    "make room", refused});
        assert_true(hash_of(output) == inside);
    } else if (status != 0) {
        fail_msg("%s within %lld bytes: %s", s->name, (long long)bytes, tsr_last_error());
    }
}

/* What will be written is known before the first step: a little less than that is refused, not too much more
 * is enough, and what is replaced or kept is not counted twice. */
static void test_room(void **state)
{
    static const scenario all = {"all checkpoints", NULL, {NULL}, train};
    static const scenario few = {"no checkpoint", NULL, {"save_strategy=no"}, train};
    static const scenario over = {"over a run", "done", {"overwrite_output_dir=true"}, train};
    static const scenario on = {
        "go on", "half", {"resume_from_checkpoint=true", "save_total_limit=1"}, train};
    (void)state;
    const int64_t mib = 1 << 20;
    prepare(&all);
    assert_int_equal(run(&all), 0);
    remove_tree(scratch_path("out/runs")); /* and the trace, of which nothing is known before */
    remove(scratch_path("out/trace.json"));
    tree_bytes = 0;
    nftw(output, add_bytes, 16, FTW_PHYS);
    int64_t whole = tree_bytes;
    run_within(&all, whole * 95 / 100, "save_total_limit");
    run_within(&all, whole + whole / 2 + 2 * mib, NULL);
    run_within(&few, 1000, "the adapter");
    run_within(&few, 2 * mib, NULL);
    run_within(&over, 2 * mib, NULL); /* two checkpoints and an adapter go before */
    run_within(&on, 2 * mib, NULL);   /* one more, for a moment */
    run_within(&all, -1, NULL);
    run_within(&quantized, 5 * mib, "the model's weights");
    run_within(&quantized, 7 * mib, NULL);
    run_within(&merged, 7 * mib, "the model's weights");
}

static int set_up(void **state)
{
    static char adapter[700];
    const scenario whole = {"train", NULL, {NULL}, train};
    (void)state;
    scratch_make();
    system_hurry();
    snprintf(output, sizeof output, "%s", scratch_path("out"));
    snprintf(victim, sizeof victim, "%s", scratch_path("victim"));
    job_write_documents("train.jsonl", 10, 4096, 7);
    prepare(&whole);
    if (run(&whole) != 0)
        fail_msg("%s", tsr_last_error());
    copy_tree(output, scratch_path("done"));
    copy_tree(output, scratch_path("half"));
    remove_tree(scratch_path("half/checkpoint-2"));
    remove(scratch_path("half/adapter_model.safetensors"));
    prepare(&quantized);
    if (run(&quantized) != 0)
        fail_msg("%s", tsr_last_error());
    copy_tree(output, scratch_path("model"));
    snprintf(adapter, sizeof adapter, "init_adapter=%s", scratch_path("done"));
    merged.keys[1] = adapter;
    return 0;
}

int main(void)
{
#define LINKS(s)                                                                                   \
    {                                                                                              \
        "links_" #s, test_links, NULL, NULL, (void *)&s                                            \
    }
    const struct CMUnitTest tests[] = {LINKS(fresh),
                                       LINKS(replaced),
                                       LINKS(resumed),
                                       LINKS(quantized),
                                       LINKS(merged),
                                       cmocka_unit_test(test_output_is_link),
                                       cmocka_unit_test(test_other_kinds),
                                       cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
