"""What was tracked, in MLflow's own user interface: opened by ``rlm-dspy ui``, looked at in a real browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import mlflow
import pytest

from rlm_dspy import RLM, tracking
from rlm_dspy.environments.base import Environment
from rlm_dspy.testing import Call, Reply, ScriptedLM, code

SECONDS = 120.0
PRICES = {"scripted/root": (50.0, 200.0), "scripted/sub": (10.0, 40.0)}
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \u202e \x1b[31m"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def root(call: Call) -> str:
    """Plays the root and its child: an error, a child with sub-calls of which one fails, an answer."""
    if "the first part" in call.own[0]["content"]:
        return code("print(llm_query_batched(['one', 'bad', 'three']))\nSUBMIT('from the child')", "Ask about each.")
    steps = ["print(missing)", "print(rlm_query('Read the first part', text=context))", f"SUBMIT({HOSTILE!r})"]
    return code(steps[call.turn], f"Step {call.turn + 1} {HOSTILE}")


def sub(call: Call) -> str | Reply:
    """Plays the sub-LM."""
    return Reply(error=RuntimeError("503: overloaded")) if call.prompt == "bad" else f"yes, {call.prompt}"


class Tracked:
    """A run that was tracked: the prediction, its trace, and the artefact that its page is."""

    def __init__(self, pred: dspy.Prediction, trace: str, page: str, experiment: str) -> None:
        self.pred, self.trace, self.page, self.experiment = pred, trace, page, experiment


@pytest.fixture
def tracked(
    enable: Callable[..., None], sandbox: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Tracked:
    """A run with a child, sub-calls and failures, in a store of its own, which stands in the working directory."""
    monkeypatch.chdir(tmp_path)
    enable(experiment="looked at", tracking_uri="sqlite:///mlflow.db")
    rlm = RLM(
        "context, query -> answer",
        interpreter=sandbox,
        max_depth=2,
        sub_lm=ScriptedLM(sub, model="scripted/sub"),
        prices=PRICES,
    )
    with dspy.context(lm=ScriptedLM(root, model="scripted/root")), tracking.run("looked at"):
        pred = rlm(context="x" * 50_000, query="Which clauses changed?")
    tracking.flush()
    (trace,) = mlflow.search_traces(return_type="list")
    return Tracked(pred, trace.info.trace_id, trace.info.tags["rlm_dspy.page"], trace.info.experiment_id)


@pytest.fixture
def ui(tracked: Tracked, tmp_path: Path) -> Iterator[str]:
    """The address of ``rlm-dspy ui`` on that store; when it has ended, nothing that it started is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlm_dspy.cli", "ui", "--port", str(port)],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    late = threading.Timer(SECONDS, process.terminate)
    late.start()
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "Ctrl-C ends it" in line:
            break
    late.cancel()
    assert "Ctrl-C ends it" in said, said
    draining = threading.Thread(target=process.stderr.read)
    draining.start()
    below = list(_below(process.pid))
    assert below
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS)
        draining.join()
        process.stderr.close()
    assert code == 0
    assert not [pid for pid in below if _alive(pid)], "the server went on"


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            with contextlib.suppress(OSError):
                yield from _below(child)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.fixture
def page(ui: str) -> Iterator[Any]:
    """A page of a headless Chromium that reaches this machine alone."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1600, "height": 1000}, base_url=ui)
        opened.set_default_timeout(SECONDS * 1000)
        outside: list[str] = []

        def only_here(route: Any) -> None:
            if route.request.url.startswith((ui, "data:", "blob:")):
                route.continue_()
            else:
                outside.append(route.request.url)
                route.abort()

        opened.route("**/*", only_here)
        try:
            yield opened
            assert not outside, f"the page wants something from elsewhere: {outside}"
        finally:
            browser.close()


@pytest.mark.heavy
def test_a_trace_and_its_page_are_in_mlflows_user_interface(tracked: Tracked, page: Any) -> None:
    usage = tracked.pred.usage
    tokens, cost = usage["input_tokens"] + usage["output_tokens"], usage["cost"]
    assert cost > 0.05 and usage["children"] == 1

    # The list of traces, with the column of costs switched on.
    page.goto(f"/#/experiments/{tracked.experiment}/traces")
    page.get_by_text(re.compile("Which clauses changed|.context.:")).first.wait_for()
    with contextlib.suppress(Exception):  # what newcomers are told, over the page
        page.get_by_text("Got it").click(timeout=5_000)
    page.get_by_role("button", name="Display").click()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_text("Cost", exact=True).last.click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    cell = page.get_by_role("cell").filter(has_text=re.compile(r"^\$[\d.]+$")).first
    assert float(cell.inner_text().strip("$")) == pytest.approx(cost, abs=1e-3)
    assert page.get_by_role("cell").filter(has_text=re.compile(f"^{tokens}$")).count() == 1

    # The tree of the trace, beside the span that is chosen: the child with its calls, tokens and money of each request.
    page.goto(f"/#/experiments/{tracked.experiment}/traces?selectedEvaluationId={tracked.trace}")
    page.get_by_text("turn 3", exact=True).first.wait_for()
    said = page.inner_text("body")
    spans = said[said.rindex("Spans") : said.rindex("Inputs / Outputs")]
    for name, times in (("RLM", 3), ("turn 1", 2), ("turn 3", 1), ("scripted/root", 4), ("scripted/sub", 3)):
        assert len(re.findall(rf"^{name}$", spans, re.MULTILINE)) == times, (name, spans)
    for name in ("act", "execute", "rlm_query", "llm_query_batched"):
        assert re.search(rf"^{name}$", spans, re.MULTILINE), name
    assert f"{tokens:,} tokens" in said and f"${cost:.2f}" in said
    shown = [float(found) for found in re.findall(r"\$([\d.]+)$", spans, re.MULTILINE)]
    assert len(shown) == usage["lm_calls"] and sum(shown) == pytest.approx(cost, rel=0.01)

    # The page that was logged to the run, in the viewer of artefacts.
    run, _, artefact = tracked.page.removeprefix("runs:/").partition("/")
    page.goto(f"/#/experiments/{tracked.experiment}/runs/{run}/artifacts/{artefact}")
    page.locator("iframe").first.wait_for()
    inside = page.frame_locator("iframe").first
    inside.get_by_text("Time and cost").wait_for()
    told = inside.locator("body").inner_text()
    assert "Which clauses changed?" in told and "NameError" in told and "<script>document.title" in told
    assert inside.locator("details.child").count() == 1 and inside.locator(".row .spent").count() == 5
    inside.locator("details.child > summary").click()
    inside.get_by_text("from the child").first.wait_for()
    assert page.title() != "owned" and all(frame.title() != "owned" for frame in page.frames)
