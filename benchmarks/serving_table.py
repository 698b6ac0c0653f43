"""Times per output token of public deployments beside ours: the table of docs/serving.md.

    python benchmarks/serving_table.py SERVING.csv

Takes the table of whole deployments of aiconfigurator (``model_path, system, precision, isl, osl, batch_size, tp_size,
silicon_ttft_ms, silicon_tpot_ms`` and so on): its rows of one GPU in fp8 whose model ships. Nothing was fitted to them.
"""

from __future__ import annotations

import csv
import sys
from statistics import median

import roofline as rl
from roofline.analysis.estimates import Mode

MODELS = {"8B": "llama-3-8b", "70B": "llama-3-70b", "Qwen3-32B": "qwen3-32b"}
#: Rows of the table: least new tokens, and most sequences at a time.
CUTS = ((1000, 8), (1000, 32), (0, 10**9))


def rows(path: str) -> list[dict[str, str]]:
    """Rows of one GPU in fp8."""
    with open(path, encoding="utf-8", newline="") as stream:
        found = list(csv.DictReader(stream))
    alone = [row for row in found if float(row["tp_size"]) == float(row["pp_size"]) == 1 and row["precision"] == "fp8"]
    return [{**row, "model": name} for row in alone for word, name in MODELS.items() if word in row["model_path"]]


def ratios(row: dict[str, str], mode: Mode) -> tuple[float, bool]:
    """Predicted over measured time per output token, and whether it is in the range."""
    found = rl.serving.request(
        row["model"], row["system"].replace("_", "-"), prompt=int(row["isl"]), new_tokens=int(row["osl"]),
        batch=int(float(row["batch_size"])), mode=mode, weights="fp8",
    )  # fmt: skip
    measured = float(row["silicon_tpot_ms"]) / 1e3
    steps = found.new_tokens - 1
    low, high = (float(sum(end)) / steps for end in (found.decode.low, found.decode.high))
    return found.time_per_token / measured, low <= measured <= high


def first_token(row: dict[str, str]) -> float:
    """A prefill alone over the measured time to the first token, which includes queueing."""
    graph = rl.model(row["model"], phase="prefill", weights="fp8")
    alone = rl.estimate(graph, row["system"].replace("_", "-"), mode="graph", B=1, S=int(row["isl"])).time
    return float(alone) / (float(row["silicon_ttft_ms"]) / 1e3)


def main() -> None:
    print(f"{'new tokens':>10} {'at a time':>9} {'rows':>5} {'mode':<9} {'mean':>6} {'median':>7} {'inside':>7}")
    for least, most in CUTS:
        chosen = [r for r in rows(sys.argv[1]) if int(r["osl"]) >= least and float(r["batch_size"]) <= most]
        for mode in ("compiled", "graph"):
            found = [ratios(row, mode) for row in chosen]
            errors = [ratio - 1 for ratio, _ in found]
            print(f"{least:>10} {most:>9} {len(found):>5} {mode:<9} {sum(map(abs, errors)) / len(errors):>6.1%} "
                  f"{median(errors):>+7.1%} {sum(inside for _, inside in found) / len(found):>7.0%}")  # fmt: skip
    few = [first_token(row) for row in rows(sys.argv[1]) if float(row["batch_size"]) <= CUTS[0][1]]
    print(f"a lone prefill against the time to the first token, {len(few)} rows: median {median(few) - 1:+.0%}")


if __name__ == "__main__":
    main()
