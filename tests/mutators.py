"""Damage of inputs for fuzz tests: bytes, JSON values and tables, the same for the same seed everywhere.

A reader is fuzzed by ``for made in mutants(json_mutated, document, 50): refused(lambda: read(made))``.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import roofline as rl

T = TypeVar("T")

#: Values that no field expects: numbers out of any range, other types, nothing, texts that are like numbers.
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**40, 10**300, 10**400, 0.5, -0.0, 1e-320, 1e308,
    -1e308, float("nan"), float("inf"), float("-inf"), "", " ", "nan", "inf", "1e400", "-5", "1__0", "0x10", "1,000.5",
    "9" * 500, "a" * 2000, "\x00", "\x1b[31m", "\ud800", "é\u202e", [], {}, [[]], [None], [[[1]]], {"a": []},
    {"": {"b": [1, 2]}}, ["x", 1, None],
)  # fmt: skip

#: Bytes that break texts where they stand.
BROKEN = (b"", b"\x00", b"\xff\xfe", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r\n", b"nan", b"-Infinity",
          b"1e999", b"9" * 400, b"-", b"\\", b"\x1b[2J", b"\xc3\x28", b"=", b"#", b";")  # fmt: skip


def mutants(mutate: Callable[[T, random.Random], T], whole: T, count: int, seed: int = 0) -> Iterator[T]:
    """Yield changed copies of an input, each with one to three changes.

    Args:
        mutate: One of the functions below.
        whole: The sound input, which is never changed itself.
        count: How many.
        seed: Of the first; each has its own, so that a failure is repeated by its number alone.
    """
    for at in range(count):
        rng = random.Random(f"{seed}/{at}")
        made = whole
        for _ in range(rng.choice((1, 1, 2, 3))):
            made = mutate(made, rng)
        yield made


def bytes_mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which a few were cut off, taken out, doubled, replaced or moved."""
    low = rng.randrange(len(data) + 1)
    high = min(low + rng.choice((0, 1, 2, 8, 64)), len(data))
    change = rng.randrange(5)
    if change == 0:
        return data[:low]
    if change == 1:
        return data[:low] + data[high:]
    if change == 2:
        return data[:high] + data[low:]
    if change == 3:
        return data[:low] + rng.choice(BROKEN) + data[high:]
    return data[:low] + rng.randbytes(high - low) + data[high:]


def json_mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value, such as a parsed TOML or a list of rows, with one part changed.

    A part is replaced by something strange, by its text or by another part, taken out, doubled, renamed or wrapped.
    """
    made = copy.deepcopy(value)
    places = list(_places(made))
    if not places:
        return rng.choice(STRANGE)
    inside, key = rng.choice(places)
    part, change = inside[key], rng.randrange(8)
    if change <= 2:
        inside[key] = rng.choice(STRANGE)
    elif change == 3:
        inside[key] = str(part)
    elif change == 4:
        other, where = rng.choice(places)
        inside[key] = copy.deepcopy(other[where])
    elif change == 5:
        del inside[key]
    elif change == 6:
        inside[key] = rng.choice(([part], {"a": part}, [part] * 3))
    elif isinstance(inside, dict):
        inside[rng.choice((f"{key}x", str(key).upper(), ""))] = inside.pop(key)
    else:
        inside.append(copy.deepcopy(part))
    return made


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what holds each part of a value, and the part's key or position in it."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def table_mutated(text: str, rng: random.Random, delimiter: str = ",") -> str:
    """Return a table of which a cell, a row or a column was changed, taken out, doubled or moved."""
    rows = [line.split(delimiter) for line in text.splitlines()]
    row = rng.randrange(len(rows))
    cell, change = rng.randrange(max(len(rows[row]), 1)), rng.randrange(7)
    if change <= 2:
        rows[row][cell : cell + 1] = [str(rng.choice(STRANGE)).replace("\ud800", "?")]
    elif change == 3:
        rows[row : row + 1] = rng.choice(([], [rows[row]] * 2, [[]]))
    elif change == 4:
        rows[row][cell : cell + 1] = rng.choice(([], [rows[row][cell]] * 2))
    elif change == 5:
        rows = [line[:cell] + line[cell + 1 :] for line in rows]
    else:
        other = rng.randrange(len(rows))
        rows[row], rows[other] = rows[other], rows[row]
    return "\n".join(map(delimiter.join, rows)) + "\n"


def refused(run: Callable[[], T], most: int = 2000) -> T | None:
    """Run something; return its result, or ``None`` where it was refused by an error of the project's own.

    Any other exception passes through and fails the test; so does a message of several lines or without an end.

    Args:
        run: What to call.
        most: Longest message.
    """
    try:
        return run()
    except rl.errors.RooflineError as error:
        message = str(error)
        assert message.strip(), "an error without a word"
        assert "\n" not in message, message
        assert len(message) <= most, f"{len(message)} characters: {message[:200]}"
        return None


def dumps(value: Any) -> str:
    """Return JSON as a careless program writes it: NaN and Infinity bare, surrogates escaped, huge numbers whole."""
    return json.dumps(value)
