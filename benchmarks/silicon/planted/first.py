"""The first set of programs with a known cause of slowness. Each makes its tensors and returns one iteration."""

from __future__ import annotations

import json
import time

import numpy as np
import torch
import torch.nn.functional as F
from common import BF16, FP16, FP32, Run, bert, gemm, gpt2, no_grad, planted, rand, resnet, resnet_net
from torch import nn

# --- nothing wrong ---


@planted("ok", op="gemm", m=4096, n=4096, k=4096)
def matmul_4096() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)
    return lambda: a @ b


@planted("ok", "fp16", op="gemm", m=8192, n=2048, k=4096)
def linear_fp16() -> Run:
    a, b = rand(8192, 4096, dtype=FP16), rand(2048, 4096, dtype=FP16)
    return lambda: F.linear(a, b)


@planted("ok", "tf32", op="gemm", m=4096, n=4096, k=4096)
def matmul_tf32() -> Run:
    a, b = rand(4096, 4096, dtype=FP32), rand(4096, 4096, dtype=FP32)

    def run() -> object:
        torch.backends.cuda.matmul.allow_tf32 = True
        out = a @ b
        torch.backends.cuda.matmul.allow_tf32 = False
        return out

    return run


@planted("ok", op="gemm", m=16, n=16384, k=16384)
def decode_gemm() -> Run:
    a, b = rand(16, 16384), rand(16384, 16384)
    return lambda: F.linear(a, b)


@planted("ok", op="layernorm", rows=16384, cols=8192)
def layernorm() -> Run:
    x, w, b = rand(16384, 8192), rand(8192), rand(8192)
    return lambda: F.layer_norm(x, (8192,), w, b)


@planted("ok", op="softmax", rows=32768, cols=2048)
def softmax() -> Run:
    x = rand(32768, 2048)
    return lambda: x.softmax(-1)


@planted("ok", op="attention", batch=4, heads=32, kv_heads=32, q_len=4096, kv_len=4096, head_dim=128, causal=True)
def attention_causal() -> Run:
    q, k, v = (rand(4, 32, 4096, 128) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@planted("ok", op="attention", batch=64, heads=32, kv_heads=8, q_len=1, kv_len=4096, head_dim=128, causal=False)
def attention_decode() -> Run:
    q, k, v = rand(64, 32, 1, 128), rand(64, 8, 4096, 128), rand(64, 8, 4096, 128)
    return lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@planted("ok", op="conv2d", n=64, c_in=256, h=56, w=56, c_out=256, r=3, s=3, stride=1, padding=1)
def conv_channels_last() -> Run:
    x = rand(64, 256, 56, 56).to(memory_format=torch.channels_last)
    w = rand(256, 256, 3, 3).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, w, padding=1)


@planted("ok", op="add", n=2**27)
def plain_add() -> Run:
    a, b = rand(2**27), rand(2**27)
    return lambda: a + b


@planted("ok", "fp32", op="copy", n=2**27)
def plain_copy() -> Run:
    a = rand(2**27, dtype=FP32)
    return lambda: a.clone()


@planted("ok", op="embedding", vocab=32000, dim=4096, tokens=65536)
def embedding() -> Run:
    table, index = rand(32000, 4096), torch.randint(0, 32000, (65536,), device="cuda")
    return lambda: F.embedding(index, table)


@planted("ok", op="elementwise", n=2**27, inputs=1, count=6)
def chain_compiled_bf16() -> Run:
    x = rand(2**27)
    chain = torch.compile(lambda x: (((x * 2 + 1).relu() * 0.5).tanh()) - 1)
    return lambda: chain(x)


@planted("ok", model="resnet50", batch=128)
def resnet50_b128() -> Run:
    return resnet(128, BF16)


@planted("alignment", model="gpt2", batch=16, seq=1024)
def gpt2_b16() -> Run:
    return gpt2(16, 1024)


@planted("ok", model="vit-b-16", batch=128)
def vit_b128() -> Run:
    import torchvision

    net = torchvision.models.vit_b_16().cuda().to(BF16).eval()
    x = rand(128, 3, 224, 224)
    return no_grad(lambda: net(x))


@planted("ok", work=[gemm(8192, 4096, 4096), {"op": "gelu", "n": 8192 * 4096}, gemm(8192, 4096, 4096)])
def mlp() -> Run:
    net = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).cuda().to(BF16)
    x = rand(8192, 4096)
    return no_grad(lambda: net(x))


# --- a chain that should be one kernel ---


@planted("unfused", op="elementwise", n=2**26, inputs=1, count=8)
def chain_of_eight() -> Run:
    x = rand(2**26)
    return lambda: ((((x * 2 + 1).relu() * 0.5).tanh()) - 1).sigmoid() * 3


@planted("unfused", op="layernorm", rows=16384, cols=4096)
def layernorm_by_hand() -> Run:
    x, w, b = rand(16384, 4096), rand(4096), rand(4096)

    def run() -> object:
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-5) * w + b

    return run


@planted("unfused", op="rmsnorm", rows=32768, cols=4096)
def rmsnorm_by_hand() -> Run:
    x, w = rand(32768, 4096), rand(4096)

    def run() -> object:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16) * w

    return run


@planted("unfused", "fp32", op="softmax", rows=16384, cols=4096)
def softmax_by_hand() -> Run:
    x = rand(16384, 4096, dtype=FP32)

    def run() -> object:
        e = torch.exp(x - x.max(-1, keepdim=True).values)
        return e / e.sum(-1, keepdim=True)

    return run


@planted("unfused", op="swiglu", rows=16384, cols=8192)
def swiglu_by_hand() -> Run:
    g, u = rand(16384, 8192), rand(16384, 8192)
    return lambda: g * (1 / (1 + torch.exp(-g))) * u


@planted("unfused", op="elementwise", n=2**26, inputs=2, count=3)
def bias_gelu_residual() -> Run:
    x, r, b = rand(2**14, 2**12), rand(2**14, 2**12), rand(2**12)
    return lambda: F.gelu(x + b) * 0.5 + r


@planted("unfused", "fp32", op="elementwise", n=2**26, inputs=4, count=1)
def adam_by_hand() -> Run:
    p, g, m, v = (rand(2**26, dtype=FP32) for _ in "pgmv")

    def run() -> object:
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        return p.addcdiv_(m, v.abs().sqrt().add_(1e-8), value=-1e-3)

    return run


# --- attention scores written out ---


@planted("materialised", "fp16", op="attention", batch=1, heads=32, kv_heads=32, q_len=4096, kv_len=4096, head_dim=128,
         causal=False)  # fmt: skip
def naive_fp16() -> Run:
    q, k, v = (rand(1, 32, 4096, 128, dtype=FP16) for _ in "qkv")
    return lambda: (q @ k.transpose(-1, -2) / 128**0.5).softmax(-1) @ v


@planted("materialised", op="attention", batch=4, heads=16, kv_heads=16, q_len=2048, kv_len=2048, head_dim=128,
         causal=True)  # fmt: skip
def naive_causal() -> Run:
    q, k, v = (rand(4, 16, 2048, 128) for _ in "qkv")
    mask = torch.ones(2048, 2048, device="cuda", dtype=torch.bool).triu(1)

    def run() -> object:
        scores = (q @ k.transpose(-1, -2) * 128**-0.5).masked_fill(mask, float("-inf"))
        return scores.float().softmax(-1).to(BF16) @ v

    return run


@planted("materialised", op="attention", batch=2, heads=32, kv_heads=8, q_len=2048, kv_len=2048, head_dim=128,
         causal=False)  # fmt: skip
def naive_gqa() -> Run:
    q, k, v = rand(2, 32, 2048, 128), rand(2, 8, 2048, 128), rand(2, 8, 2048, 128)

    def run() -> object:
        wide_k, wide_v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        return torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, wide_k) * 128**-0.5, -1) @ wide_v

    return run


@planted("materialised", op="attention", batch=16, heads=12, kv_heads=12, q_len=1024, kv_len=1024, head_dim=64,
         causal=False)  # fmt: skip
def naive_with_bias() -> Run:
    q, k, v = (rand(16, 12, 1024, 64) for _ in "qkv")
    bias = rand(1, 12, 1024, 1024)
    return lambda: (q @ k.transpose(-1, -2) * 0.125 + bias).softmax(-1) @ v


# --- a slower format than meant ---


@planted("precision", "fp64", op="gemm", m=4096, n=4096, k=4096)
def matmul_fp64() -> Run:
    a, b = rand(4096, 4096, dtype=torch.float64), rand(4096, 4096, dtype=torch.float64)
    return lambda: a @ b


@planted("precision", "bf16", op="gemm", m=4096, n=4096, k=4096)
def matmul_upcast() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)
    return lambda: (a.float() @ b.float()).to(BF16)


@planted("precision", "fp32", op="bmm", b=64, m=1024, n=1024, k=512)
def bmm_fp32() -> Run:
    a, b = rand(64, 1024, 512, dtype=FP32), rand(64, 512, 1024, dtype=FP32)
    return lambda: torch.bmm(a, b)


@planted("precision", "fp32", op="conv2d", n=32, c_in=256, h=56, w=56, c_out=256, r=3, s=3, stride=1, padding=1)
def conv_fp32() -> Run:
    x, w = rand(32, 256, 56, 56, dtype=FP32), rand(256, 256, 3, 3, dtype=FP32)

    def run() -> object:
        torch.backends.cudnn.allow_tf32 = False
        out = F.conv2d(x, w, padding=1)
        torch.backends.cudnn.allow_tf32 = True
        return out

    return run


@planted("precision", "fp32", work=[gemm(8192, 4096, 1024), gemm(8192, 1024, 4096)])
def mlp_fp32() -> Run:
    net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    x = rand(8192, 1024, dtype=FP32)
    return no_grad(lambda: net(x))


@planted("precision", "fp32", model="bert-base-uncased", batch=32, seq=256)
def bert_fp32() -> Run:
    return bert(32, 256, FP32)


# --- leading dimension not a multiple of 8 ---


@planted("alignment", op="gemm", m=4096, n=4096, k=4095)
def matmul_odd_k() -> Run:
    a, b = rand(4096, 4095), rand(4095, 4096)
    return lambda: a @ b


@planted("alignment", op="gemm", m=8192, n=50257, k=768)
def vocabulary_head() -> Run:
    a, b = rand(8192, 768), rand(768, 50257)
    return lambda: a @ b


@planted("alignment", "fp16", op="gemm", m=2047, n=2047, k=2047, count=1)
def matmul_odd_2047_fp16() -> Run:
    a, b = rand(2047, 2047, dtype=FP16), rand(2047, 2047, dtype=FP16)
    return lambda: a @ b


@planted("alignment", op="bmm", b=32, m=1023, n=1023, k=1023)
def bmm_odd() -> Run:
    a, b = rand(32, 1023, 1023), rand(32, 1023, 1023)
    return lambda: torch.bmm(a, b)


@planted("alignment", op="gemm", m=8191, n=8191, k=8191)
def matmul_odd_8191() -> Run:
    a, b = rand(8191, 8191), rand(8191, 8191)
    return lambda: a @ b


# --- copies over the host link ---


@planted("host_copy", op="gemm", m=4096, n=4096, k=4096)
def input_from_host() -> Run:
    a, b = torch.randn(4096, 4096).to(BF16), rand(4096, 4096)
    return lambda: a.cuda() @ b


@planted("host_copy", op="gemm", m=8192, n=8192, k=1024)
def output_to_host() -> Run:
    a, b = rand(8192, 1024), rand(1024, 8192)
    return lambda: (a @ b).cpu()


@planted("host_copy", "fp32", op="softmax", rows=8192, cols=4096)
def numpy_round_trip() -> Run:
    x = rand(8192, 4096, dtype=FP32)
    return lambda: torch.from_numpy(x.softmax(-1).cpu().numpy()).cuda()


@planted("host_copy", work=[gemm(512, 8192, 8192, count=4)])
def weights_offloaded() -> Run:
    weights = [torch.randn(8192, 8192).to(BF16).pin_memory() for _ in range(4)]
    x = rand(512, 8192)

    def run() -> object:
        out = x
        for w in weights:
            out = F.linear(out, w.cuda(non_blocking=True))
        return out

    return run


@planted("host_copy", model="resnet50", batch=64)
def images_pageable() -> Run:
    net = resnet_net(BF16)
    images = torch.randn(64, 3, 224, 224)
    return no_grad(lambda: net(images.cuda().to(BF16, memory_format=torch.channels_last)))


# --- small kernels, the device waits for the host ---


@planted("launch_bound", op="elementwise", n=65536, inputs=1, count=300)
def small_chain() -> Run:
    x = rand(65536)

    def run() -> object:
        out = x
        for _ in range(300):
            out = out * 1.001
        return out

    return run


@planted("launch_bound", work=[gemm(64, 512, 512, count=40)])
def small_layers() -> Run:
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(40))).cuda().to(BF16)
    x = rand(64, 512)
    return no_grad(lambda: net(x))


@planted("launch_bound", "fp32", op="elementwise", n=25_600_000, inputs=4, count=1)
def adam_tensor_by_tensor() -> Run:
    parameters = [nn.Parameter(rand(256, 500, dtype=FP32)) for _ in range(200)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    step = torch.optim.Adam(parameters, foreach=False, fused=False).step
    return lambda: step()


@planted("launch_bound", model="bert-base-uncased", batch=1, seq=32)
def bert_b1() -> Run:
    return bert(1, 32, BF16)


@planted("launch_bound", model="gpt2", batch=1, seq=64)
def gpt2_b1() -> Run:
    return gpt2(1, 64)


@planted("launch_bound", op="bmm", b=256, m=128, n=128, k=64)
def heads_in_a_loop() -> Run:
    a, b = rand(256, 128, 64), rand(256, 64, 128)
    return lambda: torch.stack([a[i] @ b[i] for i in range(256)])


@planted("launch_bound", op="layernorm", rows=1024, cols=1024)
def norm_row_by_row() -> Run:
    x = rand(1024, 1024)
    return lambda: torch.cat([F.layer_norm(x[i : i + 1], (1024,)) for i in range(1024)])


# --- a read-back every step ---


@planted("sync", work=[gemm(2048, 2048, 2048, count=20)])
def loss_item() -> Run:
    a, b = rand(2048, 2048), rand(2048, 2048)

    def run() -> object:
        total = 0.0
        for _ in range(20):
            total += (a @ b).float().mean().item()
        return total

    return run


@planted("sync", op="elementwise", n=2**20, inputs=1, count=100)
def synchronise_every_op() -> Run:
    x = rand(2**20)

    def run() -> object:
        out = x
        for _ in range(100):
            out = out + 1
            torch.cuda.synchronize()
        return out

    return run


@planted("sync", op="elementwise", n=2**20, inputs=1, count=60)
def nan_check() -> Run:
    x = rand(2**20)

    def run() -> object:
        out = x
        for _ in range(60):
            out = out * 0.999
            if torch.isnan(out).any():
                raise ValueError
        return out

    return run


@planted("sync", op="elementwise", n=2**20, inputs=1, count=50)
def boolean_mask() -> Run:
    x = rand(2**20)
    return lambda: [x[x > level / 50].sum() for level in range(50)]


@planted("sync", work=[gemm(1024, 1024, 1024, count=60)])
def argmax_to_python() -> Run:
    a, b = rand(1024, 1024), rand(1024, 1024)
    return lambda: [int((a @ b)[0].argmax()) for _ in range(60)]


# --- the host has other things to do ---


@planted("host_bound", op="gemm", m=4096, n=4096, k=2048)
def sleeping_loader() -> Run:
    a, b = rand(4096, 2048), rand(2048, 4096)

    def run() -> object:
        time.sleep(0.005)
        return a @ b

    return run


@planted("host_bound", op="gemm", m=4096, n=4096, k=4096)
def numpy_augmentation() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)
    image = np.random.rand(512, 512, 3)

    def run() -> object:
        for _ in range(3):
            np.flip(np.sqrt(image * 1.1), 0).sum()
        return a @ b

    return run


@planted("host_bound", model="resnet50", batch=32)
def tokenising_in_python() -> Run:
    net, x = resnet_net(BF16), rand(32, 3, 224, 224).to(memory_format=torch.channels_last)
    text = "the quick brown fox " * 20000

    def run() -> object:
        sum(hash(word) & 1 for word in text.split())
        return net(x)

    return no_grad(run)


@planted("host_bound", op="attention", batch=8, heads=16, kv_heads=16, q_len=1024, kv_len=1024, head_dim=64,
         causal=False)  # fmt: skip
def json_parsing() -> Run:
    q, k, v = (rand(8, 16, 1024, 64) for _ in "qkv")
    text = json.dumps([{"a": i, "b": [i] * 5} for i in range(3000)])

    def run() -> object:
        json.loads(text)
        return F.scaled_dot_product_attention(q, k, v)

    return run


@planted("host_bound", op="gemm", m=4096, n=4096, k=4096)
def torch_augmentation_on_cpu() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)
    images = torch.rand(64, 3, 256, 256)

    def run() -> object:
        images[:, :, 16:240, 16:240].flip(-1).sub(0.5).div(0.25)
        return a @ b

    return run


# --- work that nobody asked for ---


@planted("wasted_work", op="elementwise", n=8192 * 4096, inputs=2, count=1)
def diagonal_matmul() -> Run:
    d, x = rand(8192), rand(8192, 4096)
    return lambda: torch.diag(d) @ x


@planted("wasted_work", op="gemm", m=16, n=32000, k=2048)
def all_logits_for_the_last() -> Run:
    h, w = rand(16, 1024, 2048), rand(32000, 2048)
    return lambda: F.linear(h, w)[:, -1]


@planted("wasted_work", op="gemm", m=512, n=8192, k=8192)
def padded_batch() -> Run:
    x, w = torch.zeros(8192, 8192, device="cuda", dtype=BF16), rand(8192, 8192)
    return lambda: F.linear(x, w)[:512]


@planted("wasted_work", op="gemm", m=8192, n=4096, k=4096)
def forward_three_times() -> Run:
    x, w = rand(8192, 4096), rand(4096, 4096)

    def run() -> object:
        for _ in range(3):
            out = F.linear(x, w)
        return out

    return run


@planted("wasted_work", op="gather", table=2**22, n=2**14)
def permutation_matmul() -> Run:
    x = rand(16384, 256)
    order = torch.randperm(16384, device="cuda")
    matrix = F.one_hot(order, 16384).to(BF16)
    return lambda: matrix @ x


@planted("wasted_work", op="attention", batch=1, heads=16, kv_heads=16, q_len=1, kv_len=8192, head_dim=128,
         causal=False)  # fmt: skip
def attention_without_cache() -> Run:
    q, k, v = (rand(1, 16, 8192, 128) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, -1]


# --- copies that change the layout ---


@planted("layout_copy", work=[gemm(4096, 4096, 4096)])
def transposed_copies() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)

    def run() -> object:
        left, right = a, b
        for _ in range(6):
            left, right = left.t().contiguous(), right.t().contiguous()
        return left @ right

    return run


@planted("layout_copy", work=[{"op": "conv2d", "n": 64, "c_in": 128, "h": 56, "w": 56, "c_out": 128, "r": 1, "s": 1,
                               "stride": 1, "count": 4}])  # fmt: skip
def channels_back_and_forth() -> Run:
    x, w = rand(64, 128, 56, 56), rand(128, 128, 1, 1)

    def run() -> object:
        out = x
        for _ in range(4):
            out = F.conv2d(out.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last))
            out = out.contiguous()
        return out

    return run


@planted("layout_copy", op="attention", batch=16, heads=16, kv_heads=16, q_len=1024, kv_len=1024, head_dim=64,
         causal=False)  # fmt: skip
def heads_permuted() -> Run:
    q, k, v = (rand(16, 1024, 16, 64) for _ in "qkv")

    def run() -> object:
        for _ in range(3):
            a, b, c = (x.permute(0, 2, 1, 3).contiguous() for x in (q, k, v))
            a, b, c = (x.permute(0, 2, 1, 3).contiguous() for x in (a, b, c))
        a, b, c = (x.permute(0, 2, 1, 3).contiguous() for x in (q, k, v))
        return F.scaled_dot_product_attention(a, b, c).permute(0, 2, 1, 3).contiguous()

    return run


@planted("layout_copy", op="add", n=2**26)
def permuted_images() -> Run:
    x, y = rand(64, 256, 64, 64), rand(64, 64, 64, 256)
    return lambda: (x.permute(0, 2, 3, 1).contiguous() + y).permute(0, 3, 1, 2).contiguous()


# --- scattered reads ---


@planted("uncoalesced", "fp32", op="gather", table=2**28, n=2**24)
def random_gather() -> Run:
    table, index = rand(2**28, dtype=FP32), torch.randint(0, 2**28, (2**24,), device="cuda")
    return lambda: table[index]


@planted("uncoalesced", op="gather", table=2**28, n=2**24)
def random_take_bf16() -> Run:
    table, index = rand(2**28), torch.randint(0, 2**28, (2**24,), device="cuda")
    return lambda: torch.take(table, index)


@planted("uncoalesced", op="copy", n=2**23)
def strided_columns() -> Run:
    x = rand(2**14, 2**14)
    return lambda: x[:, ::32].contiguous()


@planted("uncoalesced", op="embedding", vocab=2**24, dim=4, tokens=2**22)
def narrow_rows() -> Run:
    table, index = rand(2**24, 4), torch.randint(0, 2**24, (2**22,), device="cuda")
    return lambda: table[index]


@planted("uncoalesced", "fp32", op="add", n=2**26)
def random_scatter() -> Run:
    out, x = rand(2**26, dtype=FP32), rand(2**24, dtype=FP32)
    index = torch.randint(0, 2**26, (2**24,), device="cuda")
    return lambda: out.index_add_(0, index, x)


# --- growing by copying ---


@planted("reallocation", op="copy", n=8 * 32 * 256 * 128)
def cache_grown_by_cat() -> Run:
    token = rand(8, 32, 1, 128)

    def run() -> object:
        cache = rand(8, 32, 1024, 128)
        for _ in range(64):
            cache = torch.cat([cache, token], 2)
        return cache

    return run


@planted("reallocation", work=[{"op": "copy", "n": 2**24}])
def list_grown_by_cat() -> Run:
    piece = rand(2**19)

    def run() -> object:
        out = piece
        for _ in range(31):
            out = torch.cat([out, piece])
        return out

    return run


@planted("reallocation", op="attention", batch=8, heads=32, kv_heads=32, q_len=1, kv_len=4096, head_dim=128,
         causal=False)  # fmt: skip
def decode_with_cat() -> Run:
    q, k, v = rand(8, 32, 1, 128), rand(8, 32, 4095, 128), rand(8, 32, 4095, 128)
    new = rand(8, 32, 1, 128)
    return lambda: F.scaled_dot_product_attention(q, torch.cat([k, new], 2), torch.cat([v, new], 2))


@planted("reallocation", op="gemm", m=4096, n=4096, k=4096)
def emptied_cache() -> Run:
    a, b = rand(4096, 4096), rand(4096, 4096)

    def run() -> object:
        torch.cuda.empty_cache()
        return (a @ b) + rand(4096, 4096)

    return run


# --- on the processor by accident ---


@planted("wrong_device", "fp32", op="softmax", rows=4096, cols=8192)
def softmax_on_cpu() -> Run:
    x = torch.randn(4096, 8192)
    return lambda: x.softmax(-1)


@planted("wrong_device", "fp32", op="attention", batch=1, heads=16, kv_heads=16, q_len=2048, kv_len=2048, head_dim=64,
         causal=False)  # fmt: skip
def attention_on_cpu() -> Run:
    q, k, v = (torch.randn(1, 16, 2048, 64) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v)


@planted("wrong_device", "fp32", work=[gemm(2048, 2048, 2048, count=2)])
def one_layer_on_cpu() -> Run:
    first, second = nn.Linear(2048, 2048).cuda(), nn.Linear(2048, 2048)
    x = rand(2048, 2048, dtype=FP32)
    return no_grad(lambda: second(first(x).cpu()).cuda())


@planted("wrong_device", "fp32", model="resnet50", batch=4)
def resnet_on_cpu() -> Run:
    import torchvision

    net, x = torchvision.models.resnet50().eval(), torch.randn(4, 3, 224, 224)
    return no_grad(lambda: net(x))


# --- a batch cut into pieces ---


@planted("small_batch", op="gemm", m=2048, n=8192, k=8192)
def weights_read_again() -> Run:
    x, w = rand(2048, 8192), rand(8192, 8192)
    return lambda: torch.cat([F.linear(part, w) for part in x.split(32)])
