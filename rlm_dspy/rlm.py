"""`RLM`: the module."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import dspy
from dspy.utils.callback import BaseCallback

from rlm_dspy import engine, environments, router, tools
from rlm_dspy import inputs as inputs_
from rlm_dspy._aio import run_sync
from rlm_dspy.environments.base import Environment
from rlm_dspy.errors import ConfigurationError
from rlm_dspy.faces import Faces
from rlm_dspy.limits import Limits
from rlm_dspy.options import PREPARED as _PREPARED
from rlm_dspy.options import explained as _explained
from rlm_dspy.options import factory as _factory
from rlm_dspy.options import guidance_of as _guidance
from rlm_dspy.options import lms_of, read_signature, unknown_options, unreadable
from rlm_dspy.options import model_name as _model
from rlm_dspy.options import named as _named
from rlm_dspy.options import prices_of as _prices
from rlm_dspy.presets.use import from_preset as _from_preset
from rlm_dspy.prices import Prices, fetched
from rlm_dspy.routing import Routes
from rlm_dspy.run import Run
from rlm_dspy.signatures import Act, Guidance, Sub, extract_signature
from rlm_dspy.signatures.child import ChildExtract, child_signature
from rlm_dspy.signatures.compact import Compact
from rlm_dspy.signatures.predictor import PicklableSignature, RolePredict
from rlm_dspy.streaming import Home, find_home
from rlm_dspy.window import check_options

if TYPE_CHECKING:
    from rlm_dspy.sessions import RLMSession

STATE_SCHEMA = 1
_STATE_KEY = "rlm_dspy"

OnLimit = Literal["extract", "raise"]


class RLM(Faces, PicklableSignature):
    """A Recursive Language Model (arXiv 2512.24601) as a DSPy module.

    The inputs of a call become variables in a Python REPL. The root LM sees their type, size and a short preview, and
    writes code that looks at them, computes, and asks a sub-LM about parts of them, until it submits the typed outputs
    of the signature. Constructor, call and result are those of ``dspy.RLM`` 3.4, with more beside them.

    Attributes:
        act, extract, sub, compact: The predictors of the root, of the last answer, of ``llm_query``, and of the summary
            of a conversation that became too long. Optimisers find them by these names; their instructions are strategy
            only.
        direct: The predictor of a direct call, there only where ``direct_below`` is set.
        notes: Facts that the contract states beside its own, set by the project on views.

    Example:
        >>> rlm = RLM("context, query -> answer: str", max_seconds=120)  # doctest: +SKIP
        >>> pred = rlm(context=open("huge.txt").read(), query="Which clauses changed?")  # doctest: +SKIP
        >>> pred.answer, pred.outcome, pred.trajectory, pred.usage  # doctest: +SKIP
    """

    from_preset = classmethod(_from_preset)
    direct: Any
    notes: tuple[str, ...] = ()

    @_explained
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
        sub_signature: str | type[dspy.Signature] | None = None,
        sub_calls: Mapping[str, str | type[dspy.Signature] | dspy.Module] | None = None,
        sub_tools: list[Callable[..., Any] | dspy.Tool] | None = None,
        child: dspy.Module | None = None,
        models: Mapping[str, dspy.BaseLM] | None = None,
        models_by_depth: Mapping[int, Mapping[str, Any]] | None = None,
        prices: Mapping[str, Any] | None = None,
        max_depth: int = 1,
        max_children: int = 16,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        sub_max_tokens: int | None = None,
        reuse: bool = True,
        adhoc: bool = True,
        compaction: bool | float = True,
        context_window: int | None = None,
        direct_below: int | None = None,
        guidance: Guidance | bool | Mapping[str, bool] = True,
        callbacks: list[BaseCallback] | None = None,
    ) -> None:
        """
        Args:
            signature: Inputs and typed outputs, such as ``"context, query -> answer: str"``. Its docstring is the task.
            max_iters: Turns.
            max_llm_calls: LM calls that code may make: sub-calls, and every call of a child; None for no limit.
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
            max_concurrency: LM calls in flight at once, those of children included; more are queued.
            extract_seconds: Wall time for ``extract`` after a limit.
            on_limit: ``"extract"`` returns the best answer with ``outcome`` saying what happened; ``"raise"`` raises
                `rlm_dspy.LimitReached` or `rlm_dspy.RunFailed`, which carry the same prediction.
            sub_signature: What ``llm_query`` runs, in place of ``"prompt -> response"``: code then calls it with these
                inputs, and gets the one output or a record of several.
            sub_calls: More functions for code: name to signature or module, such as
                ``{"classify": "item, labels: list[str] -> label"}``. Each has a twin ``classify_batched``.
            sub_tools: Tools of children; None for the same as `tools`.
            child: What ``rlm_query`` runs in place of this program: another RLM, or any module.
            models: Name to LM, for ``model=`` in code.
            models_by_depth: LMs of children: depth to ``{"root": lm, "sub": lm}``, see `rlm_dspy.routing.Routes`.
            prices: Model name to ``(input, output)`` or ``(input, output, cached)`` in US dollars for a million tokens;
                they go before the published prices.
            max_depth: Levels of RLMs: 1 is this one alone, with 2 code may start children by ``rlm_query``.
            max_children: Children that run at once at each depth; more are queued.
            max_tokens: Input and output tokens of all LM calls in the tree.
            max_cost: US dollars of all LM calls in the tree.
            sub_max_tokens: Output tokens of one sub-call.
            reuse: Answer a sub-call that was made before in the same tree by what it gave then, without an LM call.
            adhoc: Tell the root of ``predict``, by which code makes sub-calls of signatures of its own.
            compaction: Summarise the root's conversation when it nears the end of its LM's context window: True for at
                three quarters of it, or another share, such as 0.5. Off, a conversation that is too long ends the
                turns (limit ``"context_window"``).
            context_window: Tokens of prompt and reply that the root's LM takes. None for what the LM says of itself or
                is published for its model; where that is unknown, a conversation is compacted when it is refused.
            direct_below: Tokens; inputs below it are answered by one direct call of the predictor ``direct`` where that
                gives an answer (`rlm_dspy.router`). None for no such call. A program with tools makes none.
            guidance: The aids that let a small model play the root (`rlm_dspy.Guidance`): True for all, False for none,
                or such as ``{"demonstration": False}`` for all but one.
            callbacks: What is called in the course of runs (`rlm_dspy.Callbacks`), and DSPy's own callbacks. Copies,
                such as those of optimisers, go without; ``dspy.configure(callbacks=[...])`` reaches them too.

        Raises:
            ConfigurationError: The signature cannot be read, names collide, or a limit is out of range.
            TypeError: An argument is of another type than it must have.
        """
        super().__init__(callbacks=_PREPARED["callbacks"](callbacks))
        self.signature = read_signature(signature)
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
        self.direct_below = direct_below
        self.guidance = _guidance(guidance)
        self.max_depth = max_depth
        self.max_children = max_children
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.sub_max_tokens = sub_max_tokens
        self.reuse = reuse
        self.adhoc = adhoc
        self.compaction = compaction
        self.context_window = context_window
        self.prices = _prices(prices)
        self.routes = Routes(models, models_by_depth)
        self._factory = _factory(interpreter, interpreter_factory)
        self._tools = _tools(tools)
        self._sub_tools = None if sub_tools is None else _tools(sub_tools)
        outputs = self.signature.output_fields
        self.act = RolePredict(Act, role="act", answers=outputs)
        self.sub_calls: dict[str, dspy.Module] = {
            n: some if isinstance(some, dspy.Module) else RolePredict(read_signature(some, f"sub_calls[{n!r}]"), role=n)
            for n, some in _named(sub_calls)
        }
        self.sub = RolePredict(read_signature(sub_signature or Sub, "sub_signature"), role="sub")
        self.extract = RolePredict(extract_signature(self.signature), role="extract", answers=outputs)
        self.compact = RolePredict(Compact, role="compact")
        if child is not None and max_depth < 2:
            raise ConfigurationError("a child never runs with max_depth=1: give max_depth=2 or more with child=")
        self.child = child
        self.extract_child = RolePredict(ChildExtract, role="extract") if max_depth > 1 and child is None else None
        self._check()
        router.equip(self)

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
            **options: Any keyword of the constructor but those that make predictors: ``signature``, ``sub_signature``,
                ``sub_calls`` and ``child``.

        Example:
            >>> rlm.with_options(max_iters=5, interpreter="subprocess")(context=text, query=q)  # doctest: +SKIP
        """
        view = self._copy()
        where = {name: options.pop(name) for name in ("interpreter", "interpreter_factory") if name in options}
        if where:
            view._factory = _factory(where.get("interpreter"), where.get("interpreter_factory"))
        routes = {name: options.pop(name) for name in ("models", "models_by_depth") if name in options}
        if routes:
            view.routes = self.routes.changed(**routes)
        for name, prepare in _PREPARED.items():
            if name in options:
                setattr(view, name, prepare(options.pop(name)))
        for name, attribute in (("tools", "_tools"), ("sub_tools", "_sub_tools")):
            if name in options:
                given = options.pop(name)
                setattr(view, attribute, None if given is None and name == "sub_tools" else _tools(given))
        allowed = {*Limits.names(), "max_output_chars", "verbose", "sub_lm", "on_limit", "reuse", "adhoc"}
        allowed |= {"compaction", "context_window", "direct_below"}
        unknown = sorted(options.keys() - allowed)
        if unknown:
            allowed |= {"interpreter", "interpreter_factory", "tools", "sub_tools", "models", "models_by_depth"}
            raise ConfigurationError(unknown_options(unknown, allowed | _PREPARED.keys()))
        for name, value in options.items():
            setattr(view, name, value)
        if view.max_depth > 1 and view.child is None and view.extract_child is None:
            view.extract_child = RolePredict(ChildExtract, role="extract")
        view._check()
        router.equip(view)
        return view

    def session(self, path: str | PathLike[str] | None = None, **limits: Any) -> RLMSession:
        """Calls that go on with what earlier ones made: variables, conversation, inputs.

        Args:
            path: A folder for a journal, from which `resume` goes on after the process was killed.
            **limits: For all calls together: ``max_llm_calls``, ``max_tokens``, ``max_cost``.

        Example:
            >>> with rlm.session() as session:  # doctest: +SKIP
            ...     session(context=text, query="Who signed?").answer
            ...     session(query="And when?").answer
        """
        from rlm_dspy.sessions import RLMSession

        return RLMSession(self, path, **limits)

    def resume(self, path: str | PathLike[str], **limits: Any) -> RLMSession:
        """Go on with a session: from a file that its ``save`` wrote, or from the folder of its journal.

        From a file its variables are set as they were. From a journal the recorded code is run again, with the recorded
        results in place of sub-calls and tools. What is not as it was is in the session's ``report``.

        Args:
            path: The file or folder.
            **limits: As for `session`.

        Raises:
            RecordingError: It is neither, or damaged, or of a newer version.
            ConfigurationError: It is of another signature.
        """
        return run_sync(self.aresume(path, **limits))

    async def aresume(self, path: str | PathLike[str], **limits: Any) -> RLMSession:
        """`resume`, without ever blocking the event loop."""
        from rlm_dspy import snapshot

        return await snapshot.resume(self, path, limits)

    def child_view(self, inputs: tuple[str, ...]) -> RLM:
        """This program as its children run it: the same predictors and options, another task.

        Args:
            inputs: Names of the child's inputs, ``prompt`` among them.
        """
        view = self._copy()
        names = tuple(name for name in inputs if name != "prompt")
        try:
            view.signature = child_signature(names)
        except (TypeError, ValueError) as error:
            raise unreadable(", ".join(names), " of a child's inputs", error) from error
        view._tools = dict(self._tools if self._sub_tools is None else self._sub_tools)
        view.extract = self.extract_child or RolePredict(ChildExtract, role="extract")
        view.on_limit = "extract"
        view.verbose = False
        view.notes = ()
        view.direct_below = None
        router.equip(view)
        tools.check_names(view.signature, view._tools, view.sub_calls)
        return view

    def _copy(self) -> RLM:
        view = copy.copy(self)
        # Copying a DSPy module drops these.
        view.callbacks, view.history = self.callbacks, self.history
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
        if self.max_cost is not None:
            await fetched((*self.lms(), *lms_of(dspy.settings.lm)))
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
        optional = {"extract_child", "compact", "direct"}
        missing = [name for name, _ in self.named_predictors() if name not in {*state, *optional}]
        if missing:
            theirs = "generate_action" in state
            hint = " It looks like the state of dspy.RLM; compile an rlm_dspy.RLM anew." if theirs else ""
            raise ConfigurationError(f"this state has no entry for {', '.join(missing)}.{hint}")
        own = {name: predictor.dump_state() for name, predictor in self.named_predictors() if name not in state}
        return super().load_state({**state, **own}, allow_unsafe_lm_state=allow_unsafe_lm_state)

    def lms(self) -> list[dspy.BaseLM]:
        """The LMs that this program has itself: its predictors', `sub_lm`, those with names, and those of RLMs in it.

        In the place of one that an RLM stands in for (`as_lm`), those behind it, which are paid and have the keys.
        """
        found: list[Any] = []
        for module in engine.modules_of(self):
            if isinstance(module, RLM):
                found += [module.sub_lm, *module.routes.lms()]
            elif isinstance(module, dspy.Predict):
                found.append(module.lm)
        return [lm for some in found if isinstance(some, dspy.BaseLM) for lm in lms_of(some)]

    def _check(self) -> None:
        tools.check_names(self.signature, self._tools, self.sub_calls)
        tools.check_inputs("sub_signature", self.sub)
        _ = self.limits
        if self.child is not None and not isinstance(self.child, dspy.Module):
            raise TypeError(f"child must be a dspy.Module, such as another RLM, not {self.child!r}")
        self.check_prices(self.lms(), self.max_cost)
        if self.sub_lm is not None and not isinstance(self.sub_lm, dspy.BaseLM):
            raise TypeError(f"sub_lm must be an LM such as dspy.LM('openai/NAME'), not {self.sub_lm!r}")
        if self.on_limit not in ("extract", "raise"):
            raise ConfigurationError(f"on_limit must be 'extract' or 'raise', not {self.on_limit!r}")
        check_options(self.compaction, self.context_window)
        if not isinstance(self.max_output_chars, int) or self.max_output_chars < 1:
            raise ConfigurationError(f"max_output_chars must be a positive number, not {self.max_output_chars!r}")

    def check_prices(self, lms: Iterable[dspy.BaseLM], max_cost: float | None, outer: Prices | None = None) -> None:
        """Refuse a limit on money where it could not be kept.

        Args:
            lms: Those that are to be paid.
            max_cost: The limit; None for none, and nothing is refused.
            outer: The prices of a run around.

        Raises:
            ConfigurationError: The price of one is unknown.
        """
        if max_cost is not None:
            inner = [module.prices for module in engine.modules_of(self) if isinstance(module, RLM)]
            given = {name: price for prices in (*inner, self.prices) for name, price in prices.items()}
            Prices(given, outer).check(((_model(lm), lm) for lm in lms), max_cost)

    def _run(self, given: dict[str, Any], factory: Callable[[], Any] | None) -> Run:
        values = inputs_.bind(self.signature, given)
        configured = _factory(None, factory) or self._factory or _factory(None, dspy.settings.interpreter_factory)
        run = Run(self, values, self.limits, configured or environments.get("local"))
        if (most := run.ledger.max_cost) is not None:
            settings = lms_of(dspy.settings.lm) if dspy.settings.lm is not None else []
            self.check_prices([*self.lms(), *settings], most, run.ledger.prices)
        return run

    async def _observed(self, run: Run, home: Home | None) -> dspy.Prediction:
        if self.verbose:
            from rlm_dspy.console import verbose_printer

            run.events.add(verbose_printer())
        return await engine.execute(run, home)


# The constructor's parameter of the same name hides the module inside of it.
_tools = tools.normalize
