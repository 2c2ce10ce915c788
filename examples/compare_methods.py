"""Do methods agree about one prediction? Four that ask different questions, on one scale."""

import sys

import whence

out = sys.argv[1] if len(sys.argv) > 1 else "compare_methods.html"
clf = whence.load("zoo:sentiment")
methods = ["integrated_gradients", "transformer_attribution", "leave_one_out", "gradient"]
both = whence.compare(clf, clf.examples[0], methods=methods)
both.show()
both.save(out)
