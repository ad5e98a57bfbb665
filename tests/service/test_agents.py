"""Killed agents and a killed server: every trial ends once. A small version of the benchmark's run."""

import pytest

from benchmarks.agents import run

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_a_third_of_the_agents_is_killed_and_the_server_restarted(tmp_path):
    result = run(tmp_path, agents=3, trials=12, restarts=1, seed=3, seconds=0.05, lease_seconds=3.0)
    assert result.faults == []
    assert result.killed == 1 and sum(result.states.values()) == 12
    assert 0 < len(result.overheads) <= 12
