"""What fills the memory of a device: part by part, and over a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate
from roofline.analysis.evaluation import known_at
from roofline.analysis.timeline import MemoryOverTime, memory_over_time
from roofline.analysis.training import TrainingStep
from roofline.ir.errors import UsageError
from roofline.ir.report import title
from roofline.ir.text import shown
from roofline.ir.units import format_bytes
from roofline.serving.requests import Request
from roofline.view.charts.chart import Chart, ResultChart
from roofline.view.charts.marks import Axis, Band, Bars, Drawing, Line, Mark, Panel, Points, Rule, stacked
from roofline.view.charts.roof import about
from roofline.view.charts.waterfall import NEAR, height, waterfall, words

#: Points that a chart of parts shows at most; over more batches there is ``plot_batch``.
MOST = 24
#: Moments of a run that are drawn at most; a longer run is drawn by the fullest of each stretch.
DRAWN = 1500


@dataclass(frozen=True, slots=True)
class Need:
    """What one thing needs.

    Attributes:
        label: What it is, where there are several.
        parts: Bytes by part, those of nothing left out [byte].
        capacity: What there is [byte]; ``None`` where nobody published it.
    """

    label: str
    parts: Mapping[str, float]
    capacity: float | None

    @property
    def total(self) -> float:
        """All parts [byte]."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        """True where it fits, ``None`` where nobody knows."""
        return None if self.capacity is None else self.total <= self.capacity


@dataclass(frozen=True, eq=False, repr=False)
class MemoryParts(Chart):
    """Memory by part, made by :func:`plot_memory`.

    Attributes:
        about: What the memory is of.
        needs: One, or one for each point.
    """

    schema = "memory_parts"

    about: Mapping[str, Any]
    needs: tuple[Need, ...]

    def subject(self) -> dict[str, Any]:
        """Return what it is of."""
        return dict(self.about)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point and part: its bytes and its share, and whether all of it fits."""
        return [
            {"point": need.label, "part": part, "bytes": size, "share": size / need.total, "total_bytes": need.total,
             "capacity_bytes": need.capacity, "fits": need.fits}
            for need in self.needs for part, size in need.parts.items()
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return the parts against the capacity: one bar each of a single point, on top of each other of several."""
        panel = memory_panel(self.needs[0]) if len(self.needs) == 1 else _stacks(self.needs)
        rows = len(panel.y.categories)
        head = f"Memory of {self.about['model']} {self.about.get('phase') or ''}".strip()
        return Drawing((panel,), head, title(self.about), size=(8.0, height(rows)), legend=len(self.needs) > 1)

    def __repr__(self) -> str:
        most = max(need.total for need in self.needs)
        return f"<MemoryParts of {self.about['model']}: {format_bytes(most)}{' at most' * (len(self.needs) > 1)}>"


def memory_panel(need: Need, **panel: Any) -> Panel:
    """Return a bar for each part of one need, and the capacity."""
    axis = Axis("memory", "B", low=0.0, high=1.14 * _reach([need]))
    whole = "total" if need.fits is not False else "total: too much"
    return waterfall(need.parts, list(need.parts), axis, whole, _capacity(need.capacity), **panel)


def _reach(needs: Sequence[Need]) -> float:
    """Return how far an axis goes: to the capacities, where they are not far beyond what is needed."""
    most = max(need.total for need in needs)
    return max([most, *(need.capacity for need in needs if need.capacity and need.capacity < NEAR * most)])


def _capacity(capacity: float | None, upright: bool = True) -> list[Mark]:
    if capacity is None:
        return []
    at: dict[str, Any] = {"x": capacity} if upright else {"y": capacity}
    return [Rule(**at, label=f"capacity {format_bytes(capacity)}", colour="red")]


def _stacks(needs: Sequence[Need]) -> Panel:
    """Return the parts of each point on top of each other, and the capacity of each."""
    names = list(dict.fromkeys(name for need in needs for name in need.parts))
    starts, marks = [0.0] * len(needs), list[Mark]()
    for name in names:
        sizes = [need.parts.get(name, 0.0) for need in needs]
        hover = [f"{need.label}: {words(name)} {format_bytes(size)} of {format_bytes(need.total)}"
                 for need, size in zip(needs, sizes, strict=True)]  # fmt: skip
        marks.append(Bars(range(len(needs)), sizes, starts, name, words(name), hover=hover))
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for at, need in enumerate(needs):
        said = format_bytes(need.total) + ("" if need.fits is not False else ", does not fit")
        marks.append(Bars([at], [0.0], need.total, texts=[said], hover=[said]))
    rooms = {need.capacity for need in needs}
    high = _reach(needs)
    if len(rooms) == 1:
        marks += _capacity(next(iter(rooms)))
    else:
        marks += [
            Line([need.capacity] * 2, [at - 0.45, at + 0.45], "red", "capacity", width=2.2,
                 hover=[f"{need.label} has {format_bytes(need.capacity)}"] * 2)
            for at, need in enumerate(needs) if need.capacity is not None and need.capacity <= high
        ]  # fmt: skip
    return Panel(tuple(marks), Axis("memory", "B", low=0.0, high=1.2 * high),
                 Axis(categories=tuple(need.label for need in needs)))  # fmt: skip


def plot_memory(of: Estimate | TrainingStep | Request) -> MemoryParts:
    """Describe a chart of what fills the memory: weights, KV cache, activations and so on, against the capacity.

    Args:
        of: An estimate of one point or over chips or one size, a step of training, or a request at its peak.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: Something else, or an estimate over more than 24 points.

    Example:
        >>> import roofline as rl
        >>> plot_memory(rl.estimate("gpt2", "h100-sxm", batch=1, seq=1024))
        <MemoryParts of gpt2: 1.76 GiB>
    """
    if isinstance(of, Estimate):
        return MemoryParts(of.subject(), _needs(of))
    if isinstance(of, TrainingStep):
        return MemoryParts(of.subject(), (step_need(of),))
    if isinstance(of, Request):
        parts = {name: float(np.asarray(value)[of.peak_token]) for name, value in of.memory.parts().items()}
        return MemoryParts(of.subject(), (Need("", _some(parts), of.chip.main.capacity),))
    raise UsageError(f"expected an Estimate, a TrainingStep or a Request, given {shown(of)}")


def step_need(step: TrainingStep) -> Need:
    """Return what the fullest device of a step needs."""
    return Need("", _some({name: float(size) for name, size in step.memory.parts().items()}), step.capacity)


def _some(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: size for name, size in parts.items() if size}


def _needs(est: Estimate) -> tuple[Need, ...]:
    number = int(np.prod(est.shape))
    if number > MOST:
        raise UsageError(f"memory by part of {number} points; allowed: up to {MOST}; over batches there is plot_batch")
    assert est.memory
    return tuple(
        Need(label, _some({name: float(size) for name, size in one.memory.parts().items()}), one.chip.main.capacity)
        for one, label in each_point(est)
    )  # fmt: skip


def each_point(est: Estimate) -> list[tuple[Estimate, str]]:
    """Return the estimate of each point, and what tells it from the others: its chip, and the sizes that vary."""
    names, points = varied(est.subject()), [known_at(est, at) if at else est for at in np.ndindex(est.shape)]
    return [
        (one, ", ".join([one.chip.name] * est.many_chips
                        + [f"{name} {size:,}" for name, size in one.subject()["sizes"].items() if name in names]))
        for one in points
    ]  # fmt: skip


def varied(subject: Mapping[str, Any]) -> set[str]:
    """Return the sizes of a subject that have several values."""
    return {name for name, size in subject["sizes"].items() if isinstance(size, list | tuple)}


# --- over a run -------------------------------------------------------------------------------------------------------


class MemoryTimeline(ResultChart[Estimate]):
    """Memory over a run, made by :func:`plot_memory_over_time`."""

    kind, made_by, schema = Estimate, "rl.estimate", "memory_over_time"

    @cached_property
    def over(self) -> MemoryOverTime:
        """Memory of each moment."""
        return memory_over_time(self.result)

    def summary(self) -> dict[str, Any]:
        """Return the peak, where it is, what fills it, and what stays all the time."""
        always, peak = sum(self.over.always.values()), self.over.live[self.over.peak]
        return {
            "peak_bytes": always + peak, "peak_kernel": self.over.runs[self.over.peak].kernel,
            "largest": dict(self.over.largest), "always": dict(self.over.always),
            "capacity_bytes": self.result.chip.main.capacity,
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per kernel in order: when it starts, its time, and the memory while it runs."""
        always = sum(self.over.always.values())
        return [
            {"kernel": run.kernel, "layer": run.layer, "start_s": run.start, "time_s": run.seconds, "live_bytes": live,
             "memory_bytes": always + live}
            for run, live in zip(self.over.runs, self.over.live, strict=True)
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return all memory against the capacity, and below it what is alive."""
        est, over = self.result, self.over
        time, live, hover = self._steps()
        stays = {name: [size] * 2 for name, size in over.always.items() if size}
        most, room = sum(over.always.values()) + over.live[over.peak], est.chip.main.capacity
        near = room is not None and room < NEAR * most
        limits = _capacity(room, upright=False) if near else []
        capacity = f"; capacity {format_bytes(room)}" if room is not None and not near else ""
        below = sum(over.always.values())
        bands = (
            *stacked([0.0, time[-1]], {words(name): part for name, part in stays.items()}, list(stays)),
            Band(time, np.full(len(time), below), below + live, "activations", "activations", strength=1.0),
        )
        x = Axis("time on the device, kernels one after the other", "s", low=0.0, high=float(time[-1]))
        peak = over.runs[over.peak]
        label = f"peak {format_bytes(over.live[over.peak])} in {peak.kernel}"
        largest = "\n".join(f"{name}: {format_bytes(size)}" for name, size in over.largest.items())
        alive = (
            Band(time, np.zeros(len(time)), live, "activations", strength=0.35),
            Line(time, live, "activations", hover=hover),
            Points([peak.start + peak.seconds / 2], [over.live[over.peak]], "red", labels=[label],
                   hover=[f"{label}\n{largest}"]),
        )  # fmt: skip
        panels = (
            Panel((*bands, *limits), x, Axis("all memory", "B", low=0.0), title=f"everything{capacity}"),
            Panel(
                alive,
                x,
                Axis("alive", "B", low=0.0, high=1.2 * over.live[over.peak]),
                title="what was written and is still needed",
            ),
        )
        head = f"Memory over a run of {est.graph.name} on {est.chip.name}"
        return Drawing(panels, head, about(est), size=(8.0, 6.0))

    def _steps(self) -> tuple[Any, Any, list[str]]:
        """Return the curve of what is alive, level while a kernel runs, with what runs there."""
        runs, live = self.over.runs, np.asarray(self.over.live)
        every = np.array_split(np.arange(len(runs)), min(len(runs), DRAWN))
        fullest = [int(part[int(np.argmax(live[part]))]) for part in every]
        times = [end for part in every for end in (runs[part[0]].start, runs[part[-1]].end)]
        said = [f"{runs[at].kernel}: {format_bytes(float(live[at]))} alive" for at in fullest]
        return np.asarray(times), np.repeat(live[fullest], 2), [text for text in said for _ in range(2)]


def plot_memory_over_time(estimate: Estimate) -> MemoryTimeline:
    """Describe a chart of the memory over a run: what stays, what is alive while each kernel runs, and the peak.

    Args:
        estimate: Of one point on one chip.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate is not one point, or its stages run on several devices.

    Example:
        >>> import roofline as rl
        >>> chart = plot_memory_over_time(rl.estimate("resnet50", "h100-sxm", batch=32))
        >>> max(row["memory_bytes"] for row in chart.records()) == chart.result.memory.total
        True
    """
    chart = MemoryTimeline(estimate)
    assert chart.over  # raises where there is no single run
    return chart
