"""What the time model may be tuned by: every parameter with its prior, bounds, unit and meaning, in one table a group.

A chip's ``[efficiency.parameters]`` overrides priors; a parameter that it does not name keeps its prior, except that
the chip's own ``compute``, ``memory`` and ``launch`` shares stand in for the parameters that say ``follows`` them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

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
    """

    prior: float
    low: float
    high: float
    unit: str
    meaning: str
    follows: str = ""


#: Parameters of each group; the modules of this package fill it.
GROUPS: dict[str, dict[str, Parameter]] = {}


def group(name: str, **parameters: Parameter) -> str:
    """Register the parameters of a group and return its name."""
    GROUPS[name] = parameters
    return name


def values(chip: Chip, name: str, regime: str = "cold") -> Mapping[str, float]:
    """The parameters of a group for a chip.

    From the most to the least particular: the chip's own figures for this regime (``matmul_warm``), its own figures,
    those of the chip that it is ``like``, its general shares, and priors.

    Raises:
        ChipDataError: The chip's file names a parameter that does not exist.
    """
    return _values(chip, name, regime)


@lru_cache(maxsize=4096)
def _values(chip: Chip, name: str, regime: str) -> Mapping[str, float]:
    own = chip.efficiency.parameters
    given = {**_of_sibling(chip, name), **own.get(name, {}), **own.get(f"{name}_{regime}", {})}
    known = GROUPS[name]
    for key in given:
        if key not in known:
            raise ChipDataError(
                f"{chip.name}: [efficiency.parameters] {name}.{key} is no parameter" + did_you_mean(key, known)
            )
    return MappingProxyType({key: given.get(key, _prior(chip, parameter)) for key, parameter in known.items()})


def _of_sibling(chip: Chip, name: str) -> dict[str, float]:
    """A sibling's figures on this chip: shares as they are, seconds by the ratio of the clocks."""
    if not chip.efficiency.like:
        return {}
    sibling = find_chip(chip.efficiency.like)
    pace = sibling.clock / chip.clock if sibling.clock and chip.clock else 1.0
    fitted = sibling.efficiency.parameters.get(name, {})
    return {
        key: value * pace if key in GROUPS[name] and GROUPS[name][key].unit == "s" else value
        for key, value in fitted.items()
    }


def _prior(chip: Chip, parameter: Parameter) -> float:
    return float(getattr(chip.efficiency, parameter.follows)) if parameter.follows else parameter.prior
