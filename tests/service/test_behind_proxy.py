"""Behind a proxy: the server's message about wrongly forwarded headers, and the configurations of the guide.

nginx and Caddy are run where they are installed.
"""

import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from api_server import listening, served, spec_of

from hpo.cli.commands.web import dashboard_routers
from hpo.service.app import create_app
from hpo.service.auth import create_token
from hpo.service.config import ServerConfig
from storage.records import NewStudy
from storage.store import Store

NGINX, CADDY = (
    shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    for name in ("nginx", "caddy")
)
GUIDE = Path(__file__).parents[2] / "docs/guides/proxy.md"
CONFIG = """\
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_http_version 1.1;
      {headers}
    }}
  }}
}}
"""
RIGHT = """\
proxy_set_header Host $http_host;
proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
proxy_set_header X-Forwarded-Proto https;
proxy_buffering off;"""


def login(client, token, origin):
    return client.post("/login", data={"token": token}, headers={"Origin": origin})


def test_an_origin_that_is_not_the_host_is_told_with_both(tmp_path):
    with served(tmp_path, hosts=["hpo.example.org"]) as api:
        headers = {"Host": "localhost", "Origin": "https://hpo.example.org"}
        refused = api.client.post("/login", data={"token": api.token("ada")}, headers=headers)
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert "'https://hpo.example.org' to 'localhost'" in error["message"]
        assert "forward the original Host header" in error["way_out"]


def test_a_proxy_that_is_not_configured_is_told_of_once(tmp_path, caplog):
    with served(tmp_path) as api, caplog.at_level(logging.WARNING):
        api.client.get("/health")
        assert "trusted_proxies" not in caplog.text
        for _ in range(3):
            api.client.get("/health", headers={"X-Forwarded-Proto": "https"})
        assert caplog.text.count("trusted_proxies is empty") == 1


def test_nothing_is_said_of_a_proxy_that_is_configured(tmp_path, caplog):
    with served(tmp_path, trusted_proxies=["127.0.0.1"]) as api, caplog.at_level(logging.WARNING):
        api.client.get("/health", headers={"X-Forwarded-Proto": "https"})
        assert "trusted_proxies" not in caplog.text


@pytest.fixture
def nginx(tmp_path):
    """Starts nginx before a server; yields a function of the server's port and the headers it hands on."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    started = []

    def start(upstream, headers):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder = tmp_path / f"nginx-{port}"
        folder.mkdir()
        text = CONFIG.format(folder=folder, port=port, upstream=upstream, headers=headers)
        (folder / "nginx.conf").write_text(text)
        process = subprocess.Popen([NGINX, "-c", folder / "nginx.conf", "-p", folder])
        started.append(process)
        until = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/health")
                return f"http://127.0.0.1:{port}"
            except httpx.HTTPError:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


@pytest.mark.processes
def test_nginx_that_hands_on_host_and_scheme(tmp_path, nginx):
    with served(tmp_path, hosts=["hpo.example.org"], trusted_proxies=["127.0.0.1"]) as api:
        address = nginx(api.client.base_url.port, RIGHT)
        with httpx.Client(base_url=address, headers={"Host": "hpo.example.org"}) as browser:
            assert browser.get("/health").status_code == 200
            entered = login(browser, api.token("ada"), "https://hpo.example.org")
            assert entered.status_code == 303
        with httpx.Client(base_url=address, headers={"Host": "evil.example"}) as other:
            assert other.get("/health").status_code == 400
        token = {"Authorization": f"Bearer {api.token('ada')}", "Host": "hpo.example.org"}
        with httpx.stream("GET", f"{address}/api/v1/events", headers=token, timeout=30) as events:
            assert next(events.iter_raw()).startswith(b"retry:")  # not held back by the proxy


@pytest.mark.processes
def test_nginx_that_does_not_hand_on_the_host(tmp_path, nginx):
    """nginx by itself asks by the name of the upstream."""
    with served(tmp_path, hosts=["hpo.example.org"]) as api:
        address = nginx(api.client.base_url.port, "")
        with httpx.Client(base_url=address, headers={"Host": "hpo.example.org"}) as browser:
            refused = login(browser, api.token("ada"), "https://hpo.example.org")
            assert refused.status_code == 403
            assert "forward the original Host header" in refused.json()["error"]["way_out"]
        wrong = nginx(api.client.base_url.port, "proxy_set_header Host backend;")
        refused = httpx.get(f"{wrong}/health")
        assert refused.status_code == 400
        assert "known as 'backend'" in refused.json()["error"]["message"]
        assert "forward the original Host header" in refused.json()["error"]["way_out"]


# the configurations of the guide


def blocks(language):
    """Those of one proxy, in the order of the guide: a name of one's own, and a path below another's."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


def nginx_of_the_guide(text, folder, port):
    key = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        folder / "hpo.key",
        "-out",
        folder / "hpo.pem",
    ]
    names = "subjectAltName=DNS:hpo.example.org,DNS:example.org"
    subprocess.run(
        ["openssl", "req", "-x509", *key, "-days", "1", "-subj", "/CN=hpo", "-addext", names],
        check=True,
        capture_output=True,
    )
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    around = CONFIG[: CONFIG.index("  server {{")].format(folder=folder)
    if os.geteuid() == 0:  # its workers would be another user, who may not enter the folder
        around = f"user root; {around}"
    (folder / "nginx.conf").write_text(f"{around}{text.replace('/etc/ssl', str(folder))}}}\n")
    return [NGINX, "-c", folder / "nginx.conf", "-p", folder], folder / "hpo.pem"


def caddy_of_the_guide(text, folder, port):
    """With certificates of its own authority, as no other is reached, and without the port for plain HTTP."""
    name = text.partition(" ")[0]
    text = text.replace(f"{name} {{", f"{name}:{port} {{\n    tls internal\n    bind 127.0.0.1", 1)
    options = "admin off\nauto_https disable_redirects\nskip_install_trust"
    (folder / "Caddyfile").write_text(
        f"{{\n{options}\nstorage file_system {folder}/store\n}}\n{text}"
    )
    command = [CADDY, "run", "--config", folder / "Caddyfile", "--adapter", "caddyfile"]
    return command, folder / "store/pki/authorities/local/root.crt"


@contextmanager
def proxied(kind, number, folder, upstream):
    """A client behind the proxy of the guide's configuration ``number``; it knows the service by its name."""
    executable, language, made = {
        "nginx": (NGINX, "nginx", nginx_of_the_guide),
        "caddy": (CADDY, "caddy", caddy_of_the_guide),
    }[kind]
    if executable is None or (kind == "nginx" and shutil.which("openssl") is None):
        pytest.skip(f"{kind} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = blocks(language)[number].replace("127.0.0.1:8642", f"127.0.0.1:{upstream}")
    command, authority = made(text, folder, port)
    name = "hpo.example.org" if number == 0 else "example.org"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "HOME": str(folder)}, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 120
        while not _shakes_hands(port, name, authority):
            assert time.monotonic() < until and process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        trust = ssl.create_default_context(cafile=authority)
        with httpx.Client(
            base_url=f"https://{name}:{port}",
            transport=Here(verify=trust),
            headers={"Host": name},
            timeout=120,
        ) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # Caddy waits for streams, as long as they last
            process.kill()
            process.wait(30)


def _shakes_hands(port, name, authority):
    """Whether the proxy listens and has its certificate: Caddy makes it after it has begun to listen."""
    try:
        trust = ssl.create_default_context(cafile=authority)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
            trust.wrap_socket(connection, server_hostname=name),
        ):
            return True
    except OSError:
        return False


class Here(httpx.HTTPTransport):
    """Goes to this machine, whatever the name, which the certificate must be for."""

    def handle_request(self, request):
        request.extensions["sni_hostname"] = request.url.host
        request.url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(request)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["nginx", "caddy"])
@pytest.mark.parametrize(
    ("number", "host", "path"), [(0, "hpo.example.org", ""), (1, "example.org", "/hpo")]
)
def test_the_configurations_of_the_guide(tmp_path, kind, number, host, path):
    config = ServerConfig.model_validate(
        {
            "storage": f"sqlite:///{tmp_path}/hpo.db",
            "folder": tmp_path / ".hpo",
            "hosts": (host,),
            "path": path,
            "trusted_proxies": ("127.0.0.1",),
        }
    )
    with Store.open(config.storage) as store:
        secret, _ = create_token(store, owner="ada", scope="submit")
        store.create_study(
            NewStudy(
                name="small",
                workload="noisy_quadratic",
                metric="loss",
                threshold=0.1,
                higher_is_better=False,
                spec=spec_of("small"),
            )
        )
    with (
        listening(create_app(config, dashboard_routers(path))) as address,
        proxied(kind, number, tmp_path, httpx.URL(address).port) as browser,
    ):
        entered = browser.post(
            f"{path}/login", data={"token": secret}, headers={"Origin": f"https://{host}"}
        )
        assert (entered.status_code, entered.headers["location"]) == (303, f"{path}/")
        cookie = entered.headers["set-cookie"].lower()
        assert "secure" in cookie and f"path={path}/;" in f"{cookie};"
        session = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}

        page = browser.get(f"{path}/", headers=session)
        addresses = re.findall(r'(?:href|src)="(/[^"]*)"', page.text)
        assert len(addresses) > 6 and all(each.startswith(f"{path}/") for each in addresses)
        assert {browser.get(each).status_code for each in addresses} == {200}
        assert browser.get(f"{path}/api/v1/me", headers=session).json()["owner"] == "ada"

        token = {"Authorization": f"Bearer {secret}"}
        large = {"spec": spec_of("large"), "padding": "x" * 2_000_000}
        refused = browser.post(f"{path}/api/v1/studies", json=large, headers=token)
        assert refused.status_code == 422 and "padding" in refused.text  # by the service
        too_large = {"spec": "x" * 4_000_000}
        refused = browser.post(f"{path}/api/v1/studies", json=too_large, headers=token)
        assert refused.status_code in (413, 502)  # Caddy's word for a body that it gave up
        for events in ("events", "studies/small/events"):
            with browser.stream("GET", f"{path}/api/v1/{events}", headers=token) as stream:
                assert next(stream.iter_raw()).startswith(b"retry:")  # not held back


@pytest.mark.parametrize("asked", ["/hpo/", "/"])
def test_a_proxy_may_hand_on_the_path_or_take_it_off(tmp_path, asked):
    config = ServerConfig.model_validate(
        {"storage": f"sqlite:///{tmp_path}/hpo.db", "folder": tmp_path, "path": "/hpo"}
    )
    with (
        listening(create_app(config, dashboard_routers(config.path))) as address,
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        page = client.get(asked)
        assert page.status_code == 200 and 'href="/hpo/submit"' in page.text
        assert client.get(f"{asked}health").status_code == 200
        assert client.get(f"{asked}api/v1/me").status_code == 401
        assert client.get("/hpox/").status_code == 404
        secret, _ = create_token(Store.open(config.storage), owner="ada", scope="read")
        for after, to in (("/hpo/submit", "/hpo/submit"), ("/elsewhere", "/hpo/")):
            entered = client.post(
                f"{asked}login",
                data={"token": secret, "next": after},
                headers={"Origin": address},
            )
            assert (entered.status_code, entered.headers["location"]) == (303, to)
            assert "path=/hpo/;" in entered.headers["set-cookie"].lower()


@pytest.mark.parametrize("path", ["hpo", "/hpo/", "/h po", "//hpo", "/a?b"])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(ValueError, match="path"):
        ServerConfig.model_validate({"path": path})
