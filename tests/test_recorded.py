"""Recorded calls as graphs: FLOPs and bytes worked out by hand, and results compared with PyTorch's."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from traces_by_hand import chrome

import roofline as rl
from roofline.frontends.torch.recorded import formulas, recorded, triton
from roofline.frontends.torch.schemas import FORMATS, arguments, overloads, plain
from roofline.traces.events import Kind, Signature
from roofline.traces.linking import Launch, launches

BF16, FP32, FP16, INT64 = "c10::BFloat16", "float", "c10::Half", "long int"


def call(*args: Any) -> Signature:
    """A signature of ``(shape, type)`` or ``(shape, type, strides)`` tensors, numbers, lists and ``None``."""
    dims, types, strides, concrete = [], [], [], []
    for each in args:
        is_tensor = isinstance(each, tuple)
        dims.append(each[0] if is_tensor else ())
        types.append(each[1] if is_tensor else "" if each is None else f"Scalar{'List' * isinstance(each, list)}")
        strides.append(each[2] if is_tensor and len(each) > 2 else ())
        concrete.append("" if is_tensor or each is None else str(each))
    return Signature(tuple(dims), tuple(types), tuple(strides), tuple(concrete))


def counted(op: str, *args: Any) -> rl.Counts:
    graph = recorded(op, call(*args))
    assert graph is not None, f"{op} has no formula"
    return rl.count(graph)


# --- by hand: FLOPs, other operations, bytes, kernels -----------------------------------------------------------------

SCORES = (8, 16, 2048, 2048)
N = 8 * 16 * 2048 * 2048
QKV = ((2, 8, 256, 64), BF16)
BSHD = ((2, 256, 8, 64), BF16)
ATTENTION = 2 * 2 * (2 * 8) * 256 * 256 * 64
IMAGE = ((4, 16, 8, 8), FP32)
CASES: dict[str, tuple[str, list[Any], int, int | None, int]] = {
    "bmm": ("aten::bmm", [((128, 2048, 64), BF16), ((128, 64, 2048), BF16)],
            2 * 128 * 2048 * 2048 * 64, 0, 2 * 128 * (2 * 2048 * 64 + 2048 * 2048)),
    "mm": ("aten::mm", [((8, 4), FP32), ((4, 2), FP32)], 2 * 8 * 4 * 2, 0, 4 * (32 + 8 + 16)),
    "mm by column": ("aten::mm", [((8, 4), FP32, (4, 1)), ((4, 2), FP32, (1, 4))], 2 * 8 * 4 * 2, 0, 4 * 56),
    "mm into another": ("aten::mm", [((8, 4), FP32), ((4, 2), FP32), ((8, 2), FP32)], 2 * 8 * 4 * 2, 0, 4 * 56),
    "addmm bias": ("aten::addmm", [((64,), BF16), ((100, 768), BF16, (768, 1)), ((768, 64), BF16, (1, 768)), 1, 1],
                   2 * 100 * 768 * 64, 0, 2 * (64 + 100 * 768 + 768 * 64 + 100 * 64)),
    "addmm matrix": ("aten::addmm", [((100, 64), BF16), ((100, 768), BF16), ((768, 64), BF16), 1, 1],
                     2 * 100 * 768 * 64, 100 * 64, 2 * (2 * 100 * 64 + 100 * 768 + 768 * 64)),
    "baddbmm": ("aten::baddbmm", [((2, 8, 4), FP32), ((2, 8, 3), FP32), ((2, 3, 4), FP32), 1, 1],
                2 * 2 * 8 * 3 * 4, 64, 4 * (64 + 48 + 24 + 64)),
    "linear": ("aten::linear", [((10, 8), FP32), ((4, 8), FP32), ((4,), FP32)], 2 * 10 * 8 * 4, 0,
               4 * (80 + 32 + 4 + 40)),
    "mv": ("aten::mv", [((8, 4), FP32), ((4,), FP32)], 2 * 8 * 4, 0, 4 * (32 + 4 + 8)),
    "dot": ("aten::dot", [((8,), FP32), ((8,), FP32)], 16, 0, 4 * 17),
    "int mm": ("aten::_int_mm", [((32, 16), "signed char"), ((16, 8), "signed char")], 2 * 32 * 16 * 8, 0,
               32 * 16 + 16 * 8 + 4 * 32 * 8),
    "scaled mm": ("aten::_scaled_mm", [((32, 16), "c10::Float8_e4m3fn", (16, 1)),
                                       ((16, 8), "c10::Float8_e4m3fn", (1, 16)), ((), FP32), ((), FP32), None, None, 15,
                                       True], 2 * 32 * 16 * 8, 0, 32 * 16 + 16 * 8 + 2 * 32 * 8),
    "conv": ("aten::cudnn_convolution", [IMAGE, ((32, 16, 3, 3), FP32), [1, 1], [2, 2], [1, 1], 1, False, False, True],
             2 * 4 * 32 * 4 * 4 * 16 * 9, 0, 4 * (4 * 16 * 64 + 32 * 16 * 9 + 4 * 32 * 16)),
    "grouped conv": ("aten::convolution",
                     [IMAGE, ((32, 2, 3, 3), FP32), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8],
                     2 * 4 * 32 * 64 * 2 * 9, 0, 4 * (4 * 16 * 64 + 32 * 2 * 9 + 4 * 32 * 64)),
    "conv backward": ("aten::convolution_backward",
                      [((4, 32, 8, 8), FP32), IMAGE, ((32, 16, 3, 3), FP32), [0], [1, 1], [1, 1], [1, 1], False, [0, 0],
                       1, [True, True, False]],
                      2 * 2 * 4 * 32 * 64 * 16 * 9, 0,
                      4 * (2 * 4 * 32 * 64 + 2 * 32 * 16 * 9 + 2 * 4 * 16 * 64)),
    "sdpa": ("aten::_scaled_dot_product_flash_attention", [QKV, QKV, QKV, 0.0, False, False], ATTENTION, None,
             2 * 4 * 2 * 8 * 256 * 64),
    "cudnn sdpa": ("aten::_cudnn_attention_forward",
                   [QKV, QKV, QKV, None, None, None, 256, 256, False, 0.0, False, False, None], ATTENTION, None,
                   2 * 4 * 2 * 8 * 256 * 64),
    "flash": ("aten::_flash_attention_forward", [BSHD, BSHD, BSHD, None, None, 256, 256, 0.0, False, False, None],
              ATTENTION, None, 2 * 4 * 2 * 8 * 256 * 64),
    "causal flash": ("aten::_flash_attention_forward", [BSHD, BSHD, BSHD, None, None, 256, 256, 0.0, True, False, None],
                     2 * 2 * 16 * (256 * 257 // 2) * 64, None, 2 * 4 * 2 * 8 * 256 * 64),
    "flash of two sequences": ("aten::_flash_attention_forward",
                               [((512, 8, 64), BF16)] * 3 + [((3,), "int")] * 2 + [256, 256, 0.0, False, False, None],
                               ATTENTION, None, 2 * 4 * 2 * 8 * 256 * 64),
    "sdpa backward": ("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                      [QKV, QKV, QKV, QKV, QKV, ((2, 8, 256), FP32), 0.0, False, None, None], ATTENTION // 2 * 5, None,
                      2 * 7 * 2 * 8 * 256 * 64),
    "softmax": ("aten::_softmax", [(SCORES, BF16), -1, False], 0, 5 * N, 2 * 2 * N),
    "layer norm": ("aten::native_layer_norm", [((64, 512, 768), BF16), [768], ((768,), BF16), ((768,), BF16), 1e-12], 0,
                   None, 2 * (2 * 64 * 512 * 768 + 2 * 768)),
    "mul by a number": ("aten::mul", [(SCORES, BF16), ((), "double")], 0, N, 2 * 2 * N),
    "mul": ("aten::mul", [((64, 1), FP32), ((32,), FP16)], 0, 64 * 32, 4 * 64 + 2 * 32 + 4 * 64 * 32),
    "repeated": ("aten::add", [((64, 32), FP32, (32, 1)), ((64, 32), FP32, (0, 1)), 1], 0, 64 * 32,
                 4 * (2 * 64 * 32 + 32)),
    "add in place": ("aten::add_", [((64, 32), FP32), ((64, 32), FP32), 1], 0, 64 * 32, 4 * 3 * 64 * 32),
    "compare": ("aten::gt", [((64,), FP32), 0], 0, 0, 4 * 64 + 64),
    "cast": ("aten::copy_", [((64, 32), BF16), ((64, 32), FP32), False], 0, 0, (2 + 4) * 64 * 32),
    "turn": ("aten::copy_", [((64, 32), FP32, (32, 1)), ((64, 32), FP32, (1, 64)), False], 0, 0, 8 * 64 * 32),
    "fill": ("aten::fill_", [((64, 32), INT64), 0], 0, 0, 8 * 64 * 32),
    "zero": ("aten::zero_", [((64, 32), BF16)], 0, 0, 2 * 64 * 32),
    "embedding": ("aten::embedding", [((1000, 8), FP32), ((4, 5), INT64), -1, False, False], 0, 0,
                  8 * 20 + 2 * 4 * 20 * 8),
    "index select": ("aten::index_select", [((1000, 8), FP32), 0, ((20,), INT64)], 0, 0, 8 * 20 + 2 * 4 * 20 * 8),
    "gather": ("aten::gather", [((64, 512), FP32), 1, ((64, 3), INT64), False], 0, 0, (8 + 4 + 4) * 64 * 3),
    "scatter": ("aten::scatter_", [((2048, 32000), INT64), -1, ((2048, 1), INT64), 1], 0, 0, 2 * 8 * 2048),
    "sum": ("aten::sum", [((64, 32), FP32), [0], True, None], 0, 64 * 32, 4 * (64 * 32 + 32)),
    "sum of all": ("aten::sum", [((64, 32), FP32), None], 0, 64 * 32, 4 * (64 * 32 + 1)),
    "pool": ("aten::max_pool2d_with_indices", [IMAGE, [3, 3], [2, 2], [1, 1], [1, 1], False], 0, 0,
             4 * (4 * 16 * 64 + 4 * 16 * 16)),
    "cat": ("aten::cat", [(((8, 4), (8, 6)), "TensorList"), 1], 0, 0, 2 * 4 * 80),
    "foreach": ("aten::_foreach_add_", [(((8, 4), (6,)), "TensorList"), (((8, 4), (6,)), "TensorList"), 1], 0, 38,
                4 * 3 * 38),
    "adam": ("aten::_fused_adamw_",
             [*[(((8, 4), (6,)), "TensorList")] * 4, ((), "TensorList"), (((), ()), "TensorList"),
              0.1, 0.9, 0.99, 0.0, 1e-8, False, False, None, None], 0, 20 * 38 - 4 * 38, 4 * 7 * 38),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_counts_by_hand(case: str) -> None:
    op, args, flops, vector, moved = CASES[case]
    totals = counted(op, *args)
    assert (totals.flops, totals.bytes) == (flops, moved)
    assert vector is None or totals.vector_flops == vector


def test_a_recorded_call_is_one_kernel_unless_it_is_several_gradients() -> None:
    for case, (op, args, *_) in CASES.items():
        assert counted(op, *args).launches == (2 if case == "conv backward" else 1), case


def test_channels_that_lie_innermost_are_seen_by_their_strides() -> None:
    def layout(strides: tuple[int, ...]) -> Any:
        args = [((64, 256, 56, 56), BF16, strides), ((256, 256, 1, 1), BF16), [0, 0], [1, 1], [1, 1], 1] + [False] * 3
        graph = recorded("aten::cudnn_convolution", call(*args))
        assert graph is not None
        return dict(graph.nodes[-1].attrs)["channels_last"]

    assert layout((802816, 1, 14336, 256)) is True
    assert layout((802816, 3136, 56, 1)) is False


def test_a_matrix_stored_by_column_makes_a_linear_layer() -> None:
    graph = recorded("aten::mm", call(((8, 4), FP32, (4, 1)), ((4, 2), FP32, (1, 4))))
    assert graph is not None
    assert [node.op for node in graph.nodes] == ["linear"]


def test_an_lstm_is_two_products_a_layer_and_the_gates() -> None:
    sizes = [(32, 8, 64), (512, 64), (512, 128), (512,), (512,), (8, 128), (8, 128)]
    args = [(size, FP32) for size in sizes] + [False, [], 2, 128, 2, True, False, True, True]
    totals = counted("aten::mkldnn_rnn_layer", *args)
    assert totals.flops == 2 * 32 * 8 * (64 * 512 + 128 * 512)


# --- no formula -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("aten::no_such_operator", [((8,), FP32)]),
        ("c10d::allreduce_", [((8,), FP32)]),
        ("", []),
        ("aten::addmm", [((768,), BF16), ((100, 768), BF16), ((768, 64), BF16), 1, 1]),
        ("aten::mm", [((8, 4), FP32), ((5, 2), FP32)]),
        ("aten::mm", [((8, 4), FP32)]),
        ("aten::mm", []),
        ("aten::mm", [None, None]),
        ("aten::bmm", [((3, 8, 4), FP32), ((2, 4, 2), FP32)]),
        ("aten::add", [((8, 4), FP32), ((5, 2), FP32), 1]),
        ("aten::add", [((8, -4), FP32), ((8, 4), FP32), 1]),
        ("aten::cat", [((), "TensorList"), 0]),
        ("aten::index", [((8, 4), FP32), None]),
        ("aten::nonzero", [((8, 4), FP32)]),
        ("aten::_softmax", [((8, 4), "c10::Unheard"), -1, False]),
        ("aten::cudnn_convolution", [IMAGE, ((32, 16, 3, 3), FP32), None, None, None, None, None, None, None]),
    ],
)
def test_without_a_rule_or_shapes_there_is_no_graph(op: str, args: list[Any]) -> None:
    assert recorded(op, call(*args)) is None


def test_a_signature_that_cannot_be_hashed_has_no_graph() -> None:
    assert recorded("aten::mm", Signature(dims=([8, 4], [4, 2]), types=(FP32, FP32))) is None


@pytest.mark.parametrize("op", ["aten::view", "aten::t", "aten::expand", "aten::empty", "aten::as_strided_", "detach"])
def test_views_and_room_run_no_kernel(op: str) -> None:
    assert counted(op, ((8, 4), FP32)).launches == 0


@pytest.mark.parametrize("op", ["autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "aten::einsum"])
def test_what_only_calls_others_runs_no_kernel(op: str) -> None:
    assert counted(op, ((8, 4), FP32)).launches == 0


SHAPES = st.one_of(
    st.lists(st.integers(-1, 70), max_size=5).map(tuple), st.lists(st.tuples(st.integers(0, 9)), max_size=3).map(tuple)
)
TYPES = st.sampled_from([*FORMATS, "Scalar", "ScalarList", "TensorList", "", "what"])
TEXTS = st.one_of(st.sampled_from(["", "1", "-1", "True", "[1, 1]", "[]", "0.5", "inf", "[[1]"]), st.text(max_size=8))
OPS = st.sampled_from(
    [*{op for op, *_ in CASES.values()}, "aten::index_put_", "aten::where", "aten::topk", "aten::stack", "aten::var",
     "aten::native_batch_norm", "aten::_foreach_norm", "aten::_cudnn_rnn", "aten::arange", "aten::pow", "nonsense"]
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None)
@given(op=OPS, args=st.lists(st.tuples(SHAPES, TYPES, SHAPES, TEXTS), max_size=10), cut=st.integers(0, 10))
def test_whatever_was_recorded_gives_a_graph_or_nothing(op: str, args: list[Any], cut: int) -> None:
    columns = [tuple(column) for column in zip(*args, strict=True)] or [(), (), (), ()]
    graph = recorded(op, Signature(columns[0], columns[1][:cut], columns[2], columns[3][:cut]))
    assert graph is None or isinstance(rl.count(graph), rl.Counts)
    graph = triton(Signature(columns[0], columns[1][:cut], columns[2]), op)
    assert graph is None or isinstance(rl.count(graph), rl.Counts)


@given(TEXTS)
def test_any_text_is_a_number_a_list_or_nothing(text: str) -> None:
    assert plain(text) is None or isinstance(plain(text), int | float | bool | tuple)


# --- Triton -----------------------------------------------------------------------------------------------------------


def test_a_generated_kernel_moves_each_buffer_once() -> None:
    totals = rl.count(triton(call(((64, 32), BF16), ((32,), FP32), ((64, 32), FP32), 2048), "triton_poi_fused_add_0"))
    assert (totals.flops, totals.vector_flops, totals.launches) == (0, 0, 1)
    assert totals.bytes == 2 * 64 * 32 + 4 * 32 + 4 * 64 * 32


def test_a_generated_reduction_moves_each_buffer_once() -> None:
    totals = rl.count(triton(call(((64, 32), BF16), ((64,), FP32), 64, 32), "triton_red_fused_sum_0"))
    assert (totals.bytes, totals.launches) == (2 * 64 * 32 + 4 * 64, 1)


def test_a_buffer_that_is_read_and_written_counts_once() -> None:
    assert rl.count(triton(call(((64,), FP32), 64), "triton_poi_fused_relu_0")).bytes == 4 * 64
    assert triton(call(64), "triton_poi_fused_relu_0") is None


# --- whole traces -----------------------------------------------------------------------------------------------------


def launched(op: str, name: str, signature: Signature, **more: Any) -> Launch:
    nan = float("nan")
    known = {"kind": Kind.KERNEL, "call": 0, "inside": -1, "path": (op,), **more}
    return Launch(name=name, start=0.0, duration=1e-6, device=0, stream=7, bytes=nan, count=1, op=op,
                  signature=signature, issued=nan, detail=-1, **known)  # fmt: skip


def test_a_kernel_named_like_its_operator_is_generated() -> None:
    buffers = call(((64,), FP32), ((64,), FP32), 64)
    (graph,) = formulas([launched("triton_poi_fused_cos_0", "triton_poi_fused_cos_0", buffers)])
    assert graph is not None
    assert rl.count(graph).bytes == 2 * 4 * 64


def test_lists_have_the_format_of_the_other_tensors() -> None:
    parts = Signature(dims=(((8, 4), (8, 6)), ()), types=("TensorList", "Scalar"), concrete=("", "1"))
    both = [launched("aten::cat", "cat", parts), launched("aten::neg", "neg", call(((8,), BF16)))]
    assert [rl.count(graph).bytes for graph in formulas(both) if graph is not None] == [2 * 2 * 80, 2 * 16]


def test_an_operator_over_others_leaves_them_the_work() -> None:
    weights = [((10, 8), FP32), ((4, 8), FP32), ((4,), FP32)]
    rows = [
        launched("aten::linear", "aten::linear", call(*weights), kind=Kind.OP, path=("aten::linear",)),
        launched("aten::addmm", "aten::addmm", call(((4,), FP32), ((10, 8), FP32), ((8, 4), FP32), 1, 1), kind=Kind.OP,
                 call=1, inside=0, path=("aten::linear", "aten::addmm")),
        launched("aten::copy_", "aten::copy_", call(((10, 4), FP32), ((10, 4), FP32), False), kind=Kind.OP, call=2,
                 inside=1, path=("aten::linear", "aten::addmm", "aten::copy_")),
    ]  # fmt: skip
    graphs = formulas(rows)
    assert [None if graph is None else rl.count(graph).flops for graph in graphs] == [0, 640, 0]
    assert [len(graph.nodes) for graph in graphs if graph is not None] == [0, 1, 1]


#: A folder of traces of torch.profiler with shapes, if there is one.
REAL = sorted(Path(os.environ["ROOFLINE_TRACES"]).glob("*.json.gz")) if "ROOFLINE_TRACES" in os.environ else []


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_nearly_all_of_a_real_trace_has_formulas(path: Path) -> None:
    with gzip.open(path) as file:
        found = launches(chrome(json.load(file)))
    spent = {True: 0.0, False: 0.0}
    for launch, graph in zip(found, formulas(found), strict=True):
        if launch.kind in (Kind.KERNEL, Kind.OP):
            spent[graph is not None] += launch.duration
    assert spent[True] >= 0.98 * sum(spent.values())


# --- the table of signatures ------------------------------------------------------------------------------------------


def test_arguments_go_by_the_overload_that_takes_them() -> None:
    number = arguments("aten::pow", call(((8,), FP32), 2), "fp32")
    tensor = arguments("aten::pow", call(((8,), FP32), ((8,), FP32)), "fp32")
    assert number is not None
    assert tensor is not None
    assert number.named["exponent"] == 2
    assert tensor.named["exponent"].shape == (8,)


def test_defaults_fill_what_was_not_recorded() -> None:
    assert [p.default for p in overloads("aten::conv2d")[0]][3:] == [(1, 1), (0, 0), (1, 1), 1]


def test_nothing_needs_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from roofline.frontends.torch.recorded import recorded\n"
        "from roofline.traces.events import Signature\n"
        "assert recorded('aten::mm', Signature(((8, 4), (4, 2)), ('float', 'float')))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
