"""Whatever a user may call a model, to a graph: a shipped name, a file of some kind, a config, a script."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from roofline.frontends.onnx import from_onnx
from roofline.frontends.script import load_script, split_script
from roofline.ir.errors import ModelDataError, UnknownModel, UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.passes.formats.cast import retype
from roofline.programs.huggingface import from_config
from roofline.programs.library import model
from roofline.programs.workload import load_workload

#: What tells a config from a workload, both of which are ``.json``.
_CONFIG = re.compile(rb'"(model_type|architectures)"\s*:')
_HEAD = 2**20


def load_program(
    text: str | os.PathLike[str],
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
) -> Graph:
    """Build the program that a name or a path stands for.

    Args:
        text: A shipped name or alias, a model ``.toml``, a workload ``.json``, a ``config.json`` or its folder, an
            ``.onnx`` file, or a Python script, ``script.py`` or ``script.py:name``: your own code, which is run.
        phase: ``forward``, ``prefill`` or ``decode``; the model's default when absent. A workload, an ONNX file or a
            script has none.
        dtype: Number format of weights, activations and cache; of a workload, that of entries that name none.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.

    Raises:
        UnknownModel: Nothing of that name.
        ModelDataError: A file that does not describe a program.
        UsageError: A phase that the program has not.

    Example:
        >>> load_program("llama-3-8b", phase="decode").item
        'token'
    """
    if not isinstance(text, str | os.PathLike) or not os.fspath(text):
        raise UsageError(f"model: wanted a name or a path, given {text!r}")
    script = split_script(text)
    if script is not None:
        return _script(*script, phase, dtype, weights, cache)
    path = Path(text).expanduser()
    if _is_folder(text, path) or _is_config(path):
        return from_config(path, phase, dtype, weights, cache)
    if path.suffix.lower() == ".onnx":
        return _onnx(path, phase, dtype, weights, cache)
    if path.suffix.lower() == ".json":
        return _workload(path, phase, dtype, weights, cache)
    try:
        return model(text, phase, dtype, weights, cache)
    except UnknownModel:
        if _isdir(path):
            return from_config(path, phase, dtype, weights, cache)
        raise


def _onnx(path: Path, phase: str | None, dtype: str | None, weights: str | None, cache: str | None) -> Graph:
    if phase is not None:
        raise UsageError(f"{path}: an ONNX file has no phase; it holds one program")
    graph = from_onnx(path)
    return retype(graph, dtype, weights=weights, cache=cache) if dtype or weights or cache else graph


def _isdir(path: Path) -> bool:
    return os.path.isdir(path)  # unlike Path.is_dir, false for names that no file can have


def _is_folder(text: str | os.PathLike[str], path: Path) -> bool:
    """A folder, written so that it is clear: a plain name is first a shipped one."""
    written = os.fspath(text)
    clear = not isinstance(text, str) or "/" in written or os.sep in written or written in (".", "..")
    return clear and _isdir(path) and path.suffix.lower() != ".toml"


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


def _workload(path: Path, phase: str | None, dtype: str | None, weights: str | None, cache: str | None) -> Graph:
    if not os.path.lexists(path):
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.json")])
        raise UnknownModel(f"no workload file is called {str(path)[:200]!r}{near}")
    if not os.path.isfile(path):
        what = "a directory" if _isdir(path) else "not a file"
        raise ModelDataError(f"{path}: {what}; wanted a workload .json")
    if phase is not None:
        raise UsageError(f"{path}: a workload has no phase; each of its model entries may name one")
    graph = load_workload(path, dtype)
    graph = replace(graph, name=path.stem) if not graph.info else graph
    return retype(graph, weights=weights, cache=cache) if weights or cache else graph


def _script(
    path: str, name: str | None, phase: str | None, dtype: str | None, weights: str | None, cache: str | None
) -> Graph:
    if phase is not None:
        raise UsageError(f"{path}: a script has no phase; it builds one program")
    graph = load_script(path, name)
    return retype(graph, dtype, weights=weights, cache=cache) if dtype or weights or cache else graph
