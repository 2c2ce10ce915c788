"""Pictures of attributions with matplotlib, and a table of words in HTML, by Captum's names."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from whence.captum.calls import check

ImageVisualizationMethod = Enum(
    "ImageVisualizationMethod", "heat_map blended_heat_map original_image masked_image alpha_scaling"
)
TimeseriesVisualizationMethod = Enum(
    "TimeseriesVisualizationMethod", "overlay_individual overlay_combined colored_graph"
)
VisualizeSign = Enum("VisualizeSign", "positive absolute_value negative all")
_COLOURS = {"positive": "Greens", "absolute_value": "Blues", "negative": "Reds", "all": "RdYlGn"}


def _scaled(values: Any, sign: str, outlier_perc: float, channels: int | None = None) -> Any:
    """Values of one sign, summed over channels, so that all but the largest few per cent fit in [0, 1] or [−1, 1]."""
    check(sign in VisualizeSign.__members__, f"sign={sign!r}: give one of {', '.join(VisualizeSign.__members__)}.")
    whole = np.asarray(values) if channels is None else np.asarray(values).sum(channels)
    if sign == "negative":
        whole = -np.minimum(whole, 0)
    elif sign == "positive":
        whole = np.maximum(whole, 0)
    elif sign == "absolute_value":
        whole = np.abs(whole)
    check(0 <= outlier_perc <= 100, f"outlier_perc={outlier_perc}: give a percentage.")
    sizes = np.sort(np.abs(whole).ravel())
    reached = np.cumsum(sizes) >= sizes.sum() * 0.01 * (100 - outlier_perc)
    scale = sizes[int(np.argmax(reached))] if sizes.size else 0.0
    if scale == 0:
        return np.zeros_like(whole, dtype=float)
    return np.clip(whole / scale, -1, 1)


def _image(original: Any) -> Any:
    """An image of bytes, from bytes or from numbers in [0, 1]."""
    picture = np.asarray(original)
    return picture.astype(np.uint8) if picture.max(initial=0) > 1 else (picture * 255).astype(np.uint8)


def _new_figure(use_pyplot: bool, size: Any, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    if use_pyplot:
        from matplotlib import pyplot

        return pyplot.subplots(rows, columns, figsize=size, **options)
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def visualize_image_attr(
    attr: Any, original_image: Any = None, method: str = "heat_map", sign: str = "absolute_value",
    plt_fig_axis: Any = None, outlier_perc: float = 2, cmap: Any = None, alpha_overlay: float = 0.5,
    show_colorbar: bool = False, title: str | None = None, fig_size: tuple[int, int] = (6, 6), use_pyplot: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """Draw the attribution (height, width[, channels]) of one image."""
    known = ImageVisualizationMethod.__members__
    check(method in known, f"method={method!r}: give one of {', '.join(known)}.")
    check(
        original_image is not None or method == "heat_map",
        f"method={method!r} draws the image.\n  Give original_image=.",
    )
    signed = method in ("masked_image", "alpha_scaling")
    check(not (signed and sign == "all"), f"{method} has no colours for signs.\n  Give another sign= or method=.")
    figure, axis = plt_fig_axis if plt_fig_axis is not None else _new_figure(use_pyplot, fig_size)
    picture: Any = None if original_image is None else _image(original_image)
    colours = {
        "cmap": cmap or _COLOURS[sign] if sign in _COLOURS else cmap,
        "vmin": -1 if sign == "all" else 0,
        "vmax": 1,
    }
    drawn = None
    if method == "original_image":
        axis.imshow(picture, cmap="gray" if picture.ndim == 2 else None)
    else:
        values = _scaled(attr, sign, outlier_perc, 2 if np.ndim(attr) == 3 else None)
        if method == "heat_map":
            drawn = axis.imshow(values, **colours)
        elif method == "blended_heat_map":
            axis.imshow(np.mean(picture, 2) if picture.ndim == 3 else picture, cmap="gray")
            drawn = axis.imshow(values, alpha=alpha_overlay, **colours)
        elif method == "masked_image":
            axis.imshow(_image(picture * (values[..., None] if picture.ndim == 3 else values)))
        else:
            axis.imshow(np.concatenate([picture[..., :3], (values * 255).astype(np.uint8)[..., None]], 2))
    axis.set(xticks=[], yticks=[])
    axis.set_frame_on(False)
    if show_colorbar and drawn is not None:
        figure.colorbar(drawn, ax=axis, orientation="horizontal")
    if title:
        axis.set_title(title)
    _show(use_pyplot and plt_fig_axis is None)
    return figure, axis


def _show(wanted: bool) -> None:
    if wanted:
        from matplotlib import pyplot

        pyplot.show()


def visualize_image_attr_multiple(
    attr: Any, original_image: Any, methods: list[str], signs: list[str], titles: list[str] | None = None,
    fig_size: tuple[int, int] = (8, 6), use_pyplot: bool = True, **kwargs: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Draw the attribution of one image in several ways, side by side."""
    check(len(methods) > 0, "Give at least one method.")
    check(len(methods) == len(signs), f"There are {len(signs)} signs for {len(methods)} methods.")
    check(titles is None or len(titles) == len(methods), "Give one title for each method.")
    figure, axes = _new_figure(use_pyplot, fig_size, 1, len(methods))
    for i, (method, sign, axis) in enumerate(zip(methods, signs, np.atleast_1d(axes), strict=True)):
        name = titles[i] if titles else None
        visualize_image_attr(
            attr, original_image, method, sign, plt_fig_axis=(figure, axis), title=name, use_pyplot=False, **kwargs
        )
    figure.tight_layout()
    _show(use_pyplot)
    return figure, axes


def visualize_timeseries_attr(
    attr: Any, data: Any, x_values: Any = None, method: str = "overlay_individual", sign: str = "absolute_value",
    channel_labels: list[str] | None = None, channels_last: bool = True, plt_fig_axis: Any = None,
    outlier_perc: float = 2, cmap: Any = None, alpha_overlay: float = 0.7, show_colorbar: bool = False,
    title: str | None = None, fig_size: tuple[int, int] = (6, 6), use_pyplot: bool = True, **pyplot_kwargs: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Draw the attribution of a series of times and channels over the series."""
    known = TimeseriesVisualizationMethod.__members__
    check(method in known, f"method={method!r}: give one of {', '.join(known)}.")
    values, series = (np.asarray(t) if channels_last else np.asarray(t).T for t in (attr, data))
    check(values.shape == series.shape and series.ndim == 2, "attr and data must have one shape, (times, channels).")
    times, channels = series.shape
    x = np.arange(times) if x_values is None else np.asarray(x_values)
    check(len(x) == times, f"There are {len(x)} x_values for {times} times.")
    together = method == "overlay_combined"
    scaled = _scaled(values, sign, outlier_perc, 1 if together else None)
    scaled = np.repeat(scaled[:, None], channels, 1) if together else scaled
    panels = 1 if together else channels
    if plt_fig_axis is None:
        figure, axes = _new_figure(use_pyplot, fig_size, panels, 1, sharex=True)
    else:
        figure, axes = plt_fig_axis
    colours = {"cmap": cmap or _COLOURS[sign], "vmin": -1 if sign == "all" else 0, "vmax": 1}
    drawn = None
    for channel in range(channels):
        axis = np.atleast_1d(axes)[0 if together else channel]
        label = channel_labels[channel] if channel_labels else None
        if method == "colored_graph":
            drawn = axis.scatter(x, series[:, channel], c=scaled[:, channel], **colours)
        else:
            axis.plot(x, series[:, channel], label=label, **pyplot_kwargs)
        low, high = axis.get_ylim()
        if method == "overlay_individual" or (together and channel == channels - 1):
            drawn = axis.imshow(
                scaled[:, channel][None], extent=(x[0], x[-1], low, high), aspect="auto", alpha=alpha_overlay, **colours
            )
        if label and not together:
            axis.set_ylabel(label)
    if title:
        np.atleast_1d(axes)[0].set_title(title)
    if show_colorbar and drawn is not None:
        figure.colorbar(drawn, ax=np.atleast_1d(axes).tolist())
    _show(use_pyplot and plt_fig_axis is None)
    return figure, axes


# ---- words ----


@dataclass
class VisualizationDataRecord:
    """One row of the table of words."""

    word_attributions: Any
    pred_prob: float
    pred_class: Any
    true_class: Any
    attr_class: Any
    attr_score: Any
    raw_input_ids: Sequence[str]
    convergence_score: float


def _get_color(attr: float) -> str:
    """Green for what raises the score, red for what lowers it, the lighter the weaker."""
    strength = max(-1.0, min(1.0, float(attr)))
    if strength >= 0:
        return f"hsl(120, 75%, {100 - int(50 * strength)}%)"
    return f"hsl(0, 75%, {100 - int(-40 * strength)}%)"


def format_classname(classname: Any) -> str:
    """A cell with a class."""
    return f'<td><text style="padding-right:2em"><b>{classname}</b></text></td>'


def format_special_tokens(token: str) -> str:
    """A token such as <s> that a page would read as a tag."""
    return "#" + token.strip("<>") if token.startswith("<") and token.endswith(">") else token


def format_tooltip(item: str, text: str) -> str:
    """An item with a text that is shown when it is pointed at."""
    return f'<div class="tooltip">{item}<span class="tooltiptext">{text}</span></div>'


def format_word_importances(words: Sequence[str], importances: Any) -> str:
    """A cell with words in the colours of their attributions."""
    if importances is None or len(importances) == 0:
        return "<td></td>"
    check(len(words) <= len(importances), f"There are {len(importances)} numbers for {len(words)} words.")
    marks = [
        f'<mark style="background-color: {_get_color(value)}; opacity:1.0; line-height:1.75">'
        f'<font color="black"> {html.escape(format_special_tokens(word))} </font></mark>'
        for word, value in zip(words, importances, strict=False)
    ]
    return f"<td>{''.join(marks)}</td>"


def visualize_text(datarecords: Iterable[VisualizationDataRecord], legend: bool = True) -> Any:
    """The table of words: shown in a notebook, and given back."""
    rows = ["<tr><th>True Label</th><th>Predicted Label</th><th>Attribution Label</th><th>Attribution Score</th>"
            "<th>Word Importance</th></tr>"]  # fmt: skip
    for record in datarecords:
        cells = [
            format_classname(record.true_class),
            format_classname(f"{record.pred_class} ({float(record.pred_prob):.2f})"),
            format_classname(record.attr_class),
            format_classname(f"{float(record.attr_score):.2f}"),
            format_word_importances(record.raw_input_ids, record.word_attributions),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    key = "".join(
        f'<span style="background-color: {_get_color(value)}">&nbsp;&nbsp;</span> {label} '
        for value, label in ((-1, "Negative"), (0, "Neutral"), (1, "Positive"))
    )
    page = (f"<div><b>Legend: </b>{key}</div>" if legend else "") + f'<table width="100%">{"".join(rows)}</table>'
    try:
        from IPython.display import HTML, display
    except ImportError:
        return page
    shown = HTML(page)
    display(shown)
    return shown
