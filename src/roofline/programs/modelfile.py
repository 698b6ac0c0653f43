"""Model files: what a person writes in TOML, checked by pydantic, and its expansion to a graph.

A file either names a ``family`` and gives its ``[sizes]`` and ``[options]``, or lists ``[[layer]]`` after layer
(:mod:`roofline.programs.layerwise`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roofline.counting.parameters import active_parameters
from roofline.ir.datafile import read_toml
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ModelDataError, ShapeError, UnknownDType, UnknownOp, UsageError, did_you_mean
from roofline.ir.expressions import SYMBOLS, parse
from roofline.ir.files import user_path
from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import Dim, Size, python_number, symbols
from roofline.ops.builder import Builder
from roofline.programs.architectures import family
from roofline.programs.architectures.config import Family, Model
from roofline.programs.layerwise import MAX_NODES, build_layers

#: The phases that a file of layers may describe.
PHASES = ("forward", "prefill", "decode")


class ModelFile(BaseModel):
    """A model file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=200)  #: What the model is called.
    aliases: tuple[str, ...] = ()  #: Other names, such as its Hugging Face id.
    description: str = ""  #: One line about it.
    family: str = ""  #: The kind of model, for files that give sizes only.
    dtype: str  #: Number format of the published checkpoint.
    parameters: int | None = Field(None, gt=0)  #: Published parameter count, exact.
    parameters_source: str = ""  #: Where that count is from.
    source: str = ""  #: Where the sizes are from.
    sizes: dict[str, Any] = {}  #: Whole numbers or expressions of those above them.
    options: dict[str, Any] = {}  #: Switches of the family.
    inputs: dict[str, Any] = {}  #: Shape of each input, for files that list layers.
    layer: tuple[dict[str, Any], ...] = ()  #: The layers.
    outputs: tuple[str, ...] = ()  #: Names of the layers whose results are kept; the last one when absent.
    phase: str = "forward"  #: What a layer-wise file describes.
    items: str = ""  #: What one run produces, as an expression; ``B * S`` or ``B`` when absent.
    item: str = ""  #: The word for one of them.

    def __hash__(self) -> int:
        """Tell files apart by where they lie in memory: an unchanged one is read once."""
        return id(self)


def load_model_file(path: str | Path) -> ModelFile:
    """Read and check a model file; unchanged files are read once.

    Raises:
        ModelDataError: Not readable, not TOML, or not a model; names the file and the line or key.
    """
    file = user_path(path, ModelDataError)
    try:
        stamp = file.stat()
    except (OSError, ValueError) as error:
        raise ModelDataError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}") from None
    return _load(str(file), stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=512)
def _load(path: str, _changed: int, _size: int) -> ModelFile:
    return check_model_file(read_toml(Path(path), ModelDataError), path)


def check_model_file(table: Mapping[str, Any], where: str) -> ModelFile:
    """Check the contents of a model file."""
    try:
        file = ModelFile(**table)
    except ValidationError as error:
        raise ModelDataError(f"{where}: {first_fault(error, ModelFile)}") from None
    if bool(file.family) == bool(file.layer):
        number = "both" if file.family else "neither"
        raise ModelDataError(f"{where}: expected either family = '...' or [[layer]] tables, given {number}")
    if file.phase not in PHASES:
        raise ModelDataError(f"{where}: phase: {file.phase!r}; allowed: {', '.join(PHASES)}")
    try:
        number_format(file.dtype)
    except UnknownDType as error:
        raise ModelDataError(f"{where}: dtype: {error}") from None
    return file


def first_fault(error: ValidationError, model: type[BaseModel]) -> str:
    """Return pydantic's first complaint as one line: where, what, allowed, given."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(map(str, fault["loc"]))
    text = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        text = f"unknown key; allowed: {', '.join(model.model_fields)}{did_you_mean(where, model.model_fields)}"
    elif fault["type"] == "missing":
        text = "missing"
    elif fault["type"] != "value_error":
        text = f"{text[:1].lower()}{text[1:]}, given {str(fault['input'])[:60]!r}"
    return f"{where}: {text}" if where else text


def build_model(
    file: ModelFile, where: str, phase: str | None, overrides: Mapping[str, Any], kind: Family | None = None
) -> Graph:
    """Expand a model file to a graph.

    Args:
        file: The checked file.
        where: Its path, for errors.
        phase: ``forward``, ``prefill``, ``decode`` or ``train``; the model's default when ``None``.
        overrides: Sizes and options that replace the file's.
        kind: How the model is composed, where it is not as the file's family says.

    Returns:
        The graph, with where its numbers are from.

    Raises:
        UsageError: A phase that the model has not, or an unknown override.
        ModelDataError: The file contradicts itself.
        ShapeError: Shapes in it do.
    """
    try:
        if file.family:
            kind = kind or family(file.family, where)
            chosen = choose_phase(file.name, phase, kind.phases, kind.default_phase)
            model = _compose(file, kind, where, overrides)
            graph = model(Builder(f"{file.name} {chosen}", number_format(file.dtype).name), chosen)
            graph = graph.with_info(phase=chosen)
        else:
            graph = _of_layers(file, where, phase, overrides)
    except (ModelDataError, ShapeError, UnknownOp) as error:
        if where in str(error):
            raise
        raise type(error)(f"{where}: {error}") from None
    if len(graph.nodes) > MAX_NODES:
        raise ModelDataError(f"{where}: {len(graph.nodes)} nodes; allowed: at most {MAX_NODES}")
    return graph.with_info(**_provenance(file), active_parameters=active_parameters(graph))


def _provenance(file: ModelFile) -> dict[str, Any]:
    return {
        "model": file.name,
        "family": file.family or "layers",
        "dtype": number_format(file.dtype).name,
        "parameters_published": file.parameters,
        "parameters_source": file.parameters_source,
        "source": file.source,
    }


def choose_phase(name: str, phase: str | None, phases: tuple[str, ...], default: str) -> str:
    """Choose the phase to build.

    Raises:
        UsageError: The model has no such phase; lists those it has.
    """
    chosen = phase or default
    if chosen not in phases:
        near = did_you_mean(str(chosen), phases)
        raise UsageError(f"{name} has no phase {str(chosen)!r}; allowed: {', '.join(phases)}{near}")
    return chosen


def _compose(file: ModelFile, kind: Family, where: str, overrides: Mapping[str, Any]) -> Model:
    """Compose the model of a file's sizes and options with the overrides in place."""
    for key in file.sizes.keys() & file.options.keys():
        raise ModelDataError(f"{where}: {key!r} is in [sizes] and in [options]")
    _known(file.name, overrides, list(kind.config.model_fields))
    values = {**file.options, **_numbers(file, where, overrides)}
    try:
        return kind.compose(kind.config(**values))
    except ValueError as error:
        fault = first_fault(error, kind.config) if isinstance(error, ValidationError) else str(error)
        if overrides:
            raise UsageError(f"{file.name}: {fault}") from None
        raise ModelDataError(f"{where}: {fault}") from None


def _known(name: str, overrides: Mapping[str, Any], allowed: list[str]) -> None:
    for key in overrides:
        if key in SYMBOLS:
            raise UsageError(f"{name}: {key} is a symbol; give its value where the program is counted or estimated")
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise UsageError(f"{name}: unknown size or option {key!r}; allowed: {', '.join(allowed)}{near}")


def _numbers(file: ModelFile, where: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's sizes with the overrides in place, expressions worked out in the order of the file."""
    sizes: dict[str, Any] = {}
    for key, size in {**file.sizes, **overrides}.items():
        value = python_number(size)
        is_text = isinstance(value, str) and key in file.sizes
        names = {name: size for name, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool)}
        try:
            sizes[key] = parse(value, names, f"{where}: sizes.{key}") if is_text else value
        except ModelDataError as error:
            raise (UsageError if key in overrides else ModelDataError)(str(error)) from None
    return sizes


def _of_layers(file: ModelFile, where: str, phase: str | None, overrides: Mapping[str, Any]) -> Graph:
    chosen = choose_phase(file.name, phase, (file.phase,), file.phase)
    if file.options:
        raise ModelDataError(f"{where}: [options] belong to a family; a file of layers has [sizes]")
    _known(file.name, overrides, list(file.sizes))
    sizes = _numbers(file, where, overrides)
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | Dim):
            raise UsageError(f"{where}: sizes.{key}: expected a whole number or an expression, given {value!r}")
        if isinstance(value, int) and value < 1:
            raise UsageError(f"{where}: sizes.{key}: sizes start at 1, given {value}")
    builder = Builder(file.name, number_format(file.dtype).name)
    outputs = build_layers(builder, file.inputs, file.layer, file.outputs, sizes, where)
    items, item = _items(file, builder, sizes, where)
    graph = builder.graph(outputs, items, item, Info(phase=chosen, layers=len(file.layer)))
    for tensor in graph.tensors.values():
        if tensor.kind == "weight" and symbols(tensor.numel):
            raise ModelDataError(
                f"{where}: {tensor.name}: a weight of {list(tensor.shape)}; its sizes are whole numbers"
            )
    return graph


def _items(file: ModelFile, builder: Builder, sizes: Mapping[str, Size], where: str) -> tuple[Size, str]:
    if file.items:
        return parse(file.items, sizes, f"{where}: items"), file.item or "item"
    used = frozenset().union(*(builder.tensor(name).numel.symbols for name in file.inputs
                               if not isinstance(builder.tensor(name).numel, int)))  # fmt: skip
    if {"B", "S"} <= used:
        return SYMBOLS["B"] * SYMBOLS["S"], file.item or "token"
    return (SYMBOLS["B"], file.item or "sample") if "B" in used else (1, file.item or "run")
