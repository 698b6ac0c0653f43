"""``roofline cache``: blocks and formats of a KV cache, and prompts that stay on the device or on the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import heading, percent, size_text, time_text
from roofline.ir.units import format_si, share
from roofline.serving.cache_policies import CachePolicies, CachePolicy
from roofline.serving.cache_policies import cache_policies as compared
from roofline.serving.deployment import BLOCK, CHUNK

_Prompt = Annotated[int, opt.option("--prompt N", "Tokens of a prompt.", "Sizes", min=1)]
_New = Annotated[int, opt.option("--new-tokens N", "Tokens of an answer.", "Sizes", min=1)]
_Running = Annotated[int, opt.option(
    "--concurrency N", "Sequences that run; the rest of the memory is for prompts that were read.", "Sizes",
    default="1", min=1)]  # fmt: skip
_Prefix = Annotated[int, opt.option("--prefix N", "First tokens that all prompts have in common.", "Sizes", default="0",
                                    min=0)]  # fmt: skip
_Blocks = Annotated[str, opt.option("--block N,...", "Tokens of a block: 16, or several to compare.", "Cache",
                                    default=str(BLOCK))]  # fmt: skip
_Formats = Annotated[str, opt.option(
    "--cache FORMAT,...", "Formats of keys and values to compare, such as bf16,fp8,int8,int4.", "Cache",
    complete=opt.complete_formats, default="bf16")]  # fmt: skip
_Host = Annotated[str | None, opt.option(
    "--offload SIZE", "Memory of the host for the cache of each device, such as 256GiB.", "Cache", default="none")
]  # fmt: skip
_Hit = Annotated[str | None, opt.option(
    "--hit SHARE", "Share of a prompt's tokens that are there: 0.4 or 40%.", "Cache", default="0")]  # fmt: skip
_Trace = Annotated[Path | None, opt.option(
    "--trace FILE", "Requests with ids of blocks (Mooncake's format), which say what an LRU cache hits.", "Cache")
]  # fmt: skip
_Weights = Annotated[str | None, opt.option(
    "--weights FORMAT", "Of the weights, such as fp8.", "Program", complete=opt.complete_formats)]  # fmt: skip
_Chunk = Annotated[int, opt.option("--chunk N", "Tokens of a step at most.", "Cache", default=f"{CHUNK:,}", min=1)]


@command(PREDICT, "roofline cache llama-3-8b h100-sxm --prompt 8000 --new-tokens 200 --cache bf16,int8 --hit 0.5 "
                  "--offload 256GiB")  # fmt: skip
def cache(
    model: opt.Model,
    chip: opt.OneChip,
    prompt: _Prompt,
    new_tokens: _New,
    what_if: opt.ChipOptions,
    output: opt.ChartOptions,
    concurrency: _Running = 1,
    prefix: _Prefix = 0,
    block: _Blocks = str(BLOCK),
    cache: _Formats = "bf16",
    offload: _Host = None,
    hit: _Hit = None,
    trace: _Trace = None,
    weights: _Weights = None,
    tp: opt.Tensor = 1,
    chunk: _Chunk = CHUNK,
) -> None:
    """Compare what can be done with a KV cache: blocks, formats, prompts that stay on the device or on the host."""
    blocks = opt.whole_numbers(block, "--block")
    result = compared(
        model, what_if.device(chip), prompt=prompt, new_tokens=new_tokens, concurrency=concurrency,
        shared_prefix=prefix, blocks=blocks, caches=opt.names(cache),
        host=opt.with_unit(offload, "--offload", "B"), hit=None if hit is None else share(hit, "--hit"),
        trace=None if trace is None else str(trace), weights=weights, tp=tp, chunk=chunk,
    )  # fmt: skip
    opt.say_alias(model, result.about["model"])
    output.write(result, _parts(result))


def _parts(result: CachePolicies) -> Iterator[Any]:
    sizes, first = result.sizes, result.policies[0]
    fewer = f" of the {first.sequences:,} that fit; the others wait" if first.sequences < sizes["concurrency"] else ""
    yield heading(f"{result.title}: prompts of {sizes['prompt']:,} tokens, {sizes['new_tokens']:,} new ones, "
                  f"{sizes['concurrency']:,} at a time")  # fmt: skip
    yield ""
    columns = "<format|block|<prompts stay|a token|?waste|sequences|hits|first token|SQNR|?copied|?pays from"
    yield tables.table(columns, [_row(each) for each in result.policies])
    yield ""
    yield tables.facts([
        ("all read", f"{time_text(first.recompute)} to the first token"),
        ("step", f"{time_text(first.step)} for a token of each sequence{fewer}"),
        ("prefix", f"{first.prefix_lost} of {sizes['shared_prefix']:,} tokens in no whole block of "
                   f"{first.block}" if sizes["shared_prefix"] else ""),
    ])  # fmt: skip
    yield ""
    yield Text("SQNR: of attention's output on normal numbers, keys and values rounded for each token and head; "
                     "copies: one after the other, not while layers compute", style="dim")  # fmt: skip


def _row(each: CachePolicy) -> tuple[Any, ...]:
    where = {"none": "nowhere", "device": "device", "host": "device, host"}[each.place]
    pays = "-" if each.place != "host" else "never" if each.break_even is None else f"{each.break_even:,} tokens"
    error = "-" if each.sqnr_db is None else f"{each.sqnr_db:.1f} dB"
    return (
        each.cache, f"{each.block}", where, size_text(each.bytes_per_token), percent(each.waste), f"{each.sequences:,}",
        percent(each.device_hits + each.host_hits), time_text(each.first_token), error,
        format_si(each.fetch, "s") if each.fetch else "-", pays,
    )  # fmt: skip
