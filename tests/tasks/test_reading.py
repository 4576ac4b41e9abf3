"""Labelled records as they are meant: each is read by a sub-call, and code counts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import dspy

from rlm_dspy import RLM, tasks
from rlm_dspy.environments.base import Environment
from rlm_dspy.tasks.record_texts import THEMES
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

READ = """
import re
rows = [line.split(" | ", 2) for line in context.split("\\n\\n", 1)[1].splitlines()]
meaning = dict(re.findall(r"'(\\w+)' \\(([^)]*)\\)", query))
labels = classify_batched([{"text": text, "labels": meaning} for _, _, text in rows])
wanted = re.findall(r"'(\\w+)'", query.split("). ")[-1])[0]
SUBMIT(answer=labels.count(wanted))
"""


def rows_of(example: dspy.Example) -> list[list[str]]:
    """Date, user and text of each record."""
    return [line.split(" | ", 2) for line in example.context.split("\n\n", 1)[1].splitlines()]


def test_a_program_that_reads_each_record_is_right(sandbox: Environment, reader_source: Callable[[str], str]) -> None:
    names: dict[str, Any] = {}
    exec(reader_source("labelled_records"), names)

    def reads(call: Call) -> str:
        (label,) = [label for label, phrases in names["COMPILED"].items() if phrases.search(call.prompt)]
        return outputs(label=label)

    batch = tasks.generate(18, 1000, seed=51, family="labelled_records", kinds=["count"])
    batch = [one for one in batch if one.template == "count_label"]
    for example in batch:
        sub = ScriptedLM(reads)
        rlm = RLM(
            example.signature,
            sub_calls={"classify": "text: str, labels: dict[str, str] -> label: str"},
            sub_lm=sub,
            max_llm_calls=100,
            interpreter=sandbox,
            guidance=False,
        )
        with dspy.context(lm=ScriptedLM([code(READ)])):
            prediction = rlm(**example.inputs())
        assert prediction.outcome == "submitted", prediction.trajectory
        assert tasks.score(example, prediction) == 1.0
        # What was asked before is not asked again.
        assert prediction.usage["calls"] == len({text for _, _, text in rows_of(example)}) > example.records / 2
    assert len({one.theme for one in batch}) > 1


def test_a_question_says_what_each_label_means() -> None:
    for example in tasks.generate(30, 1000, seed=52, family="labelled_records"):
        (theme,) = [theme for theme in THEMES.values() if theme.noun == example.theme]
        for label, meaning in theme.labels.items():
            assert f"{label!r} ({meaning})" in example.query
            assert not re.search(rf"\b{label}\b", example.context.split("\n\n", 1)[1])


def test_every_label_and_wording_comes_up() -> None:
    """Also what speaks of the subject of another label, so that words alone do not tell."""
    for theme in THEMES.values():
        wordings = [core for cores in theme.cores.values() for core in cores]
        assert set(theme.cores) == set(theme.labels) and len(set(wordings)) == len(wordings)
        batch = [one for one in tasks.generate(20, 20_000, 53, "labelled_records") if one.theme == theme.noun]
        text = "\n".join(one.context for one in batch)
        for template in (*wordings, *theme.asides):
            pattern = re.sub(r"\\\{\w+\\\}", r"[\\w' -]+", re.escape(template))
            assert re.search(pattern, text), template


def test_records_are_of_many_users_days_and_labels() -> None:
    for example in tasks.generate(9, 30_000, seed=54, family="labelled_records"):
        rows = rows_of(example)
        assert len(rows) == example.records
        users, months = Counter(user for _, user, _ in rows), Counter(date[:7] for date, _, _ in rows)
        assert len(users) == 60 and min(users.values()) < max(users.values()) / 2
        assert 4 <= len(months) <= 12 and len({text for _, _, text in rows}) > 0.8 * len(rows)
