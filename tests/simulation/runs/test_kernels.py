"""A few seeds on both kernels (`make sim-kernels`: all kept ones). Planted: one whose records are larger."""

from __future__ import annotations

import pytest

from rmqha.kernel.batch_kernel import SendContext, SendRead, SendResults, SendRules
from rmqha.kernel.python_kernel import PythonKernel
from tests.kernel.support import kernel_named
from tests.simulation.kernels import compared
from tests.simulation.run import Run


@pytest.mark.parametrize("name", ["1", pytest.param("batches:3", marks=pytest.mark.sim)])
def test_a_seed_gives_the_same_trace_on_both(name: str) -> None:
    same, send_count = compared(Run.parse(name), kernel_named("native"))
    assert same
    assert send_count > 10


class Larger(PythonKernel):
    """Planted: stores four bytes more with each message."""

    def sends(self, read: SendRead, rules: SendRules, context: SendContext) -> SendResults:
        return super().sends(read, rules._replace(own_properties=rules.own_properties + b"a\x01b\x02"), context)


@pytest.mark.sim
def test_another_trace_is_seen() -> None:
    same, _ = compared(Run.parse("1"), Larger())
    assert not same
