#include "job/peers.h"

#include "base/log.h"
#include "base/version.h"
#include "kernels/gemm_block.h"
#include "kernels/gemm_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool takes_common;

void tsr_peers_take_common(void)
{
    takes_common = true;
}

typedef struct {
    char host[64];
    char text[TSR_PEERS_TEXT_BYTES];
} peer;

/* Every rank's text, in their order; the caller frees. */
static tsr_status gather(peer **out, const char *text, tsr_comm *world, tsr_stream *stream)
{
    peer *all = calloc((size_t)tsr_comm_size(world), sizeof *all);
    tsr_status status =
        all ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory while comparing the ranks");
    status = tsr_comm_agree(world, stream, status, NULL);
    if (status == TSR_OK) {
        peer *own = &all[tsr_comm_rank(world)];
        gethostname(own->host, sizeof own->host - 1);
        snprintf(own->text, sizeof own->text, "%s", text);
        tsr_gather_range range = {own, all, sizeof *all};
        status = tsr_comm_all_gather(world, stream, &range, 1);
        if (status == TSR_OK) /* within the range's life */
            status = tsr_stream_synchronize(stream);
    }
    if (status < 0)
        free(all);
    else
        *out = all;
    return status;
}

/* The first rank that has not what rank 0 has; 0: none. */
static int find_other(const peer *all, int size)
{
    for (int i = 1; i < size; i++)
        if (strcmp(all[i].text, all[0].text) != 0)
            return i;
    return 0;
}

static tsr_status refuse(const peer *all, int other, const char *what, const char *advice)
{
    return tsr_fail(
        TSR_ERANKS, "the ranks have different %s: rank 0 on %s has %s, rank %d on %s has %s; %s",
        what, all[0].host, all[0].text, other, all[other].host, all[other].text, advice);
}

tsr_status tsr_peers_compare(const char *text, const char *what, const char *advice,
                             tsr_comm *world, tsr_stream *stream)
{
    peer *all;
    TSR_TRY(gather(&all, text, world, stream));
    int other = find_other(all, tsr_comm_size(world));
    tsr_status status = other ? refuse(all, other, what, advice) : TSR_OK;
    free(all);
    return status;
}

tsr_status tsr_peers_check_program(tsr_comm *world, tsr_stream *stream)
{
    char text[TSR_PEERS_TEXT_BYTES];
    snprintf(text, sizeof text, "tessera %s, commit %s", tsr_build_version(), tsr_build_commit());
    return tsr_peers_compare(text, "programs", "start the same one on every host", world, stream);
}

/* ---- the CPU ---- */

static tsr_status settle_cores(const peer *all, int size)
{
    char advice[160];
    int other = find_other(all, size);
    const char *common = all[0].text;
    for (int i = 1; i < size && common; i++)
        common = tsr_gemm_core_common(common, all[i].text);
    if (!other)
        return TSR_OK;
    if (common && takes_common) {
        tsr_log(TSR_LOG_WARNING,
                "OpenBLAS has kernels for %s on %s (rank 0) and for %s on %s (rank %d): all ranks "
                "take those for %s, so that the bits are the same",
                all[0].text, all[0].host, all[other].text, all[other].host, other, common);
        return tsr_gemm_core_take(common);
    }
    snprintf(advice, sizeof advice, "give all ranks processors of one kind%s%s",
             common ? ", or OPENBLAS_CORETYPE=" : "", common ? common : "");
    return refuse(all, other, "kernels of OpenBLAS, which would give other bits", advice);
}

static tsr_status check_cpu(tsr_comm *world, tsr_stream *stream)
{
    char text[TSR_PEERS_TEXT_BYTES];
    const char *library = tsr_gemm_block_library(); /* "OpenBLAS 0.3.21", and how it was built */
    int name = (int)strcspn(library, " "), version = (int)strcspn(library + name + 1, " ");
    peer *all;
    TSR_TRY(tsr_comm_agree(world, stream, tsr_gemm_core_check(), NULL));
    snprintf(text, sizeof text, "%.*s", name + 1 + version, library);
    TSR_TRY(tsr_peers_compare(text, "libraries", "build them with one OpenBLAS", world, stream));
    TSR_TRY(gather(&all, tsr_gemm_core(), world, stream));
    tsr_status status = settle_cores(all, tsr_comm_size(world));
    free(all);
    return tsr_comm_agree(world, stream, status, NULL);
}

/* ---- GPUs ---- */

static void add_version(tsr_text *out, const char *name,
                        tsr_status (*version)(tsr_library_version *out), bool used)
{
    tsr_library_version v;
    if (!used || version(&v) < 0) /* why it cannot be loaded is said where it is needed */
        tsr_text_printf(out, ", no %s", name);
    else
        tsr_text_printf(out, ", %s %d.%d.%d", name, v.major, v.minor, v.patch);
}

/* What choices of matmuls are for: the model of the GPU and the version of cuBLASLt. Nothing on the CPU. */
static tsr_status describe_gpu(tsr_text *out, const tsr_kernels *kernels, tsr_device *device,
                               bool several)
{
    const char *cuda = strrchr(tsr_device_description(device), ',');
    TSR_TRY(kernels->prepare(device, &(tsr_prepare_args){.chosen = out}));
    if (out->length) {
        out->length = strcspn(out->data, "\n");
        tsr_text_puts(out, cuda ? cuda : "");
        add_version(out, "cuDNN", tsr_kernels_cudnn_version, true);
        add_version(out, "NCCL", tsr_comm_nccl_version, several);
    }
    return out->failed ? tsr_fail(TSR_ENOMEM, "out of memory while comparing the ranks") : TSR_OK;
}

tsr_status tsr_peers_check_kernels(const tsr_kernels *kernels, tsr_device *device, tsr_comm *world,
                                   tsr_stream *stream)
{
    tsr_text text = {0};
    tsr_status status = describe_gpu(&text, kernels, device, tsr_comm_size(world) > 1);
    status = tsr_comm_agree(world, stream, status, NULL);
    if (status == TSR_OK && text.length)
        status = tsr_peers_compare(text.data, "GPUs or libraries",
                                   "give all ranks GPUs of one model and the same libraries", world,
                                   stream);
    else if (status == TSR_OK)
        status = check_cpu(world, stream);
    tsr_text_free(&text);
    return status;
}
