"""One declaration is enough: what follows from a signature, against brute force, and a new operator from end to end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofline as rl
from roofline.ir.signature import signature
from roofline.ops.einsum import contraction, gradient_plan
from roofline.ops.registry import GRADIENTS, Derivative
from roofline.passes.parallel.axes import Axes

LAW = settings(deadline=None, max_examples=60, derandomize=True, database=None)
#: No product of some of them is a product of others, so that no reshape can be taken for another.
PRIMES = (2, 3, 5, 7, 11)


@pytest.fixture
def registry() -> Iterator[None]:
    """Forget what a test declares."""
    ops, gradients = dict(rl.ops.OPS), dict(GRADIENTS)
    yield
    for table, known in ((rl.ops.OPS, ops), (GRADIENTS, gradients)):
        table.clear()
        table.update(known)  # type: ignore[arg-type]
    gradient_plan.cache_clear()


def graph_of(op: str, *shapes: tuple[int, ...], **attrs: Any) -> rl.Graph:
    b = rl.ops.Builder(op, "fp32")
    return b.graph([b.op(op, *(b.weight(f"w{at}", shape) for at, shape in enumerate(shapes)), name="y", **attrs)])


# --- a new operator in one declaration --------------------------------------------------------------------------------


def test_a_contraction_needs_one_declaration(registry: None) -> None:
    """Groups of heads, each with a matrix of its own: counted, shaped, run, differentiated, resized and timed."""
    contraction("mix_heads", "b (g r) s d, g d e -> b s (g r) e", "matmul", "A matrix for each group of heads.", "x w")
    b, g, r, s, d, e = 2, 3, 5, 7, 11, 13
    x, w = (np.random.default_rng(at).standard_normal(shape) for at, shape in enumerate(((b, g * r, s, d), (g, d, e))))
    graph = graph_of("mix_heads", x.shape, w.shape)

    assert graph.tensors["y"].shape == (b, s, g * r, e)
    assert rl.count(graph).flops == 2 * b * g * r * s * d * e
    y = np.einsum("bgrsd,gde->bsgre", x.reshape(b, g, r, s, d), w).reshape(b, s, g * r, e)
    np.testing.assert_allclose(rl.ops.execute(graph, {"w0": x, "w1": w})["y"], y)

    step = rl.passes.backward(graph)
    dy = np.random.default_rng(9).standard_normal(y.shape)
    values = rl.ops.execute(step, {"w0": x, "w1": w, "y.grad_in": dy})
    parts = dy.reshape(b, s, g, r, e)
    names = dict(step.info.training.gradients)
    np.testing.assert_allclose(values[names["w0"]], np.einsum("bsgre,gde->bgrsd", parts, w).reshape(x.shape))
    np.testing.assert_allclose(
        values[names["w1"]], np.einsum("bsgre,bgrsd->gde", parts, x.reshape(b, g, r, s, d)), rtol=1e-12
    )
    assert rl.count(step).flops == 3 * rl.count(graph).flops

    axes = Axes(graph)
    groups, each = axes.atoms("w0", 1)
    assert (groups.size, each.size) == (g, r)
    assert axes.atoms("w1", 0) == (groups,)
    assert axes.resize({groups: 1}).tensors["y"].shape == (b, s, r, e)

    assert rl.ops.OPS["mix_heads"].matmuls(rl.ops.OPS["mix_heads"].sizes([x.shape, w.shape], {})) == (
        g,
        b * r * s,
        e,
        d,
    )
    same = graph_of("bmm", (g, b * r * s, d), (g, d, e))
    assert rl.estimate(graph, "h100-sxm").time == pytest.approx(rl.estimate(same, "h100-sxm").time, rel=1e-12)


def test_an_elementwise_function_needs_one_declaration(registry: None) -> None:
    from roofline.ops.gradients import derived
    from roofline.ops.pointwise import pointwise

    slope = Derivative("x", 3, lambda call, dy, x: 3 * x * x * dy)
    pointwise("cube", 2, lambda call, x: x**3, derived, derivative=slope)
    graph = graph_of("cube", (4, 8))
    step, x = rl.passes.backward(graph), np.linspace(-1, 1, 32).reshape(4, 8)
    (gradient,) = (name for _, name in step.info.training.gradients)
    np.testing.assert_allclose(rl.ops.execute(step, {"w0": x, "y.grad_in": np.ones((4, 8))})[gradient], 3 * x * x)
    assert [row.vector for row in rl.count(step).rows] == [2 * 32, 3 * 32]
    assert Axes(graph).atoms("w0", 1) == Axes(graph).atoms("y", 1)


# --- what follows from signatures, against brute force ----------------------------------------------------------------


@st.composite
def contractions(draw: Any) -> tuple[str, dict[str, int]]:
    """A signature of two operands with grouped axes, and sizes of its axes."""
    names = draw(st.permutations("abcde"))
    roles = [draw(st.sampled_from("bmnk")) for _ in names]
    operands = ["bmk", "bkn", "bmn"]
    terms = []
    for has in operands:
        axes = draw(st.permutations([name for name, role in zip(names, roles, strict=True) if role in has]))
        cut = draw(st.integers(0, max(0, len(axes) - 2)))
        pair = f"({' '.join(axes[cut : cut + 2])})" if len(axes) > 1 and draw(st.booleans()) else None
        terms.append(" ".join([*axes[:cut], pair, *axes[cut + 2 :]] if pair else axes))
    sizes = dict(zip(names, draw(st.permutations(PRIMES)), strict=True))
    return f"{terms[0]}, {terms[1]} -> {terms[2]}", sizes


def solvable(axes: str) -> bool:
    """Tell whether every factor can be told from the operands: einops could not solve the others either."""
    spec = signature(axes)
    alone = {axis for term in spec.inputs for axis in term if axis not in spec.composites}
    pairs = [set(spec.composites[axis]) for term in spec.inputs for axis in term if axis in spec.composites]
    return all(len(pair - alone) < 2 for pair in pairs) and all(spec.inputs)


def shape_of(axes: str, at: int, sizes: dict[str, int]) -> tuple[int, ...]:
    spec = signature(axes)
    term = (*spec.inputs, *spec.outputs)[at]
    return tuple(prod(sizes[factor] for factor in spec.factors((axis,))) for axis in term)


def points(axes: str, sizes: dict[str, int]) -> Any:
    """Return, for every value of all axes, the flat places of both operands and of the result."""
    spec = signature(axes)
    terms = [spec.factors(term) for term in (*spec.inputs, *spec.outputs)]
    names = sorted({name for term in terms for name in term})

    def place(at: dict[str, int], term: tuple[str, ...]) -> int:
        return int(np.ravel_multi_index([at[n] for n in term], [sizes[n] for n in term])) if term else 0

    every = (dict(zip(names, values, strict=True)) for values in itertools.product(*(range(sizes[n]) for n in names)))
    return np.array([[place(at, term) for term in terms] for at in every])


@LAW
@given(case=contractions().filter(lambda case: solvable(case[0])), seed=st.integers(0, 9))
def test_everything_that_follows_from_a_signature(case: tuple[str, dict[str, int]], seed: int) -> None:
    axes, sizes = case
    known, dice = dict(rl.ops.OPS), np.random.default_rng(seed)
    try:
        op = contraction("toy", axes, "matmul", "A contraction.", "x w")
        shapes = [shape_of(axes, at, sizes) for at in (0, 1)]
        x, w, dy = (dice.standard_normal(shape_of(axes, at, sizes)) for at in (0, 1, 2))
        every = points(axes, sizes)

        assert op.output(shapes, {}) == dy.shape
        assert op.work(shapes, {}).flops == 2 * len(every)
        assert prod(op.matmuls(op.sizes(shapes, {}))) == len(every)

        y, dx, dw = np.zeros(dy.size), np.zeros(x.size), np.zeros(w.size)
        left, right, out = every.T
        np.add.at(y, out, x.ravel()[left] * w.ravel()[right])
        np.add.at(dx, left, dy.ravel()[out] * w.ravel()[right])
        np.add.at(dw, right, dy.ravel()[out] * x.ravel()[left])

        graph = graph_of("toy", *shapes)
        step = rl.passes.backward(graph)
        start = {"y.grad_in": dy} if dy.size > 1 else {}
        values = rl.ops.execute(step, {"w0": x, "w1": w, **start})
        np.testing.assert_allclose(values["y"].ravel(), y, rtol=1e-9, atol=1e-9)
        if start:
            gradients = dict(step.info.training.gradients)
            np.testing.assert_allclose(values[gradients["w0"]].ravel(), dx, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(values[gradients["w1"]].ravel(), dw, rtol=1e-9, atol=1e-9)
        assert rl.count(step).flops == 3 * 2 * len(every)
    finally:
        rl.ops.OPS.clear()
        rl.ops.OPS.update(known)
        gradient_plan.cache_clear()


SHAPES = {
    "linear": ((2, 3, 5), (7, 5)),
    "matmul": ((2, 3, 5), (5, 7)),
    "bmm": ((2, 3, 5), (2, 5, 7)),
    "attention_scores": ((2, 6, 5, 8), (2, 3, 7, 8)),
    "attention_values": ((2, 6, 5, 7), (2, 3, 7, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_both_gradients_of_a_contraction_cost_what_it_costs(name: str) -> None:
    graph = graph_of(name, *SHAPES[name])
    assert rl.count(rl.passes.backward(graph)).flops == 3 * rl.count(graph).flops


@pytest.mark.parametrize("name", SHAPES)
def test_the_matmuls_that_time_a_contraction_do_its_products(name: str) -> None:
    op = rl.ops.OPS[name]
    assert 2 * prod(op.matmuls(op.sizes(SHAPES[name], {}))) == op.work(SHAPES[name], {}).flops


def test_grouped_heads_are_timed_by_query_head() -> None:
    """The time model was fitted so; the signature alone makes a matmul for each key-value head."""
    op = rl.ops.OPS["attention_scores"]
    sizes = op.sizes(SHAPES["attention_scores"], {})
    assert op.matmuls(sizes) == (2 * 6, 5, 7, 8)
    derived = contraction("derived", str(op.axes), "attention", "Without the override.", "q k")
    try:
        assert derived.matmuls(sizes) == (2 * 3, 2 * 5, 7, 8)
    finally:
        del rl.ops.OPS["derived"]


PLANS = {
    ("linear", 0): ("matmul", (False, False), False),
    ("linear", 1): ("matmul", (True, False), True),
    ("matmul", 0): ("matmul", (False, True), False),
    ("matmul", 1): ("matmul", (True, False), True),
    ("bmm", 0): ("bmm", (False, True), False),
    ("bmm", 1): ("bmm", (True, False), False),
    ("expert_linear", 0): ("expert_linear", (False, True), False),
    ("expert_linear", 1): ("expert_linear_grad", (False, False), False),
    ("attention_scores", 0): ("attention_values", (False, False), False),
    ("attention_scores", 1): ("attention_keys_grad", (False, False), False),
    ("attention_values", 0): ("attention_scores", (False, False), False),
    ("attention_values", 1): ("attention_keys_grad", (False, False), False),
}


@pytest.mark.parametrize(("name", "operand"), PLANS)
def test_which_contraction_a_gradient_is(name: str, operand: int) -> None:
    plan = gradient_plan(str(rl.ops.OPS[name].axes), operand)
    assert plan is not None
    assert (plan.op, plan.transposed, plan.rows) == PLANS[name, operand]


def test_the_declaration_is_all_that_there_is() -> None:
    """What a reader may ask of any operator is a field of it."""
    for name, op in rl.ops.OPS.items():
        assert op.reference is not None, name
        assert op.signature is not None or op.shape is not None, name
        assert op.signature is not None or op.rule is not None or name == "unknown", name
        assert (op.gemm is not None) == (op.kind in ("matmul", "attention")), name
    with pytest.raises(AttributeError):
        rl.ops.OPS["relu"].kind = "move"  # type: ignore[misc]
    with pytest.raises(TypeError):
        rl.ops.Op("odd", None, "pointwise", cost=3)  # type: ignore[call-arg]
