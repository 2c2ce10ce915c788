"""The toy functions by which the properties are taught, and the usual table beside what is measured on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.evaluation.axioms.table import AxiomTable, Cell, Verdict
from whence.util.files import Place, csv_text, page_written, written


class Toy(nn.Module):
    """A function of a few numbers, with rows to look at, a baseline, and others that compute the same."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], rows: list[list[float]], note: str,
        equivalents: tuple[Callable[[Tensor], Tensor], ...] = (), counter: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.function, self.note, self.equivalents, self.counter = function, note, equivalents, counter
        self.inputs = torch.tensor(rows, dtype=torch.float64, device="cpu")
        self.baseline = torch.zeros_like(self.inputs[:1])

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)[:, None]


def _pair_a(x: Tensor) -> Tensor:
    return torch.relu(torch.relu(x[:, 0]) - 1 - torch.relu(x[:, 1]))


def _pair_b(x: Tensor) -> Tensor:
    return torch.relu(torch.relu(x[:, 0] - 1) - torch.relu(x[:, 1]))


def _one_layer(x: Tensor) -> Tensor:
    return F.linear(x, x.new_tensor([[1.0, 1.0]]))[:, 0]


def _two_layers(x: Tensor) -> Tensor:
    hidden = F.linear(x, x.new_tensor([[1.0, 2.0], [0.0, 1.0]]))
    return F.linear(hidden, x.new_tensor([[1.0, -1.0]]))[:, 0]


TOYS: dict[str, Toy] = {
    "saturated": Toy(
        lambda x: 1 - torch.relu(1 - x[:, 0]), [[2.0]], "1 − relu(1 − x) from 0 to 2: flat where it is explained"
    ),
    "capped sum": Toy(
        lambda x: 1 - torch.relu(1 - x[:, 0] - x[:, 1]), [[0.8, 0.9], [0.3, 0.4]], "min(x1 + x2, 1): saturated outputs"
    ),
    "threshold": Toy(lambda x: torch.relu(x[:, 0] - 10), [[12.0]], "max(0, x − 10): its gradient jumps at 10"),
    "logistic": Toy(lambda x: torch.sigmoid(x[:, 0] + x[:, 1]), [[1.0, 1.0], [2.0, -1.0]], "logistic(x1 + x2)"),
    "equal networks": Toy(
        _pair_a, [[3.0, 1.0], [4.0, 0.5]],
        "relu(relu(x1) − 1 − relu(x2)), which equals relu(relu(x1 − 1) − relu(x2)) for x2 ≥ 0",
        equivalents=(_pair_b,),
    ),
    "equal layers": Toy(
        _one_layer, [[1.0, 1.0], [2.0, 1.0]], "x1 + x2 in one layer, which equals (x1 + 2·x2) − x2 in two",
        equivalents=(_two_layers,),
    ),
    "minimum": Toy(
        lambda x: x[:, 0] - torch.relu(x[:, 0] - x[:, 1]), [[2.0, 2.0]],
        "a − relu(a − b) at (2, 2), a kink: symmetric in a and b, and not written so", counter=True,
    ),
}  # fmt: skip


def along_axes(alpha: Tensor, x: Tensor, baseline: Tensor) -> Tensor:
    """The path that takes each feature from the baseline to the input, one after the other."""
    count = x[0].numel()
    turn = torch.arange(count, dtype=x.dtype, device=x.device).view(1, *x.shape[1:])
    return baseline + (count * alpha.to(x) - turn).clamp(0, 1) * (x - baseline)


# what is stated of each method; an empty entry is left open, because no paper is known that states it
_LINES: dict[str, Any] = {
    "gradient": None,
    "guided_backprop": None,
    "deeplift": None,
    "integrated_gradients": None,
    "deconvnet": None,
    "lrp": {"start": "logit"},
    "path along the axes": {"method": "path_integrated_gradients", "path": along_axes},
    "shapley": None,
}
STATED: dict[str, tuple[str, ...]] = {
    "sensitivity_a": ("no", "no", "yes", "yes", "no", "yes", "yes", "yes"),
    "sensitivity_b": ("yes", "yes", "", "yes", "", "", "yes", "yes"),
    "continuity": ("no", "no", "yes", "yes", "", "", "", ""),
    "completeness": ("no", "no", "yes", "yes", "", "yes", "yes", "yes"),
    "implementation_invariance": ("yes", "", "no", "yes", "", "no", "yes", ""),
    "symmetry": ("yes", "yes", "yes", "yes", "", "", "no", "yes"),
    "linearity": ("yes", "yes", "", "yes", "", "", "yes", "yes"),
}
_S, _K = "Sundararajan, Taly & Yan 2017", "Shrikumar, Greenside & Kundaje 2017"
_F, _SHAPLEY = f"Friedman 2004, as {_S} quote it", "Shapley 1953"
USUAL = "summaries of these papers"
SOURCES: dict[str, dict[str, str]] = {  # who states it, by method and property; what is not here is in summaries only
    "gradient": {"sensitivity_a": _S, "implementation_invariance": _S, "continuity": _K},
    "guided_backprop": {"sensitivity_a": _S},
    "deeplift": {"sensitivity_a": _S, "implementation_invariance": _S, "continuity": _K, "completeness": _K},
    "integrated_gradients": dict.fromkeys((
        "sensitivity_a", "sensitivity_b", "completeness", "implementation_invariance", "symmetry", "linearity"), _S),
    "deconvnet": {"sensitivity_a": _S},
    "lrp": {"sensitivity_a": _S, "implementation_invariance": _S, "completeness": "Bach et al. 2015, of f(x) alone"},
    "path along the axes": {
        "sensitivity_a": f"{_S}: it follows from completeness", "symmetry": _S,
        **dict.fromkeys(("sensitivity_b", "linearity", "completeness", "implementation_invariance"), _F)},
    "shapley": {
        "sensitivity_a": f"{_SHAPLEY}: it follows from efficiency",
        **dict.fromkeys(("sensitivity_b", "linearity", "completeness", "symmetry"), _SHAPLEY)},
}  # fmt: skip
BEYOND = {  # a property → what says more of it than the usual table asks
    "sensitivity_b": "sensitivity_b_cancelling",
    "linearity": "linearity_negative",
}


@dataclass(frozen=True)
class TextbookEntry:
    """One entry of the usual table, the verdict measured on the toys, and counter-examples found elsewhere."""

    property: str
    method: str
    stated: str  # "yes", "no", or "" where it is left open
    measured: Verdict
    number: float | None
    where: str  # the toy, and the witness
    against: tuple[str, ...]  # counter-examples beyond the toys themselves
    source: str = ""  # who states it

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number:.1g}"
        return f"{self.stated or 'open'} → {self.measured}{number}{'*' if self.against else ''}"


@dataclass(frozen=True)
class TextbookTable:
    """The usual table beside what was measured; `entries` by (method, property)."""

    entries: Mapping[tuple[str, str], TextbookEntry]
    tables: Mapping[str, AxiomTable]  # by toy
    reference: Mapping[str, bool]

    def __getitem__(self, key: tuple[str, str]) -> TextbookEntry:
        return self.entries[key]

    def __str__(self) -> str:
        from whence.views.axioms import printed_textbook

        return printed_textbook(self)

    def to_html(self, path: Place = None, *, title: str = "Whence: the textbook's property table, measured") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.axioms import page_of_textbook

        return page_written(page_of_textbook(self, title), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, csv or json."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.axioms import textbook_section

        return textbook_section(self)

    def to_json(self, path: Place = None) -> str:
        """The entries, as JSON; written to a file, if there is a path."""
        return written(json.dumps([asdict(entry) for entry in self.entries.values()], ensure_ascii=False), path)

    def to_csv(self, path: Place = None) -> str:
        """One line per entry; written to a file, if there is a path."""
        head = ["property", "method", "stated", "measured", "number", "where", "against", "source"]
        lines = [
            [e.property, e.method, e.stated, e.measured, e.number, e.where, "; ".join(e.against), e.source]
            for e in self.entries.values()
        ]
        return written(csv_text(head, lines), path)


def textbook_table(methods: Any = None, *, seed: int = 0) -> TextbookTable:
    """What is usually stated of each method, beside what is measured on the toy functions and counter-examples."""
    from whence.evaluation.axioms import axioms

    tables = {
        name: axioms(
            toy, toy.inputs, baseline=toy.baseline, methods=methods or _LINES, seed=seed, equivalents=toy.equivalents
        )
        for name, toy in TOYS.items()
    }
    first = next(iter(tables.values()))
    entries = {
        (method, name): _entry(tables, method, name, dict(zip(_LINES, stated, strict=True)).get(method, ""))
        for name, stated in STATED.items()
        for method in first.methods
    }
    return TextbookTable(entries, tables, first.reference)


def _entry(tables: Mapping[str, AxiomTable], method: str, name: str, stated: str) -> TextbookEntry:
    own = {toy: table[method, name] for toy, table in tables.items() if not TOYS[toy].counter}
    where, cell = _verdict(own)
    witness = "" if cell.witness is None or cell.verdict != "no" else f"{where}: {cell.witness}"
    against = () if cell.verdict == "no" else _against(tables, method, name)
    source = SOURCES.get(method, {}).get(name, USUAL) if stated else ""
    return TextbookEntry(name, method, stated, cell.verdict, cell.number, witness, against, source)


def _verdict(cells: Mapping[str, Cell]) -> tuple[str, Cell]:
    """Of several functions: one counter-example refutes, else the strongest that can be said, by the largest number."""
    order = ("no", "yes", "not refuted", "–")
    worst = min(cells, key=lambda toy: (order.index(cells[toy].verdict), -(cells[toy].number or 0.0)))
    return worst, cells[worst]


def _against(tables: Mapping[str, AxiomTable], method: str, name: str) -> tuple[str, ...]:
    examples = []
    for toy, table in tables.items():
        if TOYS[toy].counter and table[method, name].verdict == "no":
            examples.append(f"{TOYS[toy].note}: {table[method, name].witness}")
    more = BEYOND.get(name)
    if more:
        where, cell = _verdict({toy: table[method, more] for toy, table in tables.items()})
        if cell.verdict == "no":
            examples.append(f"{more}, {where}: {cell.witness}")
    return tuple(examples)
