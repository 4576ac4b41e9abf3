"""Ready signatures for five common jobs: what the root is asked, what its sub-calls are asked, a scorer, an example.

    from rlm_dspy import RLM
    from rlm_dspy.signatures import jobs

    rlm = RLM(**jobs.CITATIONS.program(), max_cost=0.50)
    pred = rlm(documents={"a.txt": "..."}, question="Who signed, and when?")
    pred.answer, pred.citations

    base.py            `Job`
    citations.py       CITATIONS: a question over documents, answered with quotes that prove it
    aggregation.py     AGGREGATION: a number over many records, exactly
    extraction.py      EXTRACTION: records of a pydantic model out of a document; `extraction(Model)`
    classification.py  CLASSIFICATION: one category for each of many texts; `classification(categories)`
    forensics.py       FORENSICS: what happened, by lines of logs or code that show it

The classes are ordinary signatures: subclass them, or give ``RLM`` one of them with ``sub_calls`` of your own.
Optimisers find the sub-calls by their names. Scorers are DSPy metrics; none raises for what a prediction holds.
"""

from __future__ import annotations

from rlm_dspy.signatures.jobs.aggregation import AGGREGATION, AggregateExactly, JudgeRecord
from rlm_dspy.signatures.jobs.base import Job
from rlm_dspy.signatures.jobs.citations import CITATIONS, AnswerWithCitations, Citation, ReadPassage
from rlm_dspy.signatures.jobs.classification import CLASSIFICATION, ClassifyText, ClassifyTexts, classification
from rlm_dspy.signatures.jobs.extraction import EXTRACTION, ExtractFromPassage, ExtractRecords, extraction
from rlm_dspy.signatures.jobs.forensics import FORENSICS, Evidence, Investigate, ReadExcerpt

JOBS: dict[str, Job] = {job.name: job for job in (CITATIONS, AGGREGATION, EXTRACTION, CLASSIFICATION, FORENSICS)}
"""All of them by name."""

__all__ = [
    "AGGREGATION",
    "CITATIONS",
    "CLASSIFICATION",
    "EXTRACTION",
    "FORENSICS",
    "JOBS",
    "AggregateExactly",
    "AnswerWithCitations",
    "Citation",
    "ClassifyText",
    "ClassifyTexts",
    "Evidence",
    "ExtractFromPassage",
    "ExtractRecords",
    "Investigate",
    "Job",
    "JudgeRecord",
    "ReadExcerpt",
    "ReadPassage",
    "classification",
    "extraction",
]
