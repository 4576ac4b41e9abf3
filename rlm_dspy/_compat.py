"""Everything that leans on a part of DSPy that DSPy does not promise to keep. Tested by tests/core/test_compat.py.

| what | why there is no public way (DSPy 3.4.1) |
|---|---|
| `is_sync_only` | whether an LM can be awaited shows only when awaiting it fails |
| `replays_reasoning` | how an engine sends earlier reasoning text back is decided in its private routing |
| `SubAgents` | the sandbox stand-in for ``import dspy`` lives in ``dspy.primitives.facade`` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dspy


def is_sync_only(lm: Any) -> bool:
    """True if ``lm`` cannot be awaited: a subclass with its own ``forward`` alone, or an engine without an async twin."""
    if not isinstance(lm, dspy.BaseLM):
        return not callable(getattr(lm, "acall", None))
    kind = type(lm)
    engine = getattr(lm, "_engine_spec", None)
    if isinstance(lm, dspy.LM):
        if kind.forward is not dspy.LM.forward and kind.aforward is dspy.LM.aforward:
            return True
        return engine is not None and not isinstance(engine, str) and getattr(lm, "_async_engine_spec", None) is None
    if engine is not None:
        return False
    return kind.aforward is dspy.BaseLM.aforward and kind.acall is dspy.BaseLM.acall


def replays_reasoning(lm: Any) -> bool:
    """True if ``reasoning_content`` of an earlier reply reaches the endpoint in a field of its own.

    DSPy's native engine writes it *into* the reply's content for endpoints it has no better rule for; the reply would
    then not go back byte for byte, so the reasoning is left out there. LiteLLM and custom engines get it as it was.
    """
    engine = getattr(lm, "_engine_spec", None)
    if not isinstance(engine, str):
        return True
    try:
        from dspy.clients.backend_selection import select_backend

        selection = select_backend(lm)
        if not selection.native:
            return True
        return getattr(selection.resolution.compat, "thinking_replay", None) == "native"
    except Exception:
        # Routing that cannot be asked is one that cannot be trusted with the bytes of a reply.
        return False


class SubAgents:
    """``import dspy`` in the REPL: DSPy's own stand-in module, whose predictors are built and run on the host.

    Args:
        tools: The user's tools by name, which sub-agents may be given.
        interpreter_factory: Where a code-running sub-agent runs its code.
        lm: The LM of sub-agents; ``dspy.settings.lm`` if None.
        reserve: Called with a count before LM calls; raises where the limit is reached.
    """

    def __init__(
        self,
        tools: dict[str, dspy.Tool],
        interpreter_factory: Callable[[], Any],
        lm: Any,
        reserve: Callable[[int], None],
    ) -> None:
        from dspy.primitives.facade import FacadeInvocation

        self.tools: dict[str, Callable[..., Any]] = {}
        self.code = ""
        self.variables: dict[str, Any] = {}
        FacadeInvocation(tools, interpreter_factory, None, lm=lm, reserve=reserve).install(self)

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> None:
        """Take what the installer would run in an interpreter: ``code`` with ``variables`` set."""
        self.code = code
        self.variables = dict(variables or {})
