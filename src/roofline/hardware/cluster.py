"""Clusters as data: which chips, how many in a node, how many nodes, and the link between them.

A node is what talks over the chips' own links: a server of eight, a rack of seventy-two, a slice of a torus. A cluster
is one TOML file or one call of :class:`Cluster`; a chip's name stands for one node of eight.
"""

from __future__ import annotations

import os
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from roofline.hardware.chip import GIVEN, Chip, first_problem, load_chip, state_of
from roofline.hardware.library import chip as find_chip
from roofline.hardware.library import chips, files, find_alias, find_file, is_path, several
from roofline.hardware.parts import Frozen, Link, Number, Text
from roofline.ir import units
from roofline.ir.datafile import read_toml
from roofline.ir.errors import ChipDataError, RooflineError, UnknownChip, UsageError, did_you_mean

#: Devices of the node that a chip's name stands for.
NODE = 8

_IMPLIED = "implied by a chip's name"

Count = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]


class Cluster(Frozen):
    """Devices in nodes.

    Attributes:
        name: Short name, also the file's.
        chip: One device: a name, a file or a :class:`~roofline.Chip`.
        devices_per_node: Devices that reach each other over the chip's own link.
        nodes: How many of them.
        link: Between nodes, of one device; a single node may have none.
        oversubscription: Of the network between nodes: how much more its devices can send than its core carries.
        aliases: Other spellings.
        notes: What a reader of the numbers should know.
        source: Source of all figures that carry none of their own.

    Example:
        >>> mine = Cluster(name="mine", chip="h100-sxm", devices_per_node=8, nodes=4,
        ...                link={"name": "RoCE", "bandwidth": "200 Gbit/s", "latency": "3 us"})
        >>> mine.devices, mine.span(16)
        (32, 2)
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    chip: Chip
    devices_per_node: Count
    nodes: Count = 1
    link: Link | None = None
    oversubscription: Annotated[Number, Field(ge=1, le=1000)] = 1.0
    aliases: tuple[str, ...] = ()
    notes: Text = ""
    source: Text = GIVEN

    def __init__(self, **figures: Any) -> None:
        try:
            super().__init__(**figures)
        except ValidationError as error:
            name = str(figures.get("name", "without a name"))[:100]
            raise ChipDataError(f"cluster {name}: {first_problem(error, Cluster, {'link': Link})}") from None
        self._check()

    @model_validator(mode="before")
    @classmethod
    def _sourced(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("link"), dict):
            link = {"source": data.get("source", GIVEN), **data["link"]}
            return {**data, "link": link if "kind" in link else {**link, "kind": "node"}}
        return data

    @field_validator("chip", mode="before")
    @classmethod
    def _chip(cls, value: Any) -> Any:
        try:
            return find_chip(value)
        except RooflineError as error:
            raise ValueError(str(error)) from None

    def _check(self) -> None:
        """Refuse what no group of devices can run on."""
        if self.devices == 1:
            raise UsageError(
                f"cluster {self.name}: one device (devices_per_node = 1, nodes = 1); a cluster has two or more: "
                "the nearest is devices_per_node = 2"
            )
        if self.nodes > 1 and self.link is None:
            raise ChipDataError(f"cluster {self.name}: {self.nodes} nodes and no link between them; give [link]")
        if self.link is not None and self.link.kind != "node":
            raise ChipDataError(f"cluster {self.name}: link.kind {self.link.kind!r}; allowed: node")

    def __hash__(self) -> int:
        return hash((self.name, self.nodes, self.devices_per_node))

    def __repr__(self) -> str:
        size = f"{self.nodes} x {self.devices_per_node} {self.chip.name}"
        between = f", {self.link.name} {units.format_si(self.link.bandwidth, 'B/s')} per device" if self.link else ""
        return f"Cluster({self.name!r}, {size}{between})"

    __str__ = __repr__

    @property
    def devices(self) -> int:
        """All of them."""
        return self.devices_per_node * self.nodes

    @property
    def implied(self) -> bool:
        """True where it only stands for a chip's name: one node of eight."""
        return self.source == _IMPLIED

    @property
    def device(self) -> Chip:
        """One device, with the link between nodes among its own.

        Example:
            >>> [link.kind for link in cluster("dgx-h100").device.links]
            ['device', 'host', 'node']
        """
        if self.link is None:
            return self.chip
        return self.chip.model_copy(update={"links": (*self.chip.links, self._through_core(self.link))})

    def _through_core(self, link: Link) -> Link:
        if self.oversubscription == 1:
            return link
        note = f"{units.format_si(link.bandwidth, 'B/s')} into a network oversubscribed {self.oversubscription:g}:1"
        text = "; ".join(part for part in (link.note, note) if part)
        return link.model_copy(update={"bandwidth": link.bandwidth / self.oversubscription, "note": text})

    def span(self, devices: int, stride: int = 1) -> int:
        """Count the nodes that a group spans.

        Args:
            devices: Size of the group.
            stride: Distance between its members, counted in devices: 1 for neighbours (tensor parallelism); for data
                parallelism the devices of one model.

        Raises:
            UsageError: More devices than the cluster has.

        Example:
            >>> dgx = cluster("dgx-h100")
            >>> dgx.span(8), dgx.span(16), dgx.span(4, stride=8), dgx.span(4, stride=4)
            (1, 2, 4, 2)
        """
        if devices < 1 or stride < 1:
            raise UsageError(f"{self.name}: a group of {devices} devices, stride {stride}; allowed: 1 or more")
        if devices * stride > self.devices:
            need = ceil(devices * stride / self.devices_per_node)
            raise UsageError(
                f"{self.name}: {devices * stride} devices needed, it has {self.nodes} x {self.devices_per_node}; the "
                f"nearest: {self.devices} devices, or a cluster of {need} nodes"
                + (f" (replace(nodes={need}))" if self.link else self._with_link())
            )
        return ceil(devices / max(1, self.devices_per_node // stride))

    def _with_link(self) -> str:
        """Clusters of this chip that have a link between nodes, for an error."""
        known = [name for name in clusters() if (one := cluster(name)).link and one.chip.name == self.chip.name]
        return f", which needs a link between nodes, as {', '.join(known)} has" if known else (
            ", which needs a link between nodes")  # fmt: skip

    def replace(self, **figures: Any) -> Cluster:
        """Return a copy with other figures.

        Args:
            **figures: Fields of the cluster.

        Raises:
            UsageError: No field of that name.

        Example:
            >>> cluster("dgx-a100").replace(nodes=16).devices
            128
        """
        for key in figures:
            if key not in Cluster.model_fields:
                allowed = tuple(Cluster.model_fields)
                near = did_you_mean(key, allowed)
                raise UsageError(f"replace: unknown figure {key!r}; allowed: {', '.join(allowed)}{near}")
        return Cluster(**{key: getattr(self, key) for key in Cluster.model_fields} | figures)


def cluster(name: str | os.PathLike[str] | Chip | Cluster) -> Cluster:
    """Return a cluster.

    Args:
        name: A name or alias in any spelling, a TOML file's path, a cluster; or a chip, its name or its file, which
            stands for one node of eight.

    Returns:
        The cluster.

    Raises:
        UnknownChip: Neither a cluster nor a chip has that name.
        ChipDataError: A file that does not describe a cluster.

    Example:
        >>> cluster("DGX H100")
        Cluster('dgx-h100', 4 x 8 h100-sxm, InfiniBand NDR 50 GB/s per device)
        >>> cluster("mi300x").devices
        8
    """
    if isinstance(name, Cluster):
        return name
    if isinstance(name, Chip):
        return _node_of(name)
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f"cluster: expected a name, a path, a Chip or a Cluster, given {str(name)[:100]!r}")
    if not isinstance(name, str) or is_path(name):
        return load_cluster(name)
    path = find_file("clusters", name) or find_alias("clusters", name)
    if path is not None:
        return load_cluster(path)
    try:
        return _node_of(find_chip(name))
    except UnknownChip:
        near = several(name, [*clusters(), *chips()]) or "; see roofline.clusters() and roofline.chips()"
        what = "" if near.startswith(" matches") else " is neither a cluster nor a chip"
        raise UnknownChip(f"{name[:100]!r}{what}{near}") from None


def _node_of(chip: Chip) -> Cluster:
    note = f"one node of {NODE} {chip.name}, taken from the chip's name; name a cluster for more nodes"
    return Cluster(name=f"{NODE} x {chip.name}", chip=chip, devices_per_node=NODE, notes=note, source=_IMPLIED)


def clusters() -> list[str]:
    """Return the names of all clusters, sorted.

    Returns:
        The names, as :func:`cluster` takes them.

    Example:
        >>> "dgx-h100" in clusters()
        True
    """
    return sorted(files("clusters"))


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file.

    Raises:
        UnknownChip: No such file.
        ChipDataError: It cannot be read, or does not describe a cluster.
    """
    return _load(*state_of(path, "cluster"))


@lru_cache(maxsize=128)
def _load(path: str, _changed: int, _size: int) -> Cluster:
    table = read_toml(Path(path), ChipDataError)
    if "vendor" in table and table.keys().isdisjoint({"chip", "nodes", "devices_per_node"}):
        return _node_of(load_chip(path))
    try:
        return Cluster(**table)
    except RooflineError as error:
        raise type(error)(f"{path}: {error}") from None
