"""A preset for a model: demonstrations out of its own runs that succeeded, and what they are worth on other questions.

    python -m benchmarks.make_preset --name qwen2.5-coder-1.5b     # the embedded model: some 110 runs
    python -m benchmarks.make_preset --name NAME --model openai/NAME --api-base http://127.0.0.1:8000/v1
    python -m benchmarks.make_preset --name qwen2.5-coder-1.5b-graphs --families graph_walk --teacher --sets 4

With ``--teacher`` the runs are not the model's own but those of a program that knows the family, and is no model
(`benchmarks.teachers`).

The questions are made by `rlm_dspy.tasks`, of each kind alike, in three sets of different seeds: on those of *train*
the program runs, several times each, and what succeeded is made into demonstrations; on those of *dev* sets of one, two
and three demonstrations are compared with the program as it is; on those of *test*, which are used for nothing else,
the best set is measured beside it, and these are the figures in the preset. Where it is no better there, no preset is
written, unless with ``--anyway``. Everything is kept in ``--folder`` as it is done, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.teachers import TEACHERS

OPTIONS: dict[str, Any] = {"max_iters": 8, "max_output_chars": 2_000, "adhoc": False}
"""Of the program, and of the preset: fewer turns, less output, one function less to go wrong with."""
SECONDS = 300.0
"""Wall time of one question."""
MAX_TOKENS = 1_500
"""Of all demonstrations together: they are read anew in every run, at some 35 tokens a second on two cores."""

def main(arguments: list[str] | None = None) -> int:
    """Make the preset; 0 if it was written, 3 if it is no better than nothing."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _options(given)
    from rlm_dspy.cli.models import models
    from rlm_dspy.presets import write

    if options.out.exists() and not options.force:
        raise SystemExit(f"{options.out} is there already: --force replaces it")
    options.folder.mkdir(parents=True, exist_ok=True)
    import dspy

    lm, sub_lm = models(options.model, None, options.api_base)
    # Without a cache, because a second rollout is to be another one, and seconds are measured.
    lm = lm.copy(cache=False) if options.model != "local" else lm
    with dspy.context(lm=lm):
        found = _candidates(options, sub_lm)
        print(f"{len(found)} runs succeeded and are short enough", flush=True)
        demos: dict[int, list[Any]] = {0: []} | {n: _chosen(found, n) for n in options.sets if n <= len(found)}
        dev = _measured(options, "dev", demos, options.dev, sub_lm) if len(demos) > 2 else {}
        best = max(dev, key=lambda n: (dev[n].mean, -n)) if dev else max(demos)
        for number, score in dev.items():
            print(f"dev, {number} demonstrations: {score}{'   <- best' if number == best else ''}", flush=True)
        tested = _measured(options, "test", {0: [], best: demos[best]}, options.test, sub_lm)
    before, after = tested[0], tested[best]
    print(f"test, before: {before}\ntest, after:  {after}", flush=True)
    if after.mean <= before.mean and not options.anyway:
        print("no better than the program as it is: no preset is written", flush=True)
        return 3
    recipe = {
        "command": shlex.join(["python", "-m", "benchmarks.make_preset", *given]),
        "optimizer": "rlm_dspy.optimizers: demonstrations out of whole runs (collect, demos.chosen)",
        "teacher": f"benchmarks.teachers.{options.families[0]}" if options.teacher else "the model itself",
        "tasks": {"families": options.families, "kinds": _kinds(options), "tokens": options.tokens},
        "sets": {"train": options.train, "dev": options.dev, "test": options.test},
        "seeds": {name: _seed(options, name) for name in ("train", "dev", "test")},
        "rollouts": options.rollouts,
        "demonstrations": best,
        "dev": {str(number): dataclasses.asdict(score) for number, score in dev.items()},
        "succeeded": len(found),
    }
    write(
        options.out,
        _program("context, query -> answer: str", demos[best], sub_lm),
        name=options.name,
        model=lm.model,
        description=f"{best} runs as demonstrations, of questions about {', '.join(options.families)}.",
        options=OPTIONS,
        recipe=recipe,
        before=before,
        after=after,
        force=options.force,
    )
    print(f"written: {options.out}")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.make_preset", description=__doc__.split("\n")[0])
    parser.add_argument("--name", required=True, help="of the preset")
    parser.add_argument("--model", default="local", help="local (the embedded model), or a name as dspy.LM takes it")
    parser.add_argument("--api-base", help="base URL of its server")
    parser.add_argument("--families", default="log_forensics,needles", help="of tasks (log_forensics,needles)")
    parser.add_argument("--teacher", action="store_true", help="demonstrations of a program that knows the family")
    parser.add_argument("--sets", default="1,2,3", help="numbers of demonstrations that are compared (1,2,3)")
    parser.add_argument("--tokens", type=int, default=50_000, help="of each context (50000: 200 KB)")
    parser.add_argument("--train", type=int, default=16, help="questions to learn from (16)")
    parser.add_argument("--dev", type=int, default=8, help="questions to choose by (8)")
    parser.add_argument("--test", type=int, default=24, help="questions to measure on (24)")
    parser.add_argument("--rollouts", type=int, default=2, help="attempts at a question until one succeeds (2)")
    parser.add_argument("--seed", type=int, default=71)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where what is done is kept (build/presets/NAME)")
    parser.add_argument("--out", type=Path, help="the preset (rlm_dspy/presets/NAME.json)")
    parser.add_argument("--force", action="store_true", help="replace it")
    parser.add_argument("--anyway", action="store_true", help="write it also where it is no better")
    options = parser.parse_args(list(arguments))
    options.families = options.families.split(",")
    options.sets = [int(number) for number in options.sets.split(",")]
    if options.teacher and (len(options.families) > 1 or options.families[0] not in TEACHERS):
        parser.error(f"--teacher goes with one family: {', '.join(TEACHERS)}")
    options.folder = options.folder or root / "build" / "presets" / options.name
    options.out = options.out or root / "rlm_dspy" / "presets" / f"{options.name}.json"
    return options


def _kinds(options: argparse.Namespace) -> list[str] | None:
    """Those that count, find, list and compare, of the families that have these; all of others."""
    from rlm_dspy.tasks.base import SIGNATURES

    return list(SIGNATURES)[:4] if set(options.families) <= {"log_forensics", "needles"} else None


def _seed(options: argparse.Namespace, which: str) -> int:
    return int(options.seed) * 10 + ("train", "dev", "test").index(which)


def questions(options: argparse.Namespace, which: str, n: int) -> list[Any]:
    """The questions of ``train``, ``dev`` or ``test``: kinds and families in turn."""
    from rlm_dspy import tasks

    return tasks.generate(n, options.tokens, _seed(options, which), family=options.families, kinds=_kinds(options))


def _program(signature: str, demos: Sequence[Any], sub_lm: Any) -> Any:
    import dspy

    from rlm_dspy import RLM

    rlm = RLM(signature, sub_lm=sub_lm, max_seconds=SECONDS, **OPTIONS)
    rlm.act.demos = [dspy.Example(**demo) for demo in demos]
    return rlm


def _candidates(options: argparse.Namespace, sub_lm: Any) -> list[Any]:
    """Runs that succeeded, as demonstrations; by signature, because a program has one."""
    from rlm_dspy import Guidance, tasks
    from rlm_dspy.optimizers import collect, demos
    from rlm_dspy.testing import ScriptedLM

    found: list[Any] = []
    batches: dict[str, list[Any]] = {}
    for example in questions(options, "train", options.train):
        batches.setdefault(example.signature, []).append(example)
    for number, (signature, examples) in enumerate(batches.items()):
        path = options.folder / f"runs-{_seed(options, 'train')}-{number}.json"
        if not path.exists():
            attempts = collect(
                _program(signature, [], sub_lm),
                examples,
                tasks.score,
                rollouts=options.rollouts,
                until=1,
                num_threads=options.threads,
                max_errors=None,
                **({"lm": ScriptedLM(TEACHERS[options.families[0]], model="teacher")} if options.teacher else {}),
            )
            solved = [attempt for attempt in attempts if attempt.error is None and attempt.score == 1.0]
            print(f"{signature}: {len(solved)} of {len(attempts)} attempts at {len(examples)} questions", flush=True)
            made = demos.candidates(solved, MAX_TOKENS, lambda name: Guidance()).get("act", [])
            kept = [dataclasses.asdict(one) | {"words": sorted(one.words)} for one in made]
            path.write_text(json.dumps(kept, indent=1))
        rows = json.loads(path.read_text())
        found += [demos.Candidate(**{**row, "words": frozenset(row["words"])}) for row in rows]
    return found


def _chosen(found: Sequence[Any], number: int) -> list[dict[str, Any]]:
    from rlm_dspy.optimizers import demos

    return [one.demo for one in demos.chosen(found, number, MAX_TOKENS)]


def _measured(
    options: argparse.Namespace, which: str, demos: dict[int, list[Any]], n: int, sub_lm: Any
) -> dict[int, Any]:
    """The score of each set of demonstrations on the same questions."""
    from rlm_dspy import tasks
    from rlm_dspy.evaluation import Program, evaluate
    from rlm_dspy.presets import Score

    programs = {
        number: Program(
            f"demos-{number}",
            lambda signature, some=some: _program(signature, some, sub_lm),  # type: ignore[misc]
            {"demos": some, "model": options.model, **OPTIONS},
        )
        for number, some in demos.items()
    }
    report = evaluate(
        list(programs.values()),
        questions(options, which, n),
        tasks.score,
        out=options.folder / f"{which}-{_seed(options, which)}",
        threads=options.threads,
        trajectories=False,
        seen=lambda row: print(f"{which} {row['program']}: {row.get('score')} {row.get('outcome')}", flush=True),
    )
    scores = {number: [float(r["score"] or 0.0) for r in report.of(one.name)] for number, one in programs.items()}
    if not all(len(of) == n for of in scores.values()):
        raise SystemExit("stopped; the same command goes on")
    return {number: Score.of(of) for number, of in scores.items()}


if __name__ == "__main__":
    sys.exit(main())
