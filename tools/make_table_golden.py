#!/usr/bin/env python3
"""Writes tests/golden/tables: Parquet files of random schemas, and the rows that they hold as JSON lines.

    python tools/make_table_golden.py                        the golden files (needs pyarrow, pandas; from the tree's root)
    python tools/make_table_golden.py DIR COUNT [SEED]       COUNT files in DIR; then build/tests/table/test_table_golden DIR

pyarrow writes the files; the rows expected are those that it was given, as src/table/parquet.h says that values become JSON.
Encodings, codecs, page versions, sizes of pages, dictionaries and row groups are drawn by the seed. old_lists.parquet has
lists of two levels, which pyarrow reads but no longer writes: its bytes are put together here, and so are those of some
refused_*.parquet.
"""
import datetime
import decimal
import json
import math
import os
import pathlib
import random
import string
import struct
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261125
decimal.getcontext().prec = 80


def text(r):
    alphabet = r.choice([string.ascii_letters, "äöüß€ 漢字🙂\"\\\n\t", "ab"])
    return "".join(r.choice(alphabet) for _ in range(r.choice([0, 1, 5, 20, r.randrange(300)])))


def whole(bits, signed):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << min(bits, 63)) - 1)
    return lambda r: r.choice([low, high, 0, r.randint(low, high), max(low, min(high, r.randrange(100)))])


def real(r):
    return r.choice([0.0, -1.5, r.gauss(0, 1), r.gauss(0, 1e30), math.nan, math.inf])


def moment(r, unit):
    low, high = -62135596800, 253402300799  # years 1 to 9999
    if unit == "ns":
        low, high = -9223372036, 9223372036
    per = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    return r.randint(low, high) * per + r.choice([0, r.randrange(per)])


LEAVES = [
    (pa.bool_(), lambda r: r.random() < 0.5),
    *((t, whole(t.bit_width, True)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((t, whole(t.bit_width, False)) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float32(), real), (pa.float64(), real),
    (pa.float16(), lambda r: r.choice([0.5, -2.0, 65504.0, 2.0**-24, 1.0009765625])),
    (pa.string(), text), (pa.string(), text), (pa.large_string(), text),
    (pa.binary(), lambda r: text(r).encode()),
    (pa.binary(7), lambda r: bytes(r.choice(b"xyz ") for _ in range(7))),
    (pa.dictionary(pa.int32(), pa.string()), lambda r: r.choice(["red", "green", "", "blue"])),
    *((pa.decimal128(p, s), lambda r, p=p, s=s: decimal.Decimal(r.randint(1 - 10**p, 10**p - 1)).scaleb(-s))
      for p, s in ((5, 2), (18, 0), (28, 28))),
    (pa.decimal256(60, 9), lambda r: decimal.Decimal(r.randint(1 - 10**60, 10**60 - 1)).scaleb(-9)),
    (pa.date32(), lambda r: datetime.date.fromordinal(r.randint(1, 3652059))),
    *((pa.timestamp(u, z), lambda r, u=u: moment(r, u)) for u in ("s", "ms", "us", "ns") for z in (None, "UTC")),
    (pa.time32("ms"), lambda r: r.randrange(86400 * 10**3)),
    (pa.time64("us"), lambda r: r.randrange(86400 * 10**6)),
    (pa.time64("ns"), lambda r: r.randrange(86400) * 10**9 + r.choice([0, r.randrange(10**9)])),
]


def draw_type(r, depth):
    """A type, and what makes its values."""
    kind = r.random()
    if depth == 0 or kind < 0.5:
        leaf, make = r.choice(LEAVES)
        few = r.random() < 0.3 and [make(r) for _ in range(3)]
        return leaf, (lambda r: r.choice(few)) if few else make
    if kind < 0.75:
        inner, make = field(r, depth - 1)
        wrap = r.choice([pa.list_, pa.list_, pa.large_list])
        return wrap(inner.with_name(r.choice(["element", "item", "x"]))), \
            lambda r: [make(r) for _ in range(r.choice([0, 1, 2, 5, 12]))]
    if kind < 0.92:
        inner = [field(r, depth - 1, f"f{i}") for i in range(r.randint(1, 3))]
        return pa.struct([f for f, _ in inner]), lambda r: {f.name: make(r) for f, make in inner}
    value, make = field(r, depth - 1, "value")
    return pa.map_(pa.string(), value), \
        lambda r: [(k, make(r)) for k in r.sample(["a", "b", "", "key", "ä"], r.randint(0, 5))]


def field(r, depth, name="x"):
    made, make = draw_type(r, depth)
    if r.random() < 0.4:
        return pa.field(name, made, nullable=False), make
    nulls = r.choice([0.0, 0.1, 0.5, 1.0])
    return pa.field(name, made), lambda r: None if r.random() < nulls else make(r)


def as_json(value, kind):
    """What src/table/parquet.h says that a value becomes."""
    t = pa.types
    if value is None:
        return None
    if t.is_struct(kind):
        return {f.name: as_json(value[f.name], f.type) for f in kind}
    if t.is_map(kind):
        return {k: as_json(v, kind.item_type) for k, v in value}
    if t.is_list(kind) or t.is_large_list(kind):
        return [as_json(v, kind.value_type) for v in value]
    if t.is_float32(kind) and math.isfinite(value):
        return struct.unpack("f", struct.pack("f", value))[0]
    if t.is_floating(kind):
        return value if math.isfinite(value) else None
    if t.is_decimal(kind):
        return format(value.quantize(decimal.Decimal(1).scaleb(-kind.scale)), "f")
    if t.is_timestamp(kind) or t.is_date(kind) or t.is_time(kind):
        return clock(value, kind)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value.decode() if isinstance(value, bytes) else value


def clock(value, kind):
    """Dates and times out of whole numbers, so that no library's range matters."""
    if pa.types.is_date(kind):
        return str(value)
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    seconds, rest = divmod(value, per)
    nanoseconds = rest * (10**9 // per)
    fraction = f".{nanoseconds:09}" if nanoseconds % 1000 else f".{nanoseconds // 1000:06}" if nanoseconds else ""
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    if pa.types.is_time(kind):
        return at.strftime("%H:%M:%S") + fraction
    return at.isoformat() + fraction + ("+00:00" if kind.tz else "")


ENCODINGS = {
    "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    "BOOLEAN": ["PLAIN", "RLE"],
}


def write(path, r, most_rows):
    fields = [field(r, 3, f"c{i}") for i in range(r.randint(1, 5))]
    schema = pa.schema([f for f, _ in fields])
    rows = [{f.name: make(r) for f, make in fields} for _ in range(r.choice([1, 3, most_rows // 10, most_rows]))]
    table = pa.Table.from_pylist(rows, schema=schema)
    options = {
        "compression": r.choice(["none", "snappy", "gzip", "zstd"]),
        "data_page_version": r.choice(["1.0", "2.0"]),
        "data_page_size": r.choice([1, 64, 1000, 1 << 20]),
        "write_batch_size": r.choice([1, 7, 1024]),
        "row_group_size": r.choice([1 << 20, max(1, len(rows) // 3), 7]),
        "use_deprecated_int96_timestamps": False,
        "write_page_checksum": r.random() < 0.5,
        "write_statistics": r.random() < 0.5,
        "use_compliant_nested_type": r.random() < 0.7,
        "store_schema": r.random() < 0.7,
        "store_decimal_as_integer": r.random() < 0.5,
    }
    if r.random() < 0.5:
        options |= {"use_dictionary": True, "dictionary_pagesize_limit": r.choice([1, 200, 1 << 20])}
    else:
        pq.write_table(table.slice(0, 0), path, **options | {"use_dictionary": False})
        columns = pq.ParquetFile(path).schema
        options |= {"use_dictionary": False, "column_encoding": {
            columns.column(i).path: r.choice(ENCODINGS[columns.column(i).physical_type]) for i in range(len(columns))}}
    try:
        pq.write_table(table, path, **options)
    except pa.ArrowIndexError:  # pyarrow 26 on a dictionary array that holds nulls alone
        pathlib.Path(path).unlink(missing_ok=True)
        return
    with open(path.replace(".parquet", ".jsonl"), "w") as out:
        for row in rows:
            json.dump({f.name: as_json(row[f.name], f.type) for f in schema}, out, ensure_ascii=False, allow_nan=False)
            out.write("\n")


# ---- lists of two levels: Thrift's compact protocol, as far as a small file needs it ----

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


class Long(int):
    """An i64, where int is an i32."""


def thrift(fields):
    """{id: int, bytes, list, or struct}, in the order of ids."""
    out, last = b"", 0
    for i, value in fields.items():
        kind, body = element(value)
        out += bytes([(i - last) << 4 | kind]) + body
        last = i
    return out + b"\0"


def element(value):
    """Its type and bytes."""
    if isinstance(value, int):
        return 6 if isinstance(value, Long) else 5, varint(value << 1)
    if isinstance(value, bytes):
        return 8, varint(len(value)) + value
    if isinstance(value, list):
        parts = [element(v) for v in value]
        return 9, bytes([len(value) << 4 | (parts[0][0] if parts else 12)]) + b"".join(body for _, body in parts)
    return 12, thrift(value)


def levels(runs, most):
    """Runs of (count, level)."""
    body = b"".join(varint(count << 1) + bytes([level]) for count, level in runs)
    return struct.pack("<I", len(body)) + body if most else b""


def page(rep, def_, values, most_rep, most_def, **head):
    """An uncompressed page of version 1, PLAIN, and how many values, nulls too, it has."""
    rep, def_ = ([run if isinstance(run, tuple) else (1, run) for run in runs] for runs in (rep, def_))
    count = sum(n for n, _ in def_)
    body = levels(rep, most_rep) + levels(def_, most_def)
    body += b"".join(struct.pack("<I", len(v)) + v if isinstance(v, bytes) else struct.pack("<i", v) for v in values)
    bytes_ = head.get("bytes", len(body))
    return thrift({1: 0, 2: bytes_, 3: len(body), 5: {1: count, 2: 0, 3: head.get("level_encoding", 3), 4: 3}}) + body, count


def hand_made(path, schema, columns, rows, said=None, file={}, chunk={}, metadata={}):
    """A file of one row group; columns are (type, page). `said`: rows in the footer; the rest are more fields."""
    body, chunks = b"PAR1", []
    for kind, (data, count) in columns:
        at, size = Long(len(body)), Long(len(data))
        chunks.append(dict(sorted(({2: at, 3: {
            1: kind, 2: [0, 3], 3: [b"x"], 4: 0, 5: Long(count), 6: size, 7: size, 9: at} | metadata} | chunk).items())))
        body += data
    footer = thrift({1: 1, 2: schema, 3: Long(said or rows), 4: [{1: chunks, 2: Long(len(body)), 3: Long(rows)}]} | file)
    with open(path, "wb") as out:
        out.write(body + footer + struct.pack("<I", len(footer)) + b"PAR1")


def old_lists(path):
    """numbers: repeated without annotation; tags: a list of two levels; chat: one whose repeated group, "array", is the
    element; pairs: one named <list>_tuple."""
    schema = [
        {4: b"schema", 5: 4},
        {1: 1, 3: 2, 4: b"numbers"},
        {3: 1, 4: b"tags", 5: 1, 6: 3}, {1: 6, 3: 2, 4: b"element", 6: 0},
        {3: 0, 4: b"chat", 5: 1, 6: 3}, {3: 2, 4: b"array", 5: 2}, {1: 6, 3: 0, 4: b"role", 6: 0}, {1: 6, 3: 1, 4: b"content", 6: 0},
        {3: 1, 4: b"pairs", 5: 1, 6: 3}, {3: 2, 4: b"pairs_tuple", 5: 1}, {1: 1, 3: 0, 4: b"only"},
    ]
    hand_made(path, schema, [
        (1, page([0, 0, 1, 0], [0, 1, 1, 1], [1, 2, 3], 1, 1)),
        (6, page([0, 1, 0, 0], [2, 2, 0, 1], [b"a", b"b"], 1, 2)),
        (6, page([0, 1, 0, 0], [1, 1, 0, 1], [b"user", b"assistant", b"user"], 1, 1)),
        (6, page([0, 1, 0, 0], [2, 1, 0, 2], [b"hi", b""], 1, 2)),
        (1, page([0, 0, 0, 1], [0, 1, 2, 2], [7, 8], 1, 2)),
    ], 3)
    with open(path.replace(".parquet", ".jsonl"), "w") as out:
        for row in pq.read_table(path).to_pylist():
            out.write(json.dumps(row) + "\n")


def refused(where):
    """Files that are whole, or nearly, and not read: tests/table/test_parquet.c says why."""
    def write_one(name, column, kind, **options):
        pq.write_table(pa.table({"a": pa.array(column, kind)}), f"{where}/refused_{name}.parquet", **options | {
            "store_schema": False, "write_statistics": False, "use_dictionary": False})

    def make(name, nodes, pages, rows, children=1, **more):
        hand_made(f"{where}/refused_{name}.parquet", [{4: b"schema", 5: children}, *nodes], pages, rows, **more)

    write_one("brotli", ["x"], pa.string(), compression="brotli")
    write_one("lz4", ["x"], pa.string(), compression="lz4")
    write_one("bytes", [b"x", b"\xff\xd8\xff"], pa.binary())
    write_one("zero", ["x", "a\0"], pa.string())
    write_one("unsigned", [1, 2**63], pa.uint64())
    write_one("map", [[(1, "x")]], pa.map_(pa.int32(), pa.string()))
    write_one("map_twice", [[("k", "x"), ("k", "y")]], pa.map_(pa.string(), pa.string()))
    number, text_ = [{1: 1, 3: 1, 4: b"a"}], [{1: 6, 3: 0, 4: b"a", 6: 0}]
    one = (1, page([], [1], [7], 0, 1))
    make("interval", [{1: 7, 2: 12, 3: 0, 4: b"a", 6: 21}], [], 0)
    make("rows", number, [one], 1, said=2)
    make("encrypted", number, [one], 1, chunk={8: {1: {}}})
    make("encrypted_file", number, [one], 1, file={8: {1: {}}})
    make("elsewhere", number, [one], 1, chunk={1: b"other.parquet"})
    make("bit_packed", number, [(1, page([], [1], [7], 0, 1, level_encoding=4))], 1)
    make("large_page", text_, [(6, page([], [(1, 0)], [b"x"], 0, 0, bytes=300 << 20))], 1)
    make("short_page", text_, [(6, page([], [(2, 0)], [b"x"], 0, 0))], 2)
    make("few_values", number, [one], 2)
    make("many_values", number, [(1, page([], [1, 1], [7, 8], 0, 1))], 1)
    make("long_row", [{3: 1, 4: b"a", 5: 1, 6: 3}, {3: 2, 4: b"list", 5: 1}, {1: 1, 3: 1, 4: b"element"}],
         [(1, page([0, (1 << 30, 1)], [((1 << 30) + 1, 2)], [], 1, 3))], 1)  # of nulls
    make("disagree", [{3: 1, 4: b"a", 5: 2}, {1: 1, 3: 0, 4: b"b"}, {1: 1, 3: 0, 4: b"c"}],
         [(1, page([], [1, 0], [7], 0, 1)), (1, page([], [1, 1], [7, 8], 0, 1))], 2)
    make("twice", [*number, *number], [one, one], 1, children=2)


def main():
    golden = len(sys.argv) == 1
    where, count, seed = ("tests/golden/tables", 40, SEED) if golden else \
        (sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else SEED)
    os.makedirs(where, exist_ok=True)
    for i in range(count):
        write(f"{where}/random_{i:03}.parquet", random.Random(seed + i), 20 if golden else 400)
    if golden:
        old_lists(f"{where}/old_lists.parquet")
        refused(where)


if __name__ == "__main__":
    main()
