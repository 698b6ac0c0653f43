"""A fourth set of programs with a known cause of slowness, to judge ``roofline check`` blindly.

The siblings that the reference set of 17 probably has: the same mistakes in other shapes, formats and operators.
Written by someone who saw the first set (``first``), the reference and none of the diagnosis; measured and traced
in the same way. The label names the cause of at least two thirds of the time above what the work needs.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import BF16, FP16, FP32, Run, attention, gemm, no_grad, planted, rand, resnet_net
from torch import nn


def bert() -> Any:
    """BERT base in bf16."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval().cuda().to(BF16)


def ids(batch: int, seq: int) -> torch.Tensor:
    """Tokens."""
    return torch.zeros(batch, seq, dtype=torch.int64, device="cuda")


# --- nothing wrong --------------------------------------------------------------------------------


@planted("ok", "fp16", op="gemm", m=8192, n=8192, k=8192)
def matmul_fp16() -> Run:
    a, b = rand(8192, 8192, dtype=FP16), rand(8192, 8192, dtype=FP16)
    return lambda: a @ b.t()


@planted("ok", op="bmm", b=64, m=1024, n=1024, k=1024)
def bmm_bf16() -> Run:
    a, b = rand(64, 1024, 1024), rand(64, 1024, 1024)
    return lambda: torch.bmm(a, b)


@planted("ok", op="gemm", m=1, n=16384, k=16384)
def gemv_decode() -> Run:
    x, w = rand(1, 16384), rand(16384, 16384)
    return lambda: F.linear(x, w)


@planted("ok", op="gelu", n=2**27)
def gelu_fused() -> Run:
    x = rand(2**27)
    return lambda: F.gelu(x)


@planted("ok", "fp32", op="softmax", rows=16384, cols=8192)
def softmax_fp32() -> Run:
    x = rand(16384, 8192, dtype=FP32)
    return lambda: x.softmax(-1)


@planted("ok", "fp32", op="sum", rows=65536, cols=4096)
def row_sums() -> Run:
    x = rand(65536, 4096, dtype=FP32)
    return lambda: x.sum(-1)


@planted("ok", "fp16", op="layernorm", rows=131072, cols=1024)
def layernorm_fp16() -> Run:
    x, w, b = rand(131072, 1024, dtype=FP16), rand(1024, dtype=FP16), rand(1024, dtype=FP16)
    return lambda: F.layer_norm(x, (1024,), w, b)


@planted("ok", op="elementwise", n=2**27, inputs=1, count=2)
def bias_gelu_compiled() -> Run:
    x, b = rand(2**14, 2**13), rand(2**13)
    fused = torch.compile(lambda x, b: F.gelu(x + b))
    return lambda: fused(x, b)


@planted("ok", work=[gemm(32, 8192, 8192, count=8)])
def decode_layers_cuda_graph() -> Run:
    weights, x = [rand(8192, 8192) / 90 for _ in range(8)], rand(32, 8192)

    def layers() -> torch.Tensor:
        out = x
        for w in weights:
            out = F.linear(out, w)
        return out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layers()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layers()

    def run() -> object:
        graph.replay()
        return out

    return run


@planted("ok", op="conv2d", n=64, c_in=512, h=28, w=28, c_out=2048, r=1, s=1, stride=1)
def conv_1x1_channels_last() -> Run:
    x = rand(64, 512, 28, 28).to(memory_format=torch.channels_last)
    w = rand(2048, 512, 1, 1).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, w)


@planted("ok", work=[attention(1, 32, 32, 16384, 16384, 128, True)])
def attention_sdpa_long() -> Run:
    q, k, v = (rand(1, 32, 16384, 128) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@planted("ok", "fp16", work=[attention(64, 12, 12, 512, 512, 64, False)])
def attention_sdpa_fp16() -> Run:
    q, k, v = (rand(64, 12, 512, 64, dtype=FP16) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v)


@planted("ok", model="bert-base-uncased", batch=32, seq=512)
def bert_compiled() -> Run:
    net, x = torch.compile(bert()), ids(32, 512)
    return no_grad(lambda: net(x))


@planted("ok", model="resnet50", batch=128)
def resnet50_compiled() -> Run:
    net = torch.compile(resnet_net(BF16))
    x = rand(128, 3, 224, 224).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("ok", work=[gemm(8192, 4096, 4096, count=5), {"op": "relu", "n": 8192 * 4096},
                     {"op": "elementwise", "n": 8192 * 4096, "inputs": 2, "count": 1}])  # fmt: skip
def mlp_training_step() -> Run:
    net = nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.ReLU(), nn.Linear(4096, 4096, bias=False))
    net.cuda().to(BF16)
    x, grad = rand(8192, 4096), rand(8192, 4096)

    def run() -> object:
        net.zero_grad(set_to_none=True)
        net(x).backward(grad)
        return net[0].weight.grad

    return run


# --- a chain that should be one kernel ------------------------------------------------------------


@planted("unfused", op="silu", n=2**26)
def silu_by_hand() -> Run:
    x = rand(2**26)
    return lambda: x / (1 + torch.exp(-x))


@planted("unfused", "fp32", op="softmax", rows=8192, cols=8192)
def log_softmax_by_hand() -> Run:
    x = rand(8192, 8192, dtype=FP32)

    def run() -> object:
        shifted = x - x.amax(-1, keepdim=True)
        return shifted - shifted.exp().sum(-1, keepdim=True).log()

    return run


@planted("unfused", "fp32", op="elementwise", n=2**26, inputs=4, count=1)
def sgd_momentum_by_hand() -> Run:  # reads three tensors and writes two: as much as four inputs and one output
    p, g, m = (rand(2**26, dtype=FP32) for _ in "pgm")

    def run() -> object:
        decayed = g + 0.01 * p
        m.mul_(0.9).add_(decayed)
        return p.sub_(0.001 * m)

    return run


@planted("unfused", "fp16", op="elementwise", n=2**26, inputs=1, count=8)
def polynomial_by_hand() -> Run:
    x = rand(2**26, dtype=FP16)
    return lambda: (((x * 0.1 + 0.2) * x + 0.3) * x + 0.4) * x + 0.5


# --- attention scores written out -----------------------------------------------------------------


@planted("materialised", work=[attention(1, 16, 16, 8192, 8192, 128, False)])
def attention_naive_long() -> Run:
    q, k, v = (rand(1, 16, 8192, 128) for _ in "qkv")
    return lambda: (q @ k.transpose(-1, -2) * 128**-0.5).softmax(-1) @ v


@planted("materialised", "fp16", work=[attention(32, 16, 16, 512, 2048, 64, False)])
def cross_attention_naive() -> Run:
    q, k, v = (rand(32, 16, length, 64, dtype=FP16) for length in (512, 2048, 2048))
    return lambda: torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


@planted("materialised", work=[attention(8, 16, 1, 2048, 2048, 64, True)])
def attention_naive_one_kv_head() -> Run:
    q, k, v = rand(8, 16, 2048, 64), rand(8, 1, 2048, 64), rand(8, 1, 2048, 64)
    mask = torch.full((2048, 2048), float("-inf"), device="cuda", dtype=BF16).triu(1)
    return lambda: (q @ k.transpose(-1, -2) * 0.125 + mask).softmax(-1, dtype=FP32).to(BF16) @ v


# --- a slower format than meant -------------------------------------------------------------------


@planted("precision", "fp64", op="gemm", m=4096, n=2048, k=4096)
def linear_fp64() -> Run:
    x, w = rand(4096, 4096, dtype=torch.float64), rand(2048, 4096, dtype=torch.float64)
    return lambda: F.linear(x, w)


@planted("precision", "fp32", work=[gemm(4096, 5632, 2048, count=2), {"op": "swiglu", "rows": 4096, "cols": 5632},
                                    gemm(4096, 2048, 5632)])  # fmt: skip
def llama_mlp_fp32() -> Run:
    x, gate, up, down = (rand(rows, cols, dtype=FP32) for rows, cols in
                         ((4096, 2048), (5632, 2048), (5632, 2048), (2048, 5632)))  # fmt: skip
    return lambda: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@planted("precision", "fp32", model="resnet50", batch=128)
def resnet50_fp32_no_tf32() -> Run:
    net = resnet_net(FP32)
    x = rand(128, 3, 224, 224, dtype=FP32).to(memory_format=torch.channels_last)

    def run() -> object:
        torch.backends.cudnn.allow_tf32 = False
        out = net(x)
        torch.backends.cudnn.allow_tf32 = True
        return out

    return no_grad(run)


# --- leading dimension not a multiple of 8 --------------------------------------------------------


@planted("alignment", op="gemm", m=4096, n=4095, k=4096)
def matmul_odd_n() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4095)
    return lambda: a @ b


@planted("alignment", "fp16", op="gemm", m=16384, n=4096, k=1025)
def linear_1025_features() -> Run:
    x, w = rand(16384, 1025, dtype=FP16), rand(4096, 1025, dtype=FP16)
    return lambda: F.linear(x, w)


@planted("alignment", op="gemm", m=4097, n=4096, k=4096)
def transposed_odd_m() -> Run:
    a, b = rand(4096, 4097), rand(4096, 4096)
    return lambda: a.t() @ b


# --- copies over the host link --------------------------------------------------------------------


@planted("host_copy", op="gemm", m=512, n=16384, k=4096)
def weights_from_host() -> Run:
    x, w = rand(512, 4096), torch.randn(16384, 4096).to(BF16)
    return lambda: F.linear(x, w.cuda())


@planted("host_copy", op="gemm", m=16384, n=1024, k=8192)
def pinned_input_every_step() -> Run:
    x, w = torch.randn(16384, 8192).to(BF16).pin_memory(), rand(1024, 8192)
    return lambda: F.linear(x.to("cuda", non_blocking=True), w)


@planted("host_copy", work=[gemm(8192, 4096, 4096, count=2)])
def activations_round_trip() -> Run:
    x, first, second = rand(8192, 4096), rand(4096, 4096), rand(4096, 4096)
    return lambda: F.linear(F.linear(x, first).cpu().cuda(), second)


# --- small kernels, the device waits for the host -------------------------------------------------


@planted("launch_bound", work=[attention(8, 16, 16, 128, 128, 64, False)])
def attention_head_by_head() -> Run:
    q, k, v = (rand(128, 1, 1, 128, 64) for _ in "qkv")
    return lambda: torch.cat([F.scaled_dot_product_attention(q[i], k[i], v[i]) for i in range(128)])


@planted("launch_bound", work=[gemm(32, 512, 512, count=512), {"op": "add", "n": 32 * 512, "count": 256},
                               {"op": "relu", "n": 32 * 512, "count": 256}])  # fmt: skip
def rnn_in_python_loop() -> Run:
    x, w, u = rand(256, 32, 512), rand(512, 512) / 32, rand(512, 512) / 32

    def run() -> object:
        state = x[0]
        for step in x:
            state = (step @ w + state @ u).relu()
        return state

    return run


@planted("launch_bound", model="resnet18", batch=1)
def resnet18_b1_eager() -> Run:
    import torchvision

    net = torchvision.models.resnet18().cuda().to(BF16, memory_format=torch.channels_last).eval()
    x = rand(1, 3, 224, 224).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("launch_bound", model="roberta-base", batch=1, seq=128)
def roberta_b1_eager() -> Run:
    from transformers import RobertaConfig, RobertaModel

    net, x = RobertaModel(RobertaConfig()).eval().cuda().to(BF16), ids(1, 128)
    return no_grad(lambda: net(x))


# --- a read-back every step -----------------------------------------------------------------------


@planted("sync", work=[gemm(2560, 2560, 2560, count=30)])
def branch_on_a_tensor() -> Run:
    a, b = rand(2560, 2560), rand(2560, 2560)

    def run() -> object:
        for _ in range(30):
            out = a @ b
            if out[0, 0] > 1e6:
                break
        return out

    return run


@planted("sync", op="layernorm", rows=8192, cols=4096, count=40)
def print_every_step() -> Run:
    x, log = rand(8192, 4096), io.StringIO()

    def run() -> object:
        out = x
        for _ in range(40):
            out = F.layer_norm(out, (4096,))
            print(f"{out[0, 0]:.3f}", file=log)
        return out

    return run


@planted("sync", work=[gemm(2048, 2048, 2048, count=24)])
def synchronise_every_layer() -> Run:
    weights, x = [rand(2048, 2048) / 45 for _ in range(24)], rand(2048, 2048)

    def run() -> object:
        out = x
        for w in weights:
            out = F.linear(out, w)
            torch.cuda.synchronize()
        return out

    return run


# --- the host has other things to do --------------------------------------------------------------


@planted("host_bound", "fp16", op="conv2d", n=32, c_in=3, h=224, w=224, c_out=64, r=7, s=7, stride=2, padding=3)
def numpy_normalised_batch() -> Run:
    raw = np.random.randint(0, 256, (32, 224, 224, 3), dtype=np.uint8)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    w = rand(64, 3, 7, 7, dtype=FP16)

    def run() -> object:
        batch = ((raw.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)
        x = torch.from_numpy(np.ascontiguousarray(batch, dtype=np.float16)).cuda()
        return F.conv2d(x, w, stride=2, padding=3)

    return run


@planted("host_bound", op="embedding", vocab=32000, dim=2048, tokens=65536)
def words_looked_up_in_python() -> Run:
    table = rand(32000, 2048)
    vocabulary = {f"word{i}": i for i in range(32000)}
    text = " ".join(f"word{i * 7919 % 32000}" for i in range(65536))
    return lambda: F.embedding(torch.tensor([vocabulary.get(word, 0) for word in text.split()], device="cuda"), table)


@planted("host_bound", op="gemm", m=4096, n=4096, k=4096)
def pickled_samples() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)
    stored = pickle.dumps(
        [{"id": i, "tokens": [j + 300 for j in range(64)], "text": f"sample {i}"} for i in range(4000)]
    )

    def run() -> object:
        samples = pickle.loads(stored)
        max(len(sample["tokens"]) for sample in samples)
        return a @ b

    return run


# --- work that nobody asked for -------------------------------------------------------------------


@planted("wasted_work", op="copy", n=8192 * 4096)
def identity_matmul() -> Run:
    eye, x = torch.eye(8192, device="cuda", dtype=BF16), rand(8192, 4096)
    return lambda: eye @ x


@planted("wasted_work", op="add", n=32768 * 256)
def segment_sum_by_one_hot() -> Run:
    x = rand(32768, 256)
    matrix = F.one_hot(torch.randint(0, 8192, (32768,), device="cuda"), 8192).to(BF16)
    return lambda: matrix.t() @ x


@planted("wasted_work", op="conv2d", n=64, c_in=256, h=56, w=56, c_out=256, r=3, s=3, stride=1, padding=1, groups=256)
def depthwise_as_dense_conv() -> Run:
    x = rand(64, 256, 56, 56).to(memory_format=torch.channels_last)
    w = rand(256, 256, 3, 3) * torch.eye(256, device="cuda", dtype=BF16)[:, :, None, None]
    w = w.to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, w, padding=1)


@planted("wasted_work", model="bert-base-uncased", batch=128, seq=64)
def bert_padded_to_512() -> Run:
    net, x, mask = bert(), ids(128, 512), ids(128, 512)
    mask[:, :64] = 1
    return no_grad(lambda: net(x, attention_mask=mask).last_hidden_state[:, :64])


# --- copies that change the layout ----------------------------------------------------------------


@planted("layout_copy", work=[gemm(16384, 1024, 1024, count=4)])
def features_first_linears() -> Run:
    weights, x = [rand(1024, 1024) / 32 for _ in range(4)], rand(1024, 16384)

    def run() -> object:
        out = x
        for w in weights:
            out = F.linear(out.t().contiguous(), w).t().contiguous()
        return out

    return run


@planted("layout_copy", "fp32", op="softmax", rows=8192, cols=8192)
def softmax_over_the_first_axis() -> Run:
    x = rand(8192, 8192, dtype=FP32)
    return lambda: x.t().contiguous().softmax(-1).t().contiguous()


@planted("layout_copy", work=[attention(32, 32, 8, 1, 4096, 128, False)])
def decode_cache_permuted() -> Run:
    q, k, v = rand(32, 32, 1, 128), rand(32, 4096, 8, 128), rand(32, 4096, 8, 128)

    def run() -> object:
        keys, values = k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    return run


# --- scattered reads ------------------------------------------------------------------------------


@planted("uncoalesced", "fp32", op="gather", table=2**26, n=2**26)
def flat_permutation() -> Run:
    x, order = rand(2**26, dtype=FP32), torch.randperm(2**26, device="cuda")
    return lambda: x[order]


@planted("uncoalesced", op="copy", n=2**26)
def every_sixteenth() -> Run:
    x = rand(2**30)
    return lambda: x[::16].contiguous()


@planted("uncoalesced", "fp32", op="mul_scalar", n=2**26)
def one_field_of_eight() -> Run:
    records = rand(2**26, 8, dtype=FP32)
    return lambda: records[:, 3] * 2


# --- growing by copying ---------------------------------------------------------------------------


@planted("reallocation", work=[{**attention(16, 32, 8, 1, 4096, 128, False), "count": 4}])
def kv_cache_cat() -> Run:
    q, new = rand(16, 32, 1, 128), rand(16, 8, 1, 128)
    layers = [(rand(16, 8, 4095, 128), rand(16, 8, 4095, 128)) for _ in range(4)]

    def run() -> object:
        out = q
        for k, v in layers:
            k, v = torch.cat([k, new], 2), torch.cat([v, new], 2)
            out = F.scaled_dot_product_attention(out, k, v, enable_gqa=True)
        return out

    return run


@planted("reallocation", op="copy", n=64 * 2**20)
def history_stacked_every_step() -> Run:
    token = rand(256, 4096)

    def run() -> object:
        history = []
        for _ in range(64):
            history.append(token)
            out = torch.stack(history)
        return out

    return run


@planted("reallocation", op="gemm", m=256, n=65536, k=1024)
def memory_bank_shifted() -> Run:
    bank, new = rand(65536, 1024), rand(256, 1024)

    def run() -> object:
        nonlocal bank
        bank = torch.cat([bank[256:], new])
        return F.linear(new, bank)

    return run


# --- on the processor by accident -----------------------------------------------------------------


@planted("wrong_device", "fp32", op="bmm", b=64, m=512, n=512, k=256)
def bmm_on_cpu() -> Run:
    a, b = torch.randn(64, 512, 256), torch.randn(64, 256, 512)
    return lambda: torch.bmm(a, b)


@planted("wrong_device", "fp32", op="argmax", rows=1024, cols=32000)
def argmax_on_cpu() -> Run:
    logits = torch.randn(1024, 32000)
    return lambda: logits.argmax(-1)


@planted("wrong_device", "fp32", work=[gemm(1024, 4096, 1024), {"op": "gelu", "n": 1024 * 4096},
                                       gemm(1024, 1024, 4096)])  # fmt: skip
def mlp_never_moved() -> Run:
    net, x = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)), torch.randn(1024, 1024)
    return no_grad(lambda: net(x))
