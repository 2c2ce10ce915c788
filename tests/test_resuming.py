"""Result files of evaluations: of which model they are, what they survive, and who may write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.hf import FAMILIES
from tests.support.processes import full_disk
from tests.support.resuming import Small, X, closing, told
from tests.support.slow import mostly_slow
from whence.evaluation.fingerprint import Teller

ROOT = Path(__file__).resolve().parents[1]


# ---- of which model it is ----


class Softly(Small):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.softplus(self.first(x)))


class Steeper(Small):
    slope = 3.0


def hooked() -> nn.Module:
    model = Small()
    model.first.register_forward_hook(lambda module, args, output: output * 2)
    return model


def replaced() -> nn.Module:
    model = Small()
    model.forward = lambda x: Small.forward(model, x) * 2  # type: ignore[method-assign]
    return model


def buffered() -> nn.Module:
    model = Small()
    model.register_buffer("scale", torch.ones(1), persistent=False)
    return model


OTHERS = {
    "a function as attribute": lambda: Small(torch.tanh),
    "a lambda as attribute": lambda: Small(lambda x: x.sin()),
    "a number as attribute": lambda: Small(power=2),
    "another forward": Softly,
    "a class attribute": Steeper,
    "a hook": hooked,
    "a forward of its own": replaced,
    "a buffer that is not saved": buffered,
    "a function around it": lambda: closing(1.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_with_the_same_weights_does_not_get_the_old_table(name: str, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    first = told(Small(), file)
    before = file.read_bytes()
    with pytest.raises(whence.FileError, match="belongs to an evaluation with other (model|weights)"):
        told(OTHERS[name](), file)
    assert file.read_bytes() == before
    assert told(Small(), file) == first
    assert file.read_bytes() == before  # nothing was evaluated again


def test_a_function_by_what_it_closes_over_and_calls(tmp_path: Path) -> None:
    first = told(closing(1.0), tmp_path / "r")
    assert told(closing(1.0), tmp_path / "r") == first
    with pytest.raises(whence.FileError, match="with other"):
        told(closing(2.0), tmp_path / "r")


def test_models_of_torch_by_their_classes_and_settings(tmp_path: Path) -> None:
    def made(between: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 3))

    with torch.random.fork_rng(devices=[]):
        first = told(made(nn.LeakyReLU(0.01)), tmp_path / "r")
        assert told(made(nn.LeakyReLU(0.01)), tmp_path / "r") == first
        for other in (nn.LeakyReLU(0.2), nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh")):
            with pytest.raises(whence.FileError, match="with other model"):
                told(made(other), tmp_path / "r")


def test_a_configuration_and_a_tokenizer_belong_to_the_model(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    clf = whence.load("zoo:sentiment")
    call = {"methods": ["attcat"], "metrics": ["comprehensiveness"], "resume": tmp_path / "r"}
    first = whence.evaluate(clf, ["a fine film", "dull"], **call).to_csv()
    assert whence.evaluate(whence.load("zoo:sentiment"), ["a fine film", "dull"], **call).to_csv() == first
    other = whence.load("zoo:sentiment")
    other.model.config.layer_norm_eps = 0.5
    with pytest.raises(whence.FileError, match="with other model"):
        whence.evaluate(other, ["a fine film", "dull"], **call)
    other = whence.load("zoo:sentiment")
    other.tokenizer.add_tokens(["finest"])
    with pytest.raises(whence.FileError, match="with other model"):
        whence.evaluate(other, ["a fine film", "dull"], **call)


def test_what_is_wrapped_by_how_it_reads(tmp_path: Path) -> None:
    def wrapped(factor: int) -> Any:
        return whence.wrap(Small(), lambda rows: torch.stack([torch.full((6,), float(r)) * factor for r in rows]))

    call = {"methods": ["gradient"], "metrics": ["comprehensiveness"], "resume": tmp_path / "r"}
    first = whence.evaluate(wrapped(1), [1, 2], **call).to_csv()
    assert whence.evaluate(wrapped(1), [1, 2], **call).to_csv() == first
    with pytest.raises(whence.FileError, match="with other"):
        whence.evaluate(wrapped(2), [1, 2], **call)


PROGRAM = """
import sys, torch, whence
from tests.support.slow import mostly_slow
from tests.support.resuming import Small, closing, told
models = {"module": Small(lambda x: [y.relu() for y in (x,) if {"a", "b"}][0]), "function": closing(2.0),
          "script": torch.jit.script(torch.nn.Sequential(Small().first, torch.nn.ReLU()))}
for kind, model in models.items():
    print(told(model, f"{sys.argv[1]}/{kind}"), end="")
"""
KINDS = ("module", "function", "script")


def test_the_same_model_in_another_process_goes_on(tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):  # of Python's hashes, by which sets are ordered
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
            timeout=300, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, [(tmp_path / kind).read_bytes() for kind in KINDS]))
    assert found[0] == found[1]
    assert all(found[0][1])


MODELS = {
    "small": lambda: (Small(), {"x": X}),
    "compiled": lambda: (torch.compile(Small(), backend="eager"), {"x": X}),
    **{
        name: lambda family=family: (family.build(family.kinds[0]), family.inputs())
        for name, family in FAMILIES.items()
    },
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", mostly_slow(MODELS, ["small", "compiled", "bert", "llama", "vit"]))
def test_models_are_told_without_addresses_and_the_same_after_they_ran(name: str) -> None:
    model, inputs = MODELS[name]()
    before = str(Teller()(model))
    with torch.no_grad():
        model(**inputs)
    assert " at 0x" not in before
    assert str(Teller()(model)) == before


# ---- what it survives ----


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.evaluation.evaluate.CHUNK", 2)


@pytest.fixture
def finished(tmp_path: Path, chunked: None) -> tuple[Path, str]:
    """A result file of four chunks, and the table."""
    return tmp_path / "r.jsonl", told(Small(), tmp_path / "r.jsonl")


GARBAGE = {
    "nothing": b"", "a line break": b"\n", "zeros": bytes(5000), "bytes": bytes(range(256)) * 20, "a word": b"hello\n",
    "a list": b"[]\n", "a number": b"3\n", "null": b"null\n", "deep": b"[" * 200_000, "another object": b'{"a": 1}\n',
    "a header that is a list": b'{"whence": []}\n', "a header that is null": b'{"whence": null}\n',
    "a header that is empty": b'{"whence": {}}\n', "a deep header": b'{"whence": ' + b'{"a":' * 100_000 + b"\n",
    "a header that is cut": b'{"whence": {"meth', "a header without a line break": b'{"whence": {}}',
    "another version": b'{"whence": {"version": 99}}\n', "a version that is a list": b'{"whence": {"version": []}}\n',
    "NaN": b"NaN\n", "a long number": b'{"whence": ' + b"1" * 5000 + b"}\n",
    "UTF-16": '{"whence": {}}\n'.encode("utf-16"),
    "a mark of the order of bytes": '\ufeff{"whence": {}}\n'.encode(), "an old header": b'{"whence": {"version": 1}}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_result_file_is_one_error_and_stays(name: str, tmp_path: Path, chunked: None) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(GARBAGE[name])
    if name in ("nothing", "a header that is cut"):  # nothing is lost
        assert told(Small(), file) == told(Small(), None)
        return
    with pytest.raises(whence.FileError, match="r.jsonl"):
        told(Small(), file)
    assert file.read_bytes() == GARBAGE[name]


LINES = {
    "binary": b"\x80\x81\n", "deep": b"[" * 200_000 + b"\n", "a list": b"[1]\n", "empty": b"\n", "a word": b"hello\n",
    "no check": b'{"chunk": 0, "rows": [], "cost": {}, "seconds": 0, "failures": []}\n', "NaN": b"NaN\n",
    "a header": b'{"whence": {"version": 2}}\n', "a wrong check": b'{"chunk": 1, "check": "0"}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("place", [1, 2, 5])
def test_a_bad_line_is_told_and_what_stood_there_is_evaluated_again(
    name: str, place: int, finished: tuple[Path, str]
) -> None:
    file, table = finished
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:place], LINES[name], *lines[place + 1 :]]))
    with pytest.warns(whence.WhenceWarning, match=f"is damaged: line {place + 1} cannot be read"):
        assert told(Small(), file) == table


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_byte_is_noticed(seed: int, finished: tuple[Path, str]) -> None:
    file, table = finished
    whole = bytearray(file.read_bytes())
    last = len(whole) - 1  # without the final line break the last line is one that was cut short: see below
    place = int(torch.randint(last, (1,), generator=torch.Generator().manual_seed(seed)))
    whole[place] ^= 1 << (seed % 8)
    file.write_bytes(whole)
    header = whole.index(b"\n") if whole.index(b"\n") < place else place
    try:
        if header < place:
            with pytest.warns(whence.WhenceWarning, match="is damaged"):
                assert told(Small(), file) == table
        else:
            told(Small(), file)
            pytest.fail("the header was taken as it is")
    except whence.FileError as error:
        assert "r.jsonl" in str(error)  # noqa: PT017


@pytest.mark.parametrize("cut", range(1, 200, 13))
def test_what_was_cut_short_goes_without_a_word(cut: int, finished: tuple[Path, str]) -> None:
    file, table = finished
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert told(Small(), file) == table
    assert len(file.read_bytes().splitlines()) == len(whole.splitlines())


def test_a_chunk_that_stands_there_twice_counts_once(finished: tuple[Path, str]) -> None:
    file, table = finished
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[0], *lines[1:], lines[2], lines[1]]))
    assert told(Small(), file) == table


def earlier(file: Path) -> None:
    """The file as the version before wrote it."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line.pop("check")
    lines[0]["whence"].pop("model")
    lines[0]["whence"]["version"] = 1
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_file_of_the_version_before_loads_with_a_word(finished: tuple[Path, str]) -> None:
    file, table = finished
    earlier(file)
    with pytest.warns(whence.WhenceWarning, match="was written by an earlier version"):
        assert told(Small(), file) == table
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], '{"chunk": 2, "ro']))
    with pytest.warns(whence.WhenceWarning, match="was written by an earlier version"):
        assert told(Small(), file) == table  # and goes on
    file.write_text("".join([lines[0], '{"chunk": 0, "rows": 3}\n', '{"chunk": -1}\n', '{"chunk": []}\n', *lines[2:]]))
    with pytest.warns(whence.WhenceWarning) as said:
        assert told(Small(), file) == table
    assert "each of the lines 2, 3, 4" in str(said[1].message)


# ---- who may write it, and where ----


def test_one_evaluation_writes_at_a_time(tmp_path: Path) -> None:
    file, inside, done = tmp_path / "r.jsonl", threading.Event(), threading.Event()

    def waits(model: Any, x: Tensor, t: Tensor) -> Tensor:
        inside.set()
        assert done.wait(60)
        return x

    first = threading.Thread(target=lambda: told(Small(), file, methods={"m": waits}))
    first.start()
    assert inside.wait(60)
    try:
        with pytest.raises(whence.FileError, match="Another evaluation is writing .*r.jsonl.*\n.*another name"):
            told(Small(), file)
    finally:
        done.set()
        first.join()
    size = file.stat().st_size
    assert len(file.read_text().splitlines()) == 2
    told(Small(), file, methods={"m": waits})  # it is free again
    assert file.stat().st_size == size


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_a_full_disk_is_told_and_what_was_finished_stays(share: float, finished: tuple[Path, str]) -> None:
    file, table = finished
    limit = int(share * file.stat().st_size)
    file.unlink()
    with full_disk(limit), pytest.raises(whence.FileError) as caught:
        told(Small(), file)
    assert f"cannot write the result file '{file}': File too large.\n  What was finished" in str(caught.value)
    kept = file.read_bytes()
    assert kept == b"" or kept.endswith(b"\n")
    assert told(Small(), file) == table


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/full", "/dev/null", "pipe", "folder", "no/such", "a\0b"])
def test_what_is_no_file_is_no_place_for_results(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(whence.FileError, match="not a place for a result file"):
        told(Small(), Path(name) if name.startswith("/") else tmp_path / name)
