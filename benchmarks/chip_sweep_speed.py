"""Time of sweeps over 10,000 chips, and how far they are from one-by-one estimates.

``python benchmarks/chip_sweep_speed.py`` prints a line per program. Recorded on two cores of an AMD EPYC that others
used as well:

    gpt2 on h100-sxm: 10,000 chips in 0.83 s; one by one 205 s; largest difference 0.0e+00
    llama-3-8b on h100-sxm: 10,000 chips in 0.71 s; one by one 304 s; largest difference 0.0e+00
    resnet50 on h100-sxm: 10,000 chips in 1.42 s; one by one 764 s; largest difference 0.0e+00
    mixtral-8x7b on mi300x: 10,000 chips in 0.78 s; one by one 332 s; largest difference 0.0e+00
    resnet50 on tpu-v4: 10,000 chips in 3.12 s; one by one 385 s; largest difference 0.0e+00
"""

from __future__ import annotations

import time

import roofline as rl

PROGRAMS = (
    ("gpt2", "h100-sxm", {"phase": "decode", "batch": 8, "context": 512}),
    ("llama-3-8b", "h100-sxm", {"phase": "prefill", "batch": 1, "seq": 2048}),
    ("resnet50", "h100-sxm", {"batch": 8}),
    ("mixtral-8x7b", "mi300x", {"phase": "decode", "batch": 8, "context": 2048}),
    ("resnet50", "tpu-v4", {"batch": 8}),
)
FIGURES = {"cache_capacity": "1MiB..64MiB", "memory_bandwidth": "1..8TB/s"}
#: Chips that are also estimated alone.
ALONE = 20


def main() -> None:
    """Sweep, and estimate some of the chips alone."""
    for name, chip, options in PROGRAMS:
        options = dict(options)
        program = rl.model(name, phase=options.pop("phase", None))
        start = time.perf_counter()
        swept = rl.sweep_chip(program, chip, FIGURES, points=100, mode="graph", **options)
        whole = time.perf_counter() - start
        start, worst = time.perf_counter(), 0.0
        for at in range(ALONE):
            index = (37 * at) % 100, (61 * at) % 100
            alone = rl.estimate(program, swept.chip_at(*index), mode="graph", **options).time
            worst = max(worst, abs(float(swept.time[index]) / alone - 1))
        each = (time.perf_counter() - start) / ALONE * swept.time.size
        print(f"{name} on {chip}: {swept.time.size:,} chips in {whole:.2f} s; one by one {each:.0f} s; "
              f"largest difference {worst:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
