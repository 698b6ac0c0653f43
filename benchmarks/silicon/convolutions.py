"""Measure convolutions of random shapes, their gradients and what stands beside them, on an NVIDIA GPU.

    python benchmarks/silicon/convolutions.py [SECONDS] [SKIP] > convolutions.csv

PyTorch in eager mode with its default settings; one row an operator: time of its kernels by name, bytes allocated at
most, bytes of the result. The list of shapes is the same each time; SKIP rows of it are left out, to go on where a run
stopped.
"""

import csv
import json
import random
import sys
import time

import torch
import torch.nn.functional as F

R = random.Random(7)
T = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
aten = torch.ops.aten
C = [16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024]
HW = [7, 8, 14, 16, 17, 28, 32, 35, 56, 64, 112, 128, 256]


def conv(kind=None):
    kind = (
        kind
        or R.choices(
            ["dense3", "dense1", "big", "first", "depth", "group", "one_d", "three_d", "trans", "dil", "last"],
            [24, 16, 6, 9, 14, 5, 9, 4, 7, 4, 2],
        )[0]
    )
    n = R.choice([1, 1, 2, 4, 8, 16, 32, 64, 128])
    i = R.choice(C)
    o = R.choice(C)
    h = R.choice(HW)
    s = {
        "kind": kind,
        "n": n,
        "i": i,
        "o": o,
        "hw": [h, h],
        "k": [3, 3],
        "stride": 1,
        "pad": 1,
        "dil": 1,
        "groups": 1,
        "trans": 0,
        "bias": int(R.random() < 0.3),
        "layout": R.choice(["", "", "channels_last"]),
        "dtype": R.choices(["bf16", "fp16", "fp32"], [6, 2, 3])[0],
    }
    if kind == "dense3":
        s["stride"] = R.choice([1, 1, 1, 2])
    if kind == "dense1":
        s.update(k=[1, 1], pad=0, stride=R.choice([1, 1, 1, 1, 2]))
    if kind == "big":
        k = R.choice([5, 7, 4, 2])
        s.update(k=[k, k], pad=k // 2 if k > 4 else 0, stride=1 if k > 4 else k)
    if kind == "first":
        k, st, p = R.choice(
            [(7, 2, 3), (3, 1, 1), (3, 2, 1), (16, 16, 0), (4, 4, 0), (14, 14, 0), (2, 2, 0), (6, 2, 2)]
        )
        s.update(
            i=R.choice([1, 3, 3, 3, 4, 9]), hw=[R.choice([32, 64, 128, 224, 256, 384])] * 2, k=[k, k], stride=st, pad=p
        )
    if kind == "depth":
        k = R.choice([3, 3, 5, 7])
        s.update(o=i, groups=i, k=[k, k], pad=k // 2, stride=R.choice([1, 1, 1, 2]))
        if h * n > 4096:
            s["n"] = 16
    if kind == "group":
        g = R.choice([2, 4, 8, 32])
        w = R.choice([4, 8, 16, 32, 64])
        s.update(i=g * w, o=g * w, groups=g, stride=R.choice([1, 1, 2]))
    if kind == "one_d":
        k, st, d = R.choice(
            [(3, 1, 1), (3, 2, 1), (5, 1, 1), (7, 1, 1), (10, 5, 1), (3, 1, 4), (1, 1, 1), (11, 1, 3), (3, 1, 16)]
        )
        s.update(
            n=R.choice([1, 4, 16]),
            hw=[1, R.choice([250, 512, 1000, 4096, 16000, 65536])],
            k=[1, k],
            stride=[1, st],
            pad=[0, d * (k // 2)],
            dil=[1, d],
            layout="",
        )
        if R.random() < 0.25:
            s.update(i=R.choice([1, 80]))
            s["n"] = 4
        if R.random() < 0.2:
            s.update(o=s["i"], groups=s["i"])
    if kind == "three_d":
        s.update(
            n=R.choice([1, 2, 4]),
            i=R.choice([3, 16, 32, 64, 128, 256]),
            o=R.choice([16, 32, 64, 128, 256]),
            hw=[R.choice([4, 8, 16]), *[R.choice([14, 28, 56])] * 2],
            k=[3] * 3 if R.random() < 0.7 else [1] * 3,
            stride=R.choice([1, 1, 2]),
        )
        s["pad"] = s["k"][0] // 2
        s["layout"] = ""
    if kind == "trans":
        k, st, p = R.choice([(2, 2, 0), (4, 2, 1), (3, 2, 1)])
        s.update(trans=1, k=[k, k], stride=st, pad=p)
        if R.random() < 0.4:
            k, st = R.choice([(16, 8), (4, 2), (8, 4), (12, 6)])
            s.update(
                n=4,
                hw=[1, R.choice([128, 512, 4096, 16384])],
                k=[1, k],
                stride=[1, st],
                pad=[0, (k - st) // 2],
                layout="",
            )
    if kind == "dil":
        d = R.choice([2, 4, 6, 12])
        s.update(dil=d, pad=d)
    if kind == "last":
        s.update(o=R.choice([1, 2, 3, 4, 21]), k=[R.choice([1, 3])] * 2)
        s["pad"] = s["k"][0] // 2
    return s


def flops(s):
    area = 1
    st = s["stride"] if isinstance(s["stride"], list) else [s["stride"]] * len(s["hw"])
    for h, t in zip(s["hw"], st, strict=False):
        area *= h if s["trans"] else max(h // t, 1)
    w = 1
    for k in s["k"]:
        w *= k
    return 2.0 * s["n"] * area * s["o"] * s["i"] / s["groups"] * w


def elements(s):
    area = 1
    for h in s["hw"]:
        area *= h
    return s["n"] * area * max(s["i"], s["o"])


def other():
    op = R.choice(
        [
            "bn_eval",
            "bn_train",
            "gn",
            "maxpool",
            "avgpool",
            "gap",
            "nearest",
            "bilinear",
            "shuffle",
            "pad",
            "ln_cf",
            "in",
        ]
    )
    return {
        "op": op,
        "n": R.choice([1, 4, 16, 64]),
        "c": R.choice(C[:-2]),
        "hw": [R.choice([7, 14, 16, 28, 32, 56, 64, 112, 128])] * 2,
        "layout": R.choice(["", "", "channels_last"]),
        "dtype": R.choice(["bf16", "bf16", "fp32"]),
    }


def tensor(*shape, dtype, layout="", device="cuda"):
    x = torch.randn(*shape, device=device, dtype=T[dtype])
    if layout:
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def work(job, device="cuda"):
    """The operator of a job, as a function without arguments."""
    if job["op"] in ("conv", "conv_backward"):
        s = job
        w = (s["i"], s["o"] // s["groups"]) if s["trans"] else (s["o"], s["i"] // s["groups"])
        x = tensor(s["n"], s["i"], *s["hw"], dtype=s["dtype"], layout=s["layout"], device=device)
        w = tensor(*w, *s["k"], dtype=s["dtype"], layout=s["layout"], device=device)
        b = tensor(s["o"], dtype=s["dtype"], device=device) if s["bias"] else None
        d = len(s["k"])

        def as_list(v):
            return list(v) if isinstance(v, list) else [v] * d

        st, pd, dl = map(as_list, (s["stride"], s["pad"], s["dil"]))
        if job["op"] == "conv":
            return lambda: torch.convolution(x, w, b, st, pd, dl, bool(s["trans"]), [0] * d, s["groups"])
        with torch.no_grad():
            y = torch.convolution(x, w, b, st, pd, dl, bool(s["trans"]), [0] * d, s["groups"])
        g = torch.randn_like(y)
        return lambda: aten.convolution_backward(
            g,
            x,
            w,
            [s["o"]] if s["bias"] else None,
            st,
            pd,
            dl,
            bool(s["trans"]),
            [0] * d,
            s["groups"],
            [s["i"] > 4, True, bool(s["bias"])],
        )
    n, c, hw, dt = job["n"], job["c"], job["hw"], job["dtype"]
    x = tensor(n, c, *hw, dtype=dt, layout=job["layout"], device=device)
    one = torch.rand(c, device=device, dtype=T[dt]) + 0.5
    if job["op"] == "bn_eval":
        r = [torch.rand(c, device=device, dtype=T[dt]) for _ in range(2)]
        return lambda: F.batch_norm(x, *r, one, one)
    if job["op"] == "bn_train":
        r = [torch.rand(c, device=device, dtype=torch.float32) for _ in range(2)]
        o = one.float()
        return lambda: F.batch_norm(x, *r, o, o, training=True)
    if job["op"] == "in":
        return lambda: F.instance_norm(x, None, None, one, one)
    if job["op"] == "gn":
        return lambda: F.group_norm(x, 8, one, one)
    if job["op"] == "maxpool":
        return lambda: F.max_pool2d(x, 3, 2, 1)
    if job["op"] == "avgpool":
        return lambda: F.avg_pool2d(x, 2)
    if job["op"] == "gap":
        return lambda: F.adaptive_avg_pool2d(x, 1)
    if job["op"] == "nearest":
        return lambda: F.interpolate(x, scale_factor=2, mode="nearest")
    if job["op"] == "bilinear":
        return lambda: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    if job["op"] == "shuffle":
        return lambda: F.pixel_shuffle(x, 2)
    if job["op"] == "pad":
        return lambda: F.pad(x, (1, 1, 1, 1))
    if job["op"] == "ln_cf":
        return lambda: F.layer_norm(x.permute(0, 2, 3, 1), (c,), one, one).permute(0, 3, 1, 2)


def random_jobs():
    """The list of shapes, the same each time."""
    jobs = []
    while len(jobs) < 1500:
        z = R.random()
        if z < 0.62 or z >= 0.86:
            s = conv()
            limit = 6e11 if s["dtype"] != "fp32" else 2e11
            if flops(s) > limit or elements(s) > 1.5e8 or (z >= 0.86 and (flops(s) > 2e11 or elements(s) > 6e7)):
                continue
            if len(s["k"]) == 3 and s["layout"]:
                continue
            jobs.append({"op": "conv" if z < 0.62 else "conv_backward", **s})
        else:
            s = other()
            if s["n"] * s["c"] * s["hw"][0] ** 2 > 6e7:
                continue
            jobs.append(s)
    return jobs


def gather(event):
    own = [(k.name[:110], k.duration) for k in event.kernels]
    for child in event.cpu_children:
        own += gather(child)
    return own


def run(batch, work, out):
    """Measure some jobs, and write a row of each."""
    from torch.profiler import ProfilerActivity, profile, record_function

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    memory = {}
    calls = []
    for at, job in batch:
        try:
            f = work(job)
            with torch.no_grad():
                y = f()
                del y
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                y = f()
                torch.cuda.synchronize()
                memory[at] = (
                    torch.cuda.max_memory_allocated() - before,
                    sum(
                        t.numel() * t.element_size()
                        for t in (y if isinstance(y, (tuple, list)) else [y])
                        if t is not None
                    ),
                )
                del y
            calls.append((at, f))
        except Exception as error:
            print("#", at, job, str(error)[:100], file=sys.stderr)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof, torch.no_grad():
        for _turn in range(3):
            for at, f in calls:
                flush.zero_()
                with record_function(f"job{at}"):
                    f()
        torch.cuda.synchronize()
    seen = {}
    for event in prof.events():
        if event.name.startswith("job") and event.device_type.name == "CPU":
            seen.setdefault(int(event.name[3:]), []).append(gather(event))
    for at, job in batch:
        if at not in seen:
            continue
        runs = sorted(seen[at], key=lambda ks: sum(d for _, d in ks))
        mid = runs[len(runs) // 2]
        out.writerow(
            [
                at,
                job["op"],
                json.dumps(job),
                round(sum(d for _, d in mid), 2),
                *memory[at],
                json.dumps([(a, round(b, 2)) for a, b in mid]),
            ]
        )
    sys.stdout.flush()


def main(jobs, work, seconds):
    """Measure jobs by the dozen until the time is over."""
    limit, skip = (float(sys.argv[1]) if len(sys.argv) > 1 else seconds), (int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    out = csv.writer(sys.stdout)
    out.writerow(["row", "op", "job", "us", "allocated", "output", "kernels"])
    start, at = time.time(), skip
    while at < len(jobs) and time.time() - start < limit:
        run(list(enumerate(jobs))[at : at + 12], work, out)
        at += 12
    print("# done", at, "of", len(jobs), round(time.time() - start, 1), "s", file=sys.stderr)


if __name__ == "__main__":
    main(random_jobs(), work, 38.0)
