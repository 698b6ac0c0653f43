"""The changes that would make a program fit that does not, tried by counting the changed program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import singledispatch
from inspect import signature
from itertools import islice
from typing import Any

from roofline.analysis.estimates import Estimate, runs_as
from roofline.analysis.evaluation import runtime_of
from roofline.analysis.whatif import what_if
from roofline.cost.scratch import memory_on
from roofline.counting.grid import one_point
from roofline.counting.memory import Memory, TrainingMemory, footprint_text
from roofline.hardware.chip import Chip
from roofline.ir.errors import DoesNotFit, MissingFigure, UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import WORDS
from roofline.ir.sizes import SIZE_WORDS
from roofline.ir.units import format_bytes, format_si

#: Kinds of changes that are named at most.
REMEDIES = 3
#: Passes that the mode ``compiled`` applies.
_COMPILED = (("fuse", ()), ("pad_matmuls", ()))

Change = Mapping[str, Any]
#: Bytes that a changed program needs; a ``UsageError`` where the change cannot be.
Need = Callable[[Change], float]
#: Changes of one kind from the mildest, by the function that tells which fit; the last is the strongest.
Kind = Callable[[Callable[[Change], bool]], Iterable[Change]]

#: Options of the command line that are not called like their keywords.
_OPTIONS = {"batch": "-B", "context": "-C", "seq": "-S"}
#: Passes whose options are those of :func:`~roofline.analysis.whatif.what_if`.
_PASSES = frozenset({"shard", "quantize", "fuse"})


@dataclass(frozen=True)
class Remedy:
    """A change of a program, and what the changed program needs; from :func:`roofline.analysis.would_fit`.

    Attributes:
        change: By keyword.
        need: What it then needs [byte].
        room: What it may use [byte].
        note: What else a reader should know.
    """

    change: Change
    need: float
    room: float
    note: str = ""

    @property
    def fits(self) -> bool:
        """True where the changed program fits."""
        return self.need <= self.room

    @property
    def options(self) -> str:
        """The change as options of the command line."""
        return " ".join(
            f"{_OPTIONS.get(name, '--' + name.replace('_', '-'))} {value}" for name, value in self.change.items()
        )

    def record(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"change": dict(self.change), "options": self.options, "need_bytes": self.need, "fits": self.fits,
                "note": self.note}  # fmt: skip

    def __str__(self) -> str:
        return f"{self.options} ({format_bytes(self.need)})" if self.change else self.note


@singledispatch
def would_fit(result: Any) -> tuple[Remedy, ...]:
    """Say what would make a program fit that does not.

    Number formats, devices that share every layer, stages of ZeRO, recomputation, smaller sizes and a part of the
    weights in host memory are tried, each by counting the changed program.

    Args:
        result: Of one point: an estimate, a request, a step of training or a memory plan.

    Returns:
        The first change of each kind that fits, the mildest kind first; where none does alone, the first several that
        do together, or the strongest with ``fits`` false. Nothing for a program that fits, or on a chip whose memory
        nobody published.

    Raises:
        UsageError: A result of several points, or of a kind that has no memory.

    Example:
        >>> import roofline as rl
        >>> large = rl.estimate("llama-3-70b", "h100-sxm", phase="decode", batch=1, context=2048)
        >>> [remedy.options for remedy in rl.analysis.would_fit(large)][:2]
        ['--weights int8', '--tp 2']
    """
    raise UsageError(f"would_fit: {type(result).__name__} is no result with a memory")


@would_fit.register
def _of_estimate(est: Estimate) -> tuple[Remedy, ...]:
    one_point(est.axis_names, "what would fit is worked out for")
    if est.fits is not False:
        return ()

    def count(graph: Graph, sizes: Mapping[str, Any]) -> Memory:
        graph = runs_as(graph, est.mode)
        return memory_on(graph, sizes, est.chip, runtime_of(est.mode), est.tf32, est.reserve)

    return of_program(before_compiled(est), est.grid.values, count, float(est.chip.capacity), est.chip)


def before_compiled(est: Estimate) -> Graph:
    """Return the program of an estimate as it was before its mode fused it."""
    graph = est.graph
    while est.mode == "compiled" and graph.history and (graph.history[-1].name, graph.history[-1].options) in _COMPILED:
        graph = graph.history[-1].before
    return graph


def of_program(
    graph: Graph, sizes: Mapping[str, Any], count: Callable[[Graph, Mapping[str, Any]], Memory], room: float, chip: Chip
) -> tuple[Remedy, ...]:
    """Try what a program can be changed in: its formats, its devices, its sizes, and where its weights lie.

    Args:
        graph: The program.
        sizes: Its sizes, by symbol; a smaller one is tried of each.
        count: What a program needs at some sizes.
        room: What it may use [byte].
        chip: Where it runs.

    Returns:
        As :func:`would_fit`.
    """

    def need(change: Change) -> float:
        at = {SIZE_WORDS[name]: value for name, value in change.items() if name in SIZE_WORDS}
        return float(count(changed(graph, change), {**sizes, **at}).total)

    return remedies(need, room, kinds(graph, sizes), offloaded(count(graph, sizes), room, chip))


def remedies(
    need: Need, room: float, every: Iterable[Kind], last: Sequence[Remedy] = (), most: int = REMEDIES
) -> tuple[Remedy, ...]:
    """Try changes.

    Args:
        need: What a changed program needs.
        room: What it may use [byte].
        every: Kinds of changes, from the mildest.
        last: What fits besides, named last.
        most: Kinds that are named; no others are looked at.

    Returns:
        As :func:`would_fit`.
    """
    search = _Search(need, room, {})
    alone = islice(filter(None, map(search.first, every := tuple(every))), most)
    return (*(tuple(alone) or search.together(every)), *last)


@dataclass(frozen=True)
class _Search:
    need: Need
    room: float
    known: dict[str, float | None]

    def bytes_of(self, change: Change) -> float | None:
        """Return what a changed program needs [byte]; nothing for a change that cannot be, such as of no cache."""
        key = repr(sorted(change.items()))
        if key not in self.known:
            self.known[key] = None
            with suppress(UsageError, MissingFigure):  # chips without a link share nothing
                self.known[key] = self.need(change)
        return self.known[key]

    def fits(self, change: Change) -> bool:
        size = self.bytes_of(change)
        return size is not None and size <= self.room

    def nearest(self, kind: Kind, before: Change) -> Remedy | None:
        """Return the mildest change of a kind that fits on top of others; where none does, the strongest that can be.

        Where the strongest does not fit, no milder one is looked at.
        """
        every = [{**before, **change} for change in kind(lambda change: self.fits({**before, **change}))]
        possible = (Remedy(one, size, self.room) for one in reversed(every) if (size := self.bytes_of(one)) is not None)
        strongest = next(possible, None)
        if strongest is None or not strongest.fits:
            return strongest
        mildest = next(filter(self.fits, every))
        return Remedy(mildest, self.bytes_of(mildest) or 0.0, self.room)

    def first(self, kind: Kind) -> Remedy | None:
        """Return the mildest change of a kind that fits."""
        remedy = self.nearest(kind, {})
        return remedy if remedy and remedy.fits else None

    def together(self, every: Iterable[Kind]) -> tuple[Remedy, ...]:
        """Return the strongest of each kind on top of each other up to the first that fits, as far as needed."""
        best: tuple[Remedy, ...] = ()
        for kind in every:
            remedy = self.nearest(kind, best[0].change if best else {})
            best = best if remedy is None else (remedy,)
            if remedy and remedy.fits:
                return (self._without_needless(remedy),)
        return best

    def _without_needless(self, remedy: Remedy) -> Remedy:
        for name in remedy.change:
            fewer = {other: value for other, value in remedy.change.items() if other != name}
            if self.fits(fewer):
                remedy = Remedy(fewer, self.bytes_of(fewer) or 0.0, self.room)
        return remedy


# --- kinds of changes -------------------------------------------------------------------------------------------------


def among(*changes: Change) -> Kind:
    """Return a kind of changes that are listed, from the mildest."""
    return lambda fits: changes


def smaller(name: str, size: int, least: int = 1) -> Kind:
    """Return a kind that makes a size the largest below its own that fits, or the least.

    Example:
        >>> list(smaller("batch", 100)(lambda change: change["batch"] <= 37))
        [{'batch': 37}]
    """

    def largest(fits: Callable[[Change], bool]) -> Iterator[Change]:
        if least < size:
            beyond = bisect_left(range(least + 1, size), True, key=lambda value: not fits({name: value}))
            yield {name: least + beyond}

    return largest


#: Number formats that would shrink a program, and devices that share every layer.
FORMATS = among(
    {"cache": "int8"}, {"weights": "int8"}, {"weights": "int8", "cache": "int8"}, {"weights": "int4-g128"},
    {"weights": "int4-g128", "cache": "int8"},
)  # fmt: skip
SHARED = among(*({"tp": n} for n in (2, 4, 8, 16, 32)))


def kinds(graph: Graph, sizes: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the kinds of changes of a program: formats, devices, the length of its sequences, its batch."""
    lengths = [smaller(WORDS[name], int(sizes[name])) for name in ("C", "S", "B") if name in sizes]
    return (*(() if graph.info.training.gradients else (FORMATS, SHARED)), *lengths)


def changed(graph: Graph, change: Change) -> Graph:
    """Return a program with other formats and devices: made anew where it was sharded or quantised before.

    Args:
        graph: The program.
        change: Keywords of :func:`~roofline.analysis.whatif.what_if`; sizes are left out.

    Raises:
        UsageError: A change that the program cannot take.
    """
    options = {name: value for name, value in change.items() if name not in SIZE_WORDS}
    if not options:
        return graph
    first = next((at for at, step in enumerate(graph.history) if step.name in _PASSES), len(graph.history))
    steps = graph.history[first:]
    before = {name: value for step in steps for name, value in step.options}
    before = {"fuse" if name == "policy" else name: value for name, value in before.items()}
    if any(step.name not in _PASSES for step in steps) or not before.keys() <= signature(what_if).parameters.keys():
        return what_if(graph, **options)
    if options.get("tp", before.get("tp", 1)) < before.get("tp", 1):
        raise UsageError(f"tp={options['tp']}: there are more devices now")
    return what_if(steps[0].before if steps else graph, **{**before, **options})


def offloaded(need: Memory, room: float, chip: Chip) -> tuple[Remedy, ...]:
    """Return what leaving weights, or states of an optimizer, in host memory takes; nothing where that is too little.

    Args:
        need: What the program needs.
        room: What it may use [byte].
        chip: Where it runs; nothing either where nobody published its link to the host.
    """
    excess, part = float(need.total) - room, "optimizer" if isinstance(need, TrainingMemory) else "weights"
    link = next((link for link in chip.links if link.kind == "host" and link.bandwidth), None)
    if link is None or not 0 < excess < float(getattr(need, part)):
        return ()
    ways = 2 if part == "optimizer" else 1  # states are read and written
    seconds = format_si(ways * excess / float(link.bandwidth), "s")
    note = f"{format_bytes(excess)} of {part} in host memory, at least {seconds} more a run over {link.name}"
    return (Remedy({}, room, room, note),)


# --- words ------------------------------------------------------------------------------------------------------------


def remedies_text(changes: Sequence[Remedy]) -> str:
    """Say what would fit in a line.

    Example:
        >>> remedies_text([Remedy({"tp": 2}, 2**30, 2**31), Remedy({"batch": 4}, 2**30, 2**31)])
        '--tp 2 (1.00 GiB), or -B 4 (1.00 GiB)'
        >>> remedies_text([Remedy({"tp": 8}, 2**31, 2**30)])
        'nothing that was tried; the nearest is --tp 8 (2.00 GiB)'
    """
    fitting = [str(remedy) for remedy in changes if remedy.fits]
    return ", or ".join(fitting) or "nothing that was tried" + "".join(f"; the nearest is {one}" for one in changes)


def does_not_fit(what: str, need: Memory, room: float, changes: Sequence[Remedy]) -> DoesNotFit:
    """Return the error on a program that does not fit: its footprint by part, and what would make it fit.

    Args:
        what: The program, where it runs, and the point that does not fit.
        need: Its footprint.
        room: The memory that it may use [byte].
        changes: Those that would make it fit.
    """
    return DoesNotFit(
        f"{what} needs {format_bytes(float(need.total))}, {format_bytes(room)} are allowed ({footprint_text(need)}); "
        f"what would fit: {remedies_text(changes)}"
        + "; in Python keywords of rl.what_if"
        * any(r.change for r in changes)
    )
