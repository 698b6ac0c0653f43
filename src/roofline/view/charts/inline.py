"""A chart as a part of a page: an SVG that refers to nothing and takes its colours from the page's style sheet."""

from __future__ import annotations

import re
from copy import deepcopy
from xml.etree import ElementTree

from roofline.view.charts.chart import Chart
from roofline.view.charts.style import COLOURS, clean

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NAMES = {light: f"var(--{name})" for name, light in COLOURS.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}")
#: What only a file of its own needs.
_DROPPED = ("width", "height", "version", "clip-path", _LINK)


def inline(chart: Chart, label: str, size: tuple[float, float] | None = None) -> str:
    """Draw a chart as SVG for the body of a page.

    Colours are the variables of :data:`roofline.view.charts.style.THEME`, shapes that are drawn several times stand
    in each place, and groups with a name of ours keep it as their class.

    Args:
        chart: What to draw.
        label: What it shows, for who cannot see it.
        size: Width and height [inch].
    """
    root = ElementTree.fromstring(chart.render(".svg", size))
    shapes = {shape.get("id"): shape for shape in root.iter() if shape.get("id")}
    for parent in list(root.iter()):
        for at, child in enumerate(list(parent)):
            if child.tag == f"{_SVG}use":
                parent[at] = _placed(child, shapes[child.get(_LINK, "")[1:]])
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in (f"{_SVG}defs", f"{_SVG}metadata")]:
            parent.remove(child)
    for element in root.iter():
        _plain(element)
    root.attrib |= {"role": "img", "aria-label": clean(label, 200), "class": "chart"}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _placed(use: ElementTree.Element, shape: ElementTree.Element) -> ElementTree.Element:
    """Copy a shape to where it is used."""
    group = ElementTree.Element(f"{_SVG}g", {"transform": f"translate({use.get('x', '0')} {use.get('y', '0')})"})
    copy = deepcopy(shape)
    copy.set("style", use.get("style") or shape.get("style") or "")
    group.append(copy)
    return group


def _plain(element: ElementTree.Element) -> None:
    """Leave out what refers to something else, and name colours."""
    element.tag = element.tag.removeprefix(_SVG)
    for name in _DROPPED:
        element.attrib.pop(name, None)
    if "-" in (name := element.attrib.pop("id", "")):
        element.set("class", name)
    if style := element.get("style"):
        element.set("style", _COLOUR.sub(lambda match: _NAMES.get(match[0], match[0]), style))
