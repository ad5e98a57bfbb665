"""Gradients of four workers, reduced in every way, against means and Adasum computed here in float64."""

import importlib.util
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from tests.trainers import reducer_program as program
from tests.trainers.worker_processes import environment, run_horovod
from trainers import CommunicationError, JobError
from trainers.distributed.reducer import GradientReducer
from trainers.distributed.single import SingleProcessCommunicator

pytestmark = pytest.mark.processes

SIZE = 4
TOLERANCE = {"none": 1e-6, "fp16": 2e-3, "bf16": 2e-2}
VARIANTS = [*program.VARIANTS]


def run(folder, backend):
    command = [program.__file__, str(folder), backend]
    if backend == "torch":
        done = subprocess.run(
            [sys.executable, *command, str(SIZE)],
            env=environment(),
            timeout=240,
            check=False,
            capture_output=True,
            text=True,
        )
    else:
        done = run_horovod(SIZE, command, seconds=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{backend}.{rank}.pt") for rank in range(SIZE)]


@pytest.fixture(scope="module")
def torch_results(tmp_path_factory):
    return run(tmp_path_factory.mktemp("torch"), "torch")


@pytest.fixture(scope="module")
def horovod_results(tmp_path_factory):
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    return run(tmp_path_factory.mktemp("horovod"), "horovod")


def workers_gradients():
    """For each parameter the gradients of the workers, shape ``(workers, numbers)``; zeros where there is none."""
    columns = zip(*[program.gradients(rank) for rank in range(SIZE)], strict=True)
    return [
        np.stack(
            [
                np.zeros(shape).reshape(-1)
                if gradient is None
                else gradient.double().reshape(-1).numpy()
                for gradient in column
            ]
        )
        for shape, column in zip(program.SHAPES, columns, strict=True)
    ]


def adasum(rows):
    """The definition, by recursion over halves (Maleki et al., arXiv:2006.02924)."""
    if len(rows) == 1:
        return rows[0]
    a, b = adasum(rows[: len(rows) // 2]), adasum(rows[len(rows) // 2 :])
    if not a.any() or not b.any():
        return a + b
    return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b


EXPECTED = {"mean": lambda rows: rows.mean(0), "adasum": adasum}


def check(results, name, reduction, compression):
    tolerance = TOLERANCE[compression]
    for way in ("finish", "start"):
        for rows, shape, *found in zip(
            workers_gradients(),
            program.SHAPES,
            *[result[f"{name}.{way}"] for result in results],
            strict=True,
        ):
            wanted = torch.from_numpy(EXPECTED[reduction](rows)).float().view(shape)
            assert found[0].dtype == torch.float32
            scale = float(np.abs(rows).max(initial=1.0))
            torch.testing.assert_close(found[0], wanted, rtol=tolerance, atol=tolerance * scale)
            for other in found[1:]:
                assert torch.equal(other, found[0]), "the workers must hold the same gradient"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "reduction", "compression"), [*product(VARIANTS, ("mean", "adasum"), TOLERANCE)]
)
def test_torch_reduces_to_the_mean_and_to_adasum(torch_results, variant, reduction, compression):
    check(torch_results, f"{variant}.{reduction}.{compression}", reduction, compression)


@pytest.mark.slow
@pytest.mark.parametrize(("reduction", "compression"), [*product(("mean", "adasum"), TOLERANCE)])
def test_horovod_reduces_to_the_mean_and_to_adasum(horovod_results, reduction, compression):
    check(horovod_results, f"default.{reduction}.{compression}", reduction, compression)


def mean_gradients(both):
    """The mean over the workers of the gradients of the program's model, computed in this process alone."""
    totals = None
    for rank in range(SIZE):
        model, data = program.model_and_data(rank)
        for part in data if both else data[:1]:
            program.loss(model, part).backward()
        mine = [parameter.grad / SIZE for parameter in model.parameters()]
        totals = (
            mine
            if totals is None
            else [total + part for total, part in zip(totals, mine, strict=True)]
        )
    return totals


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_overlap_with_back_propagation_changes_no_bit(torch_results, variant):
    for result, options in product(torch_results, ("", ".fp16", ".adasum")):
        for armed, unarmed in zip(
            result[f"{variant}{options}.armed"], result[f"{variant}{options}.unarmed"], strict=True
        ):
            assert torch.equal(armed, unarmed)
    for found, wanted in zip(
        torch_results[0][f"{variant}.armed"], mean_gradients(both=True), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_overlap_under_horovod_is_the_mean_too(horovod_results):
    for found, wanted in zip(
        horovod_results[0]["default.armed"], mean_gradients(both=True), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    for armed, unarmed in zip(
        horovod_results[0]["default.adasum.armed"],
        horovod_results[0]["default.adasum.unarmed"],
        strict=True,
    ):
        torch.testing.assert_close(armed, unarmed, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "tolerance"),
    [("fp16", 2e-3), ("torus", 1e-5), ("torus_fp16", 2e-3), ("hierarchical", 1e-5)],
)
def test_hooks_give_ddp_the_mean(torch_results, hook, tolerance):
    for at, wanted in enumerate(mean_gradients(both=False)):
        for result in torch_results:
            torch.testing.assert_close(
                result[f"hook.{hook}"][at], wanted, rtol=tolerance, atol=tolerance * 0.01
            )


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_algorithm_also_sums_what_is_no_gradient(torch_results, variant):
    for result in torch_results:
        assert result[f"{variant}.sums"][0].tolist() == [10.0] * 5
        assert float(result[f"{variant}.sums"][1]) == 6.0


def parameters_with_gradients():
    parameters = [Parameter(torch.ones(3)), Parameter(torch.ones(2))]
    parameters[0].grad = torch.arange(3.0)
    return parameters


def test_one_process_keeps_its_gradients_and_counts_a_missing_one_as_zeros():
    parameters = parameters_with_gradients()
    reducer = GradientReducer(
        parameters, SingleProcessCommunicator(), compression="fp16", reduction="adasum"
    )
    reducer.arm()
    same = parameters[0].grad
    reducer.finish()
    assert parameters[0].grad is same
    assert parameters[1].grad.tolist() == [0.0, 0.0]


def test_one_process_hands_out_copies_that_later_gradients_leave_alone():
    parameters = parameters_with_gradients()
    pending = GradientReducer(parameters, SingleProcessCommunicator()).start()
    parameters[0].grad.zero_()
    assert [gradient.tolist() for gradient in pending.wait()] == [[0.0, 1.0, 2.0], [0.0, 0.0]]


class Two(SingleProcessCommunicator):
    """Looks like two workers whose sums are already there."""

    size = 2


def test_a_backward_after_the_gradients_left_is_an_error():
    weight = Parameter(torch.ones(2))
    reducer = GradientReducer([weight], Two())
    reducer.arm()
    weight.sum().backward()
    with pytest.raises(CommunicationError, match="before the last backward"):
        weight.sum().backward()


def test_arming_twice_and_starting_while_armed_are_errors():
    reducer = GradientReducer([Parameter(torch.ones(2))], Two())
    reducer.arm()
    with pytest.raises(CommunicationError, match="already armed"):
        reducer.arm()
    with pytest.raises(CommunicationError, match="is armed"):
        reducer.start()


def test_a_sum_in_fp16_does_not_overflow_where_the_mean_does_not():
    weight = Parameter(torch.ones(1))
    weight.grad = torch.tensor([60000.0])
    GradientReducer([weight], Two(), compression="fp16").finish()  # two times half of it
    assert weight.grad.tolist() == [30000.0]


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs PyTorch 2.10")
@pytest.mark.parametrize("lagged", [False, True])
def test_gradients_wider_than_their_weights_travel_as_they_are(lagged):
    """Such as those of reduced_weights: fp16 would round or lose every one of them."""
    weight = Parameter(torch.zeros(3, dtype=torch.float16))
    weight.grad_dtype = torch.float32
    weight.grad = torch.tensor([1.0001, 3e-9, 1e5])
    reducer = GradientReducer([weight, Parameter(torch.zeros(2))], Two())
    assert len(reducer._layout) == 1
    if lagged:
        mean = reducer.start().wait()[0]
    else:
        reducer.finish()
        mean = weight.grad
    torch.testing.assert_close(mean, torch.tensor([1.0001, 3e-9, 1e5]) / 2, rtol=0, atol=0)


class Recorder(Two):
    """Notes when which sizes leave."""

    def __init__(self):
        super().__init__()
        self.left = []

    def start_sum_(self, flat):
        self.left.append(flat.numel())
        return super().start_sum_(flat)


def test_buckets_leave_in_reverse_order_while_back_propagation_goes_on():
    first, second, third = (Parameter(torch.ones(size)) for size in (2, 4, 6))
    communicator = Recorder()
    reducer = GradientReducer([first, second, third], communicator, bucket_bytes=1)
    at_first = []
    first.register_hook(lambda gradient: at_first.append(list(communicator.left)))
    reducer.arm()
    ((first.sum() * second).sum() * third).sum().backward()
    assert at_first == [[6, 4]] and communicator.left == [6, 4, 2]
    reducer.finish()
    assert communicator.left == [6, 4, 2]


def test_a_parameter_out_of_use_holds_back_what_comes_after_it_until_the_end():
    first, unused, third = (Parameter(torch.ones(size)) for size in (2, 4, 6))
    communicator = Recorder()
    reducer = GradientReducer([first, unused, third], communicator, bucket_bytes=1)
    reducer.arm()
    (first.sum() * third).sum().backward()
    assert communicator.left == [6]
    reducer.finish()
    assert communicator.left == [6, 4, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "fp8"}, "no gradient compression 'fp8'; the choices are bf16, fp16, none"),
        ({"reduction": "sum"}, "no gradient reduction 'sum'; did you mean 'adasum'"),
    ],
)
def test_unknown_options_offer_what_there_is(options, message):
    with pytest.raises(JobError, match=message):
        GradientReducer([Parameter(torch.ones(1))], SingleProcessCommunicator(), **options)


def test_adasum_asks_for_a_power_of_two():
    three = Two()
    three.size = 3
    with pytest.raises(JobError, match="needs a power of two of them, but there are 3"):
        GradientReducer([Parameter(torch.ones(1))], three, reduction="adasum")
