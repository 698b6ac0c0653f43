"""Find model files by name, alias or path and build them."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from roofline.hardware.library import data_dir, files, find_file, is_path, several, spelling
from roofline.ir.errors import RooflineError, UnknownModel, UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.graph import Graph
from roofline.programs.modelfile import ModelFile, build_model, load_model_file

#: What tells a model file from a chip file that lies in the same folder of the user's.
_MODEL = re.compile(r"^\s*(family\s*=|\[\[\s*layer)", re.MULTILINE)


def model(
    name: str | os.PathLike[str],
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **overrides: Any,
) -> Graph:
    """Build a model.

    Args:
        name: A name or alias in any spelling, or the path of a TOML file.
        phase: ``forward``, ``prefill`` or ``decode``; decoders default to ``prefill``, all others to ``forward``.
        dtype: Number format of weights, activations and cache; the published checkpoint's when absent.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        overrides: Sizes and options that replace the file's, such as ``layers=8`` or ``attention="naive"``.

    Returns:
        The graph of one phase.

    Raises:
        UnknownModel: No model of that name, or several.
        ModelDataError: A file that does not describe a model.
        UsageError: A phase that the model has not, or an unknown override.

    Example:
        >>> model("llama-3-8b", layers=2).parameters
        1486901248
    """
    path = find_model(name)
    file = load_model_file(path)
    try:
        return _built(file, path, phase, dtype, weights, cache, **overrides)
    except TypeError:  # an override that is no key
        return _built.__wrapped__(file, path, phase, dtype, weights, cache, **overrides)


@lru_cache(maxsize=16, typed=True)  # the same model again is the same graph, with all that is known of it
def _built(
    file: ModelFile,
    path: Path,
    phase: str | None,
    dtype: str | None,
    weights: str | None,
    cache: str | None,
    **overrides: Any,
) -> Graph:
    graph = build_model(file, str(path), phase, overrides)
    if not (dtype or weights or cache):
        return graph
    from roofline.passes.formats.cast import cast

    return cast(graph, dtype=dtype, weights=weights, cache=cache)


def models() -> list[str]:
    """Return the names of all models, sorted.

    Returns:
        The names, as :func:`model` takes them.

    Example:
        >>> "llama-3-8b" in models()
        True
    """
    return sorted(_files())


def find_model(name: str | os.PathLike[str]) -> Path:
    """Return the file of a model, by stem without reading any, else by alias, else as a path.

    Raises:
        UnknownModel: None or several match; the message lists the near names.
    """
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"model: expected a name or a path, given {name!r}")
    text = os.fspath(name)
    if not is_path(name) and (file := find_file("models", text)):
        return file
    # Hugging Face ids contain a slash, so aliases come before paths.
    if not text.lower().endswith(".toml") and not isinstance(name, os.PathLike):
        if file := _aliases(_stamp()).get(spelling(text)):
            return file
        if not is_path(name):
            hint = several(text, models())
            near = hint if hint.startswith(" ") else f" is not known{hint}; roofline.models() lists the names"
            raise UnknownModel(f"model {text[:100]!r}{near}")
    path = user_path(text, UnknownModel)
    if not os.path.lexists(path):
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.toml")] + models())
        raise UnknownModel(f"no model and no model file is called {text[:200]!r}{near}")
    return path


def _files() -> dict[str, Path]:
    shipped = data_dir("models")
    return {stem: path for stem, path in files("models").items() if path.parent == shipped or _is_model(path)}


def _is_model(path: Path) -> bool:
    try:
        return bool(_MODEL.search(path.read_text(errors="replace")[: 2**20]))
    except OSError:
        return False


def _stamp() -> tuple[tuple[str, int], ...]:
    """Return what the index of names depends on: the files and when they changed."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in _files().values())


@lru_cache(maxsize=8)
def _aliases(stamp: tuple[tuple[str, int], ...]) -> dict[str, Path]:
    """Index files by every name and alias that they give; the user's come first and win."""
    index: dict[str, Path] = {}
    for text, _ in stamp:
        try:
            file = load_model_file(text)
        except RooflineError:
            continue  # a broken file is reported when it is asked for, not when another is
        for name in (file.name, Path(text).stem, *file.aliases):
            index.setdefault(spelling(name), Path(text))
    return index
