"""Structured pruning of real weights: what stays computes what it did, and is the part that matters most."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Attention(torch.nn.Module):
    """A residual stream of 16 with four heads and a feed-forward of 24 around it."""

    def __init__(self, head: int = 4) -> None:
        super().__init__()
        self.width = head
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16, bias=False)
        self.up, self.down = torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(x)))


def convnet() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(),
        nn.Conv2d(8, 12, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 5),
    ).eval()  # fmt: skip


CASES = {
    "heads": (lambda: Attention(), (2, 3, 16), {"heads": 0.25}),
    "channels": (lambda: Attention(), (2, 3, 16), {"channels": 16}),
    "convolutions": (convnet, (2, 3, 4, 4), {"channels": 0.25}),
}


def built(case):
    make, shape, amounts = CASES[case]
    torch.manual_seed(1)
    return make(), torch.randn(shape), amounts


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by", ["weight", "activation", "taylor"])
def test_what_stays_computes_what_the_whole_does_with_the_rest_at_zero(case, by):
    module, x, amounts = built(case)
    before = module(x).detach()
    small = rl.quant.prune(module, x, by=by, loss=lambda net: net(x).square().mean(), **amounts)
    assert torch.equal(module(x), before)  # the module itself is left alone
    dead = {axis.where: np.setdiff1d(np.arange(axis.size), axis.indices) for axis in small.axes}
    with torch.no_grad():
        for where, gone in dead.items():
            _silence(module, where, torch.as_tensor(gone))
    torch.testing.assert_close(small.module(x), module(x), atol=1e-5, rtol=1e-4)


def _silence(module, where, gone):
    """Make the consumers of an axis deaf to what goes."""
    if where == "qkv.weight[0]":  # a head's columns of the output matrix
        module.out.weight.view(16, 4, 4)[:, gone] = 0
    elif where == "up.weight[0]":
        module.down.weight[:, gone] = 0
    elif where == "0.weight[0]":  # through the depthwise convolution
        module[5].weight[:, gone] = 0
    else:
        assert where == "5.weight[0]"
        module[8].weight.view(5, 12, 16)[:, gone] = 0


@pytest.mark.parametrize("case", CASES)
def test_the_smaller_module_is_the_pruned_program(case):
    module, x, amounts = built(case)
    small = rl.quant.prune(module, x, **amounts)
    again = rl.from_torch(small.module, x)
    assert again.parameters == small.smaller.parameters == rl.passes.prune(small.graph, **amounts).parameters
    assert rl.count(again).flops == rl.count(small.smaller).flops < rl.count(small.graph).flops
    assert small.record()["parameters"] == again.parameters


def test_scores_are_those_of_the_papers():
    """Three channels, of which each score leaves out another one."""
    linear = torch.nn.Linear
    net = torch.nn.Sequential(linear(3, 3, bias=False), torch.nn.ReLU(), linear(3, 1, bias=False))
    x = torch.tensor([[1.0, 2.0, 8.0]])
    with torch.no_grad():
        net[0].weight.copy_(torch.diag(torch.tensor([3.0, 0.5, 0.25])))  # the channels are 3, 1, 2
        net[2].weight.copy_(torch.tensor([[0.1, 2.0, 1.0]]))
    kept = lambda **more: rl.quant.prune(net, x, channels=2, **more).axes[0].indices.tolist()  # noqa: E731
    assert kept(by="weight") == [0, 1]  # 9.01, 4.25, 1.0625
    assert kept(by="activation") == [1, 2]  # (0.1 * 3)^2, (2 * 1)^2, (1 * 2)^2
    # The loss is the output: gradient times weight of a channel is its share of it, twice over: 0.3, 2, 2.
    assert kept(by="taylor", loss=lambda one: one(x).sum()) == [1, 2]
    parts = lambda one: [  # noqa: E731  # the second channel's changes of two batches cancel out
        sign * one(torch.tensor([row]))[0, 0] for sign, row in ((1, [1.0, 0, 0.8]), (1, [0, 2.0, 0]), (-1, [0, 2.0, 0]))
    ]
    assert kept(by="taylor", loss=parts) == [0, 1]
    assert kept(by="taylor", loss=lambda one: sum(parts(one))) == [0, 2]


def test_shared_weights_stay_shared():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    net[2].weight = net[0].weight
    with pytest.raises(rl.errors.UsageError):
        rl.quant.prune(net, torch.zeros(2, 8), channels=0.5)  # the inner width is that of the input as well
    x, table = torch.zeros(2, 3, dtype=torch.long), torch.nn.Embedding(11, 16)
    tied = torch.nn.Sequential(table, Attention(), torch.nn.Linear(16, 11, bias=False))
    tied[2].weight = table.weight
    small = rl.quant.prune(tied, x, hidden=0.25).module
    assert small[2].weight is small[0].weight
    assert small[2].weight.shape == (11, 12)
    assert small[0].embedding_dim == 12


def test_what_cannot_be_pruned_says_why():
    module, x, _ = built("heads")
    with pytest.raises(rl.errors.UsageError, match="needs loss="):
        rl.quant.prune(module, x, by="taylor", heads=0.25)
    with pytest.raises(rl.errors.UsageError, match="by='size'; allowed: weight, activation, taylor"):
        rl.quant.prune(module, x, by="size", heads=0.25)

    class Sized(Attention):
        def forward(self, x):
            q, k, v = (part.view(2, 3, 4, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    with pytest.raises(rl.errors.UsageError, match="its forward holds a size of its own"):
        rl.quant.prune(Sized(), x, heads=0.25)
