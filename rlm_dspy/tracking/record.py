"""`Record`: an MLflow run, as the program sees it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy.tracking.facts import OUTSIDE, Facts
from rlm_dspy.usage import Key, Tally

Work = Callable[[Any, str], object]
"""What is to be done with an ``MlflowClient`` and the run's id."""


class Record:
    """An MLflow run that traces are part of, and what came of all of them.

    Made by `rlm_dspy.tracking.run`, and by tracking itself for each ``dspy.Evaluate`` and each ``compile``. Nothing
    here waits for the store: what is logged is sent by a thread, in order. Where nothing is tracked, it does nothing.

    Attributes:
        name: Of the run.
        run_id: MLflow's id of it; None where nothing is tracked, or the server did not answer when it began.
        outer: The one that it is nested in, or None.
        facts: What was done in it so far, what is nested in it included.
    """

    def __init__(self, name: str, outer: Record | None = None) -> None:
        self.name = name
        self.run_id: str | None = None
        self.outer = outer
        self.facts = Facts()
        self.started = time.time()
        self.steps: Counter[str] = Counter()
        self.pages = 0
        self._requests: list[tuple[str, Any, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._later: Callable[[Work], None] | None = None

    def attach(self, run_id: str, later: Callable[[Work], None]) -> None:
        """Tie it to MLflow's run; ``later`` has work done beside the program."""
        self.run_id, self._later = run_id, later

    # ---------------------------------------------------------------------------------------- what the user logs

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; as texts, without secrets, cut after 500 characters."""
        given = dict(params)
        self.do(lambda to: to.params(given))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log numbers; what is None or not finite is left out."""
        given, at = dict(metrics), int(time.time() * 1000)
        self.do(lambda to: to.metrics(given, step, at))

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags; as texts, without secrets."""
        given = dict(tags)
        self.do(lambda to: to.tags(given))

    def log_text(self, text: str, file: str) -> None:
        """Log ``text``, without secrets, as the artefact ``file``."""
        self.do(lambda to: to.text(text, file))

    def log_dataset(self, rows: Iterable[Any], name: str = "dataset") -> None:
        """Log how many rows there are, a digest of all of them, and a preview of the first; never the rows themselves.

        Args:
            rows: ``dspy.Example`` objects, mappings, or other data; hashed beside the program, so not to be changed.
            name: What it is called, such as ``"trainset"``.
        """
        kept = list(rows)
        self.do(lambda to: to.dataset(kept, name))

    def do(self, work: Callable[[Any], object]) -> None:
        """Have ``work`` done beside the program, with what logs to MLflow's run; for the project's own use."""
        if self._later is not None:
            self._later(lambda to, _: work(to))

    # ------------------------------------------------------------------------------------ what tracking tells it

    def ended(self, events: Iterable[ev.Event]) -> None:
        """A run of an RLM in it has ended."""
        log, record = tuple(events), self
        while record is not None:
            with record._lock:
                record.facts.add(log)
            record = record.outer  # type: ignore[assignment]

    def requested(self, model: str, lm: Any, entry: dict[str, Any]) -> None:
        """An LM was asked outside of every run of an RLM; its usage is ``entry``, its price looked up later."""
        record: Record | None = self
        while record is not None:
            with record._lock:
                record._requests.append((model, getattr(lm, "price", None), entry))
            record = record.outer

    def settle(self, tally_of: Callable[[str, Any, dict[str, Any]], Tally]) -> None:
        """Add what was asked outside of runs to the facts, by what ``tally_of`` makes of each."""
        with self._lock:
            requests, self._requests = self._requests, []
            for model, price, entry in requests:
                self.facts.usage.record(Key(OUTSIDE, model, 0), tally_of(model, price, entry))

    # It is in DSPy's settings, which are copied for threads and pickled with models: it is the process's own.

    def __copy__(self) -> Record:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())
