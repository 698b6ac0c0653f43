"""PyTorch programs to graphs: the capture, the rules and the errors, on programs in plain PyTorch."""

from __future__ import annotations

import builtins
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_programs import Block, Classifier, ConvNet, Experts, Llama, ResNet50  # noqa: E402

import roofline as rl  # noqa: E402
from roofline.counting.memory import memory  # noqa: E402
from roofline.frontends.torch.rules import RULES  # noqa: E402
from roofline.ir.graph import Lifetimes  # noqa: E402
from roofline.ops.reference import execute  # noqa: E402

METHODS = ("dispatch", "fx", "export")


def counted_by_torch(run: Any, *args: Any, backward: bool = False) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        result = run(*args)
        if backward:
            result.sum().backward()
    return counter.get_total_flops()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


# --- true counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_an_mlp_by_every_method(method: str) -> None:
    graph = rl.from_torch(mlp(), torch.zeros(4, 16), dynamic={"B": 0}, method=method)
    assert graph.symbols == {"B"}
    assert rl.count(graph, B=7).flops == 2 * 7 * (16 * 32 + 32 * 8)
    assert graph.parameters == 16 * 32 + 32 + 32 * 8 + 8
    assert [node.op for node in graph.nodes] == ["linear", "gelu", "linear"]
    assert graph.info.method == method


@pytest.mark.parametrize("method", METHODS)
def test_convolutions_of_all_kinds(method: str) -> None:
    net = ConvNet().eval()
    graph = rl.from_torch(net, torch.zeros(4, 3, 64, 64), dynamic={"B": 0}, method=method)
    by_hand = 2 * sum(ConvNet.PRODUCTS)
    assert rl.count(graph, B=4).flops == 4 * by_hand == counted_by_torch(net, torch.zeros(4, 3, 64, 64))
    assert rl.count(graph, B=1).flops == by_hand
    assert graph.parameters == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("axes", [1, 3])
def test_convolutions_of_one_and_three_axes(axes: int) -> None:
    kind, turned = (nn.Conv1d, nn.ConvTranspose1d) if axes == 1 else (nn.Conv3d, nn.Identity)
    layers = [kind(4, 8, 3, padding=2, dilation=2), turned(8, 6, 4, stride=2, groups=2) if axes == 1 else turned()]
    net, x = nn.Sequential(*layers), torch.zeros(2, 4, *(9, 10, 11)[:axes])
    assert rl.count(rl.from_torch(net, x)).flops == counted_by_torch(net, x) > 0


def test_resnet50_is_the_shipped_one() -> None:
    with torch.device("meta"):
        net, x = ResNet50().eval(), torch.zeros(2, 3, 224, 224)
    mine, shipped = rl.from_torch(net, x, dynamic={"B": 0}), rl.model("resnet50")
    ours, theirs = rl.count(mine, B=8), rl.count(shipped, B=8)
    assert mine.parameters == shipped.parameters == 25_557_032
    # He et al. 2015 with the stride in the 3x3 convolutions: 4.089 G multiply-adds, the figure of torchvision's page.
    assert ours.flops == theirs.flops == 8 * 2 * 4_089_184_256
    assert (ours.bytes, ours.vector_flops, ours.launches) == (theirs.bytes, theirs.vector_flops, theirs.launches)
    assert (mine.item, str(mine.items)) == ("image", "B")


def test_llama_3_8b_from_a_module_a_config_and_the_shipped_file() -> None:
    with torch.device("meta"):
        net, ids = Llama().to(torch.bfloat16), torch.zeros(2, 64, dtype=torch.int64)
        turns = [torch.zeros(64, 128, dtype=torch.bfloat16) for _ in "cs"]
    mine = rl.from_torch(net, ids, *turns, dynamic={"B": {"ids": 0}, "S": {"ids": 1, "cos": 0, "sin": 0}})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-05,
    }  # fmt: skip
    others = rl.model("llama-3-8b", phase="forward"), rl.from_config(config, phase="forward")
    for sizes in ({"B": 2, "S": 2048}, {"B": 1, "S": 333}):
        ours, need = rl.count(mine, **sizes), memory(mine, sizes)
        for other in others:
            theirs = rl.count(other, **sizes)
            assert (ours.flops, ours.bytes) == (theirs.flops, theirs.bytes)
            assert (ours.vector_flops, ours.launches) == (theirs.vector_flops, theirs.launches)
            # The module's own variables keep a residual for longer than a layer that only says what it computes.
            assert memory(mine.with_info(lifetimes=Lifetimes()), sizes) == memory(other, sizes)
            assert need.activations > memory(other, sizes).activations
    assert mine.parameters == 8_030_261_248
    assert mine.item == "token"


def test_causal_attention_counts_the_pairs_that_are_left() -> None:
    q = torch.zeros(2, 4, 100, 16)
    graph = rl.from_torch(functional.scaled_dot_product_attention, q, q, q, is_causal=True)
    assert rl.count(graph).flops == 4 * 2 * 4 * (100 * 101 // 2) * 16
    assert rl.count(rl.passes.drop_mask(graph)).flops == 4 * 2 * 4 * 100 * 100 * 16
    assert rl.count(graph).launches == 1


@pytest.mark.parametrize("keys", [7, 1000])
def test_a_causal_query_sees_as_many_keys_as_its_place_says(keys: int) -> None:
    """PyTorch aligns the mask with the first key, so the keys after the last query are not even read."""
    q, k, v = (torch.zeros(1, 2, length, 4, requires_grad=True) for length in (5, keys, keys))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    forward, both = (rl.from_torch(attend, q, k, v, backward=backward) for backward in (False, True))
    assert rl.count(forward).flops == 2 * 2 * 2 * (5 * 6 // 2) * 4
    assert rl.count(forward).bytes == 4 * 4 * q.numel()
    assert rl.count(both).flops == (2 + 5) * 2 * 2 * (5 * 6 // 2) * 4
    assert [both.tensors[name].shape for name in both.outputs] == [(1, 2, 5, 4)] * 2 + [(1, 2, keys, 4)] * 2
    symbolic = rl.from_torch(attend, q, k, v, dynamic={"Q": {"q": 2}, "K": {"k": 2, "v": 2}})
    assert rl.count(symbolic, Q=5, K=keys).flops == rl.count(forward).flops


def test_attention_in_a_layer_of_torch_is_one_kernel_too() -> None:
    """``multi_head_attention_forward`` calls its functions past any mode that redirects them."""
    net, x = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), torch.zeros(4, 16, 64)
    product, mask = 2 * 4 * 16 * 16 * 64, nn.Transformer.generate_square_subsequent_mask(16)
    for method in ("dispatch", "run", "export"):
        graph = rl.from_torch(net, x, backward=True, method=method)
        # FlopCounterMode counts the four products of a backward that has kept the weights, flash attention runs five.
        assert rl.count(graph).flops == counted_by_torch(net, x, backward=True) + product
        assert "bmm" not in {node.op for node in graph.nodes}
    causal = rl.from_torch(net, x, src_mask=mask, is_causal=True)
    assert rl.count(rl.passes.drop_mask(causal)).flops - rl.count(causal).flops == 2 * 2 * 4 * 64 * (16 * 15 // 2)


def test_batches_of_attention_broadcast() -> None:
    q, k = torch.zeros(1, 2, 5, 4), torch.zeros(3, 2, 7, 4)
    graph = rl.from_torch(lambda q, k: functional.scaled_dot_product_attention(q, k, k), q, k)
    assert rl.count(graph).flops == 4 * 3 * 2 * 5 * 7 * 4


def test_a_linear_layer_of_one_row_has_no_columns() -> None:
    for shape in ((6,), (3, 6), (2, 3, 6)):
        graph = rl.from_torch(functional.linear, torch.zeros(shape), torch.zeros(6))
        assert rl.count(graph).flops == 2 * torch.zeros(shape).numel()


def test_a_mask_of_values_hides_nothing_from_the_count() -> None:
    q, mask = torch.zeros(2, 4, 100, 16), torch.zeros(100, 100, dtype=torch.bool)
    graph = rl.from_torch(functional.scaled_dot_product_attention, q, q, q, mask)
    assert rl.count(graph).flops == 4 * 2 * 4 * 100 * 100 * 16


def test_grouped_attention_reads_its_keys_once() -> None:
    q, k = torch.zeros(2, 8, 100, 16), torch.zeros(2, 2, 100, 16)
    graph = rl.from_torch(lambda q, k: functional.scaled_dot_product_attention(q, k, k, enable_gqa=True), q, k)
    assert rl.count(graph).flops == 4 * 2 * 8 * 100 * 100 * 16
    assert rl.count(graph).bytes == 4 * (2 * q.numel() + k.numel())


def test_an_lstm() -> None:
    net, x = Classifier().eval(), torch.zeros(4, 16, 32)
    graph = rl.from_torch(net, x, dynamic={"B": 0})
    by_hand = 2 * 16 * 4 * 64 * ((32 + 64) + (64 + 64)) + 2 * 64 * 10
    assert rl.count(graph, B=4).flops == 4 * by_hand
    assert rl.count(graph, B=9).flops == 9 * by_hand
    steps = [node.count for node in graph.nodes if node.count > 1]
    assert steps == [16] * 4  # a product and the gates of each layer, sixteen times


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_in_both_directions(kind: Any, gates: int) -> None:
    net, x = kind(32, 64, num_layers=2, bidirectional=True).eval(), torch.zeros(7, 3, 32)
    by_hand = 2 * 7 * 3 * 2 * gates * 64 * ((32 + 64) + (128 + 64))
    assert rl.count(rl.from_torch(net, x)).flops == by_hand
    assert rl.count(rl.from_torch(net, x, method="run")).flops == by_hand


def test_recurrent_steps_need_a_number() -> None:
    with pytest.raises(rl.errors.UsageError, match="leave their number out of dynamic"):
        rl.from_torch(nn.LSTM(8, 8).eval(), torch.zeros(5, 2, 8), dynamic={"S": 0})


def test_our_whole_operators_compute_what_torch_computes() -> None:
    from roofline.frontends.torch.custom import recurrent

    torch.manual_seed(0)
    for kind, layer in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn_tanh", nn.RNN)):
        net, x = layer(5, 7, num_layers=2, bidirectional=True), torch.randn(6, 3, 5)
        state = torch.randn(4, 3, 7)
        given = (state, state) if kind == "lstm" else state
        ours = recurrent(kind)(x, given, net._flat_weights, True, 2, 0.0, False, True, False)
        torch.testing.assert_close(ours[0], net(x, given)[0])


def test_a_mixture_of_experts_goes_where_its_values_lead() -> None:
    torch.manual_seed(0)
    net, x = Experts(), torch.randn(40, 64)
    graph = rl.from_torch(net, x)
    assert rl.count(graph).flops == 2 * 40 * (64 * 4 + 2 * 3 * 64 * 96)
    assert "depends on values" in graph.info.notes[0]
    with pytest.raises(
        rl.errors.ModelDataError, match=r"on the meta device; give tensors with values.*depends on them"
    ):
        rl.from_torch(net.to("meta"), x.to("meta"))


def test_a_transformer_layer_of_torch_itself() -> None:
    net, x = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), torch.zeros(2, 16, 64)
    by_hand = 2 * 32 * (4 * 64 * 64 + 2 * 64 * 128) + 4 * 2 * 16 * 16 * 64
    assert rl.count(rl.from_torch(net, x)).flops == by_hand
    assert torch.backends.mha.get_fastpath_enabled()


def test_products_of_any_rank() -> None:
    cases = [((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 7)), ((2, 3, 5), (5, 7)), ((4, 1, 3, 5), (2, 5, 7))]
    for left, right in cases:
        x, y = torch.zeros(left), torch.zeros(right)
        flops = rl.count(rl.from_torch(torch.matmul, x, y)).flops
        assert flops == 2 * (x @ y).numel() * 5, (left, right)


def test_einsum_is_a_product() -> None:
    x, y = torch.zeros(2, 6, 8), torch.zeros(2, 8, 5)
    assert rl.count(rl.from_torch(lambda x, y: torch.einsum("bik,bkj->bij", x, y), x, y)).flops == 2 * 2 * 6 * 8 * 5


# --- symbolic sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dispatch", "export"])
def test_sizes_stay_symbolic_and_count_like_fixed_ones(method: str) -> None:
    block = Block(64, 4, 2, 96)
    turns = [torch.zeros(12, 16) for _ in "cs"]
    where = {"B": {"x": 0}, "S": {"x": 1, "cos": 0, "sin": 0}}
    symbolic = rl.from_torch(block, torch.zeros(2, 12, 64), *turns, dynamic=where, method=method)
    assert symbolic.symbols == {"B", "S"}
    for batch, length in ((1, 1), (3, 50), (16, 7)):
        fixed = rl.from_torch(block, torch.zeros(batch, length, 64), *(torch.zeros(length, 16) for _ in "cs"))
        ours, theirs = rl.count(symbolic, B=batch, S=length), rl.count(fixed)
        assert (ours.flops, ours.vector_flops, ours.bytes) == (theirs.flops, theirs.vector_flops, theirs.bytes)


def test_guards_are_reported() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(128, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table[: x.shape[1]]

    graph = rl.from_torch(Positions(), torch.zeros(2, 16, 8), dynamic={"B": 0, "S": 1})
    assert any("S" in guard and "128" in guard for guard in graph.info.guards)
    assert any("128" in note for note in graph.info.notes)


def test_a_size_that_the_program_fixes_is_reported() -> None:
    graph = rl.from_torch(lambda x: x.view(4, 8) * 2, torch.zeros(4, 8), dynamic={"B": 0})
    assert "B = 4" in graph.info.guards
    assert not graph.symbols


def test_one_name_for_equal_axes_of_several_arguments() -> None:
    x, y = torch.zeros(1, 8), torch.zeros(1, 8)
    graph = rl.from_torch(torch.add, x, y, dynamic={"B": 0})
    assert rl.count(graph, B=5).bytes == 3 * 5 * 8 * 4


def test_a_batch_of_one_does_not_become_a_constant() -> None:
    graph = rl.from_torch(mlp(), torch.zeros(1, 16), dynamic={"B": 0})
    assert rl.count(graph, B=64).flops == 64 * rl.count(graph, B=1).flops


# --- backwards --------------------------------------------------------------------------------------------------------

BACKWARDS = {
    "mlp": (mlp, (4, 16)),
    "norms": (lambda: nn.Sequential(nn.RMSNorm(16), nn.LayerNorm(16), nn.Linear(16, 4)), (4, 16)),
    "softmax": (lambda: nn.Sequential(nn.Linear(16, 8), nn.LogSoftmax(-1)), (4, 16)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(4, 8, 3, padding=1, stride=(1, 2, 2))), (2, 4, 6, 20, 22)),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_count_as_torch_counts_them(name: str) -> None:
    make, shape = BACKWARDS[name]
    net = make()
    graph = rl.from_torch(net, torch.zeros(shape), backward=True)
    assert rl.count(graph).flops == counted_by_torch(net, torch.zeros(shape), backward=True)
    assert graph.info.phase == "train"
    assert all(parameter.grad is None or not hasattr(parameter.grad, "fake_mode") for parameter in net.parameters())


def test_backward_of_convolutions_is_twice_the_forward_but_for_the_first() -> None:
    net, x = ConvNet(), torch.zeros(4, 3, 64, 64)
    forward = rl.count(rl.from_torch(net, x)).flops
    first = 4 * 2 * ConvNet.PRODUCTS[0]  # no gradient of the image is asked for
    assert rl.count(rl.from_torch(net, x, backward=True)).flops == 3 * forward - first


def test_backward_of_flash_attention_is_five_products() -> None:
    q = torch.zeros(2, 4, 32, 16, requires_grad=True)
    graph = rl.from_torch(functional.scaled_dot_product_attention, q, q, q, backward=True)
    assert rl.count(graph).flops == (2 + 5) * 2 * 2 * 4 * 32 * 32 * 16  # Dao et al. 2022, appendix B.4


def test_backward_reaches_keyword_arguments() -> None:
    weight = torch.zeros(16, 8, requires_grad=True)
    graph = rl.from_torch(lambda x, w: x @ w, torch.zeros(4, 16), w=weight, backward=True)
    assert rl.count(graph).flops == 2 * 2 * 4 * 16 * 8


def test_backward_of_an_lstm() -> None:
    net = nn.LSTM(8, 16, 2, batch_first=True)
    forward = 2 * 4 * 6 * 4 * 16 * ((8 + 16) + (16 + 16))
    first = 2 * 4 * 6 * 4 * 16 * 8
    assert rl.count(rl.from_torch(net, torch.zeros(4, 6, 8), backward=True)).flops == 3 * forward - first


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("loss", "flops"), [
    ("mse_loss", 3), ("smooth_l1_loss", 4), ("huber_loss", 4), ("binary_cross_entropy_with_logits", 7),
])  # fmt: skip
def test_a_loss_is_its_terms_and_their_sum(loss: str, flops: int, reduction: str) -> None:
    x, y = torch.zeros(5, 6, requires_grad=True), torch.zeros(5, 6)
    graph = rl.from_torch(getattr(functional, loss), x, y, reduction=reduction)
    add = 0 if reduction == "none" else 30
    assert rl.count(graph).vector_flops == flops * 30 + add
    assert rl.count(graph).bytes == 4 * (3 * 30 + (add and 30 + 1))
    back = rl.from_torch(getattr(functional, loss), x, y, reduction=reduction, backward=True)
    assert [back.tensors[name].shape for name in back.outputs][1:] == [(5, 6)]


def test_products_that_are_summed_up_and_matrices_turned_in_a_batch() -> None:
    x, y = torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)
    assert rl.count(rl.from_torch(torch.addbmm, torch.zeros(3, 5), x, y)).flops == 2 * 2 * 3 * 4 * 5
    assert rl.count(rl.from_torch(lambda x, y: x @ y.mT, x, torch.zeros(2, 5, 4))).flops == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolation_has_a_backward(mode: str) -> None:
    x = torch.zeros(2, 3, 8, 8, requires_grad=True)
    graph = rl.from_torch(lambda x: functional.interpolate(x, scale_factor=2, mode=mode), x, backward=True)
    assert [graph.tensors[name].shape for name in graph.outputs] == [(2, 3, 16, 16), (2, 3, 8, 8)]


def test_windows_have_a_backward() -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    graph = rl.from_torch(lambda x: x.unfold(1, 3, 1), x, backward=True)
    assert rl.count(graph).bytes == 4 * (2 * 6 * 3 + 2 * 8)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_packed_sequences_run_as_many_steps_as_they_have(kind: Any, gates: int) -> None:
    net, x, lengths = kind(6, 8, batch_first=True), torch.zeros(3, 5, 6), torch.tensor([5, 3, 2])

    def run(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True)[0]

    graph = rl.from_torch(run, x, lengths)
    assert graph.info.method == "run"  # the lengths are values
    assert rl.count(graph).flops == 2 * (5 + 3 + 2) * gates * 8 * (6 + 8)


def test_what_neither_fakes_nor_the_exporter_take_is_recorded() -> None:
    graph = rl.from_torch(nn.DataParallel(mlp()), torch.zeros(4, 16))
    assert rl.count(graph).flops == 2 * 4 * (16 * 32 + 32 * 8)


def test_an_lstm_with_a_projection() -> None:
    for method in METHODS[::2]:
        graph = rl.from_torch(nn.LSTM(6, 8, proj_size=3), torch.zeros(5, 2, 6), method=method)
        assert rl.count(graph).flops == 2 * 5 * 2 * (4 * 8 * (6 + 3) + 8 * 3)


def test_gradients_are_results_and_those_of_the_outputs_are_given() -> None:
    graph = rl.from_torch(mlp(), torch.zeros(4, 16), backward=True)
    kinds = Counter(tensor.kind for tensor in graph.tensors.values())
    assert kinds["input"] == 2
    assert len(graph.outputs) == 1 + 4
    assert any(node.name.startswith("backward.0.") for node in graph.nodes)


def test_nothing_to_differentiate() -> None:
    with pytest.raises(rl.errors.UsageError, match="backward=True, but nothing"):
        rl.from_torch(torch.add, torch.zeros(3), torch.zeros(3), backward=True)


def test_a_training_step_as_a_function() -> None:
    net, x = mlp(), torch.randn(32, 16)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    before = [parameter.detach().clone() for parameter in net.parameters()]
    graph = rl.from_torch(step)
    assert rl.count(graph).flops == 3 * 2 * 32 * (16 * 32 + 32 * 8) - 2 * 32 * 16 * 32
    assert graph.parameters == sum(p.numel() for p in net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.plain = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.plain.add_(1)
        return self.out(self.norm(x))


@pytest.mark.parametrize("what", ["module", "closure", "step"])
@pytest.mark.parametrize("method", ["dispatch", "export", "fx", "run"])
def test_a_capture_leaves_parameters_gradients_and_buffers_as_they_were(method: Any, what: str) -> None:
    net, x = Stateful(), torch.randn(4, 8)
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    if what != "module" and method in ("export", "fx"):
        pytest.skip("takes modules")
    step(x)
    optimizer.zero_grad()
    net(x).sum().backward()
    held = [*net.parameters(), *net.buffers(), net.plain, *(p.grad for p in net.parameters())]
    held += [t for state in optimizer.state.values() for t in state.values()]
    before, gradients = [t.detach().clone() for t in held], [p.grad for p in net.parameters()]
    rl.from_torch({"module": net, "closure": lambda x: net(x), "step": step}[what], x, method=method)
    assert all(torch.equal(a, b) for a, b in zip(before, held, strict=True))
    assert all(p.grad is gradient for p, gradient in zip(net.parameters(), gradients, strict=True))


# --- moves, writes and views ------------------------------------------------------------------------------------------


def test_a_write_into_a_cache_moves_only_what_is_new() -> None:
    def step(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[:, 5:6] = new
        return cache

    graph = rl.from_torch(step, torch.zeros(4, 1000, 8), torch.zeros(4, 1, 8))
    assert rl.count(graph).bytes == 2 * 4 * 8 * 4
    assert [node.op for node in graph.nodes if node.op == "put"] == ["put"]


def test_room_for_a_result_is_no_kernel_and_is_not_read() -> None:
    x = torch.zeros(10, 10)

    def rows(x: torch.Tensor) -> torch.Tensor:
        both = x.new_empty(20, 10)
        both[:10] = x
        both[10:] = x
        return both

    for program, moved, launches in (
        (lambda x: torch.empty(10, 10).copy_(x), 2, 1),
        (lambda x: torch.add(x, x, out=torch.empty(10, 10)), 2, 1),
        (rows, 4, 2),
    ):
        counts = rl.count(rl.from_torch(program, x))
        assert (counts.bytes, counts.launches) == (moved * 400, launches)


def test_dropout_is_one_kernel_each_way() -> None:
    x = torch.zeros(10, 10, requires_grad=True)
    counts = rl.count(rl.from_torch(nn.Dropout(0.5), x, backward=True))
    assert counts.launches == 2
    assert counts.bytes == 2 * (2 * 400 + 100)  # values in and out, and a mask of bytes


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Any, mask: Any = None, times: int = 1, *, how: str = "all") -> Any:
        if mask is None and how == "all":
            for _ in range(times):
                x = self.layer(x)
        return x


@pytest.mark.parametrize("method", METHODS)
def test_arguments_that_are_no_tensors_decide_the_way(method: Any) -> None:
    x, one = torch.zeros(5, 6), 2 * 5 * 6 * 6
    for args, kwargs, times in (
        ((x,), {}, 1), ((x, None), {}, 1), ((x, None, 3), {"how": "all"}, 3), ((x,), {"times": 2}, 2),
        ((x,), {"how": "no"}, 0),
    ):  # fmt: skip
        graph = rl.from_torch(Choosy(), *args, kwargs=kwargs, method=method)
        assert rl.count(graph).flops == times * one


def test_a_later_read_sees_an_earlier_write() -> None:
    def step(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[0] = new
        return cache * 2

    graph = rl.from_torch(step, torch.zeros(4, 8), torch.zeros(8))
    put, product = graph.nodes
    assert product.inputs == put.outputs


def test_views_are_free() -> None:
    def shapes(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(3, 4, 2)[:, 1:].unsqueeze(0).expand(5, 3, 3, 2)[0].permute(2, 0, 1)

    graph = rl.from_torch(lambda x: shapes(x) + 1, torch.zeros(8, 3))
    counts = rl.count(graph)
    assert counts.launches == 1
    assert counts.rows[0].write == 2 * 3 * 3 * 4


def test_a_shared_weight_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    for method in ("dispatch", "export"):
        graph = rl.from_torch(Tied(), torch.zeros(2, 3, dtype=torch.int64), method=method)
        assert graph.parameters == 50 * 8
        assert rl.count(graph).flops == 2 * 6 * 8 * 50


def test_an_unused_parameter_still_has_to_be_stored() -> None:
    net = nn.Module()
    net.used, net.idle = nn.Linear(4, 4), nn.Linear(100, 100)
    net.forward = lambda x: net.used(x)
    assert rl.from_torch(net, torch.zeros(1, 4)).parameters == 20 + 10100


def test_an_operator_without_a_rule_is_taken_apart_by_torch() -> None:
    assert "addr" not in RULES
    graph = rl.from_torch(torch.addr, torch.zeros(3, 4), torch.zeros(3), torch.zeros(4))
    assert {node.op for node in graph.nodes} <= {"mul", "add", "view", "mul_scalar"}


def test_every_rule_names_an_operator_of_the_registry() -> None:
    from roofline.frontends.aliases import POINTWISE
    from roofline.ops.registry import OPS

    assert OPS.keys() >= {what for what in POINTWISE.values() if isinstance(what, str)}


def test_number_formats_follow_the_tensors() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 2).to(torch.float16)

    graph = rl.from_torch(run, torch.zeros(8, dtype=torch.bfloat16))
    assert [graph.tensors[node.outputs[0]].dtype for node in graph.nodes] == ["fp32", "fp32", "fp16"]


# --- what has no rule, and what is no program -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mystery() -> Any:
    @torch.library.custom_op("roofline_tests::mystery", mutates_args=())
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    run.register_fake(lambda x: torch.empty_like(x))
    return run


def test_an_unknown_operator_is_an_error_that_names_it(mystery: Any) -> None:
    with pytest.raises(rl.errors.UnknownOp, match=r"no rule for roofline_tests\.mystery\.default.*unknown='report'"):
        rl.from_torch(mystery, torch.zeros(8))


def test_an_unknown_operator_can_be_a_visible_line_in_every_result(mystery: Any) -> None:
    graph = rl.from_torch(lambda x: mystery(x) + mystery(x), torch.zeros(8), unknown="report")
    estimate = rl.estimate(graph, "h100-sxm")
    assert estimate.not_modelled[0] == "arithmetic of roofline_tests.mystery.default (2 calls)"
    assert "2 operations without a rule" in repr(estimate)
    assert rl.count(graph).bytes == 4 * 8 * 4 + 3 * 8 * 4


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("nothing here\nand a second line")


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x + 1


def cyclic() -> nn.Module:
    outer, inner = nn.Module(), nn.Module()
    outer.inner, inner.outer = inner, outer
    return outer


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.equal(x, x)


X = torch.zeros(2, 8)
BAD: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], str]] = {
    "no function": (3, (X,), {}, "expected a module or a function, given '3'"),
    "a class": (nn.ReLU, (X,), {}, "expected a module or a function"),
    "too few arguments": (mlp(), (), {}, r"Sequential: the arguments do not fit: missing a required argument"),
    "a wrong shape": (mlp(), (torch.zeros(2, 9),), {}, r"Sequential: the program fails on the given arguments"),
    "an exception": (Raises(), (X,), {}, r"Raises: the program fails on the given arguments: KeyError"),
    "an unknown method": (mlp(), (torch.zeros(2, 16),), {"method": "exprot"}, r"method='exprot'.*did you mean export"),
    "an unknown mode": (mlp(), (torch.zeros(2, 16),), {"mode": "fast"}, r"mode='fast'; allowed: eager, compiled"),
    "an unknown policy": (mlp(), (torch.zeros(2, 16),), {"unknown": "skip"}, r"unknown='skip'; allowed: error, report"),
    "a cycle": (cyclic(), (X,), {}, r"the module at 'inner\.outer' contains itself"),
    "an axis too far": (torch.relu, (X,), {"dynamic": {"B": 5}}, r"dynamic\['B'\]: no argument has an axis 5"),
    "a wrong argument": (torch.add, (X, X), {"dynamic": {"B": {"inptu": 0}}}, r"no tensor argument 'inptu'"),
    "no axis": (torch.relu, (X,), {"dynamic": {"B": "first"}}, r"expected an axis"),
    "no name": (torch.relu, (X,), {"dynamic": {3: 0}}, r"3 is not a name for a size"),
    "two names": (torch.relu, (X,), {"dynamic": {"B": 0, "S": 0}}, r"is both B and S"),
    "two sizes": (lambda x, y: (x, y), (torch.zeros(2, 3), torch.zeros(4, 3)), {"dynamic": {"B": 0}}, r"B is 2 in one"),
    "fx and a branch": (Branches(), (X,), {"method": "fx"}, r"torch\.fx cannot trace it.*method='dispatch'"),
    "export and a branch": (Branches(), (X,), {"method": "export"}, r"torch\.export cannot take it"),
    "no table of axes": (torch.relu, (X,), {"dynamic": "B"}, r"dynamic='B'; expected a dictionary by name"),
    "no keywords": (torch.relu, (X,), {"kwargs": [1]}, r"kwargs='\[1\]'; expected a dictionary by name"),
    "a lazy module": (nn.LazyLinear(4), (X,), {}, r"LazyLinear: PyTorch cannot capture it: .*uninitialized parameter"),
    "fx and values": (torch.fx.symbolic_trace(Same()), (X,), {"method": "fx"}, r"cannot capture it: DataDependent"),
    "run and a symbol": (torch.relu, (X,), {"method": "run", "dynamic": {"B": 0}}, r"leave out dynamic"),
    "run on meta": (mlp().to("meta"), (torch.zeros(2, 16, device="meta"),), {"method": "run"}, r"on the meta device"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    program, args, options, message = BAD[what]
    with pytest.raises(rl.RooflineError, match=message) as caught:
        rl.from_torch(program, *args, **options)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_branch_on_values_follows_the_given_ones() -> None:
    up = rl.from_torch(Branches(), torch.ones(2, 8))
    down = rl.from_torch(Branches(), -torch.ones(2, 8))
    assert [graph.nodes[-1].op for graph in (up, down)] == ["mul_scalar", "add_scalar"]
    assert "depends on values" in up.info.notes[0]


def test_a_size_that_depends_on_values_is_that_of_the_given_ones() -> None:
    """It stays a symbol, and a note says so, where there are no values or other sizes are to stay symbols."""
    x = torch.tensor([[1.0, -1.0, 2.0], [3.0, -4.0, -5.0]])
    graph = rl.from_torch(lambda x: x[x > 0] * 2, x)
    assert not graph.symbols
    assert "depends on values" in graph.info.notes[0]
    assert [graph.tensors[name].shape for name in graph.outputs] == [(3,)]
    for given, dynamic in ((x.to("meta"), {}), (x, {"B": 0})):
        open_ = rl.from_torch(lambda x: x[x > 0] * 2, given, dynamic=dynamic)
        assert open_.symbols == {"u0", *dynamic}
        assert "sizes that depend on values: u0" in open_.info.notes


def test_a_device_that_is_absent() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")

    class Elsewhere(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(8, device="cuda")

    with pytest.raises(rl.RooflineError, match="Elsewhere") as caught:
        rl.from_torch(Elsewhere(), X)
    assert "\n" not in str(caught.value)


def test_capturing_leaves_nothing_behind() -> None:
    net = mlp()
    levels = {name: each.disabled for name, each in logging.root.manager.loggerDict.items() if hasattr(each, "level")}
    grad = torch.is_grad_enabled()
    rl.from_torch(net, torch.zeros(2, 16), backward=True)
    with pytest.raises(rl.RooflineError):
        rl.from_torch(Raises(), X)
    assert torch.is_grad_enabled() == grad
    assert (
        levels.items()
        <= {
            name: each.disabled for name, each in logging.root.manager.loggerDict.items() if hasattr(each, "level")
        }.items()
    )
    assert type(net(torch.zeros(2, 16))) is torch.Tensor
    assert not nn.modules.module._global_forward_pre_hooks


def test_without_torch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(rl.errors.MissingExtra, match=r"pip install 'roofline\[torch\]'"):
        rl.from_torch(abs, 3)


def test_the_result_can_be_estimated_and_fused() -> None:
    graph = rl.from_torch(mlp(), torch.zeros(4, 16), dynamic={"B": 0})
    assert rl.estimate(graph, "h100-sxm", B=[1, 64]).time.shape == (2,)
    assert rl.count(rl.passes.fuse(graph), B=4).flops == rl.count(graph, B=4).flops


def test_a_recorded_run_has_the_gradients_of_torch() -> None:
    """Operators that are kept whole compute, forwards and backwards, what they stand for."""
    torch.manual_seed(0)
    turns = [torch.randn(12, 16) for _ in "cs"]
    for net, args in (
        (Block(64, 4, 2, 96), (torch.randn(2, 12, 64), *turns)),
        (Classifier(8, 16), (torch.randn(3, 5, 8),)),
    ):
        fake, run = (rl.from_torch(net, *args, backward=True, method=method) for method in ("dispatch", "run"))
        assert rl.count(fake).flops == rl.count(run).flops
        assert rl.count(fake).bytes == rl.count(run).bytes


def test_whole_operators_have_the_gradients_of_what_they_stand_for() -> None:
    from roofline.frontends.torch import custom

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in "qkv")
    for options in ({"is_causal": True}, {"scale": 0.1}):
        ours = torch.autograd.grad(custom.sdpa(q, k, v, **options).sum(), (q, k, v))
        theirs = torch.autograd.grad(functional.scaled_dot_product_attention(q, k, v, **options).sum(), (q, k, v))
        torch.testing.assert_close(ours, theirs)
    x, weight = torch.randn(5, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    ours = torch.autograd.grad(custom.rms_norm(x, (16,), weight).square().sum(), (x, weight))
    torch.testing.assert_close(
        ours, torch.autograd.grad(functional.rms_norm(x, (16,), weight).square().sum(), (x, weight))
    )


def test_a_half_precision_kernel_is_half_precision_throughout() -> None:
    q = torch.zeros(1, 2, 64, 16, dtype=torch.bfloat16)
    graph = rl.from_torch(functional.scaled_dot_product_attention, q, q, q)
    assert rl.count(graph).rows[0].flops_by.keys() == {"bf16"}


def test_a_part_that_is_computed_in_place_is_one_kernel_that_later_reads_see() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x[:, :4] = 0
        x[:, 4:].mul_(2)
        return x + 1

    counts = rl.count(rl.from_torch(step, torch.zeros(8, 16)))
    assert counts.launches == 3
    assert [(row.read, row.write) for row in counts.rows] == [(0, 128), (384, 384), (512, 512)]


def test_a_view_of_all_of_a_result_that_is_written_in_place_is_the_result() -> None:
    """Nothing is left of what was there: the write moves no bytes of its own, and no gradient goes past it."""

    def step(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.view(-1).add_(bias)
        return y * x

    graph = rl.from_torch(step, torch.zeros(8, 16), torch.zeros(128))
    assert [node.op for node in graph.nodes if node.op != "view"] == ["mul", "add", "mul"]
    x, bias = (np.arange(128.0).reshape(shape) for shape in ((8, 16), 128))
    (result,) = execute(graph, {"x": x, "bias": bias}).values()
    assert np.array_equal(result, (x * x + bias.reshape(8, 16)) * x)


def test_a_bias_of_attention_that_learns_gets_its_gradient() -> None:
    q = torch.zeros(2, 4, 8, 16, requires_grad=True)
    bias = torch.zeros(8, 8, requires_grad=True)
    graph = rl.from_torch(functional.scaled_dot_product_attention, q, q, q, bias, backward=True)
    assert (8, 8) in [graph.tensors[name].shape for name in graph.outputs]
    assert rl.count(graph).flops == 3 * 4 * 2 * 4 * 8 * 8 * 16


class Attended(nn.Module):
    """A transformer's block as people write it: parts, positions, numbers, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.both, self.out = nn.Embedding(8, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.table(torch.arange(x.shape[1]))
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.both(x).chunk(3, -1))
        x = self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) / 3 - 0.5
        first, second = x.split([3, 5], 1)
        turned, some = torch.cat([-x[..., 8:], x[..., :8]], -1), x.flatten(0, 1)[4:12].view(8, 16)
        return x[:, -2], turned, first.amax(-1), second.unbind(0)[1] / 2, some.select(0, 3) * 2


def test_the_executor_computes_what_pytorch_does() -> None:
    torch.manual_seed(0)
    net, x = Attended(), torch.randn(2, 8, 16)
    graph = rl.from_torch(net, x)
    state = {name: each.numpy() for name, each in net.state_dict().items()}
    for ours, theirs in zip(execute(graph, {**state, "x": x.numpy()}).values(), net(x), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-5)


def test_parts_of_a_square_start_along_the_axis_that_was_asked_for() -> None:
    x = torch.arange(9.0).reshape(3, 3)
    graph = rl.from_torch(lambda x: (x[:, 1] + 0, x[2] + 0, x[1:, 1:] + 0), x)
    ours = execute(graph, {"x": x.numpy()}).values()
    assert [each.tolist() for each in ours] == [[1, 4, 7], [6, 7, 8], [[4, 5], [7, 8]]]
