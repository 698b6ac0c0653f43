"""What the meanings of operators share: one call of an operator, and the table that they are entered in.

An operator of the registry says what a call costs; here it also says what it computes. Options that a graph does not
carry (the number of a ``mul_scalar``, where a ``slice`` starts) are free: each node has values of its own, drawn from
its name, so that a rewritten graph can only agree with the first one if it is right whatever they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: An array of double precision. Not spelt out: numpy's own types of what its functions return are too loose to check.
Array = Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        name: Of the node.
        op: Its operator.
        attrs: Its options.
        shape: What the registry says of its output.
        dtype: The number format of its output.
        seed: Of everything that is drawn.
    """

    name: str
    op: str
    attrs: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: str
    seed: int

    def free(self, option: str, low: float = 0.25, high: float = 1.0) -> float:
        """An option's number; where the node does not carry it, one that belongs to the node's name."""
        given = self.attrs.get(option)
        return float(given) if given is not None else float(draw(self.seed, self.origin, option).uniform(low, high))

    @property
    def origin(self) -> str:
        """The forward node that this one is, computes again, or is the gradient of: they share what is free."""
        return _DERIVED.split(self.name, maxsplit=1)[0]


#: What a backward adds to the name of a forward node.
_DERIVED = re.compile(r"\.(?:again|grad)(?![a-z])")

#: What each operator computes, by name.
MEANINGS: dict[str, Callable[..., Array]] = {}


def means(*ops: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Enter a function of a call and its arrays as the meaning of operators."""

    def enter(function: Callable[..., Array]) -> Callable[..., Array]:
        MEANINGS.update(dict.fromkeys(ops, function))
        return function

    return enter


def draw(*what: object) -> np.random.Generator:
    """A generator that belongs to a name."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def fold(x: Array, shape: tuple[int, ...]) -> Array:
    """An array brought to another shape, so that every element matters: repeated, or added up in turns."""
    size, flat = int(np.prod(shape, dtype=np.int64)), x.ravel()
    if flat.size > size:
        turns = -(-flat.size // size)
        flat = np.pad(flat, (0, turns * size - flat.size)).reshape(turns, size).sum(axis=0) / np.sqrt(turns)
    return np.resize(flat, shape)


def mix(call: Call, arrays: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    """A fixed smooth function of all arrays, for operators that only say what they read and write."""
    total = np.full(shape, call.free("offset"))
    for at, x in enumerate(arrays):
        total = total + call.free(f"weight {at}") * fold(x, shape)
    return np.tanh(total)


def indices(ids: Array, size: int) -> Array:
    """Any numbers as places of an axis: rounded, and round again beyond its end."""
    return np.mod(np.rint(ids), size).astype(np.int64)
