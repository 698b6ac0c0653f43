"""Figures of a chip set by name, as a person types them: ``sram=4MiB``, ``bf16=1200TFLOP/s``, ``memory_bandwidth=x2``.

A name is a short one (``cores``, ``sram``, ``l2``, ``memory_bandwidth``, ``link_bandwidth``, a number format for its
peak), a memory level's own for its capacity (``vmem``, ``vmem_bandwidth``), or the path of a figure in a chip's file
(``memory.L2.capacity``, ``matrix.bf16.flops``, ``efficiency.memory``, ``efficiency.matmul.share``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from roofline.hardware.chip import Chip
from roofline.hardware.figures import FIGURE_UNITS, FIGURES, FLAT, UNITS, Edit, altered, replacements
from roofline.ir import units
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import MissingFigure, UnitError, UnknownDType, UsageError, did_you_mean
from roofline.ir.text import shown

#: Figures of the chip itself.
_OWN = ("cores", "clock", "tdp", "clock_slack")
#: Figures of a grid of cores: counts, and others.
_COUNTS = ("rows", "columns", "lanes", "channels", "engine.count", "engine.load")
_GRID = (*_COUNTS, "sram", "sram_bandwidth", "noc_bandwidth", "channel_bandwidth")
#: What a path may end in where it names an entry alone.
_USUAL = {"matrix": "flops", "vector": "flops"}
_RELATIVE = re.compile(r"\s*(?:[x×]\s*([0-9][0-9.eE+-]*)|([0-9][0-9.eE+-]*)\s*[x×])\s*")


class Place(NamedTuple):
    """Where a figure stands: a field of the chip, an entry of it (``None``: the field itself), an attribute."""

    field: str
    key: str | int | None
    attribute: str

    @property
    def unit(self) -> str:
        """The unit of its values, ``""`` for a plain number."""
        fitted = self.field == "efficiency" and self.key  # in the units of the time model
        return "" if fitted else FIGURE_UNITS.get(self.attribute or self.field, "")

    @property
    def is_count(self) -> bool:
        """Tell whether its values are whole numbers."""
        return self.field == "cores" or (self.field == "grid" and self.attribute in _COUNTS)

    def value(self, chip: Chip) -> float | None:
        """Return the figure as it is now, ``None`` where the chip does not list it."""
        entry = getattr(chip, self.field)
        if self.key is None:
            return None if entry is None else float(entry)
        if self.field == "grid":
            return None if entry is None else float(attrgetter(self.attribute)(entry) or 0) or None
        if self.field == "efficiency":
            entry = entry.parameters.get(self.key, {}) if self.key else entry
        else:
            entry = next((part for keys, part in _entries(chip, self.field) if self.key in keys), None)
        figure = entry.get(self.attribute) if isinstance(entry, Mapping) else getattr(entry, self.attribute, None)
        return None if figure is None else float(figure)

    def edits(self, chip: Chip, value: float) -> Iterator[Edit]:
        """Return what gives it a value."""
        if self.field == "grid":
            assert chip.grid is not None
            yield "grid", None, "", _nested(chip.grid, self.attribute, value)
        elif self.field != "efficiency":
            yield (self.field, self.key, self.attribute, value)
        elif self.attribute == "host" and not self.key:
            yield from replacements(chip, {"host": value})
        else:
            tables = chip.efficiency.parameters
            own = {**tables.get(str(self.key), {}), self.attribute: value}
            changed: dict[str, Any] = {**tables, str(self.key): own}
            nested: dict[str, Any] = {"parameters": changed} if self.key else {self.attribute: value}
            yield from replacements(chip, {"efficiency": nested})

    def __str__(self) -> str:
        return ".".join(str(part) for part in self if part not in (None, ""))


def _nested(part: BaseModel, path: str, value: float) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return part.model_dump() | {head: _nested(getattr(part, head), rest, value) if rest else value}


def with_settings(chip: Chip, settings: Iterable[str]) -> Chip:
    """Return a what-if copy of a chip with figures as they are typed.

    Args:
        chip: The chip.
        settings: Such as ``"sram=4MiB"``, ``"bf16=1200 TFLOP/s"``, ``"memory_bandwidth=x2"``, one after the other.

    Raises:
        UsageError: No figure of that name, or no value.
        UnitError: A value without its unit, or of another one.
        ChipDataError: A value that cannot be.
        MissingFigure: A factor on a figure that the chip does not list.

    Example:
        >>> from roofline.hardware.library import chip
        >>> with_settings(chip("h100-sxm"), ["memory_bandwidth=x2", "bf16=1200TFLOP/s"]).ridge("bf16")
        179.1044776119403
    """
    for text in settings:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise UsageError(f"set {shown(text)}: expected NAME=VALUE, such as sram=4MiB or memory_bandwidth=x2")
        chip = with_figure(chip, name.strip(), value.strip())
    return chip


def with_figure(chip: Chip, name: str, value: str | float) -> Chip:
    """Return a what-if copy of a chip with one figure at a value: text, a factor such as ``"x2"``, or SI."""
    places, factor = placed(chip, name, value)
    new = [(place, _new(chip, place, name, value, factor)) for place in places]
    for place, number in new:  # one after the other: an edit of the efficiency is of its whole table
        chip = altered(chip, place.edits(chip, number))
    return chip


def change(chip: Chip, setting: str) -> str:
    """Say what a setting changes.

    Example:
        >>> from roofline.hardware.library import chip
        >>> change(chip("h100-sxm"), "memory_bandwidth=x2")
        'memory_bandwidth x2 (was 3.35 TB/s)'
    """
    name, _, value = (part.strip() for part in setting.partition("="))
    olds = [(place, place.value(chip)) for place in placed(chip, name, value)[0] if place.attribute != "sparse"]
    was = ", ".join("not listed" if old is None else units.format_si(old, place.unit, 4).strip() for place, old in olds)
    return f"{name} {value} (was {was})"


def placed(chip: Chip, name: str, value: str | float) -> tuple[list[Place], float | None]:
    """Return where a figure stands, and the factor that a relative value is.

    Raises:
        UsageError: No figure of that name, or several where one value is given.
        MissingFigure: A factor on what the chip does not list.
    """
    factor = factor_of(value)
    if factor is None:
        return [place_of(chip, name)], None
    every = _together(chip, name)
    every += [place._replace(attribute="sparse") for place in every if place.attribute == "flops"]  # in proportion
    places = [place for place in every if place.value(chip) is not None]
    if not places:
        raise MissingFigure(f"set {name}={value}: {chip.name} lists no such figure that a factor could change")
    return places, factor


def factor_of(value: object) -> float | None:
    """Return the factor that a text such as ``"x2"`` gives, ``None`` where it gives none.

    Example:
        >>> factor_of("x2"), factor_of("0.5x"), factor_of("2 TB/s")
        (2.0, 0.5, None)
    """
    match = _RELATIVE.fullmatch(value) if isinstance(value, str) else None
    return _number(match[1] or match[2], str(value)) if match else None


def place_of(chip: Chip, name: str) -> Place:
    """Return where the one figure of that name stands.

    Raises:
        UsageError: There is none, or several.
    """
    places = _one(chip, name) or _together(chip, name)
    if not places:
        raise MissingFigure(f"set {name}: {chip.name} lists none; name one, such as bf16")
    if len(places) > 1:
        raise UsageError(f"set {name}: stands for {', '.join(map(str, places))}; name one, or give a factor such as x2")
    return places[0]


def _new(chip: Chip, place: Place, name: str, value: str | float, factor: float | None) -> float:
    """Return the new value of a figure in SI."""
    if factor is not None:
        number = factor * (place.value(chip) or 0.0)
        return round(number) if place.is_count else number
    return value_of(place, name, value)


def value_of(place: Place, name: str, value: str | float) -> float:
    """Return a value of a figure in SI.

    Raises:
        UnitError: No number, or a text without the unit.
    """
    if place.unit:
        return units.parse(value, place.unit, f"set {name}")
    number = _number(value, f"{name}={value}")
    return int(number) if number.is_integer() else number


def _number(value: str | float, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) <= units.LARGEST:
        raise UnitError(f"set {shown(where)}: expected a number, or a factor such as x2")
    return number


# --- names ------------------------------------------------------------------------------------------------------------


def _one(chip: Chip, name: str) -> list[Place]:
    """Return where an absolute value of a name stands; nothing where the name is of several figures, or of none."""
    key = name.lower()
    if key == "sram":
        return [_sram(chip)]
    if key in FLAT and not _level(chip, key.removesuffix("_bandwidth")):
        return [Place(*FLAT[key])]
    if key == "host":
        return [Place("efficiency", "", "host")]
    if key in _OWN:
        return [Place(key, None, "")]
    stem = key.removesuffix("_bandwidth")
    if level := _level(chip, stem):
        return [Place("memory", level, "capacity" if stem == key else "bandwidth")]
    return _peak(chip, key.removeprefix("peak_")) if "." not in key else []


def _together(chip: Chip, name: str) -> list[Place]:
    """Return all figures that a name stands for.

    Raises:
        UsageError: None.
    """
    figure = FIGURES.get(name.lower())
    if figure is not None:
        every = [Place(field, key, attribute) for field, key, attribute, _ in figure.edits(chip, 1.0)]
        fitted = chip.efficiency.parameters if name == "launch" else {}
        return every + [Place("efficiency", group, "launch") for group, own in fitted.items() if "launch" in own]
    return _one(chip, name) or [_path(chip, name)]


def _sram(chip: Chip) -> Place:
    """The memory on the chip: the level of that name, else what all cores share, else the first level after main."""
    levels = [level for level in chip.memory[1:] if level.name.lower() == "sram"]
    levels += [each for each in (chip.cache, *chip.memory[1:2]) if each is not None]
    return Place("memory", levels[0].name if levels else "SRAM", "capacity")


def _level(chip: Chip, name: str) -> str:
    """Return the name of a memory level, however spelled; empty where there is none."""
    return next((level.name for level in chip.memory if level.name.lower() == name.lower()), "")


def _peak(chip: Chip, name: str) -> list[Place]:
    try:
        fmt = find_dtype(name).name
    except UnknownDType:
        return []
    return [Place("vector" if fmt in chip.vector and fmt not in chip.matrix else "matrix", fmt, "flops")]


def _path(chip: Chip, name: str) -> Place:
    """Return where a path of a chip's file leads.

    Raises:
        UsageError: Nowhere.
    """
    field, _, rest = name.partition(".")
    if field == "efficiency" and rest:
        group, _, attribute = rest.removeprefix("parameters.").rpartition(".")
        if group in chip.efficiency.parameters or (not group and attribute in _numbers(chip.efficiency)):
            return Place("efficiency", group, attribute)
    elif field == "grid" and chip.grid is not None and rest in _GRID:
        return Place("grid", "", rest)
    elif field in ("memory", "links", *UNITS) and rest:
        for keys, entry in _entries(chip, field):
            for key in filter(None, map(str, keys)):
                if (place := _ending(field, key, rest, entry)) is not None:
                    return place
        if field in UNITS and (new := _peak(chip, rest.removesuffix(".flops"))):
            return Place(field, new[0].key, "flops")
    allowed = names(chip)
    raise UsageError(
        f"set {shown(name)}: {chip.name} has no such figure; allowed: {', '.join(allowed)}, a number format, or a "
        f"path{did_you_mean(name, [*allowed, *paths(chip)])}"
    )


def _ending(field: str, key: str, rest: str, entry: Any) -> Place | None:
    if rest.lower() == key.lower() and field in _USUAL:
        return Place(field, key, _USUAL[field])
    attribute = rest[len(key) + 1 :]
    matches = rest.lower().startswith(f"{key.lower()}.") and attribute in FIGURE_UNITS
    return Place(field, key, attribute) if matches and attribute in type(entry).model_fields else None


def _entries(chip: Chip, field: str) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield the names of each entry of a table or a list, and the entry."""
    parts = getattr(chip, field)
    if isinstance(parts, Mapping):
        yield from (((key,), part) for key, part in parts.items())
        return
    for at, part in enumerate(parts):
        kind = (part.kind,) if hasattr(part, "kind") else ()
        yield (part.name, *kind, *([""] if at == 0 and not kind else []), at), part


def index_of(chip: Chip, place: Place) -> str | int | None:
    """Return the number of an entry of a list, the key of any other."""
    if not isinstance(getattr(chip, place.field), tuple):
        return place.key
    return next((at for at, (keys, _) in enumerate(_entries(chip, place.field)) if place.key in keys), place.key)


def _numbers(part: BaseModel) -> list[str]:
    return [name for name in type(part).model_fields if isinstance(getattr(part, name), float)]


def names(chip: Chip) -> list[str]:
    """Return the short names of a chip's figures."""
    levels = [level.name.lower() for level in chip.memory[1:]]
    return list(dict.fromkeys([*FLAT, *FIGURES, *_OWN, *levels, *chip.matrix, *chip.vector]))


def paths(chip: Chip) -> list[str]:
    """Return the paths of a chip's figures."""
    every = [f"efficiency.{name}" for name in _numbers(chip.efficiency)]
    every += [f"efficiency.{group}.{name}" for group, own in chip.efficiency.parameters.items() for name in own]
    every += [f"grid.{name}" for name in _GRID if chip.grid is not None]
    for field in ("memory", "links", *UNITS):
        for keys, part in _entries(chip, field):
            every += [f"{field}.{keys[0]}.{name}" for name in _numbers(part) if name in FIGURE_UNITS]
    return every
