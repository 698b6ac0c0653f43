"""``roofline fuse``: what a program reads and writes under each fusion policy, or whether two kernels can be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from roofline.analysis.fusing import Explanation, Fusion, Group, PolicyRow, explain_fusion, fusion
from roofline.cli import options as opt
from roofline.cli.output import show, write_csv, write_json
from roofline.cli.tables import heading, percent, table, time_text
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.units import format_si
from roofline.passes.fusion.fuse import POLICIES

_Chip = Annotated[str | None, typer.Argument(
    metavar="[CHIP]", help="A shipped name or a chip .toml, for times and registers.", show_default=False)]  # fmt: skip
_Policy = Annotated[str | None, typer.Option(
    "--policy", metavar="POLICY", help=f"Show the kernels of one policy: {', '.join(POLICIES)}, or given.",
    show_default=False)]  # fmt: skip
_Pair = Annotated[str | None, typer.Option(
    "--pair", metavar="A,B", help="Explain whether two kernels can be one.", show_default=False)]  # fmt: skip

#: Kernels that a table shows at most.
_MOST = 20


def fuse(
    model: opt.Model,
    chip: _Chip = None,
    batch: opt.Batch = None,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    policy: _Policy = None,
    pair: _Pair = None,
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
) -> None:
    """Show accesses, bytes and time by fusion policy, or explain a pair."""
    opt.exclusive(json=as_json, csv=as_csv)
    opt.exclusive(policy=policy is not None, pair=pair is not None)
    _known(policy)
    names = _two(pair)
    graph = opt.program(model, phase, dtype, weights, cache)
    where = opt.device(chip) if chip is not None else None
    sizes = opt.single(opt.sizes(graph, batch, seq, context), "an access table")
    if names is not None:
        found = explain_fusion(graph, *names, where, **sizes)
        return _explained(found, as_json, as_csv)
    return _compared(fusion(graph, where, **sizes), policy, as_json, as_csv)


def _known(policy: str | None) -> None:
    allowed = ("given", *POLICIES)
    if policy is not None and policy not in allowed:
        raise UsageError(f"--policy {policy[:60]!r}; allowed: {', '.join(allowed)}{did_you_mean(policy, allowed)}")


def _two(pair: str | None) -> tuple[str, str] | None:
    """The two names of ``--pair``."""
    if pair is None:
        return None
    names = [name.strip() for name in pair.split(",")]
    if len(names) != 2 or not all(names):
        raise UsageError(f"--pair {pair[:60]!r}: wanted two kernels, such as layers.0.mlp.up,layers.0.mlp.act")
    if names[0] == names[1]:
        raise UsageError(f"--pair {pair[:60]!r}: one kernel twice; wanted two")
    return names[0], names[1]


def _explained(found: Explanation, as_json: bool, as_csv: bool) -> None:
    if as_json:
        write_json(found.record())
    elif as_csv:
        write_csv([found.record()])
    else:
        show(Text(str(found)))


def _compared(found: Fusion, policy: str | None, as_json: bool, as_csv: bool) -> None:
    groups = found.groups(policy) if policy is not None else ()
    if as_json:
        more = {"policy": policy, "kernels": [asdict(group) for group in groups]} if policy is not None else {}
        write_json({**found.record(), **more})
    elif as_csv:
        write_csv([asdict(row) for row in (groups if policy is not None else found.rows)])
    elif policy is not None:
        show(_title(found), "", _kernels(found[policy], groups))
    else:
        show(_title(found), "", _policies(found), "", *_remarks(found))


def _title(found: Fusion) -> Text:
    sizes = "".join(f", {name}={value:,}" for name, value in found.sizes.items())
    where = f" on {found.chip.name}" if found.chip else ""
    return heading(f"{found.graph.name}{where}{sizes}")


def _policies(found: Fusion) -> Table:
    timed = found.chip is not None
    rows = [_policy_cells(row, found.unfused, timed) for row in found.rows]
    return table("<policy|kernels|accesses|bytes|of eager" + ("|time|regs|spilled" if timed else ""), rows)


def _policy_cells(row: PolicyRow, eager: PolicyRow, timed: bool) -> Sequence[str]:
    share = percent(row.bytes / eager.bytes) if eager.bytes else ""
    cells = (row.policy, f"{row.kernels:,}", format_si(row.accesses, ""), format_si(row.bytes, "B"), share)
    if not timed:
        return cells
    assert row.time_s is not None
    spilled = format_si(row.spill_bytes, "B") if row.spill_bytes else ""
    registers = str(row.registers) if row.registers else ""
    return (*cells, time_text(row.time_s), registers, spilled)


def _remarks(found: Fusion) -> list[Text]:
    lines = ["accesses: elements read and written by kernels; ideal: a bound, no compiler's"]
    if found.chip is not None:
        lines.append("time: of the kernels, without the host; regs: registers of the fullest thread")
    return [Text(line, style="dim") for line in lines]


def _kernels(row: PolicyRow, groups: Sequence[Group]) -> Table:
    cells: list[Sequence[Any]] = [
        (
            group.kernel,
            _ops(group.ops),
            f"{group.count:,}",
            format_si(group.unfused_accesses, ""),
            format_si(group.accesses, ""),
            format_si(group.count * (group.unfused_bytes - group.bytes), "B"),
        )
        for group in groups[:_MOST]
    ]
    some = f"{len(cells)} of {len(groups)} fused kernels" if len(groups) > _MOST else "fused kernels"
    return table(f"<{some}, {row.policy}|<operators|runs|unfused|fused|saves", cells)


def _ops(ops: Sequence[str]) -> str:
    """Operators in order, equal neighbours as one: ``relu x 3, add``."""
    runs: list[list[Any]] = []
    for op in ops:
        if runs and runs[-1][0] == op:
            runs[-1][1] += 1
        else:
            runs.append([op, 1])
    shown = [op if often == 1 else f"{op} x {often}" for op, often in runs]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
