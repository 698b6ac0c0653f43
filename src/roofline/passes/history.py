"""The trail that passes leave: who was applied to what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError
from roofline.ir.graph import Applied, Graph
from roofline.ir.sizes import evaluate

Options = ParamSpec("Options")


def recorded(
    apply: Callable[Concatenate[Graph, Options], Graph],
) -> Callable[Concatenate[Graph, Options], Graph]:
    """Make a pass leave its name, its options and the program that it was given in ``graph.history``.

    A pass that is made of others leaves one entry, its own; a pass that returns the graph itself leaves none. What the
    pass puts into ``info["notes"]`` beyond what was there becomes the entry's notes. The stages of a
    pipeline, by which its memory is counted, are changed along.
    """
    names = tuple(inspect.signature(apply).parameters)[1:]

    @wraps(apply)
    def run(graph: Graph, /, *args: Options.args, **options: Options.kwargs) -> Graph:
        after = apply(graph, *args, **options)
        if after is graph:
            return graph
        after = _with_stages(after, graph, lambda stage: apply(stage, *args, **options))
        told = {**dict(zip(names, args, strict=False)), **options}
        before = tuple(graph.info.get("notes", ()))
        notes = tuple(note for note in after.info.get("notes", ()) if note not in before)
        step = Applied(apply.__name__, tuple((k, v) for k, v in told.items() if v is not None), graph, notes)
        return replace(after, history=(*graph.history, step))

    return run


def noted(graph: Graph, *notes: str) -> Graph:
    """The program with further remarks for its reader, each once; empty ones are none."""
    known = tuple(graph.info.get("notes", ()))
    said = tuple(dict.fromkeys(note for note in (*known, *notes) if note))
    return graph if said == known else replace(graph, info={**graph.info, "notes": said})


def _with_stages(after: Graph, graph: Graph, apply: Callable[[Graph], Graph]) -> Graph:
    """The program with the stages of its pipeline passed too, so that its memory is that of the changed program."""
    stages: tuple[Graph, ...] = graph.info.get("pipeline", ())
    if not stages or after.info.get("pipeline") is not stages:
        return after
    passed = [_as_in(after, _if_there(stage, apply)) for stage in stages]
    return replace(after, info={**after.info, **of_stages(passed)})


def _as_in(whole: Graph, stage: Graph) -> Graph:
    """A stage that stores what the whole program stores: by itself, it may take a shared table for its own matrix."""
    stored = [tensor for tensor in whole.tensors.values() if tensor.kind in ("weight", "buffer", "cache")]
    return stage.with_tensors(tensor for tensor in stored if tensor.name in stage.tensors)


def _if_there(stage: Graph, apply: Callable[[Graph], Graph]) -> Graph:
    try:
        return apply(stage)
    except UsageError:  # what was asked for is in other stages
        return stage


def of_stages(stages: Sequence[Graph]) -> dict[str, Any]:
    """What a pipeline's program tells of its stages: all, and the one that stores most."""
    return {"pipeline": tuple(stages), "largest_stage": max(stages, key=_stored)}


def _stored(graph: Graph) -> float:
    """Bytes that a stage keeps, with every size at one."""
    kept = [tensor for tensor in graph.tensors.values() if tensor.kind in ("weight", "buffer", "cache")]
    at = dict.fromkeys(graph.symbols, 1)
    return float(sum(evaluate(tensor.numel, at) * float(DTYPES[tensor.dtype].bytes) for tensor in kept))


def sooner(graph: Graph, what: str) -> str:
    """A remark for an error: what came before that hides the weights of products from a pass."""
    hiding = [step.name for step in graph.history if step.name in ("quantize", "widen", "autocast", "optimizer")]
    return f"; it went through {hiding[-1]}: {what} before that" if hiding else ""
