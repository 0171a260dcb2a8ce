# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loops of torch, recorded as they run."""

import copy

import pytest

from dovetail_runs import Run

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.parity


class _Training:
    """A linear model with AdamW, whose state is saved and restored as torch does it."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.x, self.y = torch.randn(7, 3), torch.randn(7, 2)

    def step(self):
        loss = F.mse_loss(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


def _interrupted(run, saved):
    """A launch that is interrupted before step 6, two steps after its training was saved."""
    training = _Training()
    with run.launch({"rate": 0.1}) as launch:
        for step in range(9):
            if step == 4:
                saved.append(training.state())
            if step == 6:
                raise KeyboardInterrupt
            launch.write(step, {"loss": training.step().item()})


def test_an_interrupted_loop_goes_on_as_one_curve(tmp_path):
    unbroken = _Training()
    expected = [unbroken.step().item() for _ in range(9)]

    run, saved = Run(tmp_path / "run"), []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(run, saved)
    assert run.state == "interrupted"

    training = _Training()
    training.restore(*saved)
    with run.launch() as launch:
        for step in range(4, 9):
            launch.write(step, {"loss": training.step().item()})
    curve = run.metrics.curve("loss")
    assert curve.steps.tolist() == list(range(9))
    assert curve.values.tolist() == expected  # the same programs on the same numbers
    assert len(run.metrics) == 11  # steps 4 and 5 twice
    assert (run.state, run.launches[0]["versions"]["torch"]) == ("finished", torch.__version__)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int64", "bool"])
def test_a_tensor_without_dimensions_is_a_number(tmp_path, dtype):
    value = torch.tensor(1.7, dtype=getattr(torch, dtype))
    with Run(tmp_path).launch() as launch:
        launch.write(0, {"value": value})
    assert Run(tmp_path).metrics.curve("value").last() == (0, float(value.item()))


def test_a_loss_may_still_have_its_graph(tmp_path):
    loss = _Training().step()
    assert loss.requires_grad
    with Run(tmp_path).launch() as launch:
        launch.write(0, {"loss": loss})
    assert Run(tmp_path).metrics.curve("loss").last() == (0, loss.item())


def test_a_tensor_of_several_numbers_is_refused(tmp_path):
    with Run(tmp_path).launch() as launch, pytest.raises(TypeError, match="write the mean"):
        launch.write(0, {"loss": torch.ones(2)})
