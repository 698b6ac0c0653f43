"""Programs as explicit loops: the executor's numbers, the graph's counts, before and after every pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from loop_cases import PROGRAMS, hold, mlp, on_kernels, one
from profiles import examples

import roofline as rl
from roofline.codegen.loops import passes
from roofline.codegen.loops.choose import Choice, changed
from roofline.codegen.loops.form import Buffer, Const, Kernel, Load, Loop, Op, Statement, Store, loops, renamed, values
from roofline.codegen.loops.index import Index, divided, evaluate, flat, index, least, remainder, substitute, unflat
from roofline.codegen.loops.interpret import count_operations, run_kernel
from roofline.codegen.loops.lowering import loop_nests
from roofline.ir.errors import ShapeError, UnboundSize, UnknownOp, UsageError
from roofline.ops.pointwise import BINARY, UNARY

# --- from a graph -----------------------------------------------------------------------------------------------------

OPERATORS: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("linear", [(2, 3, 8), (6, 8), (6,)], {}), ("matmul", [(4, 8), (8, 3)], {}), ("bmm", [(2, 3, 4), (2, 4, 5)], {}),
    ("attention_scores", [(2, 4, 3, 5), (2, 2, 6, 5)], {}), ("attention_values", [(2, 4, 3, 6), (2, 2, 6, 5)], {}),
    ("attention_softmax", [(2, 4, 3, 6), (4,)], {}), ("softmax", [(3, 4)], {}),
    ("layernorm2d", [(2, 3, 2, 2), (3,), (3,)], {}), ("batchnorm_train", [(2, 3, 2, 2), (3,), (3,)], {}),
    ("sum", [(3, 4)], {}), ("mean", [(3, 4)], {}), ("global_avgpool", [(2, 3, 4, 4)], {}),
    ("reduce", [(2, 3, 4)], {"axes": (0, 2), "how": "max", "keepdim": True}),
    ("reduce", [(2, 3, 4)], {"axes": (1,), "how": "mean"}),
    ("conv1d", [(2, 3, 7), (4, 3, 3)], {"padding": 1}), ("conv3d", [(1, 2, 3, 3, 3), (2, 2, 2, 2, 2)], {}),
    ("conv2d", [(2, 4, 5, 5), (6, 2, 3, 3), (6,)], {"groups": 2, "padding": 1}),
    ("conv2d", [(2, 4, 6, 6), (6, 4, 1, 1)], {"stride": 2}),
    ("maxpool2d", [(1, 2, 6, 6)], {"r": 3, "stride": 2, "padding": 1}), ("avgpool2d", [(1, 2, 6, 6)], {"r": 2}),
    ("transpose_copy", [(3, 4)], {}), ("upsample2d", [(1, 2, 3, 3)], {"scale": 2}),
    ("cache_update", [(1, 2, 6, 3), (1, 2, 2, 3)], {}), ("clamp", [(3,), (3,), (3,)], {}),
    ("where", [(3,), (3,), (3,)], {}), ("mask", [(3, 4), (3, 4)], {}), ("softcap", [(3, 4)], {}), ("neg", [(3,)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "options"), OPERATORS)
def test_an_operator_in_loops_is_the_operator(op: str, shapes: list[tuple[int, ...]], options: dict[str, Any]) -> None:
    graph = one(op, *shapes, **options)
    hold(graph, loop_nests(graph))


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_the_arithmetic_of_an_element_is_read_off_its_formula(op: str) -> None:
    graph = one(op, (2, 3), (3,)) if op in BINARY else one(op, (2, 3))
    hold(graph, loop_nests(graph))


@pytest.mark.parametrize("of", UNARY)
def test_gradients_are_read_off_theirs(of: str) -> None:
    graph = one("elementwise", (2, 3), (2, 3), what=f"{of}_grad", flops=UNARY[of][3])
    hold(graph, loop_nests(graph))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_in_loops_is_the_program(name: str) -> None:
    graph = PROGRAMS[name]()
    hold(graph, loop_nests(graph))


def test_equal_layers_are_one_kernel() -> None:
    b = rl.ops.Builder("twice", "fp32")
    x = b.input("x", (2, 4))
    for layer in range(2):
        x = b.op("linear", x, b.weight(f"w{layer}", (4, 4)), name=f"y{layer}")
    program = loop_nests(b.graph([x]))
    assert len(program.calls) == 2
    assert len(program.kernels) == 1
    hold(b.graph([x]), program)


def test_what_has_no_loops_is_refused_with_its_name() -> None:
    with pytest.raises(UnknownOp, match=r"y: no rule writes loops for topk$"):
        loop_nests(one("topk", (3, 4), k=2))
    with pytest.raises(UsageError, match="y: nothing says which function"):
        loop_nests(one("elementwise", (3, 4)))
    with pytest.raises(UnboundSize, match="needs a value for"):
        loop_nests(rl.model("gpt2"))


# --- counts by hand ---------------------------------------------------------------------------------------------------


def test_counts_by_hand() -> None:
    linear = loop_nests(one("linear", (4096, 4096), (4096, 4096))).kernels[0]
    assert count_operations(linear).flops == 2 * 4096**3
    conv = loop_nests(one("conv2d", (8, 64, 56, 56), (64, 64, 3, 3), padding=1)).kernels[0]
    assert count_operations(conv).flops == 2 * 8 * 64 * 56 * 56 * 64 * 9
    causal = loop_nests(one("attention_scores", (1, 8, 128, 64), (1, 8, 128, 64), causal=True)).kernels[0]
    assert count_operations(causal).flops == 2 * 8 * (128 * 129 // 2) * 64
    soft = loop_nests(one("softmax", (32, 1000))).kernels[0]
    assert count_operations(soft).vector == 5 * 32 * 1000
    norm = loop_nests(one("layernorm", (32, 768), (768,), (768,))).kernels[0]
    assert count_operations(norm).vector == 7 * 32 * 768


# --- passes -----------------------------------------------------------------------------------------------------------

CHOICES = {
    "fuse": Choice(fuse=True), "tile": Choice(tile=(4, 4, 4)), "vectorise": Choice(vectorise=4),
    "unroll": Choice(unroll=2), "parallel": Choice(parallel=True),
    "all": Choice(fuse=True, tile=(4, 3, 4), vectorise=2, unroll=2, parallel=True),
}  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_change_no_number_and_no_count(name: str, choice: str) -> None:
    graph = PROGRAMS[name]()
    program = loop_nests(graph)
    after = changed(program, CHOICES[choice])
    assert (after == program) == ((name, choice) == ("norms", "tile"))  # which has no contraction
    hold(graph, after)


def test_a_convolution_with_what_follows_it_becomes_one_nest() -> None:
    (kernel,) = changed(loop_nests(PROGRAMS["conv"]()), Choice(fuse=True)).kernels
    assert [each.var for each in kernel.body if isinstance(each, Loop)] == ["u0"]
    assert [each.var for each in loops(kernel.body)] == ["u0", "p0", "q0", "i0", "r0", "s0"]


def test_a_tile_is_cut_along_all_three_axes() -> None:
    kernel = loop_nests(one("linear", (10, 8), (6, 8))).kernels[0]
    tiled = passes.tile(kernel, {"x0": 4, "n0": 3, "k0": 4})
    nest = list(loops(tiled.body[1:]))
    assert [(each.var, each.step, each.trips) for each in nest] == [
        ("x0t", 4, 3), ("n0t", 3, 2), ("k0t", 4, 2), ("x0", 1, None), ("n0", 1, 3), ("k0", 1, 4),
    ]  # fmt: skip
    whole = passes.tile(kernel, {"x0": 1000})
    assert count_operations(whole) == count_operations(tiled) == count_operations(kernel)


def test_dead_code_goes_and_all_that_led_to_it() -> None:
    b = rl.ops.Builder("dead", "fp32")
    x = b.input("x", (4,))
    with b.kernel("k"):
        b.op("exp", b.op("square", x, name="a"), name="b")
        y = b.op("neg", x, name="y")
    graph = b.graph([y])
    (kernel,) = loop_nests(graph).kernels
    unread = [replace(each, local=each.local or each.name == "arg1") for each in kernel.buffers]  # the result "b"
    after = passes.eliminate_dead(replace(kernel, buffers=tuple(unread)))
    assert [each.var for each in loops(kernel.body)] == ["i0", "i1", "i2"]
    assert [each.var for each in loops(after.body)] == ["i2"]
    assert [each.name for each in after.buffers] == ["arg0", "arg2"]


def _line(*body: Statement) -> Kernel:
    return Kernel("line", (Buffer("a", (16,), "fp32"), Buffer("b", (16,), "fp32")), body)


def _loop(var: str, stop: int, *body: Statement) -> Loop:
    return Loop(var, Index(), index(stop), body)


def _shift(by: int, source: str = "a", into: str = "a", var: str = "i") -> Store:
    moved = Op("add", (Load(source, (index(var) + (8 - by),)), Const(1.0)))
    return Store(into, (index(var) + 8,), moved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda k: passes.tile(k, {"i": 0}), "tile of i=0: expected a whole number from 1"),
        (lambda k: passes.tile(k, {"i": -4}), "tile of i=-4"),
        (lambda k: passes.tile(k, {"i": 2.5}), "tile of i=2.5"),
        (lambda k: passes.tile(k, {"j": 4}), "no loop is called 'j'; there are i"),
        (lambda k: passes.unroll(k, "i", 0), "unroll of i=0"),
        (lambda k: passes.unroll(k, "i", 10**6), "unroll of i=1000000"),
        (lambda k: passes.vectorise(k, "i", 1), "vector of i=1: expected a whole number from 2"),
        (lambda k: passes.vectorise(k, "i", 4), "the turns of loop i depend on each other"),
        (lambda k: passes.parallelise(k, "i"), "turns of loop i touch what others write"),
        (lambda k: passes.interchange(k, ["i", "i"]), "names a loop twice"),
    ],
)
def test_what_would_compute_something_else_is_refused(change: Callable[[Kernel], Kernel], words: str) -> None:
    recurrence = _line(_loop("i", 8, _shift(1)))
    with pytest.raises(UsageError, match=words):
        change(recurrence)


def test_loops_of_which_one_waits_for_all_of_the_other_stay_apart() -> None:
    apart = _line(_loop("i", 8, _shift(0, "b", "a")), _loop("j", 8, _shift(-1, "a", "b", "j")))
    assert passes.fuse(apart) == apart
    together = _line(_loop("i", 8, _shift(0, "b", "a")), _loop("j", 8, _shift(0, "a", "b", "j")))
    assert len(passes.fuse(together).body) == 1


def test_the_choice_is_checked() -> None:
    with pytest.raises(UsageError, match="tile=0"):
        Choice(tile=(32, 0))
    with pytest.raises(UsageError, match="at most three sizes"):
        Choice(tile=(1, 2, 3, 4))
    with pytest.raises(UsageError, match="vectorise=1"):
        Choice(vectorise=1)


def test_an_index_beyond_its_buffer_is_an_error() -> None:
    with pytest.raises(ShapeError, match=r"a\[16\] lies outside"):
        run_kernel(_line(_loop("i", 9, _shift(0))), {"a": np.zeros(16), "b": np.zeros(16)})


# --- random nests, random passes --------------------------------------------------------------------------------------

_VARS = ("i", "j", "k")
_FACTORS = st.dictionaries(st.sampled_from(_VARS), st.sampled_from([1, 1, 2, 4]), max_size=2)


@st.composite
def _stores(draw: st.DrawFn, outer: tuple[str, ...]) -> Store:
    def place() -> tuple[Index, ...]:
        factors = {var: factor for var, factor in draw(_FACTORS).items() if var in outer}
        return (sum((index(var) * factor for var, factor in factors.items()), index(draw(st.integers(0, 2)))),)

    names = st.sampled_from(["a", "b", "c"])
    value = Op(
        "add",
        (
            Load(draw(names), place()),
            draw(st.one_of(st.just(Const(0.5)), st.builds(lambda: Load(draw(names), place())))),
        ),
    )
    return Store(draw(names), place(), value, draw(st.sampled_from(["", "", "add", "max"])))


@st.composite
def _bodies(draw: st.DrawFn, outer: tuple[str, ...]) -> tuple[Statement, ...]:
    body: list[Statement] = []
    for _ in range(draw(st.integers(1, 3 if not outer else 2))):
        if outer and (len(outer) == len(_VARS) or draw(st.booleans())):
            body.append(draw(_stores(outer)))
        else:
            var = _VARS[len(outer)]
            body.append(Loop(var, Index(), index(draw(st.integers(1, 4))), draw(_bodies((*outer, var)))))
    return tuple(body)


@st.composite
def _passes(draw: st.DrawFn) -> Callable[[Kernel], Kernel]:
    var, number = draw(st.sampled_from(_VARS)), draw(st.integers(1, 5))
    sizes = draw(st.dictionaries(st.sampled_from(_VARS), st.integers(1, 5), min_size=1))
    order = draw(st.permutations(_VARS))[: draw(st.integers(2, 3))]
    name = draw(st.sampled_from(["tile", "interchange", "unroll", "vectorise", "parallelise", "fuse"]))
    return {
        "tile": lambda k: passes.tile(k, sizes), "interchange": lambda k: passes.interchange(k, order),
        "unroll": lambda k: passes.unroll(k, var, number), "vectorise": lambda k: passes.vectorise(k, var, number),
        "parallelise": lambda k: passes.parallelise(k, var), "fuse": passes.fuse,
    }[name]  # fmt: skip


@settings(max_examples=examples(450), deadline=None)
@given(_bodies(()), st.lists(_passes(), min_size=1, max_size=4))
def test_any_passes_on_any_nests_compute_the_same(body: Any, chain: list[Callable[[Kernel], Kernel]]) -> None:
    kernel = Kernel("random", tuple(Buffer(name, (40,), "fp64") for name in "abc"), body)
    after = kernel
    for change in chain:
        with suppress(UsageError):
            after = change(after)
    before_work, after_work = count_operations(kernel), count_operations(after)
    assert after_work == before_work
    first, second = ({name: np.arange(40.0) % 7 + at for at, name in enumerate("abc")} for _ in range(2))
    assert run_kernel(kernel, first) == run_kernel(after, second)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-12)


@settings(max_examples=examples(300), deadline=None)
@given(_bodies(()))
def test_turns_that_are_called_parallel_may_run_backwards(body: Any) -> None:
    kernel = Kernel("random", tuple(Buffer(name, (40,), "fp64") for name in "abc"), body)
    for var in _VARS:
        with suppress(UsageError):
            kernel = passes.parallelise(kernel, var)
    first, second = ({name: np.arange(40.0) % 7 + at for at, name in enumerate("abc")} for _ in range(2))
    run_kernel(kernel, first)
    run_kernel(replace(kernel, body=_backwards(kernel.body)), second)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-12)


def _backwards(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Loop):
            own: tuple[Statement, ...] = _backwards(each.body)
            if each.mark == "parallel":
                turned = index((each.trips or 0) - 1) - index(each.var)
                own = tuple(_turned(inner, each.var, turned) for inner in own)
            out.append(replace(each, body=own))
        else:
            out.append(each)
    return tuple(out)


def _turned(statement: Statement, var: str, to: Index) -> Statement:
    return renamed(statement, {var: to})


@settings(max_examples=examples(300), deadline=None)
@given(
    st.integers(-9, 9),
    st.integers(-9, 9),
    st.integers(-20, 20),
    st.integers(1, 7),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_quotients_and_remainders_are_simplified_to_the_same_numbers(
    a: int, b: int, const: int, by: int, rows: int, columns: int
) -> None:  # fmt: skip
    value, ranges = index("i") * a + index("j") * b + const, {"i": rows, "j": columns}
    for i in range(rows):
        for j in range(columns):
            at = {"i": i, "j": j}
            number = a * i + b * j + const
            assert evaluate(divided(value, by, ranges), at) == number // by
            assert evaluate(remainder(value, by, ranges), at) == number % by
            assert evaluate(least(value, 3), at) == min(number, 3)
            assert evaluate(substitute(value, {"i": index("j") + 1}), at) == a * (j + 1) + b * j + const


def test_a_place_in_storage_is_taken_apart_again() -> None:
    at = (index("i"), index("j"), index("k"))
    shape = (2, 3, 4)
    assert unflat(flat(at, shape), shape, dict(zip("ijk", shape, strict=True))) == at


def test_equal_parts_of_a_formula_are_computed_once() -> None:
    (kernel,) = loop_nests(one("elementwise", (2,), (2,), what="silu_grad", flops=8)).kernels
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    (store,) = loop.body
    assert isinstance(store, Store)
    assert len([each for each in values(store.value) if isinstance(each, Op) and each.name == "exp"]) > 1
    assert count_operations(kernel).vector == 2 * 8


def test_passes_of_a_program_keep_equal_kernels_one() -> None:
    program = changed(loop_nests(mlp()), Choice(fuse=True))
    assert on_kernels(program, lambda kernel: kernel) == program
