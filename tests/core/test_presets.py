"""Presets: what was learned on one task serves another, with its history, and without an LM or a key in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, ConfigurationError, presets
from rlm_dspy.environments.base import Environment
from rlm_dspy.presets import Score
from rlm_dspy.testing import Call, ScriptedLM, code

pytestmark = pytest.mark.usefixtures("no_leaks")


def trained(**options: Any) -> RLM:
    """A program that has learned something in every role, with an LM that has a key."""
    rlm = RLM("log, query -> count: int", sub_calls={"classify": "item -> label"}, **options)
    for name, text in (("act", "Split on ;;."), ("sub", "One word."), ("extract", "Be brief.")):
        predictor = getattr(rlm, name)
        predictor.signature = predictor.signature.with_instructions(text)
    rlm.act.demos = [dspy.Example(task="t", turns=[], reasoning="r", code="SUBMIT(7)  # shown", augmented=True)]
    rlm.sub_calls["classify"].demos = [dspy.Example(item="i", label="good", augmented=True)]
    rlm.act.lm = dspy.LM("openai/gpt-5.4-mini", api_key="sk-0123456789abcdef0123456789abcdef")
    return rlm


def write(path: Path, **more: Any) -> presets.Preset:
    """Such a program as a preset."""
    return presets.write(
        path,
        trained(),
        model="openai/gpt-5.4-mini",
        description="For logs.",
        options={"adhoc": False, "max_iters": 7},
        recipe={"optimizer": "bootstrap", "seeds": [1, 2], "key": "sk-0123456789abcdef0123456789abcdef"},
        before=Score(0.25, 0.1, 0.5, 12, "wilson"),
        after=Score(0.75, 0.5, 0.9, 12, "wilson"),
        **more,
    )


def test_a_preset_serves_a_program_of_another_task(tmp_path: Path, sandbox: Environment) -> None:
    write(tmp_path / "logs.json")
    lm = ScriptedLM([code("SUBMIT(answer=llm_query('x'))")])
    sub = ScriptedLM(["yes"])
    rlm = RLM.from_preset(
        tmp_path / "logs.json", "text -> answer", max_iters=9, sub_lm=sub, max_depth=2, interpreter=sandbox
    )
    with dspy.context(lm=lm):
        assert rlm(text="abc").answer == "yes"
    # The user's options come before those of the preset.
    assert (rlm.max_iters, rlm.adhoc) == (9, False)
    assert rlm.act.signature.instructions == "Split on ;;." and rlm.sub.signature.instructions == "One word."
    assert "Split on ;;." in lm.calls[0].system and "# shown" in lm.calls[0].messages[2]["content"]
    assert "Variable `text`" in lm.calls[0].own[0]["content"] and "9 turns" in lm.calls[0].own[0]["content"]
    assert sub.calls[0].system == "One word."
    # ``extract`` has other outputs here and stays as it is.
    assert "Be brief." not in rlm.extract.signature.instructions


def test_the_same_task_gets_all_of_it_and_load_reads_it_too(tmp_path: Path, sandbox: Environment) -> None:
    write(tmp_path / "logs.json")
    signature: Any = "log, query -> count: int"
    mine = ScriptedLM([])
    rlm = RLM(signature, sub_calls={"classify": "item -> label", "other": "a -> b"}, interpreter=sandbox)
    rlm.sub_calls["other"].lm = mine
    taken = presets.apply(presets.read(tmp_path / "logs.json"), rlm)
    assert taken == ["act", "sub_calls['classify']", "sub", "extract", "compact"]
    assert rlm.extract.signature.instructions == "Be brief." and rlm.sub_calls["classify"].demos[0]["label"] == "good"
    assert rlm.sub_calls["other"].lm is mine
    # A sub-call of that name with other fields is another one.
    other = RLM.from_preset(tmp_path / "logs.json", signature, sub_calls={"classify": "text -> kind"})
    assert other.sub_calls["classify"].demos == []
    loaded = trained(interpreter=sandbox)
    loaded.act.demos = []
    loaded.load(tmp_path / "logs.json")
    assert [demo["code"] for demo in loaded.act.demos] == ["SUBMIT(7)  # shown"]


def test_the_file_tells_how_it_was_made_and_holds_no_key(tmp_path: Path) -> None:
    made = write(tmp_path / "logs.json")
    text = (tmp_path / "logs.json").read_text()
    assert "sk-0123" not in text and json.loads(text)["act"]["lm"] is None
    read = presets.read(tmp_path / "logs.json")
    assert (read.name, read.model, read.description) == ("logs", "openai/gpt-5.4-mini", "For logs.")
    assert read.before == made.before == Score(0.25, 0.1, 0.5, 12, "wilson") and str(read.after) == (
        "0.75 (0.50 to 0.90, n=12)"
    )
    assert str(read) == (
        f"logs: for openai/gpt-5.4-mini by bootstrap, {made.date}; For logs.; "
        f"before 0.25 (0.10 to 0.50, n=12); after {read.after}"
    )
    assert read.recipe["seeds"] == [1, 2] and read.date == made.date and read.versions["dspy"] == dspy.__version__


def test_a_saved_state_is_a_preset_without_a_history(tmp_path: Path) -> None:
    trained().save(tmp_path / "state.json")
    read = presets.read(tmp_path / "state.json")
    assert (read.name, read.model, read.before, read.recipe) == ("state", "", None, {})
    assert RLM.from_preset(tmp_path / "state.json", "a -> b").act.demos[0]["task"] == "t"


def test_no_file_is_lost_and_what_is_no_preset_is_told(tmp_path: Path) -> None:
    write(tmp_path / "logs.json")
    before = (tmp_path / "logs.json").read_bytes()
    with pytest.raises(ConfigurationError, match="is there already"):
        write(tmp_path / "logs.json")
    assert (tmp_path / "logs.json").read_bytes() == before
    write(tmp_path / "logs.json", name="again", force=True)
    assert presets.read(tmp_path / "logs.json").name == "again"
    with pytest.raises(ConfigurationError, match="no preset 'gpt-9'"):
        RLM.from_preset("gpt-9", "a -> b")
    (tmp_path / "broken.json").write_text("[1, 2]")
    with pytest.raises(ConfigurationError, match="is no preset"):
        presets.read(tmp_path / "broken.json")
    newer = json.loads(before) | {"preset": {"schema": 99}}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    with pytest.raises(ConfigurationError, match="schema 99"):
        presets.read(tmp_path / "newer.json")


def test_every_preset_that_is_shipped_is_whole() -> None:
    """It names its recipe and its scores, and makes a program of any signature that tells its root what was learned."""
    for name in presets.names():
        preset = presets.read(name)
        assert preset.name == name and preset.model and preset.date and preset.recipe and preset.versions
        assert preset.before is not None and preset.after is not None and preset.after.n >= 12
        rlm = RLM.from_preset(name, "document, question -> answer: list[str]")
        lm = ScriptedLM(lambda call: code("SUBMIT(answer=[])"))
        with dspy.context(lm=lm):
            rlm(document="a", question="b")
        first: Call = lm.calls[0]
        assert rlm.act.signature.instructions in first.system
        sent = "".join(str(message["content"]) for message in first.messages)
        assert all(str(demo["code"]).strip() in sent for demo in rlm.act.demos)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "must be a JSON object"),
        ('{"preset": [1]}', "preset must be a JSON object"),
        ('{"preset": {"options": [1]}}', "options must be a JSON object"),
        ('{"act": {"demos": [1]}}', "demonstrations of act must be a list"),
        ('{"preset": {"options": {"interpreter": "inprocess"}}}', "where code runs is yours to say"),
    ],
)
def test_a_damaged_file_or_one_that_takes_the_sandbox_away_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ConfigurationError, match=said):
        RLM.from_preset(tmp_path / "p.json", "log -> n: int")
    with pytest.raises(ConfigurationError, match="where code runs"):
        presets.write(tmp_path / "new.json", RLM("a -> b"), options={"interpreter": "subprocess"})
    assert not (tmp_path / "new.json").exists()
