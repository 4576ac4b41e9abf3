"""Make the pictures of the README again: ``python notebooks/images/make.py [console] [page] [mlflow]``.

It takes the development tools (``make install``), Chromium and a minute. The run in them is that of ``demo.py``.
"""

from __future__ import annotations

import html
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COLUMNS, LINES = 100, 34
_COLOURS = {"black": "#1c2128", "brown": "#d4a72c", "yellow": "#d4a72c", "green": "#3fb950", "red": "#ff7b72"}
_COLOURS |= {"blue": "#58a6ff", "magenta": "#d2a8ff", "cyan": "#39c5cf", "white": "#c9d1d9", "default": "#c9d1d9"}
_COLOURS |= {f"bright{name}": colour for name, colour in _COLOURS.items()} | {"brightblack": "#8b949e"}
_TERMINAL = (
    "<style>body{margin:0;background:#0d1117}pre{margin:0;padding:14px 18px;display:inline-block;"
    "font:13px/1.35 'DejaVu Sans Mono',monospace}</style><pre id=picture>"
)


def terminal(argv: list[str], enough: Callable[[list[str]], bool], columns: int = COLUMNS, lines: int = LINES) -> Any:
    """What a terminal shows of a program once ``enough`` of its lines are there; the program is then ended."""
    import pyte

    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    master, slave = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color"}
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | size
    process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                stream.feed(os.read(master, 65536))
            except OSError:
                break
            if enough(screen.display):
                return screen
    finally:
        process.kill()
        process.wait()
        os.close(master)
    raise SystemExit("the program ended before enough of it was shown:\n" + "\n".join(screen.display))


def coloured(screen: Any) -> str:
    """The screen as HTML."""
    rows = []
    for y in range(screen.lines):
        row = ""
        for x in range(screen.columns):
            cell = screen.buffer[y][x]
            colour = _COLOURS.get(cell.fg, f"#{cell.fg}")
            bold = ";font-weight:bold" if cell.bold else ""
            row += f'<span style="color:{colour}{bold}">{html.escape(cell.data)}</span>'
        rows.append(row)
    return _TERMINAL + "\n".join(rows) + "</pre>"


def console(browser: Any) -> None:
    """The live console, while two children have calls in flight."""

    def both(shown: list[str]) -> bool:
        text = "\n".join(shown)
        return "spent:" in text and text.count("in flight") >= 2 and text.count("done") >= 2

    screen = terminal([sys.executable, str(HERE / "demo.py")], both)
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.set_content(coloured(screen))
    page.locator("#picture").screenshot(path=HERE / "console.png")


def tracked(folder: str) -> tuple[str, str, str]:
    """Run it once, tracked; its trace, the experiment, and its page."""
    sys.path.insert(0, str(HERE))
    import demo
    import mlflow

    from rlm_dspy import tracking

    tracking.enable(experiment="ships", tracking_uri=f"sqlite:///{folder}/mlflow.db")
    pred = demo.run()
    tracking.disable()
    (trace,) = mlflow.search_traces(return_type="list")
    return trace.info.trace_id, trace.info.experiment_id, pred.trajectory.to_html()


def page(browser: Any, markup: str, folder: str) -> None:
    """The page of its trajectory."""
    file = Path(folder, "page.html")
    file.write_text(markup)
    shown = browser.new_page(viewport={"width": 960, "height": 900})
    shown.goto(file.as_uri())
    shown.screenshot(path=HERE / "page.png")


@contextmanager
def served(folder: str) -> Iterator[str]:
    """The address of ``rlm-dspy ui``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    argv = [sys.executable, "-m", "rlm_dspy.cli", "ui", "--port", port]
    process = subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    if not any("Ctrl-C ends it" in line for line in process.stderr):
        raise SystemExit("rlm-dspy ui has ended")
    # What it goes on to say would fill the pipe and stop it.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def mlflow_ui(browser: Any, trace: str, experiment: str, folder: str) -> None:
    """Its trace in MLflow's user interface."""
    with served(folder) as address:
        shown = browser.new_page(viewport={"width": 1400, "height": 860})
        shown.set_default_timeout(120_000)
        shown.goto(f"{address}/#/experiments/{experiment}/traces")
        shown.get_by_text("Got it").click()
        shown.get_by_role("button", name="Close").last.click()
        shown.goto(f"{address}/#/experiments/{experiment}/traces?selectedEvaluationId={trace}")
        shown.get_by_text("turn 3", exact=True).first.wait_for()
        shown.get_by_text("execute", exact=True).first.click()
        shown.get_by_text("splitlins").first.wait_for()
        shown.screenshot(path=HERE / "mlflow.png", clip={"x": 141, "y": 0, "width": 869, "height": 860})


def main(wanted: set[str]) -> None:
    """Make those that are wanted, or all."""
    from playwright.sync_api import sync_playwright

    wanted = wanted or {"console", "page", "mlflow"}
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        trace, experiment, markup = tracked(folder) if wanted - {"console"} else ("", "", "")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            if "console" in wanted:
                console(browser)
            if "page" in wanted:
                page(browser, markup, folder)
            if "mlflow" in wanted:
                mlflow_ui(browser, trace, experiment, folder)
            browser.close()
    for name in sorted(wanted):
        file = HERE / f"{name}.png"
        print(f"{file.name}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(set(sys.argv[1:]))
