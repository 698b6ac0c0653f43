"""What a variant of a blocked matmul costs: physical counts, with rates that are learned while variants are measured.

The time is a sum of counts times rates: multiply-adds, calls, elements that blocks load and store, those that change
from step to step, copies. The rates begin at the machine's figures; every measurement moves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.measurement.tuning.variants import Problem, Variant

Array = NDArray[np.float64]

#: Which loops move through each operand.
OPERANDS = {"a": "mk", "b": "kn", "c": "mn"}
#: The loop whose edge says how often a loaded element is used.
_REUSE = {"a": "n", "b": "m", "c": "k"}
#: How strongly rates are held to where they began, in measurements.
HELD = 0.3
#: What counts leave open varies smoothly with the choices: over this many doublings of an edge, and other choices count
#: as so many; as a natural logarithm, by so much, of which measuring is unsure by so much.
REACH, OTHER, OPEN, UNSURE = 2.0, 1.5, 0.4, 0.05


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine takes where nothing of a problem has been measured.

    Attributes:
        flop: For one operation [s].
        call: For a call of numpy, or to start a block [s].
        byte: To move a byte between the caches [s].
    """

    flop: float
    call: float
    byte: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of variants.

    Attributes:
        problem: What is multiplied.
        caches: Of one core, from the inside out [byte].
        rates: By kernel, one for each count.
    """

    problem: Problem
    caches: tuple[int, ...]
    rates: Mapping[str, Array]

    def seconds(self, variants: Sequence[Variant]) -> Array:
        """Predict the time of variants from their counts [s]."""
        kernels = np.array([each.kernel for each in variants])
        each = counts(self.problem, variants, self.caches)
        by_kernel = [(kernels == name) * (each @ rates) for name, rates in self.rates.items()]
        return np.asarray(sum(by_kernel))

    def expected(self, variants: Sequence[Variant], measured: Mapping[Variant, float]) -> tuple[Array, Array]:
        """Predict the time of variants beside others that were measured, and how unsure that is.

        What the counts leave open of the measured ones is spread to those that are like them: a Gaussian process on the
        logarithm (Rasmussen and Williams 2006, https://gaussianprocess.org/gpml, algorithm 2.1).

        Returns:
            Natural logarithms of seconds, and their standard deviations.
        """
        first = np.log(self.seconds(variants))
        if not measured:
            return first, np.full(len(variants), OPEN)
        known = list(measured)
        left = np.log(list(measured.values())) - np.log(self.seconds(known))
        own = OPEN**2 * _alike(known, known) + UNSURE**2 * np.eye(len(known))
        to_known = OPEN**2 * _alike(variants, known)
        solved = np.linalg.solve(own, np.concatenate([left[:, None], to_known.T], axis=1))
        variance = OPEN**2 - np.einsum("ij,ji->i", to_known, solved[:, 1:])
        return first + to_known @ solved[:, 0], np.sqrt(np.maximum(variance, 0.0))


def _alike(some: Sequence[Variant], others: Sequence[Variant]) -> Array:
    """Return how much alike variants are, from 0 to 1."""
    here, there = _places(some), _places(others)
    squared = ((here[:, None, :3] - there[None, :, :3]) / REACH) ** 2
    differ = (here[:, None, 3:] != there[None, :, 3:]) / OTHER**2
    return np.asarray(np.exp(-0.5 * (squared.sum(axis=2) + differ.sum(axis=2))))


def _places(variants: Sequence[Variant]) -> Array:
    """Return choices as numbers: doublings of the edges, then those that are only equal or not."""
    return np.array([
        [*np.log2([each.bm, each.bn, each.bk]), *map(ord, each.order), each.packed, each.unroll, len(each.kernel)]
        for each in variants
    ])  # fmt: skip


def counts(problem: Problem, variants: Sequence[Variant], caches: tuple[int, ...] = ()) -> Array:
    """Count what variants do, a row each: operations, steps, elements loaded and stored, changes, copies, overflows."""
    columns = {name: np.array([getattr(each, name) for each in variants]) for name in ("bm", "bn", "bk", "order")}
    edge = {axis: np.minimum(columns[f"b{axis}"], getattr(problem, axis)).astype(np.float64) for axis in "mnk"}
    trips = {axis: np.ceil(getattr(problem, axis) / columns[f"b{axis}"]) for axis in "mnk"}
    bytes_each = 4.0 if problem.dtype == "fp32" else 8.0
    elements = {name: edge[axes[0]] * edge[axes[1]] * bytes_each for name, axes in OPERANDS.items()}
    packed = np.array([each.packed for each in variants]) * float(problem.k * problem.n) * bytes_each
    held = [elements["b"], np.sum(list(elements.values()), axis=0)]  # read again for each row, or for each block
    work = np.full(len(variants), problem.flops)
    return np.stack(
        [
            work, trips["m"] * trips["n"] * trips["k"],
            *(work / edge[axis] * bytes_each for axis in _REUSE.values()),
            *(_changes(columns["order"], axes, trips) * elements[name] for name, axes in OPERANDS.items()),
            packed, *(work * bytes_each * (block > cache) for cache in caches for block in held),
        ], axis=1,
    )  # fmt: skip


def _changes(orders: Any, axes: str, trips: Mapping[str, Any]) -> Array:
    """Count how often the block of an operand changes: at each trip of its innermost loop, and of those around it."""
    changes = np.ones(len(orders))
    inner = np.zeros(len(orders), dtype=bool)  # whether a loop of the operand runs within
    for place in (2, 1, 0):
        for axis in "mnk":
            here = np.array([order[place] == axis for order in orders])
            inner |= here & (axis in axes) & (trips[axis] > 1)
            changes = np.where(here & inner, changes * trips[axis], changes)
    return changes


def begin(problem: Problem, rates: Mapping[str, Rates], caches: tuple[int, ...]) -> CostModel:
    """Return the model where nothing has been measured."""

    def first(each: Rates) -> Array:
        bytes_moved = [each.byte / 2] * 3 + [each.byte] * 4 + [each.byte / 1000] * 2 * len(caches)
        return np.array([each.flop, each.call, *bytes_moved])

    return CostModel(problem, caches, {kernel: first(each) for kernel, each in rates.items()})


def learned(prior: CostModel, measured: Mapping[Variant, float]) -> CostModel:
    """Return the model whose rates fit what was measured, held to those that it began with.

    Args:
        prior: The model that nothing has been measured for.
        measured: Seconds of variants.
    """
    rates = {name: _fitted(prior, name, first, measured) for name, first in prior.rates.items()}
    return CostModel(prior.problem, prior.caches, rates)


def _fitted(prior: CostModel, kernel: str, first: Array, measured: Mapping[Variant, float]) -> Array:
    """Ridge regression on relative errors, in units of the first rates, none below zero."""
    some = {variant: seconds for variant, seconds in measured.items() if variant.kernel == kernel}
    if not some:
        return first
    times = np.array(list(some.values()))
    rows = counts(prior.problem, list(some), prior.caches) * first / times[:, None]
    active = np.ones(len(first), dtype=bool)
    scale = np.zeros(len(first))
    while active.any():
        part = rows[:, active]
        held = HELD * np.eye(int(active.sum()))
        scale[:] = 0.0
        scale[active] = np.linalg.solve(part.T @ part + held, part.T @ np.ones(len(times)) + HELD)
        if np.all(scale >= 0):
            break
        active &= scale > 0
    return first * np.maximum(scale, 0.0)
