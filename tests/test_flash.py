"""Attention as one kernel, however a program writes it, and where it is none."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.passes.fusion.flash import attentions, flash

N, D = 512, 64
HEADS = (2, 8)


def start() -> tuple[rl.ops.Builder, str, str, str]:
    b = rl.ops.Builder("attention", "bf16")
    return b, b.input("q", (*HEADS, N, D)), b.input("k", (*HEADS, D, N)), b.input("v", (*HEADS, N, D))


def steps(*ops: str, keep: str = "") -> rl.Graph:
    """Two products with some steps between them; ``keep`` names one whose result outlives the run."""
    b, q, k, v = start()
    x = b.op("bmm", q, k, name="scores")
    for op in ops:
        others = (b.input("mask", (N, N)),) if op in ("add", "where") else ()
        x = b.op(op, x, *others)
    y = b.op("bmm", x, v, name="values")
    return b.graph([y, keep] if keep else [y])


def taken_apart() -> rl.Graph:
    """A softmax as the steps that an exporter makes of it: maximum, difference, exponential, sum, quotient."""
    b, q, k, v = start()
    x = b.op("bmm", q, k, name="scores")
    x = b.op("exp", b.op("sub", x, b.op("reduce", x, axes=(-1,), keepdim=True)))
    x = b.op("div", x, b.op("reduce", x, axes=(-1,), keepdim=True))
    return b.graph([b.op("bmm", x, v, name="values")])


ENDS = 2 * 4 * 2 * 8 * N * D  # queries, keys, values and results, two bytes each


@pytest.mark.parametrize(
    ("graph", "masks"),
    [
        (steps("softmax"), 0), (steps("mul_scalar", "add", "softmax"), 1),
        (steps("mul_scalar", "softcap", "cast", "softmax", "dropout", "cast"), 0), (taken_apart(), 0),
    ],
    ids=["plain", "masked", "capped and dropped", "taken apart"],
)  # fmt: skip
def test_attention_of_plain_products_moves_its_ends_only(graph: rl.Graph, masks: int) -> None:
    before, after = rl.count(graph), rl.count(flash(graph))
    assert after.launches == 1
    assert after.bytes == ENDS + masks * 2 * N * N
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
    assert before.bytes > ENDS + 2 * 2 * 2 * 8 * N * N


def test_views_between_the_products_do_not_hide_it() -> None:
    b, q, k, v = start()
    x = b.op("view", b.op("bmm", q, k), shape=(16, N, N))
    x = b.op("view", b.op("softmax", x), shape=(*HEADS, N, N))
    graph = b.graph([b.op("bmm", x, v)])
    assert rl.count(flash(graph)).launches == 1
    assert rl.count(flash(graph)).bytes == ENDS


@pytest.mark.parametrize(
    "graph",
    [steps("mul_scalar"), steps("relu", "dropout"), steps("softmax", keep="softmax"), steps("softmax", keep="scores")],
    ids=["no softmax", "no softmax either", "probabilities are kept", "scores are kept"],
)
def test_what_is_no_attention_or_shows_its_inside_stays(graph: rl.Graph) -> None:
    assert flash(graph) is graph
    assert list(attentions(graph)) == []


def test_probabilities_on_the_right_are_no_attention() -> None:
    b, q, k, v = start()
    x = b.op("softmax", b.op("bmm", q, k))
    other = b.op("permute", v, axes=(0, 1, 3, 2))
    graph = b.graph([b.op("bmm", other, x)])
    assert flash(graph) is graph


def test_a_second_reader_of_the_probabilities_keeps_them() -> None:
    b, q, k, v = start()
    x = b.op("softmax", b.op("bmm", q, k))
    graph = b.graph([b.op("bmm", x, v), b.op("relu", x)])
    assert flash(graph) is graph


def test_fused_attention_is_left_as_it_is() -> None:
    graph = rl.model("llama-3-8b", phase="prefill", layers=2)
    assert flash(graph) is graph
    again = flash(rl.passes.unfuse(graph))
    assert rl.count(again, B=1, S=64).launches == rl.count(graph, B=1, S=64).launches
    assert rl.count(again, B=1, S=64).bytes == rl.count(graph, B=1, S=64).bytes


def test_every_naive_attention_of_a_model_becomes_one_kernel() -> None:
    naive = rl.model("gpt2", phase="forward", layers=3, attention="naive")
    found = list(attentions(naive))
    assert len(found) == 3
    assert rl.count(naive, B=1, S=128).launches - rl.count(flash(naive), B=1, S=128).launches == sum(
        len(chain) - 1 for chain in found
    )


def test_the_pass_leaves_its_trail() -> None:
    graph = steps("softmax")
    assert [repr(step) for step in flash(graph).history] == ["flash()"]
    assert [repr(step) for step in rl.passes.fuse(graph, "flash").history] == ["fuse(policy='flash')"]


@pytest.mark.parametrize("n", [512, 2048, 8192])
def test_plain_products_take_the_time_of_attention(n: int) -> None:
    b = rl.ops.Builder("plain", "bf16")
    q, k, v = (b.input(name, shape) for name, shape in
               (("q", (1, 32, n, 128)), ("k", (1, 32, 128, n)), ("v", (1, 32, n, 128))))  # fmt: skip
    plain = b.graph([b.op("bmm", b.op("softmax", b.op("mul_scalar", b.op("bmm", q, k))), v)])
    sizes = {"batch": 1, "heads": 32, "q_len": n, "kv_len": n, "head_dim": 128}
    named = rl.workload([{"op": "attention_naive", **sizes}], dtype="bf16")
    times = [rl.estimate(flash(graph), "h100-sxm", mode="graph").time for graph in (plain, named)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert times[0] < rl.estimate(plain, "h100-sxm", mode="graph").time
