"""Captum's classes by their names and signatures, on top of `whence.explain`: `from whence.captum import Saliency`.

`differences()` prints where answers differ from Captum's on purpose; `install()` lets `captum.attr` mean this package.
"""

from whence.captum import visualization
from whence.captum.aliases import install
from whence.captum.base import (
    Attribution,
    GradientAttribution,
    InternalAttribution,
    LayerAttribution,
    NeuronAttribution,
    PerturbationAttribution,
)
from whence.captum.data_loader import DataLoaderAttribution
from whence.captum.differences import differences
from whence.captum.embeddings import (
    InterpretableEmbeddingBase,
    TokenReferenceBase,
    configure_interpretable_embedding_layer,
    remove_interpretable_embedding_layer,
)
from whence.captum.gradients import (
    Deconvolution,
    DeepLift,
    DeepLiftShap,
    GradientShap,
    GuidedBackprop,
    GuidedGradCam,
    InputXGradient,
    IntegratedGradients,
    Saliency,
)
from whence.captum.interpretable import (
    ImageMaskInput,
    InterpretableInput,
    ProductBaselines,
    TextTemplateInput,
    TextTokenInput,
)
from whence.captum.language_models import (
    LLMAttribution,
    LLMAttributionResult,
    LLMGradientAttribution,
    RemoteLLMAttribution,
)
from whence.captum.layers import (
    InternalInfluence,
    LayerActivation,
    LayerConductance,
    LayerDeepLift,
    LayerDeepLiftShap,
    LayerGradCam,
    LayerGradientShap,
    LayerGradientXActivation,
    LayerIntegratedGradients,
)
from whence.captum.metrics import infidelity, infidelity_perturb_func_decorator, sensitivity_max
from whence.captum.neurons import (
    NeuronConductance,
    NeuronDeconvolution,
    NeuronDeepLift,
    NeuronDeepLiftShap,
    NeuronFeatureAblation,
    NeuronGradient,
    NeuronGradientShap,
    NeuronGuidedBackprop,
    NeuronIntegratedGradients,
)
from whence.captum.noise_tunnel import NoiseTunnel
from whence.captum.perturbation import (
    FeatureAblation,
    FeaturePermutation,
    LayerFeatureAblation,
    LayerFeaturePermutation,
    Occlusion,
    ShapleyValues,
    ShapleyValueSampling,
)
from whence.captum.providers import RemoteLLMProvider, VLLMProvider
from whence.captum.relevance import LRP, LayerLRP
from whence.captum.statistics import (
    MSE,
    ClassSummarizer,
    CommonStats,
    Count,
    Max,
    Mean,
    Min,
    Stat,
    StdDev,
    Sum,
    Summarizer,
    SummarizerSingleTensor,
    Var,
)
from whence.captum.surrogates import KernelShap, Lime, LimeBase

StatValue = object  # Captum's alias of types: what a statistic gives

__all__ = [  # noqa: RUF022
    "Attribution", "ClassSummarizer", "CommonStats", "Count", "DataLoaderAttribution", "Deconvolution",
    "DeepLift", "DeepLiftShap", "FeatureAblation", "FeaturePermutation", "GradientAttribution", "GradientShap",
    "GuidedBackprop", "GuidedGradCam", "ImageMaskInput", "InputXGradient", "IntegratedGradients",
    "InternalAttribution", "InternalInfluence", "InterpretableEmbeddingBase", "InterpretableInput",
    "KernelShap", "LLMAttribution", "LLMAttributionResult", "LLMGradientAttribution", "LRP", "LayerActivation",
    "LayerAttribution", "LayerConductance", "LayerDeepLift", "LayerDeepLiftShap", "LayerFeatureAblation",
    "LayerFeaturePermutation", "LayerGradCam", "LayerGradientShap", "LayerGradientXActivation",
    "LayerIntegratedGradients", "LayerLRP", "Lime", "LimeBase", "MSE", "Max", "Mean", "Min",
    "NeuronAttribution", "NeuronConductance", "NeuronDeconvolution", "NeuronDeepLift", "NeuronDeepLiftShap",
    "NeuronFeatureAblation", "NeuronGradient", "NeuronGradientShap", "NeuronGuidedBackprop",
    "NeuronIntegratedGradients", "NoiseTunnel", "Occlusion", "PerturbationAttribution", "ProductBaselines",
    "RemoteLLMAttribution", "RemoteLLMProvider", "Saliency", "ShapleyValueSampling", "ShapleyValues", "Stat",
    "StatValue", "StdDev", "Sum", "Summarizer", "SummarizerSingleTensor", "TextTemplateInput", "TextTokenInput",
    "TokenReferenceBase", "VLLMProvider", "Var", "configure_interpretable_embedding_layer", "differences",
    "infidelity", "infidelity_perturb_func_decorator", "install", "remove_interpretable_embedding_layer",
    "sensitivity_max", "visualization",
]  # fmt: skip
