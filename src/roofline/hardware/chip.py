"""Chips as data: peaks, memory levels, links and achievable shares, each figure with its source.

A chip is one TOML file or one call of :class:`Chip`. All figures are dense, per device and per direction; a
figure that nobody published is absent, and asking for it raises :class:`~roofline.ir.errors.MissingFigure`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    model_validator,
)

from roofline.hardware.figures import FIGURE_UNITS, FIGURES, FLAT, LINKS, UNITS, Edit, altered, named, replacements
from roofline.hardware.grid import CoreGrid
from roofline.hardware.parts import (
    Clock,
    DTypeName,
    Efficiency,
    Fallback,
    Frozen,
    FrozenDict,
    Link,
    MemoryLevel,
    Number,
    Peak,
    Text,
    Unit,
    Watts,
    shown,
)
from roofline.hardware.rates import Rate, advice, rate
from roofline.ir import units
from roofline.ir.datafile import read_toml
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import (
    ChipDataError,
    MissingFigure,
    UnknownChip,
    UsageError,
    did_you_mean,
)
from roofline.ir.files import user_path, whole_file
from roofline.ir.numbers import as_float

#: Source of a figure that came without one.
GIVEN = "given by the user"

_Peaks = Annotated[dict[DTypeName, Peak], AfterValidator(FrozenDict)]
_Fallbacks = Annotated[dict[DTypeName, Fallback], AfterValidator(FrozenDict)]
_Sources = Annotated[dict[str, Text], AfterValidator(FrozenDict)]


class Chip(Frozen):
    """A chip as one device sees itself.

    Attributes:
        name: Short name, also the file's.
        vendor: Who makes it.
        year: Of release.
        aliases: Other spellings, device strings of frameworks among them.
        form: Board or package.
        cores: Number of SMs, CUs, TensorCores...
        core_name: What the vendor calls them.
        clock: Boost clock [Hz].
        tdp: Board or chip power limit [W].
        matrix: Dense peaks of the matrix units by format; tf32 is one of them.
        vector: Dense peaks of the ordinary arithmetic units by format.
        memory: Main memory first, then from the outside in.
        links: Ways to other devices and to the host.
        grid: Rows and columns of cores with memory and an engine of their own, where it is made of such.
        efficiency: What programs reach of these figures.
        fallback: Formats without hardware and what they run as.
        clock_slack: Factor by which a measurement may beat the floor before it must be wrong.
        notes: Conflicts between sources and other remarks.
        source: Source of all figures that carry none of their own.
        sources: Citations by the short keys that figures of this file use.

    Example:
        >>> mine = Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s",
        ...             memory_capacity="64 GB")
        >>> mine.ridge("bf16")
        200.0
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    vendor: str = ""
    year: Annotated[int, Field(strict=True, ge=1970, le=2100)] | None = None
    aliases: tuple[str, ...] = ()
    form: str = ""
    cores: Annotated[int, Field(strict=True, gt=0, le=10**9)] | None = None
    core_name: str = "core"
    clock: Clock | None = None
    tdp: Watts | None = None
    matrix: _Peaks = Field(default_factory=FrozenDict)
    vector: _Peaks = Field(default_factory=FrozenDict)
    memory: Annotated[tuple[MemoryLevel, ...], Field(min_length=1, max_length=64)]
    links: tuple[Link, ...] = ()
    grid: CoreGrid | None = None
    efficiency: Efficiency = Efficiency()
    fallback: _Fallbacks = Field(default_factory=FrozenDict)
    clock_slack: Annotated[Number, Field(ge=1, le=100)] = 1.05
    notes: Text = ""
    source: Text = GIVEN
    sources: _Sources = Field(default_factory=FrozenDict)

    def __init__(self, **figures: Any) -> None:
        try:
            super().__init__(**figures)
        except ValidationError as error:
            name = _clip(figures.get("name", "without a name"))
            raise ChipDataError(f"chip {name}: {first_problem(error, Chip, _TABLES)}") from None

    @model_validator(mode="before")
    @classmethod
    def _plain_forms(cls, data: Any) -> Any:
        return _unfold(data) if isinstance(data, dict) else data

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        peaks = {**self.vector, **self.matrix}
        shown = next((name for name in ("bf16", "fp16", "fp32", *peaks) if name in peaks), None)
        peak = f", {shown} {units.format_si(peaks[shown].flops, 'FLOP/s')}" if shown else ""
        main = self.main
        bandwidth = f", {main.name} {units.format_si(main.bandwidth, 'B/s')}" if main.bandwidth else ""
        return f"Chip({self.name!r}{peak}{bandwidth})"

    __str__ = __repr__

    def peak(self, dtype: object, unit: Unit = "matrix") -> float:
        """Return the published dense peak of one unit in one format [FLOP/s].

        Raises:
            MissingFigure: It is not published for this chip.

        Example:
            >>> Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s").peak("bf16")
            400000000000000.0
        """
        if unit not in ("matrix", "vector"):
            near = did_you_mean(str(unit), UNITS)
            raise UsageError(f"peak: unknown unit {unit!r}; allowed: matrix, vector{near}")
        peak = getattr(self, unit).get(_arithmetic(dtype))
        if peak is None:
            self._missing(f"{find_dtype(dtype).name} {unit} peak")
        flops: float = peak.flops
        return flops

    def matmul_peak(self, dtype: object, tf32: bool = False) -> float:
        """Return the roof of a matmul whose operands are ``dtype`` [FLOP/s].

        Args:
            dtype: Format of the operands.
            tf32: Whether the framework may run fp32 operands as tf32.

        Raises:
            MissingFigure: Neither a peak nor a documented fallback.
        """
        return self._matmul(dtype, tf32).flops

    def matmul_runs_as(self, dtype: object, tf32: bool = False) -> str:
        """Say which unit and format multiply ``dtype`` operands, such as ``"bf16 matrix"``.

        A fallback shows with its reason: ``"fp32 vector (bf16 emulated: ...)"``.
        """
        return str(self._matmul(dtype, tf32))

    def matmul_format(self, dtype: object, tf32: bool = False) -> str:
        """Return the format that the units multiply where the operands are ``dtype``: another one for a fallback.

        Example:
            >>> mine = Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s",
            ...             fallback={"fp32": {"runs_as": "bf16", "passes": 4, "reason": "split in four"}})
            >>> mine.matmul_format("fp32"), mine.matmul_peak("fp32") / 1e12
            ('bf16', 100.0)
        """
        return self._matmul(dtype, tf32).runs_as

    def _matmul(self, dtype: object, tf32: bool) -> Rate:
        name = _arithmetic(dtype)
        if name == "fp32" and tf32 and "tf32" in self.matrix:
            name = "tf32"
        tables = self.matrix, self.vector, self.fallback
        return rate(name, *tables) or self._missing(f"{find_dtype(dtype).name} matmul peak", advice(name, *tables))

    def sparse_peak(self, dtype: object, tf32: bool = False) -> float | None:
        """Return the published 2:4-sparse peak of the matrix unit that multiplies ``dtype`` operands [FLOP/s].

        ``None`` where none is on file. It counts the zeros as operations.
        """
        name = _arithmetic(dtype)
        peak = self.matrix.get("tf32" if name == "fp32" and tf32 and "tf32" in self.matrix else name)
        return peak.sparse if peak else None

    def vector_peak(self, dtype: object) -> float:
        """Return the roof of elementwise arithmetic on ``dtype`` [FLOP/s].

        A format without a vector peak of its own runs at the fp32 rate after conversion, except fp64.

        Raises:
            MissingFigure: The vendor publishes neither.
        """
        name = find_dtype(dtype).name
        if name not in self.vector and name != "fp64":
            name = "fp32"
        if name not in self.vector:
            self._missing(f"{name} vector peak")
        return self.vector[name].flops

    def _missing(self, what: str, how: str = "") -> NoReturn:
        has = "; ".join(f"{unit}: {', '.join(getattr(self, unit))}" for unit in UNITS if getattr(self, unit))
        raise MissingFigure(
            f"{self.name} has no published {what}; it has {has or 'no peaks at all'} "
            f"(none is ever derived: give one with --set, in Python chip.replace(...)){how}"
        )

    @property
    def main(self) -> MemoryLevel:
        """The main memory."""
        return self.memory[0]

    @property
    def cache(self) -> MemoryLevel | None:
        """The outermost on-chip level that the whole chip shares, or ``None``."""
        return next((level for level in self.memory[1:] if level.shared_by == "chip"), None)

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the main memory [B/s]."""
        return self._of_main("bandwidth")

    @property
    def capacity(self) -> float:
        """Capacity of the main memory [byte]."""
        return self._of_main("capacity")

    def _of_main(self, what: str) -> float:
        value: float | None = getattr(self.main, what)
        if value is None:
            raise MissingFigure(
                f"{self.name} has no published memory {what}; give one with --set memory_{what}=..., in Python "
                f"chip.replace(memory_{what}=...)"
            )
        return value

    def level(self, name: str) -> MemoryLevel:
        """Return the memory level of that name; ``"main"`` is the first.

        Raises:
            MissingFigure: The chip lists no such level.
        """
        for index, level in enumerate(self.memory):
            if name.lower() == level.name.lower() or (index == 0 and name.lower() == "main"):
                return level
        names = [level.name for level in self.memory]
        near = did_you_mean(name, names)
        raise MissingFigure(f"{self.name} lists no memory level {name!r}; it has: {', '.join(names)}{near}")

    def ridge(self, dtype: object, tf32: bool = False) -> float:
        """Return the intensity where the memory and the compute roof meet [FLOP/byte]."""
        return self.matmul_peak(dtype, tf32) / self.bandwidth

    def replace(self, **figures: Any) -> Chip:
        """Return a copy with other figures, named and sourced as a what-if.

        Args:
            **figures: Fields of the chip; ``memory_bandwidth``, ``memory_capacity``, ``l2``, ``l2_bandwidth``,
                ``sram``, ``sram_bandwidth``, ``link_bandwidth``, ``host_bandwidth``; ``host``
                (``"10 us"`` for a call of an operator of an eager program); or a format
                (``bf16="1200 TFLOP/s"``) for the peak of the unit that has it, the matrix unit if none has.
                ``matrix``, ``vector`` and ``efficiency`` tables change the entries that they name.

        Raises:
            UsageError: No figure of that name.
            ChipDataError: A value that cannot be.

        Example:
            >>> mine = Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s")
            >>> mine.replace(memory_bandwidth="4 TB/s")
            Chip('mine (what-if)', bf16 400 TFLOP/s, memory 4 TB/s)
        """
        return altered(self, replacements(self, figures))

    def scale(
        self,
        *,
        bandwidth: float = 1,
        compute: float = 1,
        capacity: float = 1,
        l2: float = 1,
        links: float = 1,
    ) -> Chip:
        """Return a what-if copy with figures multiplied.

        Args:
            bandwidth: Factor on the main memory's bandwidth.
            compute: Factor on all peaks, matrix and vector.
            capacity: Factor on the main memory's capacity.
            l2: Factor on the capacity of the L2.
            links: Factor on the bandwidth of all links.

        Example:
            >>> mine = Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s")
            >>> mine.scale(bandwidth=2).ridge("bf16")
            100.0
        """
        bandwidth, compute, capacity, l2, links = map(as_float, (bandwidth, compute, capacity, l2, links))
        edits: list[Edit] = []
        if compute != 1:
            edits += FIGURES["peak"].edits(self, compute) + FIGURES["vector_peak"].edits(self, compute)
        if bandwidth != 1:
            edits.append((*FLAT["memory_bandwidth"], self.bandwidth * bandwidth))
        if capacity != 1:
            edits.append((*FLAT["memory_capacity"], self.capacity * capacity))
        if l2 != 1:
            edits.append((*FLAT["l2"], (self.level("L2").capacity or 0) * l2))
        if links != 1:
            edits += LINKS.edits(self, links)
        return altered(self, edits)

    def toml(self, remarks: Iterable[str] = ()) -> str:
        """Describe the chip in TOML, figures with their units to six digits; reading it gives the chip back.

        Args:
            remarks: Comments for the top of the file, a line each.

        Returns:
            The text of the file; every figure has its source as a field.

        Example:
            >>> print(Chip(name="mine", matrix={"bf16": "1 TFLOP/s"}, memory_bandwidth="1 TB/s").toml().split()[2])
            "mine"
        """
        import tomli_w

        table = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        lines = [f"# {' '.join(line.split())}\n" for line in remarks]
        return "".join([*lines, "\n" * bool(lines), tomli_w.dumps(_written(table))])

    def save(self, path: str | os.PathLike[str], remarks: Iterable[str] = ()) -> Path:
        """Write the chip's file, whole or not at all.

        Args:
            path: Of the file, which :func:`roofline.chip` reads.
            remarks: Comments for the top of the file, a line each.

        Returns:
            The path.

        Raises:
            UsageError: It cannot be written there.
        """
        with whole_file(path) as stream:
            stream.write(self.toml(remarks))
        return Path(path)


def _written(value: Any, written: Mapping[str, str] = FIGURE_UNITS, unit: str = "") -> Any:
    """Return a table with its figures as a person writes them: six digits, and the unit where it has one."""
    if isinstance(value, dict):
        own = {key: {} if key == "parameters" else written for key in value}  # these are in the units of the time model
        return {key: _written(item, own[key], written.get(key, "")) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item, written) for item in value]
    if isinstance(value, float):
        return units.format_si(value, unit, 6) if unit else float(f"{value:.6g}")
    return value


def _arithmetic(name: object) -> str:
    """The format that multiplies ``name``; storage-only formats have none."""
    entry = find_dtype(name)
    if entry.compute is None:
        raise MissingFigure(
            f"{entry.name} is a storage format: nothing multiplies in it; ask for the format of the "
            "activations (bf16, fp16, int8...)"
        )
    return entry.compute


def _unfold(data: dict[str, Any]) -> dict[str, Any]:
    """Bring the short forms of a chip's description into the long one and fill in the sources."""
    data = dict(data)
    sources = data.get("sources") if isinstance(data.get("sources"), dict) else {}
    default = _cite(data.get("source", GIVEN), sources)
    data["source"] = default
    for key, (entries, which, attribute) in FLAT.items():
        if key in data:
            data[entries] = _with_flat(data.get(entries, ()), which, attribute, data.pop(key))
    for key in ("matrix", "vector", "fallback"):
        if isinstance(data.get(key), dict):
            short = "runs_as" if key == "fallback" else "flops"
            data[key] = {name: _sourced(value, short, default, sources) for name, value in data[key].items()}
    for key in ("memory", "links"):
        if isinstance(data.get(key), list | tuple):
            data[key] = tuple(_sourced(value, "name", default, sources) for value in data[key])
    if isinstance(data.get("grid"), dict):
        table = _sourced(data["grid"], "", default, sources)
        engine = table.get("engine")
        data["grid"] = table | ({"engine": _sourced(engine, "", default, sources)} if isinstance(engine, dict) else {})
    if isinstance(data.get("efficiency"), dict):
        data["efficiency"] = _sourced(data["efficiency"], "compute", Efficiency().source, sources)
    return data


def _with_flat(entries: Any, which: str, attribute: str, value: Any) -> Any:
    if not isinstance(entries, list | tuple):
        return entries
    name = which or "memory"
    listed = list(entries)
    for index, entry in enumerate(listed):
        if isinstance(entry, dict) and entry.get("name") == name and attribute not in entry:
            listed[index] = {**entry, attribute: value}
            return listed
    if which or not listed:
        return [*listed, named(which) | {attribute: value}]
    raise ValueError(f"memory_{attribute}: given beside a memory list; write it in the list's first entry")


def _sourced(value: Any, short: str, default: str, sources: Any) -> Any:
    if isinstance(value, BaseModel):
        return value
    table = value if isinstance(value, dict) else {short: value}
    return {**table, "source": _cite(table.get("source", default), sources)}


def _cite(source: Any, sources: Any) -> Any:
    """Put citations for short keys of the ``[sources]`` table: alone, after a semicolon or in brackets."""
    if not isinstance(source, str) or not sources:
        return source
    return _CITED.sub(lambda match: str(sources.get(match[0], match[0])), source)


#: A word that may be a short key: what surrounds it keeps a citation's own words from being replaced again.
_CITED = re.compile(r"(?:(?<=^)|(?<=[(;])|(?<=; ))[\w-]+(?=$|[;),])")

_TABLES: dict[str, type[BaseModel]] = {
    "matrix": Peak, "vector": Peak, "memory": MemoryLevel, "links": Link,
    "efficiency": Efficiency, "fallback": Fallback, "grid": CoreGrid,
}  # fmt: skip


def first_problem(error: ValidationError, top: type[BaseModel], tables: Mapping[str, type[BaseModel]]) -> str:
    """The first complaint of pydantic as one line: where, what, allowed, given."""
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda each: each["type"] != "extra_forbidden")
    where = [part for part in problem["loc"] if part != "[key]"]
    text = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        key = str(where[-1])
        model = tables.get(str(where[0]), top) if len(where) > 1 else top
        allowed = [*model.model_fields, *(FLAT if model is Chip else ())]
        text = f"unknown key; allowed: {', '.join(allowed)}{did_you_mean(key, allowed)}"
    elif problem["type"] == "missing":
        text = "missing"
    elif problem["type"] != "value_error":
        text = f"{text[:1].lower()}{text[1:]}, given {shown(problem['input'])}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return _clip(f"{'.'.join(map(str, where))}: " * bool(where) + text, 600) + more


def _clip(value: object, size: int = 100) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= size else f"{text[:size]}..."


def state_of(path: str | os.PathLike[str], kind: str) -> tuple[str, int, int]:
    """The path of a file, when it changed and its size: what is read from it holds as long as these do.

    Raises:
        UnknownChip: No such file.
        ChipDataError: It cannot be read.
    """
    file = user_path(path, ChipDataError)
    try:
        state = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        near = did_you_mean(file.name, [other.name for other in file.parent.glob("*.toml")])
        raise UnknownChip(f"no {kind} file {_clip(file, 300)!r}{near}") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", problem)
        raise ChipDataError(f"{_clip(file)}: cannot be read: {why}") from None
    return str(file), state.st_mtime_ns, state.st_size


def load_chip(path: str | os.PathLike[str]) -> Chip:
    """Read a chip from a TOML file.

    Raises:
        UnknownChip: No such file.
        ChipDataError: It cannot be read, or does not describe a chip.
    """
    return _load(*state_of(path, "chip"))


@lru_cache(maxsize=512)
def _load(path: str, _changed: int, _size: int) -> Chip:
    table = read_toml(Path(path), ChipDataError)
    try:
        return Chip(**table)
    except ChipDataError as error:
        raise ChipDataError(f"{path}: {error}") from None
