"""Everything that leans on a part of DSPy, or of Python, that may not stay. Tested by tests/core/test_compat.py.

| what | why there is no public way (DSPy 3.4.1) |
|---|---|
| `ways_to_call` | whether an LM can be awaited shows only when awaiting it fails |
| `can_stream` | an engine of a user's own may have no ``stream``, which shows only when it is called |
| `replays_reasoning` | how an engine sends earlier reasoning text back is decided in its private routing |
| `has_provider` | whether an LM calls a provider or an engine of its user's own is in a private setting |
| `model_facts` | the published prices and context windows that DSPy ships are read by an unlisted module |
| `facts_at_hand` | that module fetches them when it is first asked, and blocks its caller meanwhile |
| `generation_config` | an explicit ``Request`` leaves out the settings that an LM has by itself |
| `carried` | ``dspy.context`` would also freeze all other settings, so that ``dspy.configure`` in it had no effect |
| `before_threads_end` | what is to be sent at exit needs threads, and ``atexit`` comes after their end |
| `without_stragglers` | ``dspy.Evaluate`` starts slow examples twice, and has no argument against it |
| `SubAgents` | the sandbox stand-in for ``import dspy`` lives in ``dspy.primitives.facade`` |
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.dsp.utils.utils import dotdict
from dspy.lm15 import Config, LM15Error, request_from_openai_chat
from dspy.utils import DummyLM


def ways_to_call(lm: Any) -> frozenset[str]:
    """How ``lm`` can be called: ``"sync"``, ``"async"`` or both.

    A subclass with its own ``forward`` alone, and an engine without an asynchronous twin, can only be called
    synchronously; a subclass with its own ``aforward`` alone can only be awaited.
    """
    if not isinstance(lm, dspy.BaseLM):
        both = {"sync": callable(lm), "async": callable(getattr(lm, "acall", None))}
        return frozenset(way for way, there in both.items() if there) or frozenset({"async"})
    kind = type(lm)
    base = next(c for c in (DummyLM, dspy.LM, dspy.BaseLM) if isinstance(lm, c))
    own_sync = kind.forward is not base.forward or kind.__call__ is not base.__call__
    own_async = kind.aforward is not base.aforward or kind.acall is not base.acall
    if own_sync != own_async:
        return frozenset({"sync"}) if own_sync else frozenset({"async"})
    engine = getattr(lm, "_engine_spec", "auto")
    if not own_sync and not isinstance(engine, str) and getattr(lm, "_async_engine_spec", None) is None:
        return frozenset({"sync"})
    return frozenset({"sync", "async"})


def can_stream(lm: Any) -> bool:
    """False for an LM on an engine of a user's own that has no ``stream``: under a stream, DSPy would call that."""
    engine = getattr(lm, "_async_engine_spec", None) or getattr(lm, "_engine_spec", None)
    return engine is None or isinstance(engine, str) or callable(getattr(engine, "stream", None))


def replays_reasoning(lm: Any) -> bool:
    """True if ``reasoning_content`` of an earlier reply reaches the endpoint in a field of its own.

    DSPy's native engine writes it *into* the reply's content for endpoints it has no better rule for; the reply would
    then not go back byte for byte, so the reasoning is left out there. LiteLLM and custom engines get it as it was,
    unless an engine says ``replays_reasoning = False`` of itself.
    """
    engine = getattr(lm, "_engine_spec", None)
    if not isinstance(engine, str):
        return bool(getattr(engine, "replays_reasoning", True))
    try:
        from dspy.clients.backend_selection import select_backend

        selection = select_backend(lm)
        if not selection.native:
            return True
        return getattr(selection.resolution.compat, "thinking_replay", None) == "native"
    except Exception:
        # Routing that cannot be asked is one that cannot be trusted with the bytes of a reply.
        return False


def has_provider(lm: Any) -> bool:
    """True if ``lm`` calls a provider by an engine of DSPy's own, so that prices may be published for its model."""
    return isinstance(lm, dspy.LM) and isinstance(getattr(lm, "_engine_spec", "auto"), str)


@contextlib.contextmanager
def carried(name: str, value: Any) -> Iterator[None]:
    """Have DSPy's setting ``name`` be ``value`` here, also in threads of DSPy's own, and leave all others alone."""
    token = thread_local_overrides.set(dotdict({**thread_local_overrides.get(), name: value}))
    try:
        yield
    finally:
        thread_local_overrides.reset(token)


_facts_read = False


def facts_at_hand() -> bool:
    """False until `model_facts` was read once; the first time DSPy fetches the list, which may take seconds."""
    return _facts_read


def model_facts(model: str) -> dict[str, Any]:
    """What is published about ``model``: prices, context window; empty where nothing is known.

    Args:
        model: With its provider, as ``dspy.LM`` takes it.
    """
    global _facts_read
    provider, _, name = model.partition("/")
    if not name:
        provider, name = "openai", model
    try:
        from dspy.clients.model_metadata import model_info

        return dict(_found(model_info, provider, name))
    except Exception:
        return {}
    finally:
        _facts_read = True


@functools.lru_cache(maxsize=1000)
def _found(model_info: Callable[[str, str], Any], provider: str, name: str) -> Mapping[str, Any]:
    """Looked up once: DSPy goes through thousands of models, and its list stays as it is once it was read."""
    found = model_info(provider, name)
    return found if isinstance(found, dict) else {}


def generation_config(lm: Any) -> Config:
    """The settings of ``lm`` (temperature, max_tokens, …) as an explicit ``Request`` carries them.

    DSPy merges an LM's own settings into a call by messages, but not into a call by ``Request``. Settings of the
    connection (keys, addresses, headers) are none of it: the LM keeps those itself. What cannot be written in a request
    is left out.
    """
    from dspy.clients.backend_selection import CLIENT_KEYS

    ours = CLIENT_KEYS | {"n", "num_generations", "rollout_id", "prompt_cache", "response_format", "cache"}
    settings = {name: value for name, value in lm.kwargs.items() if name not in ours and value is not None}
    plain = {name: value for name, value in settings.items() if name in ("temperature", "max_tokens", "top_p", "stop")}
    for body in (settings, plain):
        try:
            message = {"role": "user", "content": "-"}
            return request_from_openai_chat({**body, "model": lm.model, "messages": [message]}).config
        except (LM15Error, TypeError, ValueError):
            continue
    return Config()


def before_threads_end(function: Callable[[], object]) -> None:
    """Call ``function`` when the process ends, while threads and executors still work, where Python has a way to.

    What is registered last is called first.
    """
    import atexit
    import threading

    getattr(threading, "_register_atexit", atexit.register)(function)


_no_stragglers: contextvars.ContextVar[bool] = contextvars.ContextVar("rlm_dspy_no_stragglers", default=False)


@contextlib.contextmanager
def without_stragglers() -> Iterator[None]:
    """In this context, DSPy's executor starts nothing a second time because it takes long.

    DSPy's own default alone is turned off; a caller's timeout stays.
    """
    from dspy.utils.parallelizer import ParallelExecutor

    made = ParallelExecutor.__init__
    if not hasattr(made, "stragglers"):
        default = inspect.signature(made).parameters["timeout"].default

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            if _no_stragglers.get() and self.timeout == default:
                self.timeout = 0

        init.stragglers = default  # type: ignore[attr-defined]
        ParallelExecutor.__init__ = init
    token = _no_stragglers.set(True)
    try:
        yield
    finally:
        _no_stragglers.reset(token)


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
