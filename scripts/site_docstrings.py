"""Docstrings as the site's reader of Google's style takes them: an extension of griffe (``mkdocs.yml``)."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A role of Sphinx, such as :func:`roofline.check`; of a dotted name behind a tilde the last part is shown.
_ROLE = re.compile(r":\w+:`(~[\w.]*\.)?([^`]+)`")
_LINK = re.compile(r"`([^`<]+) <(https?:[^>]+)>`_")


def markdown(text: str) -> str:
    """Return reStructuredText as Markdown, as far as docstrings here use it.

    Example:
        >>> markdown("``x`` of `SPEC 1 <https://a.org>`_, see :func:`~roofline.cost.launch`")
        '`x` of [SPEC 1](https://a.org), see `launch`'
    """
    return _ROLE.sub(r"`\2`", _LINK.sub(r"[\1](\2)", text.replace("``", "`")))


class Docstrings(griffe.Extension):
    """Rewrite what is spelled otherwise there: the heading of an example, roles, links."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = markdown(re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE))
