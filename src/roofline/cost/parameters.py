"""Parameters that the time model may be tuned by: prior, bounds, unit and meaning, in one table per group.

A chip's ``[efficiency.parameters]`` overrides priors; a parameter that it does not name keeps its prior, except that
the chip's own ``compute``, ``memory`` and ``launch`` shares stand in for the parameters that say ``follows`` them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from roofline.cost.machine import machine
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import ChipDataError, did_you_mean


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tunable figure.

    Attributes:
        prior: Its value where nothing was measured.
        low: Least sensible value; the fit stays above.
        high: Largest sensible value.
        unit: ``s``, ``share`` of a datasheet figure, ``elements``... Seconds scale with the clock in a transfer.
        meaning: What it is, in a sentence.
        follows: ``compute``, ``memory`` or ``launch`` where the chip's own figure is a better prior.
        times: What that figure is multiplied by on a GPU, whose kernels run in tiles.
    """

    prior: float
    low: float
    high: float
    unit: str
    meaning: str
    follows: str = ""
    times: float = 1.0

    def allows(self, value: float) -> bool:
        """Tell whether a value is within a thousand times its bounds, or switches off what it stands for."""
        off = value == 0 and self.unit != "share" and self.low < 1
        return off or self.low / 1000 <= value <= self.high * 1000


class Group(dict[str, Parameter]):
    """The parameters of a formula by name; equal only to itself, so that it can be a key."""

    def __init__(self, name: str, **parameters: Parameter) -> None:
        super().__init__(parameters)
        self.name = name

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__
    __ne__ = object.__ne__


@lru_cache(maxsize=4096)
def values(chip: Chip, group: Group, regime: str = "cold") -> Mapping[str, float]:
    """Return the parameters of a group for a chip.

    From the most to the least particular: the chip's own figures for this regime (``matmul_warm``), its own figures,
    those of the chip that it is ``like``, its general shares, and priors.

    Raises:
        ChipDataError: The chip's file names a parameter that does not exist.
    """
    known = fitted(chip, group, regime)
    for key, value in known.items():
        where = f"{chip.name}: [efficiency.parameters] {group.name}.{key}"
        if key not in group:
            raise ChipDataError(f"{where} is no parameter{did_you_mean(key, group)}")
        if not group[key].allows(value):
            raise ChipDataError(f"{where} is {value:g}; allowed: about {group[key].low:g} to {group[key].high:g}")

    def prior(parameter: Parameter) -> float:
        own: float | None = getattr(chip.efficiency, parameter.follows) if parameter.follows else None
        return parameter.prior if own is None else own * (parameter.times if machine(chip).is_gpu else 1.0)

    return MappingProxyType({key: known.get(key, prior(parameter)) for key, parameter in group.items()})


@lru_cache(maxsize=4096)
def fitted(chip: Chip, group: Group, regime: str = "cold") -> Mapping[str, float]:
    """Return those parameters of a group that are the chip's own, or of the chip that it is ``like``."""
    own = chip.efficiency.parameters
    return {**_of_sibling(chip, group, regime), **own.get(group.name, {}), **own.get(f"{group.name}_{regime}", {})}


def _of_sibling(chip: Chip, group: Group, regime: str) -> dict[str, float]:
    """Return a sibling's figures on this chip: shares as they are, seconds by the ratio of the clocks."""
    if not chip.efficiency.like:
        return {}
    sibling = find_chip(chip.efficiency.like)
    pace = sibling.clock / chip.clock if sibling.clock and chip.clock else 1.0
    tables = sibling.efficiency.parameters
    fitted = {**tables.get(group.name, {}), **tables.get(f"{group.name}_{regime}", {})}
    return {key: value * pace if key in group and group[key].unit == "s" else value for key, value in fitted.items()}
