"""The shipped chips: golden figures, and what must hold of every file."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.hardware.library import _without_vendor, data_dir
from roofline.hardware.parts import Peak

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import chip_formats

NAMES = sorted(path.stem for path in data_dir("chips").glob("*.toml"))
ALL = pytest.mark.parametrize("name", NAMES)

#: Dense bf16 (fp16 where there is no bf16) operations per clock of one core: (matrix, fp32 vector).
PER_CLOCK = {
    "p100-sxm-16gb": (None, 128),
    "v100-sxm-16gb": (1024, 128),
    "v100-sxm-32gb": (1024, 128),
    "t4": (1024, 128),
    "a100-40gb-sxm": (2048, 128),
    "a100-40gb-pcie": (2048, 128),
    "a100-80gb-sxm": (2048, 128),
    "a100-80gb-pcie": (2048, 128),
    "a30": (2048, 128),
    "a10": (1024, 256),
    "a40": (1024, 256),
    "rtx-a6000": (1024, 256),
    "a10g": (512, 256),
    "gtx-1650": (None, 128),
    "h800-sxm": (4096, 256),
    "h20": (None, None),  # its matrix rate is limited by decree, and 44 TFLOP/s in fp32 fits no clock of an H100
    "gb10": (1024, 256),
    "l4": (1024, 256),
    "l40s": (1024, 256),
    "rtx-3090": (512, 256),
    "rtx-4090": (512, 256),
    "rtx-5090": (512, 256),
    "h100-sxm": (4096, 256),
    "h100-pcie": (4096, 256),
    "h100-nvl": (4096, 256),
    "h200-sxm": (4096, 256),
    "gh200-96gb": (4096, 256),
    "gh200-144gb": (4096, 256),
    "b200-sxm": (8192, None),
    "gb200": (8192, None),
    "b300-sxm": (8192, None),
    "gb300": (None, 256),  # its printed matrix peaks agree with neither of the clocks that the device reports
    "mi100": (1024, 128),
    "mi210": (1024, 128),
    "mi250x-gcd": (1024, 128),
    "mi300x": (2048, 256),
    "mi325x": (2048, 256),
    "mi300a": (2048, 256),
    "mi350x": (4096, 256),
    "mi355x": (4096, 256),
}


def raw(name: str) -> dict[str, Any]:
    return tomllib.loads((data_dir("chips") / f"{name}.toml").read_text())


def peaks(c: rl.Chip) -> list[tuple[str, Peak]]:
    return [(f"{unit}.{name}", peak) for unit in ("matrix", "vector") for name, peak in getattr(c, unit).items()]


def test_there_are_many() -> None:
    assert len(NAMES) >= 60
    assert set(NAMES) <= set(rl.chips())


@pytest.mark.parametrize(
    "name",
    [
        "a100-80gb-sxm",
        "h100-sxm",
        "h200-sxm",
        "b200-sxm",
        "b300-sxm",
        "gb200",
        "gb300",
        "l40s",
        "rtx-pro-6000-server",
        "h100-pcie",
        "h100-nvl",
        "a100-40gb-sxm",
        "a100-80gb-pcie",
        "l4",
        "rtx-4090",
        "mi300x",
        "mi355x",
        "mi250x-gcd",
        "tpu-v5e",
        "tpu-v6e",
        "trainium2",
        "gaudi2",
        "wormhole-n150",
        "m3-max",
    ],
)
def test_names_that_people_type(name: str) -> None:
    assert rl.chip(name).name == name


@ALL
def test_file_and_chip_have_one_name(name: str) -> None:
    assert rl.chip(name).name == name
    assert rl.chip(name).vendor
    assert rl.chip(name).form


def test_names_and_aliases_are_unique() -> None:
    owner: dict[str, str] = {}
    for name in NAMES:
        for alias in {_without_vendor(text) for text in (name, *rl.chip(name).aliases)}:
            assert owner.setdefault(alias, name) == name, alias


@ALL
def test_every_alias_finds_its_chip(name: str) -> None:
    assert {rl.chip(alias).name for alias in rl.chip(name).aliases} <= {name}


@ALL
def test_every_figure_has_a_source(name: str) -> None:
    c = rl.chip(name)
    found = [c.source, c.efficiency.source, *(peak.source for _, peak in peaks(c))]
    found += [entry.source for entry in c.memory]
    found += [entry.source for entry in c.links]
    found += [entry.source for entry in c.fallback.values()]
    assert all(len(source) > 8 and source != "given by the user" for source in found)


@ALL
def test_sources_are_used_and_keys_resolve(name: str) -> None:
    text = (data_dir("chips") / f"{name}.toml").read_text()
    body, table = text.split("[sources]")
    for key in tomllib.loads("[sources]" + table)["sources"]:
        assert key in body, f"{key} is cited nowhere"
    assert rl.chip(name).source not in rl.chip(name).sources, "the chip's own source is no key of its table"
    assert raw(name)["source"] in raw(name)["sources"]


@ALL
def test_a_chip_survives_its_own_dump(name: str) -> None:
    assert rl.Chip(**rl.chip(name).model_dump()) == rl.chip(name)


@ALL
def test_figures_are_dense(name: str) -> None:
    for where, peak in peaks(rl.chip(name)):
        if peak.sparse is not None:
            assert where.startswith("matrix")
            ratio = peak.sparse / peak.flops
            low = 1.25 if name == "b300-sxm" and where.endswith("fp4") else 1.95
            assert low < ratio < 2.05, where


def test_no_two_formats_of_a_chip_mix_dense_and_sparse() -> None:
    for name in NAMES:
        matrix = rl.chip(name).matrix
        if "bf16" in matrix and "fp16" in matrix and name not in ("mi100", "gaudi3", "ascend-910b2", "ascend-910b3"):
            assert matrix["bf16"].flops == matrix["fp16"].flops, name
        if "tf32" in matrix and "bf16" in matrix and rl.chip(name).vendor in ("NVIDIA", "AMD"):
            assert matrix["tf32"].flops == pytest.approx(matrix["bf16"].flops / 2, rel=0.02), name


@ALL
def test_sizes_are_plausible(name: str) -> None:
    c = rl.chip(name)
    assert 5e10 < c.bandwidth < 3e16
    assert c.main.capacity is None or 1e8 < c.main.capacity < 1e12
    assert all(1e11 <= peak.flops <= 2e16 for _, peak in peaks(c))
    assert all(1e9 < link.bandwidth <= 1e12 for link in c.links)
    assert all(link.per_peer is None or link.per_peer <= link.bandwidth for link in c.links)
    inner = [level.bandwidth for level in c.memory if level.bandwidth]
    assert inner == sorted(inner)
    e = c.efficiency
    assert e.low <= 1 <= e.high
    assert e.launch < e.host < 1e-4


@pytest.mark.parametrize("name", PER_CLOCK)
def test_peak_is_cores_times_clock(name: str) -> None:
    c = rl.chip(name)
    matrix, vector = PER_CLOCK[name]
    checked = 0
    for peak, per_clock in ((c.matrix.get("fp16"), matrix), (c.vector.get("fp32"), vector)):
        if peak is not None and per_clock is not None:
            clock = peak.clock or c.clock
            assert clock
            assert c.cores
            assert peak.flops == pytest.approx(c.cores * per_clock * clock, rel=0.016)
            checked += 1
    assert checked == sum(figure is not None for figure in (matrix, vector))


def test_every_nvidia_and_amd_chip_with_cores_is_checked() -> None:
    known = {name for name in NAMES if rl.chip(name).vendor in ("NVIDIA", "AMD") and rl.chip(name).cores}
    # The RTX PRO 6000's core count is itself derived from its peak, so it proves nothing.
    assert known - set(PER_CLOCK) == {"epyc-9654", "jetson-agx-orin-64gb", "rtx-pro-6000-server"}


GOLDEN = [
    ("h100-sxm", "bf16", 989.4),
    ("h100-sxm", "fp8", 1978.9),
    ("h200-sxm", "bf16", 989.4),
    ("h100-pcie", "bf16", 756),
    ("a100-80gb-sxm", "bf16", 312),
    ("a100-80gb-sxm", "tf32", 156),
    ("a100-80gb-sxm", "fp32", 19.5),
    ("a100-80gb-sxm", "int8", 624),
    ("a100-80gb-sxm", "int4", 1248),
    ("a100-80gb-sxm", "b1", 4992),
    ("v100-sxm-16gb", "fp16", 125),
    ("v100-sxm-16gb", "fp32", 15.7),
    ("t4", "fp16", 65),
    ("t4", "fp32", 8.1),
    ("l4", "fp8", 242),
    ("rtx-3090", "fp16", 71.2),
    ("rtx-3090", "tf32", 35.6),
    ("rtx-4090", "bf16", 165.2),
    ("b200-sxm", "bf16", 2250),
    ("gb200", "bf16", 2500),
    ("b300-sxm", "fp4", 13500),
    ("b300-sxm", "int8", 153.5),
    ("mi300x", "bf16", 1307.4),
    ("mi355x", "bf16", 2516.6),
    ("mi250x-gcd", "bf16", 191.5),
    ("mi100", "bf16", 92.3),
    ("tpu-v5e", "bf16", 197),
    ("tpu-v4", "int8", 275),
    ("gaudi2", "bf16", 432),
    ("gaudi3", "bf16", 1677),
    ("trainium2", "fp8", 1299),
    ("wormhole-n300-asic", "fp16", 65.5),
    ("h20", "bf16", 148),  # dense, half of the printed sparse figure
    ("h20", "fp8", 296),
    ("h800-sxm", "bf16", 989.4),
    ("a10g", "bf16", 70),
    ("gtx-1650", "fp16", 5.967),
    ("m4-pro", "fp16", 7.53),
    ("gb10", "bf16", 118.8),  # 48 x 1024 x 2.418 GHz = 118.85; 1000 sparse fp4 printed is 48 x 8192 x 2.54
    ("gb10", "fp8", 237.7),
    ("gb10", "fp4", 475.4),
    ("epyc-9654", "bf16", 14.75),  # 96 x 64 x 2.4 GHz = 14.746
    ("epyc-9654", "int8", 29.49),
    ("ascend-910b2", "bf16", 353.9),  # 24 x 16^3 x 2 x 1.8 GHz = 353.89
    ("ascend-910b3", "bf16", 294.9),  # 20 x 16^3 x 2 x 1.8 GHz = 294.91
    # Fallbacks: the format that runs, and the rate of its units.
    ("tpu-v5e", "fp32", 197),  # one bf16 pass
    ("wormhole-n150", "bf16", 74),  # four fidelity phases, as fp16
    ("wormhole-n150", "int8", 74),
    ("blackhole-p150", "bf16", 165.9),  # 120 x 4096 x 1.35 GHz / 4 phases
    ("blackhole-p150", "fp32", 165.9),
    ("m3-max", "bf16", 14.3),
    ("p100-sxm-16gb", "bf16", 10.6),
    ("jetson-agx-orin-64gb", "bf16", 42.5),
    ("cloud-ai-100-pro", "fp32", 125),
    ("xeon-8480", "fp32", 7.17),  # 56 x 64 x 2.0 GHz = 7.168
    ("max-1550-stack", "bf16", 419.4),  # 64 x 4096 x 1.6 GHz
]


@pytest.mark.parametrize(("name", "dtype", "tera"), GOLDEN)
def test_golden_peaks(name: str, dtype: str, tera: float) -> None:
    assert rl.chip(name).matmul_peak(dtype) == pytest.approx(tera * 1e12, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("a100-40gb-sxm", 1555),
        ("a100-80gb-sxm", 2039),
        ("a100-80gb-pcie", 1935),
        ("h100-sxm", 3350),
        ("h200-sxm", 4800),
        ("b200-sxm", 8000),
        ("v100-sxm-16gb", 900),
        ("t4", 320),
        ("rtx-3090", 936),
        ("rtx-4090", 1008),
        ("wormhole-n150", 288),
        ("mi300x", 5300),
        ("mi250x-gcd", 1638.4),
        ("tpu-v5e", 819),
    ],
)
def test_golden_bandwidths(name: str, giga: float) -> None:
    assert rl.chip(name).bandwidth == pytest.approx(giga * 1e9, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("a100-80gb-sxm", "fp8"),
        ("h100-sxm", "int4"),
        ("h100-sxm", "fp4"),
        ("v100-sxm-16gb", "int8"),
        ("v100-sxm-16gb", "tf32"),
        ("t4", "tf32"),
        ("p100-sxm-16gb", "int8"),
        ("tpu-v2", "int8"),
        ("tpu-v3", "int8"),
        ("tpu-v7", "int8"),
        ("trainium2", "int8"),
        ("mi355x", "tf32"),
        ("m3-max", "bf16"),
        ("cerebras-wse-3", "fp16"),
        ("blackhole-p150", "fp16"),
    ],
)
def test_what_nobody_published_is_absent(name: str, dtype: str) -> None:
    chip = rl.chip(name)
    for unit in ("matrix", "vector"):
        with pytest.raises(rl.errors.MissingFigure, match=name):
            chip.peak(dtype, unit)


@pytest.mark.parametrize(
    ("name", "dtype", "option"),
    [
        ("gaudi2", "fp32", "run it in bf16: --dtype bf16, in Python dtype='bf16'"),
        ("groq-lpu-v1", "bf16", "run it in fp16: --dtype fp16"),
        ("epyc-9654", "fp16", "run it in bf16 or fp32: --dtype bf16"),
        ("tpu-v5e", "fp16", "run it in bf16 or fp32: --dtype bf16"),
        ("a100-80gb-sxm", "fp8", "leave --activations out"),
        ("m3-max", "int8", "leave --activations out"),
        ("cerebras-wse-3", "bf16", "no peaks at all"),
    ],
)
def test_a_refused_format_names_the_option_that_runs(name: str, dtype: str, option: str) -> None:
    with pytest.raises(rl.errors.MissingFigure, match=re.escape(option)):
        rl.chip(name).matmul_peak(dtype)


@ALL
def test_a_fallback_is_of_a_format_without_units_and_runs_on_some(name: str) -> None:
    c = rl.chip(name)
    for dtype, fallback in c.fallback.items():
        assert dtype not in c.matrix
        assert dtype not in c.vector
        assert c.matmul_format(dtype) == fallback.runs_as
        assert c.matmul_runs_as(dtype).endswith(f"({dtype} {fallback.reason})")


def test_all_but_a_handful_run_the_shipped_language_models_as_they_are() -> None:
    refused = {name for name in NAMES if not runs(name, "bf16")}
    assert refused == {
        "cerebras-wse-3",
        "cloud-ai-100-pro",
        "cloud-ai-100-standard",
        "cloud-ai-100-ultra-soc",
        "groq-lpu-v1",
    }
    assert {name for name in NAMES if not runs(name, "fp32")} == {
        "cerebras-wse-3",
        "gaudi2",
        "grayskull-e75",
        "grayskull-e150",
        "groq-lpu-v1",
    }


def runs(name: str, dtype: str) -> bool:
    try:
        return rl.chip(name).matmul_peak(dtype) > 0
    except rl.errors.MissingFigure:
        return False


def test_the_page_of_formats_is_that_of_the_files() -> None:
    text = chip_formats.PAGE.read_text(encoding="utf-8")
    assert chip_formats.page(text) == text, "run scripts/chip_formats.py"


def test_passes_divide_the_rate() -> None:
    highest = {"fp32": {"runs_as": "bf16", "passes": 6, "reason": "in Precision.HIGHEST"}}
    tpu = rl.chip("tpu-v5e").replace(fallback=highest)
    assert tpu.matmul_peak("fp32") == pytest.approx(197e12 / 6)
    assert tpu.matmul_runs_as("fp32") == "bf16 matrix (fp32 in Precision.HIGHEST, 6 passes)"


# Matmuls that people measured, as printed by them [TFLOP/s]: a dense peak is above, and not twice as far.
MEASURED = [
    ("gb10", "bf16", 102),  # github.com/xzwgit/gpu-flops-bench @5a32ae9e, as the next three
    ("gb10", "fp8", 220),
    ("gb10", "int8", 155),
    ("gb10", "fp4", 373),
    ("rtx-pro-6000-server", "bf16", 457.6),
    ("a10g", "bf16", 69.47),  # github.com/zzc0721/torch-performance-test-data/issues/126
    ("a10g", "tf32", 34.71),
    ("ascend-910b2", "bf16", 315.4),  # github.com/zzc0721/torch-performance-test-data/issues/109
    ("ascend-910b2", "fp32", 84.53),
    ("max-1550-stack", "bf16", 256),  # Argonne's user guides, node-performance-overview
    ("max-1550-stack", "int8", 529),
]


@pytest.mark.parametrize(("name", "dtype", "tera"), MEASURED)
def test_a_peak_is_above_what_matmuls_reach_and_below_twice_that(name: str, dtype: str, tera: float) -> None:
    assert 0.5 < tera * 1e12 / rl.chip(name).matmul_peak(dtype) < 1


def test_links_are_per_direction() -> None:
    def to_devices(name: str) -> float:
        return next(link.bandwidth for link in rl.chip(name).links if link.kind == "device")

    assert [to_devices(n) for n in ("v100-sxm-16gb", "a100-80gb-sxm", "h100-sxm", "b200-sxm")] == [
        150e9,
        300e9,
        450e9,
        900e9,
    ]
    assert rl.chip("mi300x").links[0].per_peer == 64e9


def test_capacity_is_in_bytes_beside_the_vendors_words() -> None:
    h100 = rl.chip("h100-sxm").main
    assert (h100.capacity, h100.vendor) == (84.94e9, "80 GB")
    assert rl.chip("gb200").capacity == 189471 * 2**20
    assert rl.chip("v100-sxm-16gb").capacity == 16 * 2**30


def test_consumer_cards_may_run_above_their_figures() -> None:
    assert {n for n in NAMES if rl.chip(n).clock_slack >= 1.25} == {"gb10", "rtx-3090", "rtx-4090", "rtx-5090"}
    assert rl.chip("rtx-4090").peak("bf16") * rl.chip("rtx-4090").clock_slack > 179e12


# Reported confusions


def test_a16_utilisation_counts_against_the_dense_peak() -> None:
    assert 420e12 / rl.chip("h200-sxm").matmul_peak("bf16") == pytest.approx(0.4245, rel=1e-4)
    assert 480e12 / rl.chip("h100-sxm").matmul_peak("bf16") == pytest.approx(480 / 989.4, rel=1e-4)
    assert rl.chip("h100-pcie").matrix["bf16"].sparse == 1513e12
    assert rl.chip("h100-pcie").matmul_peak("bf16") == 756e12


def test_a17_no_peak_is_halved_twice() -> None:
    assert 140e12 / rl.chip("a100-40gb-sxm").matmul_peak("bf16") == pytest.approx(0.448718, rel=1e-4)
    assert rl.chip("a100-40gb-sxm").matrix["bf16"].sparse == 624e12


def test_a28_only_the_last_row_is_impossible() -> None:
    rows = [("fp16", 240), ("int8", 430), ("int4", 800), ("b1", 2100), ("fp16", 430)]
    a100 = rl.chip("a100-80gb-sxm")
    assert [tera * 1e12 > a100.matmul_peak(dtype) for dtype, tera in rows] == [False] * 4 + [True]


def test_b10_v100() -> None:
    v100 = rl.chip("v100-sxm-16gb")
    assert 14.0e12 / v100.matmul_peak("fp32") == pytest.approx(0.8917, rel=1e-3)
    assert v100.matmul_peak("bf16") <= v100.matmul_peak("fp32") < v100.matmul_peak("fp16")


def test_b27_mi300x_floor() -> None:
    mi300x = rl.chip("mi300x")
    assert mi300x.cores
    assert mi300x.clock
    assert mi300x.cores * mi300x.clock * 2048 == pytest.approx(1307.4432e12)
    floor = 2 * 8192**3 / mi300x.matmul_peak("fp16")
    assert math.isclose(floor, 0.841e-3, rel_tol=1e-3)
    assert math.isclose(2 * 8192**3 / 603e12, 1.823e-3, rel_tol=1e-3)
