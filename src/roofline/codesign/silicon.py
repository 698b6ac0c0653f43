"""Area, cost and energy of a chip, part by part: what its figures take in a technology, and what nobody published.

Every part is counted in transistors at the density of the node, in bits, or in units of an interface, as the cost model
of LLMCompass does (Zhang et al., ISCA 2024, https://arxiv.org/abs/2312.03134); see :mod:`technology.toml` for each
figure. A chip may have arrays of many chips for its figures (:mod:`roofline.hardware.lanes`); so have the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import pi
from typing import Any

import numpy as np

from roofline.codesign.technology import Technology, technology
from roofline.counting.grid import plain
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import UsageError
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.ops.elements import E4M3, E5M2, WIDE

#: Bits of the mantissa of a format, or of an integer; of what is not here nobody published how large a unit is.
MANTISSA = {**WIDE, "fp8": E4M3.mantissa, "fp8_e5m2": E5M2.mantissa}
INTEGER = {"int32": 32, "int8": 8, "int4": 4}
YIELDS = ("negative_binomial", "poisson", "murphy")
#: Diameter of a wafer [mm], and the largest die that a scanner exposes, 26 x 33 [mm2].
WAFER, RETICLE = 300.0, 858.0
Amount = Any


@dataclass(frozen=True, eq=False, repr=False)
class Silicon(Report):
    """What a chip takes, from :func:`silicon`.

    Attributes:
        chip: The chip.
        technology: In which it is built.
        parts: Area by part [mm2]; numbers, or arrays over many chips.
        left_out: Parts without a published figure.
        yield_model: How defects become yield.
        dies: Dies of equal size that it is cut into.
    """

    schema = "silicon"

    chip: Chip
    technology: Technology
    parts: Mapping[str, Amount]
    left_out: tuple[str, ...]
    yield_model: str = YIELDS[0]
    dies: int = 1

    @property
    def area(self) -> Amount:
        """Area of all parts that have a figure [mm2]."""
        return plain(np.asarray(sum(self.parts.values())))

    @property
    def can_be_made(self) -> Amount:
        """True where a scanner exposes a die of its size."""
        return np.asarray(self.area) / self.dies <= RETICLE

    @property
    def yield_(self) -> Amount:
        """Share of dies without a defect."""
        return die_yield(self.area / self.dies, self.technology, self.yield_model)

    @property
    def die_cost(self) -> Amount:
        """Price of the good dies [USD]."""
        each = self.area / self.dies
        wafer = self.technology.figure("node", "wafer") or np.nan
        return self.dies * wafer / (dies_per_wafer(each) * self.yield_)

    @property
    def memory_cost(self) -> Amount:
        """Price of main memory [USD]."""
        return (self.technology.figure("memory", "price") or np.nan) * self.chip.capacity / 1e9

    @property
    def cost(self) -> Amount:
        """Price of the dies and of main memory, without package, test and board, for which nobody states one [USD]."""
        return self.die_cost + self.memory_cost

    def subject(self) -> dict[str, Any]:
        """Return the chip and its technology."""
        return {"chip": self.chip.name, "node": self.technology.node, "memory_kind": self.technology.memory}

    def summary(self) -> dict[str, Any]:
        """Return area, yield and cost, and what is left out."""
        return {"area_mm2": float(self.area), "dies": self.dies, "can_be_made": bool(self.can_be_made),
                "yield": float(self.yield_),
                "die_cost_usd": float(self.die_cost), "memory_cost_usd": float(self.memory_cost),
                "cost_usd": float(self.cost), "left_out": list(self.left_out)}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per part, the largest first."""
        rows = [{"part": name, "area_mm2": float(area), "share": float(area / self.area)}
                for name, area in self.parts.items()]  # fmt: skip
        return sorted(rows, key=lambda row: -row["area_mm2"])

    def __repr__(self) -> str:
        what = f"{self.area:.0f} mm2, {self.cost:,.0f} USD" if np.ndim(self.area) == 0 else f"{len(self.area):,} chips"
        return f"<Silicon of {self.chip.name} in {self.technology.node}: {what}>"


def silicon(
    chip: AnyChip,
    node: str | Technology = "N5",
    *,
    memory_kind: str | None = None,
    own: Any = None,
    yield_model: str = YIELDS[0],
    dies: int = 1,
) -> Silicon:
    """Work out the area and the cost of a chip from its figures.

    Args:
        chip: A name, a path or a chip.
        node: ``N16``, ``N7``, ``N6`` or ``N5``, or a :class:`Technology`.
        memory_kind: As for :func:`technology`.
        own: As for :func:`technology`.
        yield_model: ``negative_binomial``, ``poisson`` or ``murphy``.
        dies: Dies of equal size that it is cut into; what connects them is left out.

    Returns:
        Area by part [mm2], yield, cost [USD], and the parts for which nobody published a figure.

    Raises:
        UsageError: No node, memory or model of yield of that name.
        UnknownChip: No chip of that name.

    Example:
        >>> h100 = silicon("h100-sxm", "N5")
        >>> h100.records()[0]["part"], 650 < h100.area < 814
        ('cores', True)
    """
    device = find_chip(chip)
    tech = node if isinstance(node, Technology) else technology(node, memory_kind, own)
    one_of("yield_model", yield_model, YIELDS)
    parts: dict[str, Amount] = {}
    left_out: list[str] = []
    for name, area in (*_units(device, tech), *_memories(device, tech), *_interfaces(device, tech)):
        if area is None:
            left_out.append(name)
        else:
            parts[name] = parts.get(name, 0.0) + area
    left_out += ["links between the dies"] * (whole_number("dies", dies) > 1) + ["package, test and board"]
    return Silicon(device, tech, parts, tuple(dict.fromkeys(left_out)), yield_model, dies)


Parts = Iterator[tuple[str, Amount | None]]


def _of_transistors(tech: Technology, number: Amount) -> Amount:
    """Return the area of so many transistors [mm2]."""
    return number / 1e6 / (tech.figure("node", "density") or np.nan)


def _units(chip: Chip, tech: Technology) -> Parts:
    """Yield the arithmetic of a chip, and the fixed parts of its cores.

    Formats of a matrix unit share its multipliers, the largest of which count; fp64 has its own, the same for vectors.
    """
    is_systolic = chip.grid is not None and chip.grid.engine is not None and chip.grid.engine.dataflow == "systolic"
    shared, wide = list[Amount](), list[Amount]()
    for unit in ("matrix", "vector"):
        for name, peak in getattr(chip, unit).items():
            clock, each = peak.clock or chip.clock, _transistors(tech, name, is_systolic and unit == "matrix")
            if unit == "vector" and name not in ("fp32", "fp64"):
                continue  # narrow vectors share the lanes of fp32
            if clock is None or each is None:
                yield f"{name} {unit} units", None
                continue
            number = peak.flops / (2 * clock)
            if unit == "vector" and name == "fp32":
                yield "vector lanes", _of_transistors(tech, number * (each + (tech.figure("part", "int32") or 0.0)))
            else:
                (wide if name == "fp64" else shared).append(number * each)
    for name, sizes in (("matrix units", shared), ("fp64 units", wide)):
        if sizes:
            yield name, _of_transistors(tech, reduce(np.maximum, sizes))
    core = tech.figure("core", chip.core_name or "", "transistors")
    yield ("cores", None if core is None or chip.cores is None else _of_transistors(tech, chip.cores * core))


def _transistors(tech: Technology, name: str, is_systolic: bool) -> float | None:
    """Return the transistors of a multiplier that adds up, in a format; ``None`` where nobody published a size."""
    fmt = find_dtype(name).name
    base, alu = tech.figure("part", "fp64_fma"), tech.figure("part", "int32")
    if is_systolic:
        return tech.figure("systolic", "bf16_mac") if fmt in ("bf16", "int8") else None
    if fmt in MANTISSA and base is not None:
        return base * (MANTISSA[fmt] / MANTISSA["fp64"]) ** 2
    return alu * (INTEGER[fmt] / 32) ** 2 if fmt in INTEGER and alu is not None else None


def _memories(chip: Chip, tech: Technology) -> Parts:
    """Yield the memories on the chip: caches, and a systolic chip's memory that is none."""
    for level in chip.memory[1:]:
        bit = tech.figure("node", "bit")
        if chip.grid is not None:  # scaled from N7 as the bits of caches are
            own, at_n7 = tech.figure("systolic", "bit"), tech.tables["node"]["N7"]["bit"]["value"]
            bit = None if own is None or bit is None else own * bit / at_n7
        yield level.name, None if bit is None or level.capacity is None else level.capacity * 8 * bit / 1e6


def _interfaces(chip: Chip, tech: Technology) -> Parts:
    """Yield the interfaces to main memory and to others, in whole units."""
    main, is_hbm = chip.main, tech.memory.startswith("hbm")
    known = main.bandwidth is not None and (main.name == "HBM") == is_hbm
    yield f"{main.name} interface", _interface(tech, ("memory",), main.bandwidth) if known else None
    for link in chip.links:
        area = None if link.bandwidth is None else _interface(tech, ("link", link.name), link.bandwidth)
        yield f"{link.name} interface", area


def _interface(tech: Technology, path: tuple[str, ...], bandwidth: Amount) -> Amount | None:
    phy, controller, rate = (tech.figure(*path, name) for name in ("phy", "controller", "rate"))
    if phy is None or controller is None or rate is None:
        return None
    # A hundredth over a whole number of units is how a rate was rounded.
    return np.ceil(np.asarray(bandwidth) / rate - 0.01) * (phy + _of_transistors(tech, controller))


# --- yield and cost ---------------------------------------------------------------------------------------------------


def dies_per_wafer(area: Amount, diameter: float = WAFER) -> Amount:
    """Return the whole dies on a wafer: those of its area less those at its edge.

    Args:
        area: Of a die [mm2], a number or an array.
        diameter: Of the wafer [mm].

    Returns:
        ``pi (d/2)^2 / A - pi d / sqrt(2 A)``, Hennessy and Patterson, Computer Architecture, section 1.6.

    Raises:
        UsageError: A die that is larger than the wafer, or of no area.

    Example:
        >>> round(dies_per_wafer(225.0)), round(dies_per_wafer(100.0))
        (270, 640)
    """
    size = np.asarray(area, dtype=np.float64)
    if not np.all((size > 0) & (size < pi * diameter**2 / 8)):
        raise UsageError(f"dies_per_wafer: area {shown(area)}: expected from above 0 to half a wafer [mm2]")
    number = pi * diameter**2 / 4 / size - pi * diameter / np.sqrt(2 * size)
    return float(number) if number.ndim == 0 else number


def die_yield(
    area: Amount, defects: float | Technology, model: str = YIELDS[0], clusters: float | None = None
) -> Amount:
    """Return the share of dies without a defect.

    Args:
        area: Of a die [mm2], a number or an array.
        defects: Per square centimetre, or a technology.
        model: ``negative_binomial`` ``(1 + A D / c)^-c``, ``poisson`` ``exp(-A D)``, or ``murphy``
            ``((1 - exp(-A D)) / (A D))^2``.
        clusters: ``c``: how defects cluster; as the technology says when absent.

    Returns:
        The share, a number or an array.

    Raises:
        UsageError: Another model, or figures below zero.

    Example:
        >>> round(die_yield(389.0, 0.3, clusters=4), 2)
        0.36
    """
    tech = defects if isinstance(defects, Technology) else technology()
    density = tech.figure("node", "defects") if isinstance(defects, Technology) else defects
    one_of("model", model, YIELDS)
    number = np.asarray(area, dtype=np.float64) / 100 * (np.nan if density is None else density)
    if np.any(number < 0):
        raise UsageError(f"die_yield: area {shown(area)}, defects {shown(defects)}: expected from 0")
    c = clusters or tech.figure("yield", "clusters") or 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = {
            "negative_binomial": (1 + number / c) ** -c,
            "poisson": np.exp(-number),
            "murphy": np.where(number > 0, (-np.expm1(-number) / number) ** 2, 1.0),
        }
    share = shares[model]
    return float(share) if share.ndim == 0 else share


def energy(made: Silicon, flops: Mapping[str, float], moved: Amount, on_chip: Amount, seconds: Amount) -> Amount:
    """Return the energy of a run: arithmetic, traffic, and what the area takes meanwhile [J].

    Args:
        made: The chip, or many.
        flops: Contractions by format, two per multiply-add.
        moved: Traffic of main memory [byte].
        on_chip: Traffic of the memories on the chip [byte].
        seconds: How long it runs.

    Raises:
        UsageError: Nobody published a figure that it takes.
    """
    tech = made.technology
    names = [("node", "energy"), ("node", "static"), ("memory", "energy"), *(("energy", name) for name in flops)]
    each = {path: tech.figure(*path) for path in names}
    if missing := [".".join(path) for path, value in each.items() if value is None]:
        raise UsageError(f"energy: no figure in {tech.node} for {', '.join(missing)}; give own (--technology, own)")
    scale, static, of_memory, *of_formats = (value or 0.0 for value in each.values())
    arithmetic = sum(number / 2 * each for number, each in zip(flops.values(), of_formats, strict=True))
    dynamic = scale * (arithmetic + on_chip * (tech.figure("energy", "sram") or 0.0)) + moved * of_memory
    return 1e-12 * dynamic + static * made.area * seconds


# --- against dies that were measured ----------------------------------------------------------------------------------


def dies(own: Any = None) -> list[dict[str, Any]]:
    """Compare the model with dies of known area, in their full designs.

    Args:
        own: Figures over the shipped ones, as for :func:`technology`.

    Returns:
        A row per die: its area and the model's [mm2], the model's over it less one, what the model leaves out, and
        whether the figures were fitted to this very die.

    Raises:
        UsageError: Figures that are none.

    Example:
        >>> [row["die"] for row in dies() if row["fitted"]]
        ['GA100']
    """
    rows = []
    for name, entry in technology(own=own).tables["die"].items():
        made = silicon(_whole(find_chip(entry["chip"]), entry), technology(entry["node"], entry.get("memory"), own))
        rows.append({"die": name, "chip": entry["chip"], "node": entry["node"], "area_mm2": float(entry["area"]),
                     "model_mm2": float(made.area), "error": float(made.area) / entry["area"] - 1,
                     "left_out": made.left_out[:-1], "fitted": bool(entry.get("fitted")),
                     "source": entry["source"]})  # fmt: skip
    return rows


def _whole(chip: Chip, entry: Mapping[str, Any]) -> Chip:
    """Return a chip with all units of its die, where some are switched off in what is sold."""
    from roofline.analysis.comparison import changed

    more = float(entry.get("cores", 1.0))
    factors = {name: more for name in ("peak", "vector_peak") if more > 1 and getattr(chip, _FIELD[name])}
    if more > 1 and any(level.shared_by == "core" for level in chip.memory):
        chip = _scaled_levels(chip, "core", more)
    chip = _scaled_levels(changed(chip, **factors), "chip", float(entry.get("cache", 1.0)))
    rate = technology(entry["node"], entry.get("memory")).figure("memory", "rate")
    main = (
        chip.main.model_copy(update={"bandwidth": entry["stacks"] * rate}) if "stacks" in entry and rate else chip.main
    )
    cores = None if chip.cores is None else round(chip.cores * more)
    return chip.model_copy(update={"cores": cores, "memory": (main, *chip.memory[1:])})


_FIELD = {"peak": "matrix", "vector_peak": "vector"}


def _scaled_levels(chip: Chip, shared_by: str, factor: float) -> Chip:
    levels = tuple(
        level if at == 0 or level.shared_by != shared_by or level.capacity is None
        else level.model_copy(update={"capacity": level.capacity * factor})
        for at, level in enumerate(chip.memory)
    )  # fmt: skip
    return chip.model_copy(update={"memory": levels})
