"""`Record`: an MLflow run, as the program sees it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlm_dspy import events as ev
from rlm_dspy._aio import threads
from rlm_dspy.prices import PICO, Price
from rlm_dspy.tracking.datasets import digest, weight
from rlm_dspy.tracking.facts import OUTSIDE, Facts
from rlm_dspy.usage import Key, Tally, reported

AT_ONCE = 50_000_000
"""Characters and bytes of examples up to which they are hashed by the thread that writes spans."""
Work = Callable[[Any, str], object]
"""What is to be done with an ``MlflowClient`` and the run's id."""


@dataclass
class _Requests:
    """LM requests that were made outside of runs, summed: of one model, with or without a cost that was reported."""

    price: Any
    tally: Tally = field(default_factory=Tally)
    written: int = 0


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
        self._requests: dict[tuple[str, bool, bool], _Requests] = {}
        self._lock = threading.Lock()
        self._later: Callable[[Work], None] | None = None

    def attach(self, run_id: str, later: Callable[[Work], None]) -> None:
        """Tie it to MLflow's run; ``later`` has work done beside the program."""
        self.run_id, self._later = run_id, later

    # ---------------------------------------------------------------------------------------- what the user logs

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log parameters; as texts, without secrets, cut after 500 characters; ``_`` for what names cannot have."""
        given = dict(params)
        self.do(lambda to: to.params(given))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Log numbers; what is None, not finite or no number is left out."""
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
        if self._later is None:
            return
        if weight(kept) <= AT_ONCE:
            self.do(lambda to: to.dataset(kept, name, digest(kept)))
            return
        # Spans that wait to be written do not wait for this.
        hashed = threads.submit(digest, kept)
        hashed.add_done_callback(lambda made: self.do(lambda to: to.dataset(kept, name, made.result())))

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
        inputs, outputs, cached, written, cost = reported(entry)
        key = model, cost is not None, not inputs and not outputs
        record: Record | None = self
        while record is not None:
            with record._lock:
                sums = record._requests.setdefault(key, _Requests(getattr(lm, "price", None)))
                sums.tally.add(Tally(1, inputs, outputs, cached, round((cost or 0.0) * PICO)))
                sums.written += written
            record = record.outer

    def settle(self, price_of: Callable[[str], Price | None]) -> None:
        """Add what was asked outside of runs to the facts; its money is unknown where its price or its tokens are."""
        with self._lock:
            requests, self._requests = self._requests, {}
        for (model, told, silent), sums in requests.items():
            tally = sums.tally
            if not told:
                price = sums.price if isinstance(sums.price, Price) else price_of(model)
                if price is None or (silent and price.cost(1, 1)):
                    tally.unpriced = tally.calls
                else:
                    tally.picodollars = price.cost(
                        tally.input_tokens, tally.output_tokens, tally.cached_tokens, sums.written
                    )
            with self._lock:
                self.facts.usage.record(Key(OUTSIDE, model, 0), tally)

    # It is in DSPy's settings, which are copied for threads and pickled with models: it is the process's own.

    def __copy__(self) -> Record:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Record:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())
