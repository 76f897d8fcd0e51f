"""A Llama-family model with LoRA or DoRA in float64 PyTorch, from the formulas: what accuracy is measured against.

Uses nothing of transformers, PEFT or bitsandbytes. With weights and adapters in float32 it computes in float32, but the
rotary tables. A weight is looked up by its name in the checkpoint, an adapter
{"A", "B", "m" or None, "scale"} by its module's name ("model.layers.0.mlp.up_proj").
"""
import torch


def norm_of_rows(w, adapter):
    """DoRA's n: the norm of each row of W + s B A."""
    with torch.no_grad():
        return torch.linalg.vector_norm(torch.addmm(w, adapter["B"], adapter["A"], alpha=adapter["scale"]), dim=1)


class Model:
    def __init__(self, config, weights):
        self.config, self.w = config, weights
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config["hidden_size"] // self.heads

    def linear(self, x, module, adapters):
        w = self.w[module + ".weight"]
        y = x @ w.T
        adapter = adapters.get(module)
        if adapter is None:
            return y
        y = y + adapter["scale"] * (x @ adapter["A"].T @ adapter["B"].T)
        if adapter["m"] is None:
            return y
        return (adapter["m"] / norm_of_rows(w, adapter)) * y

    def normalize(self, x, name):
        variance = x.square().mean(-1, keepdim=True)
        return x / torch.sqrt(variance + self.config["rms_norm_eps"]) * self.w[name + ".weight"]

    def turn(self, x):
        """Rotary positions 0 .. T-1 on [B, T, heads, D]: element i is paired with i + D / 2."""
        half = self.head_dim // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        exponent = torch.arange(half, dtype=torch.float64, device=x.device) / half
        angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float64, device=x.device), theta ** -exponent)
        c, s = (table.to(x.dtype)[None, :, None] for table in (angle.cos(), angle.sin()))
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

    def attend(self, q, k, v):
        """Causal attention; [B, T, heads, D], query head h reads key head h // (heads / kv)."""
        length, group = q.shape[1], self.heads // self.kv
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        score = q @ k.transpose(2, 3) * self.head_dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        share = torch.softmax(score.masked_fill(later, float("-inf")), dim=-1)
        return (share @ v).transpose(1, 2).flatten(2)

    def layer(self, x, index, adapters):
        name = "model.layers.%d." % index
        h = self.normalize(x, name + "input_layernorm")
        q, k, v = (self.linear(h, name + "self_attn.%s_proj" % part, adapters).unflatten(-1, (-1, self.head_dim))
                   for part in "qkv")
        o = self.attend(self.turn(q), self.turn(k), v)
        x = x + self.linear(o, name + "self_attn.o_proj", adapters)
        h = self.normalize(x, name + "post_attention_layernorm")
        gate, up = (self.linear(h, name + "mlp.%s_proj" % part, adapters) for part in ("gate", "up"))
        return x + self.linear(gate * torch.sigmoid(gate) * up, name + "mlp.down_proj", adapters)

    def label_rows(self, ids, adapters):
        """The final norm's output where a token predicts one, [B (T - 1), d]: all tokens are labels."""
        x = self.w["model.embed_tokens.weight"][ids]
        for index in range(self.config["num_hidden_layers"]):
            x = self.layer(x, index, adapters)
        return self.normalize(x[:, :-1], "model.norm").flatten(0, 1)

    def logits(self, rows):
        return rows @ self.w["lm_head.weight"].T


def losses(logits, ids):
    """The negative log-likelihood of each label, [B (T - 1)]."""
    label = ids[:, 1:].reshape(-1, 1)
    return torch.logsumexp(logits, dim=-1) - logits.gather(1, label)[:, 0]
