"""Measure convolutions of networks' shapes, recurrent layers, attention in fp32 and short rows, on an NVIDIA GPU.

    python benchmarks/silicon/networks.py [SECONDS] [SKIP] > networks.csv

As ``convolutions.py`` does, in PyTorch's eager mode with its default settings. The shapes are those of ResNets,
ConvNeXt, MobileNet, EfficientNet, RegNet and ResNeXt, of patches of transformers, of diffusion's and segmentation's
U-Nets, of networks for video, volumes and sound.
"""

import random

import convolutions
import torch
import torch.nn.functional as F

#: Channels in and out, edge of the plane, step.
DENSE = ((64, 64, 56, 1), (128, 128, 28, 1), (128, 128, 56, 2), (256, 256, 14, 1), (512, 512, 7, 1), (64, 128, 112, 1),
         (256, 512, 28, 1), (96, 96, 28, 1), (192, 192, 35, 1), (48, 96, 56, 1), (320, 320, 64, 1), (640, 320, 32, 1),
         (1280, 1280, 16, 1))  # fmt: skip
POINTS = ((64, 256, 56), (512, 128, 28), (1024, 256, 14), (2048, 512, 7), (96, 24, 56), (1536, 384, 14))
#: Channels, edge of the plane, of the window, step.
DEPTHWISE = ((96, 56, 7, 1), (384, 14, 7, 1), (144, 56, 3, 1), (144, 56, 3, 2), (240, 28, 5, 1), (960, 7, 5, 1),
             (32, 112, 3, 1), (960, 7, 3, 1))  # fmt: skip
#: Of images of three channels: channels out, window, step, edge, padding.
FIRST = ((64, 7, 2, 224, 3), (32, 3, 2, 224, 1), (64, 3, 1, 224, 1), (96, 4, 4, 224, 0), (768, 16, 16, 224, 0),
         (1024, 14, 14, 224, 0), (1152, 14, 14, 384, 0))  # fmt: skip
#: Channels, groups, edge.
GROUPED = ((256, 32, 56), (512, 32, 28), (1024, 32, 14), (240, 3, 28), (528, 66, 14), (256, 2, 27))
#: Channels in and out, points, window, steps.
VOLUMES = ((3, 64, [16, 112, 112], [3, 7, 7], [1, 2, 2]), (64, 64, [16, 56, 56], [3, 3, 3], [1, 1, 1]),
           (64, 144, [16, 56, 56], [1, 3, 3], [1, 1, 1]), (144, 64, [16, 56, 56], [3, 1, 1], [1, 1, 1]),
           (128, 256, [8, 28, 28], [3, 3, 3], [2, 2, 2]), (1, 32, [64, 64, 64], [3, 3, 3], [1, 1, 1]),
           (32, 64, [32, 32, 32], [3, 3, 3], [1, 1, 1]))  # fmt: skip
#: Channels in and out, length, window, step, dilation.
SOUND = ((80, 512, 1000, 7, 1, 1), (512, 512, 1000, 3, 1, 1), (512, 512, 8000, 3, 2, 1), (256, 256, 4096, 11, 1, 5),
         (128, 128, 16384, 7, 1, 3), (64, 64, 32768, 3, 1, 9), (32, 1, 65536, 7, 1, 1), (1, 512, 80000, 10, 5, 1),
         (256, 256, 1000, 31, 1, 1))  # fmt: skip
#: Channels in and out, length, window, step.
UPSAMPLING = ((512, 256, 128, 16, 8), (256, 128, 1024, 16, 8), (128, 64, 8192, 4, 2), (64, 32, 16384, 4, 2),
              (192, 96, 512, 10, 5), (512, 256, 100, 20, 10))  # fmt: skip
#: Channels in and out, edge, window.
ENLARGING = ((512, 256, 32, 2), (256, 128, 64, 2), (64, 32, 128, 2), (512, 512, 8, 4), (256, 128, 32, 4),
             (100, 512, 1, 4))  # fmt: skip


def planes(n, i, o, h, k=3, st=1, pad=None, g=1, dt="bf16", layout="", bias=0):
    return {"op": "conv", "kind": "net", "n": n, "i": i, "o": o, "hw": [h, h], "k": [k, k], "stride": st,
            "pad": k // 2 if pad is None else pad, "dil": 1, "groups": g, "trans": 0, "bias": bias, "layout": layout,
            "dtype": dt}  # fmt: skip


def axes(n, i, o, hw, k, st, pad, g=1, trans=0, bias=0, dil=None):
    return {"op": "conv", "kind": "net", "n": n, "i": i, "o": o, "hw": hw, "k": k, "stride": st, "pad": pad,
            "dil": dil or [1] * len(k), "groups": g, "trans": trans, "bias": bias, "layout": "",
            "dtype": "bf16"}  # fmt: skip


def convolution_jobs():
    """All convolutions, in bf16 and, of ResNets, in fp32."""
    jobs = []
    for layout in ("", "channels_last"):
        for n in (1, 8, 64):
            jobs += [planes(n, *s[:3], 3, s[3], layout=layout) for s in DENSE if n < 64 or s[0] * s[2] <= 20000]
            jobs += [planes(n, *s, 1, layout=layout) for s in POINTS]
            jobs += [planes(n, c, c, h, k, st, g=c, layout=layout) for c, h, k, st in DEPTHWISE]
            jobs += [planes(n, 3, o, h, k, st, p, layout=layout, bias=1) for o, k, st, h, p in FIRST]
            jobs += [planes(n, c, c, h, g=g, layout=layout) for c, g, h in GROUPED]
    for n in (2, 8):
        jobs += [axes(n, *s, [v // 2 for v in s[3]]) for s in VOLUMES]
        jobs += [axes(n, i, o, [1, length], [1, k], [1, st], [0, d * (k // 2)], 256 if k == 31 else 1, 0, 1, [1, d])
                 for i, o, length, k, st, d in SOUND]  # fmt: skip
        jobs.append(axes(n, 768, 768, [1, 400], [1, 128], [1, 1], [0, 64], 16, 0, 1))
        jobs += [axes(n, i, o, [1, length], [1, k], [1, st], [0, (k - st) // 2], 1, 1, 1)
                 for i, o, length, k, st in UPSAMPLING]  # fmt: skip
        jobs += [axes(n, i, o, [h, h], [k, k], [2, 2], [(k - 2) // 2] * 2, 1, 1) for i, o, h, k in ENLARGING]
    for c, h in ((64, 56), (128, 28), (256, 14), (512, 7)):
        jobs += [planes(32, c, c, h, dt="fp32"), planes(32, c, c, h, dt="fp32", layout="channels_last")]
        jobs += [planes(32, 4 * c, c, h, 1, dt="fp32"), planes(32, c, 4 * c, h, 1, dt="fp32", layout="channels_last")]
    random.Random(7).shuffle(jobs)
    return jobs


def all_jobs():
    """Recurrent layers of fifty steps, attention and short rows, then convolutions."""
    both = ("bf16", "fp32")
    jobs = [{"op": "rnn", "cell": cell, "n": n, "t": 50, "i": i, "h": h, "dtype": dtype} for cell in ("GRU", "LSTM")
            for n, i, h in ((1, 256, 256), (16, 128, 256), (32, 512, 512), (64, 256, 1024))
            for dtype in both]  # fmt: skip
    jobs += [{"op": "sdpa", "b": b, "heads": h, "s": s, "d": d, "causal": causal, "dtype": "fp32"}
             for b, h, s, d in ((8, 12, 197, 64), (2, 16, 1024, 64), (4, 8, 2048, 128), (32, 12, 128, 64),
                                (1, 12, 512, 64))
             for causal in (0, 1)]  # fmt: skip
    jobs += [{"op": "norm", "what": what, "rows": rows, "c": c, "dtype": dtype} for what in ("ln", "softmax")
             for rows, c in ((200000, 32), (65536, 49), (400000, 16), (1000000, 8)) for dtype in both]  # fmt: skip
    return jobs + convolution_jobs()


def work(job, device="cuda"):
    """The operator of a job, as a function without arguments."""

    def tensor(*shape):
        return convolutions.tensor(*shape, dtype=job["dtype"], device=device)

    if job["op"] == "rnn":
        layer = getattr(torch.nn, job["cell"])(job["i"], job["h"], batch_first=True)
        layer, x = layer.to(device, convolutions.T[job["dtype"]]).eval(), tensor(job["n"], job["t"], job["i"])
        return lambda: layer(x)[0]
    if job["op"] == "sdpa":
        q = tensor(job["b"], job["heads"], job["s"], job["d"])
        return lambda: F.scaled_dot_product_attention(q, q, q, is_causal=bool(job["causal"]))
    if job["op"] == "norm":
        x = tensor(job["rows"], job["c"])
        return (lambda: F.layer_norm(x, (job["c"],))) if job["what"] == "ln" else (lambda: x.softmax(-1))
    return convolutions.work(job, device)


if __name__ == "__main__":
    convolutions.main(all_jobs(), work, 50.0)
