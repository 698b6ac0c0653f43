"""Fusion by hand: which steps share a kernel, which never do, and what that moves."""

from __future__ import annotations

import pytest

import roofline as rl

N = 1024
VECTOR = 4 * N


def start() -> tuple[rl.ops.Builder, str]:
    b = rl.ops.Builder("g", "fp32")
    return b, b.input("x", (64, N))


def labels(graph: rl.Graph) -> dict[str, str]:
    return {node.name: node.label for node in rl.passes.fuse(graph).nodes}


def test_a_chain_of_five_moves_two_tensors_instead_of_ten() -> None:
    b, x = start()
    for _ in range(5):
        x = b.op("relu", x)
    graph = b.graph([x])
    before, after = rl.count(graph), rl.count(rl.passes.fuse(graph))
    assert (before.bytes, before.launches) == (10 * 64 * VECTOR, 5)
    assert (after.bytes, after.launches) == (2 * 64 * VECTOR, 1)


def test_an_intermediate_that_is_kept_is_still_written() -> None:
    b, x = start()
    kept = b.op("relu", x)
    y = b.op("exp", kept)
    assert rl.count(rl.passes.fuse(b.graph([kept, y]))).bytes == 3 * 64 * VECTOR


def test_a_residual_and_its_activation_share_a_kernel() -> None:
    b, x = start()
    h = b.op("linear", x, b.weight("w", (N, N)))
    y = b.op("relu", b.op("add", h, x))
    graph = b.graph([y])
    found = labels(graph)
    assert found["relu"] == found["add"] != found["linear"]
    # The kernel reads the branch and the residual and writes the result: three tensors, not five.
    assert rl.count(graph).bytes - rl.count(rl.passes.fuse(graph)).bytes == 2 * 64 * VECTOR


def test_nothing_fuses_across_a_matmul() -> None:
    b, x = start()
    y = b.op("relu", x, name="before")
    y = b.op("linear", y, b.weight("w", (N, N)))
    y = b.op("gelu", y, name="after")
    graph = b.graph([y])
    assert labels(graph) == {"before": "before", "linear": "linear", "after": "after"}
    assert rl.count(rl.passes.fuse(graph)).bytes == rl.count(graph).bytes


@pytest.mark.parametrize("op", ["attention", "conv2d", "maxpool2d", "transpose_copy", "embedding", "cache_update"])
def test_library_kernels_and_moves_stay_alone(op: str) -> None:
    b = rl.ops.Builder("g", "fp32")
    x = b.op("relu", b.input("x", (1, 4, 8, 8)), name="before")
    if op == "attention":
        y = b.op("attention_scores", x, x)
    elif op == "conv2d":
        y = b.op("conv2d", x, b.weight("w", (4, 4, 1, 1)))
    elif op == "maxpool2d":
        y = b.op("maxpool2d", x, r=1)
    elif op == "transpose_copy":
        y = b.op("transpose_copy", x)
    elif op == "embedding":
        y = b.op("embedding", b.weight("table", (9, 8)), b.op("view", x, shape=(256,)))
    else:
        y = b.op("cache_update", b.cache("cache", (1, 4, 8, 8)), x)
    found = labels(b.graph([y]))
    if op == "maxpool2d":  # a reduction joins what it reads, as in a compiler
        assert found[y] == "before"
    else:
        assert found[y] == y
        assert found["before"] == "before"


def test_row_wise_steps_join_pointwise_ones() -> None:
    b, x = start()
    y = b.op("softmax", b.op("mul_scalar", b.op("rmsnorm", x)))
    assert set(labels(b.graph([y])).values()) == {"rmsnorm"}


def test_a_reduction_joins_but_what_it_leaves_is_another_sweep() -> None:
    b, x = start()
    total = b.op("sum", b.op("square", x))
    root = b.op("sqrt", total)
    found = labels(b.graph([root]))
    assert found == {"square": "square", "sum": "square", "sqrt": "sqrt"}


def test_a_norm_written_out_in_steps_is_one_kernel_again() -> None:
    b, x = start()
    mean = b.op("view", b.op("mean", x), shape=(64, 1))
    y = b.op("exp", b.op("sub", x, mean))
    # The mean is made from x, an input: the kernel starts with the mean and reads x once.
    graph = b.graph([y])
    assert rl.count(rl.passes.fuse(graph)).bytes == 2 * 64 * VECTOR
    assert rl.count(rl.passes.fuse(graph)).launches == 1


def test_views_do_not_stand_between() -> None:
    b, x = start()
    y = b.op("exp", b.op("view", b.op("relu", x), shape=(64 * N,)))
    graph = b.graph([y])
    assert labels(graph)["exp"] == "relu"
    assert rl.count(rl.passes.fuse(graph)).bytes == 2 * 64 * VECTOR


def test_a_slice_is_another_sweep() -> None:
    b, x = start()
    y = b.op("exp", b.op("slice", b.op("relu", x), shape=(32, N)))
    assert labels(b.graph([y]))["exp"] == "exp"


def test_a_kernel_never_waits_for_itself() -> None:
    # relu -> linear -> add with relu: joining add to relu would need the linear in the middle of the kernel.
    b, x = start()
    first = b.op("relu", x)
    middle = b.op("linear", first, b.weight("w", (N, N)))
    y = b.op("add", first, middle)
    assert labels(b.graph([y])) == {"relu": "relu", "linear": "linear", "add": "add"}


def test_a_long_way_round_is_a_cycle_as_well() -> None:
    b, x = start()
    first = b.op("relu", x)
    way = b.op("linear", first, b.weight("w", (N, N)), name="there")
    way = b.op("exp", way)
    way = b.op("linear", way, b.weight("v", (N, N)), name="back")
    way = b.op("view", way, shape=(64, N))
    y = b.op("add", way, first)
    found = labels(b.graph([y]))
    assert found["add"] == "add"


def test_a_join_takes_the_latest_producer_that_can_have_it() -> None:
    b, x = start()
    left = b.op("relu", x, name="left")
    right = b.op("linear", left, b.weight("w", (N, N)))
    right = b.op("exp", right, name="right")
    y = b.op("add", left, right)
    assert labels(b.graph([y]))["add"] == "right"


def test_a_concatenation_joins_like_a_pointwise_step() -> None:
    b, x = start()
    y = b.op("cat", b.op("neg", b.op("slice", x, shape=(64, N // 2))), b.op("slice", x, shape=(64, N // 2)), axis=-1)
    graph = b.graph([y])
    assert labels(graph)["cat"] == labels(graph)["neg"]
    assert rl.count(rl.passes.fuse(graph)).bytes < rl.count(graph).bytes


def test_nodes_that_run_a_different_number_of_times_stay_apart() -> None:
    b, x = start()
    y = b.op("exp", b.op("relu", x, count=3))
    graph = b.graph([y])
    assert rl.count(rl.passes.fuse(graph)).launches == rl.count(graph).launches == 4
    assert rl.count(rl.passes.fuse(graph)).vector_flops == rl.count(graph).vector_flops


def test_kernels_given_by_hand_stay_as_they_are() -> None:
    b, x = start()
    with b.kernel("mine"):
        y = b.op("exp", b.op("relu", x))
    z = b.op("tanh", y)
    assert labels(b.graph([z])) == {"relu": "mine", "exp": "mine", "tanh": "tanh"}


def test_unfusing_writes_out_what_was_inside() -> None:
    b, x = start()
    for _ in range(5):
        x = b.op("relu", x)
    graph = b.graph([x])
    assert rl.count(rl.passes.unfuse(rl.passes.fuse(graph))).bytes == rl.count(graph).bytes == 10 * 64 * VECTOR


def test_the_original_is_left_alone() -> None:
    b, x = start()
    graph = b.graph([b.op("exp", b.op("relu", x))])
    rl.passes.fuse(graph)
    assert [node.label for node in graph.nodes] == ["relu", "exp"]


def test_every_layer_of_a_model_fuses_alike() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=4)
    per_layer = {
        layer: rl.count(rl.passes.fuse(rl.model("llama-3-8b", phase="decode", layers=layer)), B=1, C=9).launches
        for layer in (2, 3, 4)
    }
    assert per_layer[4] - per_layer[3] == per_layer[3] - per_layer[2] > 0
    assert rl.count(rl.passes.fuse(graph), B=1, C=9).launches < rl.count(graph, B=1, C=9).launches


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_no_kernel_is_of_the_forward_and_of_the_backward(recompute: str) -> None:
    both = rl.passes.backward(rl.model("gpt2", phase="train", attention="naive", layers=3), recompute=recompute)
    first = both.backward_start
    fused = rl.passes.fuse(both)
    assert not {n.label for n in fused.nodes[:first]} & {n.label for n in fused.nodes[first:]}
    assert len({n.label for n in fused.nodes}) < len({n.label for n in both.nodes})
