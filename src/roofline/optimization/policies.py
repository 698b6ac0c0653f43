"""Policies of others: packages that add moves or order the kinds, by entry points of the group ``roofline.policies``.

A policy is a function of a program and a chip. It returns moves, which are tried beside those that there are, or names
of kinds, of which plans are made in that order and of no others. It runs when it is asked for by name; what goes
wrong in it is a remark of the result, with the name of the policy.
"""

from __future__ import annotations

import importlib.metadata as metadata
from collections.abc import Callable, Mapping, Sequence

from roofline.hardware.chip import Chip
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.text import one_line, shown
from roofline.measurement.checkup import POLICIES
from roofline.optimization.moves import Kind, Move

Policy = Callable[[Graph, Chip], Sequence[Move] | Sequence[str]]


def policies() -> list[str]:
    """Return the names of the policies that installed packages bring.

    Returns:
        Their names, sorted.

    Example:
        >>> policies()
        []
    """
    return sorted({point.name for point in metadata.entry_points(group=POLICIES)})


def policy_of(name: str) -> Policy:
    """Load a policy.

    Raises:
        UsageError: There is none of that name, or it cannot be loaded.
    """
    points = [point for point in metadata.entry_points(group=POLICIES) if point.name == name]
    if not points:
        near = did_you_mean(str(name), policies()) or f"; installed: {', '.join(policies()) or 'none'}"
        raise UsageError(f"policy={shown(name)} (--policy): no package brings a policy of that name{near}")
    try:
        policy: Policy = points[0].load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"policy {name} cannot be loaded: {_error_line(error)}") from None
    return policy


def kinds_by(
    policy: Policy | str, program: Graph, chip: Chip, kinds: Mapping[str, Kind]
) -> tuple[Mapping[str, Kind], str]:
    """Return the kinds of moves in the order that a policy wants, and what went wrong in it; empty for nothing.

    Raises:
        UsageError: No policy of that name.
    """
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    run = policy_of(policy) if isinstance(policy, str) else policy
    try:
        wants = list(run(program, chip))
        return _ordered_or_added(wants, kinds), ""
    except (Exception, SystemExit) as error:
        return kinds, f"policy {name}: {_error_line(error)}; planned without it"


def _error_line(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", 200)


def _ordered_or_added(wants: Sequence[object], kinds: Mapping[str, Kind]) -> Mapping[str, Kind]:
    order = [each for each in wants if isinstance(each, str)]
    moves = [each for each in wants if isinstance(each, Move)]
    if len(order) + len(moves) < len(wants) or (order and moves):
        raise UsageError("expected moves, or names of kinds, and not both")
    for name in order:
        if name not in kinds:
            raise UsageError(f"no kind of moves is called {shown(name)}; allowed: {', '.join(kinds)}")
    if order:
        return {name: kinds[name] for name in order}
    named = dict.fromkeys((*kinds, *(move.kind for move in moves)))
    return {name: _joined(kinds.get(name), [move for move in moves if move.kind == name]) for name in named}


def _joined(kind: Kind | None, moves: Sequence[Move]) -> Kind:
    return lambda state, target: [*(kind(state, target) if kind else ()), *moves]
