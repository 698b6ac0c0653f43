"""How much a pass should leave of something: a share that goes, or a number that stays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction

from roofline.errors import UsageError, did_you_mean
from roofline.graph import Graph


def kept(amount: float | int, size: int, what: str, where: str) -> Fraction:
    """How many of ``size`` stay, a fraction where the share does not come out even.

    Args:
        amount: A share between 0 and 1 that is removed, or a whole number from 1 that is kept.
        size: How many there are.
        what: The option's name.
        where: What it is asked of, for errors.

    Raises:
        UsageError: Anything else, more than there are, or everything removed.

    Example:
        >>> kept(0.25, 32, "heads", "attn"), kept(24, 32, "heads", "attn")
        (Fraction(24, 1), Fraction(24, 1))
    """
    check(amount, what)
    if isinstance(amount, int):
        if amount > size:
            raise UsageError(f"{where}: {what}={amount} keeps more than the {size} there are")
        return Fraction(amount)
    # A share is what its digits say: 0.1 is a tenth.
    return size * (1 - Fraction(str(amount)))


def check(amount: object, what: str) -> None:
    """Refuse what is neither a share nor a number.

    Raises:
        UsageError: Says what is allowed.
    """
    share = isinstance(amount, float) and 0 < amount < 1
    number = isinstance(amount, int) and not isinstance(amount, bool) and amount >= 1
    if not share and not number:
        everything = isinstance(amount, int | float) and not isinstance(amount, bool) and amount in (0, 1.0)
        hint = ", and nothing may lose everything" if everything else ""
        raise UsageError(
            f"{what}={amount!r}; allowed: a share to remove above 0 and below 1, or a whole number to keep{hint}"
        )


def nearest(wanted: Fraction, feasible: Iterable[int], size: int, what: str) -> str:
    """The feasible number nearest to the one that was asked for, as the option to write instead."""
    found = sorted(feasible, key=lambda number: (abs(number - wanted), number))
    if not found:
        return "; no other number is feasible"
    return f"; nearest feasible: {what}={found[0]} of {size}"


def patterns(graph: Graph, where: str | Sequence[str]) -> tuple[str, ...]:
    """The patterns of ``where``, each of which must match a node.

    Raises:
        UsageError: One matches none; names the nearest scopes.
    """
    found = (where,) if isinstance(where, str) else tuple(where)
    for pattern in found:
        if not isinstance(pattern, str) or not any(fnmatchcase(node.name, pattern) for node in graph.nodes):
            scopes = {node.name.rpartition(".")[0] for node in graph.nodes} | {node.name for node in graph.nodes}
            near = did_you_mean(str(pattern).strip("*."), scopes - {""})
            raise UsageError(
                f"where={pattern!r} matches no node of {graph.name}{near or '; try a name from its listing'}"
            )
    return found


def matches(name: str, where: Sequence[str]) -> bool:
    """Whether a node's name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in where)
