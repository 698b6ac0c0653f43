"""Whatever stands for a program, to a graph: a shipped name, a file of some kind, a config, a script."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from roofline import frontends
from roofline.frontends.script import load_script, split_script
from roofline.ir.errors import ModelDataError, UnknownModel, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.graph import Graph
from roofline.passes.formats.cast import cast

#: What every function takes that takes a program.
Program = Graph | str | os.PathLike[str]

#: What tells a config from a workload, both of which are ``.json``.
_CONFIG = re.compile(rb'"(model_type|architectures)"\s*:')
_HEAD = 2**20

#: An operator with its sizes, such as ``gemm m=4096 n=4096 k=4096 dtype=bf16``: an entry of a workload in one line.
_OPERATOR = re.compile(r"\s*[a-z]\w*(\s+[a-z]\w*=\S+)+\s*")

#: What holds one program, without phases or options.
_SINGLE = {"script": "a script", "onnx": "an ONNX file", "workload": "a workload", "operator": "an operator",
           "hlo": "a StableHLO or HLO file"}  # fmt: skip
_SUFFIXES = {".onnx": "onnx", ".json": "workload", **dict.fromkeys((".mlir", ".stablehlo", ".hlo"), "hlo")}
_READERS: dict[str, Callable[[Path], Graph]] = {
    "onnx": lambda path: frontends.from_onnx(path), "hlo": lambda path: frontends.from_hlo(path),
}  # fmt: skip
#: And what to do about a phase there.
_NO_PHASE = {
    "script": "it builds one program", "onnx": "it holds one program", "hlo": "it holds one program",
    "workload": "each of its model entries may name one", "operator": "it is one program",
}  # fmt: skip


def as_graph(
    program: Program,
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    *,
    implied: str | None = None,
    **overrides: Any,
) -> Graph:
    """Return the graph of a program, however it is given.

    Args:
        program: A graph, or anything that :func:`load_program` takes.
        phase: ``forward``, ``prefill``, ``decode`` or ``train``; a graph has its phase already.
        dtype: Number format of weights, activations and cache.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        implied: The phase that the question implies, for programs that have phases, where none is given.
        overrides: Sizes and options of a model, such as ``layers=8``.

    Returns:
        The graph; a graph itself where no format is given.

    Raises:
        UsageError: Not a program, or a phase or an override for a program that has none.
        UnknownModel: Nothing of that name.
        ModelDataError: A file that does not describe a program.

    Example:
        >>> graph = as_graph("llama-3-8b", implied="decode")
        >>> graph.item, as_graph(graph) is graph
        ('token', True)
    """
    if isinstance(program, Graph):
        for name, value in {"phase": phase, **overrides}.items():
            if value is not None:
                raise UsageError(f"{name}={value!r} belongs to a program given by name; a Graph has its {name} already")
        formats = [value for value in (dtype, weights, cache) if value is not None]
        return cast(program, dtype, weights=weights, cache=cache) if formats else program
    if phase is None and implied is not None and has_phases(program):
        phase = implied
    return load_program(program, phase, dtype, weights, cache, **overrides)


def has_phases(program: Program) -> bool:
    """Tell whether a program is given by what builds any of its phases: a model's name, its file, or a config."""
    return not isinstance(program, Graph) and _kind(program) not in _SINGLE


def load_program(
    text: Graph | str | os.PathLike[str],
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **overrides: Any,
) -> Graph:
    """Build the program that a name or a path stands for.

    Args:
        text: A shipped name or alias, a model ``.toml``, a workload ``.json``, a ``config.json`` or its folder, an
            ``.onnx`` file, StableHLO or HLO text (``.mlir``, ``.stablehlo``, ``.hlo``, and ``.txt`` as XLA dumps it),
            an operator with its sizes (``gemm m=4096 n=4096 k=4096 dtype=bf16``), or a Python script, ``script.py`` or
            ``script.py:name``: your own code, which is run. A graph is returned as it is.
        phase: ``forward``, ``prefill``, ``decode`` or ``train``; the model's default when absent. A workload, an ONNX
            file, a module or a script has none.
        dtype: Number format of weights, activations and cache; of a workload, that of entries that name none.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        overrides: Sizes and options of a model or a config, such as ``layers=8``.

    Returns:
        The program's graph.

    Raises:
        UnknownModel: Nothing of that name.
        ModelDataError: A file that does not describe a program.
        UsageError: A phase that the program does not have, or an option that the model does not know.

    Example:
        >>> load_program("llama-3-8b", phase="decode").item
        'token'
    """
    if isinstance(text, Graph):
        return as_graph(text, phase, dtype, weights, cache, **overrides)
    kind, path = _kind(text), user_path(text, UnknownModel)
    if kind not in _SINGLE:
        return _model(kind, text, phase, dtype, weights, cache, **overrides)
    if phase is not None:
        raise UsageError(f"{path}: {_SINGLE[kind]} has no phase; {_NO_PHASE[kind]}")
    if overrides:
        raise UsageError(f"{path}: {_SINGLE[kind]} has no option {next(iter(overrides))!r}; only a model has")
    if kind in ("workload", "operator"):
        graph, dtype = _workload(path, dtype) if kind == "workload" else _operator(os.fspath(text), dtype), None
    else:
        graph = _READERS[kind](path) if kind in _READERS else load_script(*_script(text))
    return cast(graph, dtype, weights=weights, cache=cache) if dtype or weights or cache else graph


def _kind(text: str | os.PathLike[str]) -> str:
    """Tell what a text stands for: ``operator``, ``script``, ``config``, ``onnx``, ``hlo``, ``workload``, ``model``."""
    if not isinstance(text, str | os.PathLike) or not os.fspath(text):
        code = "; import code with roofline.from_torch or roofline.from_jax first" if callable(text) else ""
        raise UsageError(
            "expected a program: a Graph, a shipped name (see roofline.models()), or the path of a model .toml, a "
            "workload .json, a config.json or its folder, an .onnx or .mlir file or a script.py; "
            f"given {repr(text)[:60]}{code}"
        )
    path = user_path(text, UnknownModel)
    if isinstance(text, str) and _OPERATOR.fullmatch(text):
        return "operator"
    if split_script(text) is not None:
        return "script"
    if _is_folder(text, path) or _is_config(path):
        return "config"
    suffix = path.suffix.lower()
    return "hlo" if suffix == ".txt" and _is_module(path) else _SUFFIXES.get(suffix, "model")


def _script(text: str | os.PathLike[str]) -> tuple[str, str | None]:
    script = split_script(text)
    assert script is not None
    return script


def _model(kind: str, text: str | os.PathLike[str], *options: str | None, **overrides: Any) -> Graph:
    """Build a shipped model, a model file or a Hugging Face config; a folder's plain name is first a shipped one's."""
    from roofline.programs.huggingface import from_config  # slow to load, and of no use to who has a graph
    from roofline.programs.library import model

    path = user_path(text, UnknownModel)
    if kind == "config":
        return from_config(path, *options, **overrides)
    try:
        return model(text, *options, **overrides)
    except UnknownModel:
        if os.path.isdir(path):  # unlike Path.is_dir, false for names that no file can have
            return from_config(path, *options, **overrides)
        raise


def _is_folder(text: str | os.PathLike[str], path: Path) -> bool:
    """Tell whether it is a folder, written so that it is clear: a plain name is first a shipped one."""
    written = os.fspath(text)
    clear = not isinstance(text, str) or "/" in written or os.sep in written or written in (".", "..")
    return clear and os.path.isdir(path) and path.suffix.lower() != ".toml"


def _is_config(path: Path) -> bool:
    if path.name.lower() == "config.json":
        return True
    if path.suffix.lower() != ".json" or not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            return bool(_CONFIG.search(file.read(_HEAD)))
    except (OSError, ValueError):
        return False  # the reader of workloads says what is wrong with it


def _operator(text: str, dtype: str | None) -> Graph:
    """Build an operator that is written with its sizes."""
    from roofline.programs.workload import workload

    word, *pairs = text.split()
    entry: dict[str, Any] = {"op": word}
    for key, _, value in (pair.partition("=") for pair in pairs):
        if key in entry:
            raise UsageError(f"{text[:60]!r}: {key} twice; expected each once")
        entry[key] = {"true": True, "false": False}.get(
            value, int(value) if value.isascii() and value.isdigit() else value
        )
    if dtype is not None and "dtype" in entry:
        raise UsageError(f"{text[:60]!r} has a dtype; leave out one of it and dtype={dtype!r} (--dtype)")
    return workload([entry], dtype or "bf16", word)


def _is_module(path: Path) -> bool:
    """Tell whether a text is one that XLA dumps."""
    from roofline.frontends.hlo import is_module

    if not os.path.isfile(path):
        return False
    try:
        with path.open("rb") as file:
            return is_module(file.read(_HEAD))
    except OSError:
        return False  # the reader of models says what is wrong with it


def _workload(path: Path, dtype: str | None) -> Graph:
    from roofline.programs.workload import load_workload

    if not os.path.lexists(path):
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.json")])
        raise UnknownModel(f"no workload file is called {str(path)[:200]!r}{near}")
    if not os.path.isfile(path):
        raise ModelDataError(
            f"{path}: {'a directory' if os.path.isdir(path) else 'not a file'}; expected a workload .json"
        )
    graph = load_workload(path, dtype)
    return replace(graph, name=path.stem) if not graph.info else graph
