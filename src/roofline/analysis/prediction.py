"""Bulk prediction: tables of operators and of models to the same tables with predictions, a row in, a row out.

A row with ``op, dtype, shape`` is an operator, launched alone: its time is the summed duration of its kernels. A row
with ``model, phase, mode, dtype, batch, seq, context`` is a whole model: its time is the wall time of a step. A row
that names neither but has ``m, n, k`` is a ``gemm``, of bf16 where it says no ``dtype``. Other columns are kept; a row
that cannot be predicted says why in ``error`` and the others go on.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.bulk import Rows, group_rows
from roofline.analysis.estimates import Estimate, estimate
from roofline.analysis.levels import run_bytes
from roofline.analysis.schedule_columns import SCHEDULED, as_schedule, schedule_of
from roofline.analysis.schedules import priced_of
from roofline.cost import REGIME, checked_regime
from roofline.cost.schedules import BOUNDS as BLOCK_BOUNDS
from roofline.cost.schedules import HIGH, LOW, problems
from roofline.counting.counts import nbytes
from roofline.counting.grid import Points
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.parts import Efficiency
from roofline.ir.errors import ModelDataError, RooflineError, UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.sizes import evaluate
from roofline.ir.text import shown
from roofline.passes.formats.autocast import autocast
from roofline.passes.training.mixed_precision import training_graph
from roofline.programs.library import model as build_model
from roofline.programs.workload import WORDS
from roofline.tiling.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

#: Columns that a prediction adds, in order.
COLUMNS = (
    "predicted_us", "low_us", "high_us", "floor_us", "bound", "flops", "bytes", "memory_bytes", "activation_bytes",
    "dram_bytes", "l2_bytes", "calibrated", "error",
)  # fmt: skip
#: Measured columns whose names a prediction needs; they are kept under others.
MEASURED = {name: f"measured_{name}" for name in ("activation_bytes", "dram_bytes", "l2_bytes")}
#: Rows that are worked on at a time; bounds the memory.
CHUNK = 25_000
#: How each mode of the shipped measurements runs: the backend aot_eager still launches every kernel from the host,
#: cudagraphs replays the same kernels, inductor fuses them.
RUNS_AS = {
    "": "eager", "eager": "eager", "compile-aot_eager": "eager",
    "graph": "graph", "cudagraph": "graph", "compile-cudagraphs": "graph",
    "compiled": "compiled", "compile": "compiled", "compile-inductor": "compiled",
}  # fmt: skip

#: What a row of a model with other parameters than its file's may be: its head not tied to the embeddings, or a
#: classifier of sequences.
VARIANTS: tuple[dict[str, Any], ...] = ({"tied": False}, {"head": "pooled", "labels": 2})
#: Words of a note on training, and the optimizers that they name; the first that is found counts.
OPTIMIZER_WORDS = {
    "8-bit": "adam8bit", "adafactor": "adafactor", "adam": "adamw", "momentum": "momentum", "sgd": "sgd",
}  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Way:
    """How rows run."""

    regime: str = REGIME
    tf32: bool | None = None


@dataclass
class _Chunk:
    """Rows in work, and what is known of each so far."""

    rows: Sequence[Row]
    found: list[dict[str, Any]]

    def fail(self, at: int, why: object) -> None:
        """Give a row its reason, on one line."""
        self.found[at] = {"error": " ".join(str(why).split())[:600]}

    def fill(self, index: Iterable[int], columns: Mapping[str, Iterable[Any]]) -> None:
        """Give rows their columns; one with an error has that alone."""
        places = list(index)
        whole = {"error": [None] * len(places), **columns}
        for at, values in zip(places, zip(*(whole[name] for name in COLUMNS), strict=True), strict=True):
            self.found[at] = dict(zip(COLUMNS, values, strict=True))
            if why := self.found[at]["error"]:
                self.fail(at, why)


# --- whole tables -----------------------------------------------------------------------------------------------------


def predict(
    table: pd.DataFrame | str | os.PathLike[str] | Iterable[Row],
    chip: AnyChip | None = None,
    *,
    calibration: bool = True,
    regime: str = REGIME,
    tf32: bool | None = None,
) -> pd.DataFrame:
    """Predict every row of a table of operators or models.

    Args:
        table: A data frame, a CSV file or dictionaries, with the columns ``op, dtype, shape`` or ``model, phase, mode,
            dtype, batch, seq, context``, or just ``m, n, k`` of a ``gemm``; a column ``chip`` wins over the argument,
            and ``bm bn bk group warps stages`` are the schedule of a ``gemm`` (empty: the library's choice).
        chip: Where the rows run that name no chip.
        calibration: Use the chip's fitted figures; without them a generic prior stands in.
        regime: As for :func:`roofline.estimate`; a row of an operator is a program of that alone.
        tf32: As for :func:`roofline.estimate`.

    Returns:
        The table with ``predicted_us low_us high_us floor_us`` [us], ``bound``, ``flops``, ``bytes memory_bytes
        activation_bytes``, ``dram_bytes l2_bytes`` as read and written at main memory and at the shared cache [byte],
        ``calibrated`` and ``error``.

    Raises:
        UsageError: A table without the columns that it needs, or an unknown regime.

    Example:
        >>> int(predict([{"op": "relu", "dtype": "bf16", "shape": '{"n": 1048576}'}], "h100-sxm").bytes[0])
        4194304
    """
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        from roofline.ir.csvfile import read_rows

        with read_rows(table) as (_, rows):
            return pd.DataFrame(list(predict_rows(rows, chip, calibration=calibration, regime=regime, tf32=tf32)))
    records = table.to_dict("records") if isinstance(table, pd.DataFrame) else table
    return pd.DataFrame(list(predict_rows(records, chip, calibration=calibration, regime=regime, tf32=tf32)))  # type: ignore[arg-type]


def predict_rows(
    rows: Iterable[Row],
    chip: AnyChip | None = None,
    *,
    calibration: bool = True,
    regime: str = REGIME,
    tf32: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Predict rows as they come, a chunk at a time.

    Args:
        rows: Dictionaries as in :func:`predict`.
        chip: Where the rows run that name no chip.
        calibration: Use the chip's fitted figures.
        regime: As for :func:`predict`.
        tf32: As for :func:`predict`.
        progress: Called with the number of rows done after each chunk.

    Returns:
        Each row with the columns of :data:`COLUMNS`; those of a row that failed are ``None`` but for ``error``.

    Raises:
        UsageError: An unknown regime.
        UnknownChip: No chip of that name.
    """
    return _stream(rows, _Chips(chip, calibration), _Way(checked_regime(regime), tf32), progress)


def _stream(
    rows: Iterable[Row], chips: _Chips, way: _Way, progress: Callable[[int], None] | None
) -> Iterator[dict[str, Any]]:
    if not hasattr(rows, "__iter__"):
        raise UsageError(f"expected rows, a frame or the path of a table, given {repr(rows)[:60]}")
    source, done = iter(rows), 0
    while part := list(islice(source, CHUNK)):
        if (
            wrong := next((row for row in part if type(row) is not dict and not isinstance(row, Mapping)), None)
        ) is not None:
            raise UsageError(f"{shown(wrong)}: a row is a dictionary")
        apart = {keys: _are_apart(keys) for keys in set(map(tuple, part))}
        for row, figures in zip(part, _predict_chunk(part, chips, way), strict=True):
            yield {**row, **figures} if apart[tuple(row)] and len(figures) == len(COLUMNS) else _joined(row, figures)
        done += len(part)
        if progress:
            progress(done)


def output_columns(columns: Iterable[str]) -> list[str]:
    """The columns of the output for those of the input.

    Example:
        >>> output_columns(["model", "activation_bytes"])[:3]
        ['model', 'measured_activation_bytes', 'predicted_us']
    """
    names = list(_renamed(dict.fromkeys(columns)))
    return [name for name in names if name not in COLUMNS] + list(COLUMNS)


def _are_apart(keys: Iterable[str]) -> bool:
    """Tell whether columns have no names of a prediction, so that what is predicted stands behind them."""
    return not {*COLUMNS, *MEASURED.values()}.intersection(keys)


def _joined(row: Row, figures: Mapping[str, Any]) -> dict[str, Any]:
    cells = {key: value for key, value in _renamed(row).items() if key not in COLUMNS}
    return cells | {key: figures.get(key) for key in COLUMNS}


def _renamed(row: Row) -> Row:
    """Measured bytes under another name; in a table of predictions they are predictions already."""
    if "predicted_us" in row or not MEASURED.keys() & row.keys():
        return row
    return {MEASURED.get(key, key): value for key, value in row.items()}


class _Chips:
    """Chips by the names that rows give, each looked up once."""

    def __init__(self, default: AnyChip | None, calibration: bool) -> None:
        self.calibration = calibration
        self.default = self._ready(default) if default is not None else None
        self.known: dict[str, Chip | RooflineError] = {}

    def _ready(self, name: AnyChip) -> Chip:
        chip = find_chip(name)
        return chip if self.calibration else uncalibrated(chip)

    def of(self, row: Row) -> Chip:
        """The chip of a row.

        Raises:
            RooflineError: Neither the row nor the call names one, or none is called so.
        """
        name = text(row, "chip")
        if not name:
            if self.default is None:
                raise UsageError("no chip: name one for all rows, or in a column 'chip'")
            return self.default
        if name not in self.known:
            try:
                self.known[name] = self._ready(name)
            except RooflineError as error:
                self.known[name] = error
        chip = self.known[name]
        if isinstance(chip, RooflineError):
            raise chip
        return chip


def uncalibrated(chip: Chip) -> Chip:
    """The chip with a generic prior in place of whatever was fitted to it."""
    return chip.model_copy(update={"efficiency": Efficiency()})


def text(row: Row, key: str) -> str:
    """A cell as text; empty where it is absent or not a number."""
    value = row.get(key)
    if type(value) is str:
        return value.strip()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value).strip()


def named(row: Row) -> Row:
    """Return a row of ``m, n, k`` that names no operator and no model as the matmul that it is."""
    if "m" not in row or text(row, "op") or text(row, "model"):
        return row
    shape = {
        axis: int(cell) if cell.isdecimal() else cell
        for axis in "mnk"
        if (cell := text(row, axis)[:40].removesuffix(".0"))
    }
    return {**row, "op": SCHEDULED, "dtype": text(row, "dtype") or "bf16", "shape": shape}


def _predict_chunk(rows: Sequence[Row], chips: _Chips, way: _Way) -> list[dict[str, Any]]:
    chunk = _Chunk([named(row) for row in rows], [{} for _ in rows])
    operators: dict[int, tuple[Chip, list[int]]] = {}
    models: dict[Any, list[int]] = {}
    for at, row in enumerate(chunk.rows):
        try:
            chip = chips.of(row)
            if None in row:
                raise UsageError('more cells than columns: quote a shape as "{""m"": 1}"')
            if text(row, "op"):
                operators.setdefault(id(chip), (chip, []))[1].append(at)
            elif text(row, "model"):
                models.setdefault(_model_key(row, chip), []).append(at)
            else:
                raise UsageError("neither an op nor a model")
        except RooflineError as error:
            chunk.fail(at, error)
    for chip, members in operators.values():
        _predict_operators(chunk, members, chip, way)
    for key, members in models.items():
        _predict_models(chunk, key, members, way)
    return chunk.found


# --- operators --------------------------------------------------------------------------------------------------------


def _predict_operators(chunk: _Chunk, members: Sequence[int], chip: Chip, way: _Way) -> None:
    entries: dict[bool, list[tuple[str, str, Mapping[str, Any]]]] = {False: [], True: []}
    index: dict[bool, list[int]] = {False: [], True: []}
    schedules: dict[int, tuple[int, ...]] = {}
    for at in members:
        try:
            entry, schedule = _entry(chunk.rows[at]), schedule_of(chunk.rows[at])
        except RooflineError as error:
            chunk.fail(at, error)
            continue
        if schedule is not None:
            schedules[at] = schedule
        entries[schedule is not None].append(entry)
        index[schedule is not None].append(at)
    for scheduled, some in entries.items():
        _predict_entries(chunk, some, index[scheduled], schedules, chip, way)


def _predict_entries(
    chunk: _Chunk, entries: Sequence[tuple[str, str, Mapping[str, Any]]], index: Sequence[int],
    schedules: Mapping[int, tuple[int, ...]], chip: Chip, way: _Way,
) -> None:  # fmt: skip
    """Predict operators, all with a schedule of their own or none."""
    groups, errors = group_rows(entries)
    for position, why in errors.items():
        chunk.fail(index[position], why)
    for group in groups:
        where = [index[position] for position in group.index]
        try:
            schedule = as_schedule([schedules[at] for at in where]) if where[0] in schedules else None
            columns = _operator_columns(group, chip, way, schedule)
        except RooflineError as error:
            for at in where:
                chunk.fail(at, error)
            continue
        chunk.fill(where, columns)
        for position in np.flatnonzero(_is_empty(group)).tolist():
            chunk.fail(where[position], f"{group.op}: the sizes leave no output")


def _is_empty(group: Rows) -> NDArray[np.bool_]:
    """Tell whether a tensor has an axis below 1, as where a window is larger than what it slides over."""
    empty = np.zeros(len(group.index), dtype=np.bool_)
    for axis in {axis for tensor in group.graph.tensors.values() for axis in tensor.shape}:
        empty |= np.asarray(evaluate(axis, group.sizes)) < 1
    return empty


def _entry(row: Row) -> tuple[str, str, Mapping[str, Any]]:
    op, dtype, shape = text(row, "op"), text(row, "dtype"), parse_shape(row.get("shape"))
    if not dtype:
        raise ModelDataError("no dtype")
    if "count" in shape and op in WORDS and "count" not in inspect.signature(WORDS[op]).parameters:
        raise ModelDataError(f"{op} has no 'count'; repeat the row")
    return op, dtype, shape


def parse_shape(value: Any) -> Mapping[str, Any]:
    """Read a shape cell: a JSON object of sizes, or a mapping already.

    Raises:
        ModelDataError: Anything else; numbers that JSON has not (NaN, Infinity) are refused.

    Example:
        >>> parse_shape('{"m": 8}')
        {'m': 8}
    """
    if type(value) is not str and isinstance(value, Mapping):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ModelDataError('no shape; expected a JSON object, such as {"n": 1024}')
    try:
        shape = _DECODER.decode(value)
    except (ValueError, RecursionError) as error:
        raise ModelDataError(f"shape {value[:60]!r}: not JSON: {str(error)[:80]}") from None
    if not isinstance(shape, dict):
        raise ModelDataError(f'shape {value[:60]!r}: expected a JSON object, such as {{"n": 1024}}')
    return shape


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no size")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _operator_columns(group: Rows, chip: Chip, way: _Way, schedule: Schedule | None) -> dict[str, list[Any]]:
    """The columns of rows that share a graph; ``schedule`` is how their matmuls are blocked."""
    n = len(group.index)
    est = Estimate(group.graph, (chip,), False, "graph", Points(group.sizes, n), way.tf32, 0.0, way.regime)
    inputs, outputs = (np.broadcast_to(np.asarray(evaluate(size, group.sizes), dtype=np.float64), n)
                       for size in _boundary_bytes(group.graph))  # fmt: skip
    contracts = any(row.flops_by for row in est.rows)
    counts = {"flops": est.flops if contracts else est.vector_flops, "bytes": est.bytes}
    times = {**_times(est, n), "bound": est.bound.tolist()} if schedule is None else _scheduled(est, n, schedule)
    return {
        **times,
        **{name: _whole(np.broadcast_to(np.asarray(value, dtype=np.float64), n)) for name, value in counts.items()},
        "memory_bytes": _whole(inputs + outputs),
        "activation_bytes": _whole(outputs),
        **_levels(est, n, schedule),
        "calibrated": [est.calibrated] * n,
    }


def _times(est: Estimate, n: int) -> dict[str, list[float]]:
    """The columns of times [us]."""
    times = {"predicted_us": est.time, "low_us": est.low, "high_us": est.high, "floor_us": est.floor}
    return {name: (np.broadcast_to(np.asarray(value), n) * 1e6).tolist() for name, value in times.items()}


def _scheduled(est: Estimate, n: int, schedule: Schedule) -> dict[str, list[Any]]:
    """The columns of times [us], of what bounds them and of why it cannot run, of matmuls whose blocks are given."""
    priced = priced_of(est, schedule)
    why = [f"this schedule cannot run on {est.chip.name}: {text}" if text else None for text in problems(priced)]
    seconds = np.maximum(priced.seconds, est.floor)
    times = {"predicted_us": seconds, "low_us": np.maximum(seconds * LOW, est.floor), "high_us": seconds * HIGH,
             "floor_us": est.floor}  # fmt: skip
    columns = {name: (np.broadcast_to(value, n) * 1e6).tolist() for name, value in times.items()}
    return columns | {"bound": [BLOCK_BOUNDS[at] for at in np.broadcast_to(priced.bound, n)], "error": why}


def _levels(est: Estimate, n: int, schedule: Schedule | None = None) -> dict[str, list[Any]]:
    """The columns of bytes at main memory and at the cache that all cores share."""
    moved, cache = run_bytes(est, schedule)[0], est.chip.cache
    named = {"dram_bytes": est.chip.main.name, "l2_bytes": cache.name if cache is not None else None}
    return {
        column: [None] * n if name is None else _whole(np.broadcast_to(np.asarray(moved[name], dtype=np.float64), n))
        for column, name in named.items()
    }


def _boundary_bytes(graph: Graph) -> tuple[Any, Any]:
    """Bytes of what an operator is given and of what it returns, symbolic [byte]."""
    inputs = [tensor for tensor in graph.tensors.values() if tensor.kind != "activation"]
    returned = [graph.tensors[name] for name in graph.outputs]
    return sum(nbytes(tensor) for tensor in inputs), sum(nbytes(tensor) for tensor in returned)


def _whole(values: Any) -> list[int]:
    return [round(value) for value in np.asarray(values, dtype=np.float64).tolist()]


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ModelKey:
    """What rows share that one estimate over their batches serves."""

    chip: Chip
    model: str
    phase: str
    mode: str
    dtype: str
    optimizer: str
    params: int | None
    seq: int | None
    context: int | None


def _model_key(row: Row, chip: Chip) -> _ModelKey:
    mode = text(row, "mode").lower()
    if mode not in RUNS_AS:
        raise UsageError(f"mode {mode!r}; allowed: {', '.join(filter(None, RUNS_AS))}" + did_you_mean(mode, RUNS_AS))
    phase, dtype = text(row, "phase").lower(), text(row, "dtype").lower()
    optimizer = _optimizer(row) if phase == "train" else ""
    return _ModelKey(chip, text(row, "model"), phase, RUNS_AS[mode], dtype, optimizer, *(
        _size(row, name) for name in ("params", "seq", "context")))  # fmt: skip


def model_estimate(row: Row, chip: Chip) -> Estimate:
    """Return the estimate of one row of a model.

    Raises:
        RooflineError: As :data:`COLUMNS` has them in ``error``.
    """
    key = _model_key(row, chip)
    graph = _graph(key.model, key.phase, key.dtype, key.optimizer, key.params)
    return _estimate(graph, key, [_size(row, "batch") or 1], _Way())[0]


def _optimizer(row: Row) -> str:
    """As the column ``optimizer`` says, or the first that the note names; AdamW where nothing does."""
    named = text(row, "optimizer").lower()
    words = f" {text(row, 'note').lower()} "
    return named or next((name for word, name in OPTIMIZER_WORDS.items() if word in words), "adamw")


def _size(row: Row, name: str) -> int | None:
    cell = text(row, name)
    if not cell:
        return None
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not 1 <= number <= 2**53 or number != int(number):
        raise UsageError(f"{name}={cell[:40]!r}: expected a whole number from 1 to 2**53")
    return int(number)


def _predict_models(chunk: _Chunk, key: _ModelKey, members: Sequence[int], way: _Way) -> None:
    batches, index = [], []
    for at in members:
        try:
            batches.append(_size(chunk.rows[at], "batch") or 1)
            index.append(at)
        except RooflineError as error:
            chunk.fail(at, error)
    if not index:
        return
    try:
        graph = _graph(key.model, key.phase, key.dtype, key.optimizer, key.params)
        columns = _model_columns(_estimate(graph, key, batches, way), len(index))
    except RooflineError as error:
        for at in index:
            chunk.fail(at, error)
        return
    chunk.fill(index, columns)


def _estimate(graph: Graph, key: _ModelKey, batches: Sequence[int], way: _Way) -> Estimate:
    names = {"S": "seq", "C": "context"}
    lengths = {"S": key.seq or key.context, "C": key.context or key.seq}
    sizes: dict[str, Any] = {name: lengths.get(name) for name in graph.symbols if name != "B"}
    missing = [names.get(name, name) for name in sorted(sizes) if sizes[name] is None]
    if missing:
        raise UsageError(f"{graph.name} needs {' and '.join(missing)}")
    return estimate(graph, key.chip, mode=key.mode, tf32=way.tf32, regime=way.regime, B=np.asarray(batches), **sizes)  # type: ignore[arg-type]


def _model_columns(est: Estimate, n: int) -> dict[str, list[Any]]:
    def column(value: Any) -> Any:
        return np.broadcast_to(np.asarray(value), n)

    memory = est.memory
    stored = memory.total - memory.workspace - memory.reserve
    counts = {"flops": est.flops, "bytes": est.bytes, "memory_bytes": stored, "activation_bytes": memory.activations}
    return {
        **_times(est, n),
        "bound": column(est.bound).tolist(),
        **{name: _whole(column(value)) for name, value in counts.items()},
        **_levels(est, n),
        "calibrated": [est.calibrated] * n,
    }


@lru_cache(maxsize=256)
def _graph(name: str, phase: str, dtype: str, optimizer: str, params: int | None) -> Graph:
    """The graph of a model."""
    lower = dtype.removeprefix("amp-") if dtype.startswith("amp") else ""
    stored = "fp32" if lower else dtype or None
    graph = _variant(name, None if phase == "inference" else phase or None, stored, params)
    if lower:
        graph = autocast(graph, lower)
    if phase == "train":
        graph = training_graph(graph, optimizer=optimizer)
    return graph


def _variant(name: str, phase: str | None, stored: str | None, params: int | None) -> Graph:
    """The model, or where the row counts other parameters, the first of :data:`VARIANTS` that has them."""
    graph = build_model(name, phase=phase, dtype=stored)
    if params is None or graph.parameters == params:
        return graph
    for changes in VARIANTS:
        try:
            other = build_model(name, phase=phase, dtype=stored, **changes)
        except RooflineError:
            continue
        if other.parameters == params:
            return other
    return graph
