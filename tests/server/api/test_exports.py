"""Exports: files that hold what is on the screen, and code that gives it again."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.server import ROOT, Server, png

HOSTILE = 'It\'s $(touch x) `touch y` "quoted" ; touch z & <b>bold</b> \\ --help\nnext line'
METHODS = ["integrated_gradients", "attnlrp"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def exported(server: Server, form: str, **body: Any) -> bytes:
    status, headers, content = server.send("POST", "/api/export", {"format": form, "methods": METHODS, **body})
    assert status == 200, content
    assert headers["content-disposition"].startswith('attachment; filename="whence.')
    return content


@pytest.fixture
def body() -> dict[str, Any]:
    return {"model": "zoo:sentiment", "input": {"text": "Despite a clumsy start, this is unforgettable."}}


def test_a_page_and_a_picture(server: Server, body: Any, tmp_path: Path) -> None:
    page = exported(server, "html", **body).decode()
    for words in ("Why “", "unforgettable", "Do they agree?", "Does the model bear them out?", "has no script"):
        assert words in page
    pytest.importorskip("matplotlib")
    from PIL import Image

    (tmp_path / "a.png").write_bytes(exported(server, "png", **body))
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 600
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50  # something is drawn


def test_json_holds_the_values(server: Server, body: Any) -> None:
    told = json.loads(exported(server, "json", **body))
    model = whence.load("zoo:sentiment")
    for name in METHODS:
        a = whence.explain(model, body["input"]["text"], method=name).merge_words()
        (row,) = told["methods"][name]["rows"]
        assert row["maps"][0]["values"] == pytest.approx(a.values[0].tolist(), rel=1e-6)
        assert row["maps"][0]["units"] == a.units[0]


@pytest.mark.parametrize("text", ["Despite a clumsy start, this is unforgettable.", HOSTILE])
def test_the_python_gives_the_same_again(server: Server, text: str, tmp_path: Path) -> None:
    asked = {"model": "zoo:sentiment", "input": {"text": text}, "target": 0, "methods": [*METHODS, "shapley"]}
    code = exported(server, "python", **asked).decode()
    (tmp_path / "script.py").write_text(
        code + "import json\nprint(json.dumps({n: a.values[0].tolist() for n, a in found.items()}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, env=ENVIRONMENT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout.splitlines()[-1])
    for found in server.ask(kind="explain", **asked)["results"]:
        assert torch.equal(torch.tensor(values[found["method"]]), torch.tensor(found["values"]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["script.py", "whence.html"]


@pytest.mark.parametrize("text", ["Despite a clumsy start, this is unforgettable.", HOSTILE])
def test_the_command_gives_the_same_again(server: Server, text: str, tmp_path: Path) -> None:
    asked = {"model": "zoo:sentiment", "input": {"text": text}, "target": "negative", "methods": [*METHODS, "shapley"]}
    code = exported(server, "shell", **asked).decode().replace("--out whence.html", "--out whence.json")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "whence").write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m whence "$@"\n')
    (folder / "whence").chmod(0o755)
    (tmp_path / "script.sh").write_text(code)
    places = {**ENVIRONMENT, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [shutil.which("sh") or "sh", "script.sh"], cwd=tmp_path, env=places, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "whence.json").read_text())["methods"]
    for found in server.ask(kind="explain", **asked)["results"]:
        values = told[found["method"]]["rows"][0]["maps"][0]["values"]
        assert torch.equal(torch.tensor(values), torch.tensor(found["values"]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bin", "script.sh", "whence.json"]


def test_images_and_prompts_have_code_too(server: Server, tmp_path: Path) -> None:
    name = "../../etc/$(touch x)';\n.png"
    shell = exported(server, "shell", model="zoo:fashion-cnn", input={"image": IMAGE}, file=name).decode()
    assert "--image=" in shell
    assert "etc/" not in shell
    assert "touch x)" not in shell
    script = exported(server, "python", model="zoo:fashion-cnn", input={"example": 3}).decode()
    script += exported(
        server,
        "python",
        model="zoo:language",
        input={"prompt": "the film is a"},
        target=[403, 328],
        methods=["attnlrp"],
    ).decode()
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, env=ENVIRONMENT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr


IMAGE = base64.b64encode(png(8, 8)).decode()


def test_what_cannot_be_exported_is_told(server: Server, body: Any) -> None:
    status, kind, text = server.refused("POST", "/api/export", {**body, "format": "html", "methods": ["grad_cam"]})
    assert (status, kind) == (422, "ParameterError")
    assert text.startswith("None of the methods could explain this.")
    assert server.refused("POST", "/api/export", {**body, "format": "exe", "methods": METHODS})[0] == 422
    two = {"shapley": {"samples": 7}, "lime": {"samples": 64}}
    asked = {**body, "format": "shell", "methods": ["shapley", "lime"], "options": two}
    assert "Take the Python instead" in server.refused("POST", "/api/export", asked)[2]


@pytest.mark.parametrize(
    ("methods", "options", "name"),
    [
        (["integrated_gradients", "conductance"], {"integrated_gradients": {"steps": 3}}, "steps"),
        (["transformer_attribution", "lrp_gamma"], {}, "composite"),
    ],
)
def test_a_command_that_would_give_other_numbers_is_refused(
    server: Server, body: Any, methods: list[str], options: Any, name: str
) -> None:
    """A parameter of a command is for every method that knows it, and here one of them had its default."""
    asked = {**body, "format": "shell", "methods": methods, "options": options}
    status, _, text = server.refused("POST", "/api/export", asked)
    assert status == 422
    assert f"one --{name} for all methods" in text
    same = {**asked, "methods": methods[-1:], "options": {}}
    assert server.send("POST", "/api/export", same)[0] == 200


def test_presets_of_patches_are_not_given_to_methods_that_had_none(server: Server) -> None:
    asked = {"format": "shell", "model": "zoo:fashion-vit", "input": {"example": 2}}
    text = server.refused("POST", "/api/export", {**asked, "methods": ["shapley", "occlusion"]})[2]
    assert "one --units for all methods" in text
