"""What the server says behind a proxy that hands on the wrong things; nginx itself where it is installed."""

import logging
import shutil
import socket
import subprocess
import time

import httpx
import pytest
from api_server import served

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
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
        assert "hand on the Host header" in error["way_out"]


def test_a_proxy_that_is_not_configured_is_told_of_once(tmp_path, caplog):
    with served(tmp_path) as api, caplog.at_level(logging.WARNING):
        api.client.get("/health")
        assert "trusted_proxies" not in caplog.text
        for _ in range(3):
            api.client.get("/health", headers={"X-Forwarded-Proto": "https"})
        assert caplog.text.count("trusted_proxies names none") == 1


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
            assert "hand on the Host header" in refused.json()["error"]["way_out"]
        wrong = nginx(api.client.base_url.port, "proxy_set_header Host backend;")
        refused = httpx.get(f"{wrong}/health")
        assert refused.status_code == 400
        assert "known as 'backend'" in refused.json()["error"]["message"]
        assert "hand on the Host header" in refused.json()["error"]["way_out"]
