"""A graph as a module of StableHLO, the language that JAX hands to XLA; https://openxla.org/stablehlo/spec.

body      the operations of one function, as text          rules     operator by operator
arrays    numpy's functions, recorded as operations        xla       parse, verify and run a module with jax
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from roofline.codegen.stablehlo import body as hlo
from roofline.codegen.stablehlo.body import Body, Module, Stored, Value
from roofline.codegen.stablehlo.rules import Site, lowered
from roofline.ir.errors import RooflineError, ShapeError, UnknownOp, UsageError
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.arrays import Call
from roofline.ops.registry import get_op

#: What the parts of a tensor in a narrow format are called, after its name.
SCALE, ZERO = ".scale", ".zero"


def stablehlo(graph: Graph) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Write a program whose sizes are numbers as a module.

    Returns:
        The text, the tensors that its function ``main`` is given, and those that it returns. A tensor in a format with
        scales is followed by these, as ``NAME.scale``, and by its zero points.

    Raises:
        UnknownOp: An operator without a rule; names the node.
        UnknownDType: A number format that StableHLO has no type for.
    """
    module, arguments = Module(), _arguments(graph)
    body = Body(module)
    values = dict(arguments)
    for node in graph.nodes:
        body.place = f" loc({_location(node)})"
        values[node.outputs[0]] = _node(graph, node, body, [values[name] for name in node.inputs])
    operands = [part for name in arguments for part in _parts(name, values_of(arguments[name]))]
    results = [part for name in dict.fromkeys(graph.outputs) for part in _parts(name, values_of(values[name]))]
    text = _module(graph, body, operands, results)
    return text, tuple(name for name, _ in operands), tuple(name for name, _ in results)


def values_of(value: Value) -> tuple[Value | None, ...]:
    """Return a tensor, its scales and its zero points."""
    return value, value.scale, value.zero


def _parts(name: str, values: Iterable[Value | None]) -> list[tuple[str, Value]]:
    return [
        (name + suffix, value) for suffix, value in zip(("", SCALE, ZERO), values, strict=True) if value is not None
    ]


def _arguments(graph: Graph) -> dict[str, Value]:
    """Return what the function is given: each tensor that nothing computes and somebody reads or returns."""
    needed = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    taken: set[str] = set()

    def named(name: str, suffix: str = "") -> str:
        word = re.sub(r"[^\w$.-]", "_", f"{name}{suffix}", flags=re.ASCII)
        word = word if re.match(r"[A-Za-z_$.-]", word) else f"_{word}"
        while word in taken or not word:
            word = f"{word}_"
        taken.add(word)
        return f"%{word}"

    def argument(tensor: Tensor) -> Value:
        lies, shape = hlo.stored(tensor.dtype, tensor.name), tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
        value = Value(named(tensor.name), shape, lies.element)
        if not lies.group:
            return value
        groups = _groups(tensor, shape, lies)
        scale = Value(named(tensor.name, SCALE), groups, lies.scale)
        zero = Value(named(tensor.name, ZERO), groups, lies.zero) if lies.zero else None
        return Value(value.name, shape, lies.element, scale, zero, (lies.rows, lies.group))

    return {
        name: argument(each) for name, each in graph.tensors.items() if each.kind != "activation" and name in needed
    }


def _groups(tensor: Tensor, shape: tuple[int, ...], lies: Stored) -> tuple[int, ...]:
    """Return the shape of a tensor's scales; blocks of a matrix may be cut, groups of a row not."""
    if lies.rows > 1 and len(shape) > 1:
        return (*shape[:-2], -(-shape[-2] // lies.rows), -(-shape[-1] // lies.group))
    row = shape[-1] if shape else 1
    if row % lies.group:
        raise ShapeError(f"{tensor.name}: groups of {lies.group} ({tensor.dtype}) do not divide rows of {row}")
    return (*shape[:-1], row // lies.group)


def _node(graph: Graph, node: Node, body: Body, inputs: list[Value]) -> Value:
    """Write a node and check that it gives what the graph says."""
    if len(node.outputs) != 1:
        raise UsageError(f"{node.name}: {node.op} writes {len(node.outputs)} tensors; one a node is lowered")
    output = graph.tensors[node.outputs[0]]
    lies, shape = hlo.stored(output.dtype, node.name), tuple(int(size) for size in output.shape)  # type: ignore[arg-type]
    call = Call(node.name, get_op(node.op, node.name).name, dict(node.attrs), shape, output.dtype, 0)
    try:
        value = lowered(Site(body, call, inputs, lies))
    except UnknownOp as error:
        raise UnknownOp(f"{node.name}: no rule lowers {node.op} to StableHLO: {error}") from None
    except RooflineError as error:
        raise type(error)(f"{node.name}: {node.op}: {error}") from None
    if value.scale is None:
        value = hlo.convert(body, value, lies.element)
    if value.shape != shape:
        raise ShapeError(f"{node.name}: {node.op} lowers to {list(value.shape)} where the graph has {list(shape)}")
    return value


def _location(node: Node) -> str:
    """Return where an operation comes from: its node, and the kernel that this runs in, if it runs in another's."""
    name = hlo.quoted(node.name)
    return name if node.label == node.name else f"fused<{hlo.quoted(node.label)}>[{name}]"


def _module(graph: Graph, body: Body, operands: list[tuple[str, Value]], results: list[tuple[str, Value]]) -> str:
    kinds = {name: tensor.kind for name, tensor in graph.tensors.items()}

    def argument(name: str, value: Value) -> str:
        kind = kinds.get(name) or kinds[name.removesuffix(SCALE).removesuffix(ZERO)]
        about = f" {{roofline.kind = {hlo.quoted(kind)}}}" if kind != "input" else ""
        return f"{value.name}: {value.type}{about} loc({hlo.quoted(name)})"

    returned = ", ".join(f"{value.type} {{jax.result_info = {hlo.quoted(name)}}}" for name, value in results)
    names, types = ", ".join(value.name for _, value in results), ", ".join(value.type for _, value in results)
    lines = [
        f"module @{hlo.quoted(graph.name)} attributes {{roofline.version = 1 : i64}} {{",
        f"  func.func public @main({', '.join(argument(*each) for each in operands)}) -> ({returned}) {{",
        *(f"    {line}" for each in hlo.finished(body, f"return {names} : {types}") for line in each.split("\n")),
        "  }",
    ]
    for text, name in body.module.functions.items():
        lines += [f"  {line}" for line in f"func.func private @{name}{text}".split("\n")]
    return "\n".join([*lines, "}", ""])
