"""A captured program to a graph: one rule for each aten operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from roofline.frontends.call import unknown
from roofline.frontends.torch.program import Call, Program, Value, Write
from roofline.ir.errors import RooflineError, ShapeError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.sizes import Size, evaluate, prod, symbols
from roofline.ops.aliases import is_view
from roofline.ops.builder import Builder

#: What a rule returns: the tensors that hold the call's results, ``None`` for one that nobody can use.
Result = str | tuple[str | None, ...] | None
Rule = Callable[["Site"], Result]


class Lowering:
    """The graph in the making: which tensor of it holds which value of the program."""

    def __init__(self, program: Program, rules: Mapping[str, Rule], unknown: str) -> None:
        self.program = program
        self.rules = rules
        self.unknown = unknown
        floats = [value.dtype for value in program.sources if value.kind == "weight"]
        self.b = Builder(program.name, max(floats, key=floats.count) if floats else "fp32")
        self.held: dict[int, str] = {}
        #: Transposed matrices by the tensor whose last two axes they swap, so that ``x @ w.T`` reads as a linear layer.
        self.turned: dict[str, str] = {}

    def graph(self) -> Graph:
        """Lower all calls."""
        for value in self.program.sources:
            if 0 not in value.shape:
                self.held[value.number] = self.b.source(value.name, value.shape, value.kind, value.dtype)
        for call in self.program.calls:
            self._lower(call)
        outputs = [self.held[value.number] for value in self.program.outputs if value.number in self.held]
        items, item = _items(self.program)
        graph = self.b.graph(list(dict.fromkeys(outputs)), items, item)
        # Only views go: PyTorch runs whatever else a program asks for.
        return graph.live(node for node in graph.nodes if not is_view(node))

    def _lower(self, call: Call) -> None:
        empty = all(value is None or 0 in value.shape for value in call.outs)
        if empty and not call.writes:
            return
        site = Site(self, call)
        self.b.dtype = site.out.dtype
        try:
            with self.b.scope(call.scope) if call.scope else nullcontext(), self._kernel(site):
                self._bind(site, self._apply(site))
        except RooflineError as error:
            where = f"{call.scope or self.program.name}: {call.target}"
            text = str(error)
            raise (error if call.target in text else type(error)(f"{where}: {text}")) from None

    def _apply(self, site: Site) -> Result:
        name = site.call.name
        rule = self.rules.get(name) or self.rules.get(name.removesuffix("_"))
        return rule(site) if rule is not None else site.unknown()

    def _bind(self, site: Site, result: Result) -> None:
        found = result if isinstance(result, tuple) else (result,)
        for value, name in zip(site.call.outs, found, strict=False):
            if value is not None and name is not None:
                self.held[value.number] = self._settled(value, name)
        for write in site.call.writes:
            name = self.held.get(write.after.number) or (found[0] if found else None)
            if name is not None:
                self.held[write.after.number] = name
            if write.base is not None and write.base[1].number not in self.held and name is not None:
                self._written_back(site, write, name)

    def _kernel(self, site: Site) -> AbstractContextManager[None]:
        """A call that writes a part of a tensor computes and writes in one kernel."""
        partial = any(write.base is not None for write in site.call.writes)
        return self.b.kernel(site.name) if partial else nullcontext()

    def _written_back(self, site: Site, write: Write, name: str) -> None:
        """Lay a result into the tensor that it is a part of."""
        assert write.base is not None
        before, after = write.base
        whole = self.b.op("put", self.tensor(before), name, name="written", dtype=before.dtype)
        self.held[after.number] = whole
        self.held[write.after.number] = self.b.op("slice", whole, name="part", shape=write.after.shape)

    def _settled(self, value: Value, name: str) -> str:
        """Check a rule's result against what PyTorch says; sizes equal in value take PyTorch's form."""
        mine = self.b.shape(name)
        if mine == value.shape:
            return name
        if len(mine) == len(value.shape) and all(map(_agree, mine, value.shape)):
            self.b.restate(name, value.shape)
            return name
        raise ShapeError(f"the rule gives {list(mine)} where PyTorch has {list(value.shape)}")

    def tensor(self, value: Value) -> str:
        """The tensor of the graph that holds a value."""
        if value.number not in self.held:
            with self.b.scope("scratch"):
                self.held[value.number] = self.b.source(value.name or "saved", value.shape, "buffer", value.dtype)
        return self.held[value.number]


def _agree(mine: Size, theirs: Size) -> bool:
    """Whether two sizes are equal at a few points; the symbols have no algebra to prove it."""
    names = sorted(symbols(mine) | symbols(theirs))
    points = ({name: base + 17 * at for at, name in enumerate(names)} for base in (64, 96, 250))
    return all(evaluate(mine, point) == evaluate(theirs, point) for point in points)


@dataclass(frozen=True)
class Site:
    """A call as its rule sees it."""

    lowering: Lowering
    call: Call

    @property
    def b(self) -> Builder:
        """The builder."""
        return self.lowering.b

    @property
    def name(self) -> str:
        """What to call the node."""
        return self.call.name.strip("_")

    @property
    def out(self) -> Value:
        """The first result."""
        value = next((value for value in self.call.outs if value is not None), None)
        return value or self.call.writes[0].after

    def get(self, key: str, default: Any = None) -> Any:
        """A plain argument."""
        value = self.call.args.get(key)
        return default if value is None else value

    def value(self, key: str) -> Value | None:
        """A tensor argument, ``None`` where it is absent or has no elements."""
        found = self.call.args.get(key)
        return found if isinstance(found, Value) and 0 not in found.shape else None

    def maybe(self, key: str) -> str | None:
        """The tensor of an optional argument."""
        found = self.value(key)
        return self.lowering.tensor(found) if found is not None else None

    def tensor(self, key: str = "self") -> str:
        """The tensor of an argument that must be there."""
        found = self.maybe(key)
        if found is None:
            raise ShapeError(f"needs the tensor {key}")
        return found

    def tensors(self) -> list[str]:
        """All tensor arguments in order, those in lists too."""
        found: list[str] = []
        for key, value in self.call.args.items():
            if key == "out" and any(write.before is value for write in self.call.writes):
                continue  # where the result goes
            each = value if isinstance(value, tuple) else (value,)
            found += [self.lowering.tensor(v) for v in each if isinstance(v, Value) and 0 not in v.shape]
        return found

    def shape(self, key: str = "self") -> tuple[Size, ...]:
        """Shape of a tensor argument."""
        return self.b.shape(self.tensor(key))

    def op(self, op: str, *inputs: str, name: str = "", dtype: str | None = None, **attrs: Any) -> str:
        """Add a node whose result has the format of the call's."""
        return self.b.op(op, *inputs, name=name or self.name, dtype=dtype or self.out.dtype, **attrs)

    def unknown(self) -> Result:
        """No rule: an error or a visible line, as the user has asked."""
        lowering = self.lowering
        if lowering.unknown == "error":
            near = did_you_mean(self.call.name, lowering.rules)
            unknown(self.b, self.call.target + near, [], (), policy="error", where=self.call.scope or "main", known=())
        inputs = self.tensors()
        results = []
        for value in self.call.outs:
            shape = value.shape if value is not None else ()
            results.append(
                unknown(self.b, self.call.target, inputs, shape, policy=lowering.unknown, where=self.name,
                        dtype=value.dtype if value is not None else None)
                if value is not None else None
            )  # fmt: skip
            inputs = []  # what several results share is read once
        return tuple(results)


def _items(program: Program) -> tuple[Size, str]:
    """What one run produces, told by the first input: tokens of a text, images, samples."""
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
