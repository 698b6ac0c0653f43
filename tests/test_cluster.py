"""Clusters: the shipped files, what a chip's name stands for, groups on nodes, and descriptions that cannot be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.hardware.cluster import load_cluster
from roofline.hardware.library import data_dir

NAMES = sorted(path.stem for path in data_dir("clusters").glob("*.toml"))
LINK = {"name": "RoCE", "bandwidth": "100 Gbit/s", "source": "a test"}

#: Devices of a node and what a device sends out of it [byte/s], typed again from the cited pages.
PUBLISHED = {
    "dgx-a100": (8, 200e9 / 8), "dgx-h100": (8, 400e9 / 8), "hgx-h200": (8, 400e9 / 8), "dgx-b200": (8, 400e9 / 8),
    "gb200-nvl72": (72, 400e9 / 8), "tpu-v5p-pod": (8960, 50e9 / 8), "pcie-l40s": (8, None),
}  # fmt: skip


def make(**figures: Any) -> rl.Cluster:
    return rl.Cluster(**{"name": "mine", "chip": "h100-sxm", "devices_per_node": 8} | figures)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_cluster_says_where_its_figures_come_from(name: str) -> None:
    found = rl.cluster(name)
    assert found.name == name
    assert len(found.source) > 20
    assert found.chip == rl.chip(found.chip.name)
    if found.link:
        assert found.link.kind == "node"
        assert found.link.source == found.source
        assert found.link.latency is None or "latency" in found.link.note
    assert found.device.name == found.chip.name


def test_the_published_figures() -> None:
    assert set(PUBLISHED) == set(NAMES)
    for name, (devices, bandwidth) in PUBLISHED.items():
        found = rl.cluster(name)
        assert (found.devices_per_node, found.link and found.link.bandwidth) == (devices, bandwidth), name


def test_names_and_aliases_lead_to_one_cluster() -> None:
    assert rl.cluster("DGX_A100") == rl.cluster("Selene") == rl.cluster("dgx-a100")
    assert rl.cluster("NVL72").name == "gb200-nvl72"
    seen: dict[str, str] = {}
    for name in rl.clusters():
        for spelled in (name, *rl.cluster(name).aliases):
            assert rl.cluster(spelled).name == name
            assert seen.setdefault(spelled.lower(), name) == name


def test_a_chips_name_stands_for_a_node_of_eight_and_says_so() -> None:
    found = rl.cluster("mi300x")
    assert (found.devices, found.nodes, found.implied) == (8, 1, True)
    assert "taken from the chip's name" in found.notes
    assert found.device == rl.chip("mi300x")
    assert rl.cluster(rl.chip("mi300x")) == found
    assert not rl.cluster("dgx-h100").implied


def test_a_users_file_is_found_and_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'name = "dgx-h100"\nchip = "h100-sxm"\ndevices_per_node = 2\nsource = "mine"\naliases = ["ours"]\n'
    (tmp_path / "clusters").mkdir()
    file = tmp_path / "clusters" / "dgx-h100.toml"
    file.write_text(text)
    monkeypatch.setenv("ROOFLINE_PATH", str(tmp_path))
    assert rl.cluster("dgx-h100").devices == rl.cluster("ours").devices == 2
    file.write_text(text.replace("2", "4").replace("h4", "h2"))
    assert rl.cluster(file).devices_per_node == load_cluster(str(file)).devices_per_node == 4


def test_the_device_has_the_link_and_oversubscription_takes_its_share() -> None:
    found = make(nodes=4, link=LINK, oversubscription=2)
    (link,) = [link for link in found.device.links if link.kind == "node"]
    assert link.bandwidth == 100e9 / 8 / 2
    assert "oversubscribed 2:1" in link.note
    assert [link.kind for link in found.chip.links] == ["device", "host"]


@pytest.mark.parametrize(
    ("devices", "stride", "nodes"),
    [(1, 1, 1), (8, 1, 1), (9, 1, 2), (32, 1, 4), (4, 8, 4), (2, 8, 2), (8, 2, 2), (4, 2, 1), (3, 10, 3), (5, 3, 3)],
)
def test_the_nodes_of_a_group(devices: int, stride: int, nodes: int) -> None:
    assert make(nodes=4, link=LINK).span(devices, stride) == nodes


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: make(devices_per_node=1), rl.errors.UsageError, "one device (devices_per_node = 1, nodes = 1)"),
        (lambda: make(nodes=2), rl.errors.ChipDataError, "2 nodes and no link between them; give [link]"),
        (lambda: make(chip="h100"), rl.errors.ChipDataError, "chip 'h100' matches several"),
        (lambda: make(chip=None), rl.errors.ChipDataError, "chip: expected a name, a path or a Chip"),
        (lambda: make(devices=8), rl.errors.ChipDataError, "did you mean devices_per_node?"),
        (lambda: make(devices_per_node=0), rl.errors.ChipDataError, "devices_per_node"),
        (lambda: make(devices_per_node="eight"), rl.errors.ChipDataError, "devices_per_node"),
        (lambda: make(oversubscription=math.inf), rl.errors.ChipDataError, "oversubscription"),
        (lambda: make(oversubscription=0.5), rl.errors.ChipDataError, "oversubscription"),
        (lambda: make(link={**LINK, "bandwidth": "100 parsec/s"}), rl.errors.ChipDataError, "link.bandwidth"),
        (
            lambda: make(link={**LINK, "speed": 1}),
            rl.errors.ChipDataError,
            "link.speed: unknown key; allowed: name, bandwidth",
        ),
        (lambda: make(link={**LINK, "kind": "host"}), rl.errors.ChipDataError, "link.kind 'host'; allowed: node"),
        (lambda: make(link={"bandwidth": "1 GB/s"}), rl.errors.ChipDataError, "link.name: missing"),
        (lambda: rl.cluster("dgx-h10"), rl.errors.UnknownChip, "did you mean dgx-h100"),
        (
            lambda: rl.cluster("dgx"),
            rl.errors.UnknownChip,
            "'dgx' matches several: dgx-a100, dgx-b200, dgx-h100; name one",
        ),
        (lambda: rl.cluster("no/such.toml"), rl.errors.UnknownChip, "no cluster file 'no/such.toml'"),
        (lambda: rl.cluster(8), rl.errors.UsageError, "expected a name, a path, a Chip or a Cluster"),  # type: ignore[arg-type]
        (lambda: make().span(16), rl.errors.UsageError, "16 devices needed, it has 1 x 8; the nearest: 8 devices"),
        (lambda: rl.cluster("dgx-h100").span(40), rl.errors.UsageError, "a cluster of 5 nodes (replace(nodes=5))"),
        (lambda: make().span(0), rl.errors.UsageError, "a group of 0 devices"),
        (lambda: make().replace(node=2), rl.errors.UsageError, "unknown figure 'node'; allowed: name, chip"),
    ],
)
def test_what_cannot_be_is_one_clear_line(build: Any, error: type[rl.RooflineError], text: str) -> None:
    with pytest.raises(error) as caught:
        build()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 800


def test_a_file_that_describes_no_cluster_names_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for text in ("name = ", 'name = "mine"\nchip = "h100-sxm"\n', "devices_per_node = 1\n"):
        file.write_text(text)
        with pytest.raises(rl.RooflineError, match=r"mine\.toml: "):
            load_cluster(file)


def test_a_single_device_of_a_cluster_without_a_link_cannot_leave_its_node() -> None:
    from roofline.cost.network import node_link

    with pytest.raises(rl.errors.MissingFigure, match=r"h100-sxm has no link between nodes; name a cluster"):
        node_link(rl.chip("h100-sxm"))


def test_replace_and_repr() -> None:
    bigger = rl.cluster("dgx-h100").replace(nodes=128)
    assert bigger.devices == 1024
    assert repr(bigger) == "Cluster('dgx-h100', 128 x 8 h100-sxm, InfiniBand NDR 50 GB/s per device)"
    assert repr(make()) == "Cluster('mine', 1 x 8 h100-sxm)"
    assert len({bigger, rl.cluster("dgx-h100"), rl.cluster("dgx-h100")}) == 2
