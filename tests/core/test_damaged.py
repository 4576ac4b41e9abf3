"""Sessions and journals that somebody has edited, or a disk has damaged: read as far as they are whole, or refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlm_dspy import RLM, RecordingError, replay
from rlm_dspy.errors import RLMError
from rlm_dspy.journals import Journal
from rlm_dspy.testing import ScriptedLM, code

PROGRAM = RLM("context -> answer", interpreter="inprocess", guidance=False, sub_lm=ScriptedLM(lambda call: "yes"))
WRONG: list[Any] = ["gone", None, 5, -1, 1e400, "zzz", True, [], {}, [1], {"a": 1}, [None, {}]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session saved as a file, and its journal."""
    folder = tmp_path_factory.mktemp("written")
    steps = [
        "a = [1, 2]\nimport math\ndef f(x):\n    return x\nclass K: pass\nk = K()\nk.v = {1: 2}\nprint(llm_query('q'))",
        "SUBMIT('one')",
        "SUBMIT(str(f(len(a))))",
    ]
    with dspy.context(lm=ScriptedLM([code(step) for step in steps])), PROGRAM.session(folder / "journal") as session:
        session(context="x" * 6_000)
        session(context={"b": 1})
        session.save(folder / "saved")
    return folder


def places(tree: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [here] * bool(here) + [place for key, item in inner for place in places(item, (*here, key))]


def damaged(tree: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    tree = json.loads(json.dumps(tree))
    holder = tree
    for key in place[:-1]:
        holder = holder[key]
    if wrong == "gone":
        del holder[place[-1]]
    else:
        holder[place[-1]] = wrong
    return tree


ANYWHERE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANYWHERE
@given(data=st.data())
def test_a_saved_session_with_anything_wrong_in_it_opens_or_is_refused(
    written: Path, tmp_path: Path, data: st.DataObject
) -> None:
    with zipfile.ZipFile(written / "saved") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    main = json.loads(members["session.json"])
    wrong = damaged(main, data.draw(st.sampled_from(places(main))), data.draw(st.sampled_from(WRONG)))
    with zipfile.ZipFile(tmp_path / "saved", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, json.dumps(wrong) if name == "session.json" else content)
    try:
        with PROGRAM.resume(tmp_path / "saved") as session:
            assert len(session.history) == session.number and session.usage and session.to_history()
            with dspy.context(lm=ScriptedLM([code("SUBMIT('more')")])):
                assert session(context="again").answer == "more"
    except RLMError as error:
        assert str(error)


@ANYWHERE
@given(data=st.data())
def test_a_journal_with_anything_wrong_in_it_is_replayed_or_refused(
    written: Path, tmp_path: Path, data: st.DataObject
) -> None:
    lines: list[Any] = [json.loads(line) for line in (written / "journal" / "events.jsonl").read_text().splitlines()]
    number = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines[number] = data.draw(st.sampled_from(WRONG[1:]))
    else:
        place = data.draw(st.sampled_from(places(lines[number])))
        lines[number] = damaged(lines[number], place, data.draw(st.sampled_from(WRONG)))
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)
    shutil.copytree(written / "journal", tmp_path / "journal")
    (tmp_path / "journal" / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        for run in Journal.read(tmp_path / "journal").runs()[:1]:
            replay(run, PROGRAM, on_difference="return")
        with PROGRAM.resume(tmp_path / "journal") as session:
            assert session.usage and session.to_history()
    except RLMError as error:
        assert str(error)


def test_what_is_wrong_is_named(written: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(written / "saved") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for place, says in (
        (("conversation", "exchanges", 0, "reply"), "Exchange.reply is no str"),
        (("imports", "math"), "imports.math"),
        (("history", 0, "events", 0, "inputs"), "'int' object has no attribute 'items'"),
    ):
        wrong = damaged(json.loads(members["session.json"]), place, 5)
        with zipfile.ZipFile(tmp_path / "saved", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, json.dumps(wrong) if name == "session.json" else content)
        with pytest.raises(RecordingError, match=says):
            PROGRAM.resume(tmp_path / "saved")
