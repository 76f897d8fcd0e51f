#!/usr/bin/env python3
"""Makes tests/golden/tokenizers: small tokenizers that use other parts of tokenizer.json than
tiny-llama, each with strings and their ids from Hugging Face's tokenizers, and in families/ one of each model
family's construction (tokenizer_families.py).

    python tools/make_tokenizer_golden.py gsm8k_train.jsonl    (needs tokenizers; from the tree's root)
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_families import TEXTS, families

OUT = "tests/golden/tokenizers"
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": True, **options})


def split(pattern, behavior, invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def build(corpus, pre, vocab=420, normalizer=None, ignore_merges=False, special=()):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False))
    t.add_tokens([x for x in special if not x.special])
    t.add_special_tokens([x for x in special if x.special])
    return t


def characters(corpus, normalizer, pre, strip=True):
    """As SentencePiece's models are converted: BPE over characters, with bytes for those that are no token."""
    base = ["<unk>", "<s>", "</s>"]
    model = models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    t = Tokenizer(model)
    t.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", "always", True)
    special = base + [f"<0x{i:02X}>" for i in range(256)]
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=600, special_tokens=special, limit_alphabet=60, show_progress=False))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] + [decoders.Strip(" ", 1, 0)] * strip
    t.decoder = decoders.Sequence(steps)
    state = json.loads(t.to_str())
    state["added_tokens"] = [x for x in state["added_tokens"] if x["content"] in base]
    state["normalizer"], state["pre_tokenizer"] = normalizer, pre
    return Tokenizer.from_str(json.dumps(state))


def metaspace(scheme, split=False):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def tokenizers(corpus):
    end = AddedToken("<|endoftext|>", special=True, normalized=False)
    yield "gpt2_prefix_space", build(corpus, byte_level(add_prefix_space=True), special=[end]), None
    im = [AddedToken(x, special=True, normalized=False) for x in ("<|im_start|>", "<|im_end|>")]
    think = [AddedToken(x, special=False, normalized=False) for x in ("<think>", "</think>")]
    pre = pre_tokenizers.Sequence([split(Regex(QWEN), "isolated"), byte_level(use_regex=False)])
    yield "nfc_qwen", build(corpus, pre, normalizer=normalizers.NFC(), special=[end, *im, *think]), None
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])
    post = [("<s>", 420), ("</s>", 421)]
    yield "digits", build(corpus, pre, special=[AddedToken(x, special=True, normalized=False) for x, _ in post]), post
    pre = pre_tokenizers.Sequence([
        split(" ", "merged_with_next"), split(Regex(r"[,.]"), "merged_with_previous"), split(Regex("[0-9]"), "contiguous"),
        split("X", "removed"), split(Regex("[a-z ]+"), "isolated", True), pre_tokenizers.Digits(individual_digits=False),
        split(Regex("q*"), "isolated"), byte_level(use_regex=False)])
    yield "behaviors", build(corpus, pre), None
    flags = [AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
             AddedToken("<both>", lstrip=True, rstrip=True, normalized=True), AddedToken("caf\u00e9", normalized=True),
             AddedToken("<both>x", normalized=False), AddedToken("<le", normalized=False), AddedToken("<mask>", special=True)]
    yield "added_flags", build(corpus, byte_level(), normalizer=normalizers.Sequence([normalizers.NFC()]), special=flags), None
    # Byte-level letters are no text's, and white space may be taken by the token before.
    letters = [AddedToken(x, normalized=False) for x in ("\u0120zebra", "zebra\u0120", "\u00c3\u00a9", "\u0120\u0120\u0120")]
    space = [AddedToken(x, lstrip=True, rstrip=True, normalized=False) for x in ("\t", "\n\n")]
    space.append(AddedToken("<right>", rstrip=True, normalized=False))
    yield "added_letters", build(corpus, byte_level(), ignore_merges=True, special=letters + space), None
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]}
    yield "spaces_prepended", characters(corpus, prepend, None), None
    yield "spaces_replaced", characters(corpus, replace, {"type": "Digits", "individual_digits": True}, strip=False), None
    yield "spaces_first", characters(corpus, None, metaspace("first")), None
    yield "spaces_always", characters(corpus, None, metaspace("always", split=True)), None


FRAGMENTS = ["the", " the", "Natalia", "don't", "I'LL", " ", "  ", "\n", "\n\n", "\r\n", "\t", "12", "345", " 6789", ".", ", ", "!?", "(", "$", "X", "qq",
             "\u00e9", "e\u0301", "caf\u00e9", "cafe\u0301", "\u00f1", "\u1112\u1161\u11ab", "\ud55c", "\u0041\u030a\u0301", "q\u0323\u0307", "\u212b",
             "\u0958", "\u2126", "\u8a9e", "\uf900", "\U0001f600", "\u00a0", "\u200b", "\u3000", "\u0301", "a\u0315\u0300\u05ae", "\U0001d15e",
             "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<left>", "<right>", "<both>", "<both>x", "<le", "<mask>", "<|endoftext|>", "<s>", "</s>"]
MORE = {"added_letters": ["a zebra", " zebra", "zebra zebras", "\u0120zebra", " \u0120zebra \u00e9", "\u00c3\u00a9", "zebra\u0120", "a   b", "<right>\t",
                          "<right>\n\nb", "<right> \t\n\n b\t", "\t<right>\t<right>", "<right>\t\t\t"]}
for kind in "prepended", "replaced", "first", "always":
    MORE["spaces_" + kind] = ["Natalia sold clips", " Natalia", "  two", "<s>[INST] How many? [/INST] 48</s>", "<s> a </s><s>b", "</s> ", "\u2581a",
                              "a\u2581\u2581b", "<0x0A>", "<0xE2>\n", "<unk>the", "a\tb\n\n c  d", "\u8a9e\u8a9e the", "the " * 60]


def strings():
    rng = random.Random(20)
    out = [""] + FRAGMENTS + ["a" * 100, "ha" * 200, "\u00e9" * 80, "sold" * 40 + "clips" * 30, "\u0301" * 5, "1" * 90]
    out += ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n)) for n in (65, 130, 500)]
    while len(out) < 170:
        out.append("".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(2, 10))))
    return list(dict.fromkeys(out))


def main():
    with open(sys.argv[1]) as f:
        corpus = [m["content"] for _, line in zip(range(300), f) for m in json.loads(line)["messages"]]
    for name, t, post in tokenizers(corpus):
        if post:
            t.post_processor = processors.TemplateProcessing(single=f"{post[0][0]} $A {post[1][0]}", special_tokens=post)
        t.save(f"{OUT}/{name}.json", pretty=False)
        t = Tokenizer.from_file(f"{OUT}/{name}.json")
        with open(f"{OUT}/{name}.jsonl", "w") as f:
            for text in strings() + MORE.get(name, []):
                plain = t.encode(text, add_special_tokens=False).ids
                row = {"text": text, "ids": t.encode(text).ids, "ids_without_special_tokens": plain,
                       "decoded": t.decode(plain, skip_special_tokens=False),
                       "decoded_skipping_special_tokens": t.decode(plain, skip_special_tokens=True)}
                f.write(json.dumps(row) + "\n")
    for name, state, chat in families(corpus):
        write_family(name, state, chat)


def write_family(name, state, chat):
    """A row has ids without special tokens only where they differ, and what is decoded only where it is not the text."""
    path = f"{OUT}/families/{name}.json"
    with open(path, "w") as f:
        json.dump(state, f, ensure_ascii=False, separators=(",", ":"))
    t = Tokenizer.from_file(path)
    with open(path + "l", "w") as f:
        for text in TEXTS + chat:
            ids, plain = t.encode(text).ids, t.encode(text, add_special_tokens=False).ids
            decoded, skipped = (t.decode(plain, skip_special_tokens=skip) for skip in (False, True))
            row = {"text": text, "ids": ids}
            if plain != ids:
                row["ids_without_special_tokens"] = plain
            if decoded != text:
                row["decoded"] = decoded
            if skipped != decoded:
                row["decoded_skipping_special_tokens"] = skipped
            f.write(json.dumps(row, separators=(",", ":")) + "\n")


main()
