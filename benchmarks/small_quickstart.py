"""Whether the embedded model answers the quickstart's question however it is put.

    python -m benchmarks.small_quickstart [MODEL API_BASE]

Ten ways to ask for the same number, over the quickstart's journal, with the options that the quickstart uses. What came
of it is kept in ``benchmarks/small_model/quickstart.json``. The quickstart has this model as long as nine are right.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.small_model import KEPT

REPHRASINGS = (
    "How many requests in this journal failed? A failed request is a line with the level ERROR.",
    "How many lines have the level ERROR?",
    "Count the ERROR lines of this journal.",
    "What is the total number of failed requests, that is, of lines with the level ERROR?",
    "In all of the journal, how often does a line of level ERROR occur?",
    "Some requests failed and were logged with the level ERROR. How many were there?",
    "I need the number of failed requests. They are the lines that say ERROR.",
    "Tell me how many ERROR entries there are.",
    "How many times did a request end with an ERROR line?",
    "Please give the count of all journal lines whose level is ERROR.",
)


def main(arguments: list[str] | None = None) -> int:
    """Ask all ten; 0 if nine or more are right. With two arguments, a model's name and its server's address."""
    import dspy

    from rlm_dspy import RLM, local_lm
    from rlm_dspy.quickstart import journal
    from rlm_dspy.quickstart.__main__ import OPTIONS

    given = sys.argv[1:] if arguments is None else arguments
    options: dict[str, Any] = {"cache": False, "temperature": 0.0, "max_tokens": 512}
    lm = dspy.LM(given[0], api_base=given[1], api_key="none", **options) if given else local_lm(**options)
    document = journal.make()
    kept = []
    for question in REPHRASINGS:
        started = time.monotonic()
        with dspy.context(lm=lm):
            pred = RLM("context, question -> errors: int", **OPTIONS)(context=document.text, question=question)
        seconds = round(time.monotonic() - started, 1)
        replies = [dict(turn) for turn in pred.trajectory]
        row = {"question": question, "answer": pred.errors, "gold": document.counted, "outcome": str(pred.outcome)}
        kept.append({**row, "seconds": seconds, "trajectory": replies})
        print(f"{'right' if pred.errors == document.counted else 'WRONG'} {seconds:5.0f} s  {question}", flush=True)
    right = sum(row["answer"] == row["gold"] for row in kept)
    date = datetime.now(UTC).date().isoformat()
    KEPT.mkdir(exist_ok=True)
    text = json.dumps({"date": date, "model": lm.model, "right": right, "of": len(kept), "answers": kept}, indent=1)
    (KEPT / "quickstart.json").write_text(text + "\n")
    print(f"{right} of {len(kept)}")
    return 0 if right >= 9 else 1


if __name__ == "__main__":
    sys.exit(main())
