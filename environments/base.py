"""The two contracts of this room: an `Environment` (a place) and a `Session` (code running in that place).

A backend is an `Environment` subclass whose `open` starts Python somewhere and returns a duplex byte stream to it, a
`Transport`. All else is shared: the worker program that the stream carries first, the frames, values of any size,
time limits, output caps, host functions, clean-up (`rlm_dspy.environments.interpreter`).

An environment is also the zero-argument factory that DSPy calls ``interpreter_factory``: calling it gives a fresh
`rlm_dspy.environments.interpreter.Interpreter`, which satisfies ``dspy.CodeInterpreter``.
"""

from __future__ import annotations

import abc
import base64
import copy
import os
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypedDict, Unpack, runtime_checkable

from rlm_dspy.environments.given import checked_code, checked_files, checked_requirements, stamp, told
from rlm_dspy.errors import ConfigurationError

if TYPE_CHECKING:
    from rlm_dspy.environments.interpreter import Interpreter

Level = Literal["bounded", "per process only", "not bounded"]
Kind = Literal["syntax", "runtime", "timeout"]


@dataclass(frozen=True)
class Bound:
    """How far one resource is confined.

    Attributes:
        level: ``"bounded"`` holds for everything the code starts, ``"per process only"`` for each process by itself,
            ``"not bounded"`` not at all.
        how: The mechanism, in a few words, such as ``"network namespace, seccomp"``.
        limit: The number behind it, where there is one: bytes of memory or disk, a count of processes.
    """

    level: Level
    how: str = ""
    limit: int | None = None


@dataclass(frozen=True)
class Description:
    """What an environment confines, as it really is on this machine.

    Attributes:
        environment: Its name, such as ``"local"``.
        layers: The mechanisms in force, outermost first, such as ``("bubblewrap", "seccomp", "rlimits")``.
        files, network, memory, processes, disk, time, secrets: One `Bound` each. ``secrets`` is about the host's
            environment variables and other processes' memory.
        missing: Layers that the machine or the configuration lacks, each with the reason.
        confined: True where untrusted code may run: files, network and secrets are all ``"bounded"``.
    """

    environment: str
    layers: tuple[str, ...] = ()
    files: Bound = Bound("not bounded")
    network: Bound = Bound("not bounded")
    memory: Bound = Bound("not bounded")
    processes: Bound = Bound("not bounded")
    disk: Bound = Bound("not bounded")
    time: Bound = Bound("not bounded")
    secrets: Bound = Bound("not bounded")
    missing: tuple[str, ...] = ()

    @property
    def confined(self) -> bool:
        return all(b.level == "bounded" for b in (self.files, self.network, self.secrets))


class Transport(Protocol):
    """A duplex byte stream to a Python that has just started and reads its program from the stream.

    Methods block and may be called from any thread; `read` and `write` from one thread each at a time.

    One whose stream can tell may also have ``write_now(data: bytes) -> bool``: it sends all of ``data`` or nothing,
    never blocks, and says whether it did; from any thread, also during a `write`. It saves small frames the way over
    another thread.

    One whose stream carries text only, because an SDK decodes it, has ``text = True``: all that crosses then is lines
    of printable ASCII, and each `write` is given whole lines (`rlm_dspy.environments.armour`).
    """

    same_python: bool
    """True if the other end is this very Python version, so that compiled code may be sent."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes, at least one; ``b""`` once the other end is gone."""

    def write(self, data: bytes | memoryview, /) -> None:
        """Send all of ``data``; raises OSError once the other end is gone."""

    def kill(self) -> None:
        """End the other end and everything it started, at once. Idempotent."""

    def close(self) -> None:
        """`kill`, then release processes, descriptors and scratch space. Idempotent."""

    def reason(self) -> str:
        """Why the other end is gone, for an error message: exit status or signal, the tail of its stderr."""


@dataclass(frozen=True)
class CellError:
    """What ended a cell early.

    Attributes:
        type: Name of the exception's class, such as ``"ZeroDivisionError"``.
        message: ``str()`` of it.
        traceback: As Python prints it, from the code's own first frame on, ending in ``type: message``.
        kind: ``"syntax"``, ``"runtime"``, or ``"timeout"`` (interrupted by the time limit).
    """

    type: str
    message: str
    traceback: str
    kind: Kind = "runtime"


@dataclass(frozen=True)
class Submission:
    """A call of ``SUBMIT(...)``, not yet validated: its positional and keyword arguments as host values."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """A picture that a cell displayed.

    Attributes:
        type: Its media type, such as ``"image/png"``.
        data: Its bytes.
    """

    type: str
    data: bytes = field(repr=False)

    @property
    def base64(self) -> str:
        """The bytes as base64 text."""
        return base64.b64encode(self.data).decode("ascii")


@dataclass(frozen=True)
class CellResult:
    """What one cell did.

    Attributes:
        stdout: All that was printed, stderr and C-level prints included, in order; the middle is cut where it
            exceeds the cap, with a line that says how many characters are missing.
        value: ``repr`` of the last expression if the cell ended in one that is not None, else None. Capped likewise.
        error: What ended the cell early, or None.
        submission: Set when the cell called ``SUBMIT``; the cell ends there.
        seconds: Wall time in the worker.
        host_seconds: Part of it during which at least one host call was being waited for.
        lost: Names of variables that existed before and are gone, because the session had to be restarted. A cell
            with ``lost`` did not finish; ``error`` says why.
        images: What it displayed, in the environments that take pictures (``ipython``).
    """

    stdout: str = ""
    value: str | None = None
    error: CellError | None = None
    submission: Submission | None = None
    seconds: float = 0.0
    host_seconds: float = 0.0
    lost: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()


HostFunction = Callable[..., Awaitable[Any]]
"""A function of the host that sandboxed code may call: ``await f(*args, **kwargs)`` on the event loop of `Session.run`.

An exception it raises is raised at the call in the sandbox as ``RuntimeError("Type: message")``; a
`rlm_dspy.errors.RLMError` or ``ValueError``/``TypeError`` keeps its message without the type.
"""


@runtime_checkable
class Session(Protocol):
    """Code running in an environment, as the RLM's loop drives it. One cell at a time; not shared between runs."""

    async def open(self) -> None:
        """Start, or take a warm worker. Raises `SandboxUnavailableError` or ``dspy.CodeInterpreterError``."""

    async def set(self, values: Mapping[str, Any]) -> None:
        """Assign variables; each value crosses once, large text and bytes as raw frames."""

    async def run(
        self, code: str, functions: Mapping[str, HostFunction] | None = None, *, timeout: float | None = None
    ) -> CellResult:
        """Run one cell.

        ``functions`` become globals of the cell; calls of them may overlap, and run as tasks of the calling task's
        loop under copies of its context. ``timeout`` (seconds; None means the environment's own) does not count time
        spent waiting on host calls. Past it the cell is interrupted; a cell that resists is killed, the session is
        restarted and `CellResult.lost` says which variables are gone. Cancelling `run` interrupts the cell likewise.
        A death of the worker is reported in the result, not raised; raises ``dspy.CodeInterpreterError`` only when
        it cannot be restarted.
        """

    async def variables(self) -> dict[str, str]:
        """The user-made global variables: name to type name."""

    async def close(self) -> None:
        """End the session and everything it started. Idempotent; safe in a ``finally`` under cancellation."""

    def describe(self) -> Description:
        """What is and is not confined."""


class BaseOptions(TypedDict, total=False):
    """The options that every environment has; `Environment` says what they mean.

    A backend takes them as ``**base: Unpack[BaseOptions]`` and hands them on: ``super().__init__(**base)``.
    """

    timeout: float | None
    max_output: int
    max_value: int
    setup_code: str | None
    packages: Sequence[str]
    files: Mapping[str, str | os.PathLike[str] | bytes]


class _Told(abc.ABCMeta):
    """Says which options there are where one is given that is not."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        try:
            return super().__call__(*args, **options)
        except TypeError:
            from rlm_dspy.environments.registry import check_options

            check_options(cls.name, cls, options)  # type: ignore[attr-defined]
            raise


class Environment(metaclass=_Told):
    """Base class of the places code can run in. Instances are configuration: cheap, immutable, picklable, comparable.

    Args:
        timeout: Seconds that one cell may compute, not counting the time it waits on host calls; None for no limit.
        max_output: Characters of output kept of one cell.
        max_value: Bytes that one value or one frame crossing from the sandbox may have.
        setup_code: Python that every session has run before its first cell, and again after a restart. What it makes
            is there; what it prints is shown only where it fails.
        packages: Requirements such as ``"numpy>=2"``, or paths of wheels, that code can import. This host's pip
            fetches them once for the Python of the sandbox, which needs no network for that.
        files: Files and folders that every session finds in its working folder: their name there to a path of this
            host, or to the bytes themselves. Of a folder, links that lead out of it are left out.
    """

    name: ClassVar[str]
    execution_instructions: str = ""
    lacks: Mapping[str, str] = types.MappingProxyType({})
    """What the conformance suite leaves out here: names or tags of its checks to the reason."""
    keeps_spares: bool = True
    """Whether warm workers are kept of it once it has been used twice; False where they cost money."""
    starts_here: bool = False
    """Whether a start of it keeps a core of this machine busy, so that only as many are made at once as there are."""
    shell: ClassVar[str | None] = None
    """``"ipython"`` where cells are IPython's."""

    def __init__(
        self,
        *,
        timeout: float | None = 120.0,
        max_output: int = 1_000_000,
        max_value: int = 256 * 1024 * 1024,
        setup_code: str | None = None,
        packages: Sequence[str] = (),
        files: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
    ) -> None:
        if timeout is not None and not (_is_number(timeout, (int, float)) and timeout > 0):
            raise ConfigurationError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
        for option, value in (("max_output", max_output), ("max_value", max_value)):
            if not (_is_number(value, (int,)) and value > 0):
                raise ConfigurationError(f"{option} must be a positive whole number, not {value!r}")
        self.timeout = timeout
        self.max_output = max_output
        self.max_value = max_value
        self.setup_code = checked_code(setup_code)
        self.packages = checked_requirements(packages)
        self.files = checked_files(files)

    @abc.abstractmethod
    def open(self) -> Transport:
        """Start Python in this place and return the stream to it. Blocking; called off the event loop."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """What is and is not confined, probed on this machine."""

    def stamp(self) -> tuple[Any, ...]:
        """Something that differs once a file of this host that sessions are made from has changed.

        A warm worker that was made before such a change is not handed out.
        """
        return stamp(self.files, self.packages) if self.files or self.packages else ()

    def with_options(self, **base: Unpack[BaseOptions]) -> Self:
        """The same place with some of the options that every environment has changed; this one stays as it is.

        Raises:
            ConfigurationError: An option makes no sense, or not here.
        """
        other = copy.copy(self)
        options = self.base_options()
        options.update(base)
        Environment.__init__(other, **options)
        return other

    @property
    def instructions(self) -> str:
        """What a model has to know of this place: `execution_instructions`, and what every session is given here."""
        said = [self.execution_instructions.strip(), told(self.setup_code, self.packages, self.files)]
        return " ".join(part for part in said if part)

    def base_options(self) -> BaseOptions:
        """The options that every environment has, as they are here."""
        return {
            "timeout": self.timeout,
            "max_output": self.max_output,
            "max_value": self.max_value,
            "setup_code": self.setup_code,
            "packages": self.packages,
            "files": self.files,
        }

    def __call__(self) -> Interpreter:
        """A fresh session here; makes every environment a DSPy ``interpreter_factory``."""
        from rlm_dspy.environments.interpreter import Interpreter

        return Interpreter(self)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        # The names of files only: their contents may be large, and the same environment is looked up often.
        cheap = {name: sorted(value) if name == "files" else value for name, value in vars(self).items()}
        return hash((type(self), repr(sorted(cheap.items(), key=lambda item: item[0]))))


def _is_number(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)
