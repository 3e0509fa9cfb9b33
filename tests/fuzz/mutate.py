"""Broken files from good ones: the one library of mutations, for every format.

A mutation takes bytes and a source of chance, so that an input is known by the numbers
it was drawn from, and can be made again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

LONGEST = 2_000_000
"""Bytes of an input: above the limit of specs, far below what a fuzz has time for."""

NUMBERS = (
    "1e-320", "1e400", "-1e400", "1e308", "1e-300", "9" * 30, "9" * 400, "9" * 5_000,
    "NaN", ".nan", "nan", ".inf", "-.inf", "Infinity", "-Infinity", "inf", "-1", "0",
    "-0.0", "0x_", "0x" + "f" * 40, "0b_", "010", "1:30", "1_0.5", "._", "1.2.3", "1e",
    "2147483648", "9223372036854775808", "1" + "0" * 18, "2024-99-99", "\u0663",
    "\u00b2",
)  # fmt: skip
"""What a number is replaced by."""

FRAGMENTS = (
    # YAML
    "{", "}", "[", "]", ":", ": ", "- ", "? ", "\n", "\n  ", "\t", ",", "#", "&a ",
    "*a", "!!int ", "!!set ", "!!python/name:os.system ", "!", "|", ">", "%", "@", "`",
    "'", '"', "---\n", "...\n", "<<: ", "~", "null", "yes", "true", "{}", "[]",
    "{a: 1}", "5 parsec", "GiB", "preset", "model", "nodes", "levels", "layers", "mesh",
    "min", "values", "name", "count", "key", "plan",
    # characters
    "\0", "\x85", "\u2028", "\ufeff", "\U0001f600", "\\ud800", '"\\ud800"', '"\\0"',
    "\x1b[31m", "\x1b[4m", "\r", "\x0b", "\x7f", "\u202e", "\\t", "\\n", "\u2026",
    # what tools print
    "  ", "[0-9]", "[0-999999999]", "|", "...", "GPU0", "GPU999", "GPU", "X", "NV0",
    "NV999", "SYS", "N/A", "NIC0", "<a>", "</a>", "<!DOCTYPE a>", "&lt;", "&a;",
    "<pci>", "<gpu/>", "<nic><net/></nic>", 'class="0x030200"', "XGMI", "Links=",
    "Nodes=", "====== Hops between two GPUs ======", "Switches=s0", "SwitchName=",
    "BlockSizes=8", "NodeName=", "Gres=gpu:", "Name=gpu", "Count=9G", "- topology:",
    '"S-1"[1]', "Switch 1 ", "4xHDR", "slots=", " and ", " or ", "not ", "(", ")", "-",
    "+", " % 0",
    *NUMBERS,
)  # fmt: skip

STARTS = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    b"\x7fELF\x02\x01\0", b"\x1f\x8b\x08\0", b"PK\x03\x04", b"#!/bin/sh\nset -e\n",
    b"SQLite format 3\0", b"\x89PNG\r\n\x1a\n", b"%YAML 3.0\n---\n", b"\0" * 64,
)  # fmt: skip
"""What other kinds of files begin with."""

OPENERS = (
    "[", "{", "- ", "? ", "(", "-", "not ", "<a>", '{"a":', "a.", "[a, ", "{a: ",
)  # fmt: skip

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
"""A billion values by anchors of anchors."""

Mutation = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        changed[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(changed)


def _insert(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:start] + _encoded(rng.choice(FRAGMENTS)) + data[stop:]


def _copy(data: bytes, rng: random.Random) -> bytes:
    """Put a piece of the file elsewhere in it."""
    start, stop = _span(data, rng, 40)
    at, end = _span(data, rng)
    return data[:at] + data[start:stop] + data[end:]


def _replace_number(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"(?<![\w.])-?\d[\d.]*", data))
    return _replace(data, found, rng.choice(NUMBERS), rng)


def _replace_word(data: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"[\w.-]+", data))
    word = rng.choice([*FRAGMENTS, *NUMBERS])
    if found and rng.random() < 0.5:
        word = rng.choice(found)[0].decode("latin-1")
    return _replace(data, found, word, rng)


def _replace(
    data: bytes, found: Sequence[re.Match[bytes]], word: str, rng: random.Random
) -> bytes:
    if not found:
        return data + _encoded(word)
    one = rng.choice(found)
    return data[: one.start()] + _encoded(word) + data[one.end() :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeat_line(data: bytes, rng: random.Random) -> bytes:
    """Double a line, which doubles its key."""
    lines = data.splitlines(keepends=True) or [b""]
    index = rng.randrange(len(lines))
    return b"".join((*lines[: index + 1], lines[index], *lines[index + 1 :]))


def _swap_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def _drop_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def _start(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(STARTS) + data


def _encode(data: bytes, rng: random.Random) -> bytes:
    encoding = rng.choice(["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"])
    return data.decode("utf-8", "replace").encode(encoding, "replace")


def _end_lines(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\0", b" ", b"\x0b"]))


def _nest(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    deep = rng.choice(OPENERS) * rng.choice([30, 300, 3_000, 40_000])
    return data[:start] + deep.encode() + data[stop:]


def _indent(data: bytes, rng: random.Random) -> bytes:
    """Add mappings in mappings, a line each."""
    depth = rng.choice([30, 300, 1_000])
    return data + b"\n" + b"".join(b" " * i + b"a:\n" for i in range(depth))


def _lengthen(data: bytes, rng: random.Random) -> bytes:
    """Repeat a piece within its line."""
    start, stop = _span(data, rng, 20)
    return data[:start] + data[start:stop] * rng.choice([99, 9_999]) + data[stop:]


def _many_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b"\n"]
    index = rng.randrange(len(lines))
    lines[index] *= rng.choice([20, 500, 20_000])
    return b"".join(lines)


def _numbered_lines(data: bytes, rng: random.Random) -> bytes:
    """Repeat a line with a number of its own in place of each number."""
    lines = data.splitlines(keepends=True) or [b"\n"]
    index, count = rng.randrange(len(lines)), rng.choice([20, 500, 5_000])
    found = [re.sub(rb"\d+", b"%d" % i, lines[index][:500]) for i in range(count)]
    return b"".join((*lines[:index], *found, *lines[index:]))


def _bomb(data: bytes, rng: random.Random) -> bytes:
    return BOMB.encode() + data if rng.random() < 0.5 else data + BOMB.encode()


def _noise(_data: bytes, rng: random.Random) -> bytes:
    """Return fragments alone."""
    return b"".join(_encoded(rng.choice(FRAGMENTS)) for _ in range(rng.randrange(30)))


SMALL: tuple[Mutation, ...] = (
    _flip, _insert, _insert, _insert, _copy, _copy, _replace_number, _replace_number,
    _replace_word, _replace_word, _cut, _repeat_line, _swap_lines, _drop_line,
)  # fmt: skip
"""What leaves most of a file as it is, the usual ones more than once."""

LARGE: tuple[Mutation, ...] = (
    _start, _encode, _end_lines, _nest, _indent, _lengthen, _many_lines,
    _numbered_lines, _bomb, _noise,
)  # fmt: skip

LARGE_SHARE = 0.1
"""Of inputs: they take most of the time."""


def mutated(good: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the good files with a few mutations."""
    data = rng.choice(good)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(SMALL)(data, rng)
    if rng.random() < LARGE_SHARE:
        data = rng.choice(LARGE)(data, rng)
    return data[:LONGEST]


def _span(data: bytes, rng: random.Random, most: int = 4) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice([0, 0, 1, most, 40]))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
