"""What a run did, as a page: a collapsible tree of turns, calls and children, and a waterfall of time and cost.

HTML and CSS alone: no script, nothing that is loaded. Everything that comes from a model or from data is escaped.

    text.py        texts, escaped and bounded
    parts.py       what the events say of a run, put together for showing
    waterfall.py   when what happened, and what it cost
    tree.py        the turns, and children in them
    style.py       the look
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlm_dspy.pages.style import PAGE, STYLE
from rlm_dspy.pages.text import Texts
from rlm_dspy.pages.tree import body, title_of
from rlm_dspy.render import one_line

if TYPE_CHECKING:
    from rlm_dspy.trajectory import Trajectory

__all__ = ["document", "fragment"]

NOTEBOOK = Texts(each=4_000, total=2_000_000)
"""What a notebook takes."""
FILE = Texts(each=100_000, total=20_000_000)
"""What a browser takes."""


def fragment(trajectory: Trajectory) -> str:
    """One ``<div>`` for a notebook; long texts are cut."""
    return f'<div class="rlm-page"><style>{STYLE}</style>{body(trajectory, NOTEBOOK.fresh())}</div>'


def document(trajectory: Trajectory, title: str | None = None) -> str:
    """A whole HTML file, UTF-8.

    Args:
        trajectory: A whole one, or a part.
        title: Of the page; None for the question or the signature.
    """
    texts = FILE.fresh()
    shown = texts.line(one_line(title or title_of(trajectory), 120))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Also where a text should get past the escaping: nothing of this page may run or load anything.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{shown}</title><style>{PAGE}{STYLE}</style></head>"
        f'<body><div class="rlm-page">{body(trajectory, texts)}</div></body></html>\n'
    )
