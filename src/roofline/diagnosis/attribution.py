"""Where the time of a traced iteration went: every launch and every gap is needed, or lost to a cause.

Groups of calls with a fault of their own come first (:mod:`~roofline.diagnosis.rules`). What is left of products is
held against the meant ones: more work, pieces, or slow. What is left of the other kernels is held against those of the
meant program: the rest is a chain that should be fewer kernels. Gaps have their reasons already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan

from roofline.diagnosis.context import SWEEPS, Scene, largest
from roofline.diagnosis.groups import PRODUCTS, Group
from roofline.diagnosis.rules import first_finding
from roofline.ir.units import format_si

#: A kernel may take so much longer than the model's best before anything is said about it.
TOLERANCE = 1.35
#: The meant kernels themselves may be so much slower than expected, without a cause.
SLOWER = 1.6
#: Clocks and power slow a chip down to no less than one part in so many.
THROTTLED = 3.0
#: So many times the meant contractions are more work than was asked for.
MORE_WORK = 1.3
#: So many times the meant launches are pieces; of the small kernels beside products, so many.
PIECES, SMALL_PIECES = 4, 20
#: Kernels shorter than this on average are launches more than work [s].
TINY = 8e-6
#: Kernels beside products that nobody asks about, as a share of all.
SMALL_CHANGE = 0.05
#: Parts of a cause that its evidence names.
NAMED = 3

#: The label of time that is not lost.
NEEDED = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of an iteration's time.

    Attributes:
        label: What it was lost to; :data:`NEEDED` where it was not.
        seconds: [s]; below zero where other parts of the label counted too much.
        evidence: What was seen.
    """

    label: str
    seconds: float
    evidence: str = ""


def take_apart(scene: Scene) -> list[Part]:
    """All parts of an iteration; together they are its time."""
    parts: list[Part] = []
    rest: list[Group] = []
    for one in scene.groups:
        found = first_finding(scene, one)
        if found is None:
            rest.append(one)
        else:
            parts += _split(one.seconds, *found)
    parts += _credit(scene, parts, "materialised", scene.budget("attention"), "less what attention takes anyway")
    parts += _products(scene, [one for one in rest if one.contracts])
    parts += _sweeps(scene, [one for one in rest if not one.contracts], parts)
    parts += _waits(scene)
    return parts + _credit(scene, parts, "wrong_device", _missing(scene), "less what the device would take")


def _split(spent: float, needed: float, label: str, evidence: str) -> list[Part]:
    kept = min(needed, spent)
    return [Part(NEEDED, kept), Part(label, spent - kept, evidence)]


def _credit(scene: Scene, parts: Sequence[Part], label: str, seconds: float, why: str) -> list[Part]:
    """What was needed of the time lost to a label is not lost."""
    part = min(seconds, sum(one.seconds for one in parts if one.label == label))
    return [Part(NEEDED, part), Part(label, -part, why)] if scene.meant is not None and part > 0 else []


def _missing(scene: Scene) -> float:
    """Time of meant contractions that the device did not do, so that they were done elsewhere [s]."""
    if scene.meant is None or not scene.flops:
        return 0.0
    done = sum(one.flops for one in scene.groups if one.role == "kernel")
    return max(1 - done / scene.flops, 0.0) * scene.budget(*PRODUCTS)


# --- kernels without a fault of their own ---


def _products(scene: Scene, groups: Sequence[Group]) -> list[Part]:
    """Products, convolutions and attention: too much work, pieces, or slow."""
    spent = sum(one.seconds for one in groups)
    if scene.meant is None:
        return [Part(NEEDED, spent)]
    budget, done = scene.budget(*PRODUCTS), sum(one.flops for one in groups)
    if done > MORE_WORK * scene.flops:
        why = f"{format_si(done, 'FLOP')} computed where {format_si(scene.flops, 'FLOP')} were meant"
        return _split(spent, min(spent * scene.flops / done, budget), "wasted_work", why)
    calls = sum(one.calls for one in groups)
    if calls >= PIECES * max(scene.launched, 1) and spent > TOLERANCE * budget:
        waiting = scene.idle.seconds.get("launch_bound", 0.0) > spent - budget
        why = f"{calls:g} calls where {scene.launched} were meant"
        return _split(spent, budget, "launch_bound" if waiting else "small_batch", why)
    best = max(sum(one.best for one in groups if not isnan(one.best)), budget)
    if spent and not best:  # no product was meant, and what ran has no formula
        return _split(spent, 0.0, "wasted_work", "products of unknown size where none were meant")
    if spent > TOLERANCE * best:
        label = "clock_or_power" if spent < THROTTLED * best else "kernel_choice"
        return _split(spent, best, label, f"products take {spent / best:.2g} times what they should")
    return [Part(NEEDED, spent)]


def _sweeps(scene: Scene, groups: Sequence[Group], before: Sequence[Part]) -> list[Part]:
    """Elementwise, row-wise and moving kernels: what the meant program has of them is needed, the rest is a chain."""
    spent = sum(one.seconds for one in groups)
    budget, launches = scene.budget(*SWEEPS), sum(one.launches for one in groups)
    few = launches <= scene.launches(*SWEEPS)
    if scene.meant is None or not spent or (few and spent <= SLOWER * budget):
        return [Part(NEEDED, spent)]
    needed = min(spent, max(budget, SMALL_CHANGE * sum(one.seconds for one in scene.groups)))
    label = "uncoalesced" if few else _label_of_rest(scene, launches, spent, before)
    lost = (spent - needed) / spent
    shares = [Part(label, one.seconds * lost, f"{one.op or one.kernel} on {largest(one)}") for one in groups]
    return [Part(NEEDED, needed), *shares]


def _label_of_rest(scene: Scene, launches: float, spent: float, before: Sequence[Part]) -> str:
    """What too many small kernels are a sign of."""
    if any(part.label == "wasted_work" for part in before):
        return "wasted_work"
    pieces = launches > SMALL_PIECES * max(scene.launched, 1) and spent < TINY * launches
    return "launch_bound" if pieces else "unfused"


# --- gaps ---

#: Operators of programs, rather than of preparing their inputs, when they are seen on the processor.
_PROGRAM = ("mm", "linear", "conv", "softmax", "attention", "norm", "embedding", "lstm", "gelu", "relu")


def _waits(scene: Scene) -> Iterator[Part]:
    for label, seconds in scene.idle.seconds.items():
        if label != "host_compute":
            yield Part(label, seconds, scene.idle.evidence[label])
            continue
        for name, part in scene.idle.heavy.items():
            program = any(word in name for word in _PROGRAM)
            yield Part("wrong_device" if program else "host_bound", part, f"{name} on the processor")


# --- sums ---


def needed(parts: Iterable[Part]) -> float:
    """Time that was not lost [s]."""
    return sum(part.seconds for part in parts if part.label == NEEDED)


def summed(parts: Sequence[Part]) -> Iterator[tuple[str, float, str]]:
    """Label, time and evidence of each cause, the most time first."""
    totals: dict[str, float] = {}
    for part in parts:
        if part.label != NEEDED:
            totals[part.label] = totals.get(part.label, 0.0) + part.seconds
    for label, seconds in sorted(totals.items(), key=lambda total: -total[1]):
        yield label, seconds, "; ".join(_largest(part for part in parts if part.label == label))


def _largest(parts: Iterable[Part]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for part in parts:
        seen[part.evidence] += part.seconds  # type: ignore[assignment]
    gains = [(text, seconds) for text, seconds in seen.most_common() if seconds > 0]
    for text, seconds in gains[:NAMED]:
        yield f"{text} ({format_si(seconds, 's')})"
    if more := gains[NAMED:]:
        yield f"{len(more)} more ({format_si(sum(seconds for _, seconds in more), 's')})"
    yield from (f"{text} ({format_si(-seconds, 's')})" for text, seconds in seen.items() if seconds < 0)
