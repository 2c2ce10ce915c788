"""Which pixels made it a cup of espresso? A photograph, its prediction, and the map beside it."""

import sys

import whence

out = sys.argv[1] if len(sys.argv) > 1 else "image.html"
try:
    clf = whence.load("zoo:photos")
except whence.ParameterError as error:  # without the extra: clothes instead of photographs
    print(error)
    clf = whence.load("zoo:fashion-cnn")
a = whence.explain(clf, clf.examples[1], method="lrp", composite="epsilon_plus")
print(f"{a.labels[0]}, score {a.output_value[0]:.2f}")
a.save(out)
