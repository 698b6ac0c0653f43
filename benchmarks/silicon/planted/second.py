"""A second set of programs with a known cause of slowness, to judge ``roofline check`` blindly.

Written by someone who saw the first set (``first``) and none of the diagnosis; measured and traced in the same
way. The label names the cause of at least two thirds of the time above what the work needs.
"""

from __future__ import annotations

import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from common import BF16, FP16, FP32, Run, attention, gemm, no_grad, planted, rand, resnet_net
from torch import nn

# --- nothing wrong --------------------------------------------------------------------------------


@planted("ok", "fp8", op="gemm", m=8192, n=8192, k=4096)
def linear_fp8() -> Run:
    a, b = (rand(8192, 4096).to(torch.float8_e4m3fn) for _ in "ab")
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=BF16)


@planted("ok", "int8", op="gemm", m=8192, n=8192, k=4096)
def linear_int8() -> Run:
    a, b = (torch.randint(-128, 128, (8192, 4096), device="cuda", dtype=torch.int8) for _ in "ab")
    return lambda: torch._int_mm(a, b.t())


@planted("ok", op="gemm", m=2048, n=2048, k=65536)
def long_inner_dimension() -> Run:
    a, b = rand(2048, 65536), rand(2048, 65536)
    return lambda: F.linear(a, b)


@planted("ok", work=[attention(4, 32, 8, 4096, 4096, 128, True)])
def attention_gqa_causal() -> Run:
    q, k, v = rand(4, 32, 4096, 128), rand(4, 8, 4096, 128), rand(4, 8, 4096, 128)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@planted("ok", "fp16", work=[attention(8, 16, 16, 1024, 8192, 64, False)])
def cross_attention() -> Run:
    q, k, v = (rand(8, 16, length, 64, dtype=FP16) for length in (1024, 8192, 8192))
    return lambda: F.scaled_dot_product_attention(q, k, v)


@planted("ok", "tf32", op="conv2d", n=128, c_in=256, h=28, w=28, c_out=256, r=3, s=3, stride=1, padding=1)
def conv_tf32() -> Run:
    x = rand(128, 256, 28, 28, dtype=FP32).to(memory_format=torch.channels_last)
    w = rand(256, 256, 3, 3, dtype=FP32).to(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, w, padding=1)


@planted("ok", work=[gemm(256, 2048, 2048, count=60)])
def graph_of_small_layers() -> Run:
    weights, x = [rand(2048, 2048) / 45 for _ in range(60)], rand(256, 2048)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def layers() -> torch.Tensor:
        out = x
        for w in weights:
            out = F.linear(out, w)
        return out

    with torch.cuda.stream(stream):
        layers()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        layers()
    return lambda: (graph.replay(), layers)  # the graph does not keep the weights alive


@planted("ok", work=[gemm(4096, 8192, 8192, count=4)])
def upload_behind_compute() -> Run:
    weights, buffers = [rand(8192, 8192) / 90 for _ in range(4)], [rand(4096, 8192), rand(4096, 8192)]
    host, side = torch.randn(4096, 8192).to(BF16).pin_memory(), torch.cuda.Stream()

    def run() -> object:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffers[1].copy_(host, non_blocking=True)
        out = buffers[0]
        for w in weights:
            out = F.linear(out, w)
        torch.cuda.current_stream().wait_stream(side)
        buffers.reverse()
        return out

    return run


@planted("ok", work=[gemm(8192, 8192, 4096), gemm(8192, 4096, 8192), gemm(8192, 4096, 8192)])
def linear_with_backward() -> Run:
    x, w, grad = rand(8192, 4096).requires_grad_(), rand(8192, 4096).requires_grad_(), rand(8192, 8192)
    return lambda: torch.autograd.grad(F.linear(x, w), (x, w), grad)


@planted("ok", "fp16", op="rmsnorm", rows=65536, cols=4096)
def rmsnorm_compiled() -> Run:
    x, w = rand(65536, 4096, dtype=FP16), rand(4096, dtype=FP16)

    def norm(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(FP16) * w

    compiled = torch.compile(norm)
    return lambda: compiled(x)


@planted("ok", op="cast_fp32", n=2**28)
def widening_cast() -> Run:
    x = rand(2**28)
    return lambda: x.float()


@planted("ok", "fp32", op="exp", n=2**27)
def exponential_fp32() -> Run:
    x = rand(2**27, dtype=FP32)
    return lambda: x.exp()


@planted("ok", "fp16", model="vgg16", batch=128)
def vgg16_b128() -> Run:
    import torchvision

    net = torchvision.models.vgg16().cuda().to(FP16, memory_format=torch.channels_last).eval()
    x = rand(128, 3, 224, 224, dtype=FP16).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("ok", "fp16", model="bert-large-uncased", batch=128, seq=128)
def bert_large_b128() -> Run:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    net = BertModel(config).eval().cuda().to(FP16)
    ids = torch.randint(0, 30000, (128, 128), device="cuda")
    return no_grad(lambda: net(ids))


# --- a chain that should be one kernel ------------------------------------------------------------


@planted("unfused", op="elementwise", n=2**26, inputs=1, count=4)
def rotary_by_hand() -> Run:
    x, cos, sin = rand(8, 32, 2048, 128), rand(2048, 128), rand(2048, 128)

    def run() -> object:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    return run


@planted("unfused", "fp32", op="elementwise", n=2**26, inputs=2, count=7)
def huber_loss_by_hand() -> Run:
    a, b = rand(2**26, dtype=FP32), rand(2**26, dtype=FP32)

    def run() -> object:
        off = (a - b).abs()
        return torch.where(off < 1, 0.5 * off * off, off - 0.5)

    return run


@planted("unfused", op="elementwise", n=2**27, inputs=1, count=4)
def fake_quantise_in_place() -> Run:
    x = rand(2**27)
    return lambda: x.div_(0.05).round_().clamp_(-128, 127).mul_(0.05)


@planted("unfused", "fp32", op="elementwise", n=64 * 3 * 512 * 512, inputs=1, count=5)
def image_normalise() -> Run:
    images = torch.randint(0, 256, (64, 3, 512, 512), device="cuda", dtype=torch.uint8)
    mean, std = rand(3, 1, 1, dtype=FP32), rand(3, 1, 1, dtype=FP32)
    return lambda: ((images.float() / 255 - mean) / std).to(BF16)


@planted("unfused", "fp32", op="elementwise", n=2**26, inputs=4, count=1)
def adamw_foreach() -> Run:
    parameters = [nn.Parameter(rand(2**23, dtype=FP32)) for _ in range(8)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    step = torch.optim.AdamW(parameters, foreach=True).step
    return lambda: step()


# --- attention scores written out -----------------------------------------------------------------


@planted("materialised", "fp16", work=[attention(4, 16, 16, 1024, 4096, 64, False)])
def cross_attention_baddbmm() -> Run:
    q, k, v = (rand(64, length, 64, dtype=FP16) for length in (1024, 4096, 4096))
    bias = rand(1, 1024, 4096, dtype=FP16)

    def run() -> object:
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=0.125)
        return torch.bmm(F.softmax(scores, -1, dtype=FP32).to(FP16), v)

    return run


@planted("materialised", work=[attention(2, 16, 16, 4096, 4096, 128, True)])
def math_backend_left_on() -> Run:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (rand(2, 16, 4096, 128) for _ in "qkv")
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # without it, the scores are in fp32

    def run() -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


@planted("materialised", work=[gemm(16384, 3072, 1024), attention(8, 16, 16, 2048, 2048, 64, False),
                               gemm(16384, 1024, 1024)])  # fmt: skip
def multihead_with_weights() -> Run:
    net = nn.MultiheadAttention(1024, 16, batch_first=True).cuda().to(BF16).eval()
    x = rand(8, 2048, 1024)
    return no_grad(lambda: net(x, x, x, need_weights=True)[0])


@planted("materialised", work=[attention(4, 16, 16, 2048, 2048, 128, False)])
def softcapped_scores() -> Run:
    q, k, v = (rand(4, 16, 2048, 128) for _ in "qkv")
    return lambda: (torch.tanh(q @ k.mT * 128**-0.5 / 50) * 50).softmax(-1) @ v


# --- a slower format than meant -------------------------------------------------------------------


@planted("precision", "fp32", work=[attention(4, 16, 16, 2048, 2048, 64, False)])
def attention_fp32() -> Run:
    q, k, v = (rand(4, 16, 2048, 64, dtype=FP32) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v)


@planted("precision", "fp32", model="vit-b-16", batch=32)
def vit_fp32() -> Run:
    import torchvision

    net = torchvision.models.vit_b_16().cuda().eval()
    x = rand(32, 3, 224, 224, dtype=FP32)
    return no_grad(lambda: net(x))


@planted("precision", "fp64", op="softmax", rows=8192, cols=8192)
def softmax_of_numpy_doubles() -> Run:
    x = torch.from_numpy(np.random.rand(8192, 8192)).cuda()
    return lambda: x.softmax(-1)


@planted("precision", op="gemm", m=8192, n=4096, k=4096)
def promoted_by_fp32_scale() -> Run:
    x, scale, w = rand(8192, 4096), rand(4096, dtype=FP32), rand(4096, 4096, dtype=FP32)
    return lambda: F.linear(x * scale, w).to(BF16)


# --- leading dimension not a multiple of 8 --------------------------------------------------------


@planted("alignment", op="gemm", m=8192, n=4096, k=4096)
def slice_of_odd_rows() -> Run:
    x, w = rand(8192, 4097)[:, :4096], rand(4096, 4096)
    return lambda: F.linear(x, w)


@planted("alignment", "tf32", op="gemm", m=4096, n=4096, k=4093)
def odd_k_tf32() -> Run:
    a, b = rand(4096, 4093, dtype=FP32), rand(4096, 4093, dtype=FP32)

    def run() -> object:
        torch.backends.cuda.matmul.allow_tf32 = True
        out = F.linear(a, b)
        torch.backends.cuda.matmul.allow_tf32 = False
        return out

    return run


@planted("alignment", work=[gemm(8192, 5461, 2048, count=2), {"op": "swiglu", "rows": 8192, "cols": 5461},
                            gemm(8192, 2048, 5461)])  # fmt: skip
def hidden_size_8_thirds() -> Run:
    x, gate, up, down = rand(8192, 2048), rand(5461, 2048), rand(5461, 2048), rand(2048, 5461)
    return lambda: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@planted("alignment", "fp16", work=[gemm(32768, 1001, 2048), gemm(32768, 2048, 1001), gemm(1001, 2048, 32768)])
def classes_1001_with_backward() -> Run:
    x, w = (rand(rows, 2048, dtype=FP16).requires_grad_() for rows in (32768, 1001))
    grad = rand(32768, 1001, dtype=FP16)
    return lambda: torch.autograd.grad(F.linear(x, w), (x, w), grad)


# --- copies over the host link --------------------------------------------------------------------


@planted("host_copy", work=[attention(8, 32, 8, 1, 4096, 128, False)])
def cache_on_host() -> Run:
    q = rand(8, 32, 1, 128)
    k, v = (torch.randn(8, 8, 4096, 128).to(BF16).pin_memory() for _ in "kv")

    def run() -> object:
        near = [x.cuda(non_blocking=True) for x in (k, v)]
        return F.scaled_dot_product_attention(q, *near, enable_gqa=True)

    return run


@planted("host_copy", work=[gemm(4096, 4096, 4096, count=3)])
def activations_saved_on_host() -> Run:
    x, w, grad = rand(4096, 4096).requires_grad_(), rand(4096, 4096).requires_grad_(), rand(4096, 4096)

    def run() -> object:
        with torch.autograd.graph.save_on_cpu():
            out = F.linear(x, w)
        return torch.autograd.grad(out, (x, w), grad)

    return run


@planted("host_copy", model="bert-base-uncased", batch=32, seq=128)
def model_moved_in_and_out() -> Run:
    from transformers import BertConfig, BertModel

    net = BertModel(BertConfig()).eval().to(BF16)
    ids = torch.zeros(32, 128, dtype=torch.int64, device="cuda")

    def run() -> object:
        out = net.cuda()(ids).last_hidden_state
        net.cpu()
        return out

    return no_grad(run)


@planted("host_copy", work=[attention(2, 16, 16, 4096, 4096, 128, True)])
def mask_from_host() -> Run:
    q, k, v = (rand(2, 16, 4096, 128) for _ in "qkv")
    mask = torch.full((4096, 4096), float("-inf")).triu(1).to(BF16)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask.cuda())


# --- small kernels, the device waits for the host -------------------------------------------------


@planted("launch_bound", work=[gemm(64, 2048, 512, count=128)])
def lstm_cell_by_step() -> Run:
    cell, x = nn.LSTMCell(512, 512).cuda().to(BF16), rand(64, 64, 512)

    def run() -> object:
        state = None
        for step in x:
            state = cell(step, state)
        return state

    return no_grad(run)


@planted("launch_bound", "fp16", model="mobilenet-v2", batch=1)
def mobilenet_b1() -> Run:
    import torchvision

    net = torchvision.models.mobilenet_v2().cuda().to(FP16, memory_format=torch.channels_last).eval()
    x = rand(1, 3, 224, 224, dtype=FP16).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


@planted("launch_bound", "fp32", op="elementwise", n=300 * 65536, inputs=1, count=3)
def clip_gradients_by_hand() -> Run:
    gradients = [rand(256, 256, dtype=FP32) for _ in range(300)]

    def run() -> object:
        scale = 1 / torch.stack([g.pow(2).sum() for g in gradients]).sum().sqrt()
        return [g.mul_(scale) for g in gradients]

    return run


@planted("launch_bound", work=[{"op": "bmm", "b": 64, "m": 32, "n": 1024, "k": 1024, "count": 2},
                               {"op": "gelu", "n": 64 * 32 * 1024}])  # fmt: skip
def experts_in_a_loop() -> Run:
    tokens, up, down = rand(64, 32, 1024).unbind(), rand(64, 1024, 1024).unbind(), rand(64, 1024, 1024).unbind()
    return lambda: [F.linear(F.gelu(F.linear(x, u)), d) for x, u, d in zip(tokens, up, down, strict=True)]


@planted("launch_bound", op="elementwise", n=512 * 32 * 2048, inputs=2, count=2)
def scan_over_time() -> Run:
    decay, inputs = rand(512, 32, 2048).sigmoid(), rand(512, 32, 2048)

    def run() -> object:
        state = inputs[0]
        for t in range(1, 512):
            state = decay[t] * state + inputs[t]
        return state

    return run


@planted("launch_bound", op="embedding", vocab=128 * 10000, dim=64, tokens=128 * 512)
def tables_one_by_one() -> Run:
    tables = [rand(10000, 64) for _ in range(128)]
    features = torch.randint(0, 10000, (128, 512), device="cuda").unbind()
    return lambda: torch.cat([F.embedding(f, table) for f, table in zip(features, tables, strict=True)], 1)


# --- a read-back every step -----------------------------------------------------------------------


@planted("sync", work=[gemm(2048, 2048, 2048, count=40)])
def newton_schulz_guarded() -> Run:
    start = rand(2048, 2048) / 128

    def run() -> object:
        x = start
        for _ in range(20):
            gram = x @ x.t()
            if gram[0, 0] > 1e9:
                raise ArithmeticError
            x = torch.addmm(x, gram, x, beta=1.5, alpha=-0.5)
        return x

    return run


@planted("sync", work=[gemm(2048, 4096, 2048, count=30), {"op": "mul_scalar", "n": 2048 * 4096, "count": 30}])
def temperature_uploaded() -> Run:
    a, b = rand(2048, 2048), rand(4096, 2048)
    return lambda: [F.linear(a, b) * torch.tensor(0.7, dtype=BF16).cuda() for _ in range(30)]


@planted("sync", work=[gemm(16, 24000, 4096, count=30), {"op": "argmax", "rows": 16, "cols": 24000, "count": 30}])
def stop_token_check() -> Run:
    hidden, head = rand(16, 4096), rand(24000, 4096)

    def run() -> object:
        tokens = []
        for _ in range(30):
            tokens.append(F.linear(hidden, head).argmax(-1))
            if (tokens[-1] == 24001).all():
                break
        return tokens

    return run


@planted("sync", op="softmax", rows=4096, cols=8192, count=40)
def timers_left_in() -> Run:
    x = rand(4096, 8192)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def run() -> object:
        spent = 0.0
        for _ in range(40):
            start.record()
            x.softmax(-1)
            end.record()
            end.synchronize()
            spent += start.elapsed_time(end)
        return spent

    return run


# --- the host has other things to do --------------------------------------------------------------


@planted("host_bound", op="embedding", vocab=32000, dim=4096, tokens=65536)
def lists_collated() -> Run:
    table = rand(32000, 4096)
    samples = np.random.randint(0, 32000, (64, 1024)).tolist()
    return lambda: F.embedding(torch.tensor(samples).cuda(), table)


@planted("host_bound", op="gemm", m=16, n=32000, k=8192)
def beams_sorted_in_python() -> Run:
    hidden, head = rand(16, 8192), rand(32000, 8192)
    beams = [(float(score), [token]) for token, score in enumerate(np.random.rand(30000))]

    def run() -> object:
        sorted(beams, key=lambda beam: -beam[0])
        return F.linear(hidden, head)

    return run


@planted("host_bound", op="conv2d", n=64, c_in=256, h=28, w=28, c_out=512, r=3, s=3, stride=2, padding=1)
def shards_decompressed() -> Run:
    x = rand(64, 256, 28, 28).to(memory_format=torch.channels_last)
    w = rand(512, 256, 3, 3).to(memory_format=torch.channels_last)
    shard = zlib.compress(np.random.randint(0, 16, 3_000_000, dtype=np.uint8).tobytes(), 1)

    def run() -> object:
        zlib.decompress(shard)
        return F.conv2d(x, w, stride=2, padding=1)

    return run


@planted("host_bound", work=[attention(8, 32, 8, 2048, 2048, 128, True)])
def waiting_for_storage() -> Run:
    q, k, v = rand(8, 32, 2048, 128), rand(8, 8, 2048, 128), rand(8, 8, 2048, 128)
    pool = ThreadPoolExecutor(1)

    def run() -> object:
        pool.submit(time.sleep, 0.006).result()
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return run


# --- work that nobody asked for -------------------------------------------------------------------


@planted("wasted_work", op="elementwise", n=8192 * 4096, inputs=1, count=1)
def running_sum_by_matmul() -> Run:
    x, triangle = rand(8192, 4096), torch.ones(8192, 8192, device="cuda", dtype=BF16).tril()
    return lambda: triangle @ x


@planted("wasted_work", "fp32", op="argmax", rows=2048, cols=32000)
def sorted_for_the_largest() -> Run:
    x = rand(2048, 32000, dtype=FP32)
    return lambda: x.sort(-1, descending=True).indices[:, 0]


@planted("wasted_work", work=[attention(16, 16, 16, 512, 512, 64, True)])
def sequences_padded_to_4096() -> Run:
    q, k, v = (rand(16, 16, 4096, 64) for _ in "qkv")
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, :, :512]


@planted("wasted_work", op="gemm", m=4096, n=4096, k=8192)
def every_expert_for_every_token() -> Run:
    x, experts = rand(4096, 8192), rand(8, 4096, 8192).unbind()
    chosen = F.one_hot(torch.randint(0, 8, (4096,), device="cuda"), 8).to(BF16)
    return lambda: sum(F.linear(x, w) * chosen[:, e : e + 1] for e, w in enumerate(experts))


@planted("wasted_work", op="sum", rows=8192, cols=4096)
def row_dots_by_matmul() -> Run:
    a, b = rand(8192, 4096), rand(8192, 4096)
    return lambda: (a @ b.t()).diagonal()


# --- copies that change the layout ----------------------------------------------------------------


@planted("layout_copy", model="resnet50", batch=128)
def resnet50_channels_first() -> Run:
    net, x = resnet_net(BF16).to(memory_format=torch.contiguous_format), rand(128, 3, 224, 224)
    return no_grad(lambda: net(x))


@planted("layout_copy", op="layernorm", rows=65536, cols=1024, count=4)
def batch_first_and_back() -> Run:
    x = rand(64, 1024, 1024)

    def run() -> object:
        out = x
        for _ in range(4):
            out = F.layer_norm(out.transpose(0, 1).contiguous(), (1024,)).transpose(0, 1).contiguous()
        return out

    return run


@planted("layout_copy", op="gelu", n=256 * 56 * 56 * 128)
def windows_cut_and_joined() -> Run:
    x = rand(256, 8, 7, 8, 7, 128)

    def run() -> object:
        windows = F.gelu(x.permute(0, 1, 3, 2, 4, 5).contiguous())
        return windows.permute(0, 1, 3, 2, 4, 5).contiguous()

    return run


@planted("layout_copy", op="gemm", m=32, n=8192, k=8192)
def weight_transposed_every_step() -> Run:
    x, w = rand(32, 8192), rand(8192, 8192)
    return lambda: F.linear(x, w.t().contiguous())


# --- scattered reads ------------------------------------------------------------------------------


@planted("uncoalesced", "fp32", op="gather", table=2**29, n=2**25)
def random_columns() -> Run:
    x, columns = rand(65536, 8192, dtype=FP32), torch.randperm(8192, device="cuda")[:512]
    return lambda: x[:, columns]


@planted("uncoalesced", op="copy", n=2**27)
def shuffled_write() -> Run:
    out, x, order = rand(2**27), rand(2**27), torch.randperm(2**27, device="cuda")

    def run() -> object:
        out[order] = x
        return out

    return run


@planted("uncoalesced", "fp32", op="gather", table=4 * 32 * 2048 * 2048, n=4 * 32 * 1024 * 1024)
def random_warp() -> Run:
    images, grid = rand(4, 32, 2048, 2048, dtype=FP32), torch.rand(4, 1024, 1024, 2, device="cuda") * 2 - 1
    return lambda: F.grid_sample(images, grid, mode="nearest", align_corners=False)


# --- growing by copying ---------------------------------------------------------------------------


@planted("reallocation", op="copy", n=16 * 48 * 2048)
def padded_one_longer() -> Run:
    start, token = rand(16, 2048, 2048), rand(16, 2048)

    def run() -> object:
        out = start
        for _ in range(48):
            out = F.pad(out, (0, 0, 0, 1))
            out[:, -1] = token
        return out

    return run


@planted("reallocation", op="copy", n=32 * 2**20)
def frames_shifted() -> Run:
    start, frame = rand(64, 2**20), rand(1, 2**20)

    def run() -> object:
        frames = start
        for _ in range(32):
            frames = torch.cat([frames[1:], frame])
        return frames

    return run


@planted("reallocation", work=[attention(16, 32, 8, 1, 4096, 128, False)])
def cache_updated_out_of_place() -> Run:
    q, k, v, new = rand(16, 32, 1, 128), rand(16, 8, 4096, 128), rand(16, 8, 4096, 128), rand(16, 8, 1, 128)
    last = torch.tensor([4095], device="cuda")

    def run() -> object:
        keys, values = k.index_copy(2, last, new), v.index_copy(2, last, new)
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    return run


@planted("reallocation", op="gemm", m=16384, n=8192, k=512)
def outputs_joined_as_they_come() -> Run:
    x, w = rand(16384, 512), rand(8192, 512)

    def run() -> object:
        out = rand(0, 8192)
        for part in x.split(512):
            out = torch.cat([out, F.linear(part, w)])
        return out

    return run


# --- on the processor by accident -----------------------------------------------------------------


@planted("wrong_device", work=[gemm(16, 32000, 4096), {"op": "softmax", "rows": 16, "cols": 32000}])
def sampling_on_cpu() -> Run:
    hidden, head = rand(16, 4096), rand(32000, 4096)

    def run() -> object:
        likely, token = F.linear(hidden, head).float().cpu().softmax(-1).sort(-1, descending=True)
        likely[likely.cumsum(-1) > 0.9] = 1e-9
        return token.gather(1, torch.multinomial(likely, 1)).cuda()

    return run


@planted("wrong_device", "fp32", op="conv2d", n=8, c_in=256, h=56, w=56, c_out=256, r=3, s=3, stride=2, padding=1)
def conv_on_cpu() -> Run:
    net, x = nn.Conv2d(256, 256, 3, stride=2, padding=1), torch.randn(8, 256, 56, 56)
    return no_grad(lambda: net(x).cuda())


@planted("wrong_device", "fp32", op="elementwise", n=2**24, inputs=4, count=1)
def optimiser_on_cpu() -> Run:
    parameters = [nn.Parameter(torch.randn(2**20)) for _ in range(16)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    step = torch.optim.AdamW(parameters).step
    return lambda: step()


@planted("wrong_device", "fp32", op="gemm", m=512, n=4096, k=4096)
def matmul_in_numpy() -> Run:
    x, w = rand(512, 4096, dtype=FP32), np.random.rand(4096, 4096).astype(np.float32)
    return lambda: torch.from_numpy(x.cpu().numpy() @ w).cuda()


# --- a batch cut into pieces ----------------------------------------------------------------------


@planted("small_batch", work=[gemm(16, 12288, 12288, count=3)])
def requests_one_at_a_time() -> Run:
    weights, requests = [rand(12288, 12288) / 110 for _ in range(3)], rand(16, 1, 12288)

    def run() -> object:
        answers = []
        for out in requests:
            for w in weights:
                out = F.linear(out, w)
            answers.append(out)
        return answers

    return run
