"""Trajectories for people: a rich table for terminals, one plain HTML block for notebooks.

Everything that comes from a model or from data is escaped; the HTML uses no script and loads nothing.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlm_dspy.trajectory import Turn

_SHOWN = 4_000
_HARMLESS = frozenset("\n\t\u200c\u200d") | {c for c in map(chr, range(0x3001)) if unicodedata.category(c) == "Zs"}


def shorten(text: str, limit: int) -> str:
    """``text`` with its middle cut so that at most ``limit`` characters of it are left, and a note of how many went."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    tail = limit - head
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[len(text) - tail :]}"


def one_line(text: str, limit: int = 80) -> str:
    """The beginning of ``text`` on one line of at most ``limit`` characters."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit and len(text) <= limit * 4 else line[: limit - 1] + "…"


def brief(error: str, limit: int = 300) -> str:
    """The text of an error as one line for people: its first paragraph, without a fix that stands behind it.

    Where a reply could not be read, which DSPy tells with all of the reply, how that begins.
    """
    if error.startswith("AdapterParseError"):
        _, there, reply = error.partition("LM Response:")
        said = one_line(reply.strip(), 100)
        return f"a reply of the model was not in the form that it was asked for{f': {said!r}' if there else ''}"
    lines = error.strip().split("\n\n")[0].split("\n")
    return one_line(" ".join(line for line in lines if not line.startswith("Fix: ")), limit)


def printable(text: str) -> str:
    """``text`` with lone surrogates and control characters written out, so that any stream can show it.

    Control characters are those that act on a terminal or turn the order of text round; spaces of other scripts and
    the joiners of emoji and of Indic and Arabic writing stay.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() or c in _HARMLESS else repr(c)[1:-1] for c in text)


def trajectory_table(turns: Sequence[Turn]) -> Any:
    """A `rich.table.Table` with a row a turn: number, what it did, what came back."""
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, expand=True)
    table.add_column("turn", justify="right", no_wrap=True)
    table.add_column("code", ratio=1)
    table.add_column("output", ratio=1)
    for turn in turns:
        style = "red" if turn.error else ""
        table.add_row(
            Text(f"{turn.number}\n{turn.seconds:.1f} s", style=style),
            Syntax(printable(shorten(turn["code"], _SHOWN)), "python", word_wrap=True, background_color="default"),
            Text(printable(shorten(turn["output"], _SHOWN)), style=style),
        )
    return table


def trajectory_html(turns: Sequence[Turn]) -> str:
    """One self-contained ``<div>``: a row a turn with its reasoning, code, calls and output."""

    def block(text: str) -> str:
        shown = html.escape(printable(shorten(text, _SHOWN)))
        return f'<pre style="margin:0;white-space:pre-wrap;overflow-wrap:anywhere;text-align:left">{shown}</pre>'

    def pictures(turn: Turn) -> str:
        # As the source of an <img>, so that an SVG's scripts do not run.
        return "".join(
            f'<img style="max-width:100%" alt="" src="data:{html.escape(image.type)};base64,{image.base64}">'
            for image in turn.images
        )

    cell = 'style="vertical-align:top;text-align:left;padding:4px 8px;border-top:1px solid #8884"'
    rows = []
    children = getattr(turns, "children", ())
    for turn in turns:
        colour = ' style="color:#c33"' if turn.error else ""
        calls = ""
        if turn.calls:
            failed = sum(1 for _, _, error in turn.calls if error)
            calls = f"<div><small>{len(turn.calls)} calls{f', {failed} failed' if failed else ''}</small></div>"
        for child in (child for child in children if child.turn == turn.number):
            asked = html.escape(printable(one_line(child.prompt, 120)))
            about = f"child, {child.outcome}, {child.seconds:.1f} s: {asked}"
            calls += f"<details><summary><small>{about}</small></summary>{trajectory_html(child.trajectory)}</details>"
        rows.append(
            f"<tr><td {cell}><b{colour}>{turn.number}</b><br><small>{turn.seconds:.1f} s</small></td>"
            f"<td {cell}>{block(turn['reasoning'])}</td>"
            f"<td {cell}>{block(turn['code'])}{calls}</td>"
            f"<td {cell}{colour}>{block(turn['output'])}{pictures(turn)}</td></tr>"
        )
    head = "".join(f"<th {cell}>{name}</th>" for name in ("turn", "reasoning", "code", "output"))
    return (
        '<div class="rlm-trajectory"><table style="width:100%;border-collapse:collapse;font-size:90%">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
