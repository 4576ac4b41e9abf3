"""Whole runs as demonstrations: they teach root and sub-calls, show only what happened, and carry no contract along."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy import RLM, ConfigurationError, Guidance
from rlm_dspy.environments.base import Environment
from rlm_dspy.optimizers import BootstrapTrajectories, collect
from rlm_dspy.optimizers.demos import Candidate, chosen
from rlm_dspy.optimizers.watching import watched
from rlm_dspy.testing import Call, ScriptedLM, code, outputs

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_demonstrations_of_runs_teach_the_root_and_the_sub_calls(
    sandbox: Environment, toy: Any, tmp_path: Path
) -> None:
    """On logs that hide every fact, from 0 to all of them, also in a fresh program that loads what was saved."""
    student = toy.program(sandbox)
    optimizer = BootstrapTrajectories(toy.metric, num_threads=2)
    with dspy.context(lm=ScriptedLM(toy.root)):
        assert toy.scores(student, toy.heldout()[:3])["all"] < 0.2
        compiled = optimizer.compile(student, trainset=toy.trainset())
        assert toy.scores(compiled, toy.heldout()[:3]) == {"act": 1.0, "sub": 1.0, "all": 1.0}
        compiled.save(tmp_path / "taught.json")
        fresh = toy.program(sandbox, max_llm_calls=41)
        fresh.load(tmp_path / "taught.json")
        lm = ScriptedLM(toy.root)
        with dspy.context(lm=lm):
            assert toy.scores(fresh, toy.heldout()[:1])["all"] == 1.0
    assert student.act.demos == [] and student.sub.demos == []
    # Failed runs are scored and kept, not dropped.
    assert len(optimizer.attempts) == len(toy.trainset())
    assert {attempt.score for attempt in optimizer.attempts} == {0.0, 1.0}
    for demo in compiled.act.demos:
        assert demo.code.startswith("SUBMIT(amount") and demo.task == toy.QUERY
        assert "".join(turn["output"] for turn in demo.turns).count("records") >= 1
    assert {demo.response for demo in compiled.sub.demos} == {"complaint", "praise"}
    # The contract is told anew by each run, whole; what is saved has nothing of it.
    saved = (tmp_path / "taught.json").read_text()
    assert [word for word in ("SHOW_VARS", "budget()", "sub-LM calls", "turn 2 of", "max_") if word in saved] == []
    first = lm.calls[0].own[0]["content"]
    assert all(part in first for part in ("`log`", "llm_query(", "rlm_query(", "41 sub-LM", "SUBMIT(amount=..."))


def test_what_a_demonstration_shows_happened(sandbox: Environment) -> None:
    """Each turn is one of the run, in order, with its code whole and of its output a head and a tail."""

    def root(call: Call) -> str:
        steps = [
            "I do not know how to begin.",
            code("print('a' * 5_000, 'middle', 'z' * 5_000)", "Look."),
            code("1 / 0"),
            code("SUBMIT(answer='done')", "There it is."),
        ]
        return steps[call.turn]

    rlm = RLM("text, query -> answer", interpreter=sandbox)
    examples = [dspy.Example(text="t", query="what?", answer="done").with_inputs("text", "query")]
    optimizer = BootstrapTrajectories(lambda e, p, t=None: p.answer == e.answer)
    with dspy.context(lm=ScriptedLM(root)):
        compiled = optimizer.compile(rlm, trainset=examples)
        prediction = rlm(text="t", query="what?")
    (demo,) = compiled.act.demos
    turns = [turn for turn in prediction.trajectory if turn.code]
    assert [turn["reply"].count("```python") for turn in demo.turns] == [1, 1]
    assert all(turn.code in shown["reply"] for turn, shown in zip(turns, demo.turns, strict=False))
    head, _, tail = demo.turns[0]["output"].partition("\n[… ")
    assert turns[0].shown.startswith(head) and turns[0].shown.endswith(tail.partition("…]\n")[2])
    assert len(demo.turns[0]["output"]) < 1_000 and "ZeroDivisionError" in demo.turns[1]["output"]
    assert demo.code == "SUBMIT(answer='done')" and demo.reasoning == "There it is."
    assert json.loads(json.dumps(demo.toDict())) == demo.toDict()


def test_a_run_that_looked_is_shown_before_a_shorter_one_that_guessed(sandbox: Environment) -> None:
    """A demonstration of the first kind would teach to submit whatever comes to mind."""
    examples = [dspy.Example(context=f"word: {word}", answer=word).with_inputs("context") for word in ("oak", "elm")]

    def root(call: Call) -> str:
        if "oak" in call.own[0]["content"]:
            return code("SUBMIT('oak')", "It is oak.")
        return code(["print(context)", "SUBMIT(context.split()[-1])"][call.turn], "I look, and then answer.")

    optimizer = BootstrapTrajectories(lambda example, pred, trace=None: pred.answer == example.answer, max_demos=1)
    with dspy.context(lm=ScriptedLM(root)):
        compiled = optimizer.compile(RLM("context -> answer", interpreter=sandbox), trainset=examples)
        (demo,) = compiled.act.demos
        assert [turn["output"] for turn in demo.turns] == ["word: elm"]
        # Where there is nothing better, it is shown all the same.
        only = optimizer.compile(RLM("context -> answer", interpreter=sandbox), trainset=examples[:1])
    assert [demo.code for demo in only.act.demos] == ["SUBMIT('oak')"]


def test_replies_of_a_teacher_are_shown_in_the_dialect_of_the_student(sandbox: Environment) -> None:
    student = RLM("text -> answer", interpreter=sandbox, guidance=Guidance(plain_dialect=False))
    teacher = ScriptedLM(
        [
            "[[ ## reasoning ## ]]\nLook.\n\n[[ ## code ## ]]\nprint(1)\n\n[[ ## completed ## ]]",
            "[[ ## reasoning ## ]]\nDone.\n\n[[ ## code ## ]]\nSUBMIT('x')\n\n[[ ## completed ## ]]",
        ]
    )
    examples = [dspy.Example(text="t", answer="x").with_inputs("text")]
    refused = ScriptedLM([])
    with dspy.context(lm=refused):
        compiled = BootstrapTrajectories(teacher_lm=teacher).compile(student, trainset=examples)
    assert refused.calls == []
    (demo,) = compiled.act.demos
    assert demo.turns[0]["reply"].startswith("[[ ## reasoning ## ]]\nLook.")


class Part(pydantic.BaseModel):
    name: str
    size: int


def test_typed_sub_calls_and_modules_around_get_demonstrations_that_survive_saving(
    sandbox: Environment, tmp_path: Path
) -> None:
    class Program(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            sub_calls = {"part": dspy.Signature("line: str -> part: Part", custom_types={"Part": Part})}
            self.rlm = RLM("text -> total: int", sub_calls=sub_calls, sub_lm=ScriptedLM(sub), interpreter=sandbox)
            self.say = dspy.Predict("total: int -> words")

        def forward(self, text: str) -> dspy.Prediction:
            return self.say(total=self.rlm(text=text).total)

    def sub(call: Call) -> str:
        size = 7 if "seven" in call.prompt else 3
        return outputs(part={"name": f"p{size}", "size": size})

    def root(call: Call) -> str:
        if "total" in call.system and "REPL" not in call.system:
            return outputs(words="ten")
        source = "parts = part_batched(text.splitlines())\nSUBMIT(sum(p.size for p in parts))"
        return code(source, "Ask about each line.")

    examples = [dspy.Example(text="seven bolts\nthree nuts", words="ten").with_inputs("text")]
    with dspy.context(lm=ScriptedLM(root)):
        compiled = BootstrapTrajectories(lambda e, p, t=None: p.words == e.words).compile(Program(), trainset=examples)
    names = {name: predictor.demos for name, predictor in compiled.named_predictors()}
    assert {name for name, demos in names.items() if demos} == {"rlm.act", "rlm.sub_calls['part']", "say"}
    compiled.save(tmp_path / "state.json")
    fresh = Program()
    fresh.load(tmp_path / "state.json")
    lm = ScriptedLM(sub)
    fresh.rlm.sub_lm = lm
    with dspy.context(lm=ScriptedLM(root)):
        assert fresh(text="three nuts\nseven bolts").words == "ten"
    shown = "\n".join(message["content"] for message in lm.calls[0].messages)
    assert '{"name":"p7","size":7}' in shown.replace(" ", "")


def test_more_attempts_are_made_only_where_none_succeeded(sandbox: Environment) -> None:
    """The second goes past the cache, which would give the first again."""
    asked: list[str] = []

    def root(call: Call) -> str:
        task = call.own[0]["content"]
        asked.append("hard" if "hard" in task else "easy")
        return code(f"SUBMIT(answer={'no' if asked.count('hard') == 1 and 'hard' in task else 'yes'!r})")

    rlm = RLM("query -> answer", interpreter=sandbox)
    examples = [dspy.Example(query=q, answer="yes").with_inputs("query") for q in ("easy", "hard")]
    optimizer = BootstrapTrajectories(lambda e, p, t=None: p.answer == e.answer, rollouts=3, num_threads=1)
    with dspy.context(lm=ScriptedLM(root, cache=True, temperature=0.0)):
        compiled = optimizer.compile(rlm, trainset=examples)
    assert asked == ["easy", "hard", "hard"]
    assert [(a.example.query, a.rollout, a.score) for a in optimizer.attempts] == [
        ("easy", 0, 1.0),
        ("hard", 0, 0.0),
        ("hard", 1, 1.0),
    ]
    assert [demo.task for demo in compiled.act.demos] == ["easy", "hard"]


def test_an_attempt_that_raises_is_scored_and_kept_and_too_many_end_it(sandbox: Environment) -> None:
    def root(call: Call) -> str:
        if "hopeless" in call.own[0]["content"]:
            raise RuntimeError("no such model; key sk-0123456789abcdef0123456789abcdef")
        return code("SUBMIT(answer='yes')")

    rlm = RLM("query -> answer", interpreter=sandbox)
    examples = [dspy.Example(query=q, answer="yes").with_inputs("query") for q in ("hopeless", "good")]
    with dspy.context(lm=ScriptedLM(root)):
        attempts = collect(rlm, examples, lambda e, p, t=None: p.answer == e.answer, num_threads=2)
        assert [(a.score, a.prediction is None) for a in attempts] == [(0.0, True), (1.0, False)]
        assert "no such model" in str(attempts[0].error) and "sk-0123" not in str(attempts[0].error)
        kept: list[Any] = []
        with pytest.raises(RuntimeError, match="no such model"):
            collect(rlm, examples[:1], num_threads=1, into=kept)
        assert len(kept) == 1
        with pytest.raises(RuntimeError, match="1 attempts raised an error"):
            collect(rlm, examples, num_threads=1, max_errors=0)

        def broken(*_: Any) -> float:
            raise ZeroDivisionError

        (attempt,) = collect(rlm, examples[1:], broken)
        assert attempt.score == 0.0 and "metric raised ZeroDivisionError" in str(attempt.error)
        assert attempt.prediction.answer == "yes"


def test_what_is_stopped_begins_no_further_run(sandbox: Environment) -> None:
    lm = ScriptedLM(lambda call: code("SUBMIT(answer='yes')"))
    with watched(lm) as watcher:
        watcher.stop()
        RLM("query -> answer", interpreter=sandbox)(query="q")
    (ran,) = watcher.ran.values()
    assert ran.outcome != "submitted" and len(ran.trajectory) == 0


def test_what_is_no_unicode_is_shown_as_it_was_sent_and_can_be_saved(sandbox: Environment, tmp_path: Path) -> None:
    steps = [code("print(chr(0xD800), chr(0), llm_query('x' + chr(0xDFFF)))"), code("SUBMIT(answer='done')")]
    rlm = RLM("query -> answer", interpreter=sandbox, sub_lm=ScriptedLM(lambda call: "yes"))
    examples = [dspy.Example(query="q", answer="done").with_inputs("query")]
    with dspy.context(lm=ScriptedLM(lambda call: steps[call.turn])):
        compiled = BootstrapTrajectories().compile(rlm, trainset=examples)
    compiled.save(tmp_path / "state.json")
    assert "\\ud800 \0 yes" in compiled.act.demos[0].turns[0]["output"]
    assert compiled.sub.demos[0].prompt == "x\\udfff"


def test_attempts_over_large_inputs_stay_small(sandbox: Environment) -> None:
    rlm = RLM("text, query -> answer", interpreter=sandbox, max_depth=2, sub_lm=ScriptedLM(lambda call: "yes"))
    examples = [dspy.Example(text="a" * 500_000, query="q", answer="done").with_inputs("text", "query")]

    def root(call: Call) -> str:
        if "SUBMIT(response" in call.own[0]["content"]:
            return code("SUBMIT(response='b' * 200_000)")
        return code("part = rlm_query('go', text=text)\nSUBMIT(answer='done')")

    with dspy.context(lm=ScriptedLM(root)):
        (attempt,) = collect(rlm, examples)
    assert attempt.score == 1.0 and len(attempt.ran) == 2 and attempt.prediction.trajectory.children
    kept = pickle.dumps([attempt.ran, attempt.prediction.trajectory.events])
    assert len(kept) < 100_000
    started = attempt.prediction.trajectory.events[0]
    assert "an attempt keeps no value of 5" in started.inputs["text"].why and started.inputs["query"].value() == "q"


def test_wrong_arguments_say_what_is_right(sandbox: Environment) -> None:
    rlm = RLM("query -> answer", interpreter=sandbox)
    with pytest.raises(ConfigurationError, match="with_inputs"):
        BootstrapTrajectories().compile(rlm, trainset=[dspy.Example(query="q", answer="a")])
    with pytest.raises(ConfigurationError, match="no examples"):
        BootstrapTrajectories().compile(rlm, trainset=[])
    with pytest.raises(ConfigurationError, match="max_demos must be a whole number from 0, not -1"):
        BootstrapTrajectories(max_demos=-1)
    with pytest.raises(ConfigurationError, match="none of the student's predictors"):
        example = dspy.Example(query="q").with_inputs("query")
        BootstrapTrajectories().compile(rlm, trainset=[example], teacher=dspy.Predict("query -> answer"))


_WORDS = st.frozensets(st.sampled_from("abcdefgh"), min_size=1)
_CANDIDATES = st.lists(
    st.builds(
        Candidate,
        demo=st.fixed_dictionaries({"text": st.text("xy", max_size=3)}),
        tokens=st.integers(1, 50),
        faults=st.integers(0, 2),
        answer=st.sampled_from(["", "yes", "no"]),
        words=_WORDS,
    ),
    max_size=12,
)


@given(found=_CANDIDATES, most=st.integers(0, 5), tokens=st.integers(1, 100), seed=st.integers(0, 9))
def test_a_choice_keeps_its_bounds_and_does_not_hang_on_the_order(
    found: list[Candidate], most: int, tokens: int, seed: int
) -> None:
    taken = chosen(found, most, tokens)
    assert len(taken) <= most and sum(one.tokens for one in taken) <= tokens
    assert len({one.words for one in taken}) == len(taken)
    fitting = [one for one in found if one.tokens <= tokens]
    assert bool(taken) == bool(fitting and most)
    if taken:
        assert taken[0].faults == min(one.faults for one in fitting)
    shuffled = list(found)
    random.Random(seed).shuffle(shuffled)
    assert [(c.demo, c.tokens, c.words) for c in chosen(shuffled, most, tokens)] == [
        (c.demo, c.tokens, c.words) for c in taken
    ]
