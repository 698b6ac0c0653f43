"""The search for plans: kind by kind, each plan with each move of a kind or none; all of them, or the best of a beam.

What a beam leaves out is bounded: no plan is faster than the least arithmetic that any plan within the error budget has
at the peak of its formats, or the least bytes that any must read of weights, caches and inputs at the bandwidth of the
datasheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roofline.counting.grid import unbeaten
from roofline.diagnosis.advice import WORTH
from roofline.diagnosis.reference import compulsory_bytes
from roofline.ir.errors import RooflineError
from roofline.optimization.moves import Kind, Move
from roofline.optimization.steps import State, Step
from roofline.optimization.target import Figures, Target

#: Plans that go on to the next kind of moves; below that number none is left out.
BEAM = 24
#: Kinds of moves that take long to make, and the plans, the best ones, that make them.
COSTLY, FEW = ("kernels",), 3


@dataclass(frozen=True)
class Point:
    """A plan with its figures.

    Attributes:
        state: Where it ends.
        moves: The moves that it makes.
        figures: What it takes, at the best of its batches.
    """

    state: State
    moves: tuple[Move, ...]
    figures: Figures


@dataclass(frozen=True)
class Search:
    """What a search went through.

    Attributes:
        points: Plans of all kinds of moves, that were made to the end or left on the way.
        last: Those that were made to the end.
        exhaustive: Whether no plan was left out.
    """

    points: tuple[Point, ...]
    last: tuple[Point, ...]
    exhaustive: bool


def search(target: Target, start: State, kinds: Mapping[str, Kind], beam: int = BEAM) -> Search:
    """Make plans of moves.

    Args:
        target: What is asked.
        start: The program as given.
        kinds: Kinds of moves in the order of their steps.
        beam: Plans that go on from kind to kind at most.
    """
    points = [Point(start, (), target.best(start))]
    every, exhaustive = list(points), True
    for name, kind in kinds.items():
        parents = points if name not in COSTLY else sorted(points, key=lambda point: rank(target, point))[:FEW]
        grown = [child for point in parents for child in _children(target, point, kind)]
        every += grown
        exhaustive &= len(parents) == len(points)
        points = _best_runs(target, [*points, *grown])
        if len(points) > beam:
            points, exhaustive = _fittest(target, points, beam), exhaustive and name == list(kinds)[-1]
    return Search(tuple(every), tuple(points), exhaustive)


def _best_runs(target: Target, points: Sequence[Point]) -> list[Point]:
    """Return the best mode to run each program in: replayed launches are never slower than those of the host."""
    best: dict[tuple[Any, ...], Point] = {}

    def order(
        point: Point,
    ) -> tuple[float, ...]:  # what takes as long now may be the host's to launch after other moves
        *others, moves = rank(target, point)
        return (*others, point.state.run.get("mode", "eager") == "eager", moves)

    for point in sorted(points, key=order):
        settings = frozenset({**point.state.run, "mode": ""}.items())
        best.setdefault((id(point.state.graph), point.figures.noise, settings), point)
    return list(best.values())


def _children(target: Target, point: Point, kind: Kind) -> Iterable[Point]:
    for move in kind(point.state, target):
        after = move.after(point.state, target.applied)
        try:
            if after is not None:
                yield Point(after, (*point.moves, move), target.best(after))
        except RooflineError:
            continue  # the chip has no figure for it, or the step cannot run


def _fittest(target: Target, points: Sequence[Point], most: int) -> list[Point]:
    """Return those that are best at something, then the best of the others."""
    front = {id(point) for point in pareto(target, points)}
    ranked = sorted(points, key=lambda point: (id(point) not in front, *rank(target, point)))
    least = min(points, key=lambda point: point.figures.memory_bytes)
    return list({id(point): point for point in (ranked[0], least, *ranked)}.values())[:most]


def rank(target: Target, point: Point) -> tuple[float, ...]:
    """Return what orders plans, the best first: within limits, the objective, time and its slow end, noise, moves."""
    at = point.figures
    seconds = (at.time_s, at.high_s)
    return (not target.allows(at), target.excess(at), target.value(at), *seconds, at.noise, len(point.moves))


def pareto(target: Target, points: Iterable[Point]) -> list[Point]:
    """Return the plans that no other beats in objective, memory and error at once, the best objective first."""
    some = sorted(points, key=lambda point: len(point.moves))
    figures = [(target.value(at), at.memory_bytes, at.noise) for at in (point.figures for point in some)]
    return [some[at] for at in unbeaten(*zip(*figures, strict=True))] if some else []


def simplest(target: Target, start: State, kinds: Mapping[str, Kind], best: Point) -> Point:
    """Return a plan without the moves that gain nothing: those without which it is as good in what was asked."""
    moves, point, first = list(best.moves), best, target.best(start)
    for move in best.moves:
        fewer = [other for other in moves if other is not move]
        without = plan_of(target, start, kinds, fewer)
        if without is not None and _is_as_good(target, without.figures, point.figures, first):
            moves, point = fewer, without
    return point


def _is_as_good(target: Target, figures: Figures, best: Figures, first: Figures) -> bool:
    """Tell whether figures are within the limits, about as good as the best at both ends, and no worse than the first.

    What keeps the slow end of the range away is worth its step: replayed launches, of a host that may be slow.
    """
    slow, least = (target.value(each) * each.high_s / each.time_s for each in (figures, best))
    if target.objective != "memory" and slow > (1 + WORTH) * least:
        return False
    most = min((1 + WORTH) * target.value(best), target.value(first) if target.allows(first) else math.inf)
    return target.allows(figures) and target.value(figures) <= most


def plan_of(target: Target, start: State, kinds: Mapping[str, Kind], moves: Sequence[Move]) -> Point | None:
    """Return the plan of some moves from the start on; ``None`` where one makes no sense without those left out."""
    after = start
    for move in moves:
        new = move.after(after, target.applied) if move in list(kinds[move.kind](after, target)) else None
        if new is None:
            return None
        after = new
    return Point(after, tuple(moves), target.best(after))


def stages(target: Target, start: State, steps: Sequence[Step]) -> list[tuple[State, Figures]]:
    """Return what a plan takes at the start and after each step."""
    rows = [(start, target.start(start))]
    for step in steps:
        after = target.applied(rows[-1][0], step)
        rows.append((after, target.start(after)))
    return rows


def bound(target: Target, points: Sequence[Point], best: Figures) -> float:
    """Return a time that no plan of these moves is below at the batch and on the devices of the best one [s].

    0 for a step of training, of which nothing is known. Formats beyond the error budget are none of them: what follows
    only adds noise.
    """
    if target.training:
        return 0.0
    one = replace(target, batches=() if best.batch is None else (best.batch,))
    alike = (each for each in points
             if each.figures.devices == best.devices and each.figures.noise <= target.error_budget)  # fmt: skip
    graphs = {id(point.state.graph): point.state for point in alike}
    made = [one.estimate(state.graph, {**state.run, "mode": "graph"}) for state in graphs.values()]
    single = [est[0] if est.shape else est for est in made]
    return max(min(float(est.mfu * est.time) for est in single),
               min(compulsory_bytes(est) for est in single) / target.chip.bandwidth)  # fmt: skip
