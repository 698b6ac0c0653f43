"""Tensor parallelism of imported PyTorch programs: the same cuts, found without being told what is a head."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import roofline as rl  # noqa: E402
from roofline.ops.communication import COLLECTIVES  # noqa: E402

X = torch.zeros(4, 16, 64, device="meta")
IDS = torch.zeros(4, 16, dtype=torch.int64, device="meta")


def imported(make: Callable[[], Any], *args: Any) -> rl.Graph:
    with torch.device("meta"):
        module = make().eval()
    return rl.from_torch(module, *args)


def collectives(graph: rl.Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if node.op in COLLECTIVES)


class Layer(nn.Module):
    """A layer as people write one: a fused projection in chunks, SDPA, a feed-forward of GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.between, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        heads = (part.view(batch, length, 4, 16).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Language(nn.Module):
    """Two layers between a table of 101 tokens and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(101, 64), nn.Embedding(32, 64)
        self.layers, self.norm = nn.ModuleList([Layer(), Layer()]), nn.LayerNorm(64)
        self.head = nn.Linear(64, 101, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.table(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Written(nn.Module):
    """Attention written out in batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = (each(x).view(4, 16, 4, 16).transpose(1, 2) for each in (self.q, self.k, self.v))
        weights = ((q @ k.transpose(-1, -2)) * 0.25).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(4, 16, 64))


def test_a_language_model_of_ones_own() -> None:
    graph = imported(Language, IDS)
    device = rl.passes.shard(graph, tp=2)
    assert collectives(device) == {"all_reduce": 5, "all_gather": 1}
    shapes = {name: tensor.shape for name, tensor in device.tensors.items() if tensor.kind == "weight"}
    assert shapes["layers.1.qkv.weight"] == (96, 64)
    assert shapes["layers.1.out.weight"] == (64, 32)
    assert shapes["layers.1.up.weight"] == (128, 64)
    assert shapes["layers.1.down.weight"] == (64, 128)
    assert shapes["table.weight"] == shapes["head.weight"] == (51, 64)
    assert shapes["places.weight"] == (32, 64)
    # Products: the layers halve exactly, the head by its padded share.
    tokens = 4 * 16
    assert rl.count(graph).flops - 2 * rl.count(device).flops == 2 * tokens * 64 * (101 - 102)


def test_attention_written_out_is_cut_by_heads() -> None:
    device = rl.passes.shard(imported(Written, X), tp=2)
    assert collectives(device) == {"all_reduce": 1}
    assert [device.tensors[node.outputs[0]].shape for node in device.nodes if node.op == "bmm"] == [(8, 16, 16)] * 2


def test_a_chain_of_products_is_cut_in_pairs() -> None:
    """Columns, rows; a third product finds its rows taken and stays whole."""
    chain = lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))  # noqa: E731
    device = rl.passes.shard(imported(chain, X), tp=4)
    assert collectives(device) == {"all_reduce": 1}
    assert [t.shape for t in device.tensors.values() if t.kind == "weight" and len(t.shape) == 2] == [
        (64, 64), (256, 64), (64, 256),
    ]  # fmt: skip


def test_torch_layers() -> None:
    device = rl.passes.shard(imported(lambda: nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), X), tp=4)
    assert collectives(device) == {"all_reduce": 2}
    assert device.tensors["self_attn.in_proj_weight"].shape == (48, 64)


def test_convolutions_are_refused() -> None:
    graph = imported(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)),
                     torch.zeros(1, 3, 16, 16, device="meta"))  # fmt: skip
    with pytest.raises(rl.errors.UsageError, match="nothing that tensor parallelism splits"):
        rl.passes.shard(graph, tp=2)


SIZES: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 100}


@pytest.mark.parametrize(
    ("kind", "told", "reductions"),
    [
        ("Llama", {"num_key_value_heads": 2, "intermediate_size": 128}, 5),
        ("Mixtral", {"num_key_value_heads": 2, "intermediate_size": 128, "num_local_experts": 4}, 5),
        ("GPTJ", {"rotary_dim": 8}, 3),  # branches side by side
    ],
)
def test_transformers(kind: str, told: dict[str, Any], reductions: int) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**SIZES, **told)
    graph = imported(lambda: getattr(transformers, f"{kind}ForCausalLM")(config), IDS)
    device = rl.passes.shard(graph, tp=2)
    assert collectives(device) == {"all_reduce": reductions, "all_gather": 1}
    assert device.parameters < 0.51 * graph.parameters
