"""Distillation: a smaller model of the same family that learns from a larger one."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from roofline.frontends.source import Program, as_graph, has_phases
from roofline.ir.errors import UsageError
from roofline.ir.graph import Applied, Graph
from roofline.passes.formats.cast import cast


def distill(teacher: Program, *, to: str | os.PathLike[str] | None = None, **smaller: Any) -> Graph:
    """Build the student of a model: the same family with a smaller configuration, in the same phase and format.

    Args:
        teacher: A shipped name, a model file, or a graph that :func:`roofline.model` built of one.
        to: Another model of the family to start from; the teacher's own file where it is absent.
        smaller: Sizes and options that replace the file's, such as ``layers=6``.

    Returns:
        The student, with the teacher in its history.

    Raises:
        UsageError: Nothing is to be smaller, the student would not be, is of another family, or the graph comes from
            no model file.

    Example:
        >>> student = distill("bert-base-uncased", layers=6)
        >>> student.history, student.parameters < student.history[0].before.parameters
        ((distill(layers=6),), True)
    """
    large = as_graph(teacher)
    name, phase = large.info.model, large.info.phase
    if name is None or large.info.family is None:
        raise UsageError(
            f"{large.name} does not come from a model file; distill takes a model by name, prune shrinks a graph"
        )
    if to is None and not smaller:
        raise UsageError(f"distill: nothing makes it smaller than {name}; give sizes such as layers=6, or to=a model")
    source = to if to is not None else teacher if has_phases(teacher) else name
    small = _in_its_format(as_graph(source, phase, **smaller), large)
    if small.info.family != large.info.family:
        raise UsageError(
            f"distill: {small.info.model} is of the family {small.info.family}, {name} of "
            f"{large.info.family}; a student must be of its teacher's family"
        )
    if small.parameters >= large.parameters:
        raise UsageError(
            f"distill: {_told(to, smaller)} has {small.parameters:,} parameters, its teacher {name} "
            f"{large.parameters:,}; a student must be smaller"
        )
    return _recorded(small, large, to, smaller)


def _recorded(small: Graph, large: Graph, to: Any, smaller: dict[str, Any]) -> Graph:
    note = (
        f"a student of {large.info.model} with {small.parameters / large.parameters:.0%} of its parameters; it has "
        "to be trained, and each training step runs the teacher forward as well"
    )
    known = small if to is not None else small.with_info(parameters_published=None, parameters_source="")
    options = {**({"to": os.fspath(to)} if to is not None else {}), **smaller}
    step = Applied("distill", tuple(options.items()), large, (note,))
    return replace(known.with_notes(note), history=(*large.history, step))


def _told(to: Any, smaller: dict[str, Any]) -> str:
    sizes = ", ".join(f"{key}={value}" for key, value in smaller.items())
    return " with ".join(part for part in (os.fspath(to) if to is not None else "", sizes) if part)


def _in_its_format(small: Graph, large: Graph) -> Graph:
    """The student in the teacher's number format, where that is one for all of its weights."""
    formats = {tensor.dtype for tensor in large.tensors.values() if tensor.kind == "weight"}
    own = {tensor.dtype for tensor in small.tensors.values() if tensor.kind == "weight"}
    if len(formats) != 1 or formats == own:
        return small
    return replace(cast(small, dtype=formats.pop()), history=())
