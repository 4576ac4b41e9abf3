"""The findings for people: at any width, with colour or without."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from rlm_dspy.doctor.finding import Finding
from rlm_dspy.render import printable

_COLOURS = {"ok": "32", "warning": "33", "problem": "31"}
_STATUS = 9
_NAME = 18
_NARROW = 60
MIN_WIDTH = 20
# A command is kept on one line, however long, so that it can be copied.
_COMMAND = re.compile(r"(sudo|apt-get|dnf|apk|pacman|zypper|sysctl|export|ulimit|pip|rlm-dspy|'?/\S+ -m pip) ")


def report(findings: Sequence[Finding], *, width: int = 80, color: bool = False) -> str:
    """One text: a line or more for each finding, with what helps below it, and a summary.

    Args:
        findings: What was found.
        width: Columns. Nothing is cut; long words, such as paths and commands, may stand out.
        color: Use ANSI colours for the status.
    """
    width = max(MIN_WIDTH, width)
    lines: list[str] = []
    for finding in findings:
        lines += _finding(finding, width, color)
    lines += ["", *_wrapped(summary(findings), width)]
    return "\n".join(lines)


def summary(findings: Iterable[Finding]) -> str:
    """How many of each kind, in one sentence."""
    counts = {"problem": 0, "warning": 0}
    for finding in findings:
        if finding.status != "ok":
            counts[finding.status] += 1
    if not any(counts.values()):
        return "All is well."
    said = [f"{count} {status}{'s' if count > 1 else ''}" for status, count in counts.items() if count]
    return f"{' and '.join(said)}." + ("" if counts["problem"] else " Nothing is in the way.")


def _finding(finding: Finding, width: int, color: bool) -> list[str]:
    mark = f"\x1b[{_COLOURS[finding.status]}m{finding.status}\x1b[0m" if color else finding.status
    pad = " " * (_STATUS - len(finding.status))
    name = _one_line(finding.name)
    if width < _NARROW:
        indent = deep = 2
        lines = [f"{mark}{pad}{name}", *_wrapped(finding.found, width, indent)]
    else:
        # What helps has more room, as commands are long.
        indent, deep = _STATUS + _NAME + 1, _STATUS
        head = f"{mark}{pad}{name:<{_NAME}} "
        body = _wrapped(finding.found, width, indent)
        # A name longer than its column has a line of its own.
        lines = [head.rstrip(), *body] if len(name) > _NAME else [head + body[0].lstrip(), *body[1:]]
    if finding.status != "ok":
        for detail in finding.details:
            lines += _wrapped(detail, width, indent)
    for number, fix in enumerate(finding.fixes):
        first = "more: " if finding.status == "ok" else "fix: "
        first = first if number == 0 else "or: "
        if _COMMAND.match(fix):
            lines.append(" " * deep + first + _one_line(fix))
        else:
            lines += _wrapped(fix, width, deep, first)
    return lines


def _one_line(text: str) -> str:
    # Tabs and line ends would break the columns, and a command is copied as one line.
    return " ".join(printable(text).split())


def _wrapped(text: str, width: int, indent: int = 0, first: str = "") -> list[str]:
    return textwrap.wrap(
        _one_line(text),
        width,
        initial_indent=" " * indent + first,
        subsequent_indent=" " * (indent + len(first)),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [" " * indent + first]
