"""The program inside every environment: runs cells, and speaks frames with the host.

It is sent over the stream it will speak on (`rlm_dspy.environments.program`), so nothing has to be installed in the
sandbox. The main thread runs cells, so that an interrupt (SIGINT) reaches them; a second thread reads frames; a third
collects what C code and child processes print to descriptors 1 and 2.

Frames from the host: ``hello``, ``shell``, ``exec``, ``set``, ``get``, ``vars``, ``reply``, ``interrupt``, and what
`rlm_dspy.environments.place` serves. To the host: ``ready``, ``done`` (one for each request, with its ``id``),
``call``, ``submit``, ``output`` (what a cell has printed so far, for the case that the worker dies before it is done).
All values are in ``body``, encoded by `rlm_dspy.environments.codec`.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments import cells as _cells
    from rlm_dspy.environments.capture import Capture, high_descriptor
    from rlm_dspy.environments.codec import Decoder, Encoder
    from rlm_dspy.environments.place import Place
    from rlm_dspy.environments.records import FailedCall, Record
    from rlm_dspy.environments.wire import Reader, write_frame
else:
    import _rlm_cells as _cells
    from _rlm_capture import Capture, high_descriptor
    from _rlm_codec import Decoder, Encoder
    from _rlm_place import Place
    from _rlm_records import FailedCall, Record
    from _rlm_wire import Reader, write_frame

if TYPE_CHECKING:
    from typing import Any

REPORT_SECONDS = 0.2
REPORT_CHARACTERS = 50_000
INSIST_SECONDS = 0.05


class Worker:
    """The protocol: requests are run one after the other by the main thread."""

    def __init__(self, source: int, sink: int, text: bool = False) -> None:
        self._source, self._sink = source, sink
        self._errors = high_descriptor(2)
        self._pid = os.getpid()
        self._armour: Any = None
        if text:
            # Sent along only where it is needed.
            layer = sys.modules["_rlm_armour"]
            self._armour = layer.armour
            self._reader = Reader(layer.Unarmour(lambda n: os.read(source, n)).read, None)
            # What a shell has printed may lack the end of its line.
            self._put(b"\n")
        else:
            self._reader = Reader(lambda n: os.read(source, n), None, None, lambda view: os.readv(source, [view]))
        self._send_lock = threading.Lock()
        self._max_value: int | None = None
        self._work: list[Any] = []
        self._wake = threading.Semaphore(0)
        self._pending: dict[int, Any] = {}
        self._calls = 0
        self._main = threading.main_thread().ident or 0
        self._state = threading.Lock()
        self._running: int | None = None
        self._interruptible = self._interrupted = self._struck = self._begun = False
        self._interrupt_for: int | None = None
        self._functions: dict[str, Any] = {}
        self._names: list[str] = []
        self._place = Place()
        self.output = _cells.Output(1_000_000)

    # ------------------------------------------------------------------------------------------------- frames

    def send(self, head: dict[str, Any], body: Any = None) -> None:
        """Encode ``body`` and write one frame. Encoding errors are raised before anything is written."""
        encoder = Encoder(self._max_value)
        head["body"] = encoder.dump(body)
        mine = threading.get_ident() == self._main and self._interruptible
        with self._send_lock:
            # A frame is written whole, or nothing after it would be understood: an interrupt waits for its end.
            if mine:
                self._interruptible = False
            self._begun = False
            try:
                write_frame(self._write, head, encoder.blobs)
            except MemoryError:
                if self._begun:
                    os.write(self._errors, b"no memory is left to finish what was being sent to the host\n")
                    leave()
                raise
            finally:
                if mine:
                    self._interruptible = True
        if mine and self._interrupt_for == self._running and not self._struck:
            self._struck = self._interrupted = True
            raise KeyboardInterrupt

    def _write(self, data: Any) -> None:
        if self._armour is None:
            self._put(data)
        else:
            for line in self._armour(data):
                self._put(line)

    def _put(self, data: Any) -> None:
        self._begun = True
        view = memoryview(data)
        while view:
            view = view[os.write(self._sink, view) :]

    def read_forever(self) -> None:
        """The reader thread: replies and interrupts at once, requests to the main thread; exit at the end."""
        try:
            while True:
                head, blobs = self._reader.frame()
                op = head["op"]
                if op == "reply":
                    self._answer(head, blobs)
                elif op == "interrupt":
                    self._interrupt(head["id"])
                elif op == "write" or op == "read":
                    # In this thread, so that a cell that waits for the host can be given a file.
                    self._serve(head, blobs)
                else:
                    self._work.append((head, blobs))
                    self._wake.release()
                # Held over the next wait, these would keep a value of any size alive.
                head = blobs = None  # type: ignore[assignment]
        except MemoryError:
            os.write(self._errors, b"no memory is left for what the host sent\n")
            leave()
        except BaseException:
            leave()

    def _answer(self, head: dict[str, Any], blobs: list[Any]) -> None:
        with self._state:
            box = self._pending.pop(head["id"], None)
        if box is not None:
            box[1:] = [head, blobs]
            box[0].release()

    def _interrupt(self, request: int) -> None:
        with self._state:
            # It may overtake the cell it is for: the cell is then interrupted when it starts.
            self._interrupt_for = request
            if self._running != request or not self._interruptible:
                return
            self._interrupted = True
            self._struck = False
            # pthread_kill rather than _thread.interrupt_main: it also wakes a blocking system call.
            signal.pthread_kill(self._main, signal.SIGINT)
        try:
            threading.Thread(target=self._insist, args=(request,), name="rlm-insist", daemon=True).start()
        except (RuntimeError, MemoryError):
            pass  # the cell has all threads or all memory; what was sent is nearly always enough

    def _insist(self, request: int) -> None:
        """Interrupt again until it strikes.

        Python looks for signals between its own steps and when a system call is broken off by one. What comes right
        before a system call begins would be noticed at its end, and the cell be killed with all its variables.
        """
        pause = threading.Event()
        while not pause.wait(INSIST_SECONDS):
            with self._state:
                if self._running != request or self._struck or signal.getsignal(signal.SIGINT) != self._on_signal:
                    return
                if self._interruptible:
                    signal.pthread_kill(self._main, signal.SIGINT)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._interruptible:
            self._struck = True
            raise KeyboardInterrupt

    def report_forever(self) -> None:
        """The reporting thread: tell the host from time to time what the running cell has printed."""
        pause = threading.Event()
        while True:
            self.output.written.acquire()
            pause.wait(REPORT_SECONDS)
            running = self._running
            if running is not None:
                try:
                    self.send({"op": "output", "id": running}, _cells.cap_text(self.output.peek(), REPORT_CHARACTERS))
                except OSError:
                    return
                except Exception:
                    # For want of memory, say. The next report may go through; this thread's traceback would be shown
                    # as the cell's output.
                    continue

    # ------------------------------------------------------------------------------------------------- host calls

    def call(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a host function and wait for its result; from any thread."""
        if os.getpid() != self._pid:
            raise RuntimeError("%s() can only be called in the session's own process, not in a child process" % name)
        done = threading.Lock()
        done.acquire()
        box: list[Any] = [done]
        with self._state:
            self._calls += 1
            number = self._calls
            self._pending[number] = box
        try:
            self.send({"op": "call", "id": number, "name": name}, [list(args), dict(kwargs)])
            done.acquire()
        except BaseException:
            with self._state:
                self._pending.pop(number, None)
            raise
        head, blobs = box[1], box[2]
        value = Decoder(blobs, True).load(head["body"])
        if "failed" in head:
            raise {"ValueError": ValueError, "TypeError": TypeError}.get(head["failed"], RuntimeError)(value)
        return value

    def _host_function(self, name: str, doc: str | None) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call(name, args, kwargs)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        function.__module__ = "__main__"
        return function

    def submit(self, *args: Any, **kwargs: Any) -> None:
        """Hand over the final answer and end the cell."""
        if os.getpid() != self._pid:
            raise RuntimeError("SUBMIT() can only be called in the session's own process, not in a child process")
        if self._running is None:
            raise RuntimeError("SUBMIT() was called outside a cell")
        self.send({"op": "submit", "id": self._running}, [list(args), dict(kwargs)])
        raise _cells.Submitted

    # ------------------------------------------------------------------------------------------------- requests

    def main(self) -> None:
        """Serve until the host goes away."""
        signal.signal(signal.SIGINT, self._on_signal)
        builtins.input = _cells.input_unavailable
        builtins.__dict__.update(Record=Record, FailedCall=FailedCall)
        sys.modules.pop("__main__", None)
        self.cells = _cells.Cells(_cells.module("__main__"))
        self.cells.builtins = _cells.Builtins()
        self._own = {"SUBMIT": self.submit, "SHOW_VARS": self._show_variables()}
        self.cells.protect(self._own)
        self.capture = Capture(self.output)
        os.register_at_fork(after_in_child=self._after_fork)
        threading.Thread(target=self.read_forever, name="rlm-reader", daemon=True).start()
        threading.Thread(target=self.report_forever, name="rlm-report", daemon=True).start()
        self.send({"op": "ready", "python": "%d.%d.%d" % sys.version_info[:3], "pid": self._pid})
        self.cells.prepare()
        while True:
            try:
                self._wake.acquire()
                head, blobs = self._work.pop(0)
                self._serve(head, blobs)
                head = blobs = None
            except KeyboardInterrupt:
                continue

    def _show_variables(self) -> Any:
        def show_variables() -> dict[str, str]:
            """The variables made so far: name to type name."""
            return self.cells.variables()

        show_variables.__name__ = "SHOW_VARS"
        return show_variables

    def _after_fork(self) -> None:
        # The channel is the parent's. A lock that another thread held at the fork would never be released here.
        for fd in (self._source, self._sink):
            try:
                os.close(fd)
            except OSError:
                pass
        self.capture.forked = True
        self._send_lock = threading.Lock()
        self._state = threading.Lock()
        self.output.lock = threading.RLock()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _serve(self, head: dict[str, Any], blobs: list[Any]) -> None:
        op = head["op"]
        body: Any = None
        answer: dict[str, Any] = {"op": "done", "id": head.get("id")}
        if op == "hello":
            self.output.cap = head["max_output"]
            self._max_value = head["max_value"]
            return
        try:
            if op == "exec":
                body = self._execute(head, blobs)
            elif op == "set":
                values = Decoder(blobs, True).load(head.pop("body"))
                self.cells.ns.update(values)
                del values
            elif op == "get":
                names = Decoder(blobs, True).load(head["body"])
                missing = [name for name in names if name not in self.cells.ns]
                if missing:
                    raise NameError("no variable is called %s" % ", ".join(missing))
                body = {name: self.cells.ns[name] for name in names}
            elif op == "vars":
                body = self.cells.variables()
            elif op == "shell":
                self._make_shell(Decoder(blobs, True).load(head["body"]))
            else:
                body = self._place.serve(op, Decoder(blobs, True).load(head.pop("body")))
            try:
                self.send(answer, body)
            except Exception:
                if op != "exec":
                    raise
                self._send_less(answer, body)
        except Exception as failure:
            self.send(dict(answer, failed=_cells.type_name(type(failure))), str(failure))

    def _send_less(self, answer: dict[str, Any], body: dict[str, Any]) -> None:
        """What a cell did, without what does not cross: the last expression's value (its repr does), then long texts,
        where ``max_value`` is smaller than what is kept of them."""
        if body.pop("object", None) is not None:
            try:
                self.send(answer, body)
                return
            except Exception:
                pass
        body.pop("names", None)
        # Five texts at most, of four bytes a character.
        cap = min(self.output.cap, (self._max_value or 0) // 20)
        body["stdout"] = _cells.cap_text(body["stdout"], cap)
        self._cap(body, cap)
        self.send(answer, body)

    def _make_shell(self, source: str) -> None:
        """From here on cells are run by the shell of that source text, see `rlm_dspy.environments.ipython_shell`."""
        part: dict[str, Any] = {"__name__": "_rlm_shell", "__builtins__": dict(vars(builtins))}
        exec(compile(source, "<rlm shell>", "exec"), part)
        self.cells.shell = part["Shell"](self.cells.module, True)

    def _execute(self, head: dict[str, Any], blobs: list[Any]) -> dict[str, Any]:
        request = Decoder(blobs, True).load(head["body"])
        self.capture.restore()
        signal.signal(signal.SIGINT, self._on_signal)
        for note in self.cells.heal():
            self.output.write(note + "\n")
        functions = request.get("functions")
        if functions is not None:
            made = {name: self._host_function(name, doc) for name, doc in functions.items()}
            self.cells.protect(dict(self._own, **made))
        start = time.perf_counter()
        self._interrupted = self._struck = False
        result: dict[str, Any] = {"error": None, "value": None}
        self._running = head["id"]
        try:
            try:
                with self._state:
                    self._interruptible = True
                    self._interrupted = early = self._interrupt_for == head["id"]
                if early:
                    raise KeyboardInterrupt
                result = self.cells.run(request["code"], bool(request.get("wants_value")), request.get("name"))
            finally:
                self._interruptible = False
        except KeyboardInterrupt as late:
            # The interrupt struck between the code's own end and the line above.
            self._interruptible = False
            result = {"error": self.cells.describe(late), "value": None}
        with self._state:
            self._running = None
        error = result["error"]
        if error is not None and self._interrupted and error["type"] == "KeyboardInterrupt":
            error["kind"] = "timeout"
        if os.getpid() != self._pid:
            # Code forked and let the child run on to the end of the cell.
            os._exit(0)
        self.capture.drain()
        result["seconds"] = time.perf_counter() - start
        result["stdout"] = self.output.take()
        self._trim(result)
        return result

    def _trim(self, result: dict[str, Any]) -> None:
        self._cap(result, self.output.cap)
        if "images" in result:
            # With room for the texts, and in one frame with them.
            room, images = (self._max_value or 0) // 2, result["images"]
            result["images"] = []
            for image in images:
                if len(image[1]) > room:
                    result["stdout"] += "[an image of %d bytes is not kept: max_value]\n" % len(image[1])
                else:
                    room -= len(image[1])
                    result["images"].append(image)
        if "object" in result:
            if result["stdout"]:
                del result["object"]
        names = sorted(self.cells.variables())
        if names != self._names:
            self._names = names
            result["names"] = names[:10_000]

    @staticmethod
    def _cap(result: dict[str, Any], cap: int) -> None:
        if result["value"] is not None:
            result["value"] = _cells.cap_text(result["value"], cap)
        if result["error"] is not None:
            result["error"] = {name: _cells.cap_text(text, cap) for name, text in result["error"].items()}


def leave() -> None:
    """End this process and all that it started, at once: the host is gone."""
    try:
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(0)


def main(text: bool = False) -> None:
    """Take the stream away from descriptors 0 and 1, which code may use, and serve on it.

    Args:
        text: It carries text only.
    """
    source, sink = high_descriptor(0), high_descriptor(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    if null > 2:
        os.close(null)
    Worker(source, sink, text).main()
