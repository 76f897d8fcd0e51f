/*
 * data/token_cache.h: the tokens of a data set in a file that outlives the run, read by mapping it. Private to
 * data/dataset.h.
 *
 * Name     tokens-<hash>.bin: of the program's version, the files' paths, and everything that decides what their rows
 *          become. The file holds that text too.
 * Content  Words, samples, the rest, the text, a record of each file; then sizes and a hash of it all. It is read only if
 *          length and hash fit, and the files are as they were: size, times, device and inode, or else their content.
 * Room     10 GiB in the directory (tsr_token_place.most_bytes): those used longest ago are removed when one is made.
 * Order    tsr_token_cache_open; tsr_token_cache_read, and if that finds nothing tsr_token_cache_begin, _append .., _look,
 *          _publish, _read. What was mapped lives until tsr_token_cache_close.
 * Threads  One at a time. Processes may make the same file at the same time: each is complete under its name.
 */
#ifndef TSR_DATA_TOKEN_CACHE_H
#define TSR_DATA_TOKEN_CACHE_H

#include "data/dataset.h"

typedef struct tsr_token_cache tsr_token_cache;

/* What a cached data set is made of, borrowed from the cache. */
typedef struct {
    const int32_t *words;
    const void *samples, *rest;
    uint64_t word_count, sample_bytes, rest_bytes, file_bytes;
} tsr_token_parts;

/* *out NULL: there is none, since options->cache says so, or cannot be, which is logged once. TSR_ENOMEM. On success the
 * caller closes *out. */
tsr_status tsr_token_cache_open(tsr_token_cache **out, tsr_data_format format,
                                const tsr_dataset_options *options);
void tsr_token_cache_close(tsr_token_cache *cache);

/* Borrowed; for messages. */
const char *tsr_token_cache_path(const tsr_token_cache *cache);

/* Maps what is there. False: nothing, or it is out of date, or damaged, which is logged. */
bool tsr_token_cache_read(tsr_token_parts *out, tsr_token_cache *cache);

/* Writes a new one. TSR_EIO: that cannot be; TSR_ENOMEM. */
tsr_status tsr_token_cache_begin(tsr_token_cache *cache);
tsr_status tsr_token_cache_append(tsr_token_cache *cache, const int32_t *words, uint64_t count);
/* After the last words: maps these, with the samples. */
tsr_status tsr_token_cache_look(tsr_token_parts *out, tsr_token_cache *cache, const void *samples,
                                uint64_t bytes);
/* What was mapped is no more. TSR_EIO: as above, or a file of rows has changed meanwhile. */
tsr_status tsr_token_cache_publish(tsr_token_cache *cache, const void *rest, uint64_t bytes);

/* Logs that nothing can be kept, for the reason of this thread's last error, and that it is not tried again. */
void tsr_token_cache_give_up(const tsr_dataset_options *options);

#endif
