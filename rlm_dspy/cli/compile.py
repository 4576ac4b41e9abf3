"""``rlm-dspy compile``: a program improved by its prompts, and what it learned in a file."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import inspect
import json
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dspy

from rlm_dspy import presets
from rlm_dspy.cli import exits, objects, output, quiet
from rlm_dspy.cli.compile_options import OPTIMIZERS
from rlm_dspy.cli.models import models, named_or_own
from rlm_dspy.cli.out import OutFile
from rlm_dspy.errors import ConfigurationError, MissingExtraError, RLMError
from rlm_dspy.optimizers import CompileResult, evaluating, feedback, mended, previewed
from rlm_dspy.presets import Score
from rlm_dspy.redact import error_text
from rlm_dspy.rlm import RLM

ENOUGH = 12
"""Examples from which on GEPA chooses by others than it reflects on."""


def run(options: argparse.Namespace) -> int:
    """Compile, write the file, and return the exit code."""
    if not options.debug:
        quiet.libraries()
    if options.quiet:
        logging.getLogger("dspy").setLevel(logging.WARNING)
    try:
        return _compile(options)
    except KeyboardInterrupt:
        output.say("interrupted, nothing is written; the same command goes on where it can")
        return exits.INTERRUPTED
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        output.say(str(error) if isinstance(error, RLMError) else error_text(error))
        return exits.USAGE if isinstance(error, ConfigurationError) else exits.ERROR


def _compile(options: argparse.Namespace) -> int:
    # Everything that may be wrong is found out before anything costs money.
    OutFile(options.out)
    if Path(options.out).exists() and not options.force:
        raise ConfigurationError(f"--out {options.out} is there already; name another file, or --force to replace it")
    program = _program(options.program)
    metric = _metric(options.metric)
    inputs = _inputs(program)
    train, val = _examples(options, inputs)
    # A program may bring its LM, or its file may have configured one.
    own = next((p.lm for _, p in program.named_predictors() if p.lm is not None), dspy.settings.lm)
    root, sub = named_or_own(options.model, options.sub_model, options.api_base, own=own is not None)
    root = own if root is None else root
    if sub is not None:
        for _, rlm in program.named_sub_modules(RLM):
            rlm.sub_lm = sub
    say = (lambda text: None) if options.quiet else output.say
    with dspy.context(lm=root), evaluating():
        optimizer, kind = _optimizer(options, metric, root)
        say(f"{kind}: {len(train)} examples to learn from, {len(val)} to score")
        before = _scored(program, val, metric, options) if val else None
        if before is not None:
            say(f"before: {before}")
        compiled = _compiled(optimizer, program, train, val, options)
        if isinstance(found := getattr(optimizer, "result", None), CompileResult):
            say(str(found))
        after = _scored(compiled, val, metric, options) if val else None
    made = presets.write(
        options.out,
        compiled,
        name=options.name or Path(options.out).stem,
        model=str(getattr(root, "model", "")),
        description=options.description,
        recipe=_recipe(options, kind, train, val),
        before=before,
        after=after,
        force=options.force,
    )
    _report(options, made, compiled, say)
    return exits.SUBMITTED


def _report(
    options: argparse.Namespace, made: presets.Preset, compiled: dspy.Module, say: Callable[[str], None]
) -> None:
    # Those of other roles are not saved.
    kept = {name: getattr(p, "fitting_demos", lambda p=p: p.demos)() for name, p in compiled.named_predictors()}
    learned = {name: len(demos) for name, demos in kept.items() if demos}
    if made.after is not None and made.before is not None:
        say(f"after: {made.after}")
        if made.after.mean <= made.before.mean:
            output.say("it is no better than before on the examples that were scored; look before you use it")
    demos = ", ".join(f"{name}: {number}" for name, number in learned.items()) or "none"
    say(f"written: {options.out}; demonstrations: {demos}")
    if options.json:
        scores = {"before": made.before, "after": made.after}
        told = {name: None if score is None else vars(score) for name, score in scores.items()}
        output.answer(output.json_text({"file": options.out, **told, "demos": learned, "recipe": made.recipe}))


def _program(spec: str) -> dspy.Module:
    found = objects.find(spec, "PROGRAM")
    if callable(found) and not isinstance(found, dspy.Module):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(f"PROGRAM {spec!r} could not be called: {error_text(error)}") from error
    if not isinstance(found, dspy.Module):
        raise ConfigurationError(f"PROGRAM {spec!r} is a {type(found).__name__}, not a dspy.Module such as an RLM")
    return found


def _metric(spec: str) -> Callable[..., Any]:
    if spec == "tasks":
        from rlm_dspy import tasks

        return feedback(tasks.score)
    found = objects.find(spec, "--metric")
    if not callable(found):
        raise ConfigurationError(f"--metric {spec!r} is a {type(found).__name__}, not a function")
    # Whatever form it has, each optimiser gets a number of it, and GEPA the words too.
    return feedback(found)


def _inputs(program: dspy.Module) -> list[str]:
    """The names of the program's inputs, in any module around RLMs those of ``forward``."""
    if isinstance(program, (RLM, dspy.Predict)):
        return list(program.signature.input_fields)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in inspect.signature(type(program).forward).parameters.values() if p.kind in kinds]
    return [name for name in names if name != "self"]


def _examples(options: argparse.Namespace, inputs: Sequence[str]) -> tuple[list[dspy.Example], list[dspy.Example]]:
    train = _read(options.train, "--train", inputs)
    if options.no_score:
        return train, []
    if options.val is not None:
        return train, _read(options.val, "--val", inputs)
    if len(train) < 3:
        raise ConfigurationError(
            f"--train {options.train} has {len(train)} examples, too few to keep some back: give --val, or --no-score"
        )
    return _split(train, 1 / 3, options.seed)


def _split(examples: Sequence[Any], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    """``examples`` in two parts, in their order, the second with ``share`` of them; the same for the same seed."""

    def drawn(number: int) -> bytes:
        return hashlib.sha256(f"{seed} {number}".encode()).digest()

    taken = set(sorted(range(len(examples)), key=drawn)[: max(1, round(len(examples) * share))])
    parts = [[e for n, e in enumerate(examples) if (n in taken) is kept] for kept in (False, True)]
    return parts[0], parts[1]


def _read(path: str, option: str, inputs: Sequence[str]) -> list[dspy.Example]:
    try:
        # Not by ``splitlines``: a text may hold other ends of lines, such as U+2028, as they are.
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(f"{option} {path}: line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigurationError(f"{option} {path}: line {number} is not an object")
        given = [name for name in inputs if name in row]
        if not given:
            raise ConfigurationError(
                f"{option} {path}: line {number} has none of the program's inputs ({', '.join(inputs)}); it has "
                f"{', '.join(map(str, row)) or 'nothing'}"
            )
        found.append(dspy.Example(**row).with_inputs(*given))
    if not found:
        raise ConfigurationError(f"{option} {path} has no examples")
    return found


def _optimizer(options: argparse.Namespace, metric: Callable[..., Any], root: Any) -> tuple[Any, str]:
    """The optimizer, and the path of its class."""
    if options.optimizer not in OPTIMIZERS and ":" not in options.optimizer:
        raise ConfigurationError(
            f"--optimizer {options.optimizer!r}: there are {', '.join(OPTIMIZERS)}, or package.module:Class"
        )
    path = OPTIMIZERS.get(options.optimizer, (options.optimizer, ""))[0]
    if path == "dspy:MIPROv2" and importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("--optimizer mipro", "optimize")
    kind = objects.find(path, "--optimizer")
    # What the optimizer's constructor takes of what is known here.
    writer = models(options.reflection_model, None, options.api_base)[0] if options.reflection_model else root
    offered: dict[str, Any] = {
        "metric": metric,
        "num_threads": options.threads,
        "seed": options.seed,
        "prompt_model": writer,
        "reflection_lm": writer,
    }
    if options.teacher_model:
        offered["teacher_lm"] = models(options.teacher_model, None, options.api_base)[0]
    if options.folder:
        offered |= {"folder": options.folder, "log_dir": options.folder}
    given = dict(options.set)
    try:
        takes = _parameters(kind)
        chosen = {name: value for name, value in offered.items() if name in takes} | given
        for needed, name in ((options.teacher_model, "teacher_lm"), (options.folder, None)):
            if needed and not any(n in takes for n in ([name] if name else ["folder", "log_dir"])):
                raise ConfigurationError(f"{path} takes no {'teacher model' if name else 'folder'}: leave it out")
        budgets = ("auto", "max_metric_calls", "max_full_evals", "num_candidates", "num_trials")
        if "auto" in takes and not any(name in given for name in budgets):
            chosen["auto"] = "light"
        if "max_metric_calls" in takes and takes["max_metric_calls"].default is inspect.Parameter.empty:
            chosen.setdefault("max_metric_calls", 100)
        return mended(kind(**chosen)), path
    except TypeError as error:
        raise ConfigurationError(f"--optimizer {options.optimizer}: {error}") from None


def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """What a constructor takes; where it hands on any other keyword, also what those of its bases take."""
    found: dict[str, inspect.Parameter] = {}
    for base in inspect.getmro(kind) if isinstance(kind, type) else (kind,):
        try:
            takes = inspect.signature(base).parameters
        except (TypeError, ValueError):
            break
        found = dict(takes) | found
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
            break
    return found


def _compiled(optimizer: Any, program: dspy.Module, train: Any, val: Any, options: argparse.Namespace) -> dspy.Module:
    takes = inspect.signature(optimizer.compile).parameters
    offered: dict[str, Any] = {
        "seed": options.seed,
        "eval_kwargs": {"num_threads": options.threads, "display_progress": False},
        # The source of the class RLM is in no prompt of a proposer.
        "program_aware_proposer": False,
    }
    # What is scored in the end is not learned from: a validation set is part of the training examples. Without one,
    # optimizers that want one take it of these themselves.
    needed = "valset" in takes and takes["valset"].default is inspect.Parameter.empty
    if needed or ("valset" in takes and "gepa" in options.optimizer and len(train) >= ENOUGH):
        train, offered["valset"] = _split(train, 1 / 2, options.seed + 1)
    chosen = {name: value for name, value in offered.items() if name in takes}
    if hasattr(optimizer, "auto") and "requires_permission_to_run" in takes:
        chosen["requires_permission_to_run"] = False
    # Proposers write examples into their prompts, contexts of a megabyte too.
    chosen = {name: previewed(value) if name == "valset" else value for name, value in chosen.items()}
    compiled: dspy.Module = optimizer.compile(program, trainset=previewed(train), **chosen)
    return compiled


def _scored(program: dspy.Module, examples: Sequence[Any], metric: Any, options: argparse.Namespace) -> Score:
    failed: list[Exception] = []

    def scored(example: Any, prediction: Any, trace: Any = None) -> float:
        try:
            return float(metric(example, prediction, trace))
        except Exception as error:
            if getattr(prediction, "outcome", "") == "failed":
                # Where there is no answer a metric may fail, and it is no fault of the metric's.
                return 0.0
            failed.append(error)
            raise

    evaluate = dspy.Evaluate(
        devset=list(examples),
        metric=scored,
        num_threads=options.threads,
        display_progress=False,
        max_errors=len(examples) + 1,
        failure_score=0.0,
    )
    # Its line of the average is the one that is said here, with an interval.
    logger = logging.getLogger("dspy.evaluate.evaluate")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        results = evaluate(program).results
    finally:
        logger.setLevel(level)
    if len(failed) == len(results):
        raise ConfigurationError(f"--metric {options.metric} failed on every example: {error_text(failed[-1])}")
    if not any(prediction.keys() for _, prediction, _ in results):
        raise RLMError("every example ended in an error; what it was is told by --debug, or by running the program")
    return Score.of([float(getattr(score, "score", score)) for _, _, score in results])


def _recipe(options: argparse.Namespace, kind: str, train: Sequence[Any], val: Sequence[Any]) -> dict[str, Any]:
    files = {"train": options.train, "val": options.val}
    data = {
        name: {"file": Path(path).name, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
        for name, path in files.items()
        if path is not None
    }
    return {
        "command": shlex.join(["rlm-dspy", *sys.argv[1:]]) if sys.argv[1:2] == ["compile"] else "rlm-dspy compile",
        "program": options.program,
        "optimizer": kind,
        "arguments": dict(options.set),
        "metric": options.metric,
        "seed": options.seed,
        "data": data,
        "learned_from": len(train),
        "scored_on": len(val),
        "teacher_model": options.teacher_model,
        "reflection_model": options.reflection_model,
    }
