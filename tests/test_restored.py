"""Models, inputs and targets are found wherever they are held, and left as they were."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections import deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.functions import G, V, W, X, explain
from tests.support.models import close
from whence.engine import scope


def test_weights_replaced_in_forward_are_the_ones_explained_and_are_put_back() -> None:
    class MaxNorm(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.1)
            return super().forward(x)

    class Clamped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    for kind in (MaxNorm, Clamped):
        model = kind(4, 3).double()
        before = model.weight.detach().clone()
        a = explain(model, target=0)
        assert torch.equal(model.weight, before)
        with torch.no_grad():
            close(a.output_value, model(X)[:, 0], 1e-12)


def test_passes_of_one_explanation_do_not_see_each_others_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.n = nn.Linear(4, 3).double(), 0
            self.register_buffer("total", torch.zeros(1).double())

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            self.total += 1
            return self.layer(x) * self.n * self.total

    model = Counting()
    plain = explain(model, target=0).values
    close(explain(model, target=0, batch_size=1).values, plain, 1e-12)
    close(explain(model, target=0, method="smoothgrad", noise=0.0, samples=3).values, plain, 1e-12)

    def random_inside(x: Tensor) -> Tensor:
        h = torch.sigmoid(x @ W)
        h *= torch.rand(8).double()  # overwrites what sigmoid needs: the pass is run again, with the same numbers
        return h @ V

    state = torch.get_rng_state()
    with pytest.warns(whence.WhenceWarning, match="draws random numbers"):
        a = explain(random_inside, target=0)
    torch.set_rng_state(state)
    close(a.output_value, random_inside(X)[:, 0], 1e-12)
    torch.set_rng_state(state)
    scale = torch.rand(8).double()
    close(a.values, explain(lambda x: (torch.sigmoid(x @ W) * scale) @ V, target=0).values, 1e-12)


def test_sparse_buffers_views_and_what_else_a_module_may_hold() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(3).double().to_sparse())
            self.register_buffer("nothing", torch.full((1,), float("nan")).expand(4))
            self.register_buffer("base", torch.zeros(3, 6).double())
            self.register_buffer("part", self.base[:, :3])
            self.layer, self.drop = nn.Linear(4, 3).double(), nn.Dropout()
            self.memory, self.past, self.plain = torch.zeros(3, 3).double(), deque(maxlen=5), {"list": 1}

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sparse.mm(self.adjacency, self.layer(x))
            self.memory.copy_(y)
            self.past.append(y)
            self.plain["new"] = y
            self.base.add_(1)
            return self.drop(self.memory * 2)

    model = Holder().train()
    explain(model, target=0)
    assert all(module.training for module in model.modules())
    assert not scope._held
    assert not model.memory.requires_grad
    assert not model.memory.any()
    assert not model.base.any()
    assert len(model.past) == 0
    assert model.plain == {"list": 1}


def test_a_model_inside_a_function_is_explained_in_eval_mode_and_restored() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()

    class Wrapper:
        def __init__(self) -> None:
            self.inner = net

        def __call__(self, x: Tensor) -> Tensor:
            return self.inner(x)

    truth = explain(net, target=0).values
    mean = net[1].running_mean.clone()
    for model in (lambda x: net(x), Wrapper(), Wrapper().__call__, net.forward):
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(net[1].running_mean, mean)
        assert net.training


def test_nested_inputs_are_copied() -> None:
    state = [torch.zeros(3, 3).double()]

    def model(x: Tensor, states: list[Tensor]) -> Tensor:
        states[0] += 1
        return x @ W[:, :3] + states[0]

    a = explain(model, {"x": X, "states": state}, target=0)
    assert not state[0].any()
    close(a.output_value, (X @ W[:, 0]) + 1, 1e-12)


def test_a_users_hook_that_raises_and_a_model_that_catches_it() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ZeroDivisionError:
                return self.good(x)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    model = Careful()
    model.bad.register_forward_pre_hook(fail)
    close(explain(model, target=0).values, model.good.weight[0].detach().expand(3, 4), 1e-12)


def test_models_that_learn_inside_their_forward_pass() -> None:
    class Meta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            loss = self.layer(torch.ones(1, 4).double()).square().sum()
            (step,) = torch.autograd.grad(loss, [self.layer.weight])
            return F.linear(x, self.layer.weight - 0.1 * step, self.layer.bias)

    model = Meta()
    found = explain(model, target=0).values
    x = X.clone().requires_grad_()
    close(found, torch.autograd.grad(model(x)[:, 0].sum(), x)[0], 1e-12)


def trained() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


def test_models_are_found_wherever_a_function_holds_them() -> None:
    net = trained()
    table, helper = {"m": [net]}, lambda x: net(x)

    @functools.wraps(helper)
    def wrapped(x: Tensor) -> Tensor:
        return helper(x)

    holders = {
        "partial": functools.partial(lambda n, x: n(x), net),
        "keyword": functools.partial(lambda x, n: n(x), n=net),
        "dict": lambda x: table["m"][0](x),
        "helper": lambda x: helper(x),
        "wrapped": wrapped,
        "default": lambda x, n=net: n(x),
        "slots": Slotted([net]),
    }
    truth, mean = explain(net, target=0).values, net[1].running_mean.clone()
    for name, model in holders.items():
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(net[1].running_mean, mean), name
        assert net.training, name


def test_a_targets_own_modules_are_kept_too() -> None:
    head = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1)).double().train()
    mean = head[0].running_mean.clone()
    for target in (head, lambda out: head(out)[:, 0]):
        explain(lambda x: x @ W[:, :3], target=target)
        assert torch.equal(head[0].running_mean, mean)
        assert head.training


def test_writes_through_aliases_and_inside_containers_are_undone() -> None:
    def writes(weight: nn.Parameter, how: str) -> None:
        with torch.no_grad():
            if how == "data":
                weight.data.mul_(0.5)
            elif how == "detach":
                weight.detach().mul_(0.5)
            elif how == "view":
                weight.view(-1).mul_(0.5)
            elif how == "out":
                torch.mul(weight, 0.5, out=weight)
            else:
                torch._foreach_mul_([weight], 0.5)

    class Writer(nn.Linear):
        def __init__(self, how: str) -> None:
            super().__init__(4, 3)
            self.how, self.state, self.pair = how, {"h": torch.zeros(3).double(), "n": {"count": 0}}, (torch.zeros(1),)

        def forward(self, x: Tensor) -> Tensor:
            writes(self.weight, self.how)
            self.state["h"] += 1
            self.state["n"]["count"] += 1
            self.pair[0].add_(1)
            return super().forward(x) * self.state["h"]

    for how in ("data", "detach", "view", "out", "foreach"):
        model = Writer(how).double()
        before = model.weight.detach().clone()
        whole = explain(model, target=0).values
        close(explain(model, target=0, batch_size=1).values, whole, 1e-12)
        assert torch.equal(model.weight, before), how
        assert not model.state["h"].any()
        assert model.state["n"] == {"count": 0}
        assert not model.pair[0].any()


def test_one_explanations_end_leaves_anothers_writes_alone() -> None:
    started, go = threading.Event(), threading.Event()

    class Filling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.fill_(0.5)
            started.set()
            go.wait(5)
            return super().forward(x)

    found = []
    thread = threading.Thread(target=lambda: found.append(explain(Filling(4, 3).double(), target=0).values))
    thread.start()
    started.wait(5)
    explain(nn.Linear(4, 3).double(), target=0)
    go.set()
    thread.join()
    assert bool((found[0] == 0.5).all())


def test_a_cache_with_gradients_is_copied() -> None:
    class Cache:
        def __init__(self) -> None:
            self.states = [torch.ones(3, 1, requires_grad=True).double() * 2]

    cache = Cache()

    def model(x: Tensor, cache: Cache) -> Tensor:
        cache.states.append(x)
        return (x * cache.states[0]).sum(1)

    explain(model, {"x": X, "cache": cache})
    assert len(cache.states) == 1


def test_parameters_that_share_one_memory_are_restored() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.randn(12, generator=G).double()
            self.a, self.b, self.c = (nn.Parameter(flat[i : i + 4]) for i in (0, 4, 8))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.a.mul_(2)
            return x * self.a + self.b + self.c

    model = Flat()
    before = [p.detach().clone() for p in model.parameters()]
    explain(model, target=0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not scope._memory


class Rude:
    __slots__ = ("u",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


NET = trained()


class Named:
    net = NET

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_more_holders_and_rude_objects() -> None:
    rude, mean = Rude(), NET[1].running_mean.clone()
    truth = explain(NET, target=0).values

    def holds_rude(x: Tensor, rude: Any = rude) -> Tensor:
        return NET(x)

    holders = (holds_rude, Named(), lambda x: sum(NET(x) for _ in range(1)), lambda x: torch.cat([NET(y) for y in [x]]))
    for model in holders:
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(NET[1].running_mean, mean)
    whence.trace(nn.Linear(4, 8).double(), X, method="gradient", target=lambda o: NET[1](o)[:, 0], show=False)
    assert torch.equal(NET[1].running_mean, mean)


def test_nothing_outlives_the_model() -> None:
    gc.collect()
    gc.disable()
    try:
        model = trained()
        dead = [weakref.ref(t) for t in (model, *model.parameters(), *model.buffers())]
        explain(model, target=0)
        explain(functools.partial(lambda m, x: m(x), model), target=0)
        del model
        assert not [ref for ref in dead if ref() is not None]
    finally:
        gc.enable()
