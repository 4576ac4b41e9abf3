"""What happened, by lines of logs or code that show it."""

from __future__ import annotations

from typing import Any

import dspy
import pydantic

from rlm_dspy.signatures.jobs.base import Job, covered, metric, normalised, value


class Evidence(pydantic.BaseModel):
    """A line that shows something."""

    file: str = pydantic.Field(description="name of the file, a key of `files`")
    line: int = pydantic.Field(description="number of the line in it, from 1")
    text: str = pydantic.Field(description="the line as it is")


class Investigate(dspy.Signature):
    """Find out what is asked, from the logs or the code, and give the lines that show it.

    Look at how each file is written. Find candidates in code (times, levels, ids, names), follow ids across files, and
    put what belongs together in order of time. Have excerpts of some dozen lines that need understanding read by
    `read_excerpt`, many at once. Rule out what only looks like it: a retry that worked, a test, a comment. Take each
    line of evidence out of its file in code, with its number, `enumerate(text.splitlines(), 1)`."""

    files: dict[str, str] = dspy.InputField(desc="name to text of every file")
    question: str = dspy.InputField(desc="what is to be found out")
    finding: str = dspy.OutputField(desc="the answer, in as few words as it takes")
    evidence: list[Evidence] = dspy.OutputField(desc="the lines that show it, and no others")


class ReadExcerpt(dspy.Signature):
    """What does the excerpt tell about the question? Go by what it says; say so where it says nothing."""

    question: str = dspy.InputField()
    excerpt: str = dspy.InputField(desc="some lines of a file, with their numbers")
    relevant: bool = dspy.OutputField(desc="true only if it tells something about what is asked")
    explanation: str = dspy.OutputField(desc='what it tells, in a sentence; "" if nothing')


@metric
def score(example: Any, prediction: Any) -> float:
    """Right finding × share of the evidence that is as it says × share of the wanted lines that are in it.

    The gold is ``finding`` (compared as normalised text) and, where there is one, ``lines``, pairs of file and number
    that have to be shown. Evidence is true if the line of that number reads so, whitespace round it aside. Without any
    the score is 0.
    """
    if normalised(value(prediction, "finding")) != normalised(value(example, "finding")):
        return 0.0
    files = {name: text.splitlines() for name, text in value(example, "files").items()}
    given = value(prediction, "evidence")
    if not isinstance(given, list) or not given:
        return 0.0
    true = {(value(e, "file"), value(e, "line")) for e in given if _reads(e, files)}
    wanted = {(name, line) for name, line in value(example, "lines") or ()}
    return len(true) / len(given) * covered(wanted, true)


def _reads(evidence: Any, files: dict[str, list[str]]) -> bool:
    lines, number = files.get(value(evidence, "file"), []), value(evidence, "line")
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(lines):
        return False
    text = value(evidence, "text")
    return isinstance(text, str) and bool(text.strip()) and lines[number - 1].strip() == text.strip()


FORENSICS = Job(
    name="forensics",
    signature=Investigate,
    sub_calls={"read_excerpt": ReadExcerpt},
    score=score,
    example=dspy.Example(
        files={
            "api.log": "09:00 INFO start\n09:01 ERROR req=7 timeout of db-2\n09:02 ERROR req=8 retried, ok",
            "db-2.log": "08:59 INFO up\n09:01 WARN disk full, writes refused",
        },
        question="Why did request 7 fail?",
        finding="disk full",
        lines=[("api.log", 2), ("db-2.log", 2)],
    ).with_inputs("files", "question"),
)
