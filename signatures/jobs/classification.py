"""One category for each of many texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import dspy

from rlm_dspy.signatures.jobs.base import Job, metric, value


class ClassifyTexts(dspy.Signature):
    """Give each text its category, in the order of the texts.

    Look at some texts and at the categories first. Give all texts to `classify_batched` at once, with the categories;
    ask again about those whose slot is an error or whose category is none of them. Submit exactly one a text."""

    texts: list[str] = dspy.InputField(desc="what is to be classified")
    categories: dict[str, str] = dspy.InputField(desc="each category and what it means")
    assigned: list[str] = dspy.OutputField(desc="the category of each text, in their order")


class ClassifyText(dspy.Signature):
    """Which category fits the text? Go by what they are said to mean; of two that fit, take what it is about most."""

    text: str = dspy.InputField()
    categories: dict[str, str] = dspy.InputField(desc="each category and what it means")
    category: str = dspy.OutputField(desc="one of the categories, as it is written")


@metric
def score(example: Any, prediction: Any) -> float:
    """The share of texts with the gold category, which ``assigned`` has in their order; 0.0 for another number.

    Where there are no texts, no category is right."""
    gold, given = value(example, "assigned"), value(prediction, "assigned")
    if not isinstance(given, list) or len(given) != len(gold):
        return 0.0
    if not gold:
        return 1.0
    return sum(isinstance(ours, str) and ours == right for ours, right in zip(given, gold, strict=True)) / len(gold)


def classification(categories: Mapping[str, str] | Sequence[str]) -> Job:
    """The job for categories that are known beforehand: no other can be given, by the root or by a sub-call.

    Args:
        categories: Their names, or each with what it means. Calls need no ``categories`` then: these are the default.

    Raises:
        ValueError: There are fewer than two, or one is there twice.
    """
    names = tuple(categories)
    if isinstance(categories, str) or len(names) < 2 or len(set(names)) != len(names):
        raise ValueError(f"classification takes two categories or more, each once, not {categories!r}")
    one: Any = Literal[names]
    said = dict(categories) if isinstance(categories, Mapping) else dict.fromkeys(names, "")
    # The meaning of names is not known here, so the example that a job has is one without texts.
    example = dspy.Example(texts=[], categories=said, assigned=[]).with_inputs("texts", "categories")
    known = dspy.InputField(desc="each category and what it means", default=said)
    signature = ClassifyTexts.delete("categories").append("categories", known, dict[str, str])
    return Job(
        name="classification",
        signature=signature.with_updated_fields("assigned", type_=list[one]),
        sub_calls={"classify": ClassifyText.with_updated_fields("category", type_=one)},
        score=score,
        example=example,
    )


CLASSIFICATION = Job(
    name="classification",
    signature=ClassifyTexts,
    sub_calls={"classify": ClassifyText},
    score=score,
    example=dspy.Example(
        texts=["I was billed twice", "The parcel is lost", "Your page does not load", "Refund me please"],
        categories={"billing": "money and invoices", "parcel": "delivery of goods", "site": "the web page"},
        assigned=["billing", "parcel", "site", "billing"],
    ).with_inputs("texts", "categories"),
)
