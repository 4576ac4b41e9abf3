"""One question answered by one engine, in a process of its own. Started by `benchmarks.small_model`.

    python -m benchmarks.small_child < JSON

Reads a `request` of `benchmarks.small_model` as JSON, prints what came of it as one JSON line at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TURNS = 8
OUTPUT_CHARS = 2_000
MAX_TOKENS = 512
"""The same for both engines: turns, characters of output shown, tokens of one reply."""


def main() -> None:
    """Answer the question that stands on standard input."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    request: dict[str, Any] = json.load(sys.stdin)
    started = time.monotonic()
    result = _answer(request)
    text = json.dumps(result | {"seconds": round(time.monotonic() - started, 1)}, default=str)
    # Tracebacks name where Python lies on this machine.
    for place in {sys.prefix, sys.base_prefix, os.getcwd()}:
        text = text.replace(place, "…")
    print(text, flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import dspy

    from rlm_dspy import subscribe, tasks
    from rlm_dspy.events import Aided

    example = question(request["seed"], request["number"])
    lm = dspy.LM(
        request["model"],
        api_base=request["api_base"],
        api_key=os.environ.get("SMALL_MODEL_API_KEY", "none"),
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        cache=False,
    )
    build = _ours if request["engine"] == "ours" else _peer
    program = build(example.signature, request)
    error = None
    prediction: Any = {}
    aids: set[str] = set()

    def see(event: Any, run: Any) -> None:
        if isinstance(event, Aided):
            aids.add(event.aid)

    try:
        with subscribe(see), dspy.context(lm=lm):
            prediction = program(context=example.context, query=example.query)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:2_000]
    # A score that needs no answer to be there: none is worth nothing.
    answer = prediction.get("answer")
    return {
        "answer": answer,
        "score": tasks.score(example, prediction) if answer is not None else 0.0,
        "outcome": _outcome(prediction),
        "error": error,
        "aids": sorted(aids),
        "turns": len(prediction.get("trajectory") or []),
        "calls": [{"messages": call["messages"], "outputs": call["outputs"]} for call in lm.history[-1:]],
        "replies": [call["outputs"] for call in lm.history],
        "trajectory": _plain(prediction.get("trajectory")),
    }


def question(seed: int, number: int) -> Any:
    """Question ``number`` of a seed: three of each kind, over about 1, 2 and 5 MB."""
    from rlm_dspy import tasks

    kind, size = KINDS[number // len(SIZES)], number % len(SIZES)
    # The families take turns, beginning with another one for every kind.
    family = FAMILIES[(number // len(SIZES) + size) % len(FAMILIES)]
    (example,) = tasks.generate(1, SIZES[size], seed * 100 + number, family=family, kinds=[kind])
    return example


FAMILIES = ("log_forensics", "needles")
KINDS = ("count", "find", "list", "compare")
SIZES = (250_000, 500_000, 1_250_000)
"""Tokens of the contexts, at four characters a token."""


def _ours(signature: str, request: dict[str, Any]) -> Any:
    from rlm_dspy import RLM, Guidance

    guidance = {name: name not in request["off"] for name in Guidance.names()}
    # The question has its six minutes, of which the last answer keeps one.
    seconds = request["seconds"] - 60
    options: dict[str, Any] = {"max_output_chars": OUTPUT_CHARS, "max_seconds": seconds, "adhoc": False}
    return RLM(signature, max_iters=TURNS, guidance=guidance, **options)


def _peer(signature: str, request: dict[str, Any]) -> Any:
    import dspy
    from dspy.primitives import LocalInterpreter

    return dspy.RLM(
        signature, max_iters=TURNS, max_output_chars=OUTPUT_CHARS, interpreter_factory=LocalInterpreter
    )


def _outcome(prediction: Any) -> str:
    outcome = prediction.get("outcome")
    if outcome is not None:
        return f"{outcome} ({outcome.limit})" if outcome.limit else str(outcome)
    # dspy.RLM says so in the reasoning alone.
    reasoning = str(prediction.get("final_reasoning") or "")
    return "extracted" if reasoning.startswith("Extract forced") else "submitted" if reasoning else "failed"


def _plain(trajectory: Any) -> list[dict[str, str]]:
    turns = trajectory or []
    return [{name: str(turn.get(name) or "") for name in ("reasoning", "code", "output")} for turn in turns]


if __name__ == "__main__":
    main()
