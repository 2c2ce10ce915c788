"""Where the answers differ from Captum's on purpose, and why: one table, which `differences()` prints."""

from __future__ import annotations

DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    (
        "DeepLift, DeepLiftShap, their layers and neurons",
        "Every op shares out its own difference, also functions that are not modules, products, max-pooling, norms "
        "and attention, and reused modules; contributions sum to the score's difference on every architecture.",
        "Captum applies its rule to the nonlinear modules that it knows, takes plain gradients elsewhere, and raises "
        "for modules that run twice. At the input of such a module (attribute_to_layer_input=True) it takes the plain "
        "gradient of the module itself, so that its values do not sum to the difference.",
    ),
    (
        "LRP, LayerLRP",
        "Every op has a rule, modules or not, reused or not; a sum shares relevance in proportion; normalisations, "
        "scalings and elementwise functions hand it on as it is; relevance is conserved but for biases of linear "
        "layers and convolutions, and ε. Rules set on other modules have no effect, and stay set.",
        "Captum raises for modules that run twice or have no default rule, multiplies relevance by the gradient of ops "
        "that are not modules (so each summand gets all of it, and a factor scales it), and removes rules after a "
        "call. Its default for BatchNorm2d is LRP-ε, wx/(σy) of the relevance, in which the shift takes the rest; "
        "with IdentityRule set there, and wherever the shift is 0, the numbers agree.",
    ),
    (
        "Models in train mode",
        "Explained in eval mode, dropout off and norms by their running statistics, which are not updated; in train "
        "mode again afterwards.",
        "Captum runs the model in the mode that it is in, and updates running statistics.",
    ),
    (
        "GammaRule, Alpha1_Beta0_Rule",
        "The rules as published, which look at the sign of each contribution.",
        "Captum changes the weights alone, which is the same for inputs that are not negative and outputs that are "
        "positive; set_bias_to_zero has no effect here.",
    ),
    (
        "GuidedBackprop, GuidedGradCam, Deconvolution",
        "Every rectifier is treated, whatever its spelling; smooth activations by their derivative.",
        "Captum treats nn.ReLU modules alone.",
    ),
    (
        "KernelShap",
        "Exact where n_samples reach all coalitions; beyond, pairs of coalitions, with the sum kept exactly.",
        "Captum draws coalitions one by one, and enforces the sum by large weights.",
    ),
    (
        "ShapleyValueSampling",
        "Exact where all 2ⁿ coalitions are no more evaluations than n_samples orders; beyond, each order is walked "
        "from both ends.",
        "Captum walks n_samples orders.",
    ),
    (
        "ShapleyValues",
        "All 2ⁿ coalitions, each once.",
        "Captum walks all n! orders: the same numbers at more evaluations.",
    ),
    (
        "All gradient methods",
        "Attributions have no graph, and hooks, flags and requires_grad are as before also when a model raises.",
        "Captum's products with an input that requires a gradient carry a graph.",
    ),
    (
        "A layer that runs several times",
        "Its last call for gradients, as in Captum; DeepLift and LRP take that call too.",
        "Captum raises or mixes the calls in DeepLift and LRP.",
    ),
    (
        "LayerFeaturePermutation",
        "Works with a target.",
        "Captum 0.9.0 raises when a target is given.",
    ),
    (
        "DataLoaderAttribution",
        "Takes every perturbation method of this package that has perturbations_per_eval.",
        "Captum takes FeatureAblation alone.",
    ),
    (
        "VLLMProvider",
        "Raises: Whence opens no connection. RemoteLLMAttribution takes a RemoteLLMProvider of your own.",
        "Captum asks a vLLM server.",
    ),
    (
        "Warnings",
        "Whence's own warnings (WhenceWarning) tell of rows that are random, cancel or do not depend on the input.",
        "Captum has other texts.",
    ),
)


def differences() -> None:
    """Print where Whence's answers differ from Captum's on purpose."""
    from whence.util.terminal import say

    for where, here, there in DIFFERENCES:
        say(f"{where}\n  Whence: {here}\n  Captum: {there}")
