"""When what happened, a row a turn, with children in rows of their own; and what it cost, a row for each model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlm_dspy.pages.parts import Parts, Span
from rlm_dspy.pages.text import Texts, count, money, seconds, tokens

_ROWS = 150
_CALLS = 400
_LEGEND = (("act", "model"), ("execute", "code"), ("call", "calls"), ("child", "children"), ("extract", "last answer"))


@dataclass
class _Row:
    label: str
    level: int
    spans: list[Span]
    took: float
    aside: str = ""
    error: bool = False


def waterfall(parts: Parts, texts: Texts) -> str:
    """The rows of a run on one scale of time, ``""`` where nothing is known of when."""
    rows = list(_rows(parts, 0.0, 0))
    total = max((span.end for row in rows for span in row.spans), default=0.0)
    if total <= 0:
        return ""
    kinds = {span.kind for row in rows for span in row.spans}
    legend = "".join(f'<span><i class="b {kind}"></i>{name}</span>' for kind, name in _LEGEND if kind in kinds)
    ticks = "".join(f'<span style="left:{part * 25}%">{seconds(total * part / 4)}</span>' for part in range(4))
    shown = "".join(_row(row, total, texts) for row in rows[:_ROWS])
    more = f'<p class="dim">… and {count(len(rows) - _ROWS, "row")} more, which are in the tree below</p>'
    return (
        f'<details open class="fall"><summary><b>Time</b> <span class="dim">{seconds(total)}</span></summary>'
        f'<div class="legend">{legend}</div>'
        f'<div class="row axis"><span></span><span class="track">{ticks}</span><span></span></div>'
        f"{shown}{more if len(rows) > _ROWS else ''}</details>"
    )


def _rows(parts: Parts, offset: float, level: int) -> Iterator[_Row]:
    between = parts.spans.get(0, [])
    opening = [span for span in between if span.kind == "open"]
    if opening:
        yield _Row("start", level, _moved(opening, offset), _took(opening))
    for turn in parts.trajectory:
        spans = parts.spans.get(turn.number, [])
        calls = len(parts.calls.get(turn.number, ()))
        aside = count(calls, "call") if calls else ""
        yield _Row(f"turn {turn.number}", level, _moved(spans, offset), turn.seconds, aside, turn.error)
        for child in parts.children.get(turn.number, ()):
            started, ended = child.started, child.ended
            end = started.at + ended.seconds if ended is not None else parts.ended_at
            failed = ended is not None and ended.outcome not in ("submitted", "direct")
            whole = Span(offset + started.at, offset + end, "child", started.name, failed)
            cost = child.parts.usage.get("cost")
            yield _Row("child", level + 1, [whole], end - started.at, money(cost) if cost else "", failed)
            if ended is not None:
                yield from _rows(child.parts, offset + started.at, level + 2)
    if last := [span for span in between if span.kind != "open"]:
        yield _Row("extract", level, _moved(last, offset), _took(last), "", any(span.error for span in last))


def _moved(spans: list[Span], offset: float) -> list[Span]:
    return [Span(offset + s.start, offset + s.end, s.kind, s.name, s.error) for s in spans[:_CALLS]]


def _took(spans: list[Span]) -> float:
    return sum(span.end - span.start for span in spans)


def _row(row: _Row, total: float, texts: Texts) -> str:
    bars = "".join(
        f'<i class="b {span.kind}{" bad" if span.error else ""}" title="{texts.line(span.name)}, '
        f'{seconds(span.end - span.start)}" style="left:{100 * span.start / total:.2f}%;'
        f'width:{100 * (span.end - span.start) / total:.2f}%"></i>'
        for span in sorted(row.spans, key=lambda s: s.kind == "call")
    )
    bad = ' class="err"' if row.error else ""
    return (
        f'<div class="row"><span style="padding-left:{min(row.level, 6) * 0.7:.1f}em"{bad}>{row.label}</span>'
        f'<span class="track">{bars}</span><span class="num">{seconds(row.took)}'
        f"<small>{row.aside}</small></span></div>"
    )


def costs(usage: dict[str, Any], texts: Texts) -> str:
    """What was used, by role, model and depth, dearest first; ``""`` where no language model was asked."""
    table = [cell for cell in usage.get("table", ()) if isinstance(cell, dict) and cell.get("lm_calls")]
    if not table:
        return ""
    priced = all(cell.get("cost") is not None for cell in table) and sum(cell["cost"] for cell in table) > 0
    weight = [_weight(cell, priced) for cell in table]
    most = max(weight) or 1
    rows = []
    for share, cell in sorted(zip(weight, table, strict=True), key=lambda pair: -pair[0]):
        cost, cached = cell.get("cost"), cell.get("cached_tokens", 0)
        read = f" <small>{tokens(cached)} cached</small>" if cached else ""
        rows.append(
            f"<tr><td>{texts.line(str(cell.get('role', '')))}</td>"
            f"<td>{texts.brief(str(cell.get('model', '')), 60)}</td>"
            f'<td class="n">{cell.get("depth", 0)}</td><td class="n">{cell["lm_calls"]:,}</td>'
            f'<td class="n">{tokens(cell.get("input_tokens", 0))}{read}</td>'
            f'<td class="n">{tokens(cell.get("output_tokens", 0))}</td>'
            f'<td class="n">{money(cost) if cost is not None else "?"}</td>'
            f'<td class="share"><i class="b act" style="width:{100 * share / most:.1f}%"></i></td></tr>'
        )
    total = usage.get("cost")
    said = money(total) if total is not None else f"{money(usage.get('known_cost', 0))} and calls without a price"
    head = "".join(
        f"<th{' class=n' if n > 1 else ''}>{name}</th>"
        for n, name in enumerate(("role", "model", "depth", "calls", "tokens in", "out", "cost"))
    )
    return (
        f'<details open class="cost"><summary><b>Cost</b> <span class="dim">{said}</span></summary>'
        f'<div class="wide"><table><thead><tr>{head}<th class="share">{"of cost" if priced else "of tokens"}</th></tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _weight(cell: dict[str, Any], priced: bool) -> float:
    return float(cell["cost"] if priced else cell.get("input_tokens", 0) + cell.get("output_tokens", 0))
