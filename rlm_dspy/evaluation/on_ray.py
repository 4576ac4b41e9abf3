"""`Ray`: calls on the machines of a Ray cluster that is there already.

A call is one Ray task. Where a worker or its machine dies, Ray runs the task again elsewhere; where that does not help
either, the call has failed by no fault of the program's. The program is sent once, with its LMs and their keys; what it
imports has to be installed on the cluster, and so has rlm-dspy.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rlm_dspy.errors import ConfigurationError, MissingExtraError
from rlm_dspy.evaluation import ray_address
from rlm_dspy.evaluation.calling import Called
from rlm_dspy.evaluation.results import outputs_of
from rlm_dspy.evaluation.work import Stop
from rlm_dspy.redact import error_text
from rlm_dspy.usage import Tally

__all__ = ["Ray"]

T = TypeVar("T")

_POLL = 1.0
"""Seconds after which it is looked whether the job is given up, where no call ends."""
PATIENCE = 300.0
"""Seconds that a cluster may be without a machine for calls; one that scales by itself takes minutes to start one."""


class Ray:
    """A connection to a cluster.

    Args:
        address: Such as ``"auto"`` for the cluster that this machine is part of, or ``"HOST:6379"``.
        cpus: Processors that a call takes, by Ray's count.
        retries: How often a call is made again whose worker has died.
        patience: Seconds after which a job is given up, if for so long none of the cluster's machines could run a call.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigurationError: There is no such cluster, or it does not answer within 20 seconds.
    """

    def __init__(
        self, address: str = "auto", *, cpus: float = 1.0, retries: int = 3, patience: float = PATIENCE
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("a Ray cluster", "ray")
        import ray

        self._ray = ray
        self._cpus, self._patience = cpus, patience
        self._alone_since: float | None = None
        self._mine = not ray.is_initialized()
        if self._mine:
            ray_address.check(address)
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"no Ray cluster at {address!r}: {error_text(error).rstrip('.')}. Start one with: ray start --head"
                ) from error
        self._task = ray.remote(num_cpus=cpus, max_retries=retries)(_called)

    def close(self) -> None:
        """Leave the cluster, where this has joined it; idempotent."""
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()

    def finished(
        self,
        items: Iterable[T],
        work: Callable[[T], Called | str],
        width: int,
        stop: Stop,
        ready: Callable[[], bool] = lambda: True,
    ) -> Iterator[tuple[T, Called | str]]:
        """As `rlm_dspy.evaluation.work.finished`, on the cluster.

        Args:
            items: Picklable.
            work: Picklable; what is called.
            width: How many calls at once.
            stop: See there.
            ready: See there.
        """
        import cloudpickle

        sent = self._ray.put(cloudpickle.dumps(work))
        source, more = iter(items), True
        failure: Exception | None = None
        flying: dict[Any, T] = {}
        try:
            while True:
                while more and failure is None and stop.reason is None and len(flying) < width and ready():
                    try:
                        item = next(source)
                    except StopIteration:
                        more = False
                    except Exception as error:  # what was begun still comes to its end
                        failure = error
                    else:
                        flying[self._task.remote(sent, cloudpickle.dumps(item))] = item
                if not flying or stop.given_up:
                    break
                done, _ = self._ray.wait(list(flying), num_returns=1, timeout=_POLL)
                if not done:
                    self._see_to_machines(stop)
                for one in done:
                    yield flying.pop(one), self._result(one)
            if failure is not None:
                raise failure
        finally:
            for one in flying:
                self._ray.cancel(one, force=True)

    def _see_to_machines(self, stop: Stop) -> None:
        """Give the job up where nothing is left that could run a call: what was not done stays to be done."""
        if any(node["Alive"] and node["Resources"].get("CPU", 0.0) >= self._cpus for node in self._ray.nodes()):
            self._alone_since = None
            return
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since >= self._patience:
            stop.give_up(
                f"giving up: for {self._patience:g} seconds the Ray cluster has had no machine with {self._cpus:g} "
                "CPUs for a call; add one with `ray start --address=HOST:PORT`"
            )

    def _result(self, task: Any) -> Called | str:
        try:
            result: Called | str = self._ray.get(task)
        except Exception as error:  # the worker died again and again, or what it was sent cannot be read there
            return Called("error", None, "error", None, error_text(error), 0.0, None, Tally(), 0)
        return result


def _called(sent: bytes, item: bytes) -> Any:
    """Runs on the cluster."""
    import cloudpickle
    import dspy

    work = cloudpickle.loads(sent)
    with dspy.context(lm=work.lm):
        called = work(cloudpickle.loads(item))
    if isinstance(called, Called) and called.prediction is not None:
        # What goes back is plain, whatever the program gave.
        return dataclasses.replace(called, prediction=outputs_of(called.prediction, limit=None))
    return called
