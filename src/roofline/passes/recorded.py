"""The trail that passes leave: who was applied to what."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec

from roofline.graph import Applied, Graph

Options = ParamSpec("Options")


def recorded(
    apply: Callable[Concatenate[Graph, Options], Graph],
) -> Callable[Concatenate[Graph, Options], Graph]:
    """Make a pass leave its name, its options and the program that it was given in ``graph.history``.

    A pass that is made of others leaves one entry, its own; a pass that returns the graph itself leaves none. What the
    pass puts into ``info["notes"]`` beyond what was there becomes the entry's notes.
    """
    names = tuple(inspect.signature(apply).parameters)[1:]

    @wraps(apply)
    def run(graph: Graph, /, *args: Options.args, **options: Options.kwargs) -> Graph:
        after = apply(graph, *args, **options)
        if after is graph:
            return graph
        told = {**dict(zip(names, args, strict=False)), **options}
        before = tuple(graph.info.get("notes", ()))
        notes = tuple(note for note in after.info.get("notes", ()) if note not in before)
        step = Applied(apply.__name__, tuple((k, v) for k, v in told.items() if v is not None), graph, notes)
        return replace(after, history=(*graph.history, step))

    return run
