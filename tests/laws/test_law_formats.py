"""Laws of number formats and units: narrower is never more, weights are the sum of parameters, text round trips."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.ir.dtypes import DTYPES
from roofline.ir.units import PREFIXES, UNITS, format_bytes, format_si, parse

LAW = settings(deadline=None, max_examples=examples(60), derandomize=True, database=None)

MODELS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"phase": "decode", "layers": 2},
    "gpt2": {"phase": "forward", "layers": 2},
    "mixtral-8x7b": {"phase": "decode", "layers": 1},
    "deepseek-v2-lite": {"phase": "decode", "layers": 2},
    "resnet18": {},
    "vit-b-16": {},
}
#: Formats that tensors may be stored in, from wide to narrow.
FLOATS = ("fp64", "fp32", "bf16", "fp8", "fp4")
STORED = sorted((d for d in DTYPES.values() if d.name not in ("bool", "b1", "int64", "int32", "int16")),
                key=lambda d: -d.bits_per_element)  # fmt: skip


@cache
def load(name: str) -> rl.Graph:
    return rl.model(name, **MODELS[name])


def sizes_of(graph: rl.Graph) -> dict[str, int]:
    return {name: {"B": 3, "S": 17, "C": 130}[name] for name in graph.symbols}


@settings(LAW, max_examples=examples(40))
@given(name=st.sampled_from(sorted(MODELS)), part=st.sampled_from(["dtype", "weights", "cache", "activations"]),
       pair=st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted))  # fmt: skip
def test_a_narrower_format_never_adds_bytes(name: str, part: str, pair: list[int]) -> None:
    graph = load(name)
    assume(part != "cache" or any(tensor.kind == "cache" for tensor in graph.tensors.values()))
    sizes = sizes_of(graph)
    wide, narrow = (rl.passes.cast(rl.passes.cast(graph, "fp64"), **{part: FLOATS[at]}) for at in pair)
    before, after = rl.count(wide, **sizes), rl.count(narrow, **sizes)
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
    assert after.bytes <= before.bytes
    for item, value in memory(narrow, sizes).parts().items():
        assert value <= memory(wide, sizes).parts()[item], item


@settings(LAW, max_examples=examples(40))
@given(name=st.sampled_from(sorted(MODELS)), pair=st.tuples(*[st.integers(0, len(STORED) - 1)] * 2).map(sorted))
def test_narrower_weights_never_add_bytes_in_any_stored_format(name: str, pair: list[int]) -> None:
    graph = load(name)
    sizes = sizes_of(graph)
    wide, narrow = (rl.passes.cast(graph, weights=STORED[at].name) for at in pair)
    before, after = rl.count(wide, **sizes), rl.count(narrow, **sizes)
    assert after.flops == before.flops
    assert after.bytes <= before.bytes
    assert memory(narrow, sizes).weights <= memory(wide, sizes).weights


@LAW
@given(name=st.sampled_from(sorted(MODELS)), weights=st.sampled_from([d.name for d in STORED]))
def test_weight_bytes_are_the_sum_of_parameters(name: str, weights: str) -> None:
    graph = rl.passes.cast(load(name), weights=weights)
    exact = sum(
        Fraction(tensor.numel) * DTYPES[tensor.dtype].bits_per_element / 8
        for tensor in graph.tensors.values()
        if tensor.kind in ("weight", "buffer")
    )
    assert memory(graph, sizes_of(graph)).weights == pytest.approx(float(exact), rel=1e-15)
    assert graph.parameters == load(name).parameters


@pytest.mark.parametrize("name", MODELS)
def test_weights_in_one_format_are_parameters_times_its_bytes(name: str) -> None:
    graph = rl.passes.cast(load(name), "bf16")
    buffers = sum(2 * t.numel for t in graph.tensors.values() if t.kind == "buffer" and t.dtype == "bf16")
    buffers += sum(8 * t.numel for t in graph.tensors.values() if t.kind == "buffer" and t.dtype == "int64")
    assert memory(graph, sizes_of(graph)).weights == 2 * graph.parameters + buffers


@pytest.mark.parametrize("unit", UNITS)
def test_every_spelling_of_a_unit_parses_to_its_scale(unit: str) -> None:
    for spelled, scale in UNITS[unit].items():
        for text in (f"3 {spelled}", f"3{spelled}", f"  3.0   {spelled} ", f"30e-1 {spelled}"):
            assert parse(text, unit) == 3 * scale, text
    assert parse(3, unit) == parse(3.0, unit) == 3.0
    with pytest.raises(rl.errors.UnitError, match="has no unit"):
        parse("3", unit)


@LAW
@given(value=st.floats(1e-9, 1e21), unit=st.sampled_from(sorted(UNITS)), digits=st.integers(1, 15))
def test_units_round_trip(value: float, unit: str, digits: int) -> None:
    text = format_si(value, unit, digits)
    assert parse(text, unit) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits)), text


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("prefix", [p for p in PREFIXES if p not in ("K", "µ") and "i" not in p])
def test_units_round_trip_over_all_prefixes(unit: str, prefix: str) -> None:
    for number in (1, 1.5, 12.25, 999):
        value = number * PREFIXES[prefix]
        assert parse(format_si(value, unit, 6), unit) == pytest.approx(value, rel=1e-6)


@LAW
@given(value=st.integers(0, 2**60))
def test_bytes_round_trip(value: int) -> None:
    assert parse(format_bytes(value), "B") == pytest.approx(value, rel=0.005 / 1)


@LAW
@given(value=st.floats(1e-6, 1e15), digits=st.integers(2, 6))
def test_a_formatted_number_has_one_to_three_digits_before_the_point(value: float, digits: int) -> None:
    number = float(format_si(value, "FLOP/s", digits).split()[0])
    assert number < 1000 or math.isclose(number, 1000)
    assert number >= 1 or value < 1
