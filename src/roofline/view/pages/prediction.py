"""Chapters about a prediction: what to expect at each batch, why, kernel by kernel, and where the figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from roofline.analysis.batches import SHARES, BatchChoice, best_batch, two_ridges
from roofline.analysis.estimates import Estimate
from roofline.analysis.provenance import FIGURES, pass_history
from roofline.analysis.remedies import remedies_text, would_fit
from roofline.cost import REGIME, half_width
from roofline.counting.grid import Grid, one_point
from roofline.hardware.sheet import figures_of
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.report import title
from roofline.ir.units import format_bytes, format_si
from roofline.view.charts import plot_batch, plot_layers, plot_memory, plot_passes, plot_roofline
from roofline.view.charts.marks import Panel, Rule
from roofline.view.charts.points import Window
from roofline.view.listing.wording import amount, ratio
from roofline.view.pages.moves import Cell, Moves, Picture

#: Batches of the slider where nobody names any and none is the best.
POWERS = [2**at for at in range(9)]
#: Rows of a table at most.
MOST = 200


@dataclass(frozen=True)
class Prediction:
    """An estimate at each batch of a slider.

    Attributes:
        whole: Over the batches; of one point where there is no slider.
        at: The batch at which the page opens.
        choice: The best batch and the ridge, where there is a slider and a batch fits.
    """

    whole: Estimate
    at: int = 0
    choice: BatchChoice | None = None

    @cached_property
    def points(self) -> tuple[Estimate, ...]:
        """The estimate of each batch."""
        whole = self.whole
        return tuple(whole[at] for at in range(whole.shape[0])) if whole.shape else (whole,)

    @property
    def shown(self) -> Estimate:
        """The estimate at which the page opens."""
        return self.points[self.at]

    @property
    def batches(self) -> list[int]:
        """The positions of the slider."""
        return [int(point.grid.values.get("B", 1)) for point in self.points]

    def moves(self) -> Moves:
        """Return what collects the changes from batch to batch."""
        return Moves([f"{batch:,}" for batch in self.batches], self.at)

    def cell(self, text: Callable[[Estimate], str]) -> Cell:
        """Return a figure of the whole at each batch."""
        return Cell(tuple(map(text, self.points)))


def predicted(estimate: Estimate, slider: bool = True) -> Prediction:
    """Evaluate an estimate over the batches of a slider.

    Args:
        estimate: Of one point, which is where the page opens, or over batches, which are those of the slider.
        slider: Whether there is one; a measured time belongs to one point.

    Raises:
        UsageError: It spans several chips or anything but batches.
    """
    if len(estimate.chips) != 1:
        raise UsageError(f"a report is of one chip, given {', '.join(chip.name for chip in estimate.chips)}")
    one_point([name for name in estimate.axis_names if name not in ("chip", "B")], "a report is, but for its batch, of")
    estimate = replace(estimate, many_chips=False)
    batch = estimate.grid.values.get("B")
    if batch is None or not slider:
        return Prediction(estimate)
    choice = _choice(estimate)
    if estimate.shape:
        return Prediction(estimate, 0, choice)
    looked_at = choice.shown() if choice else POWERS
    batches = sorted({int(batch), *looked_at, 2 * looked_at[-1]})  # the last shows what does not fit
    grid = Grid({**estimate.grid.values, "B": np.asarray(batches, dtype=np.float64)})
    return Prediction(replace(estimate, grid=grid), batches.index(int(batch)), choice)


def _choice(est: Estimate) -> BatchChoice | None:
    """Return the best batch; nothing where none fits or nobody knows what would."""
    sizes: dict[str, Any] = {name: size for name, size in est.grid.values.items() if name != "B"}
    run: dict[str, Any] = {"mode": est.mode, "tf32": est.tf32, "regime": est.regime, "reserve": est.reserve}
    try:
        return best_batch(est.graph, est.chip, **run, **sizes)
    except RooflineError:
        return None


# --- at a glance ------------------------------------------------------------------------------------------------------


def seconds(value: Any) -> str:
    """Return a time with its unit."""
    return format_si(float(value), "s")


def headline(est: Estimate) -> str:
    """Say the answer in a line: time, range, bound, whether it fits."""
    fits = {True: "fits", False: "does not fit", None: "capacity not published"}[est.fits]
    span = f"{seconds(est.low)} to {seconds(est.high)}"
    return f"{seconds(est.time)} ({span}), {est.bound}-bound, {format_bytes(est.memory.total)}: {fits}"


def summary(prediction: Prediction) -> list[tuple[str, Cell]]:
    """Return the figures of the whole, each with its name."""
    return [(name, prediction.cell(text)) for name, text in _SUMMARY.items()]


def _made_of(est: Estimate) -> str:
    host = f", host {seconds(est.host_time)}" if est.mode == "eager" else ""
    return f"{est.launches:,} kernel{'s' * (est.launches != 1)}: device {seconds(est.device_time)}{host}"


def _room(est: Estimate) -> str:
    capacity = est.chip.main.capacity
    if capacity is None:
        return f"{format_bytes(est.memory.total)}; the capacity of {est.chip.name} is not published"
    share = est.memory.total / capacity
    said = f"{format_bytes(est.memory.total)} of {format_bytes(capacity)} ({share:.0%}): {_FITS[bool(est.fits)]}"
    return said if est.fits else f"{said}; what would fit: {remedies_text(would_fit(est)[:1])}"


_FITS = {True: "it fits", False: "it does not fit"}
_SUMMARY: dict[str, Callable[[Estimate], str]] = {
    "time": lambda est: f"{seconds(est.time)} ({seconds(est.low)} to {seconds(est.high)})",
    "wide because of": lambda est: est.wide_because() or "nothing: the range is narrow",
    "floor": lambda est: f"{seconds(est.floor)} at the datasheet's rates, {est.floor / est.time:.0%} of the time",
    "bound": lambda est: est.bound,
    "made of": _made_of,
    "throughput": lambda est: format_si(float(est.throughput), f"{est.graph.item}/s"),
    "MFU, MBU": lambda est: f"{est.mfu:.1%}, {est.mbu:.1%}",
    "work": lambda est: (
        f"{format_si(float(est.flops), 'FLOP')}, {format_si(float(est.bytes), 'B')}, {ratio(est.intensity)} FLOP/byte"
    ),
    "memory": _room,
}  # fmt: skip


# --- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A row of the table of kernels.

    Attributes:
        name: Of the kernel.
        op: Its operator and number format.
        origin: Where its efficiency comes from.
        count: How often it runs.
        bound: What bounds it.
        figures: The other columns.
    """

    name: str
    op: str
    origin: str
    count: int
    bound: Cell
    figures: tuple[Cell, ...]


#: Columns of the kernels, each with the text of a value and the value, from a row of the estimate.
COLUMNS: dict[str, tuple[Callable[[float], str], Callable[[dict[str, Any]], float]]] = {
    "time": (seconds, lambda row: row["time_s"]),
    "share": (lambda value: f"{value:.1%}", lambda row: row["share"]),
    "each": (seconds, lambda row: row["each_s"]),
    "from": (seconds, lambda row: row["low_s"]),
    "to": (seconds, lambda row: row["high_s"]),
    "floor": (seconds, lambda row: row["floor_s"]),
    "FLOP": (amount, lambda row: float(row["flops"])),
    "vector": (amount, lambda row: float(row["vector_flops"])),
    "bytes": (amount, lambda row: float(row["bytes"])),
    "FLOP/B": (ratio, lambda row: row["intensity"]),
}  # fmt: skip


def kernel_lines(prediction: Prediction) -> list[KernelLine]:
    """Return the kernels, the slowest at the first batch shown first."""
    tables = [{row["kernel"]: row for row in _ranged(point)} for point in prediction.points]
    return [_line(name, [table[name] for table in tables], prediction.at) for name in tables[prediction.at]][:MOST]


def _ranged(est: Estimate) -> Iterator[dict[str, Any]]:
    """Yield the rows of an estimate with the range and the provenance of each."""
    times = {row.kernel.name: time for row, time in est.timed}
    for row in est.kernel_rows():
        time = times[row["kernel"]]
        expected = row["each_s"]
        factor = float(np.exp(half_width(time.uncertainty) / expected)) if expected else 1.0
        span = {"low_s": max(expected / factor, row["floor_s"]), "high_s": expected * factor}
        yield {**row, **span, "origin": time.calibrated}


def _line(name: str, rows: list[dict[str, Any]], at: int) -> KernelLine:
    def figure(text: Callable[[float], str], value: Callable[[dict[str, Any]], float]) -> Cell:
        values = tuple(map(value, rows))
        return Cell(tuple(map(text, values)), values)

    row = rows[at]
    op = " ".join(filter(None, (row["op"], row["dtype"])))
    bound = Cell(tuple(each["bound"] for each in rows))
    return KernelLine(
        name, op, row["origin"], row["count"], bound, tuple(figure(*column) for column in COLUMNS.values())
    )


# --- charts -----------------------------------------------------------------------------------------------------------


#: Passes that mode ``compiled`` applies by itself.
COMPILED = ("fuse()", "pad_matmuls()")
#: Layers from which on they are a chart.
LAYERS = 3
#: Edges of the axes of a roofline, each with what holds several.
_EDGES: dict[str, Callable[[Iterable[float]], float]] = {"left": min, "right": max, "bottom": min, "top": max}


def roofline(prediction: Prediction, moves: Moves, measured: float | None) -> Picture:
    """Take the roofline of each batch into a page, with what was measured, where that is known [s]."""
    charts = [plot_roofline(point, measured=measured, traffic=True) for point in prediction.points]
    windows = [chart.window for chart in charts]
    whole = Window(*(edge(map(attrgetter(name), windows)) for name, edge in _EDGES.items()))
    for chart in charts:
        vars(chart)["window"] = whole  # which it would work out for its own points alone
    labels = [" ".join((_beneath(one), *chart.warnings)) for one, chart in zip(prediction.points, charts, strict=True)]
    return moves.picture("roofline", [chart.drawing() for chart in charts], labels)


def _beneath(est: Estimate) -> str:
    """Say in words what the roofline shows."""
    slowest = [f"{row['kernel']} {row['share']:.0%} ({row['bound']})" for row in est.kernel_rows()[:3]]
    several = sum(bool(level.bandwidth) for level in est.chip.memory) > 1
    levels = " Hollow marks: the larger kernels by what they move at each memory level." if several else ""
    reached = format_si(float(est.flops) / float(est.time), "FLOP/s")
    return (
        f"{est.graph.name} does {ratio(est.intensity)} FLOP per byte and reaches {reached}, {est.bound}-bound. "
        f"The slowest kernels: {', '.join(slowest)}. The table of kernels has every point.{levels}"
    )


def subtitle(prediction: Prediction) -> str:
    """Say what the prediction is of, but for the batch."""
    about = prediction.shown.subject()
    sizes = {name: size for name, size in about["sizes"].items() if name != "batch" or not prediction.whole.shape}
    return title({**about, "sizes": sizes})


# --- batches ----------------------------------------------------------------------------------------------------------


def sweep(prediction: Prediction, moves: Moves) -> dict[str, Any] | None:
    """Return the chart over all batches with a line at the one that is shown, and what the best batch is.

    Nothing where there is one batch, or where nobody knows what fits.
    """
    choice = prediction.choice
    if not prediction.whole.shape or prediction.shown.chip.main.capacity is None:
        return None
    marks = {"ridge": choice.ridge, "best": choice.best} if choice else {}
    # All batches up to the largest, not only those of the slider, where none of those is larger.
    is_longer = choice is not None and choice.limit_batch >= max(prediction.batches)
    drawn = choice.curve if choice and is_longer else prediction.whole
    drawing = plot_batch(drawn, **marks).drawing()  # type: ignore[arg-type]
    drawings = [replace(drawing, panels=tuple(_marked(drawing.panels, batch))) for batch in prediction.batches]
    words = [f"Time, throughput and memory over the batch; the line is at {label}." for label in moves.labels]
    return {"facts_of": _best(choice) if choice else [], "chart": moves.picture("batch", drawings, words)}


def _marked(panels: Sequence[Panel], batch: int) -> Iterator[Panel]:
    """Yield some panels with a line at a batch, which is named above the first."""
    for at, panel in enumerate(panels):
        line = Rule(x=float(batch), colour="compute", label="" if at else f"batch {batch:,}")
        yield replace(panel, marks=(*panel.marks, line))


def _best(choice: BatchChoice) -> list[tuple[str, str]]:
    """Say what the best batch is, and the ridge."""
    rate = format_si(choice.peak, f"{choice.curve.graph.item}/s")
    shares = ", ".join(f"{part:.0%} from batch {choice.batch_for(part):,}" for part in SHARES)
    return [
        ("best batch", f"{choice.best:,}, {choice.share(choice.best):.1%} of the best throughput within the limit"),
        ("limit", f"batch {choice.limit_batch:,}, for {choice.limit}"),
        ("shares", f"{shares} of {rate}"),
        ("ridge", two_ridges(choice.ridge, choice.ridge_datasheet).removeprefix("ridge is ")),
    ]


# --- layers and passes ------------------------------------------------------------------------------------------------


def layers(prediction: Prediction, moves: Moves) -> Picture | None:
    """Take the times of layers at each batch into a page; nothing where there are no layers."""
    charts = [plot_layers(point) for point in prediction.points]
    if len(charts[0].seconds) < LAYERS:
        return None
    said = [max(chart.records(), key=lambda row: row["time_s"]) for chart in charts]
    labels = [
        f"The longest is {row['layer']}: {seconds(row['time_s'])}, {row['share']:.1%} of the time." for row in said
    ]
    return moves.picture("layers", [chart.drawing() for chart in charts], labels, fixed=False)


def passes(prediction: Prediction, moves: Moves) -> dict[str, Any] | None:
    """Return what each pass did at each batch; nothing where none was applied, or where the times would be others."""
    est = prediction.shown
    own = [step for step in est.graph.history if est.mode != "compiled" or repr(step) not in COMPILED]
    if not own or est.tf32 is not None or est.regime != REGIME:
        return None
    run: dict[str, Any] = {"mode": est.mode}
    histories = [
        pass_history(point.graph, point.chip, **run, **point.grid.values)  # type: ignore[arg-type]
        for point in prediction.points
    ]
    labels = ["Each figure after each pass, of what it was in the program as given."] * len(histories)
    chart = moves.picture("passes", [plot_passes(history).drawing() for history in histories], labels, fixed=False)
    rows = [
        (step, [_state(figure, [history.states[at][figure] for history in histories]) for figure in FIGURES])
        for at, step in enumerate(("as given", *histories[0].steps))
    ]
    return {
        "chart": chart,
        "rows": rows,
        "columns": [(name.removesuffix("_s").removesuffix("_bytes"), "n") for name in FIGURES],
    }


def _state(figure: str, values: Sequence[Any]) -> Cell:
    write = format_bytes if FIGURES[figure] == "B" else lambda value: format_si(value, FIGURES[figure]).strip()
    known = [float("nan") if value is None else float(value) for value in values]
    return Cell(tuple("" if value != value else write(value) for value in known), tuple(known))


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(prediction: Prediction, moves: Moves) -> dict[str, Any]:
    """Return the parts of the memory at each batch, beside the capacity."""
    parts = [point.memory.parts() for point in prediction.points]
    totals = [float(sum(each.values())) for each in parts]
    capacity = prediction.shown.chip.main.capacity

    def figures(sizes: tuple[float, ...]) -> tuple[Cell, ...]:
        shares = [size / total for size, total in zip(sizes, totals, strict=True)]
        room = [f"{size / capacity:.1%}" if capacity else "not published" for size in sizes]
        return Cell(tuple(map(format_bytes, sizes)), sizes), _percent(shares), Cell(tuple(room), sizes)

    chart = moves.picture("memory", [plot_memory(point).drawing() for point in prediction.points], _filled(prediction))
    rows = [(words(name), figures(tuple(float(each[name]) for each in parts))) for name in parts[0]]
    return {"parts": [*rows, ("total", figures(tuple(totals)))], "chart": chart}


def _filled(prediction: Prediction) -> list[str]:
    """Say in words what fills the memory at each batch."""
    return [
        f"{_room(point)}. The largest part: {_largest(point)}. The table has every part." for point in prediction.points
    ]


def _largest(est: Estimate) -> str:
    sizes = {name: float(size) for name, size in est.memory.parts().items()}
    name = max(sizes, key=sizes.__getitem__)
    return f"{words(name)}, {format_bytes(sizes[name])}"


def words(part: str) -> str:
    """Return the name of a part of the memory as people write it."""
    return part.replace("kv_", "KV ").replace("_", " ")


def _percent(shares: Sequence[float]) -> Cell:
    return Cell(tuple(f"{share:.1%}" for share in shares), tuple(shares))


# --- provenance -------------------------------------------------------------------------------------------------------


def sources(prediction: Prediction) -> dict[str, Any]:
    """Return where the figures come from: efficiencies, what is not modelled, the chip's figures and their sources."""
    chip, figures = prediction.shown.chip, list(figures_of(prediction.shown.chip))
    citations = list(dict.fromkeys(figure.source for figure in figures if figure.source))
    origin = [
        ("efficiencies", prediction.cell(lambda est: est.calibrated)),
        ("regime", prediction.shown.regime),
        ("width of the range", prediction.cell(_uncertain)),
        ("not modelled", prediction.cell(lambda est: "; ".join(est.not_modelled))),
        ("passes", ", ".join(map(repr, prediction.shown.graph.history))),
        ("notes on the chip", chip.notes),
    ]
    rows = [
        (one.name, one.text, f"[{citations.index(one.source) + 1}]" if one.source else "", one.note) for one in figures
    ]
    return {"origin": origin, "figures": rows, "citations": [(f"[{at}]", text) for at, text in enumerate(citations, 1)]}


def _uncertain(est: Estimate) -> str:
    """Say which classes of kernels make the range as wide as it is."""
    shares = sorted(est.uncertainty.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in shares if share >= 0.005)
