"""What one request may cost, and the errors that say so."""

from __future__ import annotations

from dataclasses import dataclass

from whence.errors import WhenceError


@dataclass(frozen=True)
class Limits:
    """Of every request."""

    body: int = 12 << 20  # bytes
    letters: int = 20_000  # of a text
    tokens: int = 512  # of a text, whatever the model takes
    pixels: int = 25_000_000  # of an image, before it is decoded
    sides: int = 30  # how many times as long as the other a side of an image may be: some models scale the shorter one
    atoms: int = 256  # of a molecule, of which a pass needs memory for every pair
    written: int = 60  # tokens of an answer
    methods: int = 40  # of one job
    number: int = 10_000  # the largest parameter of a method
    seconds: float = 120.0  # of one job, while it runs
    running: int = 2  # jobs at once
    waiting: int = 64  # jobs that wait for their turn
    kept: int = 200  # jobs that are done and may still be read
    grace: float = 3.0  # seconds without a listener after which a job is cancelled
    upload: float = 30.0  # seconds for a request's body


class Refused(WhenceError):
    """A request that is not answered: its HTTP status, and a word for programs."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status, self.kind = status, kind
