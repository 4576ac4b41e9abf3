"""How answers to OOLONG are scored: as its authors do, and strictly.

OOLONG-synth (Bertsch et al., arXiv 2511.02817) comes with a scorer for free text (``src/eval/eval_helpers.py`` of the
repository abertsch72/oolong). `official` gives what it gives, for any text, so that figures can be compared. As a
reward it is too lenient in what it reads out of a text and too strict in how it compares: "1,000" and a second label
that is as frequent as the first are wrong to it. `strict` takes the answer itself and nothing else, in any usual way to
write it, and any gold of several. Both give 0.75 to the power of the difference for a number.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.tasks.scoring import normalised, score

__all__ = ["golds", "official", "strict"]

COMPARISONS = ("more common", "less common", "same frequency")
CREDIT = 0.75
LONGEST = 300
"""Characters of an answer that `strict` reads."""
_DATE = re.compile(r"datetime\.date\((\d+), (\d+), (\d+)\)")
_ONE_DATE = re.compile(rf"\[{_DATE.pattern}\]")
_FORM = re.compile(r"^\s*(?:label|answer|user|date)\s*:\s*", re.IGNORECASE)
_WAYS = ("%m/%d/%Y", "%Y-%m-%d", "%b %d, %Y", "%B %d, %Y", "%d %B %Y", "%d %b %Y")


def official(row: Mapping[str, Any], output: str) -> float:
    """The score of a free text by the published rules.

    Args:
        row: Of the data set: ``answer``, a list as text, and ``answer_type``.
        output: What the model said.

    Returns:
        0.0 to 1.0. Where the published code fails on a text, 0.0.

    Raises:
        ImportError: A date has to be read, and dateutil is not installed.
    """
    said, dated = _read(output), "datetime" in row["answer"]
    if said is None or (dated and _ONE_DATE.fullmatch(row["answer"]) is None):
        return 0.0
    gold: Any = _first_date(row["answer"]) if dated else ast.literal_eval(row["answer"])[0]
    if said == str(gold):
        return 1.0
    if said in COMPARISONS:
        return float(said in str(gold))
    if row["answer_type"] == "ANSWER_TYPE.NUMERIC":
        try:
            return float(CREDIT ** abs(int(gold) - int(said)))
        except (ValueError, TypeError, OverflowError):
            return 0.0
    if row["answer_type"] == "ANSWER_TYPE.DATE":
        from dateutil import parser

        try:
            return float(parser.parse(said) == gold)
        except Exception:  # it fails in many ways on what is no date
            return 0.0
    return 0.0


def _first_date(text: str) -> dt.datetime:
    return dt.datetime.strptime(text, "[datetime.date(%Y, %m, %d)]")


def _read(output: str) -> str | None:
    """What the published code takes for the answer; None where it fails."""
    if ":" not in output:
        if len(output) < 20:
            return output
        words = output.split()
        return words[-1] if words else None
    said = output.split(":")[-1].strip()
    for mark in "*[]":
        said = said.replace(mark, "")
    if len(said) < 20:
        return said
    return next((phrase for phrase in COMPARISONS if phrase in said), said)


def golds(row: Mapping[str, Any]) -> list[Any]:
    """All right answers of a row, dates as ``datetime.date``.

    Raises:
        ConfigurationError: The row has none, or in another form than that of the data set.
    """
    text = str(row["answer"])
    try:
        dates = [dt.date(*map(int, found)) for found in _DATE.findall(text)]
        found = dates or list(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError) as error:
        raise ConfigurationError(f"the row {row.get('id')!r} has no list of answers, but {text[:80]!r}") from error
    if not found:
        raise ConfigurationError(f"the row {row.get('id')!r} has no answer")
    return found


def strict(row: Mapping[str, Any], answer: Any) -> float:
    """The score of an answer that is to be the answer and nothing else.

    Args:
        row: As for `official`.
        answer: Text, or a number or date. The form that the question asks for (``Label: x``, ``[x]``) may be kept.

    Returns:
        0.0 to 1.0; no answer makes it raise.
    """
    kind = str(row["answer_type"]).rsplit(".", 1)[-1]
    right = golds(row)
    said = answer
    if isinstance(answer, str):
        if len(answer) > LONGEST:
            return 0.0
        said = _FORM.sub("", answer).strip().strip("*[] ")
    try:
        return max(_fits(kind, gold, said) for gold in right)
    except Exception:  # whatever an answer's own methods do
        return 0.0


def _fits(kind: str, gold: Any, said: Any) -> float:
    if isinstance(gold, dt.date):
        return float(_date(said) == gold)
    if kind == "NUMERIC" or (isinstance(gold, int) and not isinstance(gold, bool)):
        return _near(int(gold), said, partial=kind == "NUMERIC")
    if kind == "COMPARISON":
        return float(_comparison(said) == _comparison(gold) is not None)
    return float(normalised(said) is not None and normalised(said) == normalised(gold))


def _near(gold: int, said: Any, partial: bool) -> float:
    if score({"answer": gold}, {"answer": said}) == 1.0:
        return 1.0
    text = said.strip().replace(",", "") if isinstance(said, str) else said
    if not partial or isinstance(said, bool) or not re.fullmatch(r"-?\d{1,15}(\.0*)?", str(text)):
        return 0.0
    return float(CREDIT ** min(abs(gold - int(float(text))), 1_000))


def _comparison(text: Any) -> str | None:
    """The one phrase in a text; None where there is none, or more than one."""
    found = [phrase for phrase in COMPARISONS if isinstance(text, str) and phrase in " ".join(text.casefold().split())]
    return found[0] if len(found) == 1 else None


def _date(said: Any) -> dt.date | None:
    if isinstance(said, dt.datetime):
        return said.date()
    if isinstance(said, dt.date):
        return said
    for way in _WAYS if isinstance(said, str) else ():
        try:
            return dt.datetime.strptime(said.strip(), way).date()
        except ValueError:
            continue
    return None
