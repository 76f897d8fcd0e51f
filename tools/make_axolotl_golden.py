#!/usr/bin/env python3
"""Writes tests/golden/axolotl_labels.jsonl: what axolotl trains of chats by roles_to_train, train_on_eot and train_on_eos, and of
segments (input_output).

    python tools/make_axolotl_golden.py CHECKOUT       (needs transformers and pydantic; from the tree's root)

CHECKOUT is a checkout of github.com/axolotl-ai-cloud/axolotl; its strategies are run as they are, on transformers' tokenizer of
examples/tiny-llama. What they import beside is not needed for this and made up. A line is one of data_formats.jsonl.
"""
import importlib.util
import json
import pathlib
import sys
import types
from unittest import mock

from transformers import AutoTokenizer

SOURCE = pathlib.Path(sys.argv[1]) / "src" / "axolotl"
tokenizer = AutoTokenizer.from_pretrained("examples/tiny-llama")
TEMPLATE = pathlib.Path("examples/tiny-llama/chat_template.jinja").read_text()


def load(name):
    """A module of axolotl by its file alone."""
    path = SOURCE / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location("axolotl." + name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["axolotl." + name] = module
    spec.loader.exec_module(module)
    return module


for name in ("addict", "colorama", "datasets", "axolotl", "axolotl.prompt_strategies", "axolotl.utils", "axolotl.utils.logging",
             "axolotl.utils.chat_templates", "axolotl.utils.schemas", "axolotl.utils.schemas.datasets"):
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
sys.modules["addict"].Dict = dict
sys.modules["colorama"].Fore = mock.MagicMock()
sys.modules["datasets"].Dataset = object
sys.modules["axolotl.utils.logging"].get_logger = lambda *_, **__: mock.MagicMock()
sys.modules["axolotl.utils.chat_templates"].get_chat_template_from_config = None
sys.modules["axolotl.utils.schemas.datasets"].DatasetConfig = type("DatasetConfig", (), {})
for name in ("utils.dict", "prompters", "prompt_tokenizers", "prompt_strategies.jinja_template_analyzer"):
    load(name)
chats = load("prompt_strategies.chat_template")
segments = load("prompt_strategies.input_output")


def u(content, **keys):
    return {"role": "user", "content": content} | keys


def a(content, **keys):
    return {"role": "assistant", "content": content} | keys


def s(content, **keys):
    return {"role": "system", "content": content} | keys


CHATS = [
    [u("What is 2 + 3?"), a("5"), u(" And 4 + 4?\n"), a("It is 8. ")],
    [s("You are brief."), u("Hello"), a("Hi."), u("Bye"), a("Bye.")],
    [u("One turn"), a("alone")],
    [u("ends with a question"), a("yes"), u("and then?")],
]
SWITCHED = [
    [u("a question", training=True), a("an answer", training=False), u("another one"), a("another answer")],
    [s("a system prompt", training=True), u("x y z"), a("an answer")],
]


def sample(result):
    labels = list(result["labels"])
    labels[0] = -100
    return {"input_ids": list(result["input_ids"]), "labels": labels}


def encode(messages, roles, eot):
    prompter = chats.ChatTemplatePrompter(
        tokenizer, chat_template=TEMPLATE, message_field_training="training", message_property_mappings={
            "role": "role", "content": "content"})
    strategy = chats.ChatTemplateStrategy(prompter, tokenizer, False, 4096, roles_to_train=roles, train_on_eos=eot)
    return sample(strategy.tokenize_prompt({"messages": messages}))


def lines():
    for rows, roles in ((CHATS, ["assistant"]), (CHATS, ["user"]), (CHATS, ["user", "assistant"]),
                        (CHATS[1:2], ["system", "assistant"]), (SWITCHED, ["assistant"]), (SWITCHED, [])):
        for eot in ("turn", "all", "last", "none"):
            yield {"format": "messages", "options": {"roles_to_train": roles, "train_on_eot": eot},
                   "rows": [{"messages": row} for row in rows], "samples": [encode(row, roles, eot) for row in rows]}
    rows = [{"segments": [{"label": False, "text": "<|begin_of_text|>Question: 2 + 3?\n"}, {"label": True, "text": "It is 5.<|eot_id|>"},
                          {"label": False, "text": " More?"}, {"label": True, "text": "No"}]}]
    for every in (False, True):
        strategy = segments.RawInputOutputStrategy(segments.RawInputOutputPrompter(), tokenizer, every, 4096)
        yield {"format": "input_output", "options": {"completion_only_loss": False} if every else {}, "rows": rows,
               "samples": [sample(strategy.tokenize_prompt(row)) for row in rows]}


with open("tests/golden/axolotl_labels.jsonl", "w") as out:
    for line in lines():
        out.write(json.dumps(line, separators=(",", ":")) + "\n")
