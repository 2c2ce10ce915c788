"""Do integrated gradients show what an object is recognised by, better than plain gradients do?

The zoo's two Fashion-MNIST classifiers. The paper compares pictures; here the pixels that each map ranks highest are
also put to the test: they are painted over with the image's darkest value, and the class's probability is read again.
Needs Debian's dataset-fashion-mnist; without it, the ten images of the zoo are taken.
"""

from __future__ import annotations

import torch
from matplotlib import pyplot
from pictures import grid, save, table, where

import whence
from whence.zoo.training import data

IMAGES, SHARES = 200, (0.02, 0.05, 0.1, 0.2)
METHODS = {
    "integrated gradients": {"method": "integrated_gradients", "baseline": "black"},
    "gradient": {"method": "gradient", "absolute": True},
    "gradient × image": {"method": "input_x_gradient"},
    "random": {"method": "random"},
}


def main() -> None:
    out = where(__file__, __doc__)
    figure, axes = pyplot.subplots(6, 5, figsize=(9, 10.5), layout="constrained")
    for half, name in zip((axes[:3], axes[3:]), ("zoo:fashion-cnn", "zoo:fashion-vit"), strict=True):
        zoo = whence.load(name)
        pixels, taken = images(zoo)
        with torch.no_grad():
            scores = logits(zoo.model, pixels).softmax(1)
        classes, before = scores.argmax(1), scores.amax(1)
        print(f"{name}: {len(pixels)} {taken}, mean probability of the predicted class {float(before.mean()):.3f}\n")
        found = {title: whence.explain(zoo.model, {"pixel_values": pixels}, target=classes, **how)
                 for title, how in METHODS.items()}  # fmt: skip
        rows = []
        for title, a in found.items():
            drops = [(before - painted(zoo.model, pixels, a.values, classes, share)) for share in SHARES]
            rows.append([title, *(f"{float(d.mean()):.3f} ± {float(d.std()) / len(d) ** 0.5:.3f}" for d in drops)])
        table(["highest-ranked pixels painted over", *(f"{share:.0%}" for share in SHARES)], rows)
        converged = found["integrated gradients"].receipt["converged"]
        print(
            f"\n(probability lost, mean ± standard error; {sum(converged)} of {len(converged)} integrals converged)\n"
        )
        _draw(half, pixels, found, classes, zoo)
    save(figure, out)


def images(zoo) -> tuple[torch.Tensor, str]:  # type: ignore[no-untyped-def]
    try:
        pixels, _ = data.fashion("t10k")
        return zoo.processor.normalised(pixels[:IMAGES]), "test images"
    except whence.FileError as error:
        print(f"{error}\nGoing on with the zoo's own examples.\n")
        from PIL import Image

        return zoo.processor([Image.open(path) for path in zoo.examples])["pixel_values"], "images of the zoo"


def logits(model, pixels: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
    found = model(pixel_values=pixels)
    return found if isinstance(found, torch.Tensor) else found.logits


@torch.no_grad()
def painted(model, pixels, values, classes, share: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """The class's probability without the share of pixels that the map ranks highest."""
    count = round(share * pixels[0].numel())
    highest = values.flatten(1).topk(count, 1).indices
    dark = pixels.flatten(1).amin(1, keepdim=True).expand(-1, count)
    without = pixels.flatten(1).scatter(1, highest, dark).view_as(pixels)
    return logits(model, without).softmax(1).gather(1, classes[:, None])[:, 0]


def _draw(axes, pixels, found, classes, zoo) -> None:  # type: ignore[no-untyped-def]
    for line, row in zip(axes, (0, 1, 6), strict=True):
        line[0].imshow(pixels[row, 0], cmap="gray")
        line[0].set_title(f"{zoo.labels[int(classes[row])]}", fontsize=8)
        line[0].axis("off")
        for axis, (title, a) in zip(line[1:], found.items(), strict=True):
            grid(axis, a.values[row].reshape(28, 28), title)


if __name__ == "__main__":
    main()
