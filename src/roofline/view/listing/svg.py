"""A drawing of one layer: what hands what to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from roofline.ir.graph import Tensor
from roofline.ops.registry import OPS
from roofline.view.listing import wording as words
from roofline.view.listing.edges import edges
from roofline.view.listing.layout import BOX_HEIGHT, BOX_WIDTH, Layout, Point, layout
from roofline.view.listing.rows import Block, Listed, Row

#: Nodes that a drawing shows at most.
MOST = 120
_MARGIN = 8
#: Characters that a line of a box holds.
_LETTERS = 28


def drawing(listed: Listed) -> tuple[str, str]:
    """What is drawn, in words, and the drawing as SVG."""
    title, rows = _choice(listed)
    drawn = [row for row in rows if OPS[row.op].kind != "view"][:MOST]
    if len(drawn) == MOST:
        title += f": the first {MOST} nodes"
    return title, _svg(listed, drawn)


def _choice(listed: Listed) -> tuple[str, list[Row]]:
    """The folded block that stands for most nodes; the whole program where nothing is folded."""
    blocks: Sequence[Block] = sorted(listed.folds, key=lambda block: -block.times * len(list(block.rows())))
    if not blocks:
        return "the whole program", list(listed.rows)
    return f"one of {blocks[0].times}: {words.safe(blocks[0].path)}", list(blocks[0].rows())


def _svg(listed: Listed, rows: Sequence[Row]) -> str:
    pairs, sources = _pairs(listed, rows)
    nodes = [*sources, *(row.index for row in rows)]
    found = layout(nodes, pairs)
    width, height = found.width + 2 * _MARGIN, found.height + 2 * _MARGIN
    by_index = {row.index: row for row in rows}
    boxes = [
        _box(by_index[node], found.at[node]) if node in by_index else _source(sources[node], found.at[node])
        for node in nodes
    ]
    size = f'width="{width:.0f}" height="{height:.0f}"'
    view = f'viewBox="{-_MARGIN} {-_MARGIN} {width:.0f} {height:.0f}"'
    return f'<svg {size} {view} role="img">{"".join(_paths(found))}{"".join(boxes)}</svg>'


def _pairs(listed: Listed, rows: Sequence[Row]) -> tuple[list[tuple[int, int]], dict[int, Tensor]]:
    """Lines between drawn rows, views left out; what comes from outside gets a negative number."""
    drawn = {row.index for row in rows}
    views = {row.index for row in listed.rows if OPS[row.op].kind == "view"}
    above: dict[int, list[tuple[int | None, Tensor]]] = {}
    for edge in edges(listed):
        if not edge.again:
            above.setdefault(edge.target, []).append((edge.source, edge.tensor))
    pairs: list[tuple[int, int]] = []
    numbers: dict[str, int] = {}
    sources: dict[int, Tensor] = {}
    for row in rows:
        for source, tensor in _through(above, row.index, views):
            if source is None or source not in drawn:
                source = numbers.setdefault(tensor.name, -1 - len(numbers))
                sources[source] = tensor
            pairs.append((source, row.index))
    return pairs, sources


def _through(
    above: dict[int, list[tuple[int | None, Tensor]]], index: int, views: set[int]
) -> Iterator[tuple[int | None, Tensor]]:
    """Who really hands something to a row: the writers behind the views."""
    for source, tensor in above.get(index, ()):
        if source is not None and source in views and source in above:
            yield from _through(above, source, views)
        else:
            yield source, tensor


def _paths(found: Layout) -> Iterator[str]:
    for _, _, points in found.lines:
        (x, y), *_ = points
        path = f"M{x:.0f} {y + BOX_HEIGHT / 2:.0f}"
        for (x0, y0), (x1, y1) in pairwise(points):
            start, end = y0 + BOX_HEIGHT / 2, y1 - BOX_HEIGHT / 2
            middle = (start + end) / 2
            path += f" C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {end:.0f}"
            path += f" L{x1:.0f} {y1 + BOX_HEIGHT / 2:.0f}" if (x1, y1) != points[-1] else ""
        yield f'<path class="line" d="{path}"/>'


def _box(row: Row, at: Point) -> str:
    last = row.name.rpartition(".")[2] or row.name
    shape = words.shape(row.outputs[0].shape) if row.outputs else ""
    cost = ", ".join(
        f"{words.amount(value)} {unit}" for value, unit in ((row.flops, "FLOP"), (row.bytes, "B")) if value != 0
    )
    kind = "unknown" if row.unknown else OPS[row.op].kind
    told = f"{row.name}: {row.meaning}. {row.title}, kernel {row.place}; {words.options(row.options)}"
    head = last if last == row.title else f"{last}: {row.title}"
    return _group(f"box {kind}", at, told, [head, shape, cost])


def _source(tensor: Tensor, at: Point) -> str:
    told = f"{tensor.name}, {tensor.kind}"
    return _group("box outside", at, told, [tensor.name.rpartition(".")[2], words.tensor(tensor), tensor.kind])


def _group(name: str, at: Point, told: str, lines: Sequence[str]) -> str:
    x, y = at[0] - BOX_WIDTH / 2, at[1] - BOX_HEIGHT / 2
    texts = "".join(
        f'<text x="{x + 8:.0f}" y="{y + 15 + 14 * n:.0f}" class="l{n}">{_text(_short(line))}</text>'
        for n, line in enumerate(lines)
    )
    box = f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
    return f'<g class="{_text(name)}"><title>{_text(told)}</title>{box}{texts}</g>'


def _short(line: str) -> str:
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…"


def _text(text: str) -> str:
    return escape(words.safe(text))
