"""The ready jobs: each runs by its one line, is scored, finds its sub-calls, and cannot be scored by a trick."""

from __future__ import annotations

from typing import Any, Literal

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.environments.base import Environment
from rlm_dspy.signatures import jobs
from rlm_dspy.signatures.jobs import JOBS, Citation, Evidence, Job
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

pytestmark = pytest.mark.usefixtures("no_leaks")

CODE = {
    "citations": """
passages = [(name, part) for name, text in documents.items() for part in text.split(". ")]
found = read_batched([{"question": question, "passage": part} for _, part in passages])
hits = [(name, r) for (name, _), r in zip(passages, found) if r.relevant]
cited = [{"document": name, "quote": r.quote} for name, r in hits if r.quote in documents[name]]
SUBMIT(answer=hits[0][1].answer, citations=cited)""",
    "aggregation": """
rows = [line.split(";") for line in records.splitlines()]
holds = judge_batched([{"record": row[2], "condition": "complains about delivery"} for row in rows])
kept = [float(row[1]) for row, yes in zip(rows, holds) if yes]
SUBMIT(value=sum(kept), counted=len(kept))""",
    "extraction": """
found = extract_from_batched([{"passage": line, "wanted": wanted} for line in document.splitlines()])
SUBMIT(records=[record for some in found for record in some])""",
    "classification": """
SUBMIT(assigned=classify_batched([{"text": text, "categories": categories} for text in texts]))""",
    "forensics": """
lines = [(n, k, text) for n, all in files.items() for k, text in enumerate(all.splitlines(), 1)]
told = read_excerpt_batched([{"question": question, "excerpt": text} for _, _, text in lines])
shown = [dict(file=n, line=k, text=text) for (n, k, text), r in zip(lines, told) if r.relevant]
SUBMIT(finding="disk full", evidence=shown)""",
}


def sub(call: Call) -> str:
    """Answers the sub-calls of all jobs, by what their prompts end with."""
    asked = call.prompt.partition("Respond with the corresponding")[0]
    if "passage" in asked and "wanted" in asked:
        name, euros = ("Ada", 12.5) if "Ada" in asked else ("Blaise", 3.0)
        return outputs(records=[{"payer": name, "euros": euros}])
    if "passage" in asked:
        hit = "three months" in asked
        quote = "may end it by a letter sent three months before." if hit else ""
        return outputs(relevant=str(hit), answer="three months" if hit else "", quote=quote)
    if "condition" in asked:
        return outputs(holds=str("late" in asked or "waiting" in asked))
    if "excerpt" in asked:
        hit = "timeout" in asked or "disk full" in asked
        return outputs(relevant=str(hit), explanation="")
    item = asked.partition("[[ ## text ## ]]")[2].partition("[[")[0]
    return outputs(category="parcel" if "parcel" in item else "site" if "page" in item else "billing")


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_a_job_is_one_line_and_scores_its_example(job: Job, sandbox: Environment) -> None:
    rlm = RLM(**job.program(), sub_lm=ScriptedLM(sub), interpreter=sandbox)
    root = ScriptedLM([code(CODE[job.name])])
    with dspy.context(lm=root):
        pred = rlm(**job.example.inputs())
    assert pred.outcome == "submitted", pred.trajectory
    assert job.score(job.example, pred) == 1.0
    assert pred.usage["calls"] >= 2
    assert {f"sub_calls['{name}']" for name in job.sub_calls} <= {name for name, _ in rlm.named_predictors()}
    # What the root is told: the task, each field with its description, each sub-call.
    told = root.calls[0].prompt
    assert all(f"`{name}_batched(" in told for name in job.sub_calls)
    assert all(field.json_schema_extra["desc"] in told for field in job.signature.output_fields.values())
    assert job.signature.instructions.splitlines()[0] in told


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_gold_scores_one_and_nothing_scores_zero(job: Job) -> None:
    gold = {name: job.example[name] for name in job.signature.output_fields if name in job.example}
    if job.name == "citations":
        gold["citations"] = [Citation(document="lease.txt", quote="sent three months before")]
    if job.name == "forensics":
        files = job.example.files
        gold["evidence"] = [
            Evidence(file=name, line=line, text=files[name].splitlines()[line - 1]) for name, line in job.example.lines
        ]
    assert job.score(job.example, dspy.Prediction(**gold)) == 1.0
    assert job.score(job.example, gold) == 1.0
    for empty in (None, {}, dspy.Prediction(), "answer", 7, dict.fromkeys(gold)):
        assert job.score(job.example, empty) == 0.0


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_whatever_a_prediction_holds_the_score_is_from_zero_to_one(job: Job, data: st.DataObject) -> None:
    given_ = {name: data.draw(_ANYTHING, label=name) for name in job.signature.output_fields}
    assert 0.0 <= job.score(job.example, given_) <= 1.0


def tricks() -> list[tuple[str, dict[str, Any]]]:
    documents, files = jobs.CITATIONS.example.documents, jobs.FORENSICS.example.files
    names = list(jobs.CLASSIFICATION.example.categories)
    shown = [Evidence(file=n, line=k, text=t) for n, s in files.items() for k, t in enumerate(s.splitlines(), 1)]
    return [
        ("citations", {"answer": "three months", "citations": []}),
        ("citations", {"answer": "three months or six", "citations": [Citation(document="lease.txt", quote="a")]}),
        ("citations", {"answer": "three months", "citations": [Citation(document="lease.txt", quote="three")]}),
        (
            "citations",
            {"answer": "three months", "citations": [Citation(document="lease.txt", quote="six months, I say")]},
        ),
        (
            "citations",
            {"answer": "three months", "citations": [Citation(document="none", quote=documents["lease.txt"])]},
        ),
        (
            "citations",
            {"answer": "three months", "citations": [Citation(document="notes.txt", quote="Nothing was signed.")]},
        ),
        ("aggregation", {"value": float("nan"), "counted": 2}),
        ("aggregation", {"value": 32.75, "counted": 3}),
        ("aggregation", {"value": True, "counted": 2}),
        ("extraction", {"records": []}),
        ("extraction", {"records": {"payer": "Ada", "euros": 12.5}}),
        ("classification", {"assigned": names}),
        ("classification", {"assigned": [names] * 4}),
        ("classification", {"assigned": [" or ".join(names)] * 4}),
        ("forensics", {"finding": "disk full or timeout", "evidence": shown}),
        ("forensics", {"finding": "disk full", "evidence": []}),
        ("forensics", {"finding": "disk full", "evidence": [Evidence(file="db-2.log", line=1, text="disk full")]}),
    ]


@pytest.mark.parametrize(("name", "prediction"), tricks())
def test_tricks_score_nothing(name: str, prediction: dict[str, Any]) -> None:
    assert JOBS[name].score(JOBS[name].example, prediction) == 0.0


def test_part_of_it_scores_in_part() -> None:
    example = jobs.EXTRACTION.example
    ada = {"payer": " ada ", "euros": 12.5}
    assert jobs.EXTRACTION.score(example, {"records": [ada]}) == pytest.approx(2 / 3)
    assert jobs.EXTRACTION.score(example, {"records": [ada] * 2}) == pytest.approx(1 / 2)
    assigned = ["billing", "parcel", "site", "site"]
    assert jobs.CLASSIFICATION.score(jobs.CLASSIFICATION.example, {"assigned": assigned}) == 0.75
    shown = [Evidence(file="db-2.log", line=2, text="09:01 WARN disk full, writes refused")]
    assert jobs.FORENSICS.score(jobs.FORENSICS.example, {"finding": "Disk full.", "evidence": shown}) == 0.5
    silent = dspy.Example(documents={}, question="?", answer="not stated")
    assert jobs.CITATIONS.score(silent, {"answer": "Not stated.", "citations": []}) == 1.0


def test_jobs_of_ones_own_types(sandbox: Environment) -> None:
    class Invoice(pydantic.BaseModel):
        number: int

    job = jobs.extraction(Invoice)
    assert job.signature.output_fields["records"].annotation == list[Invoice]
    assert jobs.ExtractRecords.output_fields["records"].annotation == list[dict[str, Any]]
    lm = ScriptedLM(lambda call: outputs(records=[{"number": 7}]))
    with dspy.context(lm=ScriptedLM([code("SUBMIT(records=extract_from(passage=document, wanted=wanted))")])):
        pred = RLM(**job.program(), sub_lm=lm, interpreter=sandbox)(document="invoice 7", wanted="every invoice")
    assert pred.records == [Invoice(number=7)]
    made = jobs.classification({"good": "praise", "bad": "complaints"})
    assert made.sub_calls["classify"].output_fields["category"].annotation == Literal["good", "bad"]
    lm = ScriptedLM(lambda call: outputs(category="good"))
    sort = "SUBMIT(assigned=[classify(text=t, categories=categories) for t in texts])"
    with dspy.context(lm=ScriptedLM([code(sort)])):
        pred = RLM(**made.program(), sub_lm=lm, interpreter=sandbox)(texts=["lovely"])  # the categories are known
    assert pred.assigned == ["good"] and "complaints" in lm.calls[0].prompt
    assert made.score(made.example, {"assigned": []}) == 1.0
    with pytest.raises(TypeError, match="takes a pydantic model"):
        jobs.extraction(dict)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two categories or more"):
        jobs.classification(["good"])


def test_a_quote_counts_once_and_one_of_no_document_is_merely_false() -> None:
    example = jobs.CITATIONS.example
    true = {"document": "lease.txt", "quote": "by a letter sent three months before"}
    false = {"document": "lease.txt", "quote": "three months, as agreed by phone"}
    unknown = {"document": "gone.txt", "quote": "by a letter sent three months before"}

    def scored(*citations: dict[str, str]) -> float:
        return float(jobs.CITATIONS.score(example, {"answer": "Three months", "citations": list(citations)}))

    assert scored(true) == scored(true, true) == 1.0
    assert scored(*[true] * 99, false) == scored(true, unknown) == 0.5
