"""How much a pass should leave of something: a share that goes, or a number that stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.text import shown

#: Options of pruning that text may name.
OPTIONS = ("heads", "channels", "hidden", "layers", "sparsity", "where", "unit")


def remaining(amount: float | int, size: int, what: str, where: str) -> Fraction:
    """Return how many of ``size`` stay, a fraction where the share does not come out even.

    Args:
        amount: A share between 0 and 1 that is removed, or a whole number from 1 that is kept.
        size: How many there are.
        what: The option's name.
        where: What it is asked of, for errors.

    Raises:
        UsageError: Anything else, more than there are, or everything removed.

    Example:
        >>> remaining(0.25, 32, "heads", "attn"), remaining(24, 32, "heads", "attn")
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
        hint = ", and something must be left" if everything else ""
        raise UsageError(
            f"{what}={amount!r}; allowed: a share to remove above 0 and below 1, or a whole number to keep{hint}"
        )


def nearest(target: Fraction, feasible: Iterable[int], size: int, what: str) -> str:
    """The feasible number nearest to the one that was asked for, as the option to write instead."""
    ordered = sorted(feasible, key=lambda number: (abs(number - target), number))
    if not ordered:
        return "; no other number is feasible"
    return f"; nearest feasible: {what}={ordered[0]} of {size}"


def patterns(graph: Graph, where: str | Sequence[str]) -> tuple[str, ...]:
    """The patterns of ``where``, each of which must match a node.

    Raises:
        UsageError: One matches none; names the nearest scopes.
    """
    names = (where,) if isinstance(where, str) else tuple(where)
    for pattern in names:
        if not isinstance(pattern, str) or not any(fnmatchcase(node.name, pattern) for node in graph.nodes):
            scopes = {node.name.rpartition(".")[0] for node in graph.nodes} | {node.name for node in graph.nodes}
            near = did_you_mean(str(pattern).strip("*."), scopes - {""})
            raise UsageError(
                f"where={pattern!r} matches no node of {graph.name}{near or '; try a name from its listing'}"
            )
    return names


def matches(name: str, where: Sequence[str]) -> bool:
    """Tell whether a node's name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in where)


def prune_options(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Read the options of a pruning from one line, such as a command line's.

    Args:
        text: ``heads=0.25,channels=10240,unit=8``, ``layers=0+1+30+31`` for a list, ``where=a*+b*`` for several
            patterns, ``2:4`` alone for the sparsity; options that are read already.

    Raises:
        UsageError: An option that there is not, or a value that is no number.

    Example:
        >>> prune_options("heads=0.25,layers=0+2,2:4")
        {'heads': 0.25, 'layers': [0, 2], 'sparsity': '2:4'}
    """
    if isinstance(text, Mapping):
        return dict(text)
    if not isinstance(text, str):
        raise UsageError(f"prune={shown(text)}: expected options, as a dictionary or such as 'heads=0.25,layers=0.5'")
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            key, value = "sparsity", key
        if key in options:
            raise UsageError(f"prune: {text!r} gives {key} twice")
        if key not in OPTIONS:
            raise UsageError(f"prune: {part!r}; allowed: {', '.join(OPTIONS)} = a value{did_you_mean(key, OPTIONS)}")
        options[key] = _value(key, value)
    if not options:
        raise UsageError(f"prune: {text!r} says nothing; allowed: {', '.join(OPTIONS)} = a value")
    return options


def _value(key: str, text: str) -> Any:
    pieces = text.split("+")
    if key == "where":
        return pieces if len(pieces) > 1 else text
    if key == "sparsity" and ":" in text:
        return text
    try:
        numbers = [int(piece) if piece.lstrip("-").isdecimal() else float(piece) for piece in pieces]
    except ValueError:
        raise UsageError(f"prune: {key}={text!r}; expected a number") from None
    return numbers if key == "layers" and len(numbers) > 1 else numbers[0] if len(numbers) == 1 else text
