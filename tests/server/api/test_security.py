"""The server's security, by requests over real sockets: each line of the list has a test that fails without it."""

from __future__ import annotations

import base64
import io
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, png, served
from whence.server.limits import Limits

TEXT = {"model": "zoo:questions", "input": {"text": "How many moons does Jupiter have?"}}
LIMITS = Limits()


# ---- who may ask ----


def test_only_this_machine_is_served_by_default(server: Server) -> None:
    addresses = Path("/proc/net/tcp").read_text().splitlines()[1:]
    own = [line.split()[1] for line in addresses if line.split()[3] == "0A"]  # those that listen
    assert f"0100007F:{server.port:04X}" in own  # 127.0.0.1
    assert f"00000000:{server.port:04X}" not in own


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1.evil.example:{port}",
        "localhost:1",
        "localhost",
        "[",
        "",
        "localhost:" + "9" * 5000,
    ],
)
def test_names_that_were_made_to_point_here_are_refused(server: Server, host: str) -> None:
    """DNS rebinding: the page of another site has become the same origin, but for its name."""
    host = host.format(port=server.port)
    status, kind, text = server.refused("GET", "/api/models", headers={"Host": host})
    assert (status, kind) == (403, "host")
    assert "--allow-host" in text


def test_two_hosts_are_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(
            f"GET /api/models HTTP/1.1\r\nHost: localhost:{server.port}\r\nHost: evil.example\r\n\r\n".encode()
        )
        assert b" 40" in wire.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_its_own_names_are_taken(server: Server, host: str) -> None:
    assert server.send("GET", "/api/models", headers={"Host": host.format(port=server.port)})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)  # fmt: skip
@pytest.mark.parametrize(("method", "path"), [("POST", "/api/ask"), ("GET", "/api/models"), ("DELETE", "/api/jobs/x")])
def test_requests_of_other_sites_are_refused(server: Server, headers: Any, method: str, path: str) -> None:
    body = {"kind": "explain", **TEXT, "methods": ["gradient"]} if method == "POST" else None
    assert server.refused(method, path, body, headers=headers)[:2] == (403, "origin")


def test_the_page_itself_may_ask(server: Server) -> None:
    own = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}
    assert server.send("POST", "/api/predict", TEXT, headers={**own, "Sec-Fetch-Site": "same-origin"})[0] == 200
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}  # a link on another site
    assert server.send("GET", "/", headers=visit)[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_forms_of_other_sites_are_no_requests(server: Server, kind: str) -> None:
    """A form needs no permission to be sent anywhere, but it cannot be JSON."""
    assert server.refused("POST", "/api/predict", TEXT, headers={"Content-Type": kind})[:2] == (415, "type")


# ---- the token ----


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments = ("--host", "0.0.0.0", "--model", "zoo:questions", "--allow-host", "whence.example")
    with served(tmp_path_factory.mktemp("guarded"), *arguments) as found:
        yield found


def token_of(server: Server) -> str:
    return server.address.partition("?token=")[2]


def test_another_address_needs_the_token(guarded: Server) -> None:
    assert len(token_of(guarded)) >= 32
    for path in ("/", "/docs", "/static/style.css", "/api/models", "/openapi.json", "/api/jobs/x/events"):
        status, kind, text = guarded.refused("GET", path)
        assert (status, kind) == (401, "token")
        assert token_of(guarded) not in text
    assert guarded.refused("POST", "/api/predict", TEXT)[:2] == (401, "token")
    assert guarded.refused("GET", "/api/models", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert guarded.refused("GET", "/?token=" + token_of(guarded)[:-1])[0] == 401
    assert guarded.refused("GET", "/?token=é")[0] == 401
    own = {"Authorization": f"Bearer {token_of(guarded)}"}
    assert guarded.send("GET", "/api/models", headers=own)[0] == 200


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(guarded: Server) -> None:
    status, headers, _ = guarded.send("GET", f"/?token={token_of(guarded)}")
    assert (status, headers["location"]) == (303, "/")
    cookie, *how = [part.strip() for part in headers["set-cookie"].split(";")]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(how)
    assert guarded.send("GET", "/api/models", headers={"Cookie": cookie})[0] == 200
    assert guarded.send("GET", "/api/models", headers={"Cookie": cookie[:-1]})[0] == 401
    assert guarded.send("GET", "/api/models", headers={"Cookie": "\x01=;;;=" + "a" * 5000})[0] == 401


@pytest.mark.parametrize("others", ['a={"x": 1}; ', "a=b c; ", "[x]=1; a=é; "])
def test_cookies_of_other_servers_of_the_host_do_not_matter(guarded: Server, others: str) -> None:
    """Cookies know no ports: whatever else runs there may have set some that are malformed."""
    _, headers, _ = guarded.send("GET", f"/?token={token_of(guarded)}")
    own = headers["set-cookie"].partition(";")[0]
    for cookie in (others + own, own + "; " + others):
        assert guarded.send("GET", "/api/models", headers={"Cookie": cookie.encode()})[0] == 200


def test_the_token_does_not_stay_in_the_address(guarded: Server) -> None:
    """Whoever opens the printed address once more has the cookie, and might copy a link from the address."""
    _, headers, _ = guarded.send("GET", f"/?token={token_of(guarded)}")
    own = {"Cookie": headers["set-cookie"].partition(";")[0]}
    status, headers, _ = guarded.send("GET", f"/?token={token_of(guarded)}&a=1", headers=own)
    assert (status, headers["location"]) == (303, "/?a=1")
    assert guarded.send("GET", "/?token=wrong", headers=own)[0] == 200


def test_the_token_is_printed_once_and_nowhere_else(guarded: Server) -> None:
    guarded.send("GET", f"/?token={token_of(guarded)}")
    assert token_of(guarded) not in guarded.log.read_text()


def test_behind_a_proxy_its_name_is_taken_and_the_cookie_is_for_https(guarded: Server) -> None:
    own = {"Host": "whence.example", "Origin": "https://whence.example", "X-Forwarded-Proto": "https"}
    _, headers, _ = guarded.send("GET", f"/?token={token_of(guarded)}", headers=own)
    assert "; Secure" in headers["set-cookie"]
    assert guarded.refused("GET", "/", headers={**own, "Host": "other.example"})[1] == "host"
    assert guarded.refused("GET", "/", headers={**own, "Origin": "https://other.example"})[1] == "origin"


# ---- what a browser may do ----


@pytest.mark.parametrize("path", ["/", "/docs", "/static/style.css", "/api/models", "/nothing", "/openapi.json"])
def test_every_answer_says_what_a_browser_may_do(server: Server, path: str) -> None:
    _, headers, _ = server.send("GET", path)
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_the_pages_ask_for_nothing_from_outside_and_have_no_inline_script(server: Server) -> None:
    for path in ("/", "/docs"):
        _, headers, content = server.send("GET", path)
        assert headers["content-type"].startswith("text/html")
        text = content.decode()
        assert "http://" not in text
        assert "https://" not in text
        assert "<style" not in text
        assert " style=" not in text
        assert "<script>" not in text


def test_an_exported_page_cannot_run_anything_here(server: Server) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    body = {"model": "zoo:questions", "input": {"text": hostile}, "methods": ["gradient"], "format": "html"}
    status, headers, content = server.send("POST", "/api/export", body)
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="whence.html"'
    assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert b"<script>" not in content
    assert b"<img src=x" not in content


# ---- only what was named at the start ----


@pytest.mark.parametrize("name", ["zoo:photos", "/etc", "../../etc/passwd", "bert-base-uncased", "", "zoo:", "\x00"])
def test_only_models_that_were_named_are_used(server: Server, name: str) -> None:
    status, kind, text = server.refused("POST", "/api/predict", {**TEXT, "model": name})
    assert (status, kind) == (404, "unknown")
    assert "It has zoo:questions" in text


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/%2fetc%2fpasswd", "/static/app.py",
     "/static/%2e%2e%2f%2e%2e%2fzoo%2fweights%2fsentiment%2fcard.json", "/static/", "/static/\x00.css"],
)  # fmt: skip
def test_only_the_pages_own_files_are_sent(server: Server, path: str) -> None:
    assert server.send("GET", path)[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {**TEXT, "input": {"image": "/etc/passwd"}, "model": "zoo:fashion-cnn"},
        {**TEXT, "input": {"text": "x", "path": "/etc/passwd"}}, {**TEXT, "at": "out"}, {**TEXT, "rules": {}},
        {**TEXT, "input": {"example": -1}}, {**TEXT, "target": {"a": 1}}, {**TEXT, "input": []}, [], "x", 3, None,
    ],
)  # fmt: skip
def test_a_body_that_is_not_asked_for_is_refused(server: Server, body: Any) -> None:
    status, _, content = server.send("POST", "/api/predict", json.dumps(body).encode())
    assert status == 422
    assert set(json.loads(content)) == {"error", "kind"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": {"text": "a", "prompt": "b"}}, "text and prompt"),
        ({"contrast": {"token": 0, "instead": 1}}, "answer"),
        ({"options": {"shaply": {"samples": 5}}}, "shaply"), ({"methods": ["lrp", "lrp_gamma"]}, "one after the other"),
        ({"model": "zoo:translation", "input": {"text": "Ein Haus", "pair": "a house"}}, "pair"),
    ],
)  # fmt: skip
def test_what_would_not_be_read_is_refused(server: Server, body: Any, says: str) -> None:
    whole = {"kind": "explain", **TEXT, "methods": ["gradient"], **body}
    status, _, text = server.refused("POST", "/api/ask", whole)
    assert status == 422
    assert says in text
    assert "Traceback" not in server.log.read_text()


def test_half_a_character_is_refused_wherever_it_stands(server: Server) -> None:
    for body in ({"input": {"text": "a", "pair": "half \ud83d"}}, {"input": {"text": "a", "smiles": "\ud83d"}},
                 {"target": "\ud83d"}):  # fmt: skip
        assert server.refused("POST", "/api/predict", {**TEXT, **body})[0] == 422


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"samples": 10**9}, "number"), ({"samples": 1e300}, "number"), ({"samples": -(10**9)}, "number"),
        ({"samples": [1]}, "ParameterError"), ({"of_params": {"a": 1}}, "ParameterError"),
        ({"nothing": 1}, "ParameterError"), ({"of": "__import__('os')"}, "MethodError"),
    ],
)  # fmt: skip
def test_parameters_are_plain_and_not_huge(server: Server, options: Any, kind: str) -> None:
    body = {"kind": "explain", **TEXT, "methods": ["smoothgrad"], "options": {"smoothgrad": options}}
    told = server.post("/api/ask", body)
    assert told["results"] == []
    assert told["failed"][0]["method"] == "smoothgrad"


# ---- limits ----


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    large = {"Content-Length": str(LIMITS.body + 1)}
    status, kind, text = server.refused("POST", "/api/predict", b"{", headers=large)
    assert (status, kind) == (413, "size")
    assert "12 MB" in text


def test_a_body_without_a_length_is_refused_where_it_becomes_too_large(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as wire:
        head = f"POST /api/predict HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"x" * (1 << 20)
        try:
            for _ in range(LIMITS.body // len(piece) + 2):
                wire.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        except OSError:
            pass  # it has stopped listening
        assert b" 413 " in wire.recv(4096).split(b"\r\n")[0]


def test_texts_have_limits(server: Server) -> None:
    status, kind, text = server.refused("POST", "/api/predict", {**TEXT, "input": {"text": "a" * 20_001}})
    assert (status, kind) == (413, "letters")
    assert text == "The text has 20,001 letters, and the limit is 20,000.\n  Shorten it."
    status, kind, text = server.refused("POST", "/api/predict", {**TEXT, "input": {"text": "a " * 600}})
    assert (status, kind) == (413, "tokens")
    assert re.fullmatch(r"The text has 60\d tokens, and the (model takes|limit is) \d+\.\n  Shorten it\.", text)
    assert server.refused("POST", "/api/predict", {**TEXT, "input": {"text": " \n"}})[0] == 422
    assert server.refused("POST", "/api/predict", {**TEXT, "input": {"text": "half \ud83d of it"}})[0] == 422


def picture(content: bytes) -> dict[str, Any]:
    return {"model": "zoo:fashion-cnn", "input": {"image": base64.b64encode(content).decode()}}


def test_a_decompression_bomb_is_refused_before_it_is_decoded(server: Server) -> None:
    assert server.send("POST", "/api/predict", picture(png(40, 40)))[0] == 200
    for side, told in ((6_000, "6,000 × 6,000"), (30_000, "far too many")):
        bomb = png(side, side)
        assert len(bomb) < 2 << 20
        before = server.memory()
        status, kind, text = server.refused("POST", "/api/predict", picture(bomb))
        assert (status, kind) == (413, "pixels")
        assert text == f"The image has {told} pixels, and the limit is 25,000,000 in all.\n  Make it smaller."
        assert server.memory() - before < 30_000  # decoded, the smaller one would take 36 MB and more


@pytest.mark.parametrize(("width", "height"), [(30_000, 1), (1, 30_000), (620, 20)])
def test_a_strip_is_refused(server: Server, width: int, height: int) -> None:
    """A model that scales the shorter side would make gigabytes of it."""
    status, kind, text = server.refused("POST", "/api/predict", picture(png(width, height)))
    assert (status, kind) == (413, "sides")
    assert f"{width:,} × {height:,}" in text
    assert server.send("POST", "/api/predict", picture(png(600, 20)))[0] == 200


def test_files_that_are_no_pictures_are_refused(server: Server) -> None:
    Image = pytest.importorskip("PIL.Image")
    whole = io.BytesIO()
    Image.new("RGB", (8, 8)).save(whole, "TIFF")  # a kind that is not among the few
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    for content in (b"", b"nothing", png(40, 40)[:-40], svg, whole.getvalue()):
        status, _, text = server.refused("POST", "/api/predict", picture(content))
        assert status == 422
        assert "The image cannot be read" in text
    body = {"model": "zoo:fashion-cnn", "input": {"image": "no base64!"}}
    assert server.refused("POST", "/api/predict", body)[0] == 422


# ---- one failing request harms no other ----


def test_nonsense_harms_nobody(server: Server) -> None:
    expected = server.post("/api/predict", TEXT)
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(f"POST /api/ask HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
                     "Content-Length: 50\r\n\r\n{".encode())  # and it hangs up  # fmt: skip
    for content in (b"\xff\xfe", b"{" * 100_000, b'{"a":' * 50_000, b"NaN", b'{"model": 1e999}'):
        status, _, told = server.send("POST", "/api/predict", content)
        assert status in (400, 422), told
    assert server.post("/api/predict", TEXT) == expected
    assert "Traceback" not in server.log.read_text()


def test_hostile_text_comes_back_as_it_is_in_json_only(server: Server) -> None:
    for hostile in (
        "<script>alert(1)</script>",
        "</title><img src=x>",
        "\u202eabc\u0000\u001b[31m",
        "{{7*7}}",
        "' OR 1",
    ):
        status, headers, content = server.send("POST", "/api/predict", {**TEXT, "input": {"text": hostile}})
        assert status == 200, content
        assert headers["content-type"] == "application/json"
        assert json.loads(content)["text"] == hostile
    status, headers, content = server.send("GET", "/<script>alert(1)</script>")
    assert (status, headers["content-type"]) == (404, "application/json")
