#!/usr/bin/env python3
"""Writes src/base/unicode_tables.h, the tables of normalization form C, from Python's unicodedata.

    python3 tools/make_unicode_tables.py > src/base/unicode_tables.h
"""
import sys
import unicodedata as u

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def rows(items, per_line):
    for i in range(0, len(items), per_line):
        print("    " + " ".join(items[i : i + per_line]))


def main():
    print("/*\n * base/unicode_tables.h: combining classes, canonical decompositions and primary composites.")
    print(f" * Unicode {u.unidata_version}; made by tools/make_unicode_tables.py. Included by unicode.c alone.\n */")
    print("#ifndef TSR_DATA_UNICODE_TABLES_H\n#define TSR_DATA_UNICODE_TABLES_H\n\n#include <stdint.h>\n")
    print("/* clang-format off */")
    ranges = []
    for c in CODES:
        k = u.combining(chr(c))
        if k and ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == k:
            ranges[-1][1] = c
        elif k:
            ranges.append([c, c, k])
    print("static const struct {\n    uint32_t first, last;\n    int combining;\n} combining_ranges[] = {")
    rows([f"{{0x{a:x}, 0x{b:x}, {k}}}," for a, b, k in ranges], 8)
    print("};\n")

    flat, entries = [], []
    for c in CODES:
        d = u.normalize("NFD", chr(c))
        if d != chr(c) and not 0xAC00 <= c < 0xD7A4:
            entries.append(f"{{0x{c:x}, {len(flat)}, {len(d)}}},")
            flat += [f"0x{ord(x):x}," for x in d]
    print("static const uint32_t decomposed[] = {")
    rows(flat, 24)
    print("};\n")
    print("static const struct {\n    uint32_t code;\n    uint16_t start, count;\n} decompositions[] = {")
    rows(entries, 10)
    print("};\n")

    pairs = []
    for c in CODES:
        d = u.decomposition(chr(c))
        if not d or d.startswith("<"):
            continue
        parts = [int(x, 16) for x in d.split()]
        # A pair that NFC does not put together again is one of the composition exclusions.
        if len(parts) == 2 and u.normalize("NFC", "".join(map(chr, parts))) == chr(c):
            pairs.append((*parts, c))
    pairs.sort()
    print("static const struct {\n    uint32_t first, second, code;\n} composites[] = {")
    rows([f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}," for a, b, c in pairs], 8)
    print("};\n/* clang-format on */\n\n#endif")


sys.exit(main())
