"""The roofline of a trace: its operators below the roofs of the chip, drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import atan2, ceil, degrees, floor, log10, sqrt

from roofline.diagnosis.op_summary import OpSummary
from roofline.hardware.chip import Chip
from roofline.ir.errors import MissingFigure
from roofline.ir.units import format_si
from roofline.view.pages.style import text

WIDTH, HEIGHT = 1000, 520
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 16, 46
#: Radius of a dot that is all of the time, and of the smallest.
LARGEST, SMALLEST = 34.0, 3.5
#: Operators that are drawn, and that have their number beside them.
MOST, NUMBERED = 80, 10
#: Lines up and down in which a place for a label is looked for.
_STEPS = 10
#: About how wide and high a letter is.
_LETTER, _LINE = 7.4, 14.0

#: Colour of each class of operators.
_KINDS = {
    "matmul": "var(--c6)", "moe": "var(--c6)", "attention": "var(--c5)", "conv": "var(--c8)", "rowwise": "var(--c7)",
    "reduction": "var(--c7)", "pointwise": "var(--c3)",
}  # fmt: skip
_OTHER = "var(--c2)"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Frame:
    """Limits of the axes, as powers of ten."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, intensity: float) -> float:
        """Where an intensity lies."""
        return LEFT + (log10(intensity) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        """Where a rate lies."""
        return HEIGHT - BOTTOM - (log10(rate) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def roofplot(chip: Chip, ops: Sequence[OpSummary]) -> str:
    """The drawing with its legend; empty where the chip has no roofs or no operator has arithmetic."""
    drawn = [(at, line) for at, line in enumerate(ops, 1) if line.seconds > 0 and line.intensity > 0][:MOST]
    roofs = ceilings(chip, [line for _, line in drawn])
    try:
        bandwidth = chip.bandwidth
    except MissingFigure:
        return ""
    if not drawn or not roofs:
        return ""
    frame = _frame(bandwidth, roofs, [line for _, line in drawn])
    taken: list[Box] = []
    roof_parts = list(_roofs(frame, bandwidth, chip.main.name, roofs, taken))
    dots = list(_dots(frame, drawn))
    labels = list(_labels(frame, drawn, taken))
    inside = "".join([*_axes(frame), *roof_parts, *dots, *labels])
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="roofline">{inside}</svg>'
    return f"{picture}{_legend(ops, drawn)}"


def ceilings(chip: Chip, ops: Sequence[OpSummary]) -> list[tuple[str, float]]:
    """Peaks of the formats that contractions use, and of the vector units in the format of most other arithmetic.

    Args:
        chip: Where they ran.
        ops: The slowest first.

    Returns:
        Name and rate of each, the highest first; formats of the same rate are one.
    """
    contracted = [dtype for line in ops if line.flops for dtype in line.dtype.split("+")]
    other = [line.dtype for line in ops if not line.flops and line.dtype.startswith(("fp", "bf"))][:1]
    merged: dict[float, list[str]] = {}
    for dtype in dict.fromkeys(contracted):
        with suppress(MissingFigure):
            merged.setdefault(chip.matmul_peak(dtype), []).append(dtype)
    for dtype in other:
        with suppress(MissingFigure):
            merged.setdefault(chip.vector_peak(dtype), []).append(f"{dtype} vector")
    return sorted(((", ".join(names), rate) for rate, names in merged.items()), key=lambda pair: -pair[1])


def _frame(bandwidth: float, roofs: Sequence[tuple[str, float]], ops: Sequence[OpSummary]) -> Frame:
    rates = [line.arithmetic / line.seconds for line in ops] + [rate for _, rate in roofs]
    places = [line.intensity for line in ops] + [rate / bandwidth for _, rate in roofs]
    x0, x1 = floor(log10(min(places)) - 0.2), ceil(log10(max(places)) + 0.3)
    y0, y1 = floor(log10(min(rates)) - 0.2), ceil(log10(max(rates)) + 0.15)
    return Frame(x0, max(x1, x0 + 2), max(y0, y1 - 9), y1)


def _axes(frame: Frame) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for power in range(ceil(frame.x0), floor(frame.x1) + 1):
        x = frame.x(10.0**power)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" class="grid"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" class="mid soft">{10.0**power:g}</text>'
    for power in range(ceil(frame.y0), floor(frame.y1) + 1):
        y = frame.y(10.0**power)
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        words = text(format_si(10.0**power, "FLOP/s"))
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end soft">{words}</text>'
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" class="mid soft">arithmetic intensity [FLOP/byte]</text>'


def _roofs(
    frame: Frame, bandwidth: float, memory: str, roofs: Sequence[tuple[str, float]], taken: list[Box]
) -> Iterator[str]:
    """The slope of the memory up to the highest peak, and a line a peak, each with its name."""
    highest = roofs[0][1]
    start = max(10.0**frame.x0, 10.0**frame.y0 / bandwidth)
    ends = (frame.x(start), frame.y(start * bandwidth), frame.x(highest / bandwidth), frame.y(highest))
    yield _line(*ends)
    angle = f"{_degrees(ends):.1f}"
    words = text(f"{memory} {format_si(bandwidth, 'B/s')}")
    x, y = ends[0] + 0.25 * (ends[2] - ends[0]), ends[1] + 0.25 * (ends[3] - ends[1])
    yield f'<text transform="translate({x:.1f} {y - 7:.1f}) rotate({angle})" class="soft halo">{words}</text>'
    slope = (ends[3] - ends[1]) / max(ends[2] - ends[0], 1.0)
    letters = (10.0 * at for at in range(int(_LETTER * len(words) / 10)))
    taken += [(x + at, y - 24 + slope * at, x + at + 10, y + slope * at) for at in letters]
    for name, rate in roofs:
        left, y = frame.x(rate / bandwidth), frame.y(rate)
        yield _line(left, y, WIDTH - RIGHT, y)
        words = f"{name} {format_si(rate, 'FLOP/s')}"
        box = _free((WIDTH - RIGHT - 4 - _LETTER * len(words), y - 6 - _LINE), words, taken, (0.0, 18.0 + _LINE))
        taken.append(box)
        yield f'<text x="{WIDTH - RIGHT - 4}" y="{box[3] - 2:.1f}" class="end halo">{text(words)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="roof"/>'


def _degrees(ends: Box) -> float:
    return degrees(atan2(ends[3] - ends[1], ends[2] - ends[0]))


def _spot(frame: Frame, line: OpSummary) -> tuple[float, float, float]:
    """Middle and radius of a dot; one below the axes lies on their edge."""
    y = min(frame.y(line.arithmetic / line.seconds), HEIGHT - BOTTOM)
    return frame.x(line.intensity), y, max(LARGEST * sqrt(line.share), SMALLEST)


def _dots(frame: Frame, drawn: Sequence[tuple[int, OpSummary]]) -> Iterator[str]:
    """Large ones first, so that small ones lie above them."""
    for at, line in drawn:
        x, y, radius = _spot(frame, line)
        paint = "var(--red)" if line.above else _KINDS.get(line.kind, _OTHER)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" class="dot" style="fill:{paint};stroke:{paint}">'
            f"<title>{text(_hint(at, line))}</title></circle>"
        )


def _hint(at: int, line: OpSummary) -> str:
    rate = format_si(line.arithmetic / line.seconds, "FLOP/s")
    return f"{at}. {line.op} {line.shapes}: {format_si(line.seconds, 's')}, {line.share:.1%} of the time, {rate}"


def _labels(frame: Frame, drawn: Sequence[tuple[int, OpSummary]], taken: list[Box]) -> Iterator[str]:
    """Names of the slowest and of those that cannot be, numbers of some more, each where nothing else stands."""
    spots = [_spot(frame, line) for _, line in drawn]
    dots = [(x - r, y - r, x + r, y + r) for x, y, r in spots]
    for index, (at, line) in enumerate(drawn):
        if index >= NUMBERED and not line.above:
            continue
        words = f"{at} {line.op.removeprefix('aten::')[:30]}" if line.above or index < NUMBERED // 2 else str(at)
        others = [*dots[:index], *dots[index + 1 :]]
        box = _beside(*spots[index], words, [*taken, *others]) or _beside(*spots[index], words, taken)
        if box is None:
            continue
        taken.append(box)
        mark = "bad strong halo" if line.above else "halo"
        yield f'<text x="{box[0]:.1f}" y="{box[3] - 3:.1f}" class="{mark}">{text(words)}</text>'


def _beside(x: float, y: float, radius: float, words: str, taken: Sequence[Box]) -> Box | None:
    """A free place near a dot: right, left, above, below, then line by line further up and down."""
    width = _LETTER * len(words)
    for step, (dx, dy) in product(range(_STEPS), ((1, 0), (-1, 0), (0, -1), (0, 1))):
        gap = radius + 3
        left = x + dx * gap - (width if dx < 0 else width / 2 if not dx else 0)
        top = y - _LINE / 2 + dy * (gap + _LINE / 2) + (-1) ** step * ((step + 1) // 2) * _LINE
        box = (left, top, left + width, top + _LINE)
        inside = box[0] >= LEFT and box[2] <= WIDTH - RIGHT and box[1] >= TOP and box[3] <= HEIGHT - BOTTOM
        if inside and not any(_meet(box, other) for other in taken):
            return box
    return None


def _free(corner: tuple[float, float], words: str, taken: Sequence[Box], step: tuple[float, float]) -> Box:
    """A box at a corner, or one step away from it where something stands there."""
    for times in range(6):
        left, top = corner[0] + times * step[0], corner[1] + times * step[1]
        box = (left, top, left + _LETTER * len(words), top + _LINE)
        if not any(_meet(box, other) for other in taken):
            return box
    return box


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(ops: Sequence[OpSummary], drawn: Sequence[tuple[int, OpSummary]]) -> str:
    shown = {line.kind if line.kind in _KINDS else "other": None for _, line in drawn}
    items = [(kind, _KINDS.get(kind, _OTHER)) for kind in shown]
    if any(line.above for _, line in drawn):
        items.append(("above the roof: wrong chip, format or cache", "var(--red)"))
    made = "".join(f'<li><i style="background:{paint}"></i>{text(word)}</li>' for word, paint in items)
    absent = sum(line.share for line in ops) - sum(line.share for _, line in drawn)
    left_out = f"Without arithmetic or without a formula, and so not drawn: {absent:.1%} of the time."
    said = f"Area: share of the time. Numbers: rows of the table below. {left_out if absent > 0.001 else ''}"
    return f'<ul class="legend">{made}</ul><p class="soft">{text(said.strip())}</p>\n'
