"""A listing as text: a tree of modules with their sums, for terminals, files and ``print``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from roofline.ir.graph import Tensor
from roofline.ir.report import size_words, subject
from roofline.view.listing import wording as words
from roofline.view.listing.rows import Item, Listed, Row

#: Columns of a line where nobody says otherwise.
WIDTH = 80
#: From this many columns on, inputs and options are shown too.
WIDE = 130
_GAP = "  "
#: Columns that an indented text keeps, however deep it stands.
_LEAST = 8
#: Columns of numbers, which stand to the right.
_NUMBERS = frozenset({"FLOP", "vector", "bytes", "runs", "FLOP/B"})
#: Pieces that stay together: up to the next blank, dot or underscore.
_PIECES = re.compile(r"[^\s._]+[._]*\s*|[._]+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text and how it is marked: ``head``, ``module``, ``unknown``, ``dim`` or nothing."""

    text: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row of a table of text before it is laid out; ``below`` goes over the whole width."""

    cells: Sequence[str]
    mark: str = ""
    indent: int = 0
    below: str = ""


def text(listed: Listed, width: int = WIDTH) -> str:
    """Return the whole listing, at most ``width`` columns wide."""
    return "\n".join(line.text for line in lines(listed, width))


def lines(listed: Listed, width: int = WIDTH) -> list[Line]:
    """Return the lines of a listing, with their marks."""
    width = max(width, 40)
    style = _Style(width >= WIDE, bool(listed.symbols) and width < WIDE, listed.dtype)
    return [
        *_wrapped(heading(listed), width, "head"),
        *_wrapped(subheading(listed), width),
        Line(""),
        *_laid_out(style.head, list(_entries(listed.items, 0, style)), width),
        Line(""),
        *totals(listed, width),
        Line(""),
        *_kernels(listed, width),
        Line(""),
        *_legend(listed, width),
    ]


def heading(listed: Listed) -> str:
    """Name the program and its sizes."""
    return ", ".join([words.safe(listed.graph.name), *size_words(subject(listed.graph, sizes=listed.sizes))])


def subheading(listed: Listed) -> str:
    """Count nodes, kernels and parameters; name the sizes that are open."""
    graph = listed.graph
    shown = f" ({len(listed.rows):,} shown)" if len(listed.rows) < len(graph.nodes) else ""
    parameters = words.amount(graph.parameters)
    sizes = f"; without a value: {', '.join(map(words.safe, listed.symbols))}" if listed.symbols else ""
    dtype = f"; {listed.dtype} where nothing is said" if listed.dtype else ""
    made = f"{len(graph.nodes):,} nodes{shown}, {listed.counts.launches:,} kernels, {parameters} parameters"
    return f"{made}{dtype}{sizes}"


def sums(listed: Listed) -> list[tuple[str, str]]:
    """Return the sums of everything, with all digits."""
    counts = listed.counts
    return [
        ("FLOPs", words.exact(counts.flops)),
        ("vector FLOPs", words.exact(counts.vector_flops)),
        ("bytes", words.exact(counts.bytes)),
        ("FLOP per byte", words.ratio(listed.intensity)),
    ]


def faults(listed: Listed) -> Iterator[str]:
    """Say what the sums lack."""
    for what, calls in listed.unknown.items():
        yield f"no rule for {words.safe(what)} ({calls:,} call{'s' * (calls > 1)}): its arithmetic is not counted"


def notes(listed: Listed) -> Iterator[str]:
    """Say how to read the rest."""
    if listed.folds:
        times = listed.folds[0].times
        yield f"x{times} stands for {times} equal ones: the lines below it count one, the sum above it counts all."
    yield (
        "FLOP: contractions, two per multiply-add. vector: all other arithmetic. bytes: what crosses the boundary of "
        "the kernel, at the node that first reads or that writes it. kernel: its number below, and the step in it; "
        "- moves nothing."
    )


# --- tables of text ---------------------------------------------------------------------------------------------------


def _wrapped(text: str, width: int, mark: str = "", indent: int = 0) -> list[Line]:
    return [Line(line, mark) for line in folded(text, width, 0, indent)]


def _laid_out(head: Sequence[str], entries: Sequence[_Entry], width: int) -> Iterator[Line]:
    """Lay rows out in columns, numbers to the right; what does not fit goes on in the next line."""
    rows = [_Entry(head, "head"), *entries]
    widths = [max(len(row.cells[at]) + (row.indent if not at else 0) for row in rows) for at in range(len(head))]
    # Take from the widest column, one character after the other, until all fit.
    for _ in range(max(0, sum(widths) - (width - len(_GAP) * (len(head) - 1)))):
        widths[widths.index(max(widths))] -= 1
    is_number = [name in _NUMBERS for name in head]
    for row in rows:
        cells = [
            folded(cell, size, row.indent if not at else 0, 0 if is_number[at] else 2)
            for at, (cell, size) in enumerate(zip(row.cells, widths, strict=True))
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            aligned = [
                part.rjust(size) if right else part.ljust(size)
                for part, size, right in zip(parts, widths, is_number, strict=True)
            ]
            yield Line(_GAP.join(aligned).rstrip(), row.mark)
        if row.below:
            yield from (Line(line, row.mark) for line in folded(row.below, width, min(row.indent + 4, width // 2), 2))


def folded(text: str, width: int, indent: int, hanging: int) -> list[str]:
    """Return text in lines of ``width``: broken at blanks, else after a dot or an underscore, else anywhere."""
    indent = max(0, min(indent, width - _LEAST))
    lines, line = [], " " * indent
    deeper = " " * max(0, min(indent + hanging, width - _LEAST))
    for piece in _PIECES.findall(text):
        if len(line) + len(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line, piece = deeper, piece.lstrip()
        while len(line) + len(piece.rstrip()) > width:
            room = width - len(line)
            lines.append(line + piece[:room])
            line, piece = deeper, piece[room:]
        line += piece
    return [*lines, line.rstrip()]


# --- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Style:
    """What the tree shows: in a wide one inputs and options; polynomials in lines of their own in a narrow one."""

    is_wide: bool
    is_apart: bool
    dtype: str

    @property
    def head(self) -> list[str]:
        more = ["inputs", "options"] if self.is_wide else []
        numbers = [] if self.is_apart else ["FLOP", "vector", "bytes"]
        return ["node", "operation", *more, "output", *numbers, "kernel"]

    def entry(self, cells: Mapping[str, str], item: Item, indent: int, mark: str) -> _Entry:
        values = {"FLOP": item.flops, "vector": item.vector, "bytes": item.bytes}
        is_zero = {name: isinstance(value, int | float) and value == 0 for name, value in values.items()}
        amounts = {name: "" if is_zero[name] else words.amount(value) for name, value in values.items()}
        below = ", ".join(f"{value} {name}" for name, value in amounts.items() if value) if self.is_apart else ""
        shown = {**cells, **amounts}
        return _Entry([shown.get(name, "") for name in self.head], mark, indent, below)


def _entries(items: Iterable[Item], indent: int, style: _Style) -> Iterator[_Entry]:
    for item in items:
        if isinstance(item, Row):
            yield style.entry(_row(item, style), item, indent, "unknown" if item.unknown else "")
            continue
        only = item.items[0] if len(item.items) == 1 else None
        times = f"x{item.times}" if item.times > 1 else ""
        if isinstance(only, Row) and only.name == item.path:
            cells = _row(only, style) | {"node": words.safe(item.title)}
            cells["operation"] += f" {times}"
            yield style.entry(cells, item, indent, "unknown" if only.unknown else "")
        else:
            yield style.entry({"node": words.safe(item.title), "operation": times}, item, indent, "module")
            yield from _entries(item.items, indent + 2, style)


def _row(row: Row, style: _Style) -> dict[str, str]:
    times = f" x{row.launches}" if row.launches > 1 else ""
    return {
        "node": words.safe(row.name.rpartition(".")[2]) or "(no name)",
        "operation": words.safe(row.title) + times,
        "inputs": " ".join(
            ("" if t.kind == "activation" else f"{t.kind} ") + tensor_text(t, style.dtype) for t in row.inputs
        ),
        "options": words.options(row.options),
        "output": ", ".join(tensor_text(tensor, style.dtype) for tensor in row.outputs),
        "kernel": row.place,
    }


def tensor_text(tensor: Tensor, dtype: str) -> str:
    """Return the shape, and the number format where it is not the usual one."""
    return words.shape(tensor.shape) + ("" if tensor.dtype == dtype else f" {tensor.dtype}")


def totals(listed: Listed, width: int) -> Iterator[Line]:
    """Yield the sums of everything and what is not in them."""
    yield Line("total", "head")
    for name, value in sums(listed):
        if value != "-":
            yield from _wrapped(f"  {name:<13} {value}", width, "", 16)
    for line in faults(listed):
        yield from _wrapped(f"  ! {line}", width, "unknown", 4)


def _kernels(listed: Listed, width: int) -> Iterator[Line]:
    is_apart = bool(listed.symbols) and width < WIDE
    entries = []
    for row in listed.kernels:
        about = [str(row.number), words.safe(row.name), " + ".join(map(words.safe, row.ops)), f"{row.count:,}"]
        amounts = [words.amount(value) for value in (row.flops, row.vector, row.bytes)]
        pairs = zip(amounts, ("FLOP", "vector", "bytes"), strict=True)
        below = ", ".join(f"{value} {name}" for value, name in pairs if value != "0")
        mark = "unknown" if "unknown" in row.ops else ""
        cells = about if is_apart else [*about, *amounts, words.ratio(row.intensity)]
        entries.append(_Entry(cells, mark, 0, below if is_apart else ""))
    head = [
        "kernel",
        "first called",
        "operations",
        "runs",
        *([] if is_apart else ["FLOP", "vector", "bytes", "FLOP/B"]),
    ]
    yield from _laid_out(head, entries, width)


def _legend(listed: Listed, width: int) -> Iterator[Line]:
    yield Line("operations", "head")
    size = min(max((len(op) for op in listed.meanings), default=0), width // 3)
    for op, meaning in listed.meanings.items():
        yield from _wrapped(f"  {words.safe(op):<{size}}  {words.safe(meaning)}", width, "", size + 4)
    yield Line("")
    for note in notes(listed):
        yield from _wrapped(note, width, "dim")
