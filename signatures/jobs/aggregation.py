"""A number over many records, exactly."""

from __future__ import annotations

import math
from typing import Any

import dspy

from rlm_dspy.signatures.jobs.base import Job, metric, value


class AggregateExactly(dspy.Signature):
    """Compute the number that is asked for, exactly, over every record.

    Look at how records are written, split them in code, and check that each was read: count them, and look at some of
    those that do not parse. What can be decided by a field is decided in code; what has to be read (does this complaint
    concern delivery?) is asked of `judge`, all records that come in question at once, never a sample. Add up in
    code."""

    records: str | list[Any] = dspy.InputField(desc="the records: a text of them, or a list")
    question: str = dspy.InputField(desc="which number: a count, sum, mean, share, maximum, …")
    value: float = dspy.OutputField(desc="the number")
    counted: int = dspy.OutputField(desc="how many records the number was made of")


class JudgeRecord(dspy.Signature):
    """Does the condition hold for this record? Judge by what it says, not by single words."""

    record: str = dspy.InputField()
    condition: str = dspy.InputField(desc="such as: the customer complains about delivery")
    holds: bool = dspy.OutputField()


@metric
def score(example: Any, prediction: Any) -> float:
    """1.0 for the gold ``value``, to one part in a billion, with the gold ``counted`` where there is one; else 0.0."""
    given, gold = value(prediction, "value"), value(example, "value")
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given):
        return 0.0
    counted = value(example, "counted")
    if counted is not None and value(prediction, "counted") != counted:
        return 0.0
    return float(math.isclose(given, gold, rel_tol=1e-9, abs_tol=1e-9))


AGGREGATION = Job(
    name="aggregation",
    signature=AggregateExactly,
    sub_calls={"judge": JudgeRecord},
    score=score,
    example=dspy.Example(
        records="7;12.50;The parcel came a week late\n8;3.00;Lovely tea\n9;20.25;Still waiting for my order",
        question="What did the orders come to whose customers complain about delivery?",
        value=32.75,
        counted=2,
    ).with_inputs("records", "question"),
)
