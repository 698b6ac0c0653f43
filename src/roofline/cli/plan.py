"""``roofline plan``: the best deployment of a model within limits, as a table, a chart and launch flags."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.output import show
from roofline.hardware.library import is_path
from roofline.ir.datafile import read_toml
from roofline.ir.errors import UsageError
from roofline.ir.files import user_path
from roofline.ir.numbers import finite_number
from roofline.ir.units import format_si
from roofline.serving import Plan
from roofline.serving import plan as search
from roofline.serving.plans.flags import BACKENDS
from roofline.serving.plans.planning import LISTED, Answer

_Chips = Annotated[str, opt.option("--chips A,B", "Chips that may serve it.", complete=opt.complete_chips)]
_Prompt = Annotated[int | None, opt.option("--prompt N", "Tokens of each prompt.", "Sizes", min=1)]
_New = Annotated[int | None, opt.option("--new-tokens N", "Tokens that each request gets.", "Sizes", min=1)]


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What users and owner ask for."""

    ttft: Annotated[opt.Text, opt.limit("--ttft TIME", "Time to the first token that is allowed, such as 2s.")] = None
    tpot: Annotated[opt.Text, opt.limit("--tpot TIME", "Time per further token that is allowed, such as 30ms.")] = None
    qps: Annotated[float | None, opt.limit(
        "--qps RATE", "Requests in a second that come at random: the fewest chips, or the cheapest, that answer them.",
        default="as many users as is best")] = None  # fmt: skip
    prices: Annotated[opt.Text, opt.limit(
        "--prices FILE|CHIP=P,...", "Of a chip for an hour, in any currency: h100-sxm=2.5,b200-sxm=4, or a .toml of "
        "such lines.")] = None  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library."""
        for name in ("ttft", "tpot"):
            opt.with_unit(getattr(self, name), f"--{name}", "s")
        return {"ttft": self.ttft, "tpot": self.tpot, "qps": self.qps, "prices": _priced(self.prices)}


@dataclass(frozen=True, kw_only=True)
class _Search:
    """What is searched."""

    counts: Annotated[str, opt.option(
        "--counts N", "Numbers of chips that are allowed: 8, 1,2,4 or 1..16, which are all.", "Search", default="1..16")
    ] = "1..16"  # fmt: skip
    weights: Annotated[opt.Text, opt.option(
        "--weights A,B", "Formats of weights; own is the model's.", "Search", complete=opt.complete_formats,
        default="those that a chip has units for")] = None  # fmt: skip
    cache: Annotated[opt.Text, opt.option(
        "--cache A,B", "Formats of the KV cache; own is the model's.", "Search", complete=opt.complete_formats,
        default="own, and fp8 where a chip has it")] = None  # fmt: skip
    chunk: Annotated[opt.Text, opt.option("--chunk A,B", "Tokens of a step of a group at most.", "Search",
                                          default="1024 to 16384, doubled")] = None  # fmt: skip
    split: Annotated[
        bool,
        opt.option("--split/--no-split", "Also read prompts on servers of their own.", "Search", default="--split"),
    ] = True
    block: Annotated[int | None, opt.option("--block N", "Tokens of a block of the KV cache.", "Search", default="16",
                                            min=1)] = None  # fmt: skip

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library."""
        formats = {
            name: None if text is None else opt.names(text)
            for name, text in (("weights", self.weights), ("cache", self.cache))
        }
        return {
            "counts": opt.several(self.counts.replace("..", ":"), "--counts"), "split": self.split, **formats,
            "chunks": None if self.chunk is None else opt.several(self.chunk, "--chunk"),
            **({} if self.block is None else {"block": self.block}),
        }  # fmt: skip


_Flags = Annotated[opt.Text, opt.option(
    "--flags BACKEND", "Print only how it starts the best: vllm, sglang or trtllm.", "Output", complete=tuple(BACKENDS))
]  # fmt: skip


def _priced(text: str | None) -> dict[str, float] | None:
    """Read prices: ``chip=price`` with commas, or a TOML file of such lines."""
    if text is None:
        return None
    if is_path(text):
        table = read_toml(user_path(Path(text)), UsageError)
    else:
        pairs = [part.partition("=") for part in text.split(",")]
        table = {name.strip(): price for name, _, price in pairs}
    try:
        return {str(name): finite_number(f"--prices {name}", float(price), 1e-9) for name, price in table.items()}
    except (TypeError, ValueError):
        raise UsageError(
            f"--prices {text[:60]}: expected a chip and a price above zero each, such as h100-sxm=2.5,b200-sxm=4"
        ) from None


@command(PREDICT, "roofline plan llama-3.2-1b --chips h100-sxm,l4 --prompt 2000 --new-tokens 200 --tpot 20ms "
                  "--counts 1,2 --weights own")  # fmt: skip
def plan(
    model: opt.Model,
    chips: _Chips,
    limits: _Limits,
    space: _Search,
    what_if: opt.ChipOptions,
    output: opt.ChartOptions,
    prompt: _Prompt = None,
    new_tokens: _New = None,
    backend: opt.Backend = None,
    flags: _Flags = None,
) -> None:
    """Search chips, layouts, formats and users for the best deployment within limits."""
    if flags is not None and flags not in BACKENDS:
        raise UsageError(f"--flags {flags}: allowed: {', '.join(BACKENDS)}")
    if prompt is None or new_tokens is None:
        raise UsageError("plan: give --prompt and --new-tokens, the tokens of every request")
    made = search(model, what_if.chips(chips), prompt=prompt, new_tokens=new_tokens, backend=backend,
                  **limits.keywords, **space.keywords)  # fmt: skip
    opt.say_alias(model, made.model)
    if flags is not None:
        return show(*_flags(made, flags))
    return output.write(made, _sheet(made))


def _flags(made: Plan, backend: str) -> Iterator[str]:
    for each in made.launches(backend):
        for note in each.notes:
            yield textwrap.fill(note, 78, initial_indent="# ", subsequent_indent="# ")
        yield each.text


def _sheet(made: Plan) -> Iterator[Any]:
    """Show the best and why, the front, the best of each chip, and launch flags."""
    yield tables.heading(made)
    best, other = made.best, made.runner_up
    if best is None:
        yield from ("", made.nothing)
    else:
        facts = [
            ("best", f"{best.devices} x {best.chips}: {best.layout}, {_formats(best)}, chunk {best.engine.chunk:,}"),
            ("gives", f"{_rate(made, best)}, {best.users:,.0f} users"),
            ("backend", made.backend),
            ("first token", _range(best.ttft, best.ttft_range)),
            ("per token", _range(best.tpot, best.tpot_range) if best.tpot else ""),
            ("bound by", made.binding), ("next best", _behind(made, best, other)),
            ("other chips", "; ".join(_behind(made, best, one) for one in made.by_chip if one.chips != best.chips)),
            ("left out", "; ".join(made.left_out.values())),
            ("no answer", ", ".join(chip.name for chip in made.space.chips
                                   if chip.name not in {one.chips for one in made.by_chip})),
        ]  # fmt: skip
        yield tables.facts([(name, text) for name, text in facts if text])
    spread = made.front[:: max(len(made.front) // LISTED, 1)]
    if spread:
        yield from ("", _front(made, [made.answer(at) for at in spread], [bool(made.meets[at]) for at in spread]))
        yield f"{len(spread)} of the {len(made.front)} that no other beats in both rates"
    yield f"{made.rows.size:,} candidates, {int(made.meets.sum()):,} within the limits"
    if best is not None:
        for name in made.backends:
            yield from ("", f"# {name}", *_flags(made, name))


def _formats(one: Answer) -> str:
    return f"weights {one.engine.weights or 'own'}, cache {one.engine.cache or 'own'}"


def _rate(made: Plan, one: Answer) -> str:
    cost = one.cost_per_million
    money = "" if cost is None else f", {cost:.3g} a million tokens"
    user = f", {_of_user(one)} tokens/s/user" if one.tpot else ""
    return f"{one.tokens_per_s_per_chip:,.0f} tokens/s/chip{user}{money}"


def _of_user(one: Answer) -> str:
    """Return the tokens that a user sees in a second; a dash where the first is the only one."""
    return f"{one.tokens_per_s_per_user:,.0f}" if one.tpot else "-"


def _range(seconds: float, ends: tuple[float, float]) -> str:
    return f"{format_si(seconds, 's')}  ({tables.span(seconds * ends[0], seconds * ends[1])})"


def _behind(made: Plan, best: Answer, other: Answer | None) -> str:
    """Say how far an answer is behind the best."""
    if other is None:
        return ""
    if best.cost_per_million is not None and other.cost_per_million is not None:
        share = f"{other.cost_per_million / best.cost_per_million:.3g}x the cost"
    else:
        share = f"{other.tokens_per_s_per_chip / best.tokens_per_s_per_chip:.3g}x the tokens/s/chip"
    return f"{share}: {other.devices} x {other.chips}, {other.layout}, {_formats(other)}"


def _front(made: Plan, answers: Sequence[Answer], meets: Sequence[bool]) -> Table:
    heads = "token/s/user|/s/chip|<chips|<servers|<formats|?users|?TTFT|TPOT|?cost/M|<limits"
    rows = [
        (_of_user(one), f"{one.tokens_per_s_per_chip:,.0f}", f"{one.devices} {one.chips}",
         one.short, one.formats, f"{one.users:,.0f}", tables.time_text(one.ttft), tables.time_text(one.tpot),
         "" if one.cost_per_million is None else f"{one.cost_per_million:.3g}", tables.yes_or_no(within))
        for one, within in zip(answers, meets, strict=True)
    ]  # fmt: skip
    return tables.table(heads, rows, "no other has more of both rates")
