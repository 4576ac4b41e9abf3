"""`mended`: stock optimisers put right where they misbehave by a bug or an assumption of their own (DSPy 3.4.1).

| optimiser | what is wrong | what `mended` does |
|---|---|---|
| ``SIMBA`` | its advisor's prompt holds the inputs of an example whole, and the program's source | shows previews |
| ``MIPROv2`` | every proposal holds the program's source, and one the ``repr`` of ten examples | neither |
| ``InferRules`` | rules are induced from raw examples, which have no field of a predictor | from bootstrapped steps |
| ``Ensemble`` | compiled programs in it are not saved, nor reached by ``set_lm`` | views that are |
| ``KNNFewShot`` | ``acall`` of what it compiled runs the program without demonstrations | the same as a call |

Without a repair here, because there is another way:

- ``BootstrapFinetune(multitask=False)`` takes the n-th *step* of a run for the n-th *predictor*: ``sub`` is trained on
  what ``act`` wrote. `rlm_dspy.optimizers.TrajectoryFinetune` does not.
- ``dspy.majority`` votes on the last key of a prediction, which is no output of an RLM, and on texts alone: give
  ``Ensemble(reduce_fn=functools.partial(dspy.majority, field="answer", normalize=None))``.
- ``Evaluate`` starts slow examples twice: `rlm_dspy.optimizers.evaluating`.

tests/optimizers/test_workarounds.py fails for each of them where DSPy has mended it itself.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

import dspy
from dspy.teleprompt import Ensemble, InferRules, KNNFewShot
from dspy.teleprompt.teleprompt import Teleprompter

from rlm_dspy.inputs import repr_fits
from rlm_dspy.optimizers.previews import CHARS, input_keys, preview, previewed
from rlm_dspy.rlm import RLM
from rlm_dspy.signatures.predictor import RolePredict

Optimizer = TypeVar("Optimizer", bound=Teleprompter)


def mended(optimizer: Optimizer) -> Optimizer:
    """``optimizer``, with what is known to be wrong with it put right; any other one as it is.

    Args:
        optimizer: Of DSPy. It is changed in place.

    Example:
        >>> compiled = mended(dspy.SIMBA(metric=metric)).compile(rlm, trainset=trainset)  # doctest: +SKIP
    """
    if getattr(optimizer, "rlm_dspy_mended", False):
        return optimizer
    if isinstance(optimizer, dspy.SIMBA):
        optimizer.strategies = [_short(strategy) for strategy in optimizer.strategies]
    elif isinstance(optimizer, InferRules):
        optimizer.get_predictor_demos = functools.partial(_steps, optimizer.get_predictor_demos)
        optimizer.induce_natural_language_rules = functools.partial(_induced, optimizer)
        optimizer.update_program_instructions = functools.partial(_with_rules, optimizer.update_program_instructions)
    elif isinstance(optimizer, KNNFewShot):
        optimizer.compile = _around(optimizer, _awaitable)
    elif isinstance(optimizer, Ensemble):
        optimizer.compile = _around(optimizer, _savable)
    elif isinstance(optimizer, dspy.MIPROv2):
        optimizer.compile = _around(optimizer, _brief)
    optimizer.rlm_dspy_mended = True
    return optimizer


def _around(optimizer: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    """A ``compile`` that runs ``ours`` around that of the class, and says of its arguments what that one does."""

    @functools.wraps(optimizer.compile)
    def compile(*args: Any, **given: Any) -> Any:
        # Looked up now: a tracker may have patched the class meanwhile.
        return ours(functools.partial(type(optimizer).compile, optimizer), *args, **given)

    # What a tracker has patched would otherwise be looked through to the function of the class, which takes `self`.
    compile.__signature__ = inspect.signature(optimizer.compile)  # type: ignore[attr-defined]
    return compile


# ------------------------------------------------------------------------------------------------------------ MIPROv2


def _brief(stock: Callable[..., dspy.Module], student: dspy.Module, **given: Any) -> dspy.Module:
    """`previewed` examples, and no source where ``program_aware_proposer`` was not asked for."""
    if isinstance(student, RLM):
        given.setdefault("program_aware_proposer", False)
    if "trainset" in given:
        given["trainset"] = previewed(given["trainset"])
    return stock(student, **given)


# -------------------------------------------------------------------------------------------------------------- SIMBA


class RecursiveProgram:
    """A Recursive Language Model. The inputs are variables in a Python REPL, which no model sees whole.

    `act` is asked turn after turn for Python code, and is shown what it printed. The code may call `llm_query`, which
    is the module `sub`, every typed sub-call by its name, and `rlm_query`, which runs the whole program on a part, with
    the same modules. `SUBMIT(...)` ends the run. At a limit `extract` answers from the turns so far; `compact` sums up
    a conversation that became too long. Variables, functions and limits are told to `act` in any case: its instructions
    are strategy alone.
    """

    def __init__(self, program: dspy.Module) -> None:
        self.program = program

    def named_predictors(self) -> list[tuple[str, Any]]:
        """Those of the program, by their own names."""
        found: list[tuple[str, Any]] = self.program.named_predictors()
        return found


def _short(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """``strategy`` of SIMBA, shown previews of an example's inputs, and a description in place of an RLM's source."""

    @functools.wraps(strategy)
    def shown(bucket: list[dict[str, Any]], system: Any, **given: Any) -> Any:
        if strategy.__name__ == "append_a_rule":
            bucket = [{**outcome, "example": _shown(outcome["example"])} for outcome in bucket]
            system = RecursiveProgram(system) if isinstance(system, RLM) else system
        return strategy(bucket, system, **given)

    return shown


def _shown(example: dspy.Example) -> dspy.Example:
    """``example`` with previews in place of large values."""
    shown = {name: value if repr_fits(value, CHARS) else preview(name, value) for name, value in example.items()}
    return dspy.Example(**shown).with_inputs(*(input_keys(example) or ()))


# --------------------------------------------------------------------------------------------------------- InferRules


def _steps(stock: Callable[..., Any], trainset: list[dspy.Example], predictor: Any) -> list[dict[str, Any]]:
    """What rules for ``predictor`` are induced from: its bootstrapped steps."""
    if not isinstance(predictor, RolePredict):
        found: list[dict[str, Any]] = stock(trainset, predictor)
        return found
    return [demo for demo in predictor.fitting_demos() if demo.get("augmented")]


def _induced(optimizer: InferRules, predictor: Any, trainset: list[dspy.Example]) -> str:
    if not optimizer.get_predictor_demos(trainset, predictor):
        return ""
    return str(type(optimizer).induce_natural_language_rules(optimizer, predictor, trainset))


def _with_rules(stock: Callable[..., Any], predictor: Any, rules: str) -> None:
    """Add ``rules``, unless there are none: nothing is known of a predictor that was never called."""
    if rules.strip():
        stock(predictor, rules)


# --------------------------------------------------------------------------------------------------------- KNNFewShot


def _awaitable(stock: Callable[..., dspy.Module], student: dspy.Module, **given: Any) -> dspy.Module:
    compiled = stock(student, **given)
    compiled.aforward = types.MethodType(_aforward, compiled)
    return compiled


async def _aforward(compiled: dspy.Module, **inputs: Any) -> Any:
    # A call bootstraps first, which is synchronous. DSPy warns of a `forward` that is asked for by its name.
    return await asyncio.to_thread(object.__getattribute__(compiled, "forward"), **inputs)


# ----------------------------------------------------------------------------------------------------------- Ensemble


def _savable(stock: Callable[..., dspy.Module], programs: list[dspy.Module]) -> dspy.Module:
    return stock([_unfrozen(program) for program in programs])


def _unfrozen(program: dspy.Module) -> dspy.Module:
    """``program``, as a part of another that DSPy looks into: it passes over those that are marked as compiled."""
    if not getattr(program, "_compiled", False):
        return program
    view = program.with_options() if isinstance(program, RLM) else copy.copy(program)
    view._compiled = False
    return view
