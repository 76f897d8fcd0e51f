/*
 * device/device_parts.h: what the backends of device.h have in common, and the table by which
 * device.c reaches them. A backend's own device, stream and event begin with these.
 */
#ifndef TSR_DEVICE_DEVICE_PARTS_H
#define TSR_DEVICE_DEVICE_PARTS_H

#include "base/thread.h"
#include "device/device.h"
#include "device/topology.h"

#include <pthread.h>
#include <stdatomic.h>

/* What device.h says, less what device.c has checked by then: the device is not poisoned (except
 * for destroy, synchronize and event_time), bytes are not 0, a call's arguments fit, a waited
 * generation was recorded. */
typedef struct {
    /* Before anything is freed, of a device that may be half made: makes it the calling thread's and
     * waits until nothing runs on it. False: something still does and may use what would be freed,
     * so all is left. NULL: nothing to do. */
    bool (*settle)(tsr_device *device);
    /* Frees what the backend made of the device; the memory itself and what is declared below are
     * device.c's. NULL: nothing to do. */
    void (*destroy)(tsr_device *device);
    tsr_status (*memory)(uint64_t *free, uint64_t *total, tsr_device *device);
    tsr_status (*write)(tsr_device *device, void *destination, const void *source, uint64_t bytes);
    tsr_status (*read)(tsr_device *device, void *destination, const void *source, uint64_t bytes);
    tsr_status (*pin)(tsr_device *device, void *memory, uint64_t bytes);
    /* False: it is still in use; it was left and must stay mapped. */
    bool (*unpin)(tsr_device *device, void *memory);
    /* Zeroed device memory; NULL, both: it is host memory. */
    tsr_status (*allocate)(void **out, tsr_device *device, uint64_t bytes);
    void (*release)(tsr_device *device, void *memory);

    tsr_status (*stream_create)(tsr_stream **out, tsr_device *device, const char *name);
    void (*stream_destroy)(tsr_stream *stream);
    tsr_status (*stream_synchronize)(tsr_stream *stream);
    tsr_status (*stream_call)(tsr_stream *stream, tsr_call *function, const void *args,
                              uint32_t args_bytes);
    tsr_status (*stream_copy)(tsr_stream *stream, void *destination, const void *source,
                              uint64_t bytes);
    tsr_status (*stream_fill)(tsr_stream *stream, void *destination, uint8_t value, uint64_t bytes);
    tsr_status (*stream_wait)(tsr_stream *stream, tsr_event *event, uint64_t generation);

    tsr_status (*event_create)(tsr_event **out, tsr_device *device, bool timed);
    void (*event_destroy)(tsr_event *event);
    tsr_status (*event_record)(tsr_event *event, tsr_stream *stream);
    tsr_status (*event_wait_host)(tsr_event *event, uint64_t generation);
    double (*event_time)(tsr_event *event);
} tsr_device_ops;

struct tsr_device {
    const tsr_device_ops *ops;
    tsr_device_kind kind;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the poison rings it; a backend may ring it for more */
    _Atomic bool poisoned;
    tsr_error error;                       /* written once, before `poisoned` */
    _Atomic(tsr_device_outside *) outside; /* with what it is called, written before */
    const void *outside_user;
    int outside_rank;

    tsr_device_options options;
    tsr_topology *topology;
    tsr_pool *pool;
    char description[192];
    void *kept;
    void (*destroy_kept)(void *kept);
};

struct tsr_stream {
    tsr_device *device;
    char name[16];
};

struct tsr_event {
    tsr_device *device;
    _Atomic uint64_t recorded;
    char stream[16]; /* of the last record, for messages */
};

/* Fill in a zeroed device of a backend; after a failure of either, tsr_device_destroy. First the
 * options, then what is the host's: topology and pool. pci_bus_id: of the card, NULL without. */
tsr_status tsr_device_begin(tsr_device *device, const tsr_device_ops *ops, tsr_device_kind kind,
                            const tsr_device_options *options);
tsr_status tsr_device_begin_host(tsr_device *device, const char *pci_bus_id);

/* ---- pool.c ---- */

/* `topology` NULL: threads are not bound; else borrowed. `spin`: idle threads wait in a loop a
 * little before they sleep. */
tsr_status tsr_pool_create(tsr_pool **out, int thread_count, const tsr_topology *topology,
                           bool spin);
void tsr_pool_destroy(tsr_pool *pool);

#endif
