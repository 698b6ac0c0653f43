"""Sharded programs computed in numpy, all devices in step: together they give the numbers of the whole program.

Every device gets its slices of the weights; collectives add, gather and scatter across devices; nothing else does. A
sum that is missing, done twice or done after something that is not linear shows in the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.passes.parallel.axes import Atom, Axes, Span
from roofline.passes.parallel.plan import ShardingPlan

Array = Any
#: Sizes that no head count or width equals, so that views are unambiguous.
SIZES = {"B": 3, "S": 10, "C": 14}
TOLERANCE = 1e-9


# --- one device -------------------------------------------------------------------------------------------------------


def _norm(x: Array, scale: Array | None = None, shift: Array | None = None, *, centred: bool = False) -> Array:
    x = x - x.mean(-1, keepdims=True) if centred else x
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (1 if scale is None else scale)
    return y + (0 if shift is None else shift)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _repeat(keys: Array, heads: int) -> Array:
    return np.repeat(keys, heads // keys.shape[1], axis=1)


def _scores(q: Array, k: Array, causal: bool = False, **_: Any) -> Array:
    scores = q @ _repeat(k, q.shape[1]).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    seen = np.tril(np.ones(scores.shape[-2:]), scores.shape[-1] - scores.shape[-2]) > 0
    return np.where(seen, scores, -1e30) if causal else scores


def _view(x: Array, shape: tuple[int, ...]) -> Array:
    """Heads split off the last axis stand before the positions; all else keeps its order."""
    if len(x.shape) == 3 and len(shape) == 4 and shape[2] == x.shape[1] and shape[0] == x.shape[0]:
        return x.reshape(shape[0], shape[2], shape[1], shape[3]).swapaxes(1, 2)
    if len(x.shape) == 4 and len(shape) == 3 and shape[1] == x.shape[2]:
        return x.swapaxes(1, 2).reshape(shape)
    return x.reshape(shape)


def _experts(x: Array, weight: Array, *bias: Array, **_: Any) -> Array:
    """Row ``r`` goes to expert ``r mod E``."""
    chosen = np.arange(len(x)) % len(weight)
    return np.einsum("tk,tnk->tn", x, weight[chosen]) + sum((each[chosen] for each in bias), 0)


OPS: dict[str, Callable[..., Array]] = {
    "linear": lambda x, w, *b: x @ w.T + sum(b, 0), "expert_linear": _experts,
    "view": _view, "parallel_input": lambda x, **_: x, "cat": lambda *x, axis=-1: np.concatenate(x, axis),
    "permute": lambda x, axes: x.transpose(axes), "expand": lambda x, shape: np.broadcast_to(x, shape),
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "neg": lambda x: -x, "pow": lambda x: x**3,
    "mul_scalar": lambda x: 0.7 * x, "add_scalar": lambda x: x + 0.5, "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "gelu": lambda x: x * np.tanh(x),
    "gelu_tanh": lambda x: x * np.tanh(x), "softcap": lambda x: 3 * np.tanh(x / 3), "softmax": _softmax,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "mask": lambda x, m: np.where(m > 0, x, -1e30),
    "rmsnorm": _norm, "layernorm": lambda *x: _norm(*x, centred=True),
    "attention_scores": _scores, "attention_softmax": lambda x, **_: _softmax(x),
    "attention_values": lambda p, v, **_: p @ _repeat(v, p.shape[1]),
    "cache_update": lambda old, new: np.concatenate([old[:, :, : old.shape[2] - new.shape[2]], new], 2),
    "topk": lambda x, k: np.sort(x, -1)[:, ::-1][:, :k],
    "gather_rows": lambda x, index: x[np.arange(len(index)) * len(x) // len(index)],
    "scatter_add": lambda x, t: x.reshape(t, -1, x.shape[-1]).sum(1),
}  # fmt: skip


class Devices:
    """All devices of a sharded program in step; ``tp = 1`` runs the whole program."""

    def __init__(self, whole: rl.Graph, graph: rl.Graph, tp: int) -> None:
        self.whole, self.graph, self.tp = whole.bind(**SIZES), graph.bind(**SIZES), tp
        self.axes = Axes(whole)
        self.digits = self._digits(ShardingPlan(self.axes)) if tp > 1 else {}
        self.values: dict[str, list[Array]] = {}
        self.taken: dict[str, int] = {}

    def _digits(self, plan: ShardingPlan) -> dict[Atom, tuple[int, list[int]]]:
        """For each atom that is cut, its new size and the place of each device: the outer atoms vary slowest."""
        found: dict[Atom, tuple[int, list[int]]] = {}
        for split in plan.splits:
            new = {a: n for a, n in (split.cut(self.tp) or {}).items() if n != a.size}
            places = list(product(*(range(atom.size // size) for atom, size in new.items())))  # type: ignore[operator]
            for at, (atom, size) in enumerate(new.items()):
                found[atom] = (size, [place[at] for place in places])
        return found

    # --- weights ---

    def share(self, name: str, array: Array, rank: int) -> Array:
        """A device's part of a weight, cache or input."""
        wanted = self.graph.tensors[name].shape
        for axis, span in enumerate(self.axes.spans(name)):
            if wanted[axis] == array.shape[axis]:
                continue
            places = self._places(span, rank)
            if len(places) != wanted[axis]:  # rows of the vocabulary, the last ones padded
                array = np.concatenate([array, np.zeros((wanted[axis] * self.tp - len(array), *array.shape[1:]))])
                places = list(range(rank * wanted[axis], (rank + 1) * wanted[axis]))
            array = np.take(array, places, axis)
        return array

    def _places(self, part: Span | Atom, rank: int) -> list[int]:
        if isinstance(part, Atom):
            size, at = self.digits.get(part, (part.size, [0] * self.tp))
            return [at[rank] * size + n for n in range(size)]  # type: ignore[operator]
        if part.kind == "sum":
            starts = np.cumsum([0, *(each.size for each in part.parts)])
            return [
                start + n for start, each in zip(starts, part.parts, strict=False) for n in self._places(each, rank)
            ]
        found = [0]
        for each in part.parts:
            found = [outer * each.size + inner for outer in found for inner in self._places(each, rank)]  # type: ignore[misc]
        return found

    # --- nodes ---

    def run(self, given: Mapping[str, Array]) -> dict[str, list[Array]]:
        for name, tensor in self.graph.tensors.items():
            if tensor.kind != "activation":
                self.values[name] = [self.share(name, given[name], rank) for rank in range(self.tp)]
        for node in self.graph.nodes:
            self.values[node.outputs[0]] = self._node(node)
            for rank in range(self.tp):
                assert self.values[node.outputs[0]][rank].shape == self.graph.tensors[node.outputs[0]].shape, node
        return {name: self.values[name] for name in self.graph.outputs}

    def _node(self, node: rl.ops.Node) -> list[Array]:
        inputs = [self.values[name] for name in node.inputs]
        if node.op == "all_reduce":
            return [sum(inputs[0])] * self.tp
        if node.op == "all_gather":
            return [self._gathered(node, inputs[0])] * self.tp
        if node.op == "reduce_scatter":
            return self._scattered(node, sum(inputs[0]))
        ranks = [[each[rank] for each in inputs] for rank in range(self.tp)]
        start = self._start(node)
        return [self._one(node, rank, arrays, start) for rank, arrays in enumerate(ranks)]

    def _one(self, node: rl.ops.Node, rank: int, arrays: list[Array], start: int) -> Array:
        if node.op == "slice":
            return self._slice(node, rank, arrays[0], start)
        if node.op == "embedding":
            return self._rows(node, rank, *arrays)
        if node.op in ("linear", "expert_linear") and rank and len(arrays) > 2 and self._sums(node):
            arrays = arrays[:2]  # the first device adds what is added once
        return OPS[node.op](*arrays, **dict(node.attrs))

    def _sums(self, node: rl.ops.Node) -> bool:
        """Whether a product sums over a share of its axis."""
        return self.graph.tensors[node.inputs[1]].shape[-1] != self.whole.tensors[node.inputs[1]].shape[-1]

    def _rows(self, node: rl.ops.Node, rank: int, table: Array, ids: Array) -> Array:
        """Rows that another device holds are zeros."""
        first = rank * len(table) if len(table) != self.whole.tensors[node.inputs[0]].shape[0] else 0
        here = (ids >= first) & (ids < first + len(table))
        return table[np.where(here, ids - first, 0)] * here[..., None]

    def _start(self, node: rl.ops.Node) -> int:
        """Slices of a tensor take its columns one after the other."""
        if node.op != "slice":
            return 0
        source, width = node.inputs[0].removesuffix(".given"), node_shape(node)[-1]
        start = self.taken.get(source, 0)
        total = self.graph.tensors[node.inputs[0]].shape[-1]
        start = 0 if start + width > total else start
        self.taken[source] = start + width
        return start

    def _slice(self, node: rl.ops.Node, rank: int, x: Array, start: int) -> Array:
        shape = node_shape(node)
        if ".positions" in node.name:
            axis = next(at for at, size in enumerate(shape) if size != x.shape[at])
            return np.take(x, range(rank * shape[axis], (rank + 1) * shape[axis]), axis)
        if node.name.endswith("_norm.share"):  # what is a device's of a norm over all heads
            return np.take(x, self._places(self.axes.spans(node.inputs[0])[-1], rank), -1)
        if len(shape) < len(x.shape):
            return x[:, 0]
        for axis, size in enumerate(shape[:-1]):
            x = np.take(x, range(x.shape[axis] - size, x.shape[axis]), axis)  # the last positions
        return x[..., start : start + shape[-1]]

    # --- collectives: a flat message is the tensor that a view before it laid flat ---

    def _source(self, node: rl.ops.Node) -> tuple[str, list[Array]]:
        maker = next(each for each in self.graph.nodes if each.outputs[0] == node.inputs[0])
        return maker.inputs[0], self.values[maker.inputs[0]]

    def _after(self, node: rl.ops.Node) -> tuple[int, ...]:
        reader = next(each for each in self.graph.nodes if node.outputs[0] in each.inputs)
        return self.graph.tensors[reader.outputs[0]].shape

    def _axis(self, small: tuple[int, ...], large: tuple[int, ...]) -> int:
        return next(axis for axis, sizes in enumerate(zip(small, large, strict=True)) if sizes[0] != sizes[1])

    def _gathered(self, node: rl.ops.Node, _: list[Array]) -> Array:
        name, parts = self._source(node)
        axis = self._axis(self.graph.tensors[name].shape, self._after(node))
        if parts[0].shape[axis] * self.tp == SIZES["B"] * SIZES["S"]:  # rows of all sequences, in their order
            parts = [part.reshape(SIZES["B"], -1, *part.shape[1:]) for part in parts]
            axis = 1
        return np.concatenate(parts, axis).ravel()

    def _scattered(self, node: rl.ops.Node, flat: Array) -> list[Array]:
        name, _ = self._source(node)
        whole, part = self.graph.tensors[name].shape, self._after(node)
        return [each.ravel() for each in np.split(flat.reshape(whole), self.tp, self._axis(part, whole))]


def node_shape(node: rl.ops.Node) -> tuple[int, ...]:
    return tuple(dict(node.attrs)["shape"])


# --- the law ----------------------------------------------------------------------------------------------------------


def drawn(graph: rl.Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Contents of all that the program is given; indices stay below the smallest table."""
    tables = [graph.tensors[node.inputs[0]].shape[0] for node in graph.nodes if node.op == "embedding"]
    found = {}
    for name, tensor in graph.tensors.items():
        if tensor.kind == "activation":
            continue
        if tensor.dtype == "bool":
            found[name] = np.tril(np.ones(tensor.shape), tensor.shape[1] - tensor.shape[0])
        elif tensor.dtype.startswith("int"):
            found[name] = rng.integers(0, min(tables), tensor.shape)
        else:
            found[name] = rng.standard_normal(tensor.shape) / np.sqrt(
                tensor.shape[-1] if tensor.kind == "weight" else 1
            )
    return found


TINY: dict[str, Any] = {"layers": 2, "hidden": 48, "heads": 8, "kv_heads": 4, "head_dim": 6, "intermediate": 40,
                        "vocab": 52}  # fmt: skip
GPT: dict[str, Any] = {"layers": 2, "hidden": 48, "heads": 4, "intermediate": 64, "vocab": 51, "positions": 20}
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("llama-3-8b", TINY, 2),
    ("llama-3-8b", TINY, 4),
    ("llama-3-8b", TINY, 8),  # a key-value head on two devices, with one query each
    ("llama-3-8b", {**TINY, "fused_qkv": False, "fused_gate_up": False, "tied": True}, 2),
    ("llama-3-8b", {**TINY, "kv_heads": 1}, 4),  # one key-value head on all
    ("llama-3-8b", {**TINY, "kv_heads": 1, "fused_qkv": False, "attention": "naive"}, 2),
    ("llama-3-8b", {**TINY, "qk_norm": True, "qk_norm_over": "width"}, 2),  # norms over all heads
    ("gpt2", GPT, 2),  # biases, and a vocabulary that does not divide
    ("gpt2", GPT, 4),
    ("gpt2", {**GPT, "block": "parallel"}, 2),
    ("gpt2", {**GPT, "block": "parallel_norms", "activation": "gelu"}, 4),
    ("gemma-2-2b", {**TINY, "head_dim": 6, "window": 6}, 2),  # norms behind branches, capped scores and logits
    ("mixtral-8x7b", {**TINY, "expert_intermediate": 12, "experts": 4, "top_k": 2}, 2),
    ("qwen1.5-moe-a2.7b", {**TINY, "expert_intermediate": 12, "shared_intermediate": 16, "experts": 4, "top_k": 2}, 4),
]  # fmt: skip
IDS = [f"{name}-{n}-tp{tp}" for n, (name, _, tp) in enumerate(CASES)]


def close(found: Array, wanted: Array) -> bool:
    return found.shape == wanted.shape and float(np.abs(found - wanted).max()) < TOLERANCE * max(
        1, np.abs(wanted).max()
    )


def check(graph: rl.Graph, tp: int, **options: Any) -> None:
    device = rl.passes.shard(graph, tp=tp, **options)
    given = drawn(graph.bind(**SIZES), np.random.default_rng(7))
    whole = Devices(graph, graph, 1).run(given)
    shares = Devices(graph, device, tp)
    outputs = shares.run(given)
    assert len(outputs) == len(whole)
    for (name, wanted), found in zip(whole.items(), outputs.values(), strict=True):
        for rank in range(tp):
            mine = wanted[0] if found[rank].shape == wanted[0].shape else _part(shares, name, wanted[0], rank)
            assert close(found[rank], mine), (name, rank)


def _part(shares: Devices, name: str, array: Array, rank: int) -> Array:
    for axis, span in enumerate(shares.axes.spans(name)):
        if isinstance(span.size, int):
            array = np.take(array, shares._places(span, rank), axis)
    return array


@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
@pytest.mark.parametrize(("name", "options", "tp"), CASES, ids=IDS)
def test_devices_together_give_the_same_numbers(name: str, options: dict[str, Any], tp: int, phase: str) -> None:
    check(rl.model(name, phase=phase, **options), tp)


@pytest.mark.parametrize("phase", ["forward", "prefill"])
@pytest.mark.parametrize(
    ("name", "options", "tp"), [case for case in CASES if case[2] == 2], ids=[i for i in IDS if i.endswith("tp2")]
)
def test_shares_of_positions_give_the_same_numbers(name: str, options: dict[str, Any], tp: int, phase: str) -> None:
    check(rl.model(name, phase=phase, prefill_logits="all", **options), tp, sp=True)


@pytest.mark.parametrize("sp", [False, True])
def test_encoders(sp: bool) -> None:
    options = {
        "layers": 2,
        "hidden": 48,
        "heads": 4,
        "intermediate": 64,
        "vocab": 51,
        "positions": 20,
        "head": "masked",
    }
    check(rl.model("bert-base-uncased", **options), 2, sp=sp)


@pytest.mark.parametrize("sp", [False, True])
def test_latent_attention(sp: bool) -> None:
    options = {"layers": 2, "hidden": 48, "heads": 4, "q_lora": 16, "kv_lora": 12, "nope_dim": 8, "rope_dim": 4,
               "value_dim": 6, "intermediate": 64, "vocab": 52, "dense_layers": 1, "experts": 4, "top_k": 2,
               "expert_intermediate": 20, "shared_intermediate": 20}  # fmt: skip
    check(rl.model("deepseek-v3", phase="forward", **options), 2, sp=sp)


def test_the_check_sees_a_missing_sum() -> None:
    """Without one of its all-reduces a program gives other numbers."""
    graph = rl.model("gpt2", phase="forward", **GPT)
    device = rl.passes.shard(graph, tp=2)
    broken = device.with_nodes(
        rl.ops.Node(n.name, "view", n.inputs, n.outputs, (("shape", device.tensors[n.outputs[0]].shape),))
        if n.name == "layers.1.attn.out.all_reduce" else n
        for n in device.nodes
    )  # fmt: skip
    given = drawn(graph.bind(**SIZES), np.random.default_rng(7))
    wanted = Devices(graph, graph, 1).run(given)
    found = Devices(graph, broken, 2).run(given)
    assert not close(next(iter(found.values()))[0], next(iter(wanted.values()))[0])
    assert prod(next(iter(wanted.values()))[0].shape) == 3 * 10 * 51
