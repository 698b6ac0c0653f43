"""The tables of docs/what-if.md: a 70B model on several devices, number formats in decode, and accesses by fusion.

    python benchmarks/whatif_tables.py [--write]

With ``--write`` they are put between the marks of that page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import roofline as rl

PAGE = Path(__file__).resolve().parents[1] / "docs" / "what-if.md"
GIB = 2**30
CHIP = "h100-sxm"
#: What is stored and multiplied, by the column's name.
FORMATS: dict[str, dict[str, str]] = {
    "bf16": {},
    "int4-g128 weights": {"weights": "int4-g128"},
    "fp8, fp8 cache": {"activations": "fp8", "cache": "fp8"},
}


def scaled() -> Iterator[str]:
    """Llama-3-70B on 2, 4 and 8 devices."""
    yield f"{'devices':>7} {'phase':<8} {'memory':>10} {'time':>9} {'communication':>14} {'fits':>5}"
    for phase, sizes in (("prefill", {"B": 1, "S": 2048}), ("decode", {"B": 16, "C": 2048})):
        found = rl.scaling(rl.model("llama-3-70b", phase=phase), CHIP, (2, 4, 8), mode="graph", **sizes)
        for point in found.points:
            memory = float(point.memory.total) / GIB
            yield (f"{point.devices:>7} {phase:<8} {memory:>6.1f} GiB {point.time * 1e3:>6.1f} ms {point.share:>14.1%} "
                   f"{'yes' if point.fits else 'no':>5}")  # fmt: skip


def narrowed() -> Iterator[str]:
    """Llama-3-8B decode at a context of 2048."""
    yield f"{'format':<18} {'batch':>5} {'time':>9} {'range':>17} {'memory':>10} {'best batch':>10}"
    plain = rl.model("llama-3-8b", phase="decode")
    for name, formats in FORMATS.items():
        graph = rl.passes.quantize(plain, **formats) if formats else plain
        best = rl.best_batch(graph, CHIP, S=2048, mode="graph")
        for batch in (1, 128):
            est = rl.estimate(graph, CHIP, mode="graph", B=batch, C=2048)
            span = f"{est.low * 1e3:.2f} to {est.high * 1e3:.2f}"
            yield (f"{name:<18} {batch:>5} {est.time * 1e3:>6.2f} ms {span:>17} "
                   f"{float(est.memory.total) / GIB:>6.1f} GiB {best.best:>10}")  # fmt: skip


def accesses() -> Iterator[str]:
    """DRAM accesses of a chain and of attention, written out and fused."""
    yield f"{'program':<24} {'policy':<8} {'kernels':>7} {'accesses':>12} {'bytes':>10} {'time':>9}"
    b = rl.ops.Builder("chain", "bf16")
    x = b.input("x", (2**24,))
    for _ in range(5):
        x = b.op("relu", x)
    programs = {"five pointwise ops": b.graph([x])}
    for n in (2048, 8192):
        words = {"op": "attention_naive", "batch": 1, "heads": 32, "q_len": n, "kv_len": n, "head_dim": 128}
        programs[f"attention at {n}"] = rl.workload([words], dtype="bf16")
    for name, graph in programs.items():
        rows = {row.policy: row for row in rl.analysis.fusion(graph, CHIP).rows}
        for policy in ("eager", "flash" if "attention" in name else "pointwise"):
            row = rows[policy]
            yield (f"{name:<24} {policy:<8} {row.kernels:>7} {row.accesses:>12,.0f} {row.bytes / 1e6:>7.1f} MB "
                   f"{(row.time_s or 0.0) * 1e6:>6.0f} us")  # fmt: skip


TABLES: tuple[Callable[[], Iterator[str]], ...] = (scaled, narrowed, accesses)


def page(text: str) -> str:
    """The page with the tables as they are now."""
    for table in TABLES:
        begin, end = (f"<!-- {slash}{table.__name__} -->" for slash in ("", "/"))
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = "\n".join([f"{before}{begin}", "```txt", *table(), "```", f"{end}{after}"])
    return text


def main() -> None:
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for table in TABLES:
        print(table.__doc__)
        print("\n".join(table()), end="\n\n")


if __name__ == "__main__":
    main()
