"""The turns of a run: reasoning, code, output, calls, and children with all of theirs."""

from __future__ import annotations

from rlm_dspy import events as ev
from rlm_dspy.errors import RecordingError
from rlm_dspy.pages.parts import Call, Child, Parts, parts_of
from rlm_dspy.pages.text import Texts, count, money, seconds, tokens
from rlm_dspy.pages.waterfall import costs, waterfall
from rlm_dspy.render import brief
from rlm_dspy.trajectory import Trajectory, Turn

_OPEN = 8
"""Turns of a run that are shown open; of a longer one, none is."""
_CALLS = 500


def title_of(trajectory: Trajectory) -> str:
    """The question, else the signature."""
    parts = parts_of(trajectory)
    return parts.question() or (parts.started.signature if parts.started is not None else "A run")


def body(trajectory: Trajectory, texts: Texts) -> str:
    """All of a run."""
    parts = parts_of(trajectory)
    return (
        f'<div class="rlm-trajectory">{_head(parts, texts)}{_answer(parts, texts)}{waterfall(parts, texts)}'
        f"{costs(parts.usage, texts)}{_inputs(parts, texts)}{_turns(parts, texts, len(trajectory) <= _OPEN)}</div>"
    )


def _head(parts: Parts, texts: Texts) -> str:
    started = parts.started
    asked = parts.question()
    about = [f'<p class="ask">{texts.brief(asked, 600)}</p>'] if asked else []
    if started is not None:
        about.append(f'<p class="dim"><code>{texts.brief(started.signature, 300)}</code></p>')
    facts = f'<div class="facts">{_pill(parts, texts)}{_facts(parts, texts)}</div>'
    return f"<header>{facts}{''.join(about)}{_why(parts, texts)}</header>"


def _pill(parts: Parts, texts: Texts) -> str:
    ended = parts.ended
    if ended is None:
        return '<span class="pill extracted">unfinished</span>' if parts.started is not None else ""
    good = ended.outcome if ended.outcome in ("submitted", "extracted", "failed", "direct") else "failed"
    limit = f" at {texts.line(ended.limit)}" if ended.limit else ""
    return f'<span class="pill {good}">{texts.line(ended.outcome)}{limit}</span>'


def _facts(parts: Parts, texts: Texts) -> str:
    usage, shown = parts.usage, [count(len(parts.trajectory), "turn")]
    calls = sum(map(len, parts.calls.values()))
    children = sum(map(len, parts.children.values()))
    shown += [count(calls, "call")] if calls else []
    shown += [count(children, "child", "children")] if children else []
    if usage:
        read, wrote = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        shown.append(f"{count(usage.get('lm_calls', 0), 'LM call')}, {tokens(read)} + {tokens(wrote)} tokens")
        cost = usage.get("cost")
        shown.append(money(cost) if cost is not None else "cost unknown")
    if parts.ended_at:
        shown.append(seconds(parts.ended.seconds if parts.ended is not None else parts.ended_at))
    if parts.opened is not None:
        held = {True: "confined", False: "not confined", None: ""}[parts.opened.confined]
        shown.append(" ".join(word for word in (texts.line(parts.opened.environment), held) if word))
    return "".join(f"<span>{fact}</span>" for fact in shown)


def _why(parts: Parts, texts: Texts) -> str:
    shown = []
    if parts.ended is not None and parts.ended.error:
        shown.append(f'<p class="err">{texts.line(brief(parts.ended.error, 600))}</p>')
    if parts.opened is not None and parts.opened.missing:
        shown.append(f'<p class="dim">missing here: {texts.line(", ".join(parts.opened.missing))}</p>')
    shown += [f'<p class="dim">note: {texts.brief(note, 400)}</p>' for note in parts.notes[:20]]
    return "".join(shown)


def _answer(parts: Parts, texts: Texts) -> str:
    ended = parts.ended
    if ended is None or not ended.outputs:
        return ""
    values: dict[str, object] = dict(ended.outputs)
    if ended.values is not None and not ended.values.why and ended.values.size < texts.each * 4:
        try:
            values = ended.values.value()
        except RecordingError:
            pass
    shown = []
    for name, value in values.items():
        text = value if isinstance(value, str) else repr(value)
        shown.append(f'<div class="out"><small>{texts.line(str(name))}</small><pre>{texts.block(text)}</pre></div>')
    return f'<section class="answer">{"".join(shown)}</section>'


def _inputs(parts: Parts, texts: Texts) -> str:
    if parts.started is None or not parts.started.variables:
        return ""
    rows = "".join(
        f"<tr><td><code>{texts.line(name)}</code></td><td>{texts.brief(about, 300)}</td></tr>"
        for name, about in parts.started.variables.items()
    )
    limits = ", ".join(
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in parts.started.limits.items()
        if value is not None
    )
    told = f'<p class="dim">{texts.line(limits)}</p>' if limits else ""
    return f"<details><summary><b>Inputs and limits</b></summary><table><tbody>{rows}</tbody></table>{told}</details>"


def _turns(parts: Parts, texts: Texts, shown: bool) -> str:
    made = []
    for turn in parts.trajectory:
        made.append(_turn(parts, turn, texts, shown))
        made += [_compacted(event, texts) for event in parts.compacted.get(turn.number, ())]
    if parts.struck is not None:
        made.append(f'<p class="mark">stopped at <b>{texts.line(parts.struck.limit)}</b></p>')
    if parts.extracted is not None:
        error = parts.extracted.error
        said = f'failed: <span class="err">{texts.line(brief(error))}</span>' if error else "asked from what was done"
        made.append(f'<p class="mark">last answer, {said}, {seconds(parts.extracted.seconds)}</p>')
    return "".join(made)


def _turn(parts: Parts, turn: Turn, texts: Texts, shown: bool) -> str:
    calls = parts.calls.get(turn.number, [])
    children = parts.children.get(turn.number, [])
    if not calls:
        calls = [Call(name, error=error, seconds=took) for name, took, error in turn.calls]
    started = {child.started.name for child in children}  # they are shown themselves
    facts = [seconds(turn.seconds)]
    facts += [count(len(calls), "call")] if calls else []
    facts += [count(len(children), "child", "children")] if children else []
    used = parts.used.get(turn.number)
    facts += [money(used.cost)] if used is not None and used.cost else []
    facts += ['<span class="err">error</span>'] if turn.error else []
    facts += [f"aid: {texts.line(aid)}" for aid in parts.aids.get(turn.number, ())]
    plan = turn.get("reasoning", "") or (turn.get("code") or turn.reply).strip().partition("\n")[0]
    held = [
        f'<p class="why">{texts.block(turn["reasoning"])}</p>' if turn.get("reasoning") and turn.get("code") else "",
        _block("code", turn.get("code", ""), texts) if turn.get("code") else _block("reply", turn.reply, texts),
        _calls([call for call in calls if call.error or call.name not in started], texts),
        "".join(_child(child, texts) for child in children),
        _block("output bad" if turn.error else "output", turn.get("output", ""), texts),
        _pictures(turn, texts),
        f'<p class="dim">lost in a restart: {texts.brief(", ".join(turn.lost), 300)}</p>' if turn.lost else "",
    ]
    if turn.shown and len(turn.shown) < len(turn.get("output", "")):
        held.append(f'<p class="dim">the model was shown {len(turn.shown):,} of {len(turn["output"]):,} characters</p>')
    return (
        f'<details class="turn"{" open" if shown else ""}><summary><b>Turn {turn.number}</b> '
        f'<span class="dim">{" · ".join(facts)}</span> <span class="plan">{texts.brief(plan, 140)}</span></summary>'
        f'<div class="in">{"".join(held)}</div></details>'
    )


def _block(kind: str, text: str, texts: Texts) -> str:
    return f'<pre class="{kind}">{texts.block(text)}</pre>' if text else ""


def _pictures(turn: Turn, texts: Texts) -> str:
    # As the source of an <img>, so that an SVG's scripts do not run.
    return "".join(
        f'<img alt="a picture that the code showed" src="data:{texts.line(image.type)};base64,{image.base64}">'
        for image in turn.images
    )


def _calls(calls: list[Call], texts: Texts) -> str:
    if not calls:
        return ""
    failed = sum(1 for call in calls if call.error)
    names = ", ".join(f"{texts.line(name)}" for name in dict.fromkeys(call.name for call in calls))
    rows = []
    for call in calls[:_CALLS]:
        got = (
            f'<span class="err">{texts.brief(call.error, 300)}</span>'
            if call.error
            else texts.brief(call.answered, 300)
        )
        took = "?" if call.seconds is None else seconds(call.seconds)
        rows.append(
            f"<tr><td><code>{texts.line(call.name)}</code></td><td>{texts.brief(call.asked, 300)}</td>"
            f'<td>{got}{" <small>reused</small>" if call.reused else ""}</td><td class="n">{took}</td></tr>'
        )
    more = f'<p class="dim">… and {len(calls) - _CALLS:,} more</p>' if len(calls) > _CALLS else ""
    bad = f', <span class="err">{failed} failed</span>' if failed else ""
    return (
        f'<details class="calls"{" open" if len(calls) <= 5 else ""}><summary>{count(len(calls), "call")}{bad} '
        f'<span class="dim">{names}</span></summary><div class="wide"><table><thead><tr><th>function</th><th>asked</th>'
        f'<th>answered</th><th class="n">took</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f"{more}</details>"
    )


def _child(child: Child, texts: Texts) -> str:
    started, ended, parts = child.started, child.ended, child.parts
    outcome = "unfinished" if ended is None else ended.outcome
    good = outcome if outcome in ("submitted", "direct", "extracted") else "failed"
    facts = [f"depth {started.at_depth}"]
    facts += [seconds(ended.seconds)] if ended is not None else []
    facts += [count(len(parts.trajectory), "turn")]
    cost = parts.usage.get("cost")
    facts += [money(cost)] if cost else []
    error = f'<p class="err">{texts.line(brief(ended.error, 600))}</p>' if ended is not None and ended.error else ""
    inner = f"{error}{_answer(parts, texts)}{_inputs(parts, texts)}{_turns(parts, texts, False)}"
    return (
        f'<details class="child"><summary><span class="pill {good}">{texts.line(outcome)}</span> '
        f'<b>{texts.line(started.name)}</b> <span class="dim">{" · ".join(facts)}</span> '
        f'<span class="plan">{texts.brief(parts.question(), 140)}</span></summary>'
        f'<div class="in">{inner}</div></details>'
    )


def _compacted(event: ev.Compacted, texts: Texts) -> str:
    told = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
    inner = _block("output", event.summary or event.note, texts)
    return f'<details class="mark"><summary>conversation made shorter, {told}</summary>{inner}</details>'
