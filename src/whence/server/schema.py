"""The bodies of requests. What is not listed here is refused."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Message(Body):
    role: str = Field(max_length=40)
    content: str


class Input(Body):
    """What is explained: one of a text (with its pair), a prompt or messages, a SMILES, an image, or an example."""

    text: str | None = None
    pair: str | None = Field(None, description="the second text of a pair, such as a hypothesis or a context")
    prompt: str | None = None
    messages: list[Message] | None = Field(None, description="a conversation, where the model has a chat template")
    smiles: str | None = None
    image: str | None = Field(None, description="an image file in base64 (PNG, JPEG, WebP, GIF or BMP)")
    example: int | None = Field(None, ge=0, description="the number of one of the model's own examples")


class Contrast(Body):
    """Why this token of the answer and not another one."""

    token: int = Field(ge=0, description="the place of the token in the answer")
    instead: int = Field(ge=0, description="the id of the other token")


class Question(Body):
    """A model, an input, and what is asked about it."""

    model: str = Field(max_length=200)
    input: Input
    target: int | str | list[int] | None = Field(
        None,
        description="a class by number or name; of models that write, the answer as text or ids; none: the prediction",
    )
    units: Literal["words", "tokens"] = Field("words", description="what values of texts are of")


class Predict(Question):
    """Which classes the model chooses among, and what the input consists of."""

    top: int = Field(10, ge=1, le=1000, description="how many classes are listed")


class Ask(Question):
    """A piece of work."""

    kind: Literal["explain", "remove", "deletion", "attention", "generate"]
    methods: list[str] = Field(default_factory=list, max_length=40)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict, description="parameters, by method")
    removed: list[int] = Field(default_factory=list, max_length=100_000, description="units, as predict numbers them")
    chosen: list[int] | None = Field(
        None, max_length=1000, description="of deletion: the places of the answer's tokens that are followed; none: all"
    )
    contrast: Contrast | None = None
    layer: int | None = Field(None, ge=0)
    head: int | None = Field(None, ge=0, description="none: the mean over heads")
    tokens: int = Field(20, ge=1, le=60, description="how many tokens are written at most")


class Export(Question):
    """What is on the screen, as a file."""

    format: Literal["html", "json", "png", "python", "shell"]
    methods: list[str] = Field(min_length=1, max_length=40)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    file: str = Field("image.png", max_length=200, description="what an image is called in commands")


class RowsWanted(BaseModel):
    """Which rows of a run, and in which order."""

    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0)
    limit: int = Field(100, ge=1, le=500)
    sort: str = Field("row", max_length=40)
    descending: bool = False
    label: str | None = None
    prediction: str | None = None
    wrong: bool | None = Field(None, description="whether the prediction is not the label")
    failed: bool | None = Field(None, description="whether something of it could not be explained")
    probability_above: float | None = None
    probability_below: float | None = None
    gap_above: float | None = Field(None, description="of the largest completeness gap among the methods")
    in_common_below: float | None = Field(None, description="of the share that methods place alike: disagreement")
    word: str | None = Field(None, max_length=200, description="that the text contains")
    values: bool = Field(False, description="whether each row comes with its words' values by the run's first method")
