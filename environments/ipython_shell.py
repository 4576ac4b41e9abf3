"""IPython's shell round the cells of `rlm_dspy.environments.cells`: magics, ``!command``, rich display, ``Out``.

The cells still run as all cells do, so output caps, interrupts, tracebacks, ``await`` and SUBMIT are the same. IPython
turns the text of a cell into Python, formats the last value, and takes what is displayed.

This module travels into the sandbox as source text: Python 3.8 syntax, and IPython of any version that runs there.
"""

# ruff: noqa: UP031
from __future__ import annotations

import atexit
import base64
import binascii
import codecs
import importlib.util
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
MOST_IMAGES = 8
"""Images kept of one cell."""
MOST_BYTES = 4_000_000
"""Bytes that one kept image may have."""
SHOWN_HTML = 2_000
"""Characters shown of an HTML text that has no plain one."""
LOOK_SECONDS = 0.05
"""How often a command that prints nothing is looked after."""


class Shell:
    """An IPython shell whose namespace is that of ``module``.

    Args:
        module: Where cells run.
        sole: There is no other shell in the process: this one is what ``IPython.get_ipython()`` gives.

    Raises:
        ImportError: There is no IPython.
    """

    def __init__(self, module: types.ModuleType, sole: bool) -> None:
        from IPython import version_info
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        # Hidden, since the sandbox's folder for temporary files may be the one that cells work in.
        self._folder = tempfile.mkdtemp(prefix=".rlm-dspy-ipython-")
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor" if version_info[0] >= 9 else "NoColor"
        config.InteractiveShell.xmode = "Plain"
        config.InteractiveShell.warn_venv = False
        hooks, path = (sys.displayhook, sys.excepthook), list(sys.path)
        if sole and InteractiveShell.initialized():
            # In a kernel: its shell is the one that everything asks for.
            self.ipython: Any = InteractiveShell.instance()
            self.ipython.user_module, self.ipython.user_ns = module, module.__dict__
            self.ipython.init_user_ns()
            self.ipython.colors = config.InteractiveShell.colors
            self.ipython.InteractiveTB.set_mode("Plain")
        else:
            make = InteractiveShell.instance if sole else InteractiveShell
            # A profile's folder of its own: nothing is read from or written to the user's.
            self.ipython = make(config=config, ipython_dir=self._folder, user_module=module, user_ns=module.__dict__)
        sys.displayhook, sys.excepthook = hooks
        # It adds the packages of a virtual environment that is active, whether this Python is of it or not.
        sys.path[:] = path
        atexit.unregister(self.ipython.atexit_operations)
        self.ipython.system = self._system
        self.ipython.getoutput = self._output
        # The bare shell's own refuses, and with it %matplotlib: there is no window system to run beside the cells.
        self.ipython.enable_gui = self._gui
        self.ipython.ask_exit = self._exit
        # A kernel's would send it to its clients, which it has none of.
        self.ipython._showtraceback = self._traceback
        self.ipython.set_hook("show_in_pager", self._page, 0)
        self.publisher: Any = publisher(self.publish, self.ipython)
        self.ipython.display_pub = self.publisher
        if sole:
            from IPython.display import display

            show_figures()
        else:
            # IPython's own asks for the one shell of the process.
            display = self._display
        self._shown_by = display
        self._add_display()
        self._images: list[list[Any]] = []

    def close(self) -> None:
        """Remove the profile's folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def hidden(self) -> dict[str, Any]:
        """What IPython has put into the namespace, by name."""
        found: dict[str, Any] = self.ipython.user_ns_hidden
        return found

    def _add_display(self) -> None:
        self.ipython.user_ns["display"] = self.ipython.user_ns_hidden["display"] = self._shown_by

    # ------------------------------------------------------------------------------------------------- a cell

    def source(self, code: str) -> str:
        """The cell as Python: magics and commands become calls of ``get_ipython()``."""
        if "display" not in self.ipython.user_ns:
            # `%reset` takes it away.
            self._add_display()
        transformed: str = self.ipython.transform_cell(code)
        history = self.ipython.history_manager
        history.input_hist_parsed.append(transformed)
        history.input_hist_raw.append(code)
        # How the two counts differ depends on IPython's version; an item of Out has the number of its item of In.
        hook = self.ipython.displayhook
        self.ipython.execution_count += len(history.input_hist_parsed) - 1 - hook.prompt_count
        self.ipython.events.trigger("pre_execute")
        return transformed

    def ended(self) -> list[list[Any]]:
        """The cell is over; gives its images as ``[type, bytes]``. Figures that it left open are shown."""
        self.ipython.events.trigger("post_execute")
        images, self._images = self._images, []
        return images

    def failed(self, error: BaseException, traceback: types.TracebackType | None) -> None:
        """An error has ended the cell, in frames of the code from ``traceback`` on: ``%tb`` and ``%debug`` show it."""
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback

    def text(self, value: Any) -> str | None:
        """The value of a last expression as text; it becomes ``_`` and an item of ``Out``, its images are kept."""
        data, _ = self.ipython.display_formatter.format(value)
        hook = self.ipython.displayhook
        hook.update_user_ns(value)
        self._keep(data)
        return _plain(data) if data else None

    # ------------------------------------------------------------------------------------------------- display

    def publish(self, data: dict[str, Any]) -> None:
        """Take what was displayed: its text is printed, its image kept."""
        self._keep(data)
        text = _plain(data)
        if text is not None:
            print(text)

    def _keep(self, data: dict[str, Any]) -> None:
        for kind in IMAGES:
            image = data.get(kind)
            if image is None:
                continue
            try:
                if isinstance(image, str):
                    image = image.encode() if kind == "image/svg+xml" else _decoded(image)
                image = memoryview(image).tobytes()
            except (TypeError, binascii.Error) as error:
                print("[what should be an %s is not kept: %s]" % (kind, error))
                return
            if len(self._images) >= MOST_IMAGES or len(image) > MOST_BYTES:
                print("[an image of %d bytes is not kept]" % len(image))
            else:
                self._images.append([kind, image])
            return

    def _display(self, *values: Any, **options: Any) -> None:
        """Show values in the richest form that they have; images are kept."""
        for value in values:
            if options.get("raw"):
                self.publish(value)
                continue
            data, _ = self.ipython.display_formatter.format(
                value, include=options.get("include"), exclude=options.get("exclude")
            )
            # Without data the object has displayed itself.
            if data:
                self.publish(data)

    # ------------------------------------------------------------------------------------------------- commands

    def _system(self, command: str) -> None:
        """``!command``: no terminal, nothing to read from; the output is the cell's."""
        command = self.ipython.var_expand(command, depth=1)
        self.ipython.user_ns["_exit_code"] = run_command(command, lambda text: sys.stdout.write(text))

    def _output(self, command: str, split: bool = True, depth: int = 0) -> Any:
        """``x = !command``: its output as IPython's list of lines, or as one text."""
        from IPython.utils.text import LSString, SList

        parts: list[str] = []
        command = self.ipython.var_expand(command, depth=depth + 1)
        self.ipython.user_ns["_exit_code"] = run_command(command, parts.append)
        text = "".join(parts)
        return SList(text.splitlines()) if split else LSString(text)

    def _traceback(self, kind: Any, error: Any, lines: list[str]) -> None:
        """What ``%tb`` and ``%run`` tell of an error; IPython leaves it to subclasses where to."""
        print("\n".join(lines))

    def _page(self, _: Any, text: Any, *__: Any, **___: Any) -> None:
        """What ``name?`` tells, printed: there is no pager."""
        print(text.get("text/plain", "") if isinstance(text, dict) else text)

    def _exit(self) -> None:
        raise SystemExit

    def _gui(self, gui: Any = None) -> None:
        if gui not in (None, "inline"):
            raise ValueError("there are no windows here: %matplotlib inline keeps figures as pictures")


def show_figures() -> None:
    """Have Matplotlib, once it is imported, hand its figures to the process's shell, as in a Jupyter notebook."""
    if os.environ.get("MPLBACKEND", "agg").lower() == "agg" and importlib.util.find_spec("matplotlib_inline"):
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"


def run_command(command: str, take: Callable[[str], Any]) -> int:
    """Run a command of the shell and hand its output to ``take`` as it comes; gives its exit status.

    What it leaves in the background goes on; what that prints after the command's own end is dropped. Interrupted, the
    command ends with all that it has started.
    """
    process = subprocess.Popen(
        command,
        shell=True,
        executable=shutil.which("bash"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    stream = process.stdout
    assert stream is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                ended = process.poll() is not None
                if selector.select(0 if ended else LOOK_SECONDS):
                    data = os.read(stream.fileno(), 1 << 16)
                    if not data:
                        break
                    take(decoder.decode(data))
                elif ended:
                    # Something in the background holds the stream open, and would die of its end.
                    threading.Thread(target=_drain, args=(stream,), daemon=True).start()
                    stream = None
                    break
        take(decoder.decode(b"", True))
        return process.wait()
    finally:
        if process.poll() is None:
            _end(process)
        if stream is not None:
            stream.close()


def _decoded(text: str) -> bytes:
    return base64.b64decode("".join(text.split()), validate=True)


def _drain(stream: Any) -> None:
    with stream:
        while os.read(stream.fileno(), 1 << 16):
            pass


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with its children and theirs: they are in no group of their own, lest they outlive the worker."""
    try:
        os.kill(process.pid, signal.SIGSTOP)
        for pid in _below(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    finally:
        process.kill()
        process.wait()


def _below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        # No such folder on this system.
        return []
    for number in numbers:
        try:
            with open("/proc/%d/stat" % number, "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(number)
    found = list(children.get(pid, ()))
    for number in found:
        found += children.get(number, ())
    return found


def publisher(take: Callable[[dict[str, Any]], Any], shell: Any) -> Any:
    """An IPython display publisher that hands what is displayed to ``take``."""
    from IPython.core.displaypub import DisplayPublisher

    class Publisher(DisplayPublisher):
        def publish(self, data: Any, *_: Any, **__: Any) -> None:
            take(data)

        def clear_output(self, wait: bool = False) -> None:
            pass

    return Publisher(parent=shell, shell=shell)


def _plain(data: dict[str, Any]) -> str | None:
    for kind in ("text/markdown", "text/latex"):
        if isinstance(data.get(kind), str):
            return str(data[kind])
    text = data.get("text/plain")
    html = data.get("text/html")
    if html is not None and (text is None or str(text).startswith("<IPython.core.display.")):
        html = str(html)
        return html if len(html) <= SHOWN_HTML else html[:SHOWN_HTML] + " ..."
    return None if text is None else str(text)
