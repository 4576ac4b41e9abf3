"""The script that makes presets: it learns from one set of questions, measures on another, and can be gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import make_preset
from rlm_dspy import presets

SCRIPT = '''
from types import SimpleNamespace

from benchmarks.make_preset import questions
from rlm_dspy.testing import code

options = SimpleNamespace(tokens=1_000, seed=71, families=["log_forensics", "needles"])
GOLD = {e.query: e.answer for which, n in (("train", 8), ("dev", 4), ("test", 8)) for e in questions(options, which, n)}
EASY = {e.query for e in questions(options, "train", 8)} if LEARNS else set()


def root(call):
    """Answers questions of the training set by itself, and any other one where it is shown how."""
    with open("asked", "a") as file:
        file.write(".")
    query = next(q for q in GOLD if q in call.own[0]["content"])
    shown = "# trick" in str(call.messages[: len(call.messages) - len(call.own)])
    known = query in EASY or shown
    return code(f"SUBMIT(answer={GOLD[query] if known else type(GOLD[query])()!r})  # trick", "So.")
'''


def run(folder: Path, learns: bool, *more: str) -> int:
    (folder / "script.py").write_text(SCRIPT.replace("LEARNS", str(learns)))
    sizes = ["--tokens", "1000", "--train", "8", "--dev", "4", "--test", "8", "--threads", "2"]
    out = ["--out", str(folder / "tiny.json"), "--folder", str(folder / "kept")]
    return make_preset.main(["--name", "tiny", "--model", f"scripted:{folder / 'script.py'}", *sizes, *out, *more])


@pytest.mark.heavy
def test_a_preset_is_made_measured_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, True) == 0
    made = presets.read(tmp_path / "tiny.json")
    assert made.before is not None and made.after is not None
    assert (made.before.mean, made.after.mean, made.after.n) == (0.0, 1.0, 8)
    assert made.recipe["seeds"] == {"train": 710, "dev": 711, "test": 712} and made.recipe["demonstrations"] == 1
    assert "# trick" in str(made.state["act"]["demos"]) and made.options["adhoc"] is False
    asked = Path("asked").read_text()
    with pytest.raises(SystemExit, match="is there already"):
        run(tmp_path, True)
    # Nothing is run a second time.
    assert run(tmp_path, True, "--force") == 0
    assert Path("asked").read_text() == asked


@pytest.mark.heavy
def test_what_is_no_better_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, False) == 3
    assert "no preset is written" in capsys.readouterr().out and not (tmp_path / "tiny.json").exists()
