"""``roofline request``: a whole request of a served model, from its prompt to its last token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import heading, size_text, time_text
from roofline.ir.errors import UsageError
from roofline.serving import Request
from roofline.serving import request as predict

_Prompt = Annotated[int, opt.option("--prompt N", "Tokens of the prompt of each sequence.", "Sizes", min=1)]
_New = Annotated[int, opt.option("--new-tokens N", "Tokens that each sequence gets.", "Sizes", min=1)]
_Batch = Annotated[int, opt.option("--batch -B N", "Sequences that run together.", "Sizes", default="1", min=1)]
_Block = Annotated[int | None, opt.option(
    "--block N", "Tokens of a block of the KV cache, such as 16.", "Sizes", min=1, default="without blocks",
)]  # fmt: skip
_Prefix = Annotated[int, opt.option(
    "--shared-prefix N", "First tokens of the prompt that all sequences have in common.", "Sizes", default="0", min=0)
]  # fmt: skip
#: Tokens that a table lists.
_LISTED = 6


@dataclass(frozen=True, kw_only=True)
class _ServedOptions(opt.RunOptions):
    """How it runs; servers replay their steps as graphs."""

    mode: Annotated[str, opt.option(
        "--mode MODE", "eager, graph or compiled.", "Run", complete=opt.MODES, default="graph")] = "graph"  # fmt: skip


@command(PREDICT, "roofline request llama-3-8b h100-sxm --prompt 2048 --new-tokens 256 -B 8 --block 16")
def request(
    model: opt.Model,
    chip: opt.OneChip,
    prompt: _Prompt,
    new_tokens: _New,
    program: opt.ProgramOptions,
    run: _ServedOptions,
    output: opt.ChartOptions,
    batch: _Batch = 1,
    block: _Block = None,
    shared_prefix: _Prefix = 0,
) -> None:
    """Predict a request: time to the first token, per further token, and memory as the KV cache grows."""
    if program.phase is not None:
        raise UsageError(f"--phase {program.phase} does not apply to request: it has a prefill and decode steps")
    cluster = run.cluster(chip)
    read, step = (replace(program, phase=phase).graph(model, cluster) for phase in ("prefill", "decode"))
    result = predict(
        prefill=read, decode=step, chip=run.device(chip), prompt=prompt, new_tokens=new_tokens, batch=batch,
        block=block, shared_prefix=shared_prefix, **run.keywords,
    )  # fmt: skip
    output.write(result, _parts(result), **tables.would_fit_record(result))


def _parts(result: Request) -> Iterator[Any]:
    step, last = result.time_per_token, result.percentile(99)
    parts = {name: value[result.peak_token] for name, value in result.memory.parts().items()}
    yield heading(result)
    yield tables.facts([
        ("first token", f"{time_text(result.time_to_first_token)}, {result.prefill.bound}-bound"),
        ("then", "" if step is None or last is None else f"{time_text(step)} per token, {time_text(last)} at the 99th "
                                                         "percentile"),
        ("time", tables.time_and_range(result)),
        ("throughput", tables.rate(result.tokens_per_s, "token")),
        ("peak", f"{size_text(result.peak)} at token {result.peak_token + 1:,}"),
    ])  # fmt: skip
    yield from ("", _tokens(result))
    yield from ("", tables.memory_table(parts, result.chip.main.capacity, result.chip.name, "memory at the peak"))
    yield from tables.would_fit_facts(result)
    yield from ("", *tables.provenance(result.prefill))


def _tokens(result: Request) -> Any:
    """Show some of the tokens, the first two and the last among them."""
    at = np.unique(np.linspace(0, result.new_tokens - 1, _LISTED).astype(int)).tolist()
    at = sorted({*at, min(1, result.new_tokens - 1)})
    cache, done = result.memory.kv_cache, np.cumsum(result.token_times)
    rows = [
        (f"{i + 1:,}", f"{result.prompt + i:,}", time_text(result.token_times[i]), time_text(done[i]),
         size_text(np.asarray(cache)[i]))
        for i in at
    ]  # fmt: skip
    return tables.table("token|context|time|done|KV cache", rows)
