"""Time a search of at least 100,000 candidates: three chips, one to sixteen of each, a model of 70B parameters.

python benchmarks/plan_speed.py [MODEL] [POINTS]
"""

from __future__ import annotations

import sys
import time

import roofline as rl


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "llama-3-70b"
    points = int(sys.argv[2]) if len(sys.argv) > 2 else 192
    chips = [rl.chip(name) for name in ("h100-sxm", "h200-sxm", "b200-sxm")]
    start, used = time.perf_counter(), time.process_time()
    made = rl.serving.plan(model, chips, prompt=4000, new_tokens=500, ttft="2 s", tpot="30 ms", points=points)
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    print(f"{made.rows.size:,} candidates in {wall:.1f} s ({cpu:.1f} s of this process): {made.best}")


if __name__ == "__main__":
    main()
