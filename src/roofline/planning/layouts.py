"""Which layout each image of a program should have: channels first or last, with the cheapest copies between.

The time model says how long each kernel takes in either layout, and a copy of each image. Two layouts make the whole
program a minimum cut: kernels on one side have channels first, those on the other last; a kernel costs its time on its
side, and an image that is read on the other side than it was written on one copy, however many read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.counting.grid import one_point
from roofline.frontends.source import Program, as_graph
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report, subject
from roofline.ops.builder import Builder
from roofline.passes.fusion.fuse import fuse
from roofline.passes.rewriting.layouts import ENDS, LAYOUTS, copies, images, layout, marked, turn
from roofline.planning.cut import FIXED, Network

#: The two sides of the cut.
FIRST, LAST = "channels_first", "channels_last"
#: A cut is in whole picoseconds.
_PER_SECOND = 1e12


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """A kernel that may have its images in either layout.

    Attributes:
        kernel: Its label.
        op: Its main operator.
        given: The layout that it has.
        best: The layout that makes the program fastest.
        first_s: Its time with channels first [s].
        last_s: Its time with channels last [s].
    """

    kernel: str
    op: str
    given: str
    best: str
    first_s: float
    last_s: float


@dataclass(frozen=True)
class Layouts(Report):
    """A program with its images as they are, all channels first, all channels last, and mixed as is best.

    From :func:`roofline.layouts`.

    Attributes:
        given: The estimate of the program as it is.
        graphs: The program by ``given``, ``channels_first``, ``channels_last`` and ``best``.
        times: The time of each [s].
        kernels: Those that may have either layout.
    """

    given: Estimate
    graphs: Mapping[str, Graph]
    times: Mapping[str, float]
    kernels: tuple[KernelLayout, ...]
    schema = "layouts"

    @property
    def best(self) -> Graph:
        """The program with the layouts that make it fastest."""
        return self.graphs["best"]

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        return subject(self.given.graph, self.given.chip.name, self.given.mode, self.given.grid.values)

    def summary(self) -> dict[str, Any]:
        """Return the time of each way, and the copies that it has between layouts."""
        return {
            **{f"{name}_s": seconds for name, seconds in self.times.items()},
            "layout_copies": {name: len(copies(graph)) for name, graph in self.graphs.items()},
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per kernel that may have either layout: what it has, what is best, both times."""
        return [
            {"kernel": row.kernel, "op": row.op, "given_layout": row.given, "best_layout": row.best,
             "channels_first_s": row.first_s, "channels_last_s": row.last_s}
            for row in self.kernels
        ]  # fmt: skip

    def __repr__(self) -> str:
        ways = ", ".join(f"{name} {seconds * 1e6:.4g} us" for name, seconds in self.times.items())
        return f"<Layouts {self.given.graph.name} on {self.given.chip.name}: {ways}>"


def layouts(
    program: Program,
    chip: AnyChip,
    *,
    mode: Mode = "graph",
    tf32: bool | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Layouts:
    """Choose the layout of each image of a program, channels first (NCHW) or last (NHWC), by what kernels take.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a path or a chip.
        mode: As for :func:`roofline.estimate`; ``graph`` by default, since in ``eager`` the host may hide
            the difference.
        tf32: As for :func:`roofline.estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch`` and any other size of the program, single numbers.

    Returns:
        The time as it is, all channels first, all last, and mixed as is best; a row per kernel; the programs.

    Raises:
        UsageError: A program without images, one with its backward, or sizes that span an axis.
        MissingFigure: The chip has no rate for a number format.

    Example:
        >>> import roofline as rl
        >>> first = rl.passes.layout(rl.model("resnet18", dtype="fp16"), "channels_first")
        >>> found = layouts(first, "h100-sxm", batch=32)
        >>> found.times["best"] < 0.8 * found.times["given"]
        True
    """
    graph, where = as_graph(program, phase, dtype), find_chip(chip)
    graph = fuse(graph) if mode == "compiled" and not graph.info.grouped else graph
    if not images(graph).free:
        raise UsageError(f"{graph.name}: no kernel may have images in either layout; nothing to choose")

    est = estimate(graph, where, mode=mode, tf32=tf32, **sizes)
    one_point(est.axis_names, "layouts are chosen for")
    return _compared(est, lambda each: estimate(each, where, mode=mode, tf32=tf32, **sizes))


def _compared(est: Estimate, timed: Callable[[Graph], Estimate]) -> Layouts:
    """Time a program as it is, in one layout, and in the fastest mix."""
    graph = est.graph
    first, last = (_by_kernel(timed(marked(graph, way))) for way in (False, True))
    chosen = _chosen(graph, first, last, _copy_times(graph, est))
    ways = {
        "given": graph, FIRST: layout(graph, FIRST), LAST: layout(graph, LAST), "best": _laid(graph, chosen),
    }  # fmt: skip
    times = {name: float(timed(each).time) for name, each in ways.items()}
    fastest = min(times, key=lambda name: times[name])
    if times[fastest] < times["best"]:
        ways["best"], times["best"] = ways[fastest], times[fastest]
    now, best = images(graph).free, images(ways["best"]).free
    rows = tuple(
        KernelLayout(name, graph.kernels[name][0].op, _word(now[name]), _word(best[name]), first[name], last[name])
        for name in now
    )
    return Layouts(est, ways, times, rows)


def _word(last: bool) -> str:
    return LAST if last else FIRST


def _by_kernel(est: Estimate) -> dict[str, float]:
    """Return the time of each kernel by its label [s]."""
    return {name: row.kernel.main.count * float(time.expected) for row, time in est.timed for name in row.kernel.names}


def _copy_times(graph: Graph, est: Estimate) -> dict[tuple[str, bool], float]:
    """Return what a copy of each image takes into each layout [s]."""
    b = Builder("copies", graph.info.dtype or "fp32")
    ends: dict[tuple[Any, str, bool], str] = {}
    for name, last in ((name, way) for name in images(graph).last for way in (False, True)):
        tensor = graph.tensors[name]
        if (tensor.shape, tensor.dtype, last) not in ends:
            image = b.op("empty", name="image", shape=tensor.shape, dtype=tensor.dtype)
            turn(b, image, last)
            ends[tensor.shape, tensor.dtype, last] = f"{image}.{_word(last)}"
    program = b.graph([node.outputs[0] for node in b.nodes if node.op == "transpose_copy"])
    times = _by_kernel(estimate(program, est.chip, mode="graph", **est.grid.sizes))
    at = {name: graph.tensors[name] for name in images(graph).last}
    return {
        (name, last): times[ends[each.shape, each.dtype, last]] for name, each in at.items() for last in (False, True)
    }


def _chosen(
    graph: Graph, first: Mapping[str, float], last: Mapping[str, float], copy: Mapping[tuple[str, bool], float]
) -> set[str]:
    """Return the kernels that have channels last in the fastest program."""
    known, net = images(graph), Network()
    for name in known.free:
        net.join(FIRST, ("kernel", name), _whole(last[name]))
        net.join(("kernel", name), LAST, _whole(first[name]))
    writers, readers = _sides(graph)
    for name, sides in readers.items():
        # two helpers: somebody reads it channels last, or first; whoever does draws them to that side
        wants_last, wants_first = ("last", name), ("first", name)
        net.join(writers[name], wants_last, _whole(copy[name, True]) + 1)
        net.join(wants_first, writers[name], _whole(copy[name, False]) + 1)
        for side in sides:
            net.join(wants_last, side, FIXED)
            net.join(side, wants_first, FIXED)
    near = net.side(FIRST, LAST)
    return {name for name in known.free if ("kernel", name) not in near}


def _whole(seconds: float) -> int:
    return round(seconds * _PER_SECOND)


def _sides(graph: Graph) -> tuple[dict[str, Hashable], dict[str, set[Hashable]]]:
    """Return who writes each image and who reads it: a kernel that may have either layout, or a layout."""
    known, made = images(graph), copies(graph)
    inner = {node for copy in made.values() for node in copy.nodes}

    def side(label: str, name: str) -> Hashable:
        return ("kernel", label) if label in known.free else _word(known.last[name])

    writers = {
        name: side(graph.producer[name].label if name in graph.producer else "", name)
        for name in known.last if name not in made
    }  # fmt: skip
    readers: dict[str, set[Hashable]] = {}
    for node in graph.nodes:
        for name in node.inputs if node.name not in inner and node.op not in ENDS else ():
            if name in known.last:
                readers.setdefault(made[name].source if name in made else name, set()).add(side(node.label, name))
    for name in graph.outputs if not graph.info.listed else ():
        if name in known.last:
            readers.setdefault(made[name].source if name in made else name, set()).add(_word(known.last[name]))
    as_wanted = {name for name in readers if graph.info.listed and graph.tensors[name].kind == "input"}
    return writers, {name: sides for name, sides in readers.items() if name not in as_wanted}


def _laid(graph: Graph, last: set[str]) -> Graph:
    """Return a program with channels last in some kernels, and first in all others that may have either."""
    for way in (FIRST, LAST):
        free = images(graph).free
        names = tuple(name for name, now in free.items() if (name in last) == LAYOUTS[way] != now)
        graph = layout(graph, way, names) if names else graph
    return graph
