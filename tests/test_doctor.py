"""What the doctor finds: packages, extras, two distributions with one module, the device and its chip file."""

from __future__ import annotations

import importlib.metadata as metadata
from pathlib import Path

import pytest
from command_line import Run, fails

import roofline as rl


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.measurement.checkup._accelerators", lambda: ["NVIDIA H100 80GB HBM3"])


def found(name: str) -> dict[str, str]:
    return next(row for row in rl.measurement.doctor().records() if row["name"] == name)


def test_what_is_needed_is_there(run: Run) -> None:
    result = run("doctor", "--json")
    assert result.code == 0
    states = {row["name"]: row["state"] for row in result.data["rows"]}
    assert states["Python"] == states["numpy"] == states["pandas"] == "ok"


def test_a_package_that_is_missing_is_wrong_and_an_extra_is_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in ("scipy", "rich"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert found("rich")["state"] == "wrong"
    assert found("rich")["advice"] == "pip install rich"
    assert found("calibrate")["state"] == "missing"
    assert "[calibrate]" in found("calibrate")["advice"]
    assert run("doctor").code == 1


def test_two_distributions_with_one_module_are_told_apart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"roofline": ["roofline-plotter"]})
    result = run("doctor")
    assert result.code == 1
    assert "roofline-plotter" in result.out
    assert "pip uninstall roofline-plotter" in " ".join(result.out.split())


def test_the_device_has_a_chip_file_that_was_measured(run: Run, one_gpu: None) -> None:
    assert found("GPU")["state"] == "ok"
    assert "h100-sxm" in found("GPU")["detail"]
    assert "calibrate" in run("doctor", "a10").out


def test_a_chip_file_of_one_s_own(run: Run, tmp_path: Path) -> None:
    rl.chip("h100-sxm").save(tmp_path / "mine.toml")
    assert run("doctor", str(tmp_path / "mine.toml"), "--json").data["rows"][-1]["state"] == "ok"
    fails(run("doctor", "h100-smx"), "h100-smx", "h100-sxm")
