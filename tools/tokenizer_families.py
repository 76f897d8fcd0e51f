"""Small made-up tokenizers, each constructed as the published tokenizer.json of a model family is: the same
normalizer, pre-tokenizer, model options, post-processor, decoder and flags of added tokens, and some hundred
tokens. Imported by make_tokenizer_golden.py, which writes them with strings and their ids.

What each family publishes is in docs/models.md.
"""
import json

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

SPACE = "\u2581"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN = CL100K.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD, TAIL = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{HEAD}{UPPER}*{LOWER}+|{HEAD}{UPPER}+{LOWER}*|\p{{N}}|{TAIL}"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
QWEN35 = QWEN.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
# One after the other; kana and what of the CJK ideographs begins and ends at these characters.
DEEPSEEK = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|"""
            r"\s+(?!\S)|\s+")
O200K = rf"{HEAD}{UPPER}*{LOWER}+{SHORT}|{HEAD}{UPPER}+{LOWER}*{SHORT}|\p{{N}}{{1,3}}|{TAIL}"

# The corpus has little of what these have; merges over runs, digits and other scripts are what a pre-tokenizer prevents.
PROSE = ["def f(x):\n    if x:\n\t\treturn x\n\n\n", "for (i = 0; i < 10; i++) {\r\n        sum += a[i];\r\n}\n", "2024 2025 1234567890 3.14159 100 000",
         "\u4e2d\u6587\u6a21\u578b\u4e2d\u6587\uff0c\u8bad\u7ec3\u6a21\u578b\u3002", "na\u00efve caf\u00e9 r\u00e9sum\u00e9 Stra\u00dfe \u041f\u0440\u0438\u0432\u0435\u0442", "DON'T don't we'll WE'LL HTMLParser iOSApp",
         "https://example.com/a/b?c=d\n\n", "\U0001f600\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467", "a  b   c    d        e"] * 12


def regex(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex, prefix=False, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": use_regex}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def template(ids, *before):
    """A TemplateProcessing that puts these tokens before the text."""
    single = [{"SpecialToken": {"id": x, "type_id": 0}} for x in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {x: {"id": x, "ids": [ids[x]], "tokens": [x]} for x in before}}


def train(corpus, pre, normalizer=None, size=420, **options):
    """The words of a vocabulary in the order of their ids, and the merges."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(corpus + PROSE, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    model = json.loads(t.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def number(*groups):
    return {x: i for i, x in enumerate(x for g in groups for x in g)}


def added(vocab, *groups):
    """The list added_tokens: groups of (contents, flags); a flag is a letter of lrns. Sorted by id, as saved; what the
    vocabulary does not have follows it."""
    out, last = [], max(vocab.values())
    for contents, flags in groups:
        for x in contents:
            if x not in vocab:
                last += 1
            out.append({"id": vocab.get(x, last), "content": x, "single_word": False, "lstrip": "l" in flags, "rstrip": "r" in flags,
                        "normalized": "n" in flags, "special": "s" in flags})
    return sorted(out, key=lambda a: a["id"])


def build(tokens, vocab, merges, normalizer, pre, post, decoder, merges_as_strings=False, **model):
    # Files of before tokenizers 0.20 have their merges as strings.
    m = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
         "fuse_unk": False, "byte_fallback": False, **model, "vocab": vocab,
         "merges": [" ".join(x) if merges_as_strings else list(x) for x in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": m}


DECODER = byte_level(True, prefix=True)
CHARACTERS = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def spaces_decoder(strip):
    steps = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return sequence("decoders", *steps, *[{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * strip)


def run_merges(character, most):
    """Gemma's vocabulary has runs of one character, with a merge for each way to cut one in two."""
    return [(character * i, character * (n - i)) for n in range(2, most + 1) for i in range(1, n)]


def gemma(corpus, tab, controls, image, before):
    """tab: that of Gemma 1 and 2, where it stands in place of <0x09>; else a token of its own, as from Gemma 3 on."""
    words, merges = train(corpus, pre_tokenizers.Metaspace(SPACE, "never", True), size=330, limit_alphabet=70)
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *controls]
    runs = ["\n" * n for n in range(1, 6)] + [SPACE * n for n in range(2, 9)]
    html = ["<table>", "</table>", "<b>", "</b>"]
    tabs = ["\t"] * (not tab) + ["\t\t", "\t\t\t"]
    named = ["\t" if tab and x == "<0x09>" else x for x in BYTES]
    head = number(first, runs, html, named, tabs)
    vocab = number(head, [x for x in words if x not in head])
    merges = run_merges("\n", 5) + run_merges(SPACE, 8) + run_merges("\t", 3) + [m for m in merges if m[0] + m[1] not in head]
    plain = runs + html + [x for x in tabs if x != "\t" or not tab] + ["<mask>"]
    tokens = added(vocab, (first[:4] + controls + image, "s"), (plain, ""))
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return build(tokens, vocab, merges, REPLACE, split, template(vocab, *before), spaces_decoder(False), merges_as_strings=tab, **CHARACTERS,
                 ignore_merges=False)


def llama(corpus, normalizer, pre, controls, before, kind, size=330):
    """SentencePiece's models of Llama's construction: Phi 3 and Mistral."""
    words, merges = train(corpus, pre_tokenizers.Metaspace(SPACE, "never", True), size=size, limit_alphabet=60)
    first = ["<unk>", "<s>", "</s>"]
    vocab = number(first, controls if kind == "mistral" else [], BYTES, words)
    # In Phi 3 they follow the vocabulary, and </s> is one that takes the white space behind it.
    tokens = added(vocab, (first, "s"), (controls, "s")) if kind == "mistral" else added(
        vocab, (["<unk>", "<s>"], "s"), (["</s>"], "r"), (["<|endoftext|>"], "s"), (controls, "rs"))
    return build(tokens, vocab, merges, normalizer, pre, template(vocab, *before), spaces_decoder(True), merges_as_strings=kind != "mistral", **CHARACTERS)


def bytes_family(corpus, pre, train_pattern, first=(), last=(), outside=(), post=None, normalizer=None, digits=False, **model):
    """BPE over bytes. first, last: added tokens at the ends of the vocabulary; outside: behind it. Groups of (contents, flags)."""
    patterns = [train_pattern] if isinstance(train_pattern, str) else train_pattern or []
    steps = [pre_tokenizers.Split(Regex(x), "isolated") for x in patterns]
    steps = [pre_tokenizers.Digits(individual_digits=True)] * digits + steps + [pre_tokenizers.ByteLevel(False, use_regex=not train_pattern)]
    words, merges = train(corpus, pre_tokenizers.Sequence(steps), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    vocab = number([x for g in first for x in g[0]], words, [x for g in last for x in g[0]])
    tokens = added(vocab, *first, *last, *outside)
    return build(tokens, vocab, merges, normalizer, pre, post(tokens) if post else None, DECODER, **model)


def families(corpus):
    """(name, the state of a tokenizer, strings as its chat template writes them)"""
    turns = ["<start_of_turn>", "<end_of_turn>"]
    chat = ["<bos><start_of_turn>user\nHow many clips?<end_of_turn>\n<start_of_turn>model\n 48<end_of_turn>\n", "\t", "a\tb\t\tc", "\t\t\t\t", SPACE * 3 + "a", "\n\n\n a",
            "   def f():\n\n\n\n\n\n\treturn", "<table> <b>x</b></table>", "<image_soft_token>", "<0x09>", "[multimodal]"]
    yield "gemma2", gemma(corpus, True, turns, [], ["<bos>"]), chat
    yield "gemma3", gemma(corpus, False, ["[multimodal]", *turns], ["<image_soft_token>"], ["<bos>"]), chat
    yield "gemma4", gemma(corpus, False, ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|\"|>"], ["<|image|>"], []), [
        "<bos><|turn>user\nHow many clips?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>48<turn|>\n", "a\tb", "{<|\"|>x<|\"|>}", "<|image|>"]

    spelled = sequence("normalizers", {"type": "Prepend", "prepend": SPACE}, REPLACE)
    controls = ["<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>", "<|user|>"]
    yield "phi3", llama(corpus, spelled, None, controls, [], "phi3"), [
        "<|user|>\nHow many clips?<|end|>\n<|assistant|>\n 48<|end|>\n<|endoftext|>", "</s>  a", "<s> a", "<|end|>   ", "<|endoftext|> \n x"]
    yield "phi4", bytes_family(corpus, sequence("pretokenizers", regex(CL100K, "Removed", True), byte_level(False)), CL100K, last=[
        (["<|dummy_0|>", "<|endoftext|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"], "lrs")],
        post=lambda _: byte_level(True, True, False), continuing_subword_prefix="", end_of_word_suffix="", merges_as_strings=True), [
        "<|im_start|>user<|im_sep|>How many clips?<|im_end|><|im_start|>assistant<|im_sep|> 48 <|im_end|>", " \n<|im_sep|>\n\n <|im_end|>\t", "a <|fim_prefix|> b"]
    yield "phi4_mini", bytes_family(corpus, sequence("pretokenizers", regex(O200K, "Removed", True), byte_level(False)), O200K, last=[
        (["<|endoftext|>", "<|endofprompt|>"], "s"), (["<|assistant|>", "<|end|>", "<|user|>", "<|system|>"], "rs"), (["<|tool|>", "<|/tool|>"], "r")],
        post=lambda _: byte_level(True, True, False), continuing_subword_prefix="", end_of_word_suffix=""), [
        "<|system|>Be brief.<|tool|>[] <|/tool|>\n<|end|><|user|> How many clips?<|end|><|assistant|>\n48<|end|><|endoftext|>"]

    prefix = lambda tokens: sequence("processors", byte_level(True, True, False), template(  # noqa: E731
        {a["content"]: a["id"] for a in tokens}, "[gMASK]", "<sop>"))
    yield "glm4", bytes_family(corpus, sequence("pretokenizers", regex(CL100K), byte_level(False)), CL100K, outside=[
        (["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"], "s")],
        post=prefix), ["[gMASK]<sop><|system|>\nBe brief.<|user|>\nHow many clips?<|assistant|>\n48", "<|observation|> <eop>"]
    yield "olmo2", bytes_family(corpus, sequence("pretokenizers", regex(CL100K, "Removed", True), byte_level(False)), CL100K, last=[
        (["<|extra_id_0|>", "|||PHONE_NUMBER|||", "|||IP_ADDRESS|||"], ""), (["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofprompt|>", "<|pad|>"], "s")],
        continuing_subword_prefix="", end_of_word_suffix="", merges_as_strings=True), [
        "<|endoftext|><|user|>\nHow many clips?\n<|assistant|>\n48<|endoftext|>", "<|im_start|>user\nCall |||PHONE_NUMBER||| now<|im_end|>\n"]
    code = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<filename>", "<reponame>", "<jupyter_start>"]
    digits = sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True))
    yield "granite", bytes_family(corpus, digits, None, first=[(["<|end_of_text|>", *code], "s")], outside=[
        (["<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>"], "s")], post=lambda _: byte_level(True, True, False), digits=True, unk_token="<|end_of_text|>"), [
        "<|start_of_role|>user<|end_of_role|>How many clips?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>48<|end_of_text|>"]
    yield "smollm2", bytes_family(corpus, digits, None, first=[(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", *code[4:]], "s")],
                                  digits=True, merges_as_strings=True), ["<|im_start|>user\nHow many clips?<|im_end|>\n<|im_start|>assistant\n48 of 1234<|im_end|>\n"]
    yield "smollm3", bytes_family(corpus, sequence("pretokenizers", regex(CL100K), byte_level(False)), CL100K, outside=[
        (["<|begin_of_text|>", "<|end_of_text|>"], "s"), (["<think>", "</think>", "<tool_call>", "<code>"], ""), (["<|im_start|>", "<|im_end|>", "<|reserved_special_token_11|>"], "s")],
        post=lambda _: template({}), ignore_merges=True), ["<|im_start|>assistant\n<think>\n\n</think>\n48<|im_end|>\n", "<code>x</code>"]

    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    instruct = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]"]
    yield "mistral", llama(corpus, None, metaspace, instruct, ["<s>"], "mistral"), ["<s>[INST] How many clips?[/INST] 48</s>[INST]  And?[/INST]", "[TOOL_CALLS] [{}]"]
    yield "tekken", bytes_family(corpus, sequence("pretokenizers", regex(TEKKEN), byte_level(False)), TEKKEN, first=[
        (["<unk>", "<s>", "</s>", *instruct, "[THINK]", "[/THINK]", "<SPECIAL_20>"], "s")], post=lambda tokens: template(
        {a["content"]: a["id"] for a in tokens}, "<s>"), ignore_merges=True), ["<s>[INST]How many clips?[/INST]48</s>", "[THINK] a/b\n/ [/THINK]"]
    yield "qwen3", bytes_family(corpus, sequence("pretokenizers", regex(QWEN), byte_level(False)), QWEN, outside=[
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "s"), (["<tool_call>", "</tool_call>", "<think>", "</think>"], "")], normalizer={"type": "NFC"},
        post=lambda _: byte_level(False, False, False), continuing_subword_prefix="", end_of_word_suffix=""), [
        "<|im_start|>user\nHow many clips?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n48<|im_end|>\n"]
    yield "qwen3_5", bytes_family(corpus, sequence("pretokenizers", regex(QWEN35), byte_level(False, trim=False)), QWEN35, outside=[
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>"], "s"), (["<tool_call>", "</tool_call>", "<think>", "</think>"], "")],
        normalizer={"type": "NFC"}, post=lambda _: byte_level(False, False, False), continuing_subword_prefix="", end_of_word_suffix=""), [
        "<|im_start|>user\nHow many clips?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n48<|im_end|>\n", "\u0915\u093f\u0924\u093e\u092c \u0301\u0302x !\u0301"]

    # Special tokens with a bar of full width and a low block; some are added tokens that are not special.
    named = lambda *names: [f"<\uff5c{x}\uff5c>" for x in names]  # noqa: E731
    yield "deepseek_v3", bytes_family(corpus, sequence("pretokenizers", *map(regex, DEEPSEEK), byte_level(False)), DEEPSEEK, first=[
        (named(f"begin{SPACE}of{SPACE}sentence", f"end{SPACE}of{SPACE}sentence", f"{SPACE}pad{SPACE}"), "s")], outside=[
        (named(f"fim{SPACE}hole", "User", "Assistant", f"tool{SPACE}call{SPACE}begin", f"tool{SPACE}sep"), "n"), (["<|EOT|>"], "s"), (["<think>", "</think>"], "n")],
        normalizer=sequence("normalizers"), post=lambda _: byte_level(True, True, False)), [
        f"<\uff5cbegin{SPACE}of{SPACE}sentence\uff5c>Be brief.<\uff5cUser\uff5c>How many clips?<\uff5cAssistant\uff5c>48<\uff5cend{SPACE}of{SPACE}sentence\uff5c>",
        "<think>\n</think>\n\n", "\u30ab\u30bf\u30ab\u30ca\u3068\u6f22\u5b5712345", "\u9fa5\u9fa6\u3400\u30fb\u30ff\u3100", ".method(arg)->x!important#tag", "12ab345cd", "\u2460\u2461 \u20ac5", "a.\n\n\nb :\r\n"]
    yield "glm4_moe", bytes_family(corpus, sequence("pretokenizers", regex(CL100K), byte_level(False)), CL100K, outside=[
        (["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink"], "s"),
        (["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"], "")]), [
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHow many clips?/nothink<|assistant|>\n<think></think>\n48", "<tool_call>f\n<arg_key>x</arg_key>\n</tool_call>", "a/nothinking"]
    yield "gpt_oss", bytes_family(corpus, sequence("pretokenizers", regex(O200K), byte_level(False)), O200K, outside=[
        (["<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"], "s")],
        post=lambda _: byte_level(True, False, True), ignore_merges=True), [
        "<|start|>system<|message|>You are ChatGPT.\nReasoning: low\n\n# Valid channels: analysis, commentary, final.<|end|><|start|>user<|message|>How many clips?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>48?<|end|><|start|>assistant<|channel|>final<|message|>48<|return|>",
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\":1}<|call|>", "<|reserved_200000|><|startoftext|> a", "It'S don'TS we'LLx O'd"]


TEXTS = [
    "", " ", "  ", "   ", "a", " a", "  a ", "Natalia sold clips to 48 of her friends.", " leading", "trailing ", "trailing  \n", "\n", "\n\n", "\n\n\n\n\n\n\n", "\r\n", "\r\n\r\n a",
    "\n a", " \n\n  b", "a\n\n\nb", "\ta", "a\tb", "\t\tx\n\t\ty", "tabs\t \tand\t\n", "a\u00a0b", "a\u3000b", "\u2028x\u2029", "\u200b", "\ufeffa", "\u2581", " \u2581 a", "a\u2581\u2581b", "\u0085x",
    "1", "12", "123", "1234", "12345678901", "3.14159", "1,000,000", "x1y22z333", "\u0661\u0662\u0663\u0664", "\u00b2\u00bd\u2167", "\uff11\uff12\uff13\uff14", " 7 77 777 7777", "0x1F", "v1.2.3-rc4", "$48.50",
    "don't", "DON'T", "we'll WE'LL", "I\u2019m", "'s 's", "it's'", "'d'dd", "iPhoneXSMax", "HTMLParser", "ALLCAPS lower Title", "snake_case camelCase", "\u01c5\u01c4", "\u00c9COLE \u00e9cole", "\u0130\u0131\u017f\u212a",
    "caf\u00e9", "cafe\u0301", "e\u0301\u0323", "q\u0323\u0307", "\u0301", " \u0301a", "\u1112\u1161\u11ab", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u212b \u2126", "\u0958", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u4e2d\u6587", "\u4e2d\u6587\u6a21\u578b\uff0c\u8bad\u7ec3\u3002", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\u7e41\u9ad4123\u5b57abc", "\U00020000\U0002a6d6", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643",
    "\U0001f600", "\U0001f600\U0001f600!", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f44d\U0001f3fd ok", "\ud7ff\ue000\ufffd", "\U0010ffff", "\x00", "a\x00b\x7f", "\x1b[0m",
    "!", "!!!", " !?", "...", "\u2026\u2014\u201cx\u201d", "(a)[b]{c}", "a/b//c\n/d", "#!/bin/sh\n", "<a href=\"x\">y</a>", "http://a.b/c?d=e&f=g#h", "x = y ** 2  # ok\n", "def f(x):\n    return x\n", "if (a) {\r\n\tb();\r\n}\r\n",
    "for i in range(10):\n\n        print(i)\n    \n", "{\"k\": [1, 2.5e-3, null]}", "$\\frac{1}{2}$", "| a | b |\n|---|---|\n", "```c\nint x = 0;\n```", "a  b   c    d        e", "ha" * 60, "the " * 30, "\u00e9" * 40, "9" * 50, " " * 40,
    "<s>", "</s>", "<unk>", "<s> a </s>", "<bos><eos>", "<|endoftext|>", " <|endoftext|> ", "a<|endoftext|>b", "<|im_start|>\n <|im_end|>\n\n", "<|user|> hi <|end|> \n x", "<think>\n\n</think>\n", "<|endoftext|", "<|<|end|>", "<0x0A>", "<0xE4>\u4e2d"]
