import json
import os
import re

import pytest
from click.testing import CliRunner

from hpo.cli.commands.full_machine import machines
from hpo.cli.output.machines import number_with_unit
from hpo.errors import PlanError
from hpo.planning.machines import (
    load_machine,
    local,
    machine_names,
    machine_text,
    measure,
    measure_local,
)

SHIPPED = machine_names()[1:]
ASKED_FOR = (
    "summit",
    "piz_daint",
    "abci",
    "tsubame3",
    "project_adam",
    "minsky",
    "big_basin",
    "tencent",
    "superpod",
    "perlmutter",
    "juwels_booster",
    "frontier",
    "tpu_v3_pod",
    "azure_nd_h100_v5",
    "aws_p5",
)


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    monkeypatch.setenv(local.FILE_VARIABLE, str(tmp_path / "config" / "local.yaml"))


def written(tmp_path, old, new):
    text = machine_text("summit")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


def refused(path):
    with pytest.raises(PlanError) as raised:
        load_machine(path)
    return str(raised.value)


def test_the_machines_that_history_names_are_there():
    assert set(ASKED_FOR) <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_figure_of_a_shipped_machine_has_a_source_or_is_marked_as_assumed(name):
    machine = load_machine(name)
    assert machine.name == name
    figures = re.findall(r"^ *(\w+): \{(?:value|low)", machine_text(name), re.M)
    assert len(figures) == len(machine.sources)
    for source in machine.sources.values():
        assert source.url.startswith("http") or (source.assumed and len(source.note) > 10), source


@pytest.mark.parametrize("name", SHIPPED)
def test_one_set_of_shares_for_all_machines(name):
    """No machine's share of the peak is set by itself: it follows from the kind of unit alone."""
    device = load_machine(name).accelerator
    vector = {"fp32"} if device.name != "Google TPU v3 chip, two cores" else set()
    for precision, share in device.achieved_fraction.items():
        pascal_half = precision == "fp16" and "P100" in device.name
        assert (share.low, share.median, share.high) == (
            (0.15, 0.30, 0.60)
            if pascal_half
            else (0.28, 0.45, 0.80)
            if precision in vector
            else (0.10, 0.20, 0.33)
        )


@pytest.mark.parametrize(
    ("name", "accelerators"),
    [
        ("summit", 27_648),
        ("big_basin", 352),
        ("minsky", 256),
        ("tencent", 2_048),
        ("superpod", 1_120),
        ("tpu_v3_pod", 1_024),
        ("abci", 4_352),
        ("tsubame3", 2_160),
        ("project_adam", 120),
        ("piz_daint", 5_320),
    ],
)
def test_machines_have_as_many_accelerators_as_published(name, accelerators):
    assert load_machine(name).accelerators == accelerators


def test_peaks_add_up_to_what_is_published_of_the_whole_machine():
    summit, pod, tsubame = (load_machine(name) for name in ("summit", "tpu_v3_pod", "tsubame3"))
    assert summit.accelerators * summit.accelerator.peak_flops["fp16"] > 3e18  # "in excess of 3 EF"
    assert pod.accelerators * pod.accelerator.peak_flops["bf16"] == pytest.approx(126e15, rel=0.01)
    # 47.2 PFLOPS in fp16, the processors' 1.3 among them
    assert tsubame.accelerators * tsubame.accelerator.peak_flops["fp16"] == pytest.approx(
        47.2e15, rel=0.04
    )


def test_a_precision_that_the_device_lacks_is_computed_in_fp32():
    assert load_machine("tencent").accelerator.computing_precision("fp16") == "fp32"
    assert load_machine("summit").accelerator.computing_precision("fp16") == "fp16"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "nodes: {value: 4608",
            "nodes: {value: -4608",
            ("nodes", "whole number of at least 1", "-4608"),
        ),
        ("nodes: {value: 4608", "nodes: {value: 46.5", ("nodes", "whole number", "46.5")),
        ("nodes: {value: 4608", "nodes: {value: ~", ("nodes", "whole number", "nothing")),
        ("nodes: {value: 4608", "nodes: {valu: 4608", ("nodes.valu", "did you mean 'value'")),
        ("nodes: {", "node: {", ("unknown key node", "did you mean 'nodes'")),
        (
            "fp16: {value: 1.25e14",
            "fp16: {value: .inf",
            ("accelerator.peak_flops.fp16", "finite", "inf"),
        ),
        (
            "fp16: {value: 1.25e14",
            "fp16: {value: 0",
            ("accelerator.peak_flops.fp16", "above 0", "got 0"),
        ),
        (
            "fp16: {value: 1.25e14",
            "fp16: {value: .nan",
            ("accelerator.peak_flops.fp16", "finite", "nan"),
        ),
        (
            "fp16: {value: 1.25e14",
            "fp16: {value: fast",
            ("accelerator.peak_flops.fp16", "a number", "'fast'"),
        ),
        (
            "fp16: {value: 1.25e14",
            "fp17: {value: 1.25e14",
            ("accelerator.peak_flops.fp17", "did you mean 'fp16'"),
        ),
        (
            "low: 0.28",
            "low: 0.9",
            ("accelerator.achieved_fraction.fp32", "low <= median <= high", "0.9"),
        ),
        ("high: 0.80", "high: 1.80", ("accelerator.achieved_fraction.fp32", "<= 1", "1.8")),
        ("low: 0.28, ", "", ("accelerator.achieved_fraction.fp32.low", "missing")),
        (
            "  latency_seconds: {value: 3.4e-6, source: nccl",
            "  latency_seconds: {value: 3.4e-6, source: ncll",
            ("intra_node.latency_seconds.source", "'ncll'", "did you mean 'nccl'"),
        ),
        (
            "scheduler: lsf",
            "scheduler: lfs",
            ("scheduler", "one of", "'lfs'", "did you mean 'lsf'"),
        ),
        ("scheduler: lsf", "", ("scheduler is missing", "hpo machines summit --yaml")),
        ("inter_node:", "internode:", ("unknown key internode", "did you mean 'inter_node'")),
        (
            'note: "rated read speed of such a drive; as on Frontier"',
            "note: ",
            ("node_storage", "assumed", "needs a reason"),
        ),
        ("name: summit", "name: [summit", ("machine file must be YAML",)),
        ("name: summit", "name: 7", ("name must be text", "7")),
    ],
)
def test_a_broken_file_is_told_with_file_key_rule_value_and_way_out(tmp_path, old, new, words):
    message = refused(written(tmp_path, old, new))
    assert message.startswith(f"{tmp_path}/mine.yaml")
    for word in words:
        assert word in message
    assert len(message.splitlines()) == 1


def test_all_faults_are_told_each_with_its_line(tmp_path):
    text = (
        machine_text("summit")
        .replace("value: 4608", "value: -1")
        .replace("scheduler: lsf", "scheduler: none")
    )
    (tmp_path / "mine.yaml").write_text(text)
    lines = refused(tmp_path / "mine.yaml").splitlines()
    numbers = [int(re.search(r"line (\d+)", line).group(1)) for line in lines]
    assert [text.splitlines()[number - 1].split(":")[0] for number in numbers] == [
        "nodes",
        "scheduler",
    ]


def test_a_file_of_ones_own_needs_no_sources_and_no_power(tmp_path):
    (tmp_path / "mine.yaml").write_text("""
name: mine
title: two boxes below a desk
nodes: 2
accelerators_per_node: 1
accelerator: {name: card, memory_bytes: 8e9, peak_flops: {fp32: 1e13},
              achieved_fraction: {fp32: {low: 0.2, median: 0.4, high: 0.7}}}
intra_node: {name: none, bandwidth_bytes_per_second: 1e9, latency_seconds: 1e-6, topology: one card}
inter_node: {name: cable, bandwidth_bytes_per_second: 1.25e9, latency_seconds: 3e-5, topology: a cable}
shared_filesystem: {name: NFS, read_bytes_per_second: 1e8, capacity_bytes: 1e12}
scheduler: other
""")
    machine = load_machine(tmp_path / "mine.yaml")
    assert (machine.accelerators, machine.node_storage, machine.accelerator.power_watts) == (
        2,
        None,
        None,
    )
    assert not any(source.assumed for source in machine.sources.values())


def test_a_taper_and_cores_of_ones_own(tmp_path):
    summit = load_machine("summit")
    assert (summit.inter_node.group_nodes, summit.inter_node.oversubscription) == (None, 1)
    assert (summit.processor.cores_per_node, summit.processor.computes) == (42, False)
    abci = load_machine("abci")
    assert (abci.inter_node.group_nodes, abci.inter_node.oversubscription) == (34, 3)
    assert load_machine("frontier").inter_node.oversubscription == pytest.approx(1 / 0.57, rel=0.01)
    below = "  topology: non-blocking fat tree"
    path = written(tmp_path, below, f"{below}\n  taper: {{group_nodes: 18, oversubscription: 2.5}}")
    assert load_machine(path).inter_node.oversubscription == 2.5
    shown = CliRunner().invoke(machines, [str(path)]).stdout
    assert "oversubscription between groups" in shown and "2.5" in shown
    assert "cores per node (2 x IBM POWER9)" in shown
    for taper, words in (
        ("{group_nodes: 18, oversubscription: 0.5}", "must be at least 1"),
        ("{group_nodes: 0, oversubscription: 2}", "group_nodes must be a whole number"),
        ("{group_nodes: 18}", "inter_node.taper.oversubscription is missing"),
        ("{nodes: 18, oversubscription: 2}", "unknown key inter_node.taper.nodes"),
    ):
        assert words in refused(written(tmp_path, below, f"{below}\n  taper: {taper}"))
    inside = "  topology: two groups of three GPUs, each fully connected"
    assert "unknown key intra_node.taper" in refused(
        written(tmp_path, inside, f"{inside}\n  taper: {{group_nodes: 2, oversubscription: 2}}")
    )
    assert "processor.computes must be true or false" in refused(
        written(tmp_path, "processor:\n", "processor:\n  computes: perhaps\n")
    )


def test_an_unknown_name_offers_the_nearest():
    assert "did you mean 'summit'" in refused("sumit")


def test_this_machine_counts_its_cores_and_says_what_is_assumed():
    machine = load_machine("local")
    assert (machine.nodes, machine.accelerators_per_node) == (1, local.cores())
    assert machine.processor.computes and machine.processor.cores_per_node == local.cores()
    assert machine.sources["accelerator.peak_flops.fp32"].assumed
    assert not machine.sources["accelerators_per_node"].assumed


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A function that puts a fake for nvidia-smi into the path, which prints these lines."""

    def put(*lines):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return put


def test_this_machine_counts_its_gpus(nvidia_smi, monkeypatch):
    nvidia_smi("NVIDIA H200, 143771", "NVIDIA H200, 143771")
    machine = load_machine("local")
    assert (machine.accelerators_per_node, machine.accelerator.name) == (2, "NVIDIA H200")
    assert machine.accelerator.memory_bytes == 143771 * 2**20
    assert machine.accelerator.peak_flops["bf16"] == 9.89e14
    assert not machine.computes_on_cores
    assert machine.processor.cores_per_node == local.cores()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert load_machine("local").accelerators_per_node == 1
    for name, value in (("CUDA_VISIBLE_DEVICES", ""), ("HPO_DEVICE", "cpu")):
        monkeypatch.setenv(name, value)
        assert load_machine("local").computes_on_cores
        monkeypatch.delenv(name)
    nvidia_smi("Some Card, 8192")
    assert load_machine("local").accelerator.peak_flops["fp32"] == 1.5e13
    nvidia_smi("NVIDIA-SMI has failed because it could not communicate with the driver")
    assert load_machine("local").computes_on_cores


def test_what_was_measured_with_gpus_does_not_stand_without(nvidia_smi, monkeypatch):
    found = measure.MachineMeasurements(1e10, 1e9, 1e-5, 1e9, 0.7, {"fp32": 5e13, "bf16": 7e14})
    monkeypatch.setattr(measure, "measure_machine", lambda cores, folder, gpu: found)
    nvidia_smi("NVIDIA H200, 143771")
    measure_local()
    device = load_machine("local").accelerator
    assert (device.peak_flops["fp32"], device.peak_flops["bf16"]) == (5e13, 7e14)
    assert device.peak_flops["tf32"] == 4.95e14  # rated, as nothing was measured
    assert load_machine("local").processor.core_speed == 0.7
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_machine("local").computes_on_cores
    assert load_machine("local").processor.core_speed is None


@pytest.mark.medium
def test_this_machine_measured(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "DISK_BYTES", 2**22)
    monkeypatch.setattr(measure, "TRIES", 1)
    monkeypatch.setattr(measure, "DECODE", measure.DECODE.replace("< 1.0", "< 0.2"))
    before = load_machine("local")
    assert measure_local() == local.local_file()
    machine = load_machine("local")
    assert machine.accelerator.peak_flops != before.accelerator.peak_flops
    assert (
        machine.intra_node.bandwidth_bytes_per_second
        != before.intra_node.bandwidth_bytes_per_second
    )
    assert "measured" in machine.sources["accelerator.peak_flops.fp32"].title
    # any machine of this century: a core does 10^8 to 10^13 flop/s, a message over the loopback takes 1 us to 10 ms
    assert 1e8 < machine.accelerator.peak_flops["fp32"] < 1e13
    assert 1e-6 < machine.intra_node.latency_seconds < 1e-2
    assert 1e7 < machine.intra_node.bandwidth_bytes_per_second < 1e12
    assert before.processor.core_speed is None
    assert 0.05 < machine.processor.core_speed < 3  # this one may be slowed down by other work
    assert list(tmp_path.iterdir()) == [
        tmp_path / "config"
    ]  # what was written to measure the disk is gone


def test_broken_measurements_are_told_with_the_way_out():
    local.local_file().parent.mkdir()
    local.local_file().write_text("nodes: 1")
    message = refused("local")
    assert str(local.local_file()) in message
    assert "missing" in message


def test_the_command_shows_lists_and_prints_files(tmp_path):
    def call(*words):
        done = CliRunner().invoke(machines, words)
        return done.exit_code, done.stdout, done.stderr

    code, shown, _ = call("--json")
    assert code == 0
    assert [machine["name"] for machine in json.loads(shown)] == machine_names()
    code, text, _ = call("summit", "--yaml")
    (tmp_path / "mine.yaml").write_text(text.replace("value: 4608", "value: 12"))
    code, shown, _ = call(str(tmp_path / "mine.yaml"), "--json")
    assert json.loads(shown)["nodes"] == 12
    code, shown, _ = call("summit")
    assert "27,648" in shown
    code, _, error = call("summit", "--measure")
    assert code == 2
    assert "hpo machines local --measure" in error


@pytest.mark.parametrize(
    ("value", "text"), [(23e9, "23 GB/s"), (2.5e12, "2.5 TB/s"), (12.0, "12 B/s")]
)
def test_quantities_are_written_with_their_prefix(value, text):
    assert number_with_unit(value, "B/s") == text
