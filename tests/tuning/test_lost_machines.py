"""A trial is not restarted on a machine that is gone but that Ray still lists."""

import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from hpo.tuning import callbacks, lost_machines, workers


class Cluster:
    """What Ray says of machines, and time that passes by sleeping; Ray notices a loss after ``notices`` seconds."""

    def __init__(self, monkeypatch, notices):
        self.now, self._notices = 0.0, notices
        self._alive = socket.create_server(("127.0.0.1", 0))
        lost = socket.create_server(("127.0.0.1", 0))
        self._ports = {"alive": self._alive.getsockname()[1], "lost": lost.getsockname()[1]}
        self._lost = lost
        monkeypatch.setattr("ray.nodes", self.nodes)

    def lose(self):
        self._lost.close()

    def nodes(self):
        return [
            {
                "Alive": name == "alive" or self.now < self._notices,
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": port,
            }
            for name, port in self._ports.items()
        ]

    def sleep(self, seconds):
        self.now += seconds

    def wait(self, seconds=60.0):
        lost_machines.wait_for_notice(seconds, sleep=self.sleep, clock=lambda: self.now)

    def close(self):
        self._alive.close()
        self._lost.close()


@pytest.fixture
def cluster(monkeypatch):
    made = []

    def make(notices):
        made.append(Cluster(monkeypatch, notices))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_where_all_machines_are_there_nobody_waits(cluster):
    there = cluster(notices=20)
    there.wait()
    assert there.now == 0


def test_a_loss_is_waited_for_until_ray_has_noticed_it(cluster):
    there = cluster(notices=20)
    there.lose()
    there.wait()
    assert 20 <= there.now < 21


def test_and_no_longer_than_told(cluster):
    there = cluster(notices=1e9)
    there.lose()
    there.wait(seconds=3)
    assert 3 <= there.now < 4


def test_tune_waits_before_it_starts_a_trial_again_and_not_where_the_sweep_ends(monkeypatch):
    waited = []
    monkeypatch.setattr(callbacks, "wait_for_notice", lambda: waited.append(1))
    for interrupted in (False, True):
        handler = callbacks.RayResultCallback(SimpleNamespace(interrupted=interrupted), None)
        handler.on_trial_recover(0, [], None)
    assert waited == [1]


@pytest.mark.parametrize(
    ("failures", "again", "ends"), [(1, True, False), (1, False, True), (3, True, True)]
)
def test_what_tune_gives_up_with_restarts_left_begins_anew_while_the_sweep_says_so(
    monkeypatch, failures, again, ends
):
    waited, ended = [], []
    monkeypatch.setattr(callbacks, "wait_for_notice", lambda: waited.append(1))
    sweep = SimpleNamespace(
        interrupted=False, again=lambda _: again, end=lambda *told: ended.append(told)
    )
    trial = SimpleNamespace(
        trial_id="a", max_failures=2, run_metadata=SimpleNamespace(num_failures=failures)
    )
    callbacks.RayResultCallback(sweep, None).on_trial_error(0, [], trial)
    assert (bool(ended), bool(waited)) == (ends, not ends)


def test_the_workers_of_a_trial_wait_before_they_are_started_again(monkeypatch):
    import ray

    waited, begun = [], []
    monkeypatch.setattr(workers, "wait_for_notice", lambda: waited.append(len(begun)))
    monkeypatch.setattr(workers.WorkerGroup, "_begin", lambda self: begun.append(self))  # noqa: PLW0108  a builtin takes no self

    def dies(*_, **__):
        raise ray.exceptions.RayActorError

    monkeypatch.setattr(workers, "_all", dies)
    group = workers.WorkerGroup(SimpleNamespace(program=False))
    group.begin({})
    assert group.advance()["state"] == "failed"
    assert waited == [1, 2] and len(begun) == 3
