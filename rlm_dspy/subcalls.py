"""Sub-calls: typed LM calls that the REPL's code makes, each a predictor or module of the program on the host.

``llm_query`` runs the predictor ``sub``, every entry of ``sub_calls`` its own, ``predict`` one made of the signature it
is given. Each call is reserved in the ledger, queued at the tree's gate, recorded in the event log and traced by DSPy.
What was asked before in the same tree is not asked again, unless with ``fresh=True``.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy import adhoc
from rlm_dspy._aio import gathered
from rlm_dspy.calls import rollout_of, spend, varied
from rlm_dspy.environments.base import HostFunction
from rlm_dspy.environments.codec import FailedCall
from rlm_dspy.errors import CallFailed
from rlm_dspy.kept import encode
from rlm_dspy.redact import error_text
from rlm_dspy.render import one_line
from rlm_dspy.shapes import Shape
from rlm_dspy.signatures import PlainTextAdapter
from rlm_dspy.signatures.contract import FunctionInfo
from rlm_dspy.signatures.predictor import RolePredict
from rlm_dspy.signatures.typed import TypedAdapter, reason, repairing
from rlm_dspy.window import overflowed, root_lm

if TYPE_CHECKING:
    from rlm_dspy.functions import Recorder
    from rlm_dspy.run import Run

LLM_QUERY = FunctionInfo(
    "llm_query(prompt: str) -> str",
    "ask the sub-LM; it sees the prompt and nothing else",
)
LLM_QUERY_BATCHED = FunctionInfo(
    "llm_query_batched(prompts: list[str]) -> list[str]",
    "ask about many prompts at once; the answers in their order, and one that failed says so",
)
PREDICT = FunctionInfo(
    "predict(signature: str, **inputs) -> Any",
    "ask the sub-LM for typed values, as in predict(\"text -> label: Literal['good', 'bad']\", text=t)",
)
PREDICT_BATCHED = FunctionInfo(
    "predict_batched(signature: str, rows: list, **inputs) -> list",
    "the same for many at once: one entry of rows a call, its first input or a dict of inputs by name",
)


@dataclass(frozen=True)
class Kind:
    """One sort of sub-call.

    Attributes:
        name: Of the function.
        role: It is counted for.
        module: Answers.
        shape: Of the module.
        known_by: What its answers are remembered by, the same as long as the tree lives.
    """

    name: str
    role: str
    module: dspy.Module
    shape: Shape
    known_by: Hashable


class SubCalls:
    """The sub-calls of one run.

    Args:
        run: The run.
        recorded: Records one call in the event log, see `rlm_dspy.functions.HostFunctions`.
    """

    def __init__(self, run: Run, recorded: Recorder) -> None:
        self._run = run
        self._recorded = recorded
        self._text = PlainTextAdapter(dspy.settings.adapter)
        self._typed = TypedAdapter(dspy.settings.adapter)
        self._kinds: dict[str, tuple[tuple[Any, Any], Kind]] = {}
        self._under_way = 0
        self.in_a_row = 0
        """Single calls of the turn so far that were made one after the other."""
        self.overlapped = False
        """Whether any of them were made at the same time."""

    @property
    def one_by_one(self) -> int:
        """Single calls of the turn so far, if no two of them were made at the same time; else 0."""
        return 0 if self.overlapped else self.in_a_row

    def functions(self, taken: set[str]) -> dict[str, HostFunction]:
        """Name to function."""
        functions: dict[str, HostFunction] = {"llm_query": self.llm_query, "llm_query_batched": self.llm_query_batched}
        for name in self._run.program.sub_calls:
            functions[name] = functools.partial(self._one, name)
            functions[f"{name}_batched"] = functools.partial(self._many, name)
        if "predict" not in taken:
            functions["predict"] = self.predict
        if "predict_batched" not in taken:
            functions["predict_batched"] = self.predict_batched
        return functions

    def infos(self, taken: set[str]) -> list[FunctionInfo]:
        """What the contract says of them."""
        program = self._run.program
        query = self._kind("llm_query")
        one, many = (LLM_QUERY, LLM_QUERY_BATCHED) if query.shape.text else query.shape.infos("llm_query")
        told = [*self._with_models(one, many, "prompt" in query.shape.inputs)]
        for name in program.sub_calls:
            told += self._kind(name).shape.infos(name)
        if program.adhoc and "predict" not in taken:
            told += [PREDICT, *([PREDICT_BATCHED] if "predict_batched" not in taken else [])]
        return told

    def _with_models(self, one: FunctionInfo, many: FunctionInfo, add: bool) -> tuple[FunctionInfo, FunctionInfo]:
        names = list(self._run.program.routes.models)
        if not names or not add:
            return one, many
        option = f", model: {' | '.join(map(repr, names))} | None = None)"
        return tuple(FunctionInfo(f"{option}".join(i.call.split(")", 1)), i.doc) for i in (one, many))  # type: ignore[return-value]

    async def llm_query(self, *args: Any, **kwargs: Any) -> Any:
        """One prompt to the sub-LM, its reply back; with a `sub_signature` of several fields, those."""
        return await self._one("llm_query", *args, **kwargs)

    async def llm_query_batched(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Many at once; replies in their order."""
        return await self._many("llm_query", *args, **kwargs)

    async def predict(
        self, signature: str, /, *args: Any, types: Any = None, instructions: str = "", **inputs: Any
    ) -> Any:
        """A call with types of the caller's own, such as ``predict("text -> label: bool", text=t)``."""
        return await self._one(self._adhoc(signature, types, instructions), *args, **inputs)

    async def predict_batched(
        self, signature: str, /, *args: Any, types: Any = None, instructions: str = "", **inputs: Any
    ) -> list[Any]:
        """`predict` for many inputs at once."""
        return await self._many(self._adhoc(signature, types, instructions), *args, **inputs)

    # ------------------------------------------------------------------------------------------------- the kinds

    def _kind(self, name: str) -> Kind:
        program = self._run.program
        module = program.sub if name == "llm_query" else program.sub_calls[name]
        seen, kind = self._kinds.get(name, ((None, None), None))
        # An optimiser may give a predictor another signature; DSPy collects a signature's fields anew at each look.
        now = (module, getattr(module, "signature", None))
        if kind is None or seen[0] is not now[0] or seen[1] is not now[1]:
            kind = Kind(name, "sub" if name == "llm_query" else name, module, Shape.of(module), id(module))
            self._kinds[name] = now, kind
        return kind

    def _adhoc(self, signature: Any, types: Any, instructions: Any) -> Kind:
        if not isinstance(signature, str):
            raise TypeError('predict takes a signature text first, such as "text -> label: bool"')
        key, made = adhoc.keyed(signature, types, str(instructions))

        def kind() -> Kind:
            module = RolePredict(made, role="predict")
            return Kind("predict", "predict", module, Shape.of(module), key)

        found: Kind = self._run.tree.adhoc.get(key, kind)
        return found

    # ------------------------------------------------------------------------------------------------- the calls

    async def _one(self, which: str | Kind, /, *args: Any, **kwargs: Any) -> Any:
        kind = self._kind(which) if isinstance(which, str) else which
        model, fresh = self._options(kind, kwargs)
        inputs = _checked(kind, kind.shape.bind(kind.name, args, kwargs))
        # First, because it may be refused: that is no call under way.
        (ask,) = self._asks(kind, [inputs], model, fresh)
        self.in_a_row += 1
        self.overlapped = self.overlapped or self._under_way > 0
        self._under_way += 1
        try:
            return await ask.answer(kind.name)
        finally:
            self._under_way -= 1
            ask.abandon()

    async def _many(self, which: str | Kind, /, *args: Any, **kwargs: Any) -> list[Any]:
        kind = self._kind(which) if isinstance(which, str) else which
        model, fresh = self._options(kind, kwargs)
        name = f"{kind.name}_batched"
        if len(args) != 1:
            raise TypeError(f"{name} takes one list, and keywords that hold for all: {kind.shape.batched_call(name)}")
        rows = [_checked(kind, row, number) for number, row in enumerate(kind.shape.rows(name, args[0], kwargs))]
        asks = self._asks(kind, rows, model, fresh)
        try:
            return await gathered(_slot(ask, name) for ask in asks)
        finally:
            for ask in asks:
                ask.abandon()

    def _options(self, kind: Kind, kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """``model=`` and ``fresh=`` of a call, unless its own inputs have these names."""
        model = kwargs.pop("model", None) if "model" not in kind.shape.inputs else None
        fresh = bool(kwargs.pop("fresh", False)) if "fresh" not in kind.shape.inputs else False
        return (None if model is None else self._run.program.routes.named(model)), fresh

    def _asks(self, kind: Kind, rows: Sequence[dict[str, Any]], model: Any, fresh: bool) -> list[_Ask]:
        """How each row is to be answered; what has to be paid is reserved, all of it or nothing.

        Raises:
            CallRefused: There are fewer calls left.
        """
        run = self._run
        lm = model or self._lm(kind.module)
        # A module of the user's own may have tools, or be meant to answer differently each time.
        reuse = run.program.reuse and not fresh and isinstance(kind.module, dspy.Predict)
        keys = [_key(kind, lm, row) if reuse else None for row in rows]
        known = run.tree.answers
        new = {key for key in keys if key is not None and key not in known}
        run.ledger.reserve_calls(len(new) + keys.count(None))
        asks = []
        for key, row in zip(keys, rows, strict=True):
            first = key is None or key in new
            if key in new:
                new.discard(key)
                known[key] = asyncio.get_running_loop().create_future()
            asks.append(_Ask(self, kind, row, lm, fresh, key, first))
        return asks

    async def pay(self, ask: _Ask, name: str) -> Any:
        """Make the LM call of ``ask``, which is reserved, and record it."""
        return await self._recorded(name, _preview(ask.row), functools.partial(self._ask, ask))

    async def give(self, ask: _Ask, name: str, result: Any) -> Any:
        """Record that the call of ``ask`` was answered by an earlier one."""

        async def given() -> Any:
            return result

        return await self._recorded(name, _preview(ask.row), given, reused=True)

    @property
    def run(self) -> Run:
        """The run they belong to."""
        return self._run

    async def _ask(self, ask: _Ask) -> Any:
        run, kind, module = self._run, ask.kind, ask.kind.module
        predictor = isinstance(module, dspy.Predict)
        adapter: dspy.Adapter | None = None
        if predictor:
            adapter = self._text if kind.shape.text else self._typed
        inputs = dict(ask.row)
        config = self._config(module, ask.lm, ask.fresh) if predictor else {}
        if config:
            inputs["config"] = config
        chars = sum(map(_length, ask.row.values())) + 400 if run.ledger.estimates else 0
        most = run.limits.sub_max_tokens
        work = functools.partial(spend, run, kind.role, module, adapter, ask.lm, chars=chars, most=most, inputs=inputs)
        try:
            prediction = await work(begun=ask.begin)
        except AdapterParseError as error:
            # A text has no form that could be wrong, and a module of the user's own has its own ways.
            if adapter is not self._typed:
                raise
            prediction = await self._repaired(work, error)
        except Exception as error:
            if not overflowed(error):
                raise
            size = sum(map(_length, ask.row.values()))
            raise ValueError(
                f"the prompt ({size:,} characters) is longer than the context window of the sub-LM. Send less text: "
                "split it into parts, ask about each (many at once with the batched call), and put the answers together"
            ) from error
        return kind.shape.value(prediction)

    async def _repaired(self, work: Callable[[], Any], error: AdapterParseError) -> Any:
        """The reply is asked for once more, with what was wrong with it; that is an LM call of its own."""
        ledger = self._run.ledger
        ledger.reserve_calls(1)
        try:
            with repairing(str(error.lm_response or ""), error):
                return await work()
        except AdapterParseError as again:
            raise ValueError(f"the reply could not be read, twice: {reason(again)}") from again
        finally:
            ledger.settle_call()

    def _config(self, module: Any, lm: Any, fresh: bool) -> dict[str, Any]:
        most = self._run.limits.sub_max_tokens
        config: dict[str, Any] = {} if most is None else {"max_tokens": most}
        chosen = lm or getattr(module, "lm", None) or dspy.settings.lm
        # An optimiser sets another rollout on the root's LM alone, to see an example run in another way.
        rollout = None if rollout_of(chosen) is not None else rollout_of(root_lm(self._run))
        if fresh:
            config |= varied(chosen, module, next(self._run.tree.rollouts), rollout)
        elif rollout is not None and isinstance(chosen, dspy.LM) and type(module).forward is dspy.Predict.forward:
            # A custom LM may take no such setting, and a forward of a user's own no configuration.
            config |= {} if "rollout_id" in module.config else varied(chosen, module, rollout)
        return config

    def _lm(self, module: dspy.Module) -> Any:
        """The LM that overrides the module's own choice, or None."""
        run = self._run
        at_depth = run.program.routes.at(run.generation, "sub")
        if at_depth is not None:
            return at_depth
        return run.program.sub_lm if own_lm(module) is None else None

    def start_turn(self) -> None:
        """A turn begins: calls in a row are counted anew."""
        self.in_a_row, self.overlapped = 0, False


class _Ask:
    """One sub-call that is to be answered.

    Args:
        calls: Makes it.
        kind, row, lm, fresh: What is asked, and of whom.
        key: What it is known by in the tree; None if it is not to be shared.
        first: It is reserved, and others with its key wait for what it gets.
    """

    def __init__(
        self, calls: SubCalls, kind: Kind, row: dict[str, Any], lm: Any, fresh: bool, key: Any, first: bool
    ) -> None:
        self.kind, self.row, self.lm, self.fresh = kind, row, lm, fresh
        self._calls = calls
        self._key = key
        self._first = self._reserved = first
        self._made = False

    def begin(self) -> None:
        """The LM call is being made."""
        self._made = True

    async def answer(self, name: str) -> Any:
        """The answer, for a call of the function ``name``."""
        answers = self._calls.run.tree.answers
        while not self._first and (asked := answers.get(self._key)) is not None:
            try:
                result = await asyncio.shield(asked)
            except asyncio.CancelledError:
                if not asked.cancelled():
                    raise
            else:
                return await self._calls.give(self, name, copy.deepcopy(result))
        if not self._first:
            # The one that asked before has failed: this one asks, and those that still wait do so for it.
            self._calls.run.ledger.reserve_calls(1)
            self._first = self._reserved = True
            answers[self._key] = asyncio.get_running_loop().create_future()
        result = await self._calls.pay(self, name)
        future = answers.get(self._key) if self._key is not None else None
        if future is not None and not future.done():
            # Copies: in process, code gets the very object, and may change it.
            future.set_result(copy.deepcopy(result))
        return result

    def abandon(self) -> None:
        """It is over, however: give back what was not used, and keep nothing of a failure."""
        if self._reserved:
            self._reserved = False
            self._calls.run.ledger.settle_call(made=self._made)
        answers = self._calls.run.tree.answers
        if self._first and self._key is not None and (future := answers.get(self._key)) is not None:
            if not future.done():
                del answers[self._key]
                future.cancel()


async def _slot(ask: _Ask, name: str) -> Any:
    """One call of a batch; its failure is its result."""
    try:
        result = await ask.answer(name)
        if not isinstance(ask.kind.module, dspy.Predict):
            # What a module of the user's own gives may not cross, which is to cost no other slot its result.
            encode(result)
        return result
    except Exception as error:
        return failed(error)
    finally:
        ask.abandon()


def failed(error: Exception) -> FailedCall:
    """What stands in the place of a batch's result that failed."""
    text = str(error) if isinstance(error, CallFailed) else error_text(error)
    return FailedCall(f"[ERROR] {text}")


def own_lm(module: dspy.Module) -> Any:
    """The LM that a predictor, or one of a module's, has been given, or None."""
    predictors = [module] if isinstance(module, dspy.Predict) else module.predictors()
    return next((predictor.lm for predictor in predictors if predictor.lm is not None), None)


def _checked(kind: Kind, inputs: dict[str, Any], number: int | None = None) -> dict[str, Any]:
    if kind.shape.text:
        (prompt,) = inputs.values()
        which = "" if number is None else f" (that at index {number})"
        if not isinstance(prompt, str):
            kind_of = type(prompt).__name__
            raise TypeError(f"a prompt must be a str, not {kind_of}{which}; build one text with an f-string or join")
        if not prompt.strip():
            raise ValueError(f"a prompt must not be empty{which}")
    return inputs


def _key(kind: Kind, lm: Any, row: Mapping[str, Any]) -> tuple[Any, ...]:
    digest = hashlib.blake2b(digest_size=16)
    for name, value in row.items():
        text = (value if isinstance(value, str) else repr(value)).encode("utf-8", "surrogatepass")
        # With its length: what stands in a value is not to pass for the next one.
        digest.update(f"{name}:{type(value).__name__}:{len(text)}:".encode())
        digest.update(text)
    return kind.known_by, id(lm), digest.digest()


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else len(str(value))


def _preview(row: Mapping[str, Any]) -> str:
    from rlm_dspy.functions import repr_short

    if len(row) == 1 and isinstance(text := next(iter(row.values())), str):
        return one_line(text)
    return one_line(", ".join(f"{name}={repr_short(value)}" for name, value in row.items()))
