"""A batch of a run's rows as named units: words (or tokens, or features) with each method's values, or maps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.runs.storage import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from whence.runs.opened import Run
    from whence.runs.plan import Shard

Array = np.ndarray[Any, Any]
_LONG = 80  # letters of a unit's name that are kept
ABOUT = ("row", "id", "text", "second", "image", "label", "prediction", "probability", "target", "score")
_PLACED = ("row", "text", "second")  # what is needed of it to place units in a row's texts
_TOKENS = ("tokens", "starts", "ends", "special", "words", "segments")


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows, one after the other, and the units of all of them in one line."""

    about: list[dict[str, Any]]  # each row's columns but for tokens and values
    gaps: Array  # (methods, rows), NaN where there is none
    owner: Array  # (units,) the row of each unit, by its place in `about`
    values: Array  # (methods, units), NaN where a method has no answer
    special: Array  # (units,) whether it is a special token
    names: list[str] | None = None  # of the units; None for the cells of maps
    spans: Array | None = None  # (units, 3): start and end in a text of the row, and which of its texts
    grid: tuple[int, int] | None = None  # of maps: rows and columns

    def __len__(self) -> int:
        return len(self.about)


def blocks(run: Run, unit: str = "word") -> Iterator[Block]:
    """The run as a stream of blocks; the rows of a block are all of one kind."""
    methods = run.methods
    columns = [*ABOUT, *_TOKENS, *_told_by(methods)]
    for shard, batch in run._selected(columns):
        whole = _any_valid(batch, [f"shape_{m}" for m in methods])
        if not whole.all():
            yield _listed(batch.filter(library("pyarrow").array(~whole)), methods, unit)
        if whole.any():
            yield from _maps(run, shard, batch.filter(library("pyarrow").array(whole)))


def _told_by(methods: Sequence[str]) -> list[str]:
    return [f"{kind}_{m}" for m in methods for kind in ("values", "shape", "gap")]


def block_of(run: Run, numbers: Sequence[int], unit: str = "word") -> Block | None:
    """Chosen rows by the run's method, as one block; None where none of them has values in a line.

    Of each part that holds one of them, only the columns that the block needs are read.
    """
    pa = library("pyarrow")
    starts, columns = [shard.row for shard in run.shards], [*_PLACED, *_TOKENS, *_told_by([run.method])]
    wanted: dict[int, list[int]] = {}
    for number in numbers:
        wanted.setdefault(bisect_right(starts, number) - 1, []).append(number)
    found = []
    for part, own in sorted(wanted.items()):
        if part >= 0:
            chosen = pa.array(own, pa.int64())
            for batch in run._read(run.shards[part], columns):
                there = library("pyarrow.compute").is_in(batch.column("row"), value_set=chosen)
                found.append(batch.filter(there).replace_schema_metadata(None))
    listed = [batch.filter(batch.column(f"values_{run.method}").is_valid()) for batch in found]
    if not sum(batch.num_rows for batch in listed):
        return None
    return _listed(pa.Table.from_batches(listed).combine_chunks().to_batches()[0], [run.method], unit)


def _any_valid(batch: Any, names: Sequence[str]) -> Array:
    masks = [np.asarray(batch.column(name).is_valid().to_numpy(zero_copy_only=False)) for name in names]
    return np.logical_or.reduce(masks)


def _about(batch: Any, methods: Sequence[str]) -> tuple[list[dict[str, Any]], Array]:
    gaps = [batch.column(f"gap_{m}").to_numpy(zero_copy_only=False).astype(float) for m in methods]
    there = [name for name in ABOUT if name in batch.schema.names]
    return batch.select(there).to_pylist(), np.stack(gaps)


# ---- values in a line: words, tokens, features ----


def _flat(column: Any) -> tuple[Any, Array]:
    """The items of a column of lists in one line, and how many each row has; 0 where it has none."""
    lengths = library("pyarrow.compute").list_value_length(column).fill_null(0)
    return column.flatten(), lengths.to_numpy(zero_copy_only=False)


def _listed(batch: Any, methods: Sequence[str], unit: str) -> Block:
    about, gaps = _about(batch, methods)
    tokens, token_counts = _flat(batch.column("tokens"))
    found = [_flat(batch.column(f"values_{m}")) for m in methods]
    counts = token_counts.copy()
    for _, own in found:  # features have no tokens
        counts = np.where(token_counts == 0, np.maximum(counts, own), counts)
    owner, starts = np.repeat(np.arange(len(about)), counts), np.concatenate([[0], np.cumsum(counts)])
    values = np.full((len(methods), len(owner)), np.nan)
    for number, (items, own) in enumerate(found):
        fits = own == counts  # a method that explains other units than the tokens has no part in this
        line = items.to_numpy(zero_copy_only=False).astype(float)
        values[number, np.repeat(fits, counts)] = line[np.repeat(fits, own)]
    values[~np.isfinite(values)] = np.nan
    if not token_counts.any():
        names = [str(place) for place in np.arange(len(owner)) - starts[owner]]
        return Block(about, gaps, owner, values, np.zeros(len(owner), dtype=bool), names)
    return _worded(batch, about, gaps, owner, values, tokens.to_pylist(), counts, unit)


def _worded(
    batch: Any, about: list[dict[str, Any]], gaps: Array, owner: Array, values: Array, tokens: list[str],
    counts: Array, unit: str,
) -> Block:  # fmt: skip
    """Tokens put together to words, the sum of their values; special tokens stay by themselves."""
    if len(tokens) != len(owner):  # rows without tokens among others: their units have numbers
        tokens = _with_numbers(batch, counts)
    special = _column(batch, "special", owner, False).astype(bool)
    words = _column(batch, "words", owner, np.nan)
    segments = _column(batch, "segments", owner, 0)
    starts, ends = _column(batch, "starts", owner, -1), _column(batch, "ends", owner, -1)
    first = np.ones(len(owner), dtype=bool)
    if unit == "word":
        same = (owner[1:] == owner[:-1]) & (words[1:] == words[:-1]) & (segments[1:] == segments[:-1])
        first[1:] = ~same | special[1:] | special[:-1]
    heads = np.flatnonzero(first)
    summed = np.add.reduceat(values, heads, axis=1) if len(heads) else values
    empty = starts >= ends  # such as a space of its own, which belongs to the word after it
    low = np.minimum.reduceat(np.where(empty, np.iinfo(np.int32).max, starts), heads)
    high = np.maximum.reduceat(np.where(empty, -1, ends), heads)
    spans = np.stack([low, high, np.nan_to_num(segments[heads])], 1).astype(np.int64)
    names = [
        _name(tokens[head], about[owner[head]], spans[number], bool(special[head]), unit)
        for number, head in enumerate(heads)
    ]
    text = any(row["text"] is not None for row in about)  # features have names too, and no place in a text
    return Block(about, gaps, owner[heads], summed, special[heads], names, spans if text else None)


def _with_numbers(batch: Any, counts: Array) -> list[str]:
    own = batch.column("tokens").to_pylist()
    return [name for row, count in zip(own, counts, strict=True) for name in (row or map(str, range(count)))]


def _column(batch: Any, name: str, owner: Array, missing: Any) -> Array:
    """A column of lists beside the tokens; where a row has no list, or one of another length, `missing`."""
    items, lengths = _flat(batch.column(name))
    counts = np.bincount(owner, minlength=batch.num_rows)
    found = np.full(len(owner), missing, dtype=float)
    line = items.to_numpy(zero_copy_only=False).astype(float)
    fits = lengths == counts
    found[np.repeat(fits, counts)] = line[np.repeat(fits, lengths)]
    return found


def _name(token: str, about: dict[str, Any], span: Array, special: bool, unit: str) -> str:
    """A word as the text has it, in lower case; a token as it is."""
    text = about["second"] if span[2] == 1 and about["second"] is not None else about["text"]
    if special or unit == "token" or text is None or span[1] < 0:
        bare = token[1:] if len(token) > 1 and token[0] in "Ġ▁" and unit == "word" else token
        return bare[:_LONG]
    return " ".join(text[span[0] : span[1]].split()).lower()[:_LONG] or token[:_LONG]


# ---- maps ----


def _maps(run: Run, shard: Shard, batch: Any) -> Iterator[Block]:
    """Rows with maps, each of its own size, so that a block is of one row."""
    from whence.runs.attributions import _values
    from whence.views.images import flat

    about, gaps = _about(batch, run.methods)
    shapes = {m: batch.column(f"shape_{m}").to_pylist() for m in run.methods}
    for place, record in enumerate(about):
        grids = [
            None
            if shapes[m][place] is None
            else flat(_values(run, shard, {"row": record["row"], f"values_{m}": None}, m)).numpy()
            for m in run.methods
        ]
        yield _grid_block(record, gaps[:, place : place + 1], grids)


def _grid_block(record: dict[str, Any], gaps: Array, grids: Sequence[Array | None]) -> Block:
    """Methods whose map has another size than the largest are stretched to it, so that sums stay."""
    sizes = [(1, *grid.shape)[-2:] for grid in grids if grid is not None]
    grid = max(sizes, key=lambda size: size[0] * size[1])
    cells = grid[0] * grid[1]
    values = np.full((len(grids), cells), np.nan)
    for number, own in enumerate(grids):
        if own is not None:
            values[number] = _stretched(own.reshape((1, *own.shape)[-2:]), grid).ravel()
    values[~np.isfinite(values)] = np.nan
    return Block([record], gaps, np.zeros(cells, dtype=np.int64), values, np.zeros(cells, dtype=bool), grid=grid)


def _stretched(grid: Array, size: tuple[int, int]) -> Array:
    """A coarse map over the cells of a finer one, each cell's value spread evenly over its part."""
    if grid.shape == size:
        return grid
    rows = np.minimum(np.arange(size[0]) * grid.shape[0] // size[0], grid.shape[0] - 1)
    columns = np.minimum(np.arange(size[1]) * grid.shape[1] // size[1], grid.shape[1] - 1)
    parts = np.bincount(rows, minlength=grid.shape[0])[rows][:, None] * np.bincount(columns)[columns][None]
    return np.asarray(grid[rows][:, columns] / parts)
