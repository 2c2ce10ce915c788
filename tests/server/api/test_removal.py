"""Conversations, and what is left of an answer without some of its prompt, or of a molecule without some atoms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.server import Server, chat_folder, served
from whence.adapters.chats import rendered

PROMPT = "despite its flaws, the movie"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is it?"}]
ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("models") / "chatty")


@pytest.fixture(scope="module")
def own(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("rdkit")
    with served(
        tmp_path_factory.mktemp("own"), "--model", str(chatty), "--model", "zoo:language", "--model", "zoo:molecules"
    ) as found:
        yield found


# ---- conversations ----


def test_a_conversation_is_written_to_and_explained_as_by_explain(own: Server, chatty: Path) -> None:
    question = {"model": "chatty", "input": {"messages": MESSAGES}}
    told = own.ask(kind="generate", tokens=3, **question)["results"][0]
    model = whence.load(str(chatty))
    text = rendered(model.tokenizer, MESSAGES)
    assert told["prompt"] == text
    assert [(m["role"], text[m["start"] : m["end"]]) for m in told["messages"]] == [
        (m["role"], m["content"]) for m in MESSAGES
    ]
    assert told["ids"] == model.complete(MESSAGES, 3).ids
    found = own.ask(kind="explain", target=told["ids"], methods=["attnlrp"], **question)["results"][0]
    a = whence.explain(model, MESSAGES, method="attnlrp", target=model.complete(MESSAGES, 3))
    assert torch.tensor(found["values"]) == pytest.approx(a.values[0].float(), rel=1e-4, abs=1e-6)
    drawn = [unit for unit in found["units"] if not unit["special"] and unit["part"] != "written"]
    assert "".join(unit["text"] for unit in drawn).replace("␣", " ").split() == "Be brief.Who is it?".split()


def test_the_last_message_of_the_assistant_is_the_answer(own: Server) -> None:
    answer = {"role": "assistant", "content": "Ann."}
    told = own.ask(kind="generate", model="chatty", input={"messages": [*MESSAGES, answer]})["results"][0]
    assert told["answer"] == "Ann."
    assert [m["role"] for m in told["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    ("messages", "status", "says"),
    [
        ([], 422, "no message"),
        ([{"role": "user", "content": " "}], 422, "message 1 (user) is empty"),
        ([{"role": " ", "content": "a"}], 422, "Message 1 has no role"),
        ([{"role": "user", "content": "a" * 15_000}] * 2, 413, "The conversation has 30,"),
    ],
)
def test_conversations_have_limits(own: Server, messages: Any, status: int, says: str) -> None:
    question = {"kind": "generate", "model": "chatty", "input": {"messages": messages}}
    found = own.refused("POST", "/api/ask", question)
    assert found[0] == status
    assert says in found[2]


def test_a_model_without_a_template_takes_no_conversation(own: Server) -> None:
    question = {"kind": "generate", "model": "zoo:language", "input": {"messages": MESSAGES}}
    status, _, text = own.refused("POST", "/api/ask", question)
    assert status == 422
    assert "no chat template" in text


# ---- curves of what is written ----


def likely(model: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """The probability of each token of the answer, token by token."""
    ids, found = list(prompt), []
    with torch.no_grad():
        for token in answer:
            scores = model.model(input_ids=torch.tensor([ids])).logits[0, -1].double()
            found.append(scores.softmax(-1)[token])
            ids.append(token)
    return torch.stack(found)


@pytest.mark.parametrize("chosen", [None, [1]])
def test_curves_of_an_answer_are_teacher_forced(own: Server, chosen: Any) -> None:
    model = whence.load("zoo:language")
    answer = model.complete(PROMPT, 3)
    how = {} if chosen is None else {"chosen": chosen}
    told = own.ask(kind="deletion", model="zoo:language", input={"prompt": PROMPT}, target=answer.ids,
                   methods=["leave_one_out", "gradient"], **how)["results"][0]  # fmt: skip
    ids = model.tokenizer(PROMPT)["input_ids"]
    a = whence.explain(model, PROMPT, method="leave_one_out", target=answer)
    places = list(range(len(answer.ids))) if chosen is None else chosen
    scores = a.values[0][places, : len(ids)].sum(0)
    order = [unit for (unit,) in told["orders"]["leave_one_out"]]
    assert scores[order].tolist() == sorted(scores[order].tolist(), reverse=True)
    assert set(order) == {i for i in range(len(ids)) if not a.special[0][i]}
    for place, count in enumerate(told["places"]):
        kept = [token for i, token in enumerate(ids) if i not in order[:count]]
        mean = likely(model, kept, answer.ids)[places].log().mean().exp()
        assert told["curves"]["leave_one_out"][place] == pytest.approx(float(mean), rel=1e-4)
    assert told["unit"] == "token"
    assert told["random"]["low"][1] <= told["random"]["mean"][1] <= told["random"]["high"][1]


def test_a_chat_template_stays_while_messages_go(own: Server) -> None:
    question = {"model": "chatty", "input": {"messages": MESSAGES}}
    told = own.ask(kind="generate", tokens=2, **question)["results"][0]
    found = own.ask(kind="deletion", target=told["ids"], methods=["gradient"], **question)["results"][0]
    inside = {i for m in told["messages"] for i in range(m["start"], m["end"])}
    assert {unit for (unit,) in found["orders"]["gradient"]} == inside  # a tokenizer of single bytes
    assert found["places"][-1] == len(inside)


def test_curves_of_tokens_that_are_not_there_are_refused(own: Server) -> None:
    body = {"kind": "deletion", "model": "zoo:language", "input": {"prompt": PROMPT}, "methods": ["gradient"]}
    for chosen in ([99], [], [-1], [0, -1]):
        assert own.refused("POST", "/api/ask", {**body, "chosen": chosen})[0] == 422


# ---- molecules ----


def test_a_molecule_without_atoms_is_the_smaller_graph(own: Server) -> None:
    gone = [3, 0]
    told = own.ask(kind="remove", model="zoo:molecules", input={"smiles": ASPIRIN}, methods=["deeplift", "gradient"],
                   removed=gone)["results"][0]  # fmt: skip
    model = whence.load("zoo:molecules")
    inputs = model.processor(ASPIRIN)
    kept = torch.tensor([i for i in range(inputs["atoms"].shape[1]) if i not in gone])
    with torch.no_grad():
        whole = model.model(**inputs)
        less = model.model(inputs["atoms"][:, kept], inputs["pairs"][:, kept][:, :, kept], inputs["mask"][:, kept])
    whole, less = (getattr(out, "logits", out)[0] for out in (whole, less))
    target = told["target"]
    assert told["change"] == pytest.approx(float(less[target] - whole[target]), rel=1e-4)
    a = whence.explain(model, ASPIRIN, method="deeplift", target=target)
    atoms, pairs = a.values["atoms"][0], a.values["pairs"][0]
    touched = torch.zeros(len(atoms), dtype=torch.bool)
    touched[gone] = True
    said = -float(atoms[touched].sum() + pairs[touched[:, None] | touched].sum())
    assert told["expected"]["deeplift"]["change"] == pytest.approx(said, rel=1e-4)
    assert told["expected"]["gradient"]["change"] is None


def test_curves_of_a_molecule(own: Server) -> None:
    question = {"model": "zoo:molecules", "input": {"smiles": ASPIRIN}}
    told = own.ask(kind="deletion", methods=["deeplift"], **question)["results"][0]
    assert told["unit"] == "atom"
    assert told["places"] == list(range(13))  # of 13 atoms, one stays
    order = [unit for (unit,) in told["orders"]["deeplift"]]
    for count in (1, 4):
        one = own.ask(kind="remove", removed=order[:count], methods=[], **question)["results"][0]
        (after,) = [c["probability"] for c in one["after"] if c["index"] == one["target"]]
        assert told["curves"]["deeplift"][count] == pytest.approx(after, rel=1e-5)


def test_a_molecule_of_too_many_atoms_is_refused(own: Server) -> None:
    """A pass has numbers for every pair of atoms: thousands of atoms are gigabytes."""
    status, kind, text = own.refused("POST", "/api/predict", {"model": "zoo:molecules", "input": {"smiles": "C" * 257}})
    assert (status, kind) == (413, "atoms")
    assert "257 atoms" in text
    assert own.send("POST", "/api/predict", {"model": "zoo:molecules", "input": {"smiles": "C" * 40}})[0] == 200


@pytest.mark.parametrize("removed", [[13], list(range(13))])
def test_atoms_that_cannot_go(own: Server, removed: list[int]) -> None:
    body = {"kind": "remove", "model": "zoo:molecules", "input": {"smiles": ASPIRIN}, "removed": removed}
    assert own.refused("POST", "/api/ask", body)[0] == 422
