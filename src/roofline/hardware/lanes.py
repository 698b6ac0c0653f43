"""Many chips that differ in figures alone, worked out at once: a figure is an array with a lane for each chip.

Formulas of arrays need no change. Where one of them asks of a figure what has one answer (a condition, a whole number),
lanes with different answers part: :class:`Apart` says which go together, and :func:`in_lanes` works out each part by
itself. So every chip takes the way through the formulas that it would take alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.hardware.chip import Chip
from roofline.hardware.figures import Edit, altered
from roofline.hardware.parts import FrozenDict
from roofline.hardware.settings import Place, index_of

Floats = NDArray[np.float64]


class Apart(Exception):
    """Lanes have different answers to what has one.

    Attributes:
        first: Which of them have the answer of the first.
    """

    def __init__(self, first: NDArray[np.bool_]) -> None:
        super().__init__("lanes have to be worked out apart")
        self.first = first


class Lanes(np.ndarray):
    """An array along the chips, which may be asked for one answer."""

    def _one(self) -> Any:
        plain = self.view(np.ndarray).ravel()
        if plain.size > 1 and not (same := plain == plain[0]).all():
            raise Apart(same)
        return plain[0]

    def __bool__(self) -> bool:
        return bool(np.atleast_1d(self.view(np.ndarray) != 0).view(Lanes)._one())

    def __float__(self) -> float:
        return float(self._one())

    def __int__(self) -> int:
        return int(self._one())

    __index__ = __int__

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        result = super().__array_function__(func, types, args, kwargs)
        return result.view(Lanes) if type(result) is np.ndarray and result.ndim else result


class Chips(Chip):
    """Chips that differ in figures alone; equal only to itself."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def chips_of(base: Chip, figures: Mapping[Place, Floats]) -> Chip:
    """Return a chip whose figures at some places are arrays, a lane for each of many chips.

    Args:
        base: A chip that has these figures; everything else is as it is there.
        figures: Values in SI, of one length.
    """
    many: Chip = Chips.model_construct(**{name: getattr(base, name) for name in Chip.model_fields})
    for place, values in figures.items():
        many = altered(many, [_edit(many, place, np.array(values, dtype=np.float64).view(Lanes))], alone=True)
    return many


def _edit(chip: Chip, place: Place, value: Lanes) -> Edit:
    field, key, attribute = place
    if key is None:
        return field, None, "", value
    if field == "efficiency" and key:
        tables = chip.efficiency.parameters
        own = FrozenDict({**tables.get(str(key), {}), attribute: value})
        return field, "", "parameters", FrozenDict({**tables, str(key): own})
    return field, index_of(chip, place), attribute, value


def in_lanes(work: Callable[[NDArray[np.intp]], Mapping[str, Any]], lanes: NDArray[np.intp]) -> dict[str, Any]:
    """Work something out for many lanes, apart where they part.

    Args:
        work: Of the numbers of some lanes, arrays of a value for each by name.
        lanes: The numbers of all lanes.

    Returns:
        The same for all of them.
    """
    try:
        return dict(work(lanes))
    except Apart as apart:
        first = apart.first if apart.first.size == lanes.size else np.arange(lanes.size) < lanes.size // 2
    parts = [(where, in_lanes(work, lanes[where])) for where in (first, ~first)]
    whole: dict[str, Any] = {}
    for name in parts[0][1]:
        whole[name] = np.empty(lanes.size, dtype=np.result_type(*(part[name] for _, part in parts)))
        for where, part in parts:
            whole[name][where] = part[name]
    return whole
