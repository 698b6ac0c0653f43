"""A captured program to a graph: one rule for each aten operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import BaseCall, located, unknown
from roofline.frontends.torch import forms, layout
from roofline.frontends.torch.forms import Form
from roofline.frontends.torch.lifetimes import lifetimes
from roofline.frontends.torch.program import AtenCall, Program, Value, Write
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import RooflineError, ShapeError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.sizes import Size, evaluate, prod, symbols
from roofline.ops.aliases import is_view
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS

#: What a rule returns: the tensors that hold the call's results, ``None`` for one that nobody can use.
Result = str | tuple[str | None, ...] | None
Rule = Callable[["Call"], Result]


@dataclass(frozen=True)
class Row:
    """What is known of an operator of PyTorch.

    Attributes:
        rule: How to translate a call.
        form: Shapes and formats of its results, for calls that a profiler recorded.
    """

    rule: Rule
    form: Form


def rows(names: str | Iterable[str], rule: Rule, form: Form = forms.pointwise) -> dict[str, Row]:
    """Return the rows of operators that share a rule; by default one result as large as all arguments together."""
    return dict.fromkeys(names.split() if isinstance(names, str) else names, Row(rule, form))


#: Copies into memory that is there, or laid out as was asked: the last tensor is what is copied.
COPIES = ("copy_", "copy", "clone", "_to_copy", "contiguous")


class Walk:
    """The state of an import: which tensor of the graph holds which value of the program.

    Args:
        program: What was captured.
        rules: How to translate an operator, by its name.
        policy: What to do with an operator that has no rule: ``error`` or ``report``.
    """

    def __init__(self, program: Program, rules: Mapping[str, Rule], policy: str) -> None:
        self.program = program
        self.rules = rules
        self.policy = policy
        floats = [value.dtype for value in program.sources if value.kind == "weight"]
        self.b = Builder(program.name, max(floats, key=floats.count) if floats else "fp32")
        #: Tensors of the graph by the number of the value that they hold.
        self.names: dict[int, str] = {}
        #: Values whose memory is written again in place: weights, buffers, gradients, the lists of an optimizer.
        self.stored = {value.number for value in program.sources if value.kind in ("weight", "buffer")}
        self.stored |= {value.number for call in program.calls if call.kernel for value in call.outs if value}
        self.stored |= {gradient for _, gradient in program.updates.gradients}
        #: Memory that the program is given: what is written there stays when it has run.
        self.given = {value.memory for value in program.sources}
        #: Numbers without axes that the host holds: it works them out, and hands them to kernels as arguments.
        self.on_host = {value.number for value in program.sources if not value.shape and value.kind == "buffer"
                        and value.name.startswith("constant_")}  # fmt: skip
        #: What the open kernel has worked out anew: the tensor that it is to be written to.
        self.written: dict[int, str] = {}
        #: The latest node after each call.
        self.ends: list[str] = []
        #: Matrices by the tensor that exchanges their last two axes, so that ``x @ w.T`` reads as a linear layer.
        self.transposed: dict[str, str] = {}

    def graph(self) -> Graph:
        """Translate all calls."""
        for value in self.program.sources:
            if 0 not in value.shape:
                self.names[value.number] = self.b.source(value.name, value.shape, value.kind, value.dtype)
        for kernel, records in groupby(self.program.calls, key=lambda record: record.kernel):
            with self.b.kernel(kernel) if kernel else nullcontext():
                for record in records:
                    empty = all(value is None or 0 in value.shape for value in record.outs)
                    if not empty or record.writes:
                        self._translate(Call(self, record))
                    self.ends.append(self.b.latest)
                self._write_back()
                self.ends[-1] = self.b.latest
        outputs = [self.names[value.number] for value in self.program.outputs if value.number in self.names]
        items, item = _items(self.program)
        whole = self.b.graph(list(dict.fromkeys(outputs)), items, item)
        # Only views go: PyTorch runs whatever else a program asks for.
        graph = whole.live(node for node in whole.nodes if not is_view(node))
        graph = graph.with_info(lifetimes=lifetimes(self.program, self.names, whole, self.ends, graph))
        updates = self.program.updates
        pairs = [(self.names.get(weight, ""), self.names.get(gradient, "")) for weight, gradient in updates.gradients]
        gradients = tuple(pair for pair in pairs if all(name in graph.tensors for name in pair))
        states = tuple(self.names[number] for number in updates.states if number in self.names)
        if not gradients:
            return graph
        return graph.with_info(gradients=gradients, optimizer=updates.optimizer, optimizer_states=states)

    def _translate(self, call: Call) -> None:
        if self._is_number(call):
            self.on_host |= {value.number for value in call.outs}
            return
        self.b.dtype = call.dtype
        scope, target = call.record.scope, call.record.target
        self.b.phase = "backward" if scope.partition(".")[0] == "backward" else "forward"
        own = self.rules.get(target.rpartition(".")[0])  # of a name with its namespace
        rule = own or self.rules.get(call.what) or self.rules.get(call.what.removesuffix("_"), Call.unknown)
        try:
            with self.b.scope(scope) if scope else nullcontext(), self._kernel(call):
                self._bind(call, rule(call))
        except RooflineError as error:
            raise located(error, scope or self.program.name, target, target) from None

    def _is_number(self, call: Call) -> bool:
        """Tell whether the host works out a number from numbers that it holds; no kernel runs."""
        read = call.record.tensors
        return bool(read) and not call.writes and all(not value.shape for value in call.outs) and (
            self.on_host.issuperset(value.number for value in read))  # fmt: skip

    def _kernel(self, call: Call) -> AbstractContextManager[Any]:
        """Run a call that writes into memory that is there as one kernel: it computes and writes."""
        writes = any(write.base is not None or self._is_stored(write) for write in call.writes)
        return self.b.kernel(call.name) if writes and not call.record.kernel else nullcontext()

    def _is_stored(self, write: Write) -> bool:
        """Tell whether a call writes to all of a weight, buffer or gradient, so that nothing new is allocated."""
        number, same = write.before.number, write.before.shape == write.after.shape
        return write.base is None and same and number in self.stored and number in self.names

    def _bind(self, call: Call, result: Result) -> None:
        names = result if isinstance(result, tuple) else (result,)
        for value, name in zip(call.record.outs, names, strict=False):
            if value is not None and name is not None:
                self.names[value.number] = self._settled(value, name)
        for write in call.writes:
            name = self.names.get(write.after.number) or (names[0] if names else None)
            if name is not None:
                if self._is_stored(write):
                    self.stored.add(write.after.number)
                    self.written[write.after.number] = self.written.pop(write.before.number, self.tensor(write.before))
                self.names[write.after.number] = name
                if not call.record.kernel:
                    self._write_back()
                if write.base is not None and write.base[1].number not in self.names:
                    if self.b.shape(name) == write.before.shape and self._is_all(write.before, write.base[0]):
                        self.names[write.base[1].number] = emit.view(self.b, name, write.base[1].shape, "whole")
                    else:
                        self.write_part(write, name, "written", **call.access())

    def _is_all(self, part: Value, base: Value) -> bool:
        """Tell whether a view is all of a result, in order, so that a write to it leaves nothing of what was there."""
        in_order = all(each.layout is not None and layout.is_contiguous(each.layout) for each in (part, base))
        computed = part.memory not in self.given
        return in_order and computed and part.dtype == base.dtype and prod(part.shape) == prod(base.shape)

    def _write_back(self) -> None:
        """Lay what a kernel has worked out into the memory that it was of."""
        for number, target in self.written.items():
            name, dtype = self.names[number], self.b.tensor(target).dtype
            self.names[number] = self.b.op("put", target, name, name="written", dtype=dtype)
        self.written.clear()

    def write_part(self, write: Write, values: str, name: str, *index: str, **options: Any) -> str:
        """Lay values into the tensor that what is written is a part of."""
        assert write.base is not None
        before, after = write.base
        whole = self.b.op("put", self.tensor(before), values, *index, name=name, dtype=before.dtype, **options)
        self.names[after.number] = whole
        self.names[write.after.number] = self.b.op("slice", whole, name="part", shape=write.after.shape)
        return self.names[write.after.number]

    def _settled(self, value: Value, name: str) -> str:
        """Check a rule's result against what PyTorch says; sizes equal in value take PyTorch's form."""
        shape = self.b.shape(name)
        if shape == value.shape:
            return name
        if len(shape) == len(value.shape) and all(map(_agree, shape, value.shape)):
            self.b.restate(name, value.shape)
            return name
        raise ShapeError(f"the rule gives {list(shape)} where PyTorch has {list(value.shape)}")

    def tensor(self, value: Value) -> str:
        """Return the tensor of the graph that holds a value."""
        if value.number not in self.names:
            with self.b.scope("scratch"):
                self.names[value.number] = self.b.source(value.name or "saved", value.shape, "buffer", value.dtype)
        return self.names[value.number]


def _agree(ours: Size, theirs: Size) -> bool:
    """Tell whether two sizes are equal at a few points; the symbols have no algebra to prove it."""
    names = sorted(symbols(ours) | symbols(theirs))
    points = ({name: base + 17 * at for at, name in enumerate(names)} for base in (64, 96, 250))
    return all(evaluate(ours, point) == evaluate(theirs, point) for point in points)


class Call(BaseCall):
    """A call of an aten operator as its rule sees it.

    Args:
        walk: The import.
        record: What was captured of the call.
    """

    def __init__(self, walk: Walk, record: AtenCall) -> None:
        self.walk, self.record, self.b = walk, record, walk.b
        self.what = record.name
        self.name = record.name.strip("_")
        self.args, self.writes, self.get = record.args, record.writes, record.get
        self.outs = [value for value in record.outs if value is not None]
        self.out = self.outs[0] if self.outs else record.writes[0].after
        self.dtype = self.out.dtype

    def op(self, op: str, *inputs: str, name: str = "", dtype: str | None = None, **attrs: Any) -> str:
        """Add a node that is called like the operation, with how an elementwise kernel gets at its elements."""
        if OPS[op].kind == "pointwise" or op == "put":
            attrs = {**self.access(), **attrs}
        return super().op(op, *inputs, name=name, dtype=dtype, **attrs)

    def copied(self, *keys: str) -> dict[str, Any]:
        """Return the option that says how operands are copied first, for kernels that want their elements in order."""
        values = map(self.value, keys)
        ways = tuple(None if value is None else self.apart(value) for value in values)
        return {"copied": ways} if any(ways) else {}

    def apart(self, value: Value) -> layout.Access | None:
        """Return how a copy in order gets at a tensor; ``None`` where it lies in order, or nobody knows."""
        if value.layout is None or layout.is_contiguous(value.layout):
            return None
        return layout.access(layout.contiguous(value.layout), [(value.layout, int(DTYPES[value.dtype].bytes))], False)

    def access(self) -> dict[str, Any]:
        """Return the option that says how an elementwise kernel gets at its elements, where strides are known."""
        read = [value for value in self.record.tensors if value.number not in self.walk.on_host]
        written = next((write.before for write in self.writes), None)
        if self.what in COPIES:
            written, read = written or self.out, read[-1:]
        operands = [(value.layout, int(DTYPES[value.dtype].bytes)) for value in read if value.layout is not None]
        target = None if written is None else written.layout
        if len(operands) < len(read) or (target is None and (written or not read)):
            return {}
        return {"access": layout.access(target, operands, self._casts(read))}

    def _casts(self, read: Sequence[Value]) -> bool:
        """Tell whether elements change their format within the kernel, but for those that PyTorch has a kernel for."""
        formats = {
            value.dtype for value in read if value is not self.get("mask") and value is not self.get("condition")
        }
        if formats == {"fp32"} and self.dtype in ("bf16", "fp16") and self.what in COPIES:
            return False
        if self.what in COPIES:
            return formats != {self.dtype}
        return len(formats) > 1 or (self.dtype != "bool" and bool(formats) and self.dtype not in formats)

    def value(self, key: str) -> Value | None:
        """Return a tensor argument, ``None`` where it is absent or has no elements."""
        value = self.args.get(key)
        return value if isinstance(value, Value) and 0 not in value.shape else None

    def maybe(self, key: str) -> str | None:
        """Return the tensor of an optional argument."""
        value = self.value(key)
        return self.walk.tensor(value) if value is not None else None

    def tensor(self, key: str = "self") -> str:
        """Return the tensor of an argument.

        Raises:
            ShapeError: It is absent.
        """
        name = self.maybe(key)
        if name is None:
            raise ShapeError(f"needs the tensor {key}")
        return name

    def given(self, *keys: str) -> list[str]:
        """Return the tensors of those optional arguments that are there."""
        return [name for key in keys if (name := self.maybe(key)) is not None]

    def tensors(self) -> list[str]:
        """Return all tensor arguments in order, those in lists too."""
        names: list[str] = []
        for key, value in self.args.items():
            if key == "out" and any(write.before is value for write in self.writes):
                continue  # where the result goes
            each = value if isinstance(value, tuple) else (value,)
            names += [self.walk.tensor(v) for v in each if isinstance(v, Value) and 0 not in v.shape]
        return names

    def shape(self, key: str = "self") -> tuple[Size, ...]:
        """Return the shape of a tensor argument."""
        return self.b.shape(self.tensor(key))

    def unknown(self) -> Result:
        """Refuse an operator without a rule, or count its bytes alone, as the user has asked."""
        policy, target, inputs = self.walk.policy, self.record.target, self.tensors()
        if policy == "error":
            target += did_you_mean(self.what, self.walk.rules)
            unknown(self.b, target, [], (), policy=policy, where=self.record.scope or "main")
        results = []
        for value in self.record.outs:
            results.append(
                unknown(self.b, target, inputs, value.shape, policy=policy, where=self.name, dtype=value.dtype)
                if value is not None else None
            )  # fmt: skip
            inputs = []  # what several results share is read once
        return tuple(results)


def _items(program: Program) -> tuple[Size, str]:
    """Return what one run counts for throughput, told by the first input: tokens of a text, images, samples."""
    inputs = [value for value in program.sources if value.kind == "input"]
    if not inputs:
        return 1, "run"
    first = inputs[0]
    if first.dtype.startswith("int") and len(first.shape) in (1, 2):
        return prod(first.shape), "token"
    if len(first.shape) == 4:
        return first.shape[0], "image"
    if len(first.shape) == 3:
        return prod(first.shape[:2]), "token"
    return (first.shape[0], "sample") if first.shape else (1, "run")
