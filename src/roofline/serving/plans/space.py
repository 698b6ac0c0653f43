"""What a search for a deployment looks at: layouts of a model, and the number formats that a chip has units for."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from roofline.frontends.source import Program
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import NODE
from roofline.ir.errors import RooflineError, UsageError
from roofline.serving.deployment import ACTIVATIONS, Deployment, deployment, has_experts
from roofline.serving.plans.flags import Server, lacks

#: Tokens of a step of a group at most that are looked at.
CHUNKS = (1024, 2048, 4096, 8192, 16384)
#: Degrees of parallelism that are looked at.
POWERS = (1, 2, 4, 8)
#: Formats of weights that are looked at, ``""`` for the model's own: those that multiply in their own units, and the
#: groups of four bits that every chip can store.
WEIGHTS = ("", "fp8", "nvfp4", "int8", "int4-g128")
#: Formats of the cache that servers have; ``""`` for the model's own.
CACHES = ("", "fp8")


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        chips: Where.
        counts: Chips of a whole arrangement, in order.
        tp: Devices that share every layer of a group.
        pp: Stages.
        attention_dp: Groups that attend to sequences of their own, of a model with experts.
        weights: Formats of weights, ``""`` for the model's own; ``None`` for all that a chip has units for.
        cache: Formats of the cache, likewise.
        chunks: Tokens of a step of a group at most.
        points: Numbers of users that are looked at between one and what fits.
        split: Whether servers that read prompts and others that decode are looked at.
    """

    chips: tuple[Chip, ...]
    counts: tuple[int, ...]
    tp: tuple[int, ...] = POWERS
    pp: tuple[int, ...] = (1, 2)
    attention_dp: tuple[int, ...] = POWERS
    weights: tuple[str, ...] | None = None
    cache: tuple[str, ...] | None = None
    chunks: tuple[int, ...] = CHUNKS
    points: int = 64
    split: bool = True

    @property
    def most(self) -> int:
        """The most chips of an arrangement."""
        return self.counts[-1]


def formats(chip: Chip, space: Space) -> list[tuple[str, str]]:
    """Return formats of weights and cache that a chip runs, of those that are asked for or of all.

    Args:
        chip: Where.
        space: What is asked for.

    Example:
        >>> import roofline as rl
        >>> formats(rl.chip("a100-80gb-sxm"), Space((), (1,)))
        [('', ''), ('int8', ''), ('int4-g128', '')]
    """
    weights = [one for one in WEIGHTS if _has(chip, one)] if space.weights is None else list(space.weights)
    if space.weights is None and "fp8" in weights:  # as wide as int8, and what servers use where there are both
        weights.remove("int8")
    caches = [one for one in CACHES if not one or _has(chip, one)] if space.cache is None else list(space.cache)
    return list(product(weights, caches))


def _has(chip: Chip, name: str) -> bool:
    """Tell whether a chip multiplies in a format, or weights of it only have to be stored."""
    multiplies = ACTIVATIONS.get(name)
    if multiplies is None:
        return True
    with suppress(RooflineError):
        return bool(chip.matmul_peak("fp4" if multiplies == "nvfp4" else multiplies))
    return False


def _no_units(chip: Chip, name: str) -> str:
    has = [one or "own" for one in WEIGHTS if _has(chip, one)]
    return f"{chip.name} does not multiply in {name}; --weights, in Python weights: allowed: {', '.join(has)}"


def engines(model: Program, space: Space, fixed: Mapping[str, Any]) -> Iterator[Deployment]:
    """Yield the servers of a space, each by layout and formats, with the first of its chunks.

    A group whose devices share layers or experts stays within a node of eight; more chips are more stages or servers.

    Args:
        model: A name or a path.
        space: What is searched.
        fixed: Other options of :func:`roofline.serving.deployment`.

    Raises:
        UsageError: No layout at all; the reason of the first.
    """
    reasons, some = list[str](), False
    for chip in space.chips:
        for (weights, cache), layout in product(formats(chip, space), _layouts(model, space, fixed)):
            try:
                if not (_has(chip, weights) or fixed.get("activations")):
                    raise UsageError(_no_units(chip, weights))
                options = {**fixed, **layout, "chunk": space.chunks[0]}
                one = deployment(model, chip, **options, weights=weights or None, cache=cache or None)
                if none := lacks(
                    Server("", one.tp, one.pp, one.ep, one.attention_dp, one.weights, one.cache), one.backend
                ):
                    raise UsageError(f"{one.backend} {none[0]}")
                one.steps()
                yield one
                some = True
            except RooflineError as error:  # heads that do not divide, a format that the model or the chip has not
                reasons.append(str(error))
    if not some:
        raise UsageError(reasons[0] if reasons else f"no layout of at most {space.most} chips; allowed: more --counts")


def _layouts(model: Program, space: Space, fixed: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    experts = has_experts(cast(Hashable, model), fixed.get("dtype"))
    for tp, pp, groups in product(space.tp, space.pp, space.attention_dp if experts else (1,)):
        stage = tp * groups
        if stage <= NODE and stage * pp <= space.most:
            for ep in sorted({1, stage}) if experts else (1,):
                yield {"tp": tp, "pp": pp, "attention_dp": groups, "ep": ep}


def users_up_to(most: int, points: int) -> Sequence[int]:
    """Return numbers of users from one to the most, as many as ``points`` or fewer, in even ratios.

    Example:
        >>> users_up_to(40, 6)
        [1, 2, 4, 9, 19, 40]
    """
    ratio = most ** (1 / max(points - 1, 1))
    return sorted({min(round(ratio**i), most) for i in range(points)} | {most})
