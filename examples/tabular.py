"""Which measurements speak for a diagnosis? A network of one's own on a table, with names for its columns."""

import sys

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import whence

out = sys.argv[1] if len(sys.argv) > 1 else "tabular.html"
table = load_breast_cancer()
x = torch.tensor(table.data, dtype=torch.float32)
x, y = (x - x.mean(0)) / x.std(0), torch.tensor(table.target)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()

model.eval()
a = whence.explain(model, x[:1], method="deeplift", target=0, baseline=x.mean(0, keepdim=True))
for value, name in sorted(zip(a.values[0].tolist(), table.feature_names, strict=True), key=lambda v: -abs(v[0]))[:5]:
    print(f"{name:24} {value:+.3f}")
print(f"they sum to f(x) − f(mean patient) within {float(a.gap.max()):.0e}")
a.save(out)
