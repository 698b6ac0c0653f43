"""Run a parsed MLIR module of scf, memref, vector, arith, math and func in Python: what its text says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

_FLOAT: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.negf": np.negative, "math.absf": np.abs,
    "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log, "math.tanh": np.tanh, "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.erf": np.vectorize(math.erf, otypes=[float]),
    "arith.addi": np.add, "arith.muli": np.multiply, "arith.subi": np.subtract, "arith.andi": np.bitwise_and,
    "arith.floordivsi": np.floor_divide, "arith.remsi": np.remainder, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.select": np.where, "arith.index_cast": lambda x: int(x),
}  # fmt: skip
_COMPARE = {1: np.equal, 2: np.greater, 3: np.greater_equal, 4: np.less, 5: np.less_equal}


class Runner:
    """Runs the functions of a module; memory is arrays, vectors are arrays of one axis."""

    def __init__(self, module: Any) -> None:
        self.module = module  # which its operations do not keep alive
        self.functions = {str(op.attributes["sym_name"]).strip('"'): op for op in module.body.operations}

    def call(self, name: str, *arrays: Any) -> None:
        (block,) = self.functions[name].regions[0].blocks
        self.block(block, dict(zip(map(_key, block.arguments), arrays, strict=True)))

    def block(self, block: Any, known: dict[Any, Any]) -> list[Any]:
        for op in block.operations:
            given = [known[_key(each)] for each in op.operands]
            if op.operation.name in ("scf.yield", "func.return", "scf.reduce"):
                return given
            results = self.operation(op.operation, given, known)
            known.update(zip(map(_key, op.results), results, strict=True))
        return []

    def operation(self, op: Any, given: list[Any], known: dict[Any, Any]) -> list[Any]:
        name = op.name
        if name in _FLOAT:
            return [_FLOAT[name](*given)]
        if name in ("scf.for", "scf.parallel"):
            (body,) = op.regions[0].blocks
            for turn in range(*(int(each) for each in given)):
                self.block(body, {**known, _key(body.arguments[0]): turn})
            return []
        if name == "scf.if":
            return self.block(op.regions[0 if given[0] else 1].blocks[0], dict(known))
        if name == "func.call":
            self.call(str(op.attributes["callee"]).strip("@"), *given)
            return []
        return _MEMORY[name](op, given)


def _key(value: Any) -> Any:
    return hash(value), value.get_name()


def _constant(op: Any, given: list[Any]) -> list[Any]:
    text = str(op.attributes["value"]).partition(" :")[0]
    if text.startswith("0x"):
        return [{"0xFF800000": -np.inf, "0x7F800000": np.inf}[text]]
    return [int(text) if re.fullmatch(r"-?\d+", text) else float(text)]


def _along(op: Any) -> int:
    axis = re.search(r"\) -> \(d(\d+)\)", str(op.attributes["permutation_map"]))
    assert axis is not None
    return int(axis[1])


def _lanes(kind: Any) -> int:
    return int(re.search(r"vector<(\d+)x", str(kind))[1])  # type: ignore[index]


def _slice(array: Any, at: list[Any], axis: int, lanes: int) -> tuple[Any, ...]:
    assert at[axis] + lanes <= array.shape[axis]
    return tuple(slice(int(i), int(i) + lanes) if n == axis else int(i) for n, i in enumerate(at))


def _read(op: Any, given: list[Any]) -> list[Any]:
    array, at = given[0], given[1 : 1 + given[0].ndim]
    return [array[_slice(array, at, _along(op), _lanes(op.results[0].type))].copy()]


def _write(op: Any, given: list[Any]) -> list[Any]:
    array, at = given[1], given[2 : 2 + given[1].ndim]
    array[_slice(array, at, _along(op), len(given[0]))] = given[0]
    return []


def _store(op: Any, given: list[Any]) -> list[Any]:
    assert all(0 <= at < size for at, size in zip(given[2:], given[1].shape, strict=True))
    given[1][tuple(int(at) for at in given[2:])] = given[0]
    return []


def _load(op: Any, given: list[Any]) -> list[Any]:
    assert all(0 <= at < size for at, size in zip(given[1:], given[0].shape, strict=True))
    return [given[0][tuple(int(at) for at in given[1:])]]


def _reduce(op: Any, given: list[Any]) -> list[Any]:
    how = str(op.attributes["kind"])
    return [given[0].sum() + given[1] if "add" in how else max(given[0].max(), given[1])]


def _position(op: Any) -> int:
    return int(re.findall(r"\d+", str(op.attributes["static_position"]))[-1])


_MEMORY: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "arith.constant": _constant, "memref.load": _load, "memref.store": _store, "memref.dealloc": lambda op, given: [],
    "memref.alloc": lambda op, given: [np.full(op.results[0].type.shape, np.nan)],
    "vector.transfer_read": _read, "vector.transfer_write": _write, "vector.reduction": _reduce,
    "vector.broadcast": lambda op, given: [np.full(_lanes(op.results[0].type), given[0])],
    "vector.from_elements": lambda op, given: [np.array(given)],
    "vector.extract": lambda op, given: [given[0][_position(op)]],
    "arith.cmpi": lambda op, given: [given[0] >= given[1]],
    "arith.cmpf": lambda op, given: [_COMPARE[int(str(op.attributes["predicate"]).partition(" ")[0])](*given)],
}  # fmt: skip
