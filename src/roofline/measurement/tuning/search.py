"""Which variants to measure next: all of them, some at random, or those that a learning cost model expects most of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from roofline.measurement.tuning.model import Array, CostModel, learned
from roofline.measurement.tuning.variants import FIELDS, Variant, crossed, neighbours

#: Variants that are measured between two fits of the model, and those among them that are drawn at random.
BATCH, DRAWN = 6, 1
#: The best that children come from, and children by crossing.
PARENTS, CROSSINGS = 6, 24
#: Standard deviations that an expectation is lowered by: what is unsure may be good.
HOPE = 2.0


@dataclass(frozen=True)
class Known:
    """What a search knows.

    Attributes:
        space: All variants.
        prior: The cost model before anything was measured.
        measured: Seconds of those that were.
        seeds: Variants that were good elsewhere, or before: candidates like all others.
    """

    space: tuple[Variant, ...]
    prior: CostModel
    measured: Mapping[Variant, float]
    seeds: tuple[Variant, ...] = ()


#: What to measure next, the most promising first; nothing where all is measured.
Method = Callable[[Known, np.random.Generator], list[Variant]]


def evolution(known: Known, draw: np.random.Generator) -> list[Variant]:
    """Rank children of the best, the model's own favourites and seeds by the model as far as it has learned."""
    every = frozenset(known.space)
    model = learned(known.prior, known.measured)
    left = [each for each in known.space if each not in known.measured]
    if not left:
        return []
    best = sorted(known.measured, key=known.measured.__getitem__)[:PARENTS]
    favourites = [left[at] for at in np.argsort(_hopes(model, left, known.measured), kind="stable")[: 4 * BATCH]]
    children = {child for parent in best for child in neighbours(parent, every)} | set(_crossings(best, every, draw))
    pool = [each for each in dict.fromkeys([*favourites, *sorted(children), *known.seeds])
            if each in every and each not in known.measured]  # fmt: skip
    chosen = _chosen(model, pool, known.measured) + [left[int(at)] for at in draw.integers(len(left), size=DRAWN)]
    return list(dict.fromkeys(chosen))


def _chosen(model: CostModel, pool: Sequence[Variant], measured: Mapping[Variant, float]) -> list[Variant]:
    """Choose one after the other as if each took what is expected of it, so that those like it say less."""
    believed, chosen = dict(measured), list[Variant]()
    for _ in range(min(BATCH - DRAWN, len(pool))):
        expected, unsure = model.expected(pool, believed)
        hopes = np.where([each in believed for each in pool], np.inf, expected - HOPE * unsure)
        at = int(hopes.argmin())
        chosen.append(pool[at])
        believed[pool[at]] = float(np.exp(expected[at]))
    return chosen


def _hopes(model: CostModel, variants: Sequence[Variant], measured: Mapping[Variant, float]) -> Array:
    expected, unsure = model.expected(variants, measured)
    return expected - HOPE * unsure


def _crossings(best: Sequence[Variant], every: frozenset[Variant], draw: np.random.Generator) -> Iterator[Variant]:
    if len(best) < 2:
        return
    for _ in range(CROSSINGS):
        first, second = draw.choice(len(best), size=2, replace=False)
        child = crossed(best[int(first)], best[int(second)], list(map(bool, draw.integers(2, size=len(FIELDS)))))
        if child in every:
            yield child


def at_random(known: Known, draw: np.random.Generator) -> list[Variant]:
    """Draw variants without looking: what a search must beat."""
    left = [each for each in known.space if each not in known.measured]
    return [left[at] for at in draw.permutation(len(left))[:BATCH]]


def exhaustive(known: Known, draw: np.random.Generator) -> list[Variant]:
    """Measure everything, in an order that mixes good and bad so that a slow minute of the machine hits all alike."""
    left = (known.space[at] for at in np.random.default_rng(0).permutation(len(known.space)))
    return list(islice((each for each in left if each not in known.measured), 64))


METHODS: dict[str, Method] = {"evolution": evolution, "random": at_random, "exhaustive": exhaustive}
