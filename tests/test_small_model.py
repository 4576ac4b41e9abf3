"""The benchmark of small models: its questions are fixed, its transcripts whole, its table true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import small_child, small_model
from rlm_dspy import tasks
from rlm_dspy.testing import code


def test_the_questions_are_three_of_each_kind_and_always_the_same() -> None:
    first = small_child.question(small_model.SEED, 0)
    assert first.toDict() == small_child.question(small_model.SEED, 0).toDict()
    kinds = [small_child.KINDS[number // len(small_child.SIZES)] for number in range(small_model.QUESTIONS)]
    assert [kinds.count(kind) for kind in ("count", "find", "list", "compare")] == [3, 3, 3, 3]
    assert first.kind == "count" and 900_000 < len(first.context) < 1_100_000


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_lies_within_bounds(counted: tuple[int, int]) -> None:
    right, n = counted
    low, high = small_model.wilson(right, n)
    assert 0 <= low <= right / n + 1e-9 and right / n - 1e-9 <= high <= 1


def test_the_interval_of_a_known_case() -> None:
    """8 of 10: 0.490 to 0.943 (Newcombe 1998 gives such values for the score interval)."""
    low, high = small_model.wilson(8, 10)
    assert low == pytest.approx(0.490, abs=0.001) and high == pytest.approx(0.943, abs=0.001)


def kept(folder: Path, run: str, number: int, score: float, outcome: str = "submitted", seed: int = 11) -> None:
    path = folder / run / f"{seed}-{number:02d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"kind": small_child.KINDS[number // 3], "score": score, "outcome": outcome, "seconds": 10.0 + number}
    result |= {"seed": seed, "date": f"2031-01-{seed}"}
    path.write_text(json.dumps({**result, "query": f"question {number}", "tokens": 250_000}))


def test_the_table_counts_right_answers_and_pairs_the_differences(tmp_path: Path) -> None:
    for number in range(12):
        kept(tmp_path, "ours", number, 1.0 if number < 8 else 0.5)
        kept(tmp_path, "dspy.RLM", number, 1.0 if number in (0, 11) else 0.0, "extracted")
        kept(tmp_path, "ours-without-demonstration", number, 1.0 if number < 5 else 0.0)
    text = small_model.table(tmp_path)
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "| 8 of 12 | 39%–86% | 3 of 3 | 3 of 3 | 2 of 3 | 0 of 3 | 12 |" in rows["ours"]
    assert "2 of 12" in rows["dspy.RLM"] and "-6 (won 1, lost 7)" in rows["dspy.RLM"]
    assert "-3 (won 0, lost 3)" in rows["ours-without-demonstration"]
    assert "| question 11 | compare | 250,000 | wrong, submitted, 21 s | right, extracted, 21 s |" in text


def test_each_seed_has_a_table_of_its_own_the_last_one_first(tmp_path: Path) -> None:
    """What was run at another time was run by other code: a difference over both would say nothing."""
    for number in range(12):
        kept(tmp_path, "ours", number, 1.0)
        kept(tmp_path, "dspy.RLM", number, 0.0)
        kept(tmp_path, "ours", number, 0.0, seed=12)
    last, first = small_model.table(tmp_path).split("## Seed ")[1:]
    assert last.startswith("12, run 2031-01-12\n") and "| ours | 0 of 12 |" in last and "dspy.RLM" not in last
    assert first.startswith("11, run 2031-01-11\n") and "-12 (won 0, lost 12)" in first


def test_an_aid_that_did_nothing_in_a_question_is_not_run_without(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    path = folder / "ours" / f"{small_model.SEED}-00.json"
    path.parent.mkdir(parents=True)
    about = {"kind": "count", "score": 1.0, "outcome": "submitted", "seconds": 9.0, "query": "q", "tokens": 1}
    path.write_text(json.dumps({**about, "aids": ["name_words"]}))
    for off in small_model.WAITING:
        unmoved = small_model._unmoved(folder / f"ours-without-{off}" / path.name, (off,))
        assert (unmoved is None) == (off == "name_words")
        assert unmoved is None or (unmoved["same_as"], unmoved["score"]) == ("ours", 1.0)
    assert small_model._unmoved(folder / "ours-without-first_look" / path.name, ("first_look",)) is None
    path.write_text(json.dumps({**about, "aids": [], "outcome": "extracted (repeats)"}))
    assert small_model._unmoved(folder / "x" / path.name, ("salvage",)) is None


@pytest.mark.heavy
@pytest.mark.alone
@pytest.mark.parametrize("engine", ["ours", "dspy.RLM"])
def test_a_question_is_run_for_real_and_its_transcript_kept(
    engine: str,
    endpoint: Callable[[Any], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(small_model, "KEPT", tmp_path)
    example = small_child.question(small_model.SEED, 0)
    look, answer = "print(len(context))", f"SUBMIT(answer={example.answer})"
    marked = "[[ ## reasoning ## ]]\nr\n\n[[ ## code ## ]]\n```python\n{}\n```\n\n[[ ## completed ## ]]"
    replies = [code(look), code(answer)] if engine == "ours" else [marked.format(look), marked.format(answer)]
    server = endpoint(replies)
    given = ["--engines", engine, "--questions", "0", "--model", "openai/scripted", "--api-base", server.url]
    assert small_model.main(given) == 0
    result = json.loads((tmp_path / "scripted" / engine / f"{small_model.SEED}-00.json").read_text())
    assert result["score"] == 1.0 and result["outcome"] == "submitted" and result["gold"] == example.answer
    assert [turn["code"].strip() for turn in result["trajectory"]] == [look, answer]
    assert "1 of 1" in capsys.readouterr().out
    # What is there is not run again: the server has no more replies.
    assert small_model.main(given) == 0


def test_committed_transcripts_are_of_the_fixed_questions() -> None:
    results = sorted(small_model.KEPT.glob("*/*/*.json"))
    if not results:
        pytest.skip("no transcripts are committed yet")
    for path in results:
        result = json.loads(path.read_text())
        assert result["seed"] <= small_model.SEED and 0 <= result["number"] < small_model.QUESTIONS
        example = small_child.question(result["seed"], result["number"])
        assert (result["query"], result["gold"]) == (example.query, example.answer), path
        assert result["answer"] is None or tasks.score(example, {"answer": result["answer"]}) == result["score"]
