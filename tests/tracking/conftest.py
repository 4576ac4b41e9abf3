"""A tracking store of its own for each test, and the traces in it as trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest

from rlm_dspy import tracking

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


class Node:
    """A span with what is below it, in the order of their beginnings."""

    def __init__(self, span: Any, spans: list[Any]) -> None:
        self.span = span
        below = [other for other in spans if other.parent_id == span.span_id]
        self.below = [Node(other, spans) for other in sorted(below, key=lambda other: other.start_time_ns)]

    @property
    def name(self) -> str:
        return str(self.span.name)

    @property
    def failed(self) -> str | None:
        status = self.span.status
        return status.description if status.status_code.value == "ERROR" else None

    def shape(self) -> Any:
        """Names, as nested lists; a leaf is its name."""
        return [self.name, *(node.shape() for node in self.below)] if self.below else self.name

    def all(self, name: str | None = None) -> list[Node]:
        """This one and all below it, of a name."""
        found = [self, *(node for child in self.below for node in child.all())]
        return [node for node in found if name is None or node.name == name]

    def get(self, attribute: str) -> Any:
        return self.span.get_attribute(attribute)


def stored() -> list[Node]:
    """Every trace of the experiment, the oldest first."""
    tracking.flush()
    traces = mlflow.search_traces(return_type="list", max_results=500)
    found = []
    for trace in sorted(traces, key=lambda trace: trace.info.request_time):
        (root,) = (span for span in trace.data.spans if span.parent_id is None)
        node = Node(root, trace.data.spans)
        # Nothing hangs in the air.
        assert len(node.all()) == len(trace.data.spans)
        found.append(node)
    return found


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite store; making one takes seconds, so all tests have the same, each in an experiment of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def enable(
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """`tracking.enable` into an experiment of the test's own."""
    before = dspy.settings.callbacks

    def start(**options: Any) -> None:
        given = {"experiment": request.node.nodeid, "tracking_uri": database, **options}
        tracking.enable(**given)

    yield start
    tracking.disable()
    dspy.configure(callbacks=before or [], track_usage=False)


@pytest.fixture
def trees() -> Callable[[], list[Node]]:
    """Gives the trees so far."""
    return stored


@pytest.fixture
def tracked(enable: Callable[..., None]) -> Callable[[], list[Node]]:
    """Tracking is on; gives the trees so far."""
    enable()
    return stored
