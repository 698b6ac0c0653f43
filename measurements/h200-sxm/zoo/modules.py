"""Small networks written by hand in the styles that people use; every one is fp32 on the CPU until moved."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class DenseNet121(nn.Module):
    def __init__(self, growth=32, blocks=(6, 12, 24, 16)):
        super().__init__()
        width = 64
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks, self.turns = nn.ModuleList(), nn.ModuleList()
        for at, count in enumerate(blocks):
            layers = nn.ModuleList()
            for _ in range(count):
                layers.append(
                    nn.Sequential(
                        nn.BatchNorm2d(width),
                        nn.ReLU(True),
                        nn.Conv2d(width, 4 * growth, 1, bias=False),
                        nn.BatchNorm2d(4 * growth),
                        nn.ReLU(True),
                        nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
                    )
                )
                width += growth
            self.blocks.append(layers)
            last = at == len(blocks) - 1
            self.turns.append(
                nn.BatchNorm2d(width)
                if last
                else nn.Sequential(
                    nn.BatchNorm2d(width), nn.ReLU(True), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)
                )
            )
            width = width if last else width // 2
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.stem(x)
        for layers, turn in zip(self.blocks, self.turns):
            for layer in layers:
                x = torch.cat([x, layer(x)], 1)
            x = turn(x)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(F.relu(x), 1), 1))


class SEResNeXt(nn.Module):
    class Block(nn.Module):
        def __init__(self, i, o, stride, groups=32):
            super().__init__()
            mid = o // 2
            self.a, self.b, self.c = (
                nn.Conv2d(i, mid, 1, bias=False),
                nn.Conv2d(mid, mid, 3, stride, 1, groups=groups, bias=False),
                nn.Conv2d(mid, o, 1, bias=False),
            )
            self.na, self.nb, self.nc = nn.BatchNorm2d(mid), nn.BatchNorm2d(mid), nn.BatchNorm2d(o)
            self.down, self.up = nn.Conv2d(o, o // 16, 1), nn.Conv2d(o // 16, o, 1)
            self.skip = (
                nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
                if stride != 1 or i != o
                else nn.Identity()
            )

        def forward(self, x):
            y = self.nc(self.c(F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))))))
            gate = torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))
            return F.relu(y * gate + self.skip(x))

    def __init__(self, depths=(3, 4, 6, 3), widths=(256, 512, 1024, 2048)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        layers, i = [], 64
        for stage, (depth, o) in enumerate(zip(depths, widths)):
            for at in range(depth):
                layers.append(self.Block(i, o, 2 if at == 0 and stage else 1))
                i = o
        self.body, self.head = nn.Sequential(*layers), nn.Linear(i, 1000)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class EfficientNet(nn.Module):
    class MBConv(nn.Module):
        def __init__(self, i, o, k, stride, expand):
            super().__init__()
            mid, squeezed = i * expand, max(1, i // 4)
            self.expand = (
                nn.Sequential(nn.Conv2d(i, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.SiLU())
                if expand != 1
                else nn.Identity()
            )
            self.depth = nn.Sequential(
                nn.Conv2d(mid, mid, k, stride, k // 2, groups=mid, bias=False), nn.BatchNorm2d(mid), nn.SiLU()
            )
            self.se = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(mid, squeezed, 1),
                nn.SiLU(),
                nn.Conv2d(squeezed, mid, 1),
                nn.Sigmoid(),
            )
            self.project = nn.Sequential(nn.Conv2d(mid, o, 1, bias=False), nn.BatchNorm2d(o))
            self.residual = stride == 1 and i == o

        def forward(self, x):
            y = self.depth(self.expand(x))
            y = self.project(y * self.se(y))
            return x + y if self.residual else y

    def __init__(self):
        super().__init__()
        rows = [
            (1, 16, 1, 1, 3),
            (6, 24, 2, 2, 3),
            (6, 40, 2, 2, 5),
            (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5),
            (6, 320, 1, 1, 3),
        ]
        layers, i = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()], 32
        for expand, o, depth, stride, k in rows:
            for at in range(depth):
                layers.append(self.MBConv(i, o, k, stride if at == 0 else 1, expand))
                i = o
        self.body = nn.Sequential(*layers, nn.Conv2d(i, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.SiLU())
        self.head = nn.Linear(1280, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class MLPMixer(nn.Module):
    def __init__(self, d=768, depth=12, tokens=196):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 16, 16)
        mlp = lambda i, h: nn.Sequential(nn.Linear(i, h), nn.GELU(), nn.Linear(h, i))
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(d), mlp(tokens, d // 2), nn.LayerNorm(d), mlp(d, 4 * d)]) for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 1000)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for n1, token, n2, channel in self.layers:
            x = x + token(n1(x).transpose(1, 2)).transpose(1, 2)
            x = x + channel(n2(x))
        return self.head(self.norm(x).mean(1))


class DiffusionUNet(nn.Module):
    """A denoiser with residual blocks, time embedding, group norm, self- and cross-attention at the lower levels."""

    class Res(nn.Module):
        def __init__(self, i, o, t):
            super().__init__()
            self.n1, self.c1, self.n2, self.c2 = (
                nn.GroupNorm(32, i),
                nn.Conv2d(i, o, 3, padding=1),
                nn.GroupNorm(32, o),
                nn.Conv2d(o, o, 3, padding=1),
            )
            self.t, self.skip = nn.Linear(t, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

        def forward(self, x, t):
            y = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
            return self.skip(x) + self.c2(F.silu(self.n2(y)))

    class Cross(nn.Module):
        def __init__(self, c, context, heads=8):
            super().__init__()
            self.heads, self.norm, self.inp, self.out = (
                heads,
                nn.GroupNorm(32, c),
                nn.Conv2d(c, c, 1),
                nn.Conv2d(c, c, 1),
            )
            self.n = nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
            self.q, self.o = (
                nn.ModuleList(nn.Linear(c, c, bias=False) for _ in range(2)),
                nn.ModuleList(nn.Linear(c, c) for _ in range(2)),
            )
            self.kv = nn.ModuleList([nn.Linear(c, 2 * c, bias=False), nn.Linear(context, 2 * c, bias=False)])
            self.f1, self.f2 = nn.Linear(c, 8 * c), nn.Linear(4 * c, c)

        def attend(self, at, x, context):
            split = lambda y: y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)
            k, v = self.kv[at](context).chunk(2, -1)
            y = F.scaled_dot_product_attention(split(self.q[at](x)), split(k), split(v))
            return self.o[at](y.transpose(1, 2).flatten(2))

        def forward(self, x, context):
            b, c, h, w = x.shape
            y = self.inp(self.norm(x)).permute(0, 2, 3, 1).reshape(b, h * w, c)
            n = self.n[0](y)
            y = y + self.attend(0, n, n)
            y = y + self.attend(1, self.n[1](y), context)
            a, gate = self.f1(self.n[2](y)).chunk(2, -1)
            y = y + self.f2(a * F.gelu(gate))
            return x + self.out(y.reshape(b, h, w, c).permute(0, 3, 1, 2))

    def __init__(self, c=192, context=768):
        super().__init__()
        t = 4 * c
        self.c, self.time, self.inp = (
            c,
            nn.Sequential(nn.Linear(c, t), nn.SiLU(), nn.Linear(t, t)),
            nn.Conv2d(4, c, 3, padding=1),
        )
        self.d1, self.down1 = self.Res(c, c, t), nn.Conv2d(c, c, 3, 2, 1)
        self.d2, self.a2, self.down2 = (
            self.Res(c, 2 * c, t),
            self.Cross(2 * c, context),
            nn.Conv2d(2 * c, 2 * c, 3, 2, 1),
        )
        self.d3, self.a3 = self.Res(2 * c, 4 * c, t), self.Cross(4 * c, context)
        self.u3, self.b3 = self.Res(8 * c, 4 * c, t), self.Cross(4 * c, context)
        self.u2, self.b2, self.u1 = self.Res(6 * c, 2 * c, t), self.Cross(2 * c, context), self.Res(3 * c, c, t)
        self.norm, self.out = nn.GroupNorm(32, c), nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x, t, context):
        half = self.c // 2
        angles = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)[None]
        t = self.time(torch.cat([angles.cos(), angles.sin()], 1).to(x.dtype))
        x1 = self.d1(self.inp(x), t)
        x2 = self.a2(self.d2(self.down1(x1), t), context)
        x3 = self.a3(self.d3(self.down2(x2), t), context)
        y = self.b3(self.u3(torch.cat([x3, x3], 1), t), context)
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        y = self.b2(self.u2(torch.cat([y, x2], 1), t), context)
        y = F.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.out(F.silu(self.norm(self.u1(torch.cat([y, x1], 1), t))))


class EDSR(nn.Module):
    def __init__(self, c=64, depth=16, scale=4):
        super().__init__()
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU(True), nn.Conv2d(c, c, 3, padding=1))
            for _ in range(depth)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 4 * c, 3, padding=1), nn.PixelShuffle(2)) for _ in range(int(math.log2(scale)))
        )
        self.tail = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x):
        x = y = self.head(x)
        for block in self.body:
            y = y + 0.1 * block(y)
        y = x + y
        for up in self.up:
            y = up(y)
        return self.tail(y).clamp(0, 1)


class StyleGenerator(nn.Module):
    def __init__(self, c=256, levels=5):
        super().__init__()
        self.map = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.LeakyReLU(0.2))])
        self.start = nn.Parameter(torch.randn(1, c, 8, 8))
        widths = [c, c, c, c // 2, c // 4, c // 8][: levels + 1]
        self.conv = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in zip(widths, widths[1:]))
        self.style = nn.ModuleList(nn.Linear(512, 2 * o) for o in widths[1:])
        self.norm = nn.ModuleList(nn.InstanceNorm2d(o) for o in widths[1:])
        self.rgb = nn.Conv2d(widths[-1], 3, 1)

    def forward(self, z):
        w = self.map(z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8))
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for conv, style, norm in zip(self.conv, self.style, self.norm):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            gain, bias = style(w)[:, :, None, None].chunk(2, 1)
            x = F.leaky_relu(norm(conv(x)) * (1 + gain) + bias, 0.2)
        return torch.tanh(self.rgb(x))


class R2Plus1D(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        conv = lambda i, o, s: nn.Sequential(
            nn.Conv3d(i, o, (1, 3, 3), (1, s, s), (0, 1, 1), bias=False),
            nn.BatchNorm3d(o),
            nn.ReLU(True),
            nn.Conv3d(o, o, (3, 1, 1), (s, 1, 1), (1, 0, 0), bias=False),
            nn.BatchNorm3d(o),
        )
        self.stem = nn.Sequential(
            nn.Conv3d(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False),
            nn.BatchNorm3d(45),
            nn.ReLU(True),
            nn.Conv3d(45, c, (3, 1, 1), 1, (1, 0, 0), bias=False),
            nn.BatchNorm3d(c),
            nn.ReLU(True),
        )
        self.blocks, self.skips, i = nn.ModuleList(), nn.ModuleList(), c
        for o, s in ((c, 1), (2 * c, 2), (4 * c, 2)):
            self.blocks.append(nn.Sequential(conv(i, o, s), nn.ReLU(True), conv(o, o, 1)))
            self.skips.append(nn.Conv3d(i, o, 1, s, bias=False) if s != 1 else nn.Identity())
            i = o
        self.head = nn.Linear(i, 400)

    def forward(self, x):
        x = self.stem(x)
        for block, skip in zip(self.blocks, self.skips):
            x = F.relu(block(x) + skip(x))
        return self.head(x.mean((2, 3, 4)))


class Conformer(nn.Module):
    """Speech encoder: strided front, then half feed-forward, attention, depthwise convolution, half feed-forward."""

    class Layer(nn.Module):
        def __init__(self, d, heads=4, kernel=31):
            super().__init__()
            ff = lambda: nn.Sequential(
                nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d), nn.Dropout(0.1)
            )
            self.ff1, self.ff2, self.na, self.nc, self.no = (
                ff(),
                ff(),
                nn.LayerNorm(d),
                nn.LayerNorm(d),
                nn.LayerNorm(d),
            )
            self.att = nn.MultiheadAttention(d, heads, batch_first=True)
            self.p1, self.dw, self.bn, self.p2 = (
                nn.Conv1d(d, 2 * d, 1),
                nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d),
                nn.BatchNorm1d(d),
                nn.Conv1d(d, d, 1),
            )

        def forward(self, x):
            x = x + 0.5 * self.ff1(x)
            y = self.na(x)
            x = x + self.att(y, y, y, need_weights=False)[0]
            y = F.glu(self.p1(self.nc(x).transpose(1, 2)), 1)
            x = x + self.p2(F.silu(self.bn(self.dw(y)))).transpose(1, 2)
            return self.no(x + 0.5 * self.ff2(x))

    def __init__(self, d=256, depth=12, mels=80):
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(1, d, 3, 2, 1), nn.ReLU(), nn.Conv2d(d, d, 3, 2, 1), nn.ReLU())
        self.inp, self.layers = nn.Linear(d * (mels // 4), d), nn.ModuleList(self.Layer(d) for _ in range(depth))

    def forward(self, x):
        x = self.front(x.unsqueeze(1))
        x = self.inp(x.transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = layer(x)
        return x


class Tagger(nn.Module):
    def __init__(self, vocab=50000, d=256, hidden=256, tags=20):
        super().__init__()
        self.e, self.rnn, self.out = (
            nn.Embedding(vocab, d),
            nn.LSTM(d, hidden, 2, bidirectional=True, batch_first=True),
            nn.Linear(2 * hidden, tags),
        )

    def forward(self, ids):
        return F.log_softmax(self.out(self.rnn(self.e(ids))[0]), -1)


class DeepCross(nn.Module):
    """Click prediction: one table for all fields, crossing layers, a factorisation term and a tower."""

    def __init__(self, fields=26, rows=1_000_000, d=32, dense=13):
        super().__init__()
        self.e, self.wide, n = nn.Embedding(rows, d), nn.Embedding(rows, 1), fields * d + dense
        self.cross = nn.ModuleList(nn.Linear(n, n) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(n, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
        self.out = nn.Linear(n, 1)

    def forward(self, x, idx):
        e = self.e(idx)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        x0 = x = torch.cat([e.flatten(1), x], 1)
        for layer in self.cross:
            x = x0 * layer(x) + x
        return torch.sigmoid(self.out(x) + self.deep(x0) + fm + self.wide(idx).sum(1))


class GraphAttention(nn.Module):
    """Attention along the edges of a graph: scores by edge, a softmax over each node's edges by scatter, sums back."""

    def __init__(self, d=128, heads=4, depth=3):
        super().__init__()
        self.heads = heads
        self.w, self.a = (
            nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(depth)),
            nn.ParameterList(torch.randn(2, heads, d // heads) for _ in range(depth)),
        )

    def forward(self, x, src, dst):
        for w, a in zip(self.w, self.a):
            h = w(x).view(x.shape[0], self.heads, -1)
            score = F.leaky_relu((h * a[0]).sum(-1)[src] + (h * a[1]).sum(-1)[dst], 0.2)
            index = dst.unsqueeze(1).expand_as(score)
            top = torch.full((x.shape[0], self.heads), -1e4, dtype=x.dtype, device=x.device).scatter_reduce(
                0, index, score, "amax"
            )
            weight = (score - top[dst]).exp()
            total = torch.zeros_like(top).scatter_add(0, index, weight)
            weight = weight / (total[dst] + 1e-6)
            x = F.elu(torch.zeros_like(h).index_add(0, dst, h[src] * weight.unsqueeze(-1)).flatten(1)) + x
        return x


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()

        def mlp(*widths):
            return nn.Sequential(
                *[
                    layer
                    for i, o in zip(widths, widths[1:])
                    for layer in (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())
                ]
            )

        self.local, self.whole, self.head = (
            mlp(3, 64, 64),
            mlp(64, 128, 1024),
            nn.Sequential(mlp(1088, 512, 256, 128), nn.Conv1d(128, 50, 1)),
        )

    def forward(self, x):
        local = self.local(x)
        whole = self.whole(local).max(2, keepdim=True)[0]
        return self.head(torch.cat([local, whole.expand(-1, -1, local.shape[2])], 1))


class RadianceField(nn.Module):
    def __init__(self, d=256, depth=8, octaves=10):
        super().__init__()
        self.octaves, n = octaves, 3 + 6 * octaves
        self.layers = nn.ModuleList(nn.Linear(n if at == 0 else d + n if at == 4 else d, d) for at in range(depth))
        self.density, self.feature, self.colour = (
            nn.Linear(d, 1),
            nn.Linear(d, d),
            nn.Sequential(nn.Linear(d + 3, d // 2), nn.ReLU(), nn.Linear(d // 2, 3), nn.Sigmoid()),
        )

    def forward(self, points, directions):
        scaled = points.unsqueeze(-1) * 2.0 ** torch.arange(self.octaves, device=points.device, dtype=points.dtype)
        code = torch.cat([points, scaled.sin().flatten(1), scaled.cos().flatten(1)], -1)
        x = code
        for at, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, code], -1) if at == 4 else x))
        return torch.cat([self.colour(torch.cat([self.feature(x), directions], -1)), F.softplus(self.density(x))], -1)


class RotaryLM(nn.Module):
    """A decoder as people write it by hand: RMS norms, rotary positions, grouped queries, a gated feed-forward."""

    class Norm(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.w = nn.Parameter(torch.ones(d))

        def forward(self, x):
            y = x.float()
            return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.w

    class Block(nn.Module):
        def __init__(self, d, h, kv, f):
            super().__init__()
            self.h, self.kv, self.hd = h, kv, d // h
            self.n1, self.n2 = RotaryLM.Norm(d), RotaryLM.Norm(d)
            self.q, self.k, self.v, self.o = (
                nn.Linear(d, d, bias=False),
                nn.Linear(d, kv * self.hd, bias=False),
                nn.Linear(d, kv * self.hd, bias=False),
                nn.Linear(d, d, bias=False),
            )
            self.w1, self.w2, self.w3 = (
                nn.Linear(d, f, bias=False),
                nn.Linear(f, d, bias=False),
                nn.Linear(d, f, bias=False),
            )

        @staticmethod
        def turn(x, cos, sin):
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

        def forward(self, x, cos, sin, past=None):
            b, s, _ = x.shape
            y = self.n1(x)
            q = self.turn(self.q(y).view(b, s, self.h, self.hd), cos, sin).transpose(1, 2)
            k = self.turn(self.k(y).view(b, s, self.kv, self.hd), cos, sin).transpose(1, 2)
            v = self.v(y).view(b, s, self.kv, self.hd).transpose(1, 2)
            if past is not None:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
            y = self.n2(x)
            return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    def __init__(self, vocab=32000, d=2048, depth=16, h=16, kv=4, f=5504):
        super().__init__()
        self.hd = d // h
        self.e, self.blocks, self.n, self.head = (
            nn.Embedding(vocab, d),
            nn.ModuleList(self.Block(d, h, kv, f) for _ in range(depth)),
            self.Norm(d),
            nn.Linear(d, vocab, bias=False),
        )

    def forward(self, ids, past=None):
        x, start = self.e(ids), 0 if past is None else past.shape[4]
        place = torch.arange(start, start + ids.shape[1], device=ids.device).float()
        angles = torch.outer(place, 10000.0 ** (-torch.arange(0, self.hd, 2, device=ids.device).float() / self.hd))
        cos, sin = angles.cos().to(x.dtype)[None, :, None], angles.sin().to(x.dtype)[None, :, None]
        for at, block in enumerate(self.blocks):
            x = block(x, cos, sin, None if past is None else past[at])
        return self.head(self.n(x))


class Translator(nn.Module):
    """nn.Transformer as its tutorial uses it."""

    def __init__(self, vocab=32000, d=512):
        super().__init__()
        self.a, self.b, self.t, self.out = (
            nn.Embedding(vocab, d),
            nn.Embedding(vocab, d),
            nn.Transformer(d, 8, 6, 6, 2048, batch_first=True),
            nn.Linear(d, vocab),
        )

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(
            tgt.shape[1], device=tgt.device, dtype=self.out.weight.dtype
        )
        return self.out(self.t(self.a(src), self.b(tgt), tgt_mask=mask, tgt_is_causal=True))


class NaiveLM(nn.Module):
    """Attention written out with a mask, as in courses; dropout layers, learned positions."""

    def __init__(self, vocab=50257, d=768, depth=12, h=12, ctx=1024):
        super().__init__()
        self.h, self.e, self.p = h, nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.register_buffer("mask", torch.tril(torch.ones(ctx, ctx)).view(1, 1, ctx, ctx))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "o": nn.Linear(d, d),
                    "n2": nn.LayerNorm(d),
                    "f": nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1)),
                }
            )
            for _ in range(depth)
        )
        self.n, self.head, self.drop = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False), nn.Dropout(0.1)

    def forward(self, ids):
        b, s = ids.shape
        x = self.drop(self.e(ids) + self.p(torch.arange(s, device=ids.device)))
        for block in self.blocks:
            q, k, v = (
                y.view(b, s, self.h, -1).transpose(1, 2) for y in block["qkv"](block["n1"](x)).split(x.shape[-1], 2)
            )
            w = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            w = self.drop(F.softmax(w.masked_fill(self.mask[:, :, :s, :s] == 0, float("-inf")), -1))
            x = x + self.drop(block["o"]((w @ v).transpose(1, 2).contiguous().view(b, s, -1)))
            x = x + block["f"](block["n2"](x))
        return self.head(self.n(x))


class ConvLSTM(nn.Module):
    def __init__(self, c=64, depth=2):
        super().__init__()
        self.c, self.cells = (
            c,
            nn.ModuleList(nn.Conv2d((1 if at == 0 else c) + c, 4 * c, 3, padding=1) for at in range(depth)),
        )
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        b, steps, _, h, w = x.shape
        state = [(x.new_zeros(b, self.c, h, w), x.new_zeros(b, self.c, h, w)) for _ in self.cells]
        for t in range(steps):
            y = x[:, t]
            for at, cell in enumerate(self.cells):
                i, f, o, g = cell(torch.cat([y, state[at][0]], 1)).chunk(4, 1)
                c = torch.sigmoid(f) * state[at][1] + torch.sigmoid(i) * torch.tanh(g)
                y = torch.sigmoid(o) * torch.tanh(c)
                state[at] = (y, c)
        return self.out(y)
