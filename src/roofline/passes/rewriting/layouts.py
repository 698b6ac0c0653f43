"""In which order images lie in memory, channels first (NCHW) or last (NHWC), and the copies where that changes.

A shape is always written channels first; the layout is how its elements lie. Convolutions, norms, pools and resampling
have kernels of their own for each layout and say with ``channels_last`` which one runs. Elementwise kernels take any,
the same for all that they touch. Everything else keeps the layout that it has: views, sums, matmuls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node, once_per_graph
from roofline.ir.sizes import prod
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.passes.history import added_for_training, graph_pass

#: Names of the layouts, and whether channels lie last in them.
LAYOUTS = {"channels_first": False, "channels_last": True}
#: Nodes of a copy into each, up to the one that moves elements and behind it.
_VIEWS = {"channels_first": (3, 1), "channels_last": (2, 2)}
#: Operators whose kernels differ by layout; these take images first and return one.
_OWN = frozenset({
    "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d", "batchnorm2d", "batchnorm_train", "groupnorm",
})  # fmt: skip
#: Operators that do so where they say it, since they are of other arrays too.
_STATED = frozenset({"pool", "rearrange", "resample"})
#: Operators that are no elementwise ones and take images of any layout, all of the same.
_ALIKE = frozenset({"copy", "cast", "upsample2d", "maxpool2d", "avgpool2d", "layernorm2d"})
#: Operators that read images of any layout and return none.
ENDS = frozenset({"reduce", "global_avgpool"})


@dataclass(frozen=True)
class Images:
    """The images of a program, and which kernels may have them in either layout.

    Attributes:
        free: Such kernels by label, and whether channels lie last in them as the program is.
        last: Each image by the name of its tensor, and whether its channels lie last as the program is.
    """

    free: Mapping[str, bool]
    last: Mapping[str, bool]


@once_per_graph
def images(graph: Graph) -> Images:
    """Find the images of a program and the kernels that may have them in either layout."""
    shown, last = _reached(graph), dict[str, bool]()

    def takes_any(node: Node) -> bool:
        return _takes_any(graph, node) and not shown.isdisjoint(node.outputs)

    def apart(node: Node) -> bool:
        return shown.isdisjoint((*node.inputs, *node.outputs))

    free = {
        label for label, nodes in graph.kernels.items()
        if any(map(takes_any, nodes)) and all(takes_any(node) or node.op in ENDS or apart(node) for node in nodes)
    }  # fmt: skip
    for copy in copies(graph).values():
        last |= {copy.source: not copy.last, copy.end: copy.last}
    for name in (name for name in shown if graph.tensors[name].kind == "input"):
        last.setdefault(name, _as_read(graph, name, last))
    own: dict[str, bool] = {}
    for node in graph.nodes:
        stated, known = _stated(node), [last[name] for name in _operands(node) if name in last]
        if node.label in free and takes_any(node):
            own[node.label] = own.get(node.label, known[0]) if stated is None else stated
            last.update(dict.fromkeys(node.outputs, own[node.label]))
        elif node.outputs[0] in shown:
            last.setdefault(node.outputs[0], _as_read(graph, node.outputs[0], last))
    return Images(own, {name: way for name, way in last.items() if name in shown})


def _reached(graph: Graph) -> set[str]:
    """Return what operators with a layout of their own read and return, and what elementwise ones lead to from there.

    Other arrays of four axes are no images: scores of attention, positions with channels behind them.
    """
    own = [node for node in graph.nodes if _stated(node) is not None and _takes_any(graph, node)]
    waiting = [name for node in own for name in (node.inputs[0], *node.outputs)]
    waiting += [name for copy in copies(graph).values() for name in (copy.source, copy.end)]
    shown: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in shown or not _is_image(graph, name):
            continue
        shown.add(name)
        around = [*graph.consumers.get(name, ()), *([graph.producer[name]] if name in graph.producer else [])]
        for node in around:
            if _stated(node) is None and _takes_any(graph, node):
                waiting += [*node.inputs, *node.outputs]
    return shown


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of an image in the other layout, as :func:`turn` adds it.

    Attributes:
        source: The image.
        end: The copy, of the same shape.
        last: Whether channels lie last in the copy.
        nodes: What it is made of.
    """

    source: str
    end: str
    last: bool
    nodes: tuple[str, ...]


@once_per_graph
def copies(graph: Graph) -> Mapping[str, Copy]:
    """Return the copies that change the layout of an image, by the name of what they return."""
    every: dict[str, Copy] = {}
    for node in graph.nodes:
        way = dict(node.attrs).get("turns")
        if way is None:
            continue
        before, behind = node, node
        nodes = [node.name]
        while (view := graph.producer.get(before.inputs[0])) is not None and len(nodes) < _VIEWS[way][0]:
            before = view
            nodes.insert(0, view.name)
        while len(nodes) < sum(_VIEWS[way]) and (readers := graph.consumers.get(behind.outputs[0])):
            behind = readers[0]
            nodes.append(behind.name)
        every[behind.outputs[0]] = Copy(before.inputs[0], behind.outputs[0], LAYOUTS[way], tuple(nodes))
    return every


def _is_image(graph: Graph, name: str) -> bool:
    """Tell whether a tensor has channels and more than one point: only then do the layouts differ."""
    tensor = graph.tensors[name]
    many = len(tensor.shape) in (4, 5) and tensor.shape[1] != 1 and any(size != 1 for size in tensor.shape[2:])
    return many and tensor.kind in ("activation", "input")


def _operands(node: Node) -> tuple[str, ...]:
    """Return what a node reads as images: the first of operators that take weights, of others all."""
    return node.inputs if OPS[node.op].kind == "pointwise" or node.op in ("cat", *_ALIKE) else node.inputs[:1]


def _takes_any(graph: Graph, node: Node) -> bool:
    """Tell whether a node has a kernel for images of either layout."""
    attrs = dict(node.attrs)
    if node.op in _OWN or (node.op in _STATED and "channels_last" in attrs):
        return _is_image(graph, node.inputs[0]) and len(node.outputs) == 1
    turns = attrs.get("access", ("", 0, 0))[2] > 0  # it reads in one order and writes in another
    alike = OPS[node.op].kind == "pointwise" or node.op in _ALIKE or (node.op == "cat" and attrs.get("axis") == 1)
    alike = alike or (node.op == "rearrange" and "pad" in str(attrs.get("what", "")))
    return alike and not turns and any(_is_image(graph, name) for name in node.inputs) and len(node.outputs) == 1


def _stated(node: Node) -> bool | None:
    """Return the layout that a node states, or that it has by default; ``None`` where it takes any."""
    if node.op in _OWN or "channels_last" in dict(node.attrs):
        return bool(dict(node.attrs).get("channels_last", True))
    return None


def _as_read(graph: Graph, name: str, known: Mapping[str, bool]) -> bool:
    """Return the layout that the next operator with one reads a tensor in, else that of the first of the program.

    Channels first where no operator has one. Elementwise operators on the way have the layout of what they read.
    """
    waiting, seen = [name], {name}
    for each in waiting:
        if each in known:
            return known[each]
        for node in graph.consumers.get(each, ()):
            stated = _stated(node) if each in _operands(node) else None
            if stated is not None:
                return stated
            more = [out for out in node.outputs if _takes_any(graph, node) and out not in seen]
            seen.update(more)
            waiting += more
    every = (_stated(node) for node in graph.nodes)
    return next((way for way in every if way is not None), False)


@graph_pass
def layout(graph: Graph, layout: str, kernels: Iterable[str] | None = None) -> Graph:
    """Put images channels last (NHWC) or first (NCHW), with the copies where a program goes from one to the other.

    Inputs and results of the program, and what views and matmuls read, keep the layout that they have: a copy turns
    them. The operands of a list of operators (:func:`roofline.workload`) have no layout of their own and are taken as
    they are wanted. Weights are turned ahead of the run.

    Args:
        graph: A forward program.
        layout: ``channels_last`` or ``channels_first``.
        kernels: The kernels that it is for, by label; the others keep theirs. All when absent.

    Returns:
        The program with its images in that layout; the same numbers.

    Raises:
        UsageError: Another layout, a kernel that has none, or a program that has its backward already.

    Example:
        >>> import roofline as rl
        >>> conv = {"op": "conv2d", "n": 8, "c_in": 256, "h": 56, "w": 56, "c_out": 256, "r": 3, "s": 3, "padding": 1,
        ...         "channels_last": False}
        >>> graph = rl.workload([conv], dtype="bf16")
        >>> turned = layout(graph, "channels_last")
        >>> times = [rl.estimate(each, "h100-sxm", mode="graph").time for each in (graph, turned)]
        >>> times[1] < 0.8 * times[0]
        True
    """
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise UsageError(
            f"layout {str(layout)[:60]!r}: allowed: {', '.join(LAYOUTS)}, which are NCHW and NHWC"
            f"{did_you_mean(str(layout), LAYOUTS)}"
        )
    if added := added_for_training(graph):
        raise UsageError(f"{graph.name}: layout comes before {added}, which takes the layouts of the forward over")
    free = images(graph).free
    names = tuple(free) if kernels is None else tuple(kernels)
    for name in names:
        if name not in free:
            near = did_you_mean(str(name), free)
            raise UsageError(f"{graph.name}: no kernel {str(name)[:60]!r} that may have images in either layout{near}")
    target = {**free, **dict.fromkeys(names, LAYOUTS[layout])}
    return graph if target == free else _Turned(graph, target).run()


def marked(graph: Graph, last: bool) -> Graph:
    """Return a program whose kernels run in one layout as far as they can, without copies: to time each by itself."""
    free = images(graph).free
    nodes = (_in_layout(node, last) if node.label in free else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _in_layout(node: Node, last: bool) -> Node:
    """Return a node whose kernel is that of a layout, where it has one for each."""
    if _stated(node) in (None, last):
        return node
    return replace(node, attrs=tuple(sorted({**dict(node.attrs), "channels_last": last}.items())))


class _Turned:
    """A program in the making whose kernels have other layouts.

    Args:
        graph: The program before.
        target: For each kernel that may have either layout, whether channels are to lie last.
    """

    def __init__(self, graph: Graph, target: Mapping[str, bool]) -> None:
        self.graph, self.target, self.images = graph, target, images(graph)
        self.b = Builder.of(graph, nodes=())
        self.last = dict(self.images.last)
        self.made: dict[tuple[str, bool], str] = {}

    def run(self) -> Graph:
        """Return the program with the copies that it needs, and no others."""
        before = {node for copy in copies(self.graph).values() for node in copy.nodes}
        for node in self.graph.nodes:
            if node.name not in before:
                self._place(node)
        listed = self.graph.info.listed
        return self.b.graph([name if listed else self._as(name, None) for name in self.graph.outputs])

    def _place(self, node: Node) -> None:
        own = self.target.get(node.label)
        inputs = tuple(self._as(name, own, node.op in ENDS) for name in node.inputs)
        self.b.place(replace(node if own is None else _in_layout(node, own), inputs=inputs))
        if own is not None:
            self.last.update({name: own for name in node.outputs if name in self.last})

    def _as(self, name: str, own: bool | None, either: bool = False) -> str:
        """Return an image in the layout of a kernel, ``None`` for the one that it had: itself, or a copy for all."""
        if name not in self.last:
            return name
        last = self.images.last[name] if own is None else own
        copy = copies(self.graph).get(name)
        name = name if copy is None else copy.source
        free = either or (self.graph.info.listed and self.graph.tensors[name].kind == "input")
        if free or self.last[name] == last:
            return name
        if (name, last) not in self.made:
            self.made[name, last] = turn(self.b, name, last)
        return self.made[name, last]


def turn(b: Builder, name: str, last: bool) -> str:
    """Add a copy of an image in the other layout: the same shape and numbers, its elements in another order.

    Channels and points are the two axes that a copy of the transpose exchanges; the views before and behind it move
    nothing.

    Args:
        b: Where it goes.
        name: The image.
        last: Whether channels lie last in the copy.
    """
    shape = b.shape(name)
    word = "channels_last" if last else "channels_first"
    axes = (*range(len(shape) - 1), len(shape), len(shape) - 1)
    flat: Any = (1,) * (len(shape) - 2) + (*shape[:2], prod(shape[2:]))
    out = b.op("view", name, name=f"{name}.flat", shape=flat)
    out = out if last else b.op("permute", out, name=f"{name}.points", axes=axes)
    out = b.op("transpose_copy", out, name=f"{name}.{word}", tiled=True, turns=word)
    out = b.op("permute", out, name=f"{name}.channels", axes=axes) if last else out
    return b.op("view", out, name=f"{name}.{word}_image", shape=shape)
