"""``roofline fuse``: what a program reads and writes under each fusion policy, or whether two kernels can be one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from rich.text import Text

from roofline.analysis.fusing import Explanation, Fusion, PolicyRow, explain_fusion, fusion
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command, completion
from roofline.cli.tables import heading, percent, table, time_text
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.report import Report, subject
from roofline.ir.units import format_si
from roofline.passes.fusion.fuse import POLICIES

_Policy = Annotated[str | None, opt.option(
    "--policy", metavar="POLICY", complete=completion(lambda: ("given", *POLICIES)),
    help=f"Show the kernels of one policy: {', '.join(POLICIES)}, or given.")]  # fmt: skip
_Pair = Annotated[str | None, opt.option("--pair", metavar="A,B", help="Explain whether two kernels can be one.")]

#: Kernels that a table shows at most.
_MOST = 20


@command(PREDICT, "roofline fuse gpt2 h100-sxm -B 8 -S 1024")
def fuse(
    model: opt.Model,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.OutputOptions,
    chip: opt.MaybeChip = None,
    policy: _Policy = None,
    pair: _Pair = None,
) -> None:
    """Show accesses, bytes and time by fusion policy, or explain a pair."""
    opt.exclusive(policy=policy is not None, pair=pair is not None)
    _known(policy)
    names = _two(pair)
    graph = program.graph(model, opt.cluster_of(chip) if chip is not None else None)
    device = opt.device(chip) if chip is not None else None
    values = sizes.point(graph, "an access table")
    if names is not None:
        about = subject(graph, device.name if device else None, sizes=values)
        explained = PairExplanation(about, explain_fusion(graph, *names, device, **values))
        return output.write(explained, [heading(explained), Text(str(explained.explanation))])
    result = fusion(graph, device, **values)
    if policy is None:
        return output.write(result, _policies(result))
    kernels = PolicyKernels(result, policy)
    return output.write(kernels, kernels.parts())


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


@dataclass(frozen=True)
class PairExplanation(Report):
    """Whether two kernels of a program can be one."""

    schema = "fuse-pair"

    about: dict[str, Any]
    explanation: Explanation

    def subject(self) -> dict[str, Any]:
        """Return the program."""
        return self.about

    def records(self) -> list[dict[str, Any]]:
        """Return the explanation."""
        return [self.explanation.record()]


@dataclass(frozen=True)
class PolicyKernels(Report):
    """The fused kernels of one policy."""

    schema = "fuse-policy"

    fusion: Fusion
    policy: str

    def subject(self) -> dict[str, Any]:
        """Return the program, and the policy."""
        return {**self.fusion.subject(), "policy": self.policy}

    def records(self) -> list[dict[str, Any]]:
        """Return one row per fused kernel, most saved first."""
        return [asdict(group) for group in self.fusion.groups(self.policy)]

    def parts(self) -> Iterator[Any]:
        """Show the kernels that save the most."""
        groups = self.fusion.groups(self.policy)
        rows = [
            (
                group.kernel, _ops(group.ops), f"{group.count:,}", format_si(group.unfused_accesses, ""),
                format_si(group.accesses, ""),
                format_si(group.count * (group.unfused_bytes - group.bytes), "B"),
            )
            for group in groups[:_MOST]
        ]  # fmt: skip
        title = f"{len(rows)} of {len(groups)} fused kernels" if len(groups) > _MOST else "fused kernels"
        yield from (heading(self.fusion), "")
        yield table(f"<{title}, {self.policy}|?<operators|runs|?unfused|?fused|saves", rows)


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
