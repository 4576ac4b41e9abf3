"""How well a small model plays the root: twelve fixed questions, ours against ``dspy.RLM``, and what each aid is worth.

    python -m benchmarks.small_model                     # ours and dspy.RLM, and the table
    python -m benchmarks.small_model --switches          # ours once more for each switch of Guidance, that one off
    python -m benchmarks.small_model --model openai/NAME --api-base http://127.0.0.1:8000/v1   # another model
    python -m benchmarks.small_model --table             # the table from the transcripts, nothing is run

The questions are made by `rlm_dspy.tasks` (three each that count, find, list and compare, over logs and prose of 1, 2
and 5 MB) from a seed that was not looked at while prompts were written. Both engines have the same model at temperature
0, the same number of turns, the same output shown, and six minutes a question. ``dspy.RLM`` runs with its
``LocalInterpreter``. Every question's transcript is kept in ``benchmarks/small_model/``; a question that is there
already is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlm_dspy.evaluation.intervals import wilson

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "small_model"
SEED = 16
QUESTIONS = 12
EMBEDDED = "qwen2.5-coder-1.5b-q4_k_m"
KINDS = ("count", "find", "list", "compare")
WAITING = (
    *("break_repeats", "check_answers", "explain_empty", "hint_batches"),
    *("keep_inputs", "mend_conditions", "name_words", "salvage"),
)
"""The aids that wait for a reason; where one did nothing, turning it off changes nothing."""

SECONDS = 360
"""Wall time of one question, seconds."""


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing, then print the table and keep it in ``benchmarks/small_model/RESULTS.md``."""
    options = _options(arguments)
    folder = KEPT / (EMBEDDED if options.model == "local" else options.model.rsplit("/", 1)[-1])
    if not options.table:
        runs: list[tuple[str, tuple[str, ...]]]
        runs = [("ours", ()), ("dspy.RLM", ())] if not options.engines else [(name, ()) for name in options.engines]
        if options.switches:
            from rlm_dspy import Guidance

            runs = [("ours", ()), *(("ours", (name,)) for name in Guidance.names()), ("ours", Guidance.names())]
        with _served(options) as (model, api_base):
            for engine, off in runs:
                for number in options.questions or range(QUESTIONS):
                    _ask(engine, off, number, model, api_base, folder, options)
    text = table(folder)
    (folder / "RESULTS.md").write_text(text)
    print(text)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_model", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="local", help="local (the embedded model), or a name as dspy.LM takes it")
    parser.add_argument("--api-base", help="base URL of its server; the key, if any, in SMALL_MODEL_API_KEY")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=[], help="ours, dspy.RLM")
    parser.add_argument("--questions", type=lambda text: [int(n) for n in text.split(",")], default=[])
    parser.add_argument("--switches", action="store_true", help="ours with each aid turned off, and with all")
    parser.add_argument("--again", action="store_true", help="also run what has been run")
    parser.add_argument("--table", action="store_true", help="only make the table")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _served(options: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """The model's name and address; the embedded model is started for it."""
    if options.model != "local":
        yield options.model, options.api_base
        return
    from rlm_dspy import local_lm

    lm = local_lm().start()
    os.environ["SMALL_MODEL_API_KEY"] = lm.kwargs["api_key"]
    try:
        yield lm.model, lm.kwargs["api_base"]
    finally:
        lm.stop()


def _unmoved(path: Path, off: tuple[str, ...]) -> dict[str, Any] | None:
    """The result of ``ours`` for the same question, if the aid that is turned off did nothing in it.

    At temperature 0 it would be the same again. An answer that was extracted may have been salvaged.
    """
    base = path.parents[1] / "ours" / path.name
    if len(off) != 1 or off[0] not in WAITING or not base.exists():
        return None
    result: dict[str, Any] = json.loads(base.read_text())
    if off[0] in result.get("aids", WAITING):
        return None
    if off[0] == "salvage" and not str(result["outcome"]).startswith("submitted"):
        return None
    return result | {"off": off, "same_as": "ours"}


def _ask(
    engine: str,
    off: tuple[str, ...],
    number: int,
    model: str,
    api_base: str | None,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    path = folder / _run_name(engine, off) / f"{options.seed}-{number:02d}.json"
    if path.exists() and not options.again:
        return
    if engine == "ours" and off and (unmoved := _unmoved(path, off)) is not None:
        _keep(path, unmoved)
        return
    request = {
        "engine": engine,
        "off": off,
        "seed": options.seed,
        "number": number,
        "model": model,
        "api_base": api_base,
        "seconds": options.seconds,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.small_child"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(json.dumps(request), timeout=options.seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        result: dict[str, Any] = {"answer": None, "score": 0.0, "outcome": "out of time", "seconds": options.seconds}
    else:
        lines = out.strip().splitlines()
        failed = {"answer": None, "score": 0.0, "outcome": "failed", "error": err[-2_000:], "seconds": None}
        result = json.loads(lines[-1]) if child.returncode == 0 and lines else failed
    from benchmarks.small_child import question

    example = question(options.seed, number)
    about = {name: example[name] for name in ("family", "kind", "tokens", "query")} | {"gold": example.answer}
    kept = request | about | result | {"date": datetime.now(UTC).date().isoformat()}
    kept.pop("api_base")
    _keep(path, kept)
    print(f"{_run_name(engine, off)} {number:2d} {example.kind:8}{result['score']:.2f} {result['outcome']}", flush=True)


def _keep(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _run_name(engine: str, off: tuple[str, ...]) -> str:
    if not off:
        return engine
    return f"{engine}-without-{off[0]}" if len(off) == 1 else f"{engine}-without-any"


def table(folder: Path) -> str:
    """Markdown: right answers of each run with their 95 % intervals, by kind, and the difference each aid makes.

    A part for each seed, the last one first: what was run at other times was run by other code.
    """
    runs = {path.name: _results(path) for path in sorted(folder.iterdir()) if path.is_dir()} if folder.is_dir() else {}
    if not runs:
        return f"nothing has been run for {folder.name} yet\n"
    lines = [
        f"# A small model as the root: {folder.name}",
        "",
        "Made by `python -m benchmarks.small_model`; the transcripts lie beside this file. Right means a score of 1;",
        "in brackets the 95 % interval (Wilson). The difference to `ours` is over the questions that both ran, with",
        "the number of questions won and lost. Nobody looked at a seed's questions before its first run.",
    ]
    for seed in sorted({result["seed"] for results in runs.values() for result in results.values()}, reverse=True):
        of_seed = {
            name: {key: result for key, result in results.items() if result["seed"] == seed}
            for name, results in runs.items()
        }
        lines += ["", *_of_seed(seed, {name: results for name, results in of_seed.items() if results})]
    return "\n".join(lines) + "\n"


def _of_seed(seed: int, runs: dict[str, dict[str, Any]]) -> list[str]:
    base = runs.get("ours", {})
    dates = sorted({result["date"] for results in runs.values() for result in results.values()})
    lines = [
        f"## Seed {seed}, run {dates[0] if len(dates) == 1 else f'{dates[0]} to {dates[-1]}'}",
        "",
        "| run | right | interval | count | find | list | compare | submitted | median s | against ours |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = sorted(runs, key=lambda name: (name != "ours", name.startswith("ours-"), name))
    for name in order:
        results = runs[name]
        right = sum(map(_right, results.values()))
        low, high = wilson(right, len(results))
        kinds = [[_right(r) for r in results.values() if r["kind"] == kind] for kind in KINDS]
        seconds = sorted(r["seconds"] for r in results.values() if r["seconds"] is not None)
        submitted = sum(str(r["outcome"]).startswith("submitted") for r in results.values())
        lines.append(
            f"| {name} | {right} of {len(results)} | {low:.0%}–{high:.0%} | "
            + " | ".join(f"{sum(kind)} of {len(kind)}" for kind in kinds)
            + f" | {submitted} | {seconds[len(seconds) // 2] if seconds else 0:.0f} | {_against(results, base, name)} |"
        )
    return [*lines, "", *_questions(runs)]


def _questions(runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    names = [name for name in ("ours", "dspy.RLM") if name in runs]
    yield "| question | kind | tokens | " + " | ".join(names) + " |"
    yield "|---" * (3 + len(names)) + "|"
    keys = sorted({key for name in names for key in runs[name]})
    for key in keys:
        first = next(runs[name][key] for name in names if key in runs[name])
        cells = []
        for name in names:
            result = runs[name].get(key)
            if result is None:
                cells.append("")
                continue
            seconds = "" if result["seconds"] is None else f", {result['seconds']:.0f} s"
            cells.append(f"{'right' if _right(result) else 'wrong'}, {result['outcome']}{seconds}")
        yield f"| {first['query']} | {first['kind']} | {first['tokens']:,} | " + " | ".join(cells) + " |"


def _results(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def _right(result: dict[str, Any]) -> bool:
    return bool(result["score"] == 1.0)


def _against(results: dict[str, Any], base: dict[str, Any], name: str) -> str:
    if name == "ours" or not base:
        return ""
    pairs = [(_right(base[key]), _right(results[key])) for key in results.keys() & base.keys()]
    lost = sum(ours and not other for ours, other in pairs)
    won = sum(other and not ours for ours, other in pairs)
    return f"{won - lost:+d} (won {won}, lost {lost})"


if __name__ == "__main__":
    sys.exit(main())
