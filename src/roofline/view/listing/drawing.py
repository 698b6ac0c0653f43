"""A drawing of one layer: boxes in ranks, with lines from who writes a tensor to who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from roofline.ir.graph import Tensor
from roofline.ops.registry import OPS
from roofline.view.listing import wording as words
from roofline.view.listing.edges import edges
from roofline.view.listing.rows import Block, Listed, Row

#: Nodes that a drawing shows at most.
MOST = 120
#: Size of a box, of the room that a passing line takes, and the gaps between them.
BOX_WIDTH, BOX_HEIGHT, LINE_WIDTH, GAP_X, GAP_Y = 204, 50, 14, 18, 34
#: Room between a frame and the boxes in it.
FRAME = 10
#: Characters that a line of a box holds.
_LETTERS = 28
#: Sweeps that put a part below the middle of those above it, and back.
_SWEEPS = 6

Point = tuple[float, float]
#: A box by its number, or the place of a line that passes a rank.
Part = int | tuple[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Box:
    """A box: its class, its upper left corner, its tooltip, its lines of text, and the index of its node, if any."""

    kind: str
    x: float
    y: float
    hint: str
    lines: tuple[str, ...]
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A line around the boxes of equal modules that are drawn once: what it says, its corner and its size."""

    text: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn: its title, its boxes, the paths between them, frames around them, and the size of it all."""

    title: str
    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: float
    height: float
    frames: tuple[Frame, ...] = ()


def drawing(listed: Listed, whole: bool = False) -> Drawing:
    """Draw the folded block that stands for most nodes; the whole program where nothing is folded.

    Args:
        listed: The program.
        whole: Draw the whole program in any case, each folded block once and with a frame.
    """
    blocks = sorted(listed.folds, key=lambda block: -block.times * len(list(block.rows())))
    title, rows = "the whole program", list(listed.rows)
    if blocks and not whole:
        title, rows = f"one of {blocks[0].times}: {blocks[0].path}", list(blocks[0].rows())
    rows = [row for row in rows if OPS[row.op].kind != "view"][:MOST]
    if len(rows) == MOST:
        title += f": the first {MOST} nodes"
    pairs, sources = _pairs(listed, rows)
    plan = layout([*sources, *(row.index for row in rows)], pairs)
    boxes = [_source(tensor, plan.at[number]) for number, tensor in sources.items()]
    boxes += [_box(row, plan.at[row.index]) for row in rows]
    frames = tuple(_frames(blocks, plan.at)) if whole else ()
    return Drawing(title, tuple(boxes), tuple(map(_path, plan.lines)), plan.width, plan.height, frames)


def _frames(blocks: Iterable[Block], at: Mapping[int, Point]) -> Iterator[Frame]:
    """Yield a frame for each folded block of which more than one box is drawn."""
    for block in blocks:
        middles = [at[row.index] for row in block.rows() if row.index in at]
        if len(middles) > 1:
            xs, ys = zip(*middles, strict=True)
            left, top = min(xs) - BOX_WIDTH / 2 - FRAME, min(ys) - BOX_HEIGHT / 2 - FRAME
            size = max(xs) - min(xs) + BOX_WIDTH + 2 * FRAME, max(ys) - min(ys) + BOX_HEIGHT + 2 * FRAME
            yield Frame(f"{block.path}, {block.times} times", left, top, *size)


def _pairs(listed: Listed, rows: Sequence[Row]) -> tuple[list[tuple[int, int]], dict[int, Tensor]]:
    """Return lines between drawn rows, views left out; what comes from outside gets a negative number."""
    drawn = {row.index for row in rows}
    views = {row.index for row in listed.rows if OPS[row.op].kind == "view"}
    above: dict[int, list[tuple[int | None, Tensor]]] = {}
    for edge in edges(listed):
        if not edge.is_to_next:
            above.setdefault(edge.target, []).append((edge.source, edge.tensor))

    def writers(index: int) -> Iterator[tuple[int | None, Tensor]]:
        """Yield who really writes what a row reads: the writers behind the views."""
        for source, tensor in above.get(index, ()):
            if source is not None and source in views and source in above:
                yield from writers(source)
            else:
                yield source, tensor

    pairs: list[tuple[int, int]] = []
    numbers: dict[str, int] = {}
    sources: dict[int, Tensor] = {}
    for row in rows:
        for source, tensor in writers(row.index):
            if source is None or source not in drawn:
                source = numbers.setdefault(tensor.name, -1 - len(numbers))
                sources[source] = tensor
            pairs.append((source, row.index))
    return pairs, sources


def _box(row: Row, at: Point) -> Box:
    last = row.name.rpartition(".")[2] or row.name
    shape = words.shape(row.outputs[0].shape) if row.outputs else ""
    cost = ", ".join(f"{words.amount(n)} {unit}" for n, unit in ((row.flops, "FLOP"), (row.bytes, "B")) if n != 0)
    hint = f"{row.name}: {row.meaning}. {row.title}, kernel {row.place}; {words.options(row.options)}"
    head = last if last == row.title else f"{last}: {row.title}"
    box = _placed("unknown" if row.unknown else OPS[row.op].kind, at, hint, head, shape, cost)
    return replace(box, index=row.index)


def _source(tensor: Tensor, at: Point) -> Box:
    name = tensor.name.rpartition(".")[2]
    return _placed("outside", at, f"{tensor.name}, {tensor.kind}", name, words.tensor(tensor), tensor.kind)


def _placed(kind: str, middle: Point, hint: str, *lines: str) -> Box:
    cut = (line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…" for line in lines)
    return Box(kind, middle[0] - BOX_WIDTH / 2, middle[1] - BOX_HEIGHT / 2, hint, tuple(cut))


def _path(points: Sequence[Point]) -> str:
    """Return a line through points in the language of SVG."""
    (x, y), *_ = points
    path = f"M{x:.0f} {y + BOX_HEIGHT / 2:.0f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        start, end = y0 + BOX_HEIGHT / 2, y1 - BOX_HEIGHT / 2
        middle = (start + end) / 2
        path += f" C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {end:.0f}"
        path += f" L{x1:.0f} {y1 + BOX_HEIGHT / 2:.0f}" if (x1, y1) != points[-1] else ""
    return path


# --- layout -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """Middles of boxes, lines as points to pass, and the size of it all."""

    at: Mapping[int, Point]
    lines: Sequence[tuple[Point, ...]]
    width: float
    height: float


def layout(nodes: Sequence[int], pairs: Iterable[tuple[int, int]]) -> Layout:
    """Place nodes in ranks, given in an order in which every line points onwards.

    Args:
        nodes: Their numbers, in order.
        pairs: Lines between them.

    Example:
        >>> plan = layout([1, 2, 3], [(1, 2), (2, 3), (1, 3)])
        >>> [plan.at[node][1] for node in (1, 2, 3)], len(plan.lines[2])
        ([25.0, 109.0, 193.0], 3)
    """
    pairs = list(dict.fromkeys(pairs))
    ranks = _ranks(nodes, pairs)
    levels: list[list[Part]] = [[] for _ in range(max(ranks.values(), default=0) + 1)]
    for node in nodes:
        levels[ranks[node]].append(node)
    chains: list[list[Part]] = []
    for pair in pairs:
        between: list[Part] = [(pair, rank) for rank in range(ranks[pair[0]] + 1, ranks[pair[1]])]
        for rank, part in enumerate(between, ranks[pair[0]] + 1):
            levels[rank].append(part)
        chains.append([pair[0], *between, pair[1]])
    _order(levels, chains)
    places, width = _places(levels)
    lines = [tuple(places[part] for part in chain) for chain in chains]
    return Layout({node: places[node] for node in nodes}, lines, width, len(levels) * (BOX_HEIGHT + GAP_Y) - GAP_Y)


def _ranks(nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the length of the longest way to each node."""
    above: dict[int, list[int]] = {}
    for source, target in pairs:
        above.setdefault(target, []).append(source)
    ranks: dict[int, int] = {}
    for node in nodes:
        ranks[node] = max((ranks[source] + 1 for source in above.get(node, ())), default=0)
    return ranks


def _order(levels: list[list[Part]], chains: Iterable[Sequence[Part]]) -> None:
    """Sort each rank by the middle of its neighbours in the one before it, down and up."""
    up: dict[Part, list[Part]] = {}
    down: dict[Part, list[Part]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            down.setdefault(a, []).append(b)
            up.setdefault(b, []).append(a)
    for sweep in range(_SWEEPS):
        near, step = (up, -1) if sweep % 2 == 0 else (down, 1)
        order = range(1, len(levels)) if step < 0 else range(len(levels) - 2, -1, -1)
        for rank in order:
            position = {part: at / len(levels[rank + step]) for at, part in enumerate(levels[rank + step])}
            middles = {}
            for at, part in enumerate(levels[rank]):
                neighbours = [position[other] for other in near.get(part, ())]
                middles[part] = sum(neighbours) / len(neighbours) if neighbours else at / len(levels[rank])
            levels[rank].sort(key=middles.__getitem__)


def _places(levels: list[list[Part]]) -> tuple[dict[Part, Point], float]:
    """Return the middle of each part, rank by rank, and the width of the widest rank."""

    def size(part: Part) -> float:
        return BOX_WIDTH if isinstance(part, int) else LINE_WIDTH

    widths = [sum(map(size, level)) + GAP_X * (len(level) - 1) for level in levels]
    width = max(widths, default=0.0)
    places: dict[Part, Point] = {}
    for rank, level in enumerate(levels):
        x = (width - widths[rank]) / 2
        for part in level:
            places[part] = (x + size(part) / 2, rank * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2)
            x += size(part) + GAP_X
    return places, width
