"""Autocast is captured as on the device that it names, on tensors that lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl

torch = pytest.importorskip("torch")
nn = torch.nn
if torch.cuda.is_available():
    pytest.skip("this machine has the device", allow_module_level=True)

from roofline.frontends.torch.autocast import policies  # noqa: E402 - needs PyTorch

X = torch.empty(2, 4, 64)
BF16 = {"dtype": torch.bfloat16}


def formats(graph: rl.Graph) -> dict[str, str]:
    return {node.op: graph.tensors[node.outputs[0]].dtype for node in graph.nodes}


class Net(nn.Module):
    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.linear, self.norm, self.region = nn.Linear(64, 64), nn.LayerNorm(64), region

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.region():
            return torch.softmax(self.norm(self.linear(x)), -1)


def test_the_lists_are_those_of_pytorch() -> None:
    """Whatever has a kernel behind CUDA's autocast key has a policy here, and nothing else has."""
    every = map(str, torch._C._dispatch_get_all_op_names())
    theirs = {name for name in every if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")}
    cudnn = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}  # what convolutions call on CUDA itself
    ours = {f"aten::{name}" for name in policies()} - {
        f"aten::{kind}.input" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    }
    assert {name for name in theirs if name.startswith("aten::")} - cudnn == ours


REGIONS = {
    "autocast": (lambda: torch.autocast("cuda", **BF16), "bf16"),
    "amp": (lambda: torch.amp.autocast(device_type="cuda"), "fp16"),
    "cuda.amp": (lambda: torch.cuda.amp.autocast(**BF16), "bf16"),
    "off": (lambda: torch.autocast("cuda", enabled=False), "fp32"),
}


@pytest.mark.parametrize("method", ["dispatch", "export", "run"])
@pytest.mark.parametrize("region", REGIONS)
def test_matmuls_in_the_lower_format_and_norms_and_softmax_in_fp32(method: Any, region: str) -> None:
    make, lower = REGIONS[region]
    found = formats(rl.from_torch(Net(make), torch.zeros(2, 4, 64), method=method))
    assert (found["linear"], found["layernorm"], found["softmax"]) == (lower, "fp32", "fp32")


def test_the_lists_of_a_cpu_differ() -> None:
    found = formats(rl.from_torch(Net(lambda: torch.autocast("cpu", **BF16)), X))
    assert (found["linear"], found["layernorm"], found["softmax"]) == ("bf16", "bf16", "bf16")


def test_regions_nest() -> None:
    linear = nn.Linear(64, 64)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", **BF16):
            x = linear(x)
            with torch.autocast("cuda", enabled=False):
                x = linear(x.float())
            with torch.autocast("cuda", dtype=torch.float16):
                x = linear(x)
            x = linear(x)
        return linear(x.float())

    graph = rl.from_torch(run, X)
    made = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.op == "linear"]
    assert made == ["bf16", "fp32", "fp16", "bf16", "fp32"]


@pytest.mark.parametrize(("keeps", "casts"), [(True, 2), (False, 6)])
def test_a_weight_is_cast_once_where_the_cache_is_on(keeps: bool, casts: int) -> None:
    linear = nn.Linear(64, 64)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", cache_enabled=keeps, **BF16):
            return linear(linear(linear(x)))

    graph = rl.from_torch(run, X)
    weights = {"cast" for node in graph.nodes if node.op == "cast"}
    assert weights
    assert sum(node.op == "cast" and graph.tensors[node.inputs[0]].kind == "weight" for node in graph.nodes) == casts


def test_a_step_on_the_meta_device_runs_its_backward_in_the_lower_format_too() -> None:
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("meta")

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type="cuda", **BF16):
            loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    x = torch.empty(8, 64, device="meta")
    graph = rl.from_torch(step, x, x)
    matmuls = [graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.op in ("linear", "matmul")]
    assert matmuls == ["bf16"] * 5  # two forward; the second layer's two and the first one's weight backward
    assert {graph.tensors[name].dtype for _, name in graph.info.training.gradients} == {"fp32"}
    half = rl.estimate(graph, "h100-sxm", mode="graph")
    assert half.counts.flops == 5 * 2 * 8 * 64 * 256


def test_inputs_of_a_function_with_casts_of_its_own() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x @ w

    linear = nn.Linear(64, 64)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", **BF16), torch.no_grad():
            return Product.apply(linear(x), linear.weight)

    graph = rl.from_torch(run, torch.empty(4, 64))
    products = [node for node in graph.nodes if node.op in ("linear", "matmul")]
    assert [graph.tensors[node.outputs[0]].dtype for node in products] == ["bf16", "fp32"]


@pytest.mark.parametrize(
    ("module", "shape", "op"),
    [
        (nn.LSTM(64, 32), (5, 2, 64), "linear"),
        (nn.Conv1d(64, 8, 3), (2, 64, 16), "conv1d"),
        (nn.MultiheadAttention(64, 4), (2, 4, 64), "attention_scores"),
    ],
)
def test_layers_that_are_kept_whole(module: Any, shape: tuple[int, ...], op: str) -> None:
    def run(x: torch.Tensor) -> Any:
        with torch.autocast("cuda", **BF16):
            return module(x, x, x, need_weights=False) if isinstance(module, nn.MultiheadAttention) else module(x)

    assert formats(rl.from_torch(run, torch.empty(shape)))[op] == "bf16"


def test_a_region_that_was_turned_off_before_the_capture_is_refused() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda", **BF16)
    with pytest.raises(rl.errors.UsageError, match="made before the capture, where PyTorch turns it off"):
        rl.from_torch(Net(lambda: region), X)


def test_a_capture_inside_a_region_that_is_off_is_refused() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = torch.autocast("cuda", **BF16)
    with region, pytest.raises(rl.errors.UsageError, match="entered before the capture, where PyTorch turns it off"):
        rl.from_torch(nn.Linear(64, 64), X)
    with torch.autocast("cpu", **BF16):
        assert "bf16" in formats(rl.from_torch(nn.Linear(64, 64), X)).values()


def test_autocast_without_a_region_is_refused() -> None:
    layer, x = torch.nn.Linear(8, 8), torch.empty(2, 8)

    def switched(x: Any) -> Any:
        torch.set_autocast_enabled("cuda", True)
        try:
            return layer(x)
        finally:
            torch.set_autocast_enabled("cuda", False)

    with pytest.raises(rl.errors.RooflineError, match=r"set_autocast_enabled: .* write with torch.autocast"):
        rl.from_torch(switched, x)
    torch.set_autocast_enabled("cuda", True)
    try:
        with pytest.raises(rl.errors.UsageError, match="autocast is on around the capture"):
            rl.from_torch(layer, x)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert {t.dtype for t in rl.from_torch(layer, x).tensors.values()} == {"fp32"}


def test_what_would_run_unlike_on_its_device_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"autocast\('xpu'\): what it casts is known of cuda and of cpu"):
        rl.from_torch(Net(lambda: torch.autocast("xpu", **BF16)), X)
    with pytest.raises(rl.errors.ModelDataError, match=r"would drop autocast; method='dispatch'"):
        rl.from_torch(Net(REGIONS["autocast"][0]), X, method="fx")
    loss = lambda x: nn.functional.binary_cross_entropy(x, x)  # noqa: E731

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", **BF16):
            return loss(x)

    with pytest.raises(rl.errors.ModelDataError, match="unsafe to autocast"):
        rl.from_torch(run, X)


def test_a_capture_leaves_autocast_as_it_was() -> None:
    rl.from_torch(Net(REGIONS["autocast"][0]), X)
    assert not torch.is_autocast_enabled("cuda")
    assert nn.Linear(4, 4)(torch.zeros(1, 4)).dtype == torch.float32
    with pytest.warns(UserWarning, match="CUDA is not available"), torch.autocast("cuda"):
        assert nn.Linear(4, 4)(torch.zeros(1, 4)).dtype == torch.float32
