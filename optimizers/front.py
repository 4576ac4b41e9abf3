"""Candidates by what they are worth and what they take: the Pareto front, and its picture as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 400, 64, 24, 40, 56


def pareto_front(points: Sequence[Mapping[str, float]]) -> tuple[int, ...]:
    """The numbers of the points that no other one is better than.

    A point is better than another if it is at least as good in everything and better in something. Of equal points the
    first stands for all.

    Args:
        points: Name to value each, where more is better; all with the same names.
    """
    front = []
    for number, point in enumerate(points):
        beaten = any(
            all(other[name] >= value for name, value in point.items())
            and (any(other[name] > value for name, value in point.items()) or earlier < number)
            for earlier, other in enumerate(points)
            if earlier != number
        )
        if not beaten:
            front.append(number)
    return tuple(front)


def svg(
    scores: Sequence[float],
    costs: Sequence[float],
    front: Sequence[int],
    *,
    unit: str,
    chosen: int | None = None,
    title: str = "Candidates",
) -> str:
    """A scatter of score over cost, the front joined by a line.

    Args:
        scores, costs: Of each candidate; less cost is better.
        front: The numbers of those on the front.
        unit: What the costs are counted in, such as ``"US dollars per run"``.
        chosen: The candidate to be marked; None for none.
        title: Above it.
    """
    xs, ys = _scale(costs), _scale(scores)
    place = [
        (
            _LEFT + (cost - xs[0]) / (xs[1] - xs[0]) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - (score - ys[0]) / (ys[1] - ys[0]) * (_HEIGHT - _TOP - _BOTTOM),
        )
        for cost, score in zip(costs, scores, strict=True)
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" fill="#1a1a1a">{escape(title)}</text>',
    ]
    for at in range(5):
        share = at / 4
        y = _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        parts.append(_label(_LEFT - 8, y + 4, _number(ys[0] + share * (ys[1] - ys[0])), "end"))
        parts.append(_label(x, _HEIGHT - _BOTTOM + 18, _number(xs[0] + share * (xs[1] - xs[0])), "middle"))
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, unit, "middle"))
    parts.append(_label(_LEFT - 8, _TOP - 8, "score", "end"))
    line = " ".join(f"{place[n][0]:.1f},{place[n][1]:.1f}" for n in sorted(front, key=lambda n: costs[n]))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="1.5" stroke-dasharray="4 3"/>')
    for number, (x, y) in enumerate(place):
        on = number in front
        fill = "#1f6feb" if on else "#9aa4b2"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if on else 4}" fill="{fill}">')
        told = f"candidate {number}: score {scores[number]:.3f}, {_number(costs[number])} {unit}"
        parts.append(f"<title>{escape(told)}</title></circle>")
        if number == chosen:
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" fill="none" stroke="#d1242f" stroke-width="2"/>')
        parts.append(_label(x + 9, y - 7, str(number), "start"))
    return "".join((*parts, "</svg>"))


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#444444">{escape(text)}</text>'


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """A range around ``values`` that is not empty."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
