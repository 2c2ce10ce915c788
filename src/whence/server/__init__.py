"""`whence serve`: explain, compare, question and browse in a web page, and the JSON API that the page uses."""
