"""What metrics ask for, answered in common batches: logits of perturbed copies, attention, other explanations."""
