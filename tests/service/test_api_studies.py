"""Studies through the API: submit, list, show, cancel, resume, delete; names of every kind."""

from __future__ import annotations

import pytest
from api_server import add_trials, fail_trials, path_of, served, spec_of

from hpo.service.study_facts import study_facts
from hpo.study.spec import parse_study
from storage.records import StudyState


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        yield api


NAMES = [
    "digits",
    "a b",
    "a/b",
    "a%2Fb",
    "100 %",
    "ü\u2260",
    "?x=1#y",
    "a/../b",
    "'; DROP TABLE studies; --",
    "<b>&amp;",
    "x" * 100,
    "\\",
    "a+b",
    "studies",
    "trials",
]


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_one_segment_of_a_path(api, name):
    assert api.submit(name).status_code == 201
    shown = api.call("GET", path_of(name))
    assert shown.status_code == 200, shown.text
    assert shown.json()["name"] == name
    assert api.call("GET", f"{path_of(name)}/trials").json() == {"trials": [], "next": None}
    assert api.call("POST", f"{path_of(name)}/cancel").json()["state"] == "cancelled"


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_address_holds_is_refused(api, name):
    answer = api.submit(name)
    assert answer.status_code == 422
    assert answer.json()["error"]["faults"][0]["key"] == "name"
    api.submit()
    renamed = api.call("POST", "/studies/bowl/rename", json={"name": name})
    assert renamed.status_code == 422 and "part of a path or URL" in renamed.text


def test_settings_that_no_new_study_may_have_are_accepted_in_a_stored_one(api):
    lines = "  optimizer: adamw\n  weight_decay_epochs: 5\n  weight_decay: 0.1\n"
    text = spec_of("both").replace("search:\n", f"search:\n{lines}")
    answer = api.submit(spec=text)
    assert answer.status_code == 422
    (fault,) = answer.json()["error"]["faults"]
    assert (fault["key"], fault["line"]) == ("search.weight_decay", 8)
    api.submit("both")
    study = api.store.study("both")
    api.store.update_spec(study.id, text)
    api.store.set_study_state(study.id, StudyState.INTERRUPTED)
    resumed = api.call("POST", "/studies/both/resume", json={"spec": text})
    assert (resumed.status_code, resumed.json()["state"]) == (200, "queued"), resumed.text
    assert api.submit(spec=text).status_code == 200


def test_a_submission_is_shown_as_it_was_given(api):
    text = "# by hand\n" + spec_of("bowl", full_scale={"global_batch_size": 512})
    answer = api.submit(spec=text, priority=3, max_samples=10**6, max_accelerator_hours=1.5)
    assert answer.status_code == 201
    study = answer.json()
    assert study["spec"] == text
    assert (study["owner"], study["state"], study["priority"], study["ladder"]) == (
        "ada",
        "queued",
        3,
        [16, 32, 64],
    )
    assert (study["max_samples"], study["max_accelerator_hours"]) == (10**6, 1.5)
    assert study["full_scale"]["global_batch_size"] == 512
    assert study["target"] == {"metric": "loss", "threshold": 0.1, "higher_is_better": False}


@pytest.mark.medium
def test_the_same_key_is_one_study(api):
    first, second = api.submit(key="k"), api.submit(key="k")
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["created_at"] == second.json()["created_at"]
    assert api.submit(key="k", spec=spec_of("other")).status_code == 409
    assert api.submit(spec=spec_of("bowl", seeds=2)).status_code == 409
    assert api.submit(owner="bob").status_code == 409
    assert len(api.call("GET", "/studies").json()["studies"]) == 1
    assert [each["kind"] for each in api.call("GET", "/studies/bowl/logs").json()["events"]] == [
        "submitted"
    ]


def test_a_bad_file_is_told_with_its_lines(api):
    answer = api.submit(
        spec=spec_of("bowl").replace("budget", "bugdet").replace("[16, 32, 64]", "[16, 8]")
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["kind"]) == (422, "spec")
    assert [(fault["line"], fault["key"]) for fault in error["faults"]] == [
        (4, "ladder"),
        (8, "bugdet"),
    ]
    assert "did you mean 'budget'" in error["faults"][1]["message"]


def test_a_metric_that_the_workload_lacks_is_a_fault(api):
    answer = api.submit(spec=spec_of("bowl", target={"metric": "los", "at_most": 0.1}))
    assert answer.status_code == 422
    assert "did you mean 'loss'" in answer.json()["error"]["message"]


@pytest.mark.medium
def test_pages_hold_every_study_once(api):
    names = [f"study {number}" for number in range(7)]
    for name in names:
        api.submit(name, owner="bob" if name.endswith("3") else "ada")
    seen, after = [], None
    while True:
        page = api.call(
            "GET", "/studies", params={"limit": 3, **({"after": after} if after else {})}
        ).json()
        seen += [study["name"] for study in page["studies"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(seen) == names
    assert [s["name"] for s in api.call("GET", "/studies?owner=bob").json()["studies"]] == [
        "study 3"
    ]
    assert [s["name"] for s in api.call("GET", "/studies?search=Y%204").json()["studies"]] == [
        "study 4"
    ]
    assert api.call("GET", "/studies?state=running").json()["studies"] == []


def test_a_cancelled_study_resumes_with_a_larger_budget(api):
    api.submit()
    assert api.call("POST", "/studies/bowl/cancel").json()["state"] == "cancelled"
    larger = spec_of("bowl", budget={"trials": 60, "epochs_per_trial": 20})
    resumed = api.call("POST", "/studies/bowl/resume", json={"spec": larger})
    assert (resumed.status_code, resumed.json()["state"]) == (200, "queued")
    assert resumed.json()["spec"] == larger
    assert api.store.study("bowl").spec == larger
    longer = spec_of("bowl", budget={"trials": 60, "epochs_per_trial": 30})
    api.call("POST", "/studies/bowl/cancel")
    refused = api.call("POST", "/studies/bowl/resume", json={"spec": longer})
    assert refused.status_code == 422
    assert refused.json()["error"]["faults"][0]["key"] == "budget.epochs_per_trial"
    assert api.store.study("bowl").spec == larger
    assert api.call("POST", "/studies/bowl/resume").json()["state"] == "queued"


def test_a_study_of_a_program_resumes_only_with_epochs_of_the_same_length(tmp_path):
    section = {
        "command": ["train", "{learning_rate}", "{global_batch_size}"],
        "report": {"metrics": {"loss": False}},
    }
    text, changed = (
        spec_of("bowl", workload="program", program={**section, "train_samples": samples})
        for samples in (10000, 20000)
    )
    with served(tmp_path, workloads=["program"]) as api:
        assert api.submit(spec=text).status_code == 201
        api.store.set_study_state(api.store.study("bowl").id, StudyState.INTERRUPTED)
        refused = api.call("POST", "/studies/bowl/resume", json={"spec": changed})
        assert refused.status_code == 422, refused.text
        assert refused.json()["error"]["faults"][0]["key"] == "program.train_samples"
        assert api.call("POST", "/studies/bowl/resume", json={"spec": text}).status_code == 200


def test_a_running_study_is_asked_to_stop_and_cannot_be_deleted_or_resumed(api):
    api.submit()
    lease = api.store.claim_study("worker", lease_seconds=60)
    assert lease.study.name == "bowl"
    shown = api.call("GET", "/studies/bowl").json()
    assert (shown["state"], shown["worker"]) == ("running", "worker")
    assert api.call("DELETE", "/studies/bowl").status_code == 409
    assert api.call("POST", "/studies/bowl/resume").status_code == 409
    assert (
        api.call(
            "POST", "/studies/bowl/resume", json={"spec": spec_of("bowl", seeds=2)}
        ).status_code
        == 409
    )
    cancelled = api.call("POST", "/studies/bowl/cancel").json()
    assert (cancelled["state"], cancelled["cancel_requested"]) == ("running", True)


def test_a_deleted_study_is_gone(api):
    api.submit()
    assert api.call("DELETE", "/studies/bowl").status_code == 204
    assert api.call("GET", "/studies/bowl").status_code == 404


def test_a_deletion_is_told_where_everybody_may_read(api):
    api.submit()
    api.call("DELETE", "/studies/bowl")
    assert [
        (event.kind, event.message) for event in api.store.events() if event.study_id is None
    ] == [("deleted", "ada deleted the study 'bowl'")]


def test_a_renamed_study_keeps_its_trials_and_its_comments(api):
    api.submit("old", spec="# what it is for\n" + spec_of("old"))
    add_trials(api.store, "old", 2)
    renamed = api.call("POST", "/studies/old/rename", json={"name": "new name: 2"})
    assert renamed.status_code == 200, renamed.text
    assert renamed.json()["name"] == "new name: 2" and renamed.json()["trials"] == {"reached": 2}
    assert renamed.json()["spec"].startswith("# what it is for\n")
    assert parse_study(renamed.json()["spec"]) == parse_study(spec_of("new name: 2"))
    assert api.call("GET", "/studies/old").status_code == 404
    logs = api.call("GET", path_of("new name: 2") + "/logs").json()["events"]
    assert logs[-1]["kind"] == "renamed" and "'old'" in logs[-1]["message"]
    # its earlier name, and the key of its submission, are free
    api.submit("old", spec="# what it is for\n" + spec_of("old"))
    taken = api.call("POST", path_of("new name: 2") + "/rename", json={"name": "old"})
    assert taken.status_code == 409 and "exists already" in taken.json()["error"]["message"]
    bad = api.call("POST", "/studies/old/rename", json={"name": " old"})
    assert bad.status_code == 422 and "no space at its ends" in bad.text


def test_only_its_owner_and_admins_rename_delete_and_retry(api):
    api.submit()
    for method, path, body in (
        ("POST", "/studies/bowl/rename", {"name": "mine"}),
        ("POST", "/studies/bowl/resume", {"retry_failed": True}),
        ("DELETE", "/studies/bowl", None),
    ):
        refused = api.call(method, path, owner="bob", json=body)
        assert refused.status_code == 403, refused.text
    admin = {"owner": "root", "scope": "admin"}
    renamed = api.call("POST", "/studies/bowl/rename", **admin, json={"name": "bowl 2"})
    assert renamed.status_code == 200
    assert api.call("DELETE", path_of("bowl 2"), **admin).status_code == 204


def test_a_study_whose_program_changed_resumes_with_its_failed_trials(api):
    api.submit()
    fail_trials(api.store, "bowl", 2)
    add_trials(api.store, "bowl", 1)
    api.call("POST", "/studies/bowl/cancel")
    same = api.call("POST", "/studies/bowl/resume", json={"spec": spec_of("bowl", seeds=2)})
    assert same.json()["trials"] == {"failed": 2, "reached": 1}
    api.call("POST", "/studies/bowl/cancel")
    again = api.call("POST", "/studies/bowl/resume", json={"retry_failed": True})
    assert again.json()["trials"] == {"queued": 2, "reached": 1}
    study = api.store.study("bowl")
    assert "retried" in [event.kind for event in api.store.events(study_id=study.id)]
    lease = api.store.claim_study("worker", lease_seconds=60)
    assert lease is not None
    running = api.call("POST", "/studies/bowl/resume", json={"retry_failed": True})
    assert running.status_code == 409 and "running" in running.json()["error"]["message"]
    assert api.call("POST", "/studies/bowl/rename", json={"name": "x"}).status_code == 409


def test_an_unknown_name_is_answered_with_the_nearest(api):
    api.submit("digits")
    error = api.call("GET", "/studies/digit").json()["error"]
    assert error["kind"] == "not_found"
    assert "did you mean 'digits'" in error["message"]


def test_the_rungs_count_trials_by_state(api):
    api.submit()
    add_trials(api.store, "bowl", 4, batch=16)
    add_trials(api.store, "bowl", 2, batch=32)
    study = api.call("GET", "/studies/bowl").json()
    assert study["trials"] == {"reached": 6}
    assert study["rungs"] == [
        {"global_batch_size": 16, "trials": {"reached": 4}, "by_sizes": []},
        {"global_batch_size": 32, "trials": {"reached": 2}, "by_sizes": []},
    ]
    assert study["best_epochs_to_target"] == 2.0
    assert study["usage"]["trials"] == 6
    assert api.call("GET", "/studies").json()["studies"][0]["trials"] == {"reached": 6}


def test_a_file_of_another_release_is_shown_without_what_cannot_be_read_from_it(api):
    api.submit("kept", spec=spec_of("kept", full_scale={"global_batch_size": 512}))
    api.submit()
    old = "name: bowl\nbatches: 16 32\n"
    api.store.update_spec(api.store.study("bowl").id, old)
    add_trials(api.store, "bowl", 1, batch=32)
    study = api.call("GET", "/studies/bowl").json()
    assert (study["spec"], study["budget_trials"], study["ladder"], study["full_scale"]) == (
        old,
        None,
        [32],
        None,
    )
    assert {
        each["name"]: each["budget_trials"]
        for each in api.call("GET", "/studies").json()["studies"]
    } == {"bowl": None, "kept": 30}
    assert study_facts(api.store.study("kept").spec).full_scale_batch == 512
    forecast = api.call("GET", "/studies/bowl/forecast")
    assert (forecast.status_code, "batches" in forecast.text) == (422, True)  # what cannot be read


def test_the_queue_of_one_owner_is_bounded(tmp_path):
    with served(tmp_path, limits={"queued_studies": 2}) as api:
        assert [api.submit(name).status_code for name in ("a", "b", "c", "b")] == [
            201,
            201,
            429,
            200,
        ]
        assert int(api.submit("c").headers["Retry-After"]) > 0
        assert api.submit("c", owner="bob").status_code == 201


def test_budgets_are_held_to_the_server_s_own(tmp_path):
    with served(tmp_path, limits={"samples": 1000, "trials": 30, "accelerator_hours": 2}) as api:
        study = api.submit(max_samples=5000, max_accelerator_hours=1).json()
        assert (study["max_samples"], study["max_accelerator_hours"]) == (1000, 1.0)
        assert (
            api.submit(
                spec=spec_of("big", budget={"trials": 31, "epochs_per_trial": 20})
            ).status_code
            == 422
        )


def test_a_high_priority_needs_an_admin(api):
    assert api.submit("a", priority=11).status_code == 403
    assert api.submit("a", priority=11, scope="admin").status_code == 201
