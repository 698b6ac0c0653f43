"""Requests that somebody recorded: when each came, how long its prompt was, how many tokens it got.

Public traces are recognised by their columns:

- ``azure``: ``TIMESTAMP,ContextTokens,GeneratedTokens``, the time of day
  (https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.md, CC-BY);
- ``burstgpt``: ``Timestamp`` in seconds, ``Request tokens``, ``Response tokens``, 0 for a failure
  (https://github.com/HPMLL/BurstGPT, README, arXiv:2401.17644);
- ``mooncake``: an object of JSON on each line, ``timestamp`` in milliseconds, ``input_length``, ``output_length`` and
  ``hash_ids``, an id for each block of 512 tokens and all before it, so that equal ids are a shared prefix
  (https://github.com/kvcache-ai/Mooncake, FAST25-release/README.md; Qin et al. 2024, arXiv:2407.00079, section 4);
- ``roofline``: ``arrival`` in seconds, ``prompt``, ``output``.
"""

from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.csvfile import open_lines
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.report import Report
from roofline.ir.text import shown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Requests and ids of blocks that are read at most, and the longest prompt or answer [token].
MAX_REQUESTS, MAX_IDS, MAX_TOKENS = 10**6, 10**7, 10**7
#: Tokens of a block of Mooncake's traces.
HASHED = 512
#: Digits of a whole number at most: int() takes the square of them.
_DIGITS = 16


@dataclass(frozen=True)
class _Layout:
    """A format by its columns: arrival, prompt, output; ``seconds`` reads an arrival, ``ids`` names those of blocks."""

    name: str
    columns: tuple[str, str, str]
    seconds: Callable[[Any], float]
    ids: str = ""


def _moment(text: Any) -> float:
    """Seconds of a time of day; one without a zone counts as UTC, since only differences matter."""
    time = datetime.fromisoformat(str(text).strip())
    return (time.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()


_TABLES = (
    _Layout("roofline", ("arrival", "prompt", "output"), float),
    _Layout("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _moment),
    _Layout("burstgpt", ("Timestamp", "Request tokens", "Response tokens"), float),
)
_OBJECTS = _Layout("mooncake", ("timestamp", "input_length", "output_length"), lambda ms: float(ms) / 1e3, "hash_ids")


@dataclass(frozen=True, repr=False, eq=False)
class RequestTrace(Report):
    """Requests in the order of their arrival, as from :func:`roofline.serving.read_requests`.

    Attributes:
        name: Of the file, or what the requests are.
        format: One of ``roofline``, ``azure``, ``burstgpt`` and ``mooncake``.
        arrival: After the first of them [s].
        prompt: Tokens of each.
        output: New tokens of each.
        ids: Ids of the prompts' blocks, one request after the other; equal ids are equal prefixes. Empty where unknown.
        ends: Where the ids of each request end.
        block: Tokens of such a block.
        skipped: Requests without a prompt or an answer, which are left out.
    """

    schema = "request_trace"

    name: str
    format: str
    arrival: Floats
    prompt: Ints
    output: Ints
    ids: Ints
    ends: Ints
    block: int = HASHED
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def duration(self) -> float:
        """From the first arrival to the last [s]."""
        return float(self.arrival[-1])

    @property
    def qps(self) -> float | None:
        """Requests a second; ``None`` where all come at once."""
        return (len(self) - 1) / self.duration if self.duration else None

    def blocks(self) -> Iterator[list[int]]:
        """Yield the ids of the blocks of each request, none where they are unknown."""
        start = 0
        for end in self.ends.tolist():
            yield self.ids[start:end].tolist()
            start = end

    def at_rate(self, qps: float) -> RequestTrace:
        """Return the same requests in the same rhythm at another mean rate.

        Raises:
            UsageError: No rate above zero, or requests that all come at once.
        """
        rate = finite_number("qps", qps, 0, above=True)
        if self.qps is None:
            raise UsageError(f"{self.name}: all requests come at once, so they have no rate to change")
        return replace(self, arrival=self.arrival * (self.qps / rate))

    def head(self, requests: int) -> RequestTrace:
        """Return the first requests.

        Raises:
            UsageError: Not one.
        """
        count = whole_number("requests", min(requests, len(self)))
        ends = self.ends[:count]
        first = {name: getattr(self, name)[:count] for name in ("arrival", "prompt", "output")}
        return replace(self, **first, ids=self.ids[: ends[-1]], ends=ends)

    def subject(self) -> dict[str, Any]:
        """Return where they come from."""
        return {"trace": self.name, "format": self.format}

    def summary(self) -> dict[str, Any]:
        """Return how many there are, how fast they come, and how long they are."""
        lengths = {
            f"{name}_p{part}": float(np.percentile(getattr(self, name), part))
            for name in ("prompt", "output") for part in (50, 90, 99)
        }  # fmt: skip
        return {
            "requests": len(self), "skipped": self.skipped, "duration_s": self.duration, "qps": self.qps,
            "prompt_mean": float(self.prompt.mean()), "output_mean": float(self.output.mean()), **lengths,
            "block": self.block if len(self.ids) else None, "block_ids": len(self.ids),
            "distinct_block_ids": len(np.unique(self.ids)),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per request."""
        counts = np.diff(self.ends, prepend=0)
        columns = {"arrival_s": self.arrival, "prompt": self.prompt, "output": self.output, "blocks": counts}
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def __repr__(self) -> str:
        rate = f", {self.qps:.3g} a second" if self.qps is not None else ""
        return (f"<RequestTrace {self.name}: {len(self):,} requests{rate}, prompts of {self.prompt.mean():,.0f} and "
                f"answers of {self.output.mean():,.0f} tokens in the mean>")  # fmt: skip


def read_requests(source: str | os.PathLike[str], *, requests: int | None = None, block: int = HASHED) -> RequestTrace:
    """Read a trace of requests: CSV of arrival [s], prompt and output, or a public format.

    Of a file of 16 million rows no more is read than ``requests`` of them.

    Args:
        source: A file: ``arrival,prompt,output``, the Azure LLM inference traces of 2023 and 2024, BurstGPT, or
            Mooncake's lines of JSON; ``-`` for the standard input.
        requests: The first so many; all by default, of which there may be a million.
        block: Tokens of a block of ``hash_ids``.

    Returns:
        The requests in the order of their arrival.

    Raises:
        UsageError: No such file, unknown columns, or a row that is none (names its line).

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "requests.csv")
        ...     _ = file.write_text("arrival,prompt,output\\n0,1000,20\\n0.5,3000,100\\n")
        ...     trace = read_requests(file)
        >>> trace.qps, trace.prompt.tolist()
        (2.0, [1000, 3000])
    """
    requests = None if requests is None else whole_number("requests", requests, 1, MAX_REQUESTS)
    block = whole_number("block", block, 1, 2**20)
    with open_lines(source) as (name, lines):
        layout, rows = _rows(name, lines)
        read, skipped = _read(name, layout, rows, requests, block)
    if not read.arrival:
        raise UsageError(f"{name}: no requests{f', only {skipped:,} without prompt or answer' if skipped else ''}")
    return _sorted(name, layout.name, read, skipped, block)


def made_requests(
    arrival: Sequence[float] | Floats, prompt: Any, output: Any, *, name: str = "requests",
    ids: Sequence[Sequence[int]] = (), block: int = HASHED,
) -> RequestTrace:  # fmt: skip
    """Make a trace of requests from numbers.

    Args:
        arrival: Of each [s].
        prompt: Tokens of each, or of all.
        output: New tokens of each, or of all.
        name: What they are.
        ids: Ids of the blocks of each prompt, where prefixes are shared.
        block: Tokens of such a block.

    Returns:
        The requests in the order of their arrival.

    Raises:
        UsageError: No requests, or lengths that do not go together.

    Example:
        >>> made_requests([0.0, 1.0], 1000, [20, 30]).qps
        1.0
    """
    times = np.asarray(arrival, dtype=np.float64)
    if not times.size or times.ndim != 1 or not np.isfinite(times).all():
        raise UsageError("arrival: expected a sequence of times, one for each request")
    read = _Read()
    try:
        prompts, outputs = (np.broadcast_to(np.asarray(each), times.shape).tolist() for each in (prompt, output))
    except ValueError:
        raise UsageError(f"prompt, output: expected one number, or one for each of {times.size} requests") from None
    shared = list(ids) or [()] * times.size
    if len(shared) != times.size:
        raise UsageError(f"ids: {len(shared)} lists for {times.size} requests")
    for time, tokens, new, blocks in zip(times.tolist(), prompts, outputs, shared, strict=True):
        lengths = whole_number("prompt", tokens, 1, MAX_TOKENS), whole_number("output", new, 1, MAX_TOKENS)
        read.add(time, *lengths, blocks)
    return _sorted(name, "roofline", read, 0, whole_number("block", block, 1, 2**20))


class _Read:
    """Requests as they are read, in arrays that take 8 bytes a number."""

    def __init__(self) -> None:
        self.arrival, self.prompt, self.output = array("d"), array("q"), array("q")
        self.ids, self.ends = array("q"), array("q")

    def add(self, arrival: float, prompt: int, output: int, ids: Sequence[int]) -> None:
        self.arrival.append(arrival)
        self.prompt.append(prompt)
        self.output.append(output)
        self.ids.extend(ids)
        self.ends.append(len(self.ids))


def _rows(name: str, lines: Iterator[tuple[int, str]]) -> tuple[_Layout, Iterator[tuple[int, Any]]]:
    """Tell the format by the first line, and return each row with its line: a dictionary, or the fault of it."""
    number, first = next(lines, (1, ""))
    if first.lstrip().startswith("{"):
        return _OBJECTS, ((at, _parsed((), line)) for at, line in chain([(number, first)], lines))
    columns = [cell.strip() for cell in next(csv.reader([first]), [])]
    for table in _TABLES:
        if set(table.columns) <= set(columns):
            return table, ((at, _parsed(columns, line)) for at, line in lines)
    known = "; ".join(", ".join(layout.columns) for layout in (*_TABLES, _OBJECTS))
    words = [column for layout in _TABLES for column in layout.columns]
    near = next((hint for column in columns if (hint := did_you_mean(column, words))), "")
    raise UsageError(f"{name}: no trace of requests; expected the columns {known} (JSON); it has "
                     f"{', '.join(columns)[:200] or 'none'}{near}")  # fmt: skip


def _parsed(columns: Sequence[str], line: str) -> Any:
    """Return a row, of JSON where there are no columns; nothing where it is none."""
    try:
        return dict(zip(columns, next(csv.reader([line])), strict=False)) if columns else json.loads(line)
    except (ValueError, RecursionError, csv.Error):
        return {} if columns else None


def _read(
    name: str, layout: _Layout, rows: Iterator[tuple[int, Any]], requests: int | None, block: int
) -> tuple[_Read, int]:  # fmt: skip
    """Read rows until there are so many requests, or all; return how many have no prompt or answer, too.

    Raises:
        UsageError: A row that is no request, or more than may be read.
    """
    read, skipped = _Read(), 0
    for number, row in rows:
        if len(read.arrival) == requests:
            break
        if len(read.arrival) == MAX_REQUESTS:
            raise UsageError(f"{name}: more than {MAX_REQUESTS:,} requests; give how many of the first are to be read "
                             f"(--requests 100000, requests=100000)")  # fmt: skip
        try:
            arrival, prompt, output, ids = _request(layout, row, block)
        except UsageError as problem:
            raise UsageError(f"{name}, line {number}: {problem}") from None
        if prompt and output:
            read.add(arrival, prompt, output, ids)
        else:
            skipped += 1
        if len(read.ids) > MAX_IDS:
            raise UsageError(f"{name}, line {number}: more than {MAX_IDS:,} ids of blocks; read fewer requests")
    return read, skipped


def _request(layout: _Layout, row: Any, block: int) -> tuple[float, int, int, Sequence[int]]:
    """Return arrival, prompt, output and ids of a row.

    Raises:
        UsageError: It is no request.
    """
    if not isinstance(row, dict):
        raise UsageError("not an object of JSON")
    if missing := [column for column in layout.columns if row.get(column) is None]:
        raise UsageError(f"no {missing[0]}; a request of this format has {', '.join(layout.columns)}")
    arrival, prompt, output = layout.columns
    try:
        seconds = finite_number(arrival, layout.seconds(row[arrival]))
    except (ValueError, OverflowError, TypeError):
        raise UsageError(f"{arrival}={shown(row[arrival])}: not a time") from None
    tokens = _tokens(prompt, row[prompt])
    return seconds, tokens, _tokens(output, row[output]), _ids(layout.ids, row.get(layout.ids, ()), tokens, block)


def _ids(name: str, ids: Any, prompt: int, block: int) -> Sequence[int]:
    if not isinstance(ids, list | tuple) or not all(type(each) is int and abs(each) < 2**63 for each in ids):
        raise UsageError(f"{name}: expected a list of whole numbers")
    if len(ids) > (most := -(-prompt // block)):
        raise UsageError(f"{name}: {len(ids)} blocks of {block} tokens for a prompt of {prompt}; allowed: {most}")
    return ids


def _tokens(name: str, value: Any) -> int:
    text = value.strip() if isinstance(value, str) else value
    is_number = isinstance(text, str) and len(text) <= _DIGITS and text.isdecimal()
    return whole_number(name, int(text) if is_number else text, 0, MAX_TOKENS)


def _sorted(name: str, form: str, read: _Read, skipped: int, block: int) -> RequestTrace:
    """Return the requests in the order of their arrival, the first at 0 s."""
    arrival, ends = np.asarray(read.arrival), np.asarray(read.ends, dtype=np.int64)
    order = np.argsort(arrival, kind="stable")
    starts, ids = np.concatenate([[0], ends[:-1]]), np.asarray(read.ids, dtype=np.int64)
    if len(ids) and np.any(np.diff(order) < 0):
        ids = np.concatenate([ids[starts[at] : ends[at]] for at in order])
    prompt, output = (np.asarray(each, dtype=np.int64)[order] for each in (read.prompt, read.output))
    ends = np.cumsum((ends - starts)[order])
    return RequestTrace(name, form, arrival[order] - arrival.min(), prompt, output, ids, ends, block, skipped)
