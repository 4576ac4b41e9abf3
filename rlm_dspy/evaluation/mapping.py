"""`map_rows`: a program on every row of a file; in order, resumable, every failure in its place.

Beside ``OUT`` lies a folder ``OUT.job``: the settings, rows that were finished before their turn, and what was spent on
rows that were not brought to an end. A row is begun only while few rows before it are still under way, so neither
memory nor that folder grows with the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import dspy

from rlm_dspy import kept
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.evaluation.account import Budget
from rlm_dspy.evaluation.calling import MAX_ERRORS, Called, InARow, call
from rlm_dspy.evaluation.lines import LineFile
from rlm_dspy.evaluation.measuring import as_program, lms_of_module
from rlm_dspy.evaluation.on_ray import Ray
from rlm_dspy.evaluation.ordered import Ordered
from rlm_dspy.evaluation.results import changes, outputs_of, picodollars, plain
from rlm_dspy.evaluation.rows import Row, inputs_of
from rlm_dspy.evaluation.work import Stop, check_threads, finished
from rlm_dspy.prices import PICO, Prices
from rlm_dspy.usage import Tally

__all__ = ["Mapped", "map_rows"]

FORMAT = "rlm-dspy map"
LEAST_AHEAD = 16
"""Rows that may be begun while one before them is still under way; four times the threads where that is more."""
_FAILED = ("failed", "error")
_LARGE = 1_000
"""Characters of an input for all rows up to which the settings have it as it is."""


@dataclass
class Mapped:
    """What came of a job.

    Attributes:
        rows: How many are in the file.
        statuses: How many of them ended how, see `rlm_dspy.evaluation.calling.Called`.
        stopped: Why it ended before all of them; None where it did not.
        spent: US dollars so far, of what is known.
        unpriced_calls: LM calls whose cost is unknown.
    """

    rows: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None
    spent: float = 0.0
    unpriced_calls: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**vars(self), "statuses": dict(self.statuses)}

    def see(self, line: Mapping[str, Any]) -> None:
        """Count a line."""
        self.rows += 1
        self.statuses[str(line.get("status"))] += 1
        self.unpriced_calls += int(line.get("unpriced_calls") or 0)


def map_rows(
    program: Any,
    rows: Iterable[Row],
    out: str | PathLike[str],
    *,
    signature: Any = None,
    columns: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    keep: Iterable[str] = (),
    threads: int = 1,
    max_cost: float | None = None,
    prices: Mapping[str, Any] | None = None,
    retry: bool = False,
    stop: Stop | None = None,
    seen: Callable[[dict[str, Any]], Any] | None = None,
    max_errors: int | None = MAX_ERRORS,
    ray: Ray | None = None,
) -> Mapped:
    """Call a program with each row and write a line for each, in order.

    Args:
        program: As for `rlm_dspy.evaluation.evaluate`, one of them.
        rows: Such as those of `rlm_dspy.evaluation.rows.read`; taken one at a time.
        out: The file, JSON Lines: ``row``, ``input`` (a digest), ``outputs``, ``status``, ``outcome``, ``error``, and
            what it took. One that is there already is continued.
        signature: Of the task, for a `Program`, and for columns; that of the module if None.
        columns: Input to the column that has it, where that has another name.
        given: Inputs that are the same for all rows.
        keep: Columns to copy into the lines, under ``kept``.
        threads: Rows at once.
        max_cost: US dollars for all rows, all earlier times included; as for `evaluate`.
        prices: As for `RLM`.
        retry: Call it again with the rows that failed before.
        stop: To end it from elsewhere.
        seen: Called with each line that is new, in the order in which rows end.
        max_errors: Errors in a row of what the program runs on, at which it stops; None never does.
        ray: The cluster to run on (`rlm_dspy.evaluation.Ray`), where money is counted when a row has ended; None for
            threads of this process.

    Raises:
        ConfigurationError: An argument cannot be used; a table lacks a column that is asked for; ``out`` is of other
            settings, other rows, or not of `map_rows`.
        RecordingError: ``out`` cannot be written, is damaged, or another process writes to it.
        KeyboardInterrupt: As it came; what is finished is in ``out``.
    """
    check_threads(threads)
    chosen = as_program(program)
    module = chosen.of(signature)
    shape = signature_of(module) if signature is None else dspy.Signature(signature)
    keep, stop = list(keep), stop if stop is not None else Stop()
    rows = _fitting(rows, shape, columns or {}, given or {}, keep)
    settings = {**chosen.settings, "program": chosen.name, "signature": None if shape is None else str(shape.signature)}
    settings |= {"columns": dict(columns or {}), "given": _told(given or {}), "keep": keep}
    job = _Job(Path(out), settings, retry)
    try:
        calling = RowCall(module, signature, columns, given, prices)
        budget = Budget(max_cost, job.spent, stop.spent)
        budget.check(calling.prices, lms_of_module(module))
        budget.spend(Tally())
        in_a_row = InARow(max_errors, stop)

        def work(row: Row) -> Called | str:
            return calling(row, budget, stop)

        window = max(LEAST_AHEAD, 4 * threads)

        def near() -> bool:
            return job.taken - job.ordered.next < window

        if ray is None:
            results = finished(job.todo(rows), work, threads, stop, near)
        else:
            results = ray.finished(job.todo(rows), calling, threads, stop, near)
        for row, called in results:
            line = _line(row, called, keep)
            if isinstance(called, Called):
                if ray is not None:
                    budget.spend(called.usage)
                in_a_row.see(called)
                if called.status == "stopped":
                    job.unfinished(called)
                    continue
            job.put(line)
            if seen is not None:
                seen(line)
        return job.end(stop.reason)
    finally:
        job.close()


def _fitting(
    rows: Iterable[Row], shape: Any, columns: Mapping[str, str], given: Mapping[str, Any], keep: list[str]
) -> Iterator[Row]:
    """The rows, where the names fit them. A table has the same columns in each row: the first one tells."""
    if shape is not None:
        for option, names in (("columns (--input)", columns), ("given (--set)", given)):
            if strange := [name for name in names if name not in shape.input_fields]:
                raise ConfigurationError(
                    f"{option}: the program has no input {strange[0]!r}; it has {', '.join(shape.input_fields)}"
                )
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))
    if first and first[0].text and first[0].error is None:
        there = ", ".join(map(repr, list(first[0].values)[:12]))
        for name, info in ({} if shape is None else shape.input_fields).items():
            column = columns.get(name, name)
            if name not in given and column not in first[0].values and (info.is_required() or name in columns):
                raise ConfigurationError(
                    f"there is no column {column!r} for the input {name!r}; there are {there}. "
                    f"Name the column, columns={{{name!r}: ...}} (--input {name}=COLUMN), or one value for all rows, "
                    f"given={{{name!r}: ...}} (--set {name}=TEXT)"
                )
        if missing := [column for column in keep if column not in first[0].values]:
            raise ConfigurationError(f"keep (--keep): there is no column {missing[0]!r}; there are {there}")
    return itertools.chain(first, rows)


class RowCall:
    """A program with all that it takes to call it with a row, also in another process, where it is sent by pickle.

    Args:
        module: The program.
        signature, columns, given, prices: As for `map_rows`.
    """

    def __init__(
        self,
        module: Any,
        signature: Any = None,
        columns: Mapping[str, str] | None = None,
        given: Mapping[str, Any] | None = None,
        prices: Mapping[str, Any] | None = None,
    ) -> None:
        self.lm = dspy.settings.lm
        self._module = module
        self._signature = signature
        self._columns = columns
        self._given = given
        self.prices = Prices(prices)

    def __call__(self, row: Row, budget: Budget | None = None, stop: Stop | None = None) -> Called | str:
        """What came of the row; the text of what is wrong with it where it cannot be read."""
        shape = signature_of(self._module) if self._signature is None else dspy.Signature(self._signature)
        try:
            inputs = inputs_of(row, shape, self._columns, self._given)
        except ValueError as error:
            return str(error)
        if budget is None:
            budget = Budget(None)
            budget.check(self.prices, lms_of_module(self._module))
        return call(self._module, inputs, prices=self.prices, budget=budget, stop=stop or Stop())


def signature_of(module: Any) -> Any:
    """The signature of a module: its own, or that of its only predictor; None if that is not clear."""
    own = getattr(module, "signature", None)
    if own is not None and hasattr(own, "input_fields"):
        return own
    predictors = module.predictors() if isinstance(module, dspy.Module) else []
    return predictors[0].signature if len(predictors) == 1 else None


def _line(row: Row, called: Called | str, keep: Iterable[str]) -> dict[str, Any]:
    line: dict[str, Any] = {"row": row.number, "input": row.digest}
    if keep:
        line["kept"] = {name: plain(row.values.get(name), limit=None) for name in keep}
    if isinstance(called, str):
        return {**line, "outputs": None, "status": "failed", "outcome": "unreadable", "limit": None, "error": called}
    outputs = None if called.prediction is None else outputs_of(called.prediction, limit=None)
    return {**line, "outputs": outputs, **called.figures()}


def _told(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs as settings: without secrets, a large one by its hash."""
    told = {}
    for name, value in given.items():
        data = plain(value, limit=None)
        text = data if isinstance(data, str) else json.dumps(data, sort_keys=True)
        if len(text) > _LARGE:
            data = f"{len(text)} characters, sha256 {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
        told[name] = data
    return told


class _Job:
    """The files of a job: what is there, and what comes to it."""

    def __init__(self, out: Path, settings: dict[str, Any], retry: bool) -> None:
        self.out = out
        self.folder = out.with_name(out.name + ".job")
        self.taken = 0
        self.result = Mapped()
        self._previous = self.folder / "previous.jsonl"
        self._settings(settings)
        self.ordered = Ordered(out, self.folder)
        self._spent: LineFile | None = None
        try:
            self._spent = LineFile(self.folder / "unfinished.jsonl")
            self._read()
            failed = sum(self.result.statuses[status] for status in _FAILED)
            if retry and failed and not self._previous.exists():
                # What there is becomes the earlier results, of which those are taken over that did not fail.
                self.ordered.close()
                out.rename(self._previous)
                self.ordered = Ordered(out, self.folder)
                self._read()
            self.spent = sum(map(picodollars, self._spent.records())) + sum(self._costs())
        except BaseException:
            self.close()
            raise

    def _settings(self, settings: dict[str, Any]) -> None:
        data = {"format": FORMAT, "schema": 1, "settings": json.loads(json.dumps(settings, default=str))}
        path = self.folder / "settings.json"
        if path.exists():
            try:
                before = json.loads(path.read_bytes())["settings"]
            except (OSError, ValueError, LookupError, TypeError):
                raise ConfigurationError(f"{path} is damaged: give another --out, or remove {self.folder}") from None
            if changed := changes(before, data["settings"]):
                raise ConfigurationError(
                    f"{self.out} was made with other settings ({changed}). Give the settings of then to go on, or "
                    "another file (--out) for these"
                )
            return
        if self.out.exists() and self.out.stat().st_size:
            raise ConfigurationError(f"{self.out} is there, and not of a job that could go on: give another --out")
        if self.out.exists() and not self.out.is_file():
            raise ConfigurationError(f"{self.out} is no file: name one in an existing folder (--out)")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(data, indent=1).encode()
            kept.atomically(path, lambda file: file.write(text), durable=True)
        except OSError as error:
            raise ConfigurationError(f"{self.folder} cannot be made: {error.strerror or error}") from error

    def _read(self) -> None:
        self.result, self._cost = Mapped(), 0
        for line in self.ordered.lines():
            self.result.see(line)
            self._cost += picodollars(line)

    def _costs(self) -> Iterator[int]:
        """Of all lines, each once: in the file, ahead, and earlier ones that are not taken over, or not yet."""
        yield self._cost
        yield from map(picodollars, self.ordered.ahead.values())
        for line in _records(self._previous):
            taken_over = line["row"] < self.ordered.next or line["row"] in self.ordered.ahead
            if line["status"] in _FAILED or not taken_over:
                yield picodollars(line)

    def todo(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that are still to be done.

        Raises:
            ConfigurationError: One of those that are done is not what it was.
        """
        done = self.ordered.again() if self.ordered.next else iter(())
        already = self.ordered.next
        earlier = _records(self._previous)
        for row in rows:
            line: Mapping[str, Any] | None = next(earlier, None)
            self.taken = row.number + 1
            if row.number < already:
                self._same(row, next(done))
            elif row.number in self.ordered.ahead:
                self._same(row, self.ordered.ahead[row.number])
                self.result.see(self.ordered.ahead[row.number])
                self.ordered.flush()
            elif line is not None and line["status"] not in _FAILED:
                self._same(row, line)
                self.ordered.put(line)
                self.result.see(line)
            else:
                yield row
        if self.taken < already:
            raise ConfigurationError(f"{self.out} has {already} rows, and the input {self.taken}: it has changed since")

    def _same(self, row: Row, line: Mapping[str, Any]) -> None:
        if line["input"] != row.digest:
            raise ConfigurationError(
                f"row {row.number} of the input is not what it was when {self.out} was made: give another --out"
            )

    def put(self, line: Mapping[str, Any]) -> None:
        """Keep a line that is new."""
        self.ordered.put(line)
        self.result.see(line)
        self.spent += picodollars(line)

    def unfinished(self, called: Called) -> None:
        """Keep what a row has cost that was not brought to an end."""
        if called.usage.calls and self._spent is not None:
            line = called.usage.to_dict()
            self._spent.append([line])
            self.spent += picodollars(line)

    def end(self, stopped: str | None) -> Mapped:
        """What came of it; where all is done, the files that were there for going on are taken away."""
        self.result.stopped = stopped
        self.result.spent = self.spent / PICO
        if stopped is None and not self.ordered.ahead:
            self.ordered.remove_beside()
            if self._spent is not None:
                # What the failures cost that were tried again counts for max_cost as long as the file does.
                for line in _records(self._previous):
                    if line["status"] in _FAILED and picodollars(line):
                        self._spent.append([{"row": line["row"], "known_cost": picodollars(line) / PICO}])
            self._previous.unlink(missing_ok=True)
        return self.result

    def close(self) -> None:
        """Write no more; idempotent."""
        self.ordered.close()
        if self._spent is not None:
            self._spent.close()


def _records(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                yield json.loads(line)
