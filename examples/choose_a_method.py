"""Which method should explain this model? Each is put to the test on labelled rows, against random rankings."""

import sys

import whence

out = sys.argv[1] if len(sys.argv) > 1 else "choose_a_method.html"
clf = whence.load("zoo:sentiment")
board = whence.evaluate(
    clf, list(clf.examples), methods=["integrated_gradients", "attcat", "rollout", "gradient", "random"],
    metrics=["comprehensiveness", "sufficiency"],
)  # fmt: skip
print(board)
board.save(out)
