"""The wheel: what is in it, what it says of itself, and that it works away from the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import whence

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the sources, so that nothing is left beside them."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(copy),
    ]
    subprocess.run(command, check=True, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel alone; what it needs is read from this one."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    inside = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                            check=True, capture_output=True, text=True, env=away(place)).stdout.strip()  # fmt: skip
    install = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, env=away(place))
    (Path(inside) / "needed.pth").write_text(sysconfig.get_path("purelib"))  # a repository's own .pth is not read there
    return place / "bin"


def away(tmp_path: Path) -> dict[str, str]:
    """An environment that does not know the repository."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "HOME": str(tmp_path)}


def test_the_wheel_is_small_and_whole(wheel: Path) -> None:
    assert wheel.stat().st_size < 16_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    expected = {
        str(file.relative_to(source)) for file in (source / "whence").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }  # fmt: skip
    assert expected <= names
    assert {name.partition("/")[0] for name in names} == {"whence", f"whence-{whence.__version__}.dist-info"}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = HeaderParser().parsestr(archive.read(name).decode())
    assert (told["Name"], told["Version"], told["Requires-Python"]) == ("whence", whence.__version__, ">=3.11")
    assert told["License-Expression"] == "Apache-2.0"
    assert "Development Status :: 5 - Production/Stable" in told.get_all("Classifier", [])
    assert told.get_all("Project-URL") is None
    assert told["Home-page"] is None
    assert {"demo", "hf", "plot", "chem", "photos", "run", "s3", "ray", "serve", "docs"} <= set(
        told.get_all("Provides-Extra", [])
    )
    needed = {re.split(r"[ >=;\[]", line)[0] for line in told.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"torch", "numpy", "safetensors", "tqdm"}


def test_the_commands_work_away_from_the_repository(installed: Path, tmp_path: Path) -> None:
    def said(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=away(tmp_path), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = said(installed / "python", "-c", "import whence; print(whence.__file__)").strip()
    assert str(installed.parent) in where
    assert said(installed / "whence", "methods").count("arXiv:") > 20
    said(installed / "whence", "explain", "--model", "zoo:sentiment", "--text", "A warm little film.",
         "--method", "deeplift", "--out", "a.html")  # fmt: skip
    assert "warm" in (tmp_path / "a.html").read_text()


def test_serve_works_away_from_the_repository(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    command = [installed / "whence", "serve", "--port", "0", "--model", "zoo:sentiment"]
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=tmp_path, env={**away(tmp_path), "PYTHONUNBUFFERED": "1"},
                                  stdout=out, stderr=subprocess.STDOUT)  # fmt: skip
    try:
        page = b""
        for _ in range(1200):
            found = re.search(r"http://\S+", log.read_text())
            try:
                page = urllib.request.urlopen(found[0], timeout=60).read() if found else b""
            except urllib.error.URLError:  # it says where before it listens there
                page = b""
            if page or server.poll() is not None:
                break
            time.sleep(0.1)
        assert b"<script" in page, log.read_text()
    finally:
        server.terminate()
        server.wait(60)
