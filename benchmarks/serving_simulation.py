"""Simulated servers beside the closed forms: ``python benchmarks/serving_simulation.py [--csv OUT.csv]``.

The same policy, step by step and in closed form, over models, chips, users, rates, sizes of a step, prefixes, drafts,
and prompts in steps or on chips of their own. Requests are all alike, or differ in length by a share (``spread``), and
the cache never evicts. Errors are those of the closed form, of the simulation in per cent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

import roofline as rl

ONE, FOUR = {"model": "llama-3-8b", "chip": "h100-sxm"}, {"model": "llama-3-70b", "chip": "h200-sxm", "tp": 4}
MOE = {"model": "qwen3-30b-a3b", "chip": "b200-sxm"}
SHORT, LONG, CHAT = ({"prompt": p, "new_tokens": n} for p, n in ((1000, 200), (4000, 500), (200, 1000)))
USERS = [1, 8, 64, 256]
#: What is served, and the loads: users of a closed loop, or a share of the largest rate.
CASES: list[tuple[dict[str, Any], dict[str, list[float]]]] = [
    *[({**where, **sizes, "chunk": chunk}, {"users": USERS})
      for where in (ONE, {**FOUR, "weights": "fp8"}) for sizes in (SHORT, LONG, CHAT) for chunk in (512, 2048)],
    ({**MOE, **LONG}, {"users": USERS}),
    *[({**ONE, **LONG, "chunk": 2048, "prefix": prefix}, {"users": USERS}) for prefix in (1000, 3000)],
    *[({**ONE, **SHORT, "chunk": 2048, "spec": spec}, {"users": USERS}) for spec in ("3:0.7", "5:0.9")],
    ({**ONE, **SHORT, "mixed": False}, {"users": USERS}),
    *[({**ONE, **sizes, "spread": 0.2, "mixed": mixed}, {"users": USERS})
      for sizes in (SHORT, LONG, CHAT) for mixed in (True, False)],
    ({**ONE, **LONG, "prefill_chip": "h100-sxm"}, {"users": USERS}),
    # users x tokens of each in a step below, at and above what a step holds
    *[({**ONE, **SHORT, "chunk": 128, **drafts}, {"users": [96 // width, 128 // width, 256 // width]})
      for drafts, width in (({}, 1), ({"spec": "3:0.8"}, 4))],
    *[({**ONE, **SHORT, "chunk": 128, **drafts}, {"load": [0.5, 0.9]}) for drafts in ({}, {"spec": "3:0.8"})],
    *[({**ONE, **sizes, "chunk": chunk}, {"load": [0.2, 0.5, 0.8]})
      for sizes in (SHORT, LONG, CHAT) for chunk in (2048, 8192)],
    ({**FOUR, **LONG}, {"load": [0.2, 0.5, 0.8]}),
    *[({**ONE, **LONG, "prefill_chip": "h100-sxm", "servers": servers}, {"load": [0.2, 0.5, 0.8]})
      for servers in ((1, 1), (3, 2))],
]  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each case and load."""
    for options, loads in CASES:
        (kind, values), options = next(iter(loads.items())), dict(options)
        model, chip = options.pop("model"), options.pop("chip")
        if kind == "load":
            most = rl.serving.serve(model, chip, concurrency=1, **options).largest_rate
            values = [share * most for share in values]
        load = {"concurrency": [int(each) for each in values]} if kind == "users" else {"qps": values}
        service = rl.serving.serve(model, chip, **load, **options)
        about = {"model": model, "chip": chip, **options}
        for at, value in enumerate(values):
            yield {**about, kind: value, **compared(service, at, kind)}


def compared(service: Any, at: int, kind: str) -> dict[str, Any]:
    """Simulate one load of a service, and return both."""
    value, began = service.values[at], time.perf_counter()
    load = (
        {"concurrency": round(value), "requests": max(200, 8 * round(value))}
        if kind == "users"
        else {"qps": value, "requests": 2000}
    )
    run = rl.serving.simulate(service, **load)
    took = time.perf_counter() - began
    pairs = {
        "ttft": (service.ttft[at], run.mean("ttft_s")), "tpot": (service.tpot[at], run.mean("tpot_s")),
        "rate": (service.steady.rate[at], run.requests_per_s),
    }  # fmt: skip
    figures = {f"{name}_simulated": simulated for name, (_, simulated) in pairs.items()}
    errors = {f"{name}_error": 100 * (closed / simulated - 1) for name, (closed, simulated) in pairs.items()}
    return {"bound": service.bound[at], **figures, **errors, "seconds": took}


def main() -> None:
    """Print every case, and how many are within 5 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", help="write the rows here")
    listed = []
    for row in rows():
        listed.append(row)
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(", ".join(shown), flush=True)
    frame = pd.DataFrame(listed)
    if path := parser.parse_args().csv:
        frame.to_csv(path, index=False)
    apart = frame.spread.notna()
    parts = {"users": frame.users.notna() & ~apart, "users, spread": apart, "rates": frame.users.isna()}
    for kind, part in ((kind, frame[which]) for kind, which in parts.items()):
        for name in ("ttft", "tpot", "rate"):
            error = np.abs(part[f"{name}_error"].to_numpy(float))
            within, mid = 100 * (error <= 5).mean(), np.median(error)
            print(f"{kind}: {name} within 5 % in {within:.0f} % of {len(error)} cases, "
                  f"mean {error.mean():.1f} %, median {mid:.1f} %, largest {error.max():.0f} %")  # fmt: skip
    print(f"simulations took {frame.seconds.sum():.0f} s")


if __name__ == "__main__":
    main()
