"""Options and places that tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.authors import Build, Truth, chefer_bert, chefer_vit
from tests.support.shared import present

SHARED = Path(__file__).resolve().parents[2] / "shared"
ORACLES = Path(os.environ.get("WHENCE_ORACLES", SHARED / "oracles"))
DATA = Path(os.environ.get("WHENCE_DATA", SHARED / "data"))

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails the run")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not session.config.getoption("--no-skips"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def oracle() -> object:
    """Open one of the authors' files: oracle("chefer_bert") -> (tensors, config)."""
    import json

    from safetensors import safe_open

    def read(name: str) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        with safe_open(present(ORACLES / f"{name}.safetensors"), "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, json.loads((file.metadata() or {}).get("config", "{}"))

    return read


@pytest.fixture
def data() -> object:
    """The folder of a real model or data set: data("bert-tiny-toxicity")."""
    return lambda name: present(DATA / name)


@pytest.fixture
def authors_bert(oracle: Any) -> tuple[Build, Truth]:
    return chefer_bert(oracle)


@pytest.fixture
def authors_vit(oracle: Any) -> tuple[Build, Truth]:
    return chefer_vit(oracle)
