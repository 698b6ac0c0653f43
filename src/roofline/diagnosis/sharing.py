"""Whose time it is while several launches run: each moment is divided by those that run in it, so that parts add up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roofline.traces.events import Events
from roofline.traces.linking import Launch

#: Roles of launches that are hidden while a kernel runs.
ASIDE = ("copy_in", "copy_out", "communication")

Floats = NDArray[np.float64]


def on_device(ran: Sequence[Launch]) -> list[float]:
    """Return the part of each launch of the time in which the device worked [s].

    Copies and collectives have no part of the time in which a kernel runs.
    """
    if not ran:
        return []
    start = np.array([one.start for one in ran])
    end = np.array([one.end for one in ran])
    aside = np.array([one.role in ASIDE for one in ran])
    return [float(part) for part in _parts(start, end, aside)]


def on_host(events: Events, ran: Sequence[Launch]) -> list[float]:
    """Return the part of each operator of the time in which the CPU worked, without the operators inside [s]."""
    rows = np.array([one.call for one in ran])
    place = {one.call: at for at, one in enumerate(ran)}
    outer = np.array([place.get(one.inside, -1) for one in ran])
    start, end = events.start[rows], events.start[rows] + events.duration[rows]
    roots = outer < 0
    # On each thread one operator runs, the innermost, so that a moment is divided by how many outermost ones are open.
    edges, open_, _ = _running(start[roots], end[roots], np.zeros(int(roots.sum()), bool))
    width = np.diff(edges, append=edges[-1:])
    parts = _between(edges, np.where(open_ > 0, width / np.maximum(open_, 1), 0.0), start, end)
    own = np.maximum(parts - np.bincount(outer[~roots], parts[~roots], len(ran)), 0.0)
    # Operators that overlap without being nested, which no framework records, would count twice.
    total = float(own.sum())
    factor = float(parts[roots].sum()) / total if total else 1.0
    return [float(part) for part in own * factor]


def _parts(start: Floats, end: Floats, aside: NDArray[np.bool_]) -> Floats:
    """Return the part of each interval of the time that all cover; those aside share what is left of it."""
    edges, first, rest = _running(start, end, aside)
    width = np.diff(edges, append=edges[-1:])
    each = np.where(first > 0, width / np.maximum(first, 1), 0.0)
    left = np.where((first == 0) & (rest > 0), width / np.maximum(rest, 1), 0.0)
    return np.where(aside, _between(edges, left, start, end), _between(edges, each, start, end))


def _running(
    start: Floats, end: Floats, aside: NDArray[np.bool_]
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return all starts and ends in order, and how many intervals, aside or not, are open from each on."""
    edges = np.concatenate([start, end])
    step = np.repeat([1, -1], len(start))
    order = np.argsort(edges, kind="stable")
    kinds = np.concatenate([aside, aside])[order]
    step = step[order]
    return edges[order], np.cumsum(np.where(kinds, 0, step)), np.cumsum(np.where(kinds, step, 0))


def _between(edges: Floats, parts: Floats, start: Floats, end: Floats) -> Floats:
    """Return the sum of the parts, each from an edge to the next, between two times; linear within a part."""
    sums = np.concatenate([[0.0], np.cumsum(parts)[:-1]])
    return np.asarray(np.interp(end, edges, sums) - np.interp(start, edges, sums))
