"""What the benchmark's server replies: the next turn of a script, in the words of the engine that asks.

No two turns of a script have the same code or the same output, so that no engine takes them for a root that repeats
itself. The last turn submits ``ok`` only if the context is whole and every sub-call was answered.
"""

from __future__ import annotations

import re
from typing import Any

_ITERATION = re.compile(r"\[\[ ## iteration ## \]\]\s*(\d+)/")
_STEP = re.compile(r"\AI take step (\d+)\.")


def reply(model: str, messages: list[dict[str, Any]]) -> tuple[str, float]:
    """The text and the latency in seconds.

    Args:
        model: ``dialect.script-count.turns.milliseconds.characters``, see `benchmarks.work.Work`.
        messages: Of the request.
    """
    dialect, script, turns, milliseconds, characters, *_ = model.split(".")
    kind, count = script.split("-")
    seconds = int(milliseconds) / 1000
    if kind == "echo" or dialect == "bare":
        return ("[[ ## response ## ]]\nok\n\n[[ ## completed ## ]]" if dialect == "bare" else "ok"), seconds
    turn = turn_of(dialect, messages)
    source = _last(dialect, kind, int(count), int(characters)) if turn >= int(turns) else _step(kind, int(count), turn)
    return _dress(dialect, f"I take step {turn}.", source), seconds


def text_of(message: dict[str, Any]) -> str:
    """The text of one message, also where its content is a list of parts."""
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def turn_of(dialect: str, messages: list[dict[str, Any]]) -> int:
    """Which turn it is, from 1.

    Only this script's own turns count: an engine may show the model others, as an example.
    """
    if dialect == "dspy":
        found = _ITERATION.findall(text_of(messages[-1]))
        return int(found[-1]) if found else 1
    steps = (_STEP.match(text_of(message)) for message in messages if message["role"] == "assistant")
    return 1 + max((int(step[1]) for step in steps if step), default=0)


def _step(kind: str, count: int, turn: int) -> str:
    """The code of a turn that is not the last one."""
    if turn == 1 and kind == "serial":
        return f'replies = [llm_query(f"Question {{i}}") for i in range({count})]\nprint(len(replies), set(replies))'
    if turn == 1 and kind == "batch":
        asked = f'[f"Question {{i}}" for i in range({count})]'
        return f"replies = llm_query_batched({asked})\nprint(len(replies), set(replies))"
    return f'x{turn} = len(context)\nprint("turn {turn}", x{turn}, context[:60])'


def _last(dialect: str, kind: str, count: int, characters: int) -> str:
    """The code of the turn that submits."""
    whole = f"len(context) == {characters}"
    if kind != "plain":
        whole += f' and len(replies) == {count} and set(replies) == {{"ok"}}'
    verdict = f'"ok" if {whole} else "wrong"'
    if dialect == "rlms":
        return f'answer["content"] = {verdict}\nanswer["ready"] = True'
    return f"SUBMIT(answer={verdict})"


def _dress(dialect: str, plan: str, source: str) -> str:
    if dialect == "dspy":
        return f"[[ ## reasoning ## ]]\n{plan}\n\n[[ ## code ## ]]\n```python\n{source}\n```\n\n[[ ## completed ## ]]"
    return f"{plan}\n\n```{'repl' if dialect == 'rlms' else 'python'}\n{source}\n```"
