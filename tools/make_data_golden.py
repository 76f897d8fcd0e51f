#!/usr/bin/env python3
"""Writes tests/golden/data_formats.jsonl: rows of every format and the tokens and labels they become.

    python tools/make_data_golden.py             (needs transformers; from the tree's root)

The tokens are those of transformers for examples/tiny-llama. What is trained is found as TRL's SFTTrainer finds it, by
tokens: the ids of the prompt alone (or of the conversation so far, with the generation prompt) are the beginning of the
ids of the whole, and what follows is trained. Labels are -100 elsewhere, and at a row's first token.

A line: format, options (of the job), rows, and samples with input_ids and labels.
"""
import json
import pathlib

from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("examples/tiny-llama")
EOS = tokenizer.eos_token

# github.com/tatsu-lab/stanford_alpaca, train.py, PROMPT_DICT
ALPACA = {
    True: "Below is an instruction that describes a task, paired with an input that provides further context. "
          "Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:",
    False: "Below is an instruction that describes a task. "
           "Write a response that appropriately completes the request.\n\n"
           "### Instruction:\n{instruction}\n\n### Response:",
}
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool",
         "observation": "tool"}


def ids(text):
    return tokenizer(text)["input_ids"]


def chat(messages, prompt=False):
    if not messages:  # the generation prompt alone
        return after(chat([m("user", "")]), chat([m("user", "")], True), True)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def sample(whole, trained):
    labels = [t if yes else -100 for t, yes in zip(whole, trained, strict=True)]
    labels[0] = -100
    return {"input_ids": whole, "labels": labels}


def after(prefix, whole, rest=False):
    """Where the whole goes on after the prefix, which must be its beginning; or what follows."""
    assert whole[:len(prefix)] == prefix, (prefix, whole)
    return whole[len(prefix):] if rest else len(prefix)


def text(row, field="text"):
    line = row[field] if row[field].endswith(EOS) else row[field] + EOS
    whole = ids(line)
    return sample(whole, [True] * len(whole))


def pair(prompt, completion, completion_only=True):
    completion = completion if completion.endswith(EOS) else completion + EOS
    whole = ids(prompt + completion)
    start = after(ids(prompt), whole) if completion_only else 0
    return sample(whole, [i >= start for i in range(len(whole))])


def conversation(messages, prompt_count=0, assistant_only=True):
    whole = chat(messages)
    start = after(chat(messages[:prompt_count], True), whole) if prompt_count else 0
    trained = [i >= start for i in range(len(whole))]
    if assistant_only:
        trained = [False] * len(whole)
        for i, message in enumerate(messages):
            if message["role"] == "assistant" and i >= prompt_count:
                begin = after(chat(messages[:i], True), whole)
                end = after(chat(messages[:i + 1]), whole)
                trained[begin:end] = [True] * (end - begin)
    return sample(whole, trained)


def alpaca(row):
    prompt = ALPACA[bool(row.get("input"))].format(**row)
    return prompt, row["output"]


def sharegpt(row):
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return messages + [{"role": ROLES[t["from"]], "content": t["value"]} for t in row["conversations"]]


def m(role, content):
    return {"role": role, "content": content}


def f(speaker, value):
    return {"from": speaker, "value": value}


TEXTS = [{"text": t} for t in (
    "Once upon a time.", " leading and trailing \n\n", "ended" + EOS, EOS, "na\u00efve \u4f60\u597d \U0001f600 e\u0301",
    "two" + EOS + "documents", "tab\there\r\nand there", "<|begin_of_text|>twice", "1234567890 " * 20)]
PAIRS = [{"prompt": p, "completion": c} for p, c in (
    ("The sky is", " blue."), ("Q: 2 + 2?\nA:", " 4"), ("", "no prompt"), ("only a prompt", ""), ("Ends", " here" + EOS),
    ("\u4f60\u597d\n", "\U0001f600\n\n"), ("x" + EOS, "y"), ("Line\n\n", "next line\n"))]
ALPACAS = [
    {"instruction": "Give three tips.", "input": "", "output": "1. Eat.\n2. Sleep.\n3. Walk."},
    {"instruction": "Translate.", "input": "Bonjour", "output": "Hello"},
    {"instruction": "No input key, and {braces} %s", "output": " With a space."},
    {"instruction": "", "input": " ", "output": "", "text": "ignored"},
]
SHAREGPT = [
    {"id": "1", "conversations": [f("human", "Hi"), f("gpt", "Hello!")]},
    {"conversations": [f("system", " Be terse. "), f("human", "2+2?"), f("gpt", "4"), f("human", "3+3?"), f("gpt", "6\n")]},
    {"system": "You are a bot.", "conversations": [f("user", "a"), f("assistant", "b"), f("observation", "c"), f("gpt", "d")]},
    {"system": "", "tools": "", "conversations": [f("human", "a"), f("gpt", "b"), f("human", "and no answer")]},
    {"conversations": [f("gpt", "speaks first"), f("human", "u"), f("tool", "t")]},
]
MESSAGES = [{"messages": sharegpt(row)} for row in SHAREGPT]
TURNS = [
    {"prompt": [m("user", "Hi"), m("assistant", "untrained"), m("user", "More")], "completion": [m("assistant", "trained")]},
    {"prompt": [m("system", "s"), m("user", "u")], "completion": [m("assistant", "a"), m("user", "b"), m("assistant", "c")]},
]


def cases():
    yield "text", {}, TEXTS, text
    yield "text", {"dataset_text_field": "body"}, [{"body": r["text"]} for r in TEXTS[:3]], lambda r: text(r, "body")
    yield "prompt_completion", {}, PAIRS, lambda r: pair(**r)
    yield "prompt_completion", {"completion_only_loss": False}, PAIRS, lambda r: pair(**r, completion_only=False)
    yield "alpaca", {}, ALPACAS, lambda r: pair(*alpaca(r))
    yield "alpaca", {"completion_only_loss": False}, ALPACAS, lambda r: pair(*alpaca(r), completion_only=False)
    yield "sharegpt", {}, SHAREGPT, lambda r: conversation(sharegpt(r))
    yield "sharegpt", {"assistant_only_loss": False}, SHAREGPT, lambda r: conversation(sharegpt(r), assistant_only=False)
    yield "messages", {}, MESSAGES, lambda r: conversation(r["messages"])
    for completion_only in (True, False):
        for assistant_only in (True, False):
            yield ("prompt_completion", {"completion_only_loss": completion_only, "assistant_only_loss": assistant_only}, TURNS,
                   lambda r: conversation(r["prompt"] + r["completion"], len(r["prompt"]) if completion_only else 0, assistant_only))


with open(pathlib.Path("tests/golden/data_formats.jsonl"), "w") as out:
    for name, options, rows, make in cases():
        line = {"format": name, "options": options, "rows": rows, "samples": [make(r) for r in rows]}
        out.write(json.dumps(line, separators=(",", ":")) + "\n")
