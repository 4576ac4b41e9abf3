"""`RLMGEPA` learns from whole trajectories, pays no rollout twice, survives being killed, promotes what is better.

The task: a text holds a word behind a mark. The root finds it if its strategy names the mark, which only an output of
its runs shows; the sub-LM reads it backwards if its instruction says so, which only its calls show.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, ContextLengthError
from hypothesis import given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM
from rlm_dspy.errors import ConfigurationError, MissingExtraError, RecordingError, RLMError
from rlm_dspy.optimizers import RLMGEPA, Rollout, feedback, paired_p, pareto_front
from rlm_dspy.optimizers.promotion import decide
from rlm_dspy.optimizers.rollouts import Runs, example_digest, roll_out
from rlm_dspy.redact import hide
from rlm_dspy.testing import Call, Reply, ScriptedLM, code, outputs

WORDS = ("heron", "otter", "raven", "stoat", "viper", "bison", "camel", "dingo", "egret", "finch", "gecko", "hyena")


def root(call: Call) -> str:
    if "No more code can run" in call.prompt:
        return outputs(answer="?")
    if call.turn == 0:
        return code("print('the text begins', text[:12])", "Look first.")
    if "@@" not in call.system:
        return code("SUBMIT('none')", "No idea where it is.")
    if call.turn == 1:
        return code("word = llm_query('Read: ' + text.split('@@')[1])\nprint(word)", "Take what is marked.")
    return code("SUBMIT(word)")


def sub(call: Call) -> str:
    word = call.prompt.removeprefix("Read: ").strip()
    return word[::-1] if "backwards" in call.system else word


def reflect(call: Call) -> str:
    """Knows only what is in its prompt."""
    prompt = call.prompt
    part = re.search(r"`(\w+)`:", prompt)
    assert part is not None
    if part[1] == "act" and "the text begins @@" in prompt:
        return outputs(new_instruction="The word stands between @@ and @@.")
    if part[1] == "sub" and "It answered:" in prompt:
        return outputs(new_instruction="Read the word backwards.")
    return outputs(new_instruction="Take care.")


def examples(count: int, first: int = 0) -> list[dspy.Example]:
    return [
        dspy.Example(text=f"@@{word[::-1]}@@ {'filler ' * 20}{n}", answer=word).with_inputs("text")
        for n, word in ((n, WORDS[n % len(WORDS)]) for n in range(first, first + count))
    ]


def metric(gold: Any, pred: Any, trace: Any = None) -> float:
    """A little for a word that is there, all for the right one."""
    return 1.0 if pred.answer == gold.answer else 0.5 if pred.answer == gold.answer[::-1] else 0.0


def program(**options: Any) -> RLM:
    given: dict[str, Any] = {"sub_lm": ScriptedLM(sub, model="scripted/sub"), "interpreter": "inprocess"} | options
    return RLM("text -> answer", guidance=False, max_iters=4, **given)


def optimizer(**options: Any) -> RLMGEPA:
    given: dict[str, Any] = {
        "reflection_lm": ScriptedLM(reflect, model="scripted/reflection"),
        "max_metric_calls": 60,
        "num_threads": 2,
    }
    return RLMGEPA(options.pop("metric", metric), **{**given, **options})


@pytest.fixture
def lm(no_leaks: None) -> Any:
    root_lm = ScriptedLM(root, model="scripted/root")
    with dspy.context(lm=root_lm):
        yield root_lm


def test_it_learns_what_only_trajectories_show_and_keeps_the_contract(lm: ScriptedLM, tmp_path: Path) -> None:
    made = optimizer()
    student = program()
    compiled = made.compile(student, trainset=examples(6), valset=examples(3, 6), holdout=examples(5, 6))
    result = made.result
    assert result is not None
    assert compiled.act.signature.instructions == "The word stands between @@ and @@."
    assert compiled.sub.signature.instructions == "Read the word backwards."
    assert student.act.signature.instructions != compiled.act.signature.instructions
    assert result.promotion.promoted and result.promotion.held_out and result.promotion.better == 5
    assert result.candidates[0].score == 0.0 and result.candidates[result.best].score == 1.0
    assert "perfect" in result.stopped
    # What was never called is never rewritten.
    assert all(set(c.changed) <= {"act", "sub"} for c in result.candidates)
    before = len(lm.calls)
    compiled(**examples(1)[0].inputs())
    told = lm.calls[before].prompt
    assert [part for part in ("`text`", "llm_query(", "SUBMIT(") if part not in told] == []
    compiled.save(str(tmp_path / "program.json"))
    fresh = program(max_llm_calls=7)
    fresh.load(str(tmp_path / "program.json"))
    assert fresh(**examples(1)[0].inputs()).answer == "heron"


def test_reflection_reads_the_whole_run_and_a_better_one_of_the_same_input(lm: ScriptedLM) -> None:
    reflection = ScriptedLM(reflect, model="scripted/reflection")
    # The student does well on the last one, so it is reflected on again when others do better elsewhere.
    data = [*examples(3), dspy.Example(text="@@nothing@@", answer="none").with_inputs("text")]
    optimizer(reflection_lm=reflection, seed=2).compile(program(), trainset=data)
    prompts = [call.prompt for call in reflection.calls]
    acts = [prompt for prompt in prompts if "`act`:" in prompt]
    assert all(
        part in acts[0] for part in ("--- Turn 1", "Plan: Look first.", "--- Turn 2", "SUBMIT('none')", "Ended: ")
    )
    assert ", got none." in acts[0]
    assert any("A better run of the same input" in prompt for prompt in prompts)
    assert any("summed score" in prompt for prompt in prompts)
    assert all("Variable `text`" not in prompt for prompt in prompts)


def test_an_example_goes_by_what_is_in_it_however_a_set_is_ordered() -> None:
    one, other = (dspy.Example(tags=set(order)) for order in ((0, 8), (8, 0)))
    assert str(one.tags) != str(other.tags) and example_digest(one) == example_digest(other)
    assert example_digest(one) != example_digest(dspy.Example(tags={0, 9}))


def test_no_rollout_is_made_twice(lm: ScriptedLM) -> None:
    seen: list[Rollout] = []
    made = optimizer(on_rollout=seen.append)
    data = examples(4)
    made.compile(program(), trainset=data, valset=data)
    assert made.result is not None
    keys = [rollout.key for rollout in seen]
    assert len(keys) == len(set(keys)) == made.result.rollouts_run == made.result.metric_calls
    # The gate asked for what was there.
    assert made.result.gate_calls == 0 and not made.result.promotion.held_out


def test_a_run_that_begins_after_its_compile_was_stopped_does_nothing(lm: ScriptedLM) -> None:
    runs = Runs()
    runs.stop()
    (example,) = examples(1)
    made = roll_out(program(), example, feedback(metric), candidate="c", digest="d", runs=runs)
    assert made.score == 0.0 and len(lm.calls) <= 1 and all("No more code" in call.prompt for call in lm.calls)


def test_equal_examples_are_measured_apart_and_repeats_too(lm: ScriptedLM) -> None:
    seen: list[Rollout] = []
    made = optimizer(on_rollout=seen.append, repeats=2, max_metric_calls=1)
    made.compile(program(), trainset=examples(1) * 2)
    assert len(seen) == 4
    assert sorted(rollout.seed for rollout in seen) == [0, 0, 1, 1]


def test_failed_runs_are_scored_and_told(lm: ScriptedLM) -> None:
    prompts: list[str] = []

    def broken(call: Call) -> str | Reply:
        if "egret" in call.prompt or "terge" in call.prompt:
            return Reply(error=ValueError("the model fell over"))
        return root(call)

    def noting(call: Call) -> str:
        prompts.append(call.prompt)
        return reflect(call)

    made = optimizer(reflection_lm=ScriptedLM(noting, model="scripted/reflection"), failure_score=-1.0)
    data = [*examples(2), dspy.Example(text="@@terge@@ x", answer="egret").with_inputs("text")]
    with dspy.context(lm=ScriptedLM(broken, model="scripted/root")):
        made.compile(program(), trainset=data)
    assert made.result is not None
    assert -1.0 in made.result.candidates[0].scores
    assert all(len(candidate.scores) == 3 for candidate in made.result.candidates)
    assert made.result.candidates[made.result.best].score > made.result.candidates[0].score


def test_a_metric_that_raises_costs_one_example_not_the_compile(lm: ScriptedLM) -> None:
    def picky(gold: Any, pred: Any, trace: Any = None) -> float:
        if gold.answer == "otter":
            raise KeyError("otter")
        return metric(gold, pred)

    made = optimizer(metric=picky)
    made.compile(program(), trainset=examples(3))
    assert made.result is not None and made.result.candidates[made.result.best].scores[1] == 0.0


def test_a_model_that_does_not_answer_ends_the_compile_at_once(lm: ScriptedLM) -> None:
    down = ScriptedLM(lambda call: Reply(error=ValueError("no such model")), model="scripted/down")
    seen: list[Rollout] = []
    with dspy.context(lm=down), pytest.raises(RLMError, match=r"does not answer: .*no such model"):
        optimizer(on_rollout=seen.append).compile(program(), trainset=examples(4))
    assert len(seen) == 4


def test_a_reflecting_model_that_fails_is_told_and_costs_nothing_that_was_done(lm: ScriptedLM, tmp_path: Path) -> None:
    down = ScriptedLM(lambda call: Reply(error=ValueError("no such model")), model="scripted/reflection")
    with pytest.raises(RLMError, match=r"reflecting model failed \d times: .*no such model"):
        (broken := optimizer(reflection_lm=down, folder=tmp_path)).compile(program(), trainset=examples(3))
    assert broken.result is not None and len(broken.result.candidates) == 1
    again = optimizer(folder=tmp_path, alpha=None)
    assert "@@" in again.compile(program(), trainset=examples(3)).act.signature.instructions
    assert again.result is not None and again.result.rollouts_run == again.result.metric_calls - 3
    # After a proposal was made, what was found until then is given.
    answers = iter(["The word stands between @@ and @@."])

    def fades(call: Call) -> str | Reply:
        text = next(answers, None)
        return Reply(error=ValueError("gone")) if text is None else outputs(new_instruction=text)

    faded = optimizer(reflection_lm=ScriptedLM(fades, model="scripted/fading"), alpha=None)
    assert "@@" in faded.compile(program(), trainset=examples(3)).act.signature.instructions
    assert faded.result is not None and "gone" in faded.result.stopped


def test_a_small_reflecting_model_may_forget_the_form_and_have_a_small_window(lm: ScriptedLM) -> None:
    asked: list[int] = []

    def small(call: Call) -> str | Reply:
        size = sum(len(message["content"]) for message in call.messages)
        asked.append(size)
        if size > 5_000:
            return Reply(error=ContextLengthError("too long"))
        return "Here it is:\n```\nThe word stands between @@ and @@.\n```"

    small_lm = ScriptedLM(small, model="scripted/small")
    made = optimizer(reflection_lm=small_lm, predictors=["act"], minibatch_size=6, alpha=None)
    compiled = made.compile(program(), trainset=examples(6))
    assert compiled.act.signature.instructions == "The word stands between @@ and @@."
    assert max(asked) > 5_000 > min(asked)


@pytest.mark.parametrize("on_limit", ["extract", "raise"])
def test_runs_that_a_limit_ends_are_scored_by_their_best_answer(lm: ScriptedLM, on_limit: Any) -> None:
    def slow(call: Call) -> str:
        if "No more code can run" in call.prompt:
            return outputs(answer="heron")
        return code(f"print({call.turn})")

    seen: list[Rollout] = []
    made = optimizer(on_rollout=seen.append, max_metric_calls=1)
    with dspy.context(lm=ScriptedLM(slow, model="scripted/slow")):
        made.compile(program(on_limit=on_limit), trainset=examples(2))
    assert sorted(rollout.score for rollout in seen) == [0.0, 1.0]
    assert {rollout.outcome for rollout in seen} == {"extracted"}
    assert all({"act", "extract"} <= set(rollout.called) for rollout in seen)
    assert all("the limit max_iters ended the run" in rollout.told["act"] for rollout in seen)


def test_an_outage_of_the_model_ends_the_compile_and_is_no_failure_of_a_candidate(
    lm: ScriptedLM, tmp_path: Path
) -> None:
    down: list[Rollout] = []

    def root_until(call: Call) -> str | Reply:
        return Reply(error=AuthError("bad key")) if len(down) >= 9 else root(call)

    made = optimizer(folder=tmp_path, on_rollout=down.append, num_threads=1)
    root_lm = ScriptedLM(root_until, model="scripted/root")
    with dspy.context(lm=root_lm), pytest.raises(RLMError, match=r"does not answer: .*bad key"):
        made.compile(program(), trainset=examples(6))
    assert made.result is not None and not made.result.promotion.promoted
    assert "broken off" in made.result.promotion.why and len(made.result.candidates) == 1
    assert sum(rollout.outage for rollout in down) >= 2
    again = optimizer(folder=tmp_path)
    again.compile(program(), trainset=examples(6))
    assert again.result is not None and again.result.candidates[again.result.best].score == 1.0
    good = sum(not rollout.outage for rollout in down)
    assert again.result.rollouts_run == again.result.metric_calls - good


def test_a_program_that_always_raises_is_told_at_once(lm: ScriptedLM) -> None:
    class Broken(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rlm = program()

        def forward(self, text: str) -> dspy.Prediction:
            raise LookupError("nothing to look up")

    with pytest.raises(RLMError, match=r"every run .* ended in an error.*nothing to look up"):
        optimizer().compile(Broken(), trainset=examples(2))


SCRIPT = """
import json, os, signal, sys
import dspy
sys.path.insert(0, {here!r})
from test_gepa_compile import examples, optimizer, program, root
from rlm_dspy.testing import ScriptedLM

folder, stop = sys.argv[1], int(sys.argv[2])
rolled = []
def count(rollout):
    rolled.append(rollout.key)
    if len(rolled) == stop:
        os.kill(os.getpid(), signal.SIGKILL)
made = optimizer(folder=folder, on_rollout=count, num_threads=1)
with dspy.context(lm=ScriptedLM(root, model="scripted/root")):
    made.compile(program(), trainset=examples(6), valset=examples(4, 6), holdout=examples(5, 6))
print(json.dumps({{"rolled": rolled, "result": made.result.to_dict()}}))
"""


@pytest.mark.heavy
def test_a_killed_compile_goes_on_and_pays_nothing_twice(
    in_python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    script = SCRIPT.format(here=str(Path(__file__).parent))

    def compile_in(folder: str, stop: int) -> tuple[int, Any]:
        process = in_python(script, str(tmp_path / folder), str(stop))
        out, err = process.communicate(timeout=120)
        assert process.returncode in (0, -signal.SIGKILL), err
        return process.returncode, json.loads(out.splitlines()[-1]) if process.returncode == 0 else None

    _, whole = compile_in("whole", 0)
    total = len(whole["rolled"])
    assert total > 12
    kept = tmp_path / "killed" / "rollouts.jsonl"
    assert compile_in("killed", 9)[0] == -signal.SIGKILL
    done = len(kept.read_bytes().splitlines())
    assert done == 9
    with kept.open("ab") as file:
        # Killed while it wrote a line.
        file.write(b'{"candidate": "half a li')
    _, rest = compile_in("killed", 0)
    assert len(rest["rolled"]) == total - done
    lines = [json.loads(line) for line in kept.read_bytes().splitlines()]
    keys = [(line["candidate"], line["example"], line["seed"]) for line in lines]
    assert len(keys) == len(set(keys)) == total

    def told(result: dict[str, Any]) -> Any:
        timed = ("seconds", "tokens", "rollouts_run", "reflection_calls", "folder", "front", "best")
        plain = {name: value for name, value in result.items() if name not in timed}
        plain["candidates"] = [{k: v for k, v in c.items() if k not in timed} for c in plain["candidates"]]
        return plain

    assert told(rest["result"]) == told(whole["result"])


INTERRUPTED = """
import os, signal, sys, threading, time
import dspy
sys.path.insert(0, {here!r})
from test_gepa_compile import examples, optimizer, program, root
from rlm_dspy.testing import Reply, ScriptedLM

calls = []
def slow(call):
    calls.append(call)
    if len(calls) == 8:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return root(call) if len(calls) < 8 else Reply("", delay=600)
made = optimizer(folder=sys.argv[1])
with dspy.context(lm=ScriptedLM(slow, model="scripted/root")):
    try:
        made.compile(program(), trainset=examples(6))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.heavy
def test_ctrl_c_ends_a_compile_at_once_whatever_its_models_are_doing(
    in_python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = in_python(INTERRUPTED.format(here=str(Path(__file__).parent)), str(tmp_path / "run"))
    out, err = process.communicate(timeout=60)
    assert out.strip() == "interrupted", err
    # Runs that were stopped half-way are no rollouts.
    lines = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert 1 <= len(lines) <= 4 and all(line["outcome"] == "submitted" for line in lines)


def test_an_interrupted_compile_loses_nothing_and_reflections_are_not_paid_twice(
    lm: ScriptedLM, tmp_path: Path
) -> None:
    seen: list[Rollout] = []
    reflection = ScriptedLM(reflect, model="scripted/reflection")

    def interrupt(rollout: Rollout) -> None:
        seen.append(rollout)
        if len(seen) == 8:
            raise KeyboardInterrupt

    data = examples(4)
    with pytest.raises(KeyboardInterrupt):
        optimizer(folder=tmp_path, on_rollout=interrupt, reflection_lm=reflection).compile(program(), trainset=data)
    asked, lines = len(reflection.calls), (tmp_path / "rollouts.jsonl").read_text().count("\n")
    assert asked > 0 and lines >= 7
    made = optimizer(folder=tmp_path, reflection_lm=reflection)
    compiled = made.compile(program(), trainset=data)
    assert made.result is not None and made.result.rollouts_run == made.result.metric_calls - lines
    assert made.result.reflection_calls == len(reflection.calls) - asked
    assert compiled.sub.signature.instructions == "Read the word backwards."
    # A larger budget goes on; nothing at all is left to do.
    more = optimizer(folder=tmp_path, max_metric_calls=90, reflection_lm=reflection)
    before = len(lm.calls)
    more.compile(program(), trainset=data)
    assert more.result is not None and more.result.rollouts_run == more.result.reflection_calls == 0
    assert len(lm.calls) == before


def test_a_folder_of_another_compile_is_refused_and_left_as_it_is(lm: ScriptedLM, tmp_path: Path) -> None:
    optimizer(folder=tmp_path / "one").compile(program(), trainset=examples(3))
    before = (tmp_path / "one" / "rollouts.jsonl").read_bytes()
    with pytest.raises(ConfigurationError, match=r"another compile \(train was"):
        optimizer(folder=tmp_path / "one").compile(program(), trainset=examples(4))
    with pytest.raises(ConfigurationError, match="seed was 0, is 1"):
        optimizer(folder=tmp_path / "one", seed=1).compile(program(), trainset=examples(3))
    other = ScriptedLM(root, model="scripted/other")
    with dspy.context(lm=other), pytest.raises(ConfigurationError, match="models was"):
        optimizer(folder=tmp_path / "one").compile(program(), trainset=examples(3))
    assert (tmp_path / "one" / "rollouts.jsonl").read_bytes() == before
    # Killed before its first line, a folder is as good as a new one.
    (tmp_path / "two").mkdir()
    for name in ("rollouts.jsonl", "proposals.jsonl", ".x.part"):
        (tmp_path / "two" / name).touch()
    optimizer(folder=tmp_path / "two", max_metric_calls=1).compile(program(), trainset=examples(3))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="is a file"):
        optimizer(folder=tmp_path / "file").compile(program(), trainset=examples(3))
    with pytest.raises(ConfigurationError, match="holds other things"):
        optimizer(folder=tmp_path).compile(program(), trainset=examples(3))
    (tmp_path / "one" / "rollouts.jsonl").write_text('{"no": "rollout"}\n')
    with pytest.raises(RecordingError, match="is damaged"):
        optimizer(folder=tmp_path / "one").compile(program(), trainset=examples(3))


def test_two_compiles_do_not_share_a_folder(lm: ScriptedLM, tmp_path: Path) -> None:
    def meanwhile(rollout: Rollout) -> None:
        with pytest.raises(ConfigurationError, match="another process compiles in"):
            optimizer(folder=tmp_path).compile(program(), trainset=examples(3))

    optimizer(folder=tmp_path, on_rollout=meanwhile, max_metric_calls=1).compile(program(), trainset=examples(3))


def test_no_secret_is_in_the_folder_and_nobody_else_reads_it(lm: ScriptedLM, tmp_path: Path) -> None:
    secret = "sekret-zq-4711-sekret"
    hide(secret)
    data = [dspy.Example(text=f"@@{secret}@@ and more {n}", answer=secret[::-1]).with_inputs("text") for n in range(3)]
    folder = tmp_path / "run"
    optimizer(folder=folder).compile(program(), trainset=data)
    assert any("[hidden]" in path.read_text() for path in folder.iterdir())
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        *("compile.json", "rollouts.jsonl", "proposals.jsonl", "result.json", "result.html")
    }
    for path in files:
        assert secret.encode() not in path.read_bytes(), path.name
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_instructions_keep_to_their_length(lm: ScriptedLM) -> None:
    asked: list[str] = []

    def wordy(call: Call) -> str:
        asked.append(call.prompt)
        text = "The word stands between @@ and @@.\n\n" + "And so on and so forth.\n" * 400
        return outputs(new_instruction=text)

    made = optimizer(reflection_lm=ScriptedLM(wordy, model="scripted/reflection"), max_instruction_chars=300)
    made.compile(program(), trainset=examples(3))
    assert made.result is not None
    texts = [text for proposal in made.result.proposals for text in proposal.texts.values()]
    assert texts and all(len(text) <= 300 and "@@" in text for text in texts)
    assert any("say the same in at most 300" in prompt for prompt in asked)


def test_what_proves_no_better_is_not_promoted(lm: ScriptedLM) -> None:
    made = optimizer(alpha=0.01)
    student = program()
    compiled = made.compile(student, trainset=examples(3), valset=examples(3), holdout=examples(3, 6))
    assert made.result is not None
    assert not made.result.promotion.promoted and "by chance" in made.result.promotion.why
    assert made.result.promotion.after > made.result.promotion.before
    assert compiled.act.signature.instructions == student.act.signature.instructions
    # It is there for whoever wants it.
    assert "@@" in made.result.candidates[made.result.best].instructions["act"]
    useless = optimizer(
        reflection_lm=ScriptedLM(lambda call: outputs(new_instruction="Try."), model="scripted/useless")
    )
    useless.compile(student, trainset=examples(3), holdout=examples(3, 6))
    # Nothing is run on held-out examples for a candidate that there is not.
    assert useless.result is not None and "no candidate scored better" in useless.result.promotion.why
    assert useless.result.gate_calls == 0
    assert "gave nothing new" in useless.result.stopped


def test_labels_that_an_instruction_learned_by_heart_are_told(lm: ScriptedLM) -> None:
    text = "@@ It is heron, or otter; or else none."
    made = optimizer(reflection_lm=ScriptedLM(lambda call: outputs(new_instruction=text), model="scripted/cheat"))
    # What several examples have for a label is a class.
    classes = [dspy.Example(text=f"{n}", answer="none").with_inputs("text") for n in range(2)]
    made.compile(program(), trainset=[*examples(3), *classes])
    assert made.result is not None
    found = [leak for candidate in made.result.candidates for leak in candidate.leaks.values()]
    assert ("heron", "otter") in found
    assert "Holds labels of examples: heron, otter" in made.result.to_html()


@pytest.mark.parametrize("components", ["blamed", "round_robin", lambda runs, called: ["act", "extract"]])
def test_which_predictors_a_round_rewrites(lm: ScriptedLM, components: Any) -> None:
    made = optimizer(components=components)
    made.compile(program(), trainset=examples(3))
    assert made.result is not None and made.result.proposals
    for proposal in made.result.proposals:
        assert set(proposal.texts) <= {"act", "sub"}
        if components != "blamed":
            assert len(proposal.texts) == 1


def test_only_the_predictors_that_may_be_are_rewritten(lm: ScriptedLM) -> None:
    made = optimizer(predictors=["act"], alpha=None)
    compiled = made.compile(program(), trainset=examples(3))
    assert "@@" in compiled.act.signature.instructions
    assert compiled.sub.signature.instructions == program().sub.signature.instructions
    with pytest.raises(ConfigurationError, match="no predictors acts; there are act, sub"):
        optimizer(predictors=["acts"]).compile(program(), trainset=examples(3))


def test_a_program_with_an_rlm_in_it(lm: ScriptedLM) -> None:
    class Shouting(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rlm = program()

        def forward(self, text: str) -> dspy.Prediction:
            return dspy.Prediction(answer=self.rlm(text=text).answer.upper())

    def shouted(gold: Any, pred: Any, trace: Any = None) -> float:
        return metric(gold, dspy.Prediction(answer=pred.answer.lower()))

    reflection = ScriptedLM(lambda call: reflect(_renamed(call)), model="scripted/reflection")
    made = optimizer(metric=shouted, reflection_lm=reflection, alpha=None)
    compiled = made.compile(Shouting(), trainset=examples(3))
    assert compiled.rlm.sub.signature.instructions == "Read the word backwards."
    assert made.result is not None and made.result.candidates[0].tokens > 0


def _renamed(call: Call) -> Call:
    messages = [{**m, "content": m["content"].replace("`rlm.", "`")} for m in call.messages]
    return Call(call.number, messages, call.request)


def test_what_costs_less_survives_where_costs_are_weighed(lm: ScriptedLM) -> None:
    def frugal(call: Call) -> str:
        if call.turn == 0 and "at once" in call.system:
            return code("SUBMIT('none')")
        return root(call)

    terse = ScriptedLM(lambda call: outputs(new_instruction="Answer at once."), model="scripted/terse")
    made = optimizer(reflection_lm=terse, weigh_cost=True)
    with dspy.context(lm=ScriptedLM(frugal, model="scripted/root")):
        made.compile(program(), trainset=examples(3))
    result = made.result
    assert result is not None and len(result.candidates) == 2
    assert result.candidates[1].tokens < result.candidates[0].tokens and 1 in result.front and result.best == 1
    assert not result.promotion.promoted
    svg = result.to_svg()
    assert svg.startswith("<svg") and "candidate 1: score 0.000" in svg and "tokens a run" in svg
    page = result.to_html()
    assert "<script" not in page and "Answer at once." in page


def test_tokens_are_not_compared_with_money(lm: ScriptedLM) -> None:
    def thorough(call: Call) -> str:
        # Before: asks a sub-model whose price is unknown. With the new instruction: only takes longer.
        if "slowly" not in call.system:
            return code("llm_query('a')\nSUBMIT('none')")
        return code("SUBMIT('none')" if call.turn == 3 else "print(1)")

    slower = ScriptedLM(lambda call: outputs(new_instruction="Answer slowly."), model="scripted/slower")
    made = optimizer(reflection_lm=slower, weigh_cost=True, predictors=["act"])
    with dspy.context(lm=ScriptedLM(thorough, model="scripted/root")):
        made.compile(program(prices={"scripted/root": (0.1, 0.1)}), trainset=examples(3))
    result = made.result
    assert result is not None and result.candidates[0].cost is None
    assert [proposal.accepted for proposal in result.proposals] and not any(p.accepted for p in result.proposals)


def test_options_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    for wrong in ({"max_metric_calls": 0}, {"repeats": 0}, {"alpha": 2.0}, {"components": "some"}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            optimizer(**wrong)
    with pytest.raises(ConfigurationError, match="reflection_lm"):
        RLMGEPA(metric, reflection_lm="gpt", max_metric_calls=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="trainset is empty"):
        optimizer().compile(program(), trainset=[])
    with pytest.raises(ConfigurationError, match=r"dspy\.Example"):
        optimizer().compile(program(), trainset=[{"text": "a"}])
    with pytest.raises(ConfigurationError, match="with_inputs"):
        optimizer().compile(program(), trainset=[dspy.Example(text="a", answer="a")])
    with pytest.raises(ConfigurationError, match="teacher"):
        optimizer().compile(program(), trainset=examples(1), teacher=program())  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rlm-dspy\[optimize\]'"):
        optimizer()


_numbers = st.integers(-3, 3).map(float)


@settings(deadline=None)
@given(st.lists(_numbers, max_size=9))
def test_the_paired_test_is_that_of_all_sign_patterns(differences: list[float]) -> None:
    p = paired_p(differences)
    assert 0 < p <= 1
    if all(value > 0 for value in differences):
        assert p == pytest.approx(2 ** -len(differences))
    assert p + paired_p([-value for value in differences]) >= 1
    assert paired_p([*differences, 0.0]) == p


def test_many_examples_are_sampled_and_chance_is_told_from_gain() -> None:
    assert paired_p([1.0] * 40) < 0.001
    assert 0.3 < paired_p([1.0, -1.0] * 20) < 0.8
    made = decide([0.0] * 8, [1.0] * 8, alpha=0.1, held_out=True)
    assert made.promoted and (made.better, made.worse, made.equal) == (8, 0, 0)
    assert not decide([1.0] * 8, [1.0] * 8, alpha=None, held_out=True).promoted
    assert decide([0.0, 1.0], [1.0, 1.0], alpha=None, held_out=True).promoted


_points = st.lists(st.fixed_dictionaries({"score": _numbers, "cost": _numbers}), min_size=1, max_size=8)


@given(_points)
def test_the_front_holds_what_none_is_better_than(points: list[dict[str, float]]) -> None:
    front = pareto_front(points)
    assert front

    def better(a: dict[str, float], b: dict[str, float]) -> bool:
        return all(a[name] >= b[name] for name in a) and a != b

    for number, point in enumerate(points):
        if number in front:
            assert not any(better(other, point) for other in points)
        else:
            assert any(better(points[n], point) or points[n] == point for n in front)


def test_feedback_made_beforehand_is_taken_as_it_is(no_leaks: None) -> None:
    judged = feedback(metric)
    assert optimizer(metric=judged).judge is judged
