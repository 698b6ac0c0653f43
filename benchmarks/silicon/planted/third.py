"""A third set of programs with a known cause of slowness, to judge ``roofline check`` blindly.

The classic mistakes of performance guides and forum questions, in the style of the reference set. Written by someone
who saw the first two sets (``first``, ``second``) and none of the diagnosis; measured and traced in the
same way. The label names the cause of at least two thirds of the time above what the work needs.
"""

from __future__ import annotations

import csv
import io
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import BF16, FP16, FP32, Run, attention, gemm, no_grad, planted, rand
from torch import nn


def resnet18(dtype: torch.dtype) -> Any:
    """A small network with channels last."""
    import torchvision

    return torchvision.models.resnet18().cuda().to(dtype, memory_format=torch.channels_last).eval()


def images(batch: int, dtype: torch.dtype) -> torch.Tensor:
    """Random images with channels last."""
    return rand(batch, 3, 224, 224, dtype=dtype).to(memory_format=torch.channels_last)


def roberta() -> Any:
    """RoBERTa base in fp16."""
    from transformers import RobertaConfig, RobertaModel

    return RobertaModel(RobertaConfig(vocab_size=50265, max_position_embeddings=514)).eval().cuda().to(FP16)


def gpt2_medium(dtype: torch.dtype) -> Any:
    """GPT-2 medium."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16)).eval().cuda().to(dtype)


# --- nothing wrong --------------------------------------------------------------------------------


@planted("ok", op="bmm", b=96, m=1024, n=1024, k=256)
def matrices_batched() -> Run:
    a, b = rand(96, 1024, 256), rand(96, 256, 1024)
    return lambda: torch.bmm(a, b)


@planted("ok", op="gemm", m=131072, n=512, k=512)
def tall_and_thin() -> Run:
    a, w = rand(131072, 512), rand(512, 512)
    return lambda: F.linear(a, w)


@planted("ok", "fp16", op="gemm", m=6007, n=5000, k=3000)
def odd_number_of_rows() -> Run:
    x, w = rand(6007, 3000, dtype=FP16), rand(5000, 3000, dtype=FP16)
    return lambda: F.linear(x, w)


@planted("ok", work=[attention(4, 64, 8, 1, 65536, 128, False)])
def decode_long_context() -> Run:
    q, k, v = rand(4, 64, 1, 128), rand(4, 8, 65536, 128), rand(4, 8, 65536, 128)
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@planted("ok", work=[gemm(8192, 6144, 4096), attention(4, 32, 8, 2048, 2048, 128, True), gemm(8192, 4096, 4096)])
def attention_block_gqa() -> Run:
    x, w_in, w_out = rand(4, 2048, 4096), rand(6144, 4096) / 64, rand(4096, 4096) / 64

    def run() -> object:
        q, k, v = F.linear(x, w_in).view(4, 2048, 48, 128).transpose(1, 2).split((32, 8, 8), 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).reshape(4, 2048, 4096), w_out)

    return run


@planted("ok", "fp32", op="conv2d", n=64, c_in=256, h=56, w=56, c_out=512, r=3, s=3, stride=2, padding=1)
def conv_fp32_as_it_comes() -> Run:  # cuDNN takes TF32 by default
    net = nn.Conv2d(256, 512, 3, stride=2, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)
    x = rand(64, 256, 56, 56, dtype=FP32).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("ok", "fp32", op="elementwise", n=2**27, inputs=2, count=1)
def moving_average_of_weights() -> Run:
    average, weights = rand(2**27, dtype=FP32), rand(2**27, dtype=FP32)
    return lambda: average.lerp_(weights, 0.001)


@planted("ok", "fp32", op="batchnorm2d", n=128, c=128, h=112, w=112)
def batchnorm_inference() -> Run:
    net = nn.BatchNorm2d(128).cuda().eval()
    x = rand(128, 128, 112, 112, dtype=FP32).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("ok", "fp32", op="argmax", rows=32768, cols=8192)
def argmax_of_logits() -> Run:
    x = rand(32768, 8192, dtype=FP32)
    return lambda: x.argmax(-1)


@planted("ok", "fp32", op="cat", rows=16384, cols_a=4096, cols_b=4096)
def joined_once() -> Run:
    a, b = rand(16384, 4096, dtype=FP32), rand(16384, 4096, dtype=FP32)
    return lambda: torch.cat([a, b], -1)


@planted("ok", op="swiglu", rows=16384, cols=16384)
def swiglu_compiled() -> Run:
    x = rand(16384, 32768)

    def swiglu(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    compiled = torch.compile(swiglu)
    return lambda: compiled(x)


@planted("ok", "fp32", op="elementwise", n=2**26, inputs=6, count=1)
def adamw_fused() -> Run:  # reads four tensors and writes three: as much as six inputs and one output
    parameters = [nn.Parameter(rand(2**22, dtype=FP32)) for _ in range(16)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    step = torch.optim.AdamW(parameters, fused=True).step
    return lambda: step()


@planted("ok", "fp16", model="roberta-base", batch=8, seq=128)
def roberta_graph_of_small_kernels() -> Run:
    net, ids = roberta(), torch.randint(5, 50000, (8, 128), device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        net(ids)
        net(ids)
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        net(ids)
    return lambda: (graph.replay(), net, ids)  # the graph does not keep the tensors alive


@planted("ok", model="resnet18", batch=512)
def resnet18_b512() -> Run:
    net, x = resnet18(BF16), images(512, BF16)
    return no_grad(lambda: net(x))


@planted("ok", "fp16", model="roberta-base", batch=128, seq=256)
def roberta_b128() -> Run:
    net, ids = roberta(), torch.randint(5, 50000, (128, 256), device="cuda")
    return no_grad(lambda: net(ids))


# --- a chain that should be one kernel ------------------------------------------------------------


@planted("unfused", op="elementwise", n=2**26, inputs=1, count=5)
def mish_by_hand() -> Run:
    x = rand(2**26)
    return lambda: x * torch.tanh(torch.log(1 + torch.exp(x)))


@planted("unfused", "fp32", op="elementwise", n=2**25, inputs=2, count=10)
def focal_loss_by_hand() -> Run:
    x, y = rand(2**25, dtype=FP32), torch.randint(0, 2, (2**25,), device="cuda").float()

    def run() -> object:
        p = x.sigmoid()
        hit = p * y + (1 - p) * (1 - y)
        return -0.25 * (1 - hit) ** 2 * hit.log()

    return run


@planted("unfused", op="batchnorm2d", n=64, c=256, h=56, w=56)
def batchnorm_by_hand() -> Run:
    x = rand(64, 256, 56, 56)
    mean, var, w, b = rand(256, 1, 1), rand(256, 1, 1).abs(), rand(256, 1, 1), rand(256, 1, 1)
    return lambda: (x - mean) / torch.sqrt(var + 1e-5) * w + b


@planted("unfused", op="elementwise", n=2**26, inputs=2, count=5)
def dropout_and_residual_by_hand() -> Run:
    x, residual = rand(2**26), rand(2**26)
    return lambda: x * (torch.rand_like(x) > 0.1) / 0.9 + residual


@planted("unfused", op="elementwise", n=65536 * 512, inputs=5, count=9)
def lstm_gates_by_hand() -> Run:
    gates, c = rand(65536, 4 * 512), rand(65536, 512)

    def run() -> object:
        i, f, g, o = gates.chunk(4, -1)
        cell = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell)

    return run


# --- attention scores written out -----------------------------------------------------------------


@planted("materialised", "fp16", work=[attention(24, 16, 16, 1024, 1024, 64, False)])
def padding_masked_by_hand() -> Run:
    q, k, v = (rand(24, 16, 1024, 64, dtype=FP16) for _ in "qkv")
    padding = torch.arange(1024, device="cuda") > torch.randint(700, 1024, (24, 1, 1, 1), device="cuda")

    def run() -> object:
        scores = torch.matmul(q, k.transpose(-2, -1)) / 8
        return torch.matmul(F.softmax(scores.masked_fill(padding, -65504.0), dim=-1), v)

    return run


@planted("materialised", work=[gemm(16384, 3072, 1024), attention(8, 16, 16, 2048, 2048, 64, True),
                               gemm(16384, 1024, 1024)])  # fmt: skip
def textbook_causal_block() -> Run:
    c_attn, c_proj = nn.Linear(1024, 3072).cuda().to(BF16), nn.Linear(1024, 1024).cuda().to(BF16)
    x, tril = rand(8, 2048, 1024), torch.ones(2048, 2048, device="cuda").tril().view(1, 1, 2048, 2048)

    def run() -> object:
        q, k, v = (t.view(8, 2048, 16, 64).transpose(1, 2) for t in c_attn(x).split(1024, dim=2))
        att = (q @ k.transpose(-2, -1)) * 64**-0.5
        att = F.softmax(att.masked_fill(tril == 0, float("-inf")), dim=-1)
        return c_proj((att @ v).transpose(1, 2).contiguous().view(8, 2048, 1024))

    return no_grad(run)


@planted("materialised", work=[attention(4, 16, 16, 4096, 4096, 64, False)])
def queries_in_chunks() -> Run:
    q, k, v = (rand(4, 16, 4096, 64) for _ in "qkv")
    return lambda: torch.cat([torch.softmax(part @ k.mT * 0.125, -1) @ v for part in q.split(512, 2)], 2)


@planted("materialised", model="bert-base-uncased", batch=48, seq=512)
def bert_eager_attention() -> Run:
    from transformers import BertConfig, BertModel

    net = BertModel(BertConfig(attn_implementation="eager")).eval().cuda().to(BF16)
    ids = torch.randint(0, 30000, (48, 512), device="cuda")
    return no_grad(lambda: net(ids))


# --- a slower format than meant -------------------------------------------------------------------


@planted("precision", "fp32", model="gpt2-medium", batch=8, seq=512)
def gpt2_medium_fp32() -> Run:
    net, ids = gpt2_medium(FP32), torch.randint(0, 50000, (8, 512), device="cuda")
    return no_grad(lambda: net(ids, use_cache=False))


@planted("precision", "fp64", model="resnet18", batch=32)
def resnet18_in_double() -> Run:
    net, x = resnet18(torch.float64), images(32, torch.float64)
    return no_grad(lambda: net(x))


@planted("precision", "fp32", work=[gemm(8192, 4096, 2048), gemm(8192, 2048, 4096), gemm(4096, 2048, 8192)])
def linear_trained_in_fp32() -> Run:
    x, w = rand(8192, 2048, dtype=FP32).requires_grad_(), rand(4096, 2048, dtype=FP32).requires_grad_()
    grad = rand(8192, 4096, dtype=FP32)
    return lambda: torch.autograd.grad(F.linear(x, w), (x, w), grad)


@planted("precision", "fp32", work=[gemm(8192, 8192, 2048), {"op": "elementwise", "n": 2**26, "inputs": 1, "count": 2}])
def pairwise_distances_fp32() -> Run:
    a, b = rand(8192, 2048, dtype=FP32), rand(8192, 2048, dtype=FP32)
    return lambda: torch.cdist(a, b)


@planted("precision", "fp32", work=[gemm(8192, 3072, 1024), attention(16, 16, 16, 512, 512, 64, False),
                                    gemm(8192, 1024, 1024), gemm(8192, 4096, 1024),
                                    gemm(8192, 1024, 4096)])  # fmt: skip
def encoder_layer_fp32() -> Run:
    net = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True).cuda().eval()
    x = rand(16, 512, 1024, dtype=FP32)
    return no_grad(lambda: net(x))


# --- leading dimension not a multiple of 8 --------------------------------------------------------


@planted("alignment", op="bmm", b=1024, m=197, n=256, k=197)
def scores_of_197_tokens() -> Run:
    scores, values = rand(1024, 197, 197), rand(1024, 197, 256)
    return lambda: scores @ values


@planted("alignment", op="conv2d", n=32, c_in=255, h=56, w=56, c_out=255, r=3, s=3, stride=1, padding=1)
def conv_255_channels() -> Run:
    x = rand(32, 255, 56, 56).to(memory_format=torch.channels_last)
    w = rand(255, 255, 3, 3).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, w, padding=1)


@planted("alignment", work=[gemm(32768, 2048, 1433), {"op": "relu", "n": 32768 * 2048}, gemm(32768, 1433, 2048)])
def autoencoder_1433_features() -> Run:
    net = nn.Sequential(nn.Linear(1433, 2048), nn.ReLU(), nn.Linear(2048, 1433)).cuda().to(BF16)
    x = rand(32768, 1433)
    return no_grad(lambda: net(x))


@planted("alignment", "fp16", work=[gemm(16384, 333, 4096), gemm(16384, 4096, 333)])
def low_rank_333() -> Run:
    x, down, up = rand(16384, 4096, dtype=FP16), rand(4096, 333, dtype=FP16), rand(333, 4096, dtype=FP16)
    return lambda: x @ down @ up


# --- copies over the host link --------------------------------------------------------------------


@planted("host_copy", work=[gemm(4096, 4096, 4096, count=2)])
def checkpoint_every_step() -> Run:
    net, x = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).cuda().to(BF16), rand(4096, 4096)

    def run() -> object:
        out = net(x)
        return out, {name: value.cpu() for name, value in net.state_dict().items()}

    return no_grad(run)


@planted("host_copy", model="resnet18", batch=64)
def feature_maps_collected() -> Run:
    net, x = resnet18(BF16), images(64, BF16)
    maps: list[torch.Tensor] = []
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        layer.register_forward_hook(lambda _layer, _inputs, out: maps.append(out.detach().cpu()))

    def run() -> object:
        maps.clear()
        return net(x)

    return no_grad(run)


@planted("host_copy", "fp32", op="elementwise", n=2**25, inputs=3, count=3)
def momentum_kept_on_host() -> Run:
    p, g, host = rand(2**25, dtype=FP32), rand(2**25, dtype=FP32), torch.zeros(2**25).pin_memory()

    def run() -> object:
        momentum = host.cuda(non_blocking=True)
        momentum.mul_(0.9).add_(g)
        p.sub_(momentum, alpha=0.01)
        return host.copy_(momentum, non_blocking=True)

    return run


@planted("host_copy", "fp32", op="add", n=4 * 2048 * 4096)
def positions_not_a_buffer() -> Run:
    x, positions = rand(4, 2048, 4096, dtype=FP32), torch.randn(4, 2048, 4096)
    return lambda: x + positions.to(x.device)


@planted("host_copy", model="resnet18", batch=128)
def samples_uploaded_one_by_one() -> Run:
    net, samples = resnet18(BF16), list(torch.randn(128, 3, 224, 224))

    def run() -> object:
        batch = torch.stack([sample.cuda() for sample in samples])
        return net(batch.to(BF16, memory_format=torch.channels_last))

    return no_grad(run)


# --- small kernels, the device waits for the host -------------------------------------------------


@planted("launch_bound", model="vit-b-16", batch=1)
def vit_b1() -> Run:
    import torchvision

    net, x = torchvision.models.vit_b_16().cuda().to(BF16).eval(), rand(1, 3, 224, 224)
    return no_grad(lambda: net(x))


@planted("launch_bound", model="gpt2-medium", phase="decode", batch=1, seq=1, context=256)
def gpt2_medium_decode() -> Run:
    from transformers import DynamicCache

    net, cache = gpt2_medium(BF16), DynamicCache()
    prompt = torch.randint(0, 50000, (1, 256), device="cuda")
    with torch.no_grad():
        net(prompt, past_key_values=cache)

    def run() -> object:
        logits = net(prompt[:, -1:], past_key_values=cache, use_cache=True).logits
        cache.crop(-1)
        return logits

    return no_grad(run)


@planted("launch_bound", "fp32", op="elementwise", n=400 * 128 * 256, inputs=2, count=2)
def average_parameter_by_parameter() -> Run:
    average, weights = rand(400, 128, 256, dtype=FP32).unbind(), rand(400, 128, 256, dtype=FP32).unbind()

    def run() -> object:
        for a, w in zip(average, weights, strict=True):
            a.mul_(0.999).add_(w, alpha=0.001)
        return average

    return run


@planted("launch_bound", "fp32", op="elementwise", n=256 * 3 * 64 * 64, inputs=1, count=2)
def images_normalised_one_by_one() -> Run:
    batch, mean, std = rand(256, 3, 64, 64, dtype=FP32), rand(3, 1, 1, dtype=FP32), rand(3, 1, 1, dtype=FP32)
    return lambda: torch.stack([(image - mean) / std for image in batch])


@planted("launch_bound", work=[gemm(32, 128, 128, count=200), {"op": "elementwise", "n": 32 * 128, "inputs": 2,
                                                               "count": 600}])  # fmt: skip
def ode_stepped_in_python() -> Run:
    net, start, step = nn.Linear(128, 128).cuda().to(BF16), rand(32, 128), 0.02

    def slope(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(net(x))

    def run() -> object:
        x = start
        for _ in range(50):
            k1 = slope(x)
            k2 = slope(x + step / 2 * k1)
            k3 = slope(x + step / 2 * k2)
            k4 = slope(x + step * k3)
            x = x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    return no_grad(run)


# --- a read-back every step -----------------------------------------------------------------------


@planted("sync", work=[gemm(8192, 1024, 4096, count=20), {"op": "argmax", "rows": 8192, "cols": 1024, "count": 20}])
def accuracy_every_batch() -> Run:
    x, w, labels = rand(8192, 4096), rand(1024, 4096), torch.randint(0, 1024, (8192,), device="cuda")

    def run() -> object:
        correct = 0
        for _ in range(20):
            correct += (F.linear(x, w).argmax(1) == labels).sum().item()
        return correct

    return run


@planted("sync", "fp32", op="sum", rows=4096, cols=4096, count=40)
def gradient_norms_logged() -> Run:
    gradients = [rand(4096, 4096, dtype=FP32) for _ in range(40)]
    return lambda: [g.norm().item() for g in gradients]


@planted("sync", work=[gemm(12288, 1, 12288, count=30)])
def power_iteration_until_converged() -> Run:
    a, start = rand(12288, 12288), rand(12288, 1)

    def run() -> object:
        v, size = start, 0.0
        for _ in range(30):
            v = a @ v
            norm = v.norm(dtype=FP32)
            v, before, size = v / norm, size, norm.item()
            if size == before:
                break
        return v

    return run


@planted("sync", work=[{"op": "gelu", "n": 12288 * 4096, "count": 40}])
def trimmed_to_the_longest() -> Run:
    x, lengths = rand(12288, 4096), torch.arange(12225, 12289, device="cuda")
    return lambda: [F.gelu(x[: int(lengths.max())]) for _ in range(40)]


@planted("sync", model="resnet18", batch=128)
def layer_timing_hooks() -> Run:
    net, x = resnet18(BF16), images(128, BF16)
    for layer in net.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda *_: torch.cuda.synchronize())
    return no_grad(lambda: net(x))


# --- the host has other things to do --------------------------------------------------------------


@planted("host_bound", model="resnet18", batch=32)
def jpegs_decoded() -> Run:
    from PIL import Image

    net, file = resnet18(BF16), io.BytesIO()
    waves = np.sin(np.arange(224)[:, None, None] / np.arange(9, 233)[None, :, None] * np.arange(1, 4)) * 127 + 128
    Image.fromarray(waves.astype(np.uint8)).save(file, "jpeg")

    def run() -> object:
        batch = np.stack([np.asarray(Image.open(io.BytesIO(file.getvalue()))) for _ in range(32)])
        return net(torch.from_numpy(batch).cuda().permute(0, 3, 1, 2).to(BF16))

    return no_grad(run)


@planted("host_bound", op="gemm", m=8192, n=4096, k=4096)
def csv_parsed() -> Run:
    x, w = rand(8192, 4096), rand(4096, 4096)
    text = "\n".join(",".join(f"{value:.4f}" for value in row) for row in np.random.rand(4000, 16))

    def run() -> object:
        [[float(cell) for cell in row] for row in csv.reader(io.StringIO(text))]
        return F.linear(x, w)

    return run


@planted("host_bound", op="gemm", m=16, n=32000, k=4096)
def repeated_words_banned() -> Run:
    hidden, head = rand(16, 4096), rand(32000, 4096)
    written = np.random.randint(0, 32000, (16, 1000)).tolist()

    def run() -> object:
        for tokens in written:
            banned: dict[tuple[int, int], list[int]] = {}
            for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
                banned.setdefault((first, second), []).append(third)
        return F.linear(hidden, head)

    return run


@planted("host_bound", op="gemm", m=8192, n=8192, k=2048)
def order_shuffled_every_step() -> Run:
    a, b, order = rand(8192, 2048), rand(2048, 8192), list(range(30000))

    def run() -> object:
        random.shuffle(order)
        return a @ b

    return run


# --- work that nobody asked for -------------------------------------------------------------------


@planted("wasted_work", work=[gemm(8192, 32, 8192, count=2)])
def product_in_the_wrong_order() -> Run:
    a, b, thin = rand(8192, 8192), rand(8192, 8192), rand(8192, 32)
    return lambda: a @ b @ thin


@planted("wasted_work", op="bmm", b=16, m=8192, n=512, k=512)
def block_diagonal_as_dense() -> Run:
    x, w = rand(8192, 8192), torch.block_diag(*rand(16, 512, 512))
    return lambda: x @ w


@planted("wasted_work", work=[gemm(8192, 4096, 4096, count=4)])
def backward_in_validation() -> Run:
    net, x = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda().to(BF16), rand(8192, 4096)

    def run() -> object:
        net.zero_grad()
        loss = net(x).sum()
        loss.backward()
        return loss

    return run


@planted("wasted_work", op="embedding", vocab=32768, dim=256, tokens=8 * 32768)
def dense_adjacency() -> Run:
    neighbours = torch.randint(0, 32768, (32768, 8), device="cuda")
    adjacency = torch.zeros(32768, 32768, device="cuda", dtype=BF16).scatter_(1, neighbours, 1.0)
    x = rand(32768, 256)
    return lambda: adjacency @ x


# --- copies that change the layout ----------------------------------------------------------------


@planted("layout_copy", op="layernorm", rows=64 * 56 * 56, cols=256)
def norm_over_channels() -> Run:
    x, w, b = rand(64, 256, 56, 56), rand(256), rand(256)

    def run() -> object:
        out = F.layer_norm(x.permute(0, 2, 3, 1).contiguous(), (256,), w, b)
        return out.permute(0, 3, 1, 2).contiguous()

    return run


@planted("layout_copy", op="bmm", b=256, m=64, n=4096, k=128)
def keys_transposed_for_bmm() -> Run:
    q, k = rand(256, 64, 128), rand(256, 4096, 128)
    return lambda: torch.bmm(q, k.transpose(1, 2).contiguous())


@planted("layout_copy", op="sum", rows=64 * 1024, cols=4096)
def time_moved_last_to_sum() -> Run:
    x = rand(64, 4096, 1024)
    return lambda: x.transpose(1, 2).contiguous().sum(-1)


@planted("layout_copy", work=[gemm(65536, 512, 512)])
def conv1d_between_tokens() -> Run:
    net, x = nn.Conv1d(512, 512, 1).cuda().to(BF16), rand(32, 2048, 512)
    return no_grad(lambda: net(x.transpose(1, 2).contiguous()).transpose(1, 2).contiguous())


# --- scattered reads ------------------------------------------------------------------------------


@planted("uncoalesced", op="add", n=2**28)
def added_to_its_transpose() -> Run:
    a, b = rand(16384, 16384), rand(16384, 16384)
    return lambda: a + b.t()


@planted("uncoalesced", "fp32", op="gather", table=2**28, n=2**24)
def gather_down_the_columns() -> Run:
    x = rand(65536, 4096, dtype=FP32)
    index = torch.randint(0, 65536, (4096, 4096), device="cuda")
    return lambda: torch.gather(x, 0, index)


@planted("uncoalesced", "fp32", op="gather", table=2**29, n=2**24)
def voxel_lookup() -> Run:
    volume = rand(1024, 1024, 512, dtype=FP32)
    x, y, z = (torch.randint(0, size, (2**24,), device="cuda") for size in volume.shape)
    return lambda: volume[x, y, z]


@planted("uncoalesced", "fp32", op="gather", table=2**28, n=2**24)
def points_splatted() -> Run:
    depth, points = torch.full((2**28,), 1e9, device="cuda"), rand(2**24, dtype=FP32)
    pixels = torch.randint(0, 2**28, (2**24,), device="cuda")
    return lambda: depth.scatter_reduce_(0, pixels, points, "amin")


# --- growing by copying ---------------------------------------------------------------------------


@planted("reallocation", work=[gemm(32, 6144, 4096, count=4), attention(32, 32, 8, 1, 4098, 128, False),
                               attention(32, 32, 8, 1, 4098, 128, False), attention(32, 32, 8, 1, 4098, 128, False),
                               attention(32, 32, 8, 1, 4098, 128, False), gemm(32, 4096, 4096, count=4)])  # fmt: skip
def four_tokens_with_cat() -> Run:
    start, w_in, w_out = rand(32, 1, 4096), rand(6144, 4096) / 64, rand(4096, 4096) / 64
    old_k, old_v = rand(32, 8, 4096, 128), rand(32, 8, 4096, 128)

    def run() -> object:
        x, keys, values = start, old_k, old_v
        for _ in range(4):
            q, k, v = F.linear(x, w_in).view(32, 1, 48, 128).transpose(1, 2).split((32, 8, 8), 1)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            out = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            x = F.linear(out.transpose(1, 2).reshape(32, 1, 4096), w_out)
        return x

    return run


@planted("reallocation", op="copy", n=8 * 2**17)
def buffer_rolled() -> Run:
    start, fresh = rand(1024, 2**17), rand(2**17)

    def run() -> object:
        buffer = start
        for _ in range(8):
            buffer = torch.roll(buffer, -1, 0)
            buffer[-1] = fresh
        return buffer

    return run


@planted("reallocation", op="copy", n=(8192 - 24) * 8192)
def rows_deleted_one_by_one() -> Run:
    start = rand(8192, 8192)

    def run() -> object:
        rows = start
        for i in range(24):
            rows = torch.cat([rows[: 300 * i], rows[300 * i + 1 :]])
        return rows

    return run


@planted("reallocation", work=[gemm(2048, 4096, 4096, count=8)])
def cache_emptied_after_every_layer() -> Run:
    layers, x = [nn.Linear(4096, 4096).cuda().to(BF16) for _ in range(8)], rand(2048, 4096)

    def run() -> object:
        out = x
        for layer in layers:
            out = layer(out)
            torch.cuda.empty_cache()
        return out

    return no_grad(run)


# --- on the processor by accident -----------------------------------------------------------------


@planted("wrong_device", "fp32", op="layernorm", rows=8192, cols=4096)
def layernorm_on_cpu() -> Run:
    net, x = nn.LayerNorm(4096), torch.randn(8192, 4096)
    return no_grad(lambda: net(x))


@planted("wrong_device", "fp32", model="bert-base-uncased", batch=2, seq=64)
def bert_on_cpu() -> Run:
    from transformers import BertConfig, BertModel

    net, ids = BertModel(BertConfig()).eval(), torch.randint(0, 30000, (2, 64))
    return no_grad(lambda: net(ids))


@planted("wrong_device", "fp32", op="embedding", vocab=500_000, dim=256, tokens=2**18)
def bags_averaged_on_cpu() -> Run:
    net, ids = nn.EmbeddingBag(500_000, 256, mode="mean"), torch.randint(0, 500_000, (2048, 128))
    return no_grad(lambda: net(ids).cuda())


@planted("wrong_device", "fp32", work=[gemm(4096, 4096, 256), {"op": "argmax", "rows": 4096, "cols": 4096}])
def nearest_neighbours_on_cpu() -> Run:
    features = rand(4096, 256, dtype=FP32)

    def run() -> object:
        near = features.cpu()
        return (near @ near.t()).fill_diagonal_(-1e9).argmax(1).cuda()

    return run
