"""A fleet of 2,000 programs: a worker killed on the way, the run stopped and resumed; the times of each.

``python benchmarks/fleet_run.py [FOLDER]`` writes 2,000 configs of many families and sizes (the shipped models are
among the programs), and works them out on two chips over the processes of this machine.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import roofline as rl
from roofline.fleet import Question, run

CHIPS = ("h100-sxm", "a100-80gb-sxm")
NUMBER = 2000
#: A worker is killed when this share is done; the run is stopped (as Ctrl-C does) when this one is.
KILLED_AT, STOPPED_AT = 0.3, 0.6
QUESTION = Question(phases=("decode",), batches=(1,), limits=("latency=50ms",), mode="graph", seq=512)


def configs(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return configs as Hugging Face writes them, all different."""
    draw = random.Random(seed)
    families = [("llama", {}), ("mistral", {"sliding_window": 4096}), ("qwen2", {}), ("gemma", {}),
                ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2})]  # fmt: skip
    widths, depths = (1024, 2048, 3072, 4096, 5120, 6144, 8192), range(8, 49, 2)
    sizes = list(itertools.product(families, widths, depths, (64, 128), (1, 4, 8), (2.5, 3.5, 4)))
    picked = draw.sample(sizes, number)
    return [
        {"model_type": family, "architectures": [f"{family.title()}ForCausalLM"], "hidden_size": width,
         "num_hidden_layers": depth, "num_attention_heads": width // head, "head_dim": head,
         "num_key_value_heads": max(width // head // group, 1), "intermediate_size": int(width * ratio) // 64 * 64,
         "vocab_size": 32000 if width < 4096 else 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
         **more}
        for (family, more), width, depth, head, group, ratio in picked
    ]  # fmt: skip


def written(folder: Path) -> list[str | Path]:
    """Write the configs, one of them broken, and return all programs."""
    shipped = rl.models()
    for number, config in enumerate(configs(NUMBER - len(shipped) - 1)):
        (folder / f"{config['model_type']}-{number:04d}.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "broken.json").write_text('{"model_type": "llama", "hidden_size": -1}', encoding="utf-8")
    return [folder, *shipped]


def main(folder: Path) -> None:
    """Run, kill, stop, resume, run again; print the times."""
    from distributed import Client, LocalCluster

    models, results = folder / "models", folder / "results"
    models.mkdir(parents=True, exist_ok=True)
    programs = written(models)
    start, killed = perf_counter(), []
    here = LocalCluster(
        n_workers=os.cpu_count(), threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    with here, Client(here) as client:

        def watch(share: float) -> None:
            print(f"\r{share:.1%} after {perf_counter() - start:.0f} s", end="", file=sys.stderr, flush=True)
            if share >= KILLED_AT and not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)
            if share >= STOPPED_AT:
                raise KeyboardInterrupt

        first = run(programs, CHIPS, results, QUESTION, scheduler=here.scheduler_address, progress=watch)
    stopped = perf_counter() - start
    print(f"\nworker {killed[0]} killed at {KILLED_AT:.0%}; stopped after {stopped:.0f} s: {first}")
    for name in ("resumed", "again"):
        start = perf_counter()
        fleet = run(programs, CHIPS, results, QUESTION)
        print(f"{name}: {perf_counter() - start:.1f} s: {fleet}")
    start = perf_counter()
    rl.report(fleet).save(results / "index.html")
    size = sum(part.stat().st_size for part in results.glob("part-*.parquet"))
    print(f"page: {perf_counter() - start:.1f} s; {len(list(results.glob('part-*')))} files, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="fleet")))
