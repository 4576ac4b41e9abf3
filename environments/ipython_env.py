"""The ``ipython`` environment: cells are IPython's, with magics, ``!command``, rich display and ``Out``.

IPython's shell runs where the worker runs: in any other environment, in a Jupyter kernel, or in this process.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

from rlm_dspy.environments.base import BaseOptions, Description, Environment, Transport
from rlm_dspy.environments.registry import check_options, get
from rlm_dspy.environments.subprocess_env import Subprocess
from rlm_dspy.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from rlm_dspy.environments.interpreter import Interpreter

SHELLS = ("worker", "inprocess", "kernel")


class IPython(Environment):
    """Cells as IPython runs them: ``%magic``, ``!command``, ``display``, ``Out[n]``; images are kept.

    Args:
        shell: ``"worker"``: in the environment ``within``, with all that it confines. ``"kernel"``: in a Jupyter kernel
            of its own, not confined. ``"inprocess"``: in this process, for trusted code and tests only.
        within: For ``"worker"``, an environment or the name of one. IPython has to be installed for the Python there.
        kernel: For ``"kernel"``, the name of a kernel as ``jupyter kernelspec list`` has it; its Python is run.
        **options: Of the environment ``within``, where that is a name; otherwise those of every environment.

    Raises:
        ConfigurationError: Options that do not go together.
        MissingExtraError: IPython is not installed here, where it would run here.
    """

    name = "ipython"
    shell: ClassVar[str | None] = "ipython"

    def __init__(
        self,
        *,
        shell: Literal["worker", "inprocess", "kernel"] = "worker",
        within: str | Environment | None = None,
        kernel: str | None = None,
        **options: Any,
    ) -> None:
        if shell not in SHELLS:
            raise ConfigurationError(f"shell must be one of {', '.join(map(repr, SHELLS))}, not {shell!r}")
        if shell != "worker" and within is not None:
            raise ConfigurationError(f'within= goes with shell="worker"; {shell!r} has its own place')
        if shell != "kernel" and kernel is not None:
            raise ConfigurationError('kernel= goes with shell="kernel"')
        if isinstance(within, Environment) and options:
            raise ConfigurationError(
                f"{', '.join(options)}: options go with the name of an environment; within= is one already"
            )
        if options:
            check_options(self.name, type(self), {"shell": shell, "within": within, **options})
        inside = within if isinstance(within, Environment) else self.inner({"shell": shell, "within": within})
        self.within: Environment = get(inside, **options)
        if isinstance(self.within, IPython):
            raise ConfigurationError("within= is an ipython environment already")
        if self.within.name == "inprocess" and shell == "worker":
            raise ConfigurationError('the inprocess environment has no worker: choose shell="inprocess"')
        super().__init__(
            timeout=self.within.timeout,
            max_output=self.within.max_output,
            max_value=self.within.max_value,
            setup_code=self.within.setup_code,
            packages=self.within.packages,
            files=self.within.files,
        )
        self.keeps_spares = self.within.keeps_spares
        self.starts_here = self.within.starts_here
        self.where = shell
        self.kernel = (kernel or "python3") if shell == "kernel" else None
        if shell == "inprocess" and importlib.util.find_spec("IPython") is None:
            raise MissingExtraError("the ipython environment", "ipython")

    @property
    def lacks(self) -> Mapping[str, str]:  # type: ignore[override]
        """What the conformance suite leaves out: that of the environment inside, and what a kernel cannot bear."""
        if self.kernel is None:
            return self.within.lacks
        why = "a kernel has threads of its own, which complain about descriptors that code has closed under them"
        return {**self.within.lacks, "closed_descriptors_do_no_harm": why}

    def with_options(self, **base: Unpack[BaseOptions]) -> Self:
        """See `Environment.with_options`."""
        other = super().with_options(**base)
        other.within = self.within.with_options(**base)
        return other

    @staticmethod
    def inner(options: Mapping[str, Any]) -> str:
        """The name of the environment that takes the options which are not this one's own."""
        own = {"inprocess": "inprocess", "kernel": "subprocess"}
        return own.get(options.get("shell") or "", options.get("within") or "local")

    @property
    def execution_instructions(self) -> str:  # type: ignore[override]
        """What the code's author should know of this place."""
        return (
            f"{self.within.execution_instructions} Cells are IPython's: magics such as %timeit, !command and "
            "display() work."
        ).strip()

    def stamp(self) -> tuple[Any, ...]:
        """See `Environment.stamp`."""
        return self.within.stamp()

    def open(self) -> Transport:
        """Open the environment inside, or start the kernel."""
        if self.kernel is not None:
            from rlm_dspy.environments.kernel import open_kernel

            assert isinstance(self.within, Subprocess)
            return open_kernel(self.kernel, self.within)
        return self.within.open()

    def describe(self) -> Description:
        """What the environment inside confines; the shell itself confines nothing."""
        found = self.within.describe()
        layers = (*found.layers, *(("Jupyter kernel",) if self.kernel is not None else ()), "IPython")
        return dataclasses.replace(found, environment=self.name, layers=layers)

    def __call__(self) -> Interpreter:
        """A fresh session."""
        if self.where == "inprocess":
            from rlm_dspy.environments.inprocess import InProcessInterpreter

            return InProcessInterpreter(self)  # type: ignore[return-value, arg-type]
        return super().__call__()

    def __hash__(self) -> int:
        return hash((self.where, self.kernel, self.within))
