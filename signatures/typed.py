"""The adapter of typed sub-calls: any signature, asked in the form of the user's own adapter and read more leniently.

`TypedAdapter` formats with the adapter that the user configured, and a signature of one text to one text as plain text.
A reply that this adapter cannot read is looked through once more (`rlm_dspy.signatures.readings`) before it counts as
unreadable. It never asks the LM a second time by itself, as DSPy's ``ChatAdapter`` does: who makes the call repairs it,
by making it again inside `repairing`:

    try:
        predict(**inputs)
    except AdapterParseError as error:
        with repairing(error.lm_response, error):
            predict(**inputs)
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rlm_dspy.signatures import answered
from rlm_dspy.signatures.adapter import PlainTextAdapter
from rlm_dspy.signatures.conversation import EMPTY_REPLY, Message, assistant, cut, user
from rlm_dspy.signatures.readings import Output, kind_of, outputs_of, read, too_deep

__all__ = ["TypedAdapter", "reason", "repairing"]

REASON_CHARS = 600
"""Characters that a reason has at most."""
REPLY_CHARS = 4_000
"""Characters of a bad reply that are sent back, the note on what is left out not counted."""

Signature = type[dspy.Signature]


@dataclass(frozen=True)
class _Repair:
    reply: str
    why: str
    signature: Signature | None


_repair: contextvars.ContextVar[_Repair | None] = contextvars.ContextVar("rlm_dspy_repair", default=None)


@contextlib.contextmanager
def repairing(reply: str, error: Exception) -> Iterator[None]:
    """Make the same call inside, and its request has two messages more: the bad reply and what was wrong with it.

    Args:
        reply: What the LM said.
        error: What came of it. Of an ``AdapterParseError`` only requests for the same outputs are concerned, so that a
            module may make other calls as well.
    """
    signature = error.signature if isinstance(error, AdapterParseError) else None
    token = _repair.set(_Repair(str(reply), reason(error), signature))
    try:
        yield
    finally:
        _repair.reset(token)


def reason(error: Exception) -> str:
    """What was wrong with a reply, in one sentence without a full stop: which output, what was expected, what came.

    Args:
        error: An ``AdapterParseError`` of any adapter, whose reply is looked at again; of others the first line.
    """
    if isinstance(error, AdapterParseError):
        text = _problem(error)
    else:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = " ".join(text.split())
    return text if len(text) <= REASON_CHARS else text[: REASON_CHARS - 1] + "…"


def _problem(error: AdapterParseError) -> str:
    """Why the reply does not give the outputs."""
    signature, reply = error.signature, str(error.lm_response)
    if not reply.strip() or "empty or null response" in str(error.message):
        return "the reply is empty"
    if too_deep(reply):
        return "the reply is nested too deep to be read"
    problems = [] if PlainTextAdapter.fits(signature) else read(signature, reply).problems
    return "; ".join(problems[:3]) or "the reply does not keep to the form that was asked for"


class TypedAdapter(dspy.Adapter):
    """Ask for the outputs of any signature, and read them from whatever form the reply has.

    Args:
        inner: The user's adapter: its form is used, its callbacks are fired, its settings and what it sends with a
            request (such as the response format of ``dspy.JSONAdapter``) are kept. DSPy's ``ChatAdapter`` if None, or
            if it is one that makes LM calls of its own.
    """

    def __init__(self, inner: dspy.Adapter | None = None) -> None:
        callbacks = list(getattr(inner, "callbacks", None) or [])
        known = isinstance(inner, (dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter))
        form: Any = inner if known else dspy.ChatAdapter()
        self.inner: Any = form
        super().__init__(
            callbacks=callbacks,
            use_native_function_calling=form.use_native_function_calling,
            native_response_types=form.native_response_types,
            parallel_tool_calls=form.parallel_tool_calls,
        )
        # Calls go through a copy of the user's adapter, so that it prepares its requests as ever; formatting and
        # parsing are ours, and so is what happens when a reply cannot be parsed.
        caller: Any = copy.copy(form)
        caller.use_json_adapter_fallback = False
        caller.format, caller.parse = self.format, self.parse
        self._caller: Any = caller
        self._plain = PlainTextAdapter()

    def __call__(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Signature,
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """One request, and its outputs; raises ``AdapterParseError`` where the reply does not give them."""
        if PlainTextAdapter.fits(signature):
            return super().__call__(lm, lm_kwargs, signature, demos, inputs)
        return self._caller(lm, lm_kwargs, signature, demos, inputs)

    async def acall(
        self,
        lm: Any,
        lm_kwargs: dict[str, Any],
        signature: Signature,
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """`__call__`, awaited."""
        if PlainTextAdapter.fits(signature):
            return await super().acall(lm, lm_kwargs, signature, demos, inputs)
        return await self._caller.acall(lm, lm_kwargs, signature, demos, inputs)

    def format(self, signature: Signature, demos: list[dict[str, Any]], inputs: dict[str, Any]) -> list[Message]:
        """The messages of the request; inside `repairing` with the bad reply and the correction behind them."""
        plain = PlainTextAdapter.fits(signature)
        form = self._plain if plain else self.inner
        # Raw examples of the whole task would put large inputs of the same name before every small request.
        fitting = [fits for demo in demos if (fits := answered.own(demo, signature)) is not None]
        messages: list[Message] = form.format(signature, fitting, inputs)
        repair = _repair.get()
        if repair is not None and _same_outputs(signature, repair.signature):
            said = cut(repair.reply, REPLY_CHARS) if repair.reply.strip() else EMPTY_REPLY
            correction = f"That reply cannot be used: {repair.why}.\n\n{self._wanted(signature)}"
            messages = [*messages, assistant(said), user(correction)]
        return messages

    def parse(self, signature: Signature, completion: str) -> dict[str, Any]:
        """The outputs, each in its field's type.

        Raises:
            AdapterParseError: They are not in the reply; `reason` says why.
        """
        if PlainTextAdapter.fits(signature):
            return self._plain.parse(signature, completion)
        outputs = outputs_of(signature)
        unsafe = too_deep(completion)
        # DSPy's repair of JSON takes time that grows with the square of the depth, or ends in a RecursionError.
        texts_only = all(output.annotation is str for output in outputs.values())
        if not unsafe or (texts_only and not isinstance(self.inner, dspy.JSONAdapter)):
            for form in self._forms(outputs, completion):
                values = _read_by(form, signature, completion)
                if values is not None:
                    return values
        why = "the reply is nested too deep to be read"
        if not unsafe:
            found = read(signature, completion)
            if not found.problems:
                return found.values
            why = "; ".join(found.problems[:3])
        raise AdapterParseError(
            adapter_name=type(self).__name__, signature=signature, lm_response=completion, message=why
        )

    def _forms(self, outputs: dict[str, Output], completion: str) -> Iterator[dspy.Adapter]:
        """The user's adapter, and those of DSPy's whose form the reply seems to have."""
        yield self.inner
        if any(f"<{name}>" in completion for name in outputs) and not isinstance(self.inner, dspy.XMLAdapter):
            yield dspy.XMLAdapter()
        if any(f'"{name}"' in completion or f"'{name}'" in completion for name in outputs):
            if not isinstance(self.inner, dspy.JSONAdapter):
                yield dspy.JSONAdapter()

    def _wanted(self, signature: Signature) -> str:
        outputs = outputs_of(signature)
        if len(outputs) == 1 and not isinstance(self.inner, dspy.JSONAdapter):
            ((name, output),) = outputs.items()
            kind = kind_of(output.annotation)
            if kind:
                return f"Reply with the value of `{name}` ({kind}) and with nothing else."
        return str(self.inner.user_message_output_requirements(signature))


def _read_by(form: dspy.Adapter, signature: Signature, completion: str) -> dict[str, Any] | None:
    """What ``form`` makes of the reply, if that can be relied on."""
    outputs = outputs_of(signature)
    try:
        values: dict[str, Any] = form.parse(signature, completion)
        if any(value == "None" and outputs[name].annotation is str for name, value in values.items()):
            # DSPy makes that text of a null.
            return None
        values = {name: outputs[name].checked(value) for name, value in values.items()}
    except (AdapterParseError, ValueError, TypeError, RecursionError):
        return None
    # Where all outputs may be left out, DSPy reads any text as that.
    found = any(not output.optional or not _equal(values[name], output.default()) for name, output in outputs.items())
    return values if found else None


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # Arrays, and what else compares in its own way.
        return one is other


def _same_outputs(signature: Signature, other: Signature | None) -> bool:
    if other is None:
        return True
    mine, theirs = signature.output_fields, other.output_fields
    return list(mine) == list(theirs) and all(mine[name].annotation == theirs[name].annotation for name in mine)
