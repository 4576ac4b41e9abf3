"""A question over documents, answered with quotes that prove it."""

from __future__ import annotations

from typing import Any

import dspy
import pydantic

from rlm_dspy.signatures.jobs.base import Job, covered, metric, normalised, spaced, value

SHORTEST, LONGEST = 12, 1_000
"""Characters of a quote that proves something: neither a stray word nor a whole document."""


class Citation(pydantic.BaseModel):
    """A passage that proves a statement."""

    document: str = pydantic.Field(description="name of the document, a key of `documents`")
    quote: str = pydantic.Field(description="a passage of it, copied from the text character by character")


class AnswerWithCitations(dspy.Signature):
    """Answer the question from the documents alone, and prove the answer by quotes.

    Search all documents in code first, by several words that the answer may stand near, then have the passages that
    come close read by `read`, many at once. Cut every quote out of the document in code and check that it is in there
    (`quote in documents[name]`); never write one by hand. Where the documents do not say it, answer "not stated", with
    no citations."""

    documents: dict[str, str] = dspy.InputField(desc="name to text of every document")
    question: str = dspy.InputField(desc="what is asked")
    answer: str = dspy.OutputField(desc="the answer, in as few words as it takes")
    citations: list[Citation] = dspy.OutputField(desc="the passages that prove it, at least one a statement")


class ReadPassage(dspy.Signature):
    """Does the passage say something that answers the question, even in part? Answer from the passage alone."""

    question: str = dspy.InputField()
    passage: str = dspy.InputField(desc="part of a document")
    relevant: bool = dspy.OutputField(desc="true only if it says something about what is asked")
    answer: str = dspy.OutputField(desc='what it says about it, "" if nothing')
    quote: str = dspy.OutputField(desc='the sentence that says so, copied exactly, "" if none')


@metric
def score(example: Any, prediction: Any) -> float:
    """Right answer × share of different quotes that are true × share of the wanted documents that are cited.

    The gold is ``answer`` (compared as normalised text) and, where there is one, ``sources``, the names of documents
    that have to be cited. A quote is true if it stands in the document that it names, and is `SHORTEST` to `LONGEST`
    characters long. Without any quote the score is 0, but where the gold is "not stated".
    """
    right = normalised(value(prediction, "answer")) == normalised(value(example, "answer"))
    citations = value(prediction, "citations")
    if not right or not isinstance(citations, list):
        return 0.0
    if normalised(value(example, "answer")) == "not stated":
        return float(not citations)
    documents = {name: spaced(text) for name, text in value(example, "documents").items()}
    # One true quote, given a hundred times, is no more than once.
    quotes = {(value(c, "document"), spaced(value(c, "quote"))) for c in citations}
    true = [name for name, quote in quotes if _stands(quote, documents.get(name, ""))]
    return len(true) / len(quotes) * covered(value(example, "sources"), set(true)) if quotes else 0.0


def _stands(quote: str, document: str) -> bool:
    return SHORTEST <= len(quote) <= LONGEST and quote in document


CITATIONS = Job(
    name="citations",
    signature=AnswerWithCitations,
    sub_calls={"read": ReadPassage},
    score=score,
    example=dspy.Example(
        documents={
            "lease.txt": "The lease begins on 1 May. The tenant may end it by a letter sent three months before.",
            "notes.txt": "Met the landlord about the garden. Nothing was signed.",
        },
        question="How long before has the tenant to send the letter that ends the lease?",
        answer="three months",
        sources=["lease.txt"],
    ).with_inputs("documents", "question"),
)
