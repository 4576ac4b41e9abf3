"""`RLM`: the module."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import dspy
from dspy.signatures.signature import ensure_signature

from rlm_dspy import engine, environments, tools
from rlm_dspy import inputs as inputs_
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.ledger import Limits
from rlm_dspy.run import Run
from rlm_dspy.signatures import Act, Guidance, Sub, extract_signature
from rlm_dspy.signatures.predictor import PicklableSignature, RolePredict
from rlm_dspy.streaming import Home, find_home

STATE_SCHEMA = 1
_STATE_KEY = "rlm_dspy"

OnLimit = Literal["extract", "raise"]


class RLM(PicklableSignature):
    """A Recursive Language Model (arXiv 2512.24601) as a DSPy module.

    The inputs of a call become variables in a Python REPL. The root LM sees their type, size and a short preview, and
    writes code that looks at them, computes, and asks a sub-LM about parts of them, until it submits the typed outputs
    of the signature. Constructor, call and result are those of ``dspy.RLM`` 3.4, with more beside them.

    Attributes:
        act, extract, sub: The predictors of the root, of the last answer, and of ``llm_query``. Optimisers find them by
            these names; their instructions are strategy only.

    Example:
        >>> rlm = RLM("context, query -> answer: str", max_seconds=120)  # doctest: +SKIP
        >>> pred = rlm(context=open("huge.txt").read(), query="Which clauses changed?")  # doctest: +SKIP
        >>> pred.answer, pred.outcome, pred.trajectory, pred.usage  # doctest: +SKIP
    """

    def __init__(
        self,
        signature: str | type[dspy.Signature],
        max_iters: int = 20,
        max_llm_calls: int | None = 50,
        max_output_chars: int = 10_000,
        verbose: bool = False,
        tools: list[Callable[..., Any] | dspy.Tool] | None = None,
        sub_lm: dspy.BaseLM | None = None,
        interpreter_factory: Callable[[], dspy.CodeInterpreter] | None = None,
        *,
        interpreter: str | Environment | Callable[[], dspy.CodeInterpreter] | None = None,
        max_seconds: float | None = None,
        max_errors: int | None = None,
        max_concurrency: int = 32,
        extract_seconds: float = 60.0,
        on_limit: OnLimit = "extract",
        guidance: Guidance | bool | Mapping[str, bool] = True,
    ) -> None:
        """
        Args:
            signature: Inputs and typed outputs, such as ``"context, query -> answer: str"``. Its docstring is the task.
            max_iters: Turns.
            max_llm_calls: Sub-LM calls that code may make; None for no limit.
            max_output_chars: Characters of one turn's output that the root is shown.
            verbose: Print each turn to stderr as it happens.
            tools: Functions or ``dspy.Tool`` objects, sync or async, callable from code.
            sub_lm: LM of ``llm_query``; ``sub.lm`` wins over it, and without both it is ``dspy.settings.lm``.
            interpreter_factory: DSPy's word for `interpreter`, a zero-argument callable.
            interpreter: Where code runs: the name of an environment (``"local"``, ``"subprocess"``, …), an
                environment with options, such as ``environments.local(memory="2GiB")``, or a factory of any
                ``dspy.CodeInterpreter``. Unset, it is ``dspy.settings.interpreter_factory``, else the confined
                ``"local"``.
            max_seconds: Wall time of the turns.
            max_errors: Consecutive turns that may end in an error.
            max_concurrency: Sub-calls in flight at once; more are queued.
            extract_seconds: Wall time for ``extract`` after a limit.
            on_limit: ``"extract"`` returns the best answer with ``outcome`` saying what happened; ``"raise"`` raises
                `rlm_dspy.LimitReached` or `rlm_dspy.RunFailed`, which carry the same prediction.
            guidance: The aids that let a small model play the root (`rlm_dspy.Guidance`): True for all, False for none,
                or such as ``{"demonstration": False}`` for all but one.

        Raises:
            ConfigurationError: The signature cannot be read, names collide, or a limit is out of range.
            TypeError: An argument is of another type than it must have.
        """
        super().__init__()
        _check_signature(signature)
        try:
            # Here and not in a helper: DSPy looks for the types that a text names where this was called.
            self.signature = ensure_signature(signature)
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(
                f"the signature {signature!r} cannot be read: {error}. "
                "It has the form 'context, query -> answer: str'; for types of your own write a dspy.Signature class"
            ) from error
        self.max_iters = max_iters
        self.max_llm_calls = max_llm_calls
        self.max_output_chars = max_output_chars
        self.verbose = verbose
        self.sub_lm = sub_lm
        self.max_seconds = max_seconds
        self.max_errors = max_errors
        self.max_concurrency = max_concurrency
        self.extract_seconds = extract_seconds
        self.on_limit = on_limit
        self.guidance = _guidance(guidance)
        self._factory = _factory(interpreter, interpreter_factory)
        self._tools = _tools(tools)
        self._check()
        self.act = RolePredict(Act)
        self.sub = RolePredict(Sub)
        self.extract = RolePredict(extract_signature(self.signature))

    @property
    def tools(self) -> dict[str, dspy.Tool]:
        """The user's tools by name."""
        return dict(self._tools)

    @property
    def limits(self) -> Limits:
        """The limits as the attributes say now."""
        return Limits(**{name: getattr(self, name) for name in Limits.names()})

    def with_options(self, **options: Any) -> RLM:
        """A view of this module with other options, sharing its predictors.

        Args:
            **options: Any keyword of the constructor but ``signature``.

        Example:
            >>> rlm.with_options(max_iters=5, interpreter="subprocess")(context=text, query=q)  # doctest: +SKIP
        """
        view = copy.copy(self)
        # Copying a DSPy module drops these.
        view.callbacks, view.history = self.callbacks, self.history
        where = {name: options.pop(name) for name in ("interpreter", "interpreter_factory") if name in options}
        if where:
            view._factory = _factory(where.get("interpreter"), where.get("interpreter_factory"))
        if "tools" in options:
            view._tools = _tools(options.pop("tools"))
        if "guidance" in options:
            view.guidance = _guidance(options.pop("guidance"))
        allowed = {*Limits.names(), "max_output_chars", "verbose", "sub_lm", "on_limit"}
        unknown = sorted(options.keys() - allowed)
        if unknown:
            known = sorted(allowed | {"interpreter", "interpreter_factory", "tools", "guidance"})
            raise ConfigurationError(f"unknown options {unknown}; the options are {', '.join(known)}")
        for name, value in options.items():
            setattr(view, name, value)
        view._check()
        return view

    def __call__(self, *args: Any, **kwargs: Any) -> dspy.Prediction:
        """Answer one task; inputs go by keyword. See `forward`."""
        self._refuse_positional(args)
        return super().__call__(**kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> dspy.Prediction:
        """`__call__`, without ever blocking the event loop."""
        self._refuse_positional(args)
        return await super().acall(**kwargs)

    def _refuse_positional(self, args: tuple[Any, ...]) -> None:
        if args:
            names = ", ".join(f"{name}=..." for name in self.signature.input_fields)
            raise TypeError(f"inputs are passed by keyword: rlm({names})")

    def __repr__(self) -> str:
        limits = ", ".join(f"{name}={value!r}" for name, value in self.limits.to_dict().items() if value is not None)
        return f"{type(self).__name__}({self.signature.signature!r}, {limits})"

    def forward(
        self, *, interpreter_factory: Callable[[], dspy.CodeInterpreter] | None = None, **inputs: Any
    ) -> dspy.Prediction:
        """Answer one task; see `rlm_dspy.engine.execute` for what it returns and raises.

        Args:
            interpreter_factory: Where code runs, for this call only.
            **inputs: One value for each input field; a ``pathlib.Path`` is read, a folder becomes a dict of its texts.
        """
        run = self._run(inputs, interpreter_factory)
        try:
            return run_sync(self._observed(run, find_home(synchronous=True)))
        except KeyboardInterrupt as error:
            engine.attach_trajectory(error, run)
            raise

    async def aforward(
        self, *, interpreter_factory: Callable[[], dspy.CodeInterpreter] | None = None, **inputs: Any
    ) -> dspy.Prediction:
        """`forward`, without ever blocking the event loop."""
        return await self._observed(self._run(inputs, interpreter_factory), find_home(synchronous=False))

    def set_lm(self, lm: dspy.BaseLM) -> None:
        """Set the LM of every predictor, ``sub`` included, which then wins over ``sub_lm``."""
        if self.sub_lm is not None:
            warnings.warn(
                f"set_lm({_model(lm)}) also sets the LM of `sub`, which wins over sub_lm={_model(self.sub_lm)}. "
                "To keep sub_lm for llm_query, set rlm.act.lm and rlm.extract.lm instead.",
                UserWarning,
                stacklevel=2,
            )
        super().set_lm(lm)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Instructions, demonstrations and LMs of the predictors, with a schema version; never the contract."""
        return {**super().dump_state(json_mode=json_mode), _STATE_KEY: {"schema": STATE_SCHEMA}}

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> Any:
        """Load what `dump_state` gave, also into an RLM with other tools, limits or environment.

        Raises:
            ConfigurationError: The state is of a newer schema, or of another module.
        """
        schema = (state.get(_STATE_KEY) or {}).get("schema", STATE_SCHEMA)
        if schema > STATE_SCHEMA:
            raise ConfigurationError(
                f"this state has schema {schema}, this rlm-dspy reads up to {STATE_SCHEMA}: upgrade it"
            )
        missing = [name for name, _ in self.named_predictors() if name not in state]
        if missing:
            theirs = "generate_action" in state
            hint = " It looks like the state of dspy.RLM; compile an rlm_dspy.RLM anew." if theirs else ""
            raise ConfigurationError(f"this state has no entry for {', '.join(missing)}.{hint}")
        return super().load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)

    def _check(self) -> None:
        tools.check_names(self.signature, self._tools)
        _ = self.limits
        if self.sub_lm is not None and not isinstance(self.sub_lm, dspy.BaseLM):
            raise TypeError(f"sub_lm must be an LM such as dspy.LM('openai/NAME'), not {self.sub_lm!r}")
        if self.on_limit not in ("extract", "raise"):
            raise ConfigurationError(f"on_limit must be 'extract' or 'raise', not {self.on_limit!r}")
        if not isinstance(self.max_output_chars, int) or self.max_output_chars < 1:
            raise ConfigurationError(f"max_output_chars must be a positive number, not {self.max_output_chars!r}")

    def _run(self, given: dict[str, Any], factory: Callable[[], Any] | None) -> Run:
        values = inputs_.bind(self.signature, given)
        configured = _factory(None, factory) or self._factory or _factory(None, dspy.settings.interpreter_factory)
        return Run(self, values, self.limits, configured or environments.get("local"))

    async def _observed(self, run: Run, home: Home | None) -> dspy.Prediction:
        if self.verbose:
            from rlm_dspy.console import verbose_printer

            run.events.add(verbose_printer())
        return await engine.execute(run, home)


def _check_signature(signature: Any) -> None:
    if not isinstance(signature, str) and not (isinstance(signature, type) and issubclass(signature, dspy.Signature)):
        raise TypeError(
            "signature must be a text such as 'context, query -> answer: str' or a dspy.Signature class, "
            f"not {signature!r}"
        )


def _factory(
    interpreter: str | Environment | Callable[[], Any] | None, factory: Callable[[], Any] | None
) -> Callable[[], Any] | None:
    if interpreter is not None and factory is not None:
        raise ConfigurationError("give interpreter= or interpreter_factory=, not both: they are the same thing")
    chosen = interpreter if interpreter is not None else factory
    if chosen is None:
        return None
    if isinstance(chosen, str):
        return environments.get(chosen)
    if not isinstance(chosen, type) and isinstance(chosen, dspy.CodeInterpreter):
        raise TypeError(
            "interpreter takes something that creates interpreters, and got an interpreter; every run needs its own. "
            f"Pass lambda: {type(chosen).__name__}(...)"
        )
    if not callable(chosen):
        raise TypeError(
            "interpreter must be an environment's name, an environment, or a zero-argument callable, "
            f"not {type(chosen).__name__}"
        )
    return chosen


def _guidance(given: Guidance | bool | Mapping[str, bool]) -> Guidance:
    try:
        return Guidance.of(given)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


# The constructor's parameter of the same name hides the module inside of it.
_tools = tools.normalize


def _model(lm: Any) -> str:
    return str(getattr(lm, "model", type(lm).__name__))
