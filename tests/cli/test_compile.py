"""``rlm-dspy compile``: from a program, examples and a metric to a file that ``load``, presets and ``ask`` read."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlm_dspy import RLM, presets
from rlm_dspy.cli import exits, main

pytestmark = pytest.mark.usefixtures("no_leaks")

PROGRAM = """
from rlm_dspy import RLM

rlm = RLM("text, query -> answer", interpreter="subprocess", max_iters=2)


def build():
    return rlm.with_options(max_iters=3)


def exact(example, prediction, trace=None):
    return float(prediction.answer == example.answer)


nothing = 7
"""
SCRIPT = '''
from rlm_dspy.testing import code


def root(call):
    """Knows the trick where its prompt shows it; finds it by itself in easy texts."""
    easy = "easy" in call.own[0]["content"]
    shown = "TRICK" in str(call.messages[: len(call.messages) - len(call.own)])
    word = "TRICK" if easy or shown else "guess"
    return code(f"SUBMIT(answer=text.split()[-1] if {word!r} == 'TRICK' else '?')", "Take the last word.")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program, a script that plays its model, and examples."""
    (tmp_path / "program_of_test.py").write_text(PROGRAM)
    (tmp_path / "script.py").write_text(SCRIPT)
    note = "kept\u2028whole"
    rows = [
        {"text": f"{kind} text number w{n}", "query": f"The last word of {n}?", "answer": f"w{n}", "note": note}
        for n, kind in enumerate(["easy", "hard", "hard", "easy", "hard", "hard"])
    ]
    # As they are: JSON leaves all ends of lines in texts but two.
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (tmp_path / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("program_of_test", "toy_of_test", "toy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def arguments(*more: str) -> list[str]:
    """Those of a usual call, and more."""
    return [
        *("compile", "program_of_test.py:rlm", "--train", "train.jsonl", "--metric", "program_of_test.py:exact"),
        *("--model", "scripted:script.py", "--threads", "2", "--out", "made.json", *more),
    ]


def test_a_program_is_compiled_and_its_file_loads_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("--json", "--set", "max_demos=1", "--description", "For texts.")) == exits.SUBMITTED
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["before"]["mean"] == 0.0 and told["after"]["mean"] == 1.0 and told["after"]["n"] == 2
    assert told["demos"] == {"act": 1} and "before: 0.00" in err and "after: 1.00" in err
    made = presets.read("made.json")
    assert made.model == "scripted/root" and made.recipe["arguments"] == {"max_demos": 1}
    assert made.recipe["optimizer"] == "rlm_dspy.optimizers:BootstrapTrajectories"
    assert made.recipe["data"]["train"]["file"] == "train.jsonl" and made.recipe["learned_from"] == 4
    loaded = RLM("text, query -> answer")
    loaded.load("made.json")
    assert len(loaded.act.demos) == 1
    assert len(RLM.from_preset("made.json", "context, query -> answer").act.demos) == 1

    Path("hard.txt").write_text("hard text number seventeen")
    Path("context.py").write_text(SCRIPT.replace("text.split", "context.split"))
    ask = ["ask", "The last word?", "hard.txt", "--model", "scripted:context.py", "--interpreter", "subprocess"]
    assert main([*ask, "--load", "made.json", "--quiet"]) == exits.SUBMITTED
    assert capsys.readouterr().out == "seventeen\n"
    assert main([*ask, "--quiet"]) == exits.SUBMITTED
    assert capsys.readouterr().out == "?\n"


def test_a_program_may_bring_its_model(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLM_DSPY_MODEL", raising=False)
    without = [word for word in arguments("--quiet", "--no-score") if word not in ("--model", "scripted:script.py")]
    assert main(without) == exits.USAGE
    assert "no model: give --model" in capsys.readouterr().err
    Path("program_of_test.py").write_text(
        PROGRAM
        + "import script\nfrom rlm_dspy.testing import ScriptedLM\n\n"
        + "rlm.set_lm(ScriptedLM(script.root, model='own/one'))\n"
    )
    sys.path.insert(0, str(folder))
    monkeypatch.delitem(sys.modules, "program_of_test", raising=False)
    assert main(without) == exits.SUBMITTED
    assert presets.read("made.json").model == "own/one"


def test_a_file_that_is_there_stays_and_nothing_is_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("made.json").write_text("mine")
    assert main(arguments()) == exits.USAGE
    assert "--force" in capsys.readouterr().err and Path("made.json").read_text() == "mine"
    assert main(arguments("--force", "--quiet", "--no-score")) == exits.SUBMITTED
    assert presets.read("made.json").after is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"program_of_test.py:rlm": "program_of_test.py:none"}, "has no none; it has RLM, rlm, build, exact, nothing"),
        ({"program_of_test.py:rlm": "program_of_test.py:nothing"}, "is a int, not a dspy.Module"),
        ({"program_of_test.py:rlm": "program"}, "write FILE.py:NAME or PACKAGE.MODULE:NAME"),
        ({"program_of_test.py:exact": "gone.py:exact"}, "there is no file gone.py"),
        ({"train.jsonl": "gone.jsonl"}, "--train gone.jsonl: No such file"),
        ({"train.jsonl": "odd.jsonl"}, "line 1 has none of the program's inputs (text, query); it has question"),
        ({"train.jsonl": "broken.jsonl"}, "line 2 is not JSON"),
        ({"train.jsonl": "few.jsonl"}, "too few to keep some back: give --val, or --no-score"),
        ({"made.json": "gone/made.json"}, "there is no folder"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], said: str
) -> None:
    Path("odd.jsonl").write_text('{"question": "?"}\n')
    Path("broken.jsonl").write_text('{"text": "?", "query": "?"}\n{')
    Path("few.jsonl").write_text('{"text": "?", "query": "?"}\n')
    assert main([change.get(word, word) for word in arguments()]) == exits.USAGE
    assert said in capsys.readouterr().err and not Path("made.json").exists()


@pytest.mark.parametrize("gives", ["None", "float('nan')", "{'feedback': 'no score'}", "labels"])
def test_a_metric_that_gives_no_number_is_told_before_anything_is_learned(
    gives: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.py").write_text(f"def metric(example, prediction):\n    return {gives}\n")
    changed = [{"program_of_test.py:exact": "bad.py:metric"}.get(word, word) for word in arguments("--quiet")]
    assert main(changed) == exits.USAGE
    said = capsys.readouterr().err
    assert "--metric bad.py:metric failed on every example" in said and not Path("made.json").exists()
    assert ("labels" if gives == "labels" else "a metric gives") in said


@pytest.mark.parametrize(
    "metric",
    [
        "def metric(example, prediction): return prediction.answer == example.answer",
        "def metric(example, prediction, trace=None): return {'score': prediction.answer == example.answer}",
        "def metric(example, prediction, trace, name, calls): return float(prediction.answer == example.answer)",
    ],
)
def test_metrics_of_every_form_are_taken(metric: str, folder: Path) -> None:
    Path("other.py").write_text(metric)
    changed = [{"program_of_test.py:exact": "other.py:metric"}.get(word, word) for word in arguments("--quiet")]
    assert main(changed) == exits.SUBMITTED
    after = presets.read("made.json").after
    assert after is not None and after.mean == 1.0


def test_an_optimizer_is_given_what_it_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("--optimizer", "sgd")) == exits.USAGE
    assert "there are bootstrap, gepa, fewshot" in capsys.readouterr().err
    assert main(arguments("--set", "epochs=3")) == exits.USAGE
    assert "epochs" in capsys.readouterr().err
    assert main(arguments("--folder", "state")) == exits.USAGE
    assert "takes no folder" in capsys.readouterr().err
    stock = arguments("--optimizer", "fewshot", "--set", "max_labeled_demos=0", "--quiet")
    assert main([word.replace(":rlm", ":build") for word in stock]) == exits.SUBMITTED
    made = presets.read("made.json")
    assert made.recipe["optimizer"] == "dspy:BootstrapFewShot" and made.after is not None and made.after.mean == 1.0


def test_any_teleprompter_by_its_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_of_test.py").write_text(
        "import dspy\n"
        "class Own(dspy.teleprompt.Teleprompter):\n"
        "    def __init__(self, metric, words): self.words = words\n"
        "    def compile(self, student, *, trainset, valset):\n"
        "        assert len(trainset) == len(valset) == 2\n"
        "        made = student.deepcopy()\n"
        "        made.act.signature = made.act.signature.with_instructions(' '.join(self.words))\n"
        "        return made\n"
    )
    given = arguments("--optimizer", "own_of_test.py:Own", "--set", 'words=["Use", "the", "TRICK."]')
    assert main(given) == exits.SUBMITTED
    err = capsys.readouterr().err
    assert "after: 1.00" in err and presets.read("made.json").state["act"]["signature"]["instructions"] == (
        "Use the TRICK."
    )
    sys.modules.pop("own_of_test", None)


def test_gepa_keeps_its_progress_in_a_folder_and_goes_on_from_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second time all its runs are there already, and nothing is asked of the model that reflects."""
    Path("writer.py").write_text(
        "from rlm_dspy.testing import outputs\n"
        "def root(call):\n"
        "    open('asked', 'a').write('.')\n"
        "    return outputs(new_instruction='Use the TRICK: the last word.')\n"
    )
    given = arguments("--optimizer", "gepa", "--reflection-model", "scripted:writer.py", "--folder", "state")
    given += ["--set", "max_metric_calls=20", "--set", "alpha=null", "--force"]
    assert main(given) == exits.SUBMITTED, capsys.readouterr().err
    first = presets.read("made.json")
    assert first.recipe["optimizer"] == "rlm_dspy.optimizers:RLMGEPA"
    assert "TRICK" in first.state["act"]["signature"]["instructions"], capsys.readouterr().err
    assert first.after is not None and first.after.mean == 1.0
    asked = Path("asked").read_text()
    assert asked and any(Path("state").iterdir())
    assert main(given) == exits.SUBMITTED
    assert presets.read("made.json").state == first.state and Path("asked").read_text() == asked


TOY = Path(__file__).parents[1] / "optimizers"
STOCK = {
    "random-search": ["num_candidate_programs=1"],
    "stock-gepa": ["max_metric_calls=40"],
    "copro": ["breadth=2", "depth=1"],
    "simba": ["bsize=8", "num_candidates=2", "max_steps=2"],
    "infer-rules": ["num_candidates=2"],
    "mipro": [],
}
"""Names of DSPy's optimizers, and what keeps them short."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", STOCK)
def test_every_optimizer_of_dspy_by_its_name(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the toy task of the optimizers' own tests, with one scripted model in all seats."""
    if name == "mipro":
        pytest.importorskip("optuna", reason="the extra optimize is not installed")
    path = f"import sys\nsys.path.insert(0, {str(TOY)!r})\nimport toy\n"
    Path("toy_of_test.py").write_text(
        f"{path}from rlm_dspy.environments.subprocess_env import Subprocess\n"
        "program, metric = toy.program(Subprocess()), toy.metric\n"
    )
    Path("roles.py").write_text(f"{path}root = toy.every_role\n")
    toy = runpy.run_path(str(TOY / "toy.py"))
    for file, examples in (("logs.jsonl", toy["trainset"](600)), ("held.jsonl", toy["heldout"](600)[:2])):
        Path(file).write_text("\n".join(json.dumps(example.toDict()) for example in examples))
    more = [word for setting in STOCK[name] for word in ("--set", setting)]
    given = ["compile", "toy_of_test.py:program", "--train", "logs.jsonl", "--val", "held.jsonl", "--optimizer", name]
    given += ["--metric", "toy_of_test.py:metric", "--model", "scripted:roles.py", "--out", "made.json", "--quiet"]
    assert main([*given, *more]) == exits.SUBMITTED, capsys.readouterr().err
    made = presets.read("made.json")
    assert made.before is not None and made.after is not None
    # What COPRO proposes it guesses, without having seen a run.
    assert made.after.mean == made.before.mean if name == "copro" else made.after.mean > made.before.mean


@pytest.mark.heavy
def test_ctrl_c_writes_nothing(folder: Path, eventually: Callable[..., bool]) -> None:
    """Runs that go on are asked to stop, and the process ends by itself."""
    Path("script.py").write_text(
        "from rlm_dspy.testing import Reply, code\n"
        "def root(call):\n"
        "    open('asked', 'a').write('.')\n"
        "    return code('import time; time.sleep(600)')\n"
    )
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlm_dspy.cli", *arguments("--no-score")],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(lambda: Path("asked").exists(), 60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == exits.INTERRUPTED, err
    assert "nothing is written" in err and not Path("made.json").exists()
