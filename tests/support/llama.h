/*
 * tests/support/llama.h: the linears of a Llama's layer in the order of its block, for tests that know which is which.
 */
#ifndef TSR_TESTS_SUPPORT_LLAMA_H
#define TSR_TESTS_SUPPORT_LLAMA_H

enum { LLAMA_Q, LLAMA_K, LLAMA_V, LLAMA_O, LLAMA_GATE, LLAMA_UP, LLAMA_DOWN, LLAMA_LINEARS };

static const char *const llama_linear[LLAMA_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

#endif
