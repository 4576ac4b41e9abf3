"""When what happened, a row a turn, with children in rows of their own; and what it cost, a row for each model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlm_dspy.pages.parts import Parts, Span, Used, used_of
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
    used: Used | None = None
    aside: str = ""
    error: bool = False


def waterfall(parts: Parts, texts: Texts) -> str:
    """The rows of a run on one scale of time, each with what it cost; ``""`` where nothing is known of when."""
    rows = list(_rows(parts, 0.0, 0))
    total = max((span.end for row in rows for span in row.spans), default=0.0)
    if total <= 0:
        return ""
    kinds = {span.kind for row in rows for span in row.spans}
    legend = "".join(f'<span><i class="b {kind}"></i>{name}</span>' for kind, name in _LEGEND if kind in kinds)
    ticks = "".join(f'<span style="left:{part * 25}%">{seconds(total * part / 4)}</span>' for part in range(4))
    priced = any(row.used.cost for row in rows if row.used is not None)
    most = max((_spent(row.used, priced) for row in rows if row.used is not None), default=0.0)
    shown = "".join(_row(row, total, priced, most, texts) for row in rows[:_ROWS])
    more = f'<p class="dim">… and {count(len(rows) - _ROWS, "row")} more, which are in the tree below</p>'
    what = "cost" if priced else "tokens"
    spent = parts.usage.get("cost") if priced else None
    said = f"{seconds(total)}{'' if spent is None else f', {money(spent)}'}"
    return (
        f'<details open class="fall"><summary><b>Time and {what}</b> <span class="dim">{said}</span></summary>'
        f'<div class="legend">{legend}</div>'
        f'<div class="row axis"><span class="name"></span><span class="track" aria-hidden="true">{ticks}</span>'
        f'<span class="num">time</span><span class="num">{what}</span></div>'
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
        used = parts.used.get(turn.number)
        yield _Row(f"turn {turn.number}", level, _moved(spans, offset), turn.seconds, used, aside, turn.error)
        for number, child in enumerate(parts.children.get(turn.number, ()), 1):
            started, ended = child.started, child.ended
            end = started.at + ended.seconds if ended is not None else parts.ended_at
            failed = ended is not None and ended.outcome not in ("submitted", "direct")
            whole = Span(offset + started.at, offset + end, "child", started.name, failed)
            used = used_of(child.parts.usage) if child.parts.usage else None
            yield _Row(f"child {number}", level + 1, [whole], end - started.at, used, "", failed)
            if ended is not None:
                yield from _rows(child.parts, offset + started.at, level + 2)
    last = [span for span in between if span.kind != "open"]
    if last or 0 in parts.used:
        failed = any(span.error for span in last)
        yield _Row("extract", level, _moved(last, offset), _took(last), parts.used.get(0), "", failed)


def _moved(spans: list[Span], offset: float) -> list[Span]:
    return [Span(offset + s.start, offset + s.end, s.kind, s.name, s.error) for s in spans[:_CALLS]]


def _took(spans: list[Span]) -> float:
    return sum(span.end - span.start for span in spans)


def _row(row: _Row, total: float, priced: bool, most: float, texts: Texts) -> str:
    bars = "".join(
        f'<i class="b {span.kind}{" bad" if span.error else ""}" title="{texts.line(span.name)}, '
        f'{seconds(span.end - span.start)}" style="left:{100 * span.start / total:.2f}%;'
        f'width:{100 * (span.end - span.start) / total:.2f}%"></i>'
        for span in sorted(row.spans, key=lambda s: s.kind == "call")
    )
    bad = " err" if row.error else ""
    asides = "".join(f" <small>{aside}</small>" for aside in (row.aside, "error" if row.error else "") if aside)
    return (
        f'<div class="row"><span class="name{bad}" style="--in:{min(row.level, 8)}">{row.label}{asides}</span>'
        f'<span class="track" aria-hidden="true">{bars}</span><span class="num">{seconds(row.took)}</span>'
        f"{_money(row.used, priced, most)}</div>"
    )


def _money(used: Used | None, priced: bool, most: float) -> str:
    """What a row cost, with a bar below it; where no price is known, its tokens."""
    if used is None or not used.requests:
        return '<span class="num"></span>'
    text = tokens(used.tokens) if not priced else "?" if used.cost is None else money(used.cost)
    share = 100 * _spent(used, priced) / most if most else 0.0
    about = f"{count(used.requests, 'request')}, {tokens(used.read)} + {tokens(used.wrote)} tokens"
    return f'<span class="num spent" title="{about}">{text}<i class="b" style="width:{share:.1f}%"></i></span>'


def _spent(used: Used, priced: bool) -> float:
    return (used.cost or 0.0) if priced else float(used.tokens)


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
