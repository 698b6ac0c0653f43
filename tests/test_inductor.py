"""Kernels as torch.compile makes them: counted in the code that it generates, and rule by rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inductor_programs import AS_ON_A_GPU, CASES, Case, generated, one_function_a_kernel, ours, uncompiled  # noqa: E402

import roofline as rl  # noqa: E402


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Code goes to a folder of this run, and is not compiled: to be counted, its kernels need not do anything."""
    with pytest.MonkeyPatch.context() as patch, uncompiled():
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.mark.parametrize("case", [case for case in CASES if not case.slow], ids=lambda case: case.name)
def test_the_generated_code_has_as_many_kernels(case: Case, own_cache: None) -> None:
    program, *args = case.build()
    with one_function_a_kernel():
        found = generated(program, *args, options=AS_ON_A_GPU)
    # Where a processor's code differs from a GPU's, the table has its count and the reason.
    assert found == (case.cpu or case.gpu)
    assert (case.cpu is None) == (not case.why)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_graph_has_the_kernels_of_a_gpu(case: Case) -> None:
    program, *args = case.build()
    assert ours(program, *args) == case.gpu


def compiled(program: Any, *args: Any) -> rl.Graph:
    return rl.from_torch(program, *args, mode="compiled")


def test_the_graph_says_what_it_is() -> None:
    graph = compiled(lambda x: x.relu().exp(), torch.empty(64, 64))
    assert (graph.info.mode, graph.info.kernels, graph.info.grouped) == ("compiled", 1, "inductor")
    assert not rl.from_torch(lambda x: x.relu(), torch.empty(4, 4)).info.grouped


def test_an_estimate_keeps_the_kernels() -> None:
    # The slice would keep rl.passes.fuse from joining the two.
    graph = compiled(lambda x: x.relu()[:, :32].exp(), torch.empty(64, 64))
    estimates = {mode: rl.estimate(graph, "h100-sxm", mode=mode) for mode in ("graph", "compiled")}
    assert {mode: found.launches for mode, found in estimates.items()} == {"graph": 1, "compiled": 1}
    assert [node.label for node in estimates["compiled"].graph.nodes] == [node.label for node in graph.nodes]


def test_symbolic_sizes_group_like_numbers() -> None:
    graph = rl.from_torch(
        lambda x: (x - x.mean(-1, keepdim=True)).relu(), torch.empty(8, 64), dynamic={"B": 0}, mode="compiled"
    )
    assert graph.symbols == {"B"}
    assert graph.info.kernels == 1


# --- rule by rule, on graphs built by hand ------------------------------------------------------------------------


def start(*shape: int) -> tuple[rl.ops.Builder, str]:
    b = rl.ops.Builder("g", "fp32")
    return b, b.input("x", shape or (64, 1024))


def kernels(b: rl.ops.Builder, *outputs: str) -> list[set[str]]:
    """The kernels of a graph as sets of operators, in the order of their first nodes."""
    found: dict[str, set[str]] = {}
    for node in rl.passes.inductor(b.graph(list(outputs))).nodes:
        if rl.ops.OPS[node.op].kind != "view":
            found.setdefault(node.label, set()).add(node.op)
    return list(found.values())


def test_pointwise_work_moves_into_its_reader_through_views() -> None:
    b, x = start()
    y = b.op("exp", b.op("slice", b.op("relu", x), shape=(64, 512)))
    assert kernels(b, y) == [{"relu", "exp"}]


def test_what_is_kept_is_written_and_another_part_of_it_is_another_loop() -> None:
    b, x = start()
    kept = b.op("relu", x)
    y = b.op("exp", b.op("slice", kept, shape=(64, 512)))
    assert kernels(b, kept, y) == [{"relu"}, {"exp"}]


def test_a_cheap_step_that_two_kernels_need_belongs_to_the_first() -> None:
    b, x = start()
    h = b.op("relu", x)
    product = b.op("linear", b.op("exp", h), b.weight("w", (1024, 1024)), b.weight("bias", (1024,)))
    y = b.op("tanh", b.op("mul", product, h))
    assert kernels(b, y) == [{"relu", "exp"}, {"linear"}, {"tanh", "mul"}]


def test_a_reduction_takes_in_what_sweeps_its_elements_or_its_rows() -> None:
    b, x = start()
    total = b.op("reduce", b.op("square", x), axes=(-1,), keepdim=True)
    y = b.op("mul", x, b.op("rsqrt", total))
    assert kernels(b, y) == [{"square", "reduce", "rsqrt", "mul"}]


def test_a_mean_broadcast_along_other_axes_than_it_reduced_is_another_kernel() -> None:
    b, x = start(64, 64)
    mean = b.op("view", b.op("mean", x), shape=(1, 64))
    assert kernels(b, b.op("sub", x, mean)) == [{"mean"}, {"sub"}]


def test_rows_and_columns_of_a_square_are_two_reductions() -> None:
    b, x = start(64, 64)
    assert kernels(b, b.op("reduce", x, axes=(0,)), b.op("reduce", x, axes=(1,))) == [{"reduce"}, {"reduce"}]
    b, x = start(64, 64)
    assert kernels(b, b.op("reduce", x, axes=(1,)), b.op("argmax", x)) == [{"reduce", "argmax"}]


def test_short_reductions_are_written_out_as_terms() -> None:
    b, x = start(64, 7)
    assert kernels(b, b.op("exp", b.op("slice", b.op("sum", x), shape=(32,)))) == [{"sum", "exp"}]
    b, x = start(64, 8)
    assert kernels(b, b.op("exp", b.op("slice", b.op("sum", x), shape=(32,)))) == [{"sum"}, {"exp"}]


def test_neighbours_fuse_where_they_read_the_same() -> None:
    b, x = start()
    y = b.input("y", (64, 1024))
    assert kernels(b, b.op("relu", x), b.op("exp", x)) == [{"relu", "exp"}]
    b, x = start()
    y = b.input("y", (64, 1024))
    assert kernels(b, b.op("relu", x), b.op("exp", y)) == [{"relu"}, {"exp"}]


def test_two_floats_in_common_are_not_worth_a_kernel() -> None:
    b, x = start()
    y, scale = b.input("y", (64, 1024)), b.input("scale", (1,))
    assert kernels(b, b.op("mul", x, scale), b.op("div", y, scale)) == [{"mul"}, {"div"}]


def test_expressions_that_are_used_again_are_written_from_five_reads_on() -> None:
    def program(reads: int) -> list[set[str]]:
        b, total = start()
        for at in range(reads - 1):
            total = b.op("add", total, b.input(f"y{at}", (64, 1024)))
        left = b.op("slice", b.op("slice", total, shape=(64, 512)), shape=(64, 256))
        right = b.op("slice", total, shape=(64, 128))
        return kernels(b, b.op("relu", left), b.op("exp", right))

    assert program(4) == [{"add", "relu"}, {"exp"}]
    assert program(5) == [{"add"}, {"relu"}, {"exp"}]


@pytest.mark.parametrize("op", ["linear", "conv2d", "topk", "unknown"])
def test_nothing_fuses_into_a_library(op: str) -> None:
    b, x = start(1, 4, 8, 8)
    y = b.op("relu", x)
    made = {
        "linear": lambda: b.op("linear", y, b.weight("w", (8, 8))),
        "conv2d": lambda: b.op("conv2d", y, b.weight("w", (4, 4, 1, 1))),
        "topk": lambda: b.op("topk", y, k=8),
        "unknown": lambda: b.op("unknown", y, shape=(1, 4, 8, 8), what="odd"),
    }[op]()
    assert kernels(b, b.op("exp", made)) == [{"relu"}, {op}, {"exp"}]


def test_long_sorts_are_a_library_and_running_sums_are_not() -> None:
    for op, long in (({"flops": 0}, True), ({"flops": 1}, False)):
        b, x = start(64, 1024)
        found = kernels(b, b.op("exp", b.op("scan", x, **op)))
        assert found == ([{"scan"}, {"exp"}] if long else [{"scan", "exp"}])
    b, x = start(64, 512)
    assert kernels(b, b.op("exp", b.op("scan", x, flops=0))) == [{"scan", "exp"}]


def test_gathers_and_joins_are_pointwise() -> None:
    b = rl.ops.Builder("g", "fp32")
    ids = b.input("ids", (64,), "int64")
    rows = b.op("embedding", b.weight("table", (50, 32)), ids)
    joined = b.op("cat", b.op("neg", rows), b.op("exp", rows), axis=-1)
    assert kernels(b, joined) == [{"embedding", "neg", "exp", "cat"}]


def test_a_scatter_takes_in_its_values_and_nothing_after_it() -> None:
    b, x = start()
    target, at = b.op("copy", b.input("y", (64, 1024))), b.input("at", (64,), "int64")
    y = b.op("exp", b.op("put", target, b.op("relu", x), at))
    assert kernels(b, y) == [{"copy"}, {"relu", "put"}, {"exp"}]


def test_a_product_takes_its_sum_along_unless_all_that_follows_is_pointwise() -> None:
    def program(then: str) -> list[set[str]]:
        b, x = start(64, 64)
        y = b.op("add", b.op("linear", x, b.weight("w", (64, 64))), b.input("y", (64, 64)))
        return kernels(b, b.op(then, y))

    assert program("softmax") == [{"linear", "add"}, {"softmax"}]
    assert program("relu") == [{"linear"}, {"add", "relu"}]


def test_attention_in_steps_is_one_kernel_of_fewer_bytes() -> None:
    b = rl.ops.Builder("g", "fp32")
    q, k, v = (b.input(name, shape) for name, shape in (("q", (2, 4, 64, 16)), ("k", (2, 4, 16, 64)),
                                                       ("v", (2, 4, 64, 16))))  # fmt: skip
    y = b.op("bmm", b.op("softmax", b.op("mul_scalar", b.op("bmm", q, k))), v)
    graph = b.graph([y])
    before, after = rl.count(graph), rl.count(rl.passes.inductor(graph))
    assert (after.launches, after.flops) == (1, before.flops)
    assert after.bytes == 4 * 4 * (2 * 4 * 64 * 16)


def test_a_long_reduction_to_one_number_is_not_joined_by_what_it_leaves() -> None:
    for size, together in ((4096, True), (16384, False)):
        b, x = start(size)
        y = b.op("sub", x, b.op("reduce", x, axes=(0,), keepdim=True))
        assert (len(kernels(b, y)) == 1) is together


def test_grouping_twice_is_grouping_once() -> None:
    graph = rl.passes.inductor(rl.model("gpt2", phase="forward", layers=2))
    assert rl.passes.inductor(graph) is graph


def test_an_unfused_graph_can_be_grouped_again() -> None:
    b, x = start()
    graph = b.graph([b.op("exp", b.op("relu", x))])
    assert rl.passes.inductor(rl.passes.unfuse(rl.passes.inductor(graph))).nodes == rl.passes.inductor(graph).nodes


def test_forward_and_backward_share_no_kernel() -> None:
    step = rl.passes.inductor(rl.passes.backward(rl.model("gpt2", phase="train", layers=2)))
    start = step.backward_start
    sides: dict[str, set[bool]] = {}
    for at, node in enumerate(step.nodes):
        sides.setdefault(node.label, set()).add(at >= start)
    assert all(len(side) == 1 for side in sides.values())
