"""A sentiment BERT on the phrases of the Stanford Sentiment Treebank; word vectors begin as MiniLM's, made narrower."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, accuracy, fit, shuffled
from whence.zoo.training.tokens import borrowed, padded, shipped, word_pieces

LABELS = ("negative", "positive")
_EPOCHS, _SIZE, _LONGEST, _WIDTH, _DEVIATION = 4, 128, 128, 128, 0.05


def train(seed: int) -> Trained:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    phrases = data.phrases("train")
    sentences = [text for text, _, whole in phrases if whole]
    tokenizer = shipped("sentiment") or word_pieces(sentences, 8000, _LONGEST)
    known = sorted({(text, label) for text, label, _ in phrases if label != 2})  # neutral phrases say nothing
    texts = tokenizer([text for text, _ in known])["input_ids"]
    wanted = torch.tensor([int(label > 2) for _, label in known], device="cpu")
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=_WIDTH, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=2 * _WIDTH, max_position_embeddings=_LONGEST, type_vocab_size=1, hidden_dropout_prob=0.3,
            attention_probs_dropout_prob=0.1, initializer_range=_DEVIATION, pad_token_id=tokenizer.pad_token_id,
            id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)},
        )
    )  # fmt: skip
    model.bert.embeddings.word_embeddings.weight.data = borrowed(tokenizer, _WIDTH, _DEVIATION)

    def loss(rows: list[int]) -> Tensor:
        ids, mask = padded([texts[row] for row in rows])
        # words that go missing, so that none is all
        dropped = (torch.rand(ids.shape, device="cpu") < 0.15) & (ids >= 5)
        scores = model(input_ids=ids.masked_fill(dropped, tokenizer.unk_token_id), attention_mask=mask).logits
        return F.cross_entropy(scores, wanted[rows], label_smoothing=0.05)

    batches = shuffled(len(texts), _SIZE, [len(row) for row in texts])
    fit(model, batches, loss, count=_EPOCHS * len(texts) // _SIZE, rate=1e-3, decay=0.05, title="sentiment")
    return Trained(wrap(model, tokenizer))


def measure(wrapped: Wrapped) -> dict[str, float]:
    """On the sentences that are not neutral."""
    return {f"{split} accuracy": accuracy(wrapped, _sentences(split)) for split in ("dev", "test")}


def _sentences(split: str) -> data.Labelled:
    return [(text, int(label > 2)) for text, label, whole in data.phrases(split) if whole and label != 2]


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "text-classification",
        "what": "whether a sentence speaks well or badly of a film",
        "architecture": "BERT, 2 layers of 4 heads, 128 wide, 8,000 word pieces; word vectors begin as "
        "all-MiniLM-L6-v2's on their 128 principal axes, all else from scratch",
        "data": "Stanford Sentiment Treebank (Socher et al. 2013): the 77,307 labelled phrases of its training "
        "sentences that are not neutral; measured on the whole sentences of dev (872) and test (1,821) that "
        "are not neutral",
        "licence": "weights Apache-2.0; the treebank is a research release without a stated licence, MiniLM is "
        "Apache-2.0",
        "limits": "knows English film reviews and nothing else; everything it reads is negative or positive; negation "
        "and irony beyond a few words are mostly lost on it",
    },
    [
        "A warm, funny and beautifully acted little film.",
        "The plot makes no sense and the jokes fall flat.",
        "It is not a bad film, but it never comes to life.",
        "Despite a clumsy start, this is one of the year's most moving dramas.",
        "Two hours of my life that I will never get back.",
    ],
)
