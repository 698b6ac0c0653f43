"""Which matmuls torch.compile pads, and what that gains: ``python benchmarks/compiled_padding.py`` on CUDA.

Prints rows of ``measurements/h200-sxm/padding.csv``: a linear layer and GELU (none where there is no bias) in bf16 as
they are and compiled, and whether the code that was made pads.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from triton.testing import do_bench

SHAPES = [(m, 4099, 1023) for m in (8, 512, 4096)] + [
    (512, 2047, 4099), (8, 50257, 768), (4096, 50257, 768), (4096, 4099, 1024), (4096, 4096, 1023)]  # fmt: skip


def main() -> None:
    print("m,n,k,eager_s,compiled_s,padded")
    for m, n, k in SHAPES:
        torch._dynamo.reset()
        last = nn.Identity() if n > 50000 else nn.GELU()
        module = nn.Sequential(nn.Linear(k, n, bias=n < 50000), last).cuda().bfloat16()
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            compiled = torch.compile(module)
            _, code = run_and_get_code(compiled, x)
            times = [do_bench(partial(run, x), return_mode="median") / 1e3 for run in (module, compiled)]
        print(m, n, k, *(f"{time:.3g}" for time in times), any("constant_pad" in text for text in code), sep=",")


if __name__ == "__main__":
    main()
