#!/usr/bin/env python3
"""Writes tests/golden/templates/{renders,snippets}.jsonl: what Jinja2, set up as transformers does, makes
of the templates next to them and of small snippets of every construct.

    python tools/make_template_golden.py         (needs transformers and jinja2; from the tree's root)

A line: template (a file's stem) or source, variables, and text with generation spans (in bytes), or error.
"""
import json
import pathlib

from transformers.utils import chat_template_utils

DIR = pathlib.Path("tests/golden/templates")
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather \u2603 \"now\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1.0}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}, "return": None}},
]
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Li\u00e8ge", "x": [1, 2.5, True, None]}}}


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    [m("user", "Hi")],
    [m("user", "  Hi \u00a0\u0085"), m("assistant", "\u001cHello\u2003\n")],
    [m("system", " Be terse. "), m("user", "a"), m("assistant", "b"), m("user", "c"), m("assistant", "d\n")],
    [m("user", "q"), m("assistant", "<think>\nr\n</think>\n\nx"), m("user", "w"), m("assistant", "<think>s</think>y")],
    [m("user", "q"), m("assistant", "x", reasoning_content="because"), m("user", "w")],
    [m("user", "one"), m("user", "two")],
    [m("assistant", "first"), m("user", "then")],
    [m("system", "only")],
    [m("user", "w?"), m("assistant", "", tool_calls=[CALL]), m("tool", "21 \u00b0C", tool_call_id="abcdefghi"), m("assistant", "21.")],
    [m("user", "w?"), m("assistant", None, tool_calls=[CALL]), m("tool", "a"), m("tool", "b"), m("assistant", "ok")],
    [m("user", "{{ x }} {% y %} <|im_end|>"), m("assistant", "\U0001f600 'quoted' \"double\" \\ \t")],
]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "documents": None}


def variable_sets():
    for chat in CHATS:
        for prompt in (False, True):
            yield {**NAMES, "messages": chat, "tools": None, "add_generation_prompt": prompt}
    for chat in (CHATS[0], CHATS[2], CHATS[8]):
        yield {**NAMES, "messages": chat, "tools": TOOLS, "add_generation_prompt": False}
        yield {**NAMES, "messages": chat, "tools": TOOLS, "add_generation_prompt": True, "tools_in_user_message": False,
               "date_string": "1 Jan 2025", "builtin_tools": ["code_interpreter", "get_weather"], "enable_thinking": False}


DATA = {"s": "  Hello, W\u00f6rld \n", "a": "abcabc", "n": 7, "z": 0, "f": 2.5, "big": 1e22, "tiny": 1.5e-7, "t": True, "none": None, "e": "", "el": [],
        "l": [3, 1, 2], "d": {"k": "v", "n": 1, "x": {"y": [10, 20]}}, "users": [{"name": "A", "age": 3, "ok": True}, {"name": "b", "age": 5, "ok": False}, {"age": 7}],
        "words": "one two  three\tfour", "u": "\u00e9\u00e8\U0001f600z", "items": 1, "keyed": {"items": 5, "get": 6}, "nl": "a\nb\r\nc", "up": "MiXed case-word"}

SNIPPETS = r"""
{{ s }}|{{ s | trim }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ a.strip('ac') }}|{{ a.lstrip('a') }}|{{ a.rstrip('bc') }}|{{ a | trim('a') }}
{{ n + 1 }} {{ n - 9 }} {{ n * 2 }} {{ n / 2 }} {{ n // 2 }} {{ n % 4 }} {{ -n // 2 }} {{ -n % 4 }} {{ f + 1 }} {{ f * 2 }} {{ f // 1 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}
{{ 1.0 }} {{ 0.1 }} {{ 1e22 }} {{ 1e16 }} {{ 123456789012345.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1.5e-7 }} {{ big }} {{ tiny }} {{ 100.25 }} {{ -0.0 }} {{ 1/3 }}
{{ true }} {{ false }} {{ none }} {{ None }} {{ True }} {{ l }} {{ d }} {{ (1, 'a') }} {{ (1,) }} {{ ["a'b", 'a"b', "a'\"b", "\n\\"] }} {{ {} }} {{ [] }} {{ [none, true, 1.0] }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }} {{ 'a' + 'b' }} {{ [1] + [2, 3] }} {{ (1,) + (2,) }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ [1,2] == [1,2] }} {{ [1] == (1,) }} {{ none == false }} {{ undefined_name == other_undefined }} {{ {'a': 1} == {'a': 1.0} }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ n >= 7 }} {{ n != 7 }} {{ 3 <= f }} {{ 'abc' > 'ab' }}
{{ 'b' in a }} {{ 'x' in a }} {{ 1 in l }} {{ 9 not in l }} {{ 'k' in d }} {{ 'v' in d }} {{ '' in e }} {{ 1 in undefined_name }} {{ true in l }}
{{ not t }} {{ not e }} {{ t and 'yes' }} {{ e or 'no' }} {{ none and x.y.z }} {{ not t or t }} {{ not (t and t) }} {{ el or d }}
{{ 'y' if t else 'n' }} {{ 'y' if e }} {{ 'y' if e else 'n' if z else 'm' }} [{{ 'x' if none }}]
{{ l[0] }} {{ l[-1] }} {{ l[5] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }} {{ l[2:0:-1] }} {{ l[:] }} {{ l[-9:9] }} {{ l[::-2] }}
{{ u[0] }} {{ u[-1] }} {{ u[1:3] }} {{ u[::-1] }} {{ u | length }} {{ u[10] }} {{ u[:2] }} {{ u[-2:] }} {{ u[::2] }}
{{ d.k }} {{ d['k'] }} {{ d.x.y.1 }} {{ d.x.y[0] }} {{ d.missing }} {{ d['missing'] }} {{ d.get('k') }} {{ d.get('q') }} {{ d.get('q', 'dflt') }} {{ d.x['y'][-1] }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }},{% endfor %}{% for k in d.keys() %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}{% for k, v in d | items %}{{ k }}{% endfor %}
{{ keyed['items'] }} {{ keyed['get'] }} {{ keyed.items() | list }} {{ d.items() | list }} {{ d.keys() | list | length }} {{ d.items() | length }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }} {% endfor %}
{% for x in el %}x{% else %}empty{% endfor %} {% for x in undefined_name %}x{% else %}undef{% endfor %} {% for x in l if x > 1 %}{{ x }}{{ loop.last }}{% else %}none{% endfor %} {% for x in l if x > 9 %}x{% else %}none{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for c in 'h\u00e9' %}{{ c }}.{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for x in range(3) %}{{ x }}{% endfor %} {{ range(1, 10, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(3) | length }}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }} {% set ns = namespace(x=1, y='q') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.zz }}
{% if t %}{% set q = 5 %}{% endif %}{{ q }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c = 1, 2 %}{{ c }} {% set blk %}  in {{ n }}{% endset %}[{{ blk }}] {% set blk | trim | upper %}  abc {% endset %}[{{ blk }}]
{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 9 %}{{ a }}{% endwith %}{{ a }} {% filter upper %}abc {{ n }}{% endfilter %} {% raw %}{{ x }} {% y %}{% endraw %} {# comment {{ x }} #}.
{% macro m(a, b=2, c=n) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=5, c='x') }}{{ m() }}{% macro r(k) %}{{ k }}{% if k > 0 %}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ r(3) }}
{{ l | join(', ') }} {{ l | join }} {{ users | map(attribute='age') | join('-') }} {{ users | map(attribute='name', default='?') | join('-') }} {{ ['a', 'b'] | map('upper') | list }} {{ users | join(',', attribute='age') }}
{{ users | selectattr('ok') | map(attribute='name') | list }} {{ users | rejectattr('ok') | list | length }} {{ users | selectattr('age', 'gt', 3) | map(attribute='age') | list }} {{ users | selectattr('name', 'defined') | list | length }} {{ users | selectattr('name', 'equalto', 'A') | list }}
{{ l | select('odd') | list }} {{ l | reject('equalto', 1) | list }} {{ l | select('in', [1, 2]) | list }} {{ [0, 1, ''] | select | list }} {{ l | first }} {{ l | last }} {{ u | first }} {{ el | first }} {{ d | first }} {{ users | selectattr('ok') | first }}
{{ 'x' if (el | select | list) else 'y' }} {{ 'x' if (el | select) else 'y' }} {{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | length }} {{ d | length }} {{ l | count }}
{{ undefined_name | default('d') }} {{ none | default('d') }} {{ none | default('d', true) }} {{ e | d('x', boolean=true) }} {{ undefined_name | default }}|
{{ a | replace('b', 'X') }} {{ a.replace('b', 'X', 1) }} {{ a | replace('b', 'X', 1) }} {{ n | replace('7', 'q') }} {{ 'aaa'.replace('aa', 'b') }}
{{ words.split() }} {{ words.split(' ') }} {{ words.split(None, 1) }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'abc'.split('x') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b'.split('--')[-1] }} {{ ' a '.split(maxsplit=1) }}
{{ '  a  b c,d,,e \n'.split(None, 1) }} {{ s.split(maxsplit=0)[0] }}|{{ s.split(None, 1)[1] }}|{{ s.split(None, 2)[1] }}|{{ s.split()[1] }}|{{ ' a b \t'.split(maxsplit=1)[-1] }}|{{ ' \n'.split(None, 0) }}
{{ a.startswith('ab') }} {{ a.endswith(('x', 'bc')) }} {{ a.startswith(('q', 'b')) }} {{ a.find('c') }} {{ a.find('q') }} {{ u.find('z') }} {{ a.count('ab') }} {{ a.removeprefix('abc') }} {{ a.removesuffix('bc') }} {{ ','.join(['a', 'b']) }}
{{ up | upper }} {{ up | lower }} {{ up | capitalize }} {{ up | title }} {{ up.title() }} {{ up.upper() }} {{ "it's o'neil" | title }} {{ "it's o'neil".title() }} {{ '(a b)-c' | title }} {{ up.capitalize() }}
{{ '12' | int }} {{ ' -3 ' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '2.9' | int }} {{ f | int }} {{ none | int }} {{ '1.5' | float }} {{ 3 | float }} {{ 'q' | float }} {{ -3 | abs }} {{ true | int }} {{ 3 | string + 'x' }} {{ [1] | string }}
{{ d | tojson }} {{ users | tojson }} {{ u | tojson }} {{ s | tojson }} {{ [1.0, 1e30, -0.5, none, true, "\x01\x7f\\\"/<>&'"] | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ {} | tojson }} {{ [] | tojson }}
{{ d | tojson(indent=2) }} {{ l | tojson(indent=4) }} {{ {'b': 1, 'a': {}} | tojson(indent=1, sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4} | tojson }} {{ (1, 2) | tojson }} {{ [] | tojson(indent=2) }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ ['b', 'A', 'a', 'B'] | sort }} {{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) }} {{ ['b', 'A', 'a', 'B'] | sort(true) }} {{ users | sort(attribute='age', reverse=true) | map(attribute='age') | list }} {{ el | sort }}
{{ {'b': 1, 'A': 3, 'c': 2} | dictsort }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort(true) }} {{ {'b': 1, 'A': 3} | dictsort(by='value') }} {{ {'b': 1, 'A': 3} | dictsort(false, 'value', true) }} {% for k, v in d | dictsort %}{{ k }};{% endfor %} {{ {} | dictsort }}
{{ [1, 2, 1, true, 3] | unique | list }} {{ ['a', 'A', 'b'] | unique | list }} {{ ['a', 'A', 'b'] | unique(true) | list }} {{ users | unique(attribute='ok') | list | length }} {{ l | min }} {{ l | max }} {{ ['b', 'A'] | min }} {{ ['b', 'A'] | max }} {{ users | max(attribute='age') }} {{ el | min }}
{{ nl | indent }}|{{ nl | indent(2, true) }}|{{ "a\n\nb\n" | indent }}|{{ "a\n\nb\n" | indent(blank=true) }}|{{ "a\n\nb" | indent('> ', first=true, blank=true) }}|{{ '' | indent(3, true) }}|{{ "x\u2028y\x0bz" | indent }}
{{ ('<a>' | safe) + '<b> & "c"' }} {{ "'<" + ('>' | safe) + '&' }} {{ ('a' | safe) + ('<' | safe) }} {{ ('<' | safe) ~ '<' }} {{ ['<', '<' | safe] | join('&') }} {{ '&'.join(['<' | safe, '<']) }}
{{ [1, 'a'] | sort }}
{{ l | dictsort }}
{{ d | dictsort(by='x') }}
{{ users | sort(attribute='name') }}
{{ d | tojson | safe }} {{ d is mapping }} {{ l is mapping }} {{ l is sequence }} {{ d is sequence }} {{ a is sequence }} {{ n is sequence }} {{ undefined_name is sequence }} {{ l is iterable }} {{ n is iterable }} {{ none is iterable }} {{ undefined_name is iterable }} {{ d.items() is sequence }} {{ (l | select) is iterable }}
{{ n is number }} {{ t is number }} {{ t is integer }} {{ n is integer }} {{ f is float }} {{ t is boolean }} {{ a is string }} {{ none is none }} {{ e is none }} {{ t is true }} {{ n is true }} {{ false is false }} {{ x is defined }} {{ n is defined }} {{ n is not defined }} {{ x is undefined }} {{ n is odd }} {{ z is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }}
{{ n is eq 7 }} {{ n is equalto(7) }} {{ n is ne 7 }} {{ n is gt 3 }} {{ n is lt(3) }} {{ n is ge 7 }} {{ n is le 6 }} {{ 1 is in l }} {{ 9 is not in l }} {{ none is sameas none }} {{ true is sameas(true) }} {{ raise_exception is defined }} {{ strftime_now is defined }} {{ range is callable }} {{ n is callable }} {{ a is eq 'abcabc' and n is eq 7 }}
{% if n is defined and n > 3 or x %}1{% elif n %}2{% else %}3{% endif %}{% if z %}1{% elif n == 7 %}2{% else %}3{% endif %}{% if z %}1{% elif e %}2{% else %}{% if n %}3{% endif %}4{% endif %}
{{ -n }} {{ +n }} {{ - n + 1 }} {{ -3 | abs }} {{ 2 - -2 }} {{ not n == 7 }} {{ 'a' ~ 1 * 2 }} {{ 1 ~ 2 ~ 3 }} {{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 10 - 2 - 3 }} {{ 'a' if n > 3 and not e else 'b' }} {{ l[0] + l[1] * 2 }}
a {%- if t %} b {%- endif %} c {{- ' d ' -}} e {#- x -#} f {%+ if t %} g {%+ endif %} h {% if t -%}   i   {%- endif -%}   j
  {% if t %}\n  x\n  {% endif %}\n  {{ n }}\n\t{% for i in l %}\n    {{ i }}\n\t{% endfor %}\nend\n  {# c #}\n  y {% if t %}\nz{% endif %}\n\n
  {%+ if t %}\nx\n  {%+ endif %}\n{%- set q = 1 %}\n\n{{- q }}\n{% raw %}\n {{ x }} \n{% endraw %}\n  {%- raw -%}  z  {%- endraw -%}  w
{{ "\u00e9\x41\n\t\\ \q \"" }} {{ 'it''s' }} {{ "a" "b" 'c' }} {{ 'a\
b' }} {{ '{{' }} {{ "}}" }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1,}.a }} {{ [1, 2,][1] }} {{ '%}' }}
{% generation %}{{ s | trim }}{% endgeneration %} mid {% for x in l %}{% generation %}{{ x }}\u00e9{% endgeneration %};{% endfor %}{% generation %}{% endgeneration %}
{% for x in l %}{% for y in [1, 2] %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }}{% endfor %} {% for m in users %}{% if loop.first and m.name == 'A' %}{{ m.age }}{% elif m.name is defined %}{{ m['name'] }}{% else %}?{% endif %}{% endfor %}
{% for i in l %}{{ n }}{{ z is defined }}{% endfor %}{% set n = 1 %}{{ n }} {% for i in l %}{{ f }}{% endfor %}{% if t %}{% set f = 1 %}{% endif %}{{ f }} {{ z }}{% set z = 2 %}{% for i in l %}{{ z }}{% set z = i %}{{ z }}{% endfor %} {% macro m() %}[{{ a }}{{ e }}]{% endmacro %}{{ m() }}{% set a = 5 %}{{ m() }}{% for i in l %}{% for j in l %}{{ up }}{% endfor %}{% set up = i %}{{ up }}{% endfor %}{{ up }}
{% macro late(n=n, f=z, z=3) %}{{ n }}/{{ f }}/{{ z }} {% endmacro %}{{ late() }}{{ late(1) }}{{ late(z=4) }}{{ late(f=5, n=6) }}{% set u %}{{ tiny }}{% set tiny = 1 %}{% for i in l %}{{ big }}{% endfor %}{% set big = 2 %}{% endset %}{{ u }}{% with x = t %}{% for i in [1] %}{{ nl }}{{ x }}{{ words }}{% endfor %}{% set nl, x = 1, 2 %}{{ nl }}{{ x }}{% endwith %}{{ words }}{% macro t() %}x{% endmacro %}{{ t() }}
{% for x in l %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% else %}else{% endfor %} {% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}else{% endfor %} {% for x in l %}{% continue %}{% else %}else{% endfor %} {% for x in l %}{% if x > 2 %}{% continue %}{% endif %}{{ x }}{% else %}else{% endfor %}
{% set loop_messages = users[1:] %}{% for m in loop_messages %}{{ m.age + loop.index0 }} {% endfor %}{{ users[0].name ~ users[-1]['age'] }} {{ (users | last).age }}
{%set x='a'%}{{x}}{%if x=='a'%}yes{%endif%}{{x+'b'}}{{x~'c'|upper}} {{ (x ~ 'c') | upper }} {{ x|length|string + '!' }} {{ d.x.y | join('/') }} {{ d['x']['y'] | last }} {{ 1 if d.k == 'v' }} {{ 'n' in d and d.n }}
{{ undefined_name.x }}
{{ users | map(attribute='x.y') | list | length }}
{{ 'a' ~ 1 + 2 }}
{{ undefined_name + 'a' }}
{{ 'a' + 1 }}
{{ none + 'a' }}
{{ d.x.q.z }}
{{ raise_exception('no ' ~ n) }}
{{ 1 / 0 }}
{{ n() }}
{{ l.append(4) }}
{{ n in 5 }}
{{ 'a' < 1 }}
{{ none | length }}
{% for x in 5 %}{% endfor %}
{% for a, b in [1, 2] %}{% endfor %}
{{ undefined_name | tojson }}
{{ undefined_name() }}
{{ ','.join([1]) }}
{{ none.x.y }}
{{ a.nope }}|{{ n.nope }}|{{ l.nope }}|{{ none.nope }}|{{ a['nope'] }}|{{ l['nope'] }}
{{ a.nope() }}
{{ m(1, 2) }}{% macro m(a) %}{{ a }}{% endmacro %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{{ range(1000000) | length }}
{% if x
{{ n
{% for x in l %}
{% endfor %}
{{ 1 + }}
{{ 'abc }}
{{ (1 }}
{{ ) }}
{% nonsense %}
{{ n | nonsense }}
{{ n is nonsense }}
{# open
{{ a b }}
{{ }}
{% set 1 = 2 %}
{% if n %}{% else %}{% else %}{% endif %}
{{ a.. }}
{{ a | }}
{% break %}
{% macro m(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{{ n is n is n }}
""".strip("\n").replace("\\\nb", "\0").split("\n")


def render(source, variables):
    """(text, spans in bytes) or an error's text."""
    try:
        template = chat_template_utils._compile_jinja_template(source)
        blocks, spans = [], []
        with template.environment.activate_tracker(blocks, spans):
            for block in template.generate(**variables):
                blocks.append(block)
        text = "".join(blocks)
        size = lambda i: len(text[:i].encode())
        return {"text": text, "spans": [[size(a), size(b)] for a, b in spans]}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    with open(DIR / "renders.jsonl", "w") as f:
        for path in sorted(DIR.glob("*.jinja")):
            source = path.read_text()
            for i, variables in enumerate(variable_sets()):
                f.write(json.dumps({"template": path.stem, "set": i, **render(source, variables)}) + "\n")
    (DIR / "variables.json").write_text(json.dumps({"sets": list(variable_sets()), "snippets": DATA}, indent=1) + "\n")
    with open(DIR / "snippets.jsonl", "w") as f:
        for line in SNIPPETS:
            # Outside of quotes \n in the list above is a real line end; \0 stands for one after a backslash.
            source = line.replace("\0", "\\\nb")
            if line.lstrip().startswith("{%+") or line.startswith("  {% if"):
                source = source.replace("\\n", "\n").replace("\\t", "\t")
            f.write(json.dumps({"source": source, **render(source, DATA)}) + "\n")


main()
