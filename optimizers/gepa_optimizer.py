"""`RLMGEPA`: GEPA (Agrawal et al., arXiv 2507.19457) for Recursive Language Models, by the ``gepa`` library.

    optimizer = optimizers.RLMGEPA(metric, reflection_lm=dspy.LM("openai/gpt-5.4"), max_metric_calls=200, folder="run")
    compiled = optimizer.compile(rlm, trainset=train, valset=val, holdout=held_out)
    print(optimizer.result)

What is done to find better instructions is in `rlm_dspy.optimizers.gepa_search`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from rlm_dspy.errors import ConfigurationError, MissingExtraError
from rlm_dspy.optimizers.gepa_reflection import MAX_CHARS
from rlm_dspy.optimizers.gepa_result import CompileResult
from rlm_dspy.optimizers.gepa_search import Compile, items_of
from rlm_dspy.optimizers.metric_feedback import Feedback, Metric, feedback
from rlm_dspy.optimizers.promotion import ALPHA
from rlm_dspy.optimizers.rollouts import Rollout

Components = (
    Literal["called", "blamed", "round_robin"] | Callable[[list[tuple[Rollout, ...]], list[str]], Sequence[str]]
)


class RLMGEPA(Teleprompter):
    """Rewrites the instructions of an RLM's predictors from whole trajectories, and keeps what proves better.

    In each round a candidate runs on a few training examples; a reflecting model reads these runs whole, with what went
    wrong where, and rewrites the predictors that took part; what does better on the same examples is measured on the
    validation set. In the end the best candidate has to beat the student in a paired test before it takes its place.

    What a run takes is what its language models report: answers from DSPy's cache take nothing. For costs that can be
    compared, give models with ``cache=False``; for seconds, ``num_threads=1``.

    Args:
        metric: The task's, ``metric(gold, pred, trace=None)``, or what `rlm_dspy.optimizers.feedback` made of it. More
            is better.
        reflection_lm: The model that reads runs and writes instructions; a strong one.
        max_metric_calls: Rollouts of the search. It ends with the round in which they are used up, so up to two
            minibatches and a validation set more are possible. A rollout that is needed again is not made again, and
            does not count.
        minibatch_size: Training examples a round.
        components: Which predictors a round rewrites: ``"called"`` all that took part in a run that was not perfect,
            ``"blamed"`` those of them that did something wrong, where any did; ``"round_robin"`` one of those that took
            part; or a function of the runs (a tuple of repetitions each) and the names of those that took part. One
            that was never called is never rewritten.
        predictors: Names, as in ``named_predictors()``, of those that may be rewritten; None for all.
        max_instruction_chars: Of one instruction.
        hint: A sentence for the reflecting model beside its rules.
        repeats: Runs of each example, of which the mean counts. The language models answer each anew.
        weigh_cost: Also keep what is as good and at least a tenth cheaper, and let candidates survive for being cheap
            or quick; the best is still the one with the best score.
        alpha: Greatest p of the paired test, see `rlm_dspy.optimizers.promotion`; None to promote whatever has the
            better mean.
        folder: Where everything is kept as it is done; a compile that was killed goes on from there. It is readable by
            its owner alone, and holds parts of the examples but no known secret. None for no folder.
        max_seconds: Wall time after which no round is begun.
        num_threads: Rollouts at once; None for ``dspy.settings.num_threads``.
        failure_score, perfect_score: Of a run without an answer, and the best there is.
        seed: Of every choice that is random.
        on_rollout: Called with each new `Rollout`, in this thread.

    Attributes:
        result: The `CompileResult` of the last ``compile``, or None.

    Raises:
        MissingExtraError: ``gepa`` is not installed.
        ConfigurationError: An option is out of range.
    """

    def __init__(
        self,
        metric: Metric,
        *,
        reflection_lm: dspy.BaseLM,
        max_metric_calls: int,
        minibatch_size: int = 3,
        components: Components = "called",
        predictors: Sequence[str] | None = None,
        max_instruction_chars: int = MAX_CHARS,
        hint: str = "",
        repeats: int = 1,
        weigh_cost: bool = False,
        alpha: float | None = ALPHA,
        folder: str | PathLike[str] | None = None,
        max_seconds: float | None = None,
        num_threads: int | None = None,
        failure_score: float = 0.0,
        perfect_score: float = 1.0,
        seed: int = 0,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        super().__init__()
        if importlib.util.find_spec("gepa") is None:
            raise MissingExtraError("RLMGEPA", "optimize")
        if not isinstance(reflection_lm, dspy.BaseLM):
            raise ConfigurationError(
                f"reflection_lm must be an LM such as dspy.LM('openai/NAME'), not {reflection_lm!r}"
            )
        _at_least("max_metric_calls", max_metric_calls, 1)
        _at_least("minibatch_size", minibatch_size, 1)
        _at_least("repeats", repeats, 1)
        if num_threads is not None:
            _at_least("num_threads", num_threads, 1)
        _at_least("max_instruction_chars", max_instruction_chars, 200)
        if alpha is not None and not 0 < alpha <= 1:
            raise ConfigurationError(f"alpha must be between 0 and 1, or None for no test, not {alpha!r}")
        if components not in ("called", "blamed", "round_robin") and not callable(components):
            raise ConfigurationError(
                f"components must be 'called', 'blamed', 'round_robin' or a function: {components!r}"
            )
        self.judge: Feedback = feedback(metric)
        self.reflection_lm = reflection_lm
        self.max_metric_calls, self.minibatch_size, self.components = max_metric_calls, minibatch_size, components
        self.predictors = None if predictors is None else list(predictors)
        self.max_instruction_chars, self.hint, self.repeats = max_instruction_chars, hint, repeats
        self.weigh_cost, self.alpha, self.folder, self.max_seconds = weigh_cost, alpha, folder, max_seconds
        self.num_threads, self.failure_score, self.perfect_score = num_threads, failure_score, perfect_score
        self.seed, self.on_rollout = seed, on_rollout
        self.result: CompileResult | None = None

    def compile(
        self,
        student: dspy.Module,
        *,
        trainset: Sequence[Any],
        teacher: None = None,
        valset: Sequence[Any] | None = None,
        holdout: Sequence[Any] | None = None,
    ) -> dspy.Module:
        """A copy of ``student`` with the best instructions, or with its own where none proved better.

        Args:
            student: An RLM, or a program with RLMs in it.
            trainset: Examples that are reflected on.
            teacher: None; it is there for the form.
            valset: Examples that candidates are chosen by; None for the training examples.
            holdout: Examples for the gate alone. Without them the gate uses the validation set, and is optimistic.

        Raises:
            ConfigurationError: The folder is of another compile, examples or predictors are missing.
            RLMError: Every run of the student itself ends in an error, or a language model does not answer any more:
                with a folder, the same call goes on later. What was found until then is in `result`, also where it
                ends by Ctrl-C.
        """
        if teacher is not None:
            raise ConfigurationError("RLMGEPA takes no teacher; the reflecting model is reflection_lm=")
        train, val = items_of(trainset, "trainset"), items_of(valset, "valset")
        return Compile(self, student, train, val, items_of(holdout, "holdout")).run()


def _at_least(name: str, given: Any, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, not {given!r}")
