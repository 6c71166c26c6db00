"""Ways to damage a file: any bytes, JSON by its structure, a database by its cells, an archive from inside."""

from __future__ import annotations

import copy
import io
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.checkpoints.test_fuzz import ANYWHERE, edit_header, header_length, overlap_offsets, pick, swap_offsets

Random = np.random.Generator
Mutation = Callable[[Random, bytes], bytes]
DEEP = b"[" * 60_000 + b"]" * 60_000
STRANGE: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**31,
    2**63,
    10**30,
    -(10**30),
    0.5,
    -0.0,
    1e308,
    -1e-308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "é",
    "\0",
    "../../etc/passwd",
    "/etc/passwd",
    "<script>alert(1)</script>",
    "</script>",
    "{{ 7*7 }}",
    "x" * 5000,
    "rope",
    "llama",
    "none",
    [],
    {},
    [[]],
    [None],
    [1, 2],
    {"a": 1},
    [1e999],
    "1e5",
    "-1",
    "NaN",
]


def json_values(random: Random, content: bytes) -> bytes:
    """One to three entries somewhere become something else, go, move or double."""
    found = json.loads(content)
    for _ in range(int(random.integers(1, 4))):
        holder, key = _somewhere(random, found)
        if holder is None:
            break
        draw = random.random()
        if draw < 0.2:
            del holder[key]
        elif draw < 0.3 and isinstance(holder, list):
            holder.insert(int(key), copy.deepcopy(holder[key]))
        elif draw < 0.4:
            other, at = _somewhere(random, found)
            if other is not None and key in (holder if isinstance(holder, dict) else range(len(holder))):
                holder[key] = copy.deepcopy(other[at])
        elif draw < 0.45 and isinstance(holder, dict):
            holder[pick(random, [each for each in STRANGE if isinstance(each, str)])] = holder.pop(key)
        elif draw < 0.55 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = pick(random, [-1, 0, 2, 1000, 0.5]) * holder[key] + pick(random, [0, 1, -1])
        else:
            holder[key] = copy.deepcopy(pick(random, STRANGE))
    return json.dumps(found, ensure_ascii=bool(random.integers(2))).encode("utf-8", "surrogatepass")


def json_deep(random: Random, content: bytes) -> bytes:
    """A value is nested beyond what any recursion takes, or is a number of thousands of digits."""
    colons = [at for at, byte in enumerate(content) if byte == ord(":")]
    if not colons:
        return DEEP
    at = pick(random, colons) + 1
    return content[:at] + pick(random, [DEEP + b",", b"1" * 5000 + b",", b"NaN,", b'{"a":' * 40_000]) + content[at:]


def _somewhere(random: Random, found: Any) -> tuple[Any, Any]:
    """A container inside, and one of its keys; deep places as likely as shallow ones."""
    holder, key, inside = None, None, found
    while isinstance(inside, dict | list) and inside:
        holder = inside
        key = pick(random, list(inside)) if isinstance(inside, dict) else int(random.integers(len(inside)))
        inside = holder[key]
        if random.random() < 0.25:
            break
    return holder, key


def json_lines(random: Random, content: bytes) -> bytes:
    """One line of a journal is damaged, doubled, taken out or moved."""
    lines = content.splitlines(keepends=True)
    at = int(random.integers(len(lines)))
    draw = random.random()
    if draw < 0.5:
        lines[at] = json_values(random, lines[at]) + b"\n"
    elif draw < 0.6:
        lines[at] = json_deep(random, lines[at].rstrip()) + b"\n"
    elif draw < 0.8:
        lines.insert(int(random.integers(len(lines))), lines.pop(at))
    else:
        del lines[at]
    return b"".join(lines)


def database_cells(random: Random, content: bytes) -> bytes:
    """A cell of the runs' table holds what no run would write."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(content)
        base = sqlite3.connect(file.name, isolation_level=None)
        try:
            base.execute("PRAGMA ignore_check_constraints = 1")
            column = pick(
                random, ["key", "kind", "config", "status", "owner", "heartbeat", "summary", "words", "created"]
            )
            value = pick(
                random,
                [
                    None,
                    7,
                    1.5,
                    b"\xff\xfe",
                    "",
                    "{",
                    "[]",
                    "null",
                    "\ud7ff",
                    DEEP.decode(),
                    "../out",
                    "x" * 9999,
                    "{}",
                    '{"accuracy": []}',
                    '{"task": {}, "seed": "a"}',
                ],
            )
            row = int(random.integers(1, 5))
            base.execute(f"UPDATE runs SET {column} = ? WHERE rowid = ?", (value, row))
        except sqlite3.Error:
            pass
        finally:
            base.close()
        return Path(file.name).read_bytes()


def database_schema(random: Random, content: bytes) -> bytes:
    """The table is another one."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(content)
        base = sqlite3.connect(file.name, isolation_level=None)
        try:
            base.execute(
                pick(
                    random,
                    [
                        "ALTER TABLE runs RENAME TO walks",
                        "ALTER TABLE runs ADD COLUMN more TEXT",
                        "DROP TABLE runs",
                        "ALTER TABLE runs DROP COLUMN words",
                        "PRAGMA user_version = -1",
                        "PRAGMA user_version = 0",
                        "PRAGMA user_version = 2147483647",
                        "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM runs; END",
                        "ALTER TABLE runs RENAME COLUMN status TO state",
                    ],
                )
            )
        finally:
            base.close()
        return Path(file.name).read_bytes()


def inside_archive(inner: Mutation) -> Mutation:
    """One member of a zip archive is damaged, and its checksum made right again."""

    def mutate(random: Random, content: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(out, "w") as made:
            members = archive.infolist()
            chosen = pick(random, members).filename
            for member in members:
                data = archive.read(member)
                if member.filename == chosen:
                    if random.random() < 0.1:
                        continue
                    data = inner(random, data or b"\0")
                made.writestr(member.filename, data, member.compress_type)
        return out.getvalue()

    return mutate


def anything(random: Random, content: bytes) -> bytes:
    return pick(random, ANYWHERE)(random, content or b"\0")


def long_number(random: Random, content: bytes) -> bytes:
    """A number somewhere gets more digits than any."""
    at = int(random.integers(len(content) + 1))
    return (
        content[:at] + pick(random, [b"9" * 12, b"9" * 20, b"1" * 5000, b"-", b"1e400", b"\xd9\xa3"]) + content[at:]
    )


BYTES: tuple[Mutation, ...] = tuple(ANYWHERE)
JSON: tuple[Mutation, ...] = (*[json_values] * 8, json_deep, anything, anything)
SAFETENSORS: tuple[Mutation, ...] = (
    *ANYWHERE,
    header_length,
    edit_header,
    edit_header,
    swap_offsets,
    overlap_offsets,
)
ARCHIVE: tuple[Mutation, ...] = (*ANYWHERE, *[inside_archive(anything)] * 6)
WORDS: tuple[Mutation, ...] = (*ANYWHERE, *[long_number] * 4)
JOURNAL: tuple[Mutation, ...] = (*[json_lines] * 5, anything)
DATABASE: tuple[Mutation, ...] = (*ANYWHERE, *[database_cells] * 8, database_schema)


def damaged(random: Random, content: bytes, mutations: tuple[Mutation, ...]) -> bytes:
    """The content after one or two mutations; the second may not understand what the first one left."""
    for _ in range(1 if random.random() < 0.7 else 2):
        try:
            content = pick(random, mutations)(random, content or b"\0")
        except Exception:  # noqa: BLE001 - whatever a mutation stumbles over, the content is as it was
            continue
    return content
