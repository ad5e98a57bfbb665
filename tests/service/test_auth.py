"""Who may do what: tokens, scopes, owners, cookies, rates."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime, timedelta

import pytest
from api_server import path_of, served

from hpo.service import auth
from hpo.service.rate_limit import RateLimit
from hpo.service.refusal import RefusedError
from storage.records import Token
from tests.storage.store_samples import new_plan


@pytest.fixture
def api(tmp_path):
    with served(tmp_path) as api:
        yield api


def test_a_secret_is_long_random_and_stored_as_its_digest_alone(api):
    secrets = {auth.new_secret() for _ in range(1000)}
    assert len(secrets) == 1000
    assert all(
        secret.startswith("lb_") and len(secret) == 46 for secret in secrets
    )  # 32 bytes in base64
    secret, token = auth.create_token(
        api.store, owner="ada", scope="read", lifetime=timedelta(days=1)
    )
    assert token.digest == hashlib.sha256(secret.encode()).hexdigest()
    database = (api.app.state.context.config.folder.parent / "hpo.db").read_bytes()
    assert secret.encode() not in database


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("read", {"read"}), ("submit", {"read", "submit"}), ("admin", {"read", "submit", "admin"})],
)
def test_scopes(scope, allowed):
    principal = auth.TokenHolder(1, "ada", frozenset({scope}))
    assert {each for each in auth.SCOPES if principal.allows(each)} == allowed


NOW = datetime(2030, 1, 1, tzinfo=UTC)


def stored(**changed):
    values = {
        "id": 1,
        "name": "",
        "owner": "ada",
        "digest": "d",
        "scopes": frozenset({"read"}),
        "created_at": NOW,
        "expires_at": None,
        "revoked_at": None,
        "last_used_at": None,
    }
    return Token(**{**values, **changed})


def test_which_tokens_count():
    assert auth.check_token(stored(), "d", NOW).owner == "ada"
    assert auth.check_token(stored(expires_at=NOW + timedelta(seconds=1)), "d", NOW).owner == "ada"
    for token, digest in (
        (None, "d"),
        (stored(), "e"),
        (stored(revoked_at=NOW), "d"),
        (stored(expires_at=NOW), "d"),
    ):
        with pytest.raises(RefusedError) as refused:
            auth.check_token(token, digest, NOW)
        assert refused.value.status == 401


def test_a_revoked_token_ends_at_once_where_it_was_revoked_and_soon_elsewhere(api):
    secret = api.token("bob")
    assert api.call("GET", "/me", owner="bob").json()["owner"] == "bob"
    [token] = api.call("GET", "/tokens", owner="bob").json()["tokens"]
    assert api.call("DELETE", f"/tokens/{token['id']}", owner="bob").status_code == 204
    assert api.call("GET", "/me", owner="bob").status_code == 401

    api.secrets.clear()
    assert api.call("GET", "/me", owner="bob").status_code == 200
    digest = hashlib.sha256(api.token("bob").encode()).hexdigest()
    found = api.store.tokens_by_hashes([digest])[digest]
    assert secret != api.token("bob")
    api.store.revoke_token(found.id)  # as another server, or `hpo token revoke`
    deadline = time.monotonic() + 10
    while api.call("GET", "/me", owner="bob").status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


class CountedStore:
    """Counts how often tokens are looked up, and how many at a time."""

    def __init__(self, store):
        self.store, self.asked = store, []

    def tokens_by_hashes(self, digests):
        self.asked.append(len(digests))
        return self.store.tokens_by_hashes(digests)

    def touch_token(self, token_id):
        self.store.touch_token(token_id)


def test_busy_tokens_are_looked_up_together_and_a_revoked_one_ends(api, monkeypatch):
    made = [auth.create_token(api.store, owner=name, scope="read") for name in ("a", "b", "c")]
    (first, _), (second, revoked), (third, _) = made
    store, tokens = CountedStore(api.store), auth.TokenCache()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for secret in (first, second, third):
        tokens.look_up(store, secret)
    assert store.asked == [1, 1, 1]
    now += 1.5  # what is remembered is too old for all three, which were asked with a moment ago
    assert [tokens.remembered(secret) for secret in (first, second, third)] == [None] * 3
    api.store.revoke_token(revoked.id)
    assert tokens.look_up(store, first).owner == "a"
    assert store.asked[3:] == [4]  # itself, and the three that are busy
    assert tokens.remembered(third).owner == "c"
    assert tokens.remembered(second) is None
    with pytest.raises(RefusedError, match="revoked"):
        tokens.look_up(store, second)
    now += 60  # those that nobody asks with any more are left alone
    tokens.look_up(store, first)
    assert store.asked[-1] == 1


def test_the_use_of_a_token_is_noted(api):
    api.call("GET", "/me", owner="bob")
    [token] = api.store.tokens("bob")
    assert token.last_used_at is not None


def test_admins_make_tokens(api):
    made = api.call(
        "POST", "/tokens", scope="admin", json={"owner": "eve", "scope": "read", "name": "laptop"}
    )
    assert made.status_code == 201
    me = api.client.get(
        "/api/v1/me", headers={"Authorization": f"Bearer {made.json()['secret']}"}
    ).json()
    assert (me["owner"], me["scopes"]) == ("eve", ["read"])
    assert datetime.fromisoformat(me["expires_at"]) - datetime.now(UTC) < timedelta(days=31)
    assert api.call("POST", "/tokens", json={"owner": "eve", "scope": "admin"}).status_code == 403
    listed = api.call("GET", "/tokens", scope="admin")
    assert "eve" in [token["owner"] for token in listed.json()["tokens"]]
    assert made.json()["secret"] not in listed.text
    assert all(token["owner"] == "ada" for token in api.call("GET", "/tokens").json()["tokens"])


@pytest.mark.medium
@pytest.mark.parametrize("owner", ["", " ada", "ada ", "a\nb", "x" * 101, "a\x00b"])
def test_owners_that_cannot_be(api, owner):
    assert (
        api.call(
            "POST", "/tokens", scope="admin", json={"owner": owner, "scope": "read"}
        ).status_code
        == 422
    )


def test_others_may_read_but_not_change(api):
    api.submit()
    assert api.call("GET", "/studies/bowl", owner="bob", scope="read").status_code == 200
    for method, path in (
        ("POST", "/cancel"),
        ("POST", "/resume"),
        ("DELETE", ""),
        ("POST", "/plans"),
    ):
        refused = api.call(method, f"/studies/bowl{path}", owner="bob")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (403, "forbidden"), path
        assert "belongs to ada" in refused.json()["error"]["message"]
    assert (
        api.call("POST", "/studies/bowl/cancel", owner="root", scope="admin").json()["state"]
        == "cancelled"
    )


def test_private_reading_hides_what_is_not_one_s_own(tmp_path):
    with served(tmp_path, shared_reading=False) as api:
        api.submit("secret plan")
        for path in (
            "",
            "/trials",
            "/trials/0",
            "/convergence?trial=0",
            "/forecast?at=64",
            "/plans",
            "/logs",
            "/events",
        ):
            assert (
                api.call("GET", f"{path_of('secret plan')}{path}", owner="bob").status_code == 404
            ), path
        unknown, hidden = (
            api.call("GET", path_of(name), owner="bob").json()["error"]["message"]
            for name in ("secret pla", "secret plan")
        )
        assert unknown.replace("secret pla'", "") == hidden.replace("secret plan'", "")
        api.store.add_plan(new_plan(api.store.study("secret plan")))
        hidden, unknown = (
            api.call("GET", f"/plans/{number}", owner="bob").json()["error"] for number in (1, 7)
        )
        assert hidden["message"].replace("1", "7") == unknown["message"]
        assert api.call("GET", "/studies", owner="bob").json()["studies"] == []
        assert api.call("GET", "/studies?owner=ada", owner="bob").json()["studies"] == []
        assert len(api.call("GET", "/studies", owner="root", scope="admin").json()["studies"]) == 1
        assert api.call("GET", path_of("secret plan")).status_code == 200


# the cookie of a browser


def test_the_login_link_sets_a_cookie_that_scripts_cannot_read(api):
    answer = api.client.get("/login", params={"token": api.token("ada"), "next": "/studies/x"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/x")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert api.client.get("/api/v1/me").json()["owner"] == "ada"  # the client keeps cookies


@pytest.mark.medium
@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "javascript:x",
        "\\",
        "/a\nb",
        "",
    ],
)
def test_a_login_never_leads_elsewhere(api, elsewhere):
    answer = api.client.post(
        "/login",
        data={"token": api.token("ada"), "next": elsewhere},
        headers={"X-Requested-With": "test"},
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_wrong_token_gets_the_form_and_no_cookie(api):
    answer = api.client.get(
        "/login", params={"token": "lb_" + "<script>" * 4, "next": '"><script>'}
    )
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "<script>" not in answer.text
    assert api.client.get("/login").status_code == 200


def test_a_cookie_changes_nothing_for_another_site(api):
    api.submit()
    api.client.get("/login", params={"token": api.token("ada")})
    own = str(api.client.base_url).rstrip("/")
    for headers, status in (
        ({}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": own}, 200),
        ({"X-Requested-With": "fetch"}, 200),
    ):
        assert (
            api.client.post("/api/v1/studies/bowl/cancel", headers=headers).status_code == status
        ), headers
    out = api.client.post("/logout", headers={"Origin": own})
    assert 'hpo_session=""' in out.headers["set-cookie"]


# rates


def test_a_bucket_fills_with_time():
    now = [0.0]
    limit = RateLimit(rate=10, burst=3, clock=lambda: now[0])
    assert [limit.wait("a") for _ in range(3)] == [0, 0, 0]
    assert limit.wait("a") == pytest.approx(0.1)
    assert limit.wait("b") == 0
    now[0] += 0.1
    assert limit.wait("a") == 0
    assert limit.wait("a") > 0
    now[0] += 1000
    assert [limit.wait("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_a_token_that_asks_too_often_is_told_when_to_come_back(tmp_path):
    with served(tmp_path, limits={"requests_per_second": 0.01, "burst": 3}) as api:
        statuses = [api.call("GET", "/me").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = api.call("GET", "/me")
        assert 1 <= int(refused.headers["Retry-After"]) <= 101
        assert api.call("GET", "/me", owner="bob").status_code == 200


@pytest.mark.medium
def test_guessing_is_slowed_down(api, monkeypatch):
    monkeypatch.setattr(api.app.state.context.strangers, "_clock", lambda: 0.0)  # all at once

    def guess():
        return api.client.get(
            "/api/v1/me", headers={"Authorization": f"Bearer {auth.new_secret()}"}
        ).status_code

    statuses = [guess() for _ in range(130)]
    assert statuses[0] == 401
    assert 429 in statuses
    assert api.client.get("/health").status_code == 200
