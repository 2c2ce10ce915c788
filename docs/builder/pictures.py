"""Pictures of each method on bundled models, made when the site is built: they are what the code gives today."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import whence
from whence.errors import WhenceError, WhenceWarning
from whence.results.attribution import Attribution
from whence.views import images, rows_html
from whence.views.components import text
from whence.views.maps import maps

SENTENCE, IMAGE = 3, 6  # of the models' examples


@functools.cache
def _loaded(name: str) -> Any:
    return whence.load(f"zoo:{name}")


def picture(name: str) -> str:
    """A sentence and an image as a method explains them; nothing of what it does not apply to."""
    facts, parameters = whence.methods[name].facts, whence.methods[name].parameters
    image = "fashion-vit" if facts.get("needs") == "attention" else "fashion-cnn"
    blocks = {"units": 4} if "units" in parameters and "window" not in parameters else {}  # squares of pixels
    shown = [_text(name), _image(name, image, blocks)]
    return "\n\n".join(filter(None, shown))


def _explained(name: str, model: str, number: int, **params: Any) -> Attribution | None:
    """The explanation of one example; rows are explained together, because a method may need others beside it."""
    loaded = _loaded(model)
    examples = list(loaded.examples)
    rows = [examples[number]] if not whence.methods[name].facts.get("permutes") else [examples[number], *examples[:3]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)
            return whence.explain(loaded, rows, method=name, progress=False, **params)[0]
    except WhenceError:
        return None


def _text(name: str) -> str:
    a = _explained(name, "sentiment", SENTENCE)
    if a is None:
        return ""
    (one,) = maps(a, 1)
    call = f'whence.explain(whence.load("zoo:sentiment"), text, method="{name}")'
    return _framed(rows_html.text_row(a, [one]), f"A review of a film; explained is {one.target}, {one.scored}.", call)


def _image(name: str, model: str, params: dict[str, Any]) -> str:
    a = _explained(name, model, IMAGE, **params)
    if a is None:
        return ""
    a = a if a.image_size is None else a.to_image_size()
    (one,) = maps(a, 1)
    assert a.image is not None
    pixels = a.image[0].expand(3, -1, -1)
    drawn = [
        rows_html.picture(images.png(pixels.permute(1, 2, 0)), "the image"),
        rows_html.picture(images.png(images.overlay(pixels, one.values)), "for (orange) and against (blue)"),
        rows_html.picture(images.png(images.masked(pixels, one.values)), "as bright as it matters"),
    ]
    given = "".join(f", {key}={value!r}" for key, value in params.items())
    call = f'whence.explain(whence.load("zoo:{model}"), image, method="{name}"{given})'
    row = f'<div class="three">{"".join(drawn)}</div>'
    return _framed(row, f"A piece of clothing; explained is {one.target}, {one.scored}.", call)


def _framed(shown: str, caption: str, call: str) -> str:
    below = f"<figcaption>{text(caption)} <code>{text(call)}</code></figcaption>"
    return f'```{{raw}} html\n<figure class="picture">{shown}{below}</figure>\n```'
