"""Loop nests as MLIR: ``scf`` loops, ``memref`` buffers, ``vector`` where loops run at once, ``arith``, ``math``."""

from __future__ import annotations

from roofline.codegen.loops.emit import Emitter, element, unique
from roofline.codegen.loops.form import Buffer, Guard, Kernel, Load, Loop, Statement, Store, Value, mapped
from roofline.codegen.loops.index import Index, factor_of, substitute
from roofline.codegen.loops.lowering import LoopProgram

_COMBINING = {"add": "add", "mul": "mul", "max": "maximumf", "min": "minimumf"}
_WHOLE = {"add": "add", "mul": "mul", "max": "maxsi", "min": "minsi"}


def memref(buffer: Buffer) -> str:
    """Return the type of a buffer."""
    return f"memref<{''.join(f'{size}x' for size in buffer.shape)}{element(buffer)}>"


class _Function(Emitter):
    """Writes one kernel."""

    #: The loop whose turns run at once, while its body is written.
    lanes: Loop | None = None

    def read(self, buffer: str, index: tuple[Index, ...]) -> str:
        at, own = ", ".join(map(self.index, index)), self.buffers[buffer]
        return self._once((buffer, index), f"memref.load %{buffer}[{at}] : {memref(own)}")

    def typed(self, kind: str) -> str:
        return kind if self.lanes is None else f"vector<{self.lanes.trips}x{kind}>"

    def number(self, value: float) -> str:
        return self._spread(super().number(value)) if self.lanes else super().number(value)

    def _spread(self, scalar: str) -> str:
        assert self.lanes is not None
        return self._once(("spread", scalar), f"vector.broadcast {scalar} : {self.kind} to {self.typed(self.kind)}")

    # --- statements

    def statement(self, each: Statement) -> None:
        """Write a loop or a store."""
        if isinstance(each, Store):
            self.forget()
            self.choose(each)
            self._store(each)
        elif each.mark == "vector":
            self.variables[each.var] = self.index(each.start)
            for store in each.body:
                assert isinstance(store, Store)
                self._at_once(each, store)
        else:
            self._loop(each)

    def _loop(self, loop: Loop) -> None:
        self.forget()
        start, stop, step = self.index(loop.start), self.index(loop.stop), self.constant(loop.step, "index")
        var = self.variables[loop.var] = f"%{loop.var}"
        if loop.mark == "parallel":
            self.line(f"scf.parallel ({var}) = ({start}) to ({stop}) step ({step}) {{")
        else:
            self.line(f"scf.for {var} = {start} to {stop} step {step} {{")
        with self.region():
            for each in loop.body:
                self.statement(each)
            if loop.mark == "parallel":
                self.line("scf.reduce")
        self.line("}")
        self.forget()

    def _store(self, store: Store) -> None:
        buffer, value = self.buffers[store.buffer], self.value(store.value)
        at = ", ".join(map(self.index, store.index))
        if store.how:
            before = self.widened(self.read(store.buffer, store.index), element(buffer))
            value = self.combined(store.how, before, value)
        self.line(f"memref.store {self.narrowed(value, element(buffer))}, %{store.buffer}[{at}] : {memref(buffer)}")

    def guard(self, value: Guard) -> str:
        if self.lanes is not None:
            return self._by_lane(value)
        holds, names = self.holds(value.conditions), []
        start = len(self.lines)
        for each in (value.value, value.otherwise):
            with self.region():
                self.line(f"scf.yield {self.value(each)} : {self.kind}")
            names.append(self.lines[start:])
            del self.lines[start:]
        result = self.let(f"scf.if {holds} -> ({self.kind}) {{")
        self.lines += names[0]
        self.line("} else {")
        self.lines += names[1]
        self.line("}")
        return result

    # --- all turns of a loop at once

    def _at_once(self, loop: Loop, store: Store) -> None:
        """Write a store of a vector; of one into a single element, the reduction of a vector."""
        self.forget()
        self.choose(store)
        buffer, along = self.buffers[store.buffer], self._along(store.index, loop.var)
        self.lanes = loop
        value = self.value(store.value)
        if along is None:
            self._each(loop, store, value)
        elif along < 0:
            self._reduce(store, value)
        else:
            if store.how:
                before = self.widened(self._vector(store.buffer, store.index, along), element(buffer))
                value = self.combined(store.how, before, value)
            value, at = self.narrowed(value, element(buffer)), ", ".join(map(self.index, store.index))
            self.line(f"vector.transfer_write {value}, %{store.buffer}[{at}] {self._map(buffer, along)} : "
                      f"{self.typed(element(buffer))}, {memref(buffer)}")  # fmt: skip
        self.lanes = None

    @staticmethod
    def _along(place: tuple[Index, ...], var: str) -> int | None:
        """Return the axis along which a vector lies, -1 where all lanes are one element, ``None`` for any other."""
        factors = [factor_of(each, var) for each in place]
        axes = [at for at, factor in enumerate(factors) if factor != 0]
        if not axes:
            return -1
        return axes[0] if len(axes) == 1 and factors[axes[0]] == 1 else None

    def _map(self, buffer: Buffer, along: int) -> str:
        dims = ", ".join(f"d{at}" for at in range(len(buffer.shape)))
        return f"{{in_bounds = [true], permutation_map = affine_map<({dims}) -> (d{along})>}}"

    def _vector(self, buffer: str, index: tuple[Index, ...], along: int) -> str:
        own, at = self.buffers[buffer], ", ".join(map(self.index, index))
        padding = self.constant(0, element(own))
        return self._once(("vector", buffer, index), f"vector.transfer_read %{buffer}[{at}], {padding} "
                          f"{self._map(own, along)} : {memref(own)}, {self.typed(element(own))}")  # fmt: skip

    def _value(self, value: Value) -> str:
        if self.lanes is None or not isinstance(value, Load):
            return super()._value(value)
        along = self._along(value.index, self.lanes.var)
        if along is None:
            return self._by_lane(value)
        if along >= 0:
            return self.widened(self._vector(value.buffer, value.index, along), element(self.buffers[value.buffer]))
        return self._spread(self._scalar(value))

    def _scalar(self, value: Value) -> str:
        """Return a value of one lane."""
        lanes, self.lanes = self.lanes, None
        own = self.value(value)
        self.lanes = lanes
        return own

    def _lane(self, value: Value, at: int) -> Value:
        assert self.lanes is not None
        to = {self.lanes.var: self.lanes.start + at}
        return mapped(value, lambda each: substitute(each, to))

    def _by_lane(self, value: Value) -> str:
        """Return a vector whose lanes lie apart in memory."""
        assert self.lanes is not None
        own = [self._scalar(self._lane(value, at)) for at in range(self.lanes.trips or 0)]
        return self.let(f"vector.from_elements {', '.join(own)} : {self.typed(self.kind)}")

    def _reduce(self, store: Store, value: str) -> None:
        vector, lanes = self.typed(self.kind), self.lanes
        self.lanes = None
        buffer, at = self.buffers[store.buffer], ", ".join(map(self.index, store.index))
        before = self.widened(self.read(store.buffer, store.index), element(buffer))
        table = _WHOLE if self.kind.startswith("i") else _COMBINING
        total = self.let(f"vector.reduction <{table[store.how]}>, {value}, {before} : {vector} into {self.kind}")
        self.line(f"memref.store {self.narrowed(total, element(buffer))}, %{store.buffer}[{at}] : {memref(buffer)}")
        self.lanes = lanes

    def _each(self, loop: Loop, store: Store, value: str) -> None:
        """Store lanes that lie apart one by one."""
        vector, self.lanes = self.typed(self.kind), None
        buffer = self.buffers[store.buffer]
        for lane in range(loop.trips or 0):
            own = self.let(f"vector.extract {value}[{lane}] : {self.kind} from {vector}")
            place = tuple(substitute(each, {loop.var: loop.start + lane}) for each in store.index)
            at = ", ".join(map(self.index, place))
            if store.how:
                own = self.combined(store.how, self.widened(self.read(store.buffer, place), element(buffer)), own)
            self.line(f"memref.store {self.narrowed(own, element(buffer))}, %{store.buffer}[{at}] : {memref(buffer)}")


def function(kernel: Kernel, name: str) -> str:
    """Write a kernel as a function over its operands."""
    writer = _Function(kernel.buffers)
    local = [each for each in kernel.buffers if each.local]
    for each in kernel.body:
        writer.statement(each)
    handed = ", ".join(f"%{each.name}: {memref(each)}" for each in kernel.operands)
    lines = [f"  func.func @{name}({handed}) {{", *writer.head()]
    lines += [f"    %{each.name} = memref.alloc() : {memref(each)}" for each in local]
    lines += writer.lines
    lines += [f"    memref.dealloc %{each.name} : {memref(each)}" for each in local]
    return "\n".join([*lines, "    return", "  }"])


def module(program: LoopProgram) -> str:
    """Write a program as a module: a function for each distinct kernel, and ``main``, which runs them in order.

    ``main`` is handed the inputs, then the outputs that are no inputs.

    Example:
        >>> from roofline.codegen.loops.lowering import loop_nests
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("half", "fp32")
        >>> print(module(loop_nests(b.graph([b.op("mul_scalar", b.input("x", (8,)), name="y", value=0.5)]))))
        module {
          func.func @y(%arg0: memref<8xf32>, %arg1: memref<8xf32>) {
            %c_0 = arith.constant 0 : index
            %c_8 = arith.constant 8 : index
            %c_1 = arith.constant 1 : index
            %c_f32_0_5 = arith.constant 0.5 : f32
            scf.for %i0 = %c_0 to %c_8 step %c_1 {
              %0 = memref.load %arg1[%i0] : memref<8xf32>
              %1 = arith.mulf %0, %c_f32_0_5 : f32
              memref.store %1, %arg0[%i0] : memref<8xf32>
            }
            return
          }
          func.func @main(%x: memref<8xf32>, %y: memref<8xf32>) {
            call @y(%y, %x) : (memref<8xf32>, memref<8xf32>) -> ()
            return
          }
        }
        <BLANKLINE>
    """
    names = {"main": "main"} | unique(["main", *(kernel.name for kernel in program.kernels)])
    values = unique(program.buffers)
    handed = dict.fromkeys((*program.inputs, *program.outputs))
    lines = ["module {", *(function(kernel, names[kernel.name]) for kernel in program.kernels)]
    arguments = ", ".join(f"%{values[name]}: {memref(program.buffers[name])}" for name in handed)
    between = [name for name in program.buffers if name not in handed]
    lines.append(f"  func.func @main({arguments}) {{")
    lines += [f"    %{values[name]} = memref.alloc() : {memref(program.buffers[name])}" for name in between]
    for call in program.calls:
        operands = ", ".join(f"%{values[name]}" for name in call.operands)
        types = ", ".join(memref(program.buffers[name]) for name in call.operands)
        lines.append(f"    call @{names[call.kernel.name]}({operands}) : ({types}) -> ()")
    lines += [f"    memref.dealloc %{values[name]} : {memref(program.buffers[name])}" for name in between]
    return "\n".join([*lines, "    return", "  }", "}", ""])
