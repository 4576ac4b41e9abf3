"""The arguments of ``rlm-dspy compile``. Standard library only, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rlm_dspy.cli.ask_options import number

OPTIMIZERS = {
    "bootstrap": ("rlm_dspy.optimizers:BootstrapTrajectories", "demonstrations out of whole runs that succeeded"),
    "gepa": ("rlm_dspy.optimizers:RLMGEPA", "instructions rewritten from whole trajectories; goes on after a crash"),
    "fewshot": ("dspy:BootstrapFewShot", "DSPy's demonstrations: a step of each run"),
    "random-search": ("dspy:BootstrapFewShotWithRandomSearch", "the best of several sets of those"),
    "mipro": ("dspy:MIPROv2", "instructions and demonstrations, searched together; needs optuna"),
    "stock-gepa": ("dspy:GEPA", "DSPy's own GEPA"),
    "simba": ("dspy:SIMBA", "rules and demonstrations from runs that vary"),
    "copro": ("dspy:COPRO", "instructions, rewritten by rounds"),
    "infer-rules": ("dspy:InferRules", "rules read off demonstrations"),
}
"""Name to the class and what it does."""

_HELP = """\
Improve a program by its prompts, and keep what it learned in a file.

The program is run on the training examples, the optimizer writes instructions and demonstrations, and examples that it
has not seen are scored before and after. FILE is the program's saved state together with how it was made; load it by
  rlm.load("FILE"),  RLM.from_preset("FILE", signature),  rlm-dspy ask ... --load FILE
"""
_MORE = """\
optimizers:
{optimizers}
  package.module:Class   any other dspy.Teleprompter

PROGRAM and METRIC are FILE.py:NAME or PACKAGE.MODULE:NAME. PROGRAM is a dspy.Module, or a function without arguments
that gives one; METRIC is called as metric(example, prediction, trace), and "tasks" is that of rlm_dspy.tasks.

FILE of --train and --val are JSON Lines, one example a line; the fields that the program's signature has as inputs
are inputs. Without --val a third of --train, drawn by --seed, is kept back and scored.

Interrupted, the same command goes on: --folder keeps the progress of optimizers that can (gepa, stock-gepa), and what
a model has answered before comes from DSPy's cache.

exit codes:
  0    FILE is written
  1    error; nothing is written
  2    usage
  130  interrupted; nothing is written
"""


def add_parser(commands: Any) -> None:
    """Register ``compile`` with the sub-parsers of ``rlm-dspy``."""
    listed = "\n".join(f"  {name:<21}{text}" for name, (_, text) in OPTIMIZERS.items())
    parser = commands.add_parser(
        "compile",
        help="improve a program by its prompts",
        description=_HELP,
        epilog=_MORE.format(optimizers=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("program", metavar="PROGRAM", help="such as program.py:rlm")
    group = parser.add_argument_group("what to learn from")
    group.add_argument("--train", metavar="FILE", required=True, help="examples to learn from, JSON Lines")
    group.add_argument("--val", metavar="FILE", help="examples to score before and after (default: a third of --train)")
    group.add_argument("--metric", metavar="M", required=True, help="such as metrics.py:exact, or tasks")
    group = parser.add_argument_group("how")
    group.add_argument("--optimizer", metavar="NAME", default="bootstrap", help="see below (bootstrap)")
    group.add_argument(
        "--set", metavar="K=V", action="append", default=[], type=setting, help="an argument of it; V as JSON"
    )
    group.add_argument("--seed", metavar="N", type=number(int), default=0, help="for optimizers that draw (0)")
    group.add_argument("--threads", metavar="N", type=number(int), default=4, help="runs at once (4)")
    group.add_argument("--folder", metavar="DIR", help="where an optimizer that can keeps its progress")
    group = parser.add_argument_group("models")
    group.add_argument(
        "--model", metavar="M", help="the root model, as for ask (default: $RLM_DSPY_MODEL, or the program's own)"
    )
    group.add_argument("--sub-model", metavar="M", help="the model of llm_query (default: the program's, or the root)")
    group.add_argument("--api-base", metavar="URL", help="base URL of the model's server")
    group.add_argument("--teacher-model", metavar="M", help="plays the root while examples are made (bootstrap)")
    group.add_argument("--reflection-model", metavar="M", help="writes instructions (default: the root model)")
    group = parser.add_argument_group("output")
    group.add_argument("--out", metavar="FILE", required=True, help="the file, such as strategy.json")
    group.add_argument("--force", action="store_true", help="replace FILE if it is there")
    group.add_argument("--name", metavar="NAME", help="of the preset (default: that of FILE)")
    group.add_argument("--description", metavar="TEXT", default="", help="a sentence about it, kept in FILE")
    group.add_argument("--no-score", action="store_true", help="score nothing, and learn from all of --train")
    group.add_argument("--json", action="store_true", help="one JSON object on standard output")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--debug", action="store_true", help="show tracebacks")


def setting(text: str) -> tuple[str, Any]:
    """``K=V`` as key and value, which is read as JSON where it is JSON."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form K=V")
    name = key.strip().replace("-", "_")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
