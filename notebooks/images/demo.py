"""The run in the pictures of the README: two years of reports, a child for each year, sub-calls, and one mistake.

``python notebooks/images/demo.py`` shows it on this terminal. The models are scripted; the code that they "write" runs
in the real sandbox.
"""

from __future__ import annotations

import random
import re

import dspy

from rlm_dspy import RLM
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

PRICES = {"demo/large": (2.0, 12.0), "demo/small": (0.2, 1.2)}
"""US dollars for a million tokens."""
QUERY = "Which ship has the most reports about its engine, and what is the common cause?"
_SHIPS = "Arran Bute Calder Dunmore Eigg Fingal Gigha Harris".split()
_WHAT = ("the engine ran hot after {} hours", "the ramp stuck for {} minutes", "{} passengers were left behind")

_ROOT = [
    (
        "Look at how the reports are written before reading any of them.",
        "print(len(reports), sorted(reports))\nprint(reports['2023'].splitlins()[:3])",
    ),
    (
        "A typo. The reports of each year are lines; count the ships named in those about the engine.",
        """from collections import Counter

engine = {year: [line for line in text.splitlines() if "engine" in line] for year, text in reports.items()}
ships = Counter(line.split()[1] for lines in engine.values() for line in lines)
print({year: len(lines) for year, lines in engine.items()}, ships.most_common(3))""",
    ),
    (
        "What is the cause? One child for each year reads its reports of that ship.",
        """ship = ships.most_common(1)[0][0]
parts = [[line for line in lines if ship in line] for lines in engine.values()]
ask = f"What makes the engine of the {ship} run hot?"
causes = rlm_query_batched([{"prompt": ask, "lines": part} for part in parts])
print(*causes, sep="\\n")""",
    ),
    ("Both years say the same.", "SUBMIT(ship=ship, cause=causes[0])"),
]
_CHILD = [
    (
        "Ask about each report by itself, in one batch.",
        """asks = [f"The cause, in two words?\\n{line}" for line in lines[:24]]
answers = llm_query_batched(asks)
print(answers)""",
    ),
    (
        "Now the most frequent one.",
        """from collections import Counter

good = [answer for answer in answers if not answer.startswith("[ERROR]")]
SUBMIT(max(set(good), key=good.count))""",
    ),
]


def reports() -> dict[str, str]:
    """Reports by year, some 600 kB; the same ones each time."""
    draw = random.Random(7)
    return {
        year: "\n".join(
            f"{year}-{draw.randint(1, 12):02} {draw.choice(_SHIPS)} {draw.choice(_WHAT).format(draw.randint(2, 90))}"
            for _ in range(5_000)
        )
        for year in ("2023", "2024")
    }


def root(call: Call) -> Reply:
    """Plays the root, and the children."""
    child = "run hot?" in call.own[0]["content"]
    plan, source = (_CHILD if child else _ROOT)[call.turn]
    return Reply(code(source, plan), delay=1.1 + 0.2 * call.turn + 0.4 * child)


def answer(call: Call) -> Reply:
    """Plays the small model, which sometimes fails."""
    number = int(re.findall(r"\d+", call.prompt)[-1])
    if number == 50:
        return Reply(error=RuntimeError("503: the model is overloaded"))
    return Reply("worn filter" if number % 3 else "old pump", delay=0.4 + number / 60)


def program(**options: object) -> RLM:
    """The program."""
    small = ScriptedLM(answer, model="demo/small")
    given = {"max_depth": 2, "max_cost": 0.25, "max_seconds": 120, "max_llm_calls": 80, "max_concurrency": 8, **options}
    return RLM("reports: dict[str, str], query -> ship: str, cause: str", sub_lm=small, prices=PRICES, **given)


def run(**options: object) -> dspy.Prediction:
    """One call of it."""
    with dspy.context(lm=ScriptedLM(root, model="demo/large")):
        return program(**options)(reports=reports(), query=QUERY)


if __name__ == "__main__":
    run(verbose=True)
