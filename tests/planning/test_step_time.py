import dataclasses
import math

import numpy as np
import pytest

from hpo.errors import PlanError
from hpo.extrapolation.inference.intervals import Interval
from hpo.planning.machines import load_machine
from hpo.planning.timing.assumptions import (
    FIGURES,
    TimingAssumptions,
    assumption_values,
    normal_draws,
)
from hpo.planning.timing.collectives import CollectiveLinks, RankLayout, all_reduce_seconds
from hpo.planning.timing.costs import cost_sources, home_cost, workload_cost_names
from hpo.planning.timing.step_time import (
    StepOptions,
    evaluation_time,
    expected_slowest,
    scaling_efficiency,
    step_time,
)
from trainers.cost import WorkloadCost

SUMMIT, DAINT, BASIN = (load_machine(name) for name in ("summit", "piz_daint", "big_basin"))
RESNET, DEEPLAB = home_cost("resnet50"), home_cost("deeplabv3plus")
PARTS = ("compute", "exposed_communication", "control", "input", "straggler")
LINKS = ("intra_node", "inter_node")


def at(
    machine=SUMMIT, cost=RESNET, nodes=64, ranks=6, local=32, micro=32, assumptions=None, **options
):
    ranks = min(ranks, machine.accelerators_per_node)
    return step_time(
        machine,
        cost,
        nodes=nodes,
        ranks_per_node=ranks,
        local_batch_size=local,
        micro_batch_size=micro,
        options=StepOptions(**options),
        assumptions=assumptions,
    )


def changed(machine, **figures):
    """The machine with other figures, named by section__figure; each is multiplied."""
    for name, factor in figures.items():
        section, figure = name.split("__")
        old = getattr(machine, section)
        machine = dataclasses.replace(
            machine,
            **{section: dataclasses.replace(old, **{figure: getattr(old, figure) * factor})},
        )
    return machine


def exactly(figure):
    """Assumptions in which one figure is as given and sure, and nothing else costs anything."""
    nothing = Interval(1e-15, 1e-15, 1e-15)
    free = TimingAssumptions(
        link_share=Interval(1, 1, 1),
        latency_factor=Interval(1, 1, 1),
        seconds_per_tensor=nothing,
        message_seconds=nothing,
        step_variation=nothing,
        loss_per_doubling=nothing,
        storage_share=Interval(1, 1, 1),
        contention=nothing,
        core_speed=Interval(1, 1, 1),
    )
    return dataclasses.replace(
        free, **{name: Interval(value, value, value) for name, value in figure.items()}
    )


def test_one_rank_only_computes():
    found = at(nodes=1, ranks=1, assumptions=exactly({}))
    device = SUMMIT.accelerator
    flops = device.peak_flops["fp32"] * device.achieved_fraction["fp32"].median
    assert found.compute == pytest.approx(32 * RESNET.flops_per_sample / flops)
    assert (found.communication, found.control, found.straggler) == (0, 0, 0)
    assert found.total.median == pytest.approx(found.compute)
    assert found.limited_by == "compute"


def test_the_total_is_the_sum_of_its_parts_and_lies_in_its_interval():
    for machine, cost, options in (
        (SUMMIT, RESNET, {}),
        (DAINT, DEEPLAB, {"all_reduce": "ring", "staged": False}),
        (BASIN, RESNET, {"control_plane": "flat"}),
        (SUMMIT, DEEPLAB, {"gradient_lag": 1}),
    ):
        found = at(machine, cost, nodes=32, **options)
        assert found.total.median == pytest.approx(sum(getattr(found, part) for part in PARTS))
        assert found.total.low < found.total.median < found.total.high


def test_infinite_links_leave_nothing_exposed():
    free = changed(
        SUMMIT,
        **{
            f"{link}__{figure}": factor
            for link in LINKS
            for figure, factor in (("bandwidth_bytes_per_second", 1e12), ("latency_seconds", 1e-12))
        },
    )
    for options in ({}, {"overlap": False}, {"gradient_lag": 1}, {"all_reduce": "ring"}):
        found = at(free, nodes=4000, control_plane="none", **options)
        assert found.exposed_communication < 1e-9 * found.compute


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"overlap": False},
        {"gradient_lag": 1},
        {"all_reduce": "hierarchical"},
        {"precision": "fp16", "gradient_bytes": 2},
    ],
)
def test_worse_machines_are_never_faster(options):
    before = at(nodes=512, **options)
    for figures in (
        {"intra_node__bandwidth_bytes_per_second": 0.5},
        {"inter_node__bandwidth_bytes_per_second": 0.5},
        {"inter_node__latency_seconds": 2},
        {"intra_node__latency_seconds": 2},
        {"node_storage__read_bytes_per_second": 0.01},
    ):
        after = at(changed(SUMMIT, **figures), nodes=512, **options)
        for end in ("median", "low", "high"):
            assert getattr(after.total, end) >= getattr(before.total, end) * (1 - 1e-12)
        assert after.exposed_communication >= before.exposed_communication


def test_larger_workloads_take_longer():
    rng = np.random.default_rng(0)
    for _ in range(20):
        nodes, local = int(rng.integers(1, 4000)), int(rng.integers(1, 64))
        before = at(nodes=nodes, local=local)
        for name in ("parameters", "flops_per_sample", "sample_bytes", "host_seconds_per_sample"):
            larger = dataclasses.replace(RESNET, **{name: 3 * getattr(RESNET, name)})
            assert at(cost=larger, nodes=nodes, local=local).total.median >= before.total.median
        assert at(nodes=nodes, local=local + 1).total.median > before.total.median


def test_small_micro_batches_are_less_efficient():
    whole, parts = at(local=32, micro=32).compute, at(local=32, micro=4).compute
    assert parts > whole
    per_sample = [at(local=size, micro=size).compute / size for size in (1, 2, 8, 32, 256)]
    assert per_sample == sorted(per_sample, reverse=True)
    assert at(local=32, micro=64) == at(local=32, micro=32)


def test_only_what_is_longer_than_the_back_propagation_shows_and_never_less_than_the_last_bucket():
    """Against a simulation of buckets that become ready one by one and are reduced one after the other."""
    for nodes, all_reduce in ((16, "ring"), (512, "ring"), (512, "tree"), (4000, "torus")):
        sure = exactly({})
        found = at(nodes=nodes, all_reduce=all_reduce, control_plane="none", assumptions=sure)
        backward = 2 / 3 * found.compute
        links = CollectiveLinks(
            SUMMIT.intra_node.latency_seconds,
            1 / SUMMIT.intra_node.bandwidth_bytes_per_second,
            SUMMIT.inter_node.latency_seconds,
            1 / SUMMIT.inter_node.bandwidth_bytes_per_second,
        )
        simulated = []
        for buckets in (2, 4, 8, 16, 32, 64, 128):
            if buckets > min(backward / 1e-3, RESNET.gradient_tensors):
                continue
            each = all_reduce_seconds(
                all_reduce, RESNET.parameters * 4 / buckets, RankLayout(nodes, 6), links
            )
            free = 0.0
            for bucket in range(1, buckets + 1):
                free = max(free, backward * bucket / buckets) + each
            simulated.append(free - backward)
        assert found.exposed_communication == pytest.approx(min(simulated))


def test_ways_to_wait_less():
    plain = at(nodes=512, overlap=False)
    assert plain.exposed_communication == pytest.approx(plain.communication)
    overlapped, lagged = at(nodes=512), at(nodes=512, gradient_lag=1)
    assert (
        lagged.exposed_communication
        < overlapped.exposed_communication
        < plain.exposed_communication
    )
    half = at(nodes=512, gradient_bytes=2, overlap=False)
    assert half.communication == pytest.approx(
        plain.communication / 2
    )  # one full bucket instead of two
    # accumulated micro batches leave only the last back-propagation to hide behind
    assert at(nodes=512, micro=4).exposed_communication >= overlapped.exposed_communication


def test_with_lag_a_step_takes_the_longer_of_computing_and_communicating():
    slow = changed(SUMMIT, inter_node__bandwidth_bytes_per_second=1e-3)
    found = at(slow, nodes=512, gradient_lag=1, control_plane="none", assumptions=exactly({}))
    assert found.communication > found.compute
    assert found.total.median == pytest.approx(found.communication)
    assert found.limited_by == "network"


def test_the_coordinator_of_all_ranks_does_not_scale_and_the_tree_does():
    """Kurth et al., section V-A3: rank 0 got as many messages as there are tensors times ranks."""
    message = 0.2e-6
    sure = exactly({"message_seconds": message})
    flat = at(
        cost=DEEPLAB, nodes=4560, local=2, control_plane="flat", overlap=False, assumptions=sure
    )
    assert flat.control == pytest.approx(
        2 * (27_360 - 1) * DEEPLAB.gradient_tensors * message, rel=1e-3
    )
    flat, tree = (
        at(cost=DEEPLAB, nodes=4560, local=2, control_plane=plane, precision="fp16")
        for plane in ("flat", "tree")
    )
    assert flat.limited_by == "control"
    assert tree.control < 0.01 * tree.compute
    assert at(nodes=512, control_plane="none").control == 0
    controls = [
        at(nodes=nodes, control_plane="flat", overlap=False).control for nodes in (1, 10, 100, 1000)
    ]
    assert controls == sorted(controls)


def test_samples_from_the_shared_file_system_limit_the_machine_and_staged_ones_do_not():
    """Kurth et al. staged because 27,360 GPUs ask for more than the shared file system gives."""
    options = {"cost": DEEPLAB, "nodes": 4560, "local": 2, "precision": "fp16"}
    assert at(**options, staged=False).limited_by == "input"
    assert at(**options).input == 0
    sure = exactly({})
    found = at(**options, staged=False, assumptions=sure)
    reading = 27_360 * 2 * DEEPLAB.sample_bytes / SUMMIT.shared_filesystem.read_bytes_per_second
    assert found.total.median == pytest.approx(
        max(reading, found.compute + found.exposed_communication), rel=1e-6
    )
    without_disks = dataclasses.replace(SUMMIT, node_storage=None)
    assert at(without_disks, **options) == at(**options, staged=False)


def with_host(seconds, machine=SUMMIT, **processor):
    """Exact assumptions, a sample that takes a core so long, and the parts of a step with and without it."""
    if processor:
        machine = dataclasses.replace(
            machine, processor=dataclasses.replace(machine.processor, **processor)
        )
    cost = dataclasses.replace(RESNET, host_seconds_per_sample=seconds)
    return at(machine, cost, nodes=1, control_plane="none", assumptions=exactly({}))


def test_decoding_on_cores_of_its_own_goes_on_beside_the_training():
    """6 ranks of 32 samples share 42 cores: a sample that takes h seconds of one takes 6 x 32 h / 42 a step."""
    busy = with_host(0.0)
    assert busy.input == 0
    hidden = with_host(0.9 * busy.total.median * 42 / (6 * 32))
    assert (hidden.input, hidden.limited_by) == (0, "compute")
    limited = with_host(1.5 * busy.total.median * 42 / (6 * 32))
    assert limited.total.median == pytest.approx(1.5 * busy.total.median)
    assert limited.input == pytest.approx(0.5 * busy.total.median)
    assert limited.limited_by == "input"  # a third of the time, but nothing else would shorten it


def test_cores_that_compute_too_take_turns_with_decoding():
    busy = with_host(0.0)
    in_core_seconds = busy.compute * 42  # six ranks compute on seven cores each
    for share, limit in ((0.5, "compute"), (2.0, "input")):
        found = with_host(share * in_core_seconds / (6 * 32), computes=True)
        assert found.total.median == pytest.approx(
            max(busy.total.median, (1 + share) * busy.compute)
        )
        assert found.limited_by == limit


def test_more_cores_never_make_a_step_longer_and_slower_decoding_never_shorter():
    seconds = [with_host(each).total.median for each in (0.0, 0.01, 0.1, 1.0)]
    assert seconds == sorted(seconds)
    cores = [with_host(0.1, cores_per_node=each).total.median for each in (1, 8, 64, 10**9)]
    assert cores == sorted(cores, reverse=True)
    assert cores[-1] == pytest.approx(with_host(0.0).total.median)
    unknown = dataclasses.replace(SUMMIT, processor=None)
    assert with_host(0.1, machine=unknown).input == 0  # not counted


def evaluation(machine=SUMMIT, cost=RESNET, nodes=4, micro=32, **figures):
    return evaluation_time(
        machine,
        dataclasses.replace(cost, **figures),
        nodes=nodes,
        ranks_per_node=6,
        micro_batch_size=micro,
        assumptions=exactly({}),
    )


def test_an_evaluation_is_forward_passes_over_each_ranks_share():
    """50,000 samples over 24 ranks are 2,084 of the largest share, each a third of a training sample's arithmetic."""
    device = SUMMIT.accelerator
    flops = device.peak_flops["fp32"] * device.achieved_fraction["fp32"].median
    found = evaluation(host_seconds_per_sample=0.0)
    assert found.median == pytest.approx(2084 * RESNET.flops_per_sample / 3 / flops)
    assert found.low <= found.median <= found.high
    decoding = 2084 * 6 * 0.1 / 42
    assert evaluation(host_seconds_per_sample=0.1).median == pytest.approx(decoding)
    assert evaluation(evaluation_samples=0) == Interval(0, 0, 0)
    by_nodes = [evaluation(nodes=nodes).median for nodes in (1, 2, 8, 64)]
    assert by_nodes == sorted(by_nodes, reverse=True)
    with pytest.raises(PlanError, match="nodes must be between"):
        evaluation(nodes=10**6)


def test_a_tapered_network_waits_longer_where_all_nodes_of_a_group_send():
    tapered = dataclasses.replace(
        SUMMIT,
        inter_node=dataclasses.replace(SUMMIT.inter_node, group_nodes=16, oversubscription=4.0),
    )
    options = {"nodes": 512, "overlap": False}
    servers = [
        at(machine, all_reduce="parameter_server", **options) for machine in (SUMMIT, tapered)
    ]
    assert servers[1].communication > 2 * servers[0].communication
    rings = [at(machine, all_reduce="ring", **options) for machine in (SUMMIT, tapered)]
    assert rings[1] == rings[0]  # a ring leaves a group once
    assert at(tapered, **{**options, "nodes": 16}) == at(**{**options, "nodes": 16})


@pytest.mark.parametrize("ranks", [2, 8, 100, 1000, 30_000])
def test_the_expected_slowest_of_many_ranks(ranks):
    """Against the mean of the largest of N normal numbers, by integrating its distribution function F^N."""
    from scipy import integrate, stats

    def tail(x):
        return 1 - stats.norm.cdf(x) ** ranks - stats.norm.cdf(-x) ** ranks

    exact = integrate.quad(tail, 0, 12)[0]
    assert expected_slowest(ranks) == pytest.approx(exact, rel=0.05 if ranks == 2 else 0.02)
    assert expected_slowest(ranks) < math.sqrt(2 * math.log(ranks))


def test_stragglers_cost_what_the_variation_says():
    assert expected_slowest(1) == pytest.approx(0, abs=1e-12)
    found = at(nodes=4000, assumptions=exactly({"step_variation": 0.02}))
    assert found.straggler == pytest.approx(0.02 * found.compute * expected_slowest(24_000))


def test_each_doubling_of_the_nodes_costs_the_same_share_of_the_speed():
    sure = exactly({"loss_per_doubling": 0.01})
    speeds = [
        1 / (1 + found.straggler / found.compute)
        for found in (at(nodes=nodes, assumptions=sure) for nodes in (1, 2, 4, 1024))
    ]
    assert speeds == pytest.approx([1, 0.99, 0.99**2, 0.99**10])


def test_draws_of_a_figure_have_its_median_and_its_ends():
    figure = Interval(0.7, 0.4, 0.9)
    values = assumption_values(figure, normal_draws()[1:, 0])
    assert np.quantile(values, [0.5, 0.05, 0.95]) == pytest.approx([0.7, 0.4, 0.9], rel=0.03)
    correlations = np.corrcoef(normal_draws()[1:].T) - np.eye(FIGURES)
    assert np.abs(correlations).max() < 0.25


def test_the_interval_of_a_time_holds_that_of_the_share_of_the_peak():
    found, share = at(nodes=1, ranks=1), SUMMIT.accelerator.achieved_fraction["fp32"]
    assert found.total.high / found.total.median == pytest.approx(share.median / share.low, rel=0.1)
    assert found.total.low / found.total.median == pytest.approx(share.median / share.high, rel=0.1)


def test_efficiency_is_one_where_nothing_changes_and_falls_with_the_nodes():
    def efficiency(nodes, **options):
        return scaling_efficiency(
            SUMMIT,
            RESNET,
            nodes=nodes,
            ranks_per_node=6,
            base_ranks_per_node=6,
            local_batch_size=32,
            micro_batch_size=32,
            options=StepOptions(**options),
        )

    assert efficiency(1) == Interval(1, 1, 1)
    medians = [efficiency(nodes).median for nodes in (1, 4, 16, 64, 256, 1024, 4096)]
    assert medians == sorted(medians, reverse=True)
    found = efficiency(1024)
    assert 0 < found.low < found.median < found.high < 1
    # the unknown share of the peak is the same for both, so that it is known better than the time
    time = at(nodes=1024).total
    assert found.high / found.low < time.high / time.low


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"all_reduce": "rings"},
            ("all_reduce must be one of auto", "'rings'", "did you mean 'ring'"),
        ),
        ({"precision": "fp61"}, ("precision", "'fp61'", "did you mean 'fp16'")),
        ({"gradient_bytes": 8}, ("gradient_bytes must be one of 2, 4", "8")),
        ({"gradient_lag": 2}, ("gradient_lag must be one of 0, 1", "2")),
        ({"control_plane": "trees"}, ("control_plane", "did you mean 'tree'")),
        ({"fusion_bytes": 0}, ("fusion_bytes", "above 0", "0")),
    ],
)
def test_options_that_cannot_be(options, words):
    with pytest.raises(PlanError) as raised:
        StepOptions(**options)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ({"nodes": 5000}, ("nodes must be between 1 and 4,608", "5,000", "nearest is 4,608")),
        ({"nodes": 0}, ("nodes", "nearest is 1")),
        ({"ranks_per_node": 8}, ("ranks_per_node must be between 1 and 6", "8", "nearest is 6")),
        ({"local_batch_size": 0}, ("local_batch_size must be at least 1", "0")),
        ({"micro_batch_size": -1}, ("micro_batch_size must be at least 1", "-1")),
    ],
)
def test_placements_that_cannot_be(placement, words):
    usual = {"nodes": 1, "ranks_per_node": 6, "local_batch_size": 1, "micro_batch_size": 1}
    with pytest.raises(PlanError) as raised:
        step_time(SUMMIT, RESNET, **{**usual, **placement})
    for word in words:
        assert word in str(raised.value)


def test_published_costs_are_known_by_name_each_figure_with_its_source():
    assert workload_cost_names() == ["deeplabv3plus", "resnet50", "tiramisu"]
    for name in workload_cost_names():
        assert all(cost_sources(name).values())
        assert set(cost_sources(name)) == {field.name for field in dataclasses.fields(WorkloadCost)}
    assert home_cost("tiramisu").flops_per_sample == 4.188e12
    assert DEEPLAB.flops_per_sample == 14.41e12
    # 16 fields of 768 x 1152 values; 63,000 samples in 3.5 TB
    assert 63_000 * DEEPLAB.sample_bytes == pytest.approx(3.5e12, rel=0.03)
    with pytest.raises(PlanError, match="did you mean 'resnet50'"):
        home_cost("resnet")
