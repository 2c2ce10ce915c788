"""From what users have (tensors, arrays, texts, images) to Subjects, and from answers back to their rows."""
