"""Nothing is too small: tensors without entries, rows without features, single numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import close

METHODS = "gradient integrated_gradients deeplift lrp attnlrp cp_lrp guided_backprop".split()


def g(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


X, W, HEAD = g(2, 3, 4), g(4, 4, seed=1), g(12, 2, seed=2)


def none(rows: int) -> Tensor:
    return torch.zeros(rows, 0, 4, dtype=torch.long)


# what adds nothing to h (rows, 3, 4), by way of tensors that are empty
NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "a slice beyond the end": lambda h: torch.cat([h[..., :4] * 1.0, h[..., 4:]], -1),
    "a part of size 0": lambda h: torch.cat(h.split([4, 0], -1), -1),
    "a linear map of no tokens": lambda h: torch.cat([h, F.linear(h[:, :0], W, W[0])], 1),
    "a product over no features": lambda h: h + h[..., 4:] @ h.new_zeros(0, 4),
    "a product of activations over no features": lambda h: h + h[..., 4:] @ h[..., 4:].mT @ h,
    "einsum": lambda h: h + torch.einsum("bij,jk->bik", h[..., 4:], h.new_zeros(0, 4)),
    "a sum over nothing": lambda h: h + h[..., 4:].sum(-1, keepdim=True),
    "an activation": lambda h: torch.cat([h, torch.tanh(h[..., 4:])], -1),
    "a product": lambda h: torch.cat([h, h[..., 4:] * h[..., 4:]], -1),
    "a residual": lambda h: torch.cat([h, h[..., 4:] + h[..., 4:].exp()], -1),
    "softmax over nothing": lambda h: torch.cat([h, h[..., 4:].softmax(-1)], -1),
    "a norm": lambda h: torch.cat([h, F.layer_norm(h[:, :0], (4,))], 1),
    "attention": lambda h: torch.cat([h, F.scaled_dot_product_attention(h[:, :0], h, h)], 1),
    "an empty index": lambda h: torch.cat([h, h[:, torch.tensor([], dtype=torch.long)]], 1),
    "an empty mask": lambda h: h + h[torch.zeros_like(h, dtype=torch.bool)].sum(),
    "gather": lambda h: torch.cat([h, h.gather(1, none(len(h)))], 1),
    "scatter": lambda h: h.scatter_add(1, none(len(h)), h[:, :0]),
    "cumsum": lambda h: torch.cat([h, h[..., 4:].cumsum(-1)], -1),
    "a number": lambda h: h * h.new_tensor(1.0) + h.new_tensor(0.0),
}


def around(inner: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: inner(torch.tanh(x @ W))[:, :3].reshape(len(x), 12) @ HEAD


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", NOTHING)
def test_tensors_without_entries_change_nothing(kind: str, method: str) -> None:
    expected = whence.explain(around(lambda h: h), X, method=method, target=1).values
    close(whence.explain(around(NOTHING[kind]), X, method=method, target=1).values, expected, 1e-8)


SINGLE: dict[str, Callable[[Tensor], Tensor]] = {
    "to classes": lambda x: torch.stack([x.sin(), x.square()], 1),
    "by a matrix": lambda x: x[:, None] @ g(1, 2),
    "to a number": lambda x: x.tanh() * 2,
}


@pytest.mark.parametrize("method", sorted(whence.methods))
@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")  # a row of one number has no range, and may cancel
def test_rows_of_one_number(kind: str, method: str) -> None:
    x = g(3) + 2
    try:
        a = whence.explain(SINGLE[kind], x, method=method, target=None if kind == "to a number" else 1)
    except (whence.NoAttention, whence.MethodError, whence.InputError):
        return
    assert a.values.shape == x.shape
    assert bool(a.values.isfinite().all())
    if a.gap is not None:
        assert float(a.gap.max()) < 2e-2


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.out(self.encoder(x, src_key_padding_mask=mask)[:, 0])
        return found


@pytest.mark.parametrize("method", ["gradient", "deeplift", "lrp", "attnlrp", "transformer_attribution", "rollout"])
def test_a_transformer_encoder_with_padding(method: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder().double().eval()
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1, 3:] = True
    given: dict[str, Any] = {"x": g(2, 5, 8), "mask": mask}
    a = whence.explain(model, given, method=method, target=0)
    values = a.values if isinstance(a.values, Tensor) else next(iter(a.values.values()))
    for row in range(2):
        alone = whence.explain(model, {name: t[row : row + 1] for name, t in given.items()}, method=method, target=0)
        close(
            alone.values if isinstance(alone.values, Tensor) else next(iter(alone.values.values())),
            values[row : row + 1],
            1e-9,
        )
    assert a.gap is None or float(a.gap.max()) < 1e-9


class PatchNorm(nn.Module):
    """A convolution's patches, normed, as tokens: the signal comes back to the norm channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.relu()).flatten(2).transpose(1, 2).tanh().square().mean(1))


@pytest.mark.parametrize("method", ["gradient", "input_x_gradient", "guided_backprop", "deeplift", "attnlrp"])
def test_a_single_row_through_a_batch_norm_of_patches(method: str) -> None:
    """torch's own derivative of such a row is another one than in a batch."""
    torch.manual_seed(0)
    model = PatchNorm().double().eval()
    model.norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(model.norm.weight)
    x = torch.randn(2, 4, 3, 3).double()
    both = whence.explain(model, x, method=method, target=0)
    for row in range(2):
        alone = whence.explain(model, x[row : row + 1], method=method, target=0)
        close(alone.values[0], both.values[row], 1e-12)
