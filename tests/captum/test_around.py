"""What stands around the methods: statistics, embeddings, data sets, texts and language models, metrics, pictures."""

from __future__ import annotations

from typing import Any

import captum.attr
import captum.metrics
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence.captum
from tests.support.captum import BOTH, check_same, draw, models
from whence.captum import embeddings, helpers

pytestmark = pytest.mark.filterwarnings("ignore")
X, Y = draw(2, 3), draw(2, 2)


# ---- statistics ----


def test_summaries() -> None:
    found = []
    for package in BOTH:
        stats = [package.Mean(), package.Var(order=1), package.StdDev(), package.Max(name="most"), package.Sum(),
                 package.Count(), package.MSE(), package.Min()]  # fmt: skip
        summarizer = package.Summarizer(stats)
        assert summarizer.summary is None
        for i in range(4):
            summarizer.update((X + i, Y * i))
        found.append(summarizer.summary)
    assert isinstance(found[1], list)
    for theirs, ours in zip(*found, strict=True):
        assert set(theirs) == set(ours)
        for name, value in theirs.items():
            torch.testing.assert_close(torch.as_tensor(ours[name]).double(), torch.as_tensor(value).double())


def test_summaries_by_class() -> None:
    found = []
    for package in BOTH:
        summarizer = package.ClassSummarizer(package.CommonStats())
        summarizer.update(draw(4, 3), [0, 1, 0, 1])
        found.append((summarizer.class_summaries, summarizer.summary))
    (theirs, all_theirs), (ours, all_ours) = found
    assert set(ours) == set(theirs)
    torch.testing.assert_close(ours[1][0]["sample_variance"], theirs[1][0]["sample_variance"])
    torch.testing.assert_close(all_ours[0]["mean"], all_theirs[0]["mean"])
    with pytest.raises(AssertionError):
        summarizer.update(draw(4, 3), [0, 1])


# ---- modules around users' own ----


def test_embeddings_are_handed_in() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.last = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.embedding(ids).mean(1))

    model, ids = Words(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    plain = model(ids)
    own = whence.captum.configure_interpretable_embedding_layer(model, "embedding")
    vectors = own.indices_to_embeddings(ids)
    assert torch.equal(model(vectors), plain)
    values = whence.captum.IntegratedGradients(model).attribute(vectors, target=1, n_steps=5)
    whence.captum.remove_interpretable_embedding_layer(model, own)
    layer = whence.captum.LayerIntegratedGradients(model, model.embedding)
    zero = torch.zeros_like(ids)
    there = captum.attr.LayerIntegratedGradients(model, model.embedding).attribute(ids, zero, target=1, n_steps=5)
    check_same(layer.attribute(ids, zero, target=1, n_steps=5), there.detach())
    assert values.shape == (2, 3, 4)
    reference = whence.captum.TokenReferenceBase(7).generate_reference(3, torch.device("cpu"))
    assert reference.tolist() == [7, 7, 7]


def test_inputs_are_layers() -> None:
    two = models()["two"]
    wrapped = embeddings.ModelInputWrapper(two)
    lig = whence.captum.LayerIntegratedGradients(wrapped, [wrapped.input_maps["x"], wrapped.input_maps["y"]])
    found = lig.attribute((X, Y), target=1, n_steps=5)
    plain = whence.captum.IntegratedGradients(two).attribute((X, Y), target=1, n_steps=5)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)


# ---- data sets ----


@pytest.mark.parametrize("options", [{}, {"to_metric": lambda total: torch.stack([total, 2 * total])}])
@pytest.mark.parametrize("shape", [True, False])
def test_a_metric_of_a_data_set(options: Any, shape: bool) -> None:
    data = DataLoader(TensorDataset(draw(7, 3), draw(7, 2), torch.arange(7)), batch_size=3)
    two = models()["two"]
    mask = (torch.tensor([[0, 0, 1]]), torch.tensor([[1, 2]]))
    if options:
        options = {**options, "reduce": lambda total, output, items: (0 if total is None else total) + output.sum()}
    theirs, ours = (
        package.DataLoaderAttribution(package.FeatureAblation(two)).attribute(
            data, input_roles=(0, 0, 2), feature_mask=mask, return_input_shape=shape, **options
        )
        for package in BOTH
    )
    check_same(ours, theirs)


# ---- texts ----


class Tokenizer:
    """Words by their place in a list."""

    words = "<unk> <s> a b c d e f this is test the cat sat".split()

    def encode(self, text: str, add_special_tokens: bool = True, return_tensors: str | None = None) -> Any:
        ids = [1] * add_special_tokens + [self.convert_tokens_to_ids(word) for word in text.split()]
        return torch.tensor([ids]) if return_tensors else ids

    def __call__(
        self, text: str, add_special_tokens: bool = True, return_offsets_mapping: bool = False, **_: Any
    ) -> Any:
        places, at = [(0, 0)] * add_special_tokens, 0
        for word in text.split():
            places.append((at, at + len(word)))
            at += len(word) + 1
        return {"input_ids": self.encode(text, add_special_tokens), "offset_mapping": places}

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        return self.words[ids] if isinstance(ids, int) else [self.words[int(i)] for i in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, list):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        return self.words.index(tokens) if tokens in self.words else 0

    def decode(self, ids: Any, **_: Any) -> str:
        return " ".join(self.convert_ids_to_tokens([int(i) for i in ([ids] if isinstance(ids, int) else ids)]))


class Output(dict[str, Tensor]):
    @property
    def logits(self) -> Tensor:
        return self["logits"]


class Language(nn.Module):
    """A tiny causal language model."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.mix, self.last = nn.Embedding(14, 8), nn.Linear(8, 8), nn.Linear(8, 14)

    def forward(self, input_ids: Tensor, **_: Any) -> Output:
        hidden = torch.tanh(self.mix(self.embedding(input_ids))).cumsum(1)
        return Output(logits=self.last(hidden / torch.arange(1, hidden.shape[1] + 1)[:, None]))

    def generate(self, input_ids: Tensor, max_new_tokens: int = 2, **_: Any) -> Tensor:
        for _step in range(max_new_tokens):
            input_ids = torch.cat([input_ids, self(input_ids).logits[:, -1:].argmax(-1)], 1)
        return input_ids


def test_texts_by_token_and_by_template() -> None:
    tokenizer = Tokenizer()
    for package in BOTH:
        text = package.TextTokenInput("this is a test", tokenizer, baselines="b", skip_tokens=["<s>"])
        assert text.to_tensor().tolist() == [[1, 1, 1, 1]]
        assert text.values == ["this", "is", "a", "test"]
        assert text.to_model_input(torch.tensor([[0, 1, 0, 1]])).tolist() == [[1, 3, 9, 3, 10]]
        made = package.TextTemplateInput("{x} is {y}", {"x": "a", "y": "b"}, {"x": "c", "y": "d"}, {"x": 5, "y": 5})
        assert made.to_tensor().tolist() == [[1.0]]
        assert made.to_model_input(torch.tensor([[0.0]])) == "c is d"
        assert made.format_attr(torch.tensor([[2.0]])).tolist() == [[2.0, 2.0]]
        drawn = package.ProductBaselines({"x": ["a"], ("y", "z"): [("p", "q")]})
        assert drawn() == {"x": "a", "y": "p", "z": "q"}


@pytest.mark.parametrize("kind", ["FeatureAblation", "ShapleyValues", "Lime"])
@pytest.mark.parametrize("target", ["log_prob", "prob"])
def test_language_models(kind: str, target: str) -> None:
    model, tokenizer, found = Language().eval(), Tokenizer(), []
    for package in BOTH:
        torch.manual_seed(0)
        method = package.LLMAttribution(getattr(package, kind)(model), tokenizer, attr_target=target)
        text = package.TextTokenInput("this is a test", tokenizer, skip_tokens=[1])
        found.append(method.attribute(text, "the cat", use_cached_outputs=False))
    theirs, ours = found
    assert (ours.input_tokens, ours.output_tokens) == (theirs.input_tokens, theirs.output_tokens)
    torch.testing.assert_close(ours.seq_attr, theirs.seq_attr, atol=1e-6, rtol=1e-5)
    assert (ours.token_attr is None) == (theirs.token_attr is None) == (kind == "Lime")
    if ours.token_attr is not None:
        torch.testing.assert_close(ours.token_attr, theirs.token_attr, atol=1e-6, rtol=1e-5)
        plt.close(ours.plot_token_attr()[0])
    plt.close(ours.plot_seq_attr()[0])


def test_language_models_by_gradients_and_generated() -> None:
    model, tokenizer, found = Language().eval(), Tokenizer(), []
    for package in BOTH:
        method = package.LLMGradientAttribution(package.LayerIntegratedGradients(model, model.embedding), tokenizer)
        text = package.TextTokenInput("this is a test", tokenizer, skip_tokens=[1])
        found.append(method.attribute(text, "the cat", n_steps=4))
    torch.testing.assert_close(found[1].token_attr, found[0].token_attr, atol=1e-6, rtol=1e-5)
    text = whence.captum.TextTemplateInput("{} is {}", ["a", "b"])
    method = whence.captum.LLMAttribution(whence.captum.FeatureAblation(model), tokenizer)
    assert len(method.attribute(text, gen_args={"max_new_tokens": 3}).output_tokens) == 3


def test_a_provider_of_the_users() -> None:
    model, tokenizer = Language().eval(), Tokenizer()

    class Own(whence.captum.RemoteLLMProvider):
        def generate(self, prompt: str, **gen_args: Any) -> str:
            return "the cat"

        def get_logprobs(self, input_prompt: str, target_str: str, tokenizer: Any = None) -> list[float]:
            ids = torch.tensor([tokenizer.encode(input_prompt) + tokenizer.encode(target_str, False)])
            logs = model(ids).logits.log_softmax(-1)[0, -3:-1]
            return logs.gather(1, ids[0, -2:, None])[:, 0].tolist()

    text = whence.captum.TextTemplateInput("{} is {}", ["a", "b"])
    there = whence.captum.RemoteLLMAttribution(
        whence.captum.FeatureAblation(whence.captum.RemoteLLMAttribution.placeholder_model), tokenizer, Own()
    )
    here = whence.captum.LLMAttribution(whence.captum.FeatureAblation(model), tokenizer)
    expected = here.attribute(text, "the cat").token_attr
    torch.testing.assert_close(there.attribute(text).token_attr, expected, atol=1e-6, rtol=1e-5)


# ---- metrics ----


@pytest.mark.parametrize("normalize", [False, True])
def test_infidelity(normalize: bool) -> None:
    two, values = models()["two"], (draw(2, 3) + 1, draw(2, 2) - 1)

    def moved(inputs: Any) -> Any:
        noise = tuple(torch.sin(torch.arange(x.numel()).float()).view_as(x) / 5 for x in inputs)
        return noise, tuple(x - n for x, n in zip(inputs, noise, strict=True))

    theirs, ours = (
        package.infidelity(
            two, moved, (X, Y), values, target=[0, 1], n_perturb_samples=6, normalize=normalize,
            max_examples_per_batch=4,
        )
        for package in (captum.metrics, whence.captum)
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-4)


def test_sensitivity_max() -> None:
    two = models()["two"]
    saliency = captum.attr.IntegratedGradients(two)
    found = []
    for package in (captum.metrics, whence.captum):
        torch.manual_seed(0)
        found.append(package.sensitivity_max(saliency.attribute, (X, Y), target=[0, 1], n_steps=5))
    assert found[0].shape == found[1].shape == (2,)
    torch.testing.assert_close(found[1], found[0], atol=0.02, rtol=0.5)  # other random numbers
    fixed = {"perturb_func": lambda x, radius=0.1: tuple(t * 1.1 for t in x), "n_perturb_samples": 2, "n_steps": 5}
    theirs, ours = (
        package.sensitivity_max(saliency.attribute, (X, Y), target=1, **fixed)
        for package in (captum.metrics, whence.captum)
    )
    torch.testing.assert_close(ours, theirs)


# ---- pictures ----


def test_pictures() -> None:
    draws = whence.captum.visualization
    values, image = draw(6, 6, 3).numpy(), np.clip(draw(6, 6, 3).numpy(), 0, 1)
    for method in draws.ImageVisualizationMethod.__members__:
        figure, axis = draws.visualize_image_attr(values, image, method, "positive", use_pyplot=False)
        assert axis.images
    figure, axes = draws.visualize_image_attr_multiple(
        values, image, ["original_image", "heat_map"], ["all", "all"], ["a", "b"], use_pyplot=False, show_colorbar=True
    )
    assert [axis.get_title() for axis in axes] == ["a", "b"]
    for method in draws.TimeseriesVisualizationMethod.__members__:
        figure, axes = draws.visualize_timeseries_attr(draw(9, 2).numpy(), draw(9, 2).numpy(), None, method, "all",
                                                       ["u", "v"], use_pyplot=False)  # fmt: skip
        assert figure.axes
    for wrong in ({"sign": "both"}, {"method": "cube"}, {"method": "original_image"}):
        with pytest.raises(AssertionError):
            draws.visualize_image_attr(values, use_pyplot=False, **wrong)


def test_the_shades_are_captums() -> None:
    from captum.attr import visualization

    values = draw(6, 6, 3).numpy()
    for sign in ("positive", "negative", "absolute_value", "all"):
        shown = []
        for package in (visualization, whence.captum.visualization):
            _, axis = package.visualize_image_attr(values, sign=sign, use_pyplot=False)
            shown.append(np.asarray(axis.images[0].get_array()))
        np.testing.assert_allclose(shown[1], shown[0], atol=1e-6)


def test_words() -> None:
    draws = whence.captum.visualization
    record = draws.VisualizationDataRecord(torch.tensor([0.5, -1.0]), 0.9, 1, 1, 1, 0.4, ["<s>", "bad"], 0.1)
    page = draws.visualize_text([record])
    page = getattr(page, "data", page)
    assert "hsl(120, 75%, 75%)" in page
    assert "#s" in page
    assert draws.format_word_importances(["a"], []) == "<td></td>"


# ---- helpers ----


def test_rules_of_approximation() -> None:
    from captum.attr._utils.approximation_methods import approximation_parameters

    for method in helpers.SUPPORTED_METHODS:
        for ours, theirs in zip(
            helpers.approximation_parameters(method), approximation_parameters(method), strict=True
        ):
            np.testing.assert_allclose(ours(6), theirs(6), atol=1e-7)


def test_batches_of_arguments() -> None:
    parts = list(helpers._batched_generator((X, Y), (2, X), [0, 1], 1))
    assert [part[2] for part in parts] == [[0], [1]]
    assert torch.equal(parts[1][1][1], X[1:])
    total = helpers._batched_operator(
        lambda inputs, additional_forward_args, target_ind: inputs[0], X, internal_batch_size=1
    )
    assert torch.equal(total, X)


def test_futures() -> None:
    dense = models()["dense"]

    def later(x: Tensor) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(dense(x))
        return future

    for name in ("FeatureAblation", "ShapleyValues", "FeaturePermutation"):
        plain = getattr(whence.captum, name)(dense).attribute(X, target=1)
        assert torch.equal(getattr(whence.captum, name)(later).attribute_future(X, target=1).value(), plain)
