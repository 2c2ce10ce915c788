"""Axiomatic attribution (Sundararajan, Taly & Yan 2017): paths, photographs, questions, a translation, molecules."""

from __future__ import annotations

from reproductions.axiomatic_attribution import ligands, paths, photographs, questions, translation
from reproductions.report import Report


def run(report: Report) -> None:
    with report.part("Figure 1: three paths, one of them symmetric"):
        paths.run(report)
    with report.part("Figure 2: object recognition"):
        photographs.run(report)
    with report.part("Question classification"):
        questions.run(report)
    with report.part("Translation"):
        translation.run(report)
    with report.part("Ligands"):
        ligands.run(report)
