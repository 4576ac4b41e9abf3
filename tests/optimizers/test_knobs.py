"""`search_knobs`: options measured by score and cost on the same examples, none twice, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers import Rollout, search_knobs
from rlm_dspy.testing import Call, ScriptedLM, code, outputs


def root(call: Call) -> str:
    """Looks as often as it can, and asks in its third turn."""
    if "No more code can run" in call.prompt:
        return outputs(answer="?")
    if call.turn < 2:
        return code(f"print(text, {call.turn})")
    return code("SUBMIT(llm_query('Read: ' + text))" if call.turn == 2 else "SUBMIT('late')")


def reader(*known: str, wordy: int = 0) -> ScriptedLM:
    def read(call: Call) -> str:
        word = call.prompt.removeprefix("Read: ")
        return word if word in known else "?" * max(1, wordy)

    return ScriptedLM(read, model=f"scripted/{len(known)}")


EXAMPLES = [dspy.Example(text=word, answer=word).with_inputs("text") for word in ("heron", "otter")]
LARGE, SMALL = reader("heron", "otter"), reader("heron")


def metric(gold: Any, pred: Any, trace: Any = None) -> float:
    return float(pred.answer == gold.answer)


@pytest.fixture
def program(no_leaks: None) -> Any:
    with dspy.context(lm=ScriptedLM(root, model="scripted/root"), num_threads=2):
        yield RLM("text -> answer", interpreter="inprocess", guidance=False, sub_lm=SMALL)


def test_every_combination_is_measured_on_every_example(program: RLM) -> None:
    found = search_knobs(program, EXAMPLES, metric, {"max_iters": [2, 6], "sub_lm": {"large": LARGE, "small": SMALL}})
    assert [(s.options["max_iters"], s.options["sub_lm"], s.score) for s in found.settings] == [
        ("2", "large", 0.0),
        ("2", "small", 0.0),
        ("6", "large", 1.0),
        ("6", "small", 0.5),
    ]
    assert found.best == 2 and found.best in found.front
    assert found.settings[found.cheapest(within=1.0)].tokens == min(s.tokens for s in found.settings)
    chosen = found.program(found.best)
    assert chosen.max_iters == 6 and chosen.sub_lm is LARGE and chosen.act is program.act
    assert program.max_iters == 20 and program.sub_lm is SMALL
    assert chosen(text="otter").answer == "otter"
    assert "max_iters=6, sub_lm=large: 1.000" in str(found)
    assert found.to_svg().startswith("<svg")


def test_more_values_cost_only_their_own_runs(program: RLM, tmp_path: Path) -> None:
    seen: list[Rollout] = []
    given: dict[str, Any] = {"folder": tmp_path / "knobs", "on_rollout": seen.append}
    search_knobs(program, EXAMPLES, metric, {"max_iters": [2, 6]}, **given)
    assert len(seen) == 4
    found = search_knobs(program, EXAMPLES, metric, {"max_iters": [2, 4, 6]}, **given)
    assert len(seen) == 6 and len(found.settings) == 3
    with pytest.raises(ConfigurationError, match="another compile"):
        search_knobs(program, EXAMPLES, metric, {"max_output_chars": [900]}, **given)


def test_what_cannot_be_is_refused_before_anything_runs(program: RLM) -> None:
    seen: list[Rollout] = []

    def search(knobs: Any, examples: Any = EXAMPLES, **options: Any) -> Any:
        return search_knobs(program, examples, metric, knobs, on_rollout=seen.append, **options)

    with pytest.raises(ConfigurationError, match="max_turns"):
        search({"max_turns": [1]})
    with pytest.raises(ConfigurationError, match="6 runs, more than max_metric_calls=5"):
        search({"max_iters": [1, 2, 3]}, max_metric_calls=5)
    with pytest.raises(ConfigurationError, match="name what is no plain data"):
        search({"sub_lm": [SMALL]})
    with pytest.raises(ConfigurationError, match="a list of values"):
        search({"max_iters": 6})
    with pytest.raises(ConfigurationError, match="give some knobs"):
        search({})
    with pytest.raises(ConfigurationError, match="give some examples"):
        search({"max_iters": [6]}, [])
    with pytest.raises(ConfigurationError, match="takes an RLM"):
        search_knobs(dspy.Predict("text -> answer"), EXAMPLES, metric, {"max_iters": [6]})  # type: ignore[arg-type]
    assert seen == []
