"""The program: tensors, nodes and the graph that joins them. Knows no operator and no chip.

A node carries a *kernel label*: nodes with the same label run as one kernel, and only tensors that cross the boundary
of a kernel are moved. Fusion is relabelling; nothing else about a node changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, wraps
from types import MappingProxyType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.numbers import whole_number
from roofline.ir.sizes import (
    LARGEST,
    SIZE_WORDS,
    Dim,
    Number,
    Size,
    by_symbol,
    prod,
    size_names,
    substitute,
    symbols,
    unknown_size,
)  # fmt: skip

#: What a tensor is to the memory count: stored parameters, stored constants that are no parameters (running
#: statistics), the KV cache or other kept state, what the caller hands in, or something computed on the way.
Kind = Literal["weight", "buffer", "cache", "input", "activation"]
#: Which part of a training step a node belongs to; all of a program that is not trained is its forward.
Phase = Literal["forward", "backward"]

Result = TypeVar("Result")
Options = ParamSpec("Options")


# Layers repeat, so the same shapes are asked for over and over.
_numel = lru_cache(maxsize=4096)(prod)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    One of ``graph.tensors``; :func:`roofline.listing` shows them.

    Attributes:
        name: Unique in its graph.
        shape: Sizes, symbolic or not.
        dtype: Name of the number format.
        kind: ``weight``, ``buffer``, ``cache``, ``input`` or ``activation``.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    kind: Kind = "activation"

    @property
    def numel(self) -> Number:
        """Elements, symbolic or not."""
        return _numel(self.shape)

    def bound(self, sizes: Mapping[str, int]) -> Tensor:
        """The same with some symbols replaced by numbers."""
        return replace(self, shape=tuple(substitute(size, sizes) for size in self.shape))


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    One of ``graph.nodes``; :func:`roofline.listing` shows them.

    Attributes:
        name: Unique in its graph, dotted like a module path.
        op: Operator name in the registry.
        inputs: Names of the tensors read, in the operator's order.
        outputs: Names of the tensors written.
        attrs: Options of the operator as sorted pairs, so that nodes hash and compare.
        kernel: Label of the kernel that it runs in; empty means one of its own.
        count: How often it runs back to back, on other data each time.
        scope: The modules that it stands in, dotted: ``layers.3.attn``; empty at the top.
        phase: ``forward`` or ``backward``.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    kernel: str = ""
    count: int = 1
    scope: str = ""
    phase: Phase = "forward"

    @property
    def label(self) -> str:
        """The kernel that this node runs in."""
        return self.kernel or self.name

    @property
    def layer(self) -> str:
        """The layer that it belongs to, empty for none; see :func:`layer_of`."""
        return layer_of(self.scope)


@lru_cache(maxsize=4096)
def layer_of(scope: str) -> str:
    """The layer that a scope is in: the path up to its first numbered module, empty where none is numbered.

    A number at the head of the path counts only where no other follows: it may be that of a whole program.

    Example:
        >>> [layer_of(scope) for scope in ("encoder.layers.3.attn", "stage2.0", "0", "0.layers.1", "embed")]
        ['encoder.layers.3', 'stage2.0', '0', '0.layers.1', '']
    """
    path = scope.split(".")
    numbered = [at for at, module in enumerate(path) if module.isdecimal()]
    end = next((at for at in numbered if at), 0 if numbered else -1)
    return ".".join(path[: end + 1])


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A pass that was applied to a graph.

    One of ``graph.history``; see :func:`roofline.analysis.pass_history`.

    Attributes:
        name: The pass.
        options: What it was told, as pairs.
        before: The program that it was given.
        notes: What a reader should know about what it did, or did not do.
    """

    name: str
    options: tuple[tuple[str, Any], ...]
    before: Graph
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.options)})"


@dataclass(frozen=True, slots=True)
class Devices:
    """The group of devices that share a program.

    Attributes:
        tp: Devices that share every layer.
        ep: Groups of devices that share the experts.
        pp: Stages of a pipeline that the program runs through, one after the other.
        stage: Which of ``stages`` the program is, from 0; ``None`` where it is a whole one.
        stages: Stages of the pipeline that it is a part of.
        cluster: Where they are, empty where nobody has said.
    """

    tp: int = 1
    ep: int = 1
    pp: int = 1
    stage: int | None = None
    stages: int = 1
    cluster: str = ""

    @property
    def number(self) -> int:
        """All of them."""
        return self.tp * self.ep * self.pp


@dataclass(frozen=True, slots=True)
class Training:
    """What was added to a program to train it.

    Attributes:
        gradients: Each weight with the tensor that its gradient is in; ``None`` before there are any.
        micro_batches: How often forward and backward run before the update.
        optimizer: The optimizer, empty before there is an update.
        optimizer_states: Tensors that it keeps.
    """

    gradients: tuple[tuple[str, str], ...] | None = None
    micro_batches: int = 1
    optimizer: str = ""
    optimizer_states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When a runtime frees what a program allocates; what is not in here is free after its last use.

    A tensor or node that a pass has taken away has no entry any more, and the rest holds as it did. False where
    nothing is known: then PyTorch's calls of modules are taken to refer to what they are given.

    Attributes:
        freed: Tensors with the node after which nothing refers to them; empty for those that outlive the run.
        within: Tensors with the one in whose memory they were written.
        unread: Results that no node reads, each with the node that allocates it and the one after which it is freed.
        planned: Whether a compiler plans them: all is free after its last use.
    """

    freed: Mapping[str, str] = field(default_factory=dict)
    within: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[tuple[Tensor, str, str], ...] = ()
    planned: bool = False

    def __bool__(self) -> bool:
        return self.planned or bool(self.freed)

    def bound(self, sizes: Mapping[str, int]) -> Lifetimes:
        """The same with some symbols replaced by numbers."""
        return replace(self, unread=tuple((t.bound(sizes), first, last) for t, first, last in self.unread))

    def resized(self, before: Graph, after: Graph) -> Lifetimes:
        """The same where tensors have other sizes: results that no node reads follow what their node reads and gives.

        Args:
            before: The program that this holds of.
            after: The same nodes and tensors, of other sizes.
        """
        nodes = {node.name: node for node in before.nodes} if self.unread else {}
        unread = list[tuple[Tensor, str, str]]()
        for tensor, first, last in self.unread:
            names = [*nodes[first].outputs, *nodes[first].inputs] if first in nodes else []
            shapes = [(before.tensors[name].shape, after.tensors[name].shape) for name in names]
            unread.append((replace(tensor, shape=_as_resized(tensor.shape, shapes)), first, last))
        return replace(self, unread=tuple(unread))


def _as_resized(shape: tuple[Size, ...], others: Sequence[tuple[tuple[Size, ...], ...]]) -> tuple[Size, ...]:
    """Return a shape whose axes become what axes of their size become in other tensors, those at their place first."""
    whole = next((after for before, after in others if before == shape), None)
    axes = [(at, old, new) for before, after in others for at, (old, new) in enumerate(zip(before, after, strict=True))]

    def resized(own: int, size: Size) -> Size:
        same = sorted((at != own, nth) for nth, (at, old, _) in enumerate(axes) if old == size)
        return axes[same[0][1]][2] if same else size

    return whole or tuple(resized(own, size) for own, size in enumerate(shape))


@dataclass(frozen=True, slots=True)
class Positions:
    """How many positions of a sequence a model is made for.

    Attributes:
        most: Positions at most.
        hard: Whether it has no more, because each is a row of a table; otherwise it is what the model was trained
            for, and runs beyond (rotary and relative positions).
    """

    most: int
    hard: bool = False

    def check(self, title: str, sizes: Mapping[str, Any]) -> None:
        """Refuse more positions than rows of a table.

        Raises:
            UsageError: Names the size and the limit.
        """
        name, longest = self._longest(sizes)
        if self.hard and longest > self.most:
            raise UsageError(
                f"{size_names({name})}={longest:,}: {title} has {self.most:,} positions, each a row of its table; "
                f"allowed: up to {self.most:,}, or a model with a longer table"
            )

    def note(self, title: str, sizes: Mapping[str, Any]) -> str:
        """Say where positions are more than the model is made for; empty where they are not."""
        _, longest = self._longest(sizes)
        return f"{longest:,} positions, where {title} is made for {self.most:,}" if longest > self.most else ""

    @staticmethod
    def _longest(sizes: Mapping[str, Any]) -> tuple[str, int]:
        """Return the size that counts positions and is largest."""
        return max(((name, int(np.max(sizes[name]))) for name in ("S", "C") if name in sizes), default=("S", 0),
                   key=lambda each: each[1])  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostCalls:
    """What a framework's host calls in one eager run of a program.

    Attributes:
        kernels: Of the program, as many as its operators stand for.
        operators: Calls of operators that compute.
        views: Calls that compute nothing: they look at memory in another way, or take some.
    """

    kernels: int
    operators: float
    views: float


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a program beyond its tensors and nodes; false where nothing is.

    Attributes:
        model: Name of the model.
        family: The family of models that built it, ``layers`` for a model file that lists its layers.
        phase: ``forward``, ``prefill``, ``decode`` or ``train``.
        dtype: Number format that the model is published in.
        source: Where the program, or the figures of its model file, come from.
        parameters_published: Parameters that the publisher names.
        parameters_source: Where it does.
        active_parameters: Parameters that a token uses.
        layers: Repeated layers.
        positions: How many positions the model is made for.
        notes: What a reader should know.
        ignored: Keys of a config, or operations of a file, that no cost depends on.
        method: How PyTorch captured it: ``dispatch``, ``export`` or ``run``.
        guards: Conditions on symbolic sizes under which the capture holds.
        opset: Versions of the operator sets of the ONNX file.
        mode: ``compiled`` where it was captured in torch.compile's kernels.
        kernels: Launches then.
        grouped: Who grouped its operators into kernels: ``inductor``.
        listed: Whether it only lists what is computed, not by which kernels.
        folded: The program that computes its constants ahead.
        pipeline: The stages, of a program that runs through a pipeline; a device holds one of them.
        devices: The devices that share it.
        training: What was added to train it.
        lifetimes: When its tensors are freed, where that was seen.
        calls: What its host called while it was captured.
    """

    model: str | None = None
    family: str | None = None
    phase: str | None = None
    dtype: str | None = None
    source: str | None = None
    parameters_published: int | None = None
    parameters_source: str = ""
    active_parameters: int | None = None
    layers: int | None = None
    positions: Positions | None = None
    notes: tuple[str, ...] = ()
    ignored: tuple[str, ...] | Mapping[str, int] = ()
    method: str | None = None
    guards: tuple[str, ...] = ()
    opset: Mapping[str, int] = field(default_factory=dict)
    mode: str | None = None
    kernels: int | None = None
    grouped: str = ""
    listed: bool = False
    folded: Graph | None = None
    pipeline: tuple[Graph, ...] = ()
    devices: Devices = Devices()
    training: Training = Training()
    lifetimes: Lifetimes = Lifetimes()
    calls: HostCalls | None = None

    def __bool__(self) -> bool:
        return self != Info()


@dataclass(frozen=True)
class Graph:
    """Tensors and nodes in execution order.

    Attributes:
        name: What the program is called.
        tensors: By name.
        nodes: In an order in which every tensor is written before it is read.
        outputs: Tensors that outlive the run.
        items: What one run produces, for throughput (``B*S`` tokens of a prefill, ``B`` of a decode step).
        item: The word for one of them: ``token``, ``image``, ``sample``.
        info: What is known of it: model, phase, notes, devices...
        history: The passes that were applied, first to last; :func:`roofline.analysis.pass_history` says what each did.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> graph = b.graph([b.op("linear", b.input("x", (8, 64)), b.weight("w", (32, 64)), name="up")])
        >>> graph.producer["up"].op, graph.consumers["w"][0].name, graph.parameters
        ('linear', 'up', 2048)
    """

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...] = ()
    items: Size = 1
    item: str = "run"
    info: Info = Info()
    history: tuple[Applied, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The sizes that need a value before anything can be counted."""
        distinct = {id(size): size for tensor in self.tensors.values() for size in tensor.shape}
        return frozenset().union(*map(symbols, distinct.values()))

    @cached_property
    def parameters(self) -> int:
        """Weight elements, each shared tensor once."""
        return sum(tensor.numel for tensor in self.tensors.values() if tensor.kind == "weight")

    @property
    def title(self) -> str:
        """The model's name, or the program's where it comes from no model."""
        return self.name if self.info.model is None else self.info.model

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """For each tensor, the nodes that read it."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """For each tensor that is computed, the node that writes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def kernels(self) -> Mapping[str, tuple[Node, ...]]:
        """For each kernel label, its nodes, in the order of the program."""
        kernels: dict[str, list[Node]] = {}
        for node in self.nodes:
            kernels.setdefault(node.label, []).append(node)
        return {label: tuple(nodes) for label, nodes in kernels.items()}

    @cached_property
    def backward_start(self) -> int | None:
        """Index of the first node of the backward; ``None`` where there is none."""
        return next((at for at, node in enumerate(self.nodes) if node.phase == "backward"), None)

    def with_info(self, **changes: Any) -> Graph:
        """The same program with other values of some fields of :class:`Info`, ``devices`` or ``training``.

        Example:
            >>> Graph("empty", {}, ()).with_info(phase="train", tp=2).info.devices.tp
            2
        """
        of = {
            group: {name: changes.pop(name) for name in group.__slots__ if name in changes}
            for group in (Devices, Training)
        }
        devices, training = replace(self.info.devices, **of[Devices]), replace(self.info.training, **of[Training])
        return replace(self, info=replace(self.info, devices=devices, training=training, **changes))

    def with_notes(self, *notes: str) -> Graph:
        """The same program with further notes for its reader, each once; empty ones are none."""
        every = tuple(dict.fromkeys(note for note in (*self.info.notes, *notes) if note))
        return self if every == self.info.notes else self.with_info(notes=every)

    def bind(self, **sizes: int) -> Graph:
        """The same program with some symbols replaced by numbers.

        Raises:
            UsageError: A value that is no size, or a symbol that neither it nor what it was made of has.
        """
        parts = (self, self.info.folded, *self.info.pipeline, *(step.before for step in self.history))
        known = frozenset().union(*(part.symbols for part in parts if part is not None))
        for name in sizes.keys() - known:
            check_symbol(self, name, f"{name}={sizes[name]}")
            if name not in SIZE_WORDS.values():
                raise unknown_size(name, known)
        numbers = {name: whole_number(name, size, most=LARGEST) for name, size in sizes.items()}
        check_positions(self, numbers)
        return self._bound(numbers)

    def _bound(self, sizes: Mapping[str, int], known: dict[int, Graph] | None = None) -> Graph:
        known = {} if known is None else known  # each program before a pass has those before it in its history
        for step in self.history:
            if id(step.before) not in known:
                known[id(step.before)] = step.before._bound(sizes, known)
        at = {name: tensor.bound(sizes) for name, tensor in self.tensors.items()}
        nodes = tuple(
            replace(node, attrs=tuple((key, _substitute_attr(value, sizes)) for key, value in node.attrs))
            for node in self.nodes
        )
        history = tuple(replace(step, before=known[id(step.before)]) for step in self.history)
        folded = self.info.folded and self.info.folded._bound(sizes)
        pipeline = tuple(part._bound(sizes) for part in self.info.pipeline)
        info = replace(self.info, folded=folded, pipeline=pipeline, lifetimes=self.info.lifetimes.bound(sizes))
        items = substitute(self.items, sizes)
        return replace(self, tensors=at, nodes=nodes, items=items, info=info, history=history)

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """The same program with other nodes, validated."""
        return replace(self, nodes=tuple(nodes)).validate()

    def with_tensors(self, tensors: Iterable[Tensor]) -> Graph:
        """The same program with some tensors replaced by name."""
        return replace(self, tensors={**self.tensors, **{tensor.name: tensor for tensor in tensors}})

    def live(self, lasting: Iterable[Node] = (), follows: Mapping[str, Iterable[str]] | None = None) -> Graph:
        """The same program without nodes that no output depends on, and without what only they write.

        Args:
            lasting: Nodes that stay whoever reads them.
            follows: Tensors that stay where another one does, though no node says so: what a loop hands to its next
                turn.

        Example:
            >>> kinds = {"x": "input", "y": "activation", "z": "activation"}
            >>> tensors = {name: Tensor(name, (8,), "fp32", kind) for name, kind in kinds.items()}
            >>> nodes = Node("a", "exp", ("x",), ("y",)), Node("b", "tanh", ("x",), ("z",))
            >>> [node.op for node in Graph("half", tensors, nodes, ("y",)).live().nodes]
            ['exp']
        """
        needed: set[str] = set()
        waiting = [*self.outputs, *(name for node in lasting for name in node.outputs)]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting.extend((follows or {}).get(name, ()))
                waiting.extend(self.producer[name].inputs if name in self.producer else ())
        nodes = tuple(node for node in self.nodes if not needed.isdisjoint(node.outputs))
        written = {name for node in nodes for name in node.outputs}
        tensors = {name: t for name, t in self.tensors.items() if t.kind != "activation" or name in written}
        return replace(self, tensors=tensors, nodes=nodes)

    def validate(self) -> Graph:
        """Check that the graph is one: known tensors, single writers, no read before the write.

        Raises:
            ShapeError: Names the node and the tensor.
        """
        written = {name for name, tensor in self.tensors.items() if tensor.kind != "activation"}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ShapeError(f"{self.name}: two nodes are called {node.name!r}")
            names.add(node.name)
            for tensor in node.inputs:
                if tensor not in written:
                    raise ShapeError(f"{self.name}: node {node.name!r} reads {tensor!r} before anything writes it")
            for tensor in node.outputs:
                if tensor not in self.tensors:
                    raise ShapeError(f"{self.name}: node {node.name!r} writes {tensor!r}, which has no shape")
                if tensor in written:
                    raise ShapeError(f"{self.name}: node {node.name!r} writes {tensor!r} a second time")
                written.add(tensor)
        lost = [name for name in self.outputs if name not in written]
        if lost:
            raise ShapeError(f"{self.name}: output {lost[0]!r} is never written")
        return self

    def __repr__(self) -> str:
        sizes = f", sizes {', '.join(sorted(self.symbols))}" if self.symbols else ""
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {self.parameters:,} parameters{sizes}>"


def check_positions(graph: Graph, sizes: Mapping[str, Any]) -> None:
    """Refuse sizes with more positions than the model's table has rows; ``info.positions`` says how many.

    Raises:
        UsageError: Names the size and the limit.
    """
    if graph.info.positions is not None:
        graph.info.positions.check(graph.title, sizes)


def positions_note(graph: Graph, sizes: Mapping[str, Any]) -> str:
    """Say where sizes have more positions than the model is made for and runs beyond; empty where they have not."""
    return "" if graph.info.positions is None else graph.info.positions.note(graph.title, sizes)


def check_graph(program: Any, name: str, what: str = "a pass") -> None:
    """Refuse what is no program.

    Raises:
        UsageError: Says what it takes.
    """
    if not isinstance(program, Graph):
        path = isinstance(program, str | os.PathLike)
        hint = f", such as rl.load_program({os.fspath(program)[:60]!r})" if path else ""
        raise UsageError(f"{name}: {what} takes a Graph{hint}, not {str(program)[:60]!r}")


#: What stands for a dynamic axis, by the frontend that captured the program.
_CAPTURE_AGAIN = {
    "torch": 'capture again with dynamic={{"{name}": {axis}}}',
    "jax": "trace it again on shapes of jax.export.symbolic_shape('{name}')",
    "onnx": "export the file again with '{name}' as a symbolic dimension (dynamic_shapes or dynamic_axes)",
}


def sizes_of(graph: Graph, sizes: Mapping[str, Any], known: Set[str] | None = None) -> dict[str, Any]:
    """Return the sizes of a program under its own symbols (:func:`~roofline.ir.sizes.by_symbol`).

    B, S and C may be given to any program of a model, which has what it has; one that was captured at a fixed size
    would answer for another one than was asked.

    Args:
        graph: The program.
        sizes: By word or by symbol; ``None`` is no size.
        known: The symbols that there are, the program's where absent.

    Raises:
        UsageError: A size that was fixed when the program was captured, with what to do, or that is unknown.

    Example:
        >>> from roofline.ir.sizes import symbol
        >>> sizes_of(Graph("step", {"x": Tensor("x", (symbol("B"), 8), "fp32", "input")}, ()), {"batch": 4, "S": 1})
        {'B': 4}
    """
    known = graph.symbols if known is None else known
    for name, value in sizes.items():
        own = name if name in known else SIZE_WORDS.get(name, name)
        if value is not None and own not in known and not (own == "S" and "C" in known):
            check_symbol(graph, own, f"{name}={value}")
    named = by_symbol(sizes, known)
    if "S" in named and "S" not in known and "C" in known:
        named.setdefault("C", named["S"])
    for name in named.keys() - known - set(SIZE_WORDS.values()):
        raise unknown_size(name, known)
    check_positions(graph, named)
    return {name: value for name, value in named.items() if name in known}


def check_symbol(graph: Graph, name: str, text: str) -> None:
    """Refuse a size that a captured program has no symbol for.

    Raises:
        UsageError: Says what to do about it.
    """
    if advice_on(graph, name):
        word = next((word for word, symbol in SIZE_WORDS.items() if symbol == name), name)
        has = f"this program has no {word}; its sizes are {size_names(graph.symbols)}"
        raise UsageError(f"{text}: {has}{advice_on(graph, name)}")


def advice_on(graph: Graph, name: str) -> str:
    """Return what a captured program was captured with, and how it gets a symbol; empty for any other program."""
    guard = next((guard for guard in graph.info.guards if guard.startswith(f"{name} = ")), "")
    if guard:
        return f"; its capture found that it only runs where {guard}"
    source = (graph.info.source or "").partition(",")[0]
    if source not in _CAPTURE_AGAIN:
        return ""
    inputs = [f"{t.name} {list(t.shape)}" for t in graph.tensors.values() if t.kind == "input"]
    remedy = _CAPTURE_AGAIN[source].format(name=name, axis=int(name != "B"))
    return f"; captured with {', '.join(inputs[:3]) or 'no inputs'}: {remedy}"


def _substitute_attr(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_substitute_attr(item, sizes) for item in value)
    return substitute(value, sizes) if isinstance(value, Dim) else value


#: Results with options, such as the programs that passes make, that a graph keeps: the latest of them.
_LATEST = 16


def once_per_graph(
    function: Callable[Concatenate[Graph, Options], Result],
) -> Callable[Concatenate[Graph, Options], Result]:
    """Keep what a function works out about a graph with the graph, so that it is worked out once."""

    @wraps(function)
    def run(graph: Graph, /, *args: Options.args, **options: Options.kwargs) -> Result:
        results: dict[Any, Any] = graph.__dict__.setdefault("_results", {})
        key = (run, *map(_typed, args), *map(_typed, options.items())) if args or options else run
        try:
            known = key in results
        except TypeError:  # an option that is no key
            return function(graph, *args, **options)
        if not known:
            results[key] = function(graph, *args, **options)
            _forget(results)
        result: Result = results[key]
        return result

    return run


def _typed(value: Any) -> Any:
    """Return what is equal for equal options of equal types: True is no 1."""
    return tuple(map(_typed, value)) if isinstance(value, tuple) else (type(value), value)


def _forget(results: dict[Any, Any]) -> None:
    with_options = [key for key in results if isinstance(key, tuple)]
    for key in with_options[:-_LATEST]:
        del results[key]
