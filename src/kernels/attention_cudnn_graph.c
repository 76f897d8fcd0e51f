/*
 * attention_cudnn_graph.c: contract attention_cudnn_graph.h.
 *
 * Attention is written as matmuls, pointwise operations and reductions; cuDNN knows the pattern and
 * gives its fused kernel for it. Tensors of tokens are ragged: rows of a document begin at an offset
 * from a list, and lengths mask what is beyond. Scores are never in memory, but for dS, which the
 * backward keeps in its workspace in bf16 because dq is written by a matmul of its own and not added
 * to by atomics: that is what makes it deterministic. With atomics dq is a sum in fp32, which cuDNN
 * clears, and a copy of it in bf16.
 */
#include "kernels/attention_cudnn_graph.h"

#include <math.h>

#define ALIGNMENT   16 /* bytes, of every tensor */
#define MAX_ENGINES 8

typedef cudnnBackendDescriptor_t descriptor;
typedef tsr_sdpa_graph graph;

/* ---- descriptors ---- */

static void note(graph *g, cudnnStatus_t status, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        g->status = status;
        g->failed = what;
    }
}

static descriptor make(graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor made = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->made_count == TSR_SDPA_DESCRIPTORS) {
        note(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    note(g, tsr_cudnn_lib.BackendCreateDescriptor(type, &made), "a descriptor");
    if (made)
        g->made[g->made_count++] = made;
    return made;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, tsr_cudnn_lib.BackendSetAttribute(d, name, type, count, values), "an attribute");
}

static void set_descriptor(graph *g, descriptor d, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(graph *g, descriptor d, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, tsr_cudnn_lib.BackendFinalize(d), what);
}

typedef struct {
    int64_t dim[4], stride[4];
} layout;

static layout dense(int64_t documents, int64_t heads, int64_t rows, int64_t columns)
{
    return (layout){{documents, heads, rows, columns},
                    {heads * rows * columns, rows * columns, columns, 1}};
}

/* Rows of a buffer of tokens; the stride of documents does not count, offsets do. */
static layout token_rows(const graph *g, int64_t heads, int64_t longest, int64_t row, int64_t dim)
{
    return (layout){{g->documents, heads, longest, dim}, {longest * row, dim, row, 1}};
}

static int64_t longest_kv(const graph *g)
{
    return g->longest_kv ? g->longest_kv : g->longest;
}

/* A value for each pair. */
static layout pairs(const graph *g)
{
    return dense(g->documents, g->heads, g->longest, longest_kv(g));
}

static layout transposed(layout l)
{
    return (layout){{l.dim[0], l.dim[1], l.dim[3], l.dim[2]},
                    {l.stride[0], l.stride[1], l.stride[3], l.stride[2]}};
}

/* uid 0: a tensor inside the graph. `offset` NULL: not ragged. */
static descriptor tensor(graph *g, int64_t uid, cudnnDataType_t type, layout l, descriptor offset)
{
    descriptor d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool hidden = uid == 0,
         by_value = uid == TSR_UID_SCALE || uid == TSR_UID_ONE || uid == TSR_UID_HIDDEN;
    int64_t id = hidden ? g->next_uid++ : uid, alignment = ALIGNMENT;
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, l.dim);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, l.stride);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &hidden);
    set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    if (offset)
        set_descriptor(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, offset);
    finalize(g, d, "a tensor");
    return d;
}

static descriptor scalar(graph *g, int64_t uid)
{
    return tensor(g, uid, CUDNN_DATA_FLOAT, dense(1, 1, 1, 1), NULL);
}

/* fp32 and inside the graph: a score for each pair, or one value a query. */
static descriptor scores(graph *g)
{
    return tensor(g, 0, CUDNN_DATA_FLOAT, pairs(g), NULL);
}

static descriptor per_query(graph *g)
{
    return tensor(g, 0, CUDNN_DATA_FLOAT, dense(g->documents, g->heads, g->longest, 1), NULL);
}

/* ---- operations ---- */

static descriptor operation(graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = make(g, type);
    if (g->operation_count == TSR_SDPA_OPERATIONS)
        note(g, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    else
        g->operation[g->operation_count++] = d;
    return d;
}

typedef struct {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int64_t axis;
    descriptor x, b, choice, y; /* b, choice: NULL where the mode has none */
} pointwise_args;

static descriptor pointwise_with(graph *g, pointwise_args a)
{
    descriptor how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &a.mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &a.precision);
    if (a.mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &a.axis);
    finalize(g, how, "a pointwise operation");
    descriptor d = operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    float one = 1;
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a.x);
    if (a.b)
        set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, a.b);
    if (a.choice)
        set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, a.choice);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, a.y);
    set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
    set(g, d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
    finalize(g, d, "a pointwise operation");
    return a.y;
}

static descriptor pointwise(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b,
                            descriptor y)
{
    return pointwise_with(
        g, (pointwise_args){.mode = mode, .precision = CUDNN_DATA_FLOAT, .x = x, .b = b, .y = y});
}

/* m, n, k: lengths of the rows, columns and products that count. */
static descriptor matmul(graph *g, descriptor a, descriptor b, descriptor c, descriptor m,
                         descriptor n, descriptor k)
{
    descriptor how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(g, how, "a matmul");
    descriptor d = operation(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (m)
        set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    if (n)
        set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    if (k)
        set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    finalize(g, d, "a matmul");
    return c;
}

static descriptor reduction(graph *g, cudnnReduceTensorOp_t op, descriptor x, descriptor y)
{
    descriptor how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    bool deterministic = false; /* the pattern's sums are inside one block anyway */
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, how, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &deterministic);
    finalize(g, how, "a reduction");
    descriptor d = operation(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finalize(g, d, "a reduction");
    return y;
}

static descriptor reshape(graph *g, descriptor x, descriptor y)
{
    descriptor d = operation(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finalize(g, d, "a reshape");
    return y;
}

/* ---- masks ---- */

static descriptor mask_tensor(graph *g, cudnnDataType_t type)
{
    return tensor(g, 0, type, pairs(g), NULL);
}

static descriptor index_of(graph *g, descriptor x, int64_t axis, cudnnDataType_t precision)
{
    return pointwise_with(g, (pointwise_args){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                              .precision = precision,
                                              .axis = axis,
                                              .x = x,
                                              .y = mask_tensor(g, CUDNN_DATA_INT32)});
}

static descriptor compare(graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor b)
{
    return pointwise_with(g, (pointwise_args){.mode = mode,
                                              .precision = CUDNN_DATA_BOOLEAN,
                                              .x = x,
                                              .b = b,
                                              .y = mask_tensor(g, CUDNN_DATA_BOOLEAN)});
}

static descriptor choose(graph *g, descriptor x, descriptor hidden, descriptor choice)
{
    return pointwise_with(g, (pointwise_args){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                              .precision = CUDNN_DATA_FLOAT,
                                              .x = x,
                                              .b = hidden,
                                              .choice = choice,
                                              .y = scores(g)});
}

static descriptor shifted(graph *g, cudnnPointwiseMode_t mode, descriptor index, descriptor by)
{
    return pointwise_with(g, (pointwise_args){.mode = mode,
                                              .precision = CUDNN_DATA_INT32,
                                              .x = index,
                                              .b = by,
                                              .y = mask_tensor(g, CUDNN_DATA_INT32)});
}

/* Of the pairs whose key is not after the query. */
static descriptor causal(graph *g, descriptor x)
{
    cudnnDataType_t precision = g->longest_kv ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    descriptor row = index_of(g, x, 2, precision), column = index_of(g, x, 3, precision);
    if (g->longest_kv) {
        row = shifted(g, CUDNN_POINTWISE_ADD, row, g->length_kv);
        row = shifted(g, CUDNN_POINTWISE_SUB, row, g->length_q);
    }
    return compare(g, CUDNN_POINTWISE_CMP_GE, row, column);
}

/* Scores outside a document, and those of keys after the query, become -inf. */
static descriptor masked(graph *g, descriptor x)
{
    descriptor hidden = scalar(g, TSR_UID_HIDDEN);
    descriptor row = index_of(g, x, 2, CUDNN_DATA_INT32);
    descriptor column = index_of(g, x, 3, CUDNN_DATA_INT32);
    descriptor row_in = compare(g, CUDNN_POINTWISE_CMP_LT, row, g->length_q);
    descriptor column_in = compare(g, CUDNN_POINTWISE_CMP_LT, column, g->length_kv);
    x = choose(g, x, hidden, compare(g, CUDNN_POINTWISE_LOGICAL_AND, row_in, column_in));
    return g->past ? x : choose(g, x, hidden, causal(g, x));
}

/* ---- the two graphs ---- */

static void lists(graph *g)
{
    layout lengths = dense(g->documents, 1, 1, 1), offsets = dense(g->documents + 1, 1, 1, 1);
    g->next_uid = TSR_UID_INSIDE;
    g->length_q = tensor(g, TSR_UID_LENGTH_Q, CUDNN_DATA_INT32, lengths, NULL);
    g->length_kv = tensor(g, TSR_UID_LENGTH_KV, CUDNN_DATA_INT32, lengths, NULL);
    g->offset_q = tensor(g, TSR_UID_OFFSET_Q, CUDNN_DATA_INT32, offsets, NULL);
    g->offset_kv = tensor(g, TSR_UID_OFFSET_KV, CUDNN_DATA_INT32, offsets, NULL);
    g->offset_stats = tensor(g, TSR_UID_OFFSET_STATS, CUDNN_DATA_INT32, offsets, NULL);
    g->offset_o = g->offset_q;
    g->offset_v = g->offset_kv;
    if (g->v_dim == g->dim)
        return;
    g->offset_o = tensor(g, TSR_UID_OFFSET_O, CUDNN_DATA_INT32, offsets, NULL);
    g->offset_v = tensor(g, TSR_UID_OFFSET_V, CUDNN_DATA_INT32, offsets, NULL);
}

static descriptor q_like(graph *g, int64_t uid)
{
    return tensor(g, uid, CUDNN_DATA_BFLOAT16,
                  token_rows(g, g->heads, g->longest, g->q_row, g->dim), g->offset_q);
}

static descriptor o_like(graph *g, int64_t uid)
{
    return tensor(g, uid, CUDNN_DATA_BFLOAT16,
                  token_rows(g, g->heads, g->longest, g->o_row, g->v_dim), g->offset_o);
}

static descriptor k_like(graph *g, int64_t uid, bool transpose)
{
    layout l = token_rows(g, g->kv_heads, longest_kv(g), g->kv_row, g->dim);
    return tensor(g, uid, CUDNN_DATA_BFLOAT16, transpose ? transposed(l) : l, g->offset_kv);
}

static descriptor v_like(graph *g, int64_t uid, bool transpose)
{
    layout l = token_rows(g, g->kv_heads, longest_kv(g), g->v_row, g->v_dim);
    return tensor(g, uid, CUDNN_DATA_BFLOAT16, transpose ? transposed(l) : l, g->offset_v);
}

static descriptor stats_like(graph *g, int64_t uid)
{
    layout l = {{g->documents, g->heads, g->longest, 1},
                {g->longest * g->stats_row, 1, g->stats_row, 1}};
    return tensor(g, uid, CUDNN_DATA_FLOAT, l, g->offset_stats);
}

void tsr_sdpa_graph_forward(graph *g)
{
    lists(g);
    descriptor s = matmul(g, q_like(g, TSR_UID_Q), k_like(g, TSR_UID_K, true), scores(g),
                          g->length_q, g->length_kv, NULL);
    s = masked(g, pointwise(g, CUDNN_POINTWISE_MUL, s, scalar(g, TSR_UID_SCALE), scores(g)));
    descriptor most = reduction(g, CUDNN_REDUCE_TENSOR_MAX, s, per_query(g));
    s = pointwise(g, CUDNN_POINTWISE_SUB, s, most, scores(g));
    s = pointwise(g, CUDNN_POINTWISE_EXP, s, NULL, scores(g));
    descriptor sum = reduction(g, CUDNN_REDUCE_TENSOR_ADD, s, per_query(g));
    descriptor log_sum = pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, per_query(g));
    pointwise(g, CUDNN_POINTWISE_ADD, log_sum, most, stats_like(g, TSR_UID_STATS));
    descriptor p = pointwise(g, CUDNN_POINTWISE_DIV, s, sum, mask_tensor(g, CUDNN_DATA_BFLOAT16));
    matmul(g, p, v_like(g, TSR_UID_V, false), o_like(g, TSR_UID_O), g->length_q, NULL,
           g->length_kv);
}

/* The transposed view of scores, in bf16. */
static descriptor flipped(graph *g, descriptor x)
{
    layout l = transposed(pairs(g));
    return reshape(g, x, tensor(g, 0, CUDNN_DATA_BFLOAT16, l, NULL));
}

/* x^T b, summed over the query heads of a group, into `out` of heads of `dim`. */
static void key_gradient(graph *g, descriptor x, descriptor b, descriptor out, int64_t dim)
{
    if (g->heads == g->kv_heads) {
        matmul(g, x, b, out, g->length_kv, NULL, g->length_q);
        return;
    }
    layout l = dense(g->documents, g->heads, g->longest, dim);
    descriptor each = tensor(g, 0, CUDNN_DATA_BFLOAT16, l, NULL);
    matmul(g, x, b, each, g->length_kv, NULL, g->length_q);
    reduction(g, CUDNN_REDUCE_TENSOR_ADD, each, out);
}

void tsr_sdpa_graph_backward(graph *g)
{
    lists(g);
    descriptor q = q_like(g, TSR_UID_Q), k = k_like(g, TSR_UID_K, true),
               v = v_like(g, TSR_UID_V, true);
    descriptor d_o = o_like(g, TSR_UID_D_O), scale = scalar(g, TSR_UID_SCALE),
               delta = stats_like(g, TSR_UID_DELTA);
    layout wide = dense(g->documents, g->heads, g->longest, g->v_dim);
    descriptor both = pointwise(g, CUDNN_POINTWISE_MUL, d_o, o_like(g, TSR_UID_O),
                                tensor(g, 0, CUDNN_DATA_FLOAT, wide, NULL));
    descriptor sum = reduction(g, CUDNN_REDUCE_TENSOR_ADD, both, per_query(g));
    pointwise(g, CUDNN_POINTWISE_MUL, sum, scalar(g, TSR_UID_ONE), delta);

    descriptor s = matmul(g, q, k, scores(g), g->length_q, g->length_kv, NULL);
    s = pointwise(g, CUDNN_POINTWISE_MUL, s, scale, scores(g));
    s = masked(g, pointwise(g, CUDNN_POINTWISE_SUB, s, stats_like(g, TSR_UID_STATS), scores(g)));
    descriptor p = pointwise(g, CUDNN_POINTWISE_EXP, s, NULL, scores(g));
    key_gradient(g, flipped(g, p), d_o, v_like(g, TSR_UID_DV, false), g->v_dim);

    descriptor dp = matmul(g, d_o, v, scores(g), g->length_q, g->length_kv, NULL);
    descriptor ds = pointwise(g, CUDNN_POINTWISE_SUB, dp, delta, scores(g));
    ds = pointwise(g, CUDNN_POINTWISE_MUL, ds, p, scores(g));
    ds = pointwise(g, CUDNN_POINTWISE_MUL, ds, scale, scores(g));
    key_gradient(g, flipped(g, ds), q, k_like(g, TSR_UID_DK, false), g->dim);

    descriptor upright =
        tensor(g, 0, CUDNN_DATA_FLOAT, token_rows(g, g->kv_heads, longest_kv(g), g->kv_row, g->dim),
               g->offset_kv);
    descriptor dq = q_like(g, TSR_UID_DQ), sum_dq = dq;
    if (g->atomics)
        sum_dq = tensor(g, TSR_UID_DQ_SUM, CUDNN_DATA_FLOAT,
                        token_rows(g, g->heads, g->longest, g->q_row, g->dim), g->offset_q);
    matmul(g, ds, reshape(g, k, upright), sum_dq, g->length_q, NULL, g->length_kv);
    if (g->atomics)
        pointwise(g, CUDNN_POINTWISE_IDENTITY, sum_dq, NULL, dq);
}

/* ---- plans ---- */

/* The engines that cuDNN's heuristic names for the graph, best first. */
static int engines(graph *g, cudnnHandle_t handle, descriptor *out)
{
    descriptor operations = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        g->operation_count, g->operation);
    finalize(g, operations, "the graph of operations");
    descriptor heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, heuristic, "the heuristic");
    for (int i = 0; i < MAX_ENGINES; i++)
        out[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t count = 0;
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g,
             tsr_cudnn_lib.BackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &count,
                                               out),
             "the heuristic's results");
    return count < MAX_ENGINES ? (int)count : MAX_ENGINES;
}

void tsr_sdpa_graph_plan(graph *g, cudnnHandle_t handle, uint64_t most)
{
    descriptor engine[MAX_ENGINES];
    int count = engines(g, handle, engine);
    for (int i = 0; i < count && g->status == CUDNN_STATUS_SUCCESS && !g->plan; i++) {
        descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        int64_t bytes = 0;
        set(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
        set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine[i]);
        if (g->status != CUDNN_STATUS_SUCCESS ||
            tsr_cudnn_lib.BackendFinalize(plan) != CUDNN_STATUS_SUCCESS ||
            tsr_cudnn_lib.BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                              CUDNN_TYPE_INT64, 1, NULL,
                                              &bytes) != CUDNN_STATUS_SUCCESS)
            continue;
        g->workspace_bytes = bytes;
        if ((uint64_t)bytes <= most)
            g->plan = plan;
    }
    if (!g->plan)
        note(g, CUDNN_STATUS_NOT_SUPPORTED,
             g->workspace_bytes ? "a plan that fits the workspace" : "a plan");
}

void tsr_sdpa_graph_clear(graph *g)
{
    while (g->made_count > 0)
        tsr_cudnn_lib.BackendDestroyDescriptor(g->made[--g->made_count]);
}

/* ---- execution ---- */

tsr_status tsr_sdpa_failed(cudnnStatus_t status, const char *what)
{
    char reason[512] = "";
    tsr_cudnn_lib.GetLastErrorString(reason, sizeof reason);
    return tsr_fail(TSR_EDEVICE, "cuDNN %zu: %s: %s %s", tsr_cudnn_lib.GetVersion(), what,
                    tsr_cudnn_lib.GetErrorString(status), reason);
}

void tsr_sdpa_give(tsr_sdpa_pack *pack, int64_t uid, const void *pointer)
{
    pack->uid[pack->count] = uid;
    pack->pointer[pack->count++] = (void *)pointer;
}

void tsr_sdpa_pack_begin(tsr_sdpa_pack *pack, const tsr_attention_shape *shape)
{
    *pack = (tsr_sdpa_pack){.scale = tsr_attention_scale(shape), .one = 1, .hidden = -INFINITY};
    tsr_sdpa_give(pack, TSR_UID_SCALE, &pack->scale);
    tsr_sdpa_give(pack, TSR_UID_HIDDEN, &pack->hidden);
}

tsr_status tsr_sdpa_execute(cudnnHandle_t handle, const graph *g, const tsr_sdpa_pack *pack,
                            void *workspace)
{
    descriptor d = NULL;
    for (int i = 0; i < pack->count; i++)
        if ((uintptr_t)pack->pointer[i] % ALIGNMENT && pack->uid[i] < TSR_UID_SCALE)
            return tsr_fail(TSR_EINVAL, "attention: tensor %d is at %p, not on 16 bytes",
                            (int)pack->uid[i], pack->pointer[i]);
    cudnnStatus_t status =
        tsr_cudnn_lib.BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
    if (status == CUDNN_STATUS_SUCCESS)
        status = tsr_cudnn_lib.BackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                                   CUDNN_TYPE_INT64, pack->count, pack->uid);
    if (status == CUDNN_STATUS_SUCCESS)
        status = tsr_cudnn_lib.BackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                                   CUDNN_TYPE_VOID_PTR, pack->count, pack->pointer);
    if (status == CUDNN_STATUS_SUCCESS)
        status = tsr_cudnn_lib.BackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                   CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = tsr_cudnn_lib.BackendFinalize(d);
    if (status == CUDNN_STATUS_SUCCESS)
        status = tsr_cudnn_lib.BackendExecute(handle, g->plan, d);
    tsr_status result =
        status == CUDNN_STATUS_SUCCESS ? TSR_OK : tsr_sdpa_failed(status, "attention");
    if (d)
        tsr_cudnn_lib.BackendDestroyDescriptor(d);
    return result;
}
