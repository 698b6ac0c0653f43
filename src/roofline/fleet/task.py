"""One program of a fleet on its chips, to rows: what a worker does. Whatever is wrong with it becomes a row."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.batches import best_of
from roofline.analysis.estimates import Estimate
from roofline.analysis.whatif import what_if
from roofline.diagnosis.advice import CHANGES, WORTH, Change, applied
from roofline.diagnosis.reference import AsGiven, Reference
from roofline.fleet.question import Entry, Question
from roofline.frontends.source import has_phases, load_program
from roofline.hardware.chip import Chip
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.graph import Graph
from roofline.ir.text import one_line

Floats = NDArray[np.float64]


class Job(NamedTuple):
    """A program, and for each chip the key of its answer; empty where that is there already."""

    entry: Entry
    keys: tuple[str, ...]

    def missing(self, chips: Sequence[Chip]) -> list[tuple[str, Chip]]:
        """Return the keys that are missing, each with its chip."""
        return [(key, chip) for key, chip in zip(self.keys, chips, strict=True) if key]


#: Batches that are looked at for the best one: each at first, then 6 % apart.
LADDER = tuple(dict.fromkeys([*range(1, 33), *(8 * round(4 * 1.06**step) for step in range(150))]))
#: Characters of an error that are kept.
LONGEST = 500
#: New objects after which the garbage collector looks at them.
RARELY = 100_000
#: Results of an estimate in a row.
_RESULTS = {
    "time_s": "time", "low_s": "low", "high_s": "high", "floor_s": "floor", "device_s": "device_time",
    "host_s": "host_time", "bound": "bound", "fits": "fits", "items_per_s": "throughput", "mfu": "mfu", "mbu": "mbu",
}  # fmt: skip
#: Columns of what changes would make of the time, and the kinds of changes in :data:`CHANGES` that count.
_KINDS = {"run_s": ("run",), "formats_s": ("math", "matmuls"), "kernels_s": ("attention", "layout")}


def rows_of_all(jobs: Sequence[Job], chips: Sequence[Chip], question: Question) -> list[dict[str, Any]]:
    """Work out some programs, to rows of plain values."""
    with _rare_collections():
        return [row for job in jobs for row in rows_of(job, chips, question)]


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage less often: programs are many small objects without cycles, and looking took a quarter."""
    before = gc.get_threshold()
    gc.set_threshold(RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def rows_of(job: Job, chips: Sequence[Chip], question: Question) -> list[dict[str, Any]]:
    """Work out one program on the chips whose answers are missing; whatever is wrong becomes a row."""
    try:
        graphs = list(_graphs(job.entry, question))
    except Exception as problem:  # a file may fail in ways that nobody thought of; the other thousands go on
        return all_failed(job, chips, problem)
    return [row for key, chip in job.missing(chips) for graph in graphs
            for row in _rows(job.entry, graph, chip, key, question)]  # fmt: skip


def all_failed(job: Job, chips: Sequence[Chip], problem: BaseException | str) -> list[dict[str, Any]]:
    """Return the rows of a program that could not be worked out."""
    return [failed(job.entry, chip, key, problem) for key, chip in job.missing(chips)]


def failed(entry: Entry, chip: Chip, key: str, problem: BaseException | str) -> dict[str, Any]:
    """Return the row of what could not be worked out."""
    kind = "" if isinstance(problem, str | RooflineError) else f"{type(problem).__name__}: "
    return {"model": entry.name, "program_path": entry.program, "chip": chip.name, "key": key,
            "error": one_line(f"{kind}{problem}")[:LONGEST]}  # fmt: skip


def _graphs(entry: Entry, question: Question) -> Iterator[Graph]:
    """Yield the program in each phase that was asked for and that it has; in its own where it has none of them.

    Raises:
        RooflineError: It is no program.
    """
    named = question.phases if question.phases and has_phases(entry.program) else ()
    loaded = [graph for phase in named if (graph := _loaded(entry.program, phase, question.dtype)) is not None]
    for graph in loaded or [load_program(entry.program, None, question.dtype)]:
        yield what_if(graph, weights=question.weights, activations=question.activations, cache=question.cache)


def _loaded(program: str, phase: str, dtype: str | None) -> Graph | None:
    """Return a program in a phase; ``None`` where it has none of that name."""
    try:
        return load_program(program, phase, dtype)
    except UsageError:
        return None


def _rows(entry: Entry, graph: Graph, chip: Chip, key: str, question: Question) -> list[dict[str, Any]]:
    try:
        return list(_answers(entry, graph, chip, key, question))
    except Exception as problem:
        return [failed(entry, chip, key, problem) | {"phase": graph.info.phase or "forward"}]


def _answers(entry: Entry, graph: Graph, chip: Chip, key: str, question: Question) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch and for each limit."""
    fixed = _lengths(graph, question)
    about = {"model": entry.name, "program_path": entry.program, "chip": chip.name, "key": key, "mode": question.mode,
             "phase": graph.info.phase or "forward", "formats": question.formats, "item": graph.item,
             "seq": fixed.get("S"), "context": fixed.get("C"), "capacity_bytes": chip.main.capacity}  # fmt: skip
    if "B" not in graph.symbols:
        now = AsGiven(graph, chip, question.mode, None, fixed)
        yield about | _figures(now.expected, ()) | _gains(now, question).get(0, {})
        return
    looked_at = sorted({*question.batches, *(LADDER if question.limits else ())})
    curve = AsGiven(graph, chip, question.mode, None, fixed | {"B": looked_at}).expected
    chosen = {limit: _best(curve, question.limits_of(limit)) for limit in question.limits}
    batches = sorted({*question.batches, *(best for best, _ in chosen.values() if best is not None)})
    now = AsGiven(graph, chip, question.mode, None, fixed | {"B": batches})
    gains = _gains(now, question)
    at = {batch: {"batch": batch} | _figures(now.expected, (i,)) | gains.get(i, {}) for i, batch in enumerate(batches)}
    yield from (about | at[batch] for batch in question.batches)
    for limit, (best, why) in chosen.items():
        own: dict[str, Any] = {"fits": False} if best is None else at[best]
        yield about | own | {"under": limit, "limit": why}


def _best(curve: Estimate, limits: Mapping[str, float]) -> tuple[int | None, str]:
    """Choose the best batch of a curve under a limit, if there is one, and say what limits it."""
    batches, patience = np.ravel(curve.grid.sizes["B"]), limits.get("latency_limit", inf)
    room = limits.get("memory_limit", curve.chip.capacity)
    best = best_of(curve, room, patience)
    larger = batches > (best or 0)
    if not larger.any():
        return best, "size"
    full, late = (np.broadcast_to(over, batches.shape)[larger][0]
                  for over in (np.asarray(curve.memory.total) > room, np.asarray(curve.time) > patience))  # fmt: skip
    return best, "memory" if full else "latency" if late else "throughput"


def _lengths(graph: Graph, question: Question) -> dict[str, int]:
    """Return the lengths that a program uses; where its table of positions is shorter, that is its length."""
    sizes = {"S": question.seq, "C": question.context or question.seq}
    rows = graph.info.positions.most if graph.info.positions is not None and graph.info.positions.hard else sys.maxsize
    return {name: min(size, rows) for name, size in sizes.items() if name in graph.symbols}


def _figures(est: Estimate, index: tuple[int, ...]) -> dict[str, Any]:
    numbers = {key: _at(getattr(est, name), index) for key, name in _RESULTS.items()}
    return numbers | {"memory_bytes": _at(est.memory.total, index), "calibrated": est.calibrated}


def _at(value: Any, index: tuple[int, ...]) -> Any:
    array = np.asarray(value)
    figure = array[index] if array.ndim else array[()]
    return figure.item() if isinstance(figure, np.generic) else figure


# --- what it could gain -----------------------------------------------------------------------------------------------


def _gains(now: Reference, question: Question) -> dict[int, dict[str, Any]]:
    """Return what changes of a program would make of its time, by the number of the batch.

    The changes are those of :mod:`roofline.diagnosis.advice`: alone, the best of each kind, and these together.
    """
    if not question.gains:
        return {}
    changes = {change: after for change in CHANGES if (after := applied(change, now)) is not None}
    together, rows = _times(_together(now, changes)), {}
    for at, time in enumerate(_times(now)):
        times = [(float(_times(after)[at]), change) for change, after in changes.items()]
        least, first = min(times, key=lambda pair: pair[0], default=(time, None))
        kinds = {name: min([float(time), *(own for own, change in times if change.kind in of)])
                 for name, of in _KINDS.items()}  # fmt: skip
        rows[at] = {**kinds, "potential_s": min(least, float(together[at]), float(time))}
        if first is not None and least < (1 - WORTH) * time:
            rows[at] |= {"change": first.text, "option": first.option, "change_time_s": least}
    return rows


def _times(of: Reference) -> Floats:
    return np.atleast_1d(np.asarray(of.expected.time, dtype=np.float64))


def _together(now: Reference, changes: Mapping[Change, Reference]) -> Reference:
    """Return a program with the best change of each kind, how it runs first, each where it helps with those before it.

    All but how it runs are chosen by the device's time: the host's hides what they save until it is out of the way.
    """

    def took(change: Change) -> float:
        est = changes[change].expected
        return float(np.log(np.asarray(est.time if change.kind == "run" else est.device_time)).sum())

    best: dict[str, Change] = {}
    for change in sorted(changes, key=took):
        best.setdefault(change.kind, change)
    start = now
    for change in sorted(best.values(), key=lambda change: change.kind != "run"):
        after = changes[change] if now is start else applied(change, now)
        if after is not None and np.all(_times(after) <= _times(now)):
            now = after
    return now
