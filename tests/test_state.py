"""Everything is left as it was, also by models that write to themselves in unusual ways, and when they raise."""

from __future__ import annotations

import gc
import random
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import whence
from whence.engine.scope import scope

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
METHODS = ["gradient", "smoothgrad", "integrated_gradients", "deeplift", "lrp", "kernel_shap", "rollout", "attcat"]
EACH = pytest.mark.parametrize("method", METHODS)


@dataclass
class Plain:
    """An object as anybody may hold one."""

    count: int = 0
    seen: list[int] = field(default_factory=list)
    total: Tensor = field(default_factory=lambda: torch.zeros(3))
    array: np.ndarray = field(default_factory=lambda: np.zeros(3))
    inner: Any = None


@dataclass(slots=True)
class Slotted:
    count: int = 0
    more: list[int] = field(default_factory=list)


class Odd(dict):
    """A dict with an attribute, and a way of its own."""

    note = ""

    def clear(self) -> None:
        raise NotImplementedError

    def update(self, *_: Any) -> None:
        raise NotImplementedError


class Writing(nn.Module):
    """Attends, and writes to everything that it has; `broken` raises at the end of its forward."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.broken, self.gone = broken, None
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 4)
        self.register_buffer("small", torch.zeros(3))
        self.register_buffer("seen_by_numpy", torch.zeros(3))
        self.register_buffer("large", torch.zeros(70_000))
        self.view = self.seen_by_numpy.numpy()
        self.weights = self.out.weight.detach().numpy()  # shares the parameter's memory
        self.array = np.arange(4.0)
        self.objects = np.array([[1], [2, 3]], dtype=object)
        self.plain = Plain(inner=Plain(inner={"deep": [{"deeper": [[Plain()]]}]}))
        self.slotted = Slotted()
        self.space = types.SimpleNamespace(n=1)
        self.odd = Odd(a=1)
        self.nested = {"a": [({"b": [{"c": [1]}]},)]}
        self.ordered = OrderedDict(a=1, b=2)
        self.queue = deque([1, 2], maxlen=2)
        self.numbers = {1, 2}
        self.hidden = [nn.BatchNorm1d(8)]  # no module of its own, so that eval() does not reach it
        self.hidden[0].train()
        self.generator = torch.Generator().manual_seed(1)
        self.numpy_generator = np.random.default_rng(1)
        self.python_generator = random.Random(1)

    def forward(self, x: Tensor) -> Tensor:
        self.write()
        y = self.attention(x, x, x, need_weights=False)[0]
        self.hidden[0](x.detach().flatten(0, 1))
        y = self.out(y.mean(1))
        if self.broken:
            raise ZeroDivisionError("in the middle")
        return y

    def write(self) -> None:
        self.small += 1
        self.view += 1
        self.large[0] += 1
        self.weights *= 1 + 1e-9
        self.large.numpy()[1] += 1
        self.array[1:] += 1
        self.objects[0].append(3)
        self.objects[1] = None
        deep = self.plain.inner.inner["deep"][0]["deeper"][0][0]
        for thing in (self.plain, self.plain.inner, deep):
            thing.count += 1
            thing.seen.append(thing.count)
            thing.total += 1
            thing.array += 1
            thing.fresh = True
        self.slotted.count += 1
        self.slotted.more.append(1)
        self.space.n += 1
        self.odd["b"] = 2
        self.odd.note = "written"
        self.nested["a"][0][0]["b"][0]["c"].append(2)
        self.ordered.move_to_end("a")
        self.queue.append(3)
        self.numbers.add(3)
        self.fresh = True
        del self.gone
        torch.rand(1, generator=self.generator)
        self.numpy_generator.random()
        self.python_generator.random()


def pictured(value: Any, path: str = "model", found: dict[str, Any] | None = None, seen: Any = None) -> dict[str, Any]:
    """What a model holds, by where it is, as something that can be compared; objects with their identity."""
    found, seen = {} if found is None else found, {} if seen is None else seen
    if id(value) in seen:
        return found
    seen[id(value)] = value
    if isinstance(value, Tensor):
        grad = None if not value.is_leaf or value.grad is None else (id(value.grad), value.grad.tolist())
        marks = (value.requires_grad, value.grad_fn, len(value._backward_hooks or ()), sorted(value.__dict__))
        found[path] = (id(value), value.data_ptr(), value.tolist(), grad, *marks)
        return found
    if isinstance(value, np.ndarray):
        found[path] = (id(value), str(value.tolist()))
    elif isinstance(value, torch.Generator):
        found[path] = value.get_state().tolist()
    elif isinstance(value, np.random.Generator):
        found[path] = str(value.bit_generator.state)
    elif isinstance(value, random.Random):
        found[path] = value.getstate()
    elif isinstance(value, Slotted):
        found[path] = (id(value), value.count, list(value.more))
    elif isinstance(value, list | tuple | set | deque | dict):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        found[path] = (id(value), [key for key, _ in items])
        for key, item in items:
            pictured(item, f"{path}[{key!r}]", found, seen)
    elif not hasattr(value, "__dict__") or isinstance(value, type | types.FunctionType | types.MethodType):
        found[path] = value
    if isinstance(value, nn.Module | Plain | Odd | types.SimpleNamespace):
        found[f"{path} keys"] = (id(value), sorted(value.__dict__))
        for key, item in value.__dict__.items():
            pictured(item, f"{path}.{key}", found, seen)
    return found


def assert_unchanged(model: nn.Module, before: dict[str, Any]) -> None:
    after = pictured(model)
    assert [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)] == []


@EACH
@pytest.mark.parametrize("broken", [False, True])
def test_a_model_that_writes_to_all_that_it_holds_is_left_as_it_was(method: str, broken: bool) -> None:
    model, x = Writing(broken).train(), torch.randn(2, 5, 8)
    before = pictured(model)
    if broken:
        with pytest.raises((ZeroDivisionError, whence.WhenceError), match="in the middle"):
            whence.explain(model, x, method=method, target=0)
    else:
        whence.explain(model, x, method=method, target=0)
    assert_unchanged(model, before)


def test_every_pass_begins_with_the_model_as_it_was_found() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.plain, self.array = nn.Linear(3, 2), Plain(), np.ones(1)

        def forward(self, x: Tensor) -> Tensor:
            self.plain.count += 1
            self.array *= 2
            return self.out(x) * self.plain.count * float(self.array[0])

    model, x = Counting(), torch.randn(2, 3)
    one = whence.explain(model, x, method="integrated_gradients", target=0, steps=8, batch_size=2)
    expected = x * model.out.weight[0] * 2
    assert torch.allclose(one.values, expected.detach(), rtol=1e-5)


# ---- hooks ----


class Scaled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.dense = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dense(self.attention(x, x, x, need_weights=False)[0])


class Blocks(nn.Module):
    """Two layers; what is done to their dense parts is up to `prepare`."""

    def __init__(self, prepare: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.out = nn.Linear(8, 4)
        for module in (*(block.dense for block in self.blocks), self.out):
            prepare(module)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.out(x[:, 0])


def parametrised(module: nn.Module) -> None:
    parametrize.register_parametrization(module, "weight", Scaled())


def old_weight_norm(module: nn.Module) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(module)


PREPARED = {
    "parametrised": parametrised,
    "parametrised twice": lambda module: (parametrised(module), parametrised(module)),
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "old weight_norm": old_weight_norm,
    "old spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.parametrize(
    "method", [name for name, entry in whence.methods.items() if entry.facts.get("needs") != "maps"]
)
def test_no_hook_stays_on_parametrised_parameters(method: str) -> None:
    model, x = Blocks(parametrised), torch.randn(2, 5, 8)
    for _ in range(2):
        whence.explain(model, x, method=method, target=0, keep=("attention", "hidden"))
    assert not any(parameter._backward_hooks for parameter in model.parameters())


@EACH
@pytest.mark.parametrize("prepared", PREPARED)
def test_what_computes_weights_is_left_as_it_was(method: str, prepared: str) -> None:
    model, x = Blocks(PREPARED[prepared]).train(), torch.randn(2, 5, 8)
    before = pictured(model)
    whence.explain(model, x, method=method, target=0)
    assert_unchanged(model, before)


def test_the_weight_of_the_old_weight_norm_keeps_its_graph() -> None:
    model = Blocks(old_weight_norm)
    weight = model.out.weight
    whence.explain(model, torch.randn(2, 5, 8), method="gradient", target=0)
    assert model.out.weight is weight
    weight.sum().backward()
    assert model.out.weight_g.grad is not None


# ---- gradients ----


class Learning(nn.Module):
    """Takes a gradient by its own parameters on the way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.out, self.how = nn.Linear(3, 2), how

    def forward(self, x: Tensor) -> Tensor:
        loss = self.out(x.detach()).square().sum()
        loss.backward() if self.how == "method" else torch.autograd.backward([loss])
        return self.out(x)


@pytest.mark.parametrize("how", ["method", "function"])
@pytest.mark.parametrize("method", ["gradient", "deeplift", "integrated_gradients"])
@pytest.mark.parametrize("had", [False, True])
def test_a_backward_inside_of_forward_leaves_the_gradients(method: str, how: str, had: bool) -> None:
    model = Learning(how)
    if had:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    before = pictured(model)
    whence.explain(model, torch.randn(2, 3), method=method, target=0)
    assert_unchanged(model, before)


# ---- flags ----

FLAGS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(2)),
    "matmul precision": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("high")),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "cudnn": (lambda: torch.backends.cudnn.benchmark, lambda: setattr(torch.backends.cudnn, "benchmark", True)),
    "mkldnn": (torch._C._get_mkldnn_enabled, lambda: torch._C._set_mkldnn_enabled(False)),
    "kernels": (torch.backends.cuda.flash_sdp_enabled, lambda: torch.backends.cuda.enable_flash_sdp(False)),
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
    "autocast dtype": (
        lambda: torch.get_autocast_dtype("cpu"), lambda: torch.set_autocast_dtype("cpu", torch.float16)
    ),
    "anomalies": (torch.is_anomaly_enabled, lambda: torch.set_anomaly_enabled(True)),
    "default device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "numpy's errors": (np.geterr, lambda: np.seterr(all="ignore")),
}  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("broken", [False, True])
def test_flags_that_a_model_sets_are_as_they_were(flag: str, broken: bool) -> None:
    read, write = FLAGS[flag]
    out = nn.Linear(3, 2)

    def model(x: Tensor) -> Tensor:
        y = out(x)
        write()
        if broken:
            raise ZeroDivisionError("in the middle")
        return y

    before = read()
    try:
        if broken or flag == "gradients":  # without them nothing comes of the rest
            with pytest.raises((ZeroDivisionError, whence.WhenceError)):
                whence.explain(model, torch.randn(2, 3), method="gradient", target=0)
        else:
            whence.explain(model, torch.randn(2, 3), method="integrated_gradients", target=0, steps=3, batch_size=2)
        assert read() == before
    finally:
        torch.set_default_device(None)
        torch.set_num_threads(1)


# ---- threads ----


def test_what_another_thread_draws_is_not_drawn_again() -> None:
    """A model that draws nothing leaves torch's generator to those who do."""
    model, drawn, inside, drew = nn.Linear(3, 2), [], threading.Event(), threading.Event()

    def target(output: Tensor) -> Tensor:
        inside.set()
        assert drew.wait(20)
        return output[:, 0]

    def draw() -> None:
        assert inside.wait(20)
        drawn.append(torch.rand(3))
        drew.set()

    thread = threading.Thread(target=draw)
    thread.start()
    whence.explain(model, torch.randn(2, 3), method="gradient", target=target)
    drawn.append(torch.rand(3))
    thread.join()
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["rand", "dropout", "scripted", "normal_"])
def test_what_the_model_draws_is_given_back_beside_other_threads(how: str) -> None:
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "rand": lambda x: x * torch.rand(3),
        "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, True),
        "scripted": torch.jit.script(_Noisy()) if how == "scripted" else _Noisy(),
        "normal_": lambda x: x + torch.empty_like(x).normal_(),
    }
    model, x, done = nn.Sequential(nn.Linear(3, 2)), torch.randn(2, 3), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    before = torch.get_rng_state()
    try:
        whence.explain(_Around(model, ways[how]), x, method="gradient", target=0)
    finally:
        done.set()
        other.join()
    assert torch.equal(torch.get_rng_state(), before)


class _Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class _Around(nn.Module):
    def __init__(self, inner: nn.Module, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.way = inner, way

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.way(x))


# ---- what it costs ----


def test_a_large_thing_that_a_model_merely_knows_is_not_copied() -> None:
    """A walk ends, whatever a model refers to: data sets, trainers, itself."""
    model = nn.Linear(3, 2)
    model.trainer = types.SimpleNamespace(data=[[i] for i in range(200_000)], model=model)
    model.trainer.own = model.trainer
    gc.collect()
    with scope(model):
        held = gc.get_referrers(model.trainer.data[-1])
    assert [one for one in held if isinstance(one, list)] == [model.trainer.data]


# ---- NumPy's random state ----


@pytest.mark.parametrize("draw", [np.random.rand, np.random.randn], ids=["uniform", "normal"])
@pytest.mark.parametrize("waiting", [False, True], ids=["", "with a normal number that waits"])
def test_numpys_random_state_is_as_it_was(draw: Callable[[], float], waiting: bool) -> None:
    """The second normal number of a pair is drawn without a trace in the generator's memory."""

    def model(x: Tensor) -> Tensor:
        return x * (1 + 0 * draw())

    for _ in range(3):  # the state is remembered from one explanation to the next
        np.random.seed(1)
        if waiting:
            np.random.randn()
        before = np.random.get_state(legacy=False)
        whence.explain(model, torch.ones(2, 3), method="gradient", target=0)
        after = np.random.get_state(legacy=False)
        assert (before["state"]["key"] == after["state"]["key"]).all()
        assert [before[k] for k in ("has_gauss", "gauss")] == [after[k] for k in ("has_gauss", "gauss")]
        assert before["state"]["pos"] == after["state"]["pos"]
