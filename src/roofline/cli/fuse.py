"""``roofline fuse``: what a program reads and writes under each fusion policy, or whether two kernels can be one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from rich.text import Text

from roofline.analysis.fusing import Fusion, PolicyRow, explain_fusion, fusion
from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.tables import Rows, heading, percent, table, time_text
from roofline.frontends.hlo import from_hlo
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.units import format_si
from roofline.passes.fusion.fuse import POLICIES

_Policy = Annotated[str | None, opt.option(
    "--policy POLICY", f"Show the kernels of one policy: {', '.join(POLICIES)}, or given.", complete=("given",
    *POLICIES))]  # fmt: skip
_Compiled = Annotated[str | None, opt.option(
    "--compiled FILE", "Add a row for what XLA made of it: HLO text after its passes.")]  # fmt: skip
_Pair = Annotated[str | None, opt.option("--pair A,B", "Explain whether two kernels can be one.")]

#: Kernels that a table shows at most.
_MOST = 20


@command(COMPILE, "roofline fuse gpt2 h100-sxm -B 8 -S 1024")
def fuse(
    model: opt.Model,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.OutputOptions,
    what_if: opt.ChipOptions,
    chip: opt.MaybeChip = None,
    policy: _Policy = None,
    pair: _Pair = None,
    compiled: _Compiled = None,
) -> None:
    """Show accesses, bytes and time by fusion policy, or explain a pair."""
    opt.exclusive(policy=policy is not None, pair=pair is not None)
    opt.exclusive(compiled=compiled is not None, pair=pair is not None)
    _known(policy)
    names = _two(pair)
    what_if.need(chip)
    graph = program.graph(model, what_if.cluster(chip) if chip is not None else None)
    device = what_if.device(chip) if chip is not None else None
    values = sizes.point(graph, "an access table")
    if names is not None:
        explanation = explain_fusion(graph, *names, device, **values)
        return output.write(explanation, [heading(explanation), Text(str(explanation))])
    others = {"xla": from_hlo(compiled, unknown="report")} if compiled is not None else {}
    result = fusion(graph, device, others=others, **values)
    if policy is None:
        return output.write(result, _policies(result))
    about = {**result.subject(), "policy": policy}
    kernels = Rows("fuse_policy", [asdict(group) for group in result.groups(policy)], about)
    return output.write(kernels, _kernels(result, policy))


def _known(policy: str | None) -> None:
    allowed = ("given", *POLICIES)
    if policy is not None and policy not in allowed:
        raise UsageError(f"--policy {policy[:60]!r}; allowed: {', '.join(allowed)}{did_you_mean(policy, allowed)}")


def _two(pair: str | None) -> tuple[str, str] | None:
    """Return the two names of ``--pair``."""
    if pair is None:
        return None
    names = [name.strip() for name in pair.split(",")]
    if len(names) != 2 or not all(names):
        raise UsageError(f"--pair {pair[:60]!r}: expected two kernels, such as layers.0.mlp.up,layers.0.mlp.act")
    if names[0] == names[1]:
        raise UsageError(f"--pair {pair[:60]!r}: one kernel twice; expected two")
    return names[0], names[1]


def _policies(result: Fusion) -> Iterator[Any]:
    timed = result.chip is not None
    rows = [_policy_cells(row, result.unfused, timed) for row in result.rows]
    columns = "<policy|kernels|accesses|bytes|?of eager" + ("|time|?regs|?spilled" if timed else "")
    yield from (heading(result), "", table(columns, rows), "")
    yield Text("accesses: elements read and written by kernels; ideal: a bound, no compiler's", style="dim")
    if timed:
        yield Text("time: of the kernels, without the host; regs: registers of the fullest thread", style="dim")


def _policy_cells(row: PolicyRow, eager: PolicyRow, timed: bool) -> Sequence[str]:
    share = percent(row.bytes / eager.bytes) if eager.bytes else ""
    cells = (row.policy, f"{row.kernels:,}", format_si(row.accesses, ""), format_si(row.bytes, "B"), share)
    if not timed:
        return cells
    assert row.time_s is not None
    spilled = format_si(row.spill_bytes, "B") if row.spill_bytes else ""
    registers = str(row.registers) if row.registers else ""
    return (*cells, time_text(row.time_s), registers, spilled)


def _kernels(result: Fusion, policy: str) -> Iterator[Any]:
    """Show the fused kernels that save the most."""
    groups = result.groups(policy)
    rows = [
        (
            group.kernel, _ops(group.ops), f"{group.count:,}", format_si(group.unfused_accesses, ""),
            format_si(group.accesses, ""), format_si(group.count * (group.unfused_bytes - group.bytes), "B"),
        )
        for group in groups[:_MOST]
    ]  # fmt: skip
    title = f"{len(rows)} of {len(groups)} fused kernels" if len(groups) > _MOST else "fused kernels"
    yield from (heading(result), "", table(f"<{title}, {policy}|?<operators|runs|?unfused|?fused|saves", rows))


def _ops(ops: Sequence[str]) -> str:
    """Return operators in order, equal neighbours as one: ``relu x 3, add``."""
    runs: list[list[Any]] = []
    for op in ops:
        if runs and runs[-1][0] == op:
            runs[-1][1] += 1
        else:
            runs.append([op, 1])
    shown = [op if often == 1 else f"{op} x {often}" for op, often in runs]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")
