"""Whether a plan computes what the program computes: both run in numpy, on a smaller program of the same layers.

The smaller program has two layers, the narrowest width that keeps its structure, and a few positions; the passes of the
plan are replayed on it. What a device or many of them would be needed for (sharding), what changes the function on
purpose (pruning) and how it runs are not replayed, and said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph
from roofline.ops.reference import Sameness, same
from roofline.optimization.rounding import state_error
from roofline.optimization.steps import RUN, State, Step, applied
from roofline.passes.rewriting.prune import prune

#: The smallest program: what stays of it, as long as it can be, and its sizes.
SMALLEST: Sequence[dict[str, int]] = ({"layers": 2}, {"hidden": 128}, {"channels": 256},
                                      *({"heads": heads} for heads in (2, 4, 8, 16)))  # fmt: skip
SIZES, POSITIONS = {"B": 1}, 8
#: The largest difference that passes may cause that only reorder sums, over the largest magnitude.
EXACT = 1e-6
#: Steps that are not replayed, with the reason.
LEFT_OUT = {"shard": "its devices would have to exchange results", "prune": "it changes the function on purpose"}


@dataclass(frozen=True, slots=True)
class Validation:
    """Whether a plan computes the same, on a smaller program.

    Part of what :func:`roofline.optimize` returns.

    Attributes:
        agrees: Whether it does but for rounding; ``None`` where nothing could be compared.
        difference: The largest difference of an output without rounding, over its largest magnitude; at most
            :data:`EXACT` counts as agreement.
        noise: Measured: over signal, of the layer that rounding changes most, numbers rounded as the formats say. The
            weights are random and the layers few, so it ranks formats; of trained weights :mod:`roofline.quant` says
            more.
        steps: Passes that were compared.
        remarks: What was left out, and why.
    """

    agrees: bool | None
    difference: float | None
    noise: float | None
    steps: int
    remarks: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return it as one table of plain types."""
        compared = {name: getattr(self, name) for name in ("agrees", "difference", "noise")}
        known = {key: value for key, value in compared.items() if value is not None}
        return {**known, "steps": self.steps, "remarks": list(self.remarks)}


def smaller(graph: Graph) -> Graph:
    """Return a program of the same layers, fewer and narrower, as far as its structure allows.

    Example:
        >>> import roofline as rl
        >>> smaller(rl.model("llama-3-70b")).parameters < 100e6
        True
    """
    heads = False
    for change in SMALLEST:
        if heads and "heads" in change:
            continue
        with suppress(RooflineError):
            graph, heads = prune(graph, **change), heads or "heads" in change  # type: ignore[arg-type]
    return graph


def validate(graph: Graph, steps: Sequence[Step]) -> Validation:
    """Compare a program with itself after the passes of a plan.

    Args:
        graph: The program as given.
        steps: Those of the plan.
    """
    remarks = [f"{step!r}: {LEFT_OUT[step.name]}" for step in steps if step.name in LEFT_OUT]
    passes = [step for step in steps if step.name != RUN and step.name not in LEFT_OUT]
    if not passes:
        return Validation(None, None, None, 0, (*remarks, "no pass to compare"))
    before = smaller(graph)
    sizes: dict[str, Any] = {name: SIZES.get(name, POSITIONS) for name in before.symbols}
    state = State(before)
    try:
        for step in passes:
            state = applied(state, step)
        exact = same(before, state.graph, tolerance=EXACT, **sizes)
        rounded = state_error(before, state) > 0
        noise = _noise(same(before, state.graph, rounding=True, **sizes)) if rounded else 0.0
    except RooflineError as error:
        return Validation(None, None, None, len(passes), (*remarks, f"not compared: {error}"))
    return Validation(bool(exact), exact.largest, noise, len(passes), tuple(remarks))


def _noise(compared: Sameness) -> float:
    """Return noise over signal of the output that differs most."""
    return max((10 ** (-compared.layers[name].sqnr_db / 20) for name in compared.differences), default=0.0)
