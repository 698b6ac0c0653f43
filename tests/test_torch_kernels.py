"""Attention kernels and quantised modules that programs of PyTorch call by their own names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl

torch = pytest.importorskip("torch")
nn = torch.nn
aten = torch.ops.aten

#: Two sequences of 128, four heads of 64; a causal mask leaves 128 x 129 / 2 pairs of each, scores and values two
#: FLOPs a multiply-add. Queries, keys and values, which are one tensor here, are read and as much is written.
PAIRS = 2 * 4 * 128 * 129 // 2
FLOPS = 2 * 2 * 64 * PAIRS
BYTES = 2 * (2 * 128 * 4 * 64) * 2
INSIDE = torch.empty(2, 128, 4, 64, dtype=torch.float16)
STARTS = torch.tensor([0, 128, 256], dtype=torch.int32)

KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "flash": (lambda q: aten._flash_attention_forward(q, q, q, None, None, 128, 128, 0.0, True, False)[0], (INSIDE,)),
    "packed": (
        lambda q, at: aten._flash_attention_forward(q, q, q, at, at, 128, 128, 0.0, True, False)[0],
        (INSIDE.view(256, 4, 64), STARTS),
    ),
    "efficient": (
        lambda q: aten._efficient_attention_forward(q, q, q, None, None, None, None, None, 0.0, 1, False)[0], (INSIDE,)
    ),
    "cudnn": (
        lambda q: aten._scaled_dot_product_cudnn_attention(q, q, q, None, True, 0.0, True)[0],
        (INSIDE.transpose(1, 2).contiguous(),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_attention_under_each_of_its_names(name: str) -> None:
    program, args = KERNELS[name]
    counts = rl.count(rl.from_torch(program, *args))
    assert (counts.flops, counts.launches) == (FLOPS, 1)
    assert counts.bytes == BYTES


def quantised(change: Callable[[], Any]) -> Any:
    engine = next(
        (each for each in ("x86", "fbgemm", "qnnpack") if each in torch.backends.quantized.supported_engines), ""
    )
    if not engine:
        pytest.skip("no engine of quantised modules here")
    torch.backends.quantized.engine = engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return change()


def test_a_linear_layer_that_is_quantised_as_it_runs() -> None:
    """Weights of a byte; the input is read, rounded and written, then multiplied: 4 x 64 and 64 x 64."""
    make = lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(64, 64)), {nn.Linear})  # noqa: E731
    graph = rl.from_torch(quantised(make), torch.randn(4, 64))
    assert rl.count(graph).flops == 2 * 4 * 64 * 64
    assert rl.count(graph).bytes == (4 * 256 + 256) + (256 + 64 * 64 + 4 * 64 + 4 * 256)


def test_a_network_of_quantised_modules() -> None:
    def make() -> Any:
        ao = torch.ao.quantization
        layers = ao.QuantStub(), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10), ao.DeQuantStub()
        net = nn.Sequential(*layers).eval()
        net.qconfig = ao.get_default_qconfig(torch.backends.quantized.engine)
        prepared = ao.prepare(net)
        prepared(torch.randn(2, 3, 8, 8))
        return ao.convert(prepared)

    graph = rl.from_torch(quantised(make), torch.randn(2, 3, 8, 8))
    assert rl.count(graph).flops == 2 * 2 * 8 * 36 * 27 + 2 * 2 * 8 * 36 * 10
    formats = {graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.op in ("conv2d", "linear")}
    assert formats == {"int8"}
    assert {t.dtype for t in graph.tensors.values() if t.kind == "weight" and len(t.shape) > 1} == {"int8"}


def test_an_encoder_decoder_is_trained() -> None:
    """A loss on the decoder's positions; but for attention, which runs five matmuls for two, three times the FLOPs."""
    forward, train = (rl.model("t5-small", phase=phase) for phase in ("forward", "train"))
    assert rl.count(train, B=2, S=128).flops == rl.count(forward, B=2, S=128).flops
    step = rl.passes.training_graph(train)
    assert 3 < rl.count(step, B=2, S=128).flops / rl.count(forward, B=2, S=128).flops < 3.1
    assert rl.training.train("t5-small", "h100-sxm", batch=8, seq=128).fits


@pytest.mark.parametrize(
    ("kind", "width", "batch", "dtype", "measured"),
    [  # one step's matmul on an H200 (PyTorch 2.11, cuDNN 9.19), in a row of 50 to 128 steps
        ("LSTM", 512, 64, torch.bfloat16, 2.94),
        ("LSTM", 1024, 64, torch.bfloat16, 4.03),
        ("GRU", 1024, 128, torch.bfloat16, 4.47),
    ],
)
def test_a_step_of_a_recurrent_layer_finds_its_weights_in_the_cache(
    kind: str, width: int, batch: int, dtype: torch.dtype, measured: float
) -> None:
    net = getattr(torch.nn, kind)(width, width, device="meta", dtype=dtype).eval()
    graph = rl.from_torch(net, torch.zeros(50, batch, width, device="meta", dtype=dtype))
    rows = rl.estimate(graph, "h200-sxm", mode="graph").kernel_rows()
    hidden = next(row for row in rows if "hidden" in row["kernel"])
    assert hidden["count"] == 50
    assert hidden["each_s"] * 1e6 == pytest.approx(measured, rel=0.4)
