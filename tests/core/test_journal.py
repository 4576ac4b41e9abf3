"""A journal: runs on disk as they happen, whole after a kill but for the line being written."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, Journal, RecordingError, journal, replay
from rlm_dspy import events as ev
from rlm_dspy.environments.base import Environment
from rlm_dspy.redact import hide
from rlm_dspy.testing import Call, ScriptedLM, code


def refuse(call: Call) -> str:
    raise AssertionError("a language model was called in a replay")


def record(folder: Path, program: RLM, replies: Any, **inputs: Any) -> dspy.Prediction:
    with dspy.context(lm=ScriptedLM(replies)), journal(folder):
        return program(**inputs)


def again(recorded: Any, program: RLM | None = None, **options: Any) -> dspy.Prediction:
    with dspy.context(lm=ScriptedLM(refuse)):
        return replay(recorded, program, **options)


def shown(event: ev.Event) -> dict[str, Any]:
    """An event as JSON has it, without values, whose place differs."""
    values = ("inputs", "result", "values", "events")
    return {name: item for name, item in json.loads(json.dumps(event.to_dict())).items() if name not in values}


def files(folder: Path) -> str:
    """All bytes of a folder."""
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


def test_it_holds_all_that_a_replay_needs(sandbox: Environment, tmp_path: Path) -> None:
    """Large and odd values too, and children; nothing is given again."""
    context = {"text": "é\ud800\0" + "x" * 3_000_000, "rows": np.arange(300_000), "pair": (1, {2})}

    def fetch() -> Any:
        """Fetch much."""
        return [b"\xff" * 2_000_000, "ж" * 100_000]

    def root(call: Call) -> str:
        if "count it" in call.own[0]["content"]:
            return code("SUBMIT(str(len(text)))")
        if call.turn == 0:
            return code("big = fetch()\nchild = rlm_query('count it', text=big[1])\nprint(child, len(big[0]))")
        return code("SUBMIT([child, str(len(context['text'])), str(context['rows'].sum()), str(context['pair'])])")

    rlm = RLM("context: dict -> a: list[str]", interpreter=sandbox, tools=[fetch], max_depth=2)
    first = record(tmp_path / "j", rlm, root, context=context)
    assert first.outcome == "submitted", first.trajectory
    second = again(tmp_path / "j", rlm.with_options(tools=[]))
    assert second.a == first.a and second.differences == ()
    (events,) = Journal.read(tmp_path / "j").runs()
    assert [e.kind for e in events] == [e.kind for e in first.trajectory.events]
    child = next(e for e in events if isinstance(e, ev.ChildEnded))
    assert [e.kind for e in child.events] == [
        e.kind for e in next(e for e in first.trajectory.events if isinstance(e, ev.ChildEnded)).events
    ]
    assert [shown(e) for e in events] == [shown(e) for e in first.trajectory.events]


def test_many_runs_and_a_second_process(sandbox: Environment, tmp_path: Path) -> None:
    """One journal takes many runs, also at once; what they share is on disk once."""
    rlm = RLM("context, q -> a", interpreter=sandbox)
    context = "y" * 2_000_000
    root = ScriptedLM(lambda call: code("SUBMIT(q + str(len(context)))"))

    async def many() -> None:
        await asyncio.gather(*(rlm.acall(context=context, q=str(n)) for n in range(4)))

    with dspy.context(lm=root):
        with journal(tmp_path):
            asyncio.run(many())
        with journal(tmp_path):
            rlm(context=context, q="more")
    runs = Journal.read(tmp_path).runs()
    assert len(runs) == 5 and len(list((tmp_path / "values").iterdir())) == 1
    assert sorted(again(events, rlm).a for events in runs) == sorted(q + "2000000" for q in [*"0123", "more"])
    with pytest.raises(RecordingError, match="has 5 runs"):
        again(tmp_path, rlm)


def test_only_one_writes_at_a_time(tmp_path: Path) -> None:
    with journal(tmp_path), pytest.raises(RecordingError, match="writes to this journal"), journal(tmp_path):
        pass
    with journal(tmp_path):
        pass


def test_secrets_do_not_reach_the_disk(sandbox: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "correct-horse-battery")
    hide("staple-1234567")

    def leak() -> Any:
        """Leak."""
        secret = "correct-horse-battery"
        return {"small": secret, "wide": "ж" * 70_000 + secret, "long": "-" * 70_000 + secret, "bytes": secret.encode()}

    def leak_much() -> list[Any]:
        """Leak much."""
        return ["staple-1234567" + "x" * 2_000_000, "staple-1234567"]

    rlm = RLM("q -> a", interpreter=sandbox, tools=[leak, leak_much], sub_lm=ScriptedLM(lambda c: "staple-1234567"))
    replies = [
        code("a, b, c = leak(), leak_much(), llm_query('x')\nprint(a['small'], c, 'staple-1234567')"),
        code("SUBMIT('staple-1234567')"),
    ]
    first = record(tmp_path, rlm, replies, q="q")
    assert first.a == "staple-1234567"
    text = files(tmp_path)
    assert "[hidden]" in text
    for secret in ("correct-horse-battery", "staple-1234567"):
        assert secret not in text and secret.encode("utf-16-le").decode("latin-1") not in text
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "values").iterdir())
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("size", [0, 100_000, 2_000_000])
def test_inputs_are_kept_as_they_are(sandbox: Environment, tmp_path: Path, size: int) -> None:
    """A run that sees other inputs is another one, and they are the user's own."""
    hide("sesame-open-98")
    context = "sesame-open-98" + "x" * size
    rlm = RLM("context -> a", interpreter=sandbox)
    record(tmp_path, rlm, [code("SUBMIT(str(len(context)))")], context=context)
    (events,) = Journal.read(tmp_path).runs()
    assert isinstance(events[0], ev.RunStarted) and events[0].inputs["context"].value() == context
    assert again(tmp_path, rlm).a == str(len(context))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The event file of a small run."""
    folder = tmp_path_factory.mktemp("whole")
    replies = [code("x = 1\nprint(x)"), code("print(x + 1)"), code("SUBMIT(str(x))")]
    record(folder, RLM("q -> a", interpreter="inprocess"), replies, q="q")
    return (folder / "events.jsonl").read_bytes()


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_torn_anywhere_it_is_good_up_to_there(recorded: bytes, tmp_path: Path, data: st.DataObject) -> None:
    head = recorded.index(b"\n") + 1
    cut = data.draw(st.integers(head, len(recorded)))
    whole = recorded[:cut].rfind(b"\n") + 1
    (tmp_path / "values").mkdir(exist_ok=True)
    (tmp_path / "events.jsonl").write_bytes(recorded[:cut])
    runs = Journal.read(tmp_path).runs()
    lines = [json.loads(line) for line in recorded[head:whole].splitlines()]
    kinds = [line["kind"] for line in lines if line["kind"] != "account"]
    assert [e.kind for events in runs for e in events] == kinds
    with journal(tmp_path):
        assert (tmp_path / "events.jsonl").read_bytes() == recorded[:whole], "the torn line stays in the way"
    if not runs:
        return
    done = kinds.count("turn_ended")
    second = again(runs[0], RLM("q -> a", interpreter="inprocess"))
    assert len(second.trajectory) == done and second.differences == ()
    # Without the last events there is nothing to tell that the run went on to an end, but its last turn did.
    assert second.outcome == ("submitted" if done == 3 else "failed")
    assert done == 3 or second.outcome.limit == "interrupted"


@pytest.mark.parametrize(("size", "ended"), [(1, "[False, True]"), (2_000_000, "[True]")])
def test_a_disk_that_is_full_costs_the_rest_of_the_journal_and_no_answer(
    tmp_path: Path, in_python: Any, size: int, ended: str
) -> None:
    script = """
import resource, signal, sys
import dspy
from rlm_dspy import RLM, RecordingError, journal
from rlm_dspy.journals import Journal
from rlm_dspy.testing import ScriptedLM, code
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
rlm = RLM("context -> answer", interpreter="inprocess", guidance=False)
steps = [code("print('a' * 3000)")] * 6 + [code("SUBMIT('x')")]
most = resource.getrlimit(resource.RLIMIT_FSIZE)
try:
    with journal(sys.argv[1]), dspy.context(lm=ScriptedLM(steps)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, most[1]))
        prediction = rlm(context="x" * int(sys.argv[2]))
except RecordingError as error:
    print(prediction.answer, error)
resource.setrlimit(resource.RLIMIT_FSIZE, most)
with journal(sys.argv[1]), dspy.context(lm=ScriptedLM(steps)):
    rlm(context="y")
print([bool(run[-1].kind == "run_ended") for run in Journal.read(sys.argv[1]).runs()])
"""
    out, err = in_python(script, str(tmp_path / "journal"), str(size)).communicate(timeout=60)
    lines = out.splitlines()
    assert lines[0].startswith("x the journal in") and "File too large" in lines[0], (out, err)
    assert lines[1] == ended and err.count("is written no further") <= 1


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "there is no journal in"),
        (b"", "not a journal of rlm-dspy"),
        (b"something else\n", "not a journal of rlm-dspy"),
        (b"[1]\n", "not a journal of rlm-dspy"),
        (b'{"format": "rlm-dspy journal", "schema": 99}\n', "has schema 99, .* upgrade it"),
        (b'{"format": "rlm-dspy journal", "schema": 1}\n{"kind": \n{}\n', "line 2 of .* is damaged"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes | None, match: str) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    with pytest.raises(RecordingError, match=match):
        Journal.read(tmp_path).runs()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(RecordingError, match="wants a folder of its own"), journal(tmp_path):
        pass
    with pytest.raises(RecordingError, match="a journal is a folder"), journal(tmp_path / "thesis.txt"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_value_file_that_is_gone_or_damaged_is_named(sandbox: Environment, tmp_path: Path) -> None:
    rlm = RLM("context -> a", interpreter=sandbox)
    record(tmp_path, rlm, [code("SUBMIT(context[:2])")], context="ab" * 1_000_000)
    (value,) = (tmp_path / "values").iterdir()
    whole = value.read_bytes()
    for content in (whole[:-5], b"{}\n", b""):
        value.write_bytes(content)
        with pytest.raises(RecordingError, match=f"the recorded value {value.name} cannot be read"):
            again(tmp_path, rlm)
    value.unlink()
    with pytest.raises(RecordingError, match="cannot be read"):
        again(tmp_path, rlm)


SCRIPT = """
import sys, dspy
from rlm_dspy import RLM, journal
from rlm_dspy.testing import Reply, ScriptedLM, code

root = ScriptedLM([code("x = llm_query('one')"), code("y = x * 2; print(y)"), Reply(code("SUBMIT(y)"), delay=600)])
with dspy.context(lm=root), journal(sys.argv[1]):
    RLM("q -> a", interpreter="subprocess", sub_lm=ScriptedLM(lambda call: "sub" + call.prompt))(q="q")
"""


def test_after_kill_9_all_finished_turns_are_there(
    in_python: Callable[..., Any], tmp_path: Path, eventually: Callable[..., bool], no_leaks: None
) -> None:
    folder = tmp_path / "j"
    process = in_python(SCRIPT, str(folder))
    events = folder / "events.jsonl"
    assert eventually(lambda: events.exists() and events.read_bytes().count(b'"turn_started"') == 3), process.poll()
    process.send_signal(signal.SIGKILL)
    process.wait()
    second = again(folder, RLM("q -> a", interpreter="subprocess"))
    assert [turn.output for turn in second.trajectory] == ["(no output: print what you want to see)", "subonesubone"]
    assert second.outcome == "failed" and second.outcome.limit == "interrupted"
