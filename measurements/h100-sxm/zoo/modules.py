"""Small networks that no library ships, written for the measurements; every one is fp32 on the CPU until moved."""

import torch, torch.nn as nn, torch.nn.functional as F


class UNetBN(nn.Module):
    def __init__(s, c=32):
        super().__init__()
        blk = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(),
            nn.Conv2d(o, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(),
        )
        s.down = nn.ModuleList([blk(3, c), blk(c, 2 * c), blk(2 * c, 4 * c), blk(4 * c, 8 * c)])
        s.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(8 * c, 4 * c, 2, 2),
                nn.ConvTranspose2d(4 * c, 2 * c, 2, 2),
                nn.ConvTranspose2d(2 * c, c, 2, 2),
            ]
        )
        s.dec = nn.ModuleList([blk(8 * c, 4 * c), blk(4 * c, 2 * c), blk(2 * c, c)])
        s.out = nn.Conv2d(c, 2, 1)

    def forward(s, x):
        skips = []
        for i, b in enumerate(s.down):
            x = b(x)
            skips.append(x)
            if i < 3:
                x = F.max_pool2d(x, 2)
        for i, (u, b) in enumerate(zip(s.up, s.dec)):
            x = b(torch.cat([u(x), skips[2 - i]], 1))
        return s.out(x)


class VAEDecoder(nn.Module):
    def __init__(s, c=128):
        super().__init__()
        res = lambda i, o: nn.Sequential(
            nn.GroupNorm(16, i),
            nn.SiLU(),
            nn.Conv2d(i, o, 3, padding=1),
            nn.GroupNorm(16, o),
            nn.SiLU(),
            nn.Conv2d(o, o, 3, padding=1),
        )
        s.inp = nn.Conv2d(4, 4 * c, 3, padding=1)
        s.blocks = nn.ModuleList([res(4 * c, 4 * c), res(4 * c, 4 * c), res(4 * c, 2 * c), res(2 * c, c)])
        s.skip = nn.ModuleList([nn.Identity(), nn.Identity(), nn.Conv2d(4 * c, 2 * c, 1), nn.Conv2d(2 * c, c, 1)])
        s.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(s, x):
        x = s.inp(x)
        for i, (b, k) in enumerate(zip(s.blocks, s.skip)):
            x = b(x) + k(x)
            if i < 3:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
        return s.out(x)


class DiT(nn.Module):
    def __init__(s, d=768, n=12, h=12, tokens=256):
        super().__init__()
        s.d, s.h = d, h
        s.patch = nn.Conv2d(4, d, 2, 2)
        s.pos = nn.Parameter(torch.randn(1, tokens, d))
        s.t = nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        s.blocks = nn.ModuleList(
            [
                nn.ModuleDict(
                    dict(
                        n1=nn.LayerNorm(d, elementwise_affine=False),
                        qkv=nn.Linear(d, 3 * d),
                        o=nn.Linear(d, d),
                        n2=nn.LayerNorm(d, elementwise_affine=False),
                        f1=nn.Linear(d, 4 * d),
                        f2=nn.Linear(4 * d, d),
                        mod=nn.Linear(d, 6 * d),
                    )
                )
                for _ in range(n)
            ]
        )
        s.out = nn.Linear(d, 16)

    def forward(s, x, t):
        x = s.patch(x).flatten(2).transpose(1, 2) + s.pos
        c = F.silu(s.t(t))
        B, N, D = x.shape
        for b in s.blocks:
            s1, c1, g1, s2, c2, g2 = b["mod"](c).unsqueeze(1).chunk(6, 2)
            q, k, v = b["qkv"](b["n1"](x) * (1 + c1) + s1).view(B, N, 3, s.h, D // s.h).permute(2, 0, 3, 1, 4)
            x = x + g1 * b["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, D))
            x = x + g2 * b["f2"](F.gelu(b["f1"](b["n2"](x) * (1 + c2) + s2), approximate="tanh"))
        return s.out(x)


class TCN(nn.Module):
    def __init__(s, c=256, n=8):
        super().__init__()
        s.i = nn.Conv1d(80, c, 1)
        s.b = nn.ModuleList([nn.Conv1d(c, 2 * c, 3, padding=2**k, dilation=2**k) for k in range(n)])
        s.r = nn.ModuleList([nn.Conv1d(c, c, 1) for _ in range(n)])

    def forward(s, x):
        x = s.i(x)
        for b, r in zip(s.b, s.r):
            a, g = b(x).chunk(2, 1)
            x = x + r(torch.tanh(a) * torch.sigmoid(g))
        return x


class Vocoder(nn.Module):
    def __init__(s, c=256):
        super().__init__()
        s.i = nn.Conv1d(80, c, 7, padding=3)
        ch = [c, c // 2, c // 4, c // 8]
        s.u = nn.ModuleList(
            [
                nn.ConvTranspose1d(ch[i], ch[i + 1], k, st, (k - st) // 2)
                for i, (k, st) in enumerate([(16, 8), (16, 8), (4, 2)])
            ]
        )
        s.r = nn.ModuleList(
            [
                nn.ModuleList([nn.Conv1d(ch[i + 1], ch[i + 1], 3, padding=d, dilation=d) for d in (1, 3, 5)])
                for i in range(3)
            ]
        )
        s.o = nn.Conv1d(ch[3], 1, 7, padding=3)

    def forward(s, x):
        x = s.i(x)
        for u, r in zip(s.u, s.r):
            x = u(F.leaky_relu(x, 0.1))
            for c in r:
                x = x + c(F.leaky_relu(x, 0.1))
        return torch.tanh(s.o(F.leaky_relu(x)))


class ResNet3D(nn.Module):
    def __init__(s, c=64):
        super().__init__()
        s.stem = nn.Sequential(
            nn.Conv3d(3, c, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(c), nn.ReLU()
        )

        def b(i, o, st):
            return nn.ModuleList(
                [
                    nn.Conv3d(i, o, 3, st, 1, bias=False),
                    nn.BatchNorm3d(o),
                    nn.Conv3d(o, o, 3, 1, 1, bias=False),
                    nn.BatchNorm3d(o),
                    nn.Conv3d(i, o, 1, st, bias=False) if (i != o or st != 1) else nn.Identity(),
                ]
            )

        s.b = nn.ModuleList(
            [b(c, c, 1), b(c, c, 1), b(c, 2 * c, 2), b(2 * c, 2 * c, 1), b(2 * c, 4 * c, 2), b(4 * c, 4 * c, 1)]
        )
        s.fc = nn.Linear(4 * c, 400)

    def forward(s, x):
        x = s.stem(x)
        for c1, n1, c2, n2, k in s.b:
            x = F.relu(n2(c2(F.relu(n1(c1(x))))) + k(x))
        return s.fc(x.mean((2, 3, 4)))


class TinyDLRM(nn.Module):
    def __init__(s, tables=16, rows=200_000, d=64):
        super().__init__()
        s.n = tables + 1
        s.emb = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum") for _ in range(tables))
        s.bot = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        s.top = nn.Sequential(
            nn.Linear(d + s.n * (s.n - 1) // 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(s, x, idx):
        z = [s.bot(x)] + [e(idx[:, i]) for i, e in enumerate(s.emb)]
        t = torch.stack(z, 1)
        p = torch.bmm(t, t.transpose(1, 2))
        i, j = torch.triu_indices(s.n, s.n, 1, device=x.device)
        return s.top(torch.cat([z[0], p[:, i, j]], 1))


class GraphConv(nn.Module):
    """Four rounds of message passing by index_add over an edge list."""

    def __init__(s, d=256):
        super().__init__()
        s.w = nn.ModuleList([nn.Linear(2 * d, d) for _ in range(4)])

    def forward(s, x, src, dst):
        for w in s.w:
            x = F.relu(w(torch.cat([x, torch.zeros_like(x).index_add_(0, dst, x[src])], 1)))
        return x


class BlockLM(nn.Module):
    """A decoder as people write it by hand: fused qkv, causal SDPA, gelu MLP, learned positions, tied head."""

    def __init__(s, v=50304, d=1024, n=12, h=16, ctx=2048):
        super().__init__()
        s.h = h
        s.e = nn.Embedding(v, d)
        s.p = nn.Embedding(ctx, d)
        s.b = nn.ModuleList(
            [
                nn.ModuleDict(
                    dict(
                        n1=nn.LayerNorm(d),
                        qkv=nn.Linear(d, 3 * d, bias=False),
                        o=nn.Linear(d, d, bias=False),
                        n2=nn.LayerNorm(d),
                        f1=nn.Linear(d, 4 * d, bias=False),
                        f2=nn.Linear(4 * d, d, bias=False),
                    )
                )
                for _ in range(n)
            ]
        )
        s.n = nn.LayerNorm(d)

    def forward(s, ids):
        B, N = ids.shape
        x = s.e(ids) + s.p(torch.arange(N, device=ids.device))
        for b in s.b:
            q, k, v = b["qkv"](b["n1"](x)).chunk(3, 2)
            q, k, v = (t.view(B, N, s.h, -1).transpose(1, 2) for t in (q, k, v))
            x = x + b["o"](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, N, -1))
            x = x + b["f2"](F.gelu(b["f1"](b["n2"](x))))
        return F.linear(s.n(x), s.e.weight)
