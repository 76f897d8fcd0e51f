#!/usr/bin/env python3
"""TRL's own preparation of the rows in tests/golden/data_formats.jsonl: the same tokens and labels?

    python tools/check_trl_data.py               (needs trl 1.16 with datasets and accelerate; from the tree's root)

SFTTrainer._prepare_dataset runs as it is, on a list in place of a data set and without a trainer. alpaca is left out:
TRL has no such format.
"""
import json
import types

from transformers import AutoTokenizer
from trl.trainer import sft_trainer

# TRL finds the assistant's tokens by marks alone: the template of examples/tiny-llama with them.
MARKED = """{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>

{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim }}<|eot_id|>{% endgeneration %}{% else %}\
{{ m['content'] | trim }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}\
<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
SPEAKERS = {"human": "user", "gpt": "assistant", "observation": "tool"}


class Rows(list):
    """What _prepare_dataset asks of a data set."""
    column_names = property(lambda self: list(self[0]))

    def map(self, function, fn_kwargs=None, remove_columns=None, **_):
        gone = [remove_columns] if isinstance(remove_columns, str) else remove_columns or []
        rows = ({**row, **function(dict(row), **(fn_kwargs or {}))} for row in self)
        return Rows({k: v for k, v in row.items() if k not in gone} for row in rows)


def messages(row):
    """TRL renames from and value, but does not know who human is."""
    if "conversations" not in row:
        return row
    turns = [{"role": SPEAKERS.get(t["from"], t["from"]), "content": t["value"]} for t in row["conversations"]]
    return {"messages": ([{"role": "system", "content": row["system"]}] if row.get("system") else []) + turns}


def prepare(tokenizer, case, row):
    options = case["options"]
    chat = case["format"] in ("messages", "sharegpt") or isinstance(row.get("prompt"), list)
    trainer = types.SimpleNamespace(
        _tokenizer=tokenizer, processing_class=tokenizer, chat_template=MARKED if chat else None,
        completion_only_loss=options.get("completion_only_loss", case["format"] == "prompt_completion"))
    args = types.SimpleNamespace(
        dataset_num_proc=None, dataset_text_field=options.get("dataset_text_field", "text"), max_length=None,
        assistant_only_loss=chat and options.get("assistant_only_loss", True), shuffle_dataset=False)
    return sft_trainer.SFTTrainer._prepare_dataset(trainer, Rows([messages(row)]), tokenizer, args, False, None, "rows")[0]


def main():
    tokenizer = AutoTokenizer.from_pretrained("examples/tiny-llama")
    sft_trainer.get_dataset_column_names = lambda rows: rows.column_names
    count = different = 0
    for line in open("tests/golden/data_formats.jsonl"):
        case = json.loads(line)
        if case["format"] == "alpaca":
            continue
        for row, want in zip(case["rows"], case["samples"], strict=True):
            got = prepare(tokenizer, case, row)
            same = got["input_ids"] == want["input_ids"] and [-100, *got["labels"][1:]] == want["labels"]
            count += 1
            different += not same
            if not same:
                print(case["format"], case["options"], row, got, want, sep="\n  ")
    print(f"{count} rows, {different} different")
    return different


if __name__ == "__main__":
    raise SystemExit(main() > 0)
