"""What is installed here, which device there is, and whether its time model was measured."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UnknownChip
from roofline.ir.report import Report
from roofline.measurement.calibration.host import this_host

#: What the extras are for; those of our own developers are left out.
EXTRAS = {
    "torch": "capture, measure and calibrate PyTorch programs", "onnx": "read ONNX files",
    "jax": "capture JAX functions",
    "calibrate": "fit the time model to this machine", "explore": "explore in the browser",
    "excel": "write .xlsx files", "tune": "tune compiled loops",
    "serve": "simulate a server request by request", "fleet": "price many programs over worker processes",
    "notebooks": "run the notebooks", "docs": "build the documentation",
}  # fmt: skip
CALIBRATE = "roofline calibrate -o my-chip.toml measures this machine"
#: The group of entry points that policies of :func:`roofline.optimize` are in.
POLICIES = "roofline.policies"
OK, MISSING, WRONG = "ok", "missing", "wrong"
_REQUIREMENT = re.compile(r"^([\w.-]+)[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?")


class Finding(NamedTuple):
    """One line: what was looked at, how it is, and what to do where it is not well."""

    part: str
    name: str
    state: str
    detail: str
    advice: str = ""


@dataclass(frozen=True, repr=False)
class Checkup(Report):
    """The state of an installation, from :func:`roofline.measurement.doctor`.

    Attributes:
        findings: Packages, extras, the device and its chip file.
    """

    schema = "doctor"

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong; a missing extra is not."""
        return all(finding.state != WRONG for finding in self.findings)

    def subject(self) -> dict[str, Any]:
        """Return nothing: it is about this machine."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return whether all is well."""
        return {"ok": self.ok}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per finding."""
        return [finding._asdict() for finding in self.findings]


def doctor(chip: AnyChip | None = None) -> Checkup:
    """Look at this installation and at the machine it is on.

    Args:
        chip: A chip file of this machine, as ``roofline calibrate`` writes; by the names of the devices when absent.

    Returns:
        The packages that roofline needs, its extras, the device, and whether the chip file of that device was measured.

    Raises:
        UnknownChip: No chip of that name, no such file.

    Example:
        >>> doctor().records()[0]["name"]
        'Python'
    """
    own = _own()
    return Checkup((*_installation(own), *_packages(own), *_policies(), *_devices(chip)))


# --- packages ---------------------------------------------------------------------------------------------------------


def _own() -> str:
    """Return the distribution that brought this command; empty where roofline runs from its source."""
    scripts = metadata.entry_points(group="console_scripts", name="roofline", value="roofline.cli:main")
    return next((script.dist.name for script in scripts if script.dist is not None), "")


def _installation(own: str) -> Iterator[Finding]:
    yield Finding("installation", "Python", OK, platform.python_version())
    others = ", ".join(sorted({*metadata.packages_distributions().get("roofline", ())} - {own}))
    if others:
        yield Finding("installation", "roofline", WRONG, f"{others} installs a module of the same name",
                      f"pip uninstall {others}, then install {own or 'roofline'} again")  # fmt: skip
    else:
        version = metadata.version(own) if own else "not installed: run from its source"
        yield Finding("installation", "roofline", OK, version)


def _packages(own: str) -> Iterator[Finding]:
    """Return what is needed always, then the extras; nothing where roofline runs from its source."""
    extras: dict[str, dict[str, str]] = {}
    for line in (metadata.requires(own) or []) if own else ():
        if match := _REQUIREMENT.match(line):
            extras.setdefault(match[2] or "", {})[match[1]] = _version(match[1])
    for name, version in extras.pop("", {}).items():
        state, advice = (OK, "") if version else (WRONG, f"pip install {name}")
        yield Finding("needed", name, state, version or "not installed", advice)
    for extra in (name for name in EXTRAS if name in extras):
        lacking = [name for name, version in extras[extra].items() if not version]
        if lacking:
            advice = f"pip install '{own}[{extra}]' to {EXTRAS[extra]}"
            yield Finding("extra", extra, MISSING, f"no {', '.join(lacking)}", advice)
        else:
            yield Finding("extra", extra, OK, ", ".join(" ".join(pair) for pair in extras[extra].items()))


def _policies() -> Iterator[Finding]:
    """Return the policies of ``roofline optimize`` that other packages bring."""
    points = metadata.entry_points(group=POLICIES)
    for point in sorted(points, key=lambda point: point.name):
        yield Finding("policy", point.name, OK, f"{point.value}; roofline optimize --policy {point.name}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


# --- devices ----------------------------------------------------------------------------------------------------------


def _devices(chip: AnyChip | None) -> Iterator[Finding]:
    if chip is not None:
        known = find_chip(chip)
        yield _known("device", known.name, known)
        return
    for kind, name in [*(("GPU", name) for name in _accelerators()), ("CPU", this_host().name)]:
        try:
            yield _known(kind, name, find_chip(name))
        except UnknownChip:
            yield Finding("device", kind, MISSING, f"{name}: no chip file of that name", CALIBRATE)


def _accelerators() -> list[str]:
    """Return the names of the GPUs that PyTorch sees; none without PyTorch."""
    try:
        import torch
    except ImportError:
        return []
    try:
        return sorted({torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())})
    except RuntimeError:  # a driver that does not answer
        return []


def _known(kind: str, name: str, chip: Chip) -> Finding:
    words = {"measured": "measured", "transferred": "from a relative", "prior": "assumed"}[chip.efficiency.calibrated]
    state, advice = (OK, "") if words == "measured" else (MISSING, CALIBRATE)
    return Finding("device", kind, state, f"{name}: {chip.name}, its time model is {words}", advice)
