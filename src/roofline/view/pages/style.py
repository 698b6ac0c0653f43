"""What the pages look like, and the small parts that they are made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

from roofline.view.listing.wording import safe

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root{--ink:#1c2430;--soft:#5d6878;--line:#d9dee6;--back:#fff;--band:#f5f7fa;--red:#c62828;--green:#2e7d32;
--c0:#2e7d32;--c1:#7cb583;--c2:#8d99ab;--c3:#e07b39;--c4:#c94f6d;--c5:#8a5cc4;--c6:#3f7fcf;--c7:#b58a14;--c8:#1d9a9a;--c9:#8c5a3c;--c10:#5b6ee1}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b5;--line:#3a4350;--back:#14181e;--band:#1c222b;
--red:#ff8a80;--green:#81c784;--c0:#58b368;--c1:#3f7a4a;--c2:#6c788a;--c3:#f0924f;--c4:#e5738f;--c5:#a67fe0;
--c6:#6aa5ef;--c7:#d9ae36;--c8:#45c0c0;--c9:#b98462;--c10:#8b9bf5}}
body{margin:0 auto;padding:1.5rem;max-width:1280px;color:var(--ink);background:var(--back);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.4rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.25rem 0;max-width:75rem}.soft{color:var(--soft)}.bad{color:var(--red);font-weight:600}
.good{color:var(--green)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.5rem;margin:.75rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th{background:var(--band);text-align:left;white-space:nowrap}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
.w{overflow-wrap:anywhere;min-width:9rem}tr.bad td{color:var(--red);font-weight:400}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;overflow-wrap:normal}
ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;padding:0;margin:.4rem 0}
ul.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .soft{fill:var(--soft)}svg .bad{fill:var(--red)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}svg .strong{font-weight:600}
svg .grid{stroke:var(--line);stroke-width:1}svg .roof{stroke:var(--ink);stroke-width:1.6;fill:none}
svg .dot{fill-opacity:.55;stroke-width:1.2}svg .halo{paint-order:stroke;stroke:var(--back);stroke-width:3px}
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page that loads nothing and runs nothing."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{text(title)}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def text(words: object) -> str:
    """Words that cannot become markup.

    Example:
        >>> text("<b>&")
        '&lt;b&gt;&amp;'
    """
    return escape(safe(str(words)))


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, the empty ones left out."""
    rows = (f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs if value)
    return f"<dl>{''.join(rows)}</dl>\n"


#: What begins the head of a column, and its class: long text that may break anywhere, short text, numbers.
_CLASSES = (("<<", "w"), ("<", ""), ("", "n"))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], bad: Collection[int] = ()) -> str:
    """A table of texts.

    Args:
        heads: One that begins with ``<`` is of text, with ``<<`` of long text; all others are of numbers, to the right.
        rows: Cells.
        bad: Positions of rows in red.
    """
    classes = [next(name for mark, name in _CLASSES if head.startswith(mark)) for head in heads]
    marks = [f' class="{name}"' if name else "" for name in classes]
    top = "".join(f"<th{mark}>{text(head.lstrip('<'))}</th>" for mark, head in zip(marks, heads, strict=True))
    body = "".join(
        f"<tr{' class=bad' if at in bad else ''}>"
        f"{''.join(f'<td{mark}>{text(cell)}</td>' for mark, cell in zip(marks, row, strict=True))}</tr>\n"
        for at, row in enumerate(rows)
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>\n'


def paragraphs(lines: Iterable[str], mark: str = "soft") -> str:
    """A paragraph a line."""
    return "".join(f'<p class="{mark}">{text(line)}</p>\n' for line in lines)
