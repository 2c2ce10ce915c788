"""What is an image recognised by? The zoo's Fashion-MNIST network, with Captum's classes.

Gradients, integrals, occlusion and Grad-CAM of the predicted class, for six of the zoo's images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from beside import main
from matplotlib import pyplot
from PIL import Image

import whence

EXPLAINED, SHOWN = 6, (0, 3, 5)  # images; those in the picture


def prepare() -> tuple[Any, ...]:
    zoo = whence.load("zoo:fashion-cnn")
    opened = [Image.open(path) for path in zoo.examples[:EXPLAINED]]
    images = zoo.processor(opened)["pixel_values"].double()  # (6, 1, 28, 28)
    model = zoo.model.double()
    with torch.no_grad():
        classes = model(images).argmax(1)
    return model, images, classes, zoo.labels


def attribute(package: str, model: Any, images: torch.Tensor, classes: torch.Tensor, labels: Any) -> Iterator[Any]:
    if package == "captum":
        from captum.attr import (  # noqa: I001
            DeepLift, GradientShap, GuidedGradCam, IntegratedGradients, LayerAttribution, LayerGradCam, NoiseTunnel,
            Occlusion, Saliency, visualization,
        )  # fmt: skip
    else:
        from whence.captum import (  # noqa: I001
            DeepLift, GradientShap, GuidedGradCam, IntegratedGradients, LayerAttribution, LayerGradCam, NoiseTunnel,
            Occlusion, Saliency, visualization,
        )  # fmt: skip
    black = torch.full_like(images, float(images.min()))

    saliency = Saliency(model).attribute(images, target=classes)
    yield "Saliency", saliency

    integrated = IntegratedGradients(model)
    values, delta = integrated.attribute(
        images, baselines=black, target=classes, n_steps=60, internal_batch_size=50, return_convergence_delta=True
    )
    yield "IntegratedGradients", values, delta

    smooth = NoiseTunnel(integrated).attribute(
        images, nt_type="smoothgrad_sq", nt_samples=6, nt_samples_batch_size=2, stdevs=0.1, baselines=black,
        target=classes, n_steps=12,
    )  # fmt: skip
    yield "NoiseTunnel(IntegratedGradients)", smooth

    grey = torch.cat([black[:1], torch.zeros_like(images[:1])])  # a distribution of two
    shap = GradientShap(model).attribute(images, baselines=grey, n_samples=64, stdevs=0.05, target=classes)
    yield "GradientShap", shap

    occluded = Occlusion(model).attribute(
        images, sliding_window_shapes=(1, 6, 6), strides=(1, 2, 2), baselines=float(images.min()), target=classes,
        perturbations_per_eval=4,
    )  # fmt: skip
    yield "Occlusion", occluded

    lifted, delta = DeepLift(model).attribute(images, baselines=black, target=classes, return_convergence_delta=True)
    yield "DeepLift", lifted, delta

    last = model.convolutions[8]  # the last convolution, rectified
    cam = LayerGradCam(model, last).attribute(images, target=classes)
    yield "LayerGradCam", cam
    cam = LayerAttribution.interpolate(cam, (28, 28), interpolate_mode="bilinear")
    yield "LayerGradCam, interpolated", cam
    yield "GuidedGradCam", GuidedGradCam(model, last).attribute(images, target=classes)

    maps = {"Saliency": saliency, "IntegratedGradients": values, "NoiseTunnel": smooth, "GradientShap": shap,
            "Occlusion": occluded, "LayerGradCam": cam}  # fmt: skip
    figure, axes = pyplot.subplots(len(SHOWN), 1 + len(maps), figsize=(16, 2.5 * len(SHOWN)))
    for line, row in zip(axes, SHOWN, strict=True):
        original = (images[row, 0, ..., None] - images.min()) / (images.max() - images.min())
        line[0].imshow(original, cmap="gray")
        line[0].set(title=labels[int(classes[row])], xticks=[], yticks=[])
        for axis, (title, found) in zip(line[1:], maps.items(), strict=True):
            visualization.visualize_image_attr(
                found[row, 0, ..., None].detach().numpy(), original.numpy(), method="heat_map",
                sign="all" if bool(found.min() < 0) else "positive", title=title, plt_fig_axis=(figure, axis),
                use_pyplot=False,
            )  # fmt: skip
    yield "picture", figure


if __name__ == "__main__":
    main(__file__, __doc__, prepare, attribute)
