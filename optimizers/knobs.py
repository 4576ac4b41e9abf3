"""`search_knobs`: an RLM's options, measured by what they are worth and what they take.

    models = {"nano": dspy.LM("openai/gpt-5.4-nano"), "mini": dspy.LM("openai/gpt-5.4-mini")}
    found = optimizers.search_knobs(compiled, examples, metric, {"max_iters": [6, 20], "sub_lm": models})
    print(found)
    cheap = found.program(found.cheapest(within=0.02))

Every combination runs on every example; there is no model of the options that could be wrong. Optimise the instructions
first: what an option is worth depends on them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import dspy

from rlm_dspy.errors import ConfigurationError
from rlm_dspy.optimizers.compile_folder import Folder
from rlm_dspy.optimizers.front import svg
from rlm_dspy.optimizers.gepa_adapter import RLMAdapter
from rlm_dspy.optimizers.gepa_search import items_of
from rlm_dspy.optimizers.measured import Measured, cheapest, costs_of, figures, front_of
from rlm_dspy.optimizers.metric_feedback import Metric, feedback
from rlm_dspy.optimizers.rollouts import Rollout, about_program
from rlm_dspy.rlm import RLM

Knobs = Mapping[str, Sequence[Any] | Mapping[str, Any]]
"""Option of `RLM.with_options` to the values to try; a dict names values that are no plain data, such as LMs."""


@dataclass(frozen=True, kw_only=True)
class Setting(Measured):
    """One combination of options, measured.

    Attributes:
        options: Option to the name of its value.
    """

    options: dict[str, str]


@dataclass(frozen=True)
class KnobResult:
    """All combinations, measured on the same examples.

    Attributes:
        settings: In the order of the grid.
        front: The numbers of those that none is better than in score, cost and seconds at once. Tokens stand for the
            cost where a price is unknown.
    """

    settings: tuple[Setting, ...]
    front: tuple[int, ...]
    _programs: tuple[RLM, ...] = field(repr=False, default=())

    def program(self, number: int) -> RLM:
        """The program with the options of a setting: a view that shares the predictors (`RLM.with_options`)."""
        return self._programs[number]

    @property
    def best(self) -> int:
        """The number of the best score; of equal ones the cheapest."""
        return self.cheapest(within=0.0)

    def cheapest(self, within: float) -> int:
        """The number of the setting that takes least, of those whose score is within so much of the best one."""
        return cheapest(self.settings, within)

    def to_svg(self) -> str:
        """The settings by score and cost, with the front."""
        costs, unit = costs_of(self.settings)
        scores = [setting.score for setting in self.settings]
        return svg(scores, costs, self.front, unit=unit, chosen=self.best, title=f"{len(costs)} settings")

    def _repr_html_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        lines = []
        for setting in self.settings:
            told = ", ".join(f"{name}={value}" for name, value in setting.options.items())
            money = "" if setting.cost is None else f", ${setting.cost:.4f}"
            mark = " *" if setting.number in self.front else ""
            took = f"{setting.tokens:,.0f} tokens{money}, {setting.seconds:.1f} s"
            lines.append(f"{setting.number}: {told}: {setting.score:.3f}, {took}{mark}")
        return "\n".join(lines)


def search_knobs(
    program: RLM,
    examples: Sequence[Any],
    metric: Metric,
    knobs: Knobs,
    *,
    folder: str | PathLike[str] | None = None,
    max_metric_calls: int | None = None,
    num_threads: int | None = None,
    failure_score: float = 0.0,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> KnobResult:
    """Run every combination of ``knobs`` on every example.

    Args:
        program: It is not changed.
        examples: Such as a validation set.
        metric: The task's.
        knobs: Such as ``{"max_iters": [6, 20], "sub_lm": {"nano": nano, "mini": mini}}``.
        folder: Where runs are kept as they are made, as for `RLMGEPA`: what was killed goes on from there, and further
            values of a knob cost only their own runs.
        max_metric_calls: Refuse beforehand what would take more runs.
        num_threads: Runs at once; None for ``dspy.settings.num_threads``. For seconds that can be compared, 1.
        failure_score: Of a run without an answer.
        on_rollout: Called with each new `Rollout`.

    Raises:
        ConfigurationError: There is no such option, nothing to try or no example, or it would take too many runs.
    """
    if not isinstance(program, RLM):
        raise ConfigurationError(
            f"search_knobs takes an RLM, not a {type(program).__name__}; give the RLM that is in it"
        )
    items = items_of(examples, "examples")
    values = {name: _named(name, given) for name, given in knobs.items()}
    if not items:
        raise ConfigurationError("give some examples")
    if not values:
        raise ConfigurationError('give some knobs, such as {"max_iters": [6, 20]}')
    runs = len(items) * math.prod(map(len, values.values()))
    if max_metric_calls is not None and runs > max_metric_calls:
        raise ConfigurationError(
            f"{runs // len(items)} settings on {len(items)} examples take {runs} runs, more than "
            f"max_metric_calls={max_metric_calls}: give fewer values or examples"
        )
    grid = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    programs = {
        tuple(sorted(labels.items())): program.with_options(**{n: values[n][label] for n, label in labels.items()})
        for labels in grid
    }
    judge = feedback(metric)
    about = {
        **about_program(program),
        "metric": judge.__name__,
        "knobs": sorted(values),
        "failure_score": failure_score,
    }
    store = Folder(folder, about)
    try:
        adapter = _Adapter(
            program,
            judge,
            store,
            num_threads=num_threads or dspy.settings.num_threads or 8,
            failure_score=failure_score,
            on_rollout=on_rollout,
        )
        adapter.programs = programs
        made = tuple(
            Setting(number=number, options=labels, **figures(adapter.measure(items, labels)[0]))
            for number, labels in enumerate(grid)
        )
    finally:
        store.close()
    return KnobResult(made, front_of(made), tuple(programs.values()))


class _Adapter(RLMAdapter):
    """Candidates are options by the names of their values."""

    programs: Mapping[Any, RLM]

    def program(self, candidate: Mapping[str, str], seed: int = 0) -> dspy.Module:
        return self.programs[tuple(sorted(candidate.items()))]


def _named(name: str, given: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Values by their names."""
    if isinstance(given, Mapping):
        return {str(label): value for label, value in given.items()}
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
        raise ConfigurationError(
            f"knobs[{name!r}] must be a list of values, or a dict of names to values, not {given!r}"
        )
    if not all(value is None or isinstance(value, (str, int, float, bool)) for value in given):
        raise ConfigurationError(f"knobs[{name!r}]: name what is no plain data, as in {{'nano': dspy.LM(...)}}")
    return {str(value): value for value in given}
