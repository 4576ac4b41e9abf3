"""Running cells: one namespace, output that is kept within a cap, tracebacks that show the cell's own lines.

A cell is a piece of Python text. It runs in the namespace of a real ``__main__`` module, so classes, closures, globals,
dataclasses and ``inspect.getsource`` behave as in a file; ``await`` is allowed at the top level; the value of a last
expression is shown.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax. Everything slow to
import is imported when it is first needed.
"""

# ruff: noqa: UP031
from __future__ import annotations

import builtins
import codecs
import io
import sys
import threading
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_ONLY_AST = 0x400
_TOP_LEVEL_AWAIT = 0x2000
_COROUTINE = 0x80
# As the class has it: a metaclass may answer anything, or raise.
type_name = type.__dict__["__name__"].__get__
# File names of this project's own frames: in a worker, and in the host where cells run in process.
_INTERNAL = ("<rlm ", globals().get("__file__", "<rlm cells").rpartition("cells")[0] or "<rlm ")


OWN = "import builtins as _rlm_builtins\n"
"""How a cell begins that is the project's own and not the code's: no shell sees it, or counts it."""


class Submitted(BaseException):
    """Raised by ``SUBMIT`` to end the cell; no ``except Exception`` catches it."""


class Output:
    """Text of one cell, at most ``cap`` characters of it: the first and the last half. Thread-safe, O(cap) memory."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.lock = threading.RLock()
        # Not an Event, which is locked by code in Python: an interrupt that strikes in there leaves it locked for ever.
        self.written = threading.Lock()
        """Released by a write; whoever reports what has been written so far acquires it to wait for one."""
        self.written.acquire()
        self._reset()

    def _reset(self) -> None:
        self._head: list[str] = []
        self._room = max(1, self.cap // 2)
        self._tail: list[str] = []
        self._tail_size = 0
        self._total = 0

    def write(self, text: str) -> None:
        """Add text."""
        with self.lock:
            self._total += len(text)
            if self._room > 0:
                self._head.append(text[: self._room])
                self._room, text = max(0, self._room - len(text)), text[self._room :]
            if text:
                self._tail.append(text)
                self._tail_size += len(text)
                if self._tail_size > 2 * self.cap or len(self._tail) > 10_000:
                    self._cut()
            if self.written.locked():
                self.written.release()

    def _cut(self) -> None:
        keep = max(1, self.cap - self.cap // 2)
        tail = "".join(self._tail)[-keep:]
        self._tail, self._tail_size = [tail], len(tail)

    def take(self) -> str:
        """All that was kept since the last call; a line in the middle says how many characters are missing."""
        with self.lock:
            text = self.peek()
            self._reset()
        return text

    def peek(self) -> str:
        """What `take` would give, left in place."""
        with self.lock:
            self._cut()
            head, tail = "".join(self._head), self._tail[0]
            missing = self._total - len(head) - len(tail)
        if missing > 0:
            return "%s\n... [%d characters left out] ...\n%s" % (head, missing, tail)
        return head + tail


def cap_text(text: str, cap: int) -> str:
    """``text``, its middle cut where it is longer than ``cap`` characters."""
    if len(text) <= cap:
        return text
    half = max(1, cap // 2)
    return "%s\n... [%d characters left out] ...\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


class _Bytes(io.RawIOBase):
    """The ``buffer`` of a `Stream`: bytes written to it are decoded into the stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = bytes(data)
        self._stream.write(self._decoder.decode(data))
        return len(data)

    def fileno(self) -> int:
        return self._stream.fileno()


class Stream(io.TextIOBase):
    """Stands for ``sys.stdout`` or ``sys.stderr``: what is written goes to ``write``.

    Args:
        write: Takes each text.
        descriptor: What ``fileno()`` answers, or None where there is no descriptor behind it.
    """

    def __init__(self, write: Callable[[str], Any], descriptor: int | None, name: str) -> None:
        self._write = write
        self._descriptor = descriptor
        self._name = name
        self._buffer: Any = None

    name = property(lambda self: self._name)
    mode = "w"
    encoding = property(lambda self: "utf-8")
    errors = property(lambda self: "surrogatepass")
    line_buffering = True

    @property
    def buffer(self) -> Any:
        """A binary stream to the same place."""
        if self._buffer is None:
            self._buffer = _Bytes(self)
        return self._buffer

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self._write(text)
        return len(text)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        # Code that closes sys.stdout, as exit() does with stdin, must not silence the cells after it.
        pass

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        if self._descriptor is None:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def reconfigure(self, **options: Any) -> None:
        """Accepted and ignored."""


class Cells:
    """The namespace and the cells run in it.

    Args:
        module: Whose namespace it is.
        name: Prefix of the file names that tracebacks show: ``<cell 3>``.
    """

    def __init__(self, module: types.ModuleType, name: str = "cell") -> None:
        self.module = module
        self.ns: dict[str, Any] = module.__dict__
        self.ns["__builtins__"] = builtins
        self.count = 0
        self.protected: dict[str, Any] = {}
        self.builtins: Builtins | None = None
        self.shell: Any = None
        """Of `ipython_shell`, where cells are IPython's."""
        self._notes: list[str] = []
        self._warned: set[str] = set()
        self._name = name
        self.files: set[str] = set()
        self.shown: dict[str, str] = {}
        """What errors show in the place of names that have to be unique here."""
        self._flags = 0
        self._loop: Any = None

    # ------------------------------------------------------------------------------------------------- names

    def protect(self, functions: Mapping[str, Any]) -> None:
        """Make ``functions`` the host functions: installed now, restored before each cell if code rebinds them."""
        for name, function in self.protected.items():
            if name not in functions and self.ns.get(name) is function:
                del self.ns[name]
        self.protected = dict(functions)
        self.ns.update(functions)

    def heal(self) -> list[str]:
        """Restore host functions that code has rebound; gives a note for each the first time."""
        notes, self._notes = self._notes, []
        for name, function in sorted(self.protected.items(), key=lambda item: item[0]):
            if self.ns.get(name) is not function:
                self.ns[name] = function
                if name not in self._warned:
                    self._warned.add(name)
                    notes.append("note: `%s` was reassigned; it is restored" % name)
        if not callable(self.ns.get("print", print)):
            del self.ns["print"]
            notes.append("note: `print` was reassigned; it is restored")
        if not isinstance(self.ns.get("__builtins__"), (dict, types.ModuleType)):
            self.ns["__builtins__"] = builtins
        return notes

    def variables(self) -> dict[str, str]:
        """The user-made globals, name to type name."""
        found: dict[str, str] = {}
        own = self.protected if self.shell is None else {**self.shell.hidden, **self.protected}
        for name, value in list(self.ns.items()):
            # What code puts into globals() need not be text.
            if type(name) is not str or name[:1] == "_" or type(value) is types.ModuleType:
                continue
            if own.get(name, found) is not value:
                found[name] = type_name(type(value))
        return found

    # ------------------------------------------------------------------------------------------------- running

    def prepare(self) -> None:
        """Load what the first cell would wait for: done while the host is still busy with its inputs."""
        import __future__  # noqa: F401

        import linecache  # noqa: F401
        import warnings

        # Since 3.12 Python warns of it at every fork; that the worker has threads is none of the cell's doing.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        compile("0", "<prepare>", "exec", _ONLY_AST)

    def run(self, code: str, wants_value: bool = False, name: str | None = None) -> dict[str, Any]:
        """Run one cell; tracebacks call it ``name``, or by its number.

        Returns:
            ``error`` (a dict of type, message, traceback, kind) or None; ``value``, the repr of the last expression or
            None; with ``wants_value`` also ``object``, that value itself; with a shell also ``images``.
        """
        if name is None:
            self.count += 1
            name = "%s %d" % (self._name, self.count)
        filename = "<%s>" % name
        self.files.add(filename)
        result: dict[str, Any] = {"error": None, "value": None}
        shell = None if code.startswith(OWN) else self.shell
        try:
            if shell is not None:
                code = shell.source(code)
            self._remember(filename, code)
            value = self._run(code, filename)
            self._heal_builtins()
            if value is not None:
                result["value"] = self._repr(value)
                if wants_value:
                    result["object"] = value
                if self.shell is None:
                    self.ns["_"] = value
        except Submitted:
            self._heal_builtins()
        except BaseException as error:
            # Before anything else: what follows needs them.
            self._heal_builtins()
            result["error"] = self.describe(error)
            if shell is not None:
                at = error.__traceback__
                while at is not None and at.tb_frame.f_code.co_filename not in self.files:
                    at = at.tb_next
                shell.failed(error, at)
        if shell is not None:
            result["images"] = shell.ended()
        return result

    def _heal_builtins(self) -> None:
        if self.builtins is not None:
            self._notes += self.builtins.heal()

    def _run(self, code: str, filename: str) -> Any:
        tree = self._compile(code, filename, "exec", _ONLY_AST)
        body = tree.body
        last = body.pop() if body and type(body[-1]).__name__ == "Expr" else None
        parts = [self._compile(tree, filename, "exec")] if body else []
        if last is not None:
            import _ast

            parts.append(self._compile(_ast.Expression(last.value), filename, "eval"))
        if any(part.co_flags & _COROUTINE for part in parts):
            return self._await(parts)
        # Without a running loop, so that asyncio.run works in the cell.
        value = None
        for part in parts:
            value = eval(part, self.ns)
        return value

    def _compile(self, code: Any, filename: str, mode: str, flags: int = 0) -> Any:
        import __future__

        flags |= self._flags | _TOP_LEVEL_AWAIT
        try:
            compiled = compile(code, filename, mode, flags, dont_inherit=True)
        except SystemError:
            # Python before 3.12 miscounts its own recursion where threads parse at the same time (CPython #106905).
            compiled = compile(code, filename, mode, flags, dont_inherit=True)
        if isinstance(compiled, types.CodeType):
            # A `from __future__ import annotations` holds for the cells after it, as in an interactive Python.
            self._flags |= compiled.co_flags & __future__.annotations.compiler_flag
        return compiled

    def _await(self, parts: list[Any]) -> Any:
        """Run a cell that awaits at its top level, on the one loop that all such cells share."""
        import asyncio

        async def cell() -> Any:
            value = None
            for part in parts:
                value = eval(part, self.ns)
                if part.co_flags & _COROUTINE:
                    value = await value
            return value

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        loop = self._loop
        asyncio.set_event_loop(loop)
        task = loop.create_task(cell())
        try:
            return loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                # Interrupted from outside: the task must not go on when a later cell runs the loop.
                task.cancel()
                try:
                    loop.run_until_complete(task)
                except BaseException:
                    pass
            raise

    def wake(self) -> None:
        """Wake a cell that awaits, so that an interrupt which strikes between bytecodes reaches it; from any thread."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(lambda: None)
            except RuntimeError:
                # Code has closed the loop; nothing waits in it.
                pass

    def _repr(self, value: Any) -> str | None:
        try:
            text = None if self.shell is None else self.shell.text(value)
            return repr(value) if text is None else text
        except Submitted:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return "<%s object whose repr raised %s>" % (type_name(type(value)), type_name(type(error)))

    # ------------------------------------------------------------------------------------------------- errors

    def _remember(self, filename: str, code: str) -> None:
        import linecache

        lines = [line + "\n" for line in code.splitlines()]
        linecache.cache[filename] = (len(code), None, lines, filename)

    def describe(self, error: BaseException) -> dict[str, str]:
        """An exception as its type, message, traceback from the code's own first frame on, and kind."""
        import traceback

        kind = "syntax" if self._own_syntax_error(error) else "runtime"
        try:
            message = str(error)
        except BaseException:
            message = "<message unavailable>"
        try:
            report = traceback.TracebackException(type(error), error, error.__traceback__)
            self._trim(report, True)
            text = "".join(report.format())
        except BaseException:
            text = "%s: %s\n" % (type_name(type(error)), message)
        for name, shown in self.shown.items():
            message, text = message.replace(name, shown), text.replace(name, shown)
        return {"type": type_name(type(error)), "message": message, "traceback": text.rstrip("\n"), "kind": kind}

    def _own_syntax_error(self, error: BaseException) -> bool:
        """Whether the cell itself did not compile, rather than text that it compiled."""
        tb = error.__traceback__
        while tb is not None:
            if tb.tb_frame.f_code.co_filename in self.files:
                return False
            tb = tb.tb_next
        return isinstance(error, SyntaxError)

    def _trim(self, report: Any, outermost: bool) -> None:
        """Leave only the code's own frames, and those below them, in a traceback and in those it is chained to."""
        stack = report.stack
        own = [i for i, frame in enumerate(stack) if frame.filename in self.files]
        start = own[0] if own else (len(stack) if outermost else 0)
        stack[:] = stack[start:]
        for i, frame in enumerate(stack):
            if frame.filename.startswith(_INTERNAL):
                del stack[i:]
                break
        for other in [report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())]:
            if other is not None:
                self._trim(other, False)


def input_unavailable(prompt: object = "") -> str:
    """Replaces ``input``: nobody is there to answer."""
    raise EOFError("input() is not available here: nobody can answer. Use the variables and functions you were given.")


class Builtins:
    """Keeps the ``builtins`` module as it was: what code deletes or replaces there is restored before the next cell."""

    def __init__(self) -> None:
        self._kept = dict(vars(builtins))

    def heal(self) -> list[str]:
        """Restore; gives a note for each name."""
        current = vars(builtins)
        notes = []
        for name, value in self._kept.items():
            if current.get(name, self) is not value and name != "_":
                current[name] = value
                notes.append("note: the builtin `%s` was changed; it is restored" % name)
        return notes


def module(name: str = "__main__") -> types.ModuleType:
    """A fresh module for cells to run in."""
    fresh = types.ModuleType(name)
    sys.modules.setdefault(name, fresh)
    return fresh
