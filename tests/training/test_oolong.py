"""The task set of the published OOLONG data: from a file, from a saved folder, and where it cannot be had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import policy, traces

pytest.importorskip("verifiers", reason="needs pip install 'rlm-dspy[train]'")
pytestmark = pytest.mark.heavy


def row(number: int, **more: Any) -> dict[str, Any]:
    """A row with the fields of the data set, made up here."""
    text = f"Date: Dec 12, 2022 || User: {number} || Instance: free money now"
    return {
        "id": 17_000_000 + number,
        "context_len": 1024,
        "dataset": "spam",
        "context_window_text": text,
        "context_window_text_with_labels": f"{text} || Label: spam",
        "question": "Which label is the most common? Give your final answer in the form 'Label: answer'.",
        "task_group": "counting",
        "task": "TASK_TYPE.MOST_FREQ",
        "answer": "['spam']",
        "answer_type": "ANSWER_TYPE.LABEL",
        "input_subset": False,
        "num_labels": 2,
        "context_window_id": 3,
        **more,
    }


ROWS = [
    row(0),
    row(1, dataset="trec_coarse", answer="['entity', 'location']"),
    row(2, context_len=2048, answer="[7]", answer_type="ANSWER_TYPE.NUMERIC"),
    row(3, dataset="trec_coarse", context_len=2048),
]
AGENT = {"harness": {"environment": "subprocess", "options": {"guidance": False}}}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "oolong.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in ROWS) + "\n\n")
    return path


def numbers(source: Any, **config: Any) -> list[int]:
    import verifiers.v1 as vf

    env = vf.resolve_env_config({"taskset": {"id": "rlm-dspy-oolong", "source": str(source), **config}})
    return [task.data.number for task in vf.load_taskset(env.taskset)]


def test_rows_of_a_file_are_played_and_scored_both_ways(serve: Any, play: Any, lines: Path) -> None:
    server = serve(policy("SUBMIT(answer='Label: SPAM' if 'free money' in context else '')"))
    subset = {"id": "rlm-dspy-oolong", "source": str(lines)}
    found = play(server, taskset=subset, agent=AGENT, limit=3)
    roots = [traces(episode)["agent"] for episode in found]
    assert [root.reward for root in roots] == [1.0, 0.0, 0.0]
    assert [root.metrics["official"] for root in roots] == [0.0, 0.0, 0.0], "the published scorer minds the case"
    assert "free money" not in json.dumps([root.task.data.model_dump(mode="json") for root in roots])
    assert all("Which label" in root.info["rlm"]["query"] for root in roots)


def test_rows_are_chosen(lines: Path) -> None:
    assert numbers(lines) == [0, 1, 2, 3]
    assert numbers(lines, datasets=["trec_coarse"]) == [1, 3]
    assert numbers(lines, context_lens=[2048], num_tasks=1) == [2]
    assert numbers(lines, answer_types=["NUMERIC"]) == [2]


def test_the_labelled_text_is_another_context(lines: Path) -> None:
    from rlm_dspy.training.oolong import OolongData

    data = {"id": str(ROWS[1]["id"]), "source": str(lines), "split": "validation", "number": 1, "prompt": "?"}
    plain, labelled = OolongData(**data).case(), OolongData(**data, labelled=True).case()
    assert labelled.inputs["context"] == plain.inputs["context"] + " || Label: spam"


def test_a_folder_that_datasets_saved_and_a_parquet_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="needs pip install datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"validation": made, "test": made.select([0])}).save_to_disk(str(tmp_path / "both"))
    made.to_parquet(str(tmp_path / "one.parquet"))
    assert numbers(tmp_path / "plain") == numbers(tmp_path / "one.parquet") == [0, 1, 2, 3]
    assert numbers(tmp_path / "both", split="test") == [0]


def test_what_cannot_be_had_says_what_to_do(tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.errors import ConfigurationError

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "other.jsonl").write_text('{"text": "x"}\n')
    for source, said in ((tmp_path / "no.jsonl", "datasets|cannot be loaded"), (tmp_path / "other.jsonl", "lack id")):
        with pytest.raises(ConfigurationError, match=said):
            numbers(source)
    with pytest.raises(ConfigurationError, match="no row"):
        numbers(lines, datasets=["nothing"])


def test_other_data_under_the_same_name_is_no_silent_mistake(lines: Path) -> None:
    from rlm_dspy.errors import RLMError
    from rlm_dspy.training.oolong import OolongData

    data = {"id": "5", "source": str(lines), "split": "validation", "number": 1, "prompt": "?"}
    with pytest.raises(RLMError, match="other data"):
        OolongData(**data).case()
