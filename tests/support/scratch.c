#include "support/scratch.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[256];

const char *scratch_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/tessera-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(scratch));
    return scratch;
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info, (void)flag, (void)walk;
    return remove(path);
}

void scratch_remove(void)
{
    assert_int_equal(nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int scratch_setup(void **state)
{
    *state = (void *)scratch_make();
    return 0;
}

int scratch_teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

const char *scratch_path(const char *name)
{
    static _Thread_local char paths[16][600];
    static _Thread_local int next;
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

void write_bytes(const char *path, const void *data, uint64_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

void write_safetensors(const char *path, const char *header, uint64_t header_length,
                       uint64_t data_bytes)
{
    uint64_t bytes = strlen(header);
    uint64_t length = header_length == TRUE_LENGTH ? bytes : header_length;
    unsigned char *all = malloc(8 + bytes + data_bytes);
    assert_non_null(all);
    for (int i = 0; i < 8; i++)
        all[i] = (unsigned char)(length >> (8 * i));
    memcpy(all + 8, header, bytes);
    for (uint64_t i = 0; i < data_bytes; i++)
        all[8 + bytes + i] = (unsigned char)i;
    write_bytes(path, all, 8 + bytes + data_bytes);
    free(all);
}

char *read_whole(uint64_t *bytes, const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *data = malloc((size_t)info.st_size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)info.st_size, file), info.st_size);
    data[info.st_size] = 0;
    fclose(file);
    *bytes = (uint64_t)info.st_size;
    return data;
}

void check_error(const char *what, tsr_status status, tsr_status code,
                 const char *const words[MOST_WORDS])
{
    if (status != code)
        fail_msg("%s: got %s, expected %s: %s", what, tsr_status_name(status),
                 tsr_status_name(code), status < 0 ? tsr_last_error() : "");
    for (int i = 0; i < MOST_WORDS && words[i]; i++)
        if (!strstr(tsr_last_error(), words[i]))
            fail_msg("%s: the message does not say \"%s\": %s", what, words[i], tsr_last_error());
}

int count_entries(const char *directory)
{
    int count = 0;
    DIR *handle = opendir(directory);
    assert_non_null(handle);
    for (struct dirent *entry; (entry = readdir(handle));)
        count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(handle);
    return count;
}
