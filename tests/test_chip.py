"""Chips in Python: figures, fallbacks, what-if copies, files and everything that can be wrong with them."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roofline as rl
from roofline.hardware.chip import load_chip
from roofline.hardware.library import data_dir
from roofline.hardware.parts import Efficiency, Peak
from roofline.ir.datafile import MAX_TOML

MINIMAL = 'name = "mine"\nmatrix.bf16 = "400 TFLOP/s"\nmemory_bandwidth = "2 TB/s"\n'


def private(**figures: Any) -> rl.Chip:
    return rl.Chip(**{"name": "mine", "matrix": {"bf16": "400 TFLOP/s"}, "memory_bandwidth": "2 TB/s"} | figures)


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Figures and their lookup


def test_private_chip_takes_plain_text() -> None:
    mine = private(memory_capacity="64 GB", l2="50 MB", link_bandwidth="100 GB/s", vector={"fp32": 5e13})
    assert mine.peak("bf16") == 4e14
    assert mine.bandwidth == 2e12
    assert mine.capacity == 64e9
    assert mine.level("l2").capacity == 50e6
    assert mine.links[0].bandwidth == 1e11
    assert mine.vector_peak("bf16") == 5e13
    assert mine.matrix["bf16"].source == "given by the user"
    assert mine.efficiency.calibrated == "prior"


def test_formats_are_found_by_any_of_their_names() -> None:
    mine = rl.Chip(name="mine", matrix={"bfloat16": "400 TFLOP/s"}, memory_bandwidth="2 TB/s")
    assert list(mine.matrix) == ["bf16"]
    assert mine.peak("torch.bfloat16") == mine.matmul_peak("bfloat16") == 4e14


@pytest.mark.parametrize(
    ("name", "dtype", "tf32", "rate", "says"),
    [
        ("h100-sxm", "bf16", False, 989.4, "bf16 matrix"),
        ("h100-sxm", "fp32", False, 67, "fp32 vector"),
        ("h100-sxm", "fp32", True, 494.7, "tf32 matrix"),
        ("h100-sxm", "tf32", False, 494.7, "tf32 matrix"),
        ("h100-sxm", "mxfp8", False, 1978.9, "fp8 matrix"),
        ("b200-sxm", "nvfp4", False, 9000, "fp4 matrix"),
        ("p100-sxm-16gb", "fp16", False, 21.2, "fp16 vector"),
        ("p100-sxm-16gb", "fp32", True, 10.6, "fp32 vector"),
        ("v100-sxm-16gb", "fp64", False, 7.8, "fp64 vector"),
        ("a100-40gb-sxm", "fp64", False, 19.5, "fp64 matrix"),
        ("mi210", "fp32", False, 45.3, "fp32 matrix"),
        ("m3-max", "fp16", False, 14.3, "fp16 vector"),
    ],
)
def test_matmul_roof(name: str, dtype: str, tf32: bool, rate: float, says: str) -> None:
    assert rl.chip(name).matmul_peak(dtype, tf32=tf32) == pytest.approx(rate * 1e12)
    assert rl.chip(name).matmul_runs_as(dtype, tf32=tf32) == says


@pytest.mark.parametrize("name", ["v100-sxm-16gb", "v100-sxm-32gb", "t4"])
def test_bf16_without_hardware_runs_at_the_fp32_rate_and_says_so(name: str) -> None:
    old = rl.chip(name)
    assert old.matmul_peak("bf16") == old.matmul_peak("fp32")
    assert old.matmul_runs_as("bf16").startswith("fp32 vector (bf16 emulated")
    with pytest.raises(rl.errors.MissingFigure, match="bf16 matrix peak"):
        old.peak("bf16")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("a100-80gb-sxm", "fp8"), ("h100-sxm", "int4"), ("trainium2", "int8"), ("groq-lpu-v1", "bf16")],
)
def test_missing_figure_names_chip_format_and_what_there_is(name: str, dtype: str) -> None:
    with pytest.raises(rl.errors.MissingFigure) as caught:
        rl.chip(name).matmul_peak(dtype)
    message = str(caught.value)
    assert name in message
    assert dtype in message
    assert "\n" not in message
    assert all(f in message for f in (*rl.chip(name).matrix, *rl.chip(name).vector))


def test_storage_formats_have_no_rate() -> None:
    with pytest.raises(rl.errors.MissingFigure, match="storage format"):
        rl.chip("h100-sxm").matmul_peak("int4-g128")


def test_vector_peak_falls_to_fp32_but_never_for_fp64() -> None:
    mine = private(vector={"fp32": "50 TFLOP/s"})
    assert mine.vector_peak("int8") == 5e13
    with pytest.raises(rl.errors.MissingFigure, match="fp64"):
        mine.vector_peak("fp64")
    with pytest.raises(rl.errors.MissingFigure, match="vector"):
        rl.chip("tpu-v5e").vector_peak("bf16")


def test_absent_memory_figures_raise() -> None:
    mine = rl.Chip(name="mine", memory_bandwidth="2 TB/s")
    with pytest.raises(rl.errors.MissingFigure, match="capacity"):
        _ = mine.capacity
    with pytest.raises(rl.errors.MissingFigure, match=r"'L3'; it has: memory"):
        mine.level("L3")
    with pytest.raises(rl.errors.UsageError, match="matrix, vector"):
        mine.peak("bf16", unit="tensor")  # type: ignore[arg-type]


def test_levels() -> None:
    mi300x = rl.chip("mi300x")
    assert [level.name for level in mi300x.memory] == ["HBM", "LLC", "L2", "SRAM"]
    assert mi300x.main is mi300x.level("main") is mi300x.level("hbm")
    assert mi300x.cache is mi300x.level("LLC")
    assert private().cache is None


def test_ridge() -> None:
    assert rl.chip("h100-sxm").ridge("bf16") == pytest.approx(989.4e12 / 3.35e12)
    assert rl.chip("a100-80gb-sxm").ridge("fp32", tf32=True) == pytest.approx(156e12 / 2039e9)


@given(st.floats(1e6, 1e20), st.floats(1e6, 1e18))
def test_ridge_is_the_ratio_of_the_roofs(flops: float, rate: float) -> None:
    mine = private(matrix={"bf16": flops}, memory_bandwidth=rate)
    assert mine.ridge("bf16") == flops / rate


# Frozen


def test_a_chip_cannot_change() -> None:
    h100 = rl.chip("h100-sxm")
    with pytest.raises(TypeError, match="replace"):
        h100.matrix["bf16"] = h100.matrix["fp8"]
    with pytest.raises(TypeError, match="replace"):
        h100.vector.clear()
    with pytest.raises(ValueError, match="frozen"):
        setattr(h100, "name", "other")  # noqa: B010 - mypy knows that it is frozen
    assert hash(h100) == hash(deepcopy(h100))


@pytest.mark.parametrize("copy", [deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_equal(copy: Callable[[rl.Chip], rl.Chip]) -> None:
    assert copy(rl.chip("v100-sxm-16gb")) == rl.chip("v100-sxm-16gb")


# What-if copies


def test_replace_changes_what_it_names_and_says_so() -> None:
    h100 = rl.chip("h100-sxm")
    new = h100.replace(memory_bandwidth="4.8 TB/s", memory_capacity="141 GB", bf16="1200 TFLOP/s")
    assert (new.bandwidth, new.capacity, new.peak("bf16")) == (4.8e12, 141e9, 1.2e15)
    assert new.name == "h100-sxm (what-if)"
    assert new.matrix["bf16"].source.startswith("what-if: was 989.4 TFLOP/s (NVIDIA H100 datasheet")
    assert new.matrix["bf16"].sparse is None
    assert new.main.source.startswith("what-if: was 84.94 GB")
    assert new.main.vendor == ""
    assert new.peak("fp8") == h100.peak("fp8")
    assert new.matrix["fp8"] is h100.matrix["fp8"]
    assert h100.peak("bf16") == pytest.approx(989.4e12)


def test_replace_finds_the_unit_that_has_the_format() -> None:
    new = rl.chip("h100-sxm").replace(fp32="90 TFLOP/s", int4="4 PFLOP/s", name="dream")
    assert new.peak("fp32", "vector") == 9e13
    assert new.peak("int4") == 4e15
    assert new.name == "dream (what-if)"
    assert new.replace(l2="99 MB").name == "dream (what-if)"
    assert rl.chip("mi210").replace(vector={"fp32": 1e13}).peak("fp32", "vector") == 1e13


def test_replace_of_links_and_new_entries() -> None:
    new = private().replace(link_bandwidth="100 GB/s", host_bandwidth="32 GB/s", l2="40 MiB", l2_bandwidth="5 TB/s")
    assert [(link.kind, link.bandwidth) for link in new.links] == [("device", 1e11), ("host", 3.2e10)]
    assert new.level("L2").bandwidth == 5e12
    assert rl.chip("h100-sxm").replace(link_bandwidth="900 GB/s").links[0].name == "NVLink4"


def test_measured_efficiency_becomes_transferred() -> None:
    measured = private(efficiency=Efficiency(compute=0.8, calibrated="measured", source="fit"))
    assert measured.replace(bf16=5e14).efficiency.calibrated == "transferred"
    assert "fit" in measured.scale(compute=2).efficiency.source
    assert measured.replace(notes="x").efficiency.calibrated == "measured"
    kept = measured.replace(efficiency={"memory": 0.5}).efficiency
    assert (kept.compute, kept.memory, kept.calibrated, kept.source) == (
        0.8,
        0.5,
        "prior",
        "what-if: was fit",
    )


def test_scale_multiplies() -> None:
    h100 = rl.chip("h100-sxm")
    new = h100.scale(bandwidth=2, compute=1.5, capacity=3, l2=4, links=5)
    assert new.bandwidth == 2 * h100.bandwidth
    assert new.capacity == 3 * h100.capacity
    assert new.level("L2").capacity == 4 * (h100.level("L2").capacity or 0)
    assert new.links[0].bandwidth == 5 * h100.links[0].bandwidth
    for unit in ("matrix", "vector"):
        for name, peak in getattr(h100, unit).items():
            assert getattr(new, unit)[name].flops == 1.5 * peak.flops


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_ridge_scales_with_compute_over_bandwidth(compute: float, bandwidth: float) -> None:
    new = private().scale(compute=compute, bandwidth=bandwidth)
    assert math.isclose(new.ridge("bf16"), 200 * compute / bandwidth, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("figures", "error", "says"),
    [
        ({"memory_bandwith": "1 TB/s"}, rl.errors.UsageError, "did you mean memory_bandwidth"),
        ({"bf16": "1 TB/s"}, rl.errors.ChipDataError, "matrix.bf16.flops: '1 TB/s'"),
        ({"bf16": -1}, rl.errors.ChipDataError, "too small"),
        ({"memory_bandwidth": math.nan}, rl.errors.ChipDataError, "not a finite number"),
        ({"efficiency": {"compute": 1.5}}, rl.errors.ChipDataError, "efficiency.compute"),
    ],
)
def test_replace_refuses(figures: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        private().replace(**figures)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_scale_refuses(factor: float) -> None:
    with pytest.raises(rl.errors.ChipDataError):
        private().scale(bandwidth=factor)


# Descriptions that cannot be


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"matrix": {"bf16": "400 TB/s"}}, "matrix.bf16.flops: '400 TB/s': unknown unit 'TB/s'"),
        ({"matrix": {"bf17": "400 TFLOP/s"}}, "did you mean bf16"),
        ({"matrix": {"bf16": {"flps": "400 TFLOP/s"}}}, "flps: unknown key"),
        ({"matrix": {"bf16": None}}, "matrix.bf16.flops"),
        ({"matrix": {"bf16": True}}, "matrix.bf16.flops"),
        ({"matrix": {"bf16": 989.4}}, "a bare number is taken as FLOP/s"),
        ({"matrix": {"bf16": "-1 TFLOP/s"}}, "too small"),
        ({"matrix": {"bf16": math.inf}}, "not a finite number"),
        ({"matrix": "400 TFLOP/s"}, "matrix: input should be a valid dict"),
        ({"memory_bandwidth": "0 B/s"}, "too small"),
        ({"memory": [{"name": "HBM"}]}, "memory_bandwidth: given beside a memory list"),
        ({"cores": 0}, "cores"),
        ({"year": "soon"}, "year"),
        ({"name": ""}, "name"),
        ({"clock_slack": 0.9}, "clock_slack"),
        ({"efficiency": {"low": 2}}, "efficiency.low"),
        ({"links": [{"name": "x", "bandwidth": "1 GB/s", "kind": "moon"}]}, "given 'moon'"),
        ({"fallback": {"fp8": {"runs_as": "fp99", "reason": "", "source": ""}}}, "fp99"),
        ({"memry": 3}, "memry: unknown key; allowed: name"),
        ({"sources": 3}, "sources"),
        ({"source": 3}, "source"),
    ],
)
def test_constructor_refuses(figures: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.ChipDataError) as caught:
        private(**figures)
    assert says in str(caught.value)
    assert str(caught.value).startswith("chip ")
    assert "\n" not in str(caught.value)


def test_memory_is_required() -> None:
    with pytest.raises(rl.errors.ChipDataError, match="memory: missing"):
        rl.Chip(name="mine")


def test_unknown_key_lists_the_keys_of_its_own_table() -> None:
    with pytest.raises(rl.errors.ChipDataError) as caught:
        private(matrix={"bf16": {"flops": "1 TFLOP/s", "spars": "2 TFLOP/s"}})
    assert "matrix.bf16.spars: unknown key; allowed: flops, sparse" in str(caught.value)
    assert "did you mean sparse" in str(caught.value)


KEYS = st.sampled_from([*rl.Chip.model_fields, "memory_bandwidth", "l2", "x"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
TABLES = st.dictionaries(st.text(max_size=5), SCALARS, max_size=2)
VALUES = st.one_of(SCALARS, st.lists(st.one_of(SCALARS, TABLES), max_size=2), TABLES)


@given(st.dictionaries(KEYS, VALUES))
def test_any_description_is_a_chip_or_one_line(figures: dict[str, Any]) -> None:
    says = None
    try:
        rl.Chip(**figures)
    except rl.RooflineError as error:
        says = error
    assert says is None or (isinstance(says, rl.errors.ChipDataError) and "\n" not in str(says))


# Sources


def test_figures_take_the_source_of_the_file_and_keys_become_citations() -> None:
    mine = rl.Chip(
        name="mine",
        source="sheet",
        sources={"sheet": "The datasheet (page 3)", "lab": "Our laboratory"},
        matrix={"bf16": "1 TFLOP/s", "fp16": {"flops": "1 TFLOP/s", "source": "derived: twice bf16 (lab)"}},
        memory=[{"name": "HBM", "bandwidth": "1 TB/s", "source": "sheet; lab"}],
    )
    assert mine.source == mine.matrix["bf16"].source == "The datasheet (page 3)"
    assert mine.matrix["fp16"].source == "derived: twice bf16 (Our laboratory)"
    assert mine.main.source == "The datasheet (page 3); Our laboratory"
    assert rl.Chip(**mine.model_dump()) == mine


# Names and files


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100-sxm", "h100-sxm"),
        ("H100_SXM", "h100-sxm"),
        (" h100 sxm ", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("A100-SXM4-40GB", "a100-40gb-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI250X / MI250", "mi250x-gcd"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v6 lite", "tpu-v6e"),
        ("Apple M3 Max", "m3-max"),
        ("trn2", "trainium2"),
    ],
)
def test_names_and_device_strings(text: str, name: str) -> None:
    assert rl.chip(text).name == name


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("h100", ["h100-nvl", "h100-pcie", "h100-sxm"]),
        ("NVIDIA H100", ["h100-nvl", "h100-pcie", "h100-sxm"]),
        ("a100", ["a100-40gb-pcie", "a100-40gb-sxm", "a100-80gb-pcie", "a100-80gb-sxm"]),
        ("v100", ["v100-sxm-16gb", "v100-sxm-32gb"]),
        ("mi300", ["mi300a", "mi300x"]),
        ("h100-sxn", ["h100-sxm"]),
        ("l40", ["l40s"]),
    ],
)
def test_an_incomplete_name_lists_and_never_picks(text: str, listed: list[str]) -> None:
    with pytest.raises(rl.errors.UnknownChip) as caught:
        rl.chip(text)
    assert all(name in str(caught.value) for name in listed)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["", " ", "zzzzqqqq", "\x00", "x" * 10_000, "..", "a\nb"])
def test_nonsense_names(text: str) -> None:
    with pytest.raises(rl.errors.UnknownChip) as caught:
        rl.chip(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("thing", [None, 3, b"h100-sxm", ["h100-sxm"]])
def test_names_of_another_type(thing: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match="a name, a path or a Chip"):
        rl.chip(thing)


def test_a_chip_is_itself_and_files_are_read_once() -> None:
    assert rl.chip(private()) == private()
    assert rl.chip("h100-sxm") is rl.chip("H100 SXM")


def test_private_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    assert rl.chip(path) == rl.chip(str(path)) == load_chip(path) == private()
    path.write_text(MINIMAL.replace("400", "4000"))
    assert rl.chip(path).peak("bf16") == 4e15


def test_roofline_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    (first / "chips").mkdir(parents=True)
    second.mkdir()
    write(first / "chips", MINIMAL.replace("mine", "h100-sxm"), "h100-sxm.toml")
    write(second, MINIMAL.replace('"mine"', '"My Chip"\naliases = ["Prototype 7"]'), "My Chip.toml")
    monkeypatch.setenv("ROOFLINE_PATH", os.pathsep.join(map(str, (first, second, tmp_path / "none"))))
    assert rl.chip("h100-sxm").peak("bf16") == 4e14
    assert rl.chip("my-chip").name == rl.chip("prototype 7").name == "My Chip"
    assert {"My Chip", "a100-80gb-sxm"} <= set(rl.chips())
    monkeypatch.delenv("ROOFLINE_PATH")
    assert rl.chip("h100-sxm").peak("bf16") == pytest.approx(989.4e12)


def test_an_exact_name_reads_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "not toml", "broken.toml")
    monkeypatch.setenv("ROOFLINE_PATH", str(tmp_path))
    assert rl.chip("h100-sxm").name == "h100-sxm"
    with pytest.raises(rl.errors.ChipDataError, match=r"broken\.toml"):
        rl.chip("NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "end of document"),
        (MINIMAL + "tdp = = 3", "line 4"),
        (MINIMAL + "matrix.bf16 = 3\n", "not valid TOML"),
        ("", "name: missing"),
        (MINIMAL + "tdp = '3 apples'\n", "unknown unit 'apples'"),
        (MINIMAL + "colour = 'red'\n", "colour: unknown key"),
        (MINIMAL + "tdp = nan\n", "tdp"),
        (MINIMAL + "tdp = 1979-05-27\n", "tdp"),
        (MINIMAL + "clock = -3\n", "clock"),
        ("x = " + "[" * 100_000, "not valid TOML"),
        ("#" * (MAX_TOML + 1), "at most 1048576"),
        ("é".encode("latin-1"), "not valid TOML"),
    ],
    ids=lambda text: str(text)[:12],
)
def test_bad_files(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(rl.errors.ChipDataError) as caught:
        rl.chip(path)
    assert says in str(caught.value)
    assert "bad.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(rl.errors.ChipDataError, match="a directory"):
        rl.chip(tmp_path)
    with pytest.raises(rl.errors.UnknownChip, match=r"did you mean mine\.toml"):
        rl.chip(tmp_path / "mime.toml")
    with pytest.raises(rl.errors.UnknownChip, match="no chip file"):
        rl.chip("nowhere/at/all")
    with pytest.raises(rl.errors.UnknownChip):
        rl.chip(write(tmp_path, MINIMAL) / "below.toml")
    with pytest.raises(rl.errors.ChipDataError):
        rl.chip("x" * 5000 + ".toml")
    with pytest.raises(rl.errors.ChipDataError):
        rl.chip("\x00/chip.toml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(rl.errors.ChipDataError, match="not a file"):
        rl.chip(tmp_path / "pipe.toml")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    path.chmod(0)
    with pytest.raises(rl.errors.ChipDataError, match="cannot be read"):
        rl.chip(path)


def test_data_dir() -> None:
    assert (data_dir("chips") / "h100-sxm.toml").is_file()


def test_repr_is_short() -> None:
    assert repr(rl.chip("h100-sxm")) == str(rl.chip("h100-sxm")) == "Chip('h100-sxm', bf16 989 TFLOP/s, HBM 3.35 TB/s)"
    assert repr(rl.Chip(name="bare", memory_capacity="1 GB")) == "Chip('bare')"


def test_a_peak_stands_alone() -> None:
    peak = Peak(flops="1 PFLOP/s", source="me")
    assert private(matrix={"fp8": peak}).matrix["fp8"] is peak


def test_former_names_of_parameters_are_still_read(tmp_path: Path) -> None:
    text = (
        MINIMAL
        + """
[efficiency.parameters.processor_stream]
launch = 1e-6
[efficiency.parameters.matmul]
widen = 0.05
"""
    )
    parameters = rl.chip(write(tmp_path, text)).efficiency.parameters
    assert parameters == {"cpu_stream": {"launch": 1e-6}, "matmul": {"dequantize": 0.05}}
