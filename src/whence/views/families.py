"""The methods by the question that they ask: families, readable titles, and which four are shown first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whence.methods import methods

FAMILIES: dict[str, str] = {
    "Slopes": "What would a small change do?",
    "Paths": "What changed on the way from nothing to this input?",
    "References": "What makes the difference to a reference?",
    "Relevance": "Where does the score flow back to?",
    "Attention": "Where did the model look?",
    "Removal": "What is lost when it is taken away?",
    "Control": "What does chance look like?",
    "Others": "What else was asked?",
}
_BY_MODULE = {  # a method's family is that of the module, or the package, in which it stands
    "gradient": "Slopes", "smoothgrad": "Slopes", "guided": "Slopes", "grad_cam": "Slopes", "integrated": "Paths",
    "deeplift": "References", "relevance": "Relevance", "attention": "Attention", "perturbation": "Removal",
    "random": "Control",
}  # fmt: skip


def family_of(method: str) -> str:
    """The family of a method; what reads attention is of that one, wherever it stands."""
    if method not in methods:
        return "Others"
    entry = methods[method]
    if entry.facts.get("needs") == "attention":
        return "Attention"
    _, ours, rest = entry.function.__module__.partition("whence.methods.")
    own = _BY_MODULE.get(rest.partition(".")[0]) if ours else None
    return own or ("Slopes" if entry.facts.get("slope") else "Others")


def by_family(names: Mapping[str, str]) -> dict[str, list[str]]:
    """Labels of a comparison by family; `names` are the labels' methods."""
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for label, method in names.items():
        found[family_of(method)].append(label)
    return {family: labels for family, labels in found.items() if labels}


_WORDS = {
    "lrp": "LRP", "attnlrp": "AttnLRP", "cp": "CP", "cam": "CAM", "gradcam": "Grad-CAM", "sam": "SAM", "cat": "CAT",
    "attcat": "AttCAT", "lime": "LIME", "shap": "SHAP", "deeplift": "DeepLIFT", "deepshap": "DeepSHAP", "x": "×",
    "smoothgrad": "SmoothGrad", "deconvnet": "DeconvNet",
}  # fmt: skip
_TITLES = {
    "shapley": "Shapley values",
    "cp_lrp": "CP-LRP",
    "grad_cam": "Grad-CAM",
    "guided_grad_cam": "Guided Grad-CAM",
    "context_cite": "ContextCite",
}


def title_of(label: str) -> str:
    """A label as people write it: a method's name in words, and everything else as it is."""
    if label not in methods or label != label.lower():
        return label
    if label in _TITLES:
        return _TITLES[label]
    words = [_WORDS.get(word, word) for word in label.split("_")]
    return " ".join([words[0] if words[0] != words[0].lower() else words[0].capitalize(), *words[1:]])


FIRST = 4  # methods that are seen at once
_PREFERRED = (
    "integrated_gradients", "attnlrp", "shapley", "transformer_attribution", "grad_cam", "lrp", "occlusion", "deeplift",
    "attcat", "leave_one_out", "input_x_gradient", "gradient",
)  # fmt: skip


def first_of(names: Mapping[str, str], most: int = FIRST) -> list[str]:
    """The labels that are shown first: all, where they are few; else one of each family, the usual ones first."""
    if len(names) <= most:
        return list(names)
    rank = {method: place for place, method in enumerate(_PREFERRED)}
    usual = sorted(names, key=lambda label: rank.get(names[label], len(rank)))
    chosen: list[str] = []
    for label in usual:
        other = {family_of(names[one]) for one in chosen}
        if len(chosen) < most and family_of(names[label]) not in other | {"Control"}:
            chosen.append(label)
    more = (label for label in usual if label not in chosen)
    chosen += [label for label, _ in zip(more, range(most - len(chosen)), strict=False)]
    return sorted(chosen, key=usual.index)


def letters(labels: Sequence[str]) -> dict[str, str]:
    """A, B, C, … for the methods that are shown first."""
    return {label: chr(ord("A") + place) for place, label in enumerate(labels[:26])}
