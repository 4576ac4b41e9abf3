"""DSPy's optimisers of weights: the rows that a provider is handed, and the program that it gives back.

The provider here is real code of the interface that DSPy trains through: it writes the rows to disk, reads them again,
and its trained model knows the facts that they show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.clients.provider import Provider

from rlm_dspy import RLM, optimizers
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, ScriptedLM

pytestmark = [pytest.mark.usefixtures("no_leaks"), pytest.mark.filterwarnings("ignore:set_lm:UserWarning")]


class Trainer(Provider):
    """Fine-tunes by reading: what the rows' assistants wrote is what the model knows from then on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.finetunable = True
        self.folder = folder
        self.killed: list[str] = []

    def launch(self, lm: Any, launch_kwargs: Any = None) -> None:
        pass

    def kill(self, lm: Any, launch_kwargs: Any = None) -> None:
        self.killed.append(lm.model)

    def finetune(self, job: Any, model: str, train_data: Any, train_data_format: Any, train_kwargs: Any = None) -> str:
        name = f"{model}-tuned-{len(list(self.folder.iterdir()))}"
        path = self.folder / f"{name.replace('/', '_')}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in train_data))
        return name

    def rows(self, model: str = "") -> list[list[dict[str, str]]]:
        """The messages of every row, of all models or the one of that name."""
        files = sorted(self.folder.glob(f"{model.replace('/', '_')}*.jsonl"))
        return [json.loads(line)["messages"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    yield Trainer(folder)


def trainable(toy: Any, trainer: Trainer) -> ScriptedLM:
    """A model in all seats that knows what its training rows showed."""

    def policy(call: Call) -> str:
        known = set()
        if "-tuned-" in call.request.model:
            learned = "\n".join(row[-1]["content"] for row in trainer.rows(call.request.model))
            prompts = "\n".join(row[-2]["content"] for row in trainer.rows(call.request.model))
            known |= {"separator"} if "split(';;')" in learned else set()
            known |= {"unit"} if '"UNIT=thousand" in header' in learned else set()
            known |= {"irony"} if "!s" in prompts and "complaint" in learned else set()
        return str(toy.every_role(call, known))

    return ScriptedLM(policy, model="scripted/base", provider=trainer)


def test_bootstrap_finetune(
    sandbox: Environment, toy: Any, trainer: Trainer, root_lm: ScriptedLM, proven: Callable[..., RLM]
) -> None:
    lm = trainable(toy, trainer)
    student = toy.program(sandbox)
    student.set_lm(lm)
    assert toy.scores(student)["act"] == 0.0
    optimizer = dspy.BootstrapFinetune(metric=toy.metric, num_threads=2)
    with optimizers.evaluating():
        compiled = optimizer.compile(student, trainset=toy.trainset(chars=300_000))
    rows = trainer.rows()
    # One row a call of a predictor in a run that was right: three turns each of the root, as many of a child.
    assert len(rows) > 20
    assert all([message["role"] for message in row] == ["system", "user", "assistant"] for row in rows)
    assert all(row[-1]["content"].strip() for row in rows)
    assert max(len(json.dumps(row)) for row in rows) < 10_000
    text = json.dumps(rows)
    assert "SHOW_VARS" not in text and "quiet and nothing of note" not in text
    assert "split(';;')" in text and "complaint" in text
    assert {predictor.lm.model for predictor in compiled.predictors()} == {"scripted/base-tuned-0"}
    proven(compiled, lm=compiled.act.lm)


@pytest.mark.heavy
def test_better_together(
    sandbox: Environment, toy: Any, trainer: Trainer, root_lm: ScriptedLM, proven: Callable[..., RLM]
) -> None:
    """Prompts, then weights of a program that has learned by prompts."""
    lm = trainable(toy, trainer)
    student = toy.program(sandbox)
    student.set_lm(lm)
    optimizer = dspy.BetterTogether(
        metric=toy.metric,
        p=dspy.BootstrapFewShot(metric=toy.metric, max_bootstrapped_demos=6, max_labeled_demos=0),
        w=dspy.BootstrapFinetune(metric=toy.metric, num_threads=2, exclude_demos=True),
    )
    with optimizers.evaluating():
        compiled = optimizer.compile(
            student, trainset=toy.trainset(), valset=toy.devset(), strategy="p -> w", num_threads=2, seed=0
        )
    assert not compiled.flag_compilation_error_occurred
    found = {candidate["strategy"]: candidate["score"] for candidate in compiled.candidate_programs}
    assert found.keys() == {"", "p", "p -> w"}
    assert found["p"] > found[""] and found["p -> w"] >= found["p"]
    last = next(c["program"] for c in compiled.candidate_programs if c["strategy"] == "p -> w")
    assert last.act.demos == [] and last.act.lm.model.startswith("scripted/base-tuned")
    proven(last, lm=last.act.lm)
