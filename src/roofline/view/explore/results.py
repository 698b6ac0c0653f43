"""From what a reader chose to the library's results; each is a function of the state alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from roofline.analysis.batches import BatchChoice, best_batch
from roofline.analysis.comparison import Comparison, changed, compare
from roofline.analysis.estimates import Estimate, estimate
from roofline.analysis.remedies import remedies_text, would_fit
from roofline.analysis.whatif import what_if
from roofline.diagnosis.causes import Verdict
from roofline.diagnosis.verdict import check
from roofline.hardware.chip import Chip
from roofline.hardware.figures import UNITS
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips
from roofline.ir.errors import RooflineError, UnknownChip, UnknownModel, UsageError, did_you_mean
from roofline.ir.files import whole_file
from roofline.ir.graph import Graph
from roofline.ir.units import format_bytes, format_si, parse
from roofline.ir.units import limit as most
from roofline.programs.library import models
from roofline.view.explore.state import DEFAULT, MAX_AGAINST, State, unpack

#: Folder in which an uploaded file lies while it is read; a config is called after it.
FOLDER = "uploaded"
#: Batches of a sweep where no batch fits.
POWERS = [2**at for at in range(11)]


# --- what the library is asked ----------------------------------------------------------------------------------------


def changes(state: State) -> dict[str, Any]:
    """Return how the program is built and changed, as keywords of :func:`roofline.what_if`."""
    names = ("phase", "dtype", "weights", "activations", "cache")
    options: dict[str, Any] = {name: getattr(state, name) for name in names if getattr(state, name)}
    tp = _whole("tp", state.tp or "1")
    return options | ({"tp": tp} if tp > 1 else {})


def sizes(state: State, graph: Graph, batch: bool = True) -> dict[str, Any]:
    """Return the sizes that a program has a use for, as keywords of :func:`roofline.estimate`."""
    has = graph.symbols
    texts = {"batch": (state.batch or "1") if batch and "B" in has else "", "seq": state.seq if "S" in has else ""}
    texts["context"] = (state.context or ("" if "S" in has else state.seq)) if "C" in has else ""
    return {name: _whole(name, text) for name, text in texts.items() if text}


def how(state: State, graph: Graph, batch: bool = True) -> dict[str, Any]:
    """Return mode and sizes as keywords of :func:`roofline.estimate`."""
    return {"mode": state.mode, **sizes(state, graph, batch)}


def limits(state: State) -> dict[str, Any]:
    """Return the limits that were given, as keywords of :func:`roofline.best_batch`."""
    texts = {name: text for name in ("memory_limit", "latency_limit") if (text := getattr(state, name))}
    for name, text in texts.items():
        most(name, text, "B" if name == "memory_limit" else "s")
    return texts


def figures(state: State) -> tuple[float | None, dict[str, Any]]:
    """Return by what factor the cost of a launch is changed, and the figures for :meth:`Chip.replace`."""
    flat: dict[str, Any] = {}
    factor, known = None, _rows(state.chip)
    for name, text in state.figures:
        if name not in known:
            raise UsageError(f"{name[:60]}: no figure of {state.chip}{did_you_mean(name, known)}")
        unit, _, fmt = name.partition(".")
        value = _checked(name, text, known[name].unit)
        if fmt:
            flat.setdefault(unit, {})[fmt] = value
        else:
            flat[name] = value
    if (launch := flat.pop("launch", None)) is not None:  # what is used is the fitted cost of each class of kernels
        factor = parse(launch, "s") / find_chip(state.chip).efficiency.launch
    return factor, flat


def _checked(name: str, text: str, unit: str) -> str | int:
    """Return a figure that is a quantity of its unit, or a number of cores."""
    if not unit:
        return _whole(name, text)
    parse(text, unit)
    return text


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 13 or int(text) < 1:
        raise UsageError(f"{name}: expected a whole number from 1, given {text[:60]!r}")
    return int(text)


def against(state: State) -> list[str]:
    """Return the names of the chips that the reader's is compared with, itself among them where it is altered."""
    names = [name for name in dict.fromkeys(state.against.split(",")) if name]
    if len(names) > MAX_AGAINST:
        raise UsageError(f"{len(names)} chips to compare with; allowed: at most {MAX_AGAINST}")
    for name in names:
        _known(name, chips(), UnknownChip)
    return [*([state.chip] if state.figures else []), *(name for name in names if name != state.chip)]


def _known(name: str, names: list[str], error: type[RooflineError]) -> str:
    """Refuse what is no name of a list: a path of a stranger's choice is neither read nor run."""
    if name not in names:
        raise error(f"{name[:60]!r} is not known{did_you_mean(name, names)}")
    return name


# --- its answers ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def chip_of(name: str, altered: tuple[tuple[str, str], ...] = ()) -> Chip:
    """Return a chip by its name, with altered figures."""
    chip = find_chip(_known(name, chips(), UnknownChip))
    factor, own = figures(replace(DEFAULT, chip=name, figures=altered))
    if factor is not None:
        chip = changed(chip, launch=factor)
    return chip.replace(**own) if own else chip


def device(state: State) -> Chip:
    """Return the chip of a state."""
    return chip_of(state.chip, state.figures)


@lru_cache(maxsize=32)
def _graph(model: str, file: str, options: tuple[tuple[str, Any], ...], cluster: Chip | None) -> Graph:
    if not file:
        return what_if(_known(model, models(), UnknownModel), cluster=cluster, **dict(options))
    with written(file) as path:
        return what_if(path, cluster=cluster, **dict(options))


@contextmanager
def written(packed: str) -> Iterator[Path]:
    """Write a packed file where the library's readers find it; their messages call it by its name alone."""
    name, text = unpack(packed)
    with tempfile.TemporaryDirectory(prefix="roofline-") as folder:
        path = Path(folder, FOLDER, name)
        path.parent.mkdir()
        with whole_file(path) as stream:
            stream.write(text)
        try:
            yield path
        except RooflineError as error:
            raise type(error)(str(error).replace(f"{path.parent}/", "").replace(str(path.parent), name)) from None


def program(state: State) -> Graph:
    """Return the program of a state."""
    options = changes(state)
    return _graph(state.model, state.file, tuple(options.items()), device(state) if "tp" in options else None)


def expected(state: State) -> Estimate:
    """Return the estimate of a state."""
    graph = program(state)
    return _estimate(graph, device(state), tuple(how(state, graph).items()))


@lru_cache(maxsize=64)
def _estimate(graph: Graph, chip: Chip, options: tuple[tuple[str, Any], ...]) -> Estimate:
    result = estimate(graph, chip, **dict(options))
    assert result.memory.total >= 0
    return result


class Sweep(NamedTuple):
    """Estimates over the batch: the choice of one or, where none can be chosen, powers of two, and why."""

    choice: BatchChoice | None
    curve: Estimate | None
    reason: str = ""


@lru_cache(maxsize=32)
def sweep(state: State) -> Sweep:
    """Return the estimates over the batch."""
    graph, chip = program(state), device(state)
    values = how(state, graph, batch=False)
    try:
        choice = best_batch(graph, chip, **limits(state), **values)
        return Sweep(choice, choice.curve)
    except RooflineError as error:
        if "B" not in graph.symbols or chip.main.capacity is None:
            return Sweep(None, None, str(error))
        return Sweep(None, estimate(graph, chip, batch=POWERS, **values), str(error))


@lru_cache(maxsize=32)
def comparison(state: State) -> Comparison:
    """Return the chips side by side: the reader's, the same unaltered, and the others."""
    graph, others = program(state), [chip_of(name) for name in against(state)]
    return compare(graph, [device(state), *others], what_if={}, elasticity=False, **how(state, graph))


@lru_cache(maxsize=32)
def elasticity(state: State) -> Comparison:
    """Return what one per cent more of each figure of the reader's chip buys."""
    graph = program(state)
    return compare(graph, device(state), what_if={}, **how(state, graph))


@lru_cache(maxsize=32)
def verdict(state: State) -> Verdict | None:
    """Return the verdict on a measured time; nothing where there is none."""
    if not state.measured:
        return None
    graph = program(state)
    return check(graph, device(state), state.measured, **how(state, graph))


def hints(state: State) -> dict[str, str]:
    """Say what is possible and will not do, by the field: a batch that does not fit, a run that is too slow."""
    est, said = expected(state), {}
    room = parse(state.memory_limit, "B") if state.memory_limit else est.chip.main.capacity
    if room is not None and est.memory.total > room:
        largest = choice.limit_batch if (choice := sweep(state).choice) else None
        how = f"; the largest batch within the limits is {largest:,}" if largest else ""
        others = () if est.fits is not False else would_fit(est)
        how += f"; what would fit: {remedies_text(others[:1])}" * bool(others)
        said["batch"] = f"does not fit: {format_bytes(est.memory.total)} of {format_bytes(room)}{how}"
    if state.latency_limit and est.time > parse(state.latency_limit, "s"):
        said["latency_limit"] = f"takes {format_si(float(est.time), 's')}"
    return said


# --- what cannot be ---------------------------------------------------------------------------------------------------

#: Fields in the order in which they are left out until the rest can be, with what holds instead.
_INSTEAD: dict[str, str] = {
    "measured": "", "latency_limit": "", "memory_limit": "", "against": "", "context": "", "batch": "1",
    "seq": "64", "mode": DEFAULT.mode, "cache": "", "activations": "", "weights": "", "dtype": "", "tp": "1",
    "phase": "", "chip": DEFAULT.chip, "file": "", "model": DEFAULT.model,
}  # fmt: skip


class Settled(NamedTuple):
    """A state that can be, and by field why what is not in it cannot; figures of the chip begin with ``chip.``."""

    state: State
    faults: Mapping[str, str]


@lru_cache(maxsize=256)
def settled(state: State) -> Settled:
    """Leave out of a state what cannot be."""
    if _fault(state) is None:
        return Settled(state, {})
    left_out, rest = [], state
    for name in _removable(state):
        if (less := _without(rest, name)) != rest:
            left_out.append((name, rest))
            rest = less
        if _fault(rest) is None:
            break
    faults = {}
    for name, _ in reversed(left_out):
        more = _with(rest, state, name)
        if (why := _fault(more)) is None:
            rest = more
        else:
            faults[name] = why
    return Settled(rest, faults)


def _fault(state: State) -> str | None:
    """Say why a state cannot be."""
    try:
        limits(state)
        against(state)
        if state.measured and parse(state.measured, "s") <= 0:
            raise UsageError(f"{state.measured}: a time is above zero")
        assert expected(state)
    except RooflineError as error:
        return str(error)
    return None


def _removable(state: State) -> list[str]:
    names = list(_INSTEAD)
    at = names.index("chip")
    return [*names[:at], *(f"chip.{name}" for name, _ in state.figures), *names[at:]]


def _without(state: State, name: str) -> State:
    if name.startswith("chip."):
        return replace(state, figures=tuple(pair for pair in state.figures if f"chip.{pair[0]}" != name))
    if name == "chip":
        return replace(state, chip=_INSTEAD[name], figures=())
    less: dict[str, Any] = {name: _INSTEAD[name]}
    return replace(state, **less)


def _with(state: State, source: State, name: str) -> State:
    if name.startswith("chip."):
        own = next(pair for pair in source.figures if f"chip.{pair[0]}" == name)
        return replace(state, figures=tuple(sorted({*state.figures, own})))
    return replace(state, **{name: getattr(source, name)})


def fitting(state: State) -> State:
    """Return a state with the phase and the length that its program can have, where it cannot have those of another."""
    if "phase" in settled(state).faults:
        state = replace(state, phase=_INSTEAD["phase"])
    lengths = (replace(state, seq=seq) for seq in (state.seq, "1024", "512", "128"))
    return next((one for one in lengths if "seq" not in settled(one).faults), state)


# --- figures of a chip ------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A figure of a chip that can be altered: what it is, its value as text, its unit, and where it comes from."""

    words: str
    text: str
    unit: str
    source: str


def rows(chip: Chip) -> dict[str, Row]:
    """Return the figures of a chip that can be altered, by the name that :meth:`Chip.replace` knows them by.

    Example:
        >>> rows(find_chip("h100-sxm"))["memory_bandwidth"].text
        '3.35 TB/s'
    """
    own, level = chip.efficiency, {entry.name: entry for entry in chip.memory}.get("L2")
    main = chip.main
    listed = {
        "memory_bandwidth": (f"{main.name} bandwidth", main.bandwidth, "B/s", main.source),
        "memory_capacity": (f"{main.name} capacity", main.capacity, "B", main.source),
    }
    if level is not None:
        listed["l2"] = ("L2 capacity", level.capacity, "B", level.source)
        listed["l2_bandwidth"] = ("L2 bandwidth", level.bandwidth, "B/s", level.source)
    for unit in UNITS:
        for name, peak in getattr(chip, unit).items():
            listed[f"{unit}.{name}"] = (f"{name} {unit} peak", peak.flops, "FLOP/s", peak.source)
    for kind in ("device", "host"):
        link = next((entry for entry in chip.links if entry.kind == kind), None)
        if link is not None:
            name = "link_bandwidth" if kind == "device" else "host_bandwidth"
            listed[name] = (f"{link.name} ({kind})", link.bandwidth, "B/s", link.source)
    listed["launch"] = ("fixed cost of a kernel", own.launch, "s", own.source)
    listed["host"] = ("host time of a call", own.host, "s", own.source)
    listed["clock"] = ("clock", chip.clock, "Hz", chip.source)
    said = {name: Row(words, _said(value, unit), unit, source)
            for name, (words, value, unit, source) in listed.items()}  # fmt: skip
    return said | {"cores": Row(f"{chip.core_name}s", str(chip.cores or ""), "", chip.source)}


def _said(value: float | None, unit: str) -> str:
    """Write a figure without losing any of it."""
    if value is None:
        return ""
    binary = format_bytes(value) if unit == "B" else ""
    return binary if binary and parse(binary, unit) == value else format_si(value, unit, 6)


def rows_of(state: State) -> Mapping[str, Row]:
    """Return the figures of a state's chip as published; none of one that is not known."""
    return _rows(state.chip) if state.chip in chips() else {}


@lru_cache(maxsize=64)
def _rows(name: str) -> Mapping[str, Row]:
    return rows(find_chip(_known(name, chips(), UnknownChip)))
