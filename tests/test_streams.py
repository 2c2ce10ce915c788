"""Rows that come as a stream: the same table as of a list, with memory that does not grow with them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.support.rows import IMAGES, MASKS, image_model

METHODS = ["gradient", "input_x_gradient"]
METRICS = ["comprehensiveness", "sufficiency", "sparseness"]


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)).eval()


X = torch.randn(40, 12, generator=torch.Generator().manual_seed(0))
X[7] = X[3]


def rows(x: Tensor = X) -> Iterator[Tensor]:
    yield from x


def evaluated(data: Any, **given: Any) -> whence.Scoreboard:
    return whence.evaluate(mlp(), data, methods=METHODS, metrics=METRICS, chunk=8, progress=False, **given)


def numbers(board: whence.Scoreboard) -> dict[Any, Any]:
    return {key: {row: r.value for row, r in found.items()} for key, found in board.results.items()}


@pytest.mark.parametrize("kind", ["generator", "map", "loader", "dict"])
def test_a_stream_has_the_table_of_a_list(kind: str) -> None:
    labels = [i % 3 for i in range(40)]
    stream, beside = {
        "generator": (rows(), {"labels": labels}),
        "map": (map(torch.clone, X), {"labels": iter(labels)}),
        "loader": (DataLoader(TensorDataset(X, torch.tensor(labels)), batch_size=7), {}),
        "dict": ({"inputs": rows(), "labels": labels}, {}),
    }[kind]
    board, whole = evaluated(stream, target="label", **beside), evaluated(X, labels=labels, target="label")
    assert numbers(board) == numbers(whole)
    assert board.copies == whole.copies == {7: 3}
    assert board.settings["rows"] == 40
    with pytest.raises(whence.InputError, match="not a stream"):
        board.rows("gradient", "sufficiency").worst(2)


def test_rows_are_read_as_they_are_needed_and_let_go() -> None:
    """No more than two chunks of rows are alive at once, however many there are."""
    alive: list[int] = []

    class Row(Tensor):
        pass

    def living() -> Iterator[Tensor]:
        for i in range(80):
            if i % 8 == 7:
                gc.collect()
                alive.append(sum(type(one) is Row for one in gc.get_objects()))
            yield X[i % 40].clone().as_subclass(Row)

    evaluated(living())
    assert len(alive) == 10
    assert max(alive[2:]) <= 2 * 8
    assert max(alive[5:]) <= max(alive[:5])


def peak(count: int, size: int) -> int:
    """The largest number of bytes in tensors that were alive as any row was asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(size, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    found = [0]

    def stream() -> Iterator[Tensor]:
        draw = torch.Generator().manual_seed(0)
        for i in range(count):
            if i % 8 == 7:
                gc.collect()
                held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors()}
                found[0] = max(found[0], sum(held.values()))
            yield torch.randn(size, generator=draw)

    whence.evaluate(model, stream(), methods=METHODS, metrics=METRICS, chunk=8, progress=False)
    return found[0]


def tensors() -> Iterator[Tensor]:
    yield from (one for one in gc.get_objects() if type(one) in (Tensor, nn.Parameter) and not one.is_sparse)


def test_memory_is_flat_in_rows() -> None:
    """Four times the rows, which are 64 kB each, take not one row more."""
    peak(16, 16_384)  # what is made once
    assert peak(96, 16_384) < peak(24, 16_384) + 4 * 16_384


def test_a_stream_goes_on_after_an_interruption(tmp_path: Path) -> None:
    def cut() -> Iterator[Tensor]:
        yield from X[:20]
        raise KeyboardInterrupt

    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluated(cut(), resume=path)
    assert path.read_text().count('"chunk"') >= 3
    again = evaluated(rows(), resume=path)
    assert numbers(again) == numbers(evaluated(rows()))
    other = X.clone()
    other[12] += 1
    with pytest.raises(whence.FileError, match="other rows for chunk 1"):
        evaluated(rows(other), resume=path)


def test_what_a_stream_cannot_have_is_told() -> None:
    with pytest.raises(whence.InputError, match="empty"):
        evaluated(iter(()))
    with pytest.raises(whence.InputError, match="labels= has 5 entries, but there are more rows"):
        evaluated(rows(), labels=[0] * 5)
    with pytest.raises(whence.InputError, match="labels= has more entries"):
        evaluated(rows(), labels=[0] * 41)
    bad = X.clone()
    bad[9, 0] = float("nan")
    board = evaluated(rows(bad))
    assert [failure.row for failure in board.failures] == [9]
    assert board.settings["rows"] == 40


def test_masks_of_a_stream_are_read_as_the_first_ones() -> None:
    given = [{"image": x, "mask": 255 * m.long()} for x, m in zip(IMAGES, MASKS, strict=True)]

    def found(data: Any) -> Any:
        return whence.evaluate(
            image_model(), data, methods=["gradient"], metrics=["pointing_game"], chunk=1, progress=False, target=0
        )

    assert numbers(found(iter(given))) == numbers(found(given))
    given[1]["mask"] = MASKS[1].long()
    with pytest.raises(whence.InputError, match="mask of row 1 holds other values"):
        found(iter(given))


def test_progress_needs_no_length(capsys: pytest.CaptureFixture[str]) -> None:
    whence.evaluate(mlp(), rows(), methods=["gradient"], metrics=["sparseness"], chunk=8, progress=True)
    shown = capsys.readouterr().err
    assert "evaluate: 8it" in shown or "evaluate: 0it" in shown
    assert "%" not in shown
