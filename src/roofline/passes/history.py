"""The history that passes leave: which was applied to what, with which options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec

from roofline.ir.errors import UsageError
from roofline.ir.graph import Applied, Graph, check_graph, once_per_graph
from roofline.ir.sizes import python_number

Options = ParamSpec("Options")


def graph_pass(
    apply: Callable[Concatenate[Graph, Options], Graph],
) -> Callable[Concatenate[Graph, Options], Graph]:
    """Make a pass leave its name, its options and the program that it was given in ``graph.history``.

    A pass that is made of others leaves one entry, its own; a pass that returns the graph itself leaves none. What the
    pass puts into ``info.notes`` beyond what was there becomes the entry's notes. The stages of a
    pipeline, by which its memory is counted, are changed along.
    """
    names = tuple(inspect.signature(apply).parameters)[1:]

    @wraps(apply)
    def run(graph: Graph, /, *args: Options.args, **options: Options.kwargs) -> Graph:
        check_graph(graph, apply.__name__)
        plain = {key: python_number(value) for key, value in options.items()}
        return passed(graph, *map(python_number, args), **plain)

    @once_per_graph
    def passed(graph: Graph, /, *args: Options.args, **options: Options.kwargs) -> Graph:
        after = apply(graph, *args, **options)
        if after is graph:
            return graph
        after = _with_stages(after, graph, lambda stage: apply(stage, *args, **options))
        named = {**dict(zip(names, args, strict=False)), **options}
        notes = tuple(note for note in after.info.notes if note not in graph.info.notes)
        step = Applied(apply.__name__, tuple((k, v) for k, v in named.items() if v is not None), graph, notes)
        return replace(after, history=(*graph.history, step))

    return run


def _with_stages(after: Graph, graph: Graph, apply: Callable[[Graph], Graph]) -> Graph:
    """The program with the stages of its pipeline passed too, so that its memory is that of the changed program."""
    stages = graph.info.pipeline
    if not stages or after.info.pipeline is not stages:
        return after
    # By itself, a stage may take a table that stages share for its own matrix: it stores what the whole program does.
    stored = [tensor for tensor in after.tensors.values() if tensor.kind in ("weight", "buffer", "cache")]

    def passed(stage: Graph) -> Graph:
        with suppress(UsageError):  # what was asked for is in other stages
            stage = apply(stage)
        return stage.with_tensors(tensor for tensor in stored if tensor.name in stage.tensors)

    return after.with_info(pipeline=tuple(map(passed, stages)))


def added_for_training(graph: Graph) -> str:
    """Name what of a training step a program has already: its backward or its optimizer; empty for neither."""
    return "backward" if graph.backward_start is not None else "optimizer" if graph.info.training.optimizer else ""


def order_hint(graph: Graph, what: str) -> str:
    """A remark for an error: what came before that hides the weights of matmuls from a pass."""
    hiding = [step.name for step in graph.history if step.name in ("quantize", "dequantize", "autocast", "optimizer")]
    return f"; it went through {hiding[-1]}: {what} before that" if hiding else ""
