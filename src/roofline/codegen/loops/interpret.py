"""Run loop nests as they stand, in plain Python, and count what they compute and touch.

The slow and obvious meaning that every pass is held against. A loop that is marked ``vector`` evaluates a statement
for all of its values before it stores any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.codegen.loops.arithmetic import SCALARS, operations
from roofline.codegen.loops.form import Buffer, Const, Kernel, Load, Loop, Op, Statement, Store, Value, loops
from roofline.codegen.loops.index import Index, evaluate, variables
from roofline.codegen.loops.lowering import LoopProgram
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import DoesNotFit, ShapeError, UsageError
from roofline.ops.registry import Array

At = dict[str, int]
#: Statements that the interpreter runs at most, so that a large program is refused and not waited for.
MOST_STATEMENTS = 10**8


class _Machine:
    """Memory, and which of its elements were read before they were written, or written."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays
        self.read = {name: np.zeros(array.shape, dtype=bool) for name, array in arrays.items()}
        self.written = {name: np.zeros(array.shape, dtype=bool) for name, array in arrays.items()}

    def load(self, buffer: str, index: tuple[int, ...]) -> float:
        if any(not 0 <= each < size for each, size in zip(index, self.arrays[buffer].shape, strict=True)):
            raise ShapeError(f"{buffer}{list(index)} lies outside {list(self.arrays[buffer].shape)}")
        if not self.written[buffer][index]:
            self.read[buffer][index] = True
        return float(self.arrays[buffer][index])

    def store(self, buffer: str, index: tuple[int, ...], value: float) -> None:
        if any(not 0 <= each < size for each, size in zip(index, self.arrays[buffer].shape, strict=True)):
            raise ShapeError(f"{buffer}{list(index)} lies outside {list(self.arrays[buffer].shape)}")
        self.arrays[buffer][index] = value
        self.written[buffer][index] = True

    def whole(self, buffer: str, index: tuple[int, ...]) -> int:
        return round(self.load(buffer, index))


def _place(machine: _Machine, index: tuple[Index, ...], at: At) -> tuple[int, ...]:
    return tuple(evaluate(each, at, machine.whole) for each in index)


def _value(machine: _Machine, value: Value, at: At) -> float:
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Load):
        return machine.load(value.buffer, _place(machine, value.index, at))
    if isinstance(value, Op):
        return float(SCALARS[value.name][1](*(_value(machine, each, at) for each in value.args)))
    inside = all(evaluate(each, at, machine.whole) >= 0 for each in value.conditions)
    return _value(machine, value.value if inside else value.otherwise, at)


def _put(machine: _Machine, store: Store, at: At, value: float) -> None:
    place = _place(machine, store.index, at)
    if store.how:
        value = float(SCALARS[store.how][1](machine.load(store.buffer, place), value))
    machine.store(store.buffer, place, value)


def _run(machine: _Machine, statement: Statement, at: At) -> None:
    if isinstance(statement, Store):
        return _put(machine, statement, at, _value(machine, statement.value, at))
    turns = range(evaluate(statement.start, at), evaluate(statement.stop, at), statement.step)
    if statement.mark == "vector":
        return _lanes(machine, statement, [{**at, statement.var: turn} for turn in turns])
    for turn in turns:
        at[statement.var] = turn
        for each in statement.body:
            _run(machine, each, at)
    at.pop(statement.var, None)
    return None


def _lanes(machine: _Machine, loop: Loop, lanes: list[At]) -> None:
    for each in loop.body:
        assert isinstance(each, Store)
        computed = [_value(machine, each.value, at) for at in lanes]
        for at, value in zip(lanes, computed, strict=True):
            _put(machine, each, at, value)


def run_kernel(kernel: Kernel, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Run a kernel on arrays of double precision, changed in place.

    Returns:
        Bytes read that it did not write itself, and bytes written, each element once [byte].

    Raises:
        DoesNotFit: More statements than the interpreter runs.
        ShapeError: An index beyond its buffer.
    """
    number = statements(kernel)
    if number > MOST_STATEMENTS:
        raise DoesNotFit(f"{kernel.name}: {number:.3g} statements; the interpreter runs {MOST_STATEMENTS:.0g}")
    local = {each.name: np.full(each.shape, np.nan) for each in kernel.buffers if each.local}
    machine = _Machine({**local, **arrays})
    with np.errstate(all="ignore"):
        for each in kernel.body:
            _run(machine, each, {})
    return (sum(_bytes(each, machine.read) for each in kernel.operands),
            sum(_bytes(each, machine.written) for each in kernel.operands))  # fmt: skip


def _bytes(buffer: Buffer, touched: Mapping[str, Array]) -> Any:
    return int(touched[buffer.name].sum()) * DTYPES[buffer.dtype].bytes


def interpret(program: LoopProgram, arrays: Mapping[str, Any]) -> tuple[dict[str, Array], tuple[tuple[int, int], ...]]:
    """Run a program of loops as :func:`roofline.ops.execute` runs a graph.

    Returns:
        The outputs by name, and for each launch the bytes that it read and wrote [byte].

    Raises:
        UsageError: An input without an array.
        ShapeError: An array of another shape.
    """
    missing = [name for name in program.inputs if name not in arrays]
    if missing:
        raise UsageError(f"{program.name}: no array for {missing[0]!r}; it reads {', '.join(program.inputs[:8])}")
    held = {name: np.full(buffer.shape, np.nan) for name, buffer in program.buffers.items()}
    for name in program.inputs:
        array = np.array(arrays[name], dtype=np.float64)
        if array.shape != held[name].shape:
            raise ShapeError(f"{program.name}: {name!r} is {list(held[name].shape)}, not {list(array.shape)}")
        held[name] = array
    moved = []
    for call in program.calls:
        names = (buffer.name for buffer in call.kernel.operands)
        moved.append(run_kernel(call.kernel, {own: held[name] for own, name in zip(names, call.operands, strict=True)}))
    return {name: held[name] for name in program.outputs}, tuple(moved)


# --- counting without running -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operations:
    """What nests compute: contraction FLOPs, other arithmetic per element, and what is done once a row."""

    flops: int = 0
    vector: int = 0
    rows: int = 0


def count_operations(kernel: Kernel) -> Operations:
    """Count what a kernel computes, two per multiply-add, at any size: loops that nothing depends on are multiplied.

    Example:
        >>> from roofline.codegen.loops.lowering import loop_nests
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "fp32")
        >>> y = b.op("linear", b.input("x", (512, 1024)), b.weight("w", (4096, 1024)), name="y")
        >>> count_operations(loop_nests(b.graph([y])).kernels[0]).flops == 2 * 512 * 1024 * 4096
        True
    """
    totals = {"flops": 0, "vector": 0, "rows": 0}

    def add(store: Store, times: int) -> None:
        totals[store.account] += times * operations(store)

    _visit(kernel.body, {}, 1, add)
    return Operations(**totals)


def statements(kernel: Kernel) -> int:
    """Count the stores that a kernel runs."""
    total = 0

    def add(store: Store, times: int) -> None:
        nonlocal total
        total += times

    _visit(kernel.body, {}, 1, add)
    return total


def _visit(body: tuple[Statement, ...], at: At, times: int, add: Callable[[Store, int], None]) -> None:
    for each in body:
        if isinstance(each, Store):
            add(each, times)
            continue
        turns = range(evaluate(each.start, at), evaluate(each.stop, at), each.step)
        if each.var in _bounding(each.body):
            for turn in turns:
                _visit(each.body, {**at, each.var: turn}, times, add)
        elif len(turns):
            _visit(each.body, {**at, each.var: turns[0]}, times * len(turns), add)


def _bounding(body: tuple[Statement, ...]) -> frozenset[str]:
    """Return the variables that the bounds of inner loops depend on."""
    bounds: Iterator[Index] = (bound for loop in loops(body) for bound in (loop.start, loop.stop))
    return frozenset().union(*map(variables, bounds))
