"""Records of a pydantic model out of a document."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import dspy
import pydantic

from rlm_dspy.signatures.jobs.base import Job, Metric, metric, normalised, value


class ExtractRecords(dspy.Signature):
    """Give every record of the wanted kind that the document holds, once, in the order of the text.

    Look at how the text is written. What has a fixed form is read in code; prose is cut into passages that overlap by
    some sentences, and all of them are given to `extract_from` at once. Put the results together, drop what is there
    twice because of the overlap, and compare their number with that of a word that every record has. Take values as
    they stand in the text: guess nothing."""

    document: str = dspy.InputField(desc="the text")
    wanted: str = dspy.InputField(desc="which records, in words, such as: every invoice that is mentioned")
    records: list[dict[str, Any]] = dspy.OutputField(desc="all of them")


class ExtractFromPassage(dspy.Signature):
    """Give the records of the wanted kind that this passage holds whole; an empty list where it has none."""

    passage: str = dspy.InputField(desc="part of a document")
    wanted: str = dspy.InputField(desc="which records")
    records: list[dict[str, Any]] = dspy.OutputField(desc="values as they stand in the passage")


@metric
def score(example: Any, prediction: Any) -> float:
    """F1 of the records: one is right if all its fields are. Texts are compared normalised, order is free, and a record
    that is given twice counts as wrong once. The gold is ``records``: models or dicts."""
    gold, given = value(example, "records"), value(prediction, "records")
    if not isinstance(given, list):
        return 0.0
    ours, theirs = Counter(map(_key, gold)), Counter(map(_key, given))
    if not ours and not theirs:
        return 1.0
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def _key(record: Any) -> str:
    plain = record.model_dump(mode="json") if isinstance(record, pydantic.BaseModel) else dict(record)
    return json.dumps(_comparable(plain), sort_keys=True, default=str)


def _comparable(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(name): _comparable(item) for name, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [_comparable(item) for item in data]
    if isinstance(data, float) and data.is_integer():
        return int(data)
    return normalised(data) if isinstance(data, str) else data


def extraction(model: type[pydantic.BaseModel], example: dspy.Example | None = None, scorer: Metric = score) -> Job:
    """The job for records of ``model``; its docstring and field descriptions are shown to root and sub-LM.

    Args:
        model: A pydantic model, of one record.
        example: For `Job.example`; None for an empty one.
        scorer: For `Job.score`.

    Example:
        >>> rlm = RLM(**jobs.extraction(Invoice).program())  # doctest: +SKIP

    Raises:
        TypeError: It is no pydantic model.
    """
    if not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        raise TypeError(f"extraction takes a pydantic model, such as class Invoice(pydantic.BaseModel), not {model!r}")
    typed: Any = list[model]  # type: ignore[valid-type]
    empty = dspy.Example(document="", wanted=f"every {model.__name__}", records=[]).with_inputs("document", "wanted")
    return Job(
        name="extraction",
        signature=ExtractRecords.with_updated_fields("records", type_=typed),
        sub_calls={"extract_from": ExtractFromPassage.with_updated_fields("records", type_=typed)},
        score=scorer,
        example=example if example is not None else empty,
    )


class Payment(pydantic.BaseModel):
    """Money that was paid, in the example of this job."""

    payer: str
    euros: float


EXTRACTION = extraction(
    Payment,
    dspy.Example(
        document="On Monday Ada paid 12.50 euros. It rained.\nBlaise, who had won, gave another 3 euros.",
        wanted="every payment",
        records=[Payment(payer="Ada", euros=12.5), Payment(payer="Blaise", euros=3)],
    ).with_inputs("document", "wanted"),
)
