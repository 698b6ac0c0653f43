"""The drawing of docs/architecture.md, on light and on dark ground: ``python scripts/architecture_drawing.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 920, 916
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"

#: Colours by ground: text, faint text, lines, and the fill of each kind of box.
GROUNDS = {
    "light": {"text": "#1c2733", "faint": "#566472", "line": "#7b8894", "ground": "#ffffff",
              "edge": "#e8f1fb", "core": "#fdf1dc", "answer": "#e6f4ec"},
    "dark": {"text": "#e8edf2", "faint": "#a7b3bf", "line": "#8794a1", "ground": "#1e2129",
             "edge": "#23364a", "core": "#453820", "answer": "#213c30"},
}  # fmt: skip
#: What comes in: text, centre, lines.
SOURCES = (
    (160, "a name, a TOML file,", "a config, a workload"),
    (430, "PyTorch, ONNX, JAX,", "a script of yours"),
    (760, "profiler files:", "torch, nsys, ncu, ..."),
)
#: Boxes: left, top, width, height, kind, packages, what they do.
BOXES = (
    (40, 70, 240, 84, "edge", "programs/", "layers, architectures,|Hugging Face, model files"),
    (310, 70, 240, 84, "edge", "frontends/", "calls and rules of each;|as_graph: anything to a graph"),
    (640, 70, 240, 84, "edge", "traces/", "events, repaired; launches|linked to operators"),
    (40, 206, 510, 84, "core", "ir/   ops/   passes/", "sizes, formats, the operators, the graph;|"
     "fuse, quantise, shard, differentiate, prune, rewrite"),
    (590, 206, 140, 84, "answer", "codegen/", "StableHLO,|loops, MLIR"),
    (40, 342, 240, 84, "core", "counting/", "kernels, FLOPs, bytes,|memory by part"),
    (310, 342, 240, 84, "core", "hardware/", "chips, clusters, their files,|rates of number formats"),
    (40, 478, 510, 64, "core", "tiling/   cost/", "what tiles move; a formula per class of kernel: seconds"),
    (40, 594, 510, 64, "answer", "analysis/   planning/   serving/   quant/",
     "estimate, batch, compare, training, plans, servers, rounding"),
    (640, 594, 240, 64, "answer", "diagnosis/", "measured against expected"),
    (40, 710, 240, 64, "answer", "view/", "charts, pages, listings"),
    (310, 710, 240, 64, "answer", "cli/", "what people type"),
    (640, 710, 240, 64, "answer", "measurement/", "calibrate, measure, tune"),
    (40, 826, 840, 64, "answer", "codesign/   optimization/   fleet/",
     "which chip to build, what to change, many programs at once"),
)  # fmt: skip
#: Arrows as points, with a word and where it stands.
ARROWS = (
    ("160,52 160,70", ""), ("430,52 430,70", ""), ("760,52 760,70", ""),
    ("160,154 160,206", "Graph 172 184"), ("430,154 430,206", "Graph 442 184"),
    ("550,248 590,248", ""), ("160,290 160,342", ""),
    ("160,426 160,478", "kernels 172 456"), ("430,426 430,478", "figures 442 456"),
    ("295,542 295,594", "seconds 307 572"), ("550,626 640,626", "expected 562 616"),
    ("760,154 760,594", "measured 772 374"), ("160,658 160,710", ""), ("430,658 430,710", ""), ("760,658 760,710", ""),
)  # fmt: skip


def drawing(ground: str) -> str:
    """Return the drawing as SVG."""
    colours = GROUNDS[ground]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" role="img">',
        "<title>The packages of roofline and what passes between them</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{colours["ground"]}"/>',
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colours["line"]}"/></marker></defs>',
    ]
    for centre, *lines in SOURCES:
        parts += [_text(centre, 24 + 19 * at, line, 15, colours["faint"]) for at, line in enumerate(lines)]
    for points, word in ARROWS:
        line = f'fill="none" stroke="{colours["line"]}" stroke-width="1.6" marker-end="url(#to)"'
        parts.append(f'<polyline points="{points}" {line}/>')
        if word:
            text, x, y = word.split()
            parts.append(_text(int(x), int(y), text, 13, colours["faint"], "start"))
    for box in BOXES:
        parts += _box(*box, colours=colours)
    return "\n".join([*parts, "</svg>", ""])


def _box(
    x: int, y: int, width: int, height: int, kind: str, title: str, words: str, colours: dict[str, str]
) -> list[str]:
    shape = f'fill="{colours[kind]}" stroke="{colours["line"]}"'
    lines = words.split("|")
    top = y + height / 2 - 19 * len(lines) / 2 + 5
    middle = x + width // 2
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" {shape}/>',
        _text(middle, top, title, 16, colours["text"], weight=600),
        *(_text(middle, top + 20 + 18 * at, line, 14, colours["text"]) for at, line in enumerate(lines)),
    ]


def _text(x: float, y: float, words: str, size: int, colour: str, anchor: str = "middle", weight: int = 400) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}" xml:space="preserve"'
    return f'<text x="{x}" y="{y:g}" {style}>{escape(words)}</text>'


if __name__ == "__main__":
    for name in GROUNDS:
        (FOLDER / f"architecture-{name}.svg").write_text(drawing(name), encoding="utf-8")
