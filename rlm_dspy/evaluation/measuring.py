"""`evaluate`: programs on examples, measured, resumable, with intervals."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import dspy

from rlm_dspy import tracking
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.evaluation.account import Budget
from rlm_dspy.evaluation.calling import MAX_ERRORS, Called, InARow, call
from rlm_dspy.evaluation.programs import Program
from rlm_dspy.evaluation.report import Report, summary
from rlm_dspy.evaluation.results import Results, digest_of, key_of, row_of
from rlm_dspy.evaluation.work import Stop, check_threads, finished
from rlm_dspy.options import lms_of
from rlm_dspy.prices import PICO, Prices
from rlm_dspy.redact import error_text
from rlm_dspy.trajectory import Trajectory
from rlm_dspy.usage import Tally

__all__ = ["evaluate"]


@dataclass(frozen=True)
class _Item:
    """One program and one example that are still to be brought together."""

    place: int
    program: Program
    key: str
    digest: str
    example: dspy.Example


def evaluate(
    program: Any,
    examples: Iterable[dspy.Example],
    metric: Callable[..., Any],
    *,
    out: str | PathLike[str] | None = None,
    threads: int = 1,
    max_cost: float | None = None,
    prices: Mapping[str, Any] | None = None,
    stop: Stop | None = None,
    seen: Callable[[dict[str, Any]], Any] | None = None,
    trajectories: bool = True,
    max_errors: int | None = MAX_ERRORS,
) -> Report:
    """Call one or several programs with each example, and measure what they answer, take and cost.

    Args:
        program: A ``dspy.Module`` or callable, a `Program` (`rlm_dspy.evaluation.programs.get`), or a list of these;
            of several, the others are compared with the first. A `Program` is built for the ``signature`` of each
            example.
        examples: With inputs, as ``dspy.Example.with_inputs`` says them. They are taken one at a time.
        metric: Called with the example and the prediction; gives a number from 0 to 1, or true or false.
        out: A folder for the results. What is in it already is not done again, so that one that was interrupted or
            killed goes on; only runs that ended by an error of what they run on are made again.
        threads: Examples at once.
        max_cost: US dollars for all of it, all earlier times included. When they are spent no example is begun and RLMs
            under way stop, whose results do not count; other programs bring to an end what they have begun.
        prices: As for `RLM`, for all programs.
        stop: To end it from elsewhere.
        seen: Called with each result, in the order in which they come.
        trajectories: Keep the trajectory of each RLM in ``out``, without the values of its inputs.
        max_errors: Errors in a row of what programs run on, such as a provider, at which it stops; None never does.

    Where runs are tracked (`rlm_dspy.tracking.enable`) it is one MLflow run, with the traces of all calls and the
    figures of each program.

    Returns:
        The report, of what there is if it was stopped.

    Raises:
        ConfigurationError: An argument cannot be used, or ``out`` has results of other settings.
        RecordingError: ``out`` cannot be written.
        KeyboardInterrupt: As it came; what is finished is in ``out``.
    """
    programs = [as_program(one) for one in (program if isinstance(program, (list, tuple)) else [program])]
    if len({one.name for one in programs}) < len(programs):
        raise ConfigurationError("two of the programs have one name: Program(NAME, lambda signature: program)")
    check_threads(threads)
    stop = stop if stop is not None else Stop()
    results = Results(out)
    try:
        known = Prices(prices)
        budget = Budget(max_cost, results.spent, stop.spent)
        for one in programs:
            results.begin(one)
        budget.spend(Tally())
        earlier = results.known
        rows: dict[tuple[int, str], dict[str, Any]] = {}
        asked = Counter[str]()
        items = _items(programs, examples, results, rows, asked, seen)

        def work(item: _Item) -> tuple[Called, float | None, str | None]:
            module = item.program.of(item.example.get("signature"))
            budget.check(known, lms_of_module(module))
            inputs = item.example.inputs().toDict()
            called = call(module, inputs, prices=known, budget=budget, stop=stop)
            return called, *_scored(metric, item.example, called)

        in_a_row = InARow(max_errors, stop)
        names = tuple(one.name for one in programs)
        with tracking.run(f"evaluate {', '.join(names)}", params=_params(programs, threads, metric)) as record:
            for item, (called, score, said) in finished(items, work, threads, stop):
                in_a_row.see(called)
                if called.status == "stopped":
                    results.unfinished(item.program.name, item.key, called)
                    continue
                row = row_of(item.program.name, item.key, item.digest, item.example, called, score)
                if said is not None:
                    row |= {"status": "error", "outcome": "error", "error": said}
                if trajectories and results.folder is not None:
                    _keep_trajectory(results, item, called)
                results.add(row)
                rows[item.place, item.program.name] = row
                if seen is not None:
                    seen(row)
            if stop.reason is not None and earlier:
                for _ in items:
                    pass  # What it did not come to may have results of earlier times.
            ordered = [rows[at] for at in sorted(rows, key=lambda at: (at[0], names.index(at[1])))]
            report = Report(ordered, asked["examples"], stop.reason, results.spent / PICO, names)
            _record(record, report)
        return report
    finally:
        results.close()


def _params(programs: Sequence[Program], threads: int, metric: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"threads": threads, "metric": getattr(metric, "__name__", type(metric).__name__)}
    for program in programs:
        params |= {f"{program.name}.{name}": value for name, value in program.settings.items() if value is not None}
    return params


def _record(record: tracking.Record, report: Report) -> None:
    """Log the figures of each program."""
    for name in report.programs:
        told = summary(report.of(name)).to_dict()
        figures = {key: value for key, value in told.items() if isinstance(value, (int, float))}
        record.log_metrics({f"{name}.{key}": float(value) for key, value in figures.items()})
    first = report.of(report.programs[0]) if report.programs else []
    record.log_dataset([{"key": row["key"], "digest": row["example"]} for row in first])
    record.log_text(report.table(), "report.txt")


def as_program(given: Any) -> Program:
    """A module or a function as a `Program` of its own name; a `Program` as it is.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(given, Program):
        return given
    if isinstance(given, type) or not callable(given):
        raise ConfigurationError(f"a program is a dspy.Module, a function, or a Program, not {given!r}")
    name = getattr(given, "__name__", None) or type(given).__name__
    settings: dict[str, Any] = {}
    if isinstance(given, dspy.Module):
        signature = getattr(given, "signature", None)
        settings = {"signature": getattr(signature, "signature", None), "state": _state(given)}
    lm = dspy.settings.lm
    settings["model"] = getattr(lm, "model", None)
    return Program(str(name), lambda signature: given, settings)


def _state(module: dspy.Module) -> Any:
    try:
        return digest_of(dspy.Example(state=module.dump_state()))
    except Exception:  # a module of somebody's that cannot be saved can still be measured
        return None


def _items(
    programs: Sequence[Program],
    examples: Iterable[dspy.Example],
    results: Results,
    rows: dict[tuple[int, str], dict[str, Any]],
    asked: Counter[str],
    seen: Callable[[dict[str, Any]], Any] | None,
) -> Iterator[_Item]:
    """What is still to be done; what is done already is put into ``rows``."""
    numbers: dict[str, Iterator[int]] = {}
    for place, example in enumerate(examples):
        asked["examples"] += 1
        sort = key_of(example, 0)
        key = key_of(example, next(numbers.setdefault(sort, itertools.count())))
        digest = digest_of(example)
        for program in programs:
            row = results.get(program.name, key, digest)
            if row is not None:
                rows[place, program.name] = row
            if row is not None and row["score"] is not None:
                if seen is not None:
                    seen(row | {"again": True})
                continue
            yield _Item(place, program, key, digest, example)


def lms_of_module(module: Any) -> list[Any]:
    """The LMs that calls of ``module`` in this context may use, as far as it is known beforehand."""
    own = module.lms() if hasattr(module, "lms") else []
    found = [*lms_of(dspy.settings.lm), *own]
    if isinstance(module, dspy.Module):
        found += [getattr(module, "sub_lm", None), *(one.lm for one in module.predictors())]
    return [lm for lm in found if lm is not None]


def _scored(metric: Callable[..., Any], example: dspy.Example, called: Called) -> tuple[float | None, str | None]:
    """The score, and what is wrong with the metric if it gave none."""
    if called.status == "failed":
        return 0.0, None
    if called.status != "answered":
        return None, None
    try:
        score = float(metric(example, called.prediction))
    except Exception as error:
        return None, f"the metric failed: {error_text(error)}"
    if not math.isfinite(score) or not 0.0 <= score <= 1.0:
        return None, f"the metric gave {score}, which is no number from 0 to 1"
    return score, None


def _keep_trajectory(results: Results, item: _Item, called: Called) -> None:
    trajectory = getattr(called.prediction, "trajectory", None)
    if not isinstance(trajectory, Trajectory) or results.folder is None:
        return
    folder = results.folder / "trajectories"
    folder.mkdir(exist_ok=True)
    name = f"{item.program.name}-{item.key}"
    plain = re.sub(r"[^\w.+-]", "-", name)[:150]
    if plain != name.replace("/", "-"):
        # Another program or example may come to the same name.
        plain += f"-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    trajectory.to_jsonl(folder / f"{plain}.jsonl", values=False)
