"""How many metric calls GEPA needs until an RLM does well on held-out tasks: `RLMGEPA` beside ``dspy.GEPA``.

    python -m benchmarks.optimizers [--seeds 10] [--budget 150] [--write]    exit status 1 below 7 of 10 seeds

The task is the toy of ``tests/optimizers/toy.py``: three facts, of which `act` has to learn two and `sub` one, that
only trajectories show. All compile the same program on the same examples with the same budget and the same reflecting
model, which is scripted: it names a fact if, and only if, its prompt holds a line that shows it. So what is compared is
what each shows to the reflecting model, which predictors it rewrites, and how many runs it pays for; not how clever a
model writes instructions.

Counted are rollouts. A seed's figure is the count at which the candidate that is best on the validation set first has
the target on held-out examples, which no optimiser sees. `dspy.GEPA` runs as it comes, with the task's own feedback;
beside it with our feedback, and with all predictors rewritten at once (``component_selector="all"``).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import dspy

from benchmarks.process import ROOT
from rlm_dspy import environments
from rlm_dspy.optimizers import RLMGEPA, feedback
from rlm_dspy.testing import ScriptedLM

TARGET = 0.95
"""Held-out score that has to be reached."""
BAR = 0.7
"""Share of seeds in which ours has to need fewer metric calls than `dspy.GEPA` as it comes."""
RESULTS = Path(__file__).with_name("optimizers.json")

Found = list[tuple[int, dict[str, str]]]
"""Metric calls so far, and the instructions of what was then best on the validation set."""


def toy() -> ModuleType:
    """The task."""
    spec = importlib.util.spec_from_file_location("rlm_dspy_toy", ROOT / "tests" / "optimizers" / "toy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def best_so_far(measured: list[tuple[int, float, dict[str, str]]]) -> Found:
    """Of candidates by (metric calls, validation score, instructions) those that were the best when they came."""
    found: Found = []
    top = float("-inf")
    for calls, score, instructions in sorted(measured, key=lambda one: one[0]):
        if score > top:
            top = score
            found.append((calls, instructions))
    return found


class Bench:
    """The task, the program, and the compiles of it.

    Args:
        budget: Metric calls of one compile.
    """

    def __init__(self, budget: int) -> None:
        self.toy, self.budget = toy(), budget
        self.student = self.toy.program(environments.get("inprocess"))
        self.train, self.dev, self.held = self.toy.trainset(), self.toy.devset(), self.toy.heldout()
        self._known: dict[str, float] = {}

    def reflecting(self) -> ScriptedLM:
        """The reflecting model, a new one for each compile."""
        return ScriptedLM(self.toy.propose, model="scripted/reflection")

    def ours(self, seed: int) -> Found:
        """`RLMGEPA` with its defaults."""
        optimizer = RLMGEPA(
            self.toy.metric,
            reflection_lm=self.reflecting(),
            max_metric_calls=self.budget,
            alpha=None,
            num_threads=1,
            seed=seed,
        )
        optimizer.compile(self.student, trainset=self.train, valset=self.dev)
        assert optimizer.result is not None
        return best_so_far([(c.found_after, c.score, c.instructions) for c in optimizer.result.candidates])

    def stock(self, seed: int, metric: Callable[..., Any], **options: Any) -> Found:
        """``dspy.GEPA`` with ``options``."""
        optimizer = dspy.GEPA(
            metric=metric,
            reflection_lm=self.reflecting(),
            max_metric_calls=self.budget,
            num_threads=1,
            track_stats=True,
            warn_on_score_mismatch=False,
            seed=seed,
            **options,
        )
        # Progress bars of every minibatch.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            compiled: Any = optimizer.compile(self.student, trainset=self.train, valset=self.dev)
        told = compiled.detailed_results
        measured = []
        for number, candidate in enumerate(told.candidates):
            instructions = {name: p.signature.instructions for name, p in candidate.named_predictors()}
            # Its count is that before the candidate is measured on the validation set; the student's is 0.
            calls = told.discovery_eval_counts[number] + len(self.dev)
            measured.append((calls, told.val_aggregate_scores[number], instructions))
        return best_so_far(measured)

    def held_out(self, instructions: dict[str, str]) -> float:
        """The score of the student with ``instructions`` on held-out examples."""
        key = json.dumps(instructions, sort_keys=True)
        if key not in self._known:
            program = self.student.deepcopy()
            for name, predictor in program.named_predictors():
                predictor.signature = predictor.signature.with_instructions(instructions[name])
            given = [self.toy.metric(one, program(**one.inputs())) for one in self.held]
            self._known[key] = sum(given) / len(given)
        return self._known[key]

    def needed(self, found: Found) -> tuple[int | None, float]:
        """The metric calls until the target, None if it was not reached; and the held-out score in the end."""
        scores = [(calls, self.held_out(instructions)) for calls, instructions in found]
        return next((calls for calls, score in scores if score >= TARGET), None), scores[-1][1]


def measure(seeds: int, budget: int) -> dict[str, Any]:
    """All compiles of all seeds, and what they needed; printed as they end."""
    bench = Bench(budget)
    own, judged = bench.toy.feedback, feedback(bench.toy.metric)
    kinds: dict[str, Callable[[int], Found]] = {
        "RLMGEPA": bench.ours,
        "dspy.GEPA": lambda seed: bench.stock(seed, own),
        "dspy.GEPA, our feedback": lambda seed: bench.stock(seed, judged),
        "dspy.GEPA, all at once": lambda seed: bench.stock(seed, judged, component_selector="all"),
    }
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with dspy.context(lm=ScriptedLM(bench.toy.root, model="scripted/root")):
        for seed in range(seeds):
            for kind, compile_ in kinds.items():
                started = time.perf_counter()
                calls, score = bench.needed(compile_(seed))
                seconds = round(time.perf_counter() - started, 1)
                row = {"seed": seed, "metric_calls": calls, "held_out": round(score, 3), "seconds": seconds}
                rows[kind].append(row)
                reached = f"> {budget}" if calls is None else calls
                print(
                    f"seed {seed}  {kind:26} {reached!s:>6} metric calls, held out {score:.3f}, {seconds:.1f} s",
                    flush=True,
                )
    summary = {kind: _summary(kind, rows, budget) for kind in kinds}
    return {"target": TARGET, "budget": budget, "seeds": seeds, "summary": summary, "rows": rows}


def _summary(kind: str, rows: dict[str, list[dict[str, Any]]], budget: int) -> dict[str, Any]:
    counts = [budget + 1 if row["metric_calls"] is None else row["metric_calls"] for row in rows[kind]]
    ours = [budget + 1 if row["metric_calls"] is None else row["metric_calls"] for row in rows["RLMGEPA"]]
    return {
        "median_metric_calls": statistics.median(counts),
        "reached": sum(row["metric_calls"] is not None for row in rows[kind]),
        "ours_needs_fewer": sum(a < b for a, b in zip(ours, counts, strict=True)),
        "held_out": round(statistics.mean(row["held_out"] for row in rows[kind]), 3),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print it; 0 if ours needs fewer metric calls in enough seeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optimizers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=int, default=150, help="metric calls of one compile")
    parser.add_argument("--write", action="store_true", help=f"also to {RESULTS.name}")
    options = parser.parse_args(arguments)
    for noisy in ("dspy", "gepa"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    result = measure(options.seeds, options.budget)
    print(f"\nheld-out score of at least {TARGET}, {options.seeds} seeds, at most {options.budget} metric calls each")
    print(f"{'':26} {'median calls':>13} {'reached':>8} {'held out':>9} {'ours needs fewer in':>20}")
    for kind, told in result["summary"].items():
        median = told["median_metric_calls"]
        shown = f"> {options.budget}" if median > options.budget else f"{median:g}"
        fewer = "" if kind == "RLMGEPA" else f"{told['ours_needs_fewer']} of {options.seeds}"
        print(f"{kind:26} {shown:>13} {told['reached']:>8} {told['held_out']:>9.3f} {fewer:>20}")
    if options.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    share: float = result["summary"]["dspy.GEPA"]["ours_needs_fewer"] / options.seeds
    print(f"\nneeded: fewer than dspy.GEPA in at least {BAR:.0%} of the seeds; here {share:.0%}")
    return 0 if share >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
