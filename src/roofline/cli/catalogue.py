"""The models as records: what the command ``models`` lists and shows."""

from __future__ import annotations

from typing import Any

from roofline.frontends.source import load_program
from roofline.ir.errors import UnknownModel
from roofline.programs.families import family
from roofline.programs.library import find_model
from roofline.programs.library import models as names
from roofline.programs.modelfile import ModelFile, load_model_file

__all__ = ["describe", "names", "row"]


def row(name: str) -> dict[str, Any]:
    """A line of the list, from the model's file alone."""
    file = load_model_file(find_model(name))
    return {
        "name": name,
        "family": file.family or "layers",
        "dtype": file.dtype,
        "parameters": file.parameters,
        "phases": _phases(file),
        "aliases": list(file.aliases),
    }


def describe(name: str) -> dict[str, Any]:
    """Everything about one model, with what its layers count to."""
    graph = load_program(name)
    file = _file(name)
    own = {key: getattr(file, key) for key in ("description", "aliases", "sizes", "options")} if file else {}
    return {
        "name": graph.title,
        "family": graph.info.family or "workload",
        "dtype": graph.info.dtype,
        "phases": _phases(file) if file else [],
        "parameters": graph.parameters,
        "active_parameters": graph.parameters if graph.info.active_parameters is None else graph.info.active_parameters,
        "parameters_published": graph.info.parameters_published,
        "parameters_source": graph.info.parameters_source,
        "operators": len(graph.nodes),
        "sizes_needed": sorted(graph.symbols),
        "source": graph.info.source or "",
        **own,
    }


def _file(name: str) -> ModelFile | None:
    """The model's file, where it has one."""
    try:
        path = find_model(name)
    except UnknownModel:
        return None
    return load_model_file(path) if path.suffix == ".toml" else None


def _phases(file: ModelFile) -> list[str]:
    return list(family(file.family).phases) if file.family else [file.phase]
