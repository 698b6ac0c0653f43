"""Loop nests as ``linalg`` on tensors: a ``linalg.generic`` for each nest, with its indexing maps and iterator types.

What no affine map says (a view that takes axes apart, a padded image, a gather) is read with ``tensor.extract``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roofline.codegen.loops.emit import Emitter, element, unique
from roofline.codegen.loops.form import (
    Buffer,
    Const,
    Guard,
    Kernel,
    Load,
    Loop,
    Store,
    Value,
    loads,
    mapped,
    perfect,
    stores,
    values,
)  # fmt: skip
from roofline.codegen.loops.index import (
    Index,
    divided,
    factor_of,
    index,
    largest,
    least,
    remainder,
    span,
    substitute,
    variables,
)  # fmt: skip
from roofline.codegen.loops.lowering import LoopProgram
from roofline.ir.errors import UsageError

_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}


def tensor(buffer: Buffer) -> str:
    """Return the type of a buffer's contents."""
    return _type(buffer.shape, element(buffer))


def _type(shape: Sequence[int], kind: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{kind}>"


class _Space:
    """The iteration space of one nest: its axes, those of the result first, and what is stored at each point."""

    def __init__(self, kernel: Kernel, statement: Loop | Store, filled: bool) -> None:
        loops, body = perfect(statement) if isinstance(statement, Loop) else ([], (statement,))
        store = body[0]
        assert isinstance(store, Store)
        self.where, self.kernel = kernel.buffer(store.buffer), kernel
        self.sizes: dict[str, int] = {}
        self.offsets: list[int] = []
        self.out: list[str] = []
        self.store = _within_bounds(store, loops, self.sizes, filled)
        self._laid_out()

    def _laid_out(self) -> None:
        """Let the axes of the result be axes of the space: one of several factors is taken apart again."""
        to: dict[str, Index] = {}
        left = dict(self.sizes)
        for at, each in enumerate(self.store.index):
            name, digits = f"o{at}", sorted((factor_of(each, var) or 0, var) for var in variables(each))
            size = math.prod(left.pop(var, 0) for _, var in digits)
            reach, dense = 1, True
            for factor, var in digits:
                own = divided(index(name), reach, {name: size})
                dense, reach = dense and factor == reach, reach * self.sizes[var]
                to[var] = own if reach == size else remainder(own, self.sizes[var], {name: size})
            if not dense or size == 0:
                raise UsageError(f"{self.kernel.name}: linalg has no form for a result at {self.store.index}")
            self.out.append(name)
            self.offsets.append(each.const)
            left[name] = size
        self.inner = [name for name in left if name not in self.out]
        self.sizes = {name: left[name] for name in (*self.out, *self.inner)}
        self.value = mapped(self.store.value, lambda each: substitute(each, to))

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the part of the result that is written."""
        return tuple(self.sizes[name] for name in self.out)

    @property
    def whole(self) -> bool:
        """Tell whether all of the result is written."""
        return self.shape == self.where.shape


def _within_bounds(store: Store, loops: Sequence[Loop], sizes: dict[str, int], filled: bool) -> Store:
    """Let every loop run over its whole range, and store nothing where it was bounded by another."""
    conditions: list[Index] = []
    for loop in loops:
        last = span(loop.stop, sizes)
        assert last is not None
        sizes[loop.var] = last[1]
        if loop.start.number != 0:
            conditions.append(index(loop.var) - loop.start)
        if loop.stop.number is None:
            conditions.append(loop.stop - index(loop.var) - 1)
    if not conditions:
        return store
    there = filled and not store.how
    before: Value = Load(store.buffer, store.index) if there else Const(_NEUTRAL.get(store.how, 0.0))
    guarded = Guard(tuple(conditions), store.value, before)
    return Store(store.buffer, store.index, guarded, store.how, store.account)


class _Generic(Emitter):
    """Writes the nests of one kernel, each on the tensors that those before it have given."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.buffers)
        self.now = {each.name: f"%{each.name}" for each in kernel.operands}
        self.inputs: dict[Load, str] = {}
        self.kernel = kernel

    def read(self, buffer: str, index: tuple[Index, ...]) -> str:
        own = self.buffers[buffer]
        if Load(buffer, index) in self.inputs:
            return self.inputs[Load(buffer, index)]
        inside = [least(largest(each, 0), size - 1) for each, size in zip(index, own.shape, strict=True)]
        at = ", ".join(map(self.index, inside if self.guarded else index))
        return self._once((buffer, index), f"tensor.extract {self.now[buffer]}[{at}] : {tensor(own)}")

    #: Whether what is read may lie outside, and is not used then.
    guarded = False

    def guard(self, value: Guard) -> str:
        holds, outer = self.holds(value.conditions), self.guarded
        self.guarded = True
        inner = self.value(value.value)
        self.guarded = outer
        other = self.value(value.otherwise)
        return self.let(f"arith.select {holds}, {inner}, {other} : {self.kind}")

    def nest(self, statement: Loop | Store) -> None:
        """Write one nest; the tensor that it stores into is a new one behind it."""
        space = _Space(self.kernel, statement, _written_by(statement).buffer in self.now)
        self.forget()
        self.choose(space.store)
        buffer, dims = space.where, {name: f"d{at}" for at, name in enumerate(space.sizes)}
        reads = self._operands(space)
        maps = [self._map(place, dims) for place in reads.values()]
        lone = {text for each in (*reads.values(), tuple(map(index, space.out))) for text in each}
        shape = [name for name in space.sizes if index(name) not in lone]
        into = self._into(space)
        operands = [(self.now[load.buffer], tensor(self.buffers[load.buffer])) for load in reads]
        if shape:  # says how long the axes are that nothing else does
            kind = _type([space.sizes[name] for name in shape], "f32")
            operands.append((self.let(f"tensor.empty() : {kind}"), kind))
            maps.append(self._map(tuple(map(index, shape)), dims))
        maps.append(self._map(tuple(map(index, space.out)), dims))
        types = ['"parallel"' if name in space.out else '"reduction"' for name in space.sizes]
        out_type = _type(space.shape, element(buffer))
        ins = f" ins({', '.join(n for n, _ in operands)} : {', '.join(t for _, t in operands)})" if operands else ""
        head = f"indexing_maps = [{', '.join(maps)}], iterator_types = [{', '.join(types)}]"
        own = self.let(f"linalg.generic {{{head}}}{ins} outs({into} : {out_type}) {{")
        self._region(space, reads, len(operands))
        self.line(f"}} -> {out_type}")
        self._placed(space, own, out_type)

    def _operands(self, space: _Space) -> dict[Load, tuple[Index, ...]]:
        """Return what is read by an affine map: not under a condition, and without quotients or gathers."""
        guards = [each for each in values(space.value) if isinstance(each, Guard)]
        hidden = {inner for each in guards for inner in values(each)}
        plain = [each for each in dict.fromkeys(values(space.value)) if isinstance(each, Load) and each not in hidden]
        own = (space.store.buffer, tuple(map(index, space.out)))
        return {load: load.index for load in plain if (load.buffer, load.index) != own or not space.whole
                if all(isinstance(atom, str) for each in load.index for atom, _ in each.terms)}  # fmt: skip

    def _map(self, place: tuple[Index, ...], dims: dict[str, str]) -> str:
        def text(each: Index) -> str:
            terms = [dims[str(atom)] if factor == 1 else f"{dims[str(atom)]} * {factor}" for atom, factor in each.terms]
            return " + ".join([*terms, *([str(each.const)] if each.const or not terms else [])])

        return f"affine_map<({', '.join(dims.values())}) -> ({', '.join(map(text, place))})>"

    def _into(self, space: _Space) -> str:
        """Return the tensor that a nest starts from: what was there where it reduces, or keeps some of it."""
        name, reads = space.where.name, {each.buffer for each in values(space.value) if isinstance(each, Load)}
        if space.whole and name in self.now and (space.store.how or name in reads):
            return self.now[name]
        assert not space.store.how, space.where
        return self.let(f"tensor.empty() : {_type(space.shape, element(space.where))}")

    def _region(self, space: _Space, reads: dict[Load, tuple[Index, ...]], count: int) -> None:
        kinds = [element(self.buffers[load.buffer]) for load in reads] + ["f32"] * (count - len(reads))
        names = [f"%in{at}" for at in range(count)]
        heads = [*(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True)), f"%out: {element(space.where)}"]
        self.line(f"^bb0({', '.join(heads)}):")
        self.inputs = dict(zip(reads, names, strict=False))
        if space.whole:
            self.inputs[Load(space.where.name, tuple(map(index, space.out)))] = "%out"
        with self.region():
            for at, name in enumerate(space.sizes):
                self.variables[name] = f"%at{at}"
            start = len(self.lines)
            value = self.value(space.value)
            if space.store.how:
                value = self.combined(space.store.how, self.widened("%out", element(space.where)), value)
            self.line(f"linalg.yield {self.narrowed(value, element(space.where))} : {element(space.where)}")
            body = "\n".join(self.lines[start:])
            axes = [f"{'  ' * self.indent}%at{at} = linalg.index {at} : index" for at in range(len(space.sizes))
                    if f"%at{at} " in body or f"%at{at}," in body or f"%at{at}]" in body]  # fmt: skip
            self.lines[start:start] = axes
        self.inputs = {}

    def _placed(self, space: _Space, own: str, kind: str) -> None:
        """Put a part of a tensor into its place in the whole."""
        buffer = space.where
        if not space.whole:
            if buffer.name not in self.now:
                self.now[buffer.name] = self.let(f"tensor.empty() : {tensor(buffer)}")
            at, sizes = ", ".join(map(str, space.offsets)), ", ".join(map(str, space.shape))
            own = self.let(f"tensor.insert_slice {own} into {self.now[buffer.name]}[{at}] [{sizes}] "
                           f"[{', '.join('1' * len(space.shape))}] : {kind} into {tensor(buffer)}")  # fmt: skip
        self.now[buffer.name] = own


def _written_by(statement: Loop | Store) -> Store:
    return next(stores((statement,)))


def written(kernel: Kernel) -> tuple[Buffer, ...]:
    """Return the operands that a kernel writes."""
    names = {store.buffer for store in stores(kernel.body)}
    return tuple(each for each in kernel.operands if each.name in names)


def function(kernel: Kernel, name: str) -> str:
    """Write a kernel as a function from its operands to those that it writes."""
    writer = _Generic(kernel)
    fresh = _fresh(kernel)
    for each in fresh:
        del writer.now[each.name]
    for statement in kernel.body:
        writer.nest(statement)
    handed = ", ".join(f"%{each.name}: {tensor(each)}" for each in kernel.operands if each not in fresh)
    out = written(kernel)
    types = ", ".join(map(tensor, out))
    results = ", ".join(writer.now[each.name] for each in out)
    lines = [f"  func.func private @{name}({handed}) -> ({types}) {{", *writer.head(), *writer.lines]
    return "\n".join([*lines, f"    return {results} : {types}", "  }"])


def _fresh(kernel: Kernel) -> tuple[Buffer, ...]:
    """Return the operands whose contents before the kernel do not matter: wholly written before they are read."""
    read: set[str] = set()
    fresh: set[str] = set()
    for statement in kernel.body:
        store = _written_by(statement)
        read |= {name for name, _ in loads(store)} - fresh
        if not store.how and store.buffer not in read and _Space(kernel, statement, False).whole:
            fresh.add(store.buffer)
        elif store.buffer not in fresh:
            read.add(store.buffer)
    return tuple(each for each in kernel.operands if each.name in fresh)


def module(program: LoopProgram) -> str:
    """Write a program as a module on tensors; ``main`` takes the inputs and gives the outputs.

    Raises:
        UsageError: A number format that is no type of MLIR, or a result that ``linalg`` has no form for.
    """
    names = {"main": "main"} | unique(["main", *(kernel.name for kernel in program.kernels)])
    tensors = unique(program.buffers)
    now = {name: f"%{tensors[name]}" for name in program.inputs}
    types = {name: tensor(buffer) for name, buffer in program.buffers.items()}
    results = ", ".join(types[name] for name in program.outputs)
    lines = ["module {", *(function(kernel, names[kernel.name]) for kernel in program.kernels)]
    arguments = ", ".join(f"{now[name]}: {types[name]}" for name in program.inputs)
    lines.append(f"  func.func @main({arguments}) -> ({results}) {{")
    for at, call in enumerate(program.calls):
        by_name = dict(zip((each.name for each in call.kernel.operands), call.operands, strict=True))
        fresh = {each.name for each in _fresh(call.kernel)}
        handed = [storage for own, storage in by_name.items() if own not in fresh]
        out = [by_name[each.name] for each in written(call.kernel)]
        for name in handed:
            if name not in now:  # written part by part
                lines.append(f"    %{tensors[name]} = tensor.empty() : {types[name]}")
                now[name] = f"%{tensors[name]}"
        value = f"%r{at}" if len(out) == 1 else f"%r{at}:{len(out)}"
        takes, gives = (", ".join(types[name] for name in group) for group in (handed, out))
        operands = ", ".join(now[name] for name in handed)
        lines.append(f"    {value} = call @{names[call.kernel.name]}({operands}) : ({takes}) -> ({gives})")
        now |= {name: f"%r{at}" if len(out) == 1 else f"%r{at}#{nth}" for nth, name in enumerate(out)}
    lines.append(f"    return {', '.join(now[name] for name in program.outputs)} : {results}")
    return "\n".join([*lines, "  }", "}", ""])
