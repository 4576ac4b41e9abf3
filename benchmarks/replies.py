"""What the benchmark's server replies: the next turn of a script, in the words of the engine that asks."""

from __future__ import annotations

import re
from typing import Any

_ITERATION = re.compile(r"\[\[ ## iteration ## \]\]\s*(\d+)/")
_SHOW = "print(len(replies), set(replies))"


def reply(model: str, messages: list[dict[str, Any]]) -> tuple[str, float]:
    """The text and the latency in seconds.

    Args:
        model: ``dialect.script-count.turns.milliseconds``, see `benchmarks.work.Work`.
        messages: Of the request.
    """
    dialect, script, turns, milliseconds, *_ = model.split(".")
    kind, count = script.split("-")
    seconds = int(milliseconds) / 1000
    if kind == "echo" or dialect == "bare":
        return ("[[ ## response ## ]]\nok\n\n[[ ## completed ## ]]" if dialect == "bare" else "ok"), seconds
    turn = _turn(dialect, messages)
    if turn >= int(turns):
        source = 'answer["content"] = "ok"\nanswer["ready"] = True' if dialect == "rlms" else 'SUBMIT(answer="ok")'
    elif turn == 1 and kind == "serial":
        source = f'replies = [llm_query(f"Question {{i}}") for i in range({count})]\n{_SHOW}'
    elif turn == 1 and kind == "batch":
        source = f'replies = llm_query_batched([f"Question {{i}}" for i in range({count})])\n{_SHOW}'
    else:
        source = f'x{turn} = len(context)\nprint("turn {turn}", x{turn}, context[:60])'
    return _dress(dialect, f"I take step {turn}.", source), seconds


def text_of(message: dict[str, Any]) -> str:
    """The text of one message, also where its content is a list of parts."""
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or [])


def _turn(dialect: str, messages: list[dict[str, Any]]) -> int:
    """Which turn it is, from 1."""
    if dialect == "dspy":
        found = _ITERATION.findall(text_of(messages[-1]))
        return int(found[-1]) if found else 1
    return 1 + sum(1 for message in messages if message["role"] == "assistant")


def _dress(dialect: str, plan: str, source: str) -> str:
    if dialect == "dspy":
        return f"[[ ## reasoning ## ]]\n{plan}\n\n[[ ## code ## ]]\n```python\n{source}\n```\n\n[[ ## completed ## ]]"
    return f"{plan}\n\n```{'repl' if dialect == 'rlms' else 'python'}\n{source}\n```"
