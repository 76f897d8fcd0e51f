/*
 * base/auto.h: memory that is freed where the scope of a local ends, however it is left; likewise tsr_auto_text
 * (base/text.h), tsr_auto_folder (io/folder.h) and jansson's json_auto_t.
 *
 *     TSR_AUTO_FREE char *text = NULL;
 *     TSR_TRY(tsr_file_read(&text, &bytes, path, most));
 *     return parse(text, bytes);
 */
#ifndef TSR_BASE_AUTO_H
#define TSR_BASE_AUTO_H

#include <stdlib.h>
#include <string.h>

#define TSR_AUTO_FREE __attribute__((cleanup(tsr_free_local)))

/* Of the pointer at `local`. */
static inline void tsr_free_local(void *local)
{
    void *memory;
    memcpy(&memory, local, sizeof memory);
    free(memory);
}

#endif
