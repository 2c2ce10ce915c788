"""Models with what turns a user's texts and images into their tensors: `whence.load`, `whence.wrap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters import generation, images
from whence.adapters import tokens as texts
from whence.adapters.tokens import Long, Tokens
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, ModelError, ParameterError, TargetError, WhenceError, did_you_mean, nearest
from whence.util.checks import check_choice

TASKS = {  # the end of a class's name → what it does
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForImageClassification": "image-classification",
    "CLIPModel": "image-text-similarity",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "MarianMTModel": "text2text-generation",
    "ForImageClassificationWithTeacher": "image-classification",
}
CHUNK = 32  # texts of like length in one pass


@dataclass(frozen=True, eq=False)
class Question:
    """Some of the user's rows as the engine takes them, and what to write on the answer."""

    model: Callable[..., Any]
    inputs: Any
    target: Any
    places: list[int]  # of the rows among the user's
    facts: Mapping[str, list[Any]] = field(default_factory=dict)  # by name, one entry per row
    units: Any = None  # of several inputs, by name
    real: Any = None  # likewise, what is no padding, where no attention mask says so
    image: Tensor | None = None  # the rows as bytes, to be looked at
    windows: list[Tokens] | None = None  # the rows are windows of one text
    stand_ins: Mapping[str, int] = field(default_factory=dict)  # ids of the tokens that baselines name
    total: int = 1  # rows of the user's

    def baseline(self, given: Any) -> Any:
        """A token in the place of all but special ones, as the tokenizer knows them."""
        if not isinstance(given, str) or given not in self.stand_ins:
            return self._of_rows(given)
        ids = self.inputs["input_ids"]
        return torch.where(torch.tensor(self.facts["special"], device=ids.device), ids, self.stand_ins[given])

    def params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A method's parameters; units="words" become numbers of words, special tokens never removed."""
        units = given.get("units")
        if not isinstance(units, str) or units != "words":
            return {**given, "units": self._of_rows(units)} if isinstance(units, Tensor) else dict(given)
        if isinstance(self.units, Mapping) and "text" in self.facts:
            raise ParameterError(
                f'units="words" is for one text, and {" and ".join(self.units)} are explained.\n  Leave it out.'
            )
        if "words" not in self.facts:
            raise ParameterError('units="words" is for texts.\n  Leave it out.')
        numbers = []
        for words, segments in zip(self.facts["words"], self.facts["segments"], strict=True):
            pairs = list(zip(segments, words, strict=True))
            known = {pair: n for n, pair in enumerate(dict.fromkeys(p for p in pairs if p[1] is not None))}
            numbers.append([known.get(pair, -1) for pair in pairs])
        return {**given, "units": torch.tensor(numbers, device="cpu")}

    def seeds(self, given: Sequence[int]) -> list[int]:
        """The seeds of these rows, of all rows' seeds."""
        return [given[place] for place in self.places] * (1 if self.windows is None else len(self.windows))

    def _of_rows(self, given: Any) -> Any:
        """What the user laid out like a padded batch of all rows, for these rows."""
        many = isinstance(given, Tensor) and given.dim() > 0 and len(given) == self.total > 1
        if not many or "words" not in self.facts:
            return given
        picked = given[self.places]
        return picked[:, : self.inputs["input_ids"].shape[1]] if picked.dim() > 1 else picked


@dataclass(frozen=True, eq=False)
class Wrapped:
    """A model, its processor, its task and the names of its classes."""

    model: Any
    processor: Any
    task: str
    labels: Mapping[int, str] = field(default_factory=dict)
    long: Long = "error"
    examples: Sequence[Any] = ()  # inputs to try it with
    exclusive: bool = True  # whether a row has one label: else probabilities are no softmax
    name: str = ""  # where it was loaded from

    def __repr__(self) -> str:
        return f"Wrapped({type(self.model).__name__}, {self.task})"

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def device(self) -> torch.device:
        """Where the model is, and its inputs go."""
        weights = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next((p.device for p in weights), torch.device("cpu"))

    @property
    def _pad(self) -> int:
        own = getattr(getattr(self.model, "config", None), "pad_token_id", None)
        own = own if isinstance(own, int) else getattr(self.tokenizer, "pad_token_id", None)
        return int(own if own is not None else getattr(self.tokenizer, "eos_token_id", None) or 0)

    # ---- what the user gives ----

    def questions(self, inputs: Any, target: Any, batch_size: int | None = None, whole: bool = False) -> list[Question]:
        """The rows in passes of like length, or `whole` in one."""
        found = self._questions(inputs, target, batch_size, whole)
        total = 1 + max(place for question in found for place in question.places)
        return [replace(question, total=total) for question in found]

    def _questions(self, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Question]:
        if self.task == "function":
            if hasattr(self.processor, "told"):
                return self._told(inputs, target)
            made = _made(self.processor, inputs)
            return [Question(self.model, made, self.target(target), list(range(_rows(made))))]
        if self.task == "image-classification":
            pixels = images.pixels(self.processor, inputs)
            shown = images.shown(self.processor, pixels)
            rows, pixels = list(range(len(pixels))), pixels.to(self.device, _dtype(self.model))
            return [Question(self.model, {"pixel_values": pixels}, self.target(target), rows, image=shown)]
        if self.task == "image-text-similarity":
            return [self._similarity(inputs, target)]
        if self.task == "text2text-generation":
            return [generation.translated(self, _listed(inputs, self.task), target)]
        if self.task == "text-generation" and generation.is_matrix(target):
            return [generation.continued(self, _listed(inputs, self.task), target)]
        texts_of = _listed(inputs, self.task)
        config = getattr(self.model, "config", None)
        alone = getattr(config, "pad_token_id", 0) is None  # its head would find the ends of rows by padding
        size = len(texts_of) if whole else 1 if alone and self.task == "text-classification" else batch_size or CHUNK
        return list(self._texts(texts_of, target, size))

    def _told(self, inputs: Any, target: Any) -> list[Question]:
        """Row by row, so that nothing is padded; such a reader says what the units of a row are called."""
        rows = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        wanted = _per_row(self.target(target), len(rows))
        made = [
            {name: tensor.to(self.device) for name, tensor in self.processor(row, place).items()}
            for place, row in enumerate(rows)
        ]
        if not rows:
            raise InputError("There is nothing to explain: no text, no molecule.\n  Give at least one.")
        return [
            Question(self.model, tensors, wanted[place], [place], **self.processor.told(rows[place]))
            for place, tensors in enumerate(made)
        ]

    def _texts(self, rows: list[tuple[str, ...]], target: Any, size: int) -> Iterator[Question]:
        limit = texts.limit_of(self.tokenizer, getattr(self.model, "config", None))
        wanted = _per_row(self.target(target), len(rows))
        windows = self.task == "text-classification"
        read = [texts.tokens_of(self.tokenizer, r, limit, self.long, place, windows) for place, r in enumerate(rows)]
        short = sorted((p for p, found in enumerate(read) if len(found) == 1), key=lambda p: len(read[p][0]))
        for start in range(0, len(short), size):
            places = short[start : start + size]
            yield self._asked([read[p][0] for p in places], places, [wanted[p] for p in places])
        for place, found in enumerate(read):
            if len(found) > 1:
                yield self._windows(found, place, wanted[place])

    def _windows(self, found: list[Tokens], place: int, wanted: Any) -> Question:
        """All windows of one text, for one class: the one that they vote for on average, if none is given."""
        if self.task != "text-classification":
            raise InputError(f'long="window" is for text classification, and this is {self.task}.\n  Use "truncate".')
        if wanted is None:
            inputs = texts.batch(found, self._pad, self.device)
            with torch.no_grad(), scope(self.model):
                wanted = int(blame.called(self.model, inputs, "dict", self.model).logits.mean(0).argmax())
        return replace(self._asked(found, [place], [wanted] * len(found)), windows=found)

    def _asked(self, tokens: list[Tokens], places: list[int], wanted: list[Any]) -> Question:
        inputs = texts.batch(tokens, self._pad, self.device)
        model: Any = self.model
        target: Any = wanted
        if any(map(callable, wanted)):
            facts = text_facts(tokens, inputs)
            return Question(model, inputs, wanted[0], places, facts, stand_ins=self._stand_ins())
        if self.task == "question-answering":
            model, target = _spans_model(self.model, wanted), [_position(w) for w in wanted]
        elif self.task == "fill-mask":
            target = [_at_mask(self.tokenizer, t, w) for t, w in zip(tokens, wanted, strict=True)]
        elif self.task == "text-generation":
            target = [(len(t) - 1, _token_id(w)) for t, w in zip(tokens, wanted, strict=True)]
        facts = text_facts(tokens, inputs)
        _check_places(tokens, target)
        if self.task in ("fill-mask", "text-generation"):
            target = self._predicted(model, inputs, target)
        elif any(w is None for w in target):
            target = None if all(w is None for w in target) else self._filled(model, inputs, target)
        return Question(model, inputs, target, places, facts, stand_ins=self._stand_ins())

    def _stand_ins(self) -> dict[str, int]:
        ids = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "mask")}
        return {name: int(number) for name, number in ids.items() if number is not None}

    @torch.no_grad()
    def _predicted(self, model: Any, inputs: dict[str, Tensor], target: list[Any]) -> list[tuple[int, int]]:
        """(position, token) for each row: the token that the model predicts there, where none is given."""
        if all(token is not None for _, token in target):
            return target
        with scope(self.model):
            logits = blame.called(model, inputs, "dict", self.model).logits
        return [
            (place, int(logits[row, place].argmax()) if token is None else token)
            for row, (place, token) in enumerate(target)
        ]

    @torch.no_grad()
    def _filled(self, model: Any, inputs: dict[str, Tensor], target: list[Any]) -> list[int]:
        with scope(self.model):
            found = blame.called(model, inputs, "dict", self.model)
        logits = found if isinstance(found, Tensor) else found.logits
        return [int(logits[row].argmax()) if w is None else w for row, w in enumerate(target)]

    def _similarity(self, inputs: Any, target: Any) -> Question:
        if target is not None:
            raise TargetError("The similarity of an image and a text is one score.\n  Leave target out.")
        pairs = [inputs] if isinstance(inputs, tuple) else list(inputs)
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], str) for pair in pairs):
            raise InputError("An image–text model compares pairs.\n  Give (image, text), or a list of such pairs.")
        limit = texts.limit_of(self.tokenizer, getattr(self.model.config, "text_config", None))
        long = "error" if self.long == "window" else self.long  # one score has no windows
        tokens = [texts.tokens_of(self.tokenizer, (t,), limit, long, i, False)[0] for i, (_, t) in enumerate(pairs)]
        words = texts.batch(tokens, self._pad, self.device)
        words.pop("token_type_ids", None)
        pixels = images.pixels(getattr(self.processor, "image_processor", None), [image for image, _ in pairs])
        pixels = pixels.to(self.device, _dtype(self.model))
        facts: dict[str, list[Any]] = {
            "units": [_padded(t.units, words) for t in tokens],
            "text": [t.text[0] for t in tokens],
        }
        inputs = {**words, "pixel_values": pixels}
        return Question(self.model, inputs, similarity, list(range(len(pairs))), facts)

    def complete(self, text: str, tokens: int = 20) -> generation.Continuation:
        """What the model writes after a text, greedily; a target for `explain`."""
        if self.task not in ("text-generation", "text2text-generation"):
            raise ModelError(f"{self!r} writes no text.\n  Load a causal or an encoder–decoder model.")
        return generation.complete(self, text, tokens)

    # ---- labels ----

    def target(self, given: Any) -> Any:
        """Names of classes as their numbers; everything else as it is."""
        if isinstance(given, str):
            return self._label(given)
        if isinstance(given, tuple):
            return tuple(self._label(item) if isinstance(item, str) else item for item in given)
        if isinstance(given, list):
            return [self.target(item) for item in given]
        return given

    def _label(self, name: str) -> Any:
        if self.task == "question-answering":
            if name not in ("start", "end"):
                raise _no_side(name)
            return name
        if self.task == "fill-mask":
            return self.token(name)
        if self.task == "text-generation":
            raise TargetError("Continuations are explained one text at a time.\n  Give one text and one continuation.")
        known = {label: number for number, label in self.labels.items()}
        if name not in known:
            names = ", ".join(map(repr, list(known)[:12])) + (", …" if len(known) > 12 else "")
            raise TargetError(
                f"target={name!r} is no label of this model. {nearest(name, known)}".rstrip()
                + f"\n  It has {names or 'none'}."
            )
        return known[name]

    def token(self, piece: str) -> int:
        """The id of one token, given as text."""
        ids = self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise TargetError(
                f"target={piece!r} is {len(ids)} tokens of this model.\n  Give a text of one token, or its id."
            )
        return int(ids[0])


def _token_id(wanted: Any) -> int | None:
    """A token's number as the target of a language model's next position; None is the predicted one."""
    if wanted is None:
        return None
    if not isinstance(wanted, Integral) or isinstance(wanted, bool) or wanted < 0:
        raise TargetError(
            f"target={wanted!r} is not the id of a token.\n"
            "  Give an id from 0 on, the text that goes on, or a function of the output; "
            "leave it out for the predicted token."
        )
    return int(wanted)


def text_facts(tokens: Sequence[Tokens], inputs: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """What is known of each row's tokens, as long as the batch is."""
    return {
        "units": [_padded(t.units, inputs) for t in tokens],
        "spans": [_padded(t.spans, inputs, (0, 0)) for t in tokens],
        "special": [_padded(t.special, inputs, True) for t in tokens],
        "words": [_padded(t.words, inputs, None) for t in tokens],
        "segments": [_padded(t.segments, inputs, None) for t in tokens],
        "text": [t.text[0] if len(t.text) == 1 else t.text for t in tokens],
    }


def similarity(output: Any) -> Tensor:
    """The similarity of each image with its own text."""
    return output.logits_per_image.diagonal()


def _listed(inputs: Any, task: str) -> list[tuple[str, ...]]:
    """Rows of one text or of a pair."""
    rows = inputs if isinstance(inputs, list) else [inputs]
    if not rows:
        raise InputError("There is no text.\n  Give at least one.")
    found = [row if isinstance(row, tuple) else (row,) for row in rows]
    for row in found:
        if not row or not all(isinstance(part, str) for part in row) or len(row) > 2:
            what = ", ".join(type(part).__name__ for part in row)
            raise InputError(f"A row is {what}, and this model reads text.\n  Give a string, or a pair of strings.")
        for part in row:
            if any("\ud800" <= letter <= "\udfff" for letter in part):
                raise InputError(f"The text {part[:40]!r} has half a character (a lone surrogate).\n  Repair it first.")
        if task == "question-answering" and len(row) != 2:
            raise InputError("Question answering reads a pair.\n  Give (question, context).")
    return found


def _per_row(target: Any, rows: int) -> list[Any]:
    """One target per row."""
    if hasattr(target, "tolist"):  # a tensor or an array
        target = target.tolist()
    if not isinstance(target, list):
        return [target] * rows
    if len(target) not in (1, rows):
        raise TargetError(
            f"target has {len(target)} entries, and there are {rows} rows.\n"
            "  Give one per row, or a single one for all."
        )
    return target if len(target) == rows else target * rows


def _padded(values: Sequence[Any], inputs: Mapping[str, Tensor], fill: Any = "[PAD]") -> list[Any]:
    return [*values, *[fill] * (inputs["input_ids"].shape[1] - len(values))]


def _made(read: Callable[[Any], Any], inputs: Any) -> Any:
    """The tensors that the user's function makes of a list of rows; what has rows of its own is given as it is."""
    whole = isinstance(inputs, list | Tensor | Mapping) or hasattr(inputs, "__array__") or hasattr(inputs, "iloc")
    rows = inputs if whole and not hasattr(inputs, "convert") else [inputs]  # a PIL image is one row, and an array
    try:
        made = read(rows)
    except WhenceError:
        raise
    except Exception as error:
        raise InputError(
            f"The function that reads the inputs raised {type(error).__name__}: {error}\n"
            f"  It gets a list of rows (here {len(rows)}) and returns the model's tensors for all of them."
        ) from error
    if isinstance(rows, list) and _rows(made) != len(rows):
        raise InputError(
            f"The function that reads the inputs made {_rows(made)} rows of {len(rows)}.\n"
            "  It gets a list of rows and returns the model's tensors, one row for each of them."
        )
    return made


def _rows(made: Any) -> int:
    parts = [made] if isinstance(made, Tensor) else list(made.values() if isinstance(made, Mapping) else made)
    first = next((part for part in parts if isinstance(part, Tensor) and part.dim()), None)
    if first is None:
        raise InputError(
            f"The function that reads the inputs gave {type(made).__name__}, without a tensor.\n"
            "  It returns a tensor, a tuple of tensors or a dict of keyword tensors, rows first."
        )
    return len(first)


def _spans_model(model: Any, wanted: list[Any]) -> Callable[..., Any]:
    """A question answerer as a classifier of positions: of starts, or of ends."""
    sides = {"start" if w is None or isinstance(w, int) else w[0] if isinstance(w, tuple) else w for w in wanted}
    if len(sides) > 1 or sides - {"start", "end"}:
        raise _no_side(wanted)
    side = f"{sides.pop()}_logits"
    return _Side(model, side)


def _no_side(given: Any) -> TargetError:
    return TargetError(
        f'target={given!r}: question answering explains "start" or "end", the same for all rows.\n'
        '  Give one of them, or ("start", position).'
    )


class _Side(nn.Module):
    """One of a model's outputs; the model's modules keep their paths behind `model`."""

    def __init__(self, model: nn.Module, side: str) -> None:
        super().__init__()
        self.model, self.side = model, side
        self.train(model.training)

    def forward(self, **inputs: Any) -> Any:
        found = self.model(**inputs)[self.side]
        mask = inputs.get("attention_mask")
        return found if mask is None else found.masked_fill(mask == 0, torch.finfo(found.dtype).min)


def _position(wanted: Any) -> int | None:
    return wanted[1] if isinstance(wanted, tuple) else wanted if isinstance(wanted, int) else None


def _check_places(tokens: Sequence[Tokens], target: Any) -> None:
    """A position is one of the text's own tokens, not of the padding beside it."""
    for row, wanted in zip(tokens, target, strict=True):
        place = wanted[0] if isinstance(wanted, tuple) else None
        if isinstance(place, int) and not -len(row) <= place < len(row):
            raise TargetError(
                f"The target's position is {place}, and the text {row.text[0][:40]!r} has {len(row)} tokens.\n"
                "  Give a position inside it."
            )


def _dtype(model: Any) -> torch.dtype:
    """Of a model's weights."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _at_mask(tokenizer: Any, tokens: Tokens, wanted: Any) -> tuple[int, Any]:
    """Where a text has its mask, and which token is asked for there."""
    places = [i for i, number in enumerate(tokens.ids["input_ids"]) if number == tokenizer.mask_token_id]
    if isinstance(wanted, tuple):
        return (int(wanted[0]), wanted[1])
    if len(places) != 1:
        raise InputError(
            f"A text has {len(places)} masks.\n"
            f"  Write one {tokenizer.mask_token} into it, or give target=(position, token)."
        )
    return (places[0], wanted)


def wrap(
    model: Any, processor: Any, *, task: str | None = None, labels: Sequence[str] | Mapping[int, str] | None = None,
    long: Long = "error",
) -> Wrapped:  # fmt: skip
    """A model with its tokenizer, image processor, or a function from what you have to its tensors.

    Such a function gets a list of rows, also where one is explained, and gives the model's tensors for all of them:

    >>> import torch, whence
    >>> read = lambda texts: torch.tensor([[len(text), text.count("a"), 1.0] for text in texts])
    >>> clf = whence.wrap(torch.nn.Linear(3, 2), read, labels=["no", "yes"])
    >>> whence.explain(clf, "banana", method="gradient", target="yes").values.shape
    torch.Size([1, 3])
    """
    check_choice("long", long, ("error", "truncate", "window"))
    config = getattr(model, "config", None)
    named = labels if labels is not None else getattr(config, "id2label", None) or {}
    names = dict(named) if isinstance(named, Mapping) else dict(enumerate(named))
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    found = Wrapped(
        model, processor, "function", {int(i): str(n) for i, n in names.items()}, long, exclusive=not several
    )
    own = next((t for end, t in TASKS.items() if type(model).__name__.endswith(end)), None)
    if task is None and own is None and _knows(processor):
        raise ModelError(
            f"{type(model).__name__} is no model that Whence has an adapter for.\n"
            "  Give it tensors, or wrap it with a function from your inputs to its tensors."
        )
    if task is None and (own is None or not _knows(processor)):
        if not callable(processor):
            raise ParameterError(
                f"The processor is {type(processor).__name__}.\n"
                "  Give a tokenizer, an image processor, or a function from a list of your rows to the model's tensors."
            )
        return found
    if task is not None and task not in TASKS.values():
        raise ParameterError(f"task={task!r} is not known. {did_you_mean(task, TASKS.values())}")
    if task is not None and own is not None and task != own:
        raise ModelError(
            f"{type(model).__name__} does {own}, and task={task!r}.\n  Leave task out, or load another model."
        )
    return replace(found, task=task or own or "function")


def _knows(processor: Any) -> bool:
    """Whether this is a processor of transformers', or like one."""
    return any(
        hasattr(processor, name) for name in ("convert_ids_to_tokens", "image_processor", "image_mean", "preprocess")
    )
