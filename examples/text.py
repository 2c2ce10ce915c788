"""Which words made a review positive? One sentence, one method, a page to keep."""

import sys

import whence

out = sys.argv[1] if len(sys.argv) > 1 else "text.html"
clf = whence.load("zoo:sentiment")
a = whence.explain(clf, "a gripping film, though a little too long", method="integrated_gradients", target="positive")
a.merge_words().show()  # in the terminal
a.merge_words().save(out)  # as a page
