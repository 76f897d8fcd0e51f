#include "report/events.h"

#include "base/auto.h"
#include "base/text.h"
#include "io/file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VERSION      "brain.Event:2"
#define HEAD_BYTES   12 /* length and its checksum */
#define FRAME_BYTES  16 /* and the one behind the record */
#define RECORD_BYTES 512
#define MOST_BYTES   (4ull << 30) /* of a file that is gone on with */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* protobuf's wire types */
enum { WALL_TIME = 1, STEP = 2, FILE_VERSION = 3, SUMMARY = 5, VALUE = 1, TAG = 1, SIMPLE = 2 };

struct tsr_events {
    int file;
    tsr_text entry, summary, record, frame; /* kept: a run does not allocate */
    char path[];
};

static tsr_status io_error(const char *path, const char *what)
{
    char reason[128];
    return tsr_fail(TSR_EIO, "%s: cannot be %s: %s", path, what,
                    strerror_r(errno, reason, sizeof reason));
}

/* ---- frames ---- */

/* CRC-32C (Castagnoli's polynomial, reflected), as TFRecord masks it. */
static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= ((const uint8_t *)data)[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static void put_fixed(tsr_text *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        char byte = (char)(value >> 8 * i);
        tsr_text_append(out, &byte, 1);
    }
}

static uint64_t get_fixed(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* events->record as a frame. */
static tsr_status write_record(tsr_events *events)
{
    const tsr_text *record = &events->record;
    tsr_text *frame = &events->frame;
    tsr_text_clear(frame);
    put_fixed(frame, record->length, 8);
    if (!frame->failed)
        put_fixed(frame, masked_crc(frame->data, 8), 4);
    tsr_text_append(frame, record->data, record->length);
    put_fixed(frame, masked_crc(record->data, record->length), 4);
    if (frame->failed || record->failed || events->summary.failed || events->entry.failed)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", events->path);
    for (size_t done = 0; done < frame->length;) {
        ssize_t wrote = write(events->file, frame->data + done, frame->length - done);
        if (wrote < 0 && errno != EINTR)
            return io_error(events->path, "written");
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return TSR_OK;
}

/* ---- protobuf ---- */

static void put_varint(tsr_text *out, uint64_t value)
{
    for (; value > 0x7F; value >>= 7)
        put_fixed(out, value | 0x80, 1);
    put_fixed(out, value, 1);
}

static void put_key(tsr_text *out, int field, int type)
{
    put_varint(out, (uint64_t)field << 3 | (uint64_t)type);
}

static void put_bytes(tsr_text *out, int field, const char *data, size_t bytes)
{
    put_key(out, field, BYTES);
    put_varint(out, bytes);
    tsr_text_append(out, data, bytes);
}

static void put_double(tsr_text *out, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(out, field, FIXED64);
    put_fixed(out, bits, 8);
}

static bool get_varint(uint64_t *out, const uint8_t **at, const uint8_t *end)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The step of one of our own records: wall_time, then step. 0: it has none. */
static int64_t step_of(const uint8_t *record, size_t bytes)
{
    const uint8_t *at = record + 9, *end = record + bytes;
    uint64_t step;
    if (bytes < 11 || record[0] != (WALL_TIME << 3 | FIXED64) || *at++ != (STEP << 3 | VARINT))
        return 0;
    return get_varint(&step, &at, end) ? (int64_t)step : 0;
}

/* ---- the file ---- */

static tsr_status write_version(tsr_events *events)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&events->record, WALL_TIME, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_bytes(&events->record, FILE_VERSION, VERSION, strlen(VERSION));
    return write_record(events);
}

/* Where the first record lies that is behind last_step and its evaluation, or not whole. */
static uint64_t end_of(const uint8_t *data, uint64_t bytes, int64_t last_step, bool evaluated)
{
    for (uint64_t at = 0;;) {
        const uint8_t *frame = data + at, *record = frame + HEAD_BYTES;
        if (bytes - at < FRAME_BYTES)
            return at;
        uint64_t length = get_fixed(frame, 8);
        if (length > bytes - at - FRAME_BYTES || get_fixed(frame + 8, 4) != masked_crc(frame, 8) ||
            get_fixed(record + length, 4) != masked_crc(record, length) ||
            step_of(record, length) > last_step)
            return at;
        if (!evaluated && step_of(record, length) == last_step &&
            memmem(record, length, TSR_EVENTS_EVAL, sizeof TSR_EVENTS_EVAL - 1))
            return at;
        at += length + FRAME_BYTES;
    }
}

/* What stays is written anew, unless all of it stays in a file that has no other name. */
static tsr_status cut(uint64_t *kept, const tsr_folder *folder, int64_t last_step, bool evaluated)
{
    TSR_AUTO_FREE char *data = NULL;
    uint64_t bytes;
    struct stat info;
    *kept = 0;
    if (!tsr_folder_stat(&info, folder, TSR_EVENTS_FILE))
        return TSR_OK;
    TSR_TRY(tsr_file_read_in(&data, &bytes, folder, TSR_EVENTS_FILE, MOST_BYTES));
    *kept = last_step > 0 ? end_of((const uint8_t *)data, bytes, last_step, evaluated) : 0;
    return *kept == bytes && info.st_nlink == 1
               ? TSR_OK
               : tsr_file_write_in(folder, TSR_EVENTS_FILE, data, *kept);
}

static tsr_status open_file(tsr_events *events, const tsr_folder *folder, int64_t last_step,
                            bool evaluated)
{
    uint64_t kept;
    TSR_TRY(cut(&kept, folder, last_step, evaluated));
    TSR_TRY(tsr_folder_open_append(&events->file, folder, TSR_EVENTS_FILE, false));
    return kept == 0 ? write_version(events) : TSR_OK;
}

/* A record fits from now on. */
static tsr_status reserve(tsr_events *events)
{
    static const char nothing[RECORD_BYTES];
    tsr_text *texts[] = {&events->entry, &events->summary, &events->record, &events->frame};
    bool failed = false;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tsr_text_append(texts[i], nothing, sizeof nothing);
        tsr_text_clear(texts[i]);
        failed |= texts[i]->failed;
    }
    return failed ? tsr_fail(TSR_ENOMEM, "%s: out of memory", events->path) : TSR_OK;
}

tsr_status tsr_events_create(tsr_events **out, const tsr_folder *folder, int64_t last_step,
                             bool evaluated)
{
    char path[PATH_MAX];
    size_t bytes = strlen(tsr_folder_show(path, folder, TSR_EVENTS_FILE)) + 1;
    tsr_events *events = calloc(1, sizeof *events + bytes);
    if (!events)
        return tsr_fail(TSR_ENOMEM, "%s: out of memory", path);
    memcpy(events->path, path, bytes);
    events->file = -1;
    tsr_status status = reserve(events);
    if (status == TSR_OK)
        status = open_file(events, folder, last_step, evaluated);
    if (status < 0) {
        tsr_events_destroy(events);
        return status;
    }
    *out = events;
    return TSR_OK;
}

tsr_status tsr_events_write(tsr_events *events, double wall_time, int64_t step, const char *tag,
                            double value)
{
    float simple = (float)value;
    uint32_t bits;
    tsr_text *entry = &events->entry, *summary = &events->summary, *record = &events->record;
    tsr_text_clear(entry);
    tsr_text_clear(summary);
    tsr_text_clear(record);
    memcpy(&bits, &simple, sizeof bits);
    put_bytes(entry, TAG, tag, strlen(tag));
    put_key(entry, SIMPLE, FIXED32);
    put_fixed(entry, bits, 4);
    put_bytes(summary, VALUE, entry->data, entry->length);
    put_double(record, WALL_TIME, wall_time);
    put_key(record, STEP, VARINT);
    put_varint(record, (uint64_t)step);
    put_bytes(record, SUMMARY, summary->data, summary->length);
    return write_record(events);
}

void tsr_events_destroy(tsr_events *events)
{
    if (!events)
        return;
    if (events->file >= 0)
        close(events->file);
    tsr_text_free(&events->entry);
    tsr_text_free(&events->summary);
    tsr_text_free(&events->record);
    tsr_text_free(&events->frame);
    free(events);
}
