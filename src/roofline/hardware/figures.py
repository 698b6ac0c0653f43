"""The one way to alter a chip: its figures are edited one by one, and one rule says what becomes of their provenance.

A what-if says that it is one: in its name, in the source of each figure (``what-if: was ...``) and in efficiencies,
which are no longer measured; remarks on the old figure (its sparse peak, the vendor's words) go with it. Its clock
stays: another peak is more or fewer units at that clock. An alteration that stands alone changes figures and nothing
else, so that what they buy can be told from what is known of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from roofline.hardware.parts import Efficiency, Frozen, FrozenDict, Peak
from roofline.ir import units
from roofline.ir.dtypes import DTYPES
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import UnknownDType, UsageError, did_you_mean

_Chip = TypeVar("_Chip", bound=Frozen)  # the chip's own module imports this one

#: A field of the chip, an entry of it (name, kind or number; "" for the first, ``None`` for the whole field), an
#: attribute (empty for the whole entry), and the value.
Edit = tuple[str, str | int | None, str, Any]

#: Keyword or TOML key -> (list, name of the entry, attribute) for the figures that have a flat spelling.
FLAT = {
    "memory_bandwidth": ("memory", "", "bandwidth"),
    "memory_capacity": ("memory", "", "capacity"),
    "l2": ("memory", "L2", "capacity"),
    "l2_bandwidth": ("memory", "L2", "bandwidth"),
    "sram": ("memory", "SRAM", "capacity"),
    "sram_bandwidth": ("memory", "SRAM", "bandwidth"),
    "link_bandwidth": ("links", "device", "bandwidth"),
    "host_bandwidth": ("links", "host", "bandwidth"),
}
UNITS = ("matrix", "vector")
#: Units of figures, by the attribute that holds them.
FIGURE_UNITS = {
    "flops": "FLOP/s", "sparse": "FLOP/s", "bandwidth": "B/s", "per_peer": "B/s", "capacity": "B", "clock": "Hz",
    "sram": "B", "sram_bandwidth": "B/s", "noc_bandwidth": "B/s",
    "channel_bandwidth": "B/s", "tdp": "W", "latency": "s", "launch": "s",
    "host": "s",
}  # fmt: skip

_WHAT_IF = " (what-if)"
#: Figures whose entry names a source, with their unit, and what a what-if forgets along with the old one.
_SOURCED: dict[str, tuple[str, dict[str, Any]]] = {
    "flops": ("FLOP/s", {"sparse": None, "note": ""}), "capacity": ("B", {"vendor": ""}),
    "bandwidth": ("B/s", {}),
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A figure of a chip that can be multiplied.

    Attributes:
        words: What it is.
        field: Where it stands.
        attributes: Those of an entry that change together.
        is_in: Whether an entry counts, by the chip, the entry's key and the entry.
        cost: Whether less of it is better.
    """

    words: str
    field: str
    attributes: tuple[str, ...]
    is_in: Callable[[Any, Any, Any], bool] = lambda *_: True
    cost: bool = False

    def edits(self, chip: Any, factor: float) -> list[Edit]:
        """Return the edits that multiply it; none where the chip does not list it."""
        parts = getattr(chip, self.field)
        if isinstance(parts, BaseModel):
            entries: Iterable[tuple[Any, Any]] = [("", parts)]
        else:
            entries = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        return [
            (self.field, key, name, old * factor)
            for key, entry in entries if self.is_in(chip, key, entry)
            for name in self.attributes if (old := getattr(entry, name)) is not None
        ]  # fmt: skip

    def known(self, chip: Any) -> bool:
        """Tell whether a chip lists it."""
        return bool(self.edits(chip, 1))


def _is_cache(chip: Any, _: int, level: Any) -> bool:
    return level is chip.cache


_LINK = ("bandwidth", "per_peer")
#: Figures by name; the matrix peak of each format is one more, ``peak_bf16``.
FIGURES: dict[str, Figure] = {
    "peak": Figure("matrix peaks", "matrix", ("flops",)),
    "vector_peak": Figure("vector peaks", "vector", ("flops",)),
    "memory_bandwidth": Figure("memory bandwidth", "memory", ("bandwidth",), lambda _, at, level: at == 0),
    "cache_capacity": Figure("capacity of the shared cache", "memory", ("capacity",), _is_cache),
    "cache_bandwidth": Figure("bandwidth of the shared cache", "memory", ("bandwidth",), _is_cache),
    "sram": Figure("capacity of all memory on the chip", "memory", ("capacity",), lambda _, at, level: at > 0),
    "link_bandwidth": Figure("links to other devices", "links", _LINK, lambda _, at, link: link.kind == "device"),
    "host_bandwidth": Figure("link to the host", "links", _LINK, lambda _, at, link: link.kind == "host"),
    "launch": Figure("fixed cost of a kernel", "efficiency", ("launch",), cost=True),
    "host": Figure("host time of a launch", "efficiency", ("host",), cost=True),
}
LINKS = Figure("all links", "links", _LINK)


def figure(name: str) -> Figure:
    """Return the figure of that name, one of :data:`FIGURES` or ``peak_bf16`` and the like.

    Raises:
        UsageError: There is none.
    """
    if name in FIGURES:
        return FIGURES[name]
    if name.startswith("peak_"):
        fmt = name.removeprefix("peak_")
        return Figure(f"{fmt} matrix peak", "matrix", ("flops",), lambda _, key, peak: key == fmt)
    allowed = [*FIGURES, "peak_bf16"]
    raise UsageError(f"unknown figure {name!r}; allowed: {', '.join(allowed)}{did_you_mean(name, allowed)}")


def replacements(chip: Any, figures: Mapping[str, Any]) -> Iterator[Edit]:
    """Return the edits of :meth:`Chip.replace`."""
    for key, value in figures.items():
        if key in FLAT:
            yield (*FLAT[key], value)
        elif key in UNITS and isinstance(value, dict):
            yield from (_peak(chip, key, _peak_name(chip, name), peak) for name, peak in value.items())
        elif key == "efficiency" and isinstance(value, dict):
            old = chip.efficiency.model_dump()
            yield key, None, "", old | {"calibrated": "prior", "source": f"what-if: was {old['source']}"} | value
        elif key == "host":  # the figure of the time model that a user may know: a call of an eager program
            yield "efficiency", None, "", chip.efficiency.model_dump() | {key: value}
        elif key in type(chip).model_fields:
            yield key, None, "", value
        else:
            name = _peak_name(chip, key)
            yield _peak(chip, "vector" if name in chip.vector and name not in chip.matrix else "matrix", name, value)


def _peak(chip: Any, unit: str, name: str, value: Any) -> Edit:
    return unit, name, "" if isinstance(value, dict | Peak) else "flops", value


def _peak_name(chip: Any, key: str) -> str:
    try:
        return find_dtype(key).name
    except UnknownDType:
        allowed = [*FLAT, "host", *type(chip).model_fields]
        near = did_you_mean(key, [*allowed, *DTYPES])
        raise UsageError(
            f"replace: unknown figure {key!r}; allowed: {', '.join(allowed)} or a number format{near}"
        ) from None


def altered(chip: _Chip, edits: Iterable[Edit], *, alone: bool = False) -> _Chip:
    """Return a chip with edited figures.

    Args:
        chip: The chip.
        edits: What to change, in this order.
        alone: Whether everything else stays as it is, the chip's name and all provenance too, and values are taken
            unchecked; a what-if otherwise.

    Raises:
        ChipDataError: A value of a what-if that cannot be.
    """
    before: dict[str, Any] = {key: getattr(chip, key) for key in type(chip).model_fields}
    fields = dict(before)
    touched = set()
    for field, key, attribute, value in edits:
        fields[field] = value if key is None else _with(fields[field], key, attribute, value, alone)
        touched.add(field)
    if alone:
        return chip.model_copy(update={field: fields[field] for field in touched})
    name = f"{str(fields['name']).removesuffix(_WHAT_IF)}{_WHAT_IF}"
    fields |= {"name": name} if "aliases" in touched else {"name": name, "aliases": ()}
    if before["efficiency"].calibrated == "measured" and touched - {"name", "notes", "efficiency"}:
        known = fields["efficiency"]
        known = known.model_dump() if isinstance(known, Efficiency) else dict(known)
        source = f"from the chip before the what-if: {known.get('source', '')}"
        fields["efficiency"] = known | {"calibrated": "transferred", "held_out_error": None, "source": source}
    return type(chip)(**fields)


def _with(parts: Any, key: str | int, attribute: str, value: Any, alone: bool) -> Any:
    """Return a field with one entry edited, or added."""
    if isinstance(parts, BaseModel):
        head, _, rest = attribute.partition(".")
        return parts.model_copy(update={head: _with(getattr(parts, head), key, rest, value, alone) if rest else value})
    if isinstance(parts, Mapping):
        return FrozenDict({**parts, key: _edited(parts.get(key), {}, attribute, value, alone) if attribute else value})
    entries = list(parts)
    if isinstance(key, str):
        dumps = [entry.model_dump() if isinstance(entry, BaseModel) else entry for entry in entries]
        matches = (at for at, entry in enumerate(dumps) if key in ("", entry["name"], entry.get("kind")))
        at = next(matches, len(entries))
    else:
        at = key
    entry = entries[at] if at < len(entries) else None
    entries[at:at + 1] = [_edited(entry, named(str(key)), attribute, value, alone)]  # fmt: skip
    return tuple(entries)


def _edited(entry: Any, new: dict[str, Any], attribute: str, value: Any, alone: bool) -> Any:
    if alone:
        return entry.model_copy(update={attribute: value})
    if entry is None:
        return new | {attribute: value, "source": "what-if: new"}
    old = entry.model_dump() if isinstance(entry, BaseModel) else entry
    if attribute not in _SOURCED:
        return old | {attribute: value}
    unit, forgotten = _SOURCED[attribute]
    was, source = old.get(attribute), old["source"].removeprefix("what-if: ")
    text = f"was {units.format_si(was, unit, 4)} ({source})" if isinstance(was, float) else "new"
    return old | forgotten | {attribute: value, "source": f"what-if: {text}"}


def named(which: str) -> dict[str, Any]:
    """Return the start of an entry that is called so, or is of that kind."""
    return {"name": which or "memory"} | ({"kind": which} if which in ("device", "host") else {})
