"""What the numpy meanings of operators share: one call of an operator, and what it leaves open.

Options that a graph does not carry (the number of a ``mul_scalar``, where a ``slice`` starts) are free: each node has
values of its own, drawn from its name, so that a rewritten graph can only agree with the first one if it is right
whatever they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.ops.registry import Array


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
        """Return an option's number; where the node does not carry it, one that belongs to the node's name."""
        value = self.attrs.get(option)
        return float(value) if value is not None else float(draw(self.seed, self.origin, option).uniform(low, high))

    def arange(self, size: int) -> Array:
        """Return the whole numbers from 0, one for each place of an axis."""
        return np.arange(size)

    @property
    def origin(self) -> str:
        """The forward node that this one is, recomputes, or is the gradient of: they share what is free."""
        return _DERIVED.split(self.name, maxsplit=1)[0]


#: What a backward adds to the name of a forward node.
_DERIVED = re.compile(r"\.(?:again|grad)(?![a-z])")


def draw(*what: object) -> np.random.Generator:
    """Return a generator that belongs to a name."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def fold(x: Array, shape: tuple[int, ...]) -> Array:
    """Bring an array to another shape, so that every element matters: repeated, or added up in turns."""
    size, flat = int(np.prod(shape, dtype=np.int64)), x.ravel()
    if flat.size > size:
        turns = -(-flat.size // size)
        flat = np.pad(flat, (0, turns * size - flat.size)).reshape(turns, size).sum(axis=0) / np.sqrt(turns)
    return np.resize(flat, shape)


def mix(call: Call, *arrays: Array) -> Array:
    """Compute a fixed smooth function of all that is read, where nothing says which function it is."""
    total = np.full(call.shape, call.free("offset"))
    for at, x in enumerate(arrays):
        total = total + call.free(f"weight {at}") * fold(x, call.shape)
    return np.tanh(total)


def indices(ids: Array, size: int) -> Array:
    """Take any numbers as places of an axis: rounded, and round again beyond its end."""
    return np.mod(np.rint(ids), size).astype(np.int64)


def same(call: Call, x: Array, *more: Array) -> Array:
    """Compute the sum of the operands: of one, itself."""
    return sum(more, x)


def updated(call: Call, state: Array, *news: Array) -> Array:
    """Compute half of what a state was, and a fixed function of the rest, where nothing says how it is updated."""
    return 0.5 * state + mix(call, *news)
