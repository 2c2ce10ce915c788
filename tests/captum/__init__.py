"""`whence.captum` beside the installed Captum."""
